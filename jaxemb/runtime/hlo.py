"""Collectives of a compiled program: the bytes they send, how often they run.

Both are read from the program's text. Bytes follow from the operands and the
groups of devices by the usual ring algorithms. A collective runs as often as
the loops around it: the compiler writes down the lengths it knows, or a loop
counts to a constant, as the compiler for TPUs leaves it; `Loop` has the others.
"""

import collections
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

# What each of n devices sends, as a multiple of its operand.
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
_NAME = re.compile(r'%([\w.\-]+)')
_TRIPS = re.compile(r'known_trip_count\W+n\W+(\d+)')
_ARRAY = re.compile(r'\b(pred|[a-z]+(\d+)\w*)\[([\d,<=]*)\]')
_GROUPS = re.compile(r'replica_groups=(\{(?:\{[\d,]*\},?)*\}|\[[\d,]+\]|.)')
_MESH = re.compile(r'replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}')
_PAIRS = re.compile(r'source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}')


class Instruction(NamedTuple):
  """A line of a program."""

  shape: str  # of its result, without layout, such as 'f32[50000,100]'
  opcode: str
  operands: list[str]  # their shapes; '' = unreadable
  called: list[str]  # computations
  attributes: str
  inside: str  # the brackets: names of operands, or a constant
  is_root: bool

  @property
  def sizes(self) -> list[tuple[int, ...]]:
    """Of each array of the result."""
    return [x for x, _ in _arrays(self.shape)]

  @property
  def names(self) -> list[str]:
    """Of operands."""
    return _NAME.findall(self.inside)

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


class Loop(NamedTuple):
  """What the text of a dispatch does not say about how often its parts run."""

  steps: float = 1  # training steps in an iteration of the outermost loop
  inner: float = 1  # iterations of a loop inside it of unknown length
  branch: float = 1  # share of the steps in which a conditional branch runs


class Collective(NamedTuple):
  """A collective of a program; an asynchronous pair counts once."""

  kind: str  # one of `KINDS`
  shapes: tuple[tuple[int, ...], ...]  # of operands and results on a device
  sent_bytes: float  # by one device in one execution; nan = unreadable
  loops: tuple[int | None, ...]  # lengths, outermost first; None = unknown
  is_in_branch: bool

  def runs_per_step(self, loop: Loop) -> float:
    """Executions per training step; 0 outside the loop over steps."""
    if not self.loops:
      return 0.0
    lengths = (loop.inner if x is None else x for x in self.loops[1:])
    runs = math.prod(lengths) / loop.steps
    return loop.branch * runs if self.is_in_branch else runs


def parse(text: str) -> Program:
  """Parses the `as_text()` of a compiled function."""
  first_line, _, _ = text.partition('\n')
  num_devices = math.prod(map(int, _DEVICES.findall(first_line)))
  computations: dict[str, dict[str, Instruction]] = {}
  current, entry = {}, ''
  for line in text.splitlines():
    if head := _HEAD.match(line):
      current = computations.setdefault(head[2], {})
      entry = head[2] if head[1] else entry
    elif match := _LINE.match(line):
      root, name, shape, opcode, rest = match.groups()
      inside, _, attributes = rest.partition('), ')
      operands = (current.get(x) for x in _NAME.findall(inside))
      called = ','.join(''.join(x) for x in _CALLED.findall(attributes))
      current[name] = Instruction(
        shape=re.sub(r'\{[^}]*\}', '', shape).strip(),
        opcode=opcode,
        operands=[x.shape if x else '' for x in operands],
        called=re.findall(r'[\w.\-]+', called),
        attributes=attributes,
        inside=inside.rstrip(')'),
        is_root=bool(root),
      )
  return Program(computations, entry, num_devices)


def executed(
  program: Program,
  computation: str,
  loops: tuple[int | None, ...] = (),
  is_in_branch: bool = False,
) -> Iterator[tuple[Instruction, tuple[int | None, ...], bool]]:
  """Yields what a computation runs; loops and branch as in `Collective`."""
  instructions = program.computations.get(computation, {})
  for x in instructions.values():
    yield x, loops, is_in_branch
    if x.kind:
      continue  # it calls a sum, or what it wraps
    inside = loops
    if x.opcode == 'while':
      inside = (*loops, _length(program, instructions, x))
    is_branch = is_in_branch or x.opcode == 'conditional'
    for name in x.called:
      yield from executed(
        program, computation=name, loops=inside, is_in_branch=is_branch
      )


def _length(
  program: Program, around: Mapping[str, Instruction], loop: Instruction
) -> int | None:
  """How often a loop runs; None = unknown.

  The compiler writes it down, or (that for TPUs) a counter, which starts at
  zero and grows by one, is compared to it.
  """
  if known := _TRIPS.search(loop.attributes):
    return int(known[1])
  called = dict(re.findall(r'(condition|body)=%?([\w.\-]+)', loop.attributes))
  try:
    condition, body = (
      program.computations[called[x]] for x in ('condition', 'body')
    )
    compared, results = (
      next(x for x in instructions.values() if x.is_root)
      for instructions in (condition, body)
    )
    start = around[loop.names[0]]
    counter, limit = compared.names
    found = re.search(r'index=(\d+)', condition[counter].attributes)
    if found is None:
      return None
    index = int(found[1])
    change = body[results.names[index]]
    counts = (
      'direction=LT' in compared.attributes
      and start.opcode == results.opcode == 'tuple'
      and _constant(around, start.names[index]) == 0
      and change.opcode == 'add'
      and 1 in [_constant(body, x) for x in change.names]
    )
    return _constant(condition, limit) if counts else None
  except (IndexError, KeyError, StopIteration, TypeError, ValueError):
    return None  # a loop of another form


def _constant(around: Mapping[str, Instruction], name: str) -> int | None:
  """The integer that a name stands for, if it does."""
  x = around.get(name)
  while x and x.opcode in ('copy', 'bitcast') and x.names:
    x = around.get(x.names[0])
  if x and x.opcode == 'constant' and x.inside.lstrip('-').isdigit():
    return int(x.inside)
  return None


def copied_arrays(text: str) -> set[tuple[int, ...]]:
  """Returns the sizes of all arrays that a program copies, given its text."""
  program = parse(text)
  return {
    sizes
    for x, _, _ in executed(program, program.entry)
    if x.opcode.startswith('copy')
    for sizes in x.sizes
  }


def collectives(text: str) -> list[Collective]:
  """Returns the collectives of a program, given its text."""
  program = parse(text)
  return [
    Collective(
      kind=x.kind,
      shapes=tuple(z for y in (*x.operands, x.shape) for z, _ in _arrays(y)),
      sent_bytes=_sent_bytes(x, program.num_devices),
      loops=loops,
      is_in_branch=is_in_branch,
    )
    for x, loops, is_in_branch in executed(program, program.entry)
    if x.kind
  ]


def _sent_bytes(x: Instruction, num_devices: int) -> float:
  """What one device sends in one execution; nan = unreadable."""
  # A ragged one also takes where to write, offsets and sizes.
  sent = x.operands[:1] if x.kind == 'ragged-all-to-all' else x.operands
  num_bytes = 0.0
  for shape in sent or ['']:
    sizes = [math.prod(y) * z for y, z in _arrays(shape)]
    num_bytes += sum(sizes) if sizes else math.nan
  return num_bytes * _SENT[x.kind](_group_size(x, num_devices))


def _arrays(shape: str) -> list[tuple[tuple[int, ...], float]]:
  """The sizes of each array of a shape, and the bytes of a number of it."""
  return [
    (tuple(map(int, re.findall(r'\d+', axes))), int(bits or 8) / 8)
    for _, bits, axes in _ARRAY.findall(shape)
  ]


def traffic(text: str, loop: Loop) -> dict[str, Any]:
  """Counts the collectives of a compiled dispatch and the bytes they send.

  Returns the number of each of `KINDS` and `bytes_per_step_per_device`, by kind
  and in `total`.
  """
  counts: collections.Counter[str] = collections.Counter()
  step = dict.fromkeys((*KINDS, 'total'), 0.0)
  for x in collectives(text):
    counts[x.kind] += 1
    # What never runs sends nothing, even if it cannot be read.
    if runs := x.runs_per_step(loop):
      step[x.kind] += runs * x.sent_bytes
      step['total'] += runs * x.sent_bytes
  numbers = {kind: counts[kind] for kind in KINDS}
  return numbers | {'bytes_per_step_per_device': step}


def _group_size(x: Instruction, num_devices: int) -> float:
  """Devices of the largest group; nan where that cannot be read."""
  if pairs := _PAIRS.search(x.attributes):
    ends = re.findall(r'(\d+),(\d+)', pairs[1])
    return 2 if any(source != target for source, target in ends) else 1
  if mesh := _MESH.search(x.attributes):
    # Axes and their sizes, then the axes of a group.
    sizes = dict(re.findall(r"'([^']*)'=(\d+)", mesh[1]))
    axes = re.findall(r"'([^']*)'", mesh[2])
    return math.prod(float(sizes.get(axis, 'nan')) for axis in axes)
  groups = _GROUPS.search(x.attributes)
  if not groups or groups[1] == '{}':
    return num_devices
  if groups[1].startswith('{'):
    return max(len(x.split(',')) for x in re.findall(r'[\d,]*\d', groups[1]))
  shape = re.findall(r'\d+', groups[1])  # [groups, size of each]<=[...]
  return int(shape[1]) if len(shape) == 2 else math.nan
