"""Which words the report shows, their neighbours and the map."""

import numpy as np
import pytest

from jaxemb.report import words as words_lib


def _table(num_words, dim=6):
  letters = str.maketrans('0123456789', 'abcdefghij')
  words = [f'{i:05d}'.translate(letters) for i in range(num_words)]
  vectors = np.random.default_rng(0).normal(size=(num_words, dim))
  counts = np.arange(num_words, 0, -1)
  return words_lib.Table(words, vectors.astype(np.float32), counts)


def test_neighbours_are_those_of_brute_force():
  table = _table(1000)
  shown = words_lib.neighbours(table, {})
  assert len(shown) == 36
  units = table.units(range(1000))
  for word, rank, count, nearest in shown:
    row = table.words.index(word)
    assert (rank, count) == (row + 1, 1000 - row)
    cosines = units @ units[row]
    cosines[row] = -9
    best = np.argsort(-cosines)[:8]
    words, found = zip(*nearest, strict=True)
    assert list(words) == [table.words[i] for i in best]
    np.testing.assert_allclose(found, cosines[best], rtol=1e-5)


def test_words_span_all_ranks_and_alternate_between_categories():
  table = _table(20_000)
  categories = {'a': table.words[150::300], 'b': table.words[151::300]}
  shown = words_lib.neighbours(table, categories)
  ranks = [rank for _, rank, _, _ in shown]
  assert ranks == sorted(set(ranks)) and len(ranks) == 36
  assert ranks[0] > 100 and ranks[-1] > 10_000
  # Steps beyond rank 3,000 are wide enough for words of both.
  late = [word for word, rank, _, _ in shown if rank > 3000]
  num_a, num_b = (len({*late} & {*words}) for words in categories.values())
  assert num_a + num_b == len(late) and abs(num_a - num_b) <= 1


@pytest.mark.filterwarnings('error')
def test_unusable_vectors_are_skipped():
  table = _table(200)
  table.vectors[60], table.vectors[70] = np.nan, 0
  table = words_lib.Table(table.words, table.vectors, table.counts)
  for categories in ({'some': table.words[50:100]}, {}):
    shown = words_lib.neighbours(table, categories)
    points = sum(words_lib.word_map(table, categories).groups.values(), [])
    words = {item[0] for item in [*shown, *points]}
    words |= {word for item in shown for word, _ in item[3]}
    assert np.isfinite([point[1:] for point in points]).all()
    assert not {table.words[60], table.words[70]} & words


def test_words_of_any_script_are_shown_and_numbers_if_there_is_nothing_else():
  vectors = np.eye(7, dtype=np.float32)
  words = ['the', 'of', 'हिन्दी', '東京', 'k0a', 'don’t', 'word']
  shown = words_lib.neighbours(words_lib.Table(words, vectors, vectors[0]), {})
  assert [item[0] for item in shown] == ['the', 'हिन्दी', '東京', 'word']
  numbers = words_lib.Table([*'1234567'], vectors, vectors[0])
  assert len(words_lib.neighbours(numbers, {})) == 7


def test_map_takes_the_frequent_words_of_the_largest_categories():
  table = _table(3000)
  words = table.words
  categories = {
    'large': [*words[1000:3000], 'unknown'], 'small': words[:30],
    'shared': words[20:40],  # a word counts in its first category
    'empty': ['unknown'],
  }  # fmt: skip
  word_map = words_lib.word_map(table, categories)
  sizes = {name: len(points) for name, points in word_map.groups.items()}
  assert sizes == {'large': 440, 'shared': 10, 'small': 30}
  assert [p[0] for p in word_map.groups['large']] == words[1000:1440]
  assert (word_map.num_groups_omitted, word_map.num_words_omitted) == (0, 1560)
  many = {f'c{i}': words[20 * i : 20 * i + 3] for i in range(40)}
  word_map = words_lib.word_map(table, many)
  assert (len(word_map.groups), word_map.num_groups_omitted) == (24, 16)
  word_map = words_lib.word_map(table, {})  # clusters
  assert word_map.is_clustered and len(word_map.groups) > 9
  assert all(name == points[0][0] for name, points in word_map.groups.items())


@pytest.mark.parametrize('dim', [1, 6])
def test_map_axes_are_the_principal_ones(dim):
  table = _table(50, dim)
  word_map = words_lib.word_map(table, {'all': table.words})
  found = np.array([point[2:] for point in word_map.groups['all']])
  covariance = np.cov(table.units(range(50)).T, bias=True).reshape(dim, dim)
  variances = np.pad(np.linalg.eigvalsh(covariance)[::-1], (0, 1))
  np.testing.assert_allclose(found.var(axis=0), variances[:2], 1e-3, 1e-6)
  explained = variances[:2].sum() / variances.sum()
  assert word_map.explained_variance == pytest.approx(explained, rel=1e-5)
