"""Whole runs on tables of few bits: exports, resuming, going on from them."""

import json

import ml_dtypes
import numpy as np
import pytest

import jaxemb
from jaxemb import config as config_lib
from jaxemb import train

pytestmark = pytest.mark.slow
STILL = {
  'optimizer.learning_rate': 1e-12, 'optimizer.final_learning_rate': 0.0,
  'train.epochs': 1,
}  # fmt: skip


@pytest.fixture
def run(tmp_path, interrupting):
  """Trains in a new folder; returns it, its report and its vectors."""

  def run(name, interrupted_as=None, **settings):
    def start(settings):
      config = config_lib.default()
      config.data.path, config.data.min_count = 'toywiki:30000', 2
      config.model.dim, config.train.epochs = 16, 2
      config.eval.paths, config.mesh.data = 'none', 2
      config.update_from_flattened_dict(settings)
      return train.run(config, tmp_path / name)

    if interrupted_as is not None:
      with interrupting(1), pytest.raises(KeyboardInterrupt):
        start(settings | interrupted_as)
    assert start(settings) == 0
    log = (tmp_path / name / 'log.txt').read_text()
    assert ('resuming after' in log) == (interrupted_as is not None)
    report = json.loads((tmp_path / name / 'report.json').read_text())
    return tmp_path / name, report, jaxemb.load(tmp_path / name).vectors

  return run


def test_runs_of_int8(run):
  common = {
    'strategy.name': 'sync', 'table.layout': 'row', 'table.dtype': 'int8',
    'train.checkpoint_every_secs': 0.0, 'mesh.data': 1, 'mesh.table': 4,
  }  # fmt: skip
  whole, report, found = run('whole', **common)
  vocab = report['vocab_words']
  assert report['table_dtype'] == 'int8'
  padded = -(-vocab // 256) * 256
  assert report['vector_bytes'] == 2 * padded * (16 + 4)
  assert 'int8' in (whole / 'log.txt').read_text()
  codes, scales = (
    np.load(whole / 'export' / f'{x}.npy') for x in ('vectors', 'scales')
  )
  assert codes.dtype == np.int8 and codes.shape == (vocab, 16)
  expected = codes * scales[:, None]
  np.testing.assert_array_equal(found, expected)
  # word2vec's formats have the same numbers.
  binary = jaxemb.load(whole / 'export' / 'vectors.bin')
  np.testing.assert_array_equal(binary.vectors, expected)
  # Killed, and finished on another mesh: sums are rounded otherwise, which now
  # and then sends a number to its other neighbour.
  other = common | {'mesh.data': 2, 'mesh.table': 1}
  _, _, again = run('begun', {'mesh.data': 1, 'mesh.table': 4}, **other)
  assert (np.abs(again - expected) <= scales[:, None] * 1.01).mean() > 0.95
  # Another run starts from its tables, of the context words too.
  still = STILL | {'table.rounding': 'nearest'}
  later, _, kept = run(
    'later',
    **still | {'train.init_from': str(whole), 'table.dtype': 'bfloat16'},
  )
  log = (later / 'log.txt').read_text()
  assert 'tables vectors, context_vectors' in log
  stored = np.load(later / 'export' / 'vectors.npy').view(ml_dtypes.bfloat16)
  np.testing.assert_array_equal(kept, stored.astype(np.float32))
  wanted = expected.astype(ml_dtypes.bfloat16).astype(np.float32)
  np.testing.assert_allclose(kept, wanted, 0, 1e-9)  # some zeros have moved
  # And another one from its checkpoint: what all replicas make together.
  _, _, found = run(
    'last',
    **still | {'train.init_from': str(later), 'table.dtype': 'int8'},
    **{'strategy.name': 'sync', 'mesh.data': 1},
  )
  error = np.abs(found - kept) / np.abs(kept).max(1, keepdims=True)
  assert error.max() < 0.65 * 1.25 / 127


def test_senses_by_the_tree_learn_in_few_bits(run):
  settings = {
    'model.name': 'mixture', 'model.loss': 'hierarchical_softmax',
    'senses.number': 2, 'optimizer.name': 'adagrad',
    'optimizer.learning_rate': 0.2,
  }  # fmt: skip
  losses = [
    run(dtype, **settings | {'table.dtype': dtype})[1]['loss_per_example']
    for dtype in ('float32', 'int8')
  ]
  assert losses[1] == pytest.approx(losses[0], rel=0.01)


@pytest.mark.parametrize(
  'settings',
  [
    {'strategy.name': 'sync', 'table.dtype': 'bfloat16'},
    {'table.dtype': 'int8'},
  ],
  ids=['sync-bfloat16', 'replicas-int8'],
)
def test_a_restart_rounds_alike(run, settings):
  settings = settings | {'train.checkpoint_every_secs': 0.0}
  whole, begun = run('whole', **settings)[0], run('begun', {}, **settings)[0]
  for name in ('vectors.npy', 'scales.npy'):
    files = [x / 'export' / name for x in (whole, begun)]
    assert files[0].exists() == files[1].exists()
    assert not files[0].exists() or len({x.read_bytes() for x in files}) == 1


def test_outliers_of_what_a_run_starts_from_are_kept(run, tmp_path):
  begun, _, rows = run('begun', **{'train.epochs': 1})
  words = jaxemb.load(begun).index_to_key
  rows = rows.copy()
  rows[:, 7] = 30 * np.abs(rows).max()
  path = tmp_path / 'outliers.txt'
  jaxemb.Embeddings(words, rows).save_word2vec_format(path)
  settings = STILL | {'train.init_from': str(path), 'table.dtype': 'int8'}
  folder, _, found = run('run', **settings)
  assert jaxemb.load(folder).index_to_key == words
  np.testing.assert_allclose(found[:, 7], rows[:, 7], 0.01)


def test_sub_models_of_few_bits(run):
  folder, report, _ = run(
    'run',
    **{'strategy.name': 'partition', 'strategy.num_parts': 2},
    **{'table.dtype': 'float16'},
  )
  for path in ('parts/00/export', 'parts/01/export', 'export'):
    kept = np.load(folder / path / 'vectors.npy')
    assert kept.dtype == np.float16 and np.isfinite(kept).all()
    found = jaxemb.load(folder / path).vectors
    np.testing.assert_array_equal(found, kept.astype(np.float32))
  vocab = report['vocab_words'] + report['merge']['missing_words']
  # Both tables of both models.
  assert report['vector_bytes'] == 2 * 2 * vocab * 16 * 2
  assert report['vector_bytes'] < report['table_bytes']
