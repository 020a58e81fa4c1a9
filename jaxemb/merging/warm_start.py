"""Warm starts: initialise tables from the rows of a trained model."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.merging import parts as parts_lib

_LOG = logging.getLogger('jaxemb')
_BLOCK_ROWS = 65_536  # read and written at once


def begin(
  path: str,
  trainable: Any,
  strategy: Any,
  state: Any,
  words: Any,
  needs_all: bool = False,
) -> Any:
  """Replaces rows of a new state, which is donated, by those of a model.

  The model at `path` (config.train.init_from) is one that `parts.open_part`
  opens; `words` [vocab] name the rows. Words that the model lacks, or never
  saw, keep their random start; those with several vectors start from their
  mean. Optimizer state is taken over where the model has it. UserError if the
  vectors cannot be used, have other dimensions or, if one `needs_all` tables,
  no context vectors.
  """
  part = parts_lib.open_part(path, None, needs_all or None).of_words()
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
    names = trainable.tables[name].state_names
    titles = {x: f'optimizer/{title}/{x}' for x in names}
    titles = {x: path for x, path in titles.items() if path in stored}
    used += [title, *titles.values()]
    arrays = {'': stored[title]} | {k: stored[x] for k, x in titles.items()}
    state = _imported(strategy, state, name, ids=ids, arrays=arrays, rows=rows)
  _LOG.info(
    f'starting from {path}: {len(ids):,} of {len(words):,} words '
    f'({len(words) - len(ids):,} start at random, {len(row_of) - len(ids):,} '
    f'of its words are not in the text); tables {", ".join(used)}, all else '
    'starts anew'
  )
  return state


def _imported(
  strategy: Any,
  state: Any,
  name: str,
  ids: np.ndarray,
  arrays: Mapping[str, np.ndarray],
  rows: np.ndarray,
) -> Any:
  """Returns a state whose rows `ids` of a table are `rows` of arrays.

  These are the vectors, named '', and by name those of an optimizer's state.
  """
  for start in range(0, len(ids), _BLOCK_ROWS):
    some = slice(start, start + _BLOCK_ROWS)
    values = {k: parts_lib.take(x, rows[some]) for k, x in arrays.items()}
    vectors = values.pop('')
    # State of one number per row is [n].
    values = {k: x[:, 0] if x.shape[1] == 1 else x for k, x in values.items()}
    state = strategy.import_rows(state, name, ids[some], vectors, values)
  return state
