"""What tokens with several senses meet, in tiles of equal size.

The token of a slot (see `models.mixture`) is a context of up to 2 W centers,
and each of them has some targets: of a tree, from four inner nodes to twenty.
A slot's targets lie one behind the other and are cut in tiles of n, each a
product of its own, with padding at the end of a slot only:

  slot 0   a a a a a b b b | b c c c c c c . |        n = 8
  slot 1   b b b b c c c c | c c d d d . . . |

A piece is as many slots as fit a room of tiles; most steps have one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxemb.models import base, targets
from jaxemb.ops import losses, products

SIZE = 32  # n
# Segments of lists are found in a loop; so many are written out.
_MAX_UNROLLED = 64


class Near(NamedTuple):
  """The 2 W centers around each of m slots."""

  centers: jax.Array  # [m, 2 W] int32
  mask: jax.Array  # [m, 2 W] bool, whether the slot's token is a context of it
  sizes: jax.Array  # [m] int32, how many targets those have together


class Room(NamedTuple):
  """Of a piece."""

  slots: int  # m
  tiles: int  # t


class Tiles(NamedTuple):
  """Of a piece of slots."""

  slots: jax.Array  # [t] int32, whose it is
  pairs: jax.Array  # [t, n] int32, of (slot, center), the latter within 2 W
  places: jax.Array  # [t, n] int32, of the step's output rows
  weights: jax.Array  # [t, n] float32, as `targets.Lists` has them


class Piece(NamedTuple):
  """Some of the slots of a step, one behind the other."""

  first: jax.Array  # int32, of its slots among those of the step
  near: Near  # of m slots; those that did not fit have no centers
  tiles: Tiles


def room(num_slots: int, most_targets: int, slots: int, tiles: int) -> Room:
  """What is wanted, as far as there can be as much; one slot has to fit.

  Args:
    num_slots: most that there can be.
    most_targets: of a slot.
    slots: that should fit.
    tiles: that should fit.
  """
  most = -(-most_targets // SIZE)
  slots = min(slots, num_slots)
  return Room(slots, min(max(tiles, most), slots * most))


def near(
  places: jax.Array,
  lists: targets.Lists,
  batch: base.StepBatch,
  spec: base.WindowSpec,
) -> Near:
  """Finds the centers around slots.

  Args:
    places: [m] int32, of the slots' tokens in the windows of all chunks, one
      behind the other; behind the last = no slot.
    lists: the targets of the step's centers.
    batch: the step.
    spec: sizes.
  """
  c, w = spec.chunk, spec.window
  # Of the centers around a token, which they have as offset.
  offsets = jnp.asarray([[x for x in range(-w, w + 1) if x]])
  width, num_centers = c + 2 * w, batch.left.size
  chunk, place = places[:, None] // width, places[:, None] % width
  inside = place - w - offsets
  is_inside = (inside >= 0) & (inside < c) & (chunk < num_centers // c)
  centers = jnp.where(is_inside, c * chunk + inside, 0)
  left, right, sizes = (
    jnp.asarray(x, jnp.int32)
    .reshape(-1)
    .at[centers]
    .get(mode='promise_in_bounds')
    for x in (batch.left, batch.right, lists.sizes.sum(1))
  )
  mask = is_inside & (offsets >= -left) & (offsets <= right)
  return Near(centers, mask, jnp.sum(mask * sizes, 1))


def num_tiles(sizes: jax.Array) -> jax.Array:
  """Of slots with so many targets."""
  return -(-sizes // SIZE)


def cut(found: Near, lists: targets.Lists, room: int) -> Tiles:
  """The tiles of a piece.

  Args:
    found: of its m slots.
    lists: the targets of the step's centers.
    room: t; the slots' tiles beyond are left out.
  """
  num_slots, num_near = found.centers.shape
  depth = lists.places.shape[1]
  # The list of a center has two segments with a gap between.
  parts = lists.sizes.at[found.centers].get(mode='promise_in_bounds')
  parts = jnp.where(found.mask[..., None], parts, 0).reshape(num_slots, -1)
  stops = jnp.cumsum(parts, 1)
  starts = stops - parts
  firsts = depth * found.centers[..., None] + jnp.asarray([[[0, lists.gap]]])
  firsts = firsts.reshape(num_slots, -1)
  tiles = num_tiles(found.sizes)
  last = jnp.cumsum(tiles)
  number = jnp.arange(room)
  slots = jnp.sum(number[:, None] >= last[None], 1)
  is_tile = slots < num_slots
  slots = jnp.minimum(slots, num_slots - 1)

  def of_tiles(x):
    return x.at[slots].get(mode='promise_in_bounds')

  # Place j of a slot is in the last segment that starts at or before it.
  at = (number - of_tiles(last - tiles))[:, None] * SIZE + jnp.arange(SIZE)[
    None
  ]
  starts, shifts = of_tiles(starts), of_tiles(firsts - starts)

  def pick(i, chosen):
    shift, segment = chosen
    start, more = (
      jax.lax.dynamic_slice_in_dim(x, i, 1, 1) for x in (starts, shifts)
    )
    is_behind = at >= start
    return jnp.where(is_behind, more, shift), jnp.where(is_behind, i, segment)

  zero = jnp.zeros_like(at)
  num = 2 * num_near
  shift, segment = jax.lax.fori_loop(
    0, num, pick, (zero, zero), unroll=min(num, _MAX_UNROLLED)
  )
  is_target = is_tile[:, None] & (at < of_tiles(found.sizes)[:, None])
  index = jnp.where(is_target, at + shift, 0)
  places, weights = (
    x.reshape(-1).at[index].get(mode='promise_in_bounds')
    for x in (lists.places, lists.weights)
  )
  return Tiles(
    slots,
    slots[:, None] * num_near + segment // 2,
    jnp.where(is_target, places, 0),
    jnp.where(is_target, weights, 0.0),
  )


def log_likelihoods(
  found: Tiles,
  rows: jax.Array,
  met_rows: jax.Array,
  num_near: int,
  row_ops: products.RowOps,
) -> jax.Array:
  """Log P(center | row) of each slot and center, or of all that are around it.

  Args:
    found: t tiles.
    rows: [m, K, d] float32, of the slots.
    met_rows: [t, n, d] float32, of `Tiles.places`.
    num_near: 2 W; or 1, summed over the centers.
    row_ops: gives the products of rows.

  Returns:
    [m, K, num_near] float32.
  """
  num_slots, num_senses = rows.shape[:2]
  of_tiles = rows.at[found.slots].get(mode='promise_in_bounds')
  scores = row_ops.narrow_dot(of_tiles, met_rows)
  logs = losses.log_chances(scores, found.weights[:, None])
  zeros = jnp.zeros((num_slots * num_near, num_senses))
  if num_near == 1:
    return zeros.at[found.slots].add(logs.sum(-1))[..., None]
  sums = zeros.at[found.pairs].add(logs.transpose(0, 2, 1))
  return sums.reshape(num_slots, num_near, num_senses).transpose(0, 2, 1)


def each_piece(
  found: Near,
  lists: targets.Lists,
  size: Room,
  add: Callable[[Piece, Any], Any],
  carry: Any,
) -> Any:
  """What `add` makes of a carry with one piece after the other.

  Args:
    found: of all slots of a step, those without a token behind the others.
    lists: the targets of its centers.
    size: of a piece.
    add: (piece, carry) -> carry.
    carry: to begin with.
  """
  num = jnp.max(jnp.where(found.sizes > 0, jnp.arange(len(found.sizes)) + 1, 0))

  # Once for all pieces: what the last one has beyond the slots.
  found = Near(
    *(jnp.pad(x, [(0, size.slots)] + [(0, 0)] * (x.ndim - 1)) for x in found)
  )

  def step(state):
    first, carry = state
    following, piece = next_piece(found, lists, size, first)
    return following, add(piece, carry)

  first = jnp.int32(0)
  return jax.lax.while_loop(lambda x: x[0] < num, step, (first, carry))[1]


def next_piece(
  found: Near, lists: targets.Lists, size: Room, first: jax.Array
) -> tuple[jax.Array, Piece]:
  """The slots from `first` on that fit, and the first one behind them.

  There must be as many as a piece has from `first` on, if only as padding.
  """
  some = Near(
    *(jax.lax.dynamic_slice_in_dim(x, first, size.slots) for x in found)
  )
  fits = jnp.cumsum(num_tiles(some.sizes)) <= size.tiles
  some = Near(
    some.centers,
    some.mask & fits[:, None],
    jnp.where(fits, some.sizes, 0),
  )
  piece = Piece(first, some, cut(some, lists, size.tiles))
  return first + jnp.sum(fits), piece


def take(piece: Piece, x: jax.Array) -> jax.Array:
  """The rows [m, ...] of a piece's slots, of those [slots, ...] of a step."""
  index = piece.first + jnp.arange(len(piece.near.sizes))
  return x.at[index].get(mode='fill', fill_value=0)


def put(piece: Piece, x: jax.Array, rows: jax.Array) -> jax.Array:
  """An array [slots, ...] of a step with the rows [m, ...] of a piece's slots.

  What is behind them may be written, and is written again with its own piece.
  """
  index = piece.first + jnp.arange(len(rows))
  return x.at[index].set(rows, mode='drop')


def rows_at(rows: jax.Array, places: jax.Array) -> jax.Array:
  """[t, n, d], of the rows [k, ..., d] of a step, all in a line."""
  flat = rows.reshape(-1, rows.shape[-1])
  found = flat.at[places.reshape(-1)].get(mode='promise_in_bounds')
  return found.reshape(*places.shape, -1)


def add_at(rows: jax.Array, places: jax.Array, more: jax.Array) -> jax.Array:
  """The rows of a step, with more [t, n, d] added at places [t, n]."""
  flat = rows.reshape(-1, rows.shape[-1])
  more = jax.lax.optimization_barrier(more.reshape(-1, more.shape[-1]))
  added = flat.at[places.reshape(-1)].add(more, mode='promise_in_bounds')
  return added.reshape(rows.shape)
