"""Whole runs on documents: purity, resuming, inference, files, commands."""

import copy
import functools
import json
import pickle

import numpy as np
import pytest

import jaxemb
from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.cli import predict
from tests import marking, runs

TOPICS, EACH = 4, 60
SETTINGS = {
  'data.source': 'documents', 'model.name': 'dbow', 'model.dim': 24,
  'data.sample': 0.0, 'train.epochs': 30, 'train.threads': 1,
}  # fmt: skip


def _texts(num=TOPICS * EACH, seed=0):
  """Documents of half common words, half of those of a topic, by turns."""
  rng, texts = np.random.default_rng(seed), []
  for i in range(num):
    own = [f't{i % TOPICS}w{k}' for k in rng.integers(0, 30, 15)]
    common = [f'c{k}' for k in rng.integers(0, 60, 15)]
    texts.append(' '.join(rng.permutation(own + common)))
  return texts


def _purity(vectors, others=None):
  """How many of the five nearest vectors are of the same topic."""
  units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
  known = units if others is None else others
  known = known / np.linalg.norm(known, axis=1, keepdims=True)
  scores = units @ known.T
  if others is None:
    np.fill_diagonal(scores, -2)
  near = np.argsort(-scores, 1)[:, :5]
  topics = np.arange(len(units)) % TOPICS
  return (near % TOPICS == topics[:, None]).mean()


@functools.cache
def _model(name='dbow'):
  return jaxemb.train(
    _texts(), config='documents', settings=SETTINGS | {'model.name': name}
  )


every_model = pytest.mark.parametrize('name', ['dbow', marking.slow('dm')])


@every_model
def test_documents_of_a_topic_are_near_each_other(name):
  model = _model(name)
  assert model.vector_size == 24 and model.epochs == 30
  assert model.dv.index_to_key == [str(i) for i in range(TOPICS * EACH)]
  assert _purity(model.dv.vectors) > 0.95
  word = model.wv.most_similar('t1w3')[0][0]
  assert word.startswith('t1')


@every_model
def test_inferred_vectors_are_near_those_of_their_topic(name):
  model = _model(name)
  inferred = model.infer(_texts(80, seed=1))
  assert _purity(inferred, model.dv.vectors) > 0.95
  # Those of documents that were trained, to them.
  again = model.infer(_texts())
  a, b = (
    x / np.linalg.norm(x, axis=1, keepdims=True)
    for x in (again, model.dv.vectors)
  )
  assert np.median(np.sum(a * b, 1)) > 0.9


@pytest.mark.slow
def test_a_vector_depends_on_its_document_and_the_seed_alone():
  model, texts = _model(), _texts(7, seed=2)
  vectors = model.infer(texts)
  np.testing.assert_array_equal(model.infer(texts[::-1])[::-1], vectors)
  np.testing.assert_array_equal(model.infer_vector(texts[3]), vectors[3])
  np.testing.assert_array_equal(
    model.infer_vector(texts[3].split()), vectors[3]
  )
  assert (model.infer(texts, seed=5) != vectors).all()
  assert (model.infer_vector(texts[3], epochs=3) != vectors[3]).all()
  near = model.similarity_unseen_docs(texts[3], texts[3])
  assert near == pytest.approx(1, abs=1e-5)
  many = model.infer(_texts(4000, seed=3))
  np.testing.assert_array_equal(
    model.infer(_texts(4000, seed=3)[2900:]), many[2900:]
  )


def test_documents_without_known_words_are_zeros_and_others_refused():
  model = _model()
  with pytest.warns(UserWarning, match='known word have zeros: 0, 2'):
    vectors = model.infer(['', 'c1 c2', 'unseen'])
  assert not vectors[[0, 2]].any() and vectors[1].any()
  assert model.infer([]).shape == (0, 24)
  # What is learned from are the words of training.
  model.wv.add_vectors(['unseen'], np.ones((1, 24), np.float32))
  with pytest.warns(UserWarning, match='known word have zeros: 0'):
    assert not model.infer(['unseen']).any()
  with pytest.raises(errors.UserError, match="'c1 c2' is one document"):
    model.infer('c1 c2')
  with pytest.raises(errors.UserError, match='document 1 is'):
    model.infer(['c1', 7])
  for arguments in (
    {'epochs': 2.5}, {'epochs': '3'}, {'epochs': 2**70}, {'seed': 1.5},
    {'learning_rate': 'a'},
  ):  # fmt: skip
    with pytest.raises(errors.UserError, match='must be'):
      model.infer(['c1'], **arguments)
  with pytest.raises(errors.UserError, match='must be a list of documents'):
    model.infer(3)


def test_epochs_and_rates_that_cannot_be_used_are_refused():
  model, text = _model(), _texts(1, seed=4)[0]
  none = model.infer_vector(text, min_alpha=0)
  assert model.infer_vector(text, alpha=1e-6).any()  # below the run's final one
  assert (none != model.infer_vector(text)).any()
  for name, value, message in (
    ('epochs', -3, 'epochs=-3 must be 1 or more'),
    ('epochs', 0, 'must be 1 or more'),
    ('alpha', 0, 'must be positive'),
    ('alpha', -0.1, 'must be positive'),
    ('alpha', float('nan'), 'must be positive'),
    ('min_alpha', -1, 'must be 0 or more'),
    ('min_alpha', 1, 'at most 0.0'),
  ):
    with pytest.raises(errors.UserError, match=message):
      model.infer_vector(text, **{name: value})


def test_missing_names_say_what_to_use_and_documents_are_copied():
  model = copy.copy(_model('dbow'))
  with pytest.raises(AttributeError, match='docvecs.; vectors of doc.* are dv'):
    _ = model.docvecs
  assert not hasattr(model, 'anything')
  known = pickle.loads(pickle.dumps(model))
  np.testing.assert_array_equal(known.dv.vectors, model.dv.vectors)


def test_saved_documents_are_loaded_and_damaged_ones_refused(tmp_path):
  model, text = _model(), _texts(1, seed=4)[0]
  model.save(tmp_path / 'saved')
  loaded = jaxemb.load(tmp_path / 'saved')
  assert repr(loaded) == repr(model)
  np.testing.assert_array_equal(loaded.dv.vectors, model.dv.vectors)
  np.testing.assert_array_equal(
    loaded.infer_vector(text), model.infer_vector(text)
  )
  words = tmp_path / 'saved' / 'words'
  outputs = words / 'outputs.npy'
  whole = outputs.read_bytes()
  np.save(outputs, np.load(outputs)[:, :3])
  with pytest.raises(errors.UserError, match='outputs.npy has other dim'):
    jaxemb.load(tmp_path / 'saved')
  outputs.write_bytes(whole)
  settings = json.loads((words / 'documents.json').read_text())
  for text in (
    '{', '[]', '{}', json.dumps(settings | {'window': 'x'}),
    json.dumps(settings | {'lowercase': 1}),
  ):  # fmt: skip
    (words / 'documents.json').write_text(text)
    with pytest.raises(errors.UserError, match='damaged'):
      jaxemb.load(tmp_path / 'saved')


class Tagged:
  """As gensim's `TaggedDocument`."""

  def __init__(self, words, tags):
    self.words, self.tags = words, tags


@pytest.mark.slow
def test_documents_with_tags_and_tables_are_trained():
  texts = _texts(40)
  settings = SETTINGS | {
    'train.epochs': 2, 'data.min_count': 1, 'data.sample': -1.0,
  }  # fmt: skip
  tagged = [Tagged(x.split(), [f'd{i % 20}']) for i, x in enumerate(texts)]
  model = jaxemb.train(tagged, config='documents', settings=settings)
  assert model.dv.index_to_key == [f'd{i}' for i in range(20)]
  assert model.epochs == 2 and model.settings['sample'] > 5e-4  # of few words
  assert model.settings['learning_rate'] == 0.042
  rows = [{'id': f'd{i % 20}', 'content': x} for i, x in enumerate(texts)]
  columns = {'data.columns': 'tag:id', 'data.tokens': 'whitespace'}
  of_table = jaxemb.train(rows, config='documents', settings=settings | columns)
  np.testing.assert_array_equal(of_table.dv.vectors, model.dv.vectors)
  tagged[3].tags = ['a', 'b']
  with pytest.raises(errors.UserError, match='document 4 has the tags'):
    jaxemb.train(tagged, config='documents', settings=settings)


@pytest.mark.slow
@pytest.mark.parametrize('fused', [True, marking.slow(False)])
def test_a_run_that_is_stopped_resumes_with_the_same_bits(
  tmp_path, interrupting, fused
):
  path = tmp_path / 'text.txt'
  path.write_text('\n'.join(_texts()) + '\n')
  settings = SETTINGS | runs.SAVE_ALWAYS | {
    'data.path': str(path), 'train.epochs': 3, 'train.fused': fused,
    'mesh.data': 1, 'eval.paths': '', 'data.min_count': 5,
  }  # fmt: skip
  if not fused:
    settings['train.threads'] = 0
  assert runs.run(tmp_path / 'whole', settings) == 0
  parts = tmp_path / 'parts'
  with interrupting(1), pytest.raises(KeyboardInterrupt):
    runs.run(parts, settings)
  assert runs.run(parts, settings) == 0
  assert 'resuming after' in runs.log(parts)
  assert runs.vectors(parts) == runs.vectors(tmp_path / 'whole')


def test_predict_writes_vectors_of_other_documents(tmp_path, capsys):
  model = _model()
  model.save(tmp_path / 'saved')
  texts = [*_texts(5, seed=5), '']
  (tmp_path / 'new.txt').write_text('\n'.join(texts) + '\n')
  flags = [f'--model={tmp_path}/saved', f'--data={tmp_path}/new.txt']
  assert predict.main([*flags, f'--output={tmp_path}/out.csv']) == 0
  lines = (tmp_path / 'out.csv').read_text().splitlines()
  assert lines[0].startswith('"document","vector_0"') and len(lines) == 7
  numbers = np.array([x.split(',')[1:] for x in lines[1:6]], float)
  np.testing.assert_allclose(numbers, model.infer(texts[:5]), 1e-6)
  assert 'without a known word: 1' in capsys.readouterr().err
  (tmp_path / 'new.txt').write_text('\n'.join(texts), 'utf-16')
  again = [*flags, f'--output={tmp_path}/again.csv']
  assert predict.main([*again, '--encoding=utf-16']) == 0
  assert (tmp_path / 'again.csv').read_text().splitlines()[:6] == lines[:6]
  assert predict.main([*again, '--encoding=no']) == 2
  assert predict.main([*again, '--keep=x']) == 2
  # As after `Embeddings.save` to the same folder.
  (tmp_path / 'saved' / 'words' / 'documents.json').unlink()
  assert predict.main(again) == 2
  assert 'has vectors, and no documents' in capsys.readouterr().err


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'strategy.name': 'partition'}, 'does not train documents'),
    ({'strategy.name': 'workers'}, 'does not train documents'),
    ({'model.window': 7}, 'config.model.window=7'),
    ({'model.name': 'cbow'}, 'cbow'),
    ({'model.loss': 'hierarchical_softmax'}, 'hierarchical_softmax'),
    ({'data.path': 'wikipedia:simple'}, 'downloads'),
    ({'train.init_from': 'x'}, 'train.init_from'),
  ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
  with pytest.raises(errors.UserError, match=message) as caught:
    config_lib.load('documents', settings)
  assert '\n' not in str(caught.value)
