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
from collections.abc import Mapping
from typing import Any

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

  Args:
    lookups_per_center: [vocab], expected.
    centers: of a device in a step.
    num_table: devices along the table axis.
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
  capacity = 0
  if spec.lookups_per_center is not None:
    capacity = buffer_rows(
      spec.lookups_per_center, device_centers, axes.num_table
    )
  return RowSharded(spec, optimizer, axes, capacity)


@dataclasses.dataclass(frozen=True, eq=False)
class RowSharded(spec_lib.Table):
  """A table whose rows are split along the table axis.

  Attributes:
    spec: its size, initial values and precision.
    optimizer: of its rows; its slots are where the rows are.
    axes: of the mesh; each device looks up ids of its own. The number of
      devices along the table axis divides 256.
    capacity: rows that a device can ask of another at once; more take overflow
      rounds. 0 = any number.
  """

  spec: spec_lib.TableSpec
  optimizer: row_optimizers.RowOptimizer
  axes: spec_lib.Axes = spec_lib.Axes()
  capacity: int = 0

  metrics = ('overflow_rounds',)

  @property
  def codec(self) -> codecs.Codec:
    return codecs.Codec(self.spec)

  @property
  def slot_reductions(self) -> Mapping[str, str]:
    return self.optimizer.slot_reductions

  @property
  def groups(self) -> int:
    return -(-self.spec.vocab // NUM_CLASSES)

  @property
  def own_classes(self) -> int:
    """Classes of a device."""
    return NUM_CLASSES // self.axes.num_table

  @property
  def own_rows(self) -> int:
    """Rows of a device."""
    return self.groups * self.own_classes

  def _by_class(self, x: jax.Array) -> jax.Array:
    """[own_rows, ...] -> [groups, classes, ...]; anything else stays."""
    if x.shape[:1] != (self.own_rows,):
      return x
    return x.reshape(self.groups, self.own_classes, *x.shape[1:])

  def _flat(self, x: jax.Array) -> jax.Array:
    """[groups, classes, ...] -> [own_rows, ...]; anything else stays."""
    if x.shape[:2] != (self.groups, self.own_classes):
      return x
    return x.reshape(self.own_rows, *x.shape[2:])

  def _first_class(self) -> jax.Array | int:
    if self.axes.num_table == 1:
      return 0
    return self.own_classes * jax.lax.axis_index(self.axes.table)

  def _new_slots(self) -> row_optimizers.Slots:
    slots = self.optimizer.init(self.own_rows, self.spec.dim)
    return jax.tree.map(self._by_class, slots)

  @property
  def partition(self) -> spec_lib.TableState:
    split = jax.sharding.PartitionSpec(None, self.axes.table)
    by_class = (self.groups, self.own_classes)
    slots = jax.tree.map(
      lambda x: split if x.shape[:2] == by_class else type(split)(),
      jax.eval_shape(self._new_slots),
    )
    return spec_lib.TableState(self.codec.partition(split, split), slots)

  def init(self, key: jax.Array) -> spec_lib.TableState:
    classes = self._first_class() + jnp.arange(self.own_classes)
    ids = NUM_CLASSES * jnp.arange(self.groups)[:, None]
    ids = ids + jnp.asarray(REVERSED)[classes][None, :]
    return spec_lib.TableState(self.codec.init(key, ids), self._new_slots())

  def _route(self, ids: jax.Array) -> routes.Route:
    """Rows are stored device by device, those of each group by group."""
    ids = ids.reshape(-1)
    group = ids // NUM_CLASSES
    place = jnp.asarray(REVERSED, jnp.int32)[ids % NUM_CLASSES]
    stored = (place // self.own_classes) * self.own_rows
    stored += group * self.own_classes + place % self.own_classes
    nowhere = self.axes.num_table * self.own_rows
    places = jnp.where(ids < self.spec.vocab, stored, nowhere)
    capacity = min(self.capacity or ids.size, ids.size)
    return routes.route(places, self.own_rows, capacity, self.axes)

  def _ids(self, local: jax.Array) -> jax.Array:
    """Ids of rows of this device."""
    place = jnp.asarray(REVERSED, jnp.int32)[
      self._first_class() + local % self.own_classes
    ]
    return NUM_CLASSES * (local // self.own_classes) + place

  def lookup(self, state, ids: jax.Array) -> spec_lib.Lookup:
    vectors = jax.tree.map(self._flat, state.vectors)
    dtype = codecs.sent_dtype(self.spec)

    def held(local):
      rows = codecs.gather(vectors, local)
      if dtype == self.spec.dtype:
        return rows
      return rounding.encode(self.codec.decode(rows), dtype)

    rows, overflow_rounds = routes.fetch(self._route(ids), held)
    rows = rounding.decode(rows, dtype).reshape(*ids.shape, self.spec.dim)
    return spec_lib.Lookup(rows, state, {'overflow_rounds': overflow_rounds})

  def update(self, state, ids, row_grads, rows, step):
    del rows  # they are read again by the device that holds them
    route = self._route(ids)
    ids, row_grads = row_optimizers.flatten(ids, row_grads)
    squares = None
    if self.optimizer.uses_squares:
      squares = row_optimizers.mean_squares(row_grads)[:, None]
    data_names = self.axes.names(with_table=False)
    dtype = self.spec.exchange_dtype

    def write(state, local, counts, sums):
      vectors, slots = state
      at, counts, (grads, squares) = wire.all_gather(
        (local, counts, sums), data_names
      )
      grads = rounding.decode(grads, dtype)
      squares = None if squares is None else squares[:, 0]
      row_grads = dedup.by_sorting(
        row_optimizers.RowGrads(at, grads, squares, counts), self.own_rows
      )
      deltas, slots = self.optimizer.update(
        slots, row_grads, step.learning_rate, row_optimizers.LOCAL
      )
      at = row_grads.ids
      ids = self._ids(at)
      vectors = self.codec.add(vectors, at, deltas, ids, step.key, True)
      return vectors, slots

    counts, (grads, squares) = routes.sums(route, (row_grads, squares))
    sums = counts, (rounding.encode(grads, dtype), squares)
    state = jax.tree.map(self._flat, (state.vectors, state.slots))
    state = routes.send(route, sums, state, write)
    return spec_lib.TableState(*jax.tree.map(self._by_class, state))

  def read_range(self, state, start, num: int) -> spec_lib.RowRange:
    num_groups = min(-(-num // NUM_CLASSES) + 1, self.groups)
    first = jnp.minimum(start // NUM_CLASSES, self.groups - num_groups)

    def read(x):
      x = jax.lax.dynamic_slice_in_dim(x, first, num_groups)[:, REVERSED]
      x = x.reshape(-1, *x.shape[2:])
      return jax.lax.dynamic_slice_in_dim(x, start - NUM_CLASSES * first, num)

    slots = {
      name: read(getattr(state.slots, name)) for name in self.slot_reductions
    }
    stored = jax.tree.map(read, state.vectors)
    rows, encoding = self.codec.decode(stored), self.codec.encoding_of(stored)
    return spec_lib.RowRange(rows, stored, encoding, slots)

  def write_rows(self, state, ids, rows, slots):
    groups = jnp.where(ids < self.spec.vocab, ids // NUM_CLASSES, self.groups)
    classes = jnp.asarray(REVERSED)[ids % NUM_CLASSES]

    def put(array: Any, new: jax.Array) -> jax.Array:
      return array.at[groups, classes].set(new, mode='drop')

    new = rounding.encode(rows, self.spec.dtype)
    vectors = jax.tree.map(put, state.vectors, new)
    changed = {k: put(getattr(state.slots, k), v) for k, v in slots.items()}
    return spec_lib.TableState(vectors, state.slots._replace(**changed))
