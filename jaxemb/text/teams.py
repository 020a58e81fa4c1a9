"""Processes that read a corpus together: who reads what, and what all know.

A corpus is divided into parts by its pieces, whatever the number of processes;
each process reads some parts. Counts and figures are added up over them.
"""

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.text import word_table


class Team(NamedTuple):
  """The processes that read a corpus together; each its own parts of it."""

  num_parts: int  # of the corpus
  mine: range  # those that this process reads
  counted: range  # of these, those that no process before it reads
  index: int  # of this process; 0 is the one that tells
  num: int  # of processes
  # What every process has, in their order; all take part.
  gather: Callable[[bytes], list[bytes]]

  def reads(self, file: int, number: int) -> bool:
    """Whether this process reads a piece of a file."""
    return self.num == 1 or part_of(file, number, self.num_parts) in self.mine

  def counts(self, file: int, number: int) -> bool:
    """Whether it reads the piece and no process before it does."""
    part = part_of(file, number, self.num_parts)
    return self.num == 1 or part in self.counted


ALONE = Team(1, range(1), range(1), 0, 1, lambda data: [data])


def part_of(file: Any, number: Any, num_parts: int) -> Any:
  """Pieces are dealt to parts in turn, whichever process reads them."""
  return (file + number) % num_parts


def check_alike(team: Team, sizes_bytes: dict[str, int]) -> None:
  """Checks that all processes see the same files.

  Each would cut and divide a text of its own, and words be lost or come twice.

  Args:
    team: the processes.
    sizes_bytes: by path, of the files that this one sees.

  Raises:
    UserError: in every process, naming the first difference.
  """
  mine = sizes_bytes
  for other, data in enumerate(team.gather(json.dumps(mine).encode())):
    theirs = json.loads(data)
    for path in sorted(mine.keys() | theirs.keys()):
      here, there = (
        f'has {files[path]:,} bytes' if path in files else 'is missing'
        for files in (mine, theirs)
      )
      if here != there:
        raise errors.UserError(
          f'{path} {there} in process {other} and {here} in process '
          f'{team.index}; give all processes the same text'
        )


def pack(arrays: dict[str, np.ndarray]) -> bytes:
  """Arrays by name, to be gathered."""
  # No .npz, for the reason that is told in `scan`.
  head = json.dumps([(k, x.dtype.str, x.shape) for k, x in arrays.items()])
  parts = [x.tobytes() for x in arrays.values()]
  return b'\n'.join([head.encode(), b''.join(parts)])


def unpack(data: bytes) -> dict[str, np.ndarray]:
  """What `pack` made bytes of."""
  offset = data.index(b'\n') + 1
  arrays = {}
  for name, dtype, shape in json.loads(data[:offset]):
    size = math.prod(shape)
    flat = np.frombuffer(data, dtype, size, offset)
    arrays[name] = flat.reshape(shape).copy()
    offset += flat.nbytes
  return arrays


def table_of_all(
  table: word_table.WordTable, team: Team
) -> word_table.WordTable:
  """The counts of all processes together."""
  if team.num == 1:
    return table
  n = int(table.sizes[0])
  starts = table.starts[: n + 1]
  packed = pack(
    {
      'arena': table.arena[: starts[n]],
      'starts': starts,
      'counts': table.counts[:n],
    }
  )
  total = word_table.empty(1 << 16, 1 << 20)
  for data in team.gather(packed):
    part = unpack(data)
    total = word_table.merge(
      total, part['arena'], part['starts'], part['counts']
    )
  return total


def total(team: Team, mine: int) -> int:
  """A number added up over all processes."""
  return sum(int(data) for data in team.gather(str(mine).encode()))


def of_all(team: Team, mine: dict[str, Any]) -> dict[str, Any]:
  """Numbers added up, lists joined, over all processes."""
  whole: dict[str, Any] = {}
  for data in team.gather(json.dumps(mine).encode()):
    whole = _sum(whole, json.loads(data))
  # A file that is no range's is read by all processes; parts may be too.
  whole['pieces'] = sorted(set(map(tuple, whole['pieces'])))
  # Several may meet the same fault of a file.
  dropped = whole['dropped']
  dropped['problems'] = list(dict.fromkeys(dropped['problems']))
  return whole


def _sum(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
  total = dict(first)
  for key, value in second.items():
    if key not in total:
      total[key] = value
    elif isinstance(value, dict):
      total[key] = _sum(total[key], value)
    else:
      total[key] = total[key] + value
  return total
