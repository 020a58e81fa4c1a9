"""Of a dozen words with several vectors: the priors and neighbours of each."""

import numpy as np

from jaxemb.evaluation import senses
from jaxemb.reporting import markup

_NUM_WORDS = 12
_NUM_CANDIDATES = 500  # the most frequent ambiguous words
_NUM_NEAREST = 6
_NUM_SEARCHED = 30_000
_MIN_PRIOR = 0.02  # a sense that is hardly ever meant is not shown


def section(found: senses.Senses | None) -> str:
  """HTML; '' where no word has several senses."""
  words = [] if found is None else choose(found)
  if not words:
    return ''
  units = _units(found.vectors)
  num = int(found.starts[min(len(found.words), _NUM_SEARCHED)])
  owners = found.by_row(np.arange(len(found.words)))[:num]
  # A sense that is hardly ever meant has learned nothing to be shown.
  is_shown = found.priors[:num] >= _MIN_PRIOR
  items = ''.join(_word(found, word, units, owners, is_shown) for word in words)
  return (
    '<h3>Senses</h3>\n<p>The ambiguous words whose senses differ most: of the '
    f'{_NUM_CANDIDATES} most frequent ones, those where two senses drawn by '
    'their priors have the lowest cosines. Each sense with its prior and the '
    f'nearest words; senses below {_MIN_PRIOR:.0%} are left out.</p>\n'
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
    units, priors = _units(found.vectors[rows]), found.priors[rows]
    spreads[word] = 1 - float(priors @ (units @ units.T) @ priors)
  best = sorted(spreads, key=lambda word: (-spreads[word], word))
  return best[:_NUM_WORDS]


def _units(vectors: np.ndarray) -> np.ndarray:
  lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
  return vectors / np.where(lengths > 0, lengths, 1)


def _word(
  found: senses.Senses,
  word: int,
  units: np.ndarray,
  owners: np.ndarray,
  is_shown: np.ndarray,
) -> str:
  rows = found.rows(word)
  lines = []
  for row in range(rows.start, rows.stop):
    if found.priors[row] < _MIN_PRIOR:
      continue
    cosines = np.where(
      is_shown & (owners != word), units[: len(owners)] @ units[row], -2
    )
    best = np.argsort(-cosines, kind='stable')[: 3 * _NUM_NEAREST]
    names = dict.fromkeys(found.words[owners[i]] for i in best)
    near = ' '.join(markup.word(x) for x in list(names)[:_NUM_NEAREST])
    lines.append(f'<span><small>{found.priors[row]:.2f}</small> {near}</span>')
  joined = '<br>\n'.join(lines)
  return (
    f'<div><dt>{markup.word(found.words[word])}<small><span>'
    f'{int(found.counts[word]):,} ×</span></small></dt>'
    f'<dd>{joined}</dd></div>\n'
  )
