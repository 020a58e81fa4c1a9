"""Kernels of a program that was compiled for GPUs, from what XLA dumps of it.

A GPU runs a step as a list of kernels, each of which takes some microseconds
however little it does. XLA writes the list down, with the loops around: those
of known length are started ahead, others wait at each turn until the host has
read whether there is another. Bytes follow from the instruction that a kernel
was made for; rows of a table that it looks up or changes count, and the rest of
the table does not.

Atomic operations are read in the kernels' code (PTX): sums of floats by them
come in another order in every run.
"""

import math
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from jaxemb.runtime import hlo

_THUNK = re.compile(r'^( *)(\d+): (k\w+) ')
# Of what a GPU starts nothing for.
_WITHOUT_KERNEL = {
  'kAsyncDone', 'kAsyncStart', 'kCommandBuffer', 'kConditional', 'kSequential',
  'kWhile',
}  # fmt: skip
_TRITON = 'custom_call_target="__gpu$xla.gpu.triton"'
_TAKES = 'gather', 'slice', 'dynamic-slice'
# Which operand has the rows that an instruction changes.
_CHANGES = {'scatter': 2, 'dynamic-update-slice': 1}
_IN_PLACE = re.compile(r'\{(\d*)\}: ?\((\d+),')  # result, operand
_NAMED = re.compile(r'profile_annotation: "([^"]*)"\s*thunk_id: (\d+)')
_ENTRY = re.compile(r'\.entry (\w+)')
# Sums of floats; integers are the same in any order. Some are a loop that
# compares and swaps (jax issue 38806).
_ATOMIC = re.compile(
  r'(?<![\w.%])((?:atom|red)\.(?:\S+\.)?(?:cas\.\S+|b?f16\S*|f32\S*|f64))'
)


class Kernel(NamedTuple):
  """A kernel, or a copy, of a program."""

  name: str  # of the instruction; sorts have several kernels
  num_bytes: int  # read and written; 0 = unknown
  per_step: float  # executions; 0 outside the loop over steps


class Kernels(NamedTuple):
  """What a GPU runs in a step."""

  kernels: list[Kernel]
  waits_per_step: float  # for the host
  atomics: dict[str, list[str]]  # of kernels that have some

  @property
  def per_step(self) -> float:
    """Number of kernels."""
    return sum(x.per_step for x in self.kernels)

  @property
  def bytes_per_step(self) -> float:
    """What they read and write."""
    return sum(x.per_step * x.num_bytes for x in self.kernels)

  def secs(
    self, launch_secs: float, wait_secs: float, bytes_per_sec: float
  ) -> float:
    """Of a step, one kernel after another.

    Each takes at least `launch_secs`, or the time of its bytes.
    """
    each = (
      x.per_step * max(launch_secs, x.num_bytes / bytes_per_sec)
      for x in self.kernels
    )
    return sum(each) + wait_secs * self.waits_per_step


def read(
  folder: pathlib.Path,
  text: str,
  loop: hlo.Loop,
  distinct: Mapping[int, float],
) -> Kernels | None:
  """Counts what was dumped as a program was compiled; None = nothing known.

  `folder` was its `xla_dump_to`, `text` is its `as_text()`; `distinct` says how
  many rows are changed where so many are looked up, as far as that is known.
  """
  lists = sorted(folder.glob('*.thunk_sequence*.txt'))  # the last is final
  names = sorted(folder.glob('*.thunk_metadata.txt'))
  if not lists or not names:  # of a version that writes others
    return None
  program = hlo.parse(text)
  found = {
    name: x
    for part in program.computations.values()
    for name, x in part.items()
  }
  lengths = {
    name: hlo.trips(program, part, x)
    for part in program.computations.values()
    for name, x in part.items()
    if x.opcode == 'while'
  }
  names = dict((y, x) for x, y in _NAMED.findall(names[-1].read_text()))
  kernels, waits = [], 0.0
  for kind, name, around in _thunks(lists[-1].read_text(), names):
    loops = [lengths.get(x) for x, is_loop in around if is_loop]
    runs = hlo.runs_per_step(loops, loop)
    if any(not is_loop for _, is_loop in around):
      runs *= loop.branch
    if kind == 'kWhile' and lengths.get(name) is None:
      # Once more than it has turns.
      waits += 1 / loop.steps if not loops else runs * (loop.inner + 1)
    if kind == 'kConditional':
      waits += runs
    if kind not in _WITHOUT_KERNEL:
      moved = 0
      if name in found:
        moved = _moved_bytes(program, found[name], distinct)
      kernels.append(Kernel(name, moved, runs))
  return Kernels(kernels, waits, atomics(folder))


def _thunks(
  text: str, names: dict[str, str]
) -> Iterator[tuple[str, str, list[tuple[str, bool]]]]:
  """Yields kind, name, and loops and conditionals around, of a list's lines."""
  around: list[tuple[int, str, bool]] = []
  for line in text.splitlines():
    if not (x := _THUNK.match(line)):
      continue
    depth, kind, name = len(x[1]), x[3], names.get(str(int(x[2])), '')
    while around and around[-1][0] >= depth:
      around.pop()
    yield kind, name, [y[1:] for y in around]
    if kind in ('kWhile', 'kConditional'):
      around.append((depth, name, kind == 'kWhile'))


def atomics(folder: pathlib.Path) -> dict[str, list[str]]:
  """Atomic operations on floats, by kernel, in a program's PTX."""
  found: dict[str, list[str]] = {}
  for path in sorted(folder.glob('*.ptx')):
    kernel = path.stem
    for line in path.read_text(errors='replace').splitlines():
      if entry := _ENTRY.search(line):
        kernel = entry[1]
      if x := _ATOMIC.search(line):
        found.setdefault(kernel, []).append(x[1])
  return found


def _moved_in_place(x: hlo.Instruction, distinct: Mapping[int, float]) -> int:
  """Of a kernel of ours: at most, if it changes a row for each that it reads.

  It reads and writes these rows of the arrays that it changes in place, and all
  of the others.
  """
  aliases = x.attributes.partition('output_to_operand_aliasing')[2]
  pairs = _IN_PLACE.findall(aliases.partition('}, custom')[0])
  arrays = hlo.arrays(x.shape)
  kept = {int(operand) for _, operand in pairs}
  results = {int(result or 0) for result, _ in pairs}
  others = [y for i, y in enumerate(x.operands) if i not in kept]
  rows = max(y[0] for z in others for y in hlo.sizes(z) if len(y) > 1)
  rows = distinct.get(rows, rows)
  results_bytes, tables_bytes = _num_bytes(x.shape), 0
  sizes = [_num_bytes(y) for y in others]
  if not kept:
    # Larger operands are tables: it reads a row for each of its results.
    tables_bytes = sum(y for y in sizes if y > results_bytes)
  moved = sum(sizes) - tables_bytes + min(tables_bytes, results_bytes)
  for i, (size, width) in enumerate(arrays):
    if i in results:
      moved += 2 * int(rows * math.prod(size[1:]) * width)
    else:
      moved += math.prod(size) * width
  return moved


def _num_bytes(shape: str) -> int:
  return int(sum(math.prod(x) * y for x, y in hlo.arrays(shape)))


def _moved_bytes(
  program: hlo.Program, x: hlo.Instruction, distinct: Mapping[int, float]
) -> int:
  """What the kernel of an instruction reads and writes."""
  fused = program.computations.get(x.called[0], {}) if x.called else {}

  def changed(rows):
    """Of rows that are written to a table, those that differ."""
    (num, *_) = (hlo.sizes(rows) or [(0,)])[0] or (0,)
    part = distinct.get(num, num) / num if num else 1
    return int(part * _num_bytes(rows))

  if x.opcode == 'custom-call' and _TRITON in x.attributes:
    return _moved_in_place(x, distinct)
  if x.opcode in _TAKES:
    return 2 * _num_bytes(x.shape)
  if x.opcode != 'fusion' or not fused:
    return sum(map(_num_bytes, x.operands)) + _num_bytes(x.shape)
  users: dict[str, list[hlo.Instruction]] = {}
  for y in fused.values():
    for name in y.names:
      users.setdefault(name, []).append(y)

  def looked_up(name: str) -> int:
    """Of an operand, all unless some of its rows are taken or changed."""
    total = 0
    for y in users.get(name, []):
      if y.opcode in ('bitcast', 'reshape'):
        inner = next(k for k, z in fused.items() if z is y)
        total += looked_up(inner)
      elif y.names[0] == name and y.opcode in _TAKES:
        total += _num_bytes(y.shape)
      elif y.names[0] == name and y.opcode in _CHANGES:
        total += changed(y.operands[_CHANGES[y.opcode]])
      else:
        return _num_bytes(fused[name].shape)
    return min(total, _num_bytes(fused[name].shape))

  def written(name: str) -> int:
    y = fused.get(name)
    if y is None:
      return 0
    if y.opcode == 'tuple':
      return sum(map(written, y.names))
    if y.opcode in ('bitcast', 'reshape'):
      return written(y.names[0])
    if y.opcode in _CHANGES:
      return changed(y.operands[_CHANGES[y.opcode]])
    return _num_bytes(y.shape)

  parameters = [k for k, y in fused.items() if y.opcode == 'parameter']
  root = next(k for k, y in fused.items() if y.is_root)
  return sum(map(looked_up, parameters)) + written(root)
