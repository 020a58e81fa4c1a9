"""The table interface: a frozen description, a state, and pure functions.

How rows are stored (layout over the mesh, precision) is the table's business.
On a mesh, `init`, `lookup` and `update` run inside `shard_map`: a state holds
one device's shards, and ids are those that the device itself looks up. Rows are
exported in blocks, so that no device needs room for a second copy of a table.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb import errors
from jaxemb.ops import rounding
from jaxemb.storage import export
from jaxemb.tables import row_optimizers

# Numbers in a block, of all replicas of a table.
NUMBERS_AT_ONCE = 1 << 24
MAX_ROWS = 2**31 - 2  # ids are int32, and the highest of them is padding


def check_rows(name: str, num_rows: int) -> None:
  """Raises a `UserError` for a table of more rows than int32 ids count."""
  if num_rows > MAX_ROWS:
    raise errors.UserError(
      f'the table {name!r} would have {num_rows:,} rows, and a table has '
      f'{MAX_ROWS:,} at most; give data of fewer keys, or drop rare ones'
    )


@dataclasses.dataclass(frozen=True)
class TableSpec:
  """One embedding table."""

  name: str
  vocab: int
  dim: int
  init_scale: float  # rows start uniform in +-init_scale; 0 = zeros
  dtype: str = 'float32'  # of storage, one of `rounding.DTYPES`
  rounding: str = 'nearest'  # to `dtype`, or 'stochastic'
  exchange_dtype: str = 'float32'  # of rows and gradients between devices
  # (learning rate, final learning rate) -> the optimizer, in place of that of
  # the settings; such rows are float32, and never split into columns.
  row_optimizer: Callable[..., row_optimizers.RowOptimizer] | None = None
  # Lookups after which a row has forgotten its start, for pushes of workers;
  # None = as rows that learn by gradients.
  memory_lookups: float | None = None
  # [vocab], expected per center (or example), for buffers and synchronisation.
  lookups_per_center: np.ndarray | None = dataclasses.field(
    default=None, compare=False
  )

  def __post_init__(self):
    check_rows(self.name, self.vocab)


def describe(
  dim: int, *tables: tuple[str, np.ndarray, float]
) -> tuple[TableSpec, ...]:
  """Returns tables by name, expected lookups [rows] and initial scale."""
  return tuple(
    TableSpec(
      name=name,
      vocab=len(lookups),
      dim=dim,
      init_scale=scale,
      lookups_per_center=lookups,
    )
    for name, lookups, scale in tables
  )


@dataclasses.dataclass(frozen=True)
class Axes:
  """The mesh as tables see it; an axis of one device does not count."""

  num_data: int = 1
  num_table: int = 1

  data, table = 'data', 'table'  # their names

  def names(self, *, with_table: bool = True) -> list[str]:
    """Returns names of the axes with several devices."""
    names = [self.data] * (self.num_data > 1)
    return names + [self.table] * (with_table and self.num_table > 1)


class TableState(NamedTuple):
  """The arrays of a table, or one device's shards of them."""

  vectors: Any  # all rows, laid out and encoded as the table chooses
  opt_state: Any = ()  # of the row optimizer
  scratch: Any = ()  # int32 without meaning between steps

  @property
  def vector_bytes(self) -> int:
    """Bytes of all rows, without optimizer state; also of shapes."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(self.vectors))


def with_opt_state(
  state: TableState,
  new: Mapping[str, jax.Array],
  put: Callable[[jax.Array, jax.Array], jax.Array],
) -> TableState:
  """Returns a state with arrays of optimizer state that `put` has changed."""
  if not new:
    return state
  changed = {k: put(getattr(state.opt_state, k), x) for k, x in new.items()}
  return state._replace(opt_state=state.opt_state._replace(**changed))


class Lookup(NamedTuple):
  """The result of a lookup."""

  rows: jax.Array  # [..., dim] float32
  state: Any  # a cache changes when it is read
  metrics: Mapping[str, jax.Array] = {}  # int32 counts, see `Table.metrics`


class Step(NamedTuple):
  """What an update needs besides gradients."""

  learning_rate: jax.Array | float
  key: jax.Array | None = None  # [2] uint32, for stochastic rounding


class RowBlock(NamedTuple):
  """Rows of a range of ids with their optimizer state."""

  encoded: export.Encoded
  # By name, [..., n] or [..., n, dim] float32.
  opt_state: dict[str, np.ndarray]

  @property
  def rows(self) -> np.ndarray:
    """[..., n, dim] float32."""
    return self.encoded.decode()


def on_demand(
  read: Callable[[np.ndarray], RowBlock], num_rows: int
) -> RowBlock:
  """Returns all rows of a table; `read` returns those of distinct ids [n]."""
  leaves, tree = jax.tree.flatten(read(np.arange(1)))

  def read_leaf(i, ids):
    return jax.tree.leaves(read(ids))[i]

  return jax.tree.unflatten(
    tree,
    [
      export.OnDemand(
        functools.partial(read_leaf, i),
        (num_rows, *leaf.shape[1:]),
        leaf.dtype,
      )
      for i, leaf in enumerate(leaves)
    ],
  )


# (vectors, optimizer state, gradients, L2, learning rate) -> (vectors,
# optimizer state): takes the place of a row optimizer.
RowKernel = Callable[..., tuple[jax.Array, row_optimizers.OptState]]


class Table(Protocol):
  """A table: pure functions that read and update a state of arrays.

  Each layout of tables on devices is a frozen dataclass with these methods.
  """

  spec: TableSpec
  optimizer: row_optimizers.RowOptimizer
  metrics: tuple[str, ...] = ()  # counts of a lookup, summed over steps

  @property
  def state_names(self) -> tuple[str, ...]:
    """Returns names of the optimizer state to export and to average."""
    return self.optimizer.state_names

  @property
  def partition(self) -> Any:
    """Returns the state's `PartitionSpec`s on the mesh."""

  def opened(self, state: Any) -> Any:
    """Returns a state in the form in which one step passes it to the next.

    Runs inside `shard_map`. `lookup` and `update` accept this form, too.
    """
    return state

  def closed(self, state: Any) -> Any:
    """Reverses `opened`."""
    return state

  def init(self, key: jax.Array) -> Any:
    """Returns a new state. Its rows depend on the key, not on the mesh."""

  def lookup(self, state: Any, ids: jax.Array) -> Lookup:
    """Returns a `Lookup`: the rows of ids [...], the state and metrics.

    If columns are split over devices, the rows have the columns of the device.
    The rows of padding ids are arbitrary.
    """

  def update(
    self,
    state: Any,
    ids: jax.Array,
    row_grads: jax.Array,
    rows: jax.Array | None,
    step: Step,
  ) -> Any:
    """Applies the gradients of one step; returns the new state.

    Args:
      state: the state of the table.
      ids: [...] int32, with duplicates and padding, as they were looked up.
      row_grads: [..., dim] float32, one gradient per lookup.
      rows: the result of the lookup, to avoid a second one; None = unknown.
      step: learning rate and key.
    """

  def read_range(
    self, state: Any, start: jax.Array, num: int
  ) -> tuple[Any, dict[str, jax.Array]]:
    """Returns a range of rows as stored, and their optimizer state by name.

    The function can be traced by JAX. `state` is global, not a device's shard.
    """

  def write_range(
    self,
    state: Any,
    start: jax.Array,
    rows: jax.Array,
    encoding: Any,
    key: Any,
    opt_state: Mapping[str, jax.Array],
  ) -> Any:
    """Replaces the rows from `start` on; returns the new state.

    Only the strategy `replicas` calls this method, to synchronise. By default,
    it raises a `NotImplementedError`.

    Args:
      state: the state of the table.
      start: the first row.
      rows: [n, dim] float32, which are rounded as in an update.
      encoding: `codecs.encoding_of` the stored rows, so that unchanged rows
        keep their bits.
      key: the key of a `Step`.
      opt_state: new optimizer state by name; state of other names stays.
    """
    raise NotImplementedError(f'{type(self).__name__} cannot be synchronised')

  def positions(self, ids: jax.Array) -> tuple[jax.Array, ...]:
    """Returns the indices of ids [n] in the arrays; padding is out of range."""

  def write_rows(
    self,
    state: Any,
    ids: jax.Array,
    rows: jax.Array,
    opt_state: Mapping[str, jax.Array],
  ) -> Any:
    """Replaces the rows of ids [n]; returns the new state.

    Rows are rounded to the nearest value, without clipping. Padding ids are
    ignored. Optimizer state that `opt_state` lacks is unchanged. The function
    can be traced by JAX. `state` is global, not a device's shard.
    """
    positions = self.positions(ids)

    def put(array: Any, new: jax.Array) -> jax.Array:
      if new.ndim > 1:  # columns that only fill up
        new = jnp.pad(new, ((0, 0), (0, array.shape[-1] - new.shape[1])))
      return array.at[positions].set(new, mode='drop')

    new = rounding.encode(rows, self.spec.dtype)
    state = state._replace(vectors=jax.tree.map(put, state.vectors, new))
    return with_opt_state(state, opt_state, put)

  def export_rows(
    self,
    state: Any,
    start: int = 0,
    stop: int | None = None,
    has_replicas: bool = False,
  ) -> RowBlock:
    """Copies a range of rows to the host of every process.

    All processes must call it. `state` is global, on any mesh. With
    `has_replicas`, the arrays have a leading axis of replicas.
    """
    leaf = jax.tree.leaves(state)[0]
    everywhere = leaf.sharding
    if isinstance(everywhere, jax.sharding.NamedSharding):
      everywhere = everywhere.update(spec=jax.sharding.PartitionSpec())
    stop = self.spec.vocab if stop is None else stop
    numbers = self.spec.dim * (len(leaf) if has_replicas else 1)

    def read(first, num):
      return jax.device_get(
        _read(
          self,
          state,
          start=np.int32(first),
          num=num,
          has_replicas=has_replicas,
          sharding=everywhere,
        )
      )

    stored, opt_state = in_pieces(
      read,
      start,
      stop,
      size=max(1, NUMBERS_AT_ONCE // numbers),
      axis=int(has_replicas),
    )
    return RowBlock(from_stored(stored, self.spec.dtype), opt_state)

  def import_rows(
    self,
    state: Any,
    ids: np.ndarray,
    rows: np.ndarray,
    opt_state: Mapping[str, np.ndarray] = {},
    has_replicas: bool = False,
  ) -> Any:
    """Replaces rows in all replicas by arrays on the host (see `write_rows`).

    All processes must call it with equal arguments. `state` is donated.
    """
    shardings = tuple(x.sharding for x in jax.tree.leaves(state))
    ids, rows = np.asarray(ids, np.int32), np.asarray(rows, np.float32)
    return _write(
      self,
      state,
      ids,
      rows=rows,
      opt_state=dict(opt_state),
      has_replicas=has_replicas,
      shardings=shardings,
    )


def in_pieces(
  read: Callable[[int, int], Any],
  start: int,
  stop: int,
  size: int,
  axis: int = 0,
) -> Any:
  """Returns what `read(first, num)` returns of rows start to stop.

  It reads `size` rows at once, which are along an axis of every array. Pieces
  that are joined in the end would take the memory twice.
  """
  whole: list[np.ndarray] = []
  tree: Any = None  # of JAX, whose type has no annotations
  for first in range(start, max(stop, start + 1), size):
    num = min(size, stop - first)
    leaves, tree = jax.tree.flatten(read(first, num))
    if num == stop - start:
      return jax.tree.unflatten(tree, leaves)
    for i, leaf in enumerate(leaves):
      if len(whole) == i:
        shape = list(leaf.shape)
        shape[axis] = stop - start
        whole.append(np.empty(shape, leaf.dtype))
      rows = np.moveaxis(whole[i], axis, 0)[first - start :][:num]
      rows[...] = np.moveaxis(leaf, axis, 0)
  return jax.tree.unflatten(tree, whole)


def from_stored(stored: Any, dtype: str) -> export.Encoded:
  """Returns rows that `rounding.encode` made, fetched to the host."""
  if dtype == 'int8':
    return export.Encoded(*stored)
  return export.Encoded(stored.view(dtype))


def to_stored(encoded: export.Encoded) -> list[np.ndarray]:
  """Returns the arrays of rows, as tables have them."""
  if encoded.scales is not None:
    return [encoded.data, encoded.scales]
  is_short = encoded.data.itemsize == 2
  return [encoded.data.view(np.uint16) if is_short else encoded.data]


def encode_rows(rows: np.ndarray, like: export.Encoded | str) -> export.Encoded:
  """Rounds rows [n, dim] float32 to nearest, never clipped.

  `like` is a dtype, or the rows before a change, whose scales stay if they fit.
  """
  dtype = like if isinstance(like, str) else like.dtype
  if dtype == 'float32':
    return export.Encoded(rows)
  num_rows = max(1, NUMBERS_AT_ONCE // max(rows.shape[1], 1))
  scales = None if isinstance(like, str) else like.scales
  parts = []
  for start in range(0, max(len(rows), 1), num_rows):
    block_rows = slice(start, start + num_rows)
    block = [x[block_rows] for x in (rows, scales) if x is not None]
    num = len(block[0])
    # Numbers of rows differ from call to call; those of programs are few.
    size = min(1 << (num - 1).bit_length(), num_rows)
    block = [np.resize(x, (size, *x.shape[1:])) for x in block]
    encoded = jax.device_get(_encode(dtype, *block))
    parts.append(jax.tree.map(lambda x, num=num: x[:num], encoded))
  return from_stored(jax.tree.map(lambda *x: np.concatenate(x), *parts), dtype)


@functools.partial(jax.jit, static_argnums=0)
def _encode(dtype, rows, scales=None):
  if scales is not None:
    scales = rounding.row_scales(jnp.max(jnp.abs(rows), -1), scales)
  return rounding.encode(rows, dtype, bits=None, scales=scales)


@functools.partial(jax.jit, static_argnums=(0, 3, 4, 5))
def _read(table, state, start, num, has_replicas, sharding):
  def read(state):
    return table.read_range(state, start, num)

  rows = (jax.vmap(read) if has_replicas else read)(state)
  return jax.lax.with_sharding_constraint(rows, sharding)


@functools.partial(jax.jit, static_argnums=(0, 5, 6), donate_argnums=1)
def _write(table, state, ids, rows, opt_state, has_replicas, shardings):
  def write(state):
    return table.write_rows(state, ids, rows, opt_state=opt_state)

  state = (jax.vmap(write) if has_replicas else write)(state)
  leaves, tree = jax.tree.flatten(state)
  leaves = jax.lax.with_sharding_constraint(leaves, list(shardings))
  return jax.tree.unflatten(tree, leaves)
