"""Row layout: every device of the table axis holds a fraction of the rows.

Rows and gradients travel along the table axis; the data axis has copies.

Ids are dealt to 256 classes, and the classes to devices, so that each device
has as many of the frequent words, which have the low ids. Arrays have the shape
[groups, classes, ...] on any mesh: row (g, c) is that of id 256 g + c with the
bits of c reversed.

The storage of a table is one range of offsets: device o holds those from
o * num_rows on. A device sorts the offsets that it wants and requests equal
ones once; what it wants of each holder is a stretch of the sorted list.
Stretches travel in buffers of `capacity` rows, by an all-to-all; one that is
longer than its buffer continues in an overflow round. Rounds are cut at the
same local offsets on all devices: an update of a row then has the gradients of
all devices at once, whatever the number of rounds. Most steps have one.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.ops import rounding, wire
from jaxemb.tables import codecs, dedup, row_access, row_optimizers
from jaxemb.tables import spec as spec_lib

NUM_CLASSES = 256
# Id's last eight bits -> class, and back: consecutive ids lie apart.
REVERSED = np.array([int(f'{i:08b}'[::-1], 2) for i in range(NUM_CLASSES)])

_BUFFER_DEVIATIONS = 4.0  # one step in about ten thousand overflows


def holders(vocab: int, num_table: int) -> np.ndarray:
  """Returns [vocab] int64, which device of the table axis holds each row."""
  classes = REVERSED[np.arange(vocab) % NUM_CLASSES]
  return classes // (NUM_CLASSES // num_table)


def buffer_rows(
  lookups_per_center: np.ndarray, centers: float, num_table: int
) -> int:
  """Returns how many rows a device may request of another in a step."""
  chances = -np.expm1(-lookups_per_center * centers)
  holder_of = holders(len(lookups_per_center), num_table)
  expected = np.bincount(holder_of, chances, num_table)
  largest = np.max(expected + _BUFFER_DEVIATIONS * np.sqrt(expected))
  return 8 * math.ceil(largest / 8)


class Route:
  """What one device wants of the others; n lookups, t holders."""

  def __init__(
    self, offsets: jax.Array, num_rows: int, capacity: int, axes: spec_lib.Axes
  ):
    """Sorts offsets [n] int32, t * num_rows for none; `capacity` > 0."""
    self.num_rows, self.capacity, self.axes = num_rows, capacity, axes
    num = len(offsets)
    nothing = axes.num_table * num_rows
    self.in_order, self.order = dedup.in_order(offsets, nothing)
    is_first = jnp.append(True, self.in_order[1:] != self.in_order[:-1])
    index = jnp.cumsum(is_first.astype(jnp.int32)) - 1
    zeros = jnp.zeros(num, jnp.int32)
    # The u-th distinct offset, and its first and last position in the order.
    self.distinct = (zeros + nothing).at[index].set(self.in_order)
    self.first = (zeros + num - 1).at[index].min(jnp.arange(num))
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
      # One fused kernel; a binary search is a dozen, and slow to compile.
      return jnp.searchsorted(distinct, firsts + cut, method='compare_all')

    def run(x):
      _, low, num_rounds, carry = x
      # The next round begins where the first buffer of any device is full.
      end = low + self.capacity
      offset = distinct.at[end].get(mode='fill', fill_value=2**31 - 1) - firsts
      next_cut = jnp.min(jnp.minimum(offset, num_rows))
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
    """Sends x[o] of [t, capacity, ...] to device o; returns those received."""
    if self.axes.num_table == 1:
      return x
    return jax.lax.all_to_all(x, self.axes.table, 0, 0)

  def fetch(
    self,
    held: Callable[[jax.Array], Any],
    copies: row_access.Copies | None = None,
  ) -> tuple[Any, jax.Array]:
    """Returns the requested rows, a pytree of [n, ...], and overflow rounds.

    `held` maps local rows [...] int32, num_rows for none, to a pytree of what
    is sent of them.
    """

    def body(rows, index, wanted):
      ids, sent = index.reshape(-1), held(self._exchange(wanted))

      def put(x, y):
        y = self._exchange(y).reshape(-1, *x.shape[1:])
        return row_access.put(x, ids, rows=y, copies=copies)

      return jax.tree.map(put, rows, sent)

    rows = jax.tree.map(
      lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(held, self.order)
    )
    rows, overflow_rounds = self._rounds(rows, body)
    rows = jax.tree.map(
      lambda x: row_access.gather(x, self.distinct_of, copies), rows
    )
    return rows, overflow_rounds

  def sums(
    self,
    grads: jax.Array,
    squares: jax.Array | None,
    kernels: row_access.Kernels = row_access.XLA,
  ) -> row_optimizers.RowGrads:
    """Sums gradients [n, d] over the lookups of the u-th distinct offset."""
    if kernels.sums_of_sorted:
      row_grads = row_optimizers.RowGrads(self.in_order, grads, squares)
      num_rows = self.axes.num_table * self.num_rows
      sums = kernels.sums_of_sorted(row_grads, self.order, num_rows)
      return jax.tree.map(lambda x: x[self.first], sums)
    squares = None if squares is None else squares[self.order]
    row_grads = row_optimizers.RowGrads(self.in_order, grads, squares)
    sums = dedup.running_sums(row_grads, self.order, kernels)
    # Offsets are in place of ids.
    sums = sums._replace(ids=None)  # type: ignore[arg-type]
    return jax.tree.map(lambda x: x[self.last], sums)

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


@dataclasses.dataclass(frozen=True, eq=False)
class RowSharded(spec_lib.Table):
  """Rows are split along the table axis, whose size divides 256.

  Each device looks up ids of its own.
  """

  spec: spec_lib.TableSpec
  optimizer: row_optimizers.RowOptimizer
  axes: spec_lib.Axes = spec_lib.Axes()
  # Of a step on each device, whose lookups buffers are made for; 0 = unknown.
  device_centers: float = 0.0
  kernels: row_access.Kernels = row_access.XLA
  row_kernel: spec_lib.RowKernel | None = None  # of the holders of rows

  metrics = ('overflow_rounds',)

  @functools.cached_property
  def capacity(self) -> int:
    """Rows of a buffer; 0 = as many as are looked up."""
    lookups = self.spec.lookups_per_center
    if lookups is None or not self.device_centers:
      return 0
    return buffer_rows(lookups, self.device_centers, self.axes.num_table)

  @property
  def _codec(self) -> codecs.Codec:
    return codecs.Codec(self.spec)

  @property
  def _local_shape(self) -> tuple[int, int]:
    """Groups and classes of a device, each pair a row of it."""
    groups = -(-self.spec.vocab // NUM_CLASSES)
    return groups, NUM_CLASSES // self.axes.num_table

  @property
  def _local_rows(self) -> int:
    return math.prod(self._local_shape)

  def _by_class(self, x: jax.Array) -> jax.Array:
    """Reshapes [local rows, ...] to [groups, classes, ...], others not."""
    is_of_rows = len(x) == self._local_rows
    return x.reshape(*self._local_shape, *x.shape[1:]) if is_of_rows else x

  def _flat(self, x: jax.Array) -> jax.Array:
    """Reshapes [groups, classes, ...] to [local rows, ...], others not."""
    return x.reshape(-1, *x.shape[2:]) if x.ndim > 1 else x

  def _ids(self, groups: jax.Array, classes: jax.Array) -> jax.Array:
    """Returns ids of rows of this device."""
    if self.axes.num_table > 1:
      classes += self._local_shape[1] * jax.lax.axis_index(self.axes.table)
    return NUM_CLASSES * groups + jnp.asarray(REVERSED, jnp.int32)[classes]

  def _new_opt_state(self) -> row_optimizers.OptState:
    opt_state = self.optimizer.init(self._local_rows, self.spec.dim)
    return jax.tree.map(self._by_class, opt_state)

  @property
  def partition(self) -> spec_lib.TableState:
    split = jax.sharding.PartitionSpec(None, self.axes.table)
    opt_state = jax.tree.map(
      lambda x: split if x.shape[:2] == self._local_shape else type(split)(),
      jax.eval_shape(self._new_opt_state),
    )
    return spec_lib.TableState(self._codec.partition(split, split), opt_state)

  def init(self, key):
    groups, classes = map(jnp.arange, self._local_shape)
    ids = self._ids(groups[:, None], classes[None, :])
    return spec_lib.TableState(
      self._codec.init(key, ids), self._new_opt_state()
    )

  def positions(self, ids):
    num_groups = self._local_shape[0]
    groups = jnp.where(ids < self.spec.vocab, ids // NUM_CLASSES, num_groups)
    return groups, jnp.asarray(REVERSED, jnp.int32)[ids % NUM_CLASSES]

  def _route(self, ids: jax.Array) -> Route:
    """Routes ids: rows are stored by device, then by group."""
    ids, (_, local_classes) = ids.reshape(-1), self._local_shape
    groups, classes = self.positions(ids)
    stored = (classes // local_classes) * self._local_rows
    stored += groups * local_classes + classes % local_classes
    nowhere = self.axes.num_table * self._local_rows
    return Route(
      jnp.where(ids < self.spec.vocab, stored, nowhere),
      self._local_rows,
      capacity=min(self.capacity or ids.size, ids.size),
      axes=self.axes,
    )

  @staticmethod
  def _is_open(state: spec_lib.TableState) -> bool:
    return jax.tree.leaves(state.vectors)[0].ndim == 2

  def opened(self, state):
    # Per step it would cost a TPU time: there another shape of numbers of each
    # row lies otherwise in memory.
    return state if self._is_open(state) else jax.tree.map(self._flat, state)

  def closed(self, state):
    return jax.tree.map(self._by_class, state)

  def lookup(self, state, ids):
    vectors = self.opened(state).vectors
    stored_dtype = self.spec.dtype
    # Rows travel as they are stored or exchanged, whichever is narrower.
    dtype = max(
      stored_dtype, self.spec.exchange_dtype, key=rounding.DTYPES.index
    )

    def held(local):
      rows = codecs.gather(vectors, local, self.kernels.copies)
      if dtype == stored_dtype:
        return rows
      return rounding.encode(rounding.decode(rows, stored_dtype), dtype)

    rows, overflow_rounds = self._route(ids).fetch(held, self.kernels.copies)
    rows = rounding.decode(rows, dtype).reshape(*ids.shape, self.spec.dim)
    return spec_lib.Lookup(rows, state, {'overflow_rounds': overflow_rounds})

  def update(self, state, ids, row_grads, rows, step):
    route = self._route(ids)  # the holders read the rows again
    ids, row_grads = row_access.flatten(ids, row_grads)
    squares = None
    if self.optimizer.uses_squares:
      squares = row_optimizers.mean_squares(row_grads)
    data_names = self.axes.names(with_table=False)
    dtype = self.spec.exchange_dtype

    def write(state, sums):
      sums = wire.all_gather(sums, data_names)
      sums = sums._replace(grads=rounding.decode(sums.grads, dtype))
      if self.row_kernel:
        return self.row_kernel(
          *state, sums, self.optimizer.decay, step.learning_rate
        )
      row_grads = dedup.by_sorting(sums, self._local_rows, self.kernels)
      return self._codec.learn(
        self.optimizer,
        state,
        row_grads,
        step=step,
        copies=self.kernels.copies,
        ids_at=lambda x: self._ids(*jnp.divmod(x, self._local_shape[1])),
      )

    sums = route.sums(row_grads, squares, self.kernels)
    sums = sums._replace(grads=rounding.encode(sums.grads, dtype))
    was_open, state = self._is_open(state), self.opened(state)
    both = route.send(sums, (state.vectors, state.opt_state), write)
    state = spec_lib.TableState(*both)
    return state if was_open else self.closed(state)

  def read_range(self, state, start, num):
    all_groups = self._local_shape[0]
    num_groups = min(-(-num // NUM_CLASSES) + 1, all_groups)
    first = jnp.minimum(start // NUM_CLASSES, all_groups - num_groups)

    def read(x):
      x = jax.lax.dynamic_slice_in_dim(x, first, num_groups)[:, REVERSED]
      x = x.reshape(-1, *x.shape[2:])
      return jax.lax.dynamic_slice_in_dim(x, start - NUM_CLASSES * first, num)

    opt_state = {k: getattr(state.opt_state, k) for k in self.state_names}
    return jax.tree.map(read, (state.vectors, opt_state))
