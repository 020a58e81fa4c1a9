"""Workers that share tables, as threads of this process."""

import functools
import threading
from concurrent import futures

import jax
import numpy as np
import pytest

from jaxemb.data import windows
from jaxemb.workers import links, staleness
from tests import dispatches
from tests.workers import local_cluster

VOCAB, DIM, WINDOW, CHUNK, WORDS, STEPS = 400, 12, 2, 8, 16, 50
COUNTS = np.maximum(20_000 // np.arange(1, VOCAB + 1), 1)


def abreast(num):
  """What threads ask so that they begin, and push, together."""
  barrier = threading.Barrier(num)

  def ask(method, *args):
    if method != 'has_read':
      barrier.wait(60)
    return args[1:]  # of workers in lockstep, whose rounds are alike

  return ask


def trainers(num, settings, cluster, fused=False, **fixed):
  """A trainer for each of some workers, and their batches of words."""
  settings = {
    'model.dim': DIM, 'model.window': WINDOW, 'data.sample': 0.0,
    'model.shared_negatives': 4, 'train.batch_words': WORDS,
    'optimizer.learning_rate': 0.1, 'strategy.name': 'workers',
    'strategy.num_workers': num, 'table.device_bytes': '60%',
    'table.staleness': 0, **settings,
  }  # fmt: skip
  steps = windows.Steps(WORDS, num, WINDOW, CHUNK)
  if settings.get('strategy.pace') == 'bsp':
    settings['train.batch_words'] = num * WORDS
  args = COUNTS, settings, (1, 1), steps, fused, cluster
  return [
    dispatches.trainer(
      *args, chunk=CHUNK, parts=num, loss_every_steps=1, **fixed
    )
    for _ in range(num)
  ]


def batches(num_parts, num, steps, rate=0.1):
  """Dispatches of all parts, each with its schedule."""
  rng, made = np.random.default_rng(0), []
  chances = COUNTS / COUNTS.sum()
  for i in range(num):
    words = rng.choice(VOCAB, (num_parts, STEPS * WORDS), p=chances)
    sentences = [np.split(x, range(9, len(x), 9)) for x in words]
    batch = dispatches.pack(sentences, VOCAB, steps, STEPS, i)
    key = dispatches.KEY + np.uint32(i)
    made.append((batch, dispatches.schedule(rate, rate / 2, key)))
  return made


def train(trainer, part, work, exports=False):
  """All dispatches of a part; nothing is left on the device.

  If it `exports`, neither is while rows of the next dispatch are under way.
  """
  strategy, store = trainer.strategy, trainer.strategy.store
  state, losses = strategy.init(jax.random.key(3)), []
  own = []
  for batch, schedule in work:
    batch = jax.tree.map(lambda x: x[part : part + 1], batch)
    batch = jax.device_put(batch, strategy.batch_sharding)
    own.append((batch, schedule._replace(parts_before=np.int32(part))))
  for i, (batch, schedule) in enumerate(own):
    if i + 1 < len(own):
      store.expect(*own[i + 1])
    args = strategy.constants(), batch, schedule
    state, metrics = strategy.step(state, *args)
    losses.append(float(metrics.steps.loss))
    if exports:
      state = store.flush(state)
      assert store.rows.num_updates() == 0
  store.flush(state)
  return losses


def run(made, work):
  """All workers side by side; their losses."""
  ask = abreast(len(made))
  with futures.ThreadPoolExecutor(len(made)) as pool:
    for trainer in made:
      trainer.strategy.store.rows.join(ask, waits=True)
    args = made, range(len(made)), [work] * len(made)
    return list(pool.map(train, *args))


def rows(trainer):
  """Of all tables, from the shards."""
  store, names = trainer.strategy.store, trainer.trainable.tables
  ids = np.arange(VOCAB)
  return {k: store.rows.export_rows(k, ids) for k in names}


def alone(num_parts, settings, work, **fixed):
  """The rows of all tables after synchronous training, and its losses."""
  settings = {
    'model.dim': DIM, 'model.window': WINDOW, 'data.sample': 0.0,
    'model.shared_negatives': 4, 'train.batch_words': num_parts * WORDS,
    'optimizer.learning_rate': 0.1, 'strategy.name': 'sync', **settings,
  }  # fmt: skip
  steps = windows.Steps(WORDS, num_parts, WINDOW, CHUNK)
  args = COUNTS, settings, (num_parts, 1), steps
  made = dispatches.trainer(*args, chunk=CHUNK, loss_every_steps=1, **fixed)
  state, losses = made.strategy.init(jax.random.key(3)), []
  for batch, schedule in work:
    state, metrics = dispatches.run(made.strategy, state, batch, schedule)
    losses.append(float(metrics.steps.loss))
  tables = made.trainable.tables
  return {k: made.strategy.export_rows(state, k) for k in tables}, losses


@pytest.mark.slow
@pytest.mark.parametrize('is_near', [False, True])
def test_lockstep_without_staleness_is_synchronous(is_near):
  num = 3  # each with more than one other
  # What is limited in a step of all is not what is limited in a worker's.
  common = {'optimizer.max_duplicates': 0.0}
  settings = {'strategy.pace': 'bsp', 'table.staleness': 0}
  cluster = local_cluster.Cluster(is_near)
  made = trainers(num, {**common, **settings}, cluster)
  work = batches(num, 4, made[0].trainable.steps, 0.02)
  losses = run(made, work)
  expected, expected_losses = alone(num, common, work)
  np.testing.assert_allclose(np.sum(losses, 0), expected_losses, rtol=1e-5)
  for name, found in rows(made[0]).items():
    np.testing.assert_allclose(found.rows, expected[name].rows, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('settings', 'cached', 'exports'),
  [
    ({'optimizer.name': 'sgd', 'table.staleness': -1}, '60%', False),
    ({'optimizer.name': 'sgd', 'table.staleness': -1}, 'near', False),
    ({'optimizer.name': 'adam', 'table.staleness': 5}, '60%', False),
    ({'optimizer.name': 'adam', 'table.staleness': 5}, 'near', False),
    ({'table.staleness': 50}, '60%', True),
    ({'table.staleness': 50}, 'near', True),
    (
      # Workers and one device have other limits by default.
      {'model.loss': 'hierarchical_softmax', 'model.shared_negatives': 0,
       'optimizer.max_duplicates': 16.0},
      '100%', False,
    ),
    (
      {'model.name': 'mixture', 'senses.number': 3, 'senses.top_ratio': 0.02},
      '100%', False,
    ),
  ],
)  # fmt: skip
def test_one_worker_learns_what_it_would_alone(settings, cached, exports):
  is_near = cached == 'near'
  (made,) = trainers(
    1,
    {**settings, 'table.device_bytes': '60%' if is_near else cached},
    local_cluster.Cluster(is_near),
    shared_nodes=4,
  )
  store, work = made.strategy.store, batches(1, 3, made.trainable.steps, 0.02)
  losses = train(made, 0, work, exports)
  settings.pop('table.staleness', None)
  expected, expected_losses = alone(1, settings, work, shared_nodes=4)
  np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
  for name, table in made.trainable.tables.items():
    found = store.rows.export_rows(name, np.arange(table.spec.vocab))
    np.testing.assert_allclose(found.rows, expected[name].rows, atol=1e-4)
    for key, values in found.opt_state.items():
      np.testing.assert_allclose(
        values, expected[name].opt_state[key], rtol=1e-3, atol=1e-6
      )


@functools.cache
def _losses_of_four():
  """Of a synchronous step for four workers."""
  work = batches(4, 4, windows.Steps(WORDS, 4, WINDOW, CHUNK), 0.03)
  return work, alone(4, {}, work)[1]


@pytest.mark.slow
@pytest.mark.parametrize(
  ('bound', 'is_near'), [(20, False), (-1, False), (20, True), (-1, True)]
)
def test_workers_that_never_wait_learn_as_much(bound, is_near):
  settings = {'table.staleness': bound, 'train.threads': 1}
  settings['strategy.sync_every'] = 4 * WORDS
  made = trainers(
    4,
    settings,
    cluster := local_cluster.Cluster(is_near),
    True,
    memory_lookups=20.0,
  )
  work, expected = _losses_of_four()
  losses = np.sum(run(made, work), 0)
  assert losses[-1] < (1.3 if bound > 0 else 1.1) * expected[-1]
  counts = [x.strategy.store.take_counts() for x in made]
  for found, trainer in zip(counts, made, strict=True):
    assert set(found) == set(trainer.strategy.store.counted)
    needed, checked = found['rows_needed'], found['rows_checked']
    assert checked == needed
    if bound < 0:
      # But for those that nobody had changed, once each.
      assert needed - 2 * VOCAB <= found['rows_fetched'] <= needed
    else:
      assert found['rows_fetched'] < needed
      assert trainer.strategy.store.rows.most_missed <= bound
    assert trainer.strategy.store.rows.num_updates() == 0
  # Every update has reached a shard, once.
  pushed = sum(x['updates_pushed'] for x in counts)
  clocks = [y.updates for x in cluster.shards.values() for y in x]
  assert sum(clocks) == pushed > 0


@pytest.mark.slow
def test_shards_that_are_near_no_more_are_called(monkeypatch):
  # One in a few calls finds a shard on another machine, some after it was done.
  rng, common = np.random.default_rng(0), {'optimizer.name': 'adagrad'}
  cluster, num_refused = local_cluster.Cluster(True), 0
  settings = {**common, 'table.staleness': 5}
  (made,) = trainers(1, settings, cluster)

  def call_or_refuse(requests, inner=cluster.call):
    nonlocal num_refused
    in_place = [x.method in links.IN_PLACE for x in requests]
    if any(in_place) and rng.random() < 0.4:
      num_refused += 1
      inner(requests[: rng.integers(len(requests) + 1)])
      raise links.NotNear
    return inner(requests)

  monkeypatch.setattr(cluster, 'call', call_or_refuse)
  work = batches(1, 3, made.trainable.steps, 0.02)
  losses = train(made, 0, work)
  assert num_refused > 5
  expected, expected_losses = alone(1, common, work)
  np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
  for name, found in rows(made).items():
    np.testing.assert_allclose(found.rows, expected[name].rows, atol=1e-4)
  # With others, of what copies that lacked theirs have learned a part is added.
  others = trainers(2, settings, cluster, memory_lookups=20.0)
  run(others, batches(2, 2, others[0].trainable.steps, 0.02))
  for trainer in others:
    shared = trainer.strategy.store.rows
    assert shared.num_updates() == 0 == len(shared._rests)
    for name, copies in shared._copies.items():
      _check_copies(trainer, name, copies)


def _check_copies(trainer, name, copies):
  """Copies as new as the shards' rows are equal to them."""
  lines = np.flatnonzero(copies._ids >= 0)
  ids = copies._ids[lines]
  request = copies.table.newer_request(
    ids, copies._clocks[lines], staleness.Rule(0)
  )
  results = copies.table.call([request])[0]
  newer = local_cluster.newer(copies.table, request, results)
  is_new = np.ones(len(lines), bool)
  is_new[newer.at] = False
  assert is_new.any()
  wanted = rows(trainer)[name].rows[ids[is_new]]
  found = copies._base[lines[is_new], :DIM]
  np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.slow
def test_rounds_grow_with_what_was_trained():
  made = trainers(
    2, {'strategy.sync_every': 8 * WORDS}, local_cluster.Cluster()
  )
  first, second = (x.strategy.store for x in made)
  second.rows.begin_after(64 * 5)
  limits = [first.rows.stretch_limit(x) for x in (0, 63, 127, 128, 640)]
  assert limits == [1, 1, 1, 2, 10]
  assert second.rows.stretch_limit(0) == 5
  lengths = {}
  for i, trainer in enumerate(made):
    store, lengths[i] = trainer.strategy.store, []
    fetch = store.rows.fetch

    def counted(stretch, fetch=fetch, lengths=lengths[i]):
      lengths.append(stretch.num_steps)
      return fetch(stretch)

    store.rows.fetch = counted
  for i, trainer in enumerate(made):
    train(trainer, i, batches(2, 4, trainer.trainable.steps, 0.02))
  assert lengths[0][0] == 1 and set(lengths[0]) >= {1, 2}
  assert lengths[1][0] == 5 and max(lengths[1]) <= 8


@pytest.mark.slow
@pytest.mark.parametrize(
  ('method', 'pace'),
  [('contexts', 'asp'), ('likelihoods', 'asp'), ('likelihoods', 'bsp')],
)
def test_running_averages_of_workers_stay_averages(method, pace):
  settings = {
    'model.name': 'mixture', 'senses.number': 3, 'senses.top_ratio': 0.1,
    'senses.method': method, 'table.device_bytes': '100%',
    'strategy.pace': pace,
    'strategy.sync_every': 16 * WORDS if pace == 'asp' else 0,
  }  # fmt: skip
  made = trainers(4, settings, local_cluster.Cluster())
  work = batches(4, 4, made[0].trainable.steps, 0.03)
  run(made, work)
  rows_of, tables = made[0].strategy.store.rows, made[0].trainable.tables
  found = {
    name: rows_of.export_rows(name, np.arange(table.spec.vocab)).rows[:, :-1]
    for name, table in tables.items()
    if table.spec.memory_lookups
  }
  priors = found.pop('priors')
  assert np.abs(priors).max(1).min() > 1e-3  # all have learned
  if method == 'likelihoods':
    assert priors.max() <= 0  # of logarithms of chances
    return
  priors = made[0].trainable.model.priors_of(np.pad(priors, ((0, 0), (0, 1))))
  assert -1e-5 < priors.min() < priors.max() < 1 + 1e-5
  (means,) = found.values()  # of vectors of at most unit length
  assert 0.1 < np.linalg.norm(means, axis=1).max() < 1
