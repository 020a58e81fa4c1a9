"""The program of a run, compiled for devices that are not here.

It is compiled by the devices' own compiler, from shapes alone: nothing is
trained, and no table is made. The program says what memory it needs, which
whole tables it copies, and what its collectives send.
"""

import collections
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.kernels import ffi
from jaxemb.models import base as model_base
from jaxemb.ops import sampling
from jaxemb.run import build, rundir, start
from jaxemb.run import devices as devices_lib
from jaxemb.run import trainer as trainer_lib
from jaxemb.runtime import hlo, topologies
from jaxemb.strategies import base as strategy_base

# Of the memory, what a run may need; the rest is the program and its runtime.
_USABLE = 0.95


class Data(NamedTuple):
  """What a program is compiled for."""

  setup: devices_lib.Setup  # with steps that fit the data
  corpus: model_base.Corpus
  steps: data_base.Steps
  batch: Any  # of a dispatch


def read(
  setup: devices_lib.Setup,
  fits_steps: bool = False,
  left_open: Sequence[str] = (),
) -> Data:
  """Reads the data that resolved settings name.

  `fits_steps`: steps may be fitted to the size of the data, as may be the
  settings that are `left_open`.
  """
  readers = data_base.ALONE
  if setup.config.strategy.name != 'partition':
    readers = readers._replace(local_parts=range(setup.tuning.parts))
  start.check(setup.config)
  known = start.known(setup.config)
  source = build.make_source(setup, readers, rundir.cache_folder(), known=known)
  setup, source = build.fit_passes(setup, source, left_open)
  setup = build.fit_rate(setup, source, left_open)
  if fits_steps:
    setup, source = build.fit_steps(setup, source)
  batch = next(iter(source.items(None, 0))).batch
  corpus = build.corpus_of(source, known)
  return Data(setup=setup, corpus=corpus, steps=source.steps, batch=batch)


class Job(NamedTuple):
  """What would train."""

  topology: topologies.Topology
  setup: devices_lib.Setup
  trainer: trainer_lib.Trainer
  corpus: model_base.Corpus
  state: strategy_base.TrainState  # shapes, as are constants and batch
  constants: Any
  batch: Any

  def device_bytes(self, tree: Any) -> int:
    """Bytes of some of the state on each device, as numbers without padding."""
    return self.trainer.strategy.device_bytes(tree)

  def mesh(self) -> jax.sharding.Mesh:
    """The devices that the program runs on."""
    return jax.tree.leaves(self.state)[0].sharding.mesh


def prepare(
  where: topologies.Topology,
  config: ml_collections.ConfigDict,
  read_data: Callable[[devices_lib.Setup, bool, Sequence[str]], Data] = read,
) -> Job:
  """Makes what would train on some devices, without its arrays.

  Raises a `UserError` for what cannot be planned.
  """
  if config.table.store:
    raise errors.UserError(
      'tables in a store, such as those of workers, are not planned: devices '
      'hold what config.table.device_bytes says, and what moves depends on the '
      'data; plan all rows on the devices, without config.table.store, and '
      'with --config.strategy.name=sync'
    )

  fits_steps = not config.train.batch_words
  left_open = config_lib.left_open(config)

  def make(**fixed):
    setup = devices_lib.choose(config, {}, where.devices, **fixed)
    data = read_data(setup, fits_steps, left_open)
    return data, trainer_lib.make(data.setup, data.corpus, data.steps)

  try:
    data, trainer = make()
  except ffi.Unavailable:  # as a run does
    data, trainer = make(fused=False)
  job = Job(
    topology=where,
    setup=data.setup,
    trainer=trainer,
    corpus=data.corpus,
    state=trainer.strategy.init.eval_shape(sampling.key_shape()),
    constants=jax.eval_shape(trainer.strategy.constants),
    batch=_shapes(data.batch, trainer.strategy.batch_sharding),
  )
  everywhere = jax.sharding.PartitionSpec()
  sharding = jax.sharding.NamedSharding(job.mesh(), everywhere)
  return job._replace(constants=_shapes(job.constants, sharding))


def _shapes(tree: Any, sharding: jax.sharding.Sharding) -> Any:
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree
  )


def compiled(job: Job) -> jax.stages.Compiled:
  """Returns the program of a dispatch, as the devices' compiler makes it."""
  zero = np.float32(0)
  schedule = strategy_base.Schedule(zero, zero, np.zeros(2, np.uint32))
  # Kernels ask for which device they are compiled.
  on_devices = jax.sharding.use_abstract_mesh(job.mesh().abstract_mesh)
  with on_devices, topologies.silent_compilers():
    return job.trainer.strategy.step.lower(
      job.state, job.constants, job.batch, schedule
    ).compile()


def _table_copies(job: Job, text: str) -> dict[str, int]:
  """Counts copies of whole tables (or a device's shard), by depth of loop."""
  leaves = [jax.tree.leaves(x.vectors)[0] for x in job.state.tables.values()]
  sizes = {math.prod(x.sharding.shard_shape(x.shape)) for x in leaves}
  program = hlo.parse(text)
  counts: collections.Counter[str] = collections.Counter()
  for x, loops, _ in hlo.executed(program, program.entry):
    # The last is a move into a TPU's core in several pieces.
    is_copy = x.opcode.startswith(('copy', 'transpose'))
    is_copy |= 'ConcatBitcast' in x.attributes
    if is_copy and x.opcode != 'copy-done':
      counts[str(len(loops))] += any(math.prod(y) in sizes for y in x.sizes)
  return dict(+counts)


def examine(job: Job) -> dict[str, Any]:
  """Compiles a job and returns its memory, table copies and collectives.

  Raises a `UserError` if a device has too little memory.
  """
  device_bytes = job.topology.chip.gigabytes * 1e9
  _check_fits(job, job.device_bytes(job.state))
  try:
    program = compiled(job)
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' in str(error):
      _check_fits(job, device_bytes)
    raise
  text, memory = program.as_text() or '', program.memory_analysis()
  assert memory is not None  # of the compilers for these devices
  # What is changed in place is an argument and not a result as well.
  arguments = memory.argument_size_in_bytes
  results = memory.output_size_in_bytes - memory.alias_size_in_bytes
  peak_bytes = arguments + results + memory.temp_size_in_bytes
  _check_fits(job, peak_bytes)
  (config, _, mesh, kind), tables = job.setup, job.state.tables.values()
  return {
    'topology': job.topology.name,
    'devices': mesh.size,
    'idle_devices': len(job.topology.devices) - mesh.size,
    'mesh': dict(mesh.shape),
    'layout': config.table.layout,
    'strategy': config.strategy.name,
    'vocab': len(job.corpus.counts),
    'dim': config.model.dim,
    'dtype': config.table.dtype,
    'optimizer': config.optimizer.name,
    'batch_words': config.train.batch_words,
    'unit': kind.unit,
    'memory': {
      'tables_bytes': job.device_bytes([x.vectors for x in tables]),
      'optimizer_bytes': job.device_bytes([x.opt_state for x in tables]),
      'arguments_bytes': arguments,
      'scratch_bytes': memory.temp_size_in_bytes,
      'program_bytes': memory.generated_code_size_in_bytes,
      'peak_bytes': peak_bytes,
      'device_bytes': device_bytes,
    },
    'table_copies_by_loop_depth': _table_copies(job, text),
    'collectives': hlo.traffic(text, job.trainer.strategy.loop),
  }


def _check_fits(job: Job, needed_bytes: float) -> None:
  """Raises a `UserError` that says what would fit, if this does not."""
  chip = job.topology.chip
  room_bytes = _USABLE * chip.gigabytes * 1e9
  if needed_bytes < room_bytes:
    return
  config, _, mesh, kind = job.setup
  layout, strategy = config.table.layout, config.strategy.name
  whole_bytes = needed_bytes * mesh.shape['table']
  if getattr(job.state, 'synced', None):
    whole_bytes /= 2  # without the rows of the last synchronisation
  least = math.ceil(whole_bytes / room_bytes)
  advice = [kind.smaller]

  def num_devices(shape):
    return math.prod(int(x) for x in shape.split('x') if x.isdecimal())

  shape = next((x for x in chip.shapes if num_devices(x) >= least), None)
  if config.model.name != 'mixture' and shape:
    prefix = 'cuda' if chip.gpu_name else job.topology.kind
    fitting = 'row' if num_devices(shape) > 1 else 'replicated'
    advice.insert(
      0,
      f'--topology={prefix}:{shape} with --config.table.layout={fitting}'
      + ' --config.strategy.name=sync' * (strategy != 'sync'),
    )
  if config.table.dtype == 'float32':
    advice.append('give --config.table.dtype=bfloat16')
  raise errors.UserError(
    f'{job.topology.name} has {chip.gigabytes:.0f} GB a device, and the '
    f'{layout} layout needs {needed_bytes / 1e9:.1f} GB; would fit: '
    f'{"; or ".join(advice)}'
  )
