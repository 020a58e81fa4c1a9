"""The mixtures and hierarchical softmax against loops over pairs."""

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.data import windows
from jaxemb.models import base, hierarchical, skipgram, targets
from jaxemb.ops import huffman
from jaxemb.senses import context_mixture, mixture
from tests import dispatches, marking, oracle

INPUT, OUTPUT = skipgram.INPUT, skipgram.OUTPUT
PRIORS, MEANS = mixture.PRIORS, context_mixture.MEANS
UNIFORMS = context_mixture.UNIFORMS
VOCAB, DIM, WINDOW, CHUNK, LENGTH, SENSES = 30, 5, 3, 16, 32, 3
WIDTH = CHUNK + 2 * WINDOW
KEY = np.array([0x13198A2E, 0x03707344], np.uint32)
COUNTS = np.maximum(1, 1000 // np.arange(1, VOCAB + 1))
PATHS = huffman.tree_paths(COUNTS)
WORDS = [str(i) for i in range(VOCAB)]
CORPUS = base.Corpus(WORDS, COUNTS, COUNTS / COUNTS.sum())
SPEC = base.WindowSpec(VOCAB, DIM, WINDOW, 5, CHUNK, 4)
MASK = np.random.default_rng(5).random(VOCAB) < 0.4
KAPPA, SHARED, SHIFT, TIED_UNTIL = 2.0, 0.3, 0.7, 0.5
every_loss = pytest.mark.parametrize('loss', ['tree', 'sampled'])


def _outputs(loss):
  if loss == 'tree':
    return targets.tree(CORPUS, CHUNK, 4)
  return targets.sampled(SPEC, CORPUS)


def _mixture(loss='tree'):
  return mixture.make(SPEC, CORPUS, _outputs(loss), MASK, SENSES)


def _context_mixture(loss='tree'):
  made = context_mixture.make(SPEC, CORPUS, _outputs(loss), MASK, SENSES, 1)
  # 25 / 6 for each word of windows of 1 to WINDOW words on both sides.
  assert made.concentration == pytest.approx(25 / 6 * (1 + WINDOW))
  weights = np.linspace(0.2, 1, VOCAB).astype(np.float32)
  return dataclasses.replace(
    made, weights=weights, concentration=KAPPA, tied_until=TIED_UNTIL,
    shared=SHARED, shift=SHIFT, chance=float(MASK.mean()),
  )  # fmt: skip


every_mixture = pytest.mark.parametrize('make', [_mixture, _context_mixture])


@functools.cache
def _batch(words=60, progress=0.6):
  rng = np.random.default_rng(0)
  sentences = oracle.random_sentences(rng, VOCAB, words, (2, 5, 9))
  tokens = oracle.pack(sentences, VOCAB, 2 * LENGTH, WINDOW, rng)
  run = oracle.middle(tokens, min(LENGTH, words) // 4, LENGTH)
  numbers = np.arange(3, 3 + LENGTH // CHUNK, dtype=np.uint32)
  runs = (x[None] for x in run)
  return windows.StepBatch(*runs, numbers, np.float32(progress))


class Made(NamedTuple):
  """A step of a model with random tables."""

  batch: windows.StepBatch
  tables: dict[str, np.ndarray]  # float64
  rows: dict[str, jax.Array]
  ids: dict[str, Any]
  value: jax.Array
  examples: jax.Array
  grads: dict[str, np.ndarray]  # by table, summed over the lookups of a row


def _tables(model):
  rng = np.random.default_rng(1)
  tables = {
    k: rng.normal(size=(s.vocab, s.dim)).astype(np.float32)
    for k, s in model.specs().items()
  }
  if PRIORS in tables:
    priors = tables[PRIORS][:, :-1]
    priors[:] = 0.1 * (priors - priors.mean(1, keepdims=True))
  for name in tables.keys() & {PRIORS, MEANS}:
    tables[name][:, -1] = 0
  return tables


@jax.jit
def _step(model, batch, tables, key):
  ids = model.ids(batch, key)

  def loss(rows):
    value, aux = model.loss((), rows, ids, batch, key)
    return value, aux.examples

  rows = {
    k: x.at[ids[k]].get(mode='fill', fill_value=0) for k, x in tables.items()
  }
  (value, examples), grads = jax.value_and_grad(loss, has_aux=True)(rows)
  grads = {
    k: jnp.zeros_like(x).at[ids[k]].add(grads[k], mode='drop')
    for k, x in tables.items()
  }
  return rows, ids, value, examples, grads


def _make(model, batch, tables=None):
  tables = _tables(model) if tables is None else tables
  rows, ids, value, examples, grads = _step(model, batch, tables, KEY)
  tables = {k: x.astype(np.float64) for k, x in tables.items()}
  grads = {k: np.asarray(x, np.float64) for k, x in grads.items()}
  return Made(batch, tables, rows, ids, value, examples, grads)


def _pairs(batch):
  """(position of the center, that of the context in the tokens)."""
  for i in range(LENGTH):
    for offset in oracle.contexts(i, batch.left[0], batch.right[0]):
      yield i, i + WINDOW + offset


def _log_likelihood(loss, made, tables, vector, i):
  """Log P(center i | vector), of nodes or of words and negatives."""
  center = made.batch.tokens[0, i + WINDOW]
  draws = np.asarray(made.ids[OUTPUT])[i // CHUNK, CHUNK:]
  others = [(x, SPEC.negatives / len(draws)) for x in draws if x != center]
  told_by = (PATHS,) if loss == 'tree' else (None, others)
  return oracle.log_chance(vector, tables[OUTPUT], center, *told_by)


def _assert_slope(made, loss_of):
  """That of the loops along a random change of all vectors."""
  rng = np.random.default_rng(2)
  step = {k: rng.normal(size=made.tables[k].shape) for k in (INPUT, OUTPUT)}

  def moved(size):
    near = {k: made.tables[k] + size * x for k, x in step.items()}
    return loss_of(made.tables | near)

  slope = sum((made.grads[k] * x).sum() for k, x in step.items())
  assert slope == pytest.approx((moved(1e-5) - moved(-1e-5)) / 2e-5, rel=1e-4)


def test_ambiguous_words_are_frequent_or_listed(tmp_path):
  path, config = tmp_path / 'words.txt', config_lib.default()
  path.write_text('# a comment\nBank 5\n\nnever\n')

  def found(listed='', top_ratio=0.0, lowercase=True):
    config.senses.update({'words': str(listed), 'top_ratio': top_ratio})
    config.data.lowercase = lowercase
    chosen = mixture.ambiguous(config, ['the', 'of', 'bank', 'seal', 'bat'])
    return chosen.mask.tolist(), *chosen[1:]

  assert found(top_ratio=0.5) == ([1, 1, 1, 0, 0], 0, 0)
  assert found(path, 0.2) == ([1, 0, 1, 0, 0], 2, 1)
  with pytest.raises(errors.UserError, match='none of the 5'):
    found(path, lowercase=False)
  path.write_text('bank\nbank\n', encoding='utf-8-sig')
  assert found(path, lowercase=False)[1:] == (1, 0)
  path.write_text('\n')
  with pytest.raises(errors.UserError, match='has 0 words'):
    found(path)
  with pytest.raises(errors.UserError, match='cannot read'):
    found(tmp_path / 'none')


@pytest.mark.slow
@every_loss
def test_likelihood_mixture_is_that_of_loops(loss):
  model = _mixture(loss)
  made = _make(model, _batch())

  def joint(tables):
    """Loss of words with one sense; (row of priors, LL [K]) of other pairs."""
    total, found = 0.0, []
    for i, position in _pairs(made.batch):
      word = made.batch.tokens[0, position]
      vectors = tables[INPUT][model.rows.starts[word] :]
      logs = np.array(
        [
          _log_likelihood(loss, made, tables, vector, i)
          for vector in vectors[: SENSES if MASK[word] else 1]
        ]
      )
      if MASK[word]:
        priors = tables[PRIORS][model.rows.priors[word], :-1]
        logs += priors - np.logaddexp.reduce(priors)
        found.append((model.rows.priors[word], logs))
      else:
        total -= logs[0]
    return total, found

  def negative_log(tables):
    single, several = joint(tables)
    return single - sum(np.logaddexp.reduce(x) for _, x in several)

  several = joint(made.tables)[1]
  assert made.examples == len(list(_pairs(made.batch))) > len(several) > 10
  np.testing.assert_allclose(made.value, negative_log(made.tables), 1e-5)
  _assert_slope(made, negative_log)
  # Priors average LL: sums of (row - LL), and their number.
  averages = np.zeros_like(made.tables[PRIORS])
  for row, logs in several:
    averages[row, :-1] += made.tables[PRIORS][row, :-1] - logs
    averages[row, -1] += 1
  np.testing.assert_allclose(made.grads[PRIORS], averages, 1e-4, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(('is_cbow', 'num_shared'), [(False, 2), (True, 100)])
def test_hierarchical_softmax_is_that_of_loops(is_cbow, num_shared):
  model = hierarchical.make(SPEC, CORPUS, is_cbow, num_shared)
  assert not model.contexts_table  # its outputs are of no words
  made = _make(model, _batch())

  def examples(tables):
    contexts = {}
    for i, position in _pairs(made.batch):
      vector = tables[INPUT][made.batch.tokens[0, position]]
      contexts.setdefault(i, []).append(vector)
    for i, vectors in contexts.items():
      for vector in [np.mean(vectors, 0)] if is_cbow else vectors:
        yield _log_likelihood('tree', made, tables, vector, i)

  def loss_of(tables):
    return -sum(examples(tables))

  np.testing.assert_allclose(made.value, loss_of(made.tables), 1e-5)
  assert made.examples == len(list(examples(made.tables)))
  _assert_slope(made, loss_of)


def _word(model, tables, word):
  """Vectors [K, d], priors [K] and means [K, d] of a word's senses."""
  vectors = tables[INPUT][model.rows.starts[word] :]
  if not MASK[word]:
    return vectors[:1], np.ones(1), np.zeros((1, DIM))
  row = model.rows.priors[word]
  priors = tables[PRIORS][row, :-1] + 1 / SENSES
  return vectors[:SENSES], priors, tables[MEANS][row * SENSES :][:SENSES, :-1]


def _shifted(model, tables, word):
  """[K, d] vectors of a word's senses."""
  vectors, priors, means = _word(model, tables, word)
  length = np.linalg.norm(priors @ vectors)
  return vectors + SHIFT * length * (means - priors @ means)


def _draws(model, made, is_tied=False):
  """Draws by token, and sums of what priors and means average, in loops."""
  tables, tokens, draws = made.tables, made.batch.tokens[0], {}
  priors, means = tables[PRIORS], tables[MEANS]
  grads = {name: np.zeros(tables[name].shape) for name in (PRIORS, MEANS)}
  slots = np.asarray(made.ids[mixture.SLOTS].tokens).tolist()
  for slot, token in enumerate(slots):
    if token >= 2 * WIDTH:
      continue
    chunk, offset = divmod(token, WIDTH)
    position = chunk * CHUNK + offset  # in the tokens with their halo
    row = model.rows.priors[tokens[position]]
    around = [
      tokens[i + WINDOW]
      for i, other in _pairs(made.batch)
      if other == position and i // CHUNK == chunk
    ]
    rows, x = row * SENSES + np.arange(SENSES), np.zeros(DIM)
    if around:
      common = [np.matmul(*_word(model, tables, w)[1::-1]) for w in around]
      units = [unit / np.linalg.norm(unit) for unit in common]
      x = np.average(units, 0, np.asarray(model.weights, np.float64)[around])
    logs = np.log(priors[row, :-1] + 1 / SENSES)
    logs -= KAPPA * ((x - means[rows, :-1]) ** 2).sum(1)
    gamma = np.exp(logs - np.logaddexp.reduce(logs))
    gamma = np.full(SENSES, 1 / SENSES) if is_tied else gamma
    uniform = made.ids[UNIFORMS][slot]
    draws[token] = drawn = int(np.searchsorted(gamma.cumsum()[:-1], uniform))
    if around:
      said = priors[row, :-1] - (gamma - 1 / SENSES)
      grads[PRIORS][row] += [*said, 1]
      grads[MEANS][rows[drawn]] += [*(means[rows[drawn], :-1] - x), 1]
  return draws, grads


@pytest.mark.parametrize(
  ('loss', 'is_tied'),
  marking.slow_after(1, itertools.product(['sampled', 'tree'], [False, True])),
)
def test_context_mixture_is_skipgram_with_drawn_senses(loss, is_tied):
  model = _context_mixture(loss)
  batch = _batch(progress=TIED_UNTIL - 0.1 if is_tied else TIED_UNTIL + 0.1)
  made = _make(model, batch)
  draws, averages = _draws(model, made, is_tied)
  assert len(draws) > 10 and len(set(draws.values())) == SENSES
  for name, expected in averages.items():
    np.testing.assert_allclose(made.grads[name], expected, atol=1e-5)
  used = dict.fromkeys(draws, 0) if is_tied else draws
  vectors_of = (lambda *args: _word(*args)[0]) if is_tied else _shifted
  vectors = np.zeros((2 * WIDTH, DIM), np.float32)
  words = {}
  for token in range(2 * WIDTH):
    chunk, offset = divmod(token, WIDTH)
    word = batch.tokens[0, chunk * CHUNK + offset]
    if word < VOCAB:
      words[token] = word
      every = vectors_of(model, made.tables, word)
      vectors[token] = every[used.get(token, 0)]
  found, rest = made.ids[targets.TARGETS], model.outputs.compact_rest

  def window_loss(rows, outputs):
    mask = batch.mask()
    return targets.window_loss(SPEC.row_ops, found, rest, rows, outputs, mask)

  alone, (token_grads, output_grads) = jax.jit(
    jax.value_and_grad(window_loss, (0, 1))
  )(vectors.reshape(2, WIDTH, DIM), made.rows[OUTPUT])
  np.testing.assert_allclose(made.value, alone, rtol=1e-6)
  outputs = jnp.zeros(made.tables[OUTPUT].shape)
  outputs = outputs.at[made.ids[OUTPUT]].add(output_grads, mode='drop')
  np.testing.assert_allclose(made.grads[OUTPUT], outputs, atol=1e-5)
  # Siblings get a fraction of the gradient of the drawn sense.
  shared = 1 if is_tied else SHARED
  expected = np.zeros(made.tables[INPUT].shape)
  flat = np.asarray(token_grads).reshape(-1, DIM)
  for token, word in words.items():
    for k in range(SENSES if MASK[word] else 1):
      share = 1 if k == used.get(token, 0) else shared
      expected[model.rows.starts[word] + k] += share * flat[token]
  np.testing.assert_allclose(made.grads[INPUT], expected, atol=1e-5)


@pytest.mark.slow
def test_draws_do_not_depend_on_the_device():
  """Half of a step's chunks have the draws that they have in the whole."""
  model, batch = jax.device_put(_context_mixture()), _batch()
  half = windows.StepBatch(*(x[:, CHUNK:] for x in batch[:3]), batch.chunks[1:])
  find = jax.jit(lambda batch, key: model.ids(batch, key))
  whole, half = find(batch, KEY), find(half, KEY)
  tokens = np.asarray(whole[mixture.SLOTS].tokens)
  is_second = (tokens >= WIDTH) & (tokens < 2 * WIDTH)
  uniforms = np.asarray(whole[UNIFORMS])[is_second]
  assert len(set(uniforms.tolist())) == len(uniforms) > 3
  np.testing.assert_array_equal(half[UNIFORMS][: len(uniforms)], uniforms)
  keys = KEY + 7919 * np.arange(200, dtype=np.uint32)[:, None]
  drawn = [find(batch, key)[UNIFORMS][tokens < 2 * WIDTH] for key in keys]
  levels = np.linspace(0.1, 0.9, 9)
  assert np.abs(np.quantile(drawn, levels) - levels).max() < 0.05


@pytest.mark.slow
@every_mixture
def test_padding_costs_nothing_and_teaches_nothing(make):
  model = make()
  made = _make(model, _batch(0))
  assert made.value == made.examples == 0
  assert not any(x.any() for x in made.grads.values())
  for name, spec in model.specs().items():
    assert (np.asarray(made.ids[name]) >= spec.vocab).all()


@every_mixture
@every_loss
def test_exported_senses(make, loss):
  model, is_tree = make(loss), loss == 'tree'
  tables = _tables(model)
  senses = model.export_senses(tables.__getitem__, WORDS, COUNTS)
  name = 'hierarchical_softmax' if is_tree else 'negative_sampling'
  assert senses.loss == name and len(senses.outputs) == VOCAB - is_tree
  sums = np.add.reduceat(senses.priors, senses.starts[:-1])
  np.testing.assert_allclose(sums, 1, 1e-6)
  if make is _mixture:
    assert senses.means is None and senses.window == WINDOW
    np.testing.assert_array_equal(senses.vectors, tables[INPUT])
    return
  assert senses.window == 2 * WINDOW
  assert senses.concentration == KAPPA
  for word in np.flatnonzero(MASK)[:3]:
    expected = _shifted(model, tables, word)
    found = senses.vectors[senses.rows(word)]
    np.testing.assert_allclose(found, expected, 1e-4, 1e-5)


@pytest.mark.slow
def test_training_uses_the_compact_variant_for_steps_that_fit(monkeypatch):
  settings = {
    'model.name': 'mixture',
    'model.loss': 'hierarchical_softmax',
    'model.dim': 8,
    'model.window': WINDOW,
    'optimizer.name': 'adagrad',
    'strategy.name': 'sync',
    'train.batch_words': 16,
    'senses.number': SENSES,
    'senses.top_ratio': 2.5 / VOCAB,
  }
  results, num = [], 60
  # With five slots some steps fit and some do not.
  for slots in (1000, 5):
    monkeypatch.setattr(
      context_mixture.ContextMixture,
      '_compact_slots',
      lambda self, num, slots=slots: min(slots, num),
    )
    made = dispatches.trainer(
      COUNTS, settings, parts=1, chunk=8, shared_nodes=4
    )
    strategy, steps = made.strategy, made.trainable.steps
    batch = dispatches.random_batch([16 * num], VOCAB, steps, num)
    state = dispatches.start(strategy)
    rates = dispatches.schedule(0.1, 0.05)
    state, _ = dispatches.run(strategy, state, batch, rates)
    results.append(dispatches.exported(strategy, state))
  for name, expected in results[0].items():
    np.testing.assert_allclose(results[1][name], expected, 1e-4, 1e-5)
  tokens = oracle.Tokens(*(x[0] for x in batch[:3]))
  model, num_fitting = jax.device_put(made.trainable.model), 0
  for first in range(0, 16 * num, 16):
    run = oracle.middle(tokens, first, 16)
    step = windows.StepBatch(*(x[None] for x in run), np.zeros(2, np.uint32))
    num_fitting += int(model.fits(step))
  assert 0.1 < num_fitting / num < 0.9
  assert model.compact.compact is None
