"""What trains: a model, its tables and the strategy that settings name."""

import dataclasses
import logging
import math
import pathlib
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.config import kinds
from jaxemb.data import base as data_base
from jaxemb.data import packing, subsampling
from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import ahead, batches, updates
from jaxemb.kernels.cpu import step as native
from jaxemb.kernels.gpu import row_sums
from jaxemb.kernels.gpu import step as gpu_step
from jaxemb.kernels.tpu import row_copies, sorted_sums
from jaxemb.models import base as model_base
from jaxemb.models import columns
from jaxemb.ops import sampling, wire
from jaxemb.run import devices
from jaxemb.run import kind as kind_lib
from jaxemb.runtime import distributed, resources
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.stores import cache as cache_lib
from jaxemb.stores import cached, fetching
from jaxemb.stores import local as stores
from jaxemb.strategies import base as strategy_base
from jaxemb.strategies import replicas
from jaxemb.tables import row_access
from jaxemb.tables import spec as spec_lib
from jaxemb.workers import lockstep, remote, shared_rows

_LOG = logging.getLogger('jaxemb')
# Of a stretch on tables in a store; and centers, where rows move beside it.
_MOST_STEPS, _STRETCH_CENTERS = 16, 8192


class StepTooLargeError(errors.UserError):
  """A step looks up more rows than the device has room for."""

  def __init__(self, message: str, fitting_words: int):
    """`fitting_words`: centers of a step for which there is room; 0 = none."""
    super().__init__(message)
    self.fitting_words = fitting_words


class Trainer(NamedTuple):
  """What trains on data."""

  trainable: strategy_base.Trainable
  strategy: strategy_base.Strategy


def make(
  setup: devices.Setup,
  corpus: model_base.Corpus,
  steps: data_base.Steps,
  compiles_later: bool = False,
  folder: pathlib.Path | None = None,
  cluster: remote.Cluster | None = None,
  programs: pathlib.Path | None = None,
) -> Trainer:
  """The model, its tables and the strategy that resolved settings name.

  `compiles_later`: a CPU's kernels are compiled before the first step, not yet;
  the `folder` is for tables in files, `programs` one for a GPU's kernels; the
  `cluster` has the tables of workers. Raises a `UserError` for a vocabulary
  that the model cannot have, and `ffi.Unavailable` where there is no kernel.
  """
  config, tuning, mesh, kind = setup
  # All devices share tables, or each replica has its own.
  is_shared = setup.is_alone or config.strategy.name in ('sync', 'workers')
  axes = spec_lib.Axes(*mesh.devices.shape) if is_shared else spec_lib.Axes()
  splitting = None  # the axis over which columns are split
  if config.table.layout == 'column' and mesh.shape[mesh_lib.TABLE] > 1:
    splitting = wire.Axis(mesh_lib.TABLE, config.table.exchange_dtype)
  context = kind_lib.Context(
    config=config,
    tuning=tuning,
    row_ops=columns.RowOps(splitting),
    axes=tuple(axes.names(with_table=splitting is None)),
  )
  model, fused = kind.make_model(corpus, context), None
  if tuning.fused:
    fused = _kernel(setup, model, later=compiles_later, programs=programs)
    if setup.platform == 'cpu' and isinstance(steps, packing.Steps):
      steps = batches.steps(steps, tuning.threads, compiles_later)
  tables, num_cache_rows = _tables(setup, model.specs(), axes)
  trainable = strategy_base.Trainable(
    model=model,
    tables=tables,
    steps=steps,
    loss_every_steps=tuning.loss_every_steps,
    steps_per_loop=tuning.steps_per_loop,
    # A loop whose length is not known is slow on an accelerator.
    may_be_compact=tuning.steps_per_loop == 1
    and (mesh.size == 1 or not is_shared),
    fused=fused,
    brakes=_brakes(setup, model, corpus),
  )
  if num_cache_rows:
    stepping = _in_store(
      setup, trainable, num_cache_rows, folder=folder, cluster=cluster
    )
    return Trainer(trainable, fetching.fetching(stepping, mesh))
  return Trainer(trainable, _strategy(setup, trainable))


def _brakes(
  setup: devices.Setup, model: model_base.Model, corpus: model_base.Corpus
) -> dict[str, np.ndarray]:
  """Returns `strategies.base.Trainable.brakes` of a run that is continued.

  A row that has learned from n tokens, behind subsampling, moves at a rate of
  1 / (1 / rate + n), as if each had told as much as one does now; of a row that
  is part of means, a token counts by its weight in that of the word. Adagrad's
  sums, which go on as well, do the same. Inner nodes of a tree move at the full
  rate: braked, they leave old words where they were.
  """
  config = setup.config
  brakes: dict[str, np.ndarray] = {}
  if corpus.earlier is None or config.optimizer.name != 'sgd':
    return brakes
  sample = 0.0
  if 'data.sample' in setup.kind.used(config):
    sample = config.data.sample
  of_contexts = corpus.earlier_contexts
  if of_contexts is None or getattr(model, 'has_contexts_of_keys', False):
    of_contexts = corpus.earlier
  for name, counts in (
    (model.vectors_table, corpus.earlier),
    (model.contexts_table, of_contexts),
    (model.context_inputs_table, of_contexts),
  ):
    if name and counts.any():
      learned = counts * subsampling.keep_probabilities(counts, sample)
      brakes[name] = learned.astype(np.float32)
  if (of_keys := brakes.get(model.vectors_table)) is not None:
    for name in model.composed_of:
      brakes[name] = model.composed_sums(name, of_keys).astype(np.float32)
  return brakes


def _kernel(
  setup: devices.Setup,
  model: model_base.Model,
  later: bool,
  programs: pathlib.Path | None,
) -> Any:
  """Returns a `strategies.base.Trainable.fused` of the model."""
  config, tuning, mesh, _ = setup
  table, optimizer = config.table.to_dict(), config.optimizer.to_dict()
  if setup.platform == 'gpu':
    return gpu_step.make(
      gpu_step.variant(model, table, optimizer),
      optimizer,
      tuning.threads,
      devices=mesh.devices.flatten().tolist(),
      folder=programs,
    )
  if config.model.name in ahead.PARAGRAPHS:
    return native.make_paragraphs(config.model.name, tuning.threads, later)
  return native.make(
    type(model),
    table['dtype'],
    optimizer,
    num_threads=tuning.threads,
    later=later,
  )


def _strategy(
  setup: devices.Setup, trainable: strategy_base.Trainable
) -> strategy_base.Strategy:
  """The strategy of tables whose rows are all on devices."""
  config, mesh = setup.config, setup.mesh
  if config.strategy.name == 'partition':  # of one sub-model
    first = mesh.devices.flat[:1].tolist()
    mesh = mesh_lib.make(mesh_lib.Shape(1, 1), devices=first)
  elif config.strategy.name == 'replicas':
    many = _replicas(setup, trainable)
    if not setup.is_alone:
      return many
    # Others may have trained with it.
    strategy = strategy_base.sync(trainable, mesh)
    return strategy._replace(from_replicas=replicas.single(many))
  # Devices that hold other columns of the same rows take the same examples.
  return strategy_base.sync(trainable, mesh, config.table.layout != 'column')


def _replicas(
  setup: devices.Setup, trainable: strategy_base.Trainable
) -> strategy_base.Strategy:
  """Returns replicas that synchronise by the policy of the settings."""
  config, tuning = setup.config, setup.tuning
  centers = setup.step_centers
  every_steps = max(1, round(tuning.sync_words / centers))
  specs = trainable.model.specs()
  if centers > tuning.sync_words and not setup.is_alone:
    unit = setup.kind.unit
    lookups = max(_lookups(x).max() for x in specs.values())
    _LOG.warning(
      f'replicas synchronise after every step: its {centers:,} {unit}, with up '
      f'to {lookups * centers:,.0f} lookups of a row, are more than the '
      f'{tuning.sync_words:,.0f} wanted between exchanges; lower '
      f'--config.train.batch_{unit}'
    )
  # Equal loops from one synchronisation to the next: the rest is padding,
  # which costs as much as a step.
  num_loops = math.ceil(every_steps / trainable.steps_per_loop)
  trainable = dataclasses.replace(
    trainable, steps_per_loop=math.ceil(every_steps / num_loops)
  )
  available = {
    'lookups_per_center': {k: x.lookups_per_center for k, x in specs.items()},
    'num_processes': distributed.num_processes(),
    'step_centers': centers,
    'every_steps': every_steps,
    'lookups': tuning.sync_lookups,
    'memory_lookups': tuning.memory_lookups,
    'num_hot': config.strategy.num_hot,
    'rest_syncs': max(1, round(tuning.rest_words / tuning.sync_words)),
    'first_learning_rate': config.optimizer.learning_rate,
  }

  def make_policy(num_replicas):
    return kinds.bind(
      'strategy.policy',
      name=config.strategy.policy,
      available={**available, 'num_replicas': num_replicas},
    )()

  return replicas.replicas(trainable, setup.mesh, make_policy)


def _tables(
  setup: devices.Setup,
  specs: Mapping[str, spec_lib.TableSpec],
  axes: spec_lib.Axes,
) -> tuple[dict[str, spec_lib.Table], dict[str, int]]:
  """Tables by name, and how many of their rows a device caches.

  The latter is {} where all rows are on the device.
  """
  config, tuning = setup.config, setup.tuning
  row_kernel, needs_lookups = None, config.strategy.name == 'replicas'
  for name, spec in specs.items():
    if spec.lookups_per_center is None and (
      needs_lookups or config.table.store
    ):
      raise errors.UserError(
        f'config.model.name={config.model.name}: the TableSpec of {name!r} has '
        'no lookups_per_center, which replicas and tables in a store need; '
        'give it, or set --config.strategy.name=sync without a store'
      )
  if tuning.row_threads:
    row_kernel = updates.make(config.optimizer, tuning.row_threads)
  device_centers = config.train.batch_words / setup.mesh.size
  if config.strategy.name == 'workers':
    device_centers = tuning.part_words
  available = {
    'axes': axes,
    'kernels': _row_kernels(tuning),
    'deduplicates': tuning.deduplicates,
    'device_centers': device_centers,
    'row_kernel': row_kernel,
  }
  tables = {k: _table(config, x, available) for k, x in specs.items()}
  if not config.table.store:
    return tables, {}
  num_rows = _num_cache_rows(setup, tables)
  for name, num in num_rows.items():
    # The last one is never used.
    small = dataclasses.replace(
      specs[name], vocab=num + 1, lookups_per_center=None
    )
    cache = _table(config, small, available)
    tables[name] = cached.Cached(tables[name].spec, cache)
  return tables, num_rows


def _row_kernels(tuning: config_lib.Tuning) -> row_access.Kernels:
  """Returns the kernels of the device that tables may use."""
  if tuning.row_copies:
    copies = row_access.Copies(
      can_copy=row_copies.can_copy, take=row_copies.take, put=row_copies.put
    )
    return row_access.Kernels(copies, sorted_sums.running_sums)
  if tuning.row_sums:
    return row_access.Kernels(
      sums=row_sums.sums, sums_of_sorted=row_sums.sums_of_sorted
    )
  return row_access.XLA


def _table(
  config: ml_collections.ConfigDict,
  spec: spec_lib.TableSpec,
  available: Mapping[str, Any],
) -> spec_lib.Table:
  """A table with its optimizer, in the layout that the settings name."""
  o, t, layout = config.optimizer, config.table, config.table.layout
  kernels, axes = available['kernels'], available['axes']
  if not row_sums.can_sum(spec.dim):
    kernels = kernels._replace(sums=None, sums_of_sorted=None)
  if spec.row_optimizer is None:
    named = {**o, 'copies': kernels.copies}
    optimizer = kinds.bind('optimizer.name', o.name, available=named)()
    precision = {k: t[k] for k in ('dtype', 'rounding', 'exchange_dtype')}
    spec = dataclasses.replace(spec, **precision)
    optimizer = optimizer._replace(decay=o.decay, updates_all=o.rows == 'all')
  else:
    optimizer = spec.row_optimizer(o.learning_rate, o.final_learning_rate)
    if layout == 'column':
      # Whole on every device of the table axis, all of which see all of it.
      layout, axes = 'replicated', dataclasses.replace(axes, num_table=1)
  chosen = {'kernels': kernels, 'axes': axes}
  if kernels.sums and optimizer.change and spec.dtype == 'float32':
    if not optimizer.updates_all:
      chosen['row_kernel'] = row_sums.RowKernel(optimizer)
  chosen |= {'spec': spec, 'optimizer': optimizer}
  chosen = {**available, **chosen}
  return kinds.bind('table.layout', layout, available=chosen)()


def _num_cache_rows(
  setup: devices.Setup, tables: Mapping[str, spec_lib.Table]
) -> dict[str, int]:
  """By table, rows that the device has room for; {} = for all."""
  config, tuning = setup.config, setup.tuning
  is_workers = config.strategy.name == 'workers'
  states = [
    jax.eval_shape(x.init, sampling.key_shape()) for x in tables.values()
  ]
  all_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(states))
  vocabs = {k: x.spec.vocab for k, x in tables.items()}
  map_bytes = 4 * sum(set(vocabs.values()))  # where each row is
  text = config.table.device_bytes or '10%'
  room_bytes = config_lib.room_bytes(text, all_bytes)
  if text.endswith('%'):
    room_bytes += map_bytes

  centers = config.train.batch_words
  if is_workers:
    centers = tuning.part_words
    if not config.table.device_bytes:
      # A tenth of the rows, or room for a round and as many others.
      in_round = _looked_up(tables, max(centers, tuning.sync_words))
      fraction = max(2 * in_round[k] / vocabs[k] for k in tables)
      room_bytes = max(room_bytes, map_bytes + min(1.0, fraction) * all_bytes)
    if all_bytes + map_bytes <= room_bytes:
      return vocabs
  elif all_bytes <= room_bytes:
    _LOG.info(f'all {all_bytes / 1e6:.1f} MB of tables fit on the device')
    return {}
  fraction = (room_bytes - map_bytes) / all_bytes
  num_rows = {}
  for name, vocab in vocabs.items():
    # The last one is never used (`stores.cached`). A small table beside a large
    # one, such as that of relations, is whole.
    is_small = vocab <= max(vocabs.values()) / 100
    num_rows[name] = vocab if is_small else int(vocab * fraction) - 1

  for name, needed in _too_many(tables, num_rows, centers):
    least = map_bytes + all_bytes * needed / 0.9 / vocabs[name]
    unit, fitting = setup.kind.unit, centers
    while fitting and any(_too_many(tables, num_rows, fitting)):
      fitting //= 2
    raise StepTooLargeError(
      f'a step of {centers} {unit} looks up about {needed:,.0f} '
      f'rows of a table, and {room_bytes / 1e6:.1f} MB have room for '
      f'{max(num_rows[name], 0):,}, of which it may take 95 %, as steps '
      'differ; give --config.table.device_bytes='
      f'{math.ceil(least / 1e6)}MB, or lower --config.train.batch_{unit}',
      fitting * config.train.batch_words // centers,
    )
  return num_rows


def _lookups(spec: spec_lib.TableSpec) -> np.ndarray:
  """Returns the lookups of a table, for replicas or tables in a store."""
  assert spec.lookups_per_center is not None  # `_tables` refuses such tables
  return spec.lookups_per_center


def _looked_up(
  tables: Mapping[str, spec_lib.Table], centers: float
) -> dict[str, float]:
  """Returns how many rows of each table a step of so many centers looks up."""
  return {
    k: fetching.expected_rows(_lookups(x.spec) * centers)
    for k, x in tables.items()
  }


def _too_many(
  tables: Mapping[str, spec_lib.Table],
  num_rows: Mapping[str, int],
  centers: float,
) -> Iterator[tuple[str, float]]:
  """Yields tables with more rows in a step than may be on the device."""
  for name, needed in _looked_up(tables, centers).items():
    vocab, room = tables[name].spec.vocab, num_rows[name]
    if needed > 0.95 * room < 0.95 * vocab:
      yield name, needed


def _in_store(
  setup: devices.Setup,
  trainable: strategy_base.Trainable,
  num_cache_rows: Mapping[str, int],
  folder: pathlib.Path | None,
  cluster: remote.Cluster | None,
) -> fetching.Fetching:
  """Steps on tables in a store, with room for so many rows on the device."""
  config, tuning = setup.config, setup.tuning
  folder = folder or pathlib.Path(tempfile.gettempdir())
  if config.table.store == 'remote' and not cluster:
    cluster = remote.Cluster()

  def make_shared(name, num_rows, num_bytes, make, *more):
    every_secs = config.train.checkpoint_every_secs
    where = folder, every_secs
    shards = config.table.shards
    return cluster.table(name, shards, num_rows, num_bytes, make, *where, *more)

  rows: cached.Rows
  lends = False
  if config.strategy.name == 'workers':
    is_lockstep = config.strategy.pace == 'bsp'
    make_rows = lockstep.Rows if is_lockstep else shared_rows.SharedRows
    rows = make_rows(
      trainable,
      make_shared,
      bound=config.table.staleness,
      num_workers=config.strategy.num_workers,
      memory_lookups=tuning.memory_lookups,
    )
    most_steps, centers = _round_steps(setup, trainable), tuning.part_words
  else:
    centers = config.train.batch_words
    make_stores = {
      'memory': lambda name, *args: stores.Store(*args),
      'disk': lambda name, *args: stores.Disk(*args, folder=folder),
      'remote': make_shared,
    }
    rows = cached.OwnedRows(trainable, make_stores[config.table.store])
    most_steps = _MOST_STEPS  # for which rows are fetched at once
    if config.table.store != 'remote' and cached.are_in_memory():
      # Beside which rows move: in short stretches a row is needed soon again.
      stretch = _STRETCH_CENTERS // config.train.batch_words
      most_steps = min(_MOST_STEPS, max(2, stretch))
    lends = tuning.fused and tuning.threads >= resources.usable_cores()
  return fetching.Fetching(
    trainable=trainable,
    caches=_caches(
      config,
      trainable,
      num_cache_rows,
      stretch_centers=centers * most_steps,
    ),
    rows=rows,
    most_steps=most_steps,
    **({'lend': ffi.lend} if lends else {}),
  )


def _caches(
  config: ml_collections.ConfigDict,
  trainable: strategy_base.Trainable,
  num_cache_rows: Mapping[str, int],
  stretch_centers: int,
) -> list[cache_lib.Cache]:
  """Caches of tables, for stretches of so many centers."""
  specs = trainable.model.specs().items()
  return cache_lib.caches(
    {k: x.vocab for k, x in specs},
    num_cache_rows,
    policy=config.table.evict,
    lookups={k: stretch_centers * _lookups(x) for k, x in specs},
  )


def _round_steps(
  setup: devices.Setup, trainable: strategy_base.Trainable
) -> int:
  """Steps of a worker's round, between which it reads and pushes rows."""
  s, tuning = setup.config.strategy, setup.tuning
  steps = max(1, round(tuning.sync_words / tuning.part_words))
  is_joint = trainable.model.is_mean or trainable.has_dense
  if s.pace == 'bsp' and is_joint and steps > 1:
    raise errors.UserError(
      f'config.strategy.sync_every={s.sync_every} is more than one step of a '
      f'worker, {tuning.part_words} examples, and in lockstep '
      f'config.model.name={setup.config.model.name} is exchanged after every '
      'step; remove it, or give another --config.strategy.pace'
    )
  if steps > fetching.MOST_STEPS and s.sync_every:
    most = fetching.MOST_STEPS * tuning.part_words
    _LOG.warning(f'rounds are cut to {most:,} {setup.kind.unit}')
  return steps
