"""Merges of parts in memory: votes, lost words, lengths, warnings."""

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.merging import align, merge, senses
from jaxemb.merging import parts as parts_lib

_DIM = 8
_SLOT = 'optimizer/context_vectors/sum_squares'


def _truth(vocab=300, dim=_DIM):
  rng = np.random.default_rng(0)
  return rng.normal(size=(vocab, dim)) / np.sqrt(1 + np.arange(dim))


def _rows(array):
  return parts_lib.Rows(np.asarray(array, np.float32))


def _part(name, truth, seed, missing=0.0, noise=0.0, **more):
  """A rotated copy of some rows, in another order."""
  rng = np.random.default_rng(seed)
  turn = np.linalg.qr(rng.normal(size=(truth.shape[1],) * 2))[0]
  ids = rng.permutation(len(truth))[: round(len(truth) * (1 - missing))]
  rows = truth[ids] @ turn + noise * rng.normal(size=(len(ids), len(turn)))
  words = [f'w{i}' for i in ids]
  return parts_lib.Part(name, words, _rows(rows), 10_000 - ids)._replace(**more)


def _parts(num, truth, *args):
  return [_part(f'p{i}', truth, i, *args) for i in range(num)]


def _renamed(part, rename):
  return part._replace(words=[rename(int(word[1:])) for word in part.words])


def _merge(parts, folder=None, **settings):
  parts = [parts_lib.check(part) for part in parts]
  return senses.merge(parts, merge.Spec(**settings), folder)


def _cosines(vectors):
  unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
  return unit @ unit.T


def _error(merged, truth):
  """Largest error of the cosines of merged vectors."""
  wanted = truth[[int(word[1:]) for word in merged.words]]
  return np.abs(_cosines(merged.vectors) - _cosines(wanted)).max()


def test_alir_covers_the_words_of_any_part():
  truth = _truth()
  parts = _parts(3, truth, 0.5)
  merged = _merge(parts)
  union = {word for part in parts for word in part.words}
  assert set(merged.words) == union and len(union) < 300
  assert _error(merged, truth) < 1e-5
  counts = {}
  for part in parts:
    for word, count in zip(part.words, part.counts.tolist(), strict=True):
      counts[word] = counts.get(word, 0) + count
  assert [counts[word] for word in merged.words] == merged.counts.tolist()
  assert (np.diff(merged.counts) <= 0).all()
  for facts, part in zip(merged.report['parts'], parts, strict=True):
    assert facts['words'] == len(part.words)
    assert facts['missing_words'] == len(union) - len(part.words)
    assert facts['residual'] < 1e-5 and facts['agreement'] > 0.9999
  assert merged.report['lost']['words'] == 0 and not merged.report['warnings']


@pytest.mark.parametrize('weights', ['counts', 'equal'])
@pytest.mark.parametrize('normalize', [False, True])
def test_a_word_is_the_weighted_mean_of_its_parts(weights, normalize):
  rng = np.random.default_rng(5)
  parts = [
    p._replace(counts=rng.integers(1, 99, len(p.words)))
    for p in _parts(3, _truth(), 0.3, 0.3)
  ]
  merged = _merge(parts, weights=weights, normalize=normalize)
  assert merged.report['weights'] == weights
  for row, word in enumerate(merged.words):
    total, mean = 0.0, np.zeros(_DIM)
    for part, turn in zip(parts, np.split(merged.rotations, 3), strict=True):
      if word in part.words:
        i = part.words.index(word)
        vector = np.asarray(part.vectors.open()[i], np.float64)
        vector = vector / np.linalg.norm(vector) if normalize else vector
        weight = part.counts[i] if weights == 'counts' else 1
        mean, total = mean + weight * (vector @ turn), total + weight
    expected = mean / total @ merged.outer
    assert np.abs(merged.vectors[row] - expected).max() < 1e-5


def test_a_part_that_never_saw_a_word_has_no_vote_on_it():
  truth = _truth()
  parts = _parts(3, truth)
  rows, counts = np.array(parts[1].vectors.open()), parts[1].counts.copy()
  rows[:40], counts[:40] = 100, 0
  parts[1] = parts[1]._replace(vectors=_rows(rows), counts=counts)
  merged = _merge(parts)
  assert _error(merged, truth) < 1e-5
  assert merged.report['parts'][1]['missing_words'] == 40
  unseen = [
    p._replace(counts=np.where(np.array(p.words) == 'w7', 0, p.counts))
    for p in parts
  ]
  assert 'w7' not in _merge(unseen).words


def test_a_word_weighs_as_much_as_it_has_parts():
  # Else rotations would be those of the ten most frequent words.
  parts = [
    parts_lib.Part('a', ['x', 'y'], None, np.array([3, 1])),
    parts_lib.Part('b', ['y', 'x'], None, np.array([7, 1])),
  ]
  union = parts_lib.unite_words(parts)
  assert union.words == ['y', 'x'] and union.counts.tolist() == [8, 4]
  has = np.array([[1, 1, 1], [1, 1, 0]], bool)
  votes = np.append(union.votes, [[1], [0]], 1)
  weights = parts_lib.vote_weights(has, votes)
  assert np.allclose(weights.T, [[0.25, 1.75], [1.5, 0.5], [1, 0]])
  assert np.array_equal(parts_lib.vote_weights(has, None), has)


@pytest.mark.parametrize(
  ('method', 'start'),
  [('alir', 'zero'), ('alir', 'random'), ('pca', 'zero'), ('concat', 'zero')],
)
def test_blocks_and_files_do_not_matter(tmp_path, monkeypatch, method, start):
  parts = _parts(3, _truth(900), 0.1, 0.1)
  one = _merge(parts, method=method, start=start)
  monkeypatch.setattr(merge, '_BLOCK_BYTES', 1)
  filed = []
  for part in parts:
    np.save(tmp_path / f'{part.name}.npy', part.vectors.open())
    rows = parts_lib.Rows(tmp_path / f'{part.name}.npy')
    filed.append(part._replace(vectors=rows))
  other = _merge(filed, tmp_path / 'merged', method=method, start=start)
  assert other.words == one.words and isinstance(other.vectors, np.memmap)
  assert np.abs(other.vectors - one.vectors).max() < 1e-5


def test_concat_and_pca_cover_common_words():
  parts = _parts(3, _truth(), 0.2)
  words = [set(part.words) for part in parts]
  common, union = set.intersection(*words), set.union(*words)
  concat = _merge(parts, method='concat')
  assert set(concat.words) == common and concat.vectors.shape[1] == 3 * _DIM
  for row, word in enumerate(concat.words[:20]):
    wanted = [p.vectors.open()[p.words.index(word)] for p in parts]
    assert np.array_equal(concat.vectors[row], np.concatenate(wanted))
  lost = concat.report['lost']
  assert lost['words'] == len(union) - len(common)
  (line,) = concat.report['warnings']
  assert f'{lost["words"]:,} words' in line and lost['examples'][0] in line
  pca = _merge(parts, method='pca', dim=5)
  assert pca.words == concat.words
  left, values, _ = np.linalg.svd(concat.vectors, full_matrices=False)
  wanted = left[:, :5] * values[:5]
  assert np.abs(np.abs(pca.vectors) - np.abs(wanted)).max() < 1e-4


def test_contexts_and_optimizer_slots_go_with_the_vectors():
  truth, parts = _truth(), _parts(3, _truth(), 0.3)
  for i, part in enumerate(parts):
    rng = np.random.default_rng(i)
    turn = np.linalg.qr(rng.normal(size=(_DIM, _DIM)))[0]
    ids = np.array([int(word[1:]) for word in part.words])
    more = {
      'context_vectors': _rows(np.tanh(truth[ids]) @ turn),
      _SLOT: _rows(1 + ids[:, None] % 7),
    }
    parts[i] = part._replace(trainable=more)
  merged = _merge(parts)
  ids = np.array([int(word[1:]) for word in merged.words])
  products = merged.vectors @ merged.trainable['context_vectors'].T
  assert np.abs(products - truth[ids] @ np.tanh(truth[ids]).T).max() < 1e-5
  assert merged.trainable[_SLOT].shape == (len(ids), 1)
  assert np.abs(merged.trainable[_SLOT][:, 0] - (1 + ids % 7)).max() < 1e-5
  # What some part lacks, or what other methods would change, is left out.
  del parts[0].trainable[_SLOT]
  merged = _merge(parts)
  assert list(merged.trainable) == ['context_vectors']
  assert _SLOT in merged.report['warnings'][0]
  for settings in ({'normalize': True}, {'method': 'concat'}):
    assert not _merge(parts, **settings).trainable


def test_inner_products_stay_where_lengths_change():
  rng = np.random.default_rng(0)
  names = (
    'context_vectors',
    'optimizer/vectors/mean',
    'optimizer/context_vectors/mean',
  )
  parts = [
    p._replace(
      trainable={x: _rows(rng.normal(size=p.vectors.shape)) for x in names}
    )
    for p in _parts(3, _truth(), 0.3, 0.3)
  ]
  plain, restored = (_merge(parts, restore=x) for x in (False, True))
  assert np.array_equal(plain.outer, np.eye(_DIM))
  norms = [np.linalg.norm(x.vectors) for x in (plain, restored)]
  assert norms[1] > 1.05 * norms[0]
  # Gradients by contexts change as vectors do, those by vectors as contexts.
  for left, right in ((None, names[0]), (None, names[1]), names[::2]):
    products = [
      (x.trainable[left] if left else x.vectors) @ x.trainable[right].T
      for x in (plain, restored, _merge(parts, power=0.5))
    ]
    for other in products[1:]:
      assert np.abs(products[0] - other).max() < 1e-4


@pytest.mark.parametrize('method', merge.CHOICES['method'])
def test_power_evens_principal_directions(method):
  parts = _parts(3, _truth(), 0.0, 0.3)
  settings = {'restore': False} if method == 'alir' else {}
  plain, even = (
    _merge(parts, power=x, method=method, **settings) for x in (1.0, 0.5)
  )
  assert even.words == plain.words and even.report['power'] == 0.5
  expected = []
  for table in np.split(plain.vectors, 3 if method == 'concat' else 1, 1):
    left, values, right = np.linalg.svd(table, full_matrices=False)
    expected.append(left * values[0] * (values / values[0]) ** 0.5 @ right)
  expected = np.concatenate(expected, 1)
  scale = np.linalg.norm(expected) / np.linalg.norm(even.vectors)
  assert np.abs(even.vectors * scale - expected).max() < 1e-5


@pytest.mark.parametrize('method', ['concat', 'alir'])
def test_zero_vectors_stay_finite(method):
  first, second = _parts(2, _truth())
  half = np.array(second.vectors.open())
  half[:150] = 0
  words = [f'w{i}' if i < 150 else f'x{i}' for i in range(300)]
  half = second._replace(words=words, vectors=_rows(half))
  merged = _merge([first, half], method=method, power=0.5)
  assert np.isfinite(merged.vectors).all()


@pytest.mark.parametrize('power', [1.0, 0.75])
def test_directions_that_common_words_lack(power):
  # Without noise averaging shrinks nothing; three words span few directions.
  truth, parts = _truth(2000), []
  for i in range(2):
    part = _part(f'p{i}', truth, 0, counts=None)
    parts.append(_renamed(part, lambda w, i=i: f'w{w}' + f'-{i}' * (w >= 3)))
  merged = _merge(parts, power=power, align_words=100)
  row = {word: i for i, word in enumerate(merged.words)}
  for part in parts:
    rows = np.array(part.vectors.open(), np.float64)
    mine = merged.vectors[[row[word] for word in part.words]]
    assert 0.9 < np.linalg.norm(mine) / np.linalg.norm(rows) < 2
    if power == 1:
      assert np.abs(_cosines(mine) - _cosines(rows)).max() < 1e-5


def test_a_missing_word_is_placed_by_the_other_part():
  """As in the authors' mask_benchmark.csv, on synthetic vectors."""
  noise, truth = 0.15, _truth(2000)
  target, source = _parts(2, truth, 0.0, noise)
  masked = np.arange(2000) < 100
  masked_target = target._replace(
    words=target.words[100:],
    vectors=_rows(target.vectors.open()[100:]),
    counts=target.counts[100:],
  )
  merged = _merge([masked_target, source])
  row = {word: i for i, word in enumerate(merged.words)}
  placed = merged.vectors[[row[word] for word in target.words]]
  back = placed @ np.linalg.inv(merged.outer) @ merged.rotations[:_DIM].T
  # As near to the true row as the noise of both allows.
  error = np.linalg.norm(back - target.vectors.open(), axis=1)[masked]
  assert error.mean() < 1.2 * noise * np.sqrt(2 * _DIM)


def test_rotations_are_fitted_on_some_words():
  has = np.ones((3, 1000), bool)
  has[2, :900] = has[1, :50] = False
  chosen = align.fit_words(has, 200, (8, 8, 4))
  assert (has[:, chosen].sum(0) > 1).all()
  # Evenly, and twenty words for each dimension of the last part.
  assert np.all(np.diff(chosen) <= 5) and len(chosen) <= 200 + 80
  assert has[2, chosen].sum() == 80
  assert len(align.fit_words(np.ones_like(has), 1000, (8, 8, 4))) == 1000
  # The last part has only rare words.
  truth = _truth(1000)
  parts = _parts(2, truth, 0.0, 0.1)
  rare = _part('rare', truth[500:], 2, 0.0, 0.1, counts=np.ones(500, int))
  parts.append(_renamed(rare, lambda w: f'w{500 + w}'))
  few, every = (
    _merge(parts, align_words=x, weights='equal') for x in (300, 1000)
  )
  assert few.words == every.words
  assert np.abs(_cosines(few.vectors) - _cosines(every.vectors)).max() < 0.1
  assert few.report['parts'][2]['agreement'] > 0.95


def test_fitted_words_tie_all_parts():
  # The two groups have only rare words in common.
  truth, parts = _truth(3000), []
  for i, first in enumerate((0, 0, 1000, 1000)):
    part = _part(f'p{i}', truth[first : first + 1500], i)
    part = _renamed(part, lambda w, first=first: f'w{w + first}')
    ids = np.array([int(word[1:]) for word in part.words])
    counts = np.where((ids >= 1000) & (ids < 1500), 1, 1000)
    parts.append(part._replace(counts=counts))
  assert _error(_merge(parts, align_words=500), truth) < 1e-5


def test_parts_of_different_dimensions():
  truth = _truth(300, 6)
  wide = np.pad(truth, ((0, 0), (0, 4)))
  parts = [_part('six', truth, 0, 0.2), _part('ten', wide, 1, 0.2)]
  for dim, wanted in ((0, 10), (6, 6)):
    merged = _merge(parts, dim=dim)
    assert merged.vectors.shape[1] == wanted and _error(merged, truth) < 1e-5
  assert _merge(parts, method='concat').vectors.shape[1] == 16
  assert _merge(parts, method='pca').vectors.shape[1] == 10


def test_without_counts_all_parts_weigh_the_same():
  truth = _truth(50)
  parts = [_part('a', truth, 0), _part('b', truth, 1, 0.5, counts=None)]
  merged = _merge(parts)
  assert merged.report['weights'] == 'equal'
  assert any('not known of b' in x for x in merged.report['warnings'])
  # By best rank; counts of some parts would be mistaken for those of all.
  assert set(merged.words[:2]) == {parts[0].words[0], parts[1].words[0]}
  assert (merged.counts == 1).all()


def test_outliers_are_named():
  truth = _truth(2000)
  parts = [*_parts(3, truth, 0.0, 0.1), _part('alien', truth[::-1], 9)]
  (line,) = _merge(parts).report['warnings']
  assert 'drifted apart' in line and 'alien' in line and 'p1' not in line
  parts[3] = parts[2]._replace(
    name='long', vectors=_rows(9 * parts[2].vectors.open())
  )
  (line,) = _merge(parts).report['warnings']
  assert 'long' in line and '--normalize' in line
  assert not _merge(parts, normalize=True).report['warnings']


def test_few_common_words_are_warned_of():
  truth = _truth(100)
  parts = [_part('a', truth[:50], 0), _part('b', truth, 1)]
  parts[1] = _renamed(parts[1], lambda w: f'w{w + 45}')
  line, *_ = _merge(parts).report['warnings']
  assert 'share 5 words at most' in line and 'a | b' in line
  line, _ = _merge(parts, method='pca').report['warnings']
  assert 'only 5 words are in all parts' in line
  # Two groups with two words in common, and a part that ties them.
  parts = _parts(4, truth)
  for i in (2, 3):
    parts[i] = _renamed(parts[i], lambda w: 'x' * (w > 1) + f'w{w}')
  line, *_ = _merge(parts).report['warnings']
  assert 'share 2 words at most' in line and 'p0, p1 | p2, p3' in line
  words = [*parts[0].words[:50], *[w for w in parts[2].words if 'x' in w][:50]]
  parts.append(_part('both', truth, 5, words=words))
  assert not any('at most' in x for x in _merge(parts).report['warnings'])


def test_parts_without_common_words_are_refused():
  a, b, c = (_part(name, _truth(50), i) for i, name in enumerate('abc'))
  b = _renamed(b, lambda w: f'x{w}')
  with pytest.raises(errors.UserError, match=r'nothing to align on.*a, c \| b'):
    _merge([a, b, c])
  with pytest.raises(errors.UserError, match='--method=alir'):
    _merge([a, b, c], method='concat')


@pytest.mark.parametrize(
  ('bad', 'message'),
  [
    (np.zeros((0, _DIM)), 'b is empty: 0 vectors of 8 numbers'),
    (np.zeros((50, _DIM)), 'b is empty: all its vectors are zero'),
    (np.full((50, _DIM), np.nan), 'b: 50 of 50 rows of vectors are not finite'),
    (np.where(np.arange(50) == 7, np.inf, 1.0)[:, None], r"b: 1 of 50 .*'w7'"),
  ],
)
def test_bad_parts_are_named(bad, message):
  part = parts_lib.Part('b', [f'w{i}' for i in range(len(bad))], _rows(bad))
  with pytest.raises(errors.UserError, match=message):
    parts_lib.check(part)
  if len(bad) and not np.isfinite(bad).all():
    good = part._replace(vectors=_rows(np.ones((50, _DIM))))
    with pytest.raises(errors.UserError, match='rows of context_vectors are'):
      parts_lib.check(good._replace(trainable={'context_vectors': _rows(bad)}))
  with pytest.raises(errors.UserError, match='all its counts are 0'):
    parts_lib.check(part._replace(vectors=_rows([[1]]), counts=np.zeros(1)))


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'dim': 9}, '--dim=9 is more than the parts have, 8'),
    ({'dim': 20, 'method': 'pca'}, '--dim=20 is more'),
    ({'dim': 5, 'method': 'concat'}, 'the 16 dimensions of all parts'),
  ],
)
def test_impossible_dimensions(settings, message):
  with pytest.raises(errors.UserError, match=message):
    _merge(_parts(2, _truth(50)), **settings)


def test_root_mean_square_length():
  part = _part('a', _truth(20_000), 0)
  lengths = np.linalg.norm(part.vectors.open().astype(np.float64), axis=1)
  wanted = np.sqrt(np.mean(lengths**2))
  assert parts_lib.check(part).rms_norm == pytest.approx(wanted, rel=1e-5)
