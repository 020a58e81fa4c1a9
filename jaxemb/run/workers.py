"""Runs workers: starts them on Ray, replaces those that end, keeps the results.

The process that the user starts reads the data, starts shards of the tables
(`workers.remote`), the coordinator and workers (`run.worker`), and trains
nothing. It counts what workers report, has them pause to save and to evaluate,
and exports the rows of the shards in the end. A worker whose process ends is
started again; the dispatches that it had leased are read again.
"""

import contextlib
import dataclasses
import pathlib
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import jax

from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.run import build, evaluation, loop, metrics, results, worker
from jaxemb.storage import checkpoint
from jaxemb.workers import coordinator, lockstep, nodes, remote

_POLL_SECS = 0.2
_CHECK_SECS = 1.0  # between looks at shards
# A worker that ends so often, without a dispatch in between, will not recover.
_MOST_FAILURES = 5


class _Crew:
  """The processes of workers, and the coordinator that they ask."""

  def __init__(
    self,
    parts: build.Parts,
    workdir: pathlib.Path,
    cluster: remote.Cluster,
    cache: pathlib.Path | None,
  ):
    self._strategy = s = parts.config.strategy
    self._cluster, self._unit = cluster, parts.source.unit
    trainable = parts.trainable
    dense: tuple[Any, ...] = ()
    if trainable.has_dense:
      dense = trainable.optimizer(), trainable.model.dense_rate
    kind: type[coordinator.Coordinator] = coordinator.Coordinator
    limit = None
    if s.pace == 'bsp':
      kind, limit = lockstep.Coordinator, s.num_workers
    elif s.pace == 'ssp':
      limit = s.rounds_ahead
    self._head = None
    if not cluster.is_own:
      with tempfile.TemporaryDirectory(dir=workdir) as folder:
        path = pathlib.Path(folder, 'seen')
        path.touch()  # and closed: mounted buckets have it from then on
        cluster.check_nodes(nodes.check_file, path)
      self._head = nodes.Head(cluster.head_address())
    # Here: what ends with this machine had better be with this process.
    self._coordinator = cluster.start_here(
      kind,
      parts.tuning.parts,
      limit,
      dense,
      name='coordinator',
      namespace=cluster.namespace,
    )
    tuning = dataclasses.asdict(parts.tuning)
    del tuning['part_words']  # follows from the others
    self._task = worker.Task(
      config=parts.config.to_dict(),
      tuning=tuning,
      workdir=workdir,
      home=pathlib.Path.cwd(),
      namespace=cluster.namespace,
      cache=cache,
      fingerprint=parts.source.fingerprint,
    )
    # Calls of `run`: of which worker, and its actor.
    self.running: dict[Any, tuple[int, Any]] = {}
    self.failures: dict[int, int] = {}  # since a worker last reported
    self.num_replaced = 0

  def close(self) -> None:
    """Ends what watches the cluster, and workers that have no CPU so far."""
    if self._head:
      self._head.close()
    for _, actor in self.running.values():
      self._cluster.kill(actor)

  def ask(self, method: str, *args: Any) -> Any:
    """Calls a method of the coordinator."""
    call = getattr(self._coordinator, method).remote(*args)
    return self._cluster.ask(call, remote.CALL_SECS)

  def start(self, number: int) -> None:
    """Starts a worker."""
    options: dict[str, Any] = {'num_cpus': 0}
    if not self._cluster.is_own:  # one core, on as many machines as there are
      options = {'num_cpus': 1, 'scheduling_strategy': 'SPREAD'}
    actor = self._cluster.start(
      worker.Worker, number, self._coordinator, self._task, **options
    )
    self.running[actor.run.remote()] = number, actor

  def start_all(self) -> None:
    """Starts all workers; warns if there are too few CPUs for them."""
    num_workers = self._strategy.num_workers
    if not self._cluster.is_own:
      num, free = self._cluster.num_cpus()
      if num_workers > free:
        metrics.LOG.warning(
          f'{num_workers - free} of {num_workers} workers wait for a CPU: the '
          f'cluster has {num}, of which {free} are free; lower '
          '--config.strategy.num_workers, or add machines'
          + '; in lockstep nobody trains before'
          * (self._strategy.pace == 'bsp')
        )
    for number in range(num_workers):
      self.start(number)

  def watch(self, secs: float) -> bool:
    """Waits, and replaces workers that ended; whether any may push."""
    if self._head:
      self._head.check()
    for call in self._cluster.ended(list(self.running), secs):
      number, _ = self.running.pop(call)
      why = self._cluster.why_lost(call)
      if why is None:
        continue
      self.failures[number] = num = self.failures.get(number, 0) + 1
      ended = self.ask('leave', number)
      if num >= _MOST_FAILURES:
        raise errors.UserError(
          f'worker {number} ended {num} times before it had trained anything: '
          f'{why}; see that there is memory for so many '
          '(--config.strategy.num_workers)'
        )
      metrics.LOG.warning(
        f'worker {number} ended ({why}) and is started again; {ended.units:,} '
        f'{self._unit} that it had leased are read again, of which it had '
        f'pushed some updates, and up to {ended.pending:,} updates of rows '
        'that it had not pushed are lost'
      )
      self.num_replaced += 1
      self.start(number)
    return bool(self.running) and not self.ask('is_done')


def run(
  workdir: pathlib.Path,
  parts: build.Parts,
  session: loop.Session,
  cluster: remote.Cluster,
  cache: pathlib.Path | None,
) -> bool:
  """Trains, exports and reports; False if it saved and ended at a signal."""
  hook = evaluation.Evaluation(workdir, parts)
  with loop.open_checkpoints(workdir) as checkpoints:
    runner = _Runner(
      workdir, parts, session, hook=hook, checkpoints=checkpoints
    )
    with contextlib.closing(runner.meter):
      num_replaced = 0
      if not runner.has_ended():
        crew = _Crew(parts, workdir.absolute(), cluster, cache=cache)
        with contextlib.closing(crew):
          if not runner.train(crew):
            return False
        num_replaced = crew.num_replaced
      results.finish(
        workdir,
        parts,
        runner.state,
        totals=runner.totals,
        hook=hook,
        more={'workers': runner.report(num_replaced)},
      )
  return True


class _Runner:
  """One start of a run."""

  def __init__(
    self,
    workdir: pathlib.Path,
    parts: build.Parts,
    session: loop.Session,
    hook: loop.Hook,
    checkpoints: checkpoint.Checkpoints,
  ):
    self._parts, self._session, self._hook = parts, session, hook
    self._checkpoints, source = checkpoints, parts.source
    restored = loop.restore(checkpoints, parts)
    self._is_new = restored is None
    if restored:
      self.state, self.totals = restored
    else:
      self.state = parts.new_state(loop.init_key(parts.config.seed))
      self.totals = metrics.Totals(source.unit)
    hook.begin(self.totals)
    self._secs_before, self._has_begun = self.totals.total_secs, False
    self._most_missed = 0
    self._evaluates = False  # whether an evaluation is due
    # By worker and process, the newest sample of what it has used.
    self._used: dict[int, dict[int, dict[str, Any]]] = {}
    self.meter = metrics.Meter(
      workdir=workdir,
      totals=self.totals,
      units_per_epoch=source.units_per_epoch,
      epochs=source.epochs,
      log_every_secs=parts.config.train.log_every_secs,
      untrained_loss=parts.trainable.model.untrained_loss,
      gather=self._gather,
    )

  def _gather(self, *unused: Any) -> list[dict[str, Any]]:
    """Returns the usage of all workers; {} of one that has not reported."""
    num = max(self._used, default=-1) + 1
    return [_sum_starts(self._used.get(i, {})) for i in range(num)]

  def has_ended(self) -> bool:
    """Whether an earlier start has trained to the end."""
    is_done = self.totals.done == self._parts.total_units
    return is_done or (not self._is_new and self._hook.has_ended())

  def train(self, crew: _Crew) -> bool:
    """Trains to the end, or returns False."""
    hook, stop = self._hook, self._session.stop
    position = None if self._is_new else self.totals.position
    dense = jax.device_get(self.state[1:])
    crew.ask('restore', position, dense, hook.rate_factor())
    crew.start_all()
    self.totals.begin(self._session)
    self._compile_secs = self.totals.compile_secs  # before workers compiled
    last_save = last_check = time.monotonic()
    pauses = False
    every_secs = self._parts.config.train.checkpoint_every_secs
    while crew.watch(_POLL_SECS):
      self._take(crew)
      if time.monotonic() - last_check > _CHECK_SECS:
        self._parts.strategy.store.rows.check()
        last_check = time.monotonic()
      is_due = time.monotonic() - last_save > every_secs
      stops = stop.is_set()  # once: a signal may set it at any moment
      pauses |= self._evaluates or is_due or stops
      if not pauses or not crew.ask('pause'):
        continue
      self._evaluate(crew)
      if has_ended := hook.has_ended():
        loop.log_early_stop()
      if is_due or stops:
        self._save(crew)
        last_save = time.monotonic()
      if stops:
        loop.log_stop(self._checkpoints, self.totals.steps)
        return False
      crew.ask('go_on', hook.rate_factor(), has_ended)
      pauses = False
    self._evaluate(crew)
    if not crew.ask('has_ended'):
      raise AssertionError('workers ended before the data did')
    self._save(crew)
    return True

  def _take(self, crew):
    for report in crew.ask('take'):
      self._evaluates |= self._count(crew, report)

  def _evaluate(self, crew):
    """Takes what is left, once nobody trains, and evaluates if it is due."""
    self._take(crew)
    if self._parts.trainable.has_dense:
      params, optimizer = jax.tree.map(
        lambda x, y: jax.device_put(x, y.sharding),
        crew.ask('dense'),
        self.state[1:],
      )
      self.state = self.state._replace(params=params, optimizer=optimizer)
    if self._evaluates:
      self._hook.run(self.state, self.totals)
      self.meter.resume()
      self._evaluates = False

  def _count(self, crew, report) -> bool:
    """Counts what a worker reports; whether an evaluation is due."""
    number, totals = report['worker'], self.totals
    self._used.setdefault(number, {})[report['start']] = report['used']
    counts = report['counts']
    self._most_missed = max(self._most_missed, counts.pop('most_missed'))
    self.meter.count_store(counts)
    if 'metrics' not in report:
      return False
    crew.failures.pop(number, None)
    if secs := report['compile_secs']:
      # Of all at the same time.
      totals.compile_secs = max(totals.compile_secs, self._compile_secs + secs)
      if not self._has_begun:
        self._has_begun = True
        self.meter.start(time.time() - report['began'])
        secs = report['began'] - self._session.started
        metrics.LOG.info(f'first step {secs:.1f} s after start')
    item = data_base.Item(
      batch=None,
      index=0,
      position=None,
      done_before=totals.done,
      done_after=totals.done + report['own'],
    )
    self.meter.count(item, report['rates'], report['metrics'])
    return self._hook.due(item)

  def _save(self, crew):
    totals = self.totals
    totals.position = crew.ask('state')
    secs = time.time() - self._session.started
    totals.total_secs = self._secs_before + secs
    loop.save(self._checkpoints, self._parts, self.state, totals=totals)

  def report(self, num_replaced: int) -> Mapping[str, Any]:
    """What the report has of workers."""
    counters, config = self.totals.counters, self._parts.config
    checked = counters.get('rows_checked', 0) - counters.get('rows_fetched', 0)
    return {
      'pace': config.strategy.pace,
      'replaced': num_replaced,
      'bound_updates': config.table.staleness,
      'mean_missed_updates': counters.get('updates_missed', 0)
      / max(checked, 1),
      'most_missed_updates': self._most_missed,
      'dense_bytes': counters.get('dense_bytes', 0),
    }


def _sum_starts(used: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
  """Sums the usage of all processes of a worker, by their starts."""
  newest = dict(used[max(used)]) if used else {}
  sums = {'secs', 'cores', 'host_busy_cores'} & newest.keys()
  sums |= {k for k in newest if k.endswith('_per_sec')}
  return newest | {k: sum(x.get(k, 0.0) for x in used.values()) for k in sums}
