"""A worker: a process that trains what the coordinator leases to it.

It reads its own data from the cache of encoded corpora, has copies of rows on
its device (`workers.shared_rows`), and runs the one training loop: leases are
its source, and its meter and hook report to the coordinator.
"""

import collections
import contextlib
import copy
import logging
import os
import pathlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import ml_collections

from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.kernels import ffi
from jaxemb.run import build, loop, metrics, rundir
from jaxemb.run import devices as devices_lib
from jaxemb.runtime import compile_time, resources
from jaxemb.workers import coordinator, lockstep, remote
from jaxemb.workers import dense as dense_lib


class Task(NamedTuple):
  """What all workers of a run train."""

  config: Mapping[str, Any]  # resolved
  tuning: Mapping[str, Any]  # resolved, but what follows from the rest
  workdir: pathlib.Path
  home: pathlib.Path  # of paths that are relative
  namespace: str  # of the tables in Ray
  cache: pathlib.Path | None  # None = the usual one of each machine
  fingerprint: str  # of the data


class Worker:
  """An actor of Ray."""

  def __init__(self, number: int, coordinator: Any, task: Task):
    """`coordinator` is its actor."""
    self._number, self._coordinator, self._task = number, coordinator, task
    self._cluster = remote.Cluster(task.namespace)
    self._start = 0
    self.cache = task.cache or rundir.cache_folder()
    self.rate_factor = 1.0  # of learning rates, when it joined

  def ask(self, method: str, *args: Any) -> Any:
    """Calls a method of the coordinator."""
    call = getattr(self._coordinator, method).remote
    return self._cluster.ask(call(self._number, self._start, *args))

  def join(self) -> int:
    """Joins the others; returns units of progress that each has made."""
    call = self._coordinator.join.remote(self._number)
    self._start, self.rate_factor, done = self._cluster.ask(call)
    return done

  def run(self) -> None:
    """Trains until no lease is left."""
    logging.getLogger('jaxemb').addHandler(logging.NullHandler())
    task = self._task
    # A machine without it has whatever the settings name elsewhere, or not.
    with contextlib.suppress(OSError):
      os.chdir(task.home)
    if task.cache is None:
      rundir.keep_programs(self.cache)
    config = ml_collections.ConfigDict(dict(task.config))
    setup = devices_lib.choose(config, {}, **task.tuning)
    try:
      with compile_time.waited() as waited:
        parts = build.parts(
          setup,
          self.cache,
          folder=task.workdir / 'store',
          cluster=self._cluster,
        )
        build.wait_for_kernel(parts)
    except ffi.Unavailable as error:
      raise errors.UserError(
        f'worker {self._number} has no kernel for its CPU ({error}), and '
        'others have; give --config.train.fused=false'
      ) from error
    if parts.source.fingerprint != task.fingerprint:
      raise errors.UserError(
        f'worker {self._number} reads another text at config.data.path='
        f'{parts.config.data.path}; have the same on all machines'
      )
    _train(self, setup, parts, compile_secs=waited.secs)


class _Leases:
  """A source of dispatches that the coordinator leases to this worker."""

  num_parts = 1  # in a batch

  def __init__(
    self, worker: Worker, setup: devices_lib.Setup, source: data_base.Source
  ):
    self._worker, self._whole, self._setup = worker, source, setup
    self.unit, self.epochs = source.unit, source.epochs
    self.units_per_epoch = source.units_per_epoch
    self._total = round(source.units_per_epoch * source.epochs)
    self.goes_on = threading.Event()  # set at the end of a pause
    self._sources: dict[int, data_base.Source] = {}

  def first(self) -> data_base.Item:
    """Returns an item such as all are, to compile for."""
    return next(self._source(0).items(None, 0))

  def _source(self, part):
    """Returns a source that reads only one part of the data."""
    if part not in self._sources:
      readers = data_base.ALONE._replace(local_parts=range(part, part + 1))
      if hasattr(self._whole, 'spec'):
        # Not read again: it would be encoded again if it has changed.
        source = copy.copy(self._whole)
        source.spec = source.spec._replace(readers=readers)
      else:
        source = build.make_source(self._setup, readers, self._worker.cache)
      self._sources[part] = source
    return self._sources[part]

  def items(self, position: Any, done: int) -> Iterator[data_base.Item]:
    """Yields leased dispatches; one without a batch is a pause."""
    begun: dict[int, tuple[Any, Iterator[data_base.Item]]] = {}
    made = ended = None
    while lease := self._worker.ask('lease', made, ended):
      made = ended = None
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
      item = item._replace(own=item.own_units)  # before progress is of all
      made = lease.part, item.position, item.done_after, item.own
      if lease.done_of_all is not None:
        item = self._among_all(item, lease)
      yield item._replace(part=lease.part)

  def _among_all(self, item, lease):
    """Returns an item whose progress is that of all workers.

    Parts of the data that are read later begin no earlier, as they would by
    themselves.
    """
    before = lease.done_of_all
    after = before + lease.num_workers * item.own
    before, after = (min(x, self._total) for x in (before, after))
    return item._replace(done_before=before, done_after=after)


class _Member(loop.Hook, loop.Meter):
  """Keeps pace with other workers, and reports dispatches to the coordinator.

  It waits while the run is saved.
  """

  def __init__(
    self,
    worker: Worker,
    leases: _Leases,
    dense: dense_lib.Exchange,
    store: Any,
    compile_secs: float,
  ):
    self._ask, self._leases = worker.ask, leases
    self._dense, self._store, self._rows = dense, store, store.rows
    self._compile_secs, self._rate = compile_secs, worker.rate_factor
    self.start()
    self._counts: collections.Counter = collections.Counter()  # to report
    self._sums: collections.Counter = collections.Counter()  # so far

  def before(self, item: data_base.Item) -> None:
    self._rows.start(item.index)

  def due(self, item: data_base.Item) -> bool:
    return item.batch is None

  def run(self, state: Any, totals: metrics.Totals) -> None:
    self._rate = self._rows.wait('paused')
    self._leases.goes_on.set()

  def rate_factor(self) -> float:
    return self._rate

  def start(self) -> None:
    """Begins to count what this process uses."""
    self._first, self._began = resources.sample(), time.time()

  def count(
    self, item: data_base.Item, learning_rates: Sequence[float], measured: Any
  ) -> None:
    """Reports a dispatch, once it has ended."""
    measured = jax.device_get(measured)
    self._sums['words'] += item.own_units
    report = self._take() | {
      'pending': self._rows.num_updates(),
      'own': item.own_units,
      'rates': tuple(map(float, learning_rates)),
      'metrics': measured,
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
    counts, rows, dense = dict(self._counts), self._rows, self._dense
    self._counts.clear()
    counts['most_missed'], rows.most_missed = rows.most_missed, 0
    counts['dense_bytes'], dense.num_bytes = dense.num_bytes, 0
    used = resources.since(self._first)
    used |= {f'{k}_per_sec': x for k, x in self._sums.items()}
    used['waited_secs_per_sec'] = rows.waited_secs
    return {'counts': counts, 'used': used}

  def finish(self) -> None:
    """Reports what is left, once all rows are pushed."""
    self.count_store(self._store.take_counts())
    self._ask('finish', self._take())

  def close(self) -> None:
    """Lets the thread that makes items end."""
    self._leases.goes_on.set()


def _train(
  worker: Worker,
  setup: devices_lib.Setup,
  parts: build.Parts,
  compile_secs: float,
) -> None:
  """Joins the other workers, and trains until nothing is left.

  `compile_secs` is how long it has waited for kernels.
  """
  config, tuning = parts.config, parts.tuning
  leases = _Leases(worker, setup, parts.source)
  # The loop reads no more of a source than leases have.
  parts = parts._replace(source=cast(data_base.Source, leases))
  strategy, trainable = parts.strategy, parts.trainable
  store, has_dense = strategy.store, trainable.has_dense
  pace = config.strategy.pace
  store.rows.join(worker.ask, waits=pace == 'ssp')
  make_dense = lockstep.Exchange if pace == 'bsp' else dense_lib.Exchange
  dense = make_dense(store.rows, tuning.part_words)
  if has_dense or (dense.shares_steps and trainable.model.is_mean):
    store.share(dense)
  state, start = strategy.init(loop.init_key(config.seed)), time.monotonic()
  item = leases.first()
  batch = loop.put_parts(item.batch, strategy.batch_sharding, 1)
  schedule = loop.schedule(config, item, 1)
  arguments = strategy.constants(), batch, schedule
  program = loop.compile_dispatch(parts, state, arguments)
  compile_secs += time.monotonic() - start
  store.rows.begin_after(worker.join() // tuning.part_words)
  if has_dense:
    state = dense.begin(state)
  member = _Member(
    worker, leases, dense=dense, store=store, compile_secs=compile_secs
  )
  trained = loop.train(
    None,
    parts,
    loop.Session(time.time(), 0.0, threading.Event()),
    make_meter=lambda totals: member,
    hooks=[member],
    program=program,
    state=state,
    items_ahead=1,
  )
  assert trained is not None  # no worker is stopped: its session is its own
  store.flush(trained.state)
  member.finish()
