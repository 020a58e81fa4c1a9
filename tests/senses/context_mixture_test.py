"""Senses told by the words around: one step in loops, draws, and skip-gram."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb import build
from jaxemb import config as config_lib
from jaxemb.models import base, hierarchical, skipgram, tree
from jaxemb.runtime import mesh
from jaxemb.senses import (
  context_mixture,
  em,
  mixture,
  sampled,
  sense_rows,
)
from jaxemb.text import loader, vocab
from tests import oracle

VOCAB, DIM, WINDOW, CHUNK, LENGTH, SENSES = 30, 5, 3, 16, 32, 3
KEY = np.array([0x13198A2E, 0x03707344], np.uint32)
COUNTS = np.maximum(1, 1000 // np.arange(1, VOCAB + 1))
SPEC = base.WindowSpec(VOCAB, DIM, WINDOW, 5, CHUNK, 4)
IS_AMBIGUOUS = np.random.default_rng(5).random(VOCAB) < 0.4
KAPPA, SHARED, SHIFT = 2.0, 0.3, 0.7
WEIGHTS = np.linspace(0.2, 1, VOCAB).astype(np.float32)


def _outputs(loss):
  if loss == 'tree':
    return tree.grow(COUNTS, COUNTS / COUNTS.sum(), CHUNK, 4)
  return sampled.outputs(SPEC, skipgram.negative_distribution(COUNTS))


def _model(loss='tree', tied_until=0.0):
  senses = sense_rows.number(IS_AMBIGUOUS, SENSES)
  return context_mixture.ContextMixture(
    SPEC, _outputs(loss), senses, WEIGHTS, KAPPA,
    float(IS_AMBIGUOUS.mean()), tied_until, SHARED, SHIFT,
  )  # fmt: skip


@functools.cache
def _batch(words=60):
  rng = np.random.default_rng(0)
  sentences = oracle.random_sentences(rng, VOCAB, words, (2, 5, 9))
  tokens = oracle.pack(sentences, VOCAB, 2 * LENGTH, WINDOW, rng)
  run = oracle.middle(tokens, min(LENGTH, words) // 4, LENGTH)
  chunks = np.arange(3, 3 + LENGTH // CHUNK, dtype=np.uint32)
  return base.StepBatch(*(x[None] for x in run), chunks)


def _tables(model):
  rng = np.random.default_rng(1)
  tables = {
    k: rng.normal(size=(s.vocab, s.dim)).astype(np.float32)
    for k, s in model.specs().items()
  }
  priors = 0.1 * tables[mixture.PRIORS]
  priors[:, :-1] -= priors[:, :-1].mean(1, keepdims=True)
  tables[mixture.PRIORS] = priors
  for name in (mixture.PRIORS, context_mixture.MEANS):
    tables[name][:, -1] = 0
  return tables


def _look_up(model, tables, ids):
  """Rows, of padding as tables give them."""
  return {
    name: jnp.asarray(
      np.where(
        (np.asarray(ids[name]) < len(x))[..., None],
        x[np.minimum(ids[name], len(x) - 1)],
        0,
      )
    )
    for name, x in tables.items()
    if name in model.specs()
  }


def _table_grads(tables, ids, grads):
  """Summed over the look-ups of a row."""
  found = {}
  for name, x in grads.items():
    index = np.asarray(ids[name]).reshape(-1)
    rows = np.asarray(x, np.float64).reshape(len(index), -1)
    found[name] = np.zeros(tables[name].shape)
    is_row = index < len(tables[name])
    np.add.at(found[name], index[is_row], rows[is_row])
  return found


def _common(model, tables, word):
  """[d] float64, the mean of a word's rows, weighted by priors."""
  senses, found = model.senses, tables[skipgram.INPUT].astype(np.float64)
  first, row = senses.first_rows[word], senses.priors_rows[word]
  if row == senses.num_ambiguous:
    return found[first]
  priors = tables[mixture.PRIORS][row, :-1] + 1 / SENSES
  return sum(priors[k] * found[first + k] for k in range(SENSES))


def _vector(model, tables, word, sense):
  """[d] float64, of a sense."""
  senses = model.senses
  row = senses.priors_rows[word]
  found = tables[skipgram.INPUT][senses.first_rows[word] + sense]
  if row == senses.num_ambiguous:
    return found
  priors = tables[mixture.PRIORS][row, :-1] + 1 / SENSES
  means = tables[context_mixture.MEANS].astype(np.float64)[:, :-1]
  means = means[row * SENSES : (row + 1) * SENSES]
  length = np.linalg.norm(_common(model, tables, word))
  return found + SHIFT * length * (means[sense] - priors @ means)


def _expected(model, tables, ids, batch):
  """Draws of slots, and sums of what the averages are to learn, in loops."""
  senses, priors = model.senses, tables[mixture.PRIORS].astype(np.float64)
  means = tables[context_mixture.MEANS].astype(np.float64)
  placed = ids[mixture.BLOCK]
  width, draws = CHUNK + 2 * WINDOW, {}
  grads = {
    k: np.zeros(x.shape)
    for k, x in ((mixture.PRIORS, priors), (context_mixture.MEANS, means))
  }

  def vector(word):
    found = _common(model, tables, word)
    return found / np.linalg.norm(found)

  places = [x for x in np.asarray(placed.places) if x < 2 * width]
  for slot, place in enumerate(places):
    chunk, offset = divmod(int(place), width)
    position = chunk * CHUNK + offset  # in the tokens with their halo
    word = batch.tokens[0, position]
    around = []
    for i in range(chunk * CHUNK, (chunk + 1) * CHUNK):
      far = position - (i + WINDOW)
      if far and -int(batch.left[0, i]) <= far <= int(batch.right[0, i]):
        around.append(batch.tokens[0, i + WINDOW])
    row = senses.priors_rows[word]
    rows = row * SENSES + np.arange(SENSES)
    x, is_some = np.zeros(DIM), bool(around)
    if around:
      weights = WEIGHTS[around].astype(np.float64)
      x = weights @ np.array([vector(w) for w in around]) / weights.sum()
    logs = np.log(priors[row, :-1] + 1 / SENSES)
    logs -= KAPPA * ((x - means[rows, :-1]) ** 2).sum(1)
    gammas = np.exp(logs) / np.exp(logs).sum()
    drawn = int(np.searchsorted(gammas.cumsum(), placed.uniforms[slot]))
    draws[int(place)] = drawn
    if is_some:
      grads[mixture.PRIORS][row, :-1] += priors[row, :-1] - (
        gammas - 1 / SENSES
      )
      grads[mixture.PRIORS][row, -1] += 1
      row = rows[drawn]
      grads[context_mixture.MEANS][row, :-1] += means[row, :-1] - x
      grads[context_mixture.MEANS][row, -1] += 1
  return draws, grads


def _skipgram_rows(model, tables, ids, draws, batch):
  """[k, c + 2 W, d], the vectors that stand in the windows."""
  width = CHUNK + 2 * WINDOW
  found = np.zeros((LENGTH // CHUNK, width, DIM), np.float32)
  for place in range(found.shape[0] * width):
    chunk, offset = divmod(place, width)
    word = batch.tokens[0, chunk * CHUNK + offset]
    if word < VOCAB:
      found[chunk, offset] = _vector(model, tables, word, draws.get(place, 0))
  return found


@pytest.mark.parametrize('loss', ['tree', 'sampled'])
def test_a_step_is_that_of_the_drawn_senses(loss):
  model, batch = _model(loss), _batch()
  tables = _tables(model)
  ids = jax.jit(model.ids)(model.constants(), batch, KEY)
  rows = _look_up(model, tables, ids)
  value, grads = jax.value_and_grad(model.loss)(rows, ids, batch)
  draws, expected = _expected(model, tables, ids, batch)
  assert len(draws) > 10 and len(set(draws.values())) == SENSES

  # With words of one sense that have these vectors, it is all the same.
  alone = mixture.Mixture(
    SPEC,
    _outputs(loss),
    sense_rows.number(IS_AMBIGUOUS, 1),
    *(True, False, 0.0, 0.0),
  )
  alone_ids = jax.jit(alone.ids)(alone.constants(), batch, KEY)
  alone_rows = {
    skipgram.INPUT: jnp.asarray(
      _skipgram_rows(model, tables, ids, draws, batch)
    ),
    skipgram.OUTPUT: rows[skipgram.OUTPUT],
  }
  alone_value, alone_grads = jax.value_and_grad(alone.loss)(
    alone_rows, alone_ids, batch
  )
  np.testing.assert_allclose(value, alone_value, rtol=1e-6)
  np.testing.assert_allclose(
    grads[skipgram.OUTPUT], alone_grads[skipgram.OUTPUT], atol=1e-5
  )
  found = _table_grads(tables, ids, grads)
  for name, x in expected.items():
    np.testing.assert_allclose(found[name], x, atol=1e-5)
  # The other senses of a word learn a share of what the drawn one does.
  wanted = np.zeros(tables[skipgram.INPUT].shape)
  flat = np.asarray(alone_grads[skipgram.INPUT]).reshape(-1, DIM)
  width = CHUNK + 2 * WINDOW
  for place, grad in enumerate(flat):
    word = batch.tokens[0, place // width * CHUNK + place % width]
    if word < VOCAB:
      first = model.senses.first_rows[word]
      for k in range(SENSES if place in draws else 1):
        is_drawn = draws.get(place, 0) == k
        wanted[first + k] += grad * (1 if is_drawn else SHARED)
  np.testing.assert_allclose(found[skipgram.INPUT], wanted, atol=1e-5)


def test_senses_are_drawn_as_often_as_they_are_likely():
  model, batch = _model(), _batch()
  tables = _tables(model)
  make = jax.jit(model.ids)
  ids = make(model.constants(), batch, KEY)
  _, expected = _expected(model, tables, ids, batch)
  wanted = expected[mixture.PRIORS]

  @jax.jit
  def means_grads(rows, ids):
    grads = jax.grad(model.loss)(rows, ids, batch)
    return grads[context_mixture.MEANS][..., -1]

  total = np.zeros((model.senses.num_ambiguous, SENSES))
  num = 400
  for i in range(num):
    key = KEY + np.uint32(7919 * i)
    ids = make(model.constants(), batch, key)
    counts = np.asarray(means_grads(_look_up(model, tables, ids), ids))
    row = np.asarray(ids[mixture.PRIORS])
    is_slot = row < len(total)
    np.add.at(total, row[is_slot], counts[is_slot])
  occurrences = wanted[:, -1:]
  gammas = (
    occurrences * (tables[mixture.PRIORS][:, :-1] + 1 / SENSES) - wanted[:, :-1]
  )
  deviation = np.sqrt(np.maximum(occurrences, 1) * 0.25 / num)
  assert (abs(total / num - gammas) < 5 * deviation).all()
  np.testing.assert_allclose(total.sum(1) / num, occurrences[:, 0])


def test_draws_do_not_depend_on_the_device():
  """Half of a step's chunks have the draws that they have in all of it."""
  model, batch = _model(), _batch()
  make = jax.jit(model.ids)
  whole = make(model.constants(), batch, KEY)[mixture.BLOCK]
  half = base.StepBatch(
    batch.tokens[:, CHUNK:],
    batch.left[:, CHUNK:],
    batch.right[:, CHUNK:],
    batch.chunks[1:],
  )
  found = make(model.constants(), half, KEY)[mixture.BLOCK]
  width = CHUNK + 2 * WINDOW
  places = np.asarray(whole.places)
  is_mine = (places >= width) & (places < 2 * width)
  uniforms = np.asarray(whole.uniforms)[is_mine]
  assert len(uniforms) > 3 and len(set(uniforms.tolist())) == len(uniforms)
  np.testing.assert_array_equal(
    np.asarray(found.uniforms)[: len(uniforms)], uniforms
  )


def _config(name, **senses):
  config = config_lib.default()
  config.model.name, config.model.loss = name, 'hierarchical_softmax'
  config.model.dim, config.model.window, config.model.chunk = 8, 3, 8
  config.model.shared_nodes = 4
  config.optimizer.name = 'adagrad'
  config.strategy.name, config.train.batch_words = 'sync', 16
  config.senses.update(senses)
  config_lib.check(config)
  return config


def _trainer(name, tied_until=0.2, **senses):
  config, key = _config(name, **senses), (name, 'hierarchical_softmax')
  make = build.MODELS[key]
  with pytest.MonkeyPatch.context() as patch:
    if name == 'mixture':
      patch.setitem(
        build.MODELS,
        key,
        lambda *args: dataclasses.replace(make(*args), tied_until=tied_until),
      )
    return build.trainer(
      config_lib.resolved(config, 'cpu', (1, 1)),
      COUNTS,
      mesh.make(mesh.Shape(1, 1)),
      [str(i) for i in range(VOCAB)],
    )


@functools.cache
def _packed(words):
  sentences = oracle.random_sentences(
    np.random.default_rng(3), VOCAB, words, (5, 9)
  )
  return oracle.pack(sentences, VOCAB, words, 3, np.random.default_rng(4))


def _steps(words):
  """The steps of `_train`."""
  for first in range(0, words, 16):
    chunks = np.arange(first // 8, first // 8 + 2, dtype=np.uint32)
    run = oracle.middle(_packed(words), first, 16)
    yield base.StepBatch(*(x[None] for x in run), chunks)


def _train(made, words, start=None, progress=(1.0, 1.0), steps=200):
  """The state behind some steps, of input rows that start like these."""
  tokens = _packed(words)
  figures = (np.full(1, x, np.int32) for x in (steps, words, 1))
  batch = loader.Batch(*(x[None] for x in tokens), *figures)
  schedule = build.strategy_base.Schedule(
    np.float32(0.1), np.float32(0.05), KEY, *map(np.float32, progress)
  )
  state = jax.jit(made.strategy.init)(jax.random.key(0))
  if start is not None:
    table = state.tables[skipgram.INPUT]
    vectors = jnp.zeros_like(table.vectors).at[: len(start)].set(start)
    tables = state.tables | {skipgram.INPUT: table._replace(vectors=vectors)}
    state = state._replace(tables=tables)
  constants = made.strategy.constants()
  return made.strategy.step(state, constants, batch, schedule)[0]


def test_tied_senses_are_skipgram():
  start = np.random.default_rng(0).normal(size=(VOCAB, 8)).astype(np.float32)
  alone = _trainer('skipgram')
  made = _trainer('mixture', number=4, top_n=9, tied_until=0.5)
  owners = made.model.senses.owners()
  assert len(owners) == VOCAB + 9 * 3
  found, expected = (
    x.strategy.export_rows(
      _train(x, 200 * 16, 0.1 * rows, (0, 0.49)), skipgram.INPUT
    ).rows
    for x, rows in ((made, start[owners]), (alone, start))
  )
  assert np.abs(expected).max() > 0.3
  np.testing.assert_allclose(found, expected[owners], atol=1e-5)


def test_priors_sum_to_one_and_senses_part():
  made = _trainer('mixture', number=4, top_n=9, tied_until=0.0)
  state = _train(made, 200 * 16)
  priors = np.asarray(
    em.probabilities(
      made.strategy.export_rows(state, mixture.PRIORS).rows[:, :-1], False
    )
  )
  np.testing.assert_allclose(priors.sum(1), 1, atol=1e-6)
  assert (priors > 0).all() and np.abs(priors - 0.25).max() > 1e-3
  means = made.strategy.export_rows(state, context_mixture.MEANS).rows[:, :-1]
  assert means.reshape(9, 4, 8).std(1).mean() > 1e-3
  assert np.linalg.norm(means, axis=1).max() <= 1 + 1e-6


def test_padding_costs_nothing_and_teaches_nothing():
  model, batch = _model(), _batch(0)
  ids = jax.jit(model.ids)(model.constants(), batch, KEY)
  rows = _look_up(model, _tables(model), ids)
  loss, grads = jax.value_and_grad(model.loss)(rows, ids, batch)
  assert loss == 0
  assert not any(np.asarray(x).any() for x in grads.values())
  for name, spec in model.specs().items():
    assert (np.asarray(ids[name]) >= spec.vocab).all()


def test_words_with_one_sense_are_skipgram():
  model = context_mixture.ContextMixture(
    SPEC,
    _outputs('tree'),
    sense_rows.number(IS_AMBIGUOUS, 1),
    *(WEIGHTS, KAPPA, 0.0, 0.0, SHARED, SHIFT),
  )
  other = hierarchical.Hierarchical(SPEC, _outputs('tree'), False)
  assert model.specs().keys() == other.specs().keys()
  batch, losses = _batch(), []
  tables = {
    k: np.random.default_rng(2).normal(size=(s.vocab, s.dim)).astype(np.float32)
    for k, s in other.specs().items()
  }
  for x in (model, other):
    ids = jax.jit(x.ids)(x.constants(), batch, KEY)
    losses.append(x.loss(_look_up(x, tables, ids), ids, batch))
  assert losses[0] == losses[1] > 0


@pytest.mark.parametrize(
  ('method', 'asked', 'window'),
  [
    ('contexts', 0, 6),
    ('contexts', 4, 4),
    ('likelihoods', 0, 3),
    ('likelihoods', 4, 4),
  ],
)
def test_words_that_tell_a_sense_of_a_query(method, asked, window):
  settings = {
    'number': 2,
    'top_n': 3,
    'method': method,
    'query_window': asked,
  }
  made = _trainer('mixture', **settings)
  state = made.strategy.init(jax.random.key(0))
  found = sense_rows.of_model(
    _config('mixture', **settings),
    made.model,
    lambda name: made.strategy.export_rows(state, name).rows,
    vocab.Vocabulary([str(i) for i in range(VOCAB)], COUNTS),
  )
  assert found.window == window
  assert (found.contexts is None) == (method == 'likelihoods')
  if found.contexts is not None:
    per_word = 25 / 6
    assert found.contexts.concentration == pytest.approx(
      (1 + WINDOW) * per_word
    )


def test_concentration_is_that_of_the_words_around():
  assert context_mixture.concentration(1, 5) == pytest.approx(25)
  assert context_mixture.concentration(10, 10) == pytest.approx(250 / 3)


@pytest.mark.parametrize('loss', ['tree', 'negatives'])
def test_of_usual_size_a_step_is_the_same(loss):
  batch = _batch()
  model = dataclasses.replace(_model(loss), chance=0.2)
  num = 2 * (CHUNK + 2 * WINDOW)
  assert jax.jit(model.fits)(model.constants(), batch)
  tables, sizes, found = _tables(model), [], []
  for each in (model, model.usual):
    ids = jax.jit(each.ids)(each.constants(), batch, KEY)
    sizes.append(len(ids[mixture.PRIORS]))
    rows = _look_up(each, tables, ids)
    value, grads = jax.value_and_grad(each.loss)(rows, ids, batch)
    found.append((value, _table_grads(tables, ids, grads)))
  assert sizes[0] == num and 10 < sizes[1] < 0.7 * num
  np.testing.assert_allclose(found[1][0], found[0][0], 1e-6)
  for name in tables:
    np.testing.assert_allclose(found[1][1][name], found[0][1][name], 1e-4, 1e-5)
  assert model.usual.usual is None
  one_sense = sense_rows.number(IS_AMBIGUOUS, 1)
  assert dataclasses.replace(model, senses=one_sense).usual is None


def test_steps_without_room_are_of_full_size(monkeypatch):
  found, words = [], 200 * 16
  for room in (1000, 1, 5):
    monkeypatch.setattr(
      context_mixture.ContextMixture,
      '_usual_room',
      lambda self, num, room=room: min(room, num),
    )
    made = _trainer('mixture', number=3, top_n=3, tied_until=0.0)
    state = _train(made, words)
    found.append(made.strategy.export_rows(state, skipgram.INPUT).rows)
  for other in found[1:]:
    np.testing.assert_allclose(other, found[0], 1e-4, 1e-5)
  # For the last room some steps were too many, and some were not.
  fits, constants = jax.jit(made.model.fits), made.model.constants()
  sizes = [fits(constants, batch) for batch in _steps(words)]
  assert 0.1 < np.mean(sizes) < 0.9
