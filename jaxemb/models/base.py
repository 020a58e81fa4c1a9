"""The model interface: which rows a step needs, and a loss of them.

Models see rows, never tables and never a mesh: the loss is differentiated with
respect to the rows that were looked up, and tables are updated by ids and row
gradients.

A model is a dataclass. If it is registered as a pytree
(`jax.tree_util.register_dataclass`, with `static` fields), arrays that its
steps read, such as an alias table, are passed to the compiled program;
otherwise they are compiled into it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import base as data_base
from jaxemb.models import columns
from jaxemb.storage import export
from jaxemb.tables import spec as spec_lib

if TYPE_CHECKING:  # with it comes numba
  from jaxemb.evaluation import subwords as subwords_lib
  from jaxemb.models import targets


if TYPE_CHECKING:
  from dataclasses import field as static  # type checkers know it by its name
else:

  def static(**kwargs: Any) -> Any:
    """Returns a dataclass field that is compiled into programs."""
    return dataclasses.field(metadata={'static': True}, **kwargs)


class Corpus(NamedTuple):
  """What a model may know of the data before it is trained."""

  keys: Sequence[str]  # [vocab], words
  counts: np.ndarray  # [vocab] int, falling
  # [vocab] float64, chance that a center is each word, or how often an example
  # has each id.
  centers: np.ndarray
  # Where they are from, for models that ask for more of one kind of data.
  source: data_base.Source | None = None
  # Of a run that is continued: of the counts those in its data, and where the
  # rows of contexts are not of keys, how often each of these was there.
  earlier: np.ndarray | None = None
  earlier_contexts: np.ndarray | None = None
  known: data_base.Known | None = None  # that run


@dataclasses.dataclass(frozen=True)
class WindowSpec:
  """Sizes of models whose chunks of examples share negatives."""

  vocab: int
  dim: int
  window: int  # W
  negatives: int  # K, negatives per positive
  chunk: int  # c, centers per matrix product
  shared_negatives: int  # N, draws that the centers of a chunk share
  # [W], of contexts by distance, from 1 on, in skip-gram; () = 1 each.
  context_weights: tuple[float, ...] = ()
  # Whether a token is looked up once in a step, not once for each window.
  tokens_once: bool = False
  row_ops: columns.RowOps = columns.WHOLE_ROWS  # from the layout of the tables
  # Whether a GPU's kernel sums gradients of rows (`kernels.gpu.row_sums`).
  sums_by_kernel: bool = False


class Aux(NamedTuple):
  """What a loss reports beside its sum."""

  examples: jax.Array  # float32, over which the loss is summed
  metrics: Mapping[str, jax.Array] = {}  # float32, summed over the examples


class Model(Protocol):
  """A model: which rows a batch looks up, and the loss of these rows.

  Only `vectors_table`, `tables` (or `specs`), `ids` and `loss` need an
  implementation.

  Attributes:
    tables: specifications of the tables, as `specs` returns them by name.
    metrics: names of the sums in `Aux.metrics` that `loss` returns.
    has_contexts_of_keys: whether `contexts_table` has one row per key of the
      source, even if the source has `context_keys`.
    context_inputs_table: name of the table of input vectors of contexts; '' =
      none.
    nodes_table: name of the table of inner nodes of a Huffman tree; '' = none.
    composed_of: names of tables from which, together with `vectors_table`, the
      exported vectors are computed.
    is_mean: whether rows get gradients of the mean loss over the examples of a
      step, not of the sum.
    stale_share: a worker's copy of a row may lack at most 1 / `stale_share` of
      the updates of the row, even if the staleness bound allows more; 0 = only
      the staleness bound applies.
  """

  @property
  def vectors_table(self) -> str:
    """Returns the name of the table whose rows are exported as vectors."""

  @property
  def contexts_table(self) -> str:
    """Returns the name of the table of context vectors; '' = none."""
    return ''

  has_contexts_of_keys: bool = False
  metrics: tuple[str, ...] = ()
  tables: Sequence[spec_lib.TableSpec] = ()

  def specs(self) -> Mapping[str, spec_lib.TableSpec]:
    """Returns the specification of each table by name."""
    return {table.name: table for table in self.tables}

  def ids(self, batch: Any, key: jax.Array) -> Mapping[str, Any]:
    """Returns the ids [...] to look up, by name of the table.

    The result may have more arrays for `loss`, under other names. Random
    choices must be a pure function of `key` ([2] uint32, the same for several
    steps) and of numbers in the batch that differ between steps, such as
    `data.windows.StepBatch.chunks`.
    """

  def loss(
    self,
    params: Any,
    rows: Mapping[str, jax.Array],
    ids: Mapping[str, Any],
    batch: Any,
    key: jax.Array,
  ) -> tuple[jax.Array, Aux]:
    """Returns the loss of a step, and `Aux(examples, metrics)`.

    The loss is in nats, summed over the examples of the step. `examples` is
    their number, and `metrics` has further sums over them by name.

    Args:
      params: dense parameters.
      rows: [..., dim] float32 by table, the rows that were looked up.
      ids: the result of the method `ids`.
      batch: the batch of the step.
      key: the key that `ids` got.
    """

  context_inputs_table: str = ''
  nodes_table: str = ''

  @property
  def nodes(self) -> 'targets.Nodes':
    """Returns the inner nodes of the tree of hierarchical softmax."""
    return _lacks(self, 'inner nodes')

  composed_of: Sequence[str] = ()

  def composed(self, tables: Mapping[str, export.Encoded]) -> export.Encoded:
    """Returns the vectors to export.

    `tables` has the rows of `vectors_table` and of the tables in `composed_of`.
    """
    return tables[self.vectors_table]

  def num_derived(self, num_keys: int) -> int:
    """Returns how many float32 values the export computes besides tables."""
    if not self.composed_of:
      return 0
    return num_keys * self.specs()[self.vectors_table].dim

  def composed_keys(self, name: str) -> np.ndarray:
    """Returns an identifier of each row of table `name`, [rows].

    `name` is in `composed_of`. If a run is continued, rows with the same
    identifier keep their values.
    """
    return _lacks(self, 'vectors that are composed')

  def composed_sums(self, name: str, of_keys: np.ndarray) -> np.ndarray:
    """Returns, for each row, a weighted sum of the values `of_keys`, [rows].

    The rows are those of table `name`, which is in `composed_of`. The sum is
    over the keys whose vectors are computed from the row. `of_keys` [keys] has
    a number for each key.
    """
    return _lacks(self, 'vectors that are composed')

  def ngram_vectors(
    self, rows: Mapping[str, Any]
  ) -> 'subwords_lib.NgramVectors | None':
    """Returns the n-grams that give unseen words a vector, or None.

    `rows` has [n, dim] float32 for each table in `composed_of`.
    """
    return None

  def init(self, key: jax.Array) -> Any:
    """Returns initial dense parameters, a pytree of arrays; () = none."""
    return ()

  def optimizer(self) -> Any:
    """Returns the optax optimizer of dense parameters, for the mean loss."""
    import optax  # takes a second, and few models have dense parameters

    return optax.adam(1e-3)

  is_mean: bool = False
  stale_share: int = 50

  @property
  def dense_rate(self) -> float:
    """Returns a factor of the updates of `optimizer`.

    The updates are multiplied by this factor and by the learning rate of rows;
    0 = by neither.
    """
    return 0.0

  @property
  def untrained_loss(self) -> float:
    """Returns the loss per example before training, in nats; inf = unknown.

    A run whose loss exceeds three times this value stops as diverged.
    """
    return float('inf')

  @property
  def compact(self) -> 'Model | None':
    """Returns a variant with smaller buffers for some steps, or None.

    `fits` selects the steps.
    """
    return None

  def fits(self, batch: Any) -> jax.Array:
    """Returns whether the buffers of `compact` are large enough for a step."""
    return _lacks(self, 'compact variant')


def _lacks(model: Model, what: str) -> NoReturn:
  raise NotImplementedError(f'{type(model).__name__} has no {what}')


class ExampleModel(Model):
  """What models of examples share: rows and dense parameters of a `spec`."""

  spec: Any  # with `optimizer`, `dense_rate` and `dense_decay` of settings
  is_mean = True
  stale_share = 0  # of many examples in a step, each changes rows little

  @property
  def dense_rate(self) -> float:
    """See `Model`."""
    return self.spec.dense_rate

  def ids(self, batch, key):
    """Returns [E, columns], the same ids for all tables."""
    return {table.name: batch.ids for table in self.tables}

  def optimizer(self):
    """Returns an optimizer at a learning rate of 1, which steps multiply.

    L2 is added to gradients.
    """
    import optax

    name, decay = self.spec.optimizer, self.spec.dense_decay
    optimizer = _adagrad() if name == 'adagrad' else getattr(optax, name)(1.0)
    if decay:
      optimizer = optax.chain(optax.add_decayed_weights(decay), optimizer)
    return optimizer


def _adagrad():
  """Makes Adagrad, with 1e-10 added to the root, as for rows and in torch.

  In `optax.adagrad` it is within the root, where 1e-10 counts like 1e-5 here:
  more than many slopes of a mean over thousands of examples.
  """
  import optax

  def init(params):
    return jax.tree.map(jnp.zeros_like, params)

  def update(grads, sums, params=None):
    del params
    sums = jax.tree.map(lambda s, g: s + jnp.square(g), sums, grads)
    updates = jax.tree.map(lambda s, g: -g / (jnp.sqrt(s) + 1e-10), sums, grads)
    return updates, sums

  return optax.GradientTransformation(init, update)
