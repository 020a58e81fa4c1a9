"""Skip-gram and CBOW: ids, loss and gradients against loops over pairs."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.models import base, cbow, skipgram
from jaxemb.ops import losses, products, sampling, wire
from jaxemb.runtime import mesh
from tests import oracle

KEY = np.array([0x13198A2E, 0x03707344], np.uint32)

MODELS = {
  'skipgram': (skipgram.make, oracle.skipgram),
  'cbow': (cbow.make, oracle.cbow),
}
every_model = pytest.mark.parametrize('name', MODELS)


class Case(NamedTuple):
  """A step; runs of `size` centers, of which the last may be padding."""

  vocab: int = 30
  dim: int = 7
  runs: int = 1
  size: int = 32
  chunk: int = 8
  window: int = 3
  negatives: int = 5
  shared: int = 4
  lengths: tuple[int, ...] = (2, 5, 9)  # of the sentences
  words: int = 60  # in all sentences of a run
  scale: float = 0.7  # of the rows


CASES = {
  'plain': Case(),
  'window_over_chunk': Case(chunk=2, window=5),
  'chunk_over_window': Case(chunk=16, window=1, shared=3),
  'chunk_of_one': Case(size=6, chunk=1, window=2),
  'one_chunk': Case(chunk=32, shared=40, negatives=2),
  'one_shared_negative': Case(shared=1, negatives=15),
  'long_sentence': Case(lengths=(100,)),
  'half_padding': Case(words=21),
  'only_padding': Case(words=0),
  'one_word_sentences': Case(lengths=(1,)),
  'some_one_word_sentences': Case(lengths=(1, 1, 4)),
  'draws_equal_targets': Case(vocab=3, shared=9),
  'one_word_vocab': Case(vocab=1),
  'huge_scores': Case(scale=20.0),
  'zero_rows': Case(scale=0.0),
  'runs': Case(runs=3),
  'runs_of_a_chunk': Case(runs=5, size=8, words=17),
}
every_case = pytest.mark.parametrize('case', CASES.values(), ids=CASES)


class Made(NamedTuple):
  """The model of a case, a step for it, and the truth."""

  model: base.Model
  batch: base.StepBatch
  ids: dict[str, np.ndarray]
  draws: np.ndarray  # [chunks, shared]
  rows: dict[str, np.ndarray]
  expected: oracle.Step


def _model(name, case, weights=None):
  spec = base.WindowSpec(
    case.vocab, case.dim, case.window, case.negatives, case.chunk, case.shared
  )
  if weights is None:
    weights = 1000 / np.arange(1, case.vocab + 1)
  corpus = base.Corpus((), weights, weights / weights.sum())
  return MODELS[name][0](spec, corpus, losses.logistic_loss)


def _batch(case, seed=0):
  rng = np.random.default_rng(seed)
  runs = []
  for _ in range(case.runs):
    sentences = oracle.random_sentences(
      rng, case.vocab, case.words, case.lengths
    )
    tokens = oracle.pack(sentences, case.vocab, 2 * case.size, case.window, rng)
    # Taken from the middle, so that the halo in front holds words.
    first = min(case.size, case.words) // 4
    runs.append(oracle.middle(tokens, first, case.size))
  # Of the chunks of a dispatch, any.
  num_chunks = case.runs * case.size // case.chunk
  chunks = rng.permutation(1000)[:num_chunks].astype(np.uint32)
  return base.StepBatch(*map(np.stack, zip(*runs, strict=True)), chunks)


def _loss(model, rows, ids, batch):
  loss, aux = model.loss((), rows, ids, batch, KEY)
  return loss, aux.examples


@functools.cache
def _jitted(function, model_class):
  """A program for each class: their fields are alike."""
  del model_class
  return jax.jit(lambda *args: function(*args))


def _value_and_grad(model, *args):
  return _jitted(_loss_and_grad, type(model))(model, *args)


def _loss_and_grad(model, rows, ids, batch):
  def loss(rows):
    return _loss(model, rows, ids, batch)

  (value, examples), grads = jax.value_and_grad(loss, has_aux=True)(rows)
  return value, examples, grads


def _ids_of(model, batch):
  return model.ids(batch, KEY)


def _ids(model, batch):
  ids = _jitted(_ids_of, type(model))(model, batch)
  return {k: np.array(v) for k, v in ids.items()}


def _truth(name, case, batch, draws, tables):
  return oracle.in_runs(
    MODELS[name][1],
    *batch[:3],
    draws,
    tables,
    case.window,
    case.chunk,
    case.negatives,
  )


@functools.cache
def _make(name, case, negatives_on=None):
  weights = None if negatives_on is None else np.eye(case.vocab)[negatives_on]
  model = _model(name, case, weights)
  batch = _batch(case)
  ids = _ids(model, batch)
  draws = ids[skipgram.OUTPUT].reshape(len(batch.chunks), -1)
  draws = draws[:, -case.shared :]
  rng = np.random.default_rng(1)
  tables = {
    k: (case.scale * rng.normal(size=(case.vocab, case.dim))).astype(np.float32)
    for k in (skipgram.INPUT, skipgram.OUTPUT)
  }
  rows = {k: tables[k][np.minimum(v, case.vocab - 1)] for k, v in ids.items()}
  exact = {k: v.astype(np.float64) for k, v in tables.items()}
  expected = _truth(name, case, batch, draws, exact)
  return Made(model, batch, ids, draws, rows, expected)


@every_model
@every_case
def test_ids_are_those_of_the_loops(name, case):
  made = _make(name, case)
  assert (
    made.ids.keys() == made.model.specs().keys() == made.expected.ids.keys()
  )
  for k, ids in made.ids.items():
    assert ids.dtype == np.int32
    assert ids.reshape(-1).tolist() == made.expected.ids[k]
  # Chunk by chunk what the sampler gives for (key, chunk of the dispatch).
  positions = made.batch.chunks[:, None] * case.shared + np.arange(case.shared)
  drawn = jax.jit(sampling.draw)(
    made.model.negatives, KEY, positions.astype(np.uint32)
  )
  # A chunk without a pair has padding instead.
  pairs = np.asarray(made.batch.left + made.batch.right, int)
  has_pairs = pairs.reshape(len(made.draws), -1).any(1)
  drawn = np.asarray(drawn).reshape(made.draws.shape)
  drawn = np.where(has_pairs[:, None], drawn, case.vocab)
  np.testing.assert_array_equal(made.draws, drawn)


@every_model
@every_case
def test_loss_and_gradients_equal_the_loops(name, case):
  made = _make(name, case)
  loss, examples, grads = _value_and_grad(
    made.model, made.rows, made.ids, made.batch
  )
  assert loss.shape == () and loss.dtype == jnp.float32
  np.testing.assert_allclose(loss, made.expected.loss, 1e-5, 1e-6)
  assert examples == made.expected.examples
  for k, expected in made.expected.grads.items():
    assert grads[k].dtype == jnp.float32
    size = np.abs(expected).max()
    found = np.asarray(grads[k]).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5 * size + 1e-7)


def test_the_cases_are_what_they_say():
  # Otherwise the tests above might compare nothing with nothing.
  examples = {
    k: _make('skipgram', c).expected.examples for k, c in CASES.items()
  }
  empty = {k for k, n in examples.items() if not n}
  assert empty == {'only_padding', 'one_word_sentences'}
  case = CASES['draws_equal_targets']
  made = _make('skipgram', case)
  chunks = made.ids[skipgram.INPUT].reshape(-1, case.chunk)
  assert all(
    np.intersect1d(*x).size for x in zip(chunks, made.draws, strict=True)
  )
  made = _make('skipgram', CASES['huge_scores'])
  flat = {k: v.reshape(-1, case.dim) for k, v in made.rows.items()}
  scores = flat[skipgram.INPUT] @ flat[skipgram.OUTPUT].T
  assert np.abs(scores).max() > 1000
  made = _make('cbow', CASES['some_one_word_sentences'])
  contexts = made.batch.left + made.batch.right
  words = made.batch.tokens[:, 3:-3] < 30
  assert (words & (contexts == 0)).any() and (words & (contexts > 0)).any()
  made = _make('skipgram', CASES['runs'])
  assert len({run.tobytes() for run in made.batch.tokens}) == 3


@every_model
def test_a_draw_that_is_the_target_does_not_count(name):
  # All draws are word 0: where it is the target there are no negatives.
  case = Case(lengths=(40,), scale=1.0)
  made = _make(name, case, negatives_on=0)
  assert not made.draws.any()
  loss, *_ = _value_and_grad(made.model, made.rows, made.ids, made.batch)
  np.testing.assert_allclose(loss, made.expected.loss, 1e-5)
  none = made.batch._replace(
    tokens=np.where(made.batch.tokens < case.vocab, 0, case.vocab)
  )
  ids = _ids(made.model, none)
  *_, grads = _value_and_grad(made.model, made.rows, ids, none)
  drawn = np.asarray(grads[skipgram.OUTPUT]).reshape(
    case.size // case.chunk, -1, case.dim
  )[:, -case.shared :]
  assert not drawn.any()


@every_model
def test_gradients_of_the_loops_by_finite_differences(name):
  # Who checks the truth: its loss, in float64.
  case = Case(
    vocab=6, runs=2, size=12, chunk=4, dim=2, window=2, lengths=(3, 5)
  )
  made = _make(name, case)
  rng = np.random.default_rng(2)
  tables = {k: rng.normal(size=(6, 2)) for k in made.ids}

  def step():
    return _truth(name, case, made.batch, made.draws, tables)

  truth = step()
  for k, table in tables.items():
    # Padding is looked up as the last row but never has a gradient.
    found = oracle.summed(truth.ids[k], truth.grads[k], case.vocab)
    for place in np.ndindex(*table.shape):
      kept = table[place]
      table[place] = kept + 1e-5
      above = step().loss
      table[place] = kept - 1e-5
      below = step().loss
      table[place] = kept
      assert found[place] == pytest.approx((above - below) / 2e-5, abs=1e-7)


def _expected_negatives(name, case, batch, tables, chance):
  """Gradient of K negatives per example, summed over the whole vocabulary.

  Every word stands for its chance: `tables`-shaped, no draws involved.
  """
  grads = {k: np.zeros_like(v) for k, v in tables.items()}
  inputs, outputs = tables[skipgram.INPUT], tables[skipgram.OUTPUT]
  for run, i in np.ndindex(case.runs, case.size):
    around = oracle.contexts(i, batch.left[run], batch.right[run])
    words = [int(batch.tokens[run, case.window + i + o]) for o in around]
    center = int(batch.tokens[run, case.window + i])
    if name == 'skipgram':
      pairs = [([center], word) for word in words]
    else:
      pairs = [(words, center)] if words else []
    for sources, target in pairs:
      hidden = np.mean([inputs[s] for s in sources], 0)
      examples = [(target, 1, 1.0)]
      for word in range(case.vocab):
        if word != target:
          examples.append((word, 0, case.negatives * chance[word]))
      for word, label, weight in examples:
        score = float(hidden @ outputs[word])
        slope = weight * (oracle.sigmoid(score) - label)
        grads[skipgram.OUTPUT][word] += slope * hidden
        for source in sources:
          grads[skipgram.INPUT][source] += slope * outputs[word] / len(sources)
  return grads


@every_model
def test_expected_gradient_is_that_of_k_negatives_per_example(name):
  case = Case(vocab=8, runs=2, size=8, chunk=4, dim=3, window=2, lengths=(5, 6))
  model = _model(name, case)
  batch = _batch(case)
  rng = np.random.default_rng(3)
  tables = {
    k: (0.8 * rng.normal(size=(case.vocab, case.dim))).astype(np.float32)
    for k in (skipgram.INPUT, skipgram.OUTPUT)
  }

  model = jax.device_put(model)
  on_device = jax.device_put(batch)

  def table_grads(step):
    chunks = step * len(batch.chunks) + jnp.arange(len(batch.chunks))
    batch_of_step = on_device._replace(chunks=chunks.astype(jnp.uint32))
    ids = model.ids(batch_of_step, KEY)

    def loss(tables):
      rows = {k: tables[k].at[v].get(mode='clip') for k, v in ids.items()}
      return _loss(model, rows, ids, batch_of_step)[0]

    return jax.grad(loss)(tables)

  num = 20_000
  found = jax.jit(jax.vmap(table_grads))(jnp.arange(num))
  weights = (1000 / np.arange(1, case.vocab + 1)) ** 0.75
  expected = _expected_negatives(
    name,
    case,
    batch,
    {k: v.astype(np.float64) for k, v in tables.items()},
    weights / weights.sum(),
  )
  for k in tables:
    samples = np.asarray(found[k], np.float64)
    error = samples.std(0) / np.sqrt(num)
    size = np.abs(expected[k]).max()
    # Small enough for a wrong weight of the negatives to show.
    assert error.max() < 0.02 * size
    off = np.abs(samples.mean(0) - expected[k])
    assert (off <= 4 * error + 1e-6 * size).all()


@every_model
def test_any_share_of_a_step_has_the_ids_of_the_whole(name):
  # Whoever has a chunk, and with which others: the same draws and windows.
  made = _make(name, CASES['runs'])
  case, batch = CASES['runs'], made.batch
  per_run = case.size // case.chunk
  half = case.size // 2
  for run in range(case.runs):
    for first in (0, half):
      mine = slice(first, first + half)
      part = base.StepBatch(
        batch.tokens[run : run + 1, first : first + half + 2 * case.window],
        batch.left[run : run + 1, mine],
        batch.right[run : run + 1, mine],
        batch.chunks.reshape(-1, per_run)[run][
          first // case.chunk : (first + half) // case.chunk
        ],
      )
      start = run * per_run + first // case.chunk
      for k, ids in _ids(made.model, part).items():
        np.testing.assert_array_equal(
          ids, made.ids[k][start : start + len(ids)]
        )


@every_model
def test_a_share_of_the_columns_gives_the_loss_of_whole_rows(name):
  # On devices that have some columns each: all know the loss, and each has the
  # gradients of its own columns.
  case = Case(dim=8)
  made = _make(name, case)
  row_ops = products.RowOps(wire.Axis(mesh.TABLE))
  spec = dataclasses.replace(made.model.spec, row_ops=row_ops)
  model = dataclasses.replace(made.model, spec=spec)
  everywhere = jax.sharding.PartitionSpec()
  columns = jax.sharding.PartitionSpec(None, None, mesh.TABLE)
  on_devices = jax.shard_map(
    jax.value_and_grad(lambda *args: _loss(model, *args)[0]),
    mesh=mesh.make(mesh.Shape(1, 4)),
    in_specs=(columns, everywhere, everywhere),
    out_specs=(everywhere, columns),
    check_vma=False,
  )
  loss, grads = jax.jit(on_devices)(made.rows, made.ids, made.batch)
  np.testing.assert_allclose(loss, made.expected.loss, 1e-5)
  for k, expected in made.expected.grads.items():
    found = np.asarray(grads[k]).reshape(expected.shape)
    size = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5 * size)


def test_negative_distribution():
  counts = np.array([10_000, 160, 1, 0], np.int64)
  table = sampling.alias_table(skipgram.negative_probabilities(counts))
  expected = np.array([1000.0, 160**0.75, 1, 0])
  chance = np.zeros(4)
  for slot in range(4):
    chance[slot] += table.probability[slot]
    chance[table.alias[slot]] += 1 - table.probability[slot]
  np.testing.assert_allclose(chance / 4, expected / expected.sum(), 1e-5)
