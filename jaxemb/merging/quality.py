"""What the report of a merge says of its parts, and what it warns of."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.merging import align
from jaxemb.merging import parts as parts_lib

_NUM_EXAMPLES = 5
# Of the cosine of a part and the others: less is hardly more than chance, or
# much less than what other parts reach.
_LOW_AGREEMENT = 0.25
_LOW_SHARE = 0.6
_SCALE_RATIO = 2.0


def few(names: Sequence[str]) -> str:
  """The first names, and how many more there are."""
  more = f' and {len(names) - 3} more' if len(names) > 3 else ''
  return ', '.join(names[:3]) + more


def groups(shared: np.ndarray) -> list[list[int]]:
  """Parts that hang together, by number.

  Args:
    shared: [n, n] bool, whether two of them do.
  """
  num = len(shared)
  found, left = [], set(range(num))
  while left:
    group, new = set(), {min(left)}
    while new:
      group |= new
      new = {j for i in new for j in range(num) if shared[i][j]} - group
    found.append(sorted(group))
    left -= group
  return found


def check_words(
  parts: Sequence[parts_lib.Part], has: np.ndarray, method: str
) -> list[str]:
  """Warnings of few words in common; refuses none at all."""
  names = [part.name for part in parts]
  if method != 'alir':
    num_common = int(has.all(0).sum())
    if not num_common:
      raise errors.UserError(
        f'no word is in all {len(parts)} parts, and {method} covers only such '
        'words; give --method=alir, which covers the words of any part'
      )
    columns = sum(part.dim for part in parts)
    if method == 'pca' and num_common < columns:
      return [
        f'only {num_common:,} words are in all parts, fewer than the '
        f'{columns:,} dimensions of all of them: the result fits these words '
        'and says little about others'
      ]
    return []
  shared = np.array([[np.count_nonzero(a & b) for b in has] for a in has])
  found = groups(shared > 0)
  if len(found) > 1:
    apart = ' | '.join(few([names[i] for i in g]) for g in found[:3])
    raise errors.UserError(
      f'there is nothing to align on: no word of one of these is in another: '
      f'{apart}; give parts with words in common (check the case of letters)'
    )
  num_parts = has.sum(0)
  warnings = []
  for part, mine in zip(parts, has, strict=True):
    num_shared = int(np.sum(mine & (num_parts > 1)))
    if num_shared < part.dim:
      warnings.append(
        f'{part.name} shares only {num_shared:,} words with other parts, fewer '
        f'than its {part.dim:,} dimensions: its other words are placed partly '
        'by chance'
      )
  # Each part may be tied to some, and these to the others by hardly a word.
  dims = np.array([part.dim for part in parts])
  found = groups(shared >= np.minimum.outer(dims, dims))
  if not warnings and len(found) > 1:
    first = found[0]
    most = int(np.delete(shared[first], first, axis=1).max())
    apart = ' | '.join(few([names[i] for i in g]) for g in found[:3])
    warnings.append(
      f'two parts of other groups of these share {most:,} words at most, fewer '
      f'than their dimensions: {apart}; groups may be turned to each other '
      'by chance: merge them apart and compare'
    )
  return warnings


def of_parts(
  parts: Sequence[parts_lib.Part],
  union: parts_lib.Union,
  chosen: np.ndarray,
  rms_norms: Sequence[float],
  measured: align.Measured | None,
) -> list[dict[str, Any]]:
  """Of each part, for the report."""
  has = union.rows >= 0
  num_parts = has.sum(0)
  figures = []
  for i, part in enumerate(parts):
    figures.append(
      {
        'name': part.name,
        'words': int(has[i].sum()),
        'dim': part.dim,
        'missing_words': int((~has[i][chosen]).sum()),
        'shared_words': int(np.sum(has[i] & (num_parts > 1))),
        'rms_norm': rms_norms[i],
        'residual': None,
        'agreement': None,
      }
    )
    if measured is not None and measured.words[i] and measured.squares[i]:
      figures[-1]['residual'] = float(
        np.sqrt(measured.residuals[i] / measured.squares[i])
      )
      figures[-1]['agreement'] = float(measured.cosines[i] / measured.words[i])
  return figures


def apart(figures: list[dict[str, Any]], normalize: bool) -> list[str]:
  """Warnings of parts that have drifted apart, or have other lengths."""
  warnings = []
  found = [x['agreement'] or 0.0 for x in figures]
  limit = max(_LOW_AGREEMENT, _LOW_SHARE * float(np.median(found)))
  low = [
    f'{x["name"]} ({value:.2f})'
    for x, value in zip(figures, found, strict=True)
    if value < limit
  ]
  if low:
    warnings.append(
      f'drifted apart from the other parts: {few(low)} (mean cosine of its '
      f'vectors with those of the others, median {np.median(found):.2f}); '
      'merge without them and compare'
    )
  norms = [x['rms_norm'] for x in figures]
  if not normalize and max(norms) > _SCALE_RATIO * min(norms):
    most, least = (figures[f(norms)]['name'] for f in (np.argmax, np.argmin))
    warnings.append(
      f'vectors of {most} are {max(norms) / max(min(norms), 1e-30):.1f} times '
      f'as long as those of {least} and count as much more; --normalize makes '
      'all equal'
    )
  return warnings


def lost(union: parts_lib.Union, chosen: np.ndarray) -> dict[str, Any]:
  """The words that some part has and the result has not."""
  is_lost = np.ones(len(union.words), bool)
  is_lost[chosen] = False
  lost = np.flatnonzero(is_lost)
  return {
    'words': len(lost),
    'share_of_occurrences': float(
      union.counts[lost].sum() / union.counts.sum()
    ),
    'examples': [union.words[i] for i in lost[:_NUM_EXAMPLES].tolist()],
  }


def lost_line(lost: dict[str, Any], method: str) -> str:
  """A line on words that are lost."""
  return (
    f'{method} covers only words that are in all parts: {lost["words"]:,} '
    f'words ({lost["share_of_occurrences"]:.2%} of all occurrences) are lost, '
    f'{", ".join(lost["examples"])} first; --method=alir keeps them'
  )
