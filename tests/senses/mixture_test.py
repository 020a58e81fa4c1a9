"""The mixtures and hierarchical softmax against loops over pairs."""

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb import build
from jaxemb import config as config_lib
from jaxemb.data import windows
from jaxemb.models import base, hierarchical, skipgram, targets
from jaxemb.ops import huffman
from jaxemb.runtime import mesh
from jaxemb.senses import context_mixture, mixture
from jaxemb.strategies import base as strategy_base
from jaxemb.text import vocab
from tests import oracle

VOCAB, DIM, WINDOW, CHUNK, LENGTH, SENSES = 30, 5, 3, 16, 32, 3
WIDTH = CHUNK + 2 * WINDOW
KEY = np.array([0x13198A2E, 0x03707344], np.uint32)
COUNTS = np.maximum(1, 1000 // np.arange(1, VOCAB + 1))
WORDS = [str(i) for i in range(VOCAB)]
CORPUS = base.Corpus(WORDS, COUNTS, COUNTS / COUNTS.sum())
SPEC = base.WindowSpec(VOCAB, DIM, WINDOW, 5, CHUNK, 4)
MASK = np.random.default_rng(5).random(VOCAB) < 0.4
KAPPA, SHARED, SHIFT, TIED_UNTIL = 2.0, 0.3, 0.7, 0.5
LOSSES = ('tree', 'sampled')


def _outputs(loss, num_shared=4):
  if loss == 'tree':
    return targets.tree(CORPUS, CHUNK, num_shared)
  return targets.sampled(SPEC, CORPUS)


def _mixture(loss='tree', num_senses=SENSES):
  return mixture.make(SPEC, CORPUS, _outputs(loss), MASK, num_senses)


def _context_mixture(loss='tree', num_senses=SENSES):
  made = context_mixture.make(SPEC, CORPUS, _outputs(loss), MASK, num_senses, 1)
  weights = np.linspace(0.2, 1, VOCAB).astype(np.float32)
  return dataclasses.replace(
    made, weights=weights, concentration=KAPPA, tied_until=TIED_UNTIL,
    shared=SHARED, shift=SHIFT, chance=float(MASK.mean()),
  )  # fmt: skip


@functools.cache
def _batch(words=60, progress=0.6):
  rng = np.random.default_rng(0)
  sentences = oracle.random_sentences(rng, VOCAB, words, (2, 5, 9))
  tokens = oracle.pack(sentences, VOCAB, 2 * LENGTH, WINDOW, rng)
  run = oracle.middle(tokens, min(LENGTH, words) // 4, LENGTH)
  chunks = np.arange(3, 3 + LENGTH // CHUNK, dtype=np.uint32)
  return base.StepBatch(*(x[None] for x in run), chunks, np.float32(progress))


class Made(NamedTuple):
  """A step of a model with random tables."""

  batch: base.StepBatch
  tables: dict[str, np.ndarray]
  ids: dict[str, Any]
  value: jax.Array
  examples: jax.Array
  grads: dict[str, jax.Array]  # of rows

  def table_grads(self):
    """By table, summed over the lookups of a row."""
    result = {}
    for name, x in self.grads.items():
      index = np.asarray(self.ids[name]).reshape(-1)
      result[name] = np.zeros(self.tables[name].shape)
      is_row = index < len(self.tables[name])
      rows = np.asarray(x, np.float64).reshape(len(index), -1)
      np.add.at(result[name], index[is_row], rows[is_row])
    return result


def _tables(model):
  rng = np.random.default_rng(1)
  tables = {
    k: rng.normal(size=(s.vocab, s.dim)).astype(np.float32)
    for k, s in model.specs().items()
  }
  if mixture.PRIORS in tables:
    priors = tables[mixture.PRIORS]
    priors[:, :-1] = (
      0.1 * (priors - priors[:, :-1].mean(1, keepdims=True))[:, :-1]
    )
    priors[:, -1] = 0
  if context_mixture.MEANS in tables:
    tables[context_mixture.MEANS][:, -1] = 0
  return tables


@jax.jit
def _value_and_grad(model, rows, ids, batch):
  def loss(rows):
    value, aux = model.loss((), rows, ids, batch, KEY)
    return value, aux.examples

  return jax.value_and_grad(loss, has_aux=True)(rows)


def _make(model, batch, rows=None, tables=None):
  """A step of the model, with other rows or tables if given."""
  ids = jax.jit(lambda model, batch: model.ids(batch, KEY))(model, batch)
  tables = _tables(model) if tables is None else tables
  rows = rows or {
    k: jnp.asarray(np.concatenate([x, 0 * x[:1]])[np.minimum(ids[k], len(x))])
    for k, x in tables.items()
  }
  (value, examples), grads = _value_and_grad(model, rows, ids, batch)
  return Made(batch, tables, ids, value, examples, grads)


def _pairs(batch):
  """(position of the center, that of the context in the tokens)."""
  for i in range(LENGTH):
    for offset in range(-int(batch.left[0, i]), int(batch.right[0, i]) + 1):
      if offset:
        yield i, i + WINDOW + offset


def _log_sigmoid(x):
  return -np.logaddexp(0, -x)


def _log_likelihood(loss, vector, outputs, center, draws):
  """Log P(center | vector), of nodes or of words and negatives."""
  if loss == 'tree':
    points, codes, lengths = huffman.tree_paths(COUNTS)
    n = lengths[center]
    signs = 1 - 2.0 * codes[center, :n]
    return _log_sigmoid(signs * (outputs[points[center, :n]] @ vector)).sum()
  weight = SPEC.negatives / len(draws)
  negatives = outputs[[x for x in draws if x != center]]
  result = weight * _log_sigmoid(-negatives @ vector).sum()
  return result + _log_sigmoid(outputs[center] @ vector)


def _joint(model, loss, made, tables):
  """Loss of words with one sense; (row of priors, LL [K]) of other pairs."""
  draws = np.asarray(made.ids[skipgram.OUTPUT])[:, CHUNK:]
  rows, batch, total, joint = model.rows, made.batch, 0.0, []
  for i, position in _pairs(batch):
    word, center = batch.tokens[0, position], batch.tokens[0, i + WINDOW]
    logs = np.array(
      [
        _log_likelihood(
          loss,
          tables[skipgram.INPUT][rows.first[word] + k],
          tables[skipgram.OUTPUT],
          center,
          draws[i // CHUNK],
        )
        for k in range(SENSES if MASK[word] else 1)
      ]
    )
    if not MASK[word]:
      total -= logs[0]
      continue
    row = rows.priors[word]
    priors = tables[mixture.PRIORS][row, :-1]
    joint.append((row, logs + priors - np.logaddexp.reduce(priors)))
  return total, joint


@pytest.mark.parametrize('loss', LOSSES)
def test_likelihood_mixture_is_that_of_loops(loss):
  model = _mixture(loss)
  made = _make(model, _batch())
  tables = {k: x.astype(np.float64) for k, x in made.tables.items()}
  single, joint = _joint(model, loss, made, tables)
  assert made.examples == len(list(_pairs(made.batch))) > len(joint) > 10

  def negative_log(single, joint):
    return single - sum(np.logaddexp.reduce(x) for _, x in joint)

  np.testing.assert_allclose(made.value, negative_log(single, joint), 1e-5)
  grads = made.table_grads()
  # Priors average LL: sums of (row - LL), and their number.
  averages = np.zeros_like(tables[mixture.PRIORS])
  for row, logs in joint:
    averages[row, :-1] += tables[mixture.PRIORS][row, :-1] - logs
    averages[row, -1] += 1
  np.testing.assert_allclose(grads[mixture.PRIORS], averages, 1e-4, 1e-4)
  # The slope of the loops along a random change of all vectors.
  rng = np.random.default_rng(2)
  step = {
    k: rng.normal(size=tables[k].shape)
    for k in (skipgram.INPUT, skipgram.OUTPUT)
  }

  def moved(size):
    near = tables | {k: tables[k] + size * x for k, x in step.items()}
    return negative_log(*_joint(model, loss, made, near))

  slope = sum((grads[k] * x).sum() for k, x in step.items())
  assert slope == pytest.approx((moved(1e-5) - moved(-1e-5)) / 2e-5, rel=1e-4)


@pytest.mark.parametrize('name', ['skipgram', 'cbow'])
@pytest.mark.parametrize('num_shared', [2, 100])
def test_hierarchical_softmax_is_that_of_loops(name, num_shared):
  batch = _batch()
  model = hierarchical.make(SPEC, CORPUS, name == 'cbow', num_shared)
  made = _make(model, batch)
  contexts = {}
  for i, position in _pairs(batch):
    vector = made.tables[skipgram.INPUT][batch.tokens[0, position]]
    contexts.setdefault(i, []).append(vector)
  expected = 0.0
  for i, vectors in contexts.items():
    if name == 'cbow':
      contexts[i] = vectors = [np.mean(vectors, 0)]
    for vector in vectors:
      outputs, center = (
        made.tables[skipgram.OUTPUT],
        batch.tokens[0, i + WINDOW],
      )
      expected -= _log_likelihood('tree', vector, outputs, center, ())
  np.testing.assert_allclose(made.value, expected, 1e-5)
  assert made.examples == sum(map(len, contexts.values()))


def _common(model, tables, word):
  """[d] float64, the mean of a word's rows, weighted by priors."""
  rows = tables[skipgram.INPUT].astype(np.float64)[model.rows.first[word] :]
  if not MASK[word]:
    return rows[0]
  priors = tables[mixture.PRIORS][model.rows.priors[word], :-1] + 1 / SENSES
  return priors @ rows[:SENSES]


def _vector(model, tables, word, sense, is_tied):
  """[d] float64, of a sense."""
  found = tables[skipgram.INPUT][model.rows.first[word] + sense]
  if not MASK[word] or is_tied:
    return found
  row = model.rows.priors[word]
  priors = tables[mixture.PRIORS][row, :-1] + 1 / SENSES
  means = tables[context_mixture.MEANS].astype(np.float64)[:, :-1]
  means = means[row * SENSES : (row + 1) * SENSES]
  length = np.linalg.norm(_common(model, tables, word))
  return found + SHIFT * length * (means[sense] - priors @ means)


def _expected(model, made, is_tied=False):
  """Draws by slot, and sums of what priors and means average, in loops."""
  tables, batch = made.tables, made.batch
  priors = tables[mixture.PRIORS].astype(np.float64)
  means = tables[context_mixture.MEANS].astype(np.float64)
  tokens, draws = made.ids[mixture.SLOTS].tokens, {}
  uniforms = made.ids[context_mixture.UNIFORMS]
  prior_grads, mean_grads = np.zeros(priors.shape), np.zeros(means.shape)
  for slot, token in enumerate(np.asarray(tokens).tolist()):
    if token >= 2 * WIDTH:
      continue
    chunk, offset = divmod(token, WIDTH)
    position = chunk * CHUNK + offset  # in the tokens with their halo
    row = model.rows.priors[batch.tokens[0, position]]
    around = [
      batch.tokens[0, i + WINDOW]
      for i, other in _pairs(batch)
      if other == position and i // CHUNK == chunk
    ]
    rows = row * SENSES + np.arange(SENSES)
    x, has_context = np.zeros(DIM), bool(around)
    if around:
      units = [_common(model, tables, w) for w in around]
      units = [unit / np.linalg.norm(unit) for unit in units]
      x = np.average(units, 0, np.asarray(model.weights, np.float64)[around])
    logs = np.log(priors[row, :-1] + 1 / SENSES)
    logs -= KAPPA * ((x - means[rows, :-1]) ** 2).sum(1)
    gamma = np.exp(logs - np.logaddexp.reduce(logs))
    gamma = np.full(SENSES, 1 / SENSES) if is_tied else gamma
    drawn = int(np.searchsorted(gamma.cumsum()[:-1], uniforms[slot]))
    draws[token] = drawn
    if has_context:
      prior_grads[row, :-1] += priors[row, :-1] - (gamma - 1 / SENSES)
      prior_grads[row, -1] += 1
      mean_grads[rows[drawn], :-1] += means[rows[drawn], :-1] - x
      mean_grads[rows[drawn], -1] += 1
  return draws, {
    mixture.PRIORS: prior_grads, context_mixture.MEANS: mean_grads
  }  # fmt: skip


@pytest.mark.parametrize('loss', LOSSES)
@pytest.mark.parametrize('is_tied', [False, True])
def test_context_mixture_is_skipgram_with_drawn_senses(loss, is_tied):
  model = _context_mixture(loss)
  batch = _batch(progress=TIED_UNTIL - 0.1 if is_tied else TIED_UNTIL + 0.1)
  made = _make(model, batch)
  draws, averages = _expected(model, made, is_tied)
  assert len(draws) > 10 and len(set(draws.values())) == SENSES
  found = made.table_grads()
  for name, expected in averages.items():
    np.testing.assert_allclose(found[name], expected, atol=1e-5)
  used = dict.fromkeys(draws, 0) if is_tied else draws
  vectors = np.zeros((LENGTH // CHUNK, WIDTH, DIM), np.float32)
  words = {}
  for token in range(vectors.shape[0] * WIDTH):
    chunk, offset = divmod(token, WIDTH)
    word = batch.tokens[0, chunk * CHUNK + offset]
    if word < VOCAB:
      words[token] = word
      vectors[chunk, offset] = _vector(
        model, made.tables, word, used.get(token, 0), is_tied
      )
  outputs = made.tables[skipgram.OUTPUT]
  outputs = np.concatenate([outputs, 0 * outputs[:1]])
  ids = np.minimum(made.ids[skipgram.OUTPUT], len(outputs) - 1)
  alone = _make(
    _mixture(loss, 1),
    batch,
    {skipgram.INPUT: vectors.reshape(-1, DIM), skipgram.OUTPUT: outputs[ids]},
  )
  np.testing.assert_allclose(made.value, alone.value, rtol=1e-6)
  np.testing.assert_allclose(
    made.grads[skipgram.OUTPUT], alone.grads[skipgram.OUTPUT], atol=1e-5
  )
  # Siblings get a fraction of the gradient of the drawn sense.
  shared = 1 if is_tied else SHARED
  expected = np.zeros(made.tables[skipgram.INPUT].shape)
  flat = np.asarray(alone.grads[skipgram.INPUT]).reshape(-1, DIM)
  for token, word in words.items():
    for k in range(SENSES if MASK[word] else 1):
      share = 1 if k == used.get(token, 0) else shared
      expected[model.rows.first[word] + k] += share * flat[token]
  np.testing.assert_allclose(found[skipgram.INPUT], expected, atol=1e-5)


def test_senses_are_drawn_by_their_responsibilities():
  model, batch = jax.device_put((_context_mixture(), _batch()))
  num = 400
  made = _make(model, batch)
  averages = _expected(model, made)[1][mixture.PRIORS]
  occurrences = averages[:, -1:]
  priors = made.tables[mixture.PRIORS][:, :-1] + 1 / SENSES
  gammas = occurrences * priors - averages[:, :-1]
  tables = {k: jnp.asarray(x) for k, x in made.tables.items()}

  @jax.jit
  def counts(key):
    ids = model.ids(batch, key)
    rows = {k: x.at[ids[k]].get(mode='clip') for k, x in tables.items()}
    grads = jax.grad(lambda rows: model.loss((), rows, ids, batch, key)[0])(
      rows
    )
    result = jnp.zeros(priors.shape)
    seen = grads[context_mixture.MEANS][..., -1]
    return result.at[ids[mixture.PRIORS]].add(seen, mode='drop')

  total = sum(np.asarray(counts(KEY + np.uint32(7919 * i))) for i in range(num))
  deviation = np.sqrt(np.maximum(occurrences, 1) * 0.25 / num)
  assert (abs(total / num - gammas) < 5 * deviation).all()
  np.testing.assert_allclose(total.sum(1) / num, occurrences[:, 0], 1e-5)


def test_draws_do_not_depend_on_the_device():
  """Half of a step's chunks have the draws that they have in the whole."""
  model, batch = jax.device_put(_context_mixture()), _batch()
  half = base.StepBatch(
    batch.tokens[:, CHUNK:],
    batch.left[:, CHUNK:],
    batch.right[:, CHUNK:],
    batch.chunks[1:],
  )
  ids = jax.jit(lambda batch: model.ids(batch, KEY))
  whole, half = ids(batch), ids(half)
  tokens = np.asarray(whole[mixture.SLOTS].tokens)
  uniforms = np.asarray(whole[context_mixture.UNIFORMS])[
    (tokens >= WIDTH) & (tokens < 2 * WIDTH)
  ]
  assert len(uniforms) > 3 and len(set(uniforms.tolist())) == len(uniforms)
  np.testing.assert_array_equal(
    half[context_mixture.UNIFORMS][: len(uniforms)], uniforms
  )


@pytest.mark.parametrize('make', [_mixture, _context_mixture])
def test_padding_costs_nothing_and_teaches_nothing(make):
  model = make()
  made = _make(model, _batch(0))
  assert made.value == made.examples == 0
  assert not any(np.asarray(x).any() for x in made.grads.values())
  for name, spec in model.specs().items():
    assert (np.asarray(made.ids[name]) >= spec.vocab).all()


@pytest.mark.parametrize('make', [_mixture, _context_mixture])
def test_with_one_sense_the_model_is_skipgram(make):
  alone = hierarchical.make(SPEC, CORPUS, False, 4)
  model = make('tree', 1)
  assert model.specs().keys() == alone.specs().keys()
  tables = _tables(alone)
  made = [_make(x, _batch(), tables=tables) for x in (model, alone)]
  assert made[0].value == made[1].value > 0


@pytest.mark.parametrize('loss', LOSSES)
def test_the_compact_variant_gives_the_same_step(loss):
  batch = _batch()
  model = jax.device_put(_context_mixture(loss))
  model = dataclasses.replace(model, chance=0.2)
  assert model.fits(batch)
  assert not dataclasses.replace(model, chance=0.001).fits(batch)
  tables = _tables(model)
  full, compact = (
    _make(x, batch, tables=tables) for x in (model, model.compact)
  )
  sizes = [len(x.ids[mixture.PRIORS]) for x in (full, compact)]
  assert sizes[0] == 2 * WIDTH and 10 < sizes[1] < 0.7 * sizes[0]
  np.testing.assert_allclose(compact.value, full.value, 1e-6)
  for (name, x), y in zip(
    full.table_grads().items(), compact.table_grads().values(), strict=True
  ):
    np.testing.assert_allclose(y, x, 1e-4, 1e-5, err_msg=name)
  assert model.compact.compact is None
  assert _context_mixture(loss, 1).compact is None


@pytest.mark.parametrize('make', [context_mixture.make, mixture.make])
@pytest.mark.parametrize('loss', LOSSES)
def test_exported_senses(make, loss):
  extra = (1,) if make is context_mixture.make else ()
  model = make(SPEC, CORPUS, _outputs(loss), MASK, SENSES, *extra)
  tables = _tables(model)
  senses = model.export_senses(
    tables.__getitem__, vocab.Vocabulary(WORDS, COUNTS)
  )
  is_tree = loss == 'tree'
  name = 'hierarchical_softmax' if is_tree else 'negative_sampling'
  assert senses.loss == name and len(senses.outputs) == VOCAB - is_tree
  assert senses.window == (1 + (make is context_mixture.make)) * WINDOW
  sums = np.add.reduceat(senses.priors, senses.starts[:-1])
  np.testing.assert_allclose(sums, 1, 1e-6)
  if make is mixture.make:
    assert senses.contexts is None
    np.testing.assert_array_equal(senses.vectors, tables[skipgram.INPUT])
    return
  # 25 / 6 for each word of windows of 1 to WINDOW words on both sides.
  expected = 25 / 6 * (1 + WINDOW)
  assert senses.contexts.concentration == pytest.approx(expected)
  model = dataclasses.replace(model, shift=SHIFT)
  vectors = model.export_senses(
    tables.__getitem__, vocab.Vocabulary(WORDS, COUNTS)
  ).vectors
  for word, k in itertools.product(np.flatnonzero(MASK)[:3], range(SENSES)):
    np.testing.assert_allclose(
      vectors[senses.starts[word] + k],
      _vector(model, tables, word, k, False),
      1e-4,
      1e-5,
    )


@pytest.mark.slow
def test_training_uses_the_compact_variant_for_steps_that_fit(monkeypatch):
  config = config_lib.default()
  config.model.update(
    name='mixture', loss='hierarchical_softmax', dim=8, window=WINDOW
  )  # fmt: skip
  config.optimizer.name, config.strategy.name = 'adagrad', 'sync'
  config.train.batch_words, num_steps = 16, 200
  config.senses.number, config.senses.top_ratio = SENSES, 2.5 / VOCAB
  config, tuning = config_lib.resolve(
    config, 'cpu', (1, 1), chunk=8, shared_nodes=4
  )
  rng, words = np.random.default_rng(3), 16 * num_steps
  sentences = oracle.random_sentences(rng, VOCAB, words, (5, 9))
  tokens = oracle.pack(sentences, VOCAB, words, WINDOW, rng)
  counts = (np.full(1, x, np.int32) for x in (num_steps, words, 1))
  batch = windows.Batch(*(x[None] for x in tokens), *counts)
  schedule = strategy_base.Schedule(np.float32(0.1), np.float32(0.05), KEY)
  results = []
  for num_slots in (1000, 1, 5):
    monkeypatch.setattr(
      context_mixture.ContextMixture,
      '_compact_slots',
      lambda self, num, num_slots=num_slots: min(num_slots, num),
    )
    made = build.trainer(
      config, tuning, COUNTS, mesh.make(mesh.Shape(1, 1)), WORDS
    )
    strategy, model = made.strategy, made.trainable.model
    state = jax.jit(strategy.init)(jax.random.key(0))
    state, _ = strategy.step(state, strategy.constants(), batch, schedule)
    results.append(
      {k: strategy.export_rows(state, k).rows for k in model.specs()}
    )
  for name, expected in results[0].items():
    for other in results[1:]:
      np.testing.assert_allclose(other[name], expected, 1e-4, 1e-5)
  # With five slots some steps fit and some do not.
  model, num_fitting = jax.device_put(model), 0
  for first in range(0, words, 16):
    run = oracle.middle(tokens, first, 16)
    step = base.StepBatch(*(x[None] for x in run), np.zeros(2, np.uint32))
    num_fitting += int(model.fits(step))
  assert 0.1 < num_fitting / num_steps < 0.9
  priors = model.priors_of(jnp.asarray(results[0][mixture.PRIORS]))
  np.testing.assert_allclose(priors.sum(1), 1, atol=1e-6)
  assert (priors > 0).all() and np.abs(priors - 1 / SENSES).max() > 1e-3
  means = results[0][context_mixture.MEANS][:, :-1]
  assert means.reshape(3, SENSES, 8).std(1).mean() > 1e-3
  assert np.linalg.norm(means, axis=1).max() <= 1 + 1e-6
