"""The one training loop: dispatch, count, save, stop.

It takes batches, which are pure functions of the reader's position, and
dispatches each as one compiled program of many steps. What it trains, a run or
some sub-models side by side, is a `Task`.
"""

import collections
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxemb import metrics
from jaxemb.runtime import distributed, hlo, mesh
from jaxemb.strategies import base as strategy_base


class Session(NamedTuple):
  """One start of a run."""

  started: float  # seconds since 1970
  encode_secs: float = 0.0  # until the corpus was ready


class Task(NamedTuple):
  """What is trained, from where it stands to its end."""

  strategy: strategy_base.Strategy
  state: Any
  # A generator: batches on the devices, with what `meter` and `schedule` want
  # to know about them, and `words_after`.
  items: Any
  schedule: Callable[[Any], strategy_base.Schedule]
  totals: metrics.Totals
  meter: Any  # as `metrics.Meter`
  total_words: int
  # (state, learning rates, whether it is the last of this start) -> None
  save: Callable[[Any, Any, bool], None]
  checkpoint_every_secs: float
  decisions: distributed.Decisions
  program: Any = None  # the compiled dispatch, where there is one already


class Trained(NamedTuple):
  """What the loop leaves behind."""

  state: Any
  totals: metrics.Totals
  finished: bool  # all words were read
  program: Any


def _compile(task: Task, args: tuple, session: Session) -> Any:
  """Compiles a dispatch ahead of its use, so that its time is known apart."""
  strategy, totals = task.strategy, task.totals
  start = time.monotonic()
  compiled = strategy.step.lower(task.state, *args).compile()
  secs = time.monotonic() - start
  totals.compile_secs += secs
  totals.collectives = hlo.traffic(compiled.as_text(), strategy.loop)
  metrics.LOG.info(
    'compiled in %.1f s; first step %.1f s after start',
    secs,
    time.time() - session.started,
  )
  return compiled


def run(task: Task, stop: threading.Event, session: Session) -> Trained:
  """Trains until the end, or until it is told to stop.

  Args:
    task: what to train; its state is used up.
    stop: set when training is to stop, after saving.
    session: this start of the run.
  """
  strategy, state, totals = task.strategy, task.state, task.totals
  constants = mesh.put(strategy.constants(), strategy.constants_sharding)
  meter, program, is_started = task.meter, task.program, False
  waiting: collections.deque = collections.deque()
  last_save = time.monotonic()
  secs_before = totals.total_secs
  try:
    for item in task.items:
      plan = task.schedule(item)
      args = (constants, item.batch, plan)
      program = program or _compile(task, args, session)
      if not is_started:
        totals.started = totals.started or session.started
        totals.encode_secs += session.encode_secs
        meter.start()
        is_started = True
      state, step_metrics = program(state, *args)
      rates = (plan.first_learning_rate, plan.last_learning_rate)
      waiting.append((item._replace(batch=None), rates, step_metrics))
      due = time.monotonic() - last_save > task.checkpoint_every_secs
      is_last = item.words_after == task.total_words
      # Asked once: it may be set at any moment.
      decision = task.decisions.next(stop.is_set(), due)
      stopping = decision == distributed.STOP
      save = is_last or decision != distributed.GO_ON
      # One dispatch is under way while the one before it is counted; all are
      # counted before what they led to is saved.
      while len(waiting) > (0 if save else 1):
        meter.count(*waiting.popleft())
      if save:
        totals.total_secs = secs_before + time.time() - session.started
        task.save(state, rates[1], is_last or stopping)
        last_save = time.monotonic()
      if stopping and not is_last:
        return Trained(state, totals, False, program)
    return Trained(state, totals, True, program)
  finally:
    task.items.close()
    meter.close()
