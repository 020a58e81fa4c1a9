"""Files of words with several vectors, beside those of `word2vec_format`.

priors.txt     `word sense prior` lines, in the order of the rows
outputs.npy    [vocab or vocab - 1, dim] float32, see `evaluation.senses`
means.npy      [rows, dim] float32, of contexts, where those tell senses
senses.json    what the model was trained with; no outputs.npy if loss is null,
               no means.npy without concentration
dmwe.txt       the text format of Microsoft's distributed_skipgram_mixture:
               `vocab rows dim`; of each word `word senses`, then a line
               `prior v1 v2 ...` for each of its senses
"""

import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.storage import atomic, float_text

_MAX_LINE_BYTES = 1 << 20
_SUM = 1e-3  # that priors may be off by, rounded and averaged
# The first says that there are others.
FILES = ('senses.json', 'priors.txt', 'outputs.npy', 'means.npy', 'dmwe.txt')


class Stored(NamedTuple):
  """What the files hold."""

  words: list[str]
  starts: np.ndarray  # [vocab + 1] int64, first row of each word
  priors: np.ndarray  # [rows] float32
  outputs: np.ndarray | None  # [n, dim] float32; None without facts['loss']
  means: np.ndarray | None  # [rows, dim] float32; None = there are none
  facts: dict[str, Any]  # of senses.json


def has(folder: pathlib.Path) -> bool:
  """Whether vectors in a folder are those of senses."""
  return (folder / 'senses.json').exists()


def refuse_dmwe(path: pathlib.Path, file: BinaryIO) -> None:
  """Raises a `UserError` for dmwe.txt; else goes back to the beginning."""
  lines = [file.readline(_MAX_LINE_BYTES).split() for _ in range(3)]
  file.seek(0)
  numbers = [*lines[0], *lines[1][1:]]
  if (
    [len(x) for x in lines[:2]] == [3, 2]
    and all(x.isdigit() for x in numbers)
    and len(lines[2]) == int(lines[0][2]) + 1
  ):
    raise errors.UserError(
      f'{path} has the text format of distributed_skipgram_mixture, which is '
      f'for other programs; give its folder, {path.parent}'
    )


def remove(folder: pathlib.Path) -> None:
  """Removes all files, if they are there."""
  for name in FILES:
    (folder / name).unlink(missing_ok=True)


def write(folder: pathlib.Path, stored: Stored, vectors: np.ndarray) -> None:
  """Writes all files.

  Args:
    folder: Made if missing.
    stored: Words without white space.
    vectors: [rows, dim] float32.

  Raises:
    errors.UserError: A file cannot be written.
  """
  starts = stored.starts.tolist()
  for name, array in (('outputs', stored.outputs), ('means', stored.means)):
    if array is None:
      (folder / f'{name}.npy').unlink(missing_ok=True)
      continue
    with atomic.write(folder / f'{name}.npy') as file:
      np.save(file, np.ascontiguousarray(array, '<f4'))
  with atomic.write(folder / 'priors.txt') as file:
    for i, word in enumerate(stored.words):
      for row in range(starts[i], starts[i + 1]):
        line = f'{word} {row - starts[i]} {stored.priors[row]:.9g}\n'
        file.write(line.encode())
  with atomic.write(folder / 'dmwe.txt') as file:
    file.write(
      f'{len(starts) - 1} {len(vectors)} {vectors.shape[1]}\n'.encode()
    )
    for i, word in enumerate(stored.words):
      rows = slice(starts[i], starts[i + 1])
      file.write(f'{word} {rows.stop - rows.start}\n'.encode())
      table = np.column_stack([stored.priors[rows], vectors[rows]])
      file.writelines(float_text.format_rows(table.astype(np.float32)))
  with atomic.write(folder / 'senses.json') as file:
    file.write(json.dumps(stored.facts, indent=1).encode())


def read(folder: pathlib.Path, num_rows: int, dim: int) -> Stored:
  """Reads what `write` wrote.

  Args:
    folder: of the files.
    num_rows: of the vectors.
    dim: their numbers.

  Raises:
    errors.UserError: A file is missing or damaged, or is of other vectors.
  """
  facts = _read_facts(folder / 'senses.json')
  words, starts, priors = _read_priors(folder / 'priors.txt')
  if len(priors) != num_rows:
    raise errors.UserError(
      f'{folder}: priors.txt has {len(priors)} lines, vocab.txt {num_rows}; '
      'export again'
    )
  outputs = means = None
  if facts['loss'] is not None:
    sizes = len(words), len(words) - 1
    outputs = _read_array(folder / 'outputs.npy', sizes, dim)
  if 'concentration' in facts:
    means = _read_array(folder / 'means.npy', (num_rows,), dim)
  return Stored(words, starts, priors, outputs, means, facts)


def _damaged(path: pathlib.Path, what: object) -> errors.UserError:
  what = getattr(what, 'strerror', None) or what
  return errors.UserError(f'{path}: {what}; export again')


def _is_whole(value: Any, least: int) -> bool:
  return type(value) is int and value >= least


def _is_number(value: Any) -> bool:
  return type(value) in (int, float) and 0 <= value < math.inf


# What each key of senses.json may be, in words and as a test.
_FACTS = {
  'loss': (
    "'negative_sampling', 'hierarchical_softmax' or null",
    lambda x: x in ('negative_sampling', 'hierarchical_softmax', None),
  ),
  'negatives': ('a whole number', lambda x: _is_whole(x, 0)),
  'window': ('a whole number above 0', lambda x: _is_whole(x, 1)),
}
_FACTS_OF_CONTEXTS = {
  'concentration': ('a number, not negative', _is_number),
  'half_weight': ('a number above 0', lambda x: _is_number(x) and x > 0),
}


def _read_facts(path: pathlib.Path) -> dict[str, Any]:
  try:
    facts = json.loads(path.read_text(encoding='utf-8'))
  except (OSError, ValueError) as error:
    raise _damaged(path, error) from error
  if not isinstance(facts, dict):
    raise _damaged(path, f'has no {", ".join(_FACTS)}')
  wanted = dict(_FACTS)
  if facts.keys() & _FACTS_OF_CONTEXTS.keys():
    wanted |= _FACTS_OF_CONTEXTS
  for key, (what, is_right) in wanted.items():
    if key not in facts:
      raise _damaged(path, f'has no {key}')
    if not is_right(facts[key]):
      raise _damaged(path, f'{key} is {facts[key]!r}, must be {what}')
  return facts


def _read_priors(
  path: pathlib.Path,
) -> tuple[list[str], np.ndarray, np.ndarray]:
  """Words, first rows and priors, as in `Stored`."""
  try:
    lines = [x for x in path.read_text(encoding='utf-8').split('\n') if x]
    fields = [line.rsplit(' ', 2) for line in lines]
    rows = [(word, int(k), float(prior)) for word, k, prior in fields]
  except (OSError, ValueError) as error:
    raise _damaged(path, error) from error
  words: list[str] = []
  starts: list[int] = []
  for row, (word, k, _) in enumerate(rows):
    if not k:
      words.append(word)
      starts.append(row)
    if not words or word != words[-1] or k != row - starts[-1]:
      raise _damaged(path, f'line {row + 1}, {word!r} {k}, has no sense before')
  if not words:
    raise _damaged(path, 'is empty')
  priors = np.array([prior for *_, prior in rows], np.float32)
  sums = np.add.reduceat(priors.astype(np.float64), starts)
  # Written so that a NaN is wrong.
  is_right = np.minimum.reduceat(priors, starts) > -_SUM
  is_wrong = ~(is_right & (np.abs(sums - 1) < _SUM))
  if is_wrong.any():
    word = words[int(is_wrong.argmax())]
    raise _damaged(
      path, f'priors of {word!r} must not be negative, and sum to 1'
    )
  return words, np.array([*starts, len(rows)], np.int64), priors


def _read_array(
  path: pathlib.Path, sizes: Sequence[int], dim: int
) -> np.ndarray:
  """[one of the sizes, dim], mapped into memory."""
  try:
    array = np.load(path, mmap_mode='r')
  except (OSError, ValueError, EOFError) as error:
    raise _damaged(path, error) from error
  if array.shape not in [(size, dim) for size in sizes]:
    raise errors.UserError(
      f'{path} has the form {array.shape}, the vectors beside it want '
      f'{(sizes[0], dim)}; export again'
    )
  return array
