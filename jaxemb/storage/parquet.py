"""Vectors as Parquet files."""

import pathlib
from collections.abc import Sequence

import numpy as np

from jaxemb.storage import atomic, word2vec_format

_GROUP_ROWS = 1 << 17  # which are in memory at once


def write(
  path: pathlib.Path | str,
  words: Sequence[str],
  vectors: np.ndarray,
  counts: np.ndarray | None = None,
) -> int:
  """Writes the columns key, count (if known) and vector, of [vocab] words.

  Vectors are [vocab, dim]. Returns how many words UTF-8 cannot hold, which are
  renamed. Raises a `UserError` if the file cannot be written.
  """
  import pyarrow as pa
  from pyarrow import parquet

  names, num_renamed = word2vec_format.spell(words, has_spaces=True)

  def group(start: int) -> pa.Table:
    rows = slice(start, start + _GROUP_ROWS)
    flat = pa.array(np.asarray(vectors[rows], np.float32).ravel())
    columns = {'key': pa.array(names[rows], pa.string())}
    if counts is not None:
      columns['count'] = pa.array(counts[rows])
    columns['vector'] = pa.FixedSizeListArray.from_arrays(
      flat, vectors.shape[1]
    )
    return pa.table(columns)

  with atomic.write(path) as file:
    with parquet.ParquetWriter(file, group(0).schema) as writer:
      for start in range(0, max(1, len(words)), _GROUP_ROWS):
        writer.write_table(group(start))
  return num_renamed
