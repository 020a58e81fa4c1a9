"""Whole runs on tables of few bits: exports, resuming, going on from them."""

import json

import ml_dtypes
import numpy as np
import pytest

import jaxemb
from jaxemb import config as config_lib
from jaxemb import train


def _config(tmp_path, **settings):
  config = config_lib.default()
  config.data.path = 'toywiki:30000'
  config.data.min_count = 2
  config.model.dim, config.train.epochs = 16, 2
  config.eval.paths = 'none'
  config.update_from_flattened_dict(settings)
  return config


def test_runs_of_int8(tmp_path, interrupting):
  common = {
    'strategy.name': 'sync',
    'table.layout': 'row',
    'table.dtype': 'int8',
    'train.checkpoint_every_secs': 0.0,
  }
  meshes = [
    {'mesh.data': 1, 'mesh.table': 4},
    {'mesh.data': 2, 'mesh.table': 1},
  ]
  whole = tmp_path / 'whole'
  assert train.run(_config(tmp_path, **common, **meshes[0]), whole) == 0
  report = json.loads((whole / 'report.json').read_text())
  vocab = report['vocab_words']
  assert report['table_dtype'] == 'int8'
  padded = -(-vocab // 256) * 256
  assert report['vector_bytes'] == 2 * padded * (16 + 4)
  assert 'int8' in (whole / 'log.txt').read_text()
  codes = np.load(whole / 'export' / 'vectors.npy')
  scales = np.load(whole / 'export' / 'scales.npy')
  assert codes.dtype == np.int8 and codes.shape == (vocab, 16)
  expected = codes * scales[:, None]
  found = jaxemb.load(whole)
  np.testing.assert_array_equal(found.vectors, expected)
  # word2vec's formats have the same numbers.
  binary = jaxemb.load(whole / 'export' / 'vectors.bin')
  np.testing.assert_array_equal(binary.vectors, expected)
  # Killed, and finished on another mesh: sums are rounded otherwise, which now
  # and then sends a number to its other neighbour.
  begun = tmp_path / 'begun'
  with interrupting(1), pytest.raises(KeyboardInterrupt):
    train.run(_config(tmp_path, **common, **meshes[0]), begun)
  assert train.run(_config(tmp_path, **common, **meshes[1]), begun) == 0
  assert 'resuming after' in (begun / 'log.txt').read_text()
  again = jaxemb.load(begun).vectors
  assert (np.abs(again - expected) <= scales[:, None] * 1.01).mean() > 0.95
  # Another run starts from its tables, of the context words too.
  later = _config(
    tmp_path,
    **{'train.init_from': str(whole), 'table.dtype': 'bfloat16'},
    **{'optimizer.learning_rate': 1e-12, 'train.epochs': 1, 'mesh.data': 2},
    **{'optimizer.final_learning_rate': 0.0, 'table.rounding': 'nearest'},
  )
  assert train.run(later, tmp_path / 'later') == 0
  log = (tmp_path / 'later' / 'log.txt').read_text()
  assert 'tables vectors, context_vectors' in log
  kept = np.load(tmp_path / 'later' / 'export' / 'vectors.npy')
  kept = kept.view(ml_dtypes.bfloat16).astype(np.float32)
  wanted = expected.astype(ml_dtypes.bfloat16).astype(np.float32)
  np.testing.assert_allclose(kept, wanted, 0, 1e-9)  # some zeros have moved
  np.testing.assert_array_equal(jaxemb.load(tmp_path / 'later').vectors, kept)
  # And another one from its checkpoint: what all replicas make together.
  last = _config(
    tmp_path,
    **{'train.init_from': str(tmp_path / 'later')},
    **{'table.dtype': 'int8', 'train.epochs': 1, 'mesh.data': 1},
    **{'strategy.name': 'sync'},
    **{'optimizer.learning_rate': 1e-12, 'table.rounding': 'nearest'},
    **{'optimizer.final_learning_rate': 0.0},
  )
  assert train.run(last, tmp_path / 'last') == 0
  found = jaxemb.load(tmp_path / 'last').vectors
  error = np.abs(found - kept) / np.abs(kept).max(1, keepdims=True)
  assert error.max() < 0.65 * 1.25 / 127


def test_senses_by_the_tree_learn_in_few_bits(tmp_path):
  losses = []
  for dtype in ('float32', 'int8'):
    settings = {
      'model.name': 'mixture',
      'model.loss': 'hierarchical_softmax',
      'table.dtype': dtype,
      'mesh.data': 2,
      'senses.number': 2,
      'optimizer.name': 'adagrad',
      'optimizer.learning_rate': 0.2,
    }
    assert train.run(_config(tmp_path, **settings), tmp_path / dtype) == 0
    report = json.loads((tmp_path / dtype / 'report.json').read_text())
    losses.append(report['loss_per_example'])
  assert losses[1] == pytest.approx(losses[0], rel=0.01)


@pytest.mark.parametrize(
  'settings',
  [
    {'strategy.name': 'sync', 'table.dtype': 'bfloat16'},
    {'table.dtype': 'int8'},
  ],
  ids=['sync-bfloat16', 'replicas-int8'],
)
def test_a_restart_rounds_alike(tmp_path, interrupting, settings):
  settings |= {'mesh.data': 2, 'train.checkpoint_every_secs': 0.0}
  config = _config(tmp_path, **settings)
  assert train.run(config, tmp_path / 'whole') == 0
  with interrupting(1), pytest.raises(KeyboardInterrupt):
    train.run(config, tmp_path / 'begun')
  assert train.run(config, tmp_path / 'begun') == 0
  assert 'resuming after' in (tmp_path / 'begun' / 'log.txt').read_text()
  for name in ('vectors.npy', 'scales.npy'):
    whole, begun = (tmp_path / x / 'export' / name for x in ('whole', 'begun'))
    assert whole.exists() == begun.exists()
    assert not whole.exists() or whole.read_bytes() == begun.read_bytes()


def test_outliers_of_what_a_run_starts_from_are_kept(tmp_path):
  begun = tmp_path / 'begun'
  assert (
    train.run(_config(tmp_path, **{'train.epochs': 1, 'mesh.data': 2}), begun)
    == 0
  )
  first = jaxemb.load(begun)
  rows = first.vectors.copy()
  rows[:, 7] = 30 * np.abs(rows).max()
  lines = [
    f'{word} {" ".join(map(str, row))}'
    for word, row in zip(first.index_to_key, rows, strict=True)
  ]
  path = tmp_path / 'outliers.txt'
  path.write_text('\n'.join([f'{len(rows)} {rows.shape[1]}', *lines, '']))
  settings = {
    'train.init_from': str(path), 'table.dtype': 'int8', 'train.epochs': 1,
    'mesh.data': 2,
    'optimizer.learning_rate': 1e-12, 'optimizer.final_learning_rate': 0.0,
  }  # fmt: skip
  assert train.run(_config(tmp_path, **settings), tmp_path / 'run') == 0
  found = jaxemb.load(tmp_path / 'run')
  assert list(found.index_to_key) == list(first.index_to_key)
  np.testing.assert_allclose(found.vectors[:, 7], rows[:, 7], 0.01)


def test_sub_models_of_few_bits(tmp_path):
  config = _config(
    tmp_path,
    **{'strategy.name': 'partition', 'strategy.num_parts': 2},
    **{'table.dtype': 'float16', 'mesh.data': 2},
  )
  assert train.run(config, tmp_path / 'run') == 0
  for path in ('parts/00/export', 'parts/01/export', 'export'):
    kept = np.load(tmp_path / 'run' / path / 'vectors.npy')
    assert kept.dtype == np.float16 and np.isfinite(kept).all()
    found = jaxemb.load(tmp_path / 'run' / path)
    np.testing.assert_array_equal(found.vectors, kept.astype(np.float32))
  report = json.loads((tmp_path / 'run' / 'report.json').read_text())
  vocab = report['vocab_words'] + report['merge']['missing_words']
  # Both tables of both models.
  assert report['vector_bytes'] == 2 * 2 * vocab * 16 * 2
  assert report['vector_bytes'] < report['table_bytes']
