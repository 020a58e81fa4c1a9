"""Warm starts, in every layout and strategy."""

import jax
import numpy as np
import pytest

import jaxemb
from jaxemb import errors
from jaxemb.merging import warm_start
from jaxemb.storage import word2vec_format
from tests import dispatches, marking, runs

_VOCAB, _DIM = 300, 6
_WORDS = [f'w{i}' for i in range(_VOCAB)]
# With a learning rate of nothing, what comes out is what went in.
_STILL = {
  'optimizer.learning_rate': 1e-30,
  'optimizer.final_learning_rate': 0.0,
  'seed': 2,
}


@pytest.fixture(scope='module')
def merged(tmp_path_factory):
  """What a merge leaves: every third word, in another order."""
  folder = tmp_path_factory.mktemp('merged')
  rng = np.random.default_rng(0)
  ids = rng.permutation(_VOCAB)[::3]
  words = [f'w{i}' for i in ids] + ['elsewhere', 'unseen']
  rows = rng.normal(size=(len(words), _DIM)).astype(np.float32)
  counts = [*range(len(words), 1, -1), 0]
  runs.write_trained(folder, words, rows, counts)
  return folder, ids, rows[: len(ids)]


def _started(path, shape=(1, 1), words=_WORDS, **settings):
  """A strategy, a new state, and the same one after a warm start."""
  usual = {'model.dim': _DIM, 'strategy.name': 'sync'}
  usual |= {'optimizer.name': 'adagrad'}
  counts = np.arange(_VOCAB, 0, -1)
  trainable, strategy = dispatches.trainer(counts, usual | settings, shape)
  new, state = (dispatches.start(strategy) for _ in range(2))
  state = warm_start.begin(str(path), trainable, strategy, state, words)
  return strategy, new, state


@pytest.mark.parametrize(
  ('strategy', 'layout', 'shape'),
  [
    ('sync', 'row', (2, 2)),
    marking.slow('replicas', 'replicated', (3, 1)),
  ],
)
def test_known_words_start_from_their_rows(merged, strategy, layout, shape):
  folder, ids, rows = merged
  settings = {'strategy.name': strategy, 'table.layout': layout}
  made, new, state = _started(folder, shape, **settings)
  others = np.setdiff1d(np.arange(_VOCAB), ids)
  for name, factor in (('input', 1), ('output', 2)):
    found, before = (made.export_rows(x, name) for x in (state, new))
    np.testing.assert_array_equal(found.rows[ids], factor * rows)
    np.testing.assert_array_equal(found.rows[others], before.rows[others])
    squares = found.opt_state['sum_squares']
    np.testing.assert_array_equal(squares[ids], factor + np.arange(len(ids)))
    assert not squares[others].any()

  # It lies where the steps want it.
  def layouts(tree):
    return [(x.sharding, x.shape, x.dtype) for x in jax.tree.leaves(tree)]

  assert layouts(state) == layouts(new)


def test_a_file_has_vectors_only(tmp_path):
  rows = np.random.default_rng(0).normal(size=(3, _DIM)).astype(np.float32)
  path = tmp_path / 'v.bin'
  word2vec_format.write(path, ['w2', 'w0', 'x'], rows, True)
  made, new, state = _started(path, **{'optimizer.name': 'sgd'})
  wanted = np.array(made.export_rows(new, 'input').rows)
  wanted[[2, 0]] = rows[:2]
  found = made.export_rows(state, 'input').rows
  np.testing.assert_array_equal(found, wanted)
  assert not np.any(made.export_rows(state, 'output').rows)


def _run(tmp_path, name, init_from='', **settings):
  """Vectors of a run, and its log; it may start from another folder."""
  settings |= {
    'data.path': 'toywiki:20000',
    'train.epochs': 1,
    'train.init_from': init_from and str(tmp_path / init_from),
    'strategy.name': 'sync',
    'mesh.data': 1,
  }
  assert runs.run(tmp_path / name, settings) == 0
  return jaxemb.load(tmp_path / name), runs.log(tmp_path / name)


@pytest.mark.slow
def test_a_run_starts_from_another(tmp_path):
  senses = {'senses.number': 3, 'senses.top_ratio': 0.05}
  senses |= {'model.name': 'mixture'}
  first, _ = _run(tmp_path, 'first', **senses)
  second, log = _run(tmp_path, 'second', 'first/export', **_STILL)
  first = first.of_words()  # means of senses
  assert second.index_to_key == first.index_to_key
  np.testing.assert_array_equal(second.vectors, first.vectors)
  all_words = f'{len(first):,} of {len(first):,} words (0 start at random, 0 of'
  assert all_words in log
  assert 'context_vectors,' not in log
  # A run that goes on has no need of it; another start is another run.
  with pytest.raises(errors.UserError, match='train.init_from'):
    _run(tmp_path, 'second', **_STILL)
