"""Exchange of rows between the devices that want them and those that hold them.

The storage of a row-sharded table is one range of places: device o holds those
from o * num_rows on. A device sorts the places that it wants; equal ones are
adjacent and requested once, and what it wants of each holder is a stretch of
the sorted list. Stretches are sent in buffers of a fixed number of rows,
`capacity`, by an all-to-all.

A stretch that is longer than its buffer is not cut off but continues in an
overflow round. Rounds are cut by local places, at the same ones on all devices:
an update of a row then has the gradients of all devices at once, whatever the
number of rounds. Most steps have one.

All functions run inside `shard_map`; shapes are those of one device.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxemb.tables import dedup, row_optimizers
from jaxemb.tables import spec as spec_lib


class Route:
  """What one device wants of the others; n lookups, t holders."""

  def __init__(
    self, places: jax.Array, num_rows: int, capacity: int, axes: spec_lib.Axes
  ):
    """Sorts places [n] int32; t * num_rows is no place.

    Each holder has `num_rows`, and a buffer at least one, `capacity`.
    """
    self.num_rows, self.capacity, self.axes = num_rows, capacity, axes
    self.order, num = jnp.argsort(places), len(places)
    self.in_order = places[self.order]
    is_first = jnp.append(True, self.in_order[1:] != self.in_order[:-1])
    index = jnp.cumsum(is_first.astype(jnp.int32)) - 1
    nothing, zeros = axes.num_table * num_rows, jnp.zeros(num, jnp.int32)
    # The u-th distinct place, and no place beyond the last. Equal lookups write
    # the same; of their positions in the order the last one stays.
    self.distinct = (zeros + nothing).at[index].set(self.in_order)
    self.last = zeros.at[index].max(jnp.arange(num))
    # Lookup -> u.
    self.distinct_of = zeros.at[self.order].set(index, unique_indices=True)

  def _rounds(self, carry: Any, body: Any) -> tuple[Any, jax.Array]:
    """Runs `body(carry, index, wanted)` for every round; counts those but one.

    index [t, capacity] are positions in `distinct`, n where a buffer is empty;
    wanted [t, capacity] are the holders' rows there, num_rows where empty.
    """
    distinct, num_rows, num = self.distinct, self.num_rows, len(self.distinct)
    firsts = num_rows * jnp.arange(self.axes.num_table)

    def starts(cut):
      # One fused comparison of all: the steps of a binary search are a dozen
      # kernels, and most of what a compiler had to do here.
      return jnp.searchsorted(distinct, firsts + cut, method='compare_all')

    def run(x):
      _, low, num_rounds, carry = x
      # The next round begins where the first buffer of any device is full.
      end = low + self.capacity
      place = distinct.at[end].get(mode='fill', fill_value=2**31 - 1) - firsts
      next_cut = jnp.min(jnp.minimum(place, num_rows))
      if names := self.axes.names():
        next_cut = jax.lax.pmin(next_cut, tuple(names))
      next_low = starts(next_cut)
      index = low[:, None] + jnp.arange(self.capacity)[None, :]
      is_used = index < next_low[:, None]
      wanted = distinct.at[index].get(mode='clip') - firsts[:, None]
      index = jnp.where(is_used, index, num)
      wanted = jnp.where(is_used, wanted, num_rows)
      return next_cut, next_low, num_rounds + 1, body(carry, index, wanted)

    *_, num_rounds, carry = jax.lax.while_loop(
      lambda x: x[0] < num_rows,
      run,
      (jnp.int32(0), starts(jnp.int32(0)), jnp.int32(0), carry),
    )
    return carry, num_rounds - 1

  def _exchange(self, x: jax.Array) -> jax.Array:
    """[t, capacity, ...]: sends x[o] to device o; what each one sent."""
    if self.axes.num_table == 1:
      return x
    return jax.lax.all_to_all(x, self.axes.table, 0, 0)

  def fetch(self, held: Callable[[jax.Array], Any]) -> tuple[Any, jax.Array]:
    """The rows that the device wants, a pytree of [n, ...]; overflow rounds.

    `held` maps own rows [...] int32, num_rows for none, to a pytree of what is
    sent of them.
    """

    def body(rows, index, wanted):
      sent = jax.tree.map(self._exchange, held(self._exchange(wanted)))
      return jax.tree.map(
        lambda x, y: x.at[index].set(y, mode='drop'), rows, sent
      )

    rows = jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(held, self.order)
    )
    rows, overflow_rounds = self._rounds(rows, body)
    return jax.tree.map(lambda x: x[self.distinct_of], rows), overflow_rounds

  def sums(
    self, grads: jax.Array, squares: jax.Array | None
  ) -> row_optimizers.RowGrads:
    """Gradients [n, d] summed over the lookups of the u-th distinct place."""
    order, counts = self.order, jnp.ones(len(self.order), jnp.float32)
    squares = None if squares is None else squares[order]
    sums = dedup.running_sums(
      row_optimizers.RowGrads(self.in_order, grads[order], squares, counts)
    )
    return jax.tree.map(lambda x: x[self.last], sums._replace(ids=None))

  def send(
    self, sums: row_optimizers.RowGrads, state: Any, apply: Callable[..., Any]
  ) -> Any:
    """Sends sums to the holders of their rows; returns the state of this one.

    `sums` are as `sums` returns them, perhaps encoded. `apply` maps the
    holder's state and sums [m, ...] of all devices of the table axis, with ids
    [m] of its rows, to its new state; rows of num_rows are padding.
    """

    def body(state, index, wanted):
      def exchanged(x):
        x = x.at[index].get(mode='fill', fill_value=0)
        return self._exchange(x).reshape(-1, *x.shape[2:])

      local = self._exchange(wanted).reshape(-1)
      return apply(state, jax.tree.map(exchanged, sums)._replace(ids=local))

    return self._rounds(state, body)[0]
