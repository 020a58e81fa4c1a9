"""Workers that train dense parameters, as threads of this process."""

import asyncio
import inspect
import threading
from concurrent import futures

import jax
import numpy as np
import optax
import pytest

from jaxemb.strategies import base
from jaxemb.workers import coordinator, dense, lockstep
from tests import dispatches
from tests.strategies import kinds_test
from tests.workers import local_cluster

NUM, STEPS, DISPATCHES, RATE = 2, 4, 3, 0.1
SETTINGS = {
  'optimizer__name': 'sgd', 'optimizer__dense': 'sgd',
  'optimizer__learning_rate': RATE, 'optimizer__final_learning_rate': RATE,
}  # fmt: skip
DENSE_ADAM = {
  'optimizer__dense': 'adam',
  'optimizer__dense_learning_rate': 0.01,
}


class Coordinator:
  """A coordinator in a thread, asked as workers do."""

  def __init__(self, trainable, num, pace):
    optimizer, rate = trainable.optimizer(), trainable.model.dense_rate
    self._loop = asyncio.new_event_loop()
    threading.Thread(target=self._loop.run_forever, daemon=True).start()
    kind, limit = coordinator.Coordinator, None
    if pace == 'bsp':
      kind, limit = lockstep.Coordinator, num
    self._actor = kind(num, limit, (optimizer, rate))

  def ask(self, method, *args):
    """What a method returns."""

    async def call():
      answer = getattr(self._actor, method)(*args)
      return await answer if inspect.isawaitable(answer) else answer

    return asyncio.run_coroutine_threadsafe(call(), self._loop).result(60)


def _make(is_graph, parts, **settings):
  return kinds_test.trainer(is_graph, parts=parts, **SETTINGS | settings)


def _work(is_graph, trainable, parts):
  """Dispatches of all parts, whose last step has an example less in each."""
  size, found = STEPS * trainable.steps.part_examples, []
  for i in range(DISPATCHES):
    num = parts * size - parts - 1
    batch = kinds_test.batch(is_graph, parts, size, num, i)
    batch = batch._replace(num_steps=np.full(parts, STEPS, np.int32))
    key = np.array([i, 7], np.uint32)
    found.append((batch, dispatches.schedule(RATE, RATE / 2, key)))
  return found


def _train(number, made, actor, pace, work):
  """All dispatches of a part; mean losses of them."""
  strategy, store, losses = made.strategy, made.strategy.store, []
  start, *_ = actor.ask('join', number)

  def ask(method, *args):
    return actor.ask(method, number, start, *args)

  store.rows.join(ask, waits=False)
  make = lockstep.Exchange if pace == 'bsp' else dense.Exchange
  exchange = make(store.rows, made.trainable.steps.part_examples)
  store.share(exchange)
  state = exchange.begin(strategy.init(jax.random.key(0)))
  for i, (batch, schedule) in enumerate(work):
    batch = jax.tree.map(lambda x: x[number : number + 1], batch)
    now = schedule._replace(parts_before=np.int32(number))
    store.rows.start(i)
    state, found = dispatches.run(strategy, state, batch, now)
    losses.append(found.steps.loss / found.steps.examples)
  ask('lease', None, number)
  store.flush(state)
  ask('finish', {})
  return losses


def _run(is_graph, num, pace, **settings):
  """Rows, dense parameters with the optimizer's state, and mean losses."""
  cluster = local_cluster.Cluster()
  settings = {
    'strategy__name': 'workers', 'strategy__num_workers': num,
    'table__staleness': 0,
    'strategy__pace': pace, 'table__device_bytes': '80%', **settings,
  }  # fmt: skip
  made = [_make(is_graph, num, cluster=cluster, **settings) for _ in range(num)]
  actor = Coordinator(made[0].trainable, num, pace)
  first = made[0].trainable.init(jax.random.key(0))
  actor.ask('restore', None, jax.device_get(first[1:]), 1.0)
  work = _work(is_graph, made[0].trainable, num)
  with futures.ThreadPoolExecutor(num) as pool:
    args = range(num), made, [actor] * num, [pace] * num, [work] * num
    losses = list(pool.map(_train, *args))
  tables = made[0].trainable.tables
  export = made[0].strategy.store.rows.export_rows
  rows = {k: export(k, np.arange(x.spec.vocab)).rows for k, x in tables.items()}
  return rows, actor.ask('dense'), losses


def _alone(is_graph, parts, **settings):
  """The same, of one process that takes whole steps."""
  made, losses = _make(is_graph, parts, strategy__name='sync', **settings), []
  state = made.strategy.init(jax.random.key(0))
  for batch, schedule in _work(is_graph, made.trainable, parts):
    state, found = dispatches.run(made.strategy, state, batch, schedule)
    losses.append(found.steps.loss / found.steps.examples)
  names = made.trainable.tables
  rows = {k: made.strategy.export_rows(state, k).rows for k in names}
  return rows, jax.device_get(tuple(state[1:])), losses


def _compare(found, expected, tolerance):
  assert jax.tree.structure(found) == jax.tree.structure(expected)
  for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    np.testing.assert_allclose(x, y, rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(
  'is_graph,settings',
  [
    (False, {'model__name': 'wide_deep', **DENSE_ADAM}),
    (True, DENSE_ADAM),
  ],
)
def test_lockstep_is_synchronous_training(is_graph, settings):
  found = _run(is_graph, NUM, 'bsp', **settings)
  expected = _alone(is_graph, NUM, **settings)
  _compare(found[:2], expected[:2], 1e-5)


@pytest.mark.slow
def test_one_worker_learns_what_one_process_does():
  settings = {'optimizer__name': 'adagrad_full', **DENSE_ADAM}
  found = _run(True, 1, 'asp', **settings)
  expected = _alone(True, 1, **settings)
  _compare(found[:2], expected[:2], 1e-6)


@pytest.mark.slow
def test_workers_that_never_wait_learn_as_much():
  more = {'optimizer__dense_learning_rate': 0.5, 'strategy__sync_every': 32}
  _, dense, losses = _run(False, NUM, 'asp', table__staleness=20, **more)
  *_, alone = _alone(False, NUM, optimizer__dense_learning_rate=0.5)
  assert np.mean(losses, 0)[-1] < 1.1 * alone[-1]


def test_changes_add_up_and_steps_are_optax():
  start = {'w': np.array([1.0, 2.0], np.float32)}
  optimizer = optax.adam(0.1)
  actor = dense.Parameters(optimizer, 0.5)
  actor.params, actor.optimizer = start, jax.device_get(optimizer.init(start))
  for number in range(3):
    assert actor.take(number)[0] is start
  own = {'w': np.array([1.1, 1.0], np.float32)}
  assert actor.push(0, own, 'mine', 1.0) is own
  found = actor.push(1, {'w': start['w'] + 1}, 'yours', 0.5)
  np.testing.assert_allclose(found['w'], [1.6, 1.5])
  assert actor.optimizer == 'yours'
  # Nothing that was given is lost: its change is that from what it had.
  found = actor.push(0, {'w': own['w'] - 1}, 'mine', 1.0)
  np.testing.assert_allclose(found['w'], [0.6, 0.5])

  actor.params, actor.optimizer = start, jax.device_get(optimizer.init(start))
  shares = [{'w': np.array(x, np.float32)} for x in ([1, 0], [-3, 2])]
  actor.step(shares, True, 0.2)
  actor.step(shares, False, 0.2)  # of no example
  state = start, optimizer.init(start)
  grads = {'w': np.array([-2, 2], np.float32)}
  expected = base.dense_step(optimizer, 0.5, state, grads, True, 0.2)
  _compare((actor.params, actor.optimizer), jax.device_get(expected), 1e-7)
