"""Skip-gram and CBOW: ids, loss and gradients against loops over pairs."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.kernels.gpu import window_products
from jaxemb.models import base, cbow, skipgram
from jaxemb.ops import sampling
from jaxemb.tables import spec as spec_lib
from tests import dispatches, marking, oracle

KEY = np.array([0x13198A2E, 0x03707344], np.uint32)

MODELS = {
  'skipgram': (skipgram.make, oracle.skipgram),
  'cbow': (cbow.make, oracle.cbow),
}


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
  'window_in_a_loop': Case(window=11, lengths=(30,)),
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

OF_A_GPU = 'window_over_chunk', 'one_chunk', 'half_padding', 'runs'


# The name is static: to JAX, classes with the same fields are the same.
@functools.partial(jax.jit, static_argnums=(0, 4))
def _step(name, model, batch, tables, by_kernel):
  del name
  ids = model.ids(batch, KEY)
  if by_kernel:  # of a GPU, interpreted
    gradients = window_products.Gradients(interpret=True)
    states = {k: spec_lib.TableState(x, (), ()) for k, x in tables.items()}
    loss, examples, grads = gradients(model, states, ids, batch)
    return ids, (loss, examples), grads

  def loss(rows):
    value, aux = model.loss((), rows, ids, batch, KEY)
    return value, aux.examples

  rows = {k: tables[k].at[v].get(mode='clip') for k, v in ids.items()}
  return ids, *jax.value_and_grad(loss, has_aux=True)(rows)


def _sums(ids, grads, vocab):
  """[vocab + 1, dim], the last of padding."""
  sums = np.zeros((vocab + 1, grads.shape[1]))
  np.add.at(sums, np.minimum(np.ravel(ids), vocab), grads)
  return sums


def test_tokens_are_looked_up_once():
  spec = base.WindowSpec(30, 7, 3, 5, 8, 4, tokens_once=True)
  corpus = base.Corpus((), np.ones(30), np.ones(30) / 30)
  batch = dispatches.random_step(CASES['runs'])
  tokens = np.concatenate([np.minimum(x, 30) for x in batch.tokens])
  for model, table, draws in (
    (skipgram.make, skipgram.OUTPUT, 3 * 4 * 4),
    (cbow.make, skipgram.INPUT, 0),
  ):
    model = model(spec, corpus, sampling.logistic_loss)
    ids = np.ravel(jax.jit(model.ids)(batch, KEY)[table])
    assert np.sum(ids < 30) == np.sum(tokens < 30) + draws


@pytest.mark.parametrize('name', MODELS)
@pytest.mark.parametrize(
  ('case', 'way'),
  [
    *marking.slow_after(
      99, (pytest.param(x, '', id=k) for k, x in CASES.items()), step=2
    ),
    *marking.slow_after(
      1, (pytest.param(x, 'once', id=f'{k}_once') for k, x in CASES.items())
    ),
    *marking.slow_after(
      1, (pytest.param(CASES[k], 'gpu', id=f'{k}_gpu') for k in OF_A_GPU)
    ),
    pytest.param(Case(dim=300), 'gpu', id='wide_gpu', marks=pytest.mark.slow),
  ],
)
def test_ids_loss_and_gradients_are_those_of_the_loops(name, case, way):
  tokens_once, by_kernel = way == 'once', way == 'gpu'
  make, loops = MODELS[name]
  spec = base.WindowSpec(
    case.vocab, case.dim, case.window, case.negatives, case.chunk, case.shared,
    tokens_once,
  )  # fmt: skip
  counts = 1000 / np.arange(1, case.vocab + 1)
  corpus = base.Corpus((), counts, counts / counts.sum())
  model = make(spec, corpus, sampling.logistic_loss)
  batch = dispatches.random_step(case)
  rng = np.random.default_rng(1)
  tables = {
    k: (case.scale * rng.normal(size=(case.vocab, case.dim))).astype(np.float32)
    for k in model.specs()
  }
  args = jax.device_put((model, batch, tables))
  ids, (loss, examples), grads = _step(name, *args, by_kernel)
  draws = ids[skipgram.OUTPUT]
  if tokens_once and name == 'skipgram':  # the last blocks are no chunk's
    draws = draws[:, : case.size // case.chunk]
  draws = np.asarray(draws).reshape(len(batch.chunks), -1)[:, -case.shared :]
  truth = loops(
    *batch[:3],
    draws,
    {k: v.astype(np.float64) for k, v in tables.items()},
    case.window,
    case.chunk,
    case.negatives,
  )
  assert ids.keys() == tables.keys() == truth.ids.keys()
  np.testing.assert_allclose(loss, truth.loss, 1e-5, 1e-6)
  assert loss.dtype == jnp.float32 and examples == truth.examples
  for k, expected in truth.grads.items():
    assert ids[k].dtype == np.int32
    found = np.asarray(grads[k]).reshape(-1, case.dim)
    if tokens_once:
      found, expected = (
        _sums(x, y, case.vocab)
        for x, y in ((ids[k], found), (truth.ids[k], expected))
      )
    else:
      assert ids[k].reshape(-1).tolist() == truth.ids[k]
    size = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5 * size + 1e-7)
  # Chunk by chunk what the sampler gives for (key, chunk of the dispatch);
  # padding in a chunk without a pair.
  positions = batch.chunks[:, None] * case.shared + np.arange(case.shared)
  chances = counts**0.75
  table = sampling.alias_table(chances / chances.sum())
  drawn = jax.jit(sampling.draw)(table, KEY, positions.astype(np.uint32))
  pairs = np.asarray(batch.left + batch.right, int)
  has_pairs = pairs.reshape(len(drawn), -1).any(1)
  drawn = np.where(has_pairs[:, None], drawn, case.vocab)
  np.testing.assert_array_equal(draws, drawn)
