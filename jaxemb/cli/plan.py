"""Plans a run on devices that are not here: memory, traffic, what limits it.

  jaxemb plan --config=wiki --topology=v5e:2x4 --vocab=1e6

--topology=NAME     devices, such as v5e:2x4, tpu7x:2x2x1 or cuda:h200x8; of
                    several, with commas, a table
--vocab=NUMBER      words, with counts of Zipf's law (default: reads the data)
--json=FILE         writes the same as JSON
--config=..., --config.SETTING=VALUE    as for `jaxemb train`

The program that a run would have is compiled by the devices' own compiler, from
shapes alone: nothing is trained, and no table is made. What is printed as
compiled was read in that program; rates are what single limits allow, each as
if nothing else took time, from the figures of chips that are printed with them.
"""

import argparse
import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import math
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections
import numpy as np

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.cli import train as main_lib
from jaxemb.config import kinds
from jaxemb.data import subsampling
from jaxemb.run import build, rundir
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.runtime import process

_CORPUS_WORDS = 10**10  # of Zipf's law, of which the vocabulary has the counts
# Of the memory, what a run may need; the rest is the program and its runtime.
_USABLE = 0.95
# Of a TPU's core, counted in its bundles on v5e, where the compiler gives no
# estimate: for each id, by the kernels of `row_copies` and `sorted_sums`, of
# rows in one line of memory and in several, and by XLA.
_CYCLES = {
  'take': 4.3, 'put': 4.8, 'sum': 5.2, 'sum all': 4.8,
  'take wide': 7.3, 'put wide': 7.9, 'sum wide': 10.2, 'sum all wide': 11,
  'gather': 5.3, 'scatter': 65,
  'gather number': 9, 'scatter number': 8, 'sort': 1,
}  # fmt: skip


# Of a GPU, assumed: the least that a kernel takes, one after another in a graph
# of them; until the host knows whether a loop goes on (jax issue 2491).
_LAUNCH_SECS, _WAIT_SECS = 2e-6, 8e-6


# Modules that compile for GPUs: of any one of them.
CUDA_COMPILERS = 'jax_plugins.xla_cuda13', 'jax_plugins.xla_cuda12'


class Chip(NamedTuple):
  """What makers say of a device: of a chip, or a half where JAX has two."""

  gigabytes: float
  memory_gbps: float  # bytes, of its memory
  teraflops: float  # of bfloat16 products
  link_gbps: float  # bytes, of one link, one way
  ghz: float  # of a TPU's core, from its products per second; 0 = not used
  shapes: tuple[str, ...]  # topologies
  name: str = ''  # of a GPU
  cores: int = 0
  l2_bytes: int = 0
  # Of a core's own memory, what a compiler fills with the rows of a step; some
  # leave them in that of the chip, as is read in their programs.
  core_bytes: int = 0


_FLAT = '1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16'
_CUBES = '1x1x1 2x2x1 2x2x2 2x2x4 2x4x4 4x4x4'


def _tpu(*numbers: float, shapes: str, core_bytes: int = 0) -> Chip:
  return Chip(*numbers, tuple(shapes.split()), core_bytes=core_bytes)


def _gpu(gigabytes, memory_gbps, name, kind):
  shapes = tuple(f'{kind}x{n}' for n in (1, 2, 4, 8))
  return Chip(
    gigabytes=gigabytes,
    memory_gbps=memory_gbps,
    teraflops=989,
    link_gbps=450,
    ghz=0,
    shapes=shapes,
    name=name,
    cores=132,
    l2_bytes=52_428_800,
  )


CHIPS = {
  'v2': _tpu(8.6, 350, 23, 31, 0.7, shapes='1x1 2x2 4x4'),
  'v3': _tpu(17.2, 450, 61, 41, 0.94, shapes='1x1 2x2 4x4'),
  'v4': _tpu(17.2, 614, 137, 50, 1.05, shapes=_CUBES, core_bytes=1 << 27),
  'v5e': _tpu(17.2, 819, 197, 50, 1.5, shapes=_FLAT, core_bytes=1 << 27),
  'v5p': _tpu(102.0, 2765, 459, 100, 1.75, shapes=_CUBES),
  'v6e': _tpu(34.4, 1640, 918, 100, 1.75, shapes=_FLAT, core_bytes=1 << 27),
  'tpu7x': _tpu(103.0, 3690, 1153, 100, 2.2, shapes=_CUBES),
  'h100': _gpu(
    85.0, memory_gbps=3350, name='NVIDIA H100 80GB HBM3', kind='h100'
  ),
  'h200': _gpu(
    151.0, memory_gbps=4800, name='NVIDIA H200 141GB HBM3e', kind='h200'
  ),
}


class Topology(NamedTuple):
  """Devices that are not here."""

  name: str
  kind: str  # of `CHIPS`
  devices: Sequence[Any]

  @property
  def chip(self) -> Chip:
    """One of the devices."""
    return CHIPS[self.kind]


def known() -> list[str]:
  """The names of all topologies."""
  return [
    f'cuda:{x}' if chip.name else f'{kind}:{x}'
    for kind, chip in CHIPS.items()
    for x in chip.shapes
  ]


def zipf_counts(num_words: int) -> np.ndarray:
  """[num_words] int64, counts of words that follow Zipf's law."""
  weights = 1 / (np.arange(1, num_words + 1) + 2.7)
  counts = np.rint(weights * (_CORPUS_WORDS / weights.sum()))
  return np.maximum(1, counts.astype(np.int64))


def topology(name: str) -> Topology:
  """The devices of a name; starts JAX on the CPU.

  Raises a `UserError` for one that is not known, or whose compiler is missing.
  """
  if name not in known():
    lines = {}
    for x in known():
      lines.setdefault(x.partition(':')[0], []).append(x.partition(':')[2])
    names = '; '.join(f'{k}: {" ".join(x)}' for k, x in lines.items())
    raise errors.UserError(
      f'there is no topology {name!r}; give --topology=KIND:SHAPE, of {names}'
    )
  kind, _, shape = name.partition(':')
  is_tpu = kind != 'cuda'
  if not is_tpu:
    kind, _, num = shape.rpartition('x')
  modules = ('libtpu',) if is_tpu else CUDA_COMPILERS
  extra = 'tpu' if is_tpu else 'cuda'
  if not any(map(has, modules)):
    raise errors.UserError(
      f'{name} needs the compiler of the extra {extra}: pip install '
      f"'jaxemb[{extra}]'"
    )
  if is_tpu:
    _check_version(name)
  # libtpu asks the cloud what it runs on, and is for one process at a time,
  # unless it is told otherwise.
  quiet = dict.fromkeys(
    ('TPU_MIN_LOG_LEVEL', 'TPU_STDERR_LOG_LEVEL', 'TF_CPP_MIN_LOG_LEVEL'), '3'
  )
  once = {'TPU_SKIP_MDS_QUERY': '1', 'ALLOW_MULTIPLE_LIBTPU_LOAD': '1'}
  for key, value in (quiet | once).items():
    os.environ.setdefault(key, value)
  import jax
  from jax.experimental import topologies

  jax.config.update('jax_platforms', 'cpu')
  if is_tpu:
    more = {'platform': 'tpu', 'topology_name': name}
    if set(shape) <= set('1x'):
      bounds = {'chips_per_host_bounds': (1, 1, 1), 'num_slices': 1}
      more |= {'topology_name': f'{kind}:1x1x1'} | bounds
  else:
    more = {
      'platform': 'cuda', 'topology': f'1x1x{num}',
      'target_config': _target_config(CHIPS[kind]),
    }  # fmt: skip
  try:
    with _silent():
      devices = topologies.get_topology_desc(**more).devices
  except Exception as error:
    raise errors.UserError(
      f'the compiler of the extra {extra} does not know {name}: '
      f'{errors.one_line(error)}; install a newer one'
    ) from error
  return Topology(name, kind, devices)


def has(module: str) -> bool:
  """Whether a module is installed."""
  try:
    return importlib.util.find_spec(module) is not None
  except ModuleNotFoundError:
    return False


def _check_version(name: str) -> None:
  """Raises a `UserError` for another libtpu than that of this JAX."""
  try:
    found = importlib.metadata.version('libtpu')
  except importlib.metadata.PackageNotFoundError:
    return  # built by hand
  needed = ''.join(importlib.metadata.requires('jax') or [])
  wanted = re.search(r'libtpu==([\d.]+?)[.*]*;', needed)
  if wanted and not f'{found}.'.startswith(f'{wanted[1]}.'):
    raise errors.UserError(
      f'{name}: libtpu {found} is installed, and JAX '
      f'{importlib.metadata.version("jax")} needs {wanted[1]}; pip install '
      "--upgrade 'jaxemb[tpu]'"
    )


class _silent:
  """Keeps compilers' own lines, on what they do not run on, off stderr."""

  def __enter__(self):
    sys.stderr.flush()
    self._saved, self._file = os.dup(2), tempfile.TemporaryFile()
    os.dup2(self._file.fileno(), 2)

  def __exit__(self, *_):
    os.dup2(self._saved, 2)
    os.close(self._saved)
    self._file.close()


def _target_config(chip: Chip) -> str:
  """XLA's description of a Hopper GPU, from published figures."""
  gpu = {
    'threads_per_block_limit': 1024, 'threads_per_warp': 32,
    'shared_memory_per_block': 49_152, 'shared_memory_per_core': 233_472,
    'shared_memory_per_block_optin': 232_448, 'threads_per_core_limit': 2048,
    'core_count': chip.cores, 'fpus_per_core': 128,
    'block_dim_limit_x': 2**31 - 1, 'block_dim_limit_y': 65_535,
    'block_dim_limit_z': 65_535, 'thread_dim_limit_x': 1024,
    'thread_dim_limit_y': 1024, 'thread_dim_limit_z': 64,
    'memory_bandwidth': round(chip.memory_gbps * 1e9),
    'l2_cache_size': chip.l2_bytes, 'clock_rate_ghz': 1.98,
    'device_memory_size': round(chip.gigabytes * 1e9),
    'registers_per_core_limit': 65_536, 'registers_per_block_limit': 65_536,
    'device_address_bits': 64,
  }  # fmt: skip
  lines = [f'{key}: {value}' for key, value in gpu.items()]
  versions = 'driver_version', 'runtime_version', 'compile_time_toolkit_version'
  lines += [f'{x}: "12.8.0"' for x in versions]
  lines += [
    'cuda_compute_capability { major: 9 }',
    'device_vendor: "NVIDIA Corporation"',
    'platform_version: "Compute Capability 9.0"',
    f'name: "{chip.name}"',
  ]
  return (
    f'gpu_device_info {{ {" ".join(lines)} }} platform_name: "CUDA" '
    'dnn_version_info { major: 9 minor: 10 } '
    f'device_description_str: "{chip.name}"'
  )


@dataclasses.dataclass(frozen=True)
class Job:
  """What would train."""

  topology: Topology
  config: ml_collections.ConfigDict  # resolved
  tuning: config_lib.Tuning
  mesh: Any
  trainer: build.Trainer
  corpus: Any
  batch: Any  # shapes

  @property
  def centers(self) -> int:
    """Of a step of all devices."""
    num = self.tuning.parts * self.tuning.part_words
    is_apart = self.config.strategy.name == 'partition'
    return num * (self.mesh.size if is_apart else 1)

  @functools.cached_property
  def state(self) -> Any:
    """Shapes, on their devices."""
    import jax

    return self.trainer.strategy.init.eval_shape(jax.random.key(0))

  @functools.cached_property
  def constants(self) -> Any:
    """Shapes of what steps only read."""
    import jax

    mesh = jax.tree.leaves(self.state)[0].sharding.mesh
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    found = jax.eval_shape(self.trainer.strategy.constants)
    return _shapes(found, everywhere)


def make(
  where: Topology, config: ml_collections.ConfigDict, num_words: int = 0
) -> Job:
  """The parts of a run on some devices; on `num_words` of Zipf, or the data.

  Raises a `UserError` for what cannot be planned.
  """
  from jaxemb.data import windows
  from jaxemb.models import base as model_base
  from jaxemb.text import loader

  is_text = config.data.source == 'text'
  if config.strategy.name == 'workers':
    raise errors.UserError(
      'workers are not planned: they are processes, whose rows are in a store; '
      'plan all rows on the devices with --config.strategy.name=sync'
    )
  if config.table.store or config.table.device_bytes:
    raise errors.UserError(
      'tables in a store are not planned: devices hold what '
      'config.table.device_bytes says, and what moves depends on the data; '
      'without it and config.table.store all rows on the devices are planned'
    )
  if num_words and not is_text:
    raise errors.UserError(
      '--vocab is of words; others are planned from their data'
    )
  config, tuning, mesh = build.on_devices(config, {}, where.devices)
  if num_words:
    counts = zipf_counts(num_words)
    chances = subsampling.center_probabilities(counts, config.data.sample)
    corpus = model_base.Corpus((), counts, chances)
    steps = windows.Steps(
      part_words=tuning.part_words,
      num_parts=tuning.parts,
      window=config.model.window,
      chunk=tuning.chunk,
    )
  else:
    from jaxemb.data import base as data_base

    readers = data_base.ALONE
    if config.strategy.name != 'partition':
      readers = readers._replace(local_parts=range(tuning.parts))
    cache = rundir.cache_folder()
    source = build.make_source(
      config, tuning, readers, cache=cache, progress=lambda *_: None
    )
    corpus = build.corpus_of(source)
    steps = source.steps
  trainer = build.trainer(config, tuning, mesh, corpus=corpus, steps=steps)
  if is_text:
    shape = steps.num_parts, loader.batch_words(steps.part_words)
    ids = np.broadcast_to(np.int32(0), shape)
    batch = windows.pack(ids, steps.window, steps.part_words)
  else:
    batch = next(iter(source.items(None, 0))).batch
  batch = _shapes(batch, trainer.strategy.batch_sharding)
  return Job(
    topology=where,
    config=config,
    tuning=tuning,
    mesh=mesh,
    trainer=trainer,
    corpus=corpus,
    batch=batch,
  )


def _shapes(tree: Any, sharding: Any) -> Any:
  import jax

  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree
  )


def trace(job: Job) -> Any:
  """The program of a dispatch, traced from shapes alone."""
  from jaxemb.strategies import base

  strategy, zero = job.trainer.strategy, np.float32(0)
  schedule = base.Schedule(zero, zero, np.zeros(2, np.uint32))
  args = job.state, job.constants, job.batch, schedule
  with _on(job):
    return strategy.step.trace(*args)


def compiled(job: Job, traced: Any, folder: str = '') -> Any:
  """What the devices' compiler makes of it.

  For GPUs it warns that it cannot measure there, and what it dumps is in
  `folder`.
  """
  if not folder:
    with _on(job):
      return traced.lower().compile()
  with _on(job), _silent():
    return traced.lower().compile({'xla_dump_to': folder})


def _on(job: Job) -> Any:
  """Tells kernels what they are compiled for, as a device would."""
  import jax

  mesh = jax.tree.leaves(job.state)[0].sharding.mesh
  return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)


class Held(NamedTuple):
  """Bytes on a device, by formula, as its memory is laid out."""

  tables: int
  slots: int
  others: int  # of the state, the batch, and the model
  rows: int  # of a step, with their gradients and what is exchanged

  @property
  def total(self) -> int:
    """What a dispatch takes."""
    return sum(self)


def held(job: Job) -> Held:
  """What a device holds, from shapes alone."""
  import jax

  is_tpu, state = not job.topology.chip.name, job.state

  def size(tree):
    return sum(_num_bytes(x, is_tpu) for x in jax.tree.leaves(tree))

  tables = [*state.tables.values(), *getattr(state, 'met', {}).values()]
  vectors = size([x.vectors for x in tables])
  rest = size([x.opt_state for x in tables])
  whole = size((state, job.batch, job.constants))
  in_step = max(0, _step_bytes(job) - job.topology.chip.core_bytes)
  in_step += _fetched_bytes(job)
  return Held(
    tables=vectors, slots=rest, others=whole - vectors - rest, rows=in_step
  )


def _num_bytes(x: Any, is_tpu: bool) -> int:
  """Of a device's share of an array; a TPU's is in tiles of 8 x 128."""
  *more, rows, columns = 1, 1, *x.sharding.shard_shape(x.shape)
  if not is_tpu:
    return math.prod(more) * rows * columns * x.dtype.itemsize
  if x.ndim < 2:
    return -(-columns // 1024) * 1024 * x.dtype.itemsize
  orders = [(rows, columns)]
  if not getattr(x.format, 'layout', None):  # whatever takes less
    orders.append((columns, rows))

  def padded(rows, columns):
    tile = min(8, 1 << (rows - 1).bit_length())
    tile = max(tile, 4 // x.dtype.itemsize)  # of small numbers in a word
    return -(-rows // tile) * tile * -(-columns // build.LANES) * build.LANES

  numbers = min(padded(*x) for x in orders)
  return math.prod(more) * numbers * x.dtype.itemsize


def flops(jaxpr: Any, loops: tuple[int | None, ...] = ()) -> Iterator[tuple]:
  """Yields (floating-point operations, the loops around) of each product."""
  for x in jaxpr.eqns:
    if x.primitive.name == 'dot_general':
      (contracted, _), _ = x.params['dimension_numbers']
      shape = x.invars[0].aval.shape
      summed = math.prod(shape[i] for i in contracted)
      yield 2.0 * summed * math.prod(x.outvars[0].aval.shape), loops
    inside = loops
    if x.primitive.name in ('while', 'scan'):
      inside = (*loops, x.params.get('length'))
    if x.primitive.name == 'pallas_call':  # a turn is a program
      inside = (*loops, math.prod(x.params['grid_mapping'].grid))
    for value in x.params.values():
      for inner in value if isinstance(value, tuple | list) else [value]:
        inner = getattr(inner, 'jaxpr', inner)
        if hasattr(inner, 'eqns'):
          yield from flops(inner, inside)


class Rows(NamedTuple):
  """Rows of tables, by one device in a step."""

  lookups: float
  distinct: float  # expected
  num_bytes: float  # that move between memory and core


def _step_bytes(job: Job) -> int:
  """Of the float32 rows of a step on a device, and their gradients.

  In the row layout there are also those that are exchanged.
  """
  total, num_devices = 0.0, job.mesh.shape['table']
  for name, (lookups, _) in _lookups(job).items():
    table = job.trainer.trainable.tables[name]
    sent = min(getattr(table, 'capacity', 0), lookups) * num_devices
    columns = _columns(job, _leaves(job.state.tables[name].vectors)[0])
    # Where a GPU's kernel sums them, gradients take the room of their rows, and
    # beside them are sums of parts of runs.
    is_summed = getattr(table, 'row_kernel', None) and not sent
    total += 4 * columns * ((1.25 if is_summed else 2) * lookups + sent)
  return int(total)


def _fetched_bytes(job: Job) -> int:
  """Of rows of a step that a TPU's kernel writes to the memory of a device."""
  if job.config.table.layout != 'row':
    return 0
  total = 0.0
  for name, (lookups, _) in _lookups(job).items():
    table = job.trainer.trainable.tables[name]
    if table.kernels.copies and table.spec.dtype == 'float32':
      columns = _columns(job, job.state.tables[name].vectors)
      total += 4 * columns * lookups
  return int(total)


def _leaves(tree: Any) -> list[Any]:
  import jax

  return jax.tree.leaves(tree)


def _columns(job: Job, x: Any) -> int:
  """Of an array of rows on a device, with a TPU's padding."""
  lanes = 1 if job.topology.chip.name else build.LANES
  return -(-x.sharding.shard_shape(x.shape)[-1] // lanes) * lanes


def _centers(job: Job) -> float:
  """Of a step on each device; all that share a row's columns take the same."""
  centers = job.centers / job.mesh.size
  is_shared = job.config.table.layout == 'column'
  return centers * (job.mesh.shape['table'] if is_shared else 1)


def rows(job: Job) -> Rows:
  """The row traffic of a step: read once, and distinct ones changed."""
  total = np.zeros(3)
  for name, (lookups, distinct) in _lookups(job).items():
    state = job.state.tables[name]
    ndim = _leaves(state.vectors)[0].ndim
    is_tpu, parts = not job.topology.chip.name, []
    for part in (state.vectors, state.opt_state):
      arrays = [x for x in _leaves(part) if x.ndim == ndim]
      parts.append([x for x in arrays if x.size > x.shape[-1]])
    widths = [sum(row_bytes(x, is_tpu) for x in part) for part in parts]
    moved = widths[0] * (lookups + 2 * distinct) + widths[1] * 2 * distinct
    dim = job.trainer.trainable.tables[name].spec.dim
    if is_tpu and _is_narrow(dim):  # a small table moves to the core and back
      whole = sum(_num_bytes(x, is_tpu) for part in parts for x in part)
      moved = min(moved, 2 * whole)
    total += lookups, distinct, moved
  return Rows(*total.tolist())


def _lookups(job: Job) -> dict[str, tuple[float, float]]:
  """By table, rows looked up by a device in a step, and how many differ."""
  found, centers = {}, _centers(job)
  for name, table in job.trainer.trainable.tables.items():
    each = table.spec.lookups_per_center
    if each is not None:
      distinct = float(-np.expm1(-each * centers).sum())
      found[name] = float(each.sum()) * centers, distinct
  return found


def _distinct(job: Job) -> dict[int, float]:
  """By number of lookups, the mean of tables of how many differ."""
  found: dict[int, list[float]] = {}
  for lookups, distinct in _lookups(job).values():
    found.setdefault(round(lookups), []).append(distinct)
  return {k: sum(x) / len(x) for k, x in found.items()}


def row_bytes(x: Any, is_tpu: bool) -> int:
  """Of an array of rows, what reading one takes from memory.

  A TPU has narrow rows column after column, in tiles of 4 KB.
  """
  columns, size = x.sharding.shard_shape(x.shape)[-1], x.dtype.itemsize
  if not is_tpu:
    return columns * size
  if _is_narrow(columns):
    return 4096 * -(-columns * size // 32)
  return -(-columns // build.LANES) * build.LANES * size


def _is_narrow(columns: int) -> bool:
  """Whether a TPU has rows of such arrays column after column."""
  return 1 < columns < mesh_lib.LEAST_TPU_WIDTH


def copies(job: Job, text: str) -> dict[str, int]:
  """Copies of whole tables (or a device's share of them), by depth of loop."""
  import jax

  from jaxemb.runtime import hlo

  sizes = set()
  for state in job.state.tables.values():
    leaf = jax.tree.leaves(state.vectors)[0]
    shape = leaf.sharding.shard_shape(leaf.shape)
    sizes.add(math.prod(shape))
  program, found = hlo.parse(text), {}
  for x, loops, _ in hlo.executed(program, program.entry):
    # The last is a move into a TPU's core in several pieces.
    is_copy = x.opcode.startswith(('copy', 'transpose'))
    is_copy |= 'ConcatBitcast' in x.attributes
    if is_copy and x.opcode != 'copy-done':
      if any(math.prod(y) in sizes for y in x.sizes):
        key = str(len(loops))
        found[key] = found.get(key, 0) + 1
  return found


def core_cycles(text: str, loop: Any) -> float:
  """Cycles of a TPU's core in a step of a compiled program."""
  from jaxemb.runtime import hlo

  program, total = hlo.parse(text), 0.0
  for x, loops, is_in_branch in hlo.executed(program, program.entry):
    runs = hlo.runs_per_step(loops, loop) * (loop.branch if is_in_branch else 1)
    # At most 13 digits: where the compiler knows nothing it says so by more.
    if estimate := re.search(r'"estimated_cycles":"(\d{,13})"', x.attributes):
      total += runs * int(estimate[1])
      continue
    kind, num = x.opcode, 0.0
    operands = [math.prod(y) for s in x.operands for y in hlo.sizes(s)]
    if kind == 'custom-call' and 'tpu_custom_call' in x.attributes:
      kind = {2: 'take', 3: 'sum', 4: 'put'}.get(len(operands))
      kind = 'sum all' if len(x.sizes) > 1 else kind  # rows come along
      num = operands[0]
      widths = [y[-1] for y in hlo.sizes(x.operands[-1])]
      kind = kind and kind + ' wide' * (max(widths) > build.LANES)
    elif kind == 'gather':
      widths = re.search(r'slice_sizes=\{([\d,]*)\}', x.attributes)
      width = math.prod(map(int, widths[1].split(','))) if widths else 1
      num = sum(map(math.prod, x.sizes)) / width
      kind += ' number' if width == 1 else ''
    elif kind == 'scatter':
      num = operands[1]
      kind += ' number' if operands[2] == num else ''
    elif kind == 'sort':
      num = operands[0]
    total += runs * num * _CYCLES.get(kind, 0)
  return total


def examine(job: Job) -> dict[str, Any]:
  """Compiles, and counts; raises a `UserError` for what has no room."""
  import jax

  from jaxemb.runtime import gpu, hlo

  chip, size, moved = job.topology.chip, held(job), rows(job)
  check_fits(job, size.total)
  loop, config = job.trainer.strategy.loop, job.config
  traced, on_gpu, kernels = trace(job), bool(chip.name), None
  try:
    with tempfile.TemporaryDirectory() as folder:
      program = compiled(job, traced, folder if on_gpu else '')
      if on_gpu:
        kernels = gpu.read(
          pathlib.Path(folder),
          text=program.as_text(),
          loop=loop,
          distinct=_distinct(job),
        )
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    check_fits(job, chip.gigabytes * 1e9)
    raise
  text, memory = program.as_text(), program.memory_analysis()
  sent = hlo.traffic(text, loop)
  sent_bytes = sent['bytes_per_step_per_device']
  work = sum(
    x * hlo.runs_per_step(loops, loop) for x, loops in flops(traced.jaxpr.jaxpr)
  )
  kept, step_words = 1.0, job.centers
  if config.data.source == 'text':
    keep = subsampling.keep_probabilities(job.corpus.counts, config.data.sample)
    counts = np.asarray(job.corpus.counts, np.float64)
    kept = float((counts * keep).sum() / counts.sum())
  step_words /= kept
  secs = {
    'memory': moved.num_bytes / (chip.memory_gbps * 1e9),
    'compute': work / (chip.teraflops * 1e12),
    'links': sent_bytes['total'] / (chip.link_gbps * 1e9),
  }
  if chip.ghz:
    secs['core'] = core_cycles(text, loop) / (chip.ghz * 1e9)
  if kernels:
    secs['kernels'] = kernels.secs(
      _LAUNCH_SECS, _WAIT_SECS, chip.memory_gbps * 1e9
    )
  devices = job.mesh.size
  temp = memory.temp_size_in_bytes
  # What is changed in place is an argument and not a result as well.
  arguments = memory.argument_size_in_bytes
  results = memory.output_size_in_bytes - memory.alias_size_in_bytes
  return {
    'topology': job.topology.name,
    'devices': devices,
    'idle_devices': len(job.topology.devices) - devices,
    'mesh': dict(job.mesh.shape),
    'layout': config.table.layout,
    'strategy': config.strategy.name,
    'vocab': len(job.corpus.counts),
    'dim': config.model.dim,
    'dtype': config.table.dtype,
    'optimizer': config.optimizer.name,
    'batch_words': config.train.batch_words,
    'unit': kinds.of(config).unit,
    'memory': {
      'tables_bytes': size.tables,
      'slots_bytes': size.slots,
      'others_bytes': size.others,
      'rows_bytes': size.rows,
      'planned_bytes': size.total,
      'arguments_bytes': arguments,
      'scratch_bytes': temp,
      'program_bytes': memory.generated_code_size_in_bytes,
      'peak_bytes': arguments + results + temp,
      'device_bytes': chip.gigabytes * 1e9,
    },
    'table_copies_by_loop_depth': copies(job, text),
    'kernels': kernels
    and {
      'per_step': kernels.per_step,
      'bytes_per_step': kernels.bytes_per_step,
      'waits_per_step': kernels.waits_per_step,
      'atomics': kernels.atomics,
    },
    'collectives': sent,
    'sent_bytes_per_word': devices * sent_bytes['total'] / step_words,
    'rows_per_step': moved._asdict(),
    'flops_per_step': work,
    'step_words': step_words,
    'kept_fraction': kept,
    'secs_per_step': secs,
    'link_share': secs['links'] / max(secs.values()),
    'words_per_sec': {k: step_words / x for k, x in secs.items() if x},
    'assumptions': list(_assumptions(job)),
  }


def check_fits(job: Job, needed: float) -> None:
  """Raises a `UserError` that says what would fit, if this does not."""
  chip = job.topology.chip
  room = _USABLE * chip.gigabytes * 1e9
  if needed < room:
    return
  num = job.mesh.shape['table']
  layout, strategy = job.config.table.layout, job.config.strategy.name
  whole = needed * num
  if getattr(job.state, 'met', None):
    whole /= 2  # without the rows at the last meeting
  least = math.ceil(whole / room)
  advice = [kinds.of(job.config).smaller]
  fitting = next(
    (x for x in chip.shapes if math.prod(_numbers(x)) >= least), None
  )
  if job.config.model.name != 'mixture' and fitting:
    prefix = 'cuda' if chip.name else job.topology.kind
    fitted = 'row' if math.prod(_numbers(fitting)) > 1 else 'replicated'
    wanted = f'--topology={prefix}:{fitting}'
    advice = [f'{wanted} with --config.table.layout={fitted}'] + advice
    if strategy != 'sync':
      advice[0] += ' --config.strategy.name=sync'
  if job.config.table.dtype == 'float32':
    advice.append('give --config.table.dtype=bfloat16')
  raise errors.UserError(
    f'{job.topology.name} has {chip.gigabytes:.0f} GB a device, and the '
    f'{layout} layout needs {needed / 1e9:.1f} GB; would fit: '
    f'{"; or ".join(advice)}'
  )


def _numbers(shape: str) -> list[int]:
  return [int(x) for x in shape.split('x') if x.isdecimal()]


def _assumptions(job: Job) -> Iterator[str]:
  chip = job.topology.chip
  yield (
    f'a device has {chip.gigabytes:.0f} GB, {chip.memory_gbps:,.0f} GB/s of '
    f'memory, {chip.teraflops:,.0f} TFLOP/s of bfloat16 products, '
    f'{chip.link_gbps:,.0f} GB/s on a link one way; all that it sends goes '
    'through one link'
  )
  yield 'lookups read a row, updates read and write each distinct one once'
  if chip.ghz:
    yield (
      f'core: cycles by the estimates of its compiler, and for each id by '
      f'{", ".join(f"{k} {x}" for k, x in _CYCLES.items())}, counted for v5e; '
      f'at {chip.ghz} GHz, one after another, without waiting for memory'
    )
    yield (
      'float32 products of rows are of bfloat16 factors with float32 sums '
      "(XLA's default there); sums over equal ids are exact"
    )
  for name, x in job.state.tables.items() if chip.ghz else ():
    array = _leaves(x.vectors)[0]
    if _is_narrow(array.shape[-1]):
      yield (
        f'warning: rows of {name} have {array.shape[-1]} numbers, and lie '
        f'column after column: to read one takes '
        f'{row_bytes(array, True):,} bytes of memory, unless the table fits '
        f'into the core; from {mesh_lib.LEAST_TPU_WIDTH} numbers on it takes '
        '512'
      )
  if chip.name:
    yield (
      f'kernels: one after another, each {_LAUNCH_SECS * 1e6:.0f} us or the '
      'time of what it reads and writes, as if no cache held any of it; '
      f'{_WAIT_SECS * 1e6:.0f} us for each wait; sorts by kernels of XLA, '
      'where a device has faster ones'
    )
  if job.config.table.layout == 'row' and job.mesh.shape['table'] == 1:
    yield (
      'warning: no devices share the rows, and to prepare their exchange takes '
      'time; --config.table.layout=replicated is faster'
    )
  if len(job.topology.devices) > job.mesh.size:
    yield (
      f'warning: {len(job.topology.devices) - job.mesh.size} devices are idle; '
      'give --config.mesh.data or --config.table.layout=row'
    )


def describe(plan: Mapping[str, Any]) -> Iterator[str]:
  """Lines that show a plan."""
  memory, sent, moved = (
    plan['memory'],
    plan['collectives'],
    plan['rows_per_step'],
  )
  mesh, unit = plan['mesh'], plan['unit']
  yield (
    f'{plan["topology"]}: {plan["devices"]} device(s), mesh {mesh["data"]} x '
    f'{mesh["table"]} (data x table), {plan["layout"]} layout, '
    f'{plan["strategy"]}; {plan["vocab"]:,} x {plan["dim"]} {plan["dtype"]}, '
    f'{plan["optimizer"]}, steps of {plan["batch_words"]:,} {unit}'
  )
  shown = 'tables', 'slots', 'others', 'scratch', 'program', 'peak'
  parts = ', '.join(f'{x} {memory[f"{x}_bytes"] / 1e6:,.1f}' for x in shown)
  share = memory['peak_bytes'] / memory['device_bytes']
  yield f'memory of a device, MB: {parts}: {share:.1%} of it'
  found = plan['table_copies_by_loop_depth'].items()
  places = ', '.join(f'{x} in {depth} loops' for depth, x in found)
  yield f'copies of whole tables: {places or "none"}'
  if kernels := plan['kernels']:
    found = ', '.join(kernels['atomics']) or 'none'
    yield (
      f'kernels of a device in a step: {kernels["per_step"]:,.0f}, which read '
      f'and write {kernels["bytes_per_step"] / 1e6:,.1f} MB; waits for the '
      f'host: {kernels["waits_per_step"]:.2f}; atomic operations: {found}'
    )
  step = sent['bytes_per_step_per_device']
  kinds = [
    f'{k} {sent[k]} ({step[k]:,.0f} bytes a step)' for k in step
    if k != 'total' and sent[k]
  ]  # fmt: skip
  yield f'collectives of a device: {", ".join(kinds) or "none"}'
  yield (
    f'sent: {step["total"]:,.0f} bytes a step by each device, '
    f'{plan["sent_bytes_per_word"]:,.1f} for each of the {unit} by all; '
    f'{plan["link_share"]:.0%} of the time of a link'
  )
  yield (
    f'rows of a device in a step: {moved["lookups"]:,.0f} looked up, '
    f'{moved["distinct"]:,.0f} distinct, {moved["num_bytes"] / 1e6:,.1f} MB; '
    f'{plan["flops_per_step"] / 1e9:,.2f} GFLOP of products'
  )
  rates = plan['words_per_sec']
  limits = ', '.join(f'{k} {x / 1e6:,.1f}' for k, x in rates.items())
  yield f'million {unit}/s that each allows, all devices: {limits}'
  least = min(rates, key=rates.get)
  yield f'at most {rates[least] / 1e6:,.1f} M {unit}/s, by {least}'
  yield from (f'assumed: {x}' for x in plan['assumptions'])


def attempt(
  name: str, config: ml_collections.ConfigDict, num_words: int
) -> dict[str, Any]:
  """`examine` of a topology, or why it has no plan as its `obstacle`."""
  where, needed = topology(name), 0.0
  try:
    job = make(where, config, num_words)
    needed = held(job).total
    found = examine(job)
  except errors.UserError as error:
    found = {'topology': name, 'obstacle': str(error)}
    found['memory'] = {
      'peak_bytes': needed, 'device_bytes': where.chip.gigabytes * 1e9
    }  # fmt: skip
  return found | {'all_devices': len(where.devices)}


def compare(plans: Sequence[Mapping[str, Any]]) -> Iterator[str]:
  """Lines: a table of what `attempt` has returned, and what follows from it."""
  yield 'topology      devices  GB each  needed  at most'
  fitting = {}
  for x in plans:
    memory, num, text = x['memory'], x['all_devices'], x.get('obstacle')
    if text is None:
      rates = x['words_per_sec']
      least = min(rates, key=rates.get)
      text = f'{rates[least] / 1e6:,.1f} M {x["unit"]}/s, by {least}'
      if x['idle_devices']:
        text += f'; {x["idle_devices"]} devices are idle'
      fitting[x['topology']] = num, rates[least] / num
    sizes = (memory[f'{k}_bytes'] / 1e9 for k in ('device', 'peak'))
    yield '{:14}{:7}{:9.1f}{:8.1f}  {}'.format(x['topology'], num, *sizes, text)
  if not fitting:
    yield 'none of them can have it'
    return
  fewest = min(num for num, _ in fitting.values())
  names = ', '.join(k for k, (num, _) in fitting.items() if num == fewest)
  fastest = max(fitting, key=lambda k: fitting[k][1])
  yield f'fewest devices: {names}; most for each device: {fastest}'


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  return process.exit_code(_run, sys.argv[1:] if argv is None else argv)


def _run(argv: Sequence[str]) -> None:
  if {'-h', '--help'} & set(argv):
    print(__doc__.strip(), '', 'topologies:', ' '.join(known()), sep='\n')
    return
  parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  parser.add_argument('--topology', default='')
  parser.add_argument('--vocab', default='0')
  parser.add_argument('--json', default='')
  flags, rest = parser.parse_known_args(argv)
  try:
    num_words = int(float(flags.vocab))
  except (ValueError, OverflowError):
    num_words = -1
  if num_words < 0 or num_words > 2**31 - 2:
    raise errors.UserError(
      f'--vocab={flags.vocab} must be a number of words, such as 1e6'
    )
  config, _, _ = main_lib.parse(rest)
  names = [x.strip() for x in flags.topology.split(',')]
  if len(names) > 1:
    for name in names:
      topology(name)  # a wrong one is told before the others are compiled
    found = [attempt(name, config, num_words) for name in names]
    lines = compare(found)
  else:
    found = examine(make(topology(names[0]), config, num_words))
    lines = describe(found)
  print(*lines, sep='\n')
  if flags.json:
    text = json.dumps(found, indent=2) + '\n'
    pathlib.Path(flags.json).expanduser().write_text(text, encoding='utf-8')
