"""Warm starts: initialise tables from the rows of a trained model."""

import logging
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.merging import parts as parts_lib
from jaxemb.merging import senses

_LOG = logging.getLogger('jaxemb')
_BLOCK_ROWS = 65_536  # read and written at once


def begin(
  path: str, trainable: Any, strategy: Any, state: Any, words: Any
) -> Any:
  """Replaces rows of a new state by those of a trained model.

  Words that the model lacks keep their random start. Words with several vectors
  start from their mean, weighted by the priors. Optimizer slots are taken over
  where the model has them.

  Args:
    path: `config.train.init_from`: a run, a merge or a word2vec file.
    trainable: a `strategies.base.Trainable`.
    strategy: a `strategies.base.Strategy`.
    state: new; donated.
    words: [vocab], of the rows.

  Raises:
    UserError: the vectors cannot be used, or have other dimensions.
  """
  has_tables = parts_lib.has_trainable(path)
  part = senses.of_words(parts_lib.open_part(path, None, has_tables))
  vectors = trainable.tables[trainable.model.vectors_table]
  if part.dim != vectors.spec.dim:
    raise errors.UserError(
      f'config.train.init_from={path} has vectors of {part.dim} numbers, and '
      f'config.model.dim={vectors.spec.dim}; give '
      f'--config.model.dim={part.dim}'
    )
  parts_lib.check_rows(part)
  # Words that the part never saw still have random vectors there.
  row_of = {
    word: row
    for row, word in enumerate(part.words)
    if part.counts is None or part.counts[row]
  }
  ids = np.array([i for i, w in enumerate(words) if w in row_of], np.int64)
  if not len(ids):
    raise errors.UserError(
      f'config.train.init_from={path} has none of the {len(words):,} words of '
      'the text; give other vectors (check the case of letters)'
    )
  rows = np.array([row_of[words[i]] for i in ids])
  stored, used = {'vectors': part.vectors, **part.trainable}, []
  model = trainable.model
  titles = {'vectors': model.vectors_table}
  titles['context_vectors'] = model.contexts_table
  for title, name in titles.items():
    if title not in stored or name not in trainable.tables:
      continue
    table = trainable.tables[name]
    paths = {x: f'optimizer/{title}/{x}' for x in table.slot_reductions}
    slots = {x: path for x, path in paths.items() if path in stored}
    used += [title, *slots.values()]
    for start in range(0, len(ids), _BLOCK_ROWS):
      here = slice(start, start + _BLOCK_ROWS)
      state = strategy.import_rows(
        state,
        name,
        ids[here],
        _read(stored[title], rows[here]),
        {x: _read(stored[path], rows[here]) for x, path in slots.items()},
      )
  _LOG.info(
    'starting from %s: %s of %s words (%s start at random, %s of its words are '
    'not in the text); tables %s, all else starts anew',
    path,
    f'{len(ids):,}',
    f'{len(words):,}',
    f'{len(words) - len(ids):,}',
    f'{len(row_of) - len(ids):,}',
    ', '.join(used),
  )
  return state


def _read(stored: parts_lib.Rows, rows: np.ndarray) -> np.ndarray:
  """[n, dim] float32; [n] where rows have one number."""
  block = np.empty((len(rows), *stored.shape[1:]), np.float32)
  stored.read(rows, block)
  return block[:, 0] if stored.shape[1:] == (1,) else block
