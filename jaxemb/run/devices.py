"""Chooses the devices of a run, and what settings leave open for them."""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.config import kinds
from jaxemb.kernels.gpu import driver, row_sums
from jaxemb.kernels.gpu import step as gpu_step
from jaxemb.run import kind as kind_lib
from jaxemb.runtime import distributed
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.tables import row_sharded

_LOG = logging.getLogger('jaxemb')
_LANES = 128  # of a TPU: numbers that it reads at once
# Fields of the tuning that a resumed run keeps: parts of the text, the length
# of batches, by whose numbers negatives are drawn, and the weights of contexts.
_FIXED = 'parts', 'device_words', 'weights_contexts'


class Setup(NamedTuple):
  """Settings, and what devices and data make of them."""

  config: ml_collections.ConfigDict  # resolved
  tuning: config_lib.Tuning
  mesh: jax.sharding.Mesh
  kind: kind_lib.Kind

  @property
  def platform(self) -> str:
    """That of the devices, such as 'cpu'."""
    return self.mesh.devices.flat[0].platform

  @property
  def words_in_flight(self) -> int:
    """Centers learned from at once, none of which sees the others' updates.

    Of each replica or sub-model.
    """
    config, tuning = self.config, self.tuning
    if tuning.fused:
      return tuning.threads * config_lib.thread_words(config, tuning.chunk)
    if config.strategy.name in ('partition', 'workers'):
      return tuning.part_words
    is_joint = config.strategy.name == 'sync'
    return self.step_centers * (self.mesh.size if is_joint else 1)

  @property
  def is_alone(self) -> bool:
    """Whether one device trains; a run begun with replicas may go on so."""
    return self.mesh.size == self.tuning.parts == 1

  @property
  def step_centers(self) -> int:
    """Centers per step of one replica."""
    return self.tuning.part_words * self.tuning.parts // self.mesh.size


def choose(
  config: ml_collections.ConfigDict,
  begun: Mapping[str, Any],
  absent: Sequence[jax.Device] = (),
  **fixed: Any,
) -> Setup:
  """Chooses devices, and what settings and tuning leave open.

  `begun` has the flat settings of the run that is resumed, or is {}; `absent`
  are devices to compile for that are not there (`mesh.start`); `fixed` are
  fields of the tuning. Raises a `UserError` for settings that do not fit, and
  `ffi.Unavailable` for GPUs without a kernel that takes the steps.
  """
  wanted, is_resumed = _wanted(config, begun)
  data, table = mesh_lib.start(
    wanted,
    splits_tables=config.table.layout != 'replicated',
    uses_cores=_uses_cores(config, fixed.get('fused', True)),
    is_resumed=is_resumed,
    absent=absent,
  )
  devices, s = absent or jax.devices(), config.strategy
  platform = devices[0].platform
  _take_up(config, begun)
  fixed = _began_with(begun) | fixed
  if s.name == 'partition':
    if not wanted.data and platform != 'cpu':
      data = len(devices)  # they do not slow each other down
    data, table = min(data, s.num_parts if s.part < 0 else 1), 1
  elif 'parts' in fixed:
    # The data axis has to divide the parts; devices of the table axis share
    # the centers of their parts, whatever their number.
    num_devices, data = data * table, math.gcd(data, fixed['parts'])
    table = num_devices // data
  if config.table.layout == 'row' and row_sharded.NUM_CLASSES % table:
    raise errors.UserError(
      f'config.mesh.table={table} must divide {row_sharded.NUM_CLASSES} with '
      'config.table.layout=row'
    )
  _warn_of_few_columns(config, platform, table)
  if platform == 'gpu' and not row_sums.compiles_for(devices[0]):
    fixed = {'row_sums': False} | fixed
  shape = mesh_lib.Shape(data, table)
  mesh = mesh_lib.make(shape, devices=absent)
  cores = mesh_lib.cores_of_device(shape)
  may_fuse = fixed.get('fused', True) and platform == 'gpu'
  if may_fuse and config_lib.can_fuse(config, platform, shape):
    cores, fixed = _of_gpu(config, mesh, fixed)
  resolved, tuning = config_lib.resolve(
    config, platform, shape, cores=cores, **fixed
  )
  return Setup(resolved, tuning, mesh, kind=kinds.of(resolved))


def _take_up(
  config: ml_collections.ConfigDict, begun: Mapping[str, Any]
) -> None:
  """Sets what is left open as the run has it that is resumed.

  It goes on with the steps that it began with: on other devices only the limit
  of duplicates is another one.
  """
  model, train, optimizer = config.model, config.train, config.optimizer
  train.batch_words = train.batch_words or begun.get('train.batch_words', 0)
  train.epochs = train.epochs or begun.get('train.epochs', 0)
  draws = begun.get('model.shared_negatives', 0)
  model.shared_negatives = model.shared_negatives or draws
  first_rate = begun.get('optimizer.learning_rate', 0.0)
  optimizer.learning_rate = optimizer.learning_rate or first_rate
  if config.data.sample < 0:
    config.data.sample = begun.get('data.sample', config.data.sample)


def _began_with(begun: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the fields of the tuning that a resumed run keeps."""
  if not begun:
    return {}
  # What did not record weights drew windows, but for versions of a single day.
  begun = {'tuning.weights_contexts': False, **begun}
  names = {x: f'tuning.{x}' for x in _FIXED}
  return {x: begun[name] for x, name in names.items() if name in begun}


def _warn_of_few_columns(
  config: ml_collections.ConfigDict, platform: str, num_table: int
) -> None:
  """Logs a warning where a TPU's devices have few columns each."""
  width = -(-config.model.dim // num_table)
  is_split = config.table.layout == 'column' and num_table > 1
  if platform == 'tpu' and is_split and width < _LANES:
    _LOG.warning(
      f'{width} columns a device are read and written as {_LANES}, so rows '
      'cost as much as whole ones; give --config.table.layout=row'
    )


def _of_gpu(
  config: ml_collections.ConfigDict,
  mesh: jax.sharding.Mesh,
  fixed: dict[str, Any],
) -> tuple[int, dict[str, Any]]:
  """Returns multiprocessors, and `fixed` with a chunk that has room in them.

  Raises `ffi.Unavailable` for GPUs without a kernel that takes the steps.
  """
  facts = [driver.facts(x) for x in mesh.devices.flat]
  usual = fixed.get('chunk', kinds.of(config).chunk(config))
  shared_bytes = min(x.shared_bytes for x in facts)
  settings = config.to_dict()
  is_weighted = fixed.get('weights_contexts', kinds.weights_contexts(config))
  draws = kinds.shared_negatives(config, is_weighted)
  settings['model']['shared_negatives'] = draws
  chunk = gpu_step.fitting_chunk(settings, usual, shared_bytes)
  return min(x.multiprocessors for x in facts), {**fixed, 'chunk': chunk}


def _wanted(
  config: ml_collections.ConfigDict, begun: Mapping[str, Any]
) -> tuple[mesh_lib.Shape, bool]:
  """The mesh that settings ask for, and whether it is that of the first start.

  0 stands for a number that is to be chosen.
  """
  if config.table.store:
    if distributed.num_processes() > 1:
      raise errors.UserError(
        'tables in a store are trained by one process; remove '
        '--config.table.store and --config.table.device_bytes'
      )
    return mesh_lib.Shape(1, 1), False
  shape = mesh_lib.Shape(config.mesh.data, config.mesh.table)
  name = config.strategy.name
  if name == 'replicas' == begun.get('strategy.name') and not shape.data:
    num_replicas = begun['mesh.data'] * begun['mesh.table']
    return mesh_lib.Shape(num_replicas, 1), True
  return shape, False


def _uses_cores(config: ml_collections.ConfigDict, may_fuse: bool) -> bool:
  """Whether several devices of a CPU are worth their cores."""
  name = config.strategy.name
  if config.table.layout != 'replicated' or name == 'sync':
    return config.table.layout != 'replicated'
  # The threads of a kernel are worth more than replicas.
  has_threads = may_fuse and config_lib.can_fuse(config, 'cpu', (1, 1))
  return name != 'replicas' or not has_threads
