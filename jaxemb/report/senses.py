"""Of a dozen words with several vectors: the priors and neighbours of each."""

import numpy as np

from jaxemb.evaluation import nearest
from jaxemb.report import markup
from jaxemb.senses import table as senses

_NUM_WORDS = 12
_NUM_CANDIDATES = 500  # the most frequent ambiguous words
_NUM_NEAREST = 6
_NUM_SEARCHED = 30_000


def section(found: senses.Senses | None) -> str:
  """HTML; '' where no word has several senses."""
  words = [] if found is None else choose(found)
  if not words:
    return ''
  units = senses.unit_rows(found.vectors)
  num = nearest.num_rows(found, _NUM_SEARCHED)
  items = ''.join(_word(found, word, units, num) for word in words)
  return (
    '<h3>Senses</h3>\n<p>The ambiguous words whose senses differ most: of the '
    f'{_NUM_CANDIDATES} most frequent ones, those where two senses drawn by '
    'their priors have the lowest cosines. Each sense with its prior and the '
    f'nearest words; senses below {nearest.MIN_PRIOR:.0%} are left out.</p>\n'
    f'<dl class="near">\n{items}</dl>\n'
  )


def choose(found: senses.Senses) -> list[int]:
  """A dozen words, by how far apart their senses are."""
  sizes = np.diff(found.starts)
  candidates = [
    int(i) for i in np.flatnonzero(sizes > 1) if found.words[i].isalpha()
  ]
  spreads = {}
  for word in candidates[:_NUM_CANDIDATES]:
    rows = found.rows(word)
    units, priors = senses.unit_rows(found.vectors[rows]), found.priors[rows]
    spreads[word] = 1 - float(priors @ (units @ units.T) @ priors)
  best = sorted(spreads, key=lambda word: (-spreads[word], word))
  return best[:_NUM_WORDS]


def _word(found: senses.Senses, word: int, units: np.ndarray, num: int) -> str:
  """A word's senses.

  Args:
    found: all words.
    word: which one.
    units: [rows, dim], their vectors at length 1.
    num: rows that are searched.
  """
  rows = found.rows(word)
  lines = []
  for row in range(rows.start, rows.stop):
    if found.priors[row] < nearest.MIN_PRIOR:
      continue
    best = nearest.rows_of_words(
      units[:num] @ units[row], found, {row}, _NUM_NEAREST, nearest.MIN_PRIOR
    )
    near = ' '.join(markup.word(found.words[i]) for i in found.owners(best))
    lines.append(f'<span><small>{found.priors[row]:.2f}</small> {near}</span>')
  joined = '<br>\n'.join(lines)
  return (
    f'<div><dt>{markup.word(found.words[word])}<small><span>'
    f'{int(found.counts[word]):,} ×</span></small></dt>'
    f'<dd>{joined}</dd></div>\n'
  )
