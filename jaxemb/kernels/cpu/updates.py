"""Kernels on a CPU for parts of a step.

Updates of looked-up rows (`row_updates`), and the softmax of edges
(`edge_losses`).
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import edge_losses, row_updates, step
from jaxemb.tables import row_access, row_optimizers


@dataclasses.dataclass(frozen=True)
class RowKernel:
  """A `tables.replicated.Replicated.row_kernel`."""

  grouping: int  # the number of the kernel that finds equal ids
  number: int  # of the one that updates rows
  parameters: tuple[float, ...]  # of the optimizer
  num_threads: int
  has_squares: bool  # of each gradient, in a call

  def __call__(
    self,
    vectors: jax.Array,
    opt_state: row_optimizers.OptState,
    row_grads: row_optimizers.RowGrads,
    decay: float,
    learning_rate: jax.Array,
  ) -> tuple[jax.Array, row_optimizers.OptState]:
    """Returns vectors [vocab, dim] and optimizer state after a step."""
    flat, tree = jax.tree.flatten(opt_state)
    ids, grads = row_access.flatten(row_grads.ids, row_grads.grads)
    num_chunks = row_updates.CHUNKS_PER_CLASS * self.num_threads
    shapes = ids.shape, ids.shape, (self.num_threads, 3)
    totals, groups = step.call(
      self.grouping,
      num_chunks,
      scratch=(self.num_threads, row_updates.num_scratch(ids.size)),
      read=[ids, jnp.full(1, len(vectors), jnp.int32)],
      new=[jax.ShapeDtypeStruct(x, jnp.int32) for x in shapes],
    )
    numbers = learning_rate, decay, *self.parameters
    _, (_, vectors, *flat) = step.call(
      # No kernel has this number, so that this call fails as well.
      jnp.where(jnp.isnan(totals[0]), ffi.MOST_FUNCTIONS - 1, self.number),
      num_chunks,
      scratch=(self.num_threads, ids.size if self.has_squares else 1),
      read=[
        ids,
        jnp.stack([jnp.asarray(x, jnp.float32) for x in numbers]),
        *groups,
      ],
      changed=[grads, vectors, *flat],
      spoiled=1,  # vectors: the next loss is NaN
    )
    return vectors, jax.tree.unflatten(tree, flat)


_PARAMETERS = {
  'adagrad': ('epsilon',),
  'adagrad_full': ('epsilon',),
  'adam_full': ('epsilon', 'beta1', 'beta2'),
}


def make(optimizer: Mapping[str, Any], num_threads: int) -> RowKernel:
  """Returns the kernel of an optimizer, compiled, for float32 tables.

  `optimizer` has the settings of that name. Raises `ffi.Unavailable`.
  """
  name = optimizer['name']
  return RowKernel(
    grouping=step.load('group-int32'),
    number=step.load(f'{name}-float32'),
    parameters=tuple(optimizer[x] for x in _PARAMETERS[name]),
    num_threads=num_threads,
    has_squares=name == 'adagrad',
  )


@dataclasses.dataclass(frozen=True)
class EdgeSoftmax:
  """A `graphs.edge_models.Relations.kernel`."""

  number: int  # of the kernel
  num_threads: int

  def __call__(
    self, rows: jax.Array, ids: jax.Array, weights: jax.Array, vocab: int
  ) -> jax.Array:
    """Returns the sum of the losses of edges, of both ends.

    Rows are [k, 2 (c + N), d] and ids as many, sources first; weights [k, c].
    """
    return _edge_softmax(self, vocab, rows, ids, weights)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _edge_softmax(kernel, vocab, rows, ids, weights):
  return _edge_softmax_forward(kernel, vocab, rows, ids, weights)[0]


def _edge_softmax_forward(kernel, vocab, rows, ids, weights):
  num, both, dim = rows.shape
  chunk = weights.shape[1]
  shapes = (num * both, dim), (num, 16)
  size = edge_losses.num_scratch(chunk, both // 2 - chunk, dim)
  totals, (grads, losses) = step.call(
    kernel.number,
    num,
    scratch=(kernel.num_threads, size),
    read=[rows.reshape(-1, dim), ids, weights, jnp.full(1, vocab, jnp.int32)],
    new=[jax.ShapeDtypeStruct(x, jnp.float32) for x in shapes],
    spoiled=0,  # few losses are checked, but all rows used
  )
  return jnp.sum(losses[:, 0]) + totals[0], grads.reshape(rows.shape)


def _edge_softmax_backward(kernel, vocab, grads, slope):
  return slope * grads, None, None


_edge_softmax.defvjp(_edge_softmax_forward, _edge_softmax_backward)


def edge_softmax(num_threads: int) -> EdgeSoftmax:
  """Returns the kernel, compiled. Raises `ffi.Unavailable`."""
  return EdgeSoftmax(step.load('softmax_edges-float32'), num_threads)
