"""Features of nodes: dense, or sparse where nodes have few of many.

Sparse ones are a CSR matrix of SciPy on the host. On a device they are lists,
and a layer's product X W is a sum of rows of W for each node,

  (X W)_v = sum_f x_vf W_f,    its slope for W_f is sum_v x_vf G_v,

both without scattering: numbers of a list are cut into pieces of eight, the
sums of these into pieces of eight, and so on until each list has one.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb import errors
from jaxemb.ops import rounding

_PIECE = 8
_MOST_DENSE = 1 / 16  # fraction that is not 0, of features kept as lists
_SAMPLE_BYTES = 1 << 26  # of dense features, looked at once


def is_sparse(features: Any) -> bool:
  """Whether features are a sparse matrix of SciPy."""
  return hasattr(features, 'indptr')


def check(features: Any) -> None:
  """Raises a `UserError` for features [nodes, d] that are no numbers.

  Of dense ones of more than 1 GB only every n-th row is looked at.
  """
  if features is None:
    return
  if not features.shape[1]:
    raise errors.UserError(
      'nodes have features of no columns; give --config.data.features another '
      'file, or set --config.model.inputs=rows'
    )
  every = 1 if is_sparse(features) else 1 + features.nbytes // 1_000_000_000
  if (row := first_bad(features, every)) is not None:
    raise errors.UserError(
      f'features of node {row:,} (from 0) are not all finite; mend them, '
      'such as by numpy.nan_to_num'
    )


def first_bad(features: Any, every: int = 1) -> int | None:
  """The first of every n-th row that is not finite, or None."""
  if is_sparse(features):
    bad = np.flatnonzero(~np.isfinite(features.data))[:1]
    bad = np.searchsorted(features.indptr, bad, 'right') - 1
    return next(iter(bad.tolist()), None)
  for start in range(0, len(features), every << 16):
    rows = features[start : start + (every << 16) : every]
    if not (is_finite := np.isfinite(rows).all(1)).all():
      return start + every * int(is_finite.argmin())
  return None


def compact(features: Any) -> Any:
  """Features [nodes, d] in float32, sparse where that is less work."""
  from scipy import sparse

  num, dim = features.shape
  if is_sparse(features):
    features = sparse.csr_matrix(features, dtype=np.float32)
    features.sum_duplicates()
    features.eliminate_zeros()
    if features.nnz > _MOST_DENSE * num * dim:
      return features.toarray()
    return features
  rows = max(1, _SAMPLE_BYTES // (dim * features.itemsize))
  sample = features[:: 1 + num // rows]
  if np.count_nonzero(sample) > _MOST_DENSE * sample.size:
    return np.asarray(features, np.float32)
  blocks = [features[i : i + rows] for i in range(0, num, rows)]
  blocks = [sparse.csr_matrix(x, dtype=np.float32) for x in blocks]
  return sparse.vstack(blocks, format='csr')


def normalized(features: Any) -> Any:
  """Float32 features [nodes, d] divided by the sum of each row's sizes."""
  if not is_sparse(features):
    sums = np.abs(features).sum(1, keepdims=True)
    return features / np.maximum(sums, 1e-12)
  sums = np.maximum(np.asarray(abs(features).sum(1)).ravel(), 1e-12)
  features = features.copy()
  features.data /= np.repeat(sums, np.diff(features.indptr))
  return features


class Lists(NamedTuple):
  """Lists of numbers, in pieces; all arrays are int32 but for the values."""

  ids: Any  # [pieces, 8], of rows that are summed
  values: Any  # [pieces, 8] float32, their factors; 0 = there is none
  owners: Any  # [pieces], the list of each
  # Of the pieces of pieces, [.., 8] places in the level before; those behind
  # its end are none. The last level has a piece for each list.
  levels: tuple[Any, ...]


class Sparse(NamedTuple):
  """Sparse features on a device."""

  by_node: Lists  # of features
  by_feature: Lists  # of nodes


def on_device(features: Any) -> Any:
  """What a model has of features: the same array, or `Sparse`."""
  if not is_sparse(features):
    return features
  by_feature = features.tocsc()
  return Sparse(_lists(features), _lists(by_feature))


def _lists(matrix):
  places, offsets = _pieces(matrix.indptr)
  owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
  is_entry, ids = places < matrix.nnz, np.zeros(places.shape, np.int32)
  values = np.zeros(places.shape, np.float32)
  ids[is_entry] = matrix.indices[places[is_entry]]
  values[is_entry] = matrix.data[places[is_entry]]
  levels = []
  while len(offsets) - 1 < len(places):
    places, offsets = _pieces(offsets)
    levels.append(places)
  owners = owners.astype(np.int32)
  return Lists(ids, values, owners=owners, levels=tuple(levels))


def _pieces(offsets):
  """Cut lists that begin at `offsets` [n + 1] into pieces, at least one each.

  Returns places int32 [pieces, 8] of entries, those of none behind the last
  one, and offsets [n + 1] of the pieces of each list.
  """
  sizes = np.diff(offsets)
  nums = np.maximum(1, -(-sizes // _PIECE))
  firsts = np.append(0, np.cumsum(nums))
  owners = np.repeat(np.arange(len(sizes)), nums)
  in_list = np.arange(firsts[-1]) - firsts[owners]
  places = offsets[owners] + _PIECE * in_list
  places = places[:, None] + np.arange(_PIECE)
  is_entry = places < offsets[owners + 1][:, None]
  return np.where(is_entry, places, offsets[-1]).astype(np.int32), firsts


def drop(
  x: jax.Array,
  rate: float,
  key: jax.Array,
  rows: jax.Array,
  columns: jax.Array,
) -> jax.Array:
  """Numbers at rows and columns without some of them, the others larger."""
  if not rate:
    return x
  bits = rounding.bits_at(key, rows, columns)
  # Upper bits are the random ones; no float32 holds all 32.
  is_kept = (bits >> 8).astype(jnp.float32) >= rate * 2.0**24
  return jnp.where(is_kept, x / (1 - rate), 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(
  rate: float, features: Sparse, key: jax.Array, matrix: jax.Array
) -> jax.Array:
  """[nodes, size] of a matrix [d, size], of features some of which are dropped.

  They are those that `drop` leaves out, of a node and a feature.
  """
  lists = features.by_node
  values = drop(
    lists.values, rate, key, rows=lists.owners[:, None], columns=lists.ids
  )
  return _sums(lists, values, matrix)


def _product_backward(rate, saved, slopes):
  features, key = saved
  lists = features.by_feature
  values = drop(
    lists.values, rate, key, rows=lists.ids, columns=lists.owners[:, None]
  )
  return None, None, _sums(lists, values, slopes)


product.defvjp(
  lambda rate, features, key, matrix: (
    product(rate, features, key=key, matrix=matrix),
    (features, key),
  ),
  _product_backward,
)


def _sums(lists, values, rows):
  """[lists, size], the sum of each list's rows times their values."""
  # Added column by column, which XLA makes one loop of.
  columns = range(_PIECE)
  sums = sum(values[:, i, None] * rows[lists.ids[:, i]] for i in columns)
  for places in lists.levels:
    sums = sum(
      sums.at[places[:, i]].get(mode='fill', fill_value=0) for i in columns
    )
  return sums
