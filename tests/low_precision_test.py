"""Whole runs on tables of few bits: exports, resuming, going on from them."""

import ml_dtypes
import numpy as np
import pytest

import jaxemb
from tests import runs

pytestmark = pytest.mark.slow
SMALL = {'data.path': 'toywiki:20000', 'train.epochs': 2}
STILL = {
  'optimizer.learning_rate': 1e-12, 'optimizer.final_learning_rate': 0.0,
  'train.epochs': 1,
}  # fmt: skip


@pytest.fixture
def run(tmp_path, interrupting):
  """Trains in a new folder; returns it, its report and its vectors."""

  def run(name, interrupted_as=None, **settings):
    folder, settings = tmp_path / name, SMALL | settings
    if interrupted_as is not None:
      with interrupting(1), pytest.raises(KeyboardInterrupt):
        runs.run(folder, settings | interrupted_as)
    assert runs.run(folder, settings) == 0
    resumed = 'resuming after' in runs.log(folder)
    assert resumed == (interrupted_as is not None)
    return folder, runs.report(folder), jaxemb.load(folder).vectors

  return run


def test_runs_of_int8(run):
  common = runs.SAVE_ALWAYS | {
    'strategy.name': 'sync', 'table.layout': 'row', 'table.dtype': 'int8',
    'mesh.data': 1, 'mesh.table': 4,
  }  # fmt: skip
  whole, report, found = run('whole', **common)
  vocab = report['vocab_words']
  assert report['table_dtype'] == 'int8'
  padded = -(-vocab // 256) * 256
  assert report['vector_bytes'] == 2 * padded * (16 + 4)
  assert 'int8' in runs.log(whole)
  codes, scales = (
    np.load(whole / 'export' / f'{x}.npy') for x in ('vectors', 'scales')
  )
  assert codes.dtype == np.int8 and codes.shape == (vocab, 16)
  expected = codes * scales[:, None]
  np.testing.assert_array_equal(found, expected)
  # word2vec's formats have the same numbers.
  binary = jaxemb.load(whole / 'export' / 'vectors.bin')
  np.testing.assert_array_equal(binary.vectors, expected)
  # Another run starts from its tables, of the context words too.
  later, _, kept = run(
    'later',
    **STILL | {'table.rounding': 'nearest', 'table.dtype': 'bfloat16'},
    **{'train.init_from': str(whole)},
  )
  assert 'tables vectors, context_vectors' in runs.log(later)
  wanted = expected.astype(ml_dtypes.bfloat16).astype(np.float32)
  np.testing.assert_allclose(kept, wanted, 0, 1e-9)  # some zeros have moved


def test_a_restart_rounds_alike(run):
  settings = {'table.dtype': 'int8'} | runs.SAVE_ALWAYS  # of replicas
  whole, begun = run('whole', **settings)[0], run('begun', {}, **settings)[0]
  for name in ('vectors.npy', 'scales.npy'):
    files = [x / 'export' / name for x in (whole, begun)]
    assert files[0].read_bytes() == files[1].read_bytes()


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
