"""Hierarchical softmax and the mixture: losses, EM, one sense for all."""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb import build
from jaxemb import config as config_lib
from jaxemb.models import base, hierarchical, skipgram, tree
from jaxemb.ops import huffman
from jaxemb.runtime import mesh
from jaxemb.senses import em, mixture, sampled, sense_rows, tiles
from jaxemb.tables import row_optimizers as rowopt
from jaxemb.text import loader
from tests import oracle

VOCAB, DIM, WINDOW, CHUNK, LENGTH, SENSES = 30, 5, 3, 16, 32, 3
KEY = np.array([0x13198A2E, 0x03707344], np.uint32)
COUNTS = np.maximum(1, 1000 // np.arange(1, VOCAB + 1))
CENTERS = COUNTS / COUNTS.sum()
SPEC = base.WindowSpec(VOCAB, DIM, WINDOW, 5, CHUNK, 4)
LOSSES = ('tree', 'sampled')


def _outputs(loss, num_shared=4):
  if loss == 'tree':
    return tree.grow(COUNTS, CENTERS, CHUNK, num_shared)
  return sampled.outputs(SPEC, skipgram.negative_distribution(COUNTS))


def _model(loss, is_by_pair, averages_logs, chance=0.4, tied_until=0.0):
  is_ambiguous = np.random.default_rng(5).random(VOCAB) < 0.4
  return mixture.Mixture(
    SPEC,
    _outputs(loss),
    sense_rows.number(is_ambiguous, SENSES),
    is_by_pair,
    averages_logs,
    tied_until,
    chance,
  )


@functools.cache
def _batch(words=60):
  rng = np.random.default_rng(0)
  sentences = oracle.random_sentences(rng, VOCAB, words, (2, 5, 9))
  tokens = oracle.pack(sentences, VOCAB, 2 * LENGTH, WINDOW, rng)
  run = oracle.middle(tokens, min(LENGTH, words) // 4, LENGTH)
  chunks = np.arange(3, 3 + LENGTH // CHUNK, dtype=np.uint32)
  return base.StepBatch(*(x[None] for x in run), chunks)


class Rows(NamedTuple):
  """Tables, and what a step looks up in them."""

  tables: dict[str, np.ndarray]
  ids: dict[str, Any]
  rows: dict[str, jax.Array]


def _rows(model, batch):
  rng = np.random.default_rng(1)
  tables = {
    k: rng.normal(size=(s.vocab, s.dim)) for k, s in model.specs().items()
  }
  if mixture.PRIORS in tables:
    priors = 0.1 * tables[mixture.PRIORS]
    priors[:, -1] = 0
    priors[:, :-1] -= priors[:, :-1].mean(1, keepdims=True)
    tables[mixture.PRIORS] = priors
  ids = jax.jit(model.ids)(model.constants(), batch, KEY)
  rows = {
    k: jnp.asarray(x[np.minimum(ids[k], len(x) - 1)], jnp.float32)
    for k, x in tables.items()
  }
  return Rows(tables, ids, rows)


def _pairs(batch):
  """(center's place, context's place in the tokens) of every pair."""
  for i in range(LENGTH):
    for offset in range(-int(batch.left[0, i]), int(batch.right[0, i]) + 1):
      if offset:
        yield i, i + WINDOW + offset


def _log_sigmoid(x):
  return -np.logaddexp(0, -x)


def _log_likelihood(loss, vector, outputs, center, draws):
  """Log P(center | vector), with outputs as nodes or as words."""
  if loss == 'tree':
    points, codes, lengths = huffman.tree_paths(COUNTS)
    n = lengths[center]
    signs = 1 - 2.0 * codes[center, :n]
    return _log_sigmoid(signs * (outputs[points[center, :n]] @ vector)).sum()
  found = _log_sigmoid(outputs[center] @ vector)
  for draw in draws:
    if draw != center:
      found += (
        SPEC.negatives / len(draws) * _log_sigmoid(-outputs[draw] @ vector)
      )
  return found


def _expected(model, loss, batch, tables, draws):
  """The loss in loops over pairs, or over occurrences within a chunk."""
  senses, total, joint = model.senses, 0.0, {}
  for i, place in _pairs(batch):
    word, center = batch.tokens[0, place], batch.tokens[0, i + WINDOW]
    first, row = senses.first_rows[word], senses.priors_rows[word]
    num = 1 if row == senses.num_ambiguous else SENSES
    found = np.array(
      [
        _log_likelihood(
          loss,
          tables[skipgram.INPUT][first + k],
          tables[skipgram.OUTPUT],
          center,
          draws[i // CHUNK],
        )
        for k in range(num)
      ]
    )
    if num == 1:
      total -= found[0]
      continue
    priors = tables[mixture.PRIORS][row, :-1]
    if model.averages_logs:
      logs = priors - np.logaddexp.reduce(priors)
    else:
      logs = np.log(1 / SENSES + priors)
    case = (i, place) if model.is_by_pair else (i // CHUNK, place)
    joint[case] = joint.get(case, logs) + found
  return total, joint


def _bound(power, found, fixed):
  """The loss for fixed responsibilities, of a power of fixed likelihoods."""
  total, joint = found
  for case, logs in joint.items():
    sharp = power * fixed[1][case]
    q = np.exp(sharp - np.logaddexp.reduce(sharp))
    total -= q @ (logs - np.log(q))
  return total


@pytest.mark.parametrize(
  ('loss', 'is_by_pair', 'averages_logs', 'chance', 'power'),
  [
    ('tree', True, True, 0.1, 1),
    ('tree', True, False, 1.0, 0),
    ('tree', False, False, 0.001, 1),
    ('tree', False, False, 0.1, 0),
    ('sampled', True, False, 0.1, 1),
    ('sampled', False, True, 1.0, 0),
  ],
)
def test_loss_is_that_of_loops_over_pairs(
  loss, is_by_pair, averages_logs, chance, power
):
  model = _model(loss, is_by_pair, averages_logs, chance, 0.5)
  batch = _batch()._replace(progress=np.float32(0.4 + 0.2 * power))
  tables, ids, rows = _rows(model, batch)
  draws = np.asarray(ids[skipgram.OUTPUT])[:, CHUNK:]
  found, grads = jax.jit(jax.value_and_grad(model.loss))(rows, ids, batch)
  alone = jax.jit(model.loss)(rows, ids, batch)
  np.testing.assert_allclose(alone, found, 1e-6)
  fixed = _expected(model, loss, batch, tables, draws)
  np.testing.assert_allclose(found, _bound(power, fixed, fixed), 1e-5)
  if power == 1:  # -log P itself
    marginal = fixed[0] - sum(np.logaddexp.reduce(x) for x in fixed[1].values())
    np.testing.assert_allclose(found, marginal, 1e-5)
  # The slope of the loops, along a random change of all vectors.
  rng = np.random.default_rng(2)
  step = {k: rng.normal(size=x.shape) for k, x in tables.items()}
  step.pop(mixture.PRIORS)
  slope = 0.0
  for k, change in step.items():
    np.testing.assert_array_equal(grads[k].shape[:-1], ids[k].shape)
    summed = np.zeros((len(change) + 1, change.shape[1]))
    places = np.minimum(ids[k], len(change))
    np.add.at(summed, places, np.asarray(grads[k], np.float64))
    slope += (summed[:-1] * change).sum()

  def moved(size):
    near = {k: x + size * step.get(k, 0) for k, x in tables.items()}
    return _bound(power, _expected(model, loss, batch, near, draws), fixed)

  assert slope == pytest.approx((moved(1e-5) - moved(-1e-5)) / 2e-5, rel=1e-4)


@pytest.mark.parametrize('name', ['skipgram', 'cbow'])
def test_hierarchical_softmax_is_that_of_loops(name):
  batch = _batch()
  for num_shared in (2, 100):
    outputs = _outputs('tree', num_shared)
    model = hierarchical.Hierarchical(SPEC, outputs, name == 'cbow')
    tables, ids, rows = _rows(model, batch)
    contexts = {}
    for i, place in _pairs(batch):
      contexts.setdefault(i, []).append(
        tables[skipgram.INPUT][batch.tokens[0, place]]
      )
    expected = 0.0
    for i, vectors in contexts.items():
      if name == 'cbow':
        vectors = [np.mean(vectors, 0)]
      for vector in vectors:
        expected -= _log_likelihood(
          'tree',
          vector,
          tables[skipgram.OUTPUT],
          batch.tokens[0, i + WINDOW],
          (),
        )
    found = jax.jit(model.loss)(rows, ids, batch)
    np.testing.assert_allclose(found, expected, 1e-5)
    examples = len(contexts) if name == 'cbow' else len(list(_pairs(batch)))
    assert model.num_examples(batch) == examples


def _cases(model, rows, ids, batch):
  """Of all slots of a step."""
  places, lists = ids[mixture.BLOCK].places, ids[mixture.BLOCK].targets.lists
  num, width = len(places), lists.places.shape[1]
  room = tiles.room(num, 2 * WINDOW * width, num, 10**6)
  of_senses = rows[skipgram.INPUT].reshape(-1, DIM)[num:]

  near = tiles.near(places, lists, batch, SPEC)
  _, piece = tiles.next_piece(near, lists, room, jnp.int32(0))
  met_rows = tiles.rows_at(rows[skipgram.OUTPUT], piece.tiles.places)
  of_senses = of_senses.reshape(num, SENSES, DIM)
  return model.cases(of_senses, rows[mixture.PRIORS], met_rows, piece)


@pytest.mark.parametrize('is_by_pair', [True, False])
@pytest.mark.parametrize('averages_logs', [True, False])
def test_em(is_by_pair, averages_logs):
  """Responsibilities, priors, and a likelihood that does not fall."""
  model, batch = _model('tree', is_by_pair, averages_logs), _batch()
  _, ids, rows = _rows(model, batch)
  senses = model.senses
  optimizer = rowopt.averages(0.0, 1.0, 1.0)
  priors = jnp.zeros((senses.num_ambiguous, SENSES + 1))
  slots = optimizer.init(*priors.shape)
  places = ids[mixture.PRIORS]

  @jax.jit
  def step(priors, slots):
    given = rows | {mixture.PRIORS: priors.at[places].get(mode='clip')}
    loss, grads = jax.value_and_grad(model.loss)(given, ids, batch)
    cases = _cases(model, given, ids, batch)
    grads = grads[mixture.PRIORS]
    squares = rowopt.mean_squares(grads)
    deltas, slots = optimizer.update(
      slots, rowopt.RowGrads(places, grads, squares), jnp.float32(1)
    )
    priors = rowopt.add_rows(priors, places, deltas, False)
    return priors, slots, loss, em.responsibilities(cases, False), cases

  seen, found = [], []
  for _ in range(6):
    priors, slots, loss, gamma, cases = step(priors, slots)
    seen.append(float(loss))
    np.testing.assert_allclose(gamma.sum(-2), 1, atol=1e-6)
    chances = em.probabilities(priors[:, :-1], averages_logs)
    np.testing.assert_allclose(chances.sum(-1), 1, atol=1e-6)
    assert not np.asarray(priors[:, -1]).any()
    found.append(chances)
  assert np.abs(found[0] - found[-1]).max() > 0.01
  if not averages_logs:
    # With momentum 0 each step is an M step of the priors.
    assert all(a >= b - 1e-3 for a, b in itertools.pairwise(seen))
    mask = np.asarray(cases.mask)[..., None, :]
    said = (np.asarray(gamma) * mask).sum(-1).reshape(-1, SENSES)
    num = mask.sum((-1, -2)).reshape(-1)
    expected = np.zeros((senses.num_ambiguous + 1, SENSES))
    total = np.zeros(senses.num_ambiguous + 1)
    if not is_by_pair:
      owners = np.asarray(places).reshape(-1)
      np.add.at(expected, owners, said)
      np.add.at(total, owners, num)
      has = total[:-1] > 0
      mean = expected[:-1][has] / total[:-1][has][:, None]
      np.testing.assert_allclose(chances[has], mean, atol=1e-5)


def _trainer(name, **senses):
  config = config_lib.default()
  config.model.name, config.model.loss = name, 'hierarchical_softmax'
  config.model.dim, config.model.window, config.model.chunk = 8, 3, 8
  config.model.shared_nodes = 4
  config.optimizer.name = 'adagrad'
  config.strategy.name, config.train.batch_words = 'sync', 16
  config.senses.update(senses)
  config_lib.check(config)
  devices = mesh.make(mesh.Shape(1, 1))
  return build.trainer(
    config_lib.resolved(config, 'cpu', (1, 1)),
    COUNTS,
    devices,
    [str(i) for i in range(VOCAB)],
  )


def test_one_sense_for_every_word_is_skipgram():
  results = []
  rng = np.random.default_rng(3)
  steps, words = 500, 500 * 16
  tokens = oracle.pack(
    oracle.random_sentences(rng, VOCAB, words, (5, 9)), VOCAB, words, 3, rng
  )
  for made in (
    _trainer('skipgram'),
    _trainer('mixture', number=1),
    _trainer('mixture', number=1, method='likelihoods'),
  ):
    strategy = made.strategy
    figures = (np.full(1, x, np.int32) for x in (steps, words, 1))
    batch = loader.Batch(*(x[None] for x in tokens), *figures)
    schedule = build.strategy_base.Schedule(np.float32(0.1), np.float32(0), KEY)
    state = jax.jit(strategy.init)(jax.random.key(0))
    state, metrics = strategy.step(state, strategy.constants(), batch, schedule)
    assert metrics.num_steps == steps
    results.append(
      [strategy.export_rows(state, k).rows for k in sorted(state.tables)]
    )
  for first, *others in zip(*results, strict=True):
    assert np.abs(first).max() > 0.1
    for other in others:
      np.testing.assert_allclose(first, other, atol=1e-6)


def test_padding_costs_nothing_and_teaches_nothing():
  model, batch = _model('tree', True, False), _batch(0)
  _, ids, rows = _rows(model, batch)
  loss, grads = jax.value_and_grad(model.loss)(rows, ids, batch)
  assert loss == 0
  assert not any(np.asarray(x).any() for x in grads.values())
  for name, spec in model.specs().items():
    assert (np.asarray(ids[name]) >= spec.vocab).all()
