"""Losses of models that predict a center from its contexts.

Such a model (hierarchical softmax, the mixture) gives every center i some
output rows n, its targets. With s = v . u_n the likelihood of center i for an
input row v is

  log P(i | v) = sum_n positives[i, n] s - weights[i, n] log(1 + exp(s))

For hierarchical softmax n are the inner nodes on the center's path, weight 1;
positives are those where the path takes code 0. For negative sampling they are
the center itself, positive, and the negatives, with weight K / N. Scores are
products of all input rows of a chunk with all of its output rows; a score
serves every pair that has it, so no array of pairs is built.

Some output rows serve a single center (the ends of paths). They meet only the
tokens near the small group of g centers that it belongs to:

                    shared (n)           rest, by groups of centers (m)
  [c + 2 W tokens]  the chunk's          | [g + 2 W tokens] x own | ...
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxemb.models import base
from jaxemb.ops import losses


class Lists(NamedTuple):
  """The targets of each center of a step, one by one, in two segments."""

  places: jax.Array  # [L, D] int32, index into the step's flat output rows
  weights: jax.Array  # [L, D] float32, negative = not a positive
  sizes: jax.Array  # [L, 2] int32, of the segments
  gap: int  # where the second segment begins


class Targets(NamedTuple):
  """Of a step's k chunks of c centers."""

  ids: jax.Array  # [k, n + (c / g) m] int32, output rows
  weights: jax.Array  # [k, c, n] float32
  positives: jax.Array  # [k, c, n] float32
  lists: Lists
  # The rest, of weight 1, with padding at the end, or None.
  rest_owners: jax.Array | None = None  # [k c / g, m] int32, centers; g = none
  rest_positives: jax.Array | None = None  # [k c / g, m] float32


class Block(NamedTuple):
  """Input rows and the output rows that they meet."""

  rows: jax.Array  # [k, w, d] float32
  targets: jax.Array  # [k, n, d] float32
  weights: jax.Array  # [k, c, n] float32
  positives: jax.Array  # [k, c, n] float32


def groups(x: jax.Array, group: int, window: int) -> jax.Array:
  """Windows of the groups of a chunk's centers.

  Args:
    x: [k, c + 2 W, ...], of the chunk's window.
    group: g, divides c.
    window: W.

  Returns:
    [k c / g, g + 2 W, ...]
  """
  num_chunks, width = x.shape[:2]
  num, wanted = (width - 2 * window) // group, group + 2 * window
  # Blocks of g tokens and the ones behind, rather than a slice for each group:
  # the derivative of those is a sum of as many arrays.
  more = -width % group
  x = jnp.pad(x, [(0, 0), (0, more)] + [(0, 0)] * (x.ndim - 2))
  blocks = x.reshape(num_chunks, -1, group, *x.shape[2:])
  pieces = [
    blocks[:, i : i + num, : wanted - i * group]
    for i in range(-(-wanted // group))
  ]
  joined = jnp.concatenate(pieces, 2)
  return joined.reshape(num_chunks * num, wanted, *x.shape[2:])


def block_loss(
  spec: base.WindowSpec, block: Block, mask: jax.Array
) -> jax.Array:
  """-log P, summed over pairs.

  Args:
    spec: gives the products of rows.
    block: rows.
    mask: [k, c, w] float32, which rows are contexts of which center.
  """
  turned = mask.transpose(0, 2, 1)
  counts = jnp.einsum('kwc,kcn->kwn', turned, block.weights)
  positives = jnp.einsum('kwc,kcn->kwn', turned, block.positives)
  scores = spec.row_ops.dot(block.rows, block.targets)
  return jnp.sum(losses.counted_logistic_loss(scores, counts, positives))


def rest_rows(found: Targets, target_rows: jax.Array, num: int) -> jax.Array:
  """[k c / g, num, d], the first rows of each group's own."""
  num_groups, size = found.rest_owners.shape
  rest = target_rows[:, found.weights.shape[-1] :]
  return rest.reshape(num_groups, size, -1)[:, :num]


def rest_loss(
  spec: base.WindowSpec,
  found: Targets,
  rows: jax.Array,
  target_rows: jax.Array,
  num: int,
  near: jax.Array,
) -> jax.Array:
  """As `block_loss`, of the first `num` targets of groups' own.

  A target has one center and so its pairs: a gather instead of a product with
  an array of ones and zeros, in a fifth of the time.
  """
  # Padding has no pairs.
  near = jnp.pad(near, [(0, 0), (0, 1), (0, 0)])
  owners = found.rest_owners[:, :num, None]
  counts = jnp.take_along_axis(near, owners, 1).transpose(0, 2, 1)
  positives = counts * found.rest_positives[:, None, :num]
  rest = rest_rows(found, target_rows, num)
  scores = spec.row_ops.dot(rows, rest)
  return jnp.sum(losses.counted_logistic_loss(scores, counts, positives))


def has_more(found: Targets, num: int, group: int) -> jax.Array:
  """bool, whether a group has more than `num` targets of its own."""
  return jnp.any(found.rest_owners[:, num:] < group)


def window_loss(
  spec: base.WindowSpec,
  found: Targets,
  compact_rest: int,
  token_rows: jax.Array,
  target_rows: jax.Array,
  mask: jax.Array,
  near: jax.Array,
) -> jax.Array:
  """-log P(center | token), summed over the pairs of all chunks.

  Args:
    spec: sizes; `window` is 0 where tokens are the centers' own.
    found: the targets.
    compact_rest: targets of their own that groups have at most, in most steps.
    token_rows: [k, c + 2 W, d] float32.
    target_rows: of `found.ids`.
    mask: [k, c, c + 2 W] float32, which tokens are contexts of which center.
    near: [k c / g, g, g + 2 W] float32, the same of groups.
  """
  shared = target_rows[:, : found.weights.shape[-1]]
  block = Block(token_rows, shared, found.weights, found.positives)
  loss = block_loss(spec, block, mask)
  if found.rest_owners is None:
    return loss
  group = near.shape[1]
  rows = groups(token_rows, group, spec.window)
  args, most = (rows, target_rows), found.rest_owners.shape[-1]

  def of_size(num):
    def loss(args, data):
      found, near = data
      return rest_loss(spec, found, *args, num, near)

    return loss

  data = found, near
  # Devices that share the columns of rows have to take the same branch.
  if spec.row_ops.columns is not None or compact_rest >= most:
    return loss + of_size(most)(args, data)

  def either(change):
    both = change(of_size(most)), change(of_size(compact_rest))

    def chosen(args, data):
      return jax.lax.cond(
        has_more(data[0], compact_rest, group), *both, args, data
      )

    return chosen

  return loss + with_grads(
    either(lambda x: x), either(jax.value_and_grad), args, data
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def with_grads(
  value: Callable[..., jax.Array],
  value_and_grads: Callable[..., tuple[jax.Array, Any]],
  args: Any,
  data: Any,
) -> jax.Array:
  """A loss that is differentiated where it is computed.

  Autodiff of branches and loops keeps what any of them needs for its derivative
  and fills in zeros for the others.

  Args:
    value: (args, data) -> scalar.
    value_and_grads: the same, and its gradients, of the structure of args.
    args: arrays.
    data: arrays without a derivative.
  """
  return value(args, data)


def _with_grads_forward(value, value_and_grads, args, data):
  del value
  return value_and_grads(args, data)


def _with_grads_backward(value, value_and_grads, grads, scale):
  del value, value_and_grads
  return jax.tree.map(lambda x: scale * x, grads), None


with_grads.defvjp(_with_grads_forward, _with_grads_backward)
