"""What training starts from: `config.train.init_from`, a run or vectors.

With `config.data.grow` (--from=RUN) a run is continued on new data: its keys,
such as words, stay with their counts, and so do all of its tables. In place of
a run, a model of fastText may be continued (.bin).
"""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import ml_collections
import numpy as np

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.config import kinds
from jaxemb.data import base as data_base
from jaxemb.io import text_files
from jaxemb.ops import ngrams
from jaxemb.storage import export, fasttext_format, formats, word2vec_format

# Settings of which a run that is continued must have the same values.
_SAME = (
  'data.source',
  'model.name',
  'model.loss',
  'model.dim',
  'model.subwords',
  'model.buckets',
)


def path_of(config: ml_collections.ConfigDict) -> str:
  """Returns where training starts from; '' = nowhere."""
  return os.path.expanduser(config.train.init_from)


def check(config: ml_collections.ConfigDict) -> None:
  """Raises a `UserError` if there is nothing that training can start from."""
  path = path_of(config)
  if path and not os.path.exists(path):
    raise errors.UserError(
      f'config.train.init_from={path} does not exist; give a run, a merge or a '
      "word2vec file, or ''"
    )
  if config.data.grow:
    _check_run(config, path)


def _check_run(config: ml_collections.ConfigDict, path: str) -> None:
  """Raises a `UserError` for a run of another kind, model or size."""
  folder, kind = _export(path), kinds.of(config)
  ours = config_lib.flat(config)
  if folder.is_file() and not fasttext_format.is_model(path):
    raise errors.UserError(
      f'--from={path} is no model of fastText; give a run or a .bin, or begin '
      f'with the vectors of a file, --config.train.init_from={path}'
    )
  if folder.is_file():
    theirs = _fasttext_settings(path, fasttext_format.read(path))
  else:
    theirs = _settings(path)
  different = {
    x: theirs[x]
    for x in (*_SAME, *kind.alike)
    if x in theirs and _value(x, theirs[x]) != _value(x, ours.get(x))
  }
  if different:
    has = ', '.join(f'config.{k}={x}' for k, x in different.items())
    values = ', '.join(str(ours.get(x)) or "''" for x in different)
    flags = ' '.join(f'--config.{k}={x}' for k, x in different.items())
    raise errors.UserError(
      f'--from={path} has {has}, and this run {values}; give {flags}, or '
      'another run'
    )
  if folder.is_dir():
    export.check_format(folder)
  for name in () if folder.is_file() else _needed(config):
    if not (folder / name).is_file():
      raise errors.UserError(
        f'--from={path} has no {name} in its export; give the folder of a run '
        'of the same kind that has ended'
      )
  if folder.is_dir() and not (folder / 'orbax').is_dir():
    raise errors.UserError(
      f'--from={path} has vectors alone, without context vectors and settings; '
      'give the folder of a run, such as workdir= in Python'
    )


def _needed(config: ml_collections.ConfigDict) -> Sequence[str]:
  """Returns the files of an export that a run is continued from."""
  files = kinds.of(config).continued_from
  is_tree = config.model.loss == 'hierarchical_softmax'
  return (*files, export.TREE) if is_tree else files


def _value(name: str, value: Any) -> Any:
  """Returns the value of a setting, which may be written in several ways."""
  if name == 'model.subwords' and value:
    return ngrams.parse(value)
  return value


def _fasttext_settings(
  path: str, model: fasttext_format.Model
) -> dict[str, Any]:
  """Returns flat settings of a run that would have trained a model.

  Raises a `UserError` for a model that cannot be continued.
  """
  problem = ''
  if model.kind == 'supervised':
    problem = 'is a classifier, whose output rows are of labels'
  elif model.loss != 'negative_sampling':
    problem = f'learned by {model.loss}, and negative sampling goes on alone'
  elif not any(np.any(x) for x in export.blocks(model.outputs)):
    problem = 'has output rows of zeros, as a file of vectors alone'
  if problem:
    raise errors.UserError(
      f'--from={path} {problem}; give a run, or a .bin of skipgram or cbow as '
      'fastText wrote it'
    )
  settings = {
    'data.source': 'text',
    'model.name': model.kind,
    'model.loss': model.loss,
    'model.dim': model.settings.dim,
    'model.subwords': '',
  }
  if max_chars := model.settings.max_chars:
    settings['model.subwords'] = f'{model.settings.min_chars}-{max_chars}'
    settings['model.buckets'] = model.settings.buckets
  return settings


def _export(path: str) -> pathlib.Path:
  """Returns the export of a run, or the folder or file itself."""
  folder, inner = export.folders(path)
  return inner if inner.is_dir() else folder


def _settings(path: str) -> dict[str, Any]:
  """Returns the flat settings of a run, or {} of an export elsewhere."""
  for folder in (pathlib.Path(path), pathlib.Path(path).absolute().parent):
    file = folder / 'config.json'
    if file.is_file():
      with export.reading(file):
        settings = formats.RUN.check(folder, export.read_record(file))
        return config_lib.flat(settings)
  return {}


def known(config: ml_collections.ConfigDict) -> data_base.Known | None:
  """Returns the keys of the run that is continued, if one is.

  Raises a `UserError` if they cannot be read.
  """
  if not config.data.grow:
    return None
  path, files = path_of(config), _needed(config)
  folder = _export(path)
  if folder.is_file():
    model = fasttext_format.read(path)
    return data_base.Known(
      path=path,
      keys=word2vec_format.spell(model.words)[0],
      counts=model.counts,
      fingerprint=text_files.file_sha256(folder),
      folder=folder,
    )
  with export.reading(folder):
    digests = [text_files.file_sha256(folder / x) for x in files]
  keys: list[str] = []
  counts: np.ndarray = np.zeros(0, np.int64)
  if 'vocab.txt' in files:
    keys, counts = word2vec_format.read_vocab(folder / 'vocab.txt')
  contexts: list[str] = []
  if (folder / export.CONTEXTS).is_file():
    contexts, _ = word2vec_format.read_vocab(
      folder / export.CONTEXTS, needs_counts=False
    )
  return data_base.Known(
    path=path,
    keys=keys,
    counts=counts,
    fingerprint=' '.join(digests),
    contexts=contexts,
    folder=folder,
    tree=export.read_tree(folder, len(keys)),
  )
