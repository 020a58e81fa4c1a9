"""Deduplication: sums the rows of a step that share an id.

A scatter that adds rows with duplicate ids needs atomic additions on a GPU:
their order changes from run to run, and with it the last bits of the sums. Here
ids are sorted, and every run of equal ids is summed by small matrix products:
within a tile of T positions, a 0/1 matrix says which earlier ones have the same
id; sums that cross the end of a tile are the same problem, T times smaller.
What is left to write is one row per id, always summed in the same order.

On a CPU, where `by_scratch` sums, 32,768 rows of 100 take it 8 ms, and
`jax.ops.segment_sum` of sorted rows 22 ms.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.tables import row_access, row_optimizers

_ROWS_AT_ONCE = 16  # of a loop that adds rows
_TILE = 32  # T: the matrices of a step take 4 T bytes per id


def in_order(ids: jax.Array, bound: int) -> tuple[jax.Array, jax.Array]:
  """Returns ids [n] int32 in rising order, and the position of each, [n] int32.

  They are from 0 to `bound`; equal ones stay in order. If an id and a position
  have room in 32 bits, they are sorted as one number, which moves half as much
  as pairs do.
  """
  num = len(ids)
  bits = (num - 1).bit_length()
  if bound.bit_length() + bits > 32:
    positions = jnp.arange(num, dtype=jnp.int32)
    ids, positions = jax.lax.sort([ids, positions], num_keys=1)
    return ids, positions
  positions = jnp.arange(num, dtype=jnp.uint32)
  both = (ids.astype(jnp.uint32) << bits) | positions
  both = jax.lax.sort(both, is_stable=False)  # no two are equal
  positions = both & np.uint32((1 << bits) - 1)
  return (both >> bits).astype(jnp.int32), positions.astype(jnp.int32)


def running_sums(
  row_grads: row_optimizers.RowGrads,
  order: jax.Array,
  kernels: row_access.Kernels = row_access.XLA,
) -> row_optimizers.RowGrads:
  """Sums over the positions with the same id up to each, itself included.

  Ids [n] are sorted, as are perhaps counts [n] and squares [n]; gradients and
  rows are in the `order` [n] of these. Only by a kernel, and if there is room,
  rows are sorted as well.
  """
  ids, grads, squares, counts, rows = row_grads
  copies = kernels.copies
  if kernels.running_sums and copies and copies.can_copy(grads):
    sums, rows = kernels.running_sums(grads, order, ids, rows=rows)
    if squares is not None:
      squares = _running_sums(ids, squares[:, None])[:, 0]
  elif squares is None:
    sums, rows = _running_sums(ids, grads[order]), None
  else:
    rows = None
    # A TPU would pad 129 columns to 256.
    sums, squares = jax.lax.platform_dependent(
      ids, grads[order], squares, tpu=_sums_apart, default=_sums_together
    )
  return row_optimizers.RowGrads(
    ids=ids,
    grads=sums,
    squares=squares,
    counts=_running_counts(ids, counts),
    rows=rows,
  )


def _sums_together(ids, grads, squares):
  """Returns running sums of both by one product."""
  sums = _running_sums(ids, jnp.concatenate([grads, squares[:, None]], 1))
  return sums[:, :-1], sums[:, -1]


def _sums_apart(ids, grads, squares):
  return (_running_sums(ids, grads), _running_sums(ids, squares[:, None])[:, 0])


def _running_counts(ids: jax.Array, counts: jax.Array | None) -> jax.Array:
  """Returns running sums of counts, which float32 adds without rounding.

  Without counts each is 1. As one more column of the product they would be
  another tile of a TPU's.
  """
  is_first = jnp.append(True, ids[1:] != ids[:-1])
  if counts is None:
    # XLA would compute a sum of constants itself, in seconds, and warn of it.
    totals = jnp.arange(1, len(ids) + 1, dtype=jnp.float32)
    others = totals - 1.0
  else:
    totals = jnp.cumsum(counts)
    others = totals - counts
  before = jax.lax.cummax(jnp.where(is_first, others, 0.0))
  return totals - before


def _running_sums(ids: jax.Array, values: jax.Array) -> jax.Array:
  num = len(ids)
  tiles = -(-num // _TILE)
  padding = tiles * _TILE - num
  tiled_ids = jnp.pad(ids, (0, padding), 'edge').reshape(tiles, _TILE)
  same = tiled_ids[:, :, None] == tiled_ids[:, None, :]
  earlier = jnp.tril(same).astype(jnp.float32)

  tiled = jnp.pad(values, ((0, padding), (0, 0))).reshape(tiles, _TILE, -1)
  sums = jnp.einsum('tij,tjd->tid', earlier, tiled, precision='highest')
  if tiles > 1:
    ends = _running_sums(tiled_ids[:, -1], sums[:, -1])
    # Small arrays are padded, so that one pass over the sums is left.
    continues = tiled_ids[1:] == tiled_ids[:-1, -1:]
    continues = jnp.pad(continues, ((1, 0), (0, 0)))
    before = jnp.pad(ends[:-1], ((1, 0), (0, 0)))
    sums += jnp.where(continues[:, :, None], before[:, None], 0.0)
  return sums.reshape(tiles * _TILE, -1)[:num]


def by_sorting(
  row_grads: row_optimizers.RowGrads,
  vocab: int,
  kernels: row_access.Kernels = row_access.XLA,
) -> row_optimizers.RowGrads:
  """Sums over the occurrences of each id; ids from `vocab` on are padding.

  Each id is at the last position of its run in rising order; unused positions
  have distinct ids from `vocab` on. A GPU's kernel has ids first in runs.
  """
  if kernels.sums:
    return kernels.sums(row_grads, vocab)
  are_single = row_grads.counts is None
  row_grads = _flatten(row_grads, vocab)
  ids, numbers = row_grads.ids, {}
  if row_grads.squares is not None:
    numbers['squares'] = row_grads.squares
  if row_grads.counts is not None and not are_single:
    numbers['counts'] = row_grads.counts
  if numbers:
    # They come along with their ids: a TPU sorts more of them in the time of
    # looking one up.
    order = jnp.arange(len(ids), dtype=jnp.int32)
    ids, order, *moved = jax.lax.sort(
      [ids, order, *numbers.values()], num_keys=1
    )
    numbers = dict(zip(numbers, moved, strict=True))
  else:
    ids, order = in_order(ids, vocab)
  row_grads = row_grads._replace(
    ids=ids, squares=numbers.get('squares'), counts=numbers.get('counts')
  )
  is_last = jnp.append(ids[1:] != ids[:-1], True)
  unused = vocab + jnp.arange(len(ids), dtype=jnp.int32)
  unique = jnp.where(is_last & (ids < vocab), ids, unused)
  return running_sums(row_grads, order, kernels)._replace(ids=unique)


def add(
  array: jax.Array,
  ids: jax.Array,
  rows: jax.Array,
  kernels: row_access.Kernels = row_access.XLA,
) -> jax.Array:
  """Adds rows [..., d] to those of ids [...], in the same order in every run.

  `array` is [num, d]; ids from `num` on are padding.
  """

  def by_id(array, ids, rows):
    return row_access.add(array, ids, rows, are_unique=False)

  def by_sums(array, ids, rows):
    row_grads = row_optimizers.RowGrads(ids, rows, None)
    sums = by_sorting(row_grads, len(array), kernels)
    return row_access.add(array, sums.ids, rows=sums.grads, are_unique=True)

  # A GPU would add them atomically.
  how = {'cuda': by_sums, 'rocm': by_sums, 'default': by_id}
  return jax.lax.platform_dependent(array, ids, rows, **how)


def _flatten(row_grads, vocab):
  """Flattens all arrays; ids of padding become `vocab`."""
  ids, grads, squares, counts, rows = row_grads
  if counts is None:
    counts = jnp.ones(ids.shape, jnp.float32)
  rows = None if rows is None else rows.reshape(-1, rows.shape[-1])
  squares = None if squares is None else squares.reshape(-1)
  ids, grads = row_access.flatten(ids, grads)
  ids = jnp.minimum(ids, vocab)
  return row_optimizers.RowGrads(
    ids=ids, grads=grads, squares=squares, counts=counts.reshape(-1), rows=rows
  )


def _add_duplicates(values, sources, targets, num):
  """Adds `num` rows of a pytree of [n, ...] to others.

  `sources` [n + `_ROWS_AT_ONCE`] int32 are the rows to add, n beyond the last;
  `targets` [n] int32 those that each row is added to.
  """
  size = len(targets)

  def add(i, sums):
    rows = jax.lax.dynamic_slice_in_dim(
      sources, i * _ROWS_AT_ONCE, _ROWS_AT_ONCE
    )
    chosen = targets.at[rows].get(mode='fill', fill_value=size)
    return jax.tree.map(
      lambda x: x.at[chosen].add(x.at[rows].get(mode='clip'), mode='drop'),
      sums,
    )

  return jax.lax.fori_loop(0, -(-num // _ROWS_AT_ONCE), add, values)


def by_scratch(
  row_grads: row_optimizers.RowGrads, vocab: int, scratch: jax.Array
) -> tuple[row_optimizers.RowGrads, jax.Array]:
  """As `by_sorting`, for CPUs: they add in order, and sorting is half a step.

  Each lookup writes its position to the scratch, at its id; what is read there
  afterwards is one position for all lookups of the id. `scratch` [vocab] int32
  has any values, and is returned for the next step.
  """
  ids, *values, counts, _ = _flatten(row_grads, vocab)
  num, is_id = len(ids), ids < vocab
  positions = jnp.arange(num, dtype=jnp.int32)
  scratch = scratch.at[ids].set(positions, mode='drop')
  targets = row_access.gather(scratch, ids)
  is_added = (targets != positions) & is_id
  # Most ids have one lookup, whose row stays where it is: a scatter of all rows
  # would copy them first. The others are listed.
  index = jnp.where(is_added, jnp.cumsum(is_added) - 1, num + _ROWS_AT_ONCE)
  sources = jnp.full(num + _ROWS_AT_ONCE, num, jnp.int32)
  sources = sources.at[index].set(positions, mode='drop', unique_indices=True)
  counts = jnp.zeros(num, jnp.float32).at[targets].add(is_id * counts)
  grads, squares = _add_duplicates(
    tuple(values), sources, targets, num=jnp.sum(is_added)
  )
  unique = jnp.where((targets == positions) & is_id, ids, vocab + positions)
  return row_optimizers.RowGrads(
    ids=unique, grads=grads, squares=squares, counts=counts
  ), scratch
