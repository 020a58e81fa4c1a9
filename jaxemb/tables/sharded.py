"""Tables over a mesh of devices, in three layouts.

  replicated  Every device holds all rows. Look-ups are local; the gradients of
              the rows that were looked up are gathered from all devices.
  row         Every device of the table axis holds its share of the rows, whole.
              Rows and their gradients travel to and fro (`tables.routes`).
  column      Every device of the table axis holds its share of the columns of
              all rows (Ordentlich et al. 2016). Rows never travel: models sum
              products of rows over the axis, and gradients stay where they are.
              What an optimizer keeps one number of for each row is dealt by
              rows: every device has it for some of them.

Along the data axis a table is held as often as there are devices, and gradients
of the rows that were looked up are gathered: every device applies all of them,
so that the copies stay equal. No collective has the vocabulary as an axis.

One gather and one scatter per step: XLA may copy a whole table that is gathered
or scattered twice, or whose gather is fused past the scatter, so callers
concatenate ids and put an `optimization_barrier` behind their lookups.

An id that was looked up several times is written as often where that is cheap,
and once, with the sum of its gradients, where it is not (GPUs; `ops.duplicates`
says why). The two agree but for the order in which sums are rounded.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.ops import rounding
from jaxemb.tables import dedup as duplicates
from jaxemb.tables import precision, routes
from jaxemb.tables import row_optimizers as rowopt
from jaxemb.tables import spec as spec_lib

ONE_DEVICE = spec_lib.Axes()

# Into how many classes the row layout deals ids, whatever the mesh: an id's
# class is its last eight bits in reverse, so that on any number of devices ids
# that follow one another lie on different ones.
ROW_CLASSES = 256
_REVERSED = np.array([int(f'{i:08b}'[::-1], 2) for i in range(ROW_CLASSES)])


def _flat(ids: jax.Array, row_grads: jax.Array) -> tuple[jax.Array, jax.Array]:
  return ids.reshape(-1), row_grads.reshape(-1, row_grads.shape[-1])


def _squares(
  optimizer: rowopt.RowOptimizer, row_grads: jax.Array
) -> jax.Array | None:
  """Mean squares, where they are used: else they would be summed and sent."""
  return rowopt.mean_squares(row_grads) if optimizer.uses_squares else None


def replicated(
  spec: spec_lib.TableSpec,
  optimizer: rowopt.RowOptimizer,
  axes: spec_lib.Axes = ONE_DEVICE,
  merges_duplicates: bool = False,
) -> spec_lib.Table:
  """A table of which every device holds all rows.

  Args:
    spec: its size and how it starts.
    optimizer: of its rows.
    axes: of the mesh; each device looks up what it wants.
    merges_duplicates: whether an update writes each row once.
  """
  names = [axes.data] * (axes.num_data > 1)
  names += [axes.table] * (axes.num_table > 1)

  def init(key: jax.Array) -> spec_lib.TableState:
    vectors = precision.first_stored(
      spec, key, jnp.arange(spec.vocab), jnp.arange(spec.dim)
    )
    slots = optimizer.init(spec.vocab, spec.dim)
    return precision.new_state(spec, vectors, slots)

  def lookup(state, ids):
    return spec_lib.Found(precision.read(spec, state.vectors, ids), state)

  def update(state, ids, row_grads, learning_rate, key=None, known=None):
    if names:
      ids, row_grads = precision.gathered(
        _flat(ids, row_grads), names, spec.exchange_dtype
      )
    row_grads = rowopt.RowGrads(ids, row_grads, _squares(optimizer, row_grads))
    place = precision.Place(key, ids, jnp.arange(spec.dim))
    return precision.written(
      spec, optimizer, state, row_grads, place, merges_duplicates,
      learning_rate, known=None if names else known,
    )  # fmt: skip

  everywhere = jax.sharding.PartitionSpec()
  return spec_lib.Table(
    init,
    lookup,
    update,
    lambda vectors: jax.tree.map(np.asarray, vectors),
    precision.partition(spec, *[everywhere] * 4),
    spec,
  )


def column(
  spec: spec_lib.TableSpec,
  optimizer: rowopt.RowOptimizer,
  axes: spec_lib.Axes = ONE_DEVICE,
  merges_duplicates: bool = False,
) -> spec_lib.Table:
  """A table whose columns are split along the table axis.

  Columns are filled up with zeros to a multiple of the devices. All devices of
  a table axis look up the same ids.

  Args:
    spec: its size and how it starts.
    optimizer: of its rows.
    axes: of the mesh.
    merges_duplicates: whether an update writes each row once.
  """
  data_names = [axes.data] * (axes.num_data > 1)
  split_over = axes.table if axes.num_table > 1 else None
  dim = -(-spec.dim // axes.num_table)  # a device's
  own_rows, figures = len(figure_ids('column', spec.vocab)), rowopt.HERE
  beyond = own_rows - spec.vocab
  # Devices that cannot share the numbers of rows have all of them.
  is_dealt = axes.num_table > 1 and own_rows % axes.num_table == 0
  if is_dealt:
    own_rows //= axes.num_table
    figures = rowopt.dealt(own_rows, axes.table)

  def own_columns() -> jax.Array:
    first = jax.lax.axis_index(split_over) if split_over else 0
    return dim * first + jnp.arange(dim)

  def init(key: jax.Array) -> spec_lib.TableState:
    ids, columns = jnp.arange(spec.vocab), own_columns()
    vectors = precision.first_stored(spec, key, ids, columns, split_over)
    slots = optimizer.init(spec.vocab, dim, own_rows)
    return precision.new_state(spec, vectors, slots)

  def lookup(state, ids):
    return spec_lib.Found(precision.read(spec, state.vectors, ids), state)

  def update(state, ids, row_grads, learning_rate, key=None, known=None):
    ids, row_grads = _flat(ids, row_grads)
    squares = _squares(optimizer, row_grads)
    if axes.num_table > 1 and squares is not None:
      squares = jax.lax.psum(squares * (dim / spec.dim), axes.table)
    mine, dtype = (ids, row_grads, squares), spec.exchange_dtype
    all_of_them = precision.gathered(mine, data_names, dtype)
    return precision.written(
      spec, optimizer, state, rowopt.RowGrads(*all_of_them),
      precision.Place(key, ids, own_columns(), split_over), merges_duplicates,
      learning_rate, figures, beyond, None if data_names else known,
    )  # fmt: skip

  slots = jax.eval_shape(
    lambda: precision.slots_of(spec, optimizer.init(spec.vocab, dim, own_rows))
  )
  split = jax.sharding.PartitionSpec(None, axes.table)
  by_shape = {(spec.vocab, dim): split}
  if is_dealt:
    by_shape[own_rows,] = jax.sharding.PartitionSpec(axes.table)
  everywhere = jax.sharding.PartitionSpec()
  partition = jax.tree.map(lambda x: by_shape.get(x.shape, everywhere), slots)
  return spec_lib.Table(
    init,
    lookup,
    update,
    lambda vectors: _without_filling(vectors, spec.dim),
    precision.partition(spec, split, everywhere, partition, everywhere),
    spec,
  )


def _without_filling(vectors: Any, dim: int) -> Any:
  """Rows on the host, without the columns that only fill up."""

  def cut(x):
    x = np.asarray(x)
    return np.ascontiguousarray(x[:, :dim]) if x.ndim > 1 else x

  return jax.tree.map(cut, vectors)


def row_holders(vocab: int, num_table: int) -> np.ndarray:
  """[vocab] int64, which device of the table axis holds each row."""
  classes = _REVERSED[np.arange(vocab) % ROW_CLASSES]
  return classes // (ROW_CLASSES // num_table)


def stored_ids(layout: str, vocab: int) -> np.ndarray:
  """The id of each row of a state's arrays, in the form that they have.

  Args:
    layout: 'replicated', 'row' or 'column'.
    vocab: rows of the table.

  Returns:
    [...] int64; ids at or above `vocab` only fill up.
  """
  if layout != 'row':
    return np.arange(vocab)
  groups = np.arange(-(-vocab // ROW_CLASSES))
  return ROW_CLASSES * groups[:, None] + _REVERSED[None]


def figure_ids(layout: str, vocab: int) -> np.ndarray:
  """The same for arrays of one number a row, which an optimizer may keep."""
  if layout != 'column':
    return stored_ids(layout, vocab)
  # A multiple of what most numbers of devices divide, and as long on all.
  return np.arange(-(-vocab // ROW_CLASSES) * ROW_CLASSES)


@dataclasses.dataclass(frozen=True)
class _Rows:
  """The functions of a table split by rows over what they have in common."""

  spec: spec_lib.TableSpec
  optimizer: rowopt.RowOptimizer
  axes: spec_lib.Axes
  capacity: int

  @property
  def groups(self) -> int:
    return -(-self.spec.vocab // ROW_CLASSES)

  @property
  def classes(self) -> int:
    """Of a device."""
    return ROW_CLASSES // self.axes.num_table

  @property
  def num_rows(self) -> int:
    """Of a device."""
    return self.groups * self.classes

  def in_classes(self, x: jax.Array) -> jax.Array:
    """[num_rows, ...] -> [groups, classes, ...]; anything else stays."""
    if x.shape[:1] != (self.num_rows,):
      return x
    return x.reshape(self.groups, self.classes, *x.shape[1:])

  def in_rows(self, x: jax.Array) -> jax.Array:
    """[groups, classes, ...] -> [num_rows, ...]; anything else stays."""
    if x.shape[:2] != (self.groups, self.classes):
      return x
    return x.reshape(self.num_rows, *x.shape[2:])

  def init(self, key: jax.Array) -> spec_lib.TableState:
    first = 0
    if self.axes.num_table > 1:
      first = self.classes * jax.lax.axis_index(self.axes.table)
    ids = ROW_CLASSES * jnp.arange(self.groups)[:, None]
    classes = first + jnp.arange(self.classes)
    ids = ids + jnp.asarray(_REVERSED)[classes][None, :]
    dim = self.spec.dim
    vectors = precision.first_stored(self.spec, key, ids, jnp.arange(dim))
    slots = self.optimizer.init(self.num_rows, dim)
    return spec_lib.TableState(vectors, jax.tree.map(self.in_classes, slots))

  def route(self, ids: jax.Array) -> routes.Route:
    """Rows are stored device by device, those of each group by group."""
    ids = ids.reshape(-1)
    group = ids // ROW_CLASSES
    place = jnp.asarray(_REVERSED, jnp.int32)[ids % ROW_CLASSES]
    stored = (place // self.classes) * self.num_rows
    stored += group * self.classes + place % self.classes
    nowhere = self.axes.num_table * self.num_rows
    places = jnp.where(ids < self.spec.vocab, stored, nowhere)
    capacity = min(self.capacity or ids.size, ids.size)
    return routes.route(places, self.num_rows, capacity, self.axes)

  def ids(self, local: jax.Array) -> jax.Array:
    """The ids of a device's rows."""
    first = 0
    if self.axes.num_table > 1:
      first = self.classes * jax.lax.axis_index(self.axes.table)
    place = jnp.asarray(_REVERSED, jnp.int32)[first + local % self.classes]
    return ROW_CLASSES * (local // self.classes) + place

  def lookup(self, state, ids):
    kept = jax.tree.map(self.in_rows, state.vectors)
    sent_dtype = precision.sent_dtype(self.spec)
    found, further_rounds = routes.fetch(
      self.route(ids),
      lambda local: precision.to_send(self.spec, kept, local),
    )
    rows = rounding.decode(found, sent_dtype)
    rows = rows.reshape(*ids.shape, self.spec.dim)
    return spec_lib.Found(rows, state, further_rounds)

  def update(self, state, ids, row_grads, learning_rate, key=None, known=None):
    del known  # it is where they are kept that rows are written
    route = self.route(ids)
    ids, row_grads = _flat(ids, row_grads)
    squares = precision.as_columns(_squares(self.optimizer, row_grads))
    data_names = [self.axes.data] * (self.axes.num_data > 1)

    sent_dtype = self.spec.exchange_dtype

    def apply(state, local_ids, occurrences, sums):
      vectors, slots = state
      ids, occurrences, (grads, squares) = precision.gathered(
        (local_ids, occurrences, sums), data_names
      )
      grads = rounding.decode(grads, sent_dtype)
      merged = duplicates.merge(
        ids, (occurrences[:, None], grads, squares), self.num_rows
      )
      ids, _, (occurrences, grads, squares) = merged
      row_grads = rowopt.RowGrads(
        ids,
        grads,
        precision.as_numbers(squares),
        precision.as_numbers(occurrences),
      )
      deltas, slots = self.optimizer.update(slots, row_grads, learning_rate)
      place = precision.Place(key, self.ids(ids), jnp.arange(self.spec.dim))
      vectors = precision.add(self.spec, vectors, ids, deltas, True, place)
      return vectors, slots

    counts, (grads, squares) = routes.merge(route, (row_grads, squares))
    sums = counts, (rounding.encode(grads, sent_dtype), squares)
    state = jax.tree.map(self.in_rows, (state.vectors, state.slots))
    state = routes.send(route, sums, state, apply)
    return spec_lib.TableState(*jax.tree.map(self.in_classes, state))

  def gather(self, vectors: Any) -> Any:
    def in_order(x):
      x = np.asarray(x)[:, _REVERSED]
      return x.reshape(-1, *x.shape[2:])[: self.spec.vocab]

    return jax.tree.map(in_order, vectors)

  def partition(self) -> spec_lib.TableState:
    split = jax.sharding.PartitionSpec(None, self.axes.table)
    slots = jax.eval_shape(
      lambda: jax.tree.map(
        self.in_classes, self.optimizer.init(self.num_rows, self.spec.dim)
      )
    )
    by_class = (self.groups, self.classes)
    return precision.partition(
      self.spec,
      split,
      split,
      jax.tree.map(
        lambda x: (
          split if x.shape[:2] == by_class else jax.sharding.PartitionSpec()
        ),
        slots,
      ),
    )


def row(
  spec: spec_lib.TableSpec,
  optimizer: rowopt.RowOptimizer,
  axes: spec_lib.Axes = ONE_DEVICE,
  merges_duplicates: bool = True,
  capacity: int = 0,
) -> spec_lib.Table:
  """A table whose rows are split along the table axis.

  Ids are dealt to `ROW_CLASSES` classes, and the classes to devices, so that
  each device has as many of the frequent words, which have the low ids. The
  arrays have the form [groups, classes, ...], the same on any mesh: row (g, c)
  is that of id 256 g + reversed bits of c.

  Args:
    spec: its size and how it starts.
    optimizer: of its rows, which it keeps where the rows are.
    axes: of the mesh; each device looks up what it wants. The number of devices
      along the table axis divides `ROW_CLASSES`.
    merges_duplicates: as it always does here.
    capacity: rows that a device can ask of another at once; more are asked for
      in a further round. 0 = any number.
  """
  del merges_duplicates  # to send a row's gradients once they must be summed
  made = _Rows(spec, optimizer, axes, capacity)
  return spec_lib.Table(
    made.init, made.lookup, made.update, made.gather, made.partition(), spec
  )
