"""Projector files by the rules of TensorBoard's reader."""

import re

import numpy as np
import pytest

from jaxemb.storage import projector


def _read(path):
  text = path.read_text(encoding='utf-8')
  return [line.split('\t') for line in text.splitlines()]


def test_most_frequent_words_are_chosen(tmp_path):
  vectors = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
  words, counts = ['a', 'b c', 'd\te', '', 'f'], np.array([5, 9, 2, 9, 7])
  assert projector.write(tmp_path, words, vectors, counts, max_words=4) == 4
  metadata = _read(tmp_path / 'metadata.tsv')
  assert metadata[0] == ['word', 'count']
  assert metadata[1:] == [['b_c', '9'], ['_', '9'], ['f', '7'], ['a', '5']]
  tensors = np.array(_read(tmp_path / 'tensors.tsv'), np.float32)
  np.testing.assert_array_equal(tensors, vectors[[1, 3, 4, 0]])
  config = (tmp_path / 'projector_config.pbtxt').read_text()
  assert all(
    (tmp_path / x).exists() for x in re.findall('_path: "(.*)"', config)
  )


@pytest.mark.parametrize('num_words', [0, 1, 5000])
def test_any_number_of_words(tmp_path, num_words):
  words, vectors = [*map(str, range(num_words))], np.ones((num_words, 2))
  counts = np.ones(num_words, int)
  assert projector.write(tmp_path, words, vectors, counts) == num_words
  assert len(_read(tmp_path / 'tensors.tsv')) == num_words
