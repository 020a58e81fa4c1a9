"""The report of a model of clicks: calibration, fields, nearest categories."""

from collections.abc import Sequence

import numpy as np

from jaxemb import embeddings
from jaxemb.evaluation import geometry
from jaxemb.report import pages

MAX_SEARCHED = 200_000  # ids of a field
_NUM_NEIGHBOURS = 8
_MAX_FIELDS, _NUM_FREQUENT = 40, 6  # fields, ids of each


def page(
  vectors: np.ndarray,
  keys: Sequence[str],
  counts: np.ndarray,
  ranges: Sequence[tuple[str, int, int]],
) -> pages.Page:
  """Returns the page of a model.

  `vectors` [vocab, dim] float32 are rows of the model's ids, `keys` their
  names, of which only those on the page are asked for, `counts` [vocab] int;
  `ranges` are (name, first id, ids) of fields.
  """
  values = {
    'fields': field_neighbours(vectors, keys, counts, ranges=ranges),
    'num_fields': len(ranges),
    'max_searched': MAX_SEARCHED,
  }
  return pages.Page('clicks', 'examples', values, package='jaxemb.clicks')


def field_neighbours(
  vectors: np.ndarray,
  keys: Sequence[str],
  counts: np.ndarray,
  ranges: Sequence[tuple[str, int, int]],
) -> dict[str, list[tuple[str, int, embeddings.Ranked]]]:
  """Returns by field (name, count, nearest ids) of its most frequent ids.

  Arguments are those of `page`. Ids that no training row has are left
  out, fields with fewer than two such ids, and those after the first 40.
  Nothing is shown of single numbers, whose cosines are 1 or -1.
  """
  shown = {}
  for field, first, num in ranges[:_MAX_FIELDS] if vectors.shape[1] > 1 else ():
    num_searched = min(num, MAX_SEARCHED)
    field_counts = np.asarray(counts[first : first + num])
    ids = np.argpartition(field_counts, num - num_searched)[
      num - num_searched :
    ]
    # By falling count, ties by id.
    ids = ids[np.lexsort((ids, -field_counts[ids]))]
    rows = np.asarray(vectors[first + ids])
    lengths = geometry.norms(rows)
    used = (field_counts[ids] > 0) & (lengths > 0) & np.isfinite(lengths)
    ids, units = ids[used], geometry.unit(rows[used], lengths[used])
    if len(ids) < 2:
      continue
    shown[field] = []
    for i in range(min(len(ids), _NUM_FREQUENT)):
      cosines = units @ units[i]
      near = geometry.nearest(cosines, {i}, _NUM_NEIGHBOURS)
      name, *others = (
        keys[int(first + ids[j])].removeprefix(f'{field}=') for j in (i, *near)
      )
      ranked = list(zip(others, cosines[near].tolist(), strict=True))
      shown[field].append((name, int(field_counts[ids[i]]), ranked))
  return shown
