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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxemb.tables import dedup
from jaxemb.tables import spec as spec_lib


class Route(NamedTuple):
  """What one device wants of the others; n lookups, t holders."""

  order: jax.Array  # [n] int32, sorts the lookups by place
  in_order: jax.Array  # [n] int32, their places, sorted
  # [n] int32: the u-th distinct place; beyond the last, no place.
  distinct: jax.Array
  distinct_of: jax.Array  # [n] int32, lookup -> u
  last: jax.Array  # [n] int32, position in the order of the u-th's last lookup
  num_rows: int  # of each holder
  capacity: int  # rows of a buffer
  axes: spec_lib.Axes


def route(
  places: jax.Array, num_rows: int, capacity: int, axes: spec_lib.Axes
) -> Route:
  """Sorts what a device wants.

  Args:
    places: [n] int32; t * num_rows is no place.
    num_rows: of each of the t holders.
    capacity: rows of a buffer, at least 1.
    axes: of the mesh.
  """
  num = len(places)
  order = jnp.argsort(places)
  in_order = places[order]
  is_first = jnp.append(True, in_order[1:] != in_order[:-1])
  index = jnp.cumsum(is_first.astype(jnp.int32)) - 1
  nowhere = axes.num_table * num_rows
  # Equal lookups write the same; of their positions the last one stays.
  distinct = jnp.full(num, nowhere, jnp.int32).at[index].set(in_order)
  last = jnp.zeros(num, jnp.int32).at[index].max(jnp.arange(num))
  distinct_of = (
    jnp.zeros(num, jnp.int32).at[order].set(index, unique_indices=True)
  )
  return Route(
    order, in_order, distinct, distinct_of, last, num_rows, capacity, axes
  )


def _rounds(
  route: Route, carry: Any, body: Callable[..., Any]
) -> tuple[Any, jax.Array]:
  """Runs `body(carry, index, wanted)` for every round; counts those but one.

  index [t, capacity] are positions in `route.distinct`, n where a buffer is
  empty; wanted [t, capacity] are the holders' rows there, num_rows where empty.
  """
  axes, num = route.axes, len(route.distinct)
  firsts = route.num_rows * jnp.arange(axes.num_table)

  def starts(cut):
    # One fused comparison of all: the steps of a binary search are a dozen
    # kernels, and most of what a compiler had to do here.
    return jnp.searchsorted(route.distinct, firsts + cut, method='compare_all')

  def run(x):
    _, low, num_rounds, carry = x
    # The next round begins where the first buffer of any device is full.
    end = low + route.capacity
    place = route.distinct.at[end].get(mode='fill', fill_value=2**31 - 1)
    is_same_holder = place < firsts + route.num_rows
    next_cut = jnp.min(
      jnp.where(is_same_holder, place - firsts, route.num_rows)
    )
    if names := axes.names():
      next_cut = jax.lax.pmin(next_cut, tuple(names))
    next_low = starts(next_cut)
    index = low[:, None] + jnp.arange(route.capacity)[None, :]
    is_used = index < next_low[:, None]
    wanted = route.distinct.at[index].get(mode='clip') - firsts[:, None]
    index = jnp.where(is_used, index, num)
    wanted = jnp.where(is_used, wanted, route.num_rows)
    return next_cut, next_low, num_rounds + 1, body(carry, index, wanted)

  *_, num_rounds, carry = jax.lax.while_loop(
    lambda x: x[0] < route.num_rows,
    run,
    (jnp.int32(0), starts(jnp.int32(0)), jnp.int32(0), carry),
  )
  return carry, num_rounds - 1


def _exchange(x: jax.Array, axes: spec_lib.Axes) -> jax.Array:
  """[t, capacity, ...]: sends x[o] to device o, returns what each one sent."""
  if axes.num_table == 1:
    return x
  return jax.lax.all_to_all(x, axes.table, 0, 0)


def fetch(
  route: Route, held: Callable[[jax.Array], Any]
) -> tuple[Any, jax.Array]:
  """The rows that the device wants.

  Args:
    route: what it wants.
    held: own rows [...] int32, num_rows for none -> pytree of [..., ...] to
      send of them.

  Returns:
    A pytree of [n, ...]; and int32, the overflow rounds.
  """
  axes, num = route.axes, len(route.distinct)

  def body(rows, index, wanted):
    sent = held(_exchange(wanted, axes))
    return jax.tree.map(
      lambda x, y: x.at[index].set(_exchange(y, axes), mode='drop'), rows, sent
    )

  rows = jax.tree.map(
    lambda x: jnp.zeros(x.shape, x.dtype),
    jax.eval_shape(held, jax.ShapeDtypeStruct((num,), jnp.int32)),
  )
  rows, overflow_rounds = _rounds(route, rows, body)
  return jax.tree.map(lambda x: x[route.distinct_of], rows), overflow_rounds


def sums(route: Route, values: Any) -> tuple[jax.Array, Any]:
  """Sums a pytree of [n, d] float32 over the lookups of each place.

  Returns:
    [n] float32, lookups of the u-th distinct place; and the sums.
  """
  ones = jnp.ones((len(route.order), 1), jnp.float32)
  values = jax.tree.map(lambda x: x[route.order], values)
  counts, sums = dedup.running_sums(route.in_order, (ones, values))
  return counts[route.last, 0], jax.tree.map(lambda x: x[route.last], sums)


def send(
  route: Route,
  sums: tuple[jax.Array, Any],
  state: Any,
  apply: Callable[[Any, jax.Array, jax.Array, Any], Any],
) -> Any:
  """Sends sums to the holders of their rows; returns the state of this one.

  Args:
    route: what the device wanted.
    sums: as `sums` returns them, perhaps encoded.
    state: the holder's.
    apply: (state, rows [m] int32, lookups [m], sums [m, d]) -> state; gets the
      sums of all devices of the table axis; rows of num_rows are padding.
  """

  def body(state, index, wanted):
    def exchanged(x):
      x = x.at[index].get(mode='fill', fill_value=0)
      return _exchange(x, route.axes).reshape(-1, *x.shape[2:])

    local = _exchange(wanted, route.axes).reshape(-1)
    return apply(state, local, *jax.tree.map(exchanged, sums))

  return _rounds(route, state, body)[0]
