"""What a compiled program sends between its devices, read from XLA's text.

The text names the operands of every collective and the groups of devices that
take part, so that the bytes of one execution follow from the usual ring
algorithms. How often a collective runs is that of the loops around it: some
have a length that the compiler knew and wrote down; of the others whoever wrote
the program has to say it (`Loop`).
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

# What one device sends, as part of its group's n, of the bytes that it puts in.
_SENT: dict[str, Callable[[int], float]] = {
  'all-reduce': lambda n: 2 * (n - 1) / n,
  'all-gather': lambda n: n - 1,
  'all-to-all': lambda n: (n - 1) / n,
  'ragged-all-to-all': lambda n: (n - 1) / n,  # of a full buffer, at most
  'collective-permute': lambda n: min(n - 1, 1),
  'collective-broadcast': lambda n: (n - 1) / n,  # all but the last pass it on
  'reduce-scatter': lambda n: (n - 1) / n,
}
KINDS = tuple(_SENT)

_UNKNOWN = float('nan')

_HEAD = re.compile(r'^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) .*\{$')
# `name = type operation(...)`: the operation is the first name directly before
# a bracket, since those inside types follow no space.
_INSTRUCTION = re.compile(
  r'^\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = '
  r'(?P<type>.*?)(?<=\s)(?P<operation>[a-z][a-z0-9-]*)\('
)
_CALLED = re.compile(
  r'\b(calls|to_apply|body|condition|\w+_computations?)='
  r'(?:\{([^}]*)\}|(%?[\w.\-]+))'
)
_TRIPS = re.compile(
  r'known_trip_count\\?"\s*:\s*\{\s*\\?"n\\?"\s*:\s*\\?"(\d+)'
)
_ARRAY = re.compile(r'\b([a-z][a-z0-9]*)\[([\d,<=]*)\]')
# Where an instruction comes from: names that may be anything.
_METADATA = re.compile(r'metadata=\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\}')
_COMMENT = re.compile(r'/\*.*?\*/')
_GROUPS = re.compile(r'replica_groups=(\{(?:\{[\d,]*\},?)*\}|\[[\d,]+\]|.)')
_MESH = re.compile(r'replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}')
_PAIRS = re.compile(r'source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}')
_NUM_DEVICES = re.compile(r'\b(?:num_partitions|replica_count)=(\d+)')
# Lines without any of these words neither are collectives nor lead to some.
_OF_USE = re.compile(
  '|'.join((*KINDS, 'calls=', 'to_apply=', 'body=', 'computations?='))
)


class Loop(NamedTuple):
  """How often parts of a compiled dispatch run that its text does not tell."""

  steps: float = 1  # of training, in an iteration of the outermost loop
  inner: float = 1  # iterations of a loop inside it of unknown length
  branch: float = 1  # of what stands behind a condition


class Collective(NamedTuple):
  """One collective of a compiled program.

  Attributes:
    kind: One of `KINDS`; an asynchronous one by its plain name.
    shapes: Of all arrays that go in and come out, on one device.
    group_size: Devices that take part together; 0 = could not be read.
    sent_bytes: By one device in each execution, by a ring algorithm; not a
      number where the text could not be read.
    loops: Iterations of the loops around it, the outermost one first; None =
      known only when the program runs.
    is_in_branch: Whether it stands behind a condition.
  """

  kind: str
  shapes: tuple[tuple[int, ...], ...]
  group_size: int
  sent_bytes: float
  loops: tuple[int | None, ...]
  is_in_branch: bool

  def runs_per_step(self, loop: Loop) -> float:
    """Executions per step of training; 0 outside the loop over steps."""
    if not self.loops:
      return 0.0
    runs = (loop.branch if self.is_in_branch else 1) / loop.steps
    for length in self.loops[1:]:
      runs *= loop.inner if length is None else length
    return runs


class _Instruction(NamedTuple):
  """A line that is a collective or runs other computations."""

  name: str
  type: str
  operation: str
  operands: str
  attributes: str


class _Program(NamedTuple):
  """The text, taken apart as far as it is of use."""

  entry: str | None
  num_devices: int
  lines: dict[str, list[str]]  # of each computation


def collectives(text: str) -> list[Collective]:
  """The collectives that a program runs.

  Args:
    text: what `as_text()` of a compiled function returns.
  """
  program = _program(text)
  if program.entry is None:
    return []
  return list(_run(program, program.entry, (), False))


def traffic(text: str, loop: Loop) -> dict[str, Any]:
  """Counts the collectives of a compiled dispatch and the bytes they send.

  Args:
    text: as for `collectives`; an asynchronous pair (`-start` and `-done`)
      counts once.
    loop: how often the loops of unknown length run.

  Returns:
    Instructions by kind of collective (all kinds are listed), and, by kind and
    in `total`, the bytes that one device sends with ring algorithms:
    `bytes_per_step_per_device`, and `bytes_per_dispatch_per_device` for the
    collectives outside the loop over steps.
  """
  ops = collectives(text)
  kinds = [op.kind for op in ops]
  return {kind: kinds.count(kind) for kind in KINDS} | {
    'bytes_per_step_per_device': _sent_by_kind(
      ops, [op.runs_per_step(loop) for op in ops]
    ),
    'bytes_per_dispatch_per_device': _sent_by_kind(
      ops, [not op.loops for op in ops]
    ),
  }


def with_bytes_per_word(
  traffic: Mapping[str, Any] | None, device_steps_per_word: float
) -> dict[str, Any] | None:
  """Adds `bytes_per_word`, the bytes that all devices send per corpus word.

  Args:
    traffic: from `traffic`; None, or counts without bytes, are returned as
      they are.
    device_steps_per_word: training steps times devices over words.
  """
  if not traffic or 'bytes_per_step_per_device' not in traffic:
    return traffic and dict(traffic)
  return dict(traffic) | {
    'bytes_per_word': {
      kind: device_steps_per_word * sent_bytes
      for kind, sent_bytes in traffic['bytes_per_step_per_device'].items()
    },
    'words_counted': 'bytes that all devices together send per corpus word '
    'inside the vocabulary, before frequent-word subsampling, times epochs',
  }


def _sent_by_kind(
  ops: Sequence[Collective], runs: Sequence[float]
) -> dict[str, float]:
  # Unknown bytes of a collective that never runs are zero, not unknown.
  sent = [
    op.sent_bytes * n if n else 0.0 for op, n in zip(ops, runs, strict=True)
  ]
  by_kind = {
    kind: sum(x for op, x in zip(ops, sent, strict=True) if op.kind == kind)
    for kind in KINDS
  }
  return by_kind | {'total': sum(sent)}


def _program(text: str) -> _Program:
  num_devices = 1
  for count in _NUM_DEVICES.findall(text.partition('\n')[0]):
    num_devices *= int(count)
  entry, lines, current = None, {}, []
  for line in text.splitlines():
    found = _HEAD.match(line) if line.endswith('{') else None
    if found:
      current = lines[found['name']] = []
      entry = found['name'] if found['entry'] else entry
    else:
      current.append(line)
  return _Program(entry, num_devices, lines)


def _run(
  program: _Program,
  computation: str,
  loops: tuple[int | None, ...],
  is_in_branch: bool,
) -> Iterator[Collective]:
  """The collectives of a computation and of those that it runs."""
  lines = program.lines.get(computation, ())
  types: dict[str, str] = {}
  for line in lines:
    instruction = _instruction(line) if _OF_USE.search(line) else None
    if instruction is None:
      continue
    kind = instruction.operation.removesuffix('-start')
    if kind in _SENT:
      types = types or _types(lines)
      yield _collective(program, instruction, types, loops, is_in_branch)
      continue  # what it calls adds two numbers, or is itself, wrapped
    inside = loops
    if instruction.operation == 'while':
      trips = _TRIPS.search(instruction.attributes)
      inside = (*loops, int(trips[1]) if trips else None)
    is_branch = is_in_branch or instruction.operation == 'conditional'
    for _, many, one in _CALLED.findall(instruction.attributes):
      for name in (one or many).split(','):
        name = name.strip().removeprefix('%')
        yield from _run(program, name, inside, is_branch)


def _instruction(line: str) -> _Instruction | None:
  found = _INSTRUCTION.match(line)
  if not found:
    return None
  depth = 1
  for end in range(found.end(), len(line)):
    depth += {'(': 1, ')': -1}.get(line[end], 0)
    if not depth:
      break
  else:
    return None
  return _Instruction(
    found['name'],
    found['type'],
    found['operation'],
    line[found.end() : end],
    _METADATA.sub('', line[end + 1 :]),
  )


def _types(lines: list[str]) -> dict[str, str]:
  """The type of every instruction of a computation."""
  found = map(_INSTRUCTION.match, lines)
  return {x['name']: x['type'] for x in found if x}


def _collective(
  program: _Program,
  instruction: _Instruction,
  types: dict[str, str],
  loops: tuple[int | None, ...],
  is_in_branch: bool,
) -> Collective:
  kind = instruction.operation.removesuffix('-start')
  operands = _operand_types(instruction.operands, types)
  if kind == 'ragged-all-to-all':
    operands = operands[:1]  # behind it: where to write, offsets, sizes
  size = sum(map(_num_bytes, operands)) if operands else _UNKNOWN
  group_size = _group_size(instruction, program.num_devices)
  sent = _SENT[kind](group_size) * size if group_size else _UNKNOWN
  return Collective(
    kind,
    tuple(
      dims for x in (*operands, instruction.type) for _, dims in _arrays(x)
    ),
    group_size,
    sent,
    loops,
    is_in_branch,
  )


def _operand_types(operands: str, types: dict[str, str]) -> list[str]:
  """Of each operand: written before its name, or where it is made."""
  found, depth, start = [], 0, 0
  operands = _COMMENT.sub('', operands)
  for i, letter in enumerate(operands + ','):
    depth += (letter in '([{') - (letter in ')]}')
    if letter == ',' and not depth:
      written, _, name = operands[start:i].strip().rpartition(' ')
      found.append(written or types.get(name.removeprefix('%'), ''))
      start = i + 1
  return found


def _arrays(type_text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
  """Kind of number and sizes of each array of a type."""
  for number, sizes in _ARRAY.findall(_COMMENT.sub('', type_text)):
    sizes = sizes.replace('<=', '')  # of an axis that may be shorter
    yield number, tuple(int(x) for x in sizes.split(',') if x)


def _num_bytes(type_text: str) -> float:
  """Not a number for a type that cannot be read."""
  total, is_empty = 0.0, True
  for number, dims in _arrays(type_text):
    digits = re.search(r'\d+', number)
    bits = 8 if number == 'pred' else int(digits[0]) if digits else _UNKNOWN
    for size in dims:
      bits *= size
    total, is_empty = total + bits / 8, False
  return _UNKNOWN if is_empty else total


def _group_size(instruction: _Instruction, num_devices: int) -> int:
  """Devices of the largest group; 0 where that cannot be read."""
  pairs = _PAIRS.search(instruction.attributes)
  if pairs:
    ends = [x.split(',') for x in re.findall(r'\d+,\d+', pairs[1])]
    return 2 if any(source != target for source, target in ends) else 1
  mesh = _MESH.search(instruction.attributes)
  if mesh:
    # Axes of a mesh and their sizes, then those along which a group lies.
    sizes = dict(re.findall(r"'([^']*)'=(\d+)", mesh[1]))
    axes = [x.strip().strip("'") for x in mesh[2].split(',') if x.strip()]
    is_known = all(x in sizes for x in axes)
    return math.prod(int(sizes[x]) for x in axes) if is_known else 0
  groups = _GROUPS.search(instruction.attributes)
  if not groups or groups[1] == '{}':
    return num_devices
  if groups[1].startswith('{'):
    members = re.findall(r'\{([\d,]+)\}', groups[1])
    return max(len(x.split(',')) for x in members)
  # [groups, members of each]<=[...], the devices dealt in some order
  sizes = re.findall(r'\d+', groups[1])
  return int(sizes[1]) if len(sizes) == 2 else 0
