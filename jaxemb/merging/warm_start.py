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
    trainable: of `strategies.base`, as is the strategy.
    strategy: of the state.
    state: new; donated.
    words: [vocab], of the rows.

  Raises:
    UserError: the vectors cannot be used, or have other dimensions.
  """
  part = senses.of_words(parts_lib.open_part(path, None, None))
  vectors = trainable.tables[trainable.model.vectors_table]
  if part.dim != vectors.spec.dim:
    raise errors.UserError(
      f'config.train.init_from={path} has vectors of {part.dim} numbers, and '
      f'config.model.dim={vectors.spec.dim}; give '
      f'--config.model.dim={part.dim}'
    )
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
  titles = {
    'vectors': model.vectors_table,
    'context_vectors': model.contexts_table,
  }
  for title, name in titles.items():
    if title not in stored or name not in trainable.tables:
      continue
    paths = {
      slot: f'optimizer/{title}/{slot}'
      for slot in trainable.tables[name].slot_reductions
      if f'optimizer/{title}/{slot}' in stored
    }
    used += [title, *paths.values()]
    for start in range(0, len(ids), _BLOCK_ROWS):
      here = slice(start, start + _BLOCK_ROWS)
      vectors = stored[title].open()[rows[here]]
      slots = {
        # [n] where rows have one number.
        slot: stored[path].open()[rows[here]].squeeze(1)
        if stored[path].shape[1] == 1
        else stored[path].open()[rows[here]]
        for slot, path in paths.items()
      }
      state = strategy.import_rows(state, name, ids[here], vectors, slots)
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
