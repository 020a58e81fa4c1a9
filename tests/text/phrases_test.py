"""Phrases: against plain loops and gensim, over pieces, and in other text."""

import collections
import itertools
import math
import random

import numpy as np
import pytest

import jaxemb
from jaxemb import errors
from jaxemb.data import base
from jaxemb.runtime import resources
from jaxemb.text import encode, passes, phrases, tokenize
from tests import marking

_CONNECTORS = 'of,the'


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
  """Texts of many pieces, even where they are small."""
  monkeypatch.setattr(encode, 'piece_bytes', lambda total_bytes: 3000)


@pytest.fixture(scope='module')
def sentences():
  """Sentences with phrases, of which some names split in two ways."""
  rng = random.Random(1)
  planted = ['new york', 'new york times', 'bank of the west', 'a_b c', 'a b_c']
  words = [f'w{min(int(rng.expovariate(0.05)), 199)}' for _ in range(9000)]
  result = [[]]
  for word in words:
    result[-1].append(word)
    if rng.random() < 0.12:
      result[-1] += rng.choice(planted).split()
    if rng.random() < 0.2:
      result[-1].append(rng.choice(['of', 'the', 'a', 'b', 'c', 'york']))
    if rng.random() < 0.1:
      result.append([])
  return [x for x in result if x]


@pytest.fixture
def path(sentences, tmp_path):
  """A file of the sentences."""
  path = tmp_path / 'text.txt'
  path.write_text('\n'.join(map(' '.join, sentences)))
  return path


def _candidates(sentence, connectors):
  """Start and end of words with nothing but connectors between them."""
  places = [i for i, x in enumerate(sentence) if x not in connectors]
  return [(i, j + 1) for i, j in itertools.pairwise(places)]


def _oracle(sentences, rules):
  """Phrases as {words: (count, score)} of one pass, and the joined text."""
  counts = collections.Counter()
  for sentence in sentences:
    counts.update(x for x in sentence if x not in rules.connectors)
    for i, j in _candidates(sentence, rules.connectors):
      counts['_'.join(sentence[i:j])] += 1
  total = sum(map(len, sentences))
  chosen = {}
  for sentence in sentences:
    for i, j in _candidates(sentence, rules.connectors):
      a, b = counts[sentence[i]], counts[sentence[j - 1]]
      n = counts['_'.join(sentence[i:j])]
      if rules.score == 'npmi':
        p = n / total
        score = -math.inf
        if n >= rules.min_count:
          score = math.log(p / (a / total * (b / total))) / -math.log(p)
      else:
        score = (n - rules.min_count) / (a * b) * len(counts)
      if score > rules.threshold:
        chosen[tuple(sentence[i:j])] = n, score
  return chosen, [_joined(x, chosen, rules.connectors) for x in sentences]


def _joined(sentence, chosen, connectors):
  """Joins from left to right."""
  out, last = [], 0
  for i, j in _candidates(sentence, connectors):
    if i >= last and tuple(sentence[i:j]) in chosen:
      out += [*sentence[last:i], '_'.join(sentence[i:j])]
      last = j
  return out + sentence[last:]


def _encode(path, cache, **changes):
  settings = encode.Settings(
    tokens='whitespace', lowercase=False, min_count=1, max_vocab=0, counts=''
  )
  readers = changes.pop('readers', ())
  return encode.encode(
    str(path), settings._replace(**changes), cache, lambda *_: None, *readers
  )


def _text(encoded):
  groups = itertools.groupby(encoded.ids, lambda i: i == tokenize.END)
  return [[encoded.words[i] for i in x] for is_end, x in groups if not is_end]


def _load(encoded):
  return phrases.load(encoded.folder)


_RULES = [
  ('word2vec', 5.0, 5, ''),
  ('word2vec', 1.0, 2, _CONNECTORS),
  ('npmi', 0.3, 3, _CONNECTORS),
  ('npmi', -0.5, 1, ''),
]


@pytest.mark.parametrize('values', [*_RULES[:3], marking.slow(_RULES[3])])
def test_finds_what_plain_loops_find(
  sentences, path, tmp_path, monkeypatch, values
):
  rules = phrases.Rules(*values)
  rules = rules._replace(connectors=phrases.connectors(rules.connectors))
  results = set()
  for threads, held in ((1, 1 << 22), (3, 300)):
    monkeypatch.setattr(resources, 'reading_threads', lambda n=threads: n)
    monkeypatch.setattr(passes, 'MAX_HELD_NAMES', held)
    encoded = _encode(
      path,
      tmp_path / str(threads),
      phrases='3',
      phrases_score=rules.score,
      phrases_threshold=rules.threshold,
      phrases_min_count=rules.min_count,
      phrases_connectors=values[-1],
    )
    results.add(encoded.manifest['fingerprint'])
    text = sentences
    for once in _load(encoded).passes:
      expected, text = _oracle(text, rules)
      assert {x.words: x.count for x in once} == {
        k: count for k, (count, _) in expected.items()
      }
      for x in once:
        assert x.score == pytest.approx(expected[x.words][1], rel=1e-14)
    assert _text(encoded) == text
    counts = collections.Counter(itertools.chain(*text))
    assert dict(zip(encoded.words, encoded.counts, strict=True)) == counts
  assert len(results) == 1
  # What the text has been made for.
  first, second, _ = _load(encoded).passes
  assert first and second
  if values[0] == 'word2vec':
    assert ('new', 'york') in {x.words for x in first}
    assert ('new_york', 'times') in {x.words for x in second}
  if values[-1]:
    assert ('bank', 'of', 'the', 'west') in {x.words for x in first}


@pytest.mark.parametrize('values', _RULES[:3])
def test_finds_what_gensim_finds(sentences, path, tmp_path, values):
  gensim = pytest.importorskip('gensim.models.phrases')
  score, threshold, min_count, connectors = values
  encoded = _encode(
    path,
    tmp_path,
    phrases='2',
    phrases_score=score,
    phrases_threshold=threshold,
    phrases_min_count=min_count,
    phrases_connectors=connectors,
  )
  for once in _load(encoded).passes:
    model = gensim.Phrases(
      sentences,
      min_count=min_count,
      threshold=threshold,
      scoring={'word2vec': 'default'}.get(score, score),
      connector_words=frozenset(phrases.connectors(connectors)),
    )
    for x in once:
      _, result = model.score_candidate(
        x.words[0], x.words[-1], [*x.words[1:-1]]
      )
      assert result == pytest.approx(x.score, rel=1e-14)
    joined = model.find_phrases(sentences)
    assert joined.keys() <= {'_'.join(x.words) for x in once}
    sentences = [model[x] for x in sentences]
  assert _text(encoded) == sentences
  assert phrases.ENGLISH == gensim.ENGLISH_CONNECTOR_WORDS


def test_totals_are_bounded(path, tmp_path, monkeypatch):
  monkeypatch.setattr(resources, 'reading_threads', lambda: 2)
  expected = _encode(path, tmp_path / 'expected', phrases='1')
  monkeypatch.setattr(passes, 'MAX_HELD_NAMES', 1000)
  sizes, add_up = [], passes.collocations.add_up

  def watched(parts, bits):
    sizes.append(sum(len(x.keys) for x in parts))
    return add_up(parts, bits)

  monkeypatch.setattr(passes.collocations, 'add_up', watched)
  encoded = _encode(path, tmp_path / 'cache', phrases='1')
  assert encoded.manifest == expected.manifest
  assert len(sizes) > 20 and max(sizes) < 750  # of each of two threads


def test_counts_no_phrases_as_none(path, tmp_path):
  encoded = _encode(path, tmp_path, phrases='1', phrases_threshold=1e9)
  assert encoded.manifest['num_phrases'] == [0]


def test_joins_known_phrases_in_other_text(path, tmp_path, monkeypatch):
  found = _encode(
    path,
    tmp_path,
    phrases='2',
    phrases_threshold=1.0,
    phrases_connectors=_CONNECTORS,
  )
  other = tmp_path / 'other.txt'
  tokens = 'the new york times of new york york bank of the west'.split()
  other.write_text(' '.join(tokens) + '\nnew\nyork')
  expected = [
    'the', 'new_york_times', 'of', 'new_york', 'york', 'bank_of_the_west',
  ]  # fmt: skip
  loaded = jaxemb.load_phrases(found.folder)
  assert len(loaded) == sum(found.manifest['num_phrases'])
  assert loaded[tokens] == loaded[iter(tokens)] == expected
  assert list(loaded[[tokens, [], ['new']]]) == [expected, [], ['new']]
  assert loaded[[]] == []
  scores = loaded.export_phrases()
  assert scores['new_york_times'] > 1
  with pytest.raises(errors.UserError, match='is a string; give lists'):
    loaded['new york']
  file = tmp_path / phrases.FILE
  loaded.save(file)
  assert file.read_bytes() == found.phrases
  encoded = _encode(other, tmp_path, phrases=str(file))
  assert _text(encoded) == [expected, ['new'], ['york']]
  assert encoded.phrases == found.phrases
  assert encoded.manifest['joined_phrases'] == 4
  # The same text with other phrases is another one.
  lines = file.read_text().splitlines()
  file.write_text(
    '\n'.join(x for x in lines if not x.endswith('bank of the west'))
  )
  again = _encode(other, tmp_path, phrases=str(file))
  assert _text(again)[0][-4:] == ['bank', 'of', 'the', 'west']
  assert not _encode(other, tmp_path).phrases


def test_a_name_may_split_in_two_ways(tmp_path):
  path, file = tmp_path / 'text.txt', tmp_path / phrases.FILE
  # In one piece: both pairs are phrases, of words that are rarer than phrases.
  path.write_text('a_b c\n' * 3 + 'a b_c\n' * 9 + 'd e f g h i j\n' * 9)
  encoded = _encode(path, tmp_path, phrases='1', phrases_threshold=0.1)
  [once] = _load(encoded).passes
  chosen = {x.words: (x.count, x.score) for x in once}
  num_names = 11 + 1 + 6  # words, `a_b_c`, other pairs
  assert chosen[('a_b', 'c')] == (12, (12 - 5) / (3 * 3) * num_names)
  assert chosen[('a', 'b_c')] == (12, (12 - 5) / (9 * 9) * num_names)
  assert encoded.words[0] == 'a_b_c' and encoded.counts[0] == 12
  # Of known phrases one alone.
  rules = phrases.Rules('word2vec', 10.0, 5, ())
  once = [phrases.Phrase(('a', 'b_c'), 9, 20.0)]
  phrases.Phrases(rules, [once]).save(file)
  encoded = _encode(path, tmp_path, phrases=str(file))
  assert _text(encoded)[2:4] == [['a_b', 'c'], ['a_b_c']]


def test_phrases_of_a_run_that_goes_on_are_joined_first(path, tmp_path):
  run, text = tmp_path / 'run', tmp_path / 'text.txt'
  run.mkdir()
  rules = phrases.Rules('word2vec', 10.0, 5, ('of',))
  new_york = [phrases.Phrase(('new', 'york'), 9, 20.0)]
  before = phrases.Phrases(rules, [new_york, []])
  before.save(run / phrases.FILE)
  # What the run joined is as rare in the new text as to be no phrase there.
  text.write_text('a new york of x\n' + 'bank of north\n' * 9 + 'c d\n' * 99)
  known = base.Known(
    str(run), ['new_york', 'a'], np.array([9, 7]), 'fingerprint'
  )
  usual = {'phrases_threshold': 0.1, 'phrases_connectors': 'of'}

  def go_on(value, **settings):
    return encode.encode(
      str(text),
      encode.Settings(
        *('whitespace', True, 1, 0, ''), phrases=value, **settings
      ),
      tmp_path,
      lambda *_: None,
      known=known,
    )

  for value in '', '0', str(run):
    encoded = go_on(value)
    assert _text(encoded)[0] == ['a', 'new_york', 'of', 'x'], value
    assert encoded.counts[encoded.words.index('new_york')] == 10
    assert _load(encoded).passes == before.passes
  encoded = go_on('1', **usual)
  assert _text(encoded)[:2] == [['a', 'new_york', 'of', 'x'], ['bank_of_north']]
  (_, _, last) = _load(encoded).passes
  assert _load(encoded).passes == (*before.passes, last)
  assert {x.words for x in last} == {('bank', 'of', 'north'), ('c', 'd')}
  assert encoded.manifest['num_phrases'] == [1, 0, 2]
  # The export of that run has the phrases of this one first.
  other = tmp_path / 'other'
  other.mkdir()
  (other / phrases.FILE).write_bytes(encoded.phrases)
  assert go_on(str(other)).phrases == encoded.phrases
  for changes, says in (
    ({'phrases_connectors': 'of,the'}, "phrases_connectors='of'"),
    ({'phrases_score': 'npmi'}, "phrases_score='word2vec'"),
  ):
    with pytest.raises(errors.UserError, match=says):
      go_on('1', **usual | changes)


@pytest.mark.parametrize(
  'text, says',
  [
    (None, 'cannot read .*phrases.txt: No such file'),
    ('', 'no settings of phrases in its first line'),
    ('pass\twords', 'no settings of phrases in its first line'),
    ('[' * 100_000, 'no settings of phrases in its first line'),
    ('HEAD, "passes": 1000000000}', 'no settings of phrases'),
    ('HEAD\n1\t5\t2.5\tnew', 'line 2: .* is no phrase'),
    ('HEAD\n2\t5\t2.5\tnew york', 'line 2: .* is no phrase'),
    ('HEAD\n1\tfive\t2.5\tnew york', 'line 2: .* is no phrase'),
    ('HEAD\n1\t5\t2.5\tnew york\n\n', 'line 3: .* is no phrase'),
  ],
)
def test_unusable_files_are_refused(tmp_path, text, says):
  rules = phrases.Rules('word2vec', 10.0, 5, ())
  file = tmp_path / phrases.FILE
  if text is not None:
    phrases.Phrases(rules, [[]]).save(file)
    head = file.read_text().strip()
    text = text.replace('HEAD,', f'{head[:-1]},').replace('HEAD', head)
    file.write_text(text)
  with pytest.raises(errors.UserError, match=says):
    jaxemb.load_phrases(file)
  if text is None:
    with pytest.raises(errors.UserError, match='has no phrases.txt'):
      jaxemb.load_phrases(tmp_path)
