"""Posteriors, scores in contexts, files and queries of senses."""

import dataclasses

import numpy as np
import pytest

from jaxemb import embeddings, errors
from jaxemb.cli import query
from jaxemb.evaluation import benchmarks, contexts, multivectors
from jaxemb.ops import huffman
from jaxemb.report import report
from tests import oracle, runs

WORDS = ['the', 'bank', 'money', 'river', 'boat', 'coin']
STARTS = np.array([0, 1, 3, 4, 5, 6, 7])


def _senses(loss='hierarchical_softmax', contexts=False):
  rng = np.random.default_rng(0)
  num = len(WORDS) - (loss == 'hierarchical_softmax')
  priors = np.ones(7, np.float32)
  priors[1:3] = 0.25, 0.75
  vectors, outputs, means = (
    rng.normal(size=(x, 4)).astype(np.float32) for x in (7, num, 7)
  )
  return multivectors.MultiVectors(
    WORDS, np.array([50, 20, 10, 9, 5, 4]), STARTS, vectors, priors, outputs,
    loss, 5, 2, *((means, 3.0, 0.1) if contexts else ()),
  )  # fmt: skip


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run') / 'export'
  runs.write_senses(folder, _senses())
  return folder


@pytest.mark.parametrize(
  ('loss', 'contexts'),
  [
    ('hierarchical_softmax', False),
    ('negative_sampling', False),
    ('hierarchical_softmax', True),
  ],
)
def test_posterior_is_that_of_the_definition(loss, contexts):
  found = _senses(loss, contexts)
  context = found.context('Money by THE bank river Bank the'.split(), 3)
  assert context == [2, 0, 3, 1]  # one of them has two senses
  vectors, chances = found.vectors.astype(float), np.array([0.25, 0.75])
  if contexts:
    x, total = np.zeros(4), 0.0
    for word in context:
      rows = slice(STARTS[word], STARTS[word + 1])
      vector = found.priors[rows] @ vectors[rows]
      weight = 0.1 / (0.1 + found.counts[word] / found.counts.sum())
      x += weight * vector / np.linalg.norm(vector)
      total += weight
    distances = ((x / total - found.means[1:3]) ** 2).sum(1)
    chances *= np.exp(-3 * distances)
  else:
    noise = 5 * found.counts**0.75 / (found.counts**0.75).sum()
    told_by = None, list(enumerate(noise))  # the negatives' expectation
    if loss == 'hierarchical_softmax':
      told_by = (huffman.tree_paths(found.counts),)
    for word in context:
      logs = [
        oracle.log_chance(vector, found.outputs, word, *told_by)
        for vector in vectors[1:3]
      ]
      chances *= np.exp(logs)
  expected = chances / chances.sum()
  np.testing.assert_allclose(found.posterior(1, context), expected, 1e-4)
  np.testing.assert_allclose(found.posterior(1, []), [0.25, 0.75])
  assert found.posterior(0, context).tolist() == [1.0]


def _line(first, second, rating, *contexts):
  fields = ['1', first, 'n', second, 'n', *contexts, str(rating)]
  return '\t'.join(fields + ['1'] * 10) + '\n'


def test_scores_of_pairs_in_contexts(tmp_path):
  found = _senses()
  texts = 'money , <b> bank </b> the <b>bank</b>', 'the <b> river </b> boat .'
  path = tmp_path / 'scws.txt'
  path.write_text(
    _line('bank', 'river', 5, *texts)
    + _line('Bank', 'nothing', 3, *texts)
    + _line('river', 'river', 9, texts[1], texts[1])
    + 'no line of it\n'
  )
  (asked,) = benchmarks.find([path])
  assert asked.labels == [5, 3, 9] and asked.malformed == 1
  got = contexts.similarities(found, asked)
  assert np.isnan(got[1]).all() and (got[2] == 1).all()
  cosines = oracle.cosines(found.vectors)[1:3, 4]
  chances = found.posterior(1, [2, 0, 1])
  mean = found.priors[1:3] @ found.vectors[1:3]
  np.testing.assert_allclose(found.mean_vectors()[1], mean)
  single = oracle.cosines(np.stack([mean, found.vectors[4]]))[0, 1]
  expected = cosines[chances.argmax()], chances @ cosines, cosines.mean()
  expected = [*expected, cosines.max(), single]
  np.testing.assert_allclose(got[0], expected, atol=1e-5)
  scores = contexts.evaluate(found, [asked])
  assert scores['scws MaxSim']['score'] == pytest.approx(1)
  assert scores['scws MaxSim']['found'] == 2
  assert scores['scws single']['oov'] == 1


def test_what_is_written_is_read(tmp_path):
  # White space of words is found again.
  words = ['the', 'bank', 'x y', 'a_bank', 'boat', 'a bank']
  found = dataclasses.replace(_senses(contexts=True), words=words)
  runs.write_senses(tmp_path, found)
  loaded = embeddings.load_vectors(tmp_path)
  assert loaded.index_to_key[:3] == ['the', 'bank#0', 'bank#1']
  for field in dataclasses.fields(found):
    first, second = (
      getattr(x, field.name) for x in (found, loaded.sense_table)
    )
    np.testing.assert_array_equal(first, second)


# A file, what is replaced in it (None = all) by what, and the message.
DAMAGE = [
  ('priors.txt', 'money 0 1\n', '', 'has 6 lines, vocab.txt 7'),
  ('priors.txt', 'river 0', 'sea 0', "row 4 is 'sea', 'river' in vocab"),
  ('senses.json', '"half_weight"', '"half"', 'has no half_weight'),
  ('means.npy', None, (7, 3), r'means.npy: it has float32 of shape \(7, 3\)'),
  ('outputs.npy', None, 'cut', 'outputs.npy: '),
]


@pytest.mark.parametrize(('name', 'old', 'new', 'told'), DAMAGE)
def test_damage_is_named(tmp_path, name, old, new, told):
  runs.write_senses(tmp_path, _senses(contexts=True))
  path = tmp_path / name
  if isinstance(new, tuple):
    np.save(path, np.zeros(new, np.float32))
  elif old is None:
    path.write_text(new)
  else:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
  with pytest.raises(errors.UserError, match=told) as caught:
    embeddings.load_vectors(tmp_path)
  assert '\n' not in str(caught.value) and 'export again' in str(caught.value)


def test_without_outputs_only_contexts_say_nothing(tmp_path):
  found = dataclasses.replace(_senses(), outputs=None, loss=None, negatives=0)
  runs.write_senses(tmp_path, found)
  assert not (tmp_path / 'outputs.npy').exists()
  loaded = embeddings.load_vectors(tmp_path)
  with pytest.raises(errors.UserError, match='no outputs.npy') as caught:
    loaded.disambiguate('the money bank', 2)
  assert '\n' not in str(caught.value)
  text, path = 'the <b> bank </b> of money', tmp_path / 'scws.txt'
  path.write_text(
    _line('bank', 'river', 5, text, 'the <b>river</b>')
    + _line('bank', 'money', 7, text, 'of <b>money</b>')
  )
  asked = benchmarks.find([path])
  scores = contexts.evaluate(loaded.sense_table, asked)
  assert list(scores) == ['scws AvgSim', 'scws MaxSim', 'scws single']
  assert scores.items() <= contexts.evaluate(_senses(), asked).items()


def test_queries(folder, capsys):
  loaded, found = embeddings.load_vectors(folder), _senses()
  assert loaded.senses('bank') == [('bank#0', 0.25), ('bank#1', 0.75)]
  assert loaded.senses('money') == [('money', 1.0)]
  assert 'bank' in loaded and 'tank' not in loaded
  nearest = loaded.most_similar('bank', sense=0)
  assert nearest == loaded.most_similar('bank#0')
  assert loaded.most_similar('bank') == loaded.most_similar('bank#1')
  words = loaded.of_words()
  assert words.index_to_key == WORDS and words.vectors.shape == (6, 4)
  chances = found.posterior(1, [0, 2])
  command = [f'--vectors={folder}', '--position=2', 'the', 'money', 'bank']
  assert query.main(command) == 0
  assert f'bank#0  {chances[0]:.4f}' in capsys.readouterr().out


def _crowd():
  """Senses that lie close to each other: rows alone would be no answer."""
  vectors = np.zeros((9, 4), np.float32)
  vectors[:, 0] = 1
  vectors[:, 1] = [9, 0, 0.1, 0.2, 0.3, 1, 0.25, 2, 3]
  priors = np.array([1, 0.5, 0.5, 0.99, 0.01, 1, 1, 0.5, 0.5], np.float32)
  starts = np.array([0, 1, 3, 5, 6, 7, 9])
  return dataclasses.replace(
    _senses(), starts=starts, vectors=vectors, priors=priors
  )


def test_neighbours_are_other_words_each_once(tmp_path, capsys):
  found = _crowd()
  runs.write_senses(tmp_path, found)
  loaded = embeddings.load_vectors(tmp_path)

  def names(*args, **settings):
    return [x for x, _ in loaded.most_similar(*args, **settings)]

  # bank is 0 and 0.1, money 0.2 and (rarely) 0.3, boat 0.25.
  everything = ['money#0', 'boat', 'river', 'coin#0', 'the']
  assert names('bank', sense=0) == everything
  assert names('bank') == names('bank#1') == everything
  assert names('bank', topn=2) == everything[:2]
  assert names('bank', restrict_vocab=3) == ['money#0', 'the']
  assert names('bank', 'money', restrict_vocab=3) == ['the']
  assert len(loaded.most_similar('bank', topn=None, restrict_vocab=3)) == 5
  assert names('coin', sense=1, topn=1) == ['the']
  vector = np.array([1, 0.31, 0, 0], np.float32)
  assert names(vector, topn=3) == ['money#1', 'boat', 'bank#1']
  assert names(vector, topn=2, min_prior=0.02) == ['boat', 'money#0']
  assert loaded.most_similar_cosmul('bank', topn=1)[0][0] == 'money#0'
  # The command leaves rare senses out, as the report does.
  command = [f'--vectors={tmp_path}', '--topn=9', '--sense=1', 'bank']
  assert query.main(command) == 0
  out = capsys.readouterr().out
  assert 'money#0' in out and 'money#1' not in out
  shown = report.ambiguous_words(loaded)
  assert str(shown).count('money') == 1 + 4  # near the senses of two others


def test_a_text_is_taken_as_training_takes_it(folder, capsys):
  loaded, found = embeddings.load_vectors(folder), _senses()
  text = '"The (money) \u2013 by the RIVER, an Bank.'
  context = found.context(text.split(), 7)
  assert context == [0, 3] and found.context(text.split(), 7, 9) == [0, 2, 0, 3]
  np.testing.assert_array_equal(
    loaded.disambiguate(text, 7), found.posterior(1, context)
  )
  assert query.main([f'--vectors={folder}', '--position=7', text]) == 0
  assert capsys.readouterr().out.startswith('bank#0  ')
  assert found.context(['--', '', '\u093f'], 1) == []
  words = loaded.of_words()
  for token in ('bank', 'Bank', '"Bank".'):
    assert words.disambiguate(f'the {token}', 1) == [1.0]
  for each in (loaded, words):
    with pytest.raises(KeyError, match='tank'):
      each.disambiguate('the tank.', 1)
    assert each.disambiguate('bank', 0).dtype == np.float64
