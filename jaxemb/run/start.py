"""What training starts from: `config.train.init_from`, a run or vectors.

With `config.data.grow` (--from=RUN) a run is continued on new data: its keys,
such as words, stay with their counts, and so do all of its tables.
"""

import json
import os
import pathlib
from typing import Any

import ml_collections
import numpy as np

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.config import kinds
from jaxemb.data import base as data_base
from jaxemb.io import text_files
from jaxemb.storage import export, word2vec_format

# Settings of which a run that is continued must have the same values.
_SAME = (
  'data.source',
  'model.name',
  'model.loss',
  'model.dim',
  'model.subwords',
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
  ours, theirs = config_lib.flat(config), _settings(path)
  for name in (*_SAME, *kind.alike):
    if theirs.get(name, ours.get(name)) != ours.get(name):
      raise errors.UserError(
        f'--from={path} has config.{name}={theirs[name]}, and this run '
        f'{ours.get(name)}; give --config.{name}={theirs[name]}, or another run'
      )
  for name in kind.continued_from:
    if not (folder / name).is_file():
      raise errors.UserError(
        f'--from={path} has no {name} in its export; give the folder of a run '
        'of the same kind that has ended'
      )


def _export(path: str) -> pathlib.Path:
  """Returns the export of a run, or the folder itself."""
  folder = pathlib.Path(path)
  return folder / 'export' if (folder / 'export').is_dir() else folder


def _settings(path: str) -> dict[str, Any]:
  """Returns the flat settings of a run, or {} of an export elsewhere."""
  for folder in (pathlib.Path(path), pathlib.Path(path).absolute().parent):
    file = folder / 'config.json'
    if file.is_file():
      with export.reading(file):
        return config_lib.flat(json.loads(file.read_text('utf-8')))
  return {}


def known(config: ml_collections.ConfigDict) -> data_base.Known | None:
  """Returns the keys of the run that is continued, if one is.

  Raises a `UserError` if they cannot be read.
  """
  if not config.data.grow:
    return None
  path, files = path_of(config), kinds.of(config).continued_from
  folder = _export(path)
  with export.reading(folder):
    digests = [text_files.file_sha256(folder / x) for x in files]
  keys, counts = [], np.zeros(0, np.int64)
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
  )
