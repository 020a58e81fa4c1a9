"""Rows of a step that share an id, added up so that each id comes once.

A scatter that adds rows with duplicate ids needs atomic additions on a GPU:
their order changes from run to run, and with it the last bits of the sums, and
some compilers make slow loops of them. Here ids are sorted, so that the
occurrences of an id lie side by side, and every run of equal ids is summed by
small matrix products: within a tile of T positions, a 0/1 matrix says which
earlier ones have the same id; what reaches over the end of a tile is the same
problem again, T times smaller. What is left to write is one row per id, always
summed in the same order.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_AT_ONCE = 16  # rows that are added in one turn of a loop
_TILE = 32  # T: the matrices of a step take 4 T bytes per id


class Merged(NamedTuple):
  """The n look-ups of a step with each id once, at the end of its run."""

  ids: jax.Array  # [n] int32; all different, at or above vocab where unused
  occurrences: jax.Array  # [n] float32, how often the id was looked up
  sums: Any  # pytree of [n, ...] float32, over the occurrences of the id


def running_sums(ids: jax.Array, values: Any) -> Any:
  """Sums over the positions with the same id up to each, itself included.

  Args:
    ids: [n] int32, sorted.
    values: pytree of [n, d] float32.

  Returns:
    A pytree like `values`.
  """
  # Side by side, so that all are one product.
  leaves, tree = jax.tree.flatten(values)
  widths = np.cumsum([x.shape[1] for x in leaves])
  sums = _running_sums(ids, jnp.concatenate(leaves, 1))
  return jax.tree.unflatten(tree, jnp.split(sums, widths[:-1], 1))


def _running_sums(ids: jax.Array, values: jax.Array) -> jax.Array:
  num = len(ids)
  tiles = -(-num // _TILE)
  padding = tiles * _TILE - num
  # Padding repeats the last id, behind all that counts.
  tiled_ids = jnp.pad(ids, (0, padding), 'edge').reshape(tiles, _TILE)
  same = tiled_ids[:, :, None] == tiled_ids[:, None, :]
  earlier = jnp.tril(same).astype(jnp.float32)

  tiled = jnp.pad(values, ((0, padding), (0, 0))).reshape(tiles, _TILE, -1)
  sums = jnp.einsum('tij,tjd->tid', earlier, tiled, precision='highest')
  if tiles > 1:
    ends = _running_sums(tiled_ids[:, -1], sums[:, -1])
    goes_on = tiled_ids[1:] == tiled_ids[:-1, -1:]
    reached = jnp.where(goes_on[:, :, None], ends[:-1, None], 0.0)
    sums += jnp.pad(reached, ((1, 0), (0, 0), (0, 0)))
  return sums.reshape(tiles * _TILE, -1)[:num]


# One model after another: the turns of a loop that models take together are
# as many as those of the longest, each a choice between old and new sums.
@jax.custom_batching.sequential_vmap
def _added(
  values: Any, added: jax.Array, targets: jax.Array, num_added: jax.Array
) -> Any:
  """Adds rows to others.

  Args:
    values: pytree of [n, d] float32.
    added: [n + `_AT_ONCE`] int32, positions of the rows, n behind the last.
    targets: [n] int32, positions of the rows that they are added to.
    num_added: int32.
  """
  num = len(targets)

  def add_some(i, sums):
    sources = jax.lax.dynamic_slice_in_dim(added, i * _AT_ONCE, _AT_ONCE)
    chosen = targets.at[sources].get(mode='fill', fill_value=num)
    return jax.tree.map(
      lambda x: x.at[chosen].add(x.at[sources].get(mode='clip'), mode='drop'),
      sums,
    )

  return jax.lax.fori_loop(0, -(-num_added // _AT_ONCE), add_some, values)


def merge_unsorted(
  ids: jax.Array, values: Any, vocab: int, scratch: jax.Array
) -> tuple[Merged, jax.Array]:
  """The same as `merge` where sorting costs more than it saves.

  A CPU sorts the ids of a step in half the time that the step takes, and adds
  numbers in order. Each look-up writes its position to the scratch, at its id;
  what is read there afterwards is one position for all of the id.

  Args:
    ids: [...] int32; those at or above `vocab` are padding.
    values: pytree of [..., d] float32.
    vocab: rows of the table.
    scratch: [vocab] int32, of any values.

  Returns:
    As `merge`, in another order; and the scratch again.
  """
  flat = jnp.minimum(ids.reshape(-1), vocab)
  num = len(flat)
  positions = jnp.arange(num, dtype=jnp.int32)
  scratch = scratch.at[flat].set(positions, mode='drop')
  targets = scratch.at[flat].get(mode='clip')
  is_known = flat < vocab
  is_target = (targets == positions) & is_known
  is_added = (targets != positions) & is_known
  # Of most ids there is one look-up, whose row stays where it is: a scatter of
  # all rows would copy them first. The others follow one another in a list.
  places = jnp.where(is_added, jnp.cumsum(is_added) - 1, num + _AT_ONCE)
  added = jnp.full(num + _AT_ONCE, num, jnp.int32)
  added = added.at[places].set(positions, mode='drop', unique_indices=True)

  values = jax.tree.map(lambda x: jnp.asarray(x).reshape(num, -1), values)
  occurrences = jnp.zeros(num, jnp.float32).at[targets].add(is_known * 1.0)
  return Merged(
    jnp.where(is_target, flat, vocab + positions),
    occurrences,
    _added(values, added, targets, jnp.sum(is_added)),
  ), scratch


def merge(ids: jax.Array, values: Any, vocab: int) -> Merged:
  """Adds up the rows of each id.

  Args:
    ids: [...] int32; those at or above `vocab` are padding.
    values: pytree of [..., d] float32.
    vocab: rows of the table.

  Returns:
    The n ids of the step with their sums, each once, in rising order with
    unused positions between them.
  """
  flat = jnp.minimum(ids.reshape(-1), vocab)
  order = jnp.argsort(flat)
  in_order = flat[order]
  values = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1])[order], values)
  ones = jnp.ones((len(flat), 1), jnp.float32)
  occurrences, sums = running_sums(in_order, (ones, values))
  is_last = jnp.append(in_order[1:] != in_order[:-1], True)
  unused = vocab + jnp.arange(len(flat), dtype=jnp.int32)
  return Merged(
    jnp.where(is_last & (in_order < vocab), in_order, unused),
    occurrences[:, 0],
    sums,
  )
