"""Tables, packed rows and vectors of words with subwords.

Steps are those of `kernels.cpu.step_test`.
"""

import dataclasses

import jax
import numpy as np
import pytest

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.models import base, skipgram, subwords
from jaxemb.ops import ngrams, sampling
from jaxemb.storage import export
from tests import dispatches, marking
from tests.kernels.cpu import step_test

WORDS = ['banana', 'band', 'an', 'ö', 'ban', 'c', 'internationalisation']
SUBWORDS = ngrams.Subwords(3, 4, 1000)


def _model(words=WORDS, is_subwords=SUBWORDS, is_cbow=False):
  counts = np.arange(len(words), 0, -1)
  return subwords.make(
    base.WindowSpec(len(words), 5, 2, 5, 4, 4),
    base.Corpus(words, counts, counts / counts.sum()),
    loss_of=sampling.logistic_loss,
    subwords=is_subwords,
    is_cbow=is_cbow,
  )


def _ngrams_of(word):
  return [bucket for _, bucket in ngrams.of_word(word, SUBWORDS)]


def test_rows_are_of_buckets_in_use_and_frequent_ones_come_first():
  model = _model()
  spec = model.specs()[subwords.NGRAMS]
  buckets = model.words.buckets.of_rows
  lookups = dict.fromkeys(buckets.tolist(), 0.0)
  of_words = model.specs()[skipgram.INPUT].lookups_per_center
  for word, number in zip(WORDS, of_words, strict=True):
    for bucket in _ngrams_of(word):
      lookups[bucket] += number
  assert len(buckets) == spec.vocab == len(lookups)
  np.testing.assert_allclose(
    spec.lookups_per_center, [lookups[x] for x in buckets]
  )
  assert (np.diff(spec.lookups_per_center) <= 0).all()
  for i, word in enumerate(WORDS):
    rows = model.words.rows[model.words.starts[i] : model.words.starts[i + 1]]
    np.testing.assert_array_equal(buckets[rows], _ngrams_of(word))


@pytest.mark.parametrize('dtype', ['float32', 'int8'])
def test_vectors_are_means_of_the_rows_of_words(dtype, monkeypatch):
  model, rng = _model(), np.random.default_rng(0)
  rows = {k: rng.normal(size=(x.vocab, 5)) for k, x in model.specs().items()}
  stored = {k: export.Encoded(x.astype(np.float32)) for k, x in rows.items()}
  if dtype == 'int8':
    stored = {
      k: export.Encoded(
        np.round(20 * x).astype(np.int8), np.full(len(x), 0.05, np.float32)
      )
      for k, x in rows.items()
    }
    rows = {k: x.decode() for k, x in stored.items()}
  row_of = {x: i for i, x in enumerate(model.words.buckets.of_rows)}
  expected = []
  for i, word in enumerate(WORDS):
    all_rows = [rows[skipgram.INPUT][i]]
    all_rows += [rows[subwords.NGRAMS][row_of[x]] for x in _ngrams_of(word)]
    expected.append(np.mean(all_rows, 0))
  monkeypatch.setattr(subwords, '_BLOCK_WORDS', 3)
  vectors = model.composed(stored)
  np.testing.assert_allclose(vectors.data, expected, 1e-5, 1e-6)
  # Of tables in a store, whose rows are read when they are needed.
  on_demand = {
    k: export.Encoded(
      *(
        x if x is None else export.OnDemand(x.__getitem__, x.shape, x.dtype)
        for x in encoded
      )
    )
    for k, encoded in stored.items()
  }
  vectors = model.composed(on_demand)
  assert isinstance(vectors.data, export.OnDemand)
  np.testing.assert_allclose(
    vectors.data[[4, 0, 4]], np.array(expected)[[4, 0, 4]], 1e-5, 1e-6
  )
  assert vectors.data[:0].shape == (0, 5)


@pytest.mark.slow
@pytest.mark.parametrize(
  'model', ['skipgram-subwords', marking.slow('cbow-subwords')]
)
def test_the_compact_variant_learns_the_same(model):
  case = step_test.Case(model, vocab=200, words=30, way='xla', lengths=(5,))
  trainable = step_test._make(case)
  full, batch = trainable.model, dispatches.random_step(case)
  packed = jax.jit(lambda x, batch: x.ids(batch, dispatches.KEY))
  none = len(full.words.buckets.of_rows)
  sizes = (packed(full, batch)[subwords.NGRAMS] < none).sum(1)
  assert 0 < sizes.max() < full.room
  for room, fits in ((sizes.max() - 1, False), (sizes.max(), True)):
    full = dataclasses.replace(full, compact_room=int(room))
    assert jax.jit(lambda x, batch: x.fits(batch))(full, batch) == fits
  assert full.compact.room == sizes.max() and full.compact.compact is None
  state = step_test._state(case, trainable)
  args = state, batch, np.float32(0.1)
  small = dataclasses.replace(trainable, model=full.compact)
  (one, one_metrics), (other, metrics) = (
    step_test._program(x)(*args) for x in (trainable, small)
  )
  np.testing.assert_allclose(metrics.loss, one_metrics.loss, 1e-5)
  for name, table in one.tables.items():
    np.testing.assert_allclose(
      other.tables[name].vectors, table.vectors, 1e-5, 1e-6
    )


def test_a_vocabulary_without_ngrams_is_one_line():
  with pytest.raises(errors.UserError, match='no word is as long as that'):
    _model(['ab', 'c'], ngrams.Subwords(5, 6, 1000))


@pytest.mark.parametrize(
  ('settings', 'line'),
  [
    ({'model.subwords': '6-3'}, 'n-grams of 6 to 3 characters are none'),
    ({'model.subwords': '0-3'}, 'n-grams of 0 to 3 characters are none'),
    ({'model.subwords': 'three'}, "'three' is no range of characters"),
    ({'model.buckets': 100}, 'only used with n-grams'),
    ({'model.subwords': '3-6', 'model.loss': 'hierarchical_softmax'},
     'only used when config.model.loss is negative_sampling'),
    ({'model.subwords': '3-6', 'model.name': 'mixture',
      'senses.top_ratio': 0.1}, 'config.model.name is skipgram or cbow'),
    ({'model.subwords': '3-6', 'strategy.name': 'partition'},
     'not merged from sub-models'),
    ({'model.subwords': '3-6', 'train.init_from': 'run'}, 'whole words'),
    ({'model.subwords': '3-6', 'data.source': 'graph'}, 'not used with graph'),
  ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_one_line(settings, line):
  with pytest.raises(errors.UserError, match=line):
    config_lib.check(config_lib.default(), settings)
