"""From settings to the parts of a run: source, model, tables, strategy.

The only place that turns a ConfigDict into constructor arguments.
"""

import dataclasses
import functools
import logging
import math
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.config import kinds
from jaxemb.data import base as data_base
from jaxemb.evaluation import benchmarks
from jaxemb.kernels.cpu import ahead, ffi, updates
from jaxemb.kernels.cpu import step as native
from jaxemb.kernels.gpu import row_sums, window_products
from jaxemb.kernels.tpu import row_copies, sorted_sums
from jaxemb.merging import warm_start
from jaxemb.models import base as model_base
from jaxemb.models import columns
from jaxemb.ops import wire
from jaxemb.run import kind as kind_lib
from jaxemb.run import rundir
from jaxemb.runtime import budget, distributed, resources
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.stores import cache as cache_lib
from jaxemb.stores import cached, device_rows, fetching, owned_rows
from jaxemb.stores import local as stores
from jaxemb.strategies import base as strategy_base
from jaxemb.strategies import replicas
from jaxemb.tables import row_access, row_sharded
from jaxemb.tables import spec as spec_lib
from jaxemb.workers import lockstep, remote, shared_rows

_LOG = logging.getLogger('jaxemb')
_ROWS_PER_THREAD = 250  # five times as many as diverge
_MOST_FREE_EXAMPLES = 1 << 16  # of a step, however few there are
# Of a stretch on tables in a store; and centers, where rows move beside it.
_MOST_STEPS, _STRETCH_CENTERS = 16, 8192
LANES = 128  # of a TPU: numbers that it reads at once


def on_devices(
  config: ml_collections.ConfigDict,
  begun: Mapping[str, Any],
  absent: Sequence[jax.Device] = (),
  **fixed: Any,
) -> tuple[ml_collections.ConfigDict, config_lib.Tuning, jax.sharding.Mesh]:
  """Chooses devices, and what settings and tuning leave open.

  `begun` has the flat settings of the run that is resumed, or is {}; `absent`
  are devices to compile for that are not there (`mesh.start`); `fixed` are
  given fields of the tuning. Raises a `UserError` for settings that do not
  fit the devices.
  """
  s, layout, dim = config.strategy, config.table.layout, config.model.dim
  is_sync, splits_tables = s.name == 'sync', layout != 'replicated'
  wanted = mesh_lib.Shape(config.mesh.data, config.mesh.table)
  is_resumed = False
  if s.name == 'replicas' == begun.get('strategy.name') and not wanted.data:
    is_resumed = True
    wanted = mesh_lib.Shape(begun['mesh.data'] * begun['mesh.table'], 1)
  if config.table.store:
    wanted = mesh_lib.Shape(1, 1)
    if distributed.num_processes() > 1:
      raise errors.UserError(
        'tables in a store are trained by one process; remove '
        '--config.table.store and --config.table.device_bytes'
      )
  # The threads of a kernel are worth more than replicas.
  has_threads = (
    s.name == 'replicas'
    and fixed.get('fused', True)
    and config_lib.can_fuse(config, 'cpu', (1, 1))
  )
  uses_cores = not (is_sync or has_threads) or splits_tables
  data, table = mesh_lib.start(
    wanted,
    splits_tables=splits_tables,
    uses_cores=uses_cores,
    is_resumed=is_resumed,
    absent=absent,
  )
  devices = absent or jax.devices()
  platform = devices[0].platform
  if s.name == 'partition':
    if not wanted.data and platform != 'cpu':
      data = len(devices)  # they do not slow each other down
    data, table = min(data, s.num_parts if s.part < 0 else 1), 1
  # A run that is resumed on other devices, or without a kernel, has the steps
  # that it began with, but for the limit of duplicates that suits them.
  train, optimizer = config.train, config.optimizer
  if not train.batch_words:
    train.batch_words = begun.get('train.batch_words', 0)
  if not optimizer.learning_rate:
    optimizer.learning_rate = begun.get('optimizer.learning_rate', 0.0)
  if 'tuning.parts' in begun:
    fixed = {'parts': begun['tuning.parts']} | fixed
  if s.name != 'partition' and 'parts' in fixed:
    # The data axis has to divide the parts; devices of the table axis share
    # the centers of their parts, whatever their number.
    num_devices, data = data * table, math.gcd(data, fixed['parts'])
    table = num_devices // data
  if layout == 'row' and row_sharded.NUM_CLASSES % table:
    raise errors.UserError(
      f'config.mesh.table={table} must divide {row_sharded.NUM_CLASSES} with '
      'config.table.layout=row'
    )
  if layout == 'column' and dim % table:
    filled = -(-dim // table) * table
    _LOG.info(f'{dim} columns are filled up to {filled} for {table} devices')
  if layout == 'column' and platform == 'tpu' and dim < LANES * table > LANES:
    width = -(-dim // table)
    is_narrow = width < mesh_lib.LEAST_TPU_WIDTH
    _LOG.warning(
      f'{width} columns a device are read and written as {LANES}'
      + ', in tables that may be copied in every step' * is_narrow
      + ', so rows cost as much as whole ones; give --config.table.layout=row'
    )
  if platform == 'gpu' and not row_sums.compiles_for(devices[0]):
    fixed = {'row_sums': False} | fixed
  shape = mesh_lib.Shape(data, table)
  args = config, platform, shape, mesh_lib.cores_of_device(shape)
  made = mesh_lib.make(shape, devices=absent)
  return *config_lib.resolve(*args, **fixed), made


class Trainer(NamedTuple):
  """What trains on data."""

  trainable: strategy_base.Trainable
  strategy: strategy_base.Strategy


def trainer(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  mesh: jax.sharding.Mesh,
  corpus: model_base.Corpus,
  steps: data_base.Steps,
  compiling: subprocess.Popen | None = None,
  folder: pathlib.Path | None = None,
  cluster: remote.Cluster | None = None,
) -> Trainer:
  """The model, its tables and the strategy that resolved settings name.

  `compiling` is a process that compiles the kernel; the `folder` is for tables
  in files; the `cluster` has those of workers. Raises a `UserError` for a
  vocabulary that the model cannot have.
  """
  t = config.table
  # What was begun with replicas may go on with one.
  is_alone = mesh.size == tuning.parts == 1
  is_sync = config.strategy.name in ('sync', 'workers') or is_alone
  splitting = None  # the axis over which columns are split
  if t.layout == 'column' and mesh.shape[mesh_lib.TABLE] > 1:
    splitting = wire.Axis(mesh_lib.TABLE, t.exchange_dtype)
  axes = spec_lib.Axes()  # each replica has tables of its own
  if is_sync:
    axes = spec_lib.Axes(*mesh.devices.shape)
  model = kinds.of(config).make_model(
    corpus,
    kind_lib.Context(
      config=config,
      tuning=tuning,
      row_ops=columns.RowOps(splitting),
      axes=tuple(axes.names(with_table=splitting is None)),
    ),
  )
  available = {
    'axes': axes,
    'kernels': _row_kernels(tuning),
    'deduplicates': tuning.deduplicates,
    'device_centers': _device_centers(config, tuning, mesh),
    'row_kernel': updates.make(config.optimizer, tuning.row_threads)
    if tuning.row_threads
    else None,
  }
  specs, num_slots = model.specs(), {}
  if t.store or config.strategy.name == 'replicas':
    _check_lookups(config.model.name, specs)
  make = functools.partial(_table, config, available=available)
  tables = {k: make(x) for k, x in specs.items()}
  if t.store:
    num_slots = _num_slots(config, tuning, tables)
    for k in num_slots:
      small = dataclasses.replace(
        specs[k], vocab=num_slots[k] + 1, lookups_per_center=None
      )
      tables[k] = cached.Cached(tables[k].spec, make(small))
  trainable = strategy_base.Trainable(
    model=model,
    tables=tables,
    steps=steps,
    loss_every_steps=tuning.loss_every_steps,
    steps_per_loop=tuning.steps_per_loop,
    # A loop whose length is not known is slow on an accelerator.
    may_be_compact=tuning.steps_per_loop == 1
    and (mesh.size == 1 or not is_sync),
    fused=native.make(
      type(model),
      t.dtype,
      config.optimizer,
      num_threads=tuning.threads,
      compiling=compiling,
    )
    if tuning.fused
    else None,
    gradients=window_products.Gradients()
    if tuning.row_sums and window_products.can_multiply(model, tables)
    else None,
  )
  if num_slots:
    step = _fetching(
      config,
      tuning,
      trainable,
      num_slots=num_slots,
      folder=folder,
      cluster=cluster,
    )
    strategy = fetching.fetching(step, mesh)
  elif config.strategy.name == 'partition':
    # Of one sub-model.
    first = mesh.devices.flat[:1].tolist()
    alone = mesh_lib.make(mesh_lib.Shape(1, 1), devices=first)
    strategy = strategy_base.sync(trainable, alone)
  elif is_alone and config.strategy.name == 'replicas':
    strategy = strategy_base.sync(trainable, mesh)
    # Others may have trained with it.
    many = _replicas(config, tuning, trainable, mesh=mesh)
    strategy = strategy._replace(from_replicas=replicas.single(many))
  elif is_sync:
    # Devices that hold other columns of the same rows take the same examples.
    strategy = strategy_base.sync(trainable, mesh, t.layout != 'column')
  else:
    strategy = _replicas(config, tuning, trainable, mesh=mesh)
  return Trainer(trainable, strategy)


def _check_lookups(model: str, specs: Mapping[str, spec_lib.TableSpec]) -> None:
  """Raises a `UserError` if lookups of a table are unknown."""
  for name, spec in specs.items():
    if spec.lookups_per_center is None:
      raise errors.UserError(
        f'config.model.name={model}: the TableSpec of {name!r} has no '
        'lookups_per_center, which replicas and tables in a store need; give '
        'it, or set --config.strategy.name=sync without a store'
      )


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
  kernels = available['kernels']
  if not row_sums.can_sum(spec.dim):
    kernels = kernels._replace(sums=None, sums_of_sorted=None)
    available = {**available, 'kernels': kernels}
  if spec.row_optimizer is None:
    args = {**o, 'copies': kernels.copies}
    optimizer = kinds.bind('optimizer.name', o.name, args=(), available=args)()
    precision = {k: t[k] for k in ('dtype', 'rounding', 'exchange_dtype')}
    spec = dataclasses.replace(spec, **precision)
    optimizer = optimizer._replace(decay=o.decay, updates_all=o.rows == 'all')
  else:
    optimizer = spec.row_optimizer(o.learning_rate, o.final_learning_rate)
    if layout == 'column':
      # Whole on every device of the table axis, all of which see all of it.
      axes = dataclasses.replace(available['axes'], num_table=1)
      layout, available = 'replicated', {**available, 'axes': axes}
  if kernels.sums and optimizer.change and spec.dtype == 'float32':
    if not optimizer.updates_all:
      row_kernel = row_sums.RowKernel(optimizer)
      available = {**available, 'row_kernel': row_kernel}
  available = {'spec': spec, 'optimizer': optimizer, **available}
  return kinds.bind('table.layout', name=layout, args=(), available=available)()


def _device_centers(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  mesh: jax.sharding.Mesh,
) -> float:
  """Centers of a step on each device; of a worker, its own."""
  if config.strategy.name == 'workers':
    return tuning.part_words
  return config.train.batch_words / mesh.size


def _num_slots(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  tables: Mapping[str, spec_lib.Table],
) -> dict[str, int]:
  """By table, rows that the device has room for; {} = for all."""
  all_bytes = 0
  for table in tables.values():
    state = jax.eval_shape(table.init, jax.random.key(0))
    all_bytes += sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
  vocabs = {x.spec.vocab for x in tables.values()}
  map_bytes = 4 * sum(vocabs)  # where each row is
  text = config.table.device_bytes or '10%'
  room_bytes = config_lib.room_bytes(text, all_bytes)
  if text.endswith('%'):
    room_bytes += map_bytes
  is_workers = config.strategy.name == 'workers'
  centers = tuning.part_words if is_workers else config.train.batch_words
  needed = {
    k: fetching.expected_rows(x.spec.lookups_per_center * centers)
    for k, x in tables.items()
  }
  if is_workers and not config.table.device_bytes:
    # A tenth of the rows, or room for a round and as many others.
    words = max(tuning.part_words, tuning.sync_words)
    share = max(
      2 * fetching.expected_rows(x.spec.lookups_per_center * words)
      / x.spec.vocab
      for x in tables.values()
    )  # fmt: skip
    room_bytes = max(room_bytes, map_bytes + min(1.0, share) * all_bytes)
  if is_workers and all_bytes + map_bytes <= room_bytes:
    return {k: x.spec.vocab for k, x in tables.items()}
  if all_bytes <= room_bytes and not is_workers:
    _LOG.info(f'all {all_bytes / 1e6:.1f} MB of tables fit on the device')
    return {}
  share = (room_bytes - map_bytes) / all_bytes
  # The last one is never used (`stores.cached`).
  num_slots = {k: int(x.spec.vocab * share) - 1 for k, x in tables.items()}
  for name, table in tables.items():
    # A small table beside a large one, such as that of relations, is whole.
    if table.spec.vocab <= max(vocabs) / 100:
      num_slots[name] = table.spec.vocab
  unit = kinds.of(config).unit
  for name, table in tables.items():
    if needed[name] > 0.95 * num_slots[name] < 0.95 * table.spec.vocab:
      least = map_bytes + all_bytes * needed[name] / 0.9 / table.spec.vocab
      raise errors.UserError(
        f'a step of {centers} {unit} looks up about {needed[name]:,.0f} '
        f'rows of a table, and {room_bytes / 1e6:.1f} MB have room for '
        f'{max(num_slots[name], 0):,}, of which it may take 95 %, as steps '
        'differ; give --config.table.device_bytes='
        f'{math.ceil(least / 1e6)}MB, or lower --config.train.batch_{unit}'
      )
  return num_slots


def _fetching(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  trainable: strategy_base.Trainable,
  num_slots: Mapping[str, int],
  folder: pathlib.Path | None,
  cluster: remote.Cluster | None,
) -> fetching.Fetching:
  """Steps on tables in a store, with room for so many rows on the device."""
  vocabs = {k: x.vocab for k, x in trainable.model.specs().items()}
  caches = cache_lib.caches(vocabs, num_slots, config.table.evict)

  t, place = config.table, folder or pathlib.Path(tempfile.gettempdir())
  if t.store == 'remote' and not cluster:
    cluster = remote.Cluster()

  def make_shared(name, num_rows, num_bytes, make, *more):
    sizes = t.shards, num_rows, num_bytes, make
    every_secs = config.train.checkpoint_every_secs
    return cluster.table(name, *sizes, place, every_secs, *more)

  if config.strategy.name == 'workers':
    is_lockstep = config.strategy.pace == 'bsp'
    make_rows = lockstep.Rows if is_lockstep else shared_rows.SharedRows
    rows = make_rows(
      trainable,
      make_shared,
      staleness=t.staleness,
      num_workers=config.strategy.num_workers,
      memory_lookups=tuning.memory_lookups,
    )
    round_steps = max(1, round(tuning.sync_words / tuning.part_words))
    is_joint = trainable.model.is_mean or trainable.has_dense
    if is_lockstep and is_joint and round_steps > 1:
      raise errors.UserError(
        f'config.strategy.sync_every={config.strategy.sync_every} is more than '
        f'one step of a worker, {tuning.part_words} examples, and in lockstep '
        f'config.model.name={config.model.name} is exchanged after every step; '
        'remove it, or give another --config.strategy.pace'
      )
    if round_steps > fetching.MOST_STEPS:
      most = fetching.MOST_STEPS * tuning.part_words
      unit = kinds.of(config).unit
      _LOG.warning(f'rounds are cut to {most:,} {unit}')
    return fetching.Fetching(
      trainable=trainable,
      caches=caches,
      rows=rows,
      most_steps=round_steps,
    )

  def make_store(name, *args):
    if t.store == 'memory':
      return stores.Memory(*args)
    if cluster:
      return make_shared(name, *args)
    return stores.Disk(*args, folder=place)

  rows = owned_rows.OwnedRows(trainable, make_store)
  most_steps = _MOST_STEPS
  if t.store != 'remote' and device_rows.are_in_memory():
    # Beside which rows move: in short stretches a row is needed soon again.
    centers = config.train.batch_words
    most_steps = min(most_steps, max(2, _STRETCH_CENTERS // centers))
  has_all_cores = tuning.fused and tuning.threads >= resources.usable_cores()
  more = {'lend': ffi.lend} if has_all_cores else {}
  return fetching.Fetching(
    trainable=trainable, caches=caches, rows=rows, most_steps=most_steps, **more
  )


def step_centers(tuning: config_lib.Tuning, mesh: jax.sharding.Mesh) -> int:
  """Those of a replica's step; several share a part, or one has several."""
  return tuning.part_words * tuning.parts // mesh.size


def _replicas(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  trainable: strategy_base.Trainable,
  mesh: jax.sharding.Mesh,
) -> strategy_base.Strategy:
  """Returns replicas that synchronise by the policy of the settings."""
  centers = step_centers(tuning, mesh)
  every_steps = max(1, round(tuning.sync_words / centers))
  specs = trainable.model.specs()
  if centers > tuning.sync_words:
    unit = kinds.of(config).unit
    lookups = max(x.lookups_per_center.max() for x in specs.values())
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
      args=(),
      available={**available, 'num_replicas': num_replicas},
    )()

  return replicas.replicas(trainable, mesh, make_policy)


class Parts(NamedTuple):
  """What a run is made of."""

  config: ml_collections.ConfigDict
  kind: kind_lib.Kind
  source: data_base.Source
  trainable: strategy_base.Trainable
  strategy: strategy_base.Strategy
  benchmarks: list[benchmarks.Benchmark]  # to evaluate on
  mesh: jax.sharding.Mesh
  tuning: config_lib.Tuning
  dropped: Mapping[str, Any]  # of the data, counted


def make_source(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  readers: data_base.Readers,
  cache: pathlib.Path,
  progress: Callable[[str, int, int], None],
) -> data_base.Source:
  """The data that resolved settings name; `progress` as of `parts`."""
  d, m, kind = config.data, config.model, kinds.of(config)
  spec = data_base.SourceSpec(
    path=d.path,
    seed=config.seed,
    epochs=config.train.epochs,
    num_parts=tuning.parts,
    part_words=tuning.part_words,
    window=m.window,
    chunk=tuning.chunk,
    shortest_window=1 if m.dynamic_window else m.window,
    settings=d.to_dict(),
    readers=readers,
    cache=cache,
    progress=progress,
  )
  source = kind.make_source(spec)
  # Of all at once the next multiple, or power of two, is no mistake.
  most = max(2 * source.units_per_epoch, _MOST_FREE_EXAMPLES)
  if source.unit != 'words' and spec.part_words > most:
    raise errors.UserError(
      f'a step of {spec.part_words:,} {source.unit} is more than twice the '
      f'{source.units_per_epoch:,.0f} that there are; lower '
      f'--config.train.batch_{kind.unit}'
    )
  return source


def corpus_of(source: data_base.Source) -> model_base.Corpus:
  """What models are made from."""
  return model_base.Corpus(
    keys=source.keys,
    counts=source.counts,
    centers=source.frequencies,
    source=source,
  )


def parts(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  mesh: jax.sharding.Mesh,
  progress: Callable[[str, int, int], None],
  cache: pathlib.Path,
  folder: pathlib.Path | None = None,
  cluster: remote.Cluster | None = None,
) -> Parts:
  """Reads the corpus and makes the parts that the settings name.

  `progress` is called with (stage, done, total); `cache` is for downloads and
  encoded texts, the `folder` for tables in files, the `cluster` for those of
  workers. Raises a `UserError` for unusable input.
  """
  m, kind = config.model, kinds.of(config)
  compiling = None
  # On another core, while the text is read, if a trace of it may stay.
  if tuning.fused and cache == rundir.cache_folder():
    compiling = ahead.compiling(m.name, m.loss, config.table.dtype, cache=cache)
  # Wrong paths are refused before the work.
  _check_init_from(config)
  kind.benchmarks(config)
  readers = _readers(config, tuning, mesh)
  source = make_source(config, tuning, readers, cache=cache, progress=progress)
  corpus = corpus_of(source)
  if not config.train.threads:
    tuning = _with_rows_enough(tuning, len(source.keys))
  if compiling and compiling.poll() is None:
    # Meanwhile this process compiles what reads batches.
    next(source.items(None, 0), None)
  made = trainer(
    config,
    tuning,
    mesh,
    corpus=corpus,
    steps=source.steps,
    compiling=compiling,
    folder=folder,
    cluster=cluster,
  )
  return Parts(
    config=config,
    kind=kind,
    source=source,
    trainable=made.trainable,
    strategy=made.strategy,
    benchmarks=kind.benchmarks(config, source),
    mesh=mesh,
    tuning=tuning,
    dropped={**source.dropped, **kind.dropped(config, source)},
  )


def _check_init_from(config: ml_collections.ConfigDict) -> None:
  """Raises a `UserError` if the first vectors are not there."""
  path = os.path.expanduser(config.train.init_from)
  if path and not os.path.exists(path):
    raise errors.UserError(
      f'config.train.init_from={path} does not exist; give a run, a merge or a '
      "word2vec file, or ''"
    )


def _readers(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  mesh: jax.sharding.Mesh,
) -> data_base.Readers:
  """The processes that read the data together."""
  if config.strategy.name == 'partition':
    return data_base.ALONE  # any sentence may be a sub-model's
  return data_base.Readers(
    local_parts=mesh_lib.my_parts(mesh, tuning.parts),
    process=distributed.process_id(),
    num_processes=distributed.num_processes(),
    gather=distributed.gather,
  )


def _with_rows_enough(
  tuning: config_lib.Tuning, num_rows: int
) -> config_lib.Tuning:
  """With fewer threads, where these would have few rows to share.

  What each learns of a row meanwhile adds up: with six rows two threads diverge
  in every second run, with fifty in every third of weighted walks.
  """
  threads = max(1, min(tuning.threads, num_rows // _ROWS_PER_THREAD))
  return dataclasses.replace(tuning, threads=threads)


def fingerprints(parts: Parts) -> dict[str, str]:
  """Of all that a checkpoint depends on, by the name that messages give it."""
  of_kind = parts.kind.fingerprints(parts.trainable.model)
  return {'the data': parts.source.fingerprint, **of_kind}


def _check_store(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  store: fetching.Fetching,
) -> None:
  """Logs the memory budget of tables in a store.

  Raises a `UserError` if the machine has less.
  """
  kind, num_workers = config.table.store, 0
  step_centers = config.train.batch_words
  resident_bytes, shared_bytes = store.store_bytes, 0
  if kind == 'disk':
    resident_bytes = min(resident_bytes, stores.MAPPED_BYTES)
  if config.strategy.name == 'workers':
    num_workers = config.strategy.num_workers
    step_centers = tuning.part_words
    # The coordinator has those of now and of pushes on the way.
    shared_bytes = (num_workers + 3) * store.dense_bytes
  if kind == 'remote':
    shared_bytes += remote.OBJECT_STORE_BYTES
  needed = budget.Store(
    table_bytes=store.store_bytes,
    resident_bytes=resident_bytes,
    rows_bytes=store.rows_bytes(step_centers),
    num_workers=num_workers,
    shared_bytes=shared_bytes,
  )
  if kind != 'remote' or not os.environ.get('RAY_ADDRESS'):
    smaller = kinds.of(config).smaller
    if kind == 'memory':
      smaller = f'give --config.table.store=disk, or {smaller}'
    needed.check(smaller)
  _LOG.info(needed.describe())


def check_fits(parts: Parts) -> None:
  """Logs what each device will hold.

  Raises a `UserError` with the number of devices or hosts that would have room.
  """
  strategy, mesh, dtype = parts.strategy, parts.mesh, parts.config.table.dtype
  if strategy.store:
    _check_store(parts.config, parts.tuning, strategy.store)
  state = strategy.init.eval_shape(jax.random.key(0))
  whole = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
  held = mesh_lib.num_bytes(state) // strategy.batch_sharding.num_devices
  vectors = sum(x.vector_bytes for x in state.tables.values())
  _LOG.info(
    f'tables: {held / 1e6:.1f} MB per device ({vectors / 1e6:.1f} MB {dtype} '
    'vectors of all tables)'
  )
  # Of replicas there are several copies, each on one device.
  copy = min(whole, held * mesh.shape[mesh_lib.TABLE])
  smaller = kinds.of(parts.config).smaller
  layers = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state[1:]))
  if 2 * layers > held:  # which each device has whole
    copy, smaller = 0, 'lower --config.model.hidden or --config.model.dim'
  budget.check_state(
    list(mesh.devices.flat), held_bytes=held, copy_bytes=copy, smaller=smaller
  )


def new_state(parts: Parts, key: jax.Array) -> Any:
  """The state before training, from `config.train.init_from` if there is one.

  Raises a `UserError` if that cannot be used.
  """
  trainable, strategy = parts.trainable, parts.strategy
  state = strategy.init(key)
  path = os.path.expanduser(parts.config.train.init_from)
  if not path:
    return state
  return warm_start.begin(
    path, trainable, strategy, state=state, words=parts.source.keys
  )
