"""What training starts from: `config.train.init_from`, a run or vectors.

With `config.data.grow` (--from=RUN) a run is continued on new data: its keys,
such as words, stay with their counts, and so do all of its tables.
"""

import functools
import json
import os
import pathlib
from typing import Any

import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.io import text_files
from jaxemb.merging import warm_start
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
  folder = _export(path)
  if not (folder / 'vocab.txt').is_file():
    raise errors.UserError(
      f'--from={path} has no export of vectors and their counts; give the '
      'folder of a run of the same kind that has ended'
    )
  ours, theirs = config_lib.flat(config), _settings(path)
  for name in _SAME:
    if theirs.get(name, ours.get(name)) != ours.get(name):
      raise errors.UserError(
        f'--from={path} has config.{name}={theirs[name]}, and this run '
        f'{ours.get(name)}; give --config.{name}={theirs[name]}, or another run'
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
  path = path_of(config)
  folder = _export(path)
  keys, counts = word2vec_format.read_vocab(folder / 'vocab.txt')
  with export.reading(folder / export.VECTORS):
    digests = [
      text_files.file_sha256(folder / x) for x in ('vocab.txt', export.VECTORS)
    ]
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
  )


def new_state(
  config: ml_collections.ConfigDict,
  source: data_base.Source,
  trainable: Any,
  strategy: Any,
  state: Any,
) -> Any:
  """Returns a new state, which is donated, with the rows to start from.

  Raises a `UserError` if these cannot be used.
  """
  path = path_of(config)
  if not path:
    return state

  if run := known(config):
    has_keys = getattr(trainable.model, 'has_contexts_of_keys', False)
    contexts = () if has_keys else getattr(source, 'context_keys', ())
    begin = functools.partial(
      warm_start.go_on, _export(path), run=run, contexts=contexts
    )
  else:
    begin = functools.partial(warm_start.begin, path)
  return begin(trainable, strategy, state=state, words=source.keys)
