"""A table of which the device has some rows, in the rows of a smaller table.

Steps look up cache rows (`stores.cache`) in place of ids. The smaller table may
be any that one device has whole: its codec, optimizer and order of updates are
those of a table that has all rows, up to the random bits of stochastic
rounding. Its last row is never used: XLA may compile a scatter that drops an
update into one that writes the last row back as it was, which would undo what
another thread writes there meanwhile.

Where the device's memory is that of the process, rows are copied where they
lie; elsewhere by programs, of which there is one for each power of two.
"""

import ctypes
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.stores import local as stores
from jaxemb.tables import spec as spec_lib

# Moved at once; for each power of two from here on a program is compiled.
_LEAST_ROWS = 256


def are_in_memory() -> bool:
  """Whether the device's memory is that of the process."""
  return jax.default_backend() == 'cpu'


def padded(x: np.ndarray, value: int = 0) -> np.ndarray:
  """Returns an array of as many rows as a program is compiled for."""
  size = max(_LEAST_ROWS, 1 << (len(x) - 1).bit_length())
  widths = [(0, size - len(x))] + [(0, 0)] * (x.ndim - 1)
  return np.pad(x, widths, constant_values=value)


def _view(array):
  buffer = (ctypes.c_uint8 * array.nbytes).from_address(
    array.unsafe_buffer_pointer()
  )
  return np.frombuffer(buffer, np.uint8).reshape(len(array), -1)


@functools.partial(jax.jit, donate_argnums=0)
def _put(arrays, cache_rows, new):
  """Writes rows; those beyond the last are dropped."""
  return [
    x.at[cache_rows].set(y, mode='drop')
    for x, y in zip(arrays, new, strict=True)
  ]


@jax.jit
def _get(arrays, cache_rows):
  return [x.at[cache_rows].get(mode='clip') for x in arrays]


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

  @property
  def record(self) -> stores.Record:
    """What the device has of a row, byte for byte."""
    arrays = self.arrays(self.form)
    dtypes = tuple(np.dtype(x.dtype) for x in arrays)
    return stores.Record(dtypes, tuple(tuple(x.shape[1:]) for x in arrays))

  def views(self, state: spec_lib.TableState) -> list[np.ndarray]:
    """[num_rows, bytes] uint8, `arrays` of a CPU in memory, to be changed.

    Nothing that was computed with them is under way, and nobody else has them.
    """
    return list(map(_view, self.arrays(state)))

  def get(
    self, state: spec_lib.TableState, cache_rows: np.ndarray
  ) -> list[jax.Array]:
    """Returns `arrays` of cache rows [n], n > 0, then padding."""
    return _get(self.arrays(state), padded(cache_rows.astype(np.int32)))

  def take(
    self, state: spec_lib.TableState, cache_rows: np.ndarray
  ) -> list[np.ndarray]:
    """Returns `arrays` of cache rows [n], when their steps have ended."""
    if not are_in_memory():
      arrays = self.get(state, cache_rows)
      return [np.asarray(x)[: len(cache_rows)] for x in arrays]
    pairs = zip(self.views(state), self.arrays(state), strict=True)
    return [
      x[cache_rows].view(y.dtype).reshape(len(cache_rows), *y.shape[1:])
      for x, y in pairs
    ]

  def put(
    self,
    state: spec_lib.TableState,
    cache_rows: np.ndarray,
    arrays: Sequence[np.ndarray],
  ) -> spec_lib.TableState:
    """Writes `arrays` into cache rows [n]; the state is donated."""
    if not len(cache_rows):
      return state
    indices = padded(cache_rows.astype(np.int32), self.num_rows)
    arrays = _put(self.arrays(state), indices, list(map(padded, arrays)))
    vectors, opt_state = self._split(state, arrays)
    state = state._replace(vectors=vectors)
    if not opt_state:
      return state
    return state._replace(opt_state=state.opt_state._replace(**opt_state))

  def row_block(self, arrays: list[Any]) -> spec_lib.RowBlock:
    """Returns the rows of `arrays` [n, ...]."""
    stored, opt_state = self._split(self.form, arrays)
    return spec_lib.RowBlock(
      spec_lib.from_stored(stored, self.spec.dtype), opt_state
    )

  def arrays_of(self, block: spec_lib.RowBlock) -> list[np.ndarray]:
    """Returns the `arrays` [n, ...] of rows."""
    opt_state = [block.opt_state[k] for k in sorted(self.state_names)]
    return spec_lib.to_stored(block.encoded) + opt_state

  @functools.cached_property
  def form(self):
    """The shapes of a state."""
    return jax.eval_shape(self.cache.init, jax.random.key(0))

  def _split(self, state, arrays):
    """Splits `arrays` into vectors and optimizer state by name."""
    tree, names = jax.tree.structure(state.vectors), sorted(self.state_names)
    vectors = jax.tree.unflatten(tree, arrays[: tree.num_leaves])
    return vectors, dict(zip(names, arrays[tree.num_leaves :], strict=True))
