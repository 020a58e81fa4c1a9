"""The merge command: what it reads and leaves, and every bad input."""

import json

import numpy as np
import orbax.checkpoint as ocp
import pytest

import jaxemb
from jaxemb.storage import checkpoint, orbax_export, word2vec_format
from tests import oracle, runs

_WORDS = [f'w{i}' for i in range(60)]
_COUNTS = np.arange(60, 0, -1)


def _vectors(seed):
  """A rotated copy of the same vectors."""
  truth = np.random.default_rng(0).normal(size=(60, 8))
  turn = oracle.rotation(np.random.default_rng(seed), 8)
  return (truth @ turn).astype(np.float32)


def _write(path, words=slice(None), vectors=None):
  vectors = _vectors(3) if vectors is None else vectors
  is_binary = path.suffix == '.bin'
  word2vec_format.write(path, _WORDS[words], vectors[words], is_binary)


def _export(folder, vectors):
  jaxemb.Embeddings(_WORDS, vectors, _COUNTS).save(folder)


def _foreign(folder, words=_WORDS, **arrays):
  """A checkpoint of another program."""
  ocp.PyTreeCheckpointer().save(folder, arrays or {'any': _vectors(6)})
  if words:
    word2vec_format.write_vocab(folder / 'vocab.txt', words, _COUNTS)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Every form that a part can have."""
  folder = tmp_path_factory.mktemp('parts')
  _export(folder / 'a', _vectors(1))
  _export(folder / 'workdir' / 'export', _vectors(2))
  _write(folder / 'c.bin', np.s_[:50])
  _write(folder / 'd.txt', np.s_[10:])
  _write(folder / 'e.gz')
  _foreign(folder / 'foreign')
  for seed, name in enumerate(('run', 'run2')):
    runs.write_trained(folder / name, _WORDS, _vectors(seed), _COUNTS)
    (folder / name / 'config.json').write_text('{}')
  return folder


@pytest.fixture
def run(folder, command, monkeypatch):
  """Merges, in the folder of the parts."""
  monkeypatch.chdir(folder)
  return lambda line: command(f'merge {line}')


def _report(folder):
  return json.loads((folder / 'merge.json').read_text())


def test_parts_of_every_form(tmp_path, run):
  code, out, err = run(
    'a workdir c.bin d.txt e.gz foreign run run2/export a/vectors.npy '
    f'--output={tmp_path}'
  )
  assert code == 0, err
  merged = jaxemb.load(tmp_path)
  assert set(merged.index_to_key) == set(_WORDS)
  found, expected = oracle.cosines(merged[_WORDS]), oracle.cosines(_vectors(0))
  assert np.abs(found - expected).max() < 1e-5
  for name in ('vectors.bin', 'vectors.txt', 'vocab.txt', 'projector'):
    assert (tmp_path / 'export' / name).exists()
  same = jaxemb.load(tmp_path / 'export' / 'vectors.bin')
  assert np.array_equal(same.vectors, merged.vectors)
  report = _report(tmp_path)
  assert [x['words'] for x in report['parts'][:4]] == [60, 60, 50, 50]
  assert [x['missing_words'] for x in report['parts'][:4]] == [0, 0, 10, 10]
  assert report['displacements'] and report['peak_rss_bytes'] > 2**20
  assert {'read_secs', 'merge_secs', 'export_secs', 'total_secs'} <= set(report)
  assert '60 words x 8, alir of 9 parts' in out and 'displacement' in out
  assert not list(tmp_path.glob('.merging*'))


def test_context_vectors_and_optimizer_slots(tmp_path, run):
  output, again = tmp_path / 'merged', tmp_path / 'again'
  code, _, err = run(f'run run2 --trainable --output={output}')
  assert code == 0, err
  merged = jaxemb.load(output)
  found = orbax_export.read(output / 'export' / 'orbax')
  assert np.array_equal(found['vectors'], merged.vectors)
  assert np.abs(found['context_vectors'] - 2 * merged.vectors).max() < 1e-5
  slots = found['optimizer']['context_vectors']['sum_squares']
  assert np.allclose(slots, np.arange(60) + 2)
  assert _report(output)['tables'] == [
    'context_vectors',
    'optimizer/context_vectors/sum_squares',
    'optimizer/vectors/sum_squares',
  ]
  # What was merged can be merged again.
  code, _, err = run(f'{output} run run2 --trainable --output={again}')
  assert code == 0, err
  # A merge without them does not leave those of an earlier one.
  assert run(f'run run2 --output={output}')[0] == 0
  assert set(orbax_export.shapes(output / 'export' / 'orbax')) == {'vectors'}


def _cut(*files):
  for file in files:
    file.write_bytes(file.read_bytes()[:-100])


def _with_nan(path):
  vectors = _vectors(1)
  vectors[7, 3] = np.nan
  _write(path, vectors=vectors)


def _checkpoints(path):
  with checkpoint.Checkpoints(path, 1, print) as saved:
    saved.save(3, {'tables': _vectors(6)}, {})


# What is made in place of a part, and what is said of it.
_BAD_PARTS = {
  'nan.bin': (_with_nan, "'w7'"),
  'cut.bin': (lambda path: (_write(path), _cut(path)), 'is cut'),
  'wordless': (lambda path: _foreign(path, []), 'put a vocab.txt'),
  'checkpoints': (_checkpoints, 'give the folder of the run'),
  'damaged': (
    lambda path: (_foreign(path), _cut(*(path / 'd').glob('*'))),
    'no readable orbax checkpoint',
  ),
}


@pytest.mark.parametrize('name', _BAD_PARTS)
def test_bad_parts_are_named(tmp_path, run, name):
  make, message = _BAD_PARTS[name]
  make(tmp_path / name)
  line = f'a {tmp_path / name} run --output={tmp_path / "merged"}'
  code, out, err = run(line)
  assert code == 2 and out == ''
  *_, error = err.splitlines()  # behind what reading it warns of
  assert message in error and name in error and '--skip-bad' in error
  code, out, err = run(f'{line} --skip-bad')
  assert code == 0 and 'alir of 2 parts' in out
  assert 'left out' in err and message in err
  (skipped,) = _report(tmp_path / 'merged')['skipped']
  assert skipped['name'] == str(tmp_path / name)


def test_a_full_disk_is_no_fault_of_a_part(tmp_path, run, monkeypatch):
  def write(*args):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(np.lib.format, 'write_array_header_1_0', write)
  code, _, err = run(f'a c.bin workdir --skip-bad --output={tmp_path}')
  assert code == 2 and 'No space left' in err
  assert 'left out' not in err and 'skip-bad' not in err
