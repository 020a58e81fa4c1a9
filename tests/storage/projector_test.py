"""Projector files by the rules of TensorBoard's reader."""

import re

import numpy as np
import pytest

from jaxemb.storage import projector


def _read(path):
  text = path.read_text(encoding='utf-8')
  assert text.endswith('\n')
  return [line.split('\t') for line in text[:-1].split('\n')]


def test_most_frequent_words_are_chosen(tmp_path):
  vectors = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
  words, counts = ['a', 'b c', 'd\te', '', 'f'], np.array([5, 9, 2, 9, 7])
  chosen = projector.write(tmp_path, words, vectors, counts, max_words=4)
  assert chosen == (4, 5)
  metadata = _read(tmp_path / 'metadata.tsv')
  assert metadata[0] == ['word', 'count']
  assert metadata[1:] == [['b_c', '9'], ['_', '9'], ['f', '7'], ['a', '5']]
  tensors = np.array(_read(tmp_path / 'tensors.tsv'), np.float64)
  np.testing.assert_allclose(tensors, vectors[[1, 3, 4, 0]], rtol=1e-5)


def test_one_column_has_no_header(tmp_path):
  vectors = np.zeros((5000, 2), np.float32)
  words = [f'w{i}' for i in range(5000)]
  assert projector.write(tmp_path, words, vectors).num_words == 5000
  assert _read(tmp_path / 'metadata.tsv') == [[word] for word in words]
  assert len(_read(tmp_path / 'tensors.tsv')) == 5000


def test_config_names_the_files(tmp_path):
  projector.write(tmp_path, ['a'], np.ones((1, 2), np.float32))
  config = (tmp_path / 'projector_config.pbtxt').read_text()
  for name in re.findall(r'_path: "(.*)"', config):
    assert (tmp_path / name).exists()


@pytest.mark.parametrize('num_words', [0, 1])
def test_few_words(tmp_path, num_words):
  vectors = np.ones((num_words, 2), np.float32)
  chosen = projector.write(
    tmp_path, ['a'][:num_words], vectors, np.ones(num_words, int)
  )
  assert chosen == (num_words, num_words)
