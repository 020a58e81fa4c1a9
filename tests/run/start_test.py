"""Runs that are continued on new text."""

import json
import shutil
import types
import warnings

import numpy as np
import pyarrow as pa
import pytest

import jaxemb
from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.cli import train as train_cli
from jaxemb.data import subsampling
from jaxemb.merging import parts
from jaxemb.models import base, subwords
from jaxemb.ops import ngrams, sampling
from jaxemb.run import lifecycle, start
from jaxemb.storage import fasttext_format, orbax_export
from tests import marking, runs

_OLD, _NEW = 'apple boat cat dog egg', 'apple cat fish'
_MORE = [f'word{i}' for i in range(200)]
_DIM = 6
_USUAL = {
  'data.min_count': 2,
  'data.sample': 0.0,
  'model.dim': _DIM,
  'train.epochs': 1,
  'mesh.data': 1,
}
_FEW = {'table.device_bytes': '50%', 'train.batch_words': 16}
# With a learning rate of nothing, what comes out is what went in.
_STILL = {
  'optimizer.learning_rate': 1e-30,
  'optimizer.final_learning_rate': 0.0,
  'seed': 2,
}


def _write(path, line, times):
  # Some words are rare: twice in one text, once in the other.
  path.write_text(f'{line}\n' * times + 'rare words\nonce\n' + 'rare words\n')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A run, and the text that it is to be continued on."""
  folder = tmp_path_factory.mktemp('start')
  _write(folder / 'old.txt', _OLD, 200)
  with open(folder / 'old.txt', 'a') as file:
    file.write(f'{" ".join(_MORE)}\n' * 3)
  _write(folder / 'new.txt', _NEW, 150)
  settings = _USUAL | {'data.path': str(folder / 'old.txt')}
  assert runs.run(folder / 'old', settings) == 0
  return folder


def _continued(folder, workdir, **changes):
  """The settings of a run that goes on from the one in the folder."""
  settings = {
    'data.path': str(folder / 'new.txt'),
    'train.init_from': str(folder / 'old'),
    'data.grow': True,
  }
  assert runs.run(workdir, _USUAL | settings | changes) == 0
  return jaxemb.load(workdir), runs.log(workdir)


def _tables(workdir):
  """Vectors and context vectors by word."""
  tree = orbax_export.read(workdir / 'export' / 'orbax')
  words = jaxemb.load(workdir).index_to_key
  return {
    name: dict(zip(words, np.asarray(tree[name]), strict=True))
    for name in ('vectors', 'context_vectors')
  }


@pytest.mark.parametrize(
  'changes',
  [
    {},
    marking.slow({'strategy.name': 'sync', 'table.layout': 'row',
                  'mesh.data': 2, 'mesh.table': 2}),
    marking.slow({'strategy.name': 'sync', 'table.layout': 'column',
                  'mesh.table': 2}),
    marking.slow({'strategy.name': 'replicas', 'mesh.data': 2}),
    marking.slow({'table.store': 'memory', **_FEW}),
    marking.slow({'table.store': 'disk', 'optimizer.name': 'adagrad', **_FEW}),
    marking.slow({'train.fused': False}),
  ],
)  # fmt: skip
def test_old_rows_stay_and_new_words_get_theirs(folder, tmp_path, changes):
  vectors, log = _continued(folder, tmp_path / 'new', **_STILL, **changes)
  counts = dict(zip(vectors.index_to_key, vectors.counts, strict=True))
  assert counts == {
    'apple': 350, 'cat': 350, 'boat': 200, 'dog': 200, 'egg': 200,
    'fish': 150, 'rare': 4, 'words': 4, **dict.fromkeys(_MORE, 3),
  }  # fmt: skip
  assert vectors.counts.tolist() == sorted(counts.values(), reverse=True)
  assert '207 of 208 rows of vectors, 207 of 208 rows of context_vectors' in log
  old, new = _tables(folder / 'old'), _tables(tmp_path / 'new')
  for name, rows in old.items():
    for word, row in rows.items():
      np.testing.assert_array_equal(new[name][word], row, word)
  assert 0 < np.abs(new['vectors']['fish']).max() <= 0.5 / _DIM
  assert np.abs(new['context_vectors']['fish']).max() < 1e-20


_SUBWORDS = {'model.subwords': '3-4', 'model.buckets': 997}


@pytest.fixture(scope='module')
def subword_run(folder):
  """A run with subwords, beside the other one."""
  settings = _USUAL | _SUBWORDS | {'data.path': str(folder / 'old.txt')}
  assert runs.run(folder / 'subwords', settings) == 0
  return folder / 'subwords'


def _subword_tables(workdir):
  """Rows by word or bucket."""
  export = workdir / 'export'
  tree = orbax_export.read(export / 'orbax')
  words = jaxemb.load(workdir).index_to_key
  keys = {
    'words': words,
    'context_vectors': words,
    'ngrams': np.load(export / 'buckets.npy').tolist(),
  }
  return {
    name: dict(zip(x, np.asarray(tree[name]), strict=True))
    for name, x in keys.items()
  }


@pytest.mark.parametrize(
  'changes',
  [
    {},
    marking.slow({'strategy.name': 'sync', 'table.layout': 'row',
                  'mesh.data': 2, 'mesh.table': 2}),
    marking.slow({'strategy.name': 'replicas', 'mesh.data': 2}),
    marking.slow({'table.store': 'memory', **_FEW}),
    marking.slow({'train.fused': False}),
  ],
)  # fmt: skip
def test_rows_of_ngrams_stay_by_their_buckets(
  folder, subword_run, tmp_path, changes
):
  settings = {'train.init_from': str(subword_run)} | _SUBWORDS | _STILL
  vectors, log = _continued(folder, tmp_path / 'new', **settings, **changes)
  old, new = _subword_tables(subword_run), _subword_tables(tmp_path / 'new')
  for name, rows in old.items():
    for key, row in rows.items():
      np.testing.assert_array_equal(new[name][key], row, f'{name} {key}')
  added = new['ngrams'].keys() - old['ngrams'].keys()
  buckets = [x for _, x in ngrams.of_word('fish', ngrams.Subwords(3, 4, 997))]
  assert added and added == set(buckets) - old['ngrams'].keys()
  assert f'{len(old["ngrams"])} of {len(new["ngrams"])} rows of ngrams' in log
  rows = [new['words']['fish'], *(new['ngrams'][x] for x in buckets)]
  np.testing.assert_allclose(vectors['fish'], np.mean(rows, 0), 1e-5)


def test_rows_of_ngrams_learn_the_less_the_more_they_have():
  words = ['band', 'ban', 'other']
  model = subwords.make(
    base.WindowSpec(3, 5, 2, 5, 4, 4),
    base.Corpus(words, np.array([9, 5, 1]), np.full(3, 1 / 3)),
    loss_of=sampling.logistic_loss,
    subwords=ngrams.Subwords(3, 4, 1000),
    is_cbow=False,
  )
  learned = np.array([7.0, 3.0, 0.0])
  sums = model.composed_sums(subwords.NGRAMS, learned)
  keys = model.composed_keys(subwords.NGRAMS)
  for bucket, total in zip(keys.tolist(), sums.tolist(), strict=True):
    of_words = [
      [x for _, x in ngrams.of_word(word, model.words.buckets.subwords)]
      for word in words
    ]
    weights = [x.count(bucket) / (1 + len(x)) for x in of_words]
    expected = sum(x * y for x, y in zip(weights, learned, strict=True))
    assert total == pytest.approx(expected)


def _node_rows(workdir):
  """Rows of inner nodes by the words below them, code by code."""
  export = workdir / 'export'
  words = jaxemb.load(workdir).index_to_key
  tree = np.load(export / 'tree.npz')
  below = [[set(), set()] for _ in tree['inner_nodes']]
  for word, above in zip(words, tree['words'].tolist(), strict=True):
    while above >= 0:
      below[above >> 1][above & 1].add(word)
      above = int(tree['inner_nodes'][above >> 1])
  rows = orbax_export.read(export / 'orbax')['inner_nodes']
  return {tuple(map(frozenset, x)): y for x, y in zip(below, rows, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize(
  'changes',
  [
    {},
    marking.slow({'model.name': 'cbow', 'optimizer.name': 'adagrad'}),
    marking.slow({'strategy.name': 'replicas', 'mesh.data': 2}),
    marking.slow(
      {
        'table.store': 'memory',
        'table.device_bytes': '90%',
        'train.batch_words': 64,
      }
    ),
    marking.slow({'train.fused': False}),
  ],
)
def test_a_tree_goes_on_below_the_new_words(folder, tmp_path, changes):
  tree = {'model.loss': 'hierarchical_softmax'}
  named = {k: x for k, x in changes.items() if k == 'model.name'}
  settings = tree | named | {'data.path': str(folder / 'old.txt')}
  old, new = tmp_path / 'old', tmp_path / 'new'
  assert runs.run(old, _USUAL | settings) == 0
  settings = tree | {'train.init_from': str(old)} | _STILL
  vectors, log = _continued(folder, new, **settings, **changes)
  assert '207 of 208 rows of vectors, 206 of 207 rows of inner_nodes' in log
  before, after = _node_rows(old), _node_rows(new)
  assert len(after.keys() - before.keys()) == 1
  for words, row in before.items():
    np.testing.assert_array_equal(after[words], row)
  earlier = jaxemb.load(old)
  for word in earlier.index_to_key:
    np.testing.assert_array_equal(vectors[word], earlier[word])
  (old / 'export' / 'tree.npz').unlink()
  assert 'has no tree.npz in its export' in _refused(tmp_path, **tree | named)


_OF_FASTTEXT = {'model.subwords': '3-4', 'model.buckets': 40}


def _write_fasttext(path, words, outputs=1.0, **settings):
  """A model of fastText, of random rows; returns these by table."""
  rng = np.random.default_rng(0)
  made = fasttext_format.Settings(
    _DIM, buckets=40, min_chars=3, max_chars=4, **settings
  )
  num = len(words) + made.buckets
  inputs = rng.standard_normal((num, _DIM), np.float32)
  outputs *= rng.standard_normal((len(words), _DIM), np.float32)
  fasttext_format.write(
    path,
    made,
    words=words,
    counts=np.arange(len(words), 0, -1) * 10,
    inputs=[inputs],
    outputs=outputs,
  )
  return inputs[: len(words)], inputs[len(words) :], outputs


def test_a_model_of_fasttext_goes_on(folder, tmp_path):
  words = ['</s>', 'apple', 'Straße', 'dog']
  path = tmp_path / 'model.bin'
  rows, of_buckets, outputs = _write_fasttext(path, words)
  settings = {'train.init_from': str(path)} | _OF_FASTTEXT | _STILL
  vectors, log = _continued(folder, tmp_path / 'new', **settings)
  assert '4 of 8 rows of words, 4 of 8 rows of context_vectors' in log
  assert (
    '1 of the 4 words' in log and 'give --config.data.lowercase=false' in log
  )
  counts = dict(zip(vectors.index_to_key, vectors.counts.tolist(), strict=True))
  assert counts == {
    '</s>': 40, 'apple': 30 + 150, 'Straße': 20, 'dog': 10, 'cat': 150,
    'fish': 150, 'rare': 2, 'words': 2,
  }  # fmt: skip
  new = _subword_tables(tmp_path / 'new')
  for i, word in enumerate(words):
    np.testing.assert_array_equal(new['words'][word], rows[i])
    np.testing.assert_array_equal(new['context_vectors'][word], outputs[i])
  for bucket, row in new['ngrams'].items():
    np.testing.assert_array_equal(row, of_buckets[bucket])
  with warnings.catch_warnings():
    warnings.simplefilter('error')  # of output rows that are zeros
    vectors.save_fasttext(tmp_path / 'again.bin')
  again = fasttext_format.read(tmp_path / 'again.bin')
  for word, row in zip(again.words, np.asarray(again.outputs), strict=True):
    np.testing.assert_array_equal(row, new['context_vectors'][word])
  assert (again.kind, again.loss) == ('skipgram', 'negative_sampling')
  before, after = jaxemb.load(path), jaxemb.load(tmp_path / 'again.bin')
  for word in words:
    np.testing.assert_allclose(after[word], before[word], 1e-4, 1e-6)
  # Of n-grams that no word has fastText has what it began with.
  in_use = {
    x: y if x in new['ngrams'] else 0 * y for x, y in enumerate(of_buckets)
  }
  pairs = ngrams.of_word('apples', ngrams.Subwords(3, 4, 40))
  mean = np.mean([in_use[x] for _, x in pairs], 0)
  np.testing.assert_allclose(after['apples'], mean, 1e-4, 1e-6)


def test_vectors_of_fasttext_are_first_vectors_of_words(folder, tmp_path):
  path = tmp_path / 'model.bin'
  *_, outputs = _write_fasttext(path, ['apple', 'dog'])
  settings = {'train.init_from': str(path), 'data.grow': False} | _STILL
  vectors, _ = _continued(folder, tmp_path / 'new', **settings)
  assert vectors.subwords is None and 'dog' not in vectors
  np.testing.assert_array_equal(vectors['apple'], jaxemb.load(path)['apple'])
  contexts = _tables(tmp_path / 'new')['context_vectors']
  np.testing.assert_array_equal(contexts['apple'], outputs[0])
  with pytest.raises(errors.UserError, match='no output rows of words'):
    _write_fasttext(path, ['apple', 'dog'], loss=1)
    parts.open_part(path, trainable=True)


def test_models_of_fasttext_that_cannot_go_on(folder, tmp_path):
  path = tmp_path / 'model.bin'

  def refused(settings=types.MappingProxyType({}), **changes):
    _write_fasttext(path, ['apple', 'dog'], **settings)
    return _refused(tmp_path, path.name, **changes)

  said = refused(**{'model.dim': 7})
  assert (
    '--config.model.dim=6 --config.model.subwords=3-4 --config.model.' in said
  )
  assert 'is a classifier' in refused({'model': 3})
  assert 'learned by hierarchical_softmax' in refused({'loss': 1})
  assert 'output rows of zeros' in refused({'outputs': 0.0})
  path.write_text('1 2\nword 0.5 0.5\n')
  said = _refused(tmp_path, path.name)
  assert 'give a run or a .bin, or begin with the vectors of a file' in said


def test_frequent_rows_do_not_forget_at_full_rate(folder, tmp_path):
  old = jaxemb.load(folder / 'old')
  (tmp_path / 'few.txt').write_text('apple cat\n' * 3)
  few = {'data.path': str(tmp_path / 'few.txt')}
  continued, _ = _continued(folder, tmp_path / 'continued', **few)
  few['data.grow'] = False
  full, _ = _continued(folder, tmp_path / 'full', **few)
  for word in ('apple', 'cat'):
    moved = np.linalg.norm(continued[word] - old[word])
    assert 0 < moved < 0.3 * np.linalg.norm(full[word] - old[word])


def test_negatives_are_of_both_texts_and_centers_of_the_new_one():
  both, here = np.array([60, 30, 10, 0]), np.array([20, 0, 10, 0])
  sample = 0.1
  kept = subsampling.keep_probabilities(both, sample)
  chances = subsampling.center_probabilities(both, sample, here)
  wanted = [x * y for x, y in zip(kept, here, strict=True)]
  np.testing.assert_allclose(chances, np.array(wanted) / sum(wanted))


def test_a_second_start_resumes_and_no_other_run_will_do(folder, tmp_path):
  workdir, source = tmp_path / 'new', tmp_path / 'old'
  shutil.copytree(folder / 'old', source)
  begun = {'train.init_from': str(source)}
  _continued(folder, workdir, **begun)
  before = runs.vectors(workdir)
  _, log = _continued(folder, workdir, **begun)
  assert runs.vectors(workdir) == before and 'resuming after' in log

  def refused(**changes):
    with pytest.raises(errors.UserError) as caught:
      _continued(folder, workdir, **begun | changes)
    return str(caught.value)

  elsewhere = {'train.init_from': str(folder / 'old')}
  assert 'train.init_from (' in refused(**elsewhere)
  assert 'data.grow (True there, False now)' in refused(**{'data.grow': False})
  rows = np.load(source / 'export' / 'vectors.npy')
  np.save(source / 'export' / 'vectors.npy', rows + 1)
  assert 'is not the run that' in refused()


_KINDS = {
  'graph:deepwalk': (
    'source,target\na,b\nb,c\nc,the end\nd,a\n',
    'source,target\na,b\nb,the end\nnew one,a\n',
    {'data.walks': 3, 'data.walk_length': 5, 'model.window': 2},
  ),
  'graph:line': (
    'source,target\na,b\nb,c\nc,the end\nd,a\n',
    'source,target\na,b\nb,the end\nnew one,a\n',
    {'model.order': 2},
  ),
  'graph:relations': (
    'source,relation,target\na,r,b\nb,r,c\nc,s s,the end\nd,r,a\n',
    'source,relation,target\na,r,b\nb,new,the end\nnew one,r,a\n',
    {},
  ),
  'rec:item2vec': (
    'user,item\nu,x\nu,y z\nv,x\nv,w\nv,y z\nv,once\n',
    'user,item\nu,x\nu,y z\nw,x\nw,new one\nu,new one\nw,rare\n',
    {'data.min_count': 1},
  ),
  'rec:bpr': (
    'user,item\nu,x\nu,y z\nv,x\nv,w\nv,y z\nv,once\n',
    'user,item\nu,x\nu,y z\nw w,x\nw w,new one\nu,new one\nw w,rare\n',
    {'data.min_count': 1},
  ),
}


def _train(name, path, workdir, **settings):
  usual = {'model.dim': _DIM, 'train.epochs': 1, 'mesh.data': 1}
  settings = usual | settings
  config = config_lib.load(name, {'data.path': str(path), **settings})
  assert lifecycle.run(config, workdir) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  [
    *marking.slow_after(
      1, ['graph:deepwalk', 'rec:bpr', 'graph:line', 'graph:relations']
    ),
    'rec:item2vec',
  ],
)
def test_nodes_and_items_grow_as_words_do(name, tmp_path):
  *data, settings = _KINDS[name]
  for file, text in zip(('old.csv', 'new.csv'), data, strict=True):
    (tmp_path / file).write_text(text)
  old, new = tmp_path / 'old', tmp_path / 'new'
  _train(name, tmp_path / 'old.csv', old, **settings)
  if 'rec' in name:
    settings = settings | {'data.min_count': 2}
  begun = {'train.init_from': str(old), 'data.grow': True}
  _train(name, tmp_path / 'new.csv', new, **settings, **begun, **_STILL)
  before, after = jaxemb.load(old), jaxemb.load(new)
  added = set(after.index_to_key) - set(before.index_to_key)
  assert added == {'new_one'}
  counts = dict(zip(after.index_to_key, after.counts.tolist(), strict=True))
  earlier = dict(zip(before.index_to_key, before.counts.tolist(), strict=True))
  if 'graph' in name:
    assert all(counts[x] > n for x, n in earlier.items() if x in 'ab')
    assert [counts[x] - earlier[x] for x in 'cd'] == [0, 0]
  else:
    here = {'x': 2, 'y_z': 1, 'w': 0, 'once': 0, 'new_one': 2}
    assert counts == {x: n + earlier.get(x, 0) for x, n in here.items()}
  assert after.counts.tolist() == sorted(counts.values(), reverse=True)
  for key in before.index_to_key:
    np.testing.assert_array_equal(after[key], before[key], key)
  trees = [orbax_export.read(x / 'export' / 'orbax') for x in (old, new)]
  names = [x.index_to_key for x in (before, after)]
  if name in ('rec:bpr', 'graph:relations'):
    files = [x / 'export' / 'context_vocab.txt' for x in (old, new)]
    names = [x.read_text().split() for x in files]
    added = {'w_w'} if name == 'rec:bpr' else {'new', 'new_(inverse)'}
    assert set(names[1]) - set(names[0]) == added
  rows = [
    dict(zip(x, tree['context_vectors'], strict=True))
    for x, tree in zip(names, trees, strict=True)
  ]
  for key, row in rows[0].items():
    np.testing.assert_array_equal(rows[1][key], row, key)


def _documents(path, tags, words):
  lines = [json.dumps({'text': f'{words} {words}', 'tag': tag}) for tag in tags]
  path.write_text('\n'.join(lines) + '\n')


@pytest.mark.slow
@pytest.mark.parametrize(
  'changes',
  [
    {'model.name': 'dm'},
    *marking.slow_after(
      0,
      [
        {'model.name': 'dbow'},
        {'model.name': 'dm', 'train.fused': False},
        {'model.name': 'dm', 'strategy.name': 'replicas', 'mesh.data': 2},
      ],
    ),
  ],
)
def test_documents_go_on_by_tag_and_words_by_name(tmp_path, changes):
  old, new = tmp_path / 'old', tmp_path / 'new'
  _documents(tmp_path / 'old.jsonl', ['one', 'two', 'a b'], 'cat dog egg')
  _documents(tmp_path / 'new.jsonl', ['two', 'c d', 'four'], 'cat fish')
  usual = {'data.min_count': 1, 'model.name': changes['model.name']}
  _train('documents', tmp_path / 'old.jsonl', old, **usual)
  begun = {'train.init_from': str(old), 'data.grow': True}
  path = tmp_path / 'new.jsonl'
  _train('documents', path, new, **usual | begun | _STILL | changes)
  before, after = jaxemb.load(old), jaxemb.load(new)
  assert after.dv.index_to_key == ['one', 'two', 'a_b', 'c_d', 'four']
  assert after.dv.counts.tolist() == [6, 6 + 4, 6, 4, 4]
  counts = dict(zip(after.wv.index_to_key, after.wv.counts, strict=True))
  assert counts == {'cat': 12, 'dog': 6, 'egg': 6, 'fish': 6}
  for x, y in (
    (before.dv, after.dv),
    (before.wv, after.wv),
    (before._outputs, after._outputs),
  ):
    for key in x.index_to_key:
      np.testing.assert_array_equal(y[key], x[key], key)
  assert np.abs(after.dv['four']).max() > 0
  (tmp_path / 'lines.txt').write_text('cat dog\n')
  with pytest.raises(errors.UserError, match='has tags of documents'):
    _train('documents', tmp_path / 'lines.txt', tmp_path / 'x', **usual | begun)


def test_numbers_of_documents_go_on(tmp_path):
  path = tmp_path / 'lines.txt'
  path.write_text('cat dog egg\n' * 3)
  usual = {'data.min_count': 1}
  _train('documents', path, tmp_path / 'old', **usual)
  begun = {'train.init_from': str(tmp_path / 'old'), 'data.grow': True}
  _train('documents', path, tmp_path / 'new', **usual | begun)
  before, after = (jaxemb.load(tmp_path / x) for x in ('old', 'new'))
  assert after.dv.index_to_key == list('012345')
  for key in '012':  # which the new data do not name
    np.testing.assert_array_equal(after.dv[key], before.dv[key])


_CLICKS = {
  'data.numbers': 'standard',
  'data.min_count': 2,
  'model.hidden': '4',
  'train.batch_examples': 16,
}


def _log_of_clicks(path, colors, seed):
  rng = np.random.default_rng(seed)
  lines = ['label,color,size,price']
  for i in range(120):
    color, size = colors[i % len(colors)], 'sml'[i % 3]
    label, price = int(rng.random() < 0.4), rng.gamma(2) + seed
    lines.append(f'{label},{color},{size},{price:.3f}')
  path.write_text('\n'.join(lines) + '\n')


@pytest.mark.slow
@pytest.mark.parametrize(
  'changes',
  [
    {},
    marking.slow({'model.name': 'dcn_v2', 'data.hash_size': 50}),
    marking.slow({'strategy.name': 'replicas', 'mesh.data': 2}),
    marking.slow({'table.layout': 'row', 'mesh.table': 2}),
  ],
)
def test_a_click_model_goes_on_with_new_categories(tmp_path, changes):
  old, new = tmp_path / 'old', tmp_path / 'new'
  for path, colors, seed in (
    (tmp_path / 'old.csv', ['red', 'blue', 'gone'], 0),
    (tmp_path / 'new.csv', ['red', 'blue', 'red', 'new'], 5),
  ):
    _log_of_clicks(path, colors, seed)
  settings = _CLICKS | {k: x for k, x in changes.items() if 'strategy' not in k}
  alone = {'mesh.data': 1, 'mesh.table': 1, 'table.layout': 'replicated'}
  _train('ctr', tmp_path / 'old.csv', old, **settings | alone)
  begun = {'train.init_from': str(old), 'data.grow': True}
  still = _STILL | {'optimizer.dense_learning_rate': 1e-30}
  _train('ctr', tmp_path / 'new.csv', new, **_CLICKS | changes | begun | still)
  before, after = jaxemb.load(old), jaxemb.load(new)
  # Old categories, layers and scales of numbers are what they were.
  np.testing.assert_array_equal(
    after.predict(tmp_path / 'old.csv'), before.predict(tmp_path / 'old.csv')
  )
  if 'data.hash_size' not in changes:
    names = pa.ipc.open_file(new / 'export' / 'keys.arrow').read_all()
    assert set(names['key'].to_pylist()[:4]) == {'red', 'blue', 'new', 'gone'}
    assert names['key'].to_pylist()[3] == 'gone'
    (color,) = (x for x in after.encoder.fields.ids if x.name == 'color')
    assert color.num_ids == 5
  other = {'data.numbers': 'log'}
  with pytest.raises(
    errors.UserError, match='has config.data.numbers=standard'
  ):
    _train(
      'ctr',
      tmp_path / 'new.csv',
      tmp_path / 'x',
      **_CLICKS | changes | begun | other,
    )


def _refused(folder, name='old', **changes):
  settings = _USUAL | {
    'train.init_from': str(folder / name),
    'data.grow': True,
  }
  with pytest.raises(errors.UserError) as caught:
    start.check(config_lib.check(config_lib.default(), settings | changes))
  assert '\n' not in str(caught.value)
  return str(caught.value)


def test_other_runs_are_refused_in_a_line(folder, tmp_path):
  assert 'give --config.model.dim=6' in _refused(folder, **{'model.dim': 7})
  said = _refused(folder, **{'model.name': 'cbow'})
  assert 'has config.model.name=skipgram, and this run cbow' in said
  assert 'does not exist' in _refused(folder, 'absent')
  jaxemb.load(folder / 'old').save(tmp_path / 'saved')
  assert 'has vectors alone' in _refused(tmp_path, 'saved')
  said = _refused(folder, **{'model.loss': 'hierarchical_softmax'})
  assert 'has config.model.loss=negative_sampling' in said
  said = _refused(folder, **{'strategy.name': 'partition'})
  assert 'does not go with config.strategy.name=partition' in said
  assert 'data.counts=x is not used' in _refused(folder, **{'data.counts': 'x'})
  assert 'needs the run' in _refused(folder, **{'train.init_from': ''})
  shutil.copytree(folder / 'old', tmp_path / 'clicks')
  config = json.loads((tmp_path / 'clicks' / 'config.json').read_text())
  config['data']['source'] = 'clicks'
  (tmp_path / 'clicks' / 'config.json').write_text(json.dumps(config))
  assert 'has config.data.source=clicks' in _refused(tmp_path, 'clicks')


def test_exports_that_lack_rows_are_refused_in_a_line(folder, tmp_path):
  shutil.copytree(folder / 'old', tmp_path / 'old')
  orbax = tmp_path / 'old' / 'export' / 'orbax'
  rows = orbax_export.read(orbax)['vectors']
  for number, (arrays, says) in enumerate([
    ({'vectors': rows}, 'has no context_vectors'),
    ({'vectors': rows, 'context_vectors': rows[1:]}, 'of shape [206, 6]'),
    ({'vectors': rows, 'context_vectors': rows * np.nan}, 'are not finite'),
  ]):  # fmt: skip
    shutil.rmtree(orbax)
    orbax_export.write(orbax, arrays)
    begun = {'train.init_from': str(tmp_path / 'old')}
    with pytest.raises(errors.UserError) as caught:
      _continued(folder, tmp_path / str(number), **begun)
    assert says in str(caught.value) and '\n' not in str(caught.value)


def test_the_flag_sets_both_settings():
  config, *_ = train_cli.parse(['--from=x', '--config.data.path=y'])
  assert (config.train.init_from, config.data.grow) == ('x', True)
  with pytest.raises(errors.UserError, match='give one of them'):
    train_cli.parse(['--from=x', '--config.train.init_from=x'])
