"""What a table is: a frozen description, a state, and four pure functions.

Models see rows, never tables: the loss is differentiated with respect to the
rows that were looked up, and the table is updated by ids and row gradients.
Sharding, low precision and caching then never touch a model.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np


@dataclasses.dataclass(frozen=True)
class TableSpec:
  """One embedding table."""

  name: str
  vocab: int
  dim: int
  init_scale: float  # rows start uniform in +-init_scale; 0 = zeros


class TableState(NamedTuple):
  """The arrays of a table."""

  vectors: jax.Array  # [vocab, dim] float32
  slots: Any  # the row optimizer's


class Table(NamedTuple):
  """Pure functions over a `TableState`."""

  # key -> state
  init: Callable[[jax.Array], TableState]
  # (state, ids [...]) -> (rows [..., dim], state); a cache changes when read.
  # Ids at or above vocab are padding and give some row of the table.
  lookup: Callable[[TableState, jax.Array], tuple[jax.Array, TableState]]
  # (state, ids [...], row_grads [..., dim], learning_rate) -> state; padding is
  # ignored, duplicates mean what the row optimizer says.
  update: Callable[[TableState, jax.Array, jax.Array, jax.Array], TableState]
  # state -> [vocab, dim] float32 on the host
  gather: Callable[[TableState], np.ndarray]
