"""Warm starts: initialise tables from the rows of a trained model."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.merging import parts as parts_lib
from jaxemb.storage import word2vec_format

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
  used = []
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
  from flax import traverse_util  # both take long to import

  from jaxemb.storage import orbax_export

  model, used, lines = trainable.model, [], []
  stored = traverse_util.flatten_dict(
    orbax_export.read(run.folder / 'orbax'), sep='/'
  )
  for title, name, new, old in (
    ('vectors', model.vectors_table, words, run.keys),
    (
      'context_vectors',
      model.contexts_table,
      contexts or words,
      run.contexts or run.keys,
    ),
  ):
    if name not in trainable.tables:
      continue
    arrays = _arrays_of(trainable.tables[name], title, stored)
    _check(
      run.path,
      trainable.tables[name].spec.dim,
      title,
      arrays=arrays,
      num_rows=len(old),
    )
    row_of = {x: i for i, x in enumerate(old)}
    spelled, _ = word2vec_format.spell(new)
    rows = np.array([row_of.get(x, -1) for x in spelled])
    ids = np.flatnonzero(rows >= 0)
    state = _imported(
      strategy, state, name, ids=ids, arrays=arrays, rows=rows[ids]
    )
    used += arrays
    lines.append(f'{len(ids):,} of {len(new):,} rows of {title}')
  _LOG.info(
    f'going on from {run.path}: {", ".join(lines)}, others start at random; '
    f'tables {", ".join(used)}, all else starts anew'
  )
  return state


def _check(path, dim, title, arrays, num_rows):
  """Raises a `UserError` for arrays of a run that are not what they were."""
  if title not in arrays:
    raise errors.UserError(
      f'--from={path} has no {title} (export/orbax/), as what was merged from '
      'sub-models; give the folder of another run that has ended'
    )
  shape = arrays[title].shape
  if shape != (num_rows, dim):
    raise errors.UserError(
      f'--from={path} has {title} of shape {list(shape)}, and [{num_rows}, '
      f'{dim}] is needed; give another run, or export again'
    )
  for name, x in arrays.items():
    if not np.isfinite(x).all():
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
    some = slice(start, start + _BLOCK_ROWS)
    vectors, *values = (parts_lib.take(x, rows[some]) for x in arrays.values())
    # State of one number per row is [n].
    values = {
      k.rpartition('/')[2]: x[:, 0] if x.ndim > 1 and x.shape[1] == 1 else x
      for k, x in zip([*arrays][1:], values, strict=True)
    }
    state = strategy.import_rows(state, name, ids[some], vectors, values)
  return state
