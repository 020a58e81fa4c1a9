"""Warm starts: initialise tables from the rows of a trained model."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.evaluation import subwords
from jaxemb.merging import parts as parts_lib
from jaxemb.storage import export, fasttext_format, word2vec_format

_LOG = logging.getLogger('jaxemb')
_BLOCK_ROWS = 65_536  # read and written at once


def begin(
  path: str, trainable: Any, strategy: Any, state: Any, words: Any
) -> Any:
  """Replaces rows of a new state, which is donated, by those of a model.

  The model at `path` (config.train.init_from) is one that `parts.open_part`
  opens; `words` [vocab] name the rows. Words that the model lacks, or never
  saw, keep their random start; those with several vectors start from their
  mean. Optimizer state is taken over where the model has it. UserError if the
  vectors cannot be used, or have other dimensions.
  """
  part = parts_lib.open_part(path, None, None).of_words()
  model = trainable.model
  dim = trainable.tables[model.vectors_table].spec.dim
  if part.dim != dim:
    raise errors.UserError(
      f'config.train.init_from={path} has vectors of {part.dim} numbers, and '
      f'config.model.dim={dim}; give --config.model.dim={part.dim}'
    )
  seen = np.ones(len(part.words)) if part.counts is None else part.counts
  row_of = {part.words[row]: row for row in np.flatnonzero(seen).tolist()}
  ids = np.array([i for i, w in enumerate(words) if w in row_of], np.int64)
  if not len(ids):
    raise errors.UserError(
      f'config.train.init_from={path} has none of the {len(words):,} words of '
      'the text; give other vectors (check the case of letters)'
    )
  rows = np.array([row_of[words[i]] for i in ids])
  stored = {'vectors': part.vectors, **part.trainable}
  used: list[str] = []
  for title, name in (
    ('vectors', model.vectors_table),
    ('context_vectors', model.contexts_table),
  ):
    if title not in stored or name not in trainable.tables:
      continue
    arrays = _arrays_of(trainable.tables[name], title, stored=stored)
    used += arrays
    state = _imported(strategy, state, name, ids=ids, arrays=arrays, rows=rows)
  _LOG.info(
    f'starting from {path}: {len(ids):,} of {len(words):,} words '
    f'({len(words) - len(ids):,} start at random, {len(row_of) - len(ids):,} '
    f'of its words are not in the text); tables {", ".join(used)}, all else '
    'starts anew'
  )
  return state


class _Rows(NamedTuple):
  """Rows of a table that a run has."""

  name: str  # of the table
  title: str  # of its rows in an export
  ids: np.ndarray  # [n] int64, in the table
  rows: np.ndarray  # [n] int64, in what the run has
  num_old: int  # rows that the run has


def go_on(
  trainable: Any,
  strategy: Any,
  state: Any,
  run: data_base.Known,
  words: Sequence[str],
  contexts: Sequence[str],
) -> Any:
  """Replaces rows of a new state, which is donated, by all of a run's export.

  `words` [vocab] name the rows, and `contexts` those of context vectors where
  these are not of words. Optimizer state is taken over where the model has it.
  Raises a `UserError` if the export lacks a table, or is damaged.
  """
  stored, buckets = _stored(run, trainable.model)
  all_rows = _matched(
    trainable, run, words=words, contexts=contexts, buckets=buckets
  )
  used: list[str] = []
  lines = []
  for x in all_rows:
    table = trainable.tables[x.name]
    arrays = _arrays_of(table, x.title, stored)
    _check(
      run.path,
      table.spec.dim,
      x.title,
      arrays=arrays,
      num_rows=x.num_old,
    )
    state = _imported(
      strategy, state, x.name, ids=x.ids, arrays=arrays, rows=x.rows
    )
    used += arrays
    lines.append(f'{len(x.ids):,} of {table.spec.vocab:,} rows of {x.title}')
  _LOG.info(
    f'going on from {run.path}: {", ".join(lines)}, others start at random; '
    f'tables {", ".join(used)}, all else starts anew'
  )
  return state


def _stored(
  run: data_base.Known, model: Any
) -> tuple[Mapping[str, Any], np.ndarray]:
  """Returns all arrays of a run by title, and the buckets of its n-grams.

  Raises a `UserError` if they are missing or damaged.
  """
  from flax import traverse_util  # both take long to import

  from jaxemb.storage import orbax_export

  title = 'words' if model.composed_of else 'vectors'
  if run.folder.is_file():
    fasttext = fasttext_format.read(run.folder)
    stored = {
      title: fasttext.inputs,
      'ngrams': fasttext.ngrams,
      'context_vectors': fasttext.outputs,
    }
    return stored, np.arange(len(fasttext.ngrams), dtype=np.int32)
  stored = traverse_util.flatten_dict(
    orbax_export.read(run.folder / 'orbax'), sep='/'
  )
  ngrams = None
  if model.composed_of and title in stored:
    ngrams = subwords.read(run.folder, stored[title].shape[1])
  if ngrams is None:
    return stored, np.zeros(0, np.int32)
  if ngrams.buckets is None:
    return stored, np.arange(len(ngrams.rows), dtype=np.int32)
  return stored, ngrams.buckets


def _matched(
  trainable: Any,
  run: data_base.Known,
  words: Sequence[str],
  contexts: Sequence[str],
  buckets: np.ndarray,
) -> list[_Rows]:
  """Returns the rows of each table that a run has, by their keys."""
  model, all_rows = trainable.model, []
  of_words = 'words' if model.composed_of else 'vectors'
  for name, title, new, old in (
    (model.vectors_table, of_words, words, run.keys),
    (
      model.contexts_table,
      'context_vectors',
      contexts or words,
      run.contexts or run.keys,
    ),
    (model.context_inputs_table, 'word_vectors', contexts, run.contexts),
  ):
    if name in trainable.tables:
      row_of = {x: i for i, x in enumerate(old)}
      spelled, _ = word2vec_format.spell(new)
      rows = np.array([row_of.get(x, -1) for x in spelled])
      ids = np.flatnonzero(rows >= 0)
      all_rows.append(_Rows(name, title, ids, rows=rows[ids], num_old=len(old)))
  if model.nodes_table:
    rows = model.nodes.old_rows
    ids = np.flatnonzero(rows >= 0)
    all_rows.append(
      _Rows(
        model.nodes_table,
        'inner_nodes',
        ids,
        rows=rows[ids],
        num_old=len(run.keys) - 1,
      )
    )
  for name in model.composed_of:
    _, ids, rows = np.intersect1d(
      model.composed_keys(name),
      buckets,
      assume_unique=True,
      return_indices=True,
    )
    all_rows.append(_Rows(name, name, ids, rows=rows, num_old=len(buckets)))
  return all_rows


def _check(path, dim, title, arrays, num_rows):
  """Raises a `UserError` for arrays of a run that are not what they were."""
  if title not in arrays:
    raise errors.UserError(
      f'--from={path} has no {title} (export/orbax/), as a run that merged its '
      'sub-models; give another run, or of sub-models a merge with all tables: '
      f'jaxemb merge {path}/parts/* --trainable --output=MERGED'
    )
  shape = arrays[title].shape
  if tuple(shape) != (num_rows, dim):
    raise errors.UserError(
      f'--from={path} has {title} of shape {list(shape)}, and [{num_rows}, '
      f'{dim}] is needed; give another run, or export again'
    )
  for name, array in arrays.items():
    if not all(np.isfinite(x).all() for x in export.blocks(array)):
      raise errors.UserError(
        f'--from={path} has {name} that are not finite; give another run'
      )


def _arrays_of(
  table: Any, title: str, stored: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """Returns what is stored of a table: vectors, and its optimizer's state."""
  names = [title, *(f'optimizer/{title}/{x}' for x in table.state_names)]
  return {x: stored[x] for x in names if x in stored}


def _imported(
  strategy: Any,
  state: Any,
  name: str,
  ids: np.ndarray,
  arrays: Mapping[str, np.ndarray],
  rows: np.ndarray,
) -> Any:
  """Returns a state whose rows `ids` of a table are `rows` of arrays.

  These are the vectors and, behind the last `/` of their names, the optimizer's
  state.
  """
  for start in range(0, len(ids), _BLOCK_ROWS):
    block = slice(start, start + _BLOCK_ROWS)
    vectors, *others = (parts_lib.take(x, rows[block]) for x in arrays.values())
    # State of one number per row is [n].
    values = {
      k.rpartition('/')[2]: x[:, 0] if x.ndim > 1 and x.shape[1] == 1 else x
      for k, x in zip([*arrays][1:], others, strict=True)
    }
    state = strategy.import_rows(state, name, ids[block], vectors, values)
  return state
