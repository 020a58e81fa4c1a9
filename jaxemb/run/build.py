"""From settings to the parts of a run: source, model, tables, strategy.

The only place that turns a ConfigDict into constructor arguments.
"""

import dataclasses
import logging
import math
import os
import pathlib
import subprocess
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.config import kinds
from jaxemb.data import base as data_base
from jaxemb.evaluation import benchmarks
from jaxemb.kernels.cpu import ahead
from jaxemb.kernels.cpu import step as native
from jaxemb.kernels.gpu import window_products
from jaxemb.merging import warm_start
from jaxemb.models import base as model_base
from jaxemb.models import columns
from jaxemb.ops import wire
from jaxemb.run import kind as kind_lib
from jaxemb.run import make_tables, rundir
from jaxemb.runtime import budget, distributed
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.stores import fetching
from jaxemb.stores import local as stores
from jaxemb.strategies import base as strategy_base
from jaxemb.strategies import replicas
from jaxemb.tables import spec as spec_lib
from jaxemb.workers import remote

_LOG = logging.getLogger('jaxemb')
_ROWS_PER_THREAD = 250  # five times as many as diverge
_MOST_FREE_EXAMPLES = 1 << 16  # of a step, however few there are


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
  axes = spec_lib.Axes()  # each replica has tables of its own
  is_sync = _is_sync(config, tuning, mesh)
  if is_sync:
    axes = spec_lib.Axes(*mesh.devices.shape)
  model = _model(config, tuning, mesh, corpus=corpus, axes=axes)
  tables, num_cache_rows = make_tables.make(
    config, tuning, mesh, specs=model.specs(), axes=axes
  )
  multiplies = tuning.row_sums and window_products.can_multiply(model, tables)
  trainable = strategy_base.Trainable(
    model=model,
    tables=tables,
    steps=steps,
    loss_every_steps=tuning.loss_every_steps,
    steps_per_loop=tuning.steps_per_loop,
    # A loop whose length is not known is slow on an accelerator.
    may_be_compact=tuning.steps_per_loop == 1
    and (mesh.size == 1 or not is_sync),
    fused=_fused_step(config, tuning, type(model), compiling=compiling),
    gradients=window_products.Gradients() if multiplies else None,
  )
  if num_cache_rows:
    step = make_tables.in_store(
      config,
      tuning,
      trainable,
      num_cache_rows=num_cache_rows,
      folder=folder,
      cluster=cluster,
    )
    return Trainer(trainable, fetching.fetching(step, mesh))
  return Trainer(trainable, _strategy(config, tuning, trainable, mesh=mesh))


def _model(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  mesh: jax.sharding.Mesh,
  corpus: model_base.Corpus,
  axes: spec_lib.Axes,
) -> model_base.Model:
  """The model of the kind of data, for tables on these axes."""
  splitting = None  # the axis over which columns are split
  t = config.table
  if t.layout == 'column' and mesh.shape[mesh_lib.TABLE] > 1:
    splitting = wire.Axis(mesh_lib.TABLE, t.exchange_dtype)
  return kinds.of(config).make_model(
    corpus,
    kind_lib.Context(
      config=config,
      tuning=tuning,
      row_ops=columns.RowOps(splitting),
      axes=tuple(axes.names(with_table=splitting is None)),
    ),
  )


def _fused_step(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  model: type,
  compiling: subprocess.Popen | None,
) -> native.Kernel | None:
  """The kernel that takes whole steps of a model, if one does."""
  if not tuning.fused:
    return None
  return native.make(
    model,
    config.table.dtype,
    config.optimizer,
    num_threads=tuning.threads,
    compiling=compiling,
  )


def _strategy(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  trainable: strategy_base.Trainable,
  mesh: jax.sharding.Mesh,
) -> strategy_base.Strategy:
  """The strategy of tables whose rows are all on devices."""
  name, is_alone = config.strategy.name, _is_alone(tuning, mesh)
  if name == 'partition':
    # Of one sub-model.
    first = mesh.devices.flat[:1].tolist()
    alone = mesh_lib.make(mesh_lib.Shape(1, 1), devices=first)
    return strategy_base.sync(trainable, alone)
  if is_alone and name == 'replicas':
    strategy = strategy_base.sync(trainable, mesh)
    # Others may have trained with it.
    many = _replicas(config, tuning, trainable, mesh=mesh)
    return strategy._replace(from_replicas=replicas.single(many))
  if is_alone or name != 'replicas':
    # Devices that hold other columns of the same rows take the same examples.
    splits_columns = config.table.layout == 'column'
    return strategy_base.sync(trainable, mesh, not splits_columns)
  return _replicas(config, tuning, trainable, mesh=mesh)


def _is_sync(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  mesh: jax.sharding.Mesh,
) -> bool:
  """Whether all devices share tables."""
  is_alone = _is_alone(tuning, mesh)
  return is_alone or config.strategy.name in ('sync', 'workers')


def _is_alone(tuning: config_lib.Tuning, mesh: jax.sharding.Mesh) -> bool:
  """Whether one device trains; what was begun with replicas may go on so."""
  return mesh.size == tuning.parts == 1


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
  benchmark_sets = kind.benchmarks(config)
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
  if benchmark_sets is None:
    benchmark_sets = kind.source_benchmarks(config, source)
  return Parts(
    config=config,
    kind=kind,
    source=source,
    trainable=made.trainable,
    strategy=made.strategy,
    benchmarks=benchmark_sets,
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
