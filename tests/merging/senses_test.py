"""Merging of parts whose words have several vectors."""

import dataclasses
import itertools

import numpy as np
import pytest

from jaxemb import embeddings, errors, merge
from jaxemb.evaluation import geometry
from jaxemb.merging import merge as merge_lib
from jaxemb.merging import parts as parts_lib
from jaxemb.merging import senses
from jaxemb.senses import table
from jaxemb.storage import export, vectors_npy, word2vec_format

_DIM, _WORDS, _AMBIGUOUS, _SENSES = 8, 400, 60, 4


def _random(seed, num_parts, num_senses, dim=5, words=20):
  rng = np.random.default_rng(seed)
  rows = rng.normal(size=(words, num_parts, num_senses, dim))
  priors = rng.dirichlet(np.ones(num_senses), (words, num_parts))
  votes = rng.integers(1, 50, (words, num_parts)).astype(float)
  return rows, priors, votes


def _objective(rows, priors, votes, places):
  """What matching maximizes, for one word, in loops."""
  total = 0.0
  for i, j in itertools.combinations(range(len(rows)), 2):
    for k, m in itertools.product(range(rows.shape[1]), repeat=2):
      lengths = np.linalg.norm(rows[i, k]) * np.linalg.norm(rows[j, m])
      if places[i][k] == places[j][m] and lengths:
        weight = np.sqrt(votes[i] * votes[j]) * min(priors[i, k], priors[j, m])
        total += np.sqrt(weight) * (rows[i, k] @ rows[j, m]) / lengths
  return total


@pytest.mark.parametrize(
  ('num_parts', 'num_senses'), [(2, 1), (2, 3), (2, 4), (4, 3)]
)
def test_no_permutation_of_one_part_matches_better(num_parts, num_senses):
  rows, priors, votes = _random(num_senses, num_parts, num_senses)
  if num_senses > 1:
    rows[3, 1, 1] = priors[3, 1, 1] = 0  # the part lacks that sense
  pairs = senses.compare(rows, priors, votes)
  found, rounds = senses.match(pairs, votes)
  reached = senses.total(pairs.scores, found)
  assert (rounds > 1) == (num_parts > 2)
  for b, i in itertools.product(range(len(rows)), range(num_parts)):
    objective = _objective(rows[b], priors[b], votes[b], found[b])
    assert reached[b] == pytest.approx(objective, rel=1e-6)
    for permutation in itertools.permutations(range(num_senses)):
      other = found[b].copy()
      other[i] = permutation
      worse = _objective(rows[b], priors[b], votes[b], other)
      assert worse <= reached[b] + 1e-6


def test_rare_senses_take_what_is_left():
  rows = np.zeros((1, 2, 3, 2))
  rows[0, 0] = [[1, 0], [0, 1], [1, 0.1]]
  rows[0, 1] = [[0, 1], [1, 0.1], [1, 0]]
  priors = np.array([[[0.5, 0.5 - 1e-9, 1e-9], [0.5, 0.5 - 1e-9, 1e-9]]])
  votes = np.ones((1, 2))
  pairs = senses.compare(rows, priors, votes)
  # The nearest sense to the last one would be what the first one needs.
  assert senses.match(pairs, votes)[0][0, 1].tolist() == [1, 0, 2]


def _truth(loss='negative_sampling', ambiguous=_AMBIGUOUS, contexts=False):
  """Words of which the first have several senses."""
  rng = np.random.default_rng(0)
  sizes = np.where(np.arange(_WORDS) < ambiguous, _SENSES, 1)
  starts = np.append(0, np.cumsum(sizes))
  priors = np.concatenate([rng.dirichlet(np.ones(size)) for size in sizes])
  scale = 1 / np.sqrt(1 + np.arange(_DIM))
  num = _WORDS - (loss == 'hierarchical_softmax')
  made = table.Senses(
    [f'w{i}' for i in range(_WORDS)],
    1000 - np.arange(_WORDS),
    starts,
    (rng.normal(size=(starts[-1], _DIM)) * scale).astype(np.float32),
    priors.astype(np.float32),
    rng.normal(size=(num, _DIM)).astype(np.float32),
    loss,
    5,
    3,
  )
  if not contexts:
    return made
  # Means are directions of some words.
  several = made.by_row(np.diff(starts) > 1)[:, None]
  means = several * 0.6 * made.directions[rng.integers(0, _WORDS, starts[-1])]
  return dataclasses.replace(
    made, outputs=None, contexts=table.Contexts(means, 8.0, 1.0)
  )


def _copy(truth, seed, missing=0.0, noise=0.0):
  """Rotated, with senses in another order and without some words."""
  rng = np.random.default_rng(seed)
  turn = np.linalg.qr(rng.normal(size=(_DIM, _DIM)))[0].astype(np.float32)
  kept = np.sort(rng.permutation(_WORDS)[: round(_WORDS * (1 - missing))])
  by_word = np.split(np.arange(len(truth.vectors)), truth.starts[1:-1])
  rows = [rng.permutation(by_word[w]) for w in kept]
  starts = np.append(0, np.cumsum([len(x) for x in rows]))
  rows = np.concatenate(rows)
  vectors = truth.vectors[rows] @ turn
  vectors += noise * rng.normal(size=vectors.shape).astype(np.float32)
  outputs, contexts = truth.outputs, truth.contexts
  if outputs is not None:
    outputs = outputs @ turn
    outputs = outputs[kept] if truth.loss == 'negative_sampling' else outputs
  if contexts is not None:
    contexts = contexts._replace(means=contexts.means[rows] @ turn)
  return dataclasses.replace(
    truth, words=[truth.words[w] for w in kept], counts=truth.counts[kept],
    starts=starts, vectors=vectors, priors=truth.priors[rows], outputs=outputs,
    contexts=contexts,
  )  # fmt: skip


def _part(name, made, seen=None):
  counts = made.by_row(np.asarray(made.counts if seen is None else seen))
  rows = parts_lib.Rows(made.vectors)
  return parts_lib.Part(name, made.names(), rows, counts, senses=made)


def _single(truth):
  """A part with one vector for each word."""
  rows = parts_lib.Rows(truth.mean_vectors())
  return parts_lib.Part('words', truth.words, rows, truth.counts)


def _merge(tables, folder=None, **settings):
  parts = [
    x if isinstance(x, parts_lib.Part) else _part(f'p{i}', x)
    for i, x in enumerate(tables)
  ]
  parts = [parts_lib.check(part) for part in parts]
  if settings.get('method', 'alir') == 'alir':
    settings |= {'tolerance': 1e-12, 'max_iterations': 60}
  return senses.merge(parts, merge_lib.Spec(**settings), folder)


def _order(merged, truth):
  """Rows of the truth in the order of the result, by their distinct priors."""
  order = []
  for i, word in enumerate(merged.words):
    mine, its = merged.priors[merged.rows(i)], truth.rows(truth.index[word])
    gaps = np.abs(mine[:, None] - truth.priors[its][None])
    order.append(its.start + gaps.argmin(1))
    assert len(set(order[-1].tolist())) == len(mine)
  return np.concatenate(order)


def _check_cosines(merged, truth):
  order = _order(merged, truth)
  expected = geometry.unit(truth.vectors[order])
  found = geometry.unit(np.asarray(merged.vectors))
  np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-5)
  return order


@pytest.mark.parametrize('loss', ['negative_sampling', 'hierarchical_softmax'])
@pytest.mark.parametrize('missing', [0.0, 0.3])
def test_rotated_and_permuted_copies_merge_to_the_original(
  loss, missing, tmp_path
):
  truth = _truth(loss)
  copies = [_copy(truth, i + 1, missing) for i in range(3)]
  merged = _merge(copies, tmp_path)
  found, report = merged.senses, merged.report['senses']
  assert set(found.words) == {word for copy in copies for word in copy.words}
  assert merged.words == found.names()
  order = _check_cosines(found, truth)
  np.testing.assert_array_equal(found.priors, truth.priors[order])
  np.testing.assert_allclose(
    np.linalg.norm(found.vectors, axis=1),
    np.linalg.norm(truth.vectors[order], axis=1),
    rtol=1e-5,
  )
  assert report['cosine_matched'] > 0.99999 and report['cosine_in_order'] < 0.6
  assert report['turned_by'] == 'words of one sense'
  shared = [
    word
    for word in truth.words[_AMBIGUOUS:]
    if sum(word in x.words for x in copies) > 1
  ]
  assert report['turned_by_words'] == len(shared)
  if loss == 'hierarchical_softmax' and missing:
    assert found.outputs is None  # the parts have different trees
    assert 'other trees' in merged.report['warnings'][-1]
    return
  assert (found.loss, found.negatives, found.window) == (loss, 5, 3)
  scores = truth.vectors[order] @ truth.outputs.T
  if missing:
    scores = scores[:, [truth.index[word] for word in found.words]]
  np.testing.assert_allclose(found.vectors @ found.outputs.T, scores, atol=1e-5)


def test_noise_rarely_changes_matches():
  truth = _truth(ambiguous=300)
  merged = _merge([_copy(truth, i + 1, noise=0.05) for i in range(3)]).senses
  expected = truth.priors[_order(merged, truth)]
  # Priors are those of the truth if all three parts were matched.
  is_right = np.isclose(merged.priors, expected, rtol=1e-4, atol=1e-6)
  assert np.mean(is_right) > 0.99


def test_a_sense_is_the_mean_of_its_parts_by_their_votes():
  truth = _truth(ambiguous=3)
  rng, tables, seen = np.random.default_rng(5), [], []
  for _ in range(2):
    vectors, priors = truth.vectors.copy(), truth.priors.copy()
    for word in range(3):
      mine = truth.rows(word)
      vectors[mine] += 0.01 * rng.normal(size=(_SENSES, _DIM))
      priors[mine] = 0.9 * priors[mine] + 0.1 * rng.dirichlet(np.ones(_SENSES))
    tables.append(dataclasses.replace(truth, vectors=vectors, priors=priors))
    seen.append(rng.integers(1, 100, _WORDS))
  parts = [_part('ab'[i], tables[i], seen[i]) for i in range(2)]
  # Rotations are fitted on words with one sense, which are equal.
  merged = _merge(parts, restore=False, align_words=_WORDS - 3).senses
  turn = np.linalg.lstsq(
    merged.vectors[merged.starts[3] :], truth.vectors[truth.starts[3] :], None
  )[0]
  for word, k in itertools.product(range(3), range(_SENSES)):
    row = truth.rows(word).start + k
    votes = [seen[i][word] * tables[i].priors[row] for i in range(2)]
    expected = np.average([x.vectors[row] for x in tables], 0, votes)
    gaps = np.abs(merged.vectors @ turn - expected).max(1)
    at = gaps.argmin()
    assert gaps[at] < 2e-3
    assert merged.starts[word] <= at < merged.starts[word + 1]
    prior = sum(votes) / sum(x[word] for x in seen)
    np.testing.assert_allclose(merged.priors[at], prior, rtol=1e-5)


def test_inner_products_with_outputs_survive_spectral_power():
  truth = _truth()
  found = _merge([_copy(truth, i + 1) for i in range(2)], power=0.6).senses
  order = _order(found, truth)
  old, new = (np.linalg.norm(x, axis=1) for x in (truth.vectors, found.vectors))
  assert not np.allclose(new, old[order], rtol=0.1)
  np.testing.assert_allclose(
    found.vectors @ found.outputs.T,
    truth.vectors[order] @ truth.outputs.T,
    atol=1e-4,
  )


def test_few_words_of_one_sense():
  truth = _truth(ambiguous=_WORDS - 3)
  merged = _merge([_copy(truth, i + 1) for i in range(3)])
  assert merged.report['senses']['turned_by'] == 'means of senses'
  _check_cosines(merged.senses, truth)


def test_parts_with_fewer_senses_of_a_word():
  truth = _truth()
  rows = truth.rows(2)
  left = np.arange(len(truth.vectors)) != rows.start
  priors = truth.priors.copy()
  priors[rows.start] = 0
  priors[rows] /= priors[rows].sum()
  fewer = dataclasses.replace(
    truth,
    vectors=truth.vectors[left],
    priors=priors[left],
    starts=truth.starts - (truth.starts > rows.start),
  )
  merged = _merge([truth, fewer])
  assert '1 words have fewer senses' in merged.report['warnings'][-1]
  found, units = (geometry.unit(x.vectors) for x in (merged.senses, truth))
  np.testing.assert_allclose(found @ found.T, units @ units.T, atol=1e-5)
  expected = (truth.priors[rows] + priors[rows]) / 2
  np.testing.assert_allclose(merged.senses.priors[rows], expected, 1e-5)
  # A part with one vector per word does not tell how frequent senses are.
  merged = _merge([truth, fewer, _single(truth)])
  assert merged.senses.names() == truth.names()
  assert merged.senses.outputs is None
  assert 'outputs are left out: words has' in str(merged.report['warnings'])
  np.testing.assert_allclose(merged.senses.priors[rows], expected, 1e-5)
  rows = truth.rows(5)
  np.testing.assert_allclose(
    merged.senses.priors[rows], truth.priors[rows], 1e-5
  )


def test_rows_mistaken_for_words_are_warned_of():
  truth = _truth()
  rows = parts_lib.Rows(truth.vectors)
  part = parts_lib.Part('v.txt', truth.names(), rows)
  warnings = _merge([truth, part]).report['warnings']
  (warning,) = [x for x in warnings if x.startswith('v.txt')]
  assert "240 words ('w0#0' first)" in warning and '\n' not in warning
  warnings = _merge([truth, truth]).report['warnings']
  assert not any('have the names' in x for x in warnings)


@pytest.mark.parametrize(
  ('method', 'dim'), [('concat', 3 * _DIM), ('pca', _DIM)]
)
def test_concat_and_pca_match_senses_too(method, dim):
  truth = _truth()
  copies = [_copy(truth, i + 1, 0.2) for i in range(3)]
  merged = _merge(copies, method=method)
  common = set.intersection(*(set(x.words) for x in copies))
  assert set(merged.senses.words) == common
  assert merged.vectors.shape[1] == dim and merged.senses.outputs is None
  _check_cosines(merged.senses, truth)


def test_priors_of_senses_that_concat_keeps_sum_to_one():
  truth = _truth()
  merged = _merge([truth, _single(truth)], method='concat')
  assert merged.words == truth.words and np.all(merged.senses.priors == 1)
  lost = (_SENSES - 1) * _AMBIGUOUS
  assert merged.report['senses']['lost_senses'] == lost
  assert f'{lost} senses' in merged.report['warnings'][-1]


@pytest.mark.parametrize('weights', ['counts', 'equal'])
def test_words_that_no_part_saw_stay_with_the_tree(weights):
  truth = _truth('hierarchical_softmax')
  copies = [_copy(truth, i + 1) for i in range(2)]
  seen = np.array([truth.counts, truth.counts // 3])
  seen[:, -2:] = 0
  seen[0, 5] = 0
  copies[0].vectors[copies[0].rows(5)] = 100  # noise: the part never saw it
  parts = [_part(f'p{i}', copies[i], seen[i]) for i in range(2)]
  found = _merge(parts, weights=weights).senses
  assert found.words == truth.words
  np.testing.assert_array_equal(found.counts, truth.counts)
  assert found.outputs.shape == (_WORDS - 1, _DIM)
  rows = found.rows(5)
  assert np.abs(found.vectors[rows]).max() < 10
  np.testing.assert_array_equal(found.priors[rows], copies[1].priors[rows])


@pytest.mark.parametrize(
  ('method', 'missing'),
  [('alir', 0.0), ('alir', 0.3), ('pca', 0.3), ('concat', 0.0)],
)
def test_merged_contexts_disambiguate_as_before(method, missing):
  truth = _truth(contexts=True)
  copies = [_copy(truth, i + 1, missing) for i in range(3)]
  found = _merge(copies, method=method).senses
  order, num_clear = _order(found, truth), 0
  rng = np.random.default_rng(2)
  for i in np.flatnonzero(np.diff(found.starts) > 1):
    context = rng.integers(0, len(found.words), 6)
    chances = found.posterior(i, context)
    word = truth.index[found.words[i]]
    expected = truth.posterior(
      word, [truth.index[found.words[x]] for x in context]
    )
    senses_of = order[found.rows(i)] - truth.starts[word]
    np.testing.assert_allclose(chances, expected[senses_of], 0, 0.02)
    num_clear += chances.max() > 1.5 * found.priors[found.rows(i)].max()
  assert num_clear > 5


def test_what_cannot_be_merged():
  truth = _truth(contexts=True)
  copies = [_copy(truth, i + 1) for i in range(2)]
  other = copies[1].contexts._replace(concentration=3.0)
  merged = _merge([copies[0], dataclasses.replace(copies[1], contexts=other)])
  assert merged.senses.contexts is None
  assert 'concentration=8.0' in str(merged.report['warnings'])
  truth = _truth()
  merged = _merge([truth, dataclasses.replace(truth, negatives=7)])
  assert 'negatives=5' in merged.report['warnings'][-1]
  assert merged.senses.outputs is None
  far = dataclasses.replace(truth, words=[f'x{w}' for w in truth.words])
  with pytest.raises(errors.UserError, match='nothing to align on'):
    _merge([truth, far])


def _written(folder, made):
  rows = vectors_npy.Encoded(made.vectors)
  export.write(folder, made.names(), rows, made.by_row(made.counts))
  table.write(folder, made)
  return str(folder)


def test_the_command_writes_an_export_of_senses(tmp_path, capsys):
  truth = _truth('hierarchical_softmax')
  folders = [
    _written(tmp_path / f'p{i}' / 'export', _copy(truth, i + 1))
    for i in range(2)
  ]
  with pytest.raises(errors.UserError, match='has no context vectors'):
    parts_lib.open_part(folders[0], None, trainable=True)
  output = tmp_path / 'merged'
  assert merge.main([*folders, f'--output={output}']) == 0
  out = capsys.readouterr().out
  assert '60 words have several' in out and 'matched ones 1.000' in out
  loaded = embeddings.load(output)
  assert [name for name, _ in loaded.senses('w3')] == [
    f'w3#{k}' for k in range(_SENSES)
  ]
  chances = loaded.disambiguate('w70 w3 w80', 1)
  assert len(chances) == _SENSES and abs(chances.sum() - 1) < 1e-6
  # Merged again, into vectors that cannot disambiguate.
  again = tmp_path / 'again'
  argv = [folders[0], str(output), f'--output={again}', '--method=pca']
  assert merge.main(argv) == 0
  assert 'cannot be disambiguated' in capsys.readouterr().err
  loaded = embeddings.load(again)
  with pytest.raises(errors.UserError, match='cannot disambiguate'):
    loaded.disambiguate('w70 w3 w80', 1)
  assert not (again / 'export' / 'outputs.npy').exists()
  # Words with one vector, into the same folder: no file of senses is left.
  words = [tmp_path / f'{i}.txt' for i in range(2)]
  for path in words:
    word2vec_format.write(path, truth.words, truth.mean_vectors(), False)
  assert merge.main([*map(str, words), f'--output={again}']) == 0
  assert embeddings.load(again).sense_table is None
