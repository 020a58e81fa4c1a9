"""Merges of parts in memory: who votes, what is lost, what is warned of."""

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.evaluation import geometry
from jaxemb.merging import align, merge
from jaxemb.merging import parts as parts_lib

_DIM = 8


def _orthogonal(rng, size=_DIM):
  return np.linalg.qr(rng.normal(size=(size, size)))[0]


def _truth(vocab=300, dim=_DIM):
  rng = np.random.default_rng(0)
  return rng.normal(size=(vocab, dim)) / np.sqrt(1 + np.arange(dim))


def _part(
  name, truth, seed, missing=0.0, noise=0.0, counts=True, trainable=False
):
  """A rotated copy of some rows, in an order of its own."""
  rng = np.random.default_rng(seed)
  turn = _orthogonal(rng, truth.shape[1])
  kept = rng.permutation(len(truth))[: round(len(truth) * (1 - missing))]
  rows = truth[kept] @ turn + noise * rng.normal(size=(len(kept), len(turn)))
  more = {}
  if trainable:
    context = np.tanh(truth[kept]) @ turn
    squares = 1.0 + kept[:, None] % 7
    more = {
      'output': parts_lib.as_rows(context.astype(np.float32)),
      'output.sum_squares': parts_lib.as_rows(squares.astype(np.float32)),
    }
  return parts_lib.Part(
    name,
    [f'w{i}' for i in kept],
    parts_lib.as_rows(rows.astype(np.float32)),
    1000 - kept if counts else None,
    more,
  )


def _merge(parts, folder=None, skip_bad=False, **settings):
  return merge.merge_parts(parts, merge.Spec(**settings), folder, skip_bad)


def _cosines(vectors):
  unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
  return unit @ unit.T


def _in_order(merged, truth):
  return truth[[int(word[1:]) for word in merged.words]]


def test_the_words_of_any_part_are_placed():
  truth = _truth()
  parts = [_part(f'p{i}', truth, i, missing=0.5) for i in range(3)]
  merged = _merge(parts)
  union = {word for part in parts for word in part.words}
  assert set(merged.words) == union and len(union) < 300  # none is invented
  assert np.abs(_cosines(merged.vectors) - _cosines(_in_order(merged, truth))
  ).max() < 1e-5  # fmt: skip
  counts = {}
  for part in parts:
    for word, count in zip(part.words, part.counts.tolist(), strict=True):
      counts[word] = counts.get(word, 0) + count
  assert [counts[word] for word in merged.words] == merged.counts.tolist()
  assert (np.diff(merged.counts) <= 0).all()
  for found, part in zip(merged.report['parts'], parts, strict=True):
    assert found['words'] == len(part.words)
    assert found['missing_words'] == len(union) - len(part.words)
    assert found['residual'] < 1e-5 and found['agreement'] > 0.9999
  assert merged.report['lost']['words'] == 0 and not merged.report['warnings']


@pytest.mark.parametrize('weights', ['counts', 'equal'])
@pytest.mark.parametrize('normalize', [False, True])
def test_a_word_is_the_weighted_mean_of_its_parts(weights, normalize):
  truth = _truth()
  parts = [_part(f'p{i}', truth, i, 0.3, 0.3) for i in range(3)]
  rng = np.random.default_rng(5)
  parts = [p._replace(counts=rng.integers(1, 99, len(p.words))) for p in parts]
  merged = _merge(parts, weights=weights, normalize=normalize)
  assert merged.report['weights'] == weights
  for row, word in enumerate(merged.words):
    total, mean = 0.0, np.zeros(_DIM)
    for part, turn in zip(parts, merged.rotations, strict=True):
      if word in part.words:
        place = part.words.index(word)
        vector = np.asarray(part.vectors.open()[place], np.float64)
        if normalize:
          vector = vector / np.linalg.norm(vector)
        weight = part.counts[place] if weights == 'counts' else 1
        mean, total = mean + weight * (vector @ turn), total + weight
    expected = mean / total @ merged.outer
    assert np.abs(merged.vectors[row] - expected).max() < 1e-5


def test_a_word_that_a_part_never_saw_has_no_vote():
  truth = _truth()
  parts = [_part(f'p{i}', truth, i) for i in range(3)]
  rows = np.array(parts[1].vectors.open())
  unseen = np.arange(40)
  rows[unseen] = 100.0  # as they were drawn
  counts = parts[1].counts.copy()
  counts[unseen] = 0
  parts[1] = parts[1]._replace(vectors=parts_lib.as_rows(rows), counts=counts)
  merged = _merge(parts)
  assert np.abs(_cosines(merged.vectors) - _cosines(_in_order(merged, truth))
  ).max() < 1e-5  # fmt: skip
  assert merged.report['parts'][1]['missing_words'] == 40
  # A word that nobody saw is nowhere.
  parts = [p._replace(counts=np.where(
    [w == 'w7' for w in p.words], 0, p.counts)) for p in parts]  # fmt: skip
  assert 'w7' not in _merge(parts).words


@pytest.mark.parametrize('method', merge.METHODS)
@pytest.mark.parametrize('start', ['random', 'zero'])
def test_blocks_and_files_change_nothing(tmp_path, method, start):
  truth = _truth(100)
  parts = [_part(f'p{i}', truth, i, 0.1, 0.1) for i in range(3)]
  settings = {'method': method, 'start': start}
  if method != 'alir' and start == 'random':
    pytest.skip('has no start')
  one = _merge(parts, **settings)
  # The same words in files, in blocks that the last does not fill.
  filed = [
    part._replace(
      vectors=parts_lib.spool(part.vectors.open(), tmp_path, part.name)
    )
    for part in parts
  ]
  assert all(part.vectors.is_file for part in filed)
  for other in (
    _merge(filed, tmp_path / 'merged', block_rows=24, **settings),
    _merge(parts, block_rows=30, **settings),
  ):
    assert other.words == one.words
    assert np.abs(other.vectors - one.vectors).max() < 1e-5
  assert other.report['displacements'] == pytest.approx(
    one.report['displacements'], rel=1e-3
  )


def test_concat_and_pca_cover_what_all_parts_have():
  truth = _truth()
  parts = [_part(f'p{i}', truth, i, missing=0.2) for i in range(3)]
  common = set.intersection(*(set(part.words) for part in parts))
  concat = _merge(parts, method='concat')
  assert set(concat.words) == common and concat.vectors.shape[1] == 3 * _DIM
  for row, word in enumerate(concat.words[:20]):
    wanted = [p.vectors.open()[p.words.index(word)] for p in parts]
    assert np.array_equal(concat.vectors[row], np.concatenate(wanted))
  lost = concat.report['lost']
  union = {word for part in parts for word in part.words}
  assert lost['words'] == len(union) - len(common)
  (line,) = concat.report['warnings']
  assert f'{lost["words"]:,} words' in line and lost['examples'][0] in line
  pca = _merge(parts, method='pca', dim=5)
  assert pca.words == concat.words
  left, values, _ = np.linalg.svd(concat.vectors, full_matrices=False)
  wanted = left[:, :5] * values[:5]
  assert np.abs(np.abs(pca.vectors) - np.abs(wanted)).max() < 1e-4


def test_contexts_and_optimizer_state_go_with_the_vectors():
  truth = _truth()
  parts = [_part(f'p{i}', truth, i, 0.3, trainable=True) for i in range(3)]
  merged = _merge(parts, block_rows=50)
  mine = _in_order(merged, truth)
  logits = merged.vectors @ merged.trainable['output'].T
  assert np.abs(logits - mine @ np.tanh(mine).T).max() < 1e-5
  squares = 1 + np.array([int(word[1:]) for word in merged.words]) % 7
  found = merged.trainable['output.sum_squares']
  assert found.shape == (len(squares), 1)
  assert np.abs(found[:, 0] - squares).max() < 1e-5
  # Not all of them have it; or lengths are gone.
  parts[0] = parts[0]._replace(
    trainable={'output': parts[0].trainable['output']}
  )
  merged = _merge(parts)
  assert list(merged.trainable) == ['output']
  assert 'output.sum_squares' in merged.report['warnings'][0]
  for settings in ({'normalize': True}, {'method': 'concat'}):
    merged = _merge(parts, **settings)
    assert not merged.trainable
    assert any('context vectors' in x for x in merged.report['warnings'])


def test_products_stay_where_lengths_are_restored():
  truth = _truth()
  parts = [_part(f'p{i}', truth, i, 0.3, 0.3, trainable=True) for i in range(3)]
  rng = np.random.default_rng(0)
  names = ('output', 'input.mean', 'output.mean')
  parts = [
    p._replace(
      trainable={
        name: parts_lib.as_rows(
          rng.normal(size=(len(p.words), _DIM)).astype(np.float32)
        )
        for name in names
      }
    )
    for p in parts
  ]
  plain, restored = (_merge(parts, restore=x) for x in (False, True))
  flat = _merge(parts, power=0.5)
  assert np.array_equal(plain.outer, np.eye(_DIM))
  assert restored.report['restore'] and not plain.report['restore']
  norms = [np.linalg.norm(x.vectors) for x in (plain, restored)]
  assert norms[1] > 1.05 * norms[0]
  # Gradients by contexts change as vectors do, those by vectors as contexts.
  for left, right in (
    ('', 'output'), ('', 'input.mean'), ('output', 'output.mean'),
  ):  # fmt: skip
    products = [
      (x.trainable[left] if left else x.vectors) @ x.trainable[right].T
      for x in (plain, restored, flat)
    ]
    for found in products[1:]:
      assert np.abs(products[0] - found).max() < 1e-4


@pytest.mark.parametrize('method', merge.METHODS)
def test_lengths_of_directions_can_be_flattened(method):
  truth = _truth()
  parts = [_part(f'p{i}', truth, i, 0, 0.3) for i in range(3)]
  settings = {'method': method, 'restore': False}
  plain, flat = (_merge(parts, power=x, **settings) for x in (1.0, 0.5))
  assert flat.words == plain.words and flat.report['power'] == 0.5
  assert (flat.report['align_words'] is None) == (method != 'alir')
  # Of Concat, each part's.
  tables = np.split(plain.vectors, 3 if method == 'concat' else 1, 1)
  expected = []
  for table in tables:
    left, values, right = np.linalg.svd(table, full_matrices=False)
    expected.append(left * values[0] * (values / values[0]) ** 0.5 @ right)
  expected = np.concatenate(expected, 1)
  # Up to one factor.
  found = flat.vectors * (
    np.linalg.norm(expected) / np.linalg.norm(flat.vectors)
  )
  assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize('method', ['concat', 'alir'])
def test_parts_of_zeros_stay_finite(method):
  truth = _truth()
  parts = [_part(f'p{i}', truth, i) for i in range(2)]
  zeros = parts_lib.as_rows(np.zeros_like(truth, np.float32))
  with pytest.raises(errors.UserError, match='p1 is empty: all its vectors'):
    _merge([parts[0], parts[1]._replace(vectors=zeros)], method=method)
  # Zeros where parts meet, and words of its own.
  half = np.array(parts[1].vectors.open())
  half[: len(truth) // 2] = 0
  names = [
    f'w{i}' if i < len(truth) // 2 else f'x{i}' for i in range(len(half))
  ]
  other = parts[1]._replace(words=names, vectors=parts_lib.as_rows(half))
  merged = _merge([parts[0], other], method=method, power=0.5)
  assert np.isfinite(merged.vectors).all()


@pytest.mark.parametrize('power', [1.0, 0.75])
def test_directions_that_shared_words_lack(power):
  # Without noise nothing is averaged away; few shared words span few dims.
  truth = _truth(2000)
  parts = []
  for i in range(2):
    part = _part(f'p{i}', truth, 0, counts=False)
    words = [w if int(w[1:]) < 3 else f'{w}-{i}' for w in part.words]
    parts.append(part._replace(words=words))
  merged = _merge(parts, power=power, align_words=100)
  place = {word: i for i, word in enumerate(merged.words)}
  for part in parts:
    rows = np.array(part.vectors.open(), np.float64)
    mine = merged.vectors[[place[word] for word in part.words]]
    ratio = np.linalg.norm(mine) / np.linalg.norm(rows)
    assert 0.9 < ratio < 2
    if power == 1:
      assert np.abs(_cosines(mine) - _cosines(rows)).max() < 1e-5


@pytest.mark.parametrize('start', ['pca', 'random'])
def test_other_starts_reach_the_same(start):
  truth = _truth(500)
  parts = [_part(f'p{i}', truth, i, 0.3) for i in range(3)]
  merged = _merge(parts, start=start, tolerance=1e-7, max_iterations=50)
  error = _cosines(merged.vectors) - _cosines(_in_order(merged, truth))
  assert np.abs(error).max() < 1e-5


def test_tables_beside_the_vectors_are_checked_too():
  truth = _truth()
  parts = [_part(f'p{i}', truth, i) for i in range(2)]
  rows = np.ones((len(parts[1].words), _DIM), np.float32)
  rows[3, 2] = np.nan
  parts = [
    p._replace(trainable={'output': parts_lib.as_rows(x)})
    for p, x in zip(parts, (np.ones_like(rows), rows), strict=True)
  ]
  word = parts[1].words[3]
  with pytest.raises(errors.UserError, match=f'p1.*vectors of output.*{word}'):
    _merge(parts)


def test_masked_words_are_placed_by_the_part_that_has_them():
  """The experiment of the authors' mask_benchmark.csv, on made-up vectors."""
  rng = np.random.default_rng(1)
  truth = _truth(2000)
  pairs = rng.integers(0, 200, (300, 2))
  pairs = pairs[pairs[:, 0] != pairs[:, 1]]
  target, source = (
    parts_lib.Part(name, [f'w{i}' for i in range(2000)], None)
    for name in ('target', 'source')
  )
  rows = [
    (truth + 0.15 * rng.normal(size=truth.shape)) @ _orthogonal(rng)
    for _ in range(2)
  ]

  def score(vectors):
    cosines = np.sum(vectors[pairs[:, 0]] * vectors[pairs[:, 1]], 1) / np.prod(
      np.linalg.norm(vectors[pairs], axis=2), 1
    )
    wanted = _cosines(truth[:200])[pairs[:, 0], pairs[:, 1]]
    return np.corrcoef(cosines, wanted)[0, 1]

  found = {}
  for share in (0.5, 1.0):
    masked = rng.permutation(200)[: round(200 * share)]
    left = np.setdiff1d(np.arange(2000), masked)
    parts = [
      target._replace(
        words=[f'w{i}' for i in left],
        vectors=parts_lib.as_rows(rows[0][left].astype(np.float32)),
      ),
      source._replace(vectors=parts_lib.as_rows(rows[1].astype(np.float32))),
    ]
    merged = _merge(parts, weights='equal')
    # Back into the target's space, where its other vectors are.
    places = {word: row for row, word in enumerate(merged.words)}
    aligned = merged.vectors[[places[f'w{i}'] for i in masked]]
    repaired, zeros = rows[0].copy(), rows[0].copy()
    repaired[masked] = (
      aligned @ np.linalg.inv(merged.outer) @ (merged.rotations[0].T)
    )
    zeros[masked] = 1e-9 * rng.normal(size=(len(masked), _DIM))
    found[share] = score(repaired), score(zeros)
    # Near the true vector, that is as near as the noise of both allows.
    error = np.linalg.norm(repaired - rows[0], axis=1)[masked]
    assert np.mean(error) < 1.2 * 0.15 * np.sqrt(2 * _DIM)
  # All benchmark words are the source's: any rotation scores what it scores.
  assert found[1.0][0] == pytest.approx(score(rows[1]), abs=1e-5)
  best = score(rows[0])
  assert found[0.5][0] > best - 0.03
  assert found[0.5][1] < best - 0.2


def test_rotations_can_be_fitted_on_some_words():
  truth = _truth(1000)
  parts = [_part(f'p{i}', truth, i, noise=0.1) for i in range(2)]
  # A part whose words are all rare, and one with words of its own.
  parts.append(_part('rare', truth[500:], 2, noise=0.1))
  parts[2] = parts[2]._replace(
    words=[f'w{500 + int(w[1:])}' for w in parts[2].words],
    counts=np.ones(500, np.int64),
  )
  has = np.ones((3, 1000), bool)
  has[2, :900] = has[1, :50] = False
  chosen = align.fit_words(has, 200, (8, 8, 4))
  assert (has[:, chosen].sum(0) > 1).all()
  # Evenly, and twenty words for each dimension of the last part.
  assert np.all(np.diff(chosen) <= 5) and len(chosen) <= 200 + 80
  assert has[2, chosen].sum() == 80
  assert align.fit_words(np.ones_like(has), 1000, (8, 8, 4)) is None
  few = _merge(parts, align_words=300, weights='equal')
  every = _merge(parts, align_words=1000, weights='equal')
  assert few.words == every.words
  assert np.abs(_cosines(few.vectors) - _cosines(every.vectors)).max() < 0.1
  assert few.report['parts'][2]['agreement'] > 0.95


def test_words_that_rotations_are_fitted_on_tie_all_parts():
  # The two groups have only rare words in common.
  truth = _truth(3000)
  parts = []
  for i, first in enumerate((0, 0, 1000, 1000)):
    part = _part(f'p{i}', truth[first : first + 1500], i)
    ids = np.array([int(w[1:]) + first for w in part.words])
    parts.append(part._replace(
      words=[f'w{i}' for i in ids],
      counts=np.where((ids >= 1000) & (ids < 1500), 1, 1000),
    ))  # fmt: skip
  merged = _merge(parts, align_words=500)
  error = _cosines(merged.vectors) - _cosines(_in_order(merged, truth))
  assert np.abs(error).max() < 1e-5


def test_parts_of_other_dimensions():
  truth = _truth(300, 6)
  wide = np.pad(truth, ((0, 0), (0, 4)))
  parts = [_part('six', truth, 0, 0.2), _part('ten', wide, 1, 0.2)]
  for dim, wanted in ((0, 10), (6, 6)):
    merged = _merge(parts, dim=dim)
    assert merged.vectors.shape[1] == wanted
    assert np.abs(
      _cosines(merged.vectors) - _cosines(_in_order(merged, truth))
    ).max() < 1e-5  # fmt: skip
  assert _merge(parts, method='concat').vectors.shape[1] == 16
  assert _merge(parts, method='pca').vectors.shape[1] == 10


def test_without_counts_all_parts_weigh_the_same():
  truth = _truth(50)
  parts = [_part('a', truth, 0), _part('b', truth, 1, 0.5, counts=False)]
  merged = _merge(parts)
  assert merged.report['weights'] == 'equal'
  assert any('not known of b' in x for x in merged.report['warnings'])
  # By the best rank: first those that are first in a part.
  assert set(merged.words[:2]) == {parts[0].words[0], parts[1].words[0]}
  # Not sums over those that know: they would be taken for counts of all.
  assert (merged.counts == 1).all()


def test_parts_that_have_drifted_apart_are_named():
  truth = _truth(2000)
  parts = [_part(f'p{i}', truth, i, noise=0.1) for i in range(3)]
  parts.append(_part('alien', _truth(2000)[::-1], 9))
  (line,) = _merge(parts).report['warnings']
  assert 'drifted apart' in line and 'alien' in line and 'p1' not in line
  parts[3] = parts[2]._replace(
    name='long', vectors=parts_lib.as_rows(9 * parts[2].vectors.open())
  )
  (line,) = _merge(parts).report['warnings']
  assert 'long' in line and '--normalize' in line
  assert not _merge(parts, normalize=True).report['warnings']


def test_few_words_in_common_are_warned_of():
  truth = _truth(100)
  parts = [_part('a', truth[:50], 0), _part('b', truth, 1)]
  parts[1] = parts[1]._replace(
    words=[f'w{int(w[1:]) + 45}' for w in parts[1].words]
  )
  warnings = _merge(parts).report['warnings']
  assert (
    'a shares only 5 words' in warnings[0] and '8 dimensions' in warnings[0]
  )
  (line, _) = _merge(parts, method='pca').report['warnings']
  assert 'only 5 words are in all parts' in line


def test_groups_that_hardly_hang_together_are_warned_of():
  truth = _truth(100)
  parts = [_part(f'p{i}', truth, i) for i in range(4)]
  for i in (2, 3):  # of these only two words are in the first two
    parts[i] = parts[i]._replace(
      words=[w if w in ('w0', 'w1') else f'x{w}' for w in parts[i].words]
    )
  warnings = _merge(parts).report['warnings']
  assert 'share 2 words at most' in warnings[0]
  assert 'p0, p1 | p2, p3' in warnings[0]
  # Through a third one they do hang together.
  parts.append(_part('both', truth, 5))
  parts[4] = parts[4]._replace(words=[*parts[0].words[:50], *(
    [w for w in parts[2].words if w[0] == 'x'][:50])])  # fmt: skip
  assert not any('at most' in x for x in _merge(parts).report['warnings'])


def test_disjoint_parts_are_refused():
  truth = _truth(50)
  parts = [_part('a', truth, 0), _part('b', truth, 1), _part('c', truth, 2)]
  parts[1] = parts[1]._replace(words=[f'x{i}' for i in range(50)])
  with pytest.raises(errors.UserError, match=r'nothing to align on.*a, c \| b'):
    _merge(parts)
  with pytest.raises(errors.UserError, match='--method=alir'):
    _merge(parts, method='concat')


@pytest.mark.parametrize(
  ('bad', 'message'),
  [
    (np.zeros((0, _DIM)), 'b is empty'),
    (np.full((50, _DIM), np.nan), 'b: 50 of 50 vectors are not finite'),
    (np.where(np.arange(50) == 7, np.inf, 1.0)[:, None] * np.ones(_DIM),
     r"b: 1 of 50 .*'w7'"),
  ],
)  # fmt: skip
def test_bad_parts_are_named_and_can_be_left_out(bad, message):
  truth = _truth(50)
  parts = [_part(name, truth, i) for i, name in enumerate('abc')]
  words = [f'w{i}' for i in range(len(bad))]
  parts[1] = parts_lib.Part(
    'b', words, parts_lib.as_rows(bad.astype(np.float32)), None
  )
  with pytest.raises(errors.UserError, match=message + '.*--skip-bad'):
    _merge(parts)
  merged = _merge(parts, skip_bad=True)
  assert [x['name'] for x in merged.report['skipped']] == ['b']
  assert [x['name'] for x in merged.report['parts']] == ['a', 'c']
  with pytest.raises(errors.UserError, match='1 of 2 part'):
    _merge(parts[:2], skip_bad=True)


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'dim': 9}, '--dim=9 is more than the parts have, 8'),
    ({'dim': 20, 'method': 'pca'}, '--dim=20 is more'),
    ({'dim': 5, 'method': 'concat'}, 'the 16 dimensions of all parts'),
  ],
)
def test_dimensions_that_cannot_be_had(settings, message):
  truth = _truth(50)
  with pytest.raises(errors.UserError, match=message):
    _merge([_part('a', truth, 0), _part('b', truth, 1)], **settings)


def test_lengths_are_measured():
  part = _part('a', _truth(20_000), 0)
  rows = part.vectors.open()
  assert parts_lib.check_rows(part) == pytest.approx(
    np.sqrt(np.mean(geometry.norms(rows) ** 2)), rel=1e-5
  )


def test_a_word_weighs_as_much_as_it_has_parts():
  # Else rotations would be those of the ten most frequent words.
  parts = [
    parts_lib.Part('a', ['x', 'y'], None, np.array([3, 1])),
    parts_lib.Part('b', ['y', 'x'], None, np.array([7, 1])),
  ]
  union = parts_lib.unite_words(parts)
  assert union.words == ['y', 'x'] and union.counts.tolist() == [8, 4]
  places = np.append(union.rows, [[1], [-1]], 1)
  weights = parts_lib.vote_weights(parts, places, True)
  assert np.allclose(weights, [[0.25, 1.75], [1.5, 0.5], [1, 0]])
  weights = parts_lib.vote_weights(parts, places, False)
  assert np.array_equal(weights, [[1, 1], [1, 1], [1, 0]])
