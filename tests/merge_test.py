"""The merge command: what it reads and leaves, and every bad input."""

import json

import numpy as np
import orbax.checkpoint as ocp
import pytest

import jaxemb
from jaxemb import merge
from jaxemb.storage import checkpoint, orbax_export, word2vec_format

_WORDS = [f'w{i}' for i in range(60)]
_COUNTS = np.arange(60, 0, -1)


def _vectors(seed):
  """A rotated copy of the same vectors."""
  truth = np.random.default_rng(0).normal(size=(60, 8))
  turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(8, 8)))[0]
  return (truth @ turn).astype(np.float32)


def _cosines(vectors):
  unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
  return unit @ unit.T


def _export(folder, vectors, words=_WORDS, counts=_COUNTS):
  folder.mkdir(parents=True)
  np.save(folder / 'vectors.npy', vectors)
  word2vec_format.write_vocab(folder / 'vocab.txt', words, counts)
  return folder


def _run_folder(folder, seed):
  """What a finished run leaves, as far as a merge reads it."""
  vectors, squares = _vectors(seed), np.arange(60, dtype=np.float32)
  export = _export(folder / 'export', vectors)
  (folder / 'config.json').write_text('{}')
  optimizer = {
    'vectors': {'sum_squares': squares},
    'context_vectors': {'sum_squares': squares + 1},
  }
  arrays = {'vectors': vectors, 'context_vectors': 2 * vectors}
  orbax_export.write(export / 'orbax', arrays | {'optimizer': optimizer})
  return folder


@pytest.fixture(scope='module')
def parts(tmp_path_factory):
  """Every form that a part can have."""
  folder = tmp_path_factory.mktemp('parts')
  _export(folder / 'a', _vectors(1))
  _export(folder / 'workdir' / 'export', _vectors(2))
  word2vec_format.write(folder / 'c.bin', _WORDS[:50], _vectors(3)[:50], True)
  word2vec_format.write(folder / 'd.txt', _WORDS[10:], _vectors(4)[10:], False)
  word2vec_format.write(folder / 'e.gz', _WORDS, _vectors(5), False)
  ocp.PyTreeCheckpointer().save(folder / 'foreign', {'any': _vectors(6)})
  word2vec_format.write_vocab(folder / 'foreign' / 'vocab.txt', _WORDS, _COUNTS)
  for name in ('run', 'run2'):
    _run_folder(folder / name, len(name))
  return folder


def _run(capsys, *argv):
  try:
    code = merge.main([str(x) for x in argv])
  except SystemExit as stop:
    code = stop.code
  captured = capsys.readouterr()
  return code, captured.out, captured.err


def test_parts_of_every_form(parts, tmp_path, capsys):
  names = (
    'a', 'workdir', 'c.bin', 'd.txt', 'e.gz', 'foreign', 'run',
    'run2/export', 'a/vectors.npy',
  )  # fmt: skip
  output = tmp_path / 'merged'
  code, out, err = _run(
    capsys, *(parts / name for name in names), f'--output={output}'
  )
  assert code == 0, err
  merged = jaxemb.load(output)
  assert set(merged.index_to_key) == set(_WORDS)
  order = [merged.key_to_index[word] for word in _WORDS]
  assert np.abs(
    _cosines(merged.vectors[order]) - _cosines(_vectors(0))
  ).max() < 1e-5  # fmt: skip
  for name in ('vectors.bin', 'vectors.txt', 'vocab.txt', 'projector'):
    assert (output / 'export' / name).exists()
  same = jaxemb.load(output / 'export' / 'vectors.bin')
  assert np.array_equal(same.vectors, merged.vectors)
  report = json.loads((output / 'merge.json').read_text())
  assert [x['words'] for x in report['parts'][:4]] == [60, 60, 50, 50]
  assert [x['missing_words'] for x in report['parts'][:4]] == [0, 0, 10, 10]
  assert report['weights'] == 'equal'  # of c.bin no counts are known
  assert 'c.bin' in err and 'weigh the same' in err
  assert report['displacements'] and report['peak_rss_bytes'] > 2**20
  assert {'read_secs', 'merge_secs', 'export_secs', 'total_secs'} <= set(report)
  assert '60 words x 8, alir of 9 parts' in out and 'displacement' in out
  assert not list(output.glob('.merging*'))


def test_context_vectors_and_optimizer_slots(parts, tmp_path, capsys):
  output = tmp_path / 'merged'
  runs = parts / 'run', parts / 'run2'
  code, _, err = _run(capsys, *runs, '--trainable', f'--output={output}')
  assert code == 0, err
  merged = jaxemb.load(output)
  found = orbax_export.read(output / 'export' / 'orbax')
  assert np.array_equal(found['vectors'], merged.vectors)
  assert np.abs(found['context_vectors'] - 2 * merged.vectors).max() < 1e-5
  slots = found['optimizer']['context_vectors']['sum_squares']
  assert np.allclose(slots, np.arange(60) + 1)
  report = json.loads((output / 'merge.json').read_text())
  assert report['tables'] == [
    'context_vectors',
    'optimizer/context_vectors/sum_squares',
    'optimizer/vectors/sum_squares',
  ]
  # What was merged can be merged again.
  again = tmp_path / 'again'
  code, _, err = _run(capsys, output, *runs, '--trainable', f'--output={again}')
  assert code == 0, err
  # A merge without them does not leave those of an earlier one.
  code, _, err = _run(capsys, *runs, f'--output={output}')
  assert code == 0
  assert set(orbax_export.shapes(output / 'export' / 'orbax')) == {'vectors'}


def test_counts_that_a_merge_did_not_know_are_not_known(
  parts, tmp_path, capsys
):
  first, second = tmp_path / 'first', tmp_path / 'second'
  _run(capsys, parts / 'c.bin', parts / 'd.txt', f'--output={first}')
  code, _, err = _run(capsys, first, parts / 'a', f'--output={second}')
  report = json.loads((second / 'merge.json').read_text())
  assert code == 0 and report['weights'] == 'equal'
  assert f'not known of {first}' in err


def test_concat_says_what_is_lost(parts, tmp_path, capsys):
  code, out, err = _run(
    capsys, parts / 'a', parts / 'c.bin', '--method=concat',
    f'--output={tmp_path}',
  )  # fmt: skip
  assert code == 0 and '50 words x 16' in out
  assert '10 words' in err and 'w50' in err and '--method=alir' in err


def _break(folder, name):
  """Makes a bad part; what is said of it."""
  path = folder / name
  if name == 'missing':
    return path, 'missing'
  if name == 'empty.txt':
    path.write_text('0 8\n')
    return path, 'holds no vectors'
  if name == 'nan.bin':
    vectors = _vectors(1)
    vectors[7, 3] = np.nan
    word2vec_format.write(path, _WORDS, vectors, True)
    return path, "'w7'"
  if name == 'cut.bin':
    word2vec_format.write(path, _WORDS, _vectors(1), True)
    path.write_bytes(path.read_bytes()[:-100])
    return path, 'is cut'
  if name == 'cut':
    file = _export(path, _vectors(1)) / 'vectors.npy'
    file.write_bytes(file.read_bytes()[:-100])
    return path, 'no usable vectors.npy'
  if name == 'nothing':
    _export(path, np.zeros((0, 8), np.float32), [], [])
    return path, 'nothing'
  if name == 'wordless':
    ocp.PyTreeCheckpointer().save(path, {'any': _vectors(6)})
    return path, 'put a vocab.txt'
  if name == 'two_arrays':
    ocp.PyTreeCheckpointer().save(path, {'a': _vectors(6), 'b': _vectors(7)})
    word2vec_format.write_vocab(path / 'vocab.txt', _WORDS, _COUNTS)
    return path, 'one array of 60 rows'
  if name == 'twice':
    ocp.PyTreeCheckpointer().save(path, {'any': _vectors(6)})
    words = [*_WORDS[:-1], _WORDS[0]]
    word2vec_format.write_vocab(path / 'vocab.txt', words, _COUNTS)
    return path, 'twice'
  if name == 'checkpoints':
    with checkpoint.Checkpoints(path, 1, print) as saved:
      saved.save(3, {'tables': _vectors(6)}, {})
    return path, 'give the folder of the run'
  assert name == 'damaged'
  ocp.PyTreeCheckpointer().save(path, {'any': _vectors(6)})
  word2vec_format.write_vocab(path / 'vocab.txt', _WORDS, _COUNTS)
  for file in (path / 'd').glob('*'):
    file.write_bytes(file.read_bytes()[:-100])
  return path, 'no readable orbax checkpoint'


@pytest.mark.parametrize(
  'name',
  [
    'missing', 'empty.txt', 'nan.bin', 'cut.bin', 'cut', 'nothing', 'wordless',
    'two_arrays', 'twice', 'checkpoints', 'damaged',
  ],
)  # fmt: skip
def test_bad_parts_are_named(parts, tmp_path, capsys, name):
  path, message = _break(tmp_path, name)
  argv = [parts / 'a', path, parts / 'run', f'--output={tmp_path / "merged"}']
  code, out, err = _run(capsys, *argv)
  assert code == 2 and out == ''
  (line,) = err.splitlines()
  assert message in line and name in line and '--skip-bad' in line
  code, out, err = _run(capsys, *argv, '--skip-bad')
  assert code == 0 and 'alir of 2 parts' in out
  assert 'left out' in err and message in err
  report = json.loads((tmp_path / 'merged' / 'merge.json').read_text())
  assert [x['name'] for x in report['skipped']] == [str(path)]


def test_a_full_disk_is_no_fault_of_a_part(
  parts, tmp_path, capsys, monkeypatch
):
  def write(*args):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(np.lib.format, 'write_array_header_1_0', write)
  code, _, err = _run(
    capsys, parts / 'a', parts / 'c.bin', parts / 'workdir', '--skip-bad',
    f'--output={tmp_path / "m"}',
  )  # fmt: skip
  assert code == 2 and 'No space left' in err and 'left out' not in err
  assert 'skip-bad' not in err


@pytest.mark.parametrize(
  ('argv', 'message'),
  [
    (['{0}/a', '{0}/a', '--output={0}/a'], 'is one of the parts'),
    (['{0}/a', '{0}/workdir/export', '--output={0}/workdir'], 'is one of'),
    (
      ['{0}/a', '{0}/workdir/export/vectors.npy', '--output={0}/workdir'],
      'is one of',
    ),
    (['{0}/a', '{0}/e.gz', '--output={0}/run'], 'is the folder of a run'),
    (['{0}/a', '--output={1}'], 'nothing to merge'),
    (['{0}/a', '{0}/e.gz', '--output={0}/c.bin/x'], 'give another --output'),
    (['{0}/a', '{0}/e.gz', '--output={1}', '--dim=9'], '--dim=9'),
    (['{0}/a', '{0}/e.gz', '--output={1}', '--dim=-1'], '--dim must be 0'),
    (['{0}/a', '{0}/e.gz', '--output={1}', '--method=mean'], "'mean'"),
    (['{0}/a', '{0}/run', '--output={1}', '--trainable'], 'no context vectors'),
    (['{0}/a', '{0}/run', '--output={1}', '--max_iterations=0'], '1 or more'),
    (['{0}/a', '{0}/run', '--output={1}', '--tolerance=nan'], '0 or more'),
    (['{0}/a', '{0}/run', '--output={1}', '--power=0'], 'above 0'),
    (['{0}/a', '{0}/a', '--output={1}'], 'given twice'),
    (
      ['{0}/a', '{0}/b', '--output={1}', '--method=pca', '--no-restore'],
      '--no-restore is not used',
    ),
    (['{0}/a', '{0}/run', '--output={1}', '--align_words=-1'], '0 or more'),
    (['{0}/a', '{0}/run'], '--output'),
    (
      ['{0}/a', '{0}/run', '--output={1}', '--method=pca', '--start=random'],
      'not used with --method=pca',
    ),
  ],
)
def test_unusable_arguments_exit_with_2(parts, tmp_path, capsys, argv, message):
  argv = [argument.format(parts, tmp_path) for argument in argv]
  code, out, err = _run(capsys, *argv)
  assert code == 2 and out == ''
  assert message in err.splitlines()[-1]


def test_words_without_others_are_refused(parts, tmp_path, capsys):
  word2vec_format.write(
    tmp_path / 'x.bin', [w.upper() for w in _WORDS], _vectors(1), True
  )
  code, _, err = _run(
    capsys, parts / 'a', tmp_path / 'x.bin', f'--output={tmp_path / "m"}'
  )
  assert code == 2 and 'nothing to align on' in err
  assert len(err.splitlines()) == 1
