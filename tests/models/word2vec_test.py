"""Skip-gram and CBOW: ids, loss and gradients against loops over pairs."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.models import base, cbow, skipgram
from jaxemb.ops import chunks, losses, sampling, wire
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


class Made(NamedTuple):
  """The model of a case, a step of it, and the truth."""

  case: Case
  model: base.Model
  batch: base.StepBatch
  tables: dict[str, np.ndarray]
  ids: dict[str, np.ndarray]
  draws: np.ndarray  # [chunks, shared]
  loss: jax.Array
  examples: jax.Array
  grads: dict[str, jax.Array]  # of rows
  truth: oracle.Step


def _batch(case):
  rng = np.random.default_rng(0)
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
  numbers = rng.permutation(1000)[:num_chunks].astype(np.uint32)
  return base.StepBatch(*map(np.stack, zip(*runs, strict=True)), numbers)


def _step(model, batch, tables):
  ids = model.ids(batch, KEY)

  def loss(rows):
    value, aux = model.loss((), rows, ids, batch, KEY)
    return value, aux.examples

  rows = {k: tables[k].at[v].get(mode='clip') for k, v in ids.items()}
  return ids, *jax.value_and_grad(loss, has_aux=True)(rows)


@functools.cache
def _program(name):
  """Of one class of models: their fields are alike."""
  del name
  return jax.jit(lambda *args: _step(*args))


def _truth(name, case, batch, draws, tables, negatives):
  tables = {k: v.astype(np.float64) for k, v in tables.items()}
  args = tables, case.window, case.chunk, negatives
  return MODELS[name][1](*batch[:3], draws, *args)


@functools.cache
def _make(name, case):
  spec = base.WindowSpec(
    case.vocab, case.dim, case.window, case.negatives, case.chunk, case.shared
  )
  counts = 1000 / np.arange(1, case.vocab + 1)
  corpus = base.Corpus((), counts, counts / counts.sum())
  model = MODELS[name][0](spec, corpus, losses.logistic_loss)
  batch = _batch(case)
  rng = np.random.default_rng(1)
  tables = {
    k: (case.scale * rng.normal(size=(case.vocab, case.dim))).astype(np.float32)
    for k in model.specs()
  }
  args = jax.device_put((model, batch, tables))
  ids, (loss, examples), grads = _program(name)(*args)
  draws = np.asarray(ids[skipgram.OUTPUT]).reshape(len(batch.chunks), -1)
  draws = draws[:, -case.shared :]
  truth = _truth(name, case, batch, draws, tables, case.negatives)
  return Made(
    case, model, batch, tables, ids, draws, loss, examples, grads, truth
  )


@every_model
@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_ids_loss_and_gradients_are_those_of_the_loops(name, case):
  made = _make(name, case)
  assert made.ids.keys() == made.model.specs().keys() == made.truth.ids.keys()
  np.testing.assert_allclose(made.loss, made.truth.loss, 1e-5, 1e-6)
  assert made.loss.dtype == jnp.float32
  assert made.examples == made.truth.examples
  for k, expected in made.truth.grads.items():
    assert made.ids[k].dtype == np.int32
    assert made.ids[k].reshape(-1).tolist() == made.truth.ids[k]
    found = np.asarray(made.grads[k]).reshape(expected.shape)
    size = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5 * size + 1e-7)
  # Chunk by chunk what the sampler gives for (key, chunk of the dispatch);
  # padding in a chunk without a pair.
  positions = made.batch.chunks[:, None] * case.shared + np.arange(case.shared)
  positions = positions.astype(np.uint32)
  drawn = jax.jit(sampling.draw)(made.model.negatives, KEY, positions)
  pairs = np.asarray(made.batch.left + made.batch.right, int)
  has_pairs = pairs.reshape(len(drawn), -1).any(1)
  drawn = np.where(has_pairs[:, None], drawn, case.vocab)
  np.testing.assert_array_equal(made.draws, drawn)


def test_the_cases_are_what_they_say():
  # Otherwise the tests above might compare nothing with nothing.
  made = {k: _make('skipgram', case) for k, case in CASES.items()}
  empty = {k for k, x in made.items() if not x.truth.examples}
  assert empty == {'only_padding', 'one_word_sentences'}
  found = made['draws_equal_targets']
  centers = found.ids[skipgram.INPUT]
  pairs = zip(centers, found.draws, strict=True)
  assert all(np.intersect1d(*pair).size for pair in pairs)
  inputs, outputs = made['huge_scores'].tables.values()
  assert np.abs(inputs @ outputs.T).max() > 1000
  batch = made['some_one_word_sentences'].batch
  contexts = (batch.left + batch.right)[batch.tokens[:, 3:-3] < 30]
  assert contexts.any() and not contexts.all()
  assert len({run.tobytes() for run in made['runs'].batch.tokens}) == 3


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
    return _truth(name, case, made.batch, made.draws, tables, case.negatives)

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


@every_model
def test_expected_gradient_is_that_of_k_negatives_per_example(name):
  case = Case(vocab=8, runs=2, size=8, chunk=4, dim=3, window=2, lengths=(5, 6))
  made, num = _make(name, case), 20_000
  model, batch, tables = jax.device_put((made.model, made.batch, made.tables))

  def table_grads(step):
    numbers = step * len(batch.chunks) + jnp.arange(len(batch.chunks))
    drawn = batch._replace(chunks=numbers.astype(jnp.uint32))
    ids, _, grads = _step(model, drawn, tables)
    return {
      k: jnp.zeros_like(x).at[ids[k]].add(grads[k], mode='drop')
      for k, x in tables.items()
    }

  found = jax.jit(jax.vmap(table_grads))(jnp.arange(num))
  # No draws: every word of the vocabulary stands for its chance.
  chances = (1000 / np.arange(1, case.vocab + 1)) ** 0.75
  words = [range(case.vocab)] * len(batch.chunks)
  truth = _truth(
    name, case, made.batch, words, made.tables,
    case.negatives * chances / chances.sum(),
  )  # fmt: skip
  for k in tables:
    expected = oracle.summed(truth.ids[k], truth.grads[k], case.vocab)
    samples = np.asarray(found[k], np.float64)
    error = samples.std(0) / np.sqrt(num)
    size = np.abs(expected).max()
    # Small enough for a wrong weight of the negatives to show.
    assert error.max() < 0.02 * size
    off = np.abs(samples.mean(0) - expected)
    assert (off <= 4 * error + 1e-6 * size).all()


@every_model
def test_any_share_of_a_step_has_the_ids_of_the_whole(name):
  # Whoever has a chunk, and with which others: the same draws and windows.
  made = _make(name, CASES['runs'])
  case, batch = made.case, made.batch
  half, each = case.size // 2, case.size // case.chunk // 2
  model = jax.device_put(made.model)
  ids = jax.jit(lambda batch: model.ids(batch, KEY))
  for i, (run, first) in enumerate(np.ndindex(case.runs, 2)):
    mine = slice(first * half, (first + 1) * half)
    part = base.StepBatch(
      batch.tokens[[run], mine.start : mine.stop + 2 * case.window],
      batch.left[[run], mine],
      batch.right[[run], mine],
      batch.chunks[i * each :][:each],
    )
    for k, found in ids(part).items():
      np.testing.assert_array_equal(found, made.ids[k][i * each :][:each])


@every_model
def test_a_share_of_the_columns_gives_the_loss_of_whole_rows(name):
  # On devices that have some columns each: all know the loss, and each has the
  # gradients of its own columns.
  made = _make(name, Case(dim=8))
  row_ops = chunks.RowOps(wire.Axis(mesh.TABLE))
  spec = dataclasses.replace(made.model.spec, row_ops=row_ops)
  model = dataclasses.replace(made.model, spec=spec)
  everywhere = jax.sharding.PartitionSpec()
  columns = jax.sharding.PartitionSpec(None, mesh.TABLE)
  by_row = jax.sharding.PartitionSpec(None, None, mesh.TABLE)
  on_devices = jax.shard_map(
    _step,
    mesh=mesh.make(mesh.Shape(1, 4)),
    in_specs=(everywhere, everywhere, columns),
    out_specs=(everywhere, everywhere, by_row),
    check_vma=False,
  )
  _, (loss, _), grads = jax.jit(on_devices)(model, made.batch, made.tables)
  np.testing.assert_allclose(loss, made.loss, 1e-5)
  for k, expected in made.grads.items():
    size = np.abs(expected).max()
    np.testing.assert_allclose(grads[k], expected, 1e-5, 1e-5 * size)
