"""Merges of parts whose words have several vectors."""

import dataclasses

import numpy as np
import pytest

from jaxemb import embeddings, errors, merge
from jaxemb.merging import merge as merge_lib
from jaxemb.merging import parts as parts_lib
from jaxemb.senses import merge as senses
from jaxemb.senses import table as senses_lib
from jaxemb.storage import word2vec_format

_DIM, _WORDS, _AMBIGUOUS, _SENSES = 8, 400, 60, 4


def _truth(loss='negative_sampling', ambiguous=_AMBIGUOUS, seed=0):
  """Words of which the first have several senses."""
  rng = np.random.default_rng(seed)
  sizes = np.where(np.arange(_WORDS) < ambiguous, _SENSES, 1)
  starts = np.append(0, np.cumsum(sizes))
  priors = np.ones(starts[-1])
  for word in range(ambiguous):
    mine = slice(starts[word], starts[word + 1])
    priors[mine] = rng.dirichlet(np.ones(_SENSES))
  scale = 1 / np.sqrt(1 + np.arange(_DIM))
  num = _WORDS - (loss == 'hierarchical_softmax')
  return senses_lib.Senses(
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


def _copy(truth, seed, missing=0.0, noise=0.0):
  """Turned, senses in another order, without some words."""
  rng = np.random.default_rng(seed)
  turn = np.linalg.qr(rng.normal(size=(_DIM, _DIM)))[0]
  kept = np.sort(rng.permutation(_WORDS)[: round(_WORDS * (1 - missing))])
  # Behind one another in the part, each word's in an order of its own.
  of_words = np.split(np.arange(len(truth.vectors)), truth.starts[1:-1])
  rows = [rng.permutation(of_words[w]) for w in kept]
  starts = np.append(0, np.cumsum([len(x) for x in rows]))
  rows = np.concatenate(rows)
  vectors = truth.vectors[rows] @ turn + noise * rng.normal(
    size=(len(rows), _DIM)
  )
  outputs = truth.outputs @ turn
  if truth.loss == 'negative_sampling':
    outputs = outputs[kept]
  return senses_lib.Senses(
    [truth.words[w] for w in kept],
    truth.counts[kept],
    starts,
    vectors.astype(np.float32),
    truth.priors[rows],
    outputs.astype(np.float32),
    truth.loss,
    truth.negatives,
    truth.window,
  ), rows  # fmt: skip


def _with_contexts(table, seed=9):
  """Told by what the words around mean; means are some words' directions."""
  several = table.by_row(np.diff(table.starts) > 1)
  chosen = np.random.default_rng(seed).integers(0, _WORDS, len(several))
  means = several[:, None] * 0.6 * table.directions[chosen]
  return dataclasses.replace(
    table, outputs=None, contexts=senses_lib.Contexts(means, 8.0, 1.0)
  )


def _copy_with_contexts(truth, seed, missing=0.0, noise=0.0):
  """As `_copy`; means turn with the vectors."""
  with_outputs = dataclasses.replace(truth, outputs=np.eye(_WORDS, _DIM))
  copy, rows = _copy(with_outputs, seed, missing, noise)
  turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(_DIM, _DIM)))[0]
  means = (truth.contexts.means[rows] @ turn).astype(np.float32)
  contexts = truth.contexts._replace(means=means)
  return dataclasses.replace(copy, contexts=contexts)


def _part(name, table, seen=None):
  counts = table.counts if seen is None else seen
  return parts_lib.Part(
    name,
    table.names(),
    parts_lib.as_rows(table.vectors),
    table.by_row(np.asarray(counts)),
    senses=table,
  )


def _merge(parts, folder=None, **settings):
  spec = merge_lib.Spec(tolerance=1e-12, max_iterations=60, **settings)
  return senses.merge(parts, spec, folder)


def _order(merged, truth):
  """Rows of the truth in the order of the result: by priors, all different."""
  order, index = [], truth.index
  for i, word in enumerate(merged.words):
    mine, its = merged.priors[merged.rows(i)], truth.rows(index[word])
    gaps = np.abs(mine[:, None] - truth.priors[its][None])
    order.append(its.start + gaps.argmin(1))
    assert len(set(order[-1].tolist())) == len(mine)
  return np.concatenate(order)


def _cosines(vectors):
  unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
  return unit @ unit.T


@pytest.mark.parametrize('loss', ['negative_sampling', 'hierarchical_softmax'])
@pytest.mark.parametrize('missing', [0.0, 0.3])
def test_turned_and_permuted_copies_are_the_same_again(loss, missing, tmp_path):
  truth = _truth(loss)
  copies = [_copy(truth, i + 1, missing)[0] for i in range(3)]
  merged = _merge([_part(f'p{i}', x) for i, x in enumerate(copies)], tmp_path)
  found = merged.senses
  union = {word for copy in copies for word in copy.words}
  assert set(found.words) == union and (len(union) < _WORDS) == bool(missing)
  assert merged.words == found.names()
  order = _order(found, truth)
  np.testing.assert_array_equal(found.priors, truth.priors[order])
  np.testing.assert_allclose(
    _cosines(found.vectors), _cosines(truth.vectors[order]), atol=1e-5
  )
  np.testing.assert_allclose(
    np.linalg.norm(found.vectors, axis=1),
    np.linalg.norm(truth.vectors[order], axis=1),
    rtol=1e-5,
  )
  told = merged.report['senses']
  assert told['cosine_matched'] > 0.99999 and told['cosine_in_order'] < 0.6
  assert told['turned_by'] == 'words of one sense'
  single = [
    word
    for word in found.words
    if int(word[1:]) >= _AMBIGUOUS and sum(word in x.words for x in copies) > 1
  ]
  assert told['turned_by_words'] == len(single)
  if loss == 'hierarchical_softmax' and missing:
    assert found.outputs is None  # the trees are others
    assert 'other trees' in merged.report['warnings'][-1]
    return
  assert (found.loss, found.negatives, found.window) == (loss, 5, 3)
  scores = truth.vectors[order] @ truth.outputs.T
  if missing:
    kept = [truth.index[word] for word in found.words]
    scores = scores[:, kept]
  np.testing.assert_allclose(found.vectors @ found.outputs.T, scores, atol=1e-5)
  if not missing:
    here = found.posterior(7, [80, 90])
    its = truth.posterior(truth.index[found.words[7]], [80, 90])
    back = order[found.rows(7)] - truth.rows(truth.index[found.words[7]]).start
    np.testing.assert_allclose(here, its[back], atol=1e-4)


def test_noise_hardly_changes_which_senses_are_the_same():
  truth = _truth(ambiguous=300)
  copies = [_copy(truth, i + 1, noise=0.05) for i in range(3)]
  merged = _merge([_part(f'p{i}', x) for i, (x, _) in enumerate(copies)])
  order = _order(merged.senses, truth)
  is_near = np.isclose(
    merged.senses.priors, truth.priors[order], rtol=1e-4, atol=1e-6
  )
  # Priors are those of the truth where all three were right.
  assert np.mean(is_near) > 0.99


def test_a_sense_is_a_mean_by_what_its_parts_say():
  """Against plain loops, with rotations that are known to be none."""
  truth = _truth(ambiguous=3)
  rng, tables, seen = np.random.default_rng(5), [], []
  for _ in range(2):
    vectors = truth.vectors.copy()
    priors = truth.priors.copy()
    for word in range(3):
      mine = truth.rows(word)
      vectors[mine] += 0.01 * rng.normal(size=(_SENSES, _DIM))
      priors[mine] = 0.9 * priors[mine] + 0.1 * rng.dirichlet(np.ones(_SENSES))
    tables.append(
      dataclasses.replace(
        truth, vectors=vectors, priors=priors.astype(np.float32)
      )
    )
    seen.append(rng.integers(1, 100, _WORDS))
  parts = [_part('ab'[i], tables[i], seen[i]) for i in range(2)]
  # Only words with one sense, which are alike, say how parts are turned.
  merged = _merge(parts, restore=False, align_words=_WORDS - 3).senses
  turn = np.linalg.lstsq(
    merged.vectors[merged.starts[3] :], truth.vectors[truth.starts[3] :], None
  )[0]
  for word in range(3):
    for k in range(_SENSES):
      row = truth.rows(word).start + k
      top = sum(
        seen[i][word] * tables[i].priors[row] * tables[i].vectors[row]
        for i in range(2)
      )
      below = sum(seen[i][word] * tables[i].priors[row] for i in range(2))
      at = np.abs(merged.vectors @ turn - top / below).sum(1).argmin()
      assert at in range(merged.starts[word], merged.starts[word + 1])
      np.testing.assert_allclose(
        (merged.vectors @ turn)[at], top / below, atol=2e-3
      )
      prior = below / sum(seen[i][word] for i in range(2))
      np.testing.assert_allclose(merged.priors[at], prior, rtol=1e-5)


def test_products_with_outputs_stay_where_lengths_change():
  truth = _truth()
  parts = [_part(f'p{i}', _copy(truth, i + 1)[0]) for i in range(2)]
  found = _merge(parts, power=0.6).senses
  order = _order(found, truth)
  assert np.ptp(np.linalg.norm(found.vectors, axis=0)) > 0.1
  assert not np.allclose(
    np.linalg.norm(found.vectors, axis=1),
    np.linalg.norm(truth.vectors[order], axis=1),
    rtol=0.1,
  )
  np.testing.assert_allclose(
    found.vectors @ found.outputs.T,
    truth.vectors[order] @ truth.outputs.T,
    atol=1e-4,
  )


def test_few_words_of_one_sense():
  truth = _truth(ambiguous=_WORDS - 3)
  copies = [_copy(truth, i + 1)[0] for i in range(3)]
  merged = _merge([_part(f'p{i}', x) for i, x in enumerate(copies)])
  assert merged.report['senses']['turned_by'] == 'means of senses'
  order = _order(merged.senses, truth)
  np.testing.assert_allclose(
    _cosines(merged.vectors), _cosines(truth.vectors[order]), atol=1e-5
  )


def test_other_numbers_of_senses():
  """One part lacks a sense of a word, and one has vectors of words only."""
  truth = _truth()
  less = np.ones(len(truth.vectors), bool)
  less[truth.rows(2).start] = False
  starts = truth.starts - (truth.starts > truth.starts[2])
  priors = truth.priors.copy()
  priors[truth.rows(2).start] = 0
  priors[truth.rows(2)] /= priors[truth.rows(2)].sum()
  fewer = dataclasses.replace(
    truth, vectors=truth.vectors[less], priors=priors[less], starts=starts
  )
  parts = [_part('all', truth), _part('fewer', fewer)]
  merged = _merge(parts)
  assert len(merged.words) == len(truth.vectors)
  assert merged.report['senses']['words_of_fewer_senses'] == 1
  assert '1 words have fewer senses' in merged.report['warnings'][-1]
  np.testing.assert_allclose(
    _cosines(merged.vectors), _cosines(truth.vectors), atol=1e-5
  )
  mine = merged.senses.priors[truth.rows(2)]
  expected = (truth.priors[truth.rows(2)] + priors[truth.rows(2)]) / 2
  np.testing.assert_allclose(mine, expected, 1e-5)
  words = parts_lib.Part(
    'words',
    truth.words,
    parts_lib.as_rows(truth.mean_vectors()),
    truth.counts,
  )
  merged = _merge([*parts, words])
  assert merged.senses.names() == truth.names()
  assert merged.senses.outputs is None
  assert 'words has nothing of the kind' in str(merged.report['warnings'])
  # What has one vector of a word does not say how often its senses are meant.
  np.testing.assert_allclose(merged.senses.priors[truth.rows(2)], mine, 1e-5)
  np.testing.assert_allclose(
    merged.senses.priors[truth.rows(5)], truth.priors[truth.rows(5)], 1e-5
  )


def test_rows_that_are_taken_for_words_are_warned_of():
  truth = _truth()
  rows = parts_lib.Part(
    'v.txt', truth.names(), parts_lib.as_rows(truth.vectors)
  )
  merged = _merge([_part('senses', truth), rows])
  told = [x for x in merged.report['warnings'] if x.startswith('v.txt')]
  assert len(told) == 1 and "240 words ('w0#0' first)" in told[0]
  assert '\n' not in told[0]
  assert not any('named as' in x for x in _merge(
    [_part('senses', truth), _part('again', truth)]
  ).report['warnings'])  # fmt: skip


def test_concat_and_pca_have_the_same_senses():
  truth = _truth()
  parts = [_part(f'p{i}', _copy(truth, i + 1, 0.2)[0]) for i in range(3)]
  common = set.intersection(*(set(p.senses.words) for p in parts))
  for method, dim in (('concat', 3 * _DIM), ('pca', _DIM)):
    merged = senses.merge(parts, merge_lib.Spec(method=method))
    assert set(merged.senses.words) == common
    assert merged.vectors.shape[1] == dim
    order = _order(merged.senses, truth)
    np.testing.assert_allclose(
      _cosines(merged.vectors), _cosines(truth.vectors[order]), atol=1e-5
    )
    assert merged.senses.outputs is None


def test_senses_that_concat_loses_leave_priors_whole():
  truth = _truth()
  single = parts_lib.Part(
    'words',
    truth.words,
    parts_lib.as_rows(truth.mean_vectors()),
    truth.counts,
  )
  parts = [_part('senses', truth), single]
  merged = senses.merge(parts, merge_lib.Spec(method='concat'))
  assert merged.words == truth.words and np.all(merged.senses.priors == 1)
  lost = (_SENSES - 1) * _AMBIGUOUS
  assert merged.report['senses']['lost_senses'] == lost
  assert f'{lost} senses' in merged.report['warnings'][-1]


def test_words_that_no_sub_model_saw_stay_with_the_tree():
  truth = _truth('hierarchical_softmax')
  copies = [_copy(truth, i + 1)[0] for i in range(2)]
  seen = np.array([truth.counts, truth.counts // 3])
  seen[:, -2:] = 0
  seen[0, 5] = 0
  # What a part never saw is noise.
  copies[0].vectors[copies[0].rows(5)] = 100
  parts = [_part(f'p{i}', copies[i], seen[i]) for i in range(2)]
  for weights in merge_lib.WEIGHTS:
    found = _merge(parts, weights=weights).senses
    assert found.words == truth.words
    np.testing.assert_array_equal(found.counts, truth.counts)
    assert found.outputs.shape == (_WORDS - 1, _DIM)
    assert np.abs(found.vectors[found.rows(5)]).max() < 10
    np.testing.assert_array_equal(
      found.priors[found.rows(5)], copies[1].priors[copies[1].rows(5)]
    )


@pytest.mark.parametrize(
  ('method', 'missing'),
  [('alir', 0.0), ('alir', 0.3), ('pca', 0.3), ('concat', 0.0)],
)
def test_contexts_tell_senses_as_before(method, missing):
  truth = _with_contexts(_truth())
  copies = [_copy_with_contexts(truth, i + 1, missing) for i in range(3)]
  parts = [_part(f'p{i}', x) for i, x in enumerate(copies)]
  found = _merge(parts, method=method).senses
  assert found.contexts.means.shape == found.vectors.shape
  order, told = _order(found, truth), 0
  owners = np.repeat(np.arange(len(found.words)), np.diff(found.starts))
  rng = np.random.default_rng(2)
  for i, word in enumerate(found.words):
    if np.diff(found.starts)[i] == 1:
      continue
    around = [found.words[x] for x in rng.integers(0, len(found.words), 6)]
    chances = found.posterior(i, [found.index[x] for x in around])
    known = [truth.index[x] for x in around]
    expected = truth.posterior(truth.index[word], known)
    firsts = truth.starts[truth.index[word]]
    np.testing.assert_allclose(
      chances, expected[order[owners == i] - firsts], 0, 0.02
    )
    told += chances.max() > 1.5 * found.priors[found.rows(i)].max()
  assert told > 5


def test_parts_told_in_other_ways_are_told_by_none():
  truth = _with_contexts(_truth())
  copies = [_copy_with_contexts(truth, i + 1) for i in range(2)]
  other = copies[1].contexts._replace(concentration=3.0)
  copies[1] = dataclasses.replace(copies[1], contexts=other)
  merged = _merge([_part(f'p{i}', x) for i, x in enumerate(copies)])
  assert merged.senses.contexts is None
  warnings = merged.report['warnings']
  assert any('trained with concentration=8.0' in x for x in warnings)


def _written(folder, table):
  word2vec_format.export(
    folder, table.names(), table.vectors, table.by_row(table.counts)
  )
  senses_lib.write(folder, table)
  return str(folder)


def test_the_command_leaves_an_export_of_senses(tmp_path, capsys):
  truth = _truth('hierarchical_softmax')
  folders = [
    _written(tmp_path / f'p{i}' / 'export', _copy(truth, i + 1)[0])
    for i in range(2)
  ]
  output = tmp_path / 'merged'
  assert merge.main([*folders, f'--output={output}']) == 0
  out = capsys.readouterr().out
  assert '60 words have several' in out and 'made one 1.000' in out
  loaded = embeddings.load(output)
  assert [name for name, _ in loaded.senses('w3')] == [
    f'w3#{k}' for k in range(_SENSES)
  ]
  assert len(loaded.most_similar('w3', sense=1, topn=2)) == 2
  chances = loaded.disambiguate('w70 w3 w80', 1)
  assert len(chances) == _SENSES and abs(chances.sum() - 1) < 1e-6
  # Merged once more, with what cannot tell senses from each other.
  again = tmp_path / 'again'
  argv = [folders[0], str(output), f'--output={again}']
  assert merge.main([*argv, '--method=pca']) == 0
  assert 'cannot be disambiguated' in capsys.readouterr().err
  loaded = embeddings.load(again)
  with pytest.raises(errors.UserError, match='cannot disambiguate'):
    loaded.disambiguate('w70 w3 w80', 1)
  assert not (again / 'export' / 'outputs.npy').exists()
  # Words only, into the same folder: no senses are left.
  words = [tmp_path / f'{i}.txt' for i in range(2)]
  for path in words:
    word2vec_format.write(path, truth.words, truth.mean_vectors(), False)
  assert merge.main([*map(str, words), f'--output={again}']) == 0
  assert embeddings.load(again).sense_table is None


def test_parts_that_cannot_be_merged(tmp_path):
  truth = _truth()
  folder = _written(tmp_path / 'run' / 'export', truth)
  with pytest.raises(errors.UserError, match='leave out --trainable'):
    parts_lib.open_part(folder, None, trainable=True)
  other = dataclasses.replace(truth, negatives=7)
  merged = _merge([_part('a', truth), _part('b', other)])
  assert 'negatives=5' in merged.report['warnings'][-1]
  assert merged.senses.outputs is None
  far = dataclasses.replace(truth, words=[f'x{w}' for w in truth.words])
  with pytest.raises(errors.UserError, match='nothing to align on'):
    _merge([_part('a', truth), _part('b', far)])
