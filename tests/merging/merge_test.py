"""Merges of parts in memory: votes, lost words, lengths, warnings."""

import numpy as np
import pytest

from jaxemb import embeddings
from jaxemb.evaluation import subwords
from jaxemb.merging import merge
from jaxemb.merging import multivectors as senses
from jaxemb.merging import parts as parts_lib
from jaxemb.ops import ngrams as ngrams_lib
from jaxemb.storage import export
from tests import oracle

_DIM = 8
_SLOT = 'optimizer/context_vectors/sum_squares'


def _truth(vocab=300, dim=_DIM):
  rng = np.random.default_rng(0)
  return rng.normal(size=(vocab, dim)) / np.sqrt(1 + np.arange(dim))


def _rows(array):
  return np.asarray(array, np.float32)


def _part(name, truth, seed, missing=0.0, noise=0.0, rename='w{}', **more):
  """A rotated copy of some rows, in another order."""
  rng = np.random.default_rng(seed)
  turn = oracle.rotation(rng, truth.shape[1])
  ids = rng.permutation(len(truth))[: round(len(truth) * (1 - missing))]
  rows = truth[ids] @ turn + noise * rng.normal(size=(len(ids), len(turn)))
  name_of = rename if callable(rename) else rename.format
  words = [name_of(i) for i in ids.tolist()]
  return parts_lib.Part(name, words, _rows(rows), 10_000 - ids)._replace(**more)


def _parts(num, truth, *args):
  return [_part(f'p{i}', truth, i, *args) for i in range(num)]


def _ids(words):
  return np.array([int(word[1:]) for word in words])


def _merge(parts, folder=None, **settings):
  parts = [parts_lib.check(part) for part in parts]
  return senses.merge(parts, merge.Spec(**settings), folder)


def _warnings(parts, **settings):
  return _merge(parts, **settings).report['warnings']


def _error(merged, truth):
  """Largest error of the cosines of merged vectors."""
  found, wanted = merged.vectors, truth[_ids(merged.words)]
  return np.abs(oracle.cosines(found) - oracle.cosines(wanted)).max()


@pytest.mark.parametrize('weights', ['counts', 'equal'])
@pytest.mark.parametrize('normalize', [False, True])
def test_a_word_is_the_weighted_mean_of_the_parts_that_saw_it(
  weights, normalize
):
  rng, parts = np.random.default_rng(5), []
  for part in _parts(3, _truth(), 0.3, 0.3):
    counts = rng.integers(0, 9, len(part.words))
    rows = np.where(counts[:, None] > 0, part.vectors, 100)
    parts.append(part._replace(vectors=_rows(rows), counts=counts))
  restore = weights == 'counts'
  merged = _merge(parts, weights=weights, normalize=normalize, restore=restore)
  assert merged.report['weights'] == weights
  seen = [np.count_nonzero(part.counts) for part in parts]
  assert [x['words'] for x in merged.report['parts']] == seen
  turns, means = np.split(merged.rotations, 3), {}
  for word in set().union(*(part.words for part in parts)):
    total, mean = 0, np.zeros(_DIM)
    for part, turn in zip(parts, turns, strict=True):
      i = part.words.index(word) if word in part.words else None
      if i is not None and part.counts[i]:
        vector = np.asarray(part.vectors[i], np.float64)
        vector = vector / np.linalg.norm(vector) if normalize else vector
        weight = part.counts[i] if weights == 'counts' else 1
        mean, total = mean + weight * (vector @ turn), total + weight
    if total:
      means[word] = mean / total
  assert means.keys() == set(merged.words)
  averages = np.stack([means[word] for word in merged.words])
  np.testing.assert_allclose(merged.vectors, averages @ merged.outer, 0, 1e-5)
  longer = np.linalg.norm(merged.vectors) / np.linalg.norm(averages)
  assert longer > 1.05 if restore else abs(longer - 1) < 1e-5


@pytest.mark.parametrize('method', ['alir', 'pca', 'concat'])
def test_blocks_and_files_do_not_matter(tmp_path, monkeypatch, method):
  parts = _parts(3, _truth(900), 0.1, 0.1)
  one = _merge(parts, method=method)
  monkeypatch.setattr(merge, '_BLOCK_BYTES', 1)
  filed = []
  for part in parts:
    np.save(tmp_path / part.name, part.vectors)
    rows = np.load(tmp_path / f'{part.name}.npy', mmap_mode='r')
    filed.append(part._replace(vectors=rows))
  other = _merge(filed, tmp_path / 'merged', method=method)
  assert other.words == one.words and isinstance(other.vectors, np.memmap)
  assert np.abs(other.vectors - one.vectors).max() < 1e-5
  moved = one.report['displacements']
  assert other.report['displacements'] == pytest.approx(moved, rel=1e-9)


def test_concat_and_pca_cover_common_words():
  parts = _parts(3, _truth(), 0.2)
  words = [set(part.words) for part in parts]
  common, union = set.intersection(*words), set.union(*words)
  concat = _merge(parts, method='concat')
  assert set(concat.words) == common and concat.vectors.shape[1] == 3 * _DIM
  for row, word in enumerate(concat.words[:20]):
    wanted = [p.vectors[p.words.index(word)] for p in parts]
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


@pytest.mark.parametrize('power', [1.0, 0.5])
def test_contexts_and_optimizer_slots_go_with_the_vectors(power):
  rng, parts = np.random.default_rng(9), []
  by_vectors, by_contexts = (
    f'optimizer/{x}/mean' for x in ('vectors', 'context_vectors')
  )
  names = 'context_vectors', by_vectors, by_contexts
  truth = {x: rng.normal(size=(300, _DIM)) for x in names}
  for part in _parts(3, _truth(), 0.3):
    ids = _ids(part.words)
    turn = np.linalg.lstsq(_truth()[ids], part.vectors, None)[0]
    more = {x: _rows(rows[ids] @ turn) for x, rows in truth.items()}
    more[_SLOT] = _rows(1 + ids[:, None] % 7)
    parts.append(part._replace(trainable=more))
  merged = _merge(parts, power=power)
  ids, truth['vectors'] = _ids(merged.words), _truth()
  found = merged.trainable | {'vectors': merged.vectors}
  # Inner products stay. Gradients by vectors change as contexts do.
  for left, right in (
    ('vectors', 'context_vectors'),
    ('vectors', by_vectors),
    (by_contexts, 'context_vectors'),
  ):
    expected = truth[left][ids] @ truth[right][ids].T
    np.testing.assert_allclose(found[left] @ found[right].T, expected, 0, 1e-4)
  assert np.allclose(merged.outer, np.eye(_DIM)) == (power == 1)
  np.testing.assert_allclose(found[_SLOT], 1 + ids[:, None] % 7, 1e-5)
  # What some part lacks, or what other methods would change, is left out.
  del parts[0].trainable[_SLOT]
  merged = _merge(parts)
  assert sorted(merged.trainable) == sorted(names)
  assert _SLOT in merged.report['warnings'][0]
  for settings in ({'normalize': True}, {'method': 'concat'}):
    assert not _merge(parts, **settings).trainable


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


def test_directions_that_common_words_lack():
  # Without noise averaging shrinks nothing; three words span few directions.
  parts = [
    _part(f'p{i}', _truth(2000), 0, 0.0, 0.0,
          lambda w, i=i: f'w{w}' + f'-{i}' * (w >= 3), counts=None)
    for i in range(2)
  ]  # fmt: skip
  merged = _merge(parts, align_words=100)
  row = {word: i for i, word in enumerate(merged.words)}
  for part in parts:
    rows = np.array(part.vectors, np.float64)
    mine = merged.vectors[[row[word] for word in part.words]]
    assert 0.9 < np.linalg.norm(mine) / np.linalg.norm(rows) < 2
    assert np.abs(oracle.cosines(mine) - oracle.cosines(rows)).max() < 1e-5


def test_parts_of_different_dimensions():
  truth = _truth(300, 6)
  wide = np.pad(truth, ((0, 0), (0, 4)))
  parts = [_part('six', truth, 0, 0.2), _part('ten', wide, 1, 0.2)]
  for settings, dim in (({}, 10), ({'dim': 6}, 6), ({'method': 'pca'}, 10)):
    merged = _merge(parts, **settings)
    assert merged.vectors.shape[1] == dim and _error(merged, truth) < 1e-5
    # Products of rows stay, so that vectors and contexts fit.
    turn = merged.rotations[:6]
    is_orthogonal = np.allclose(turn @ turn.T, np.eye(6), 0, 1e-6)
    assert is_orthogonal == ('method' not in settings)
  assert _merge(parts, method='concat').vectors.shape[1] == 16


def test_outliers_are_named():
  truth = _truth(2000)
  parts = [*_parts(3, truth, 0.0, 0.1), _part('alien', truth[::-1], 9)]
  (line,) = _warnings(parts)
  assert 'drifted apart' in line and 'alien' in line and 'p1' not in line
  rows = _rows(9 * parts[2].vectors)
  parts[3] = parts[2]._replace(name='long', vectors=rows)
  (line,) = _warnings(parts)
  assert 'long' in line and '--normalize' in line
  assert not _warnings(parts, normalize=True)


def test_what_is_not_merged_is_a_warning(tmp_path):
  truth = _rows(_truth(20))
  ngrams = subwords.NgramVectors(ngrams_lib.Subwords(3, 4, 5), truth[:5])
  operators = export.Relations('diagonal', 'product', 0.0, ['r'], truth[:1])
  unused = operators._replace(operator='none')
  for name, more in (
    ('a', {'subwords': ngrams, 'relations': unused}),
    ('b', {'attributes': {'tag': np.arange(20)}, 'relations': operators}),
    ('c', {'subwords': ngrams}),
  ):
    words = [f'w{i}' for i in range(20)]
    embeddings.Embeddings(words, truth, **more).save(tmp_path / name)
  paths = [str(tmp_path / x) for x in 'abc']
  parts, _ = parts_lib.open_all(paths, tmp_path / 's', False, skip_bad=False)
  lines = [x for x in _warnings(parts) if 'not merged' in x]
  a, b, c = paths
  assert lines == [
    f'attributes are not merged, which are of {b}',
    f'n-grams are not merged, which are of {a}, {c}',
    f'relations are not merged, which are of {b}',
  ]
