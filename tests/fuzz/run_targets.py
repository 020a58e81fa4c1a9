"""Readers of runs: command lines, settings, checkpoints, caches and models."""

import functools
import pathlib
import shlex
import tempfile

import numpy as np

import jaxemb
from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.cli import train
from jaxemb.clicks import predictor
from jaxemb.documents import trained
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import inference
from jaxemb.io import cache as cache_lib
from jaxemb.run import metrics, rundir, start
from jaxemb.storage import checkpoint
from jaxemb.text import encode, phrases
from tests.fuzz import folders, fuzzing, run_seeds

_ROOT = pathlib.Path(__file__).parents[1]


def _stored(name: str) -> list[bytes]:
  return [(run_seeds.FOLDER / name).read_bytes()]


# Settings.


def _command_line() -> list[bytes]:
  return [
    b'--config=wiki --config.model.dim=8 --config.train.epochs=2',
    b'--config=wiki --workdir=a --config.data.min_count 5',
    b'--config=ctr --config.model.hidden=8,4 --config.data.valid=0.1',
    b'--config=graph:relations --config.model.operator=diagonal',
    b'--config=wiki --config.model.subwords=3-6 --config.model.buckets=1000',
    b'--config=wiki --config.table.device_bytes=64MB --config.seed=3',
    b'--config=graphsage --config.data.fanouts=10,5 --distributed=false',
  ]


def _parse(path: pathlib.Path) -> None:
  try:
    arguments = shlex.split(path.read_text('utf-8', 'surrogateescape'))
  except ValueError:  # open quotes
    raise errors.UserError('no command line') from None
  for argument in arguments:
    # Config files and what settings name are Python, which would be run.
    if ':' in argument and 'source' in argument or '.py' in argument:
      raise errors.UserError('names code')
  config, _, _ = train.parse(arguments)
  train.describe(config)


def _run_folder() -> list[bytes]:
  return _stored('run')


def _use_run(folder: pathlib.Path) -> None:
  """Reads what the next start and whoever continues from a run reads."""
  refusals = []
  config = config_lib.load('wiki', {'train.init_from': str(folder)})
  for read in (
    lambda: rundir.check(config, folder),
    lambda: start.check(config),
    lambda: rundir.check_data(folder, ''),
    lambda: metrics.read(folder / 'metrics.jsonl'),
    lambda: jaxemb.load(folder).most_similar('alpha'),
    lambda: jaxemb.load_phrases(folder),
  ):
    try:
      read()
    except errors.UserError as error:
      refusals.append(error)
    except errors.UnknownWordError:  # of another vocabulary
      pass
  if len(refusals) > 3:
    raise refusals[-1]


# Checkpoints.


def _state() -> dict[str, np.ndarray]:
  return {
    'vectors': np.arange(8, dtype=np.float32).reshape(4, 2),
    'steps': np.arange(2, dtype=np.int32),
  }


def _checkpoint() -> list[bytes]:
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'checkpoints')
    with checkpoint.Checkpoints(path, 2, print) as saved:
      saved.save(1, _state(), {'step': 1, 'position': [0, 1]})
    return [folders.of_folder(path)]


def _restore(folder: pathlib.Path) -> None:
  checkpoint.newest_record(folder)
  with checkpoint.Checkpoints(folder, 2, print) as saved:
    saved.restore(lambda record: _state())


# Caches.


def _text_cache() -> list[bytes]:
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / 'text.txt').write_text('one two one\ntwo three one\n' * 9)
    encoded = encode.encode(
      str(folder / 'text.txt'),
      encode.Settings('words', True, 1, 0, ''),
      folder / 'cache',
      lambda *_: None,
    )
    return [folders.of_folder(encoded.folder)]


_whole_cache = functools.cache(lambda: folders.split(_text_cache()[0]))


def _use_text_cache(folder: pathlib.Path) -> None:
  """Opens it, or makes it again."""
  whole = _whole_cache()

  def make(path):
    for name, data in whole.items():
      (path / name).write_bytes(data)

  encoded = cache_lib.opened(folder, load=encode._open, make=make)
  list(encoded.read(np.arange(len(encoded.blocks.starts) - 1)))


def _graph() -> list[bytes]:
  """Returns that of stored formats: to make one compiles for long."""
  *_, newest = sorted((_ROOT / 'formats').glob('v*/graph'))
  return [folders.of_folder(newest)]


def _phrases() -> list[bytes]:
  return [folders.split(_stored('run')[0])['export/phrases.txt']]


def _use_phrases(path: pathlib.Path) -> None:
  loaded = phrases.load(path)
  loaded.export_phrases()
  loaded[['new', 'york', 'alpha']]


# Models.


def _click_model() -> list[bytes]:
  return _exports('click_model')


def _exports(name: str) -> list[bytes]:
  files = folders.split(_stored(name)[0])
  exported = {
    k.removeprefix('export/'): x
    for k, x in files.items()
    if k.startswith('export/')
  }
  return [folders.joined(exported)]


def _predict(folder: pathlib.Path) -> None:
  model = predictor.load(folder)
  model.predict({'site': ['a', 'new'], 'ad': ['x', 'y'], 'age': [1, 30]})


def _documents() -> list[bytes]:
  return _exports('documents')


def _use_documents(folder: pathlib.Path) -> None:
  loaded = trained.load(folder)
  loaded.wv.most_similar(loaded.wv.index_to_key[-1])
  loaded.dv.most_similar(loaded.dv.index_to_key[-1])
  loaded.infer_vector(['alpha', 'beta'])


def _node_model() -> list[bytes]:
  return _exports('node_model')


def _infer(folder: pathlib.Path) -> None:
  model = inference.load(folder)
  if model is None:
    raise errors.UserError('no model')
  jaxemb.load(folder)


def _folder(name, seeds, read) -> fuzzing.Target:
  return fuzzing.Target(name, '', seeds=seeds, read=folders.reader(read))


TARGETS = (
  fuzzing.Target('command_line', '', seeds=_command_line, read=_parse),
  _folder('run_folder', _run_folder, _use_run),
  _folder('checkpoint', _checkpoint, _restore),
  _folder('text_cache', _text_cache, _use_text_cache),
  _folder('graph_folder', _graph, graph_lib.load),
  fuzzing.Target('phrases', '', seeds=_phrases, read=_use_phrases),
  _folder('click_model', _click_model, _predict),
  _folder('documents', _documents, _use_documents),
  _folder('node_model', _node_model, _infer),
)
