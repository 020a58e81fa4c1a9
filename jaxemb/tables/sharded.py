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

from jaxemb.ops import duplicates, rowopt, sampling
from jaxemb.tables import routes
from jaxemb.tables import spec as spec_lib

ONE_DEVICE = spec_lib.Axes()

# Into how many classes the row layout deals ids, whatever the mesh: an id's
# class is its last eight bits in reverse, so that on any number of devices ids
# that follow one another lie on different ones.
ROW_CLASSES = 256
_REVERSED = np.array([int(f'{i:08b}'[::-1], 2) for i in range(ROW_CLASSES)])


def _init_rows(
  spec: spec_lib.TableSpec,
  key: jax.Array,
  ids: jax.Array,
  columns: jax.Array,
) -> jax.Array:
  """[..., d] float32, how rows start; columns that only fill up are zero."""
  if not spec.init_scale:
    return jnp.zeros((*ids.shape, *columns.shape), jnp.float32)
  data = jax.random.key_data(key).reshape(-1)[:2]
  rows = sampling.uniform_rows(data, ids, columns, spec.init_scale)
  is_column = (columns < spec.dim).reshape(*[1] * ids.ndim, -1)
  return jnp.where(is_column, rows, 0.0)


def _gathered(tree: Any, names: list[str]) -> Any:
  """What the devices along these axes have, one behind the other."""
  if not names:
    return tree
  return jax.tree.map(
    lambda x: jax.lax.all_gather(x, tuple(names), tiled=True), tree
  )


def _flat(ids: jax.Array, row_grads: jax.Array) -> tuple[jax.Array, jax.Array]:
  return ids.reshape(-1), row_grads.reshape(-1, row_grads.shape[-1])


def _one_by_one_or_merged(
  row_grads: rowopt.RowGrads, vocab: int, merges_duplicates: bool
) -> rowopt.RowGrads:
  if not merges_duplicates:
    return row_grads
  columns = (row_grads.grads, _as_columns(row_grads.squares))
  ids, occurrences, (grads, squares) = duplicates.merge(
    row_grads.ids, columns, vocab
  )
  return rowopt.RowGrads(ids, grads, _as_numbers(squares), occurrences)


def _squares(
  optimizer: rowopt.RowOptimizer, row_grads: jax.Array
) -> jax.Array | None:
  """Mean squares, where they are used: else they would be summed and sent."""
  return rowopt.mean_squares(row_grads) if optimizer.uses_squares else None


def _as_columns(tree: Any) -> Any:
  return jax.tree.map(lambda x: x[..., None], tree)


def _as_numbers(tree: Any) -> Any:
  return jax.tree.map(lambda x: x[..., 0], tree)


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
    vectors = _init_rows(
      spec, key, jnp.arange(spec.vocab), jnp.arange(spec.dim)
    )
    return spec_lib.TableState(vectors, optimizer.init(spec.vocab, spec.dim))

  def lookup(state, ids):
    return spec_lib.Found(state.vectors.at[ids].get(mode='clip'), state)

  def update(state, ids, row_grads, learning_rate):
    if names:
      ids, row_grads = _gathered(_flat(ids, row_grads), names)
    all_grads = _one_by_one_or_merged(
      rowopt.RowGrads(ids, row_grads, _squares(optimizer, row_grads)),
      spec.vocab,
      merges_duplicates,
    )
    deltas, slots = optimizer.update(state.slots, all_grads, learning_rate)
    vectors = rowopt.add_rows(
      state.vectors, all_grads.ids, deltas, merges_duplicates
    )
    return spec_lib.TableState(vectors, slots)

  everywhere = jax.sharding.PartitionSpec()
  return spec_lib.Table(
    init,
    lookup,
    update,
    np.asarray,
    spec_lib.TableState(everywhere, everywhere),
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
  dim = -(-spec.dim // axes.num_table)  # a device's
  own_rows, figures = len(figure_ids('column', spec.vocab)), rowopt.HERE
  beyond = own_rows - spec.vocab
  # Devices that cannot share the numbers of rows have all of them.
  is_dealt = axes.num_table > 1 and own_rows % axes.num_table == 0
  if is_dealt:
    own_rows //= axes.num_table
    figures = rowopt.dealt(own_rows, axes.table)

  def init(key: jax.Array) -> spec_lib.TableState:
    columns = jnp.arange(dim)
    if axes.num_table > 1:
      columns += dim * jax.lax.axis_index(axes.table)
    vectors = _init_rows(spec, key, jnp.arange(spec.vocab), columns)
    slots = optimizer.init(spec.vocab, dim, own_rows)
    return spec_lib.TableState(vectors, slots)

  def lookup(state, ids):
    return spec_lib.Found(state.vectors.at[ids].get(mode='clip'), state)

  def update(state, ids, row_grads, learning_rate):
    ids, row_grads = _flat(ids, row_grads)
    squares = _squares(optimizer, row_grads)
    if axes.num_table > 1 and squares is not None:
      squares = jax.lax.psum(squares * (dim / spec.dim), axes.table)
    all_grads = _one_by_one_or_merged(
      rowopt.RowGrads(*_gathered((ids, row_grads, squares), data_names)),
      spec.vocab,
      merges_duplicates,
    )
    # Padding is none of the rows that only fill up, either.
    ids = all_grads.ids + beyond * (all_grads.ids >= spec.vocab)
    all_grads = all_grads._replace(ids=ids)
    deltas, slots = optimizer.update(
      state.slots, all_grads, learning_rate, figures
    )
    vectors = rowopt.add_rows(
      state.vectors, all_grads.ids, deltas, merges_duplicates
    )
    return spec_lib.TableState(vectors, slots)

  def gather(vectors):
    return np.ascontiguousarray(np.asarray(vectors)[:, : spec.dim])

  split = jax.sharding.PartitionSpec(None, axes.table)
  by_shape = {(spec.vocab, dim): split}
  if is_dealt:
    by_shape[own_rows,] = jax.sharding.PartitionSpec(axes.table)
  everywhere = jax.sharding.PartitionSpec()
  slots = jax.eval_shape(lambda: optimizer.init(spec.vocab, dim, own_rows))
  partition = jax.tree.map(lambda x: by_shape.get(x.shape, everywhere), slots)
  return spec_lib.Table(
    init, lookup, update, gather, spec_lib.TableState(split, partition)
  )


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
    vectors = _init_rows(self.spec, key, ids, jnp.arange(dim))
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

  def lookup(self, state, ids):
    rows, further_rounds = routes.fetch(
      self.route(ids), self.in_rows(state.vectors)
    )
    rows = rows.reshape(*ids.shape, self.spec.dim)
    return spec_lib.Found(rows, state, further_rounds)

  def update(self, state, ids, row_grads, learning_rate):
    route = self.route(ids)
    ids, row_grads = _flat(ids, row_grads)
    squares = _as_columns(_squares(self.optimizer, row_grads))
    data_names = [self.axes.data] * (self.axes.num_data > 1)

    def apply(state, local_ids, occurrences, sums):
      vectors, slots = state
      ids, occurrences, sums = _gathered(
        (local_ids, occurrences, sums), data_names
      )
      merged = duplicates.merge(
        ids, (occurrences[:, None], *sums), self.num_rows
      )
      occurrences, grads, squares = merged.sums
      row_grads = rowopt.RowGrads(
        merged.ids, grads, _as_numbers(squares), _as_numbers(occurrences)
      )
      deltas, slots = self.optimizer.update(slots, row_grads, learning_rate)
      return rowopt.add_rows(vectors, merged.ids, deltas, True), slots

    sums = routes.merge(route, (row_grads, squares))
    state = jax.tree.map(self.in_rows, (state.vectors, state.slots))
    state = routes.send(route, sums, state, apply)
    return spec_lib.TableState(*jax.tree.map(self.in_classes, state))

  def gather(self, vectors: np.ndarray) -> np.ndarray:
    vectors = np.asarray(vectors)[:, _REVERSED].reshape(-1, self.spec.dim)
    return vectors[: self.spec.vocab]

  def partition(self) -> spec_lib.TableState:
    split = jax.sharding.PartitionSpec(None, self.axes.table)
    slots = jax.eval_shape(
      lambda: jax.tree.map(
        self.in_classes, self.optimizer.init(self.num_rows, self.spec.dim)
      )
    )
    by_class = (self.groups, self.classes)
    return spec_lib.TableState(
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
    made.init, made.lookup, made.update, made.gather, made.partition()
  )
