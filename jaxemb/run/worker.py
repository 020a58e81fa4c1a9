"""A worker: a process that trains what the coordinator leases to it.

It reads its own data from the cache of encoded corpora, has copies of rows on
its device (`workers.shared_rows`), and runs the one training loop: leases are
its source, and its meter and hook report to the coordinator.
"""

import collections
import copy
import logging
import pathlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import ml_collections

from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.kernels.cpu import step as native
from jaxemb.run import build, loop, metrics, rundir
from jaxemb.run import devices as devices_lib
from jaxemb.runtime import resources
from jaxemb.stores import fetching
from jaxemb.strategies import base as strategy_base
from jaxemb.workers import coordinator, lockstep, remote, shared_rows
from jaxemb.workers import dense as dense_lib


class Worker:
  """An actor of Ray."""

  def __init__(
    self,
    number: int,
    coordinator: Any,
    config: Mapping[str, Any],
    tuning: Mapping[str, Any],
    workdir: pathlib.Path,
    namespace: str,
    cache: pathlib.Path | None,
    fingerprint: str,
  ):
    """Settings and tuning are resolved; tables are in the namespace.

    `coordinator` is its actor; the data must have the fingerprint.
    """
    self._number, self._coordinator = number, coordinator
    self._config = ml_collections.ConfigDict(dict(config))
    self._tuning, self._workdir = tuning, workdir
    self._fingerprint = fingerprint
    self._cluster = remote.Cluster(namespace)
    self._has_own_cache = cache is None
    self.cache, self._start = cache or rundir.cache_folder(), 0
    self.rate_factor = 1.0  # of learning rates, when it joined

  def ask(self, method: str, *args: Any) -> Any:
    """Calls a method of the coordinator."""
    call = getattr(self._coordinator, method).remote
    return self._cluster.ask(call(self._number, self._start, *args))

  def run(self) -> None:
    """Trains until no lease is left."""
    logging.getLogger('jaxemb').addHandler(logging.NullHandler())
    if self._has_own_cache:
      programs = str(self.cache / 'programs')
      jax.config.update('jax_compilation_cache_dir', programs)
      jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
    setup = devices_lib.choose(self._config, {}, **self._tuning)
    try:
      parts = build.parts(
        setup,
        self.cache,
        folder=self._workdir / 'store',
        cluster=self._cluster,
      )
    except native.Unavailable as error:
      raise errors.UserError(
        f'worker {self._number} has no kernel for its CPU ({error}), and '
        'others have; give --config.train.fused=false'
      ) from error
    if parts.source.fingerprint != self._fingerprint:
      raise errors.UserError(
        f'worker {self._number} reads another text at config.data.path='
        f'{parts.config.data.path}; have the same on all machines'
      )
    _train(self, setup, parts)

  def join(self) -> None:
    """Joins the others."""
    call = self._coordinator.join.remote(self._number)
    self._start, self.rate_factor = self._cluster.ask(call)


class _Leases:
  """A source of dispatches that the coordinator leases to this worker."""

  num_parts = 1  # in a batch

  def __init__(
    self,
    worker: Worker,
    setup: devices_lib.Setup,
    source: data_base.Source,
  ):
    self._worker, self._whole, self._setup = worker, source, setup
    self.unit, self.epochs = self._whole.unit, self._whole.epochs
    self.units_per_epoch = self._whole.units_per_epoch
    self.goes_on = threading.Event()  # set at the end of a pause
    self._sources: dict[int, data_base.Source] = {}

  def first(self) -> data_base.Item:
    """Returns an item such as all are, to compile for."""
    return next(self._source(0).items(None, 0))

  def _source(self, part):
    """Returns a source that reads only one part of the data."""
    if part not in self._sources:
      readers = data_base.ALONE._replace(local_parts=range(part, part + 1))
      source = copy.copy(self._whole)
      if hasattr(source, 'spec'):
        # Not read again: it would be encoded again if it has changed.
        source.spec = source.spec._replace(readers=readers)
      else:
        source = build.make_source(
          self._setup,
          readers,
          cache=self._worker.cache,
          progress=lambda *_: None,
        )
      self._sources[part] = source
    return self._sources[part]

  def items(self, position: Any, done: int) -> Iterator[data_base.Item]:
    """Yields leased dispatches; one without a batch is a pause."""
    begun: dict[int, tuple[Any, Iterator[data_base.Item]]] = {}
    made = ended = None
    while True:
      lease = self._worker.ask('lease', made, ended)
      made = ended = None
      if lease is None:
        return
      if lease == coordinator.PAUSE:
        yield data_base.Item(
          batch=None, index=0, position=None, done_before=0, done_after=0
        )
        self.goes_on.wait()
        self.goes_on.clear()
        continue
      behind, items = begun.get(lease.part, (None, None))
      if items is None or behind != lease.position:
        items = self._source(lease.part).items(lease.position, lease.done)
      item = next(items, None)
      if item is None:
        ended = lease.part
        continue
      begun[lease.part] = item.position, items
      made = lease.part, item.position, item.done_after, item.own
      yield item._replace(part=lease.part)


class _Member(loop.Hook, loop.Meter):
  """Keeps pace with other workers, and reports dispatches to the coordinator.

  It waits while the run is saved.
  """

  def __init__(
    self,
    worker: Worker,
    leases: _Leases,
    pace: shared_rows.Pace,
    dense: dense_lib.Exchange,
    store: fetching.Fetching,
    compile_secs: float,
  ):
    self._ask, self._leases = worker.ask, leases
    self._pace, self._dense, self._store = pace, dense, store
    self._compile_secs, self._rate = compile_secs, worker.rate_factor
    self.start()
    self._counts: collections.Counter = collections.Counter()  # to report
    self._sums: collections.Counter = collections.Counter()  # so far

  def before(self, item: data_base.Item) -> None:
    self._pace.start(item.index)

  def due(self, item: data_base.Item) -> bool:
    return item.batch is None

  def run(self, state: Any, totals: metrics.Totals) -> None:
    self._rate = self._pace.wait('paused')
    self._leases.goes_on.set()

  def rate_factor(self) -> float:
    return self._rate

  def start(self) -> None:
    """Begins to count what this process uses."""
    self._first, self._began = resources.sample(), time.time()

  def count(
    self,
    item: data_base.Item,
    learning_rates: tuple[float, float],
    step_metrics: strategy_base.DispatchMetrics,
  ) -> None:
    """Reports a dispatch, once it has ended."""
    step_metrics = jax.device_get(step_metrics)
    self._sums['words'] += item.own
    report = self._take() | {
      'pending': self._store.rows.num_updates(),
      'own': item.own,
      'rates': tuple(map(float, learning_rates)),
      'metrics': step_metrics,
      'compile_secs': self._compile_secs,
      'began': self._began,
    }
    self._compile_secs = 0.0
    self._ask('trained', item.part, report)

  def count_store(self, counts: Mapping[str, float]) -> None:
    """Counts rows and seconds, for the next report."""
    self._counts.update(counts)
    self._sums.update(counts)

  def _take(self):
    """Returns the counts since the last report, and all that was used."""
    counts, rows, dense = dict(self._counts), self._store.rows, self._dense
    self._counts.clear()
    counts['most_missed'], rows.most_missed = rows.most_missed, 0
    counts['dense_bytes'], dense.num_bytes = dense.num_bytes, 0
    used = resources.since(self._first)
    used |= {f'{k}_per_sec': x for k, x in self._sums.items()}
    used['waited_secs_per_sec'] = self._pace.waited_secs
    return {'counts': counts, 'used': used}

  def finish(self) -> None:
    """Reports what is left, once all rows are pushed."""
    self.count_store(self._store.take_counts())
    self._ask('finish', self._take())

  def close(self) -> None:
    """Lets the thread that makes items end."""
    self._leases.goes_on.set()


def _train(
  worker: Worker, setup: devices_lib.Setup, parts: build.Parts
) -> None:
  """Joins the other workers, and trains until nothing is left."""
  config, tuning = parts.config, parts.tuning
  leases = _Leases(worker, setup, parts.source)
  parts = parts._replace(source=leases)
  strategy, trainable = parts.strategy, parts.trainable
  store = strategy.store
  if config.strategy.pace == 'bsp':
    pace, make_dense = lockstep.Pace(worker.ask), lockstep.Exchange
  else:
    waits = config.strategy.pace == 'ssp'
    pace = shared_rows.Pace(worker.ask, waits)
    make_dense = dense_lib.Exchange
  store.rows.pace = pace
  dense = make_dense(pace, store.rows.weights, tuning.part_words)
  if trainable.has_dense or (dense.shares_steps and trainable.model.is_mean):
    store.share(dense)
  state, start = strategy.init(loop.init_key(config.seed)), time.monotonic()
  item = leases.first()
  batch = loop.put_parts(item.batch, strategy.batch_sharding, 1)
  schedule = loop.schedule(config, item, 1)
  args = strategy.constants(), batch, schedule
  program = loop.compile_dispatch(parts, state, args)
  secs = time.monotonic() - start
  worker.join()
  if trainable.has_dense:
    state = dense.begin(state)
  member = _Member(
    worker, leases, pace=pace, dense=dense, store=store, compile_secs=secs
  )
  state = loop.train(
    None,
    parts,
    loop.Session(time.time(), 0.0, threading.Event()),
    make_meter=lambda totals: member,
    hooks=[member],
    program=program,
    state=state,
    items_ahead=1,
  ).state
  store.flush(state)
  member.finish()
