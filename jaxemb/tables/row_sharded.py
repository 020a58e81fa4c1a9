"""Row layout: every device of the table axis holds its share of the rows.

Rows and their gradients travel between devices (`tables.routes`). Along the
data axis a table is held as often as there are devices.

Ids are dealt to 256 classes, and the classes to devices, so that each device
has as many of the frequent words, which have the low ids. Arrays have the shape
[groups, classes, ...], the same on any mesh: row (g, c) is that of id
256 g + c with its bits in reverse.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.ops import rounding, wire
from jaxemb.tables import codecs, dedup, routes, row_optimizers
from jaxemb.tables import spec as spec_lib

NUM_CLASSES = 256
# Id's last eight bits -> class, and back: on any number of devices consecutive
# ids are on different ones.
REVERSED = np.array([int(f'{i:08b}'[::-1], 2) for i in range(NUM_CLASSES)])

# With four standard deviations, about one step in ten thousand wants more rows
# of a device than a buffer holds.
_BUFFER_DEVIATIONS = 4.0


def holders(vocab: int, num_table: int) -> np.ndarray:
  """[vocab] int64, which device of the table axis holds each row."""
  classes = REVERSED[np.arange(vocab) % NUM_CLASSES]
  return classes // (NUM_CLASSES // num_table)


def buffer_rows(
  lookups_per_center: np.ndarray, centers: float, num_table: int
) -> int:
  """Rows that a device asks of another in a step, with room for deviations.

  Of `centers` on a device in a step; `lookups_per_center` [vocab] is expected.
  """
  chances = -np.expm1(-lookups_per_center * centers)
  each = holders(len(lookups_per_center), num_table)
  expected = np.bincount(each, chances, num_table)
  largest = np.max(expected + _BUFFER_DEVIATIONS * np.sqrt(expected))
  return 8 * math.ceil(largest / 8)


def make(
  spec: spec_lib.TableSpec,
  optimizer: row_optimizers.RowOptimizer,
  axes: spec_lib.Axes,
  device_centers: float,
) -> 'RowSharded':
  """A table with buffers for the lookups that its spec expects."""
  capacity, lookups = 0, spec.lookups_per_center
  if lookups is not None:
    capacity = buffer_rows(lookups, device_centers, axes.num_table)
  return RowSharded(spec, optimizer, axes, capacity)


@dataclasses.dataclass(frozen=True, eq=False)
class RowSharded(spec_lib.Table):
  """A table whose rows are split along the table axis.

  Each device looks up ids of its own. The number of devices along the table
  axis divides 256.
  """

  spec: spec_lib.TableSpec
  optimizer: row_optimizers.RowOptimizer
  axes: spec_lib.Axes = spec_lib.Axes()
  # Rows that a device can ask of another at once; more take overflow rounds.
  # 0 = any number.
  capacity: int = 0

  metrics = ('overflow_rounds',)

  @property
  def _codec(self) -> codecs.Codec:
    return codecs.Codec(self.spec)

  @property
  def _own(self) -> tuple[int, int]:
    """Groups and classes of a device, each pair a row of it."""
    groups = -(-self.spec.vocab // NUM_CLASSES)
    return groups, NUM_CLASSES // self.axes.num_table

  @property
  def _own_rows(self) -> int:
    return math.prod(self._own)

  def _by_class(self, x: jax.Array) -> jax.Array:
    """[own_rows, ...] -> [groups, classes, ...]; anything else stays."""
    is_of_rows = len(x) == self._own_rows
    return x.reshape(*self._own, *x.shape[1:]) if is_of_rows else x

  def _flat(self, x: jax.Array) -> jax.Array:
    """[groups, classes, ...] -> [own_rows, ...]; anything else stays."""
    return x.reshape(-1, *x.shape[2:]) if x.ndim > 1 else x

  def _ids(self, groups: jax.Array, classes: jax.Array) -> jax.Array:
    """Ids of rows of this device."""
    if self.axes.num_table > 1:
      classes += self._own[1] * jax.lax.axis_index(self.axes.table)
    return NUM_CLASSES * groups + jnp.asarray(REVERSED, jnp.int32)[classes]

  def _new_slots(self) -> row_optimizers.Slots:
    slots = self.optimizer.init(self._own_rows, self.spec.dim)
    return jax.tree.map(self._by_class, slots)

  @property
  def partition(self) -> spec_lib.TableState:
    split = jax.sharding.PartitionSpec(None, self.axes.table)
    slots = jax.tree.map(
      lambda x: split if x.shape[:2] == self._own else type(split)(),
      jax.eval_shape(self._new_slots),
    )
    return spec_lib.TableState(self._codec.partition(split, split), slots)

  def init(self, key):
    groups, classes = map(jnp.arange, self._own)
    ids = self._ids(groups[:, None], classes[None, :])
    return spec_lib.TableState(self._codec.init(key, ids), self._new_slots())

  def positions(self, ids):
    num_groups = self._own[0]
    groups = jnp.where(ids < self.spec.vocab, ids // NUM_CLASSES, num_groups)
    return groups, jnp.asarray(REVERSED, jnp.int32)[ids % NUM_CLASSES]

  def _route(self, ids: jax.Array) -> routes.Route:
    """Rows are stored device by device, those of each group by group."""
    ids, (_, own_classes) = ids.reshape(-1), self._own
    groups, classes = self.positions(ids)
    stored = (classes // own_classes) * self._own_rows
    stored += groups * own_classes + classes % own_classes
    nowhere = self.axes.num_table * self._own_rows
    places = jnp.where(ids < self.spec.vocab, stored, nowhere)
    capacity = min(self.capacity or ids.size, ids.size)
    return routes.Route(places, self._own_rows, capacity, self.axes)

  def lookup(self, state, ids):
    vectors = jax.tree.map(self._flat, state.vectors)
    stored_dtype = self.spec.dtype
    # Rows travel as they are stored or exchanged, whichever is narrower.
    dtype = max(
      stored_dtype, self.spec.exchange_dtype, key=rounding.DTYPES.index
    )

    def held(local):
      rows = codecs.gather(vectors, local)
      if dtype == stored_dtype:
        return rows
      return rounding.encode(rounding.decode(rows, stored_dtype), dtype)

    rows, overflow_rounds = self._route(ids).fetch(held)
    rows = rounding.decode(rows, dtype).reshape(*ids.shape, self.spec.dim)
    return spec_lib.Lookup(rows, state, {'overflow_rounds': overflow_rounds})

  def update(self, state, ids, row_grads, rows, step):
    del rows  # they are read again by the device that holds them
    route = self._route(ids)
    ids, row_grads = row_optimizers.flatten(ids, row_grads)
    squares = None
    if self.optimizer.uses_squares:
      squares = row_optimizers.mean_squares(row_grads)
    data_names = self.axes.names(with_table=False)
    dtype = self.spec.exchange_dtype

    def write(state, sums):
      vectors, slots = state
      sums = wire.all_gather(sums, data_names)
      sums = sums._replace(grads=rounding.decode(sums.grads, dtype))
      row_grads = dedup.by_sorting(sums, self._own_rows)
      deltas, slots = self.optimizer.update(
        slots, row_grads, step.learning_rate, row_optimizers.LOCAL
      )
      at = row_grads.ids
      if self.spec.dtype == 'float32':
        return row_optimizers.add_rows(vectors, at, deltas, True), slots
      ids = self._ids(*jnp.divmod(at, self._own[1]))
      return self._codec.add(vectors, at, deltas, ids, step.key), slots

    sums = route.sums(row_grads, squares)
    sums = sums._replace(grads=rounding.encode(sums.grads, dtype))
    state = jax.tree.map(self._flat, (state.vectors, state.slots))
    state = route.send(sums, state, write)
    return spec_lib.TableState(*jax.tree.map(self._by_class, state))

  def read_range(self, state, start, num):
    all_groups = self._own[0]
    num_groups = min(-(-num // NUM_CLASSES) + 1, all_groups)
    first = jnp.minimum(start // NUM_CLASSES, all_groups - num_groups)

    def read(x):
      x = jax.lax.dynamic_slice_in_dim(x, first, num_groups)[:, REVERSED]
      x = x.reshape(-1, *x.shape[2:])
      return jax.lax.dynamic_slice_in_dim(x, start - NUM_CLASSES * first, num)

    slots = {k: getattr(state.slots, k) for k in self.slot_reductions}
    return jax.tree.map(read, (state.vectors, slots))
