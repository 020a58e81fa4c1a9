"""Files of an export with rows of character n-grams, beside vectors.npy.

subwords.json  min_chars, max_chars, buckets
ngrams.npy     [rows, dim] floats, rows of n-grams
buckets.npy    [rows] int32, the bucket of each row; missing = row i is
               bucket i. N-grams of other buckets count as rows of zeros
"""

import json
import pathlib
from typing import NamedTuple

import ml_dtypes
import numpy as np

from jaxemb.storage import atomic, export

FACTS, NGRAMS, BUCKETS = export.SUBWORDS, 'ngrams.npy', 'buckets.npy'
_FIELDS = 'min_chars', 'max_chars', 'buckets'


class Table(NamedTuple):
  """Rows of n-grams, and how n-grams hash to them."""

  settings: dict[str, int]  # of _FIELDS
  rows: np.ndarray | export.LazyRows  # [rows, dim] floats
  buckets: np.ndarray | None  # [rows] int32, different ones


def write(folder: pathlib.Path, table: Table | None) -> None:
  """Writes the files of n-grams, or removes those of another export.

  Raises a `UserError` if one cannot be written.
  """
  if table is None:
    for name in (FACTS, NGRAMS, BUCKETS):
      atomic.remove(folder / name)
    return
  with atomic.write(folder / NGRAMS) as file:
    export.put_array(file, table.rows)
  if table.buckets is None:
    atomic.remove(folder / BUCKETS)
  else:
    with atomic.write(folder / BUCKETS) as file:
      export.put_array(file, np.asarray(table.buckets, np.int32))
  with atomic.write(folder / FACTS) as file:
    file.write(json.dumps(table.settings).encode())


def read(folder: pathlib.Path, dim: int) -> Table | None:
  """Maps what `write` has written, or returns None.

  Raises a `UserError` if it is damaged, or of vectors of another dimension.
  """
  if not (folder / FACTS).exists():
    return None
  with export.reading(folder / FACTS) as file:
    settings = json.loads(file.read_bytes())
    is_right = isinstance(settings, dict) and set(settings) == {*_FIELDS}
    if not is_right or any(type(x) is not int for x in settings.values()):
      raise ValueError(f'{settings} are not the ints {", ".join(_FIELDS)}')
  with export.reading(folder / NGRAMS) as file:
    rows = export.open_array(file)
    is_real = rows.dtype.kind == 'f' or rows.dtype == ml_dtypes.bfloat16
    if rows.ndim != 2 or rows.shape[1] != dim or not is_real:
      raise ValueError(
        f'{rows.dtype} of shape {rows.shape} does not fit vectors of {dim} '
        'floats'
      )
  num_rows, buckets = settings['buckets'], None
  with export.reading(folder / BUCKETS) as file:
    if file.exists():
      buckets = _checked(export.load_array(file), settings['buckets'])
      num_rows = len(buckets)
    if len(rows) != num_rows:
      raise ValueError(f'there are {len(rows):,} rows, not {num_rows:,}')
  return Table(settings, rows, buckets)


def _checked(buckets: np.ndarray, num_buckets: int) -> np.ndarray:
  """Returns buckets as int32; raises a `ValueError` if these cannot be rows."""
  if buckets.ndim != 1 or buckets.dtype.kind not in 'iu':
    raise ValueError(
      f'it has {buckets.dtype} of shape {buckets.shape}, and a list of ints is '
      'needed'
    )
  rising = np.sort(buckets)  # np.unique takes 20 times as long
  if len(buckets) and not 0 <= rising[0] <= rising[-1] < num_buckets:
    raise ValueError(f'it has buckets beyond {num_buckets:,}')
  if (rising[1:] == rising[:-1]).any():
    raise ValueError('it has a bucket twice')
  return buckets.astype(np.int32)
