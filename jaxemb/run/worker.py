"""A worker: a process that trains what the ledger gives it.

It reads its own text from the cache of encoded corpora, has copies of rows on
its device (`strategies.shared_rows`), and tells the ledger of every dispatch.
"""

import copy
import logging
import pathlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import ml_collections
import numpy as np

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.kernels.cpu import step as native
from jaxemb.run import build, loop, rundir
from jaxemb.runtime import resources
from jaxemb.stores import fetching
from jaxemb.strategies import base as strategy_base
from jaxemb.workers import coordinator as ledger
from jaxemb.workers import remote, shared_rows


class Pace:
  """Asks the desk before every round; implements `shared_rows.Pace`."""

  def __init__(self, ask: Any, pace: str):
    """`ask` calls a method of the desk."""
    self.ask, self._waits = ask, pace != 'asp'
    self.is_lockstep = pace == 'bsp'
    self._index, self._round, self._count = 0, 0, 0
    self.waited_secs = 0.0

  def start(self, index: int) -> None:
    """A dispatch begins, the `index`-th of its part."""
    self._index, self._round = index, -1

  def wait(self, *args: Any) -> Any:
    """What a method of the desk returns that others may have to come to."""
    start = time.monotonic()
    answer = self.ask(*args)
    self.waited_secs += time.monotonic() - start
    return answer

  def begin(self, needed: fetching.Needed) -> tuple[int, float]:
    """See `shared_rows.Pace`."""
    own = needed.count, needed.examples
    self._round += 1
    if not self._waits:
      return own
    number = (self._index, self._round) if self.is_lockstep else None
    most, examples = self.wait('begin', number, *own)
    if not self.is_lockstep:
      return own
    if needed.is_first:
      self._count = most
    return self._count, examples

  def has_read(self) -> None:
    """See `shared_rows.Pace`."""
    self.ask('has_read')

  def end(self) -> None:
    """See `shared_rows.Pace`."""
    self.wait('end')


class Exchange:
  """Asks the desk after every round; implements `fetching.Dense`."""

  def __init__(
    self, pace: Pace, weights: shared_rows.Weights, step_centers: int
  ):
    """`weights` are those of rows, as if each center looked parameters up."""
    self._pace, self._weights = pace, weights
    self._step_centers = step_centers
    self.shares_steps = pace.is_lockstep
    self.num_bytes = 0  # sent or received since somebody counted

  def _put(self, new, old):
    self.num_bytes += sum(x.nbytes for x in jax.tree.leaves(new))
    return jax.tree.map(lambda x, y: jax.device_put(x, y.sharding), new, old)

  def begin(self, state: strategy_base.TrainState) -> strategy_base.TrainState:
    """A state with the parameters of all."""
    params, optimizer = self._pace.ask('take_dense')
    state = state._replace(params=self._put(params, state.params))
    if self.shares_steps:
      return state
    return state._replace(optimizer=self._put(optimizer, state.optimizer))

  def exchange(
    self,
    state: strategy_base.TrainState,
    num_steps: int,
    learning_rate: np.float32,
    examples: float,
  ) -> strategy_base.TrainState:
    """See `fetching.Dense`."""
    params, optimizer = own = jax.device_get(state[1:])
    if self.shares_steps:
      own = (optimizer,)
      params = self._pace.wait(
        'step_dense', optimizer, examples > 0, float(learning_rate)
      )
    else:
      lookups = np.array([num_steps * self._step_centers])
      (weight,) = self._weights.of(lookups).tolist()
      params = self._pace.ask('push_dense', params, optimizer, weight)
    self.num_bytes += sum(x.nbytes for x in jax.tree.leaves(own))
    return state._replace(params=self._put(params, state.params))


class Worker:
  """An actor of Ray."""

  def __init__(
    self,
    number: int,
    desk: Any,
    config: Mapping[str, Any],
    tuning: Mapping[str, Any],
    workdir: pathlib.Path,
    namespace: str,
    cache: pathlib.Path | None,
    fingerprint: str,
  ):
    """Settings and tuning are resolved; tables are in the namespace.

    The data is to have the fingerprint.
    """
    self._number, self._desk = number, desk
    self._config = ml_collections.ConfigDict(dict(config))
    self._tuning, self._workdir = tuning, workdir
    self._fingerprint = fingerprint
    self._cluster = remote.Cluster(namespace)
    self._has_own_cache = cache is None
    self.cache, self._start = cache or rundir.cache_folder(), 0

  def _ask(self, method: str, *args: Any) -> Any:
    call = getattr(self._desk, method).remote
    return self._cluster.ask(call(self._number, self._start, *args))

  def run(self) -> None:
    """Trains until nothing is left to be given."""
    logging.getLogger('jaxemb').addHandler(logging.NullHandler())
    if self._has_own_cache:
      programs = str(self.cache / 'programs')
      jax.config.update('jax_compilation_cache_dir', programs)
      jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
    config, tuning, mesh = build.on_devices(self._config, {}, **self._tuning)
    try:
      parts = build.parts(
        config,
        tuning,
        mesh,
        progress=lambda *_: None,
        cache=self.cache,
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
        f'{config.data.path}; have the same on all machines'
      )
    _Training(worker=self, parts=parts, config=config, tuning=tuning).run()

  def join(self) -> None:
    """Joins the others."""
    joined = self._desk.join.remote(self._number)
    self._start = self._cluster.ask(joined)


class _Training:
  """What a worker does once its parts are made."""

  def __init__(
    self,
    worker: Worker,
    parts: build.Parts,
    config: ml_collections.ConfigDict,
    tuning: config_lib.Tuning,
  ):
    self._worker, self._ask = worker, worker._ask
    self._parts, self._config, self._tuning = parts, config, tuning
    source, strategy = parts.source, parts.strategy
    self._store, self._sharding = strategy.store, strategy.batch_sharding
    self._total = round(source.units_per_epoch * source.epochs)
    self._goes_on = threading.Event()
    self._sources: dict[int, data_base.Source] = {}
    self._sums: dict[str, float] = {}

  def _source(self, part):
    """The data, of which only one part is read."""
    if part not in self._sources:
      only = range(part, part + 1)
      readers = data_base.ALONE._replace(local_parts=only)
      source = copy.copy(self._parts.source)
      if hasattr(source, 'spec'):
        # Not read again: it would be encoded again if it has changed.
        source.spec = source.spec._replace(readers=readers)
      else:
        source = build.make_source(
          self._config,
          self._tuning,
          readers,
          cache=self._worker.cache,
          progress=lambda *_: None,
        )
      self._sources[part] = source
    return self._sources[part]

  def _schedule(self, part, item, rate_factor=1.0):
    now = loop.schedule(self._config, item, self._total)
    factor = np.float32(rate_factor)
    return now._replace(
      first_learning_rate=factor * now.first_learning_rate,
      last_learning_rate=factor * now.last_learning_rate,
      parts_before=np.int32(part),
    )

  def _put(self, item):
    batch = jax.device_put(item.batch, self._sharding)
    return item._replace(batch=batch)

  def _items(
    self,
  ) -> Iterator[tuple[data_base.Item, strategy_base.Schedule, int] | str]:
    """Dispatches as they are given, each with its part; and pauses."""
    begun: dict[int, tuple[Any, Iterator[data_base.Item]]] = {}
    made = ended = None
    while True:
      lease = self._ask('lease', made, ended)
      made = ended = None
      if lease is None:
        return
      if lease == ledger.Desk.PAUSE:
        yield lease
        self._goes_on.wait()
        self._goes_on.clear()
        continue
      part, position, done, rate_factor = lease
      behind, items = begun.get(part, (None, None))
      if items is None or behind != position:
        items = self._source(part).items(position, done)
      item = next(items, None)
      if item is None:
        ended = part
        continue
      begun[part] = item.position, items
      made = part, item.position, item.done_after, item.own
      yield self._put(item), self._schedule(part, item, rate_factor), part

  def run(self) -> None:
    """Trains."""
    strategy, store, worker = self._parts.strategy, self._store, self._worker
    pace = Pace(self._ask, self._config.strategy.pace)
    store.rows.pace = pace
    trainable = self._parts.trainable
    dense, has_dense = (
      Exchange(pace, store.rows.weights, self._tuning.part_words),
      trainable.has_dense,
    )
    if has_dense or (pace.is_lockstep and trainable.model.is_mean):
      store.share(dense)
    state = strategy.init(loop.init_key(self._config.seed))
    constants = strategy.constants()
    start = time.monotonic()
    like = self._put(next(self._source(0).items(None, 0)))
    program = strategy.step.lower(
      state, constants, like.batch, schedule=self._schedule(0, like)
    ).compile()
    compile_secs = time.monotonic() - start
    worker.join()
    if has_dense:
      state = dense.begin(state)
    self._first, began = resources.sample(), time.time()
    items = data_base.prefetch(self._items(), 1)
    item = next(items, None)
    while item is not None:
      if item == ledger.Desk.PAUSE:
        state = store.flush(state)
        pace_start = time.monotonic()
        self._ask('paused')
        pace.waited_secs += time.monotonic() - pace_start
        self._goes_on.set()
        item = next(items, None)
        continue
      following = next(items, None)
      if isinstance(following, tuple):
        then, schedule, _ = following
        store.expect(then.batch, schedule)
      now, schedule, part = item
      pace.start(now.index)
      state, found = program(state, constants, now.batch, schedule)
      report = self._report(
        now, schedule, found=jax.device_get(found), pace=pace, dense=dense
      )
      report |= {'compile_secs': compile_secs, 'began': began}
      compile_secs = 0.0
      self._ask('trained', part, report)
      item = following
    store.flush(state)
    self._ask('finish', self._counts(pace, dense))

  def _counts(self, pace, dense):
    """What was counted since the last call; and what was ever used."""
    counts = self._store.take_counts()
    for name, number in counts.items():
      self._sums[name] = self._sums.get(name, 0) + number
    rows = self._store.rows
    counts['most_missed'], rows.most_missed = rows.most_missed, 0
    counts['dense_bytes'], dense.num_bytes = dense.num_bytes, 0
    used = resources.since(self._first)
    used |= {f'{k}_per_sec': x for k, x in self._sums.items()}
    used['waited_secs_per_sec'] = pace.waited_secs
    return {'counts': counts, 'used': used}

  def _report(self, item, schedule, found, pace, dense):
    self._sums['words'] = self._sums.get('words', 0) + item.own
    rates = schedule.first_learning_rate, schedule.last_learning_rate
    return self._counts(pace, dense) | {
      'pending': self._store.rows.num_updates(),
      'own': item.own,
      'rates': tuple(map(float, rates)),
      'metrics': found,
    }
