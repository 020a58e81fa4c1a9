"""A table of which the device has some rows, in the rows of a smaller table.

Steps look up cache rows (`stores.cache`) in place of ids. The smaller table may
be any that one device has whole: its codec, optimizer and order of updates are
those of a table that has all rows, up to the random bits of stochastic
rounding. Its last row is never used: XLA may compile a scatter that drops an
update into one that writes the last row back as it was, which would undo what
another thread writes there meanwhile.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.tables import spec as spec_lib


@dataclasses.dataclass(frozen=True, eq=False)
class Cached(spec_lib.Table):
  """Looks up cache rows; from `num_rows` on they are padding."""

  spec: spec_lib.TableSpec  # of all rows
  cache: spec_lib.Table  # of as many rows as the device has, and one more

  @property
  def num_rows(self) -> int:
    """Rows of the smaller table."""
    return self.cache.spec.vocab

  @property
  def optimizer(self):
    return self.cache.optimizer

  @property
  def metrics(self):
    return self.cache.metrics

  @property
  def partition(self):
    return self.cache.partition

  def init(self, key):
    """Returns a cache without rows."""
    empty = jax.eval_shape(self.cache.init, key)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), empty)

  def lookup(self, state, ids):
    return self.cache.lookup(state, ids)

  def update(self, state, ids, row_grads, rows, step):
    return self.cache.update(state, ids, row_grads, rows=rows, step=step)

  def arrays(self, state: spec_lib.TableState) -> list[jax.Array]:
    """[num_rows, ...], all that belongs to rows: vectors, optimizer state."""
    names = sorted(self.state_names)
    opt_state = [getattr(state.opt_state, k) for k in names]
    return jax.tree.leaves(state.vectors) + opt_state

  def with_arrays(
    self, state: spec_lib.TableState, arrays: list[Any]
  ) -> spec_lib.TableState:
    """Returns the state with other `arrays`; it may be one of shapes."""
    vectors, opt_state = self._split(state, arrays)
    state = state._replace(vectors=vectors)
    if not opt_state:
      return state
    return state._replace(opt_state=state.opt_state._replace(**opt_state))

  def row_block(self, arrays: list[Any]) -> spec_lib.RowBlock:
    """Returns the rows of `arrays` [n, ...]."""
    stored, opt_state = self._split(self._form, arrays)
    return spec_lib.RowBlock(
      spec_lib.from_stored(stored, self.spec.dtype), opt_state
    )

  def arrays_of(self, block: spec_lib.RowBlock) -> list[np.ndarray]:
    """Returns the `arrays` [n, ...] of rows."""
    opt_state = [block.opt_state[k] for k in sorted(self.state_names)]
    return spec_lib.to_stored(block.encoded) + opt_state

  @functools.cached_property
  def _form(self):
    """The shapes of a state."""
    return jax.eval_shape(self.cache.init, jax.random.key(0))

  def _split(self, state, arrays):
    """Splits `arrays` into vectors and optimizer state by name."""
    tree, names = jax.tree.structure(state.vectors), sorted(self.state_names)
    vectors = jax.tree.unflatten(tree, arrays[: tree.num_leaves])
    return vectors, dict(zip(names, arrays[tree.num_leaves :], strict=True))
