"""Merging of what the words around senses mean (`models.context_mixture`).

Of a sense a part knows the mean m of its contexts, which are themselves means
of unit vectors of words. What takes the parts' unit vectors u_i to those of the
result takes their means too: with matrices B_i that are fitted to all words by
least squares,

  u = sum_i a_i u_i B_i    and so    m = sum_i a_i m_i B_i

where a_i is part i's share in what is said of the word, or of the sense. It
does not matter by which method vectors were merged: B_i holds the rotation, the
stretching, and how much longer unit vectors are than means of several of them.
"""

from collections.abc import Sequence

import numpy as np

from jaxemb.merging import parts as parts_lib
from jaxemb.senses import sense_words
from jaxemb.senses import table as senses_lib

_FIT_WORDS = 100_000  # at most, the most frequent
_BLOCK_WORDS = 4096
_RIDGE = 1e-6  # of the mean square of a column


def merge(
  parts: Sequence[parts_lib.Part],
  tables: Sequence[sense_words.Table],
  words: sense_words.Words,
  targets: Sequence[np.ndarray],
  merged: senses_lib.Senses,
  kept: np.ndarray,
) -> tuple[senses_lib.Contexts | None, list[str]]:
  """Averages the means of contexts, sense by sense.

  Args:
    parts: whose senses are merged.
    tables: of each.
    words: of all of them.
    targets: of each part [its rows] int64, row of all words' senses; -1 = none.
    merged: the result.
    kept: [rows of the result] int64, among all words' senses.

  Returns:
    What tells the senses of the result, or None; and lines that say why.
  """
  if all(x.senses is None or x.senses.contexts is None for x in parts):
    return None, []
  reason = _obstacle(parts)
  if reason:
    return None, [
      'what the words around senses mean is left out, and senses are told by '
      f'likelihoods, if at all: {reason}'
    ]
  first = parts[0].senses.contexts
  maps = _maps(parts, tables, words, merged, first.half_weight)
  sums = np.zeros((int(words.starts[-1]), merged.vectors.shape[1]))
  totals = np.zeros(len(sums))
  for i, (part, table, mine) in enumerate(
    zip(parts, tables, targets, strict=True)
  ):
    # A word's only sense knows nothing of contexts.
    votes = np.where(words.sizes[i] > 1, words.votes[i], 0)
    weights = sense_words.by_row(votes, words.rows[i], table) * table.priors
    has = np.flatnonzero((mine >= 0) & (weights > 0))
    turned = part.senses.contexts.means[has] @ maps[i]
    # A row of the result has one of the part at most.
    sums[mine[has]] += weights[has, None] * turned
    totals[mine[has]] += weights[has]
  means = sums / np.maximum(totals, 1e-30)[:, None]
  return first._replace(means=means[kept].astype(np.float32)), []


def _obstacle(parts: Sequence[parts_lib.Part]) -> str:
  """Why there is nothing to average; '' if there is."""
  first = parts[0]
  for part in parts:
    if part.senses is None or part.senses.contexts is None:
      return f'{part.name} has nothing of the kind'
    for name in ('concentration', 'half_weight'):
      mine, its = (getattr(x.senses.contexts, name) for x in (part, first))
      if mine != its:
        return (
          f'{first.name} was trained with {name}={its!r}, {part.name} with '
          f'{mine!r}; train all with the same --config.model.window and '
          '.shortest_window'
        )
  return ''


def _units(means: sense_words.MeanRows, rows: np.ndarray) -> np.ndarray:
  """[b, D] float32, of length 1; zeros for rows below 0."""
  found = np.empty((len(rows), means.shape[1]), np.float32)
  means.read(rows, found)
  return senses_lib.unit_rows(found)


def _maps(
  parts: Sequence[parts_lib.Part],
  tables: Sequence[sense_words.Table],
  words: sense_words.Words,
  merged: senses_lib.Senses,
  half_weight: float,
) -> list[np.ndarray]:
  """[D_i, dim] float64 of each part: B_i.

  Words count as much as they do in contexts: as often as they are there, times
  what they weigh.
  """
  index = merged.index
  places = np.array([index.get(name, -1) for name in words.names])
  chosen = np.flatnonzero(places >= 0)[:_FIT_WORDS]
  frequencies = words.counts / words.counts.sum()
  counts = frequencies * half_weight / (half_weight + frequencies)
  shares = words.votes / np.maximum(words.votes.sum(0), 1e-30)
  dims = [part.dim for part in parts]
  width, dim = sum(dims), merged.vectors.shape[1]
  gram, moments = np.zeros((width, width)), np.zeros((width, dim))
  means = [
    sense_words.mean_rows(part.vectors, table.starts, table.priors)
    for part, table in zip(parts, tables, strict=True)
  ]
  result = sense_words.mean_rows(
    parts_lib.as_rows(merged.vectors), merged.starts, merged.priors
  )
  for first in range(0, len(chosen), _BLOCK_WORDS):
    block = chosen[first : first + _BLOCK_WORDS]
    said = [
      shares[i, block, None] * _units(found, words.rows[i, block])
      for i, found in enumerate(means)
    ]
    roots = np.sqrt(counts[block])[:, None]
    said = roots * np.concatenate(said, 1)
    gram += said.T @ said
    moments += said.T @ (roots * _units(result, places[block]))
  # Of parts that say the same none is to be had alone.
  gram[np.diag_indices(width)] += _RIDGE * np.trace(gram) / width
  solved = np.linalg.solve(gram, moments)
  return np.split(solved, np.cumsum(dims)[:-1])
