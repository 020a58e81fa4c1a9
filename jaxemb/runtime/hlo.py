"""Collectives of a compiled program: the bytes they send, how often they run.

Both are read from the program's text. Bytes follow from the operands and the
groups of devices by the usual ring algorithms. A collective runs as often as
the loops around it: the compiler writes down the lengths that it knows, `Loop`
says the others.
"""

import collections
import math
import re
from collections.abc import Iterator
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

_DEVICES = re.compile(r'\b(?:num_partitions|replica_count)=(\d+)')
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

  @property
  def kind(self) -> str:
    """One of `KINDS`, or ''; of an asynchronous pair the start counts."""
    kind = self.opcode.removesuffix('-start')
    return kind if kind in _SENT else ''


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
    lengths = (loop.inner if x is None else x for x in self.loops[1:])
    branch = loop.branch if self.is_in_branch else 1
    return branch * math.prod(lengths) / loop.steps


def parse(text: str) -> Program:
  """Parses a program, given what `as_text()` of a compiled function returns."""
  first_line, _, _ = text.partition('\n')
  num_devices = math.prod(map(int, _DEVICES.findall(first_line)))
  computations: dict[str, dict[str, Instruction]] = {}
  current, entry = {}, ''
  for line in text.splitlines():
    if head := _HEAD.match(line):
      current = computations.setdefault(head[2], {})
      entry = head[2] if head[1] else entry
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
  return Program(computations, entry, num_devices)


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
    if x.kind:
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
  program, found = parse(text), []
  for x, scope, *when in executed(program, program.entry):
    if not x.kind:
      continue
    operands = [scope[y].shape if y in scope else '' for y in x.operands]
    if x.kind == 'ragged-all-to-all':
      operands = operands[:1]  # then where to write, offsets, sizes
    group_size, sent_bytes = _group_size(x, program.num_devices), math.nan
    if group_size and operands and all(map(_ARRAY.search, operands)):
      size = sum(num_bytes for y in operands for _, num_bytes in _arrays(y))
      sent_bytes = _SENT[x.kind](group_size) * size
    shapes = tuple(y for z in (*operands, x.shape) for y, _ in _arrays(z))
    found.append(Collective(x.kind, shapes, group_size, sent_bytes, *when))
  return found


def _arrays(shape: str) -> Iterator[tuple[tuple[int, ...], float]]:
  """The sizes and the bytes of each array of a shape."""
  for _, bits, axes in _ARRAY.findall(shape):
    sizes = tuple(map(int, re.findall(r'\d+', axes)))
    yield sizes, int(bits or 8) / 8 * math.prod(sizes)


def traffic(text: str, loop: Loop) -> dict[str, Any]:
  """Counts the collectives of a compiled dispatch and the bytes they send.

  Returns instructions by kind (all of `KINDS`) and, by kind and in `total`,
  `bytes_per_step_per_device`, and `bytes_per_dispatch_per_device` of what is
  outside the loop over steps.
  """
  found = collectives(text)
  counts = collections.Counter(x.kind for x in found)
  step, dispatch = (dict.fromkeys((*KINDS, 'total'), 0.0) for _ in range(2))
  for x in found:
    sent, runs = (step, x.runs_per_step(loop)) if x.loops else (dispatch, 1)
    if runs:  # what never runs sends nothing, even if it cannot be read
      sent[x.kind] += runs * x.sent_bytes
      sent['total'] += runs * x.sent_bytes
  return {kind: counts[kind] for kind in KINDS} | {
    'bytes_per_step_per_device': step,
    'bytes_per_dispatch_per_device': dispatch,
  }


def _group_size(x: Instruction, num_devices: int) -> int:
  """Devices of the largest group; 0 where that cannot be read."""
  if pairs := _PAIRS.search(x.attributes):
    ends = re.findall(r'(\d+),(\d+)', pairs[1])
    return 2 if any(source != target for source, target in ends) else 1
  if mesh := _MESH.search(x.attributes):
    # Axes and their sizes, then the axes of a group.
    sizes = dict(re.findall(r"'([^']*)'=(\d+)", mesh[1]))
    axes = re.findall(r"'([^']*)'", mesh[2])
    return math.prod(int(sizes.get(axis, 0)) for axis in axes)
  groups = _GROUPS.search(x.attributes)
  if not groups or groups[1] == '{}':
    return num_devices
  if groups[1].startswith('{'):
    return max(len(x.split(',')) for x in re.findall(r'[\d,]*\d', groups[1]))
  sizes = re.findall(r'\d+', groups[1])  # [groups, size of each]<=[...]
  return int(sizes[1]) if len(sizes) == 2 else 0
