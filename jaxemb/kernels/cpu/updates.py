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

from jaxemb.kernels.cpu import edge_losses, handlers, row_updates, step
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
    """Vectors [vocab, dim] and optimizer state after a step."""
    flat, tree = jax.tree.flatten(opt_state)
    ids, grads = row_access.flatten(row_grads.ids, row_grads.grads)
    room = ids.size if self.has_squares else 1
    results = [
      *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (grads, vectors)),
      jax.ShapeDtypeStruct((self.num_threads, room), jnp.float32),
      *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in flat),
    ]
    arguments, fixed = row_updates.NUM_FIXED
    aliases = {arguments + i: fixed + i for i in range(len(flat))}
    call = jax.ffi.ffi_call(
      handlers.UPDATES,
      results,
      input_output_aliases=row_updates.ALIASES | aliases,
    )
    numbers = [learning_rate, decay, *self.parameters]
    numbers += [0.0] * (row_updates.NUM_NUMBERS - len(numbers))
    numbers = jnp.stack([jnp.asarray(x, jnp.float32) for x in numbers])
    number = jnp.full(1, self.number, jnp.int32)
    groups = self._groups(ids, len(vectors))
    _, vectors, _, *flat = call(
      ids, grads, vectors, numbers, number, *groups, *flat
    )
    return vectors, jax.tree.unflatten(tree, flat)

  def _groups(self, ids: jax.Array, vocab: int) -> list[jax.Array]:
    """Positions, targets and bounds of lookups [n] (`row_updates`)."""
    shapes = ids.shape, ids.shape, (self.num_threads, 3)
    room = self.num_threads, row_updates.num_scratch(ids.size)
    results = [
      *(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes),
      jax.ShapeDtypeStruct(room, jnp.float32),
    ]
    integers = jnp.array([self.grouping, vocab], jnp.int32)
    return jax.ffi.ffi_call(handlers.GROUPS, results)(ids, integers)[:3]


_PARAMETERS = {
  'adagrad': ('epsilon',),
  'adagrad_full': ('epsilon',),
  'adam_full': ('epsilon', 'beta1', 'beta2'),
}


def make(optimizer: Mapping[str, Any], num_threads: int) -> RowKernel:
  """The kernel of an optimizer, compiled, for float32 tables.

  `optimizer` has the settings of that name. Raises `step.Unavailable`.
  """
  name = optimizer['name']
  step.register(handlers.GROUPS, 'groups')
  step.register(handlers.UPDATES, 'updates')
  with step.unavailable_if_failed():
    grouping = handlers.load('group', 'int32')
    number = handlers.load(name, 'float32')
  parameters = tuple(optimizer[x] for x in _PARAMETERS[name])
  return RowKernel(grouping, number, parameters, num_threads, name == 'adagrad')


@dataclasses.dataclass(frozen=True)
class EdgeSoftmax:
  """A `graphs.edge_models.Relations.kernel`."""

  number: int  # of the kernel
  num_threads: int

  def __call__(
    self, rows: jax.Array, ids: jax.Array, weights: jax.Array, vocab: int
  ) -> jax.Array:
    """Sum of the losses of edges, both of their ends.

    Rows are [k, 2 (c + N), d] and ids as many, sources first; weights [k, c].
    """
    return _edge_softmax(self, vocab, rows, ids, weights)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _edge_softmax(kernel, vocab, rows, ids, weights):
  return _edge_softmax_forward(kernel, vocab, rows, ids, weights)[0]


def _edge_softmax_forward(kernel, vocab, rows, ids, weights):
  num, both, dim = rows.shape
  chunk = weights.shape[1]
  size = edge_losses.num_scratch(chunk, both // 2 - chunk, dim)
  shapes = (num * both, dim), (num, 16), (kernel.num_threads, size)
  results = [jax.ShapeDtypeStruct(x, jnp.float32) for x in shapes]
  call = jax.ffi.ffi_call(handlers.EDGE_LOSSES, results)
  numbers = (jnp.full(1, x, jnp.int32) for x in (kernel.number, vocab))
  grads, losses, _ = call(rows.reshape(-1, dim), ids, weights, *numbers)
  return jnp.sum(losses[:, 0]), grads.reshape(rows.shape)


def _edge_softmax_backward(kernel, vocab, grads, slope):
  return slope * grads, None, None


_edge_softmax.defvjp(_edge_softmax_forward, _edge_softmax_backward)


def edge_softmax(num_threads: int) -> EdgeSoftmax:
  """The kernel, compiled. Raises `step.Unavailable`."""
  step.register(handlers.EDGE_LOSSES, 'edge_losses')
  with step.unavailable_if_failed():
    number = handlers.load('softmax_edges', 'float32')
  return EdgeSoftmax(number, num_threads)
