"""Small texts: epochs and subsampling that suit them, unless they are given."""

import json
import random

import numpy as np
import pytest

import jaxemb
from jaxemb import config as config_lib
from jaxemb.config import kinds
from jaxemb.data import subsampling
from jaxemb.run import build

_COLORS = 'red', 'blue', 'green', 'yellow', 'black', 'white'
_ANIMALS = 'dog', 'cat', 'horse', 'cow', 'sheep', 'goat'
_TEMPLATES = (
  ('paint the {} colour wall', _COLORS),
  ('the {} paint is wet', _COLORS),
  ('feed the {} animal now', _ANIMALS),
  ('the {} runs very fast', _ANIMALS),
)


def _sentences(number):
  draw = random.Random(1)
  chosen = [draw.choice(_TEMPLATES) for _ in range(number)]
  return [text.format(draw.choice(words)) for text, words in chosen]


def _threshold(counts, least=0.5):
  """The lowest threshold, from 1e-4 up, that leaves so much: an oracle."""
  for step in range(2000):
    sample = 1e-4 * 1.01**step
    kept = 0.0
    for count in counts:
      ratio = sample * sum(counts) / count
      kept += count * min(1.0, ratio**0.5 + ratio)
    if kept >= least * sum(counts):
      return sample
  raise AssertionError(counts)


@pytest.mark.parametrize('number', [500, 4000])
def test_neighbors_of_a_color_are_colors(number):
  vectors = jaxemb.train(_sentences(number))
  for words in (_COLORS, _ANIMALS):
    for word in words:
      nearest = {x for x, _ in vectors.most_similar(word, topn=5)}
      assert nearest == {*words} - {word}


def test_large_texts_have_the_usual_passes():
  usual = {'train.epochs': 5, 'data.sample': 1e-4}
  counts = np.full(10, 1_600_000)  # of which little is left
  assert config_lib.fitted_passes(counts, counts.sum()) == usual
  zipf = np.int64(1_500_000 / np.arange(1, 50_001)) + 1
  assert config_lib.fitted_passes(zipf, 16_354_344) == usual


@pytest.mark.parametrize(
  'num_words, epochs', [(13e6, 5), (2e6, 10), (250_000, 20), (74_074, 30)]
)
def test_epochs_fall_with_the_cube_root_of_words(num_words, epochs):
  fitted = config_lib.fitted_passes(np.array([10, 10]), num_words)
  assert fitted['train.epochs'] == epochs


def test_half_of_the_words_of_a_small_text_are_left():
  draw = np.random.default_rng(1)
  for size in (2, 30, 500):
    counts = draw.integers(5, 2000, size)
    sample = config_lib.fitted_passes(counts, counts.sum())['data.sample']
    least = _threshold([*map(int, counts)])
    assert 0.97 * least <= sample <= 1.15 * least
  rare = np.full(20_000, 6)
  assert config_lib.fitted_passes(rare, rare.sum())['data.sample'] == 1e-4


@pytest.mark.parametrize(
  'settings', [{}, {'train.fused': False}], ids=['kernel', 'xla']
)
def test_ten_words_do_not_diverge(settings):
  draw = random.Random(1)
  groups = _COLORS[:5], _ANIMALS[:5]
  vectors = jaxemb.train(
    [draw.choices(draw.choice(groups), k=8) for _ in range(1000)],
    model='cbow',
    negatives=20,
    dim=20,
    epochs=10,
    settings=settings,
  )
  nearest = vectors.most_similar('dog', topn=4)
  assert {x for x, _ in nearest} == {*groups[1]} - {'dog'}


@pytest.mark.slow
def test_many_documents_of_ten_words_do_not_diverge():
  draw = random.Random(1)
  documents = [draw.choices(_COLORS[:5], k=10) for _ in range(1500)]
  documents += [draw.choices(_ANIMALS[:5], k=10) for _ in range(1500)]
  model = jaxemb.train(
    documents,
    config='documents',
    negatives=20,
    dim=16,
    epochs=10,
    settings={'train.fused': False},
  )
  assert np.isfinite(model.dv.vectors).all()


def test_the_learning_rate_is_bounded_for_few_words_alone():
  def bounded(frequencies):
    return build._bounded_rate(
      0.2, negatives=5, frequencies=np.array(frequencies), most=0.0025
    )

  assert bounded(np.full(400, 3.0)) == pytest.approx(0.2)
  assert bounded(np.full(100, 3.0)) == pytest.approx(0.1)
  assert bounded([*np.full(100, 3.0), *np.full(1000, 1e-9)]) == pytest.approx(
    0.1
  )


def test_the_fraction_that_is_kept():
  counts = np.array([900, 90, 10])
  kept = subsampling.keep_probabilities(counts, 0.01)
  expected = sum(n * p for n, p in zip(counts, kept, strict=True)) / 1000
  assert subsampling.kept_fraction(counts, 0.01) == pytest.approx(expected)


def test_settings_that_are_given_stay(tmp_path):
  jaxemb.train(
    _sentences(50), epochs=2, sample=1e-3, dim=4, workdir=tmp_path / 'run'
  )
  config = json.loads((tmp_path / 'run/config.json').read_text())
  assert config['train']['epochs'] == 2
  assert config['data']['sample'] == 1e-3
  assert 'is small' not in (tmp_path / 'run/log.txt').read_text()


def test_a_run_says_and_records_what_suits_it_and_resumes(tmp_path):
  folder = tmp_path / 'run'
  for epochs in (0, 30):  # as it began, or as it was chosen
    jaxemb.train(_sentences(50), dim=4, workdir=folder, epochs=epochs)
  config = json.loads((folder / 'config.json').read_text())
  sample = config['data']['sample']
  assert config['train']['epochs'] == 30
  assert 1e-3 < sample < 1e-1
  assert (
    f'is small: 30 epochs, subsampling threshold {sample:g}'
    in (folder / 'log.txt').read_text()
  )


def test_other_kinds_have_the_usual_passes():
  by_source = {x.source: x for x in kinds.built_in() if x.fits_passes}
  assert [*by_source] == ['text', 'documents']
  config = config_lib.default()
  passes = 'train.epochs', 'data.sample'
  assert config_lib.left_open(config) == (*passes, 'optimizer.learning_rate')
  resolved, _ = config_lib.resolve(config, 'cpu', (1, 1))
  assert (resolved.train.epochs, resolved.data.sample) == (5, 1e-4)
