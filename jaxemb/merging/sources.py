"""Where the parts of a merge come from: runs, checkpoints, word2vec files."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.merging import parts, tables
from jaxemb.storage import checkpoint, word2vec_format

# Files that orbax leaves in a folder with arrays.
_ORBAX = ('_METADATA', 'manifest.ocdbt', '_CHECKPOINT_METADATA')


def open_all(
  paths: Sequence[str],
  scratch: pathlib.Path,
  with_tables: bool,
  skip_bad: bool,
) -> tuple[list[parts.Part], list[dict[str, str]]]:
  """Opens all parts, one after the other.

  Args:
    paths: of what `open_part` takes.
    scratch: folder for rows that cannot stay where they are.
    with_tables: whether to open context tables and optimizer state too.
    skip_bad: whether to go on without what cannot be used.

  Returns:
    The parts; and {'name', 'reason'} of those left out.

  Raises:
    errors.UserError: A part cannot be used.
  """
  found, skipped = [], []
  for i, path in enumerate(paths):
    try:
      found.append(open_part(path, scratch / str(i), with_tables))
    except parts.NoRoomError:
      raise
    except errors.UserError as error:
      if not skip_bad:
        raise errors.UserError(f'{error}; or give --skip-bad') from error
      skipped.append({'name': str(path), 'reason': str(error)})
  return found, skipped


def open_part(
  path: pathlib.Path | str, scratch: pathlib.Path | None, with_tables: bool
) -> parts.Part:
  """Opens one part.

  Args:
    path: a workdir, an export folder, what a merge left, a folder of orbax
      checkpoints or one of them, or a word2vec, GloVe or .vec file.
    scratch: folder for rows that cannot stay where they are; None = memory.
    with_tables: whether to open context tables and optimizer state too.

  Raises:
    errors.UserError: It cannot be used, or has no such tables.
  """
  path = pathlib.Path(path)
  _check_model(path, with_tables)
  if _is_checkpoint(path):
    return _of_checkpoint(path, scratch, with_tables)
  home = _home(path)
  if with_tables and _is_submodel(home):
    # Its export lacks the words that it has not seen, its tables do not.
    found = _of_checkpoint(home / 'checkpoints', scratch, with_tables)
    return found._replace(name=str(path))
  # With SciPy's statistics, a second of every start that nothing else wants.
  from jaxemb import embeddings

  loaded = embeddings.load(path)
  if with_tables and loaded.sense_table is not None:
    _refuse_tables(path)
  rows = parts.of_array(loaded.vectors)
  if not rows.is_file:
    rows = parts.spooled(loaded.vectors, scratch, 'vectors')
  others = {}
  if with_tables:
    others = _tables(home, len(loaded), loaded.vector_size, scratch)
  counts = loaded.counts
  if counts is not None and np.all(counts == 1):
    counts = None  # as merges write where they are not known
  if loaded.sense_table is not None and _is_submodel(home):
    counts = _seen(home, loaded.index_to_key)
  return parts.Part(
    str(path),
    loaded.index_to_key,
    rows,
    counts,
    others,
    senses=loaded.sense_table,
  )


def has_tables(path: pathlib.Path | str) -> bool:
  """Whether `open_part` would find context tables."""
  path = pathlib.Path(path)
  home = _home(path)
  settings = _of_run(path)
  if _is_tree(settings) or _is_mixture(settings):
    return False
  is_here = any((home / x).is_dir() for x in (tables.FOLDER, 'checkpoints'))
  return is_here if not _is_checkpoint(path) else _of_run(path) is not None


def _is_tree(settings: Any) -> bool:
  """Whether the outputs of a run are inner nodes, which are no words."""
  return bool(settings) and (
    settings['model'].get('loss') == 'hierarchical_softmax'
  )


def _is_mixture(settings: Any) -> bool:
  """Whether words of a run have several vectors."""
  return bool(settings) and settings['model'].get('name') == 'mixture'


def _check_model(path: pathlib.Path, with_tables: bool) -> None:
  settings = _of_run(path) if path.is_dir() else None
  if _is_mixture(settings):
    if with_tables:
      _refuse_tables(path)
    if _is_checkpoint(path):
      raise errors.UserError(
        f'{path} is a checkpoint of config.model.name=mixture, which does not '
        'say whose the senses are; give the folder of the run or its export'
      )
  if with_tables and _is_tree(settings):
    raise errors.UserError(
      f'{path} was trained with config.model.loss=hierarchical_softmax, whose '
      'other table is not one of words; leave out --trainable'
    )


def _refuse_tables(path: pathlib.Path) -> None:
  raise errors.UserError(
    f'{path} has vectors of senses, which training cannot start from; leave '
    'out --trainable'
  )


def _seen(folder: pathlib.Path, names: Sequence[str]) -> np.ndarray:
  """[rows] int64, how often a sub-model saw each word of its export."""
  words, counts = word2vec_format.read_vocab(folder / 'vocab.txt')
  if words != list(names):
    raise errors.UserError(
      f'{folder}/vocab.txt does not have the {len(names):,} rows of the export '
      'beside it; remove the folder and train that sub-model anew'
    )
  return counts


def _home(path: pathlib.Path) -> pathlib.Path:
  """The folder of the run or merge whose export a path is."""
  path = path.parent if path.name == 'vectors.npy' else path
  return path.parent if path.name == 'export' else path


def _is_submodel(folder: pathlib.Path) -> bool:
  """Whether a folder is one of `W/parts`: all words are beside the tables."""
  return (folder / 'checkpoints').is_dir() and (folder / 'vocab.txt').exists()


def _of_run(path: pathlib.Path) -> Any:
  """Settings of the run that a checkpoint belongs to, or None."""
  around = [path, *path.absolute().parents[:3]]
  return next((tables.settings(f) for f in around if tables.settings(f)), None)


def _tables(
  folder: pathlib.Path, vocab: int, dim: int, scratch: pathlib.Path | None
) -> dict[str, parts.Rows]:
  """What goes with the export of a run or a merge."""
  if (folder / tables.FOLDER).is_dir():
    found = tables.of_merge(folder)
    wrong = [k for k, v in found.items() if v.shape[0] != vocab]
    if wrong:
      raise errors.UserError(
        f'{folder / tables.FOLDER}: {wrong[0]} does not have the {vocab:,} '
        'words of the export beside it; merge again'
      )
    return found
  if not (folder / 'checkpoints').is_dir():
    raise errors.UserError(
      f'{folder} has no context vectors: neither {tables.FOLDER}/ nor '
      'checkpoints/; give the folder of a run or a merge, or leave out '
      '--trainable'
    )
  form = _form(tables.settings(folder))
  found = tables.of_checkpoint(
    folder / 'checkpoints', *form, vocab, dim, scratch
  )
  found.pop(tables.EXPORTED, None)
  return found


def _form(settings: Any) -> tuple[str, str]:
  """Layout and precision of the tables of a run."""
  table = settings.get('table', {})
  return table.get('layout', 'replicated'), table.get('dtype', 'float32')


def _is_checkpoint(path: pathlib.Path) -> bool:
  """Whether orbax has written in a folder, or in numbered folders there."""
  if not path.is_dir() or (path / 'export').is_dir():
    return False
  if (path / 'vectors.npy').exists():
    return False
  inside = [path, path / 'state', *path.glob('[0-9]*/state')]
  inside += path.glob('[0-9]*')
  return any((folder / name).exists() for folder in inside for name in _ORBAX)


def _of_checkpoint(
  path: pathlib.Path, scratch: pathlib.Path | None, with_tables: bool
) -> parts.Part:
  """A part whose words are in a vocab.txt in a folder around it."""
  around = [path, *path.absolute().parents[:3]]
  files = [
    folder / name
    for folder in around
    for name in ('vocab.txt', 'export/vocab.txt')
  ]
  file = next((file for file in files if file.exists()), None)
  if file is None:
    raise errors.UserError(
      f'{path} is a checkpoint without words: put a vocab.txt (`word count` '
      'lines, in order of the rows) into that folder'
    )
  words, counts = word2vec_format.read_vocab(file)
  if len(set(words)) < len(words):
    raise errors.UserError(
      f'{file} has a word twice, so that rows cannot be told apart; write it '
      'again'
    )
  saved = checkpoint.Arrays(path)
  run = _of_run(path)
  exported = f'tables/{tables.EXPORTED}/vectors'
  if run and any(x in saved.shapes for x in (exported, f'{exported}/codes')):
    dim = run['model']['dim']
    found = tables.of_checkpoint(
      saved.folder.parent, *_form(run), len(words), dim, scratch
    )
    vectors = found.pop(tables.EXPORTED)
    others = found if with_tables else {}
    return parts.Part(str(path), words, vectors, counts, others)
  fitting = [
    name
    for name, shape in saved.shapes.items()
    if len(shape) == 2 and shape[0] == len(words)
  ]
  if len(fitting) != 1 or with_tables:
    raise errors.UserError(
      f'{path}: expected one array of {len(words):,} rows, the words in '
      f'{file}, found {len(fitting)} ({", ".join(fitting[:3]) or "none"})'
      + '; --trainable needs checkpoints of runs'
      * with_tables
    )
  rows = np.asarray(saved.read(fitting[0]), np.float32)
  return parts.Part(
    str(path), words, parts.spooled(rows, scratch, 'vectors'), counts
  )
