"""Files of every version: read to the same numbers, or refused by name."""

import json
import logging
import pathlib
import re
import shutil
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.clicks import encode as clicks_encode
from jaxemb.documents import loader
from jaxemb.io import cache as cache_lib
from jaxemb.run import lifecycle, metrics, rundir
from jaxemb.storage import checkpoint, orbax_export
from jaxemb.text import encode as text_encode
from tests.formats import readers, write

_HERE = pathlib.Path(__file__).parent
VERSIONS = sorted(_HERE.glob('v*'), key=lambda x: int(x.name[1:]))
NEWEST = VERSIONS[-1]
_HINT = """
What today's code writes differs from the files in {newest} (see above).
- If an earlier jaxemb would read it to other numbers, or not at all, give its
  `Format` (beside the writer) the next number, and keep reading the old files,
  or raise `oldest`.
- Then, and also if an earlier jaxemb reads it as before, keep {newest} as it
  is, and add the new files: python -m tests.formats.write tests/formats/v{next}
"""
# Of a format that is not read any more.
_REFUSED = re.compile(r' of format \d+.*, and jaxemb .* reads format .*; ')
_FORMATS = pytest.mark.parametrize('name', readers.READERS)


@pytest.mark.parametrize('version', VERSIONS, ids=lambda x: x.name)
@_FORMATS
def test_stored_files_have_the_same_numbers(version, name):
  if name == 'words.safetensors':
    pytest.importorskip('safetensors', reason="needs the extra 'hub'")
  if name == 'index':
    pytest.importorskip('usearch', reason="needs the extra 'ann'")
  try:
    found = readers.READERS[name](version / name)
  except errors.UserError as error:
    assert _REFUSED.search(str(error)), error
    return
  readers.compare(found, readers.expected(version, name))


# What is not read by its name alone.


def _text(folder: pathlib.Path) -> dict[str, np.ndarray]:
  corpus = text_encode._open(folder)
  return {'ids': corpus.ids, 'words': np.array(corpus.words)}


def _clicks(folder: pathlib.Path) -> dict[str, np.ndarray]:
  encoded = clicks_encode._opened(folder)
  return {'ids': encoded.splits['train'].ids, 'counts': encoded.counts}


def _documents(folder: pathlib.Path) -> dict[str, np.ndarray]:
  lines = loader._read_lines(folder)
  return {'rows': lines.rows, 'tags': np.array(lines.tags)}


CACHES = {
  'clicks-*': (_clicks, clicks_encode.FORMAT),
  'documents/*': (_documents, loader.FORMAT),
  'corpora/*': (_text, text_encode.FORMAT),
}


@pytest.mark.parametrize('pattern', CACHES)
def test_stored_caches_are_read_or_refused(pattern):
  read, _ = CACHES[pattern]
  paths = [y for x in VERSIONS for y in (x / write.CACHES).glob(pattern)]
  assert paths
  for path in paths:
    try:
      assert all(map(len, read(path).values()))
    except errors.UserError as error:
      assert _REFUSED.search(str(error)), error


@pytest.mark.parametrize('version', VERSIONS, ids=lambda x: x.name)
def test_stored_runs_have_their_records(version):
  for name in write.RUNS:
    recorded = rundir.recorded(version / name)
    assert recorded['fingerprint'] and 'format' not in recorded
  report = json.loads((version / 'run' / 'report.json').read_text())
  assert report['finished'] and report['format'] >= 1
  rows = metrics.read(version / 'run' / 'metrics.jsonl')
  assert rows and all(np.isfinite(x['loss']) for x in rows)


# A number that this version does not know.

_NEWER = 99


def _seal(path: pathlib.Path, change: Callable[[dict], dict]) -> None:
  """Changes a JSON file whose checksum, if it has one, is right again."""
  record = change(json.loads(path.read_text()))
  checksum = record.pop('checksum', None)
  if checksum is not None:
    is_manifest = path.name == 'manifest.json'
    text = json.dumps(record, sort_keys=not is_manifest)
    record['checksum'] = zlib.crc32(text.encode())
  path.write_text(json.dumps(record, indent=1))


def _newer(path: pathlib.Path) -> None:
  if path.suffix == '.txt':  # the first line
    first, rest = path.read_text().split('\n', 1)
    first = json.dumps(json.loads(first) | {'format': _NEWER})
    path.write_text(f'{first}\n{rest}')
  else:
    _seal(path, lambda record: record | {'format': _NEWER})


def _line(call: Callable[[], object]) -> str:
  with pytest.raises(errors.UserError) as caught:
    call()
  line = str(caught.value)
  assert '\n' not in line and f' of format {_NEWER}, written by jaxemb' in line
  assert line.endswith('; upgrade jaxemb')
  return line


@pytest.mark.parametrize(
  ('name', 'file'),
  [
    ('run', 'export/export.json'),
    ('vectors', 'export.json'),
    ('clicks', 'export/model.json'),
    ('clicks', 'export/encoder.json'),
    ('nodes', 'export/network.json'),
    ('documents', 'export/words/documents.json'),
    ('index', 'index.json'),
    ('graph', 'manifest.json'),
    ('phrases.txt', ''),
  ],
)
def test_a_newer_number_is_refused_by_name(name, file, tmp_path):
  if name == 'index':
    pytest.importorskip('usearch', reason="needs the extra 'ann'")
  shutil.copytree(NEWEST, tmp_path / 'v')
  path = tmp_path / 'v' / name
  _newer(path / file)
  assert str(path) in _line(lambda: readers.READERS[name](path))


def test_a_run_and_a_checkpoint_of_a_newer_number_are_refused(tmp_path):
  run = shutil.copytree(NEWEST / 'run', tmp_path / 'run')
  (record,) = run.glob('checkpoints/*/record/metadata')
  _newer(record)
  with checkpoint.Checkpoints(run / 'checkpoints', 3, print) as checkpoints:
    assert 'checkpoints/' in _line(lambda: checkpoints.restore(lambda x: x))
  assert checkpoint.newest_record(run / 'checkpoints') is None
  _newer(run / 'config.json')
  assert f'{run} has a run' in _line(lambda: rundir.recorded(run))


@pytest.mark.parametrize('pattern', CACHES)
def test_a_cache_of_a_newer_number_is_made_again(pattern, tmp_path, caplog):
  read, _ = CACHES[pattern]
  (path, *_) = (NEWEST / write.CACHES).glob(pattern)
  folder = shutil.copytree(path, tmp_path / 'cache')
  _newer(folder / ('tags.json' if 'docu' in pattern else 'manifest.json'))
  _line(lambda: read(folder))

  def make(new: pathlib.Path) -> None:
    shutil.copytree(path, new, dirs_exist_ok=True)

  with caplog.at_level(logging.INFO, 'jaxemb'):
    found = cache_lib.opened(folder, read, make)
  assert f'{folder} is made again: ' in caplog.text
  assert f' of format {_NEWER}' in caplog.text
  for name, array in read(path).items():
    np.testing.assert_array_equal(found[name], array)


# Runs go on, and today's writers write what they wrote.


@pytest.mark.slow
@pytest.mark.parametrize('version', VERSIONS, ids=lambda x: x.name)
@pytest.mark.parametrize('name', write.RUNS)
def test_stored_runs_are_resumed(version, name, tmp_path):
  folder = shutil.copytree(version, tmp_path / 'v')
  shutil.rmtree(folder / name / 'export')
  with write.working(folder, tmp_path / 'cache'):
    try:
      assert lifecycle.run(write.config_of(name), name) == 0
    except errors.UserError as error:
      assert _REFUSED.search(str(error)), error
      return
  log = (folder / name / 'log.txt').read_text()
  found = readers.READERS[name](folder / name)
  wanted = readers.expected(version, name)
  if name == 'sub-models':  # which are merged again, by products
    assert 'sub-model 0' not in log
    found, wanted = (
      {'close' if k == 'vectors' else k: y for k, y in x.items()}
      for x in (found, wanted)
    )
  else:
    assert 'resuming after' in log
  readers.compare(found, wanted)


def _keys(value: object, path: str = '') -> Iterator[str]:
  """Names and types of what JSON has; numbers are names of one kind."""
  if isinstance(value, dict):
    for key, x in value.items():
      yield from _keys(x, f'{path}.{re.sub("[0-9]+", "N", key)}')
  elif isinstance(value, list):
    for x in value:
      yield from _keys(x, f'{path}[]')
  else:
    is_number = type(value) in (int, float)
    yield f'{path}: {"number" if is_number else type(value).__name__}'


def _arrays(path: pathlib.Path) -> Iterator[str]:
  loaded = np.load(path)
  arrays = loaded if path.suffix == '.npz' else {'': loaded}
  for name, x in arrays.items():
    yield f'{name}: {x.dtype.kind}{x.dtype.itemsize} of {x.ndim} axes'


def _content(path: pathlib.Path) -> Iterator[str]:
  """What a reader of a file relies on, and no numbers."""
  if path.suffix in ('.npy', '.npz'):
    yield from _arrays(path)
  elif path.suffix == '.json' or path.parts[-2:] == ('record', 'metadata'):
    yield from _keys(json.loads(path.read_text()))
  elif path.suffix == '.jsonl':
    for line in path.read_text().splitlines():
      yield from _keys(json.loads(line))


def _layout(folder: pathlib.Path) -> set[str]:
  """Files, and by file the names and types of what it has."""
  found = set()
  for path in folder.rglob('*'):
    name = path.relative_to(folder).as_posix()
    if name.startswith(write.INPUTS) or not path.is_file():
      continue
    if '/array_metadatas/' in name:  # of which orbax has all elsewhere
      continue
    # Orbax checks what is in its folders; steps and hashes are others.
    name = re.sub(r'/(d|ocdbt\.process_0)/.*', r'/\1', name)
    name = re.sub(r'-?[0-9a-f]{16}\b', '/HASH', name)
    name = re.sub(r'checkpoints(-stores)?/\d+', r'checkpoints\1/STEP', name)
    found.add(name)
    if 'report.json' not in name:  # of this machine
      found |= {f'{name}: {x}' for x in _content(path)}
  for state in folder.rglob('state'):
    shapes = orbax_export.shapes(state)
    found.add(f'{state.relative_to(folder).parts[0]}: {_keys_of(shapes)}')
  return found


def _keys_of(tree: object) -> str:
  if isinstance(tree, dict):
    return str({k: _keys_of(x) for k, x in sorted(tree.items())})
  return str(tree)


@pytest.mark.slow
def test_todays_code_writes_what_is_stored(tmp_path):
  folder = tmp_path / 'today'
  write.write(folder)
  stored, today = _layout(NEWEST), _layout(folder)
  changes = [f'- {x}' for x in sorted(stored - today)]
  changes += [f'+ {x}' for x in sorted(today - stored)]
  number = int(NEWEST.name[1:]) + 1
  hint = _HINT.format(newest=f'tests/formats/{NEWEST.name}', next=number)
  assert not changes, '\n'.join([*changes, hint])
  # CPUs and compilers round what is trained in their own ways.
  for name in readers.READERS.keys() - write.RUNS.keys():
    found = readers.READERS[name](folder / name)
    readers.compare(found, readers.expected(NEWEST, name))
