"""`jaxemb.train(...)` as a user of Python meets it."""

import inspect
import re
import tempfile

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy import sparse

import jaxemb
from jaxemb import config as config_lib
from jaxemb import errors, missing_names
from tests import marking, runs

_TEXT = ['The king rules the land.', 'the dog eats the meat'] * 300
_SMALL = {'dim': 8, 'epochs': 2, 'min_count': 1, 'sample': 0.0}
_SMALL['settings'] = {'train.threads': 1}  # the same bits again


@pytest.fixture(scope='module')
def vectors() -> jaxemb.Embeddings:
  return jaxemb.train(_TEXT, **_SMALL)


@pytest.mark.slow
def test_strings_are_split_and_lowercased_and_tokens_are_not(vectors):
  words = 'the king rules land dog eats meat'.split()
  assert set(vectors.index_to_key) == set(words)
  assert vectors.vectors.shape == (7, 8)
  assert np.isfinite(vectors.vectors).all() and vectors.vectors.std() > 0
  assert vectors.counts.tolist() == sorted(vectors.counts, reverse=True)
  assert vectors.most_similar('king', topn=2)
  # A generator is read once; nothing passes for markup or a format.
  numbers = 1, 1.0, 2.5, np.float32(2.5), True, np.bool_(True)
  tokens = (['<mediawiki>', *numbers, *line.split()] for line in _TEXT)
  tokens = jaxemb.train(tokens, **_SMALL)
  assert {'The', 'the', 'land.', '<mediawiki>'} <= set(tokens.index_to_key)
  assert all(x in tokens for x in (1, 1.0, 2.5, True, '1', '2.5', 'true'))
  assert not {'1.0', 'True'} & set(tokens.index_to_key)
  docs = np.array(['<doc id="1"> a b </doc>', 'c \ud800 d'] * 20)
  of_docs = jaxemb.train(docs, **_SMALL)
  assert set(of_docs.index_to_key) == set('doc id 1 a b c d'.split())


def test_a_run_goes_on_with_more_sentences(vectors, tmp_path):
  run = tmp_path / 'run'
  before = jaxemb.train(_TEXT, workdir=run, **_SMALL)
  after = jaxemb.train(['the cat eats the fish'] * 50, start=run, **_SMALL)
  assert set(after.index_to_key) == {*before.index_to_key, 'cat', 'fish'}
  count = after.get_vecattr('the', 'count')
  assert count == 100 + before.get_vecattr('the', 'count')
  assert np.array_equal(after['rules'], before['rules'])
  assert not np.array_equal(after['eats'], before['eats'])
  with pytest.raises(errors.UserError, match='give workdir='):
    jaxemb.train(_TEXT, start=vectors, **_SMALL)


def test_a_path_and_a_config_train_the_same_vectors(vectors, tmp_path):
  path = tmp_path / 'text.txt'
  path.write_text('\n'.join(_TEXT))
  config = config_lib.default()
  config.update_from_flattened_dict({
    'data.path': str(path), 'data.min_count': 1, 'data.sample': 0.0,
    'train.epochs': 2, 'eval.paths': 'none',
  })  # fmt: skip
  of_config = jaxemb.train(
    config, settings={'model.dim': 8, **_SMALL['settings']}
  )
  assert config.model.dim == 100  # the user's own is left alone
  for other in (jaxemb.train(path, **_SMALL), of_config):
    assert other.index_to_key == vectors.index_to_key
    assert np.array_equal(other.vectors, vectors.vectors)


_LOG = {'label': [1, 0, 0, 1] * 50, 'color': ['red', 'blue'] * 100}


def test_arguments_that_are_usual_defaults_come_before_a_config():
  assert config_lib.load('ctr').model.dim != 100
  model = jaxemb.train(_LOG, config='ctr', dim=100, epochs=1)
  assert model.model.spec.dim == 100


def test_a_config_dict_of_clicks_gives_a_click_model(tmp_path):
  config = config_lib.load('ctr', {'data.path': str(tmp_path / 'log.parquet')})
  parquet.write_table(pa.table(_LOG), config.data.path)
  model = jaxemb.train(config, settings={'train.epochs': 1})
  assert model.predict(_LOG).shape == (200,)


@pytest.mark.parametrize('name', ['ctr', marking.slow('documents')])
def test_a_run_in_a_bucket_gives_the_same_model(tmp_path, name):
  data = _LOG if name == 'ctr' else _TEXT
  url = f'file://{tmp_path}/run'
  model = jaxemb.train(data, config=name, dim=4, epochs=1, workdir=url)
  assert type(model) is type(jaxemb.load(url))


def test_what_is_given_twice_is_refused(tmp_path):
  config = config_lib.load('ctr', {'data.path': 'log.csv'})
  with pytest.raises(errors.UserError, match='give one of them'):
    jaxemb.train(config, config='documents')
  settings = {'train.init_from': 'other'}
  with pytest.raises(errors.UserError, match='^start=.* differ; give one of'):
    jaxemb.train(_TEXT, start=tmp_path, settings=settings)


def test_a_config_has_the_settings_for_own_text(tmp_path):
  path = tmp_path / 'text.txt'
  path.write_text('\n'.join(_TEXT))
  for data in (path, _TEXT):
    folder = tmp_path / type(data).__name__
    small = {k: x for k, x in _SMALL.items() if k != 'sample'}
    jaxemb.train(data, config='wiki', workdir=folder, **small)
    # Not those for the embedded corpus.
    config = runs.report(folder, 'config.json')
    embedded = config_lib.load('wiki')
    assert config['data']['sample'] != embedded.data.sample


def test_a_workdir_is_resumed(vectors, tmp_path, interrupting):
  args = {'workdir': tmp_path / 'run', **_SMALL}
  args['settings'] = _SMALL['settings'] | {'train.checkpoint_every_secs': 0.0}
  with interrupting(1), pytest.raises(KeyboardInterrupt):
    jaxemb.train(_TEXT, **args)
  resumed = jaxemb.train(_TEXT, **args)
  assert np.array_equal(resumed.vectors, vectors.vectors)
  assert 'resuming after' in (tmp_path / 'run' / 'log.txt').read_text()
  assert np.array_equal(jaxemb.load(args['workdir']).vectors, resumed.vectors)
  with pytest.raises(errors.UserError, match='text is not the one'):
    jaxemb.train(_TEXT[1:], **args)


def test_progress_is_shown_and_nothing_is_left(tmp_path, monkeypatch, capfd):
  folders = [tmp_path / x for x in ('cache', 'home', 'temporary')]
  for folder in folders:
    folder.mkdir()
  monkeypatch.setenv('JAXEMB_CACHE', str(folders[0]))
  monkeypatch.setenv('HOME', str(folders[1]))
  monkeypatch.setattr(tempfile, 'tempdir', str(folders[2]))
  kept = jaxemb.train(_TEXT, **_SMALL)
  shown = capfd.readouterr().err
  assert 'vocabulary 7' in shown and 'words/s in training' in shown
  assert not any(any(folder.iterdir()) for folder in folders)
  assert np.isfinite(kept.vectors).all()  # its file is gone


@pytest.mark.parametrize(
  ('data', 'more', 'words'),
  [
    (['a b', ['a', 'b']], {}, 'all strings or all lists'),
    (['a b', None], {}, "sentence 2 is 'None'"),
    ([b'a b'], {}, 'sentence 1 is'),
    ([['a', 'b c']], {}, "'b c'"),
    ([['a', 'b'], ['a', None]], {}, 'sentence 2 has the token None'),
    ([['a', float('nan')]], {}, 'the token nan'),
    (['a b', 'c nu\0l'], {}, 'sentence 2 has a NUL'),
    ([['a', 'b'], ['nu\0l']], {}, 'sentence 2 has a NUL'),
    (['word word'] * 9, _SMALL, "only one word ('word')"),
    ([{'user': 1, 'item': 2}], {}, "give config, such as config='rec"),
    ({'a b': [1], 'c': [2]}, {}, 'a table has columns and no sentences'),
    ([{'text': 'a b'}], {'config': 'wiki'}, 'a column of it as sentences'),
    (nx.path_graph(9), {'config': 'graph'}, "from_networkx(DATA), 'FOLDER')"),
    (np.ones((9, 2)), {'config': 'graph'}, "{'source': [...], 'target'"),
    (sparse.eye(9), {'config': 'rec'}, "{'user': x.row, 'item': x.col}"),
    ([('u', 'i')], {'config': 'rec'}, "{'user': [...], 'item': [...]}"),
    (['a b'], {'config': 'ctr'}, "{'label': [...], 'user': [...]}"),
    ({'user': 'u', 'item': 'i'}, {'config': 'rec'}, "column user is 'u'"),
    (['a b'], {'min_count': 5}, 'no word occurs 5 times'),
    (config_lib.default(), {'dim': 5}, 'set config.model.dim there'),
    (config_lib.default(), {'dim': 100}, 'set config.model.dim there'),
    (_TEXT, {'dim': 100, 'settings': {'model.dim': 9}}, 'give one of them'),
    (_TEXT, {'settings': {'data.lowercase': 1}}, 'must be of type bool'),
    (_TEXT, {'window': 4, 'settings': {'model.window': 9}}, 'give one of them'),
    (_TEXT, {'settings': {'optimizer.name': 'my:sgd'}}, 'set --config.optimiz'),
  ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, data, more, words):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
  with pytest.raises(errors.UserError) as caught:
    jaxemb.train(data, **more)
  assert words in str(caught.value) and '\n' not in str(caught.value)
  assert not any(tmp_path.iterdir())


_REC = {'dim': 8, 'epochs': 2, 'config': 'rec:item2vec'}
_REC['settings'] = {'train.threads': 1, 'data.columns': 'rating:stars>=3'}


def _table():
  rng = np.random.default_rng(0)
  rows = rng.integers(0, 60, (900, 2)).tolist()
  return [
    {'user': a, 'item': b if a else None, 'stars': (a + b) % 5} for a, b in rows
  ]


def test_a_table_is_as_the_same_table_in_a_file(tmp_path):
  pd = pytest.importorskip('pandas')
  frame = pd.DataFrame(_table())  # whose items are floats
  path = tmp_path / 'ratings.csv'
  frame.to_csv(path, index=False)
  expected = jaxemb.train(path, **_REC)
  assert set(expected.index_to_key) <= {str(i) for i in range(60)}
  for data in frame, pa.table(frame), _table():
    found = jaxemb.train(data, **_REC)
    assert found.index_to_key == expected.index_to_key
    assert np.array_equal(found.vectors, expected.vectors)


def test_numbers_of_numpy_are_settings(vectors):
  numbers = {k: np.array(x)[()] for k, x in _SMALL.items() if k != 'settings'}
  assert all(isinstance(x, np.generic) for x in numbers.values())
  settings = {k: np.int64(x) for k, x in _SMALL['settings'].items()}
  other = jaxemb.train(_TEXT, **numbers, settings=settings)
  np.testing.assert_array_equal(other.vectors, vectors.vectors)


@pytest.mark.parametrize(
  'argument, instead',
  [
    ('vector_size', 'use dim='),
    ('sg', "use model='skipgram' or 'cbow'"),
    ('workers', "use settings={'train.threads': NUMBER}"),
    ('comment', "other settings are settings={'GROUP.NAME': value}"),
  ],
)
def test_arguments_of_gensim_name_the_setting_to_use(argument, instead):
  with pytest.raises(TypeError) as caught:
    jaxemb.train(_TEXT, **{argument: 1})
  assert str(caught.value) == (
    f"train() got an unexpected keyword argument '{argument}'; {instead}"
  )


def test_settings_that_gensims_arguments_lead_to_exist():
  names = config_lib.flat(config_lib.default())
  arguments = inspect.signature(jaxemb.train).parameters
  for line in missing_names.OF_TRAIN.values():
    if match := re.match(r"settings=\{'([\w.]+)'", line):
      assert match[1] in names
    elif match := re.match(r'(\w+)=', line):
      assert match[1] in arguments
    else:
      assert line == 'the first argument'
