"""What a model is to a strategy: the rows it needs, and a loss of them.

Models see rows, never tables and never a mesh: the loss is differentiated with
respect to the rows that were looked up, and tables are updated by ids and row
gradients. How rows are stored, split and cached does not concern a model.

A model is a dataclass. Arrays that its steps read (an alias table, say) are
passed to the compiled program if the class is registered as a pytree
(`jax.tree_util.register_dataclass`), and compiled into it if not.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxemb.data import windows
from jaxemb.ops import chunks
from jaxemb.tables import spec as spec_lib

StepBatch = windows.StepBatch


@dataclasses.dataclass(frozen=True)
class WindowSpec:
  """Sizes that the word2vec models share."""

  vocab: int
  dim: int
  window: int  # W
  negatives: int  # K, negatives per positive
  chunk: int  # c, centers per matrix product
  shared_negatives: int  # N, draws that the centers of a chunk share
  row_ops: chunks.RowOps = chunks.WHOLE_ROWS  # from the layout of the tables


class Corpus(NamedTuple):
  """What a model may know of the data before it is trained."""

  keys: Sequence[str]  # [vocab], words
  counts: np.ndarray  # [vocab] int, falling
  centers: np.ndarray  # [vocab] float64, chance that a center is each word


class Aux(NamedTuple):
  """What a loss reports beside its sum."""

  examples: jax.Array  # float32, over which the loss is summed
  metrics: Mapping[str, jax.Array] = {}  # float32, summed over the examples


class Model(Protocol):
  """A loss of rows; what has a body here is optional."""

  # The table whose rows users get, and the one of its contexts, if any.
  vectors_table: str
  contexts_table: str = ''
  metrics: tuple[str, ...] = ()  # names in `Aux.metrics`

  def specs(self) -> Mapping[str, spec_lib.TableSpec]:
    """The tables, by name."""
    ...

  def ids(self, batch: Any, key: jax.Array) -> Mapping[str, Any]:
    """The ids [...] to look up in each table, in the shape that `loss` expects.

    Other arrays that `loss` needs may stand beside them, under other names.
    Random choices are a pure function of the key ([2] uint32, of the dispatch)
    and of numbers that the batch carries (`StepBatch.chunks`).
    """
    ...

  def loss(
    self,
    params: Any,
    rows: Mapping[str, jax.Array],
    ids: Mapping[str, Any],
    batch: Any,
    key: jax.Array,
  ) -> tuple[jax.Array, Aux]:
    """Loss of the step in nats, summed over its examples.

    Of `init`'s params, of rows [..., d] float32 by table, and of what `ids`
    returned for the same batch and key.
    """
    ...

  def init(self, key: jax.Array) -> Any:
    """Dense parameters, a pytree of arrays that optax trains; () = none."""
    return ()

  def optimizer(self) -> Any:
    """Trains `init`'s params by the mean loss, an optax transformation."""
    import optax  # takes a second, and few models have dense parameters

    return optax.adam(1e-3)

  # Nats per example before training; a run whose loss is far above has
  # diverged. inf = unknown.
  untrained_loss: float = float('inf')
  # A variant with smaller buffers, used for steps that `fits` it; None = none.
  compact: 'Model | None' = None

  def fits(self, batch: Any) -> jax.Array:
    """bool, whether the compact variant is large enough for a step."""
    raise NotImplementedError
