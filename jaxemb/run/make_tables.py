"""Makes the tables of a run, on devices alone or in a store."""

import dataclasses
import functools
import logging
import math
import pathlib
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import jax
import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.config import kinds
from jaxemb.kernels.cpu import ffi, updates
from jaxemb.kernels.gpu import row_sums
from jaxemb.kernels.tpu import row_copies, sorted_sums
from jaxemb.runtime import resources
from jaxemb.stores import cache as cache_lib
from jaxemb.stores import cached, fetching
from jaxemb.stores import local as stores
from jaxemb.stores import rows as rows_lib
from jaxemb.strategies import base as strategy_base
from jaxemb.tables import row_access
from jaxemb.tables import spec as spec_lib
from jaxemb.workers import lockstep, remote, shared_rows

_LOG = logging.getLogger('jaxemb')
# Of a stretch on tables in a store; and centers, where rows move beside it.
_MOST_STEPS, _STRETCH_CENTERS = 16, 8192


def make(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  mesh: jax.sharding.Mesh,
  specs: Mapping[str, spec_lib.TableSpec],
  axes: spec_lib.Axes,
) -> tuple[dict[str, spec_lib.Table], dict[str, int]]:
  """Tables by name, and how many of their rows a device caches.

  The latter is {} where all rows are on the device.
  """
  if config.table.store or config.strategy.name == 'replicas':
    _check_lookups(config.model.name, specs)
  row_kernel = None
  if tuning.row_threads:
    row_kernel = updates.make(config.optimizer, tuning.row_threads)
  available = {
    'axes': axes,
    'kernels': _row_kernels(tuning),
    'deduplicates': tuning.deduplicates,
    'device_centers': _device_centers(config, tuning, mesh),
    'row_kernel': row_kernel,
  }
  make_one = functools.partial(_make_one, config, available=available)
  tables = {name: make_one(spec) for name, spec in specs.items()}
  if not config.table.store:
    return tables, {}
  num_rows = _num_cache_rows(config, tuning, tables)
  for name, num in num_rows.items():
    # The last one is never used.
    small = dataclasses.replace(
      specs[name], vocab=num + 1, lookups_per_center=None
    )
    tables[name] = cached.Cached(tables[name].spec, make_one(small))
  return tables, num_rows


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


def _make_one(
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


def _num_cache_rows(
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
  num_rows = {k: int(x.spec.vocab * share) - 1 for k, x in tables.items()}
  for name, table in tables.items():
    # A small table beside a large one, such as that of relations, is whole.
    if table.spec.vocab <= max(vocabs) / 100:
      num_rows[name] = table.spec.vocab
  unit = kinds.of(config).unit
  for name, table in tables.items():
    if needed[name] > 0.95 * num_rows[name] < 0.95 * table.spec.vocab:
      least = map_bytes + all_bytes * needed[name] / 0.9 / table.spec.vocab
      raise errors.UserError(
        f'a step of {centers} {unit} looks up about {needed[name]:,.0f} '
        f'rows of a table, and {room_bytes / 1e6:.1f} MB have room for '
        f'{max(num_rows[name], 0):,}, of which it may take 95 %, as steps '
        'differ; give --config.table.device_bytes='
        f'{math.ceil(least / 1e6)}MB, or lower --config.train.batch_{unit}'
      )
  return num_rows


def in_store(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  trainable: strategy_base.Trainable,
  num_cache_rows: Mapping[str, int],
  folder: pathlib.Path | None,
  cluster: remote.Cluster | None,
) -> fetching.Fetching:
  """Steps on tables in a store, with room for so many rows on the device."""
  vocabs = {k: x.vocab for k, x in trainable.model.specs().items()}
  caches = cache_lib.caches(vocabs, num_cache_rows, config.table.evict)
  folder = folder or pathlib.Path(tempfile.gettempdir())
  if config.table.store == 'remote' and not cluster:
    cluster = remote.Cluster()
  make_shared = functools.partial(_make_shared, config, cluster, folder)
  if config.strategy.name == 'workers':
    rows = _worker_rows(config, tuning, trainable, make_shared=make_shared)
    most_steps = _round_steps(config, tuning, trainable)
  else:
    make_stores = {
      'memory': lambda name, *args: stores.Memory(*args),
      'disk': lambda name, *args: stores.Disk(*args, folder=folder),
      'remote': make_shared,
    }
    rows = rows_lib.OwnedRows(trainable, make_stores[config.table.store])
    most_steps = _stretch_steps(config)
  has_all_cores = tuning.fused and tuning.threads >= resources.usable_cores()
  lends = has_all_cores and config.strategy.name != 'workers'
  return fetching.Fetching(
    trainable=trainable,
    caches=caches,
    rows=rows,
    most_steps=most_steps,
    **({'lend': ffi.lend} if lends else {}),
  )


def _make_shared(config, cluster, folder, name, *args):
  """Makes a table on actors of Ray, as `remote.Cluster.table` takes it."""
  num_rows, num_bytes, make_rows, *more = args
  every_secs = config.train.checkpoint_every_secs
  return cluster.table(
    name,
    config.table.shards,
    num_rows,
    num_bytes,
    make_rows,
    folder,
    every_secs,
    *more,
  )


def _worker_rows(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  trainable: strategy_base.Trainable,
  make_shared: Callable[..., Any],
) -> shared_rows.SharedRows:
  """Rows that workers share, each with copies on its device."""
  is_lockstep = config.strategy.pace == 'bsp'
  make_rows = lockstep.Rows if is_lockstep else shared_rows.SharedRows
  return make_rows(
    trainable,
    make_shared,
    staleness=config.table.staleness,
    num_workers=config.strategy.num_workers,
    memory_lookups=tuning.memory_lookups,
  )


def _round_steps(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  trainable: strategy_base.Trainable,
) -> int:
  """Steps of a worker's round, between which it reads and pushes rows."""
  s = config.strategy
  steps = max(1, round(tuning.sync_words / tuning.part_words))
  is_joint = trainable.model.is_mean or trainable.has_dense
  if s.pace == 'bsp' and is_joint and steps > 1:
    raise errors.UserError(
      f'config.strategy.sync_every={s.sync_every} is more than one step of a '
      f'worker, {tuning.part_words} examples, and in lockstep '
      f'config.model.name={config.model.name} is exchanged after every step; '
      'remove it, or give another --config.strategy.pace'
    )
  if steps > fetching.MOST_STEPS:
    most = fetching.MOST_STEPS * tuning.part_words
    _LOG.warning(f'rounds are cut to {most:,} {kinds.of(config).unit}')
  return steps


def _stretch_steps(config: ml_collections.ConfigDict) -> int:
  """Most steps for which rows are fetched at once."""
  if config.table.store == 'remote' or not cached.are_in_memory():
    return _MOST_STEPS
  # Beside which rows move: in short stretches a row is needed soon again.
  centers = config.train.batch_words
  return min(_MOST_STEPS, max(2, _STRETCH_CENTERS // centers))
