"""The table interface: a frozen description, a state, and pure functions.

Models see rows, never tables: the loss is differentiated with respect to the
rows that were looked up, and the table is updated by ids and row gradients.
How rows are stored (layout over the mesh, precision) is the table's business.

On a mesh, `init`, `lookup` and `update` run inside `shard_map`: a state holds
one device's shards, and ids are those that the device itself looks up.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxemb.tables import blocks


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
  # Rows are running averages with this momentum (`row_optimizers.averages`)
  # and are never split into columns. None = parameters, learned by gradients.
  momentum: float | None = None
  # [vocab], expected lookups of each row per center (or example); sizes the
  # buffers of the row layout and schedules the exchange of replicas.
  lookups_per_center: np.ndarray | None = dataclasses.field(
    default=None, compare=False
  )


@dataclasses.dataclass(frozen=True)
class Axes:
  """The mesh as tables see it; an axis of one device does not count."""

  data: str = 'data'
  table: str = 'table'
  num_data: int = 1
  num_table: int = 1

  def names(self, *, with_table: bool = True) -> list[str]:
    """Names of the axes with several devices."""
    names = [self.data] * (self.num_data > 1)
    return names + [self.table] * (with_table and self.num_table > 1)


class TableState(NamedTuple):
  """The arrays of a table, or one device's shards of them."""

  vectors: Any  # all rows, laid out and encoded as the table chooses
  slots: Any = ()  # of the row optimizer
  scratch: Any = ()  # int32 without meaning between steps

  @property
  def vector_bytes(self) -> int:
    """Bytes of all rows, without optimizer slots; also of shapes."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(self.vectors))


class Lookup(NamedTuple):
  """The result of a lookup."""

  rows: jax.Array  # [..., dim] float32
  state: Any  # a cache changes when it is read
  metrics: Mapping[str, jax.Array] = {}  # int32 counts, see `Table.metrics`


class Step(NamedTuple):
  """What an update needs besides gradients."""

  learning_rate: jax.Array | float
  key: jax.Array | None = None  # [2] uint32, for stochastic rounding


class RowRange(NamedTuple):
  """Consecutive rows on the device."""

  rows: jax.Array  # [n, dim] float32
  stored: Any  # the same as stored
  encoding: Any  # pytree, what else than the dtype encodes them: scales
  slots: dict[str, jax.Array]  # by name, [n] or [n, dim]


class Table(Protocol):
  """Pure functions over a state; layouts are frozen dataclasses.

  Attributes:
    spec: size, initial values and precision.
    metrics: names of the counts that a lookup returns, summed over steps.
  """

  spec: TableSpec
  metrics: tuple[str, ...] = ()

  @property
  def slot_reductions(self) -> Mapping[str, str]:
    """'sum' or 'mean' by optimizer slot, where copies of a table become one.

    A slot that is not named holds nothing between steps.
    """

  @property
  def partition(self) -> Any:
    """A state of `PartitionSpec`s: how its arrays lie on the mesh."""

  def init(self, key: jax.Array) -> Any:
    """A new state; its rows depend on the key, not on layout or mesh."""

  def lookup(self, state: Any, ids: jax.Array) -> Lookup:
    """Rows of ids [...].

    Ids from `vocab` on are padding and return an arbitrary row. Layouts that
    split columns return the device's columns.
    """

  def update(
    self,
    state: Any,
    ids: jax.Array,
    row_grads: jax.Array,
    rows: jax.Array | None,
    step: Step,
  ) -> Any:
    """Applies the gradients of one step.

    Args:
      state: before.
      ids: [...] int32, with duplicates and padding, as they were looked up.
      row_grads: [..., dim] float32.
      rows: [..., dim] float32, what the lookup returned, which saves reading
        them again; a layout may ignore them. None = unknown.
      step: learning rate and key.
    """

  def without_slots(self, state: Any) -> Any:
    """The rows alone, for a copy that is not trained."""
    return state._replace(slots=(), scratch=())

  def prepare(self, state: Any, ids: np.ndarray) -> Any:
    """For layouts that must know the ids of a dispatch before it runs.

    A cache fetches or refreshes rows here. No layout of today needs it, and no
    strategy calls it yet.
    """
    del ids
    return state

  def flush(self, state: Any) -> Any:
    """Writes cached rows back; called before a state is saved or exported.

    The state may have a leading axis of copies.
    """
    return state

  def read_range(self, state: Any, start: jax.Array, num: int) -> RowRange:
    """Rows `start` to `start + num` in order of ids; traceable.

    Runs on whole states: outside `shard_map`, or inside where every device has
    a table of its own.
    """

  def write_range(
    self,
    state: Any,
    start: jax.Array,
    rows: jax.Array,
    encoding: Any,
    key: jax.Array | None,
  ) -> Any:
    """Writes rows where `read_range` read them, rounded as an update does.

    Args:
      state: before.
      start: int32, id of the first row.
      rows: [n, dim] float32.
      encoding: `RowRange.encoding` of the rows before; it is kept where it
        fits, so that rows that did not change keep their bits.
      key: [2] uint32, as of `Step`.
    """
    raise NotImplementedError(f'{type(self).__name__} cannot be synchronised')

  def write_rows(
    self,
    state: Any,
    ids: jax.Array,
    rows: jax.Array,
    slots: Mapping[str, jax.Array],
  ) -> Any:
    """Replaces the rows of ids [n], rounded to nearest, without clipping.

    Slots that are not given stay. Traceable, on whole states; padding ids are
    ignored.
    """

  def export_rows(
    self, state: Any, start: int = 0, stop: int | None = None
  ) -> blocks.RowBlock:
    """Rows of a range of ids, on the host of every process.

    Args:
      state: whole, on any mesh; all processes take part.
      start: first id.
      stop: end of the range; None = all rows.
    """
    return blocks.read(self, state, start, stop)

  def import_rows(
    self,
    state: Any,
    ids: np.ndarray,
    rows: np.ndarray,
    slots: Mapping[str, np.ndarray] = {},
  ) -> Any:
    """Replaces rows from the host; the state is donated.

    Args:
      state: whole, on any mesh; all processes take part with equal arguments.
      ids: [n] int.
      rows: [n, dim] float32.
      slots: by name, [n] or [n, dim] float32; others stay.
    """
    return blocks.write(self, state, ids, rows, slots)
