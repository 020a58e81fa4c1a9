"""docs/guides/from_gensim.md: rows of each section run in both libraries."""

import ast
import collections.abc
import importlib.util
import itertools
import pathlib
import random
import re
import sys
import types

import numpy as np
import pytest
import scipy.optimize
from gensim import models
from gensim.models import fasttext as gensim_fasttext

import jaxemb
from jaxemb import config as config_lib
from jaxemb.run import lifecycle

_ROOT = pathlib.Path(__file__).parents[1]
_PAGE = (_ROOT / 'docs/guides/from_gensim.md').read_text()
_TEXT_OF = {x.partition('\n')[0]: x for x in _PAGE.split('\n## ')}
_ROWS = re.compile(r'^\| `(.+)` \| `(.+)` \| .*\|$', re.MULTILINE)
_SECTIONS = {k: x for k, text in _TEXT_OF.items() if (x := _ROWS.findall(text))}
# Whose vectors both libraries train.
_TRAINED = 'Train word vectors', 'Phrases', 'Documents'

_TOPICS = [
  ('king queen prince lord', 'rules governs owns', 'land castle new_york'),
  ('dog cat horse cow', 'eats chases sees', 'hay meat bank_of_england'),
  ('ship boat ferry raft', 'crosses leaves sails', 'sea lake port_said'),
]
_TOPIC_OF = {
  word: number
  for number, topic in enumerate(_TOPICS)
  for word in ' '.join(topic).split()
}
_SENTENCES = [  # 36 of each topic, five times in a row
  f'the {" ".join(words)}'.replace('_', ' ').split()
  for topic in _TOPICS
  for words in itertools.product(*map(str.split, topic))
  for _ in range(5)
]
_TEXTS = [  # 18 of each topic, of ten sentences
  list(itertools.chain(*random.Random(seed).choices(sentences, k=10)))
  for sentences in np.array_split(np.array(_SENTENCES, object), len(_TOPICS))
  for seed in range(18)
]
# By the keywords of gensim and fastText.
_SETTINGS = {
  'vector_size': 'model.dim', 'window': 'model.window',
  'negative': 'model.negatives', 'min_count': 'data.min_count',
  'sample': 'data.sample', 'epochs': 'train.epochs', 'sg': 'model.name',
  'bucket': 'model.buckets', 'max_n': 'model.subwords', 'dim': 'model.dim',
  'maxn': 'model.subwords', 'scoring': 'data.phrases_score',
  'threshold': 'data.phrases_threshold', 'model': 'model.name',
  'dm': 'model.name', 'min_n': 'model.subwords', 'minn': 'model.subwords',
  'connector_words': 'data.phrases_connectors',
}  # fmt: skip
# Theirs that have other values of ours.
_VALUES = {
  ('sg', 1): 'skipgram',
  ('dm', 0): 'dbow',
  ('connector_words', 'ENGLISH_CONNECTOR_WORDS'): 'english',
}


class _FastText:
  """What fastText's Python module does with a .bin, by gensim's reader.

  As documented: neighbors are (cosine, word), the vector of a sentence is the
  mean of the words' at length 1.
  """

  def __init__(self, model):
    self.model = model
    self.wv = model.wv

  def get_word_vector(self, word):
    return self.wv[word]

  def get_nearest_neighbors(self, word, k):
    return [(x, y) for y, x in self.wv.most_similar(word, topn=k)]

  def get_analogies(self, a, b, c, k):
    pairs = self.wv.most_similar(positive=[a, c], negative=[b], topn=k)
    return [(x, y) for y, x in pairs]

  def get_subwords(self, word):
    assert word not in self.wv.key_to_index
    lengths = range(self.wv.min_n, self.wv.max_n + 1)
    word = f'<{word}>'
    ngrams = [
      word[i : i + n]
      for i in range(len(word))
      for n in lengths
      if i + n <= len(word)
    ]
    return ngrams, np.arange(len(ngrams))

  def get_sentence_vector(self, text):
    rows = np.array([self.wv[x] for x in text.split()])
    return (rows / np.linalg.norm(rows, axis=1)[:, None]).mean(axis=0)

  def get_words(self, include_freq):
    words = self.wv.index_to_key
    return words, [self.wv.get_vecattr(x, 'count') for x in words]

  def get_word_id(self, word):
    return self.wv.key_to_index.get(word, -1)

  def get_dimension(self):
    return self.wv.vector_size

  def save_model(self, path):
    gensim_fasttext.save_facebook_model(self.model, path)


def _fasttext_module():
  """Returns what stands for fastText's module where it is not installed."""

  def train_unsupervised(path, model, dim, minn, maxn):
    trained = models.FastText(
      corpus_file=path, sg=int(model == 'skipgram'), vector_size=dim,
      min_n=minn, max_n=maxn, bucket=1000,
    )  # fmt: skip
    return _FastText(trained)

  return types.SimpleNamespace(
    load_model=lambda x: _FastText(gensim_fasttext.load_facebook_model(x)),
    train_unsupervised=train_unsupervised,
  )


def _earth_movers(a, b, costs):
  """`ot.emd2` of POT, which gensim's `wmdistance` needs."""
  n = len(a)
  sums = [np.kron(np.eye(n), np.ones(n)), np.kron(np.ones(n), np.eye(n))]
  return scipy.optimize.linprog(
    costs.reshape(-1), A_eq=np.vstack(sums), b_eq=np.concatenate([a, b])
  ).fun


@pytest.fixture
def configs(monkeypatch):
  """The configs of what is trained."""
  seen, run = [], lifecycle.run

  def recording(config, *args, **options):
    seen.append(config_lib.flat(config))
    return run(config, *args, **options)

  monkeypatch.setattr(lifecycle, 'run', recording)
  return seen


@pytest.fixture
def names(tmp_path, monkeypatch):
  """What the page's code uses, in a folder with the files that it reads."""
  monkeypatch.chdir(tmp_path)
  stand_ins = {
    'fasttext': _fasttext_module(),
    'ot': types.SimpleNamespace(emd2=_earth_movers),
  }
  for name, module in stand_ins.items():
    if not importlib.util.find_spec(name):
      monkeypatch.setitem(sys.modules, name, module)
  new = [' '.join(x).replace('king', 'khan').split() for x in _SENTENCES]
  _write_files()
  return {
    'jaxemb': jaxemb,
    'sentences': _SENTENCES,
    'texts': _TEXTS,
    'new': new,
  }


def _write_files():
  """Writes what rows read: text, vectors, n-grams and benchmarks."""
  lines = [' '.join(x) for x in _SENTENCES]
  pathlib.Path('text.txt').write_text('\n'.join(lines), 'utf-8')
  pairs = 'king\tqueen\t9', 'king\thay\t2', 'dog\tcat\t8', 'sea\tno\t5'
  pathlib.Path('pairs.tsv').write_text('\n'.join(pairs), 'utf-8')
  questions = ': nouns', 'king land dog hay', 'king rules ship sails', ''
  pathlib.Path('questions.txt').write_text('\n'.join(questions), 'utf-8')
  options = {'vector_size': 8, 'sg': 1, 'workers': 1, 'epochs': 20}
  wv = models.Word2Vec(_SENTENCES, **options).wv
  wv.save_word2vec_format('vectors.bin', binary=True)
  model = models.FastText(_SENTENCES, bucket=500, **options)
  gensim_fasttext.save_facebook_model(model, 'model.bin')


def _value(code, names):
  """Runs statements; returns the value of the last one."""
  *before, last = ast.parse(code).body
  exec(ast.unparse(before), names)
  if not isinstance(last, ast.Assign):
    return eval(ast.unparse(last), names)
  exec(ast.unparse(last), names)
  return names[last.targets[0].id]


def _vectors(trained):
  """Returns the vectors of words of a model; of others, None."""
  vectors = getattr(trained, 'wv', trained)
  return vectors if hasattr(vectors, 'index_to_key') else None


def _plain(value):
  """Returns lists, numbers and strings; of (cosine, word) the word first."""
  if (vectors := _vectors(value)) is not None:
    return [vectors.index_to_key, np.array(vectors.vectors)]
  if hasattr(value, 'phrasegrams'):
    value = value.phrasegrams
  elif hasattr(value, 'export_phrases'):
    value = value.export_phrases()
  if isinstance(value, dict):
    return [[x, _plain(value[x])] for x in sorted(value)]
  if isinstance(value, str) or not isinstance(value, collections.abc.Iterable):
    return value
  value = [_plain(x) for x in value]
  is_swapped = len(value) == 2 and isinstance(value[1], str)
  return value[::-1] if is_swapped and isinstance(value[0], float) else value


def _assert_equal(theirs, ours):
  """Same words in the same order, numbers to 1e-6."""
  if isinstance(theirs, list):
    assert len(theirs) == len(ours)
    for x, y in zip(theirs, ours, strict=True):
      _assert_equal(x, y)
  elif isinstance(theirs, str):
    assert ours == theirs
  else:
    assert ours == pytest.approx(theirs, abs=1e-6, nan_ok=True)


def _topic(name):
  """Returns the topic of a word, or of a document by its number, or None."""
  is_number = str(name).isdecimal()
  number = int(name) * len(_TOPICS) // len(_TEXTS) if is_number else None
  return _TOPIC_OF.get(name, number)


def _purity(vectors):
  """Returns the fraction of words whose nearest word is of their topic."""
  words = [x for x in vectors.index_to_key if x in _TOPIC_OF]
  nearest = [vectors.most_similar(x, topn=1)[0][0] for x in words]
  return np.mean([*map(_topic, words)] == np.array([*map(_topic, nearest)]))


def _assert_alike(theirs, ours):
  """Compares results of training: words, counts, shapes and topics."""
  if (vectors := _vectors(ours)) is not None:
    expected = _vectors(theirs)
    counts = [
      {word: x.get_vecattr(word, 'count') for word in x.index_to_key}
      for x in (expected, vectors)
    ]
    assert counts[0] == counts[1]
    assert vectors.vectors.shape == expected.vectors.shape
    # Of 27 words three may miss, of outputs or few dimensions; chance is .3.
    assert _purity(vectors) > 0.85 and _purity(vectors) >= _purity(expected)
  elif isinstance(ours, np.ndarray):
    assert ours.shape == theirs.shape and np.isfinite(ours).all()
  elif isinstance(ours, list) and type(ours[0]) is tuple:
    # Of a king, or of a text that has one.
    assert [_topic(x) for x, _ in ours] == [0] * len(theirs)
  elif isinstance(ours, float):
    assert ours == pytest.approx(theirs, abs=0.1)
  else:
    _assert_equal(_plain(theirs), _plain(ours))


def _assert_settings(code, config):
  """Compares the config with the constants that gensim's code names."""
  calls = [x for x in ast.walk(ast.parse(code)) if isinstance(x, ast.Call)]
  for keyword in [x for call in calls for x in call.keywords]:
    name = _SETTINGS.get(keyword.arg)
    match keyword.value:
      case ast.Constant(value=value) | ast.Name(id=value) if name:
        ours = config[name]
        if name == 'model.subwords':
          ours = int(ours.split('-')[keyword.arg.startswith('max')])
        assert ours == _VALUES.get((keyword.arg, value), value), keyword.arg


@pytest.mark.slow
@pytest.mark.parametrize('title', _SECTIONS)
def test_rows_do_the_same(title, names, configs):
  (imports,) = re.findall(
    r'^```python\n(.*?)^```', _TEXT_OF[title], re.DOTALL | re.MULTILINE
  )
  theirs, ours = dict(names), dict(names)
  exec(imports, theirs)
  if title == 'Documents':  # which takes gensim's objects
    exec(imports, ours)
  for their_code, our_code in _SECTIONS[title]:
    num_runs = len(configs)
    expected, actual = _value(their_code, theirs), _value(our_code, ours)
    if isinstance(actual, jaxemb.Embeddings) and _vectors(expected) is None:
      expected = theirs['model']  # `train` returns numbers
    for config in configs[num_runs:]:
      _assert_settings(their_code, config)
    # What a row trains is compared by topics, what it reads by numbers.
    if title in _TRAINED or 'jaxemb.train(' in our_code:
      _assert_alike(expected, actual)
    else:
      _assert_equal(_plain(expected), _plain(actual))


def test_every_section_has_its_rows():
  numbers = {title: len(rows) for title, rows in _SECTIONS.items()}
  assert numbers.keys() > {*_TRAINED}
  assert [*numbers.values()] == [6, 5, 4, 5, 13]
