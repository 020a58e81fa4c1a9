"""Warm starts, in every layout and strategy."""

import jax
import numpy as np
import pytest

import jaxemb
from jaxemb import build, errors, train
from jaxemb import config as config_lib
from jaxemb.merging import warm_start
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.storage import orbax_export, word2vec_format

_VOCAB, _DIM = 300, 6
_WORDS = [f'w{i}' for i in range(_VOCAB)]


def _config(path, **settings):
  config = config_lib.default()
  config.model.dim = _DIM
  config.optimizer.name = 'adagrad'
  config.train.init_from = str(path)
  config.update_from_flattened_dict(settings)
  return config


@pytest.fixture(scope='module')
def merged(tmp_path_factory):
  """What a merge leaves: every third word, in another order."""
  folder = tmp_path_factory.mktemp('merged')
  rng = np.random.default_rng(0)
  ids = rng.permutation(_VOCAB)[::3]
  words = [f'w{i}' for i in ids] + ['elsewhere', 'unseen']
  rows = rng.normal(size=(len(words), _DIM)).astype(np.float32)
  (folder / 'export').mkdir()
  np.save(folder / 'export' / 'vectors.npy', rows)
  counts = [*range(len(words), 1, -1), 0]
  word2vec_format.write_vocab(folder / 'export' / 'vocab.txt', words, counts)
  squares = np.arange(len(words), dtype=np.float32)
  optimizer = {
    'vectors': {'sum_squares': squares + 1},
    'context_vectors': {'sum_squares': squares + 2},
  }
  arrays = {'vectors': rows, 'context_vectors': rows + 1}
  orbax_export.write(
    folder / 'export' / 'orbax', arrays | {'optimizer': optimizer}
  )
  return folder, ids, rows[: len(ids)]


_MESHES = [
  ('sync', 'replicated', 1, 1),
  ('sync', 'row', 1, 4),
  ('sync', 'row', 2, 2),
  ('sync', 'column', 1, 4),
  ('sync', 'column', 2, 2),
  ('replicas', 'replicated', 3, 1),
]


def _states(config, shape=(1, 1)):
  """A trainer, and two equal new states."""
  shape = mesh_lib.Shape(*shape)
  config, tuning = config_lib.resolve(config, 'cpu', shape)
  counts = np.arange(_VOCAB, 0, -1)
  made = build.trainer(config, tuning, counts, mesh_lib.make(shape))
  sharding = made.strategy.state_sharding
  init = jax.jit(made.strategy.init, out_shardings=sharding)
  return made, init(jax.random.key(0)), init(jax.random.key(0))


def _begin(config, made, state, words=_WORDS):
  path = config.train.init_from
  return warm_start.begin(path, made.trainable, made.strategy, state, words)


@pytest.mark.parametrize(('strategy', 'layout', 'data', 'table'), _MESHES)
def test_known_words_start_from_their_rows(
  merged, strategy, layout, data, table
):
  folder, ids, rows = merged
  settings = {'strategy.name': strategy, 'table.layout': layout}
  config = _config(folder, **settings)
  made, new, state = _states(config, (data, table))
  state = _begin(config, made, state)
  others = np.setdiff1d(np.arange(_VOCAB), ids)
  for name, more in (('input', 0), ('output', 1)):
    found, before = (made.strategy.export_rows(x, name) for x in (state, new))
    np.testing.assert_array_equal(found.rows[ids], rows + more)
    np.testing.assert_array_equal(found.rows[others], before.rows[others])
    # Replicas export the sum of theirs.
    squares = found.slots['sum_squares'] / (data if data == 3 else 1)
    np.testing.assert_array_equal(squares[ids], 1 + more + np.arange(len(ids)))
    assert not squares[others].any()
  # It lies where the steps want it.
  for ours, theirs in zip(
    jax.tree.leaves(state), jax.tree.leaves(new), strict=True
  ):
    assert ours.sharding == theirs.sharding and ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype


def test_a_file_has_vectors_only(tmp_path):
  rows = np.random.default_rng(0).normal(size=(3, _DIM)).astype(np.float32)
  path = tmp_path / 'v.bin'
  word2vec_format.write(path, ['w2', 'w0', 'x'], rows, True)
  settings = {'strategy.name': 'sync', 'optimizer.name': 'sgd'}
  config = _config(path, **settings)
  made, new, state = _states(config)
  state = _begin(config, made, state)
  wanted = np.array(made.strategy.export_rows(new, 'input').rows)
  wanted[[2, 0]] = rows[:2]
  np.testing.assert_array_equal(
    made.strategy.export_rows(state, 'input').rows, wanted
  )
  assert not np.any(made.strategy.export_rows(state, 'output').rows)


def test_what_does_not_fit_is_refused(merged, tmp_path):
  bad = np.full((3, _DIM), np.nan, np.float32)
  word2vec_format.write(tmp_path / 'bad.bin', _WORDS[:3], bad, True)
  settings = {'strategy.name': 'sync'}
  for path, dim, words, message in (
    (merged[0], 8, _WORDS, '--config.model.dim=6'),
    ('nowhere.bin', _DIM, _WORDS, 'nowhere.bin'),
    (merged[0], _DIM, ['x', 'unseen'], 'none of the 2 words'),
    (
      tmp_path / 'bad.bin',
      _DIM,
      _WORDS,
      '3 of 3 rows of vectors are not finite',
    ),
  ):
    config = _config(path, **settings, **{'model.dim': dim})
    made, _, state = _states(config)
    with pytest.raises(errors.UserError, match=message):
      _begin(config, made, state, words)


def _run(tmp_path, name, **settings):
  config = config_lib.default()
  config.data.path = 'toywiki:20000'
  config.data.min_count = 2
  config.model.dim = 8
  config.train.epochs = 1
  config.eval.paths = 'none'
  config.strategy.name = 'sync'
  config.mesh.data = 1
  config.update_from_flattened_dict(settings)
  assert train.run(config, tmp_path / name) == 0
  return jaxemb.load(tmp_path / name)


def test_a_run_starts_from_another(tmp_path):
  first = _run(tmp_path, 'first')
  path = str(tmp_path / 'first')
  # With a learning rate of nothing, what comes out is what went in.
  still = {'optimizer.learning_rate': 1e-30, 'seed': 2}
  still |= {'optimizer.final_learning_rate': 0.0}
  second = _run(tmp_path, 'second', **still, **{'train.init_from': path})
  assert second.index_to_key == first.index_to_key
  assert np.array_equal(second.vectors, first.vectors)
  log = (tmp_path / 'second' / 'log.txt').read_text()
  assert f'{len(first):,} of {len(first):,} words (0 start at random' in log
  assert 'tables vectors, context_vectors,' in log
  # A run that goes on has no need of it; another start is another run.
  with pytest.raises(errors.UserError, match='train.init_from'):
    _run(tmp_path, 'second', **still)
  with pytest.raises(errors.UserError, match='does not exist'):
    _run(tmp_path, 'third', **{'train.init_from': str(tmp_path / 'none')})


def test_words_of_several_vectors_start_from_their_mean(tmp_path):
  senses = {
    'model.name': 'mixture',
    'senses.number': 3,
    'senses.top_ratio': 0.05,
  }
  first = _run(tmp_path, 'first', **senses).of_words()
  still = {'optimizer.learning_rate': 1e-30, 'seed': 2}
  still |= {'optimizer.final_learning_rate': 0.0}
  for name, path in (('run', 'first'), ('export', 'first/export')):
    start = {'train.init_from': str(tmp_path / path)}
    found = _run(tmp_path, name, **still, **start)
    assert found.index_to_key == first.index_to_key
    np.testing.assert_array_equal(found.vectors, first.vectors)
    log = (tmp_path / name / 'log.txt').read_text()
    told = f'{len(first):,} of {len(first):,} words (0 start at random, 0 of'
    assert told in log and 'tables vectors, all' in log
