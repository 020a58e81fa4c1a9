"""Which words are shown, and which are nearest to them."""

import numpy as np

from jaxemb.report import words as choice


def _words(num_words):
  letters = np.array(list('abcdefghij'))
  return [
    ''.join(letters[list(map(int, f'{i:05d}'))]) for i in range(num_words)
  ]


def _vectors(num_words, dim=6, seed=0):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(num_words, dim)).astype(np.float32)


def test_nearest_are_those_of_brute_force(monkeypatch):
  monkeypatch.setattr(choice, '_BLOCK_ROWS', 64)
  words, vectors = _words(1000), _vectors(1000)
  counts = np.arange(1000, 0, -1)
  found, num_searched = choice.neighbours(words, vectors, counts, {})
  assert num_searched == 1000 and len(found) == 36
  assert [item.rank for item in found] == sorted(i.rank for i in found)
  unit = vectors / np.linalg.norm(vectors, axis=1)[:, None]
  for item in found:
    row = words.index(item.word)
    assert (item.rank, item.count) == (row + 1, counts[row])
    cosines = unit @ unit[row]
    cosines[row] = -9
    expected = np.argsort(-cosines)[:8]
    assert [word for word, _ in item.nearest] == [words[i] for i in expected]
    np.testing.assert_allclose(
      [cosine for _, cosine in item.nearest], cosines[expected], rtol=1e-5
    )


def test_words_come_from_the_whole_range_and_from_categories():
  words, vectors = _words(20_000), _vectors(20_000)
  categories = {'one': words[150:20_000:300], 'two': words[151:20_000:300]}
  found, _ = choice.neighbours(words, vectors, np.ones(20_000), categories)
  ranks = np.array([item.rank for item in found])
  assert len(found) == len(set(ranks)) == 36
  assert ranks[0] > 100 and ranks[-1] > 10_000
  # Steps beyond rank 2,000 are wide enough to hold words of both.
  late = [item.word for item in found if item.rank > 3000]
  shares = [
    sum(word in set(members) for word in late) / len(late)
    for members in categories.values()
  ]
  assert sum(shares) == 1 and abs(shares[0] - shares[1]) < 0.2


def test_unusable_vectors_are_never_shown():
  words, vectors = _words(200), _vectors(200)
  vectors[60] = np.nan
  vectors[70] = 0
  bad = {words[60], words[70]}
  categories = {'some': words[50:100]}
  found, _ = choice.neighbours(words, vectors, np.ones(200), categories)
  shown = {item.word for item in found}
  shown |= {word for item in found for word, _ in item.nearest}
  for given in (categories, {}):
    placed = choice.word_map(words, vectors, np.ones(200), given)
    shown |= set(placed.words)
    assert np.isfinite(placed.positions).all()
  assert words[61] in shown and not bad & shown


def test_letters_of_any_script_count_as_words():
  assert choice._is_spelt('हिन्दी')
  assert choice._is_spelt('東京')
  assert not choice._is_spelt('of')
  assert not choice._is_spelt('k0a')
  assert not choice._is_spelt('don’t')


def test_numbers_are_shown_where_there_is_nothing_else():
  words = [str(i) for i in range(500)]
  found, _ = choice.neighbours(words, _vectors(500), np.ones(500), {})
  assert len(found) == 36


def test_map_takes_the_frequent_words_of_every_category():
  words, vectors = _words(3000), _vectors(3000)
  categories = {
    'large': [*words[1000:3000], 'unknown'],
    'small': words[:30],
    'shared': words[20:40],
    'empty': ['unknown'],
  }
  placed = choice.word_map(words, vectors, np.arange(3000, 0, -1), categories)
  assert placed.names == ['large', 'shared', 'small']
  sizes = np.bincount(placed.groups).tolist()
  assert sizes == [480 - 40, 10, 30]  # a word counts in its first category
  large = [w for w, g in zip(placed.words, placed.groups, strict=True) if not g]
  assert large == words[1000:1440]
  assert (placed.num_groups_left_out, placed.num_words_left_out) == (0, 1560)
  assert not placed.is_clustered and placed.perplexity == 15
  assert placed.counts[0] == 3000


def test_map_drops_the_smallest_of_too_many_categories():
  words = _words(1000)
  categories = {f'c{i}': words[20 * i : 20 * i + 3 + i] for i in range(40)}
  placed = choice.word_map(words, _vectors(1000), np.ones(1000), categories)
  assert sorted(placed.names) == sorted(f'c{i}' for i in range(16, 40))
  assert placed.num_groups_left_out == 16


def test_clusters_are_named_after_their_most_frequent_word():
  words = _words(100)
  centers = np.eye(25)
  groups = np.arange(100) % 25
  vectors = (centers[groups] + 0.01 * _vectors(100, 25)).astype(np.float32)
  placed = choice.word_map(words, vectors, np.ones(100), {})
  assert placed.is_clustered and len(placed.names) == 12
  for group, name in enumerate(placed.names):
    members = np.flatnonzero(placed.groups == group)
    assert placed.words[members[0]] == name
  # Words of one center are never torn apart.
  rows = [words.index(word) for word in placed.words]
  for center in range(25):
    together = placed.groups[groups[rows] == center]
    assert len(set(together.tolist())) == 1


def test_few_words_are_placed_by_pca_or_not_at_all():
  words, vectors = _words(10), _vectors(10)
  placed = choice.word_map(words, vectors, np.ones(10), {'a': words[:5]})
  assert placed.perplexity is None and 0 < placed.variance_share <= 1
  assert choice.word_map(words, vectors, np.ones(10), {'a': words[:2]}) is None
