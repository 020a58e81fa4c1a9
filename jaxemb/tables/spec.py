"""What a table is: a frozen description, a state, and four pure functions.

Models see rows, never tables: the loss is differentiated with respect to the
rows that were looked up, and the table is updated by ids and row gradients.
Sharding, low precision and caching then never touch a model.

On a mesh of devices the functions run inside `shard_map`: a state is a device's
shards, and ids are those that the device itself looks up. How the tables lie on
the mesh decides along which of its axes the look-ups of a step are split.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


@dataclasses.dataclass(frozen=True)
class TableSpec:
  """One embedding table."""

  name: str
  vocab: int
  dim: int
  init_scale: float  # rows start uniform in +-init_scale; 0 = zeros
  dtype: str = 'float32'  # that rows are kept in, see `ops.rounding`
  rounding: str = 'nearest'  # to it, or 'stochastic'
  exchange_dtype: str = 'float32'  # 'bfloat16': of rows and gradients between
  # devices
  scales: str = 'spread'  # of rows of int8, or 'largest' or 'learned'
  # Rows are running averages with this momentum (`row_optimizers.averages`)
  # and are never split into columns. None = parameters, learned by gradients.
  momentum: float | None = None


@dataclasses.dataclass(frozen=True)
class Axes:
  """The mesh as tables see it; an axis of one device does not count."""

  data: str = 'data'
  table: str = 'table'
  num_data: int = 1
  num_table: int = 1


class TableState(NamedTuple):
  """The arrays of a table, or one device's shards of them."""

  # All rows in the form that the layout gives them: float32, or what
  # `rounding.encode` makes of them.
  vectors: Any
  slots: Any  # the row optimizer's
  scratch: Any = ()  # [vocab] int32 without meaning, where precision is low


class Found(NamedTuple):
  """What a look-up gives."""

  rows: jax.Array  # [..., dim]
  state: TableState  # a cache changes when it is read
  # int32: rounds of an exchange that the first one had no room for
  further_rounds: jax.Array | int = 0


class Table(NamedTuple):
  """Pure functions over a `TableState`."""

  # key -> state; the rows depend on the key, not on the layout or the mesh
  init: Callable[[jax.Array], TableState]
  # (state, ids [...]) -> `Found`. Ids at or above vocab are padding and give
  # some row of the table. Rows have a device's share of the columns where the
  # layout splits them.
  lookup: Callable[[TableState, jax.Array], 'Found']
  # (state, ids [...], row_grads [..., dim], learning_rate, key = None,
  # known = None) -> state; padding is ignored, duplicates mean what the row
  # optimizer says, whichever devices looked them up. The key [2] uint32 is that
  # of the step, for what rounds at random; known are the rows that a look-up of
  # the ids gave, so that they need not be read again.
  update: Callable[..., TableState]
  # whole state's vectors, on the host -> [vocab, dim], still as they are kept,
  # in order of ids
  gather: Callable[[Any], Any]
  # How the state lies on the mesh: a TableState of `PartitionSpec`s.
  partition: TableState
  spec: TableSpec
