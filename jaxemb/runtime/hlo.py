"""Collectives of a compiled program: the bytes they send, how often they run.

Both are read from the program's text. Bytes follow from the operands and the
groups of devices by the usual ring algorithms. A collective runs as often as
the loops around it: the compiler writes down the lengths that it knows, `Loop`
says the others.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

# What each of a group's n devices sends, as a multiple of its operand.
_SENT = {
  'all-reduce': lambda n: 2 * (n - 1) / n,
  'all-gather': lambda n: n - 1,
  'all-to-all': lambda n: (n - 1) / n,
  'ragged-all-to-all': lambda n: (n - 1) / n,  # of a full buffer, at most
  'collective-permute': lambda n: min(n - 1, 1),
  'collective-broadcast': lambda n: (n - 1) / n,  # all but the last pass it on
  'reduce-scatter': lambda n: (n - 1) / n,
}
KINDS = tuple(_SENT)

_HEAD = re.compile(r'^(ENTRY )?%?([\w.\-]+) \(.*\{$')
# The opcode is the first name before a bracket that follows a space.
_LINE = re.compile(
  r'^\s*(ROOT )?%?([\w.\-]+) = (.*?)(?<=\s)([a-z][a-z0-9-]*)\((.*)$'
)
_CALLED = re.compile(
  r'\b(?:calls|to_apply|body|condition|\w+_computations?)='
  r'(?:\{([^}]*)\}|(%?[\w.\-]+))'
)
_TRIPS = re.compile(r'known_trip_count\W+n\W+(\d+)')
_ARRAY = re.compile(r'\b(pred|[a-z]+(\d+)\w*)\[([\d,<=]*)\]')
_GROUPS = re.compile(r'replica_groups=(\{(?:\{[\d,]*\},?)*\}|\[[\d,]+\]|.)')
_MESH = re.compile(r'replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}')
_PAIRS = re.compile(r'source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}')


class Instruction(NamedTuple):
  """A line of a program."""

  shape: str  # of its result, without layout, such as 'f32[50000,100]'
  opcode: str
  operands: list[str]
  called: list[str]  # computations
  attributes: str
  is_root: bool


class Program(NamedTuple):
  """The instructions of each computation by name."""

  computations: dict[str, dict[str, Instruction]]
  entry: str
  num_devices: int


class Executed(NamedTuple):
  """An instruction, and what decides how often it runs."""

  instruction: Instruction
  scope: dict[str, Instruction]  # its computation
  loops: tuple[int | None, ...]  # lengths, outermost first; None = unknown
  is_in_branch: bool


class Loop(NamedTuple):
  """How often parts of a dispatch run that its text does not tell."""

  steps: float = 1  # training steps in an iteration of the outermost loop
  inner: float = 1  # iterations of a loop inside it of unknown length
  branch: float = 1  # share of the steps in which a conditional branch runs


class Collective(NamedTuple):
  """A collective of a program; an asynchronous pair counts once."""

  kind: str  # one of `KINDS`
  shapes: tuple[tuple[int, ...], ...]  # of operands and results on a device
  group_size: int  # devices that take part together; 0 = unreadable
  sent_bytes: float  # by one device in one execution; nan = unreadable
  loops: tuple[int | None, ...]
  is_in_branch: bool

  def runs_per_step(self, loop: Loop) -> float:
    """Executions per training step; 0 outside the loop over steps."""
    if not self.loops:
      return 0.0
    runs = (loop.branch if self.is_in_branch else 1) / loop.steps
    for length in self.loops[1:]:
      runs *= loop.inner if length is None else length
    return runs


def parse(text: str) -> Program:
  """Parses a program, given what `as_text()` of a compiled function returns."""
  counts = re.findall(
    r'\b(?:num_partitions|replica_count)=(\d+)', text.partition('\n')[0]
  )
  program = Program({}, '', math.prod(map(int, counts)))
  current: dict[str, Instruction] = {}
  for line in text.splitlines():
    if head := _HEAD.match(line):
      current = program.computations.setdefault(head[2], {})
      if head[1]:
        program = program._replace(entry=head[2])
    elif found := _LINE.match(line):
      root, name, shape, opcode, rest = found.groups()
      operands, _, attributes = rest.partition('), ')
      called = ','.join(''.join(x) for x in _CALLED.findall(attributes))
      current[name] = Instruction(
        re.sub(r'\{[^}]*\}', '', shape).strip(),
        opcode,
        re.findall(r'%([\w.\-]+)', operands),
        re.findall(r'[\w.\-]+', called),
        attributes,
        bool(root),
      )
  return program


def executed(
  program: Program,
  computation: str,
  loops: tuple[int | None, ...] = (),
  is_in_branch: bool = False,
) -> Iterator[Executed]:
  """Yields all that one run of a computation runs."""
  scope = program.computations.get(computation, {})
  for x in scope.values():
    yield Executed(x, scope, loops, is_in_branch)
    if _kind(x):
      continue  # it calls a sum, or what it wraps
    inside = loops
    if x.opcode == 'while':
      trips = _TRIPS.search(x.attributes)
      inside = (*loops, int(trips[1]) if trips else None)
    is_branch = is_in_branch or x.opcode == 'conditional'
    for name in x.called:
      yield from executed(program, name, inside, is_branch)


def collectives(text: str) -> list[Collective]:
  """Returns the collectives of a program, given its text."""
  program = parse(text)
  return [
    _collective(x, program.num_devices)
    for x in executed(program, program.entry)
    if _kind(x.instruction)
  ]


def traffic(text: str, loop: Loop) -> dict[str, Any]:
  """Counts the collectives of a compiled dispatch and the bytes they send.

  Returns instructions by kind (all of `KINDS`) and, by kind and in `total`,
  `bytes_per_step_per_device`, and `bytes_per_dispatch_per_device` of what is
  outside the loop over steps.
  """
  found = collectives(text)
  kinds = [x.kind for x in found]
  step, dispatch = (dict.fromkeys((*KINDS, 'total'), 0.0) for _ in range(2))
  for x in found:
    sent, runs = (step, x.runs_per_step(loop)) if x.loops else (dispatch, 1)
    # What never runs sends nothing, even if it cannot be read.
    if runs:
      sent[x.kind] += runs * x.sent_bytes
      sent['total'] += runs * x.sent_bytes
  counts = {kind: kinds.count(kind) for kind in KINDS}
  return counts | {
    'bytes_per_step_per_device': step,
    'bytes_per_dispatch_per_device': dispatch,
  }


def with_bytes_per_word(
  traffic: Mapping[str, Any] | None, device_steps_per_word: float
) -> dict[str, Any] | None:
  """Adds `bytes_per_word` to `traffic`: what all devices send per corpus word.

  `device_steps_per_word` is training steps times devices over words.
  """
  if traffic is None:
    return None
  sent = traffic['bytes_per_step_per_device']
  per_word = {kind: device_steps_per_word * x for kind, x in sent.items()}
  return dict(traffic) | {'bytes_per_word': per_word}


def _kind(instruction: Instruction) -> str:
  kind = instruction.opcode.removesuffix('-start')
  return kind if kind in _SENT else ''


def _collective(x: Executed, num_devices: int) -> Collective:
  kind = _kind(x.instruction)
  operands = [
    x.scope[name].shape if name in x.scope else ''
    for name in x.instruction.operands
  ]
  if kind == 'ragged-all-to-all':
    operands = operands[:1]  # then where to write, offsets, sizes
  size = sum(map(_num_bytes, operands)) if operands else math.nan
  group_size = _group_size(x.instruction.attributes, num_devices)
  return Collective(
    kind,
    tuple(y for t in (*operands, x.instruction.shape) for _, y in _arrays(t)),
    group_size,
    _SENT[kind](group_size) * size if group_size else math.nan,
    x.loops,
    x.is_in_branch,
  )


def _arrays(shape: str) -> list[tuple[int, tuple[int, ...]]]:
  """The bits of an element and the sizes of each array of a shape."""
  return [
    (int(bits or 8), tuple(int(x) for x in re.findall(r'\d+', sizes)))
    for _, bits, sizes in _ARRAY.findall(shape)
  ]


def _num_bytes(shape: str) -> float:
  arrays = _arrays(shape)
  size = sum(bits * math.prod(sizes) / 8 for bits, sizes in arrays)
  return size if arrays else math.nan


def _group_size(attributes: str, num_devices: int) -> int:
  """Devices of the largest group; 0 where that cannot be read."""
  if pairs := _PAIRS.search(attributes):
    ends = re.findall(r'(\d+),(\d+)', pairs[1])
    return 2 if any(source != target for source, target in ends) else 1
  if mesh := _MESH.search(attributes):  # axes and sizes, then those of a group
    sizes = dict(re.findall(r"'([^']*)'=(\d+)", mesh[1]))
    axes = re.findall(r"'([^']*)'", mesh[2])
    return math.prod(int(sizes.get(axis, 0)) for axis in axes)
  groups = _GROUPS.search(attributes)
  if not groups or groups[1] == '{}':
    return num_devices
  if groups[1].startswith('{'):
    return max(len(x.split(',')) for x in re.findall(r'[\d,]*\d', groups[1]))
  sizes = re.findall(r'\d+', groups[1])  # [groups, size of each]<=[...]
  return int(sizes[1]) if len(sizes) == 2 else 0
