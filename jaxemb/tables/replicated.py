"""Replicated and column layouts: every device has all rows, or columns of them.

Lookups are local; row gradients are gathered, and every copy applies all of
them, so that copies stay equal. Where columns are split along the table axis
(Ordentlich et al. 2016), rows and gradients never travel along it: models sum
products of rows. Arrays of one number per row are whole on every device.

One gather and one scatter per step: XLA may copy a whole table that is gathered
or scattered twice, or whose gather is fused past the scatter, so callers
concatenate ids and put an `optimization_barrier` behind their lookups.

A row that was looked up several times is written as often where that is cheap,
and once, with the sum of its gradients, where it is not (GPUs; low precision).
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxemb.ops import rounding, wire
from jaxemb.tables import codecs, dedup, row_access, row_optimizers
from jaxemb.tables import spec as spec_lib


@dataclasses.dataclass(frozen=True, eq=False)
class Replicated(spec_lib.Table):
  """Every device has all rows, and looks up ids of its own."""

  spec: spec_lib.TableSpec
  optimizer: row_optimizers.RowOptimizer
  axes: spec_lib.Axes = spec_lib.Axes()
  deduplicates: bool = False  # whether an update writes each row once
  kernels: row_access.Kernels = row_access.XLA
  # Sums, updates and writes rows in one pass, as the optimizer would.
  row_kernel: spec_lib.RowKernel | None = None

  splits_columns = False

  @property
  def _sums_by_scratch(self) -> bool:
    """Whether `dedup.by_scratch` sums a row's gradients."""
    needs_sums = self.optimizer.needs_sums or bool(self.optimizer.decay)
    return needs_sums or self.spec.dtype != 'float32'

  @property
  def _num_splits(self) -> int:
    return self.axes.num_table if self.splits_columns else 1

  @property
  def _codec(self) -> codecs.Codec:
    return codecs.Codec(self.spec, self._num_splits)

  def _new_opt_state(self) -> row_optimizers.OptState:
    opt_state = self.optimizer.init(self.spec.vocab, self._codec.dim)
    if self._sums_by_scratch and hasattr(opt_state, 'scratch'):
      # Counts come from `dedup`. Not empty: JAX loses the sharding of that.
      return opt_state._replace(scratch=jnp.zeros(1, jnp.float32))
    return opt_state

  @property
  def partition(self) -> spec_lib.TableState:
    everywhere = columns = jax.sharding.PartitionSpec()
    if self.splits_columns:
      columns = jax.sharding.PartitionSpec(None, self.axes.table)
    return spec_lib.TableState(
      self._codec.partition(columns, everywhere),
      jax.tree.map(
        lambda x: columns if x.ndim > 1 else everywhere,
        jax.eval_shape(self._new_opt_state),
      ),
      everywhere if self._sums_by_scratch else (),
    )

  def init(self, key):
    vectors = self._codec.init(key, jnp.arange(self.spec.vocab))
    # Even if not used here: a run may resume on another kind of device.
    scratch = ()
    if self._sums_by_scratch:
      scratch = jnp.zeros(self.spec.vocab, jnp.int32)
    return spec_lib.TableState(vectors, self._new_opt_state(), scratch)

  def lookup(self, state, ids):
    stored = codecs.gather(state.vectors, ids, self.kernels.copies)
    return spec_lib.Lookup(rounding.decode(stored, self.spec.dtype), state)

  def update(self, state, ids, row_grads, rows, step):
    names = self.axes.names(with_table=not self.splits_columns)
    if names:
      rows = None  # those of this device alone
    row_grads = self._gathered(ids, row_grads, names)
    vectors, opt_state, scratch = state
    optimizer, vocab = self.optimizer, self.spec.vocab
    if self.row_kernel:
      vectors, opt_state = self.row_kernel(
        vectors, opt_state, row_grads, optimizer.decay, step.learning_rate
      )
      return spec_lib.TableState(vectors, opt_state, scratch)
    if optimizer.updates_all:
      rows, row_grads = None, row_optimizers.of_all_rows(row_grads, vocab)
    elif self.deduplicates:
      row_grads = dedup.by_sorting(
        row_grads._replace(rows=rows), vocab, self.kernels
      )
      rows = row_grads.rows
    elif self._sums_by_scratch:
      row_grads, scratch = dedup.by_scratch(row_grads, vocab, scratch)
    vectors, opt_state = self._codec.learn(
      optimizer,
      (vectors, opt_state),
      row_grads,
      step=step,
      copies=self.kernels.copies,
      rows=rows,
    )
    return spec_lib.TableState(vectors, opt_state, scratch)

  def _gathered(self, ids, row_grads, names):
    """Returns gradients of the devices of some axes of the mesh."""
    squares, uses_squares = None, self.optimizer.uses_squares
    if names:
      ids, row_grads = row_access.flatten(ids, row_grads)
    if self._num_splits > 1 and uses_squares:
      fraction = self._codec.dim / self.spec.dim
      squares = row_optimizers.mean_squares(row_grads) * fraction
      squares = jax.lax.psum(squares, self.axes.table)
    if names:
      ids, row_grads, squares = wire.all_gather(
        (ids, row_grads, squares), names, self.spec.exchange_dtype
      )
    if squares is None and uses_squares and not self.row_kernel:
      squares = row_optimizers.mean_squares(row_grads)
    return row_optimizers.RowGrads(ids, row_grads, squares)

  def read_range(self, state, start, num):
    def cut(x):
      x = jax.lax.dynamic_slice_in_dim(x, start, num)
      return x[:, : self.spec.dim] if x.ndim > 1 else x

    opt_state = {k: getattr(state.opt_state, k, None) for k in self.state_names}
    return jax.tree.map(cut, (state.vectors, opt_state))

  def write_range(self, state, start, rows, encoding, key, opt_state):
    ids = start + jnp.arange(len(rows))
    new = self._codec.encode(rows, ids, key, encoding)
    state = state._replace(vectors=codecs.put(state.vectors, start, new))
    return spec_lib.with_opt_state(
      state, opt_state, lambda x, y: codecs.put(x, start, y)
    )

  def positions(self, ids):
    return (ids,)


class SplitColumns(Replicated):
  """Columns are split along the table axis, padded with zeros to equal shares.

  Devices of the table axis look up the same ids.
  """

  splits_columns = True
