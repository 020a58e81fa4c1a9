"""Posteriors, scores in contexts, files and queries of senses."""

import dataclasses

import numpy as np
import pytest

from jaxemb import embeddings, errors, query, sense_tables
from jaxemb.evaluation import senses
from jaxemb.ops import huffman
from jaxemb.reporting import senses as section
from jaxemb.storage import word2vec_format

WORDS = ['the', 'bank', 'money', 'river', 'boat', 'coin']
STARTS = np.array([0, 1, 3, 4, 5, 6, 7])


def _senses(loss='hierarchical_softmax'):
  rng = np.random.default_rng(0)
  num = len(WORDS) - (loss == 'hierarchical_softmax')
  priors = np.ones(7, np.float32)
  priors[1:3] = 0.25, 0.75
  return senses.Senses(
    WORDS,
    np.array([50, 20, 10, 9, 5, 4]),
    STARTS,
    rng.normal(size=(7, 4)).astype(np.float32),
    priors,
    rng.normal(size=(num, 4)).astype(np.float32),
    loss,
    5,
    2,
  )


def _write(folder, found):
  counts = found.by_row(found.counts)
  word2vec_format.export(folder, found.names(), found.vectors, counts)
  sense_tables.write(folder, found)


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize('loss', ['hierarchical_softmax', 'negative_sampling'])
def test_posterior_is_that_of_the_definition(loss):
  found = _senses(loss)
  context = found.context('Money by THE bank river boat the'.split(), 3)
  assert context == [2, 0, 3, 4]
  chances = []
  for k in (0, 1):
    vector, chance = found.vectors[1 + k].astype(float), found.priors[1 + k]
    for word in context:
      if loss == 'negative_sampling':
        noise = found.counts**0.75 / (found.counts**0.75).sum()
        logs = np.log(_sigmoid(-found.outputs @ vector))
        chance *= _sigmoid(found.outputs[word] @ vector)
        chance *= np.exp(5 * noise @ logs)
        continue
      points, codes, lengths = (
        x[word] for x in huffman.tree_paths(found.counts)
      )
      for point, code in zip(points[:lengths], codes[:lengths], strict=True):
        chance *= _sigmoid((1 - 2.0 * code) * (found.outputs[point] @ vector))
    chances.append(chance)
  expected = np.array(chances) / sum(chances)
  np.testing.assert_allclose(found.posterior(1, context), expected, 1e-4)
  np.testing.assert_allclose(found.posterior(1, []), [0.25, 0.75])
  assert found.posterior(0, context).tolist() == [1.0]


def test_posterior_by_what_contexts_mean():
  found, half, kappa = _senses(), 0.1, 3.0
  means = np.random.default_rng(4).normal(size=(7, 4)).astype(np.float32)
  found = dataclasses.replace(
    found, contexts=senses.Contexts(means, kappa, half)
  )
  x, total = np.zeros(4), 0.0
  context = [3, 0, 1, 3]  # one of them has two senses
  for word in context:
    rows = slice(STARTS[word], STARTS[word + 1])
    vector = found.priors[rows] @ found.vectors[rows]
    weight = half / (half + found.counts[word] / found.counts.sum())
    x += weight * vector / np.linalg.norm(vector)
    total += weight
  chances = np.array([0.25, 0.75]) * np.exp(
    -kappa * ((x / total - means[1:3]) ** 2).sum(1)
  )
  np.testing.assert_allclose(
    found.posterior(1, context), chances / chances.sum(), rtol=1e-5
  )
  np.testing.assert_allclose(found.posterior(1, []), [0.25, 0.75])
  np.testing.assert_allclose(found.posterior(2, context), [1.0])


def test_what_contexts_mean_is_kept(tmp_path):
  found = _senses()
  means = np.random.default_rng(4).normal(size=(7, 4)).astype(np.float32)
  found = dataclasses.replace(found, contexts=senses.Contexts(means, 3.0, 0.1))
  _write(tmp_path, found)
  loaded = embeddings.load(tmp_path)
  for text in ('the money bank', 'river bank boat'):
    position = text.split().index('bank')
    np.testing.assert_allclose(
      loaded.disambiguate(text, position),
      found.disambiguate(text, position),
      rtol=1e-5,
    )
  np.save(tmp_path / 'means.npy', means[1:])
  with pytest.raises(errors.UserError, match='means.npy has the form'):
    embeddings.load(tmp_path)


def _line(first, second, rating, contexts):
  fields = ['1', first, 'n', second, 'n', *contexts, str(rating)]
  return '\t'.join(fields + ['1'] * 10) + '\n'


def test_scores_of_pairs_in_contexts(tmp_path):
  found = _senses()
  texts = 'money , <b> bank </b> the <b>bank</b>', 'the <b> river </b> boat .'
  lines = [
    _line('bank', 'river', 5, texts),
    _line('Bank', 'nothing', 3, texts),
    _line('river', 'river', 9, (texts[1], texts[1])),
  ]
  path = tmp_path / 'scws.txt'
  path.write_text(''.join(lines) + 'no line of it\n')
  questions = senses.read_scws(path)
  assert [x.rating for x in questions] == [5, 3, 9]
  assert questions[0].texts[0] == ['money', 'bank', 'the', 'bank']
  assert questions[0].positions == (1, 1)
  got = senses.similarities(found, questions)
  assert np.isnan(got[1]).all() and (got[2] == 1).all()
  units = found.vectors / np.linalg.norm(found.vectors, axis=1, keepdims=True)
  cosines = units[1:3] @ units[4]
  chances = found.posterior(1, [2, 0, 1])
  mean = found.mean_vectors()
  np.testing.assert_allclose(mean[1], found.priors[1:3] @ found.vectors[1:3])
  single = mean[1] @ units[4] / np.linalg.norm(mean[1])
  np.testing.assert_allclose(
    got[0],
    [
      cosines[chances.argmax()],
      chances @ cosines,
      cosines.mean(),
      cosines.max(),
      single,
    ],
    atol=1e-5,
  )
  scores = senses.evaluate_files(found, [path])
  assert scores['scws MaxSim']['score'] == pytest.approx(1)
  assert (scores['scws MaxSim']['found'], scores['scws single']['oov']) == (
    2,
    1,
  )
  path.write_text('bank river 3\n')
  with pytest.raises(errors.UserError, match='SCWS'):
    senses.read_scws(path)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  found, folder = _senses(), tmp_path_factory.mktemp('run') / 'export'
  _write(folder, found)
  return folder


def test_what_is_written_is_read(folder):
  found, loaded = _senses(), embeddings.load(folder)
  assert loaded.index_to_key[:4] == ['the', 'bank#0', 'bank#1', 'money']
  for field in dataclasses.fields(found):
    first, second = (
      getattr(x, field.name) for x in (found, loaded.sense_table)
    )
    np.testing.assert_array_equal(first, second)
  lines = (folder / 'dmwe.txt').read_text().splitlines()
  assert lines[0] == '6 7 4' and lines[3] == 'bank 2'
  row = np.array(lines[5].split(), np.float32)
  np.testing.assert_array_equal(row, [0.75, *found.vectors[2]])
  (folder / 'priors.txt').rename(folder / 'kept')
  (folder / 'priors.txt').write_text('bank 0 1\n')
  with pytest.raises(errors.UserError, match='export again'):
    embeddings.load(folder)
  (folder / 'kept').replace(folder / 'priors.txt')
  facts = (folder / 'senses.json').read_text()
  for damaged in ('{}', '[1]'):
    (folder / 'senses.json').write_text(damaged)
    with pytest.raises(errors.UserError, match='lacks one of loss'):
      embeddings.load(folder)
  (folder / 'senses.json').write_text(facts)


def test_benchmarks_are_of_words(folder, tmp_path):
  pairs = tmp_path / 'pairs.txt'
  pairs.write_text('bank money 5\nthe bank 1\nmoney the 3\n')
  loaded = embeddings.load(folder)
  found = loaded.evaluate_word_pairs(pairs)
  assert found[-1] == 0
  assert found == loaded.of_words().evaluate_word_pairs(pairs)


def test_without_outputs_only_contexts_say_nothing(tmp_path):
  found = dataclasses.replace(_senses(), outputs=None, loss=None, negatives=0)
  _write(tmp_path, found)
  assert not (tmp_path / 'outputs.npy').exists()
  loaded = embeddings.load(tmp_path)
  with pytest.raises(errors.UserError, match='without outputs') as caught:
    loaded.disambiguate('the money bank', 2)
  assert '\n' not in str(caught.value)
  text = 'the <b> bank </b> of money'
  (tmp_path / 'scws.txt').write_text(
    _line('bank', 'river', 5, (text, 'the <b>river</b>'))
    + _line('bank', 'money', 7, (text, 'of <b>money</b>'))
  )
  scores = senses.evaluate(loaded.sense_table, tmp_path / 'scws.txt')
  assert list(scores) == ['AvgSim', 'MaxSim', 'single']
  whole = senses.evaluate(_senses(), tmp_path / 'scws.txt')
  assert all(scores[name] == whole[name] for name in scores)


def test_queries(folder, capsys):
  loaded, found = embeddings.load(folder), _senses()
  assert loaded.senses('bank') == [('bank#0', 0.25), ('bank#1', 0.75)]
  assert loaded.senses('money') == [('money', 1.0)]
  assert 'bank' in loaded and 'tank' not in loaded
  nearest = loaded.most_similar('bank', sense=0)
  assert nearest == loaded.most_similar('bank#0')
  assert loaded.most_similar('bank') == loaded.most_similar('bank#1')
  with pytest.raises(errors.UserError, match='has 2 senses'):
    loaded.most_similar('bank', sense=2)
  chances = loaded.disambiguate('the money Bank', 2)
  np.testing.assert_allclose(chances, found.posterior(1, [0, 2]))
  with pytest.raises(errors.UserError, match='position 3'):
    loaded.disambiguate('the money bank', 3)
  with pytest.raises(KeyError):
    loaded.disambiguate('the tank', 1)
  with pytest.raises(errors.UserError, match='position 3'):
    loaded.of_words().disambiguate('the money bank', 3)
  words = loaded.of_words()
  assert words.index_to_key == WORDS and words.vectors.shape == (6, 4)
  flag = f'--vectors={folder}'
  assert query.main([flag, '--senses', 'bank']) == 0
  assert capsys.readouterr().out.splitlines()[1].startswith('bank#1  0.7500  ')
  assert query.main([flag, '--sense=0', 'bank', '--topn=1']) == 0
  assert capsys.readouterr().out.split()[0] == nearest[0][0]
  assert query.main([flag, '--position=2', 'the', 'money', 'bank']) == 0
  assert f'bank#0  {chances[0]:.4f}' in capsys.readouterr().out
  assert query.main([flag, '--sense=7', 'bank']) == 2


def test_section_of_the_report():
  found = _senses()
  html = section.section(found)
  assert html.count('<dt>') == 1 and '0.25' in html and 'bank' in html
  assert section.section(None) == ''
