"""What a model is to a strategy: which rows it wants, and a loss of them."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxemb.ops import wire
from jaxemb.tables import spec as spec_lib


class StepBatch(NamedTuple):
  """The centers of one step, or a device's share of them, in P runs of text.

  Each run has a halo of W tokens on both sides: P L' = L centers in all.
  """

  tokens: (
    jax.Array
  )  # [P, L' + 2 W] int32; ids behind the vocabulary are padding
  left: jax.Array  # [P, L'] uint8, contexts before each center, at most W
  right: jax.Array  # [P, L'] uint8, contexts behind it
  # [L / c] uint32, which of the dispatch's chunks of c centers these are: what
  # is drawn for one does not depend on the device that has it.
  chunks: jax.Array
  progress: jax.Array | float = 1.0  # float32, the share of training behind


@dataclasses.dataclass(frozen=True)
class WindowSpec:
  """Sizes that the word2vec models share."""

  vocab: int
  dim: int
  window: int  # W
  negatives: int  # K, negatives per positive
  chunk: int  # c, centers per matrix product
  shared_negatives: int  # N, draws that the centers of a chunk share
  # Axis of the mesh over which the columns of rows are split, so that products
  # of rows are summed over it; None = rows are whole.
  columns_axis: wire.Axis | None = None


class Model(Protocol):
  """Knows no mesh and no table."""

  # Which table holds the vectors that users want.
  vectors_table: str
  # Binary decisions per example: untrained, each costs log 2.
  decisions: float
  # The same model of smaller arrays, which do for most steps; None = there is
  # none. `fits` says for which.
  usual: 'Model | None'

  def fits(self, constants: Any, batch: StepBatch) -> jax.Array:
    """bool, whether the usual model does for a step."""
    ...

  def specs(self) -> Mapping[str, spec_lib.TableSpec]:
    """The tables, by name."""
    ...

  def constants(self) -> Any:
    """Arrays that every step reads and none changes."""
    ...

  def ids(
    self, constants: Any, batch: StepBatch, key: jax.Array
  ) -> Mapping[str, jax.Array]:
    """The ids [...] to look up in each table, in the shape that `loss` wants.

    What else it wants to know stands beside them, under other names.

    Random choices are a pure function of the key ([2] uint32) and the chunk.
    """
    ...

  def loss(
    self,
    rows: Mapping[str, jax.Array],
    ids: Mapping[str, jax.Array],
    batch: StepBatch,
  ) -> jax.Array:
    """Loss of the step in nats, summed over its examples."""
    ...

  def lookup_rates(
    self, centers: np.ndarray, negatives: np.ndarray
  ) -> Mapping[str, np.ndarray]:
    """By table, [vocab] float64: expected look-ups of each row per center.

    Given the chances [vocab] that a center and that a draw is each word.
    """
    ...

  def num_examples(self, batch: StepBatch) -> jax.Array:
    """float32, the number of examples over which the loss is summed."""
    ...
