"""From rows of tables to their gradients by one kernel on a GPU (Pallas).

XLA looks up the rows of a step into an array, multiplies them by three products
and has scores and their slopes in memory between these. Here a program has a
chunk (see `models.skipgram`): it reads the rows of the chunk by their ids,

  left = rows, or means of rows (CBOW)      scores = left @ right.T
  slopes = weights * d loss / d scores
  d left = slopes @ right                   d right = slopes.T @ left

and writes gradients, once. Nothing is added up between programs.

A program has a block of columns of the rows in registers: where rows are wider
than that, it reads them once for the scores and again for the gradients.
Products are as precise as JAX's default on GPUs (TF32), as are XLA's.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxemb.data import windows
from jaxemb.models import cbow, skipgram
from jaxemb.ops import sampling
from jaxemb.tables import replicated
from jaxemb.tables import spec as spec_lib

_MODELS = skipgram.SkipGram, cbow.Cbow
_COLUMNS = 128  # of rows, which a program has in registers
_LEAST = 16  # rows of a factor that tensor cores multiply
_MOST = 128  # rows of a chunk
_WARP_NUMBERS = 2048  # of the larger factor, for each warp


def _size(num: int) -> int:
  return max(_LEAST, 1 << (num - 1).bit_length())


def can_multiply(model: Any, tables: Mapping[str, spec_lib.Table]) -> bool:
  """Whether the kernel has the gradients of a model with such tables."""
  if type(model) not in _MODELS:
    return False
  if model.loss_of is not sampling.logistic_loss:
    return False  # Triton may lack an operation of a user's
  s = model.spec
  most = s.chunk + 2 * s.window + s.shared_negatives
  are_whole = all(
    type(x) is replicated.Replicated and x.spec.dtype == 'float32'
    for x in tables.values()
  )
  return are_whole and _size(most) <= _MOST


@dataclasses.dataclass(frozen=True)
class Gradients:
  """A `strategies.base.Trainable.gradients` of window models."""

  interpret: bool = False  # without a GPU

  def __call__(
    self,
    model: skipgram.SkipGram,
    tables: Mapping[str, spec_lib.TableState],
    ids: Mapping[str, jax.Array],
    batch: windows.StepBatch,
  ) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
    """The loss, examples, and gradients of the rows of ids [k, w] of tables."""
    names = skipgram.INPUT, skipgram.OUTPUT
    found = model.products(ids, batch)
    vectors = [tables[x].vectors for x in names]
    losses, *grads = products(
      vectors,
      ids=[ids[x] for x in names],
      found=found,
      loss_of=model.loss_of,
      interpret=self.interpret,
    )
    return losses.sum(), found.examples, dict(zip(names, grads, strict=True))


def products(
  vectors: list[jax.Array],
  ids: list[jax.Array],
  found: skipgram.Products,
  loss_of: sampling.Pointwise,
  interpret: bool = False,
) -> list[jax.Array]:
  """Losses [k] of chunks, and gradients [k, v, dim] and [k, w, dim] of rows.

  Of the input and the output table: vectors [vocab, dim] float32, ids [k, v]
  and [k, w]; ids from `vocab` on have rows of zeros. `interpret`: without a
  GPU.
  """
  import jax.experimental.pallas as pl  # takes long, and few need it
  import jax.experimental.pallas.triton as plt

  num, dim = len(ids[0]), vectors[0].shape[1]
  centers, outputs = found.weights.shape[1:]
  num_centers, num_outputs = _size(centers), _size(outputs)
  num_inputs = _size(ids[0].shape[1])
  columns = min(_COLUMNS, max(32, _size(dim)))
  starts = range(0, dim, columns)
  has_means = found.means is not None

  def kernel(*refs):
    tables, id_refs, weights_ref, refs = refs[:2], refs[2:4], refs[4], refs[5:]
    means_ref, refs = refs[0] if has_means else None, refs[has_means:]
    losses, grads = refs[0], refs[1:]
    chunk = pl.program_id(0)

    def matrix(ref, sizes):
      rows, others = (jnp.arange(x, dtype=jnp.int32) for x in sizes)
      mask = rows[:, None] < ref.shape[1]
      mask &= others[None, :] < ref.shape[2]
      at = ref.at[chunk, rows[:, None], others[None, :]]
      return plt.load(at, mask=mask, other=0.0)

    def looked_up(i, size):
      places = jnp.arange(size, dtype=jnp.int32)
      is_there = places < id_refs[i].shape[1]
      at = id_refs[i].at[chunk, places]
      beyond = tables[i].shape[0]
      return plt.load(at, mask=is_there, other=beyond)

    def block(i, rows, start):
      at = start + jnp.arange(columns, dtype=jnp.int32)
      mask = (rows[:, None] < tables[i].shape[0]) & (at[None, :] < dim)
      at = tables[i].at[rows[:, None], at[None, :]]
      return plt.load(at, mask=mask, other=0.0)

    def write(i, size, start, values):
      places = jnp.arange(size, dtype=jnp.int32)
      at = start + jnp.arange(columns, dtype=jnp.int32)
      mask = (places[:, None] < grads[i].shape[1]) & (at[None, :] < dim)
      at = grads[i].at[chunk, places[:, None], at[None, :]]
      plt.store(at, values, mask=mask)

    means = None
    if has_means:
      means = matrix(means_ref, (num_centers, num_inputs))
    left_ids = looked_up(0, num_inputs)
    right_ids = looked_up(1, num_outputs)

    def factors(start):
      left, right = block(0, left_ids, start), block(1, right_ids, start)
      if has_means:
        left = plt.dot(means, left)
      return left, right

    scores = jnp.zeros((num_centers, num_outputs), jnp.float32)
    for start in starts:
      left, right = factors(start)
      scores += plt.dot(left, right, trans_b=True)
    labels = jnp.arange(num_outputs, dtype=jnp.int32) < found.num_positive
    labels = jnp.broadcast_to(labels.astype(jnp.float32)[None], scores.shape)
    weights = matrix(weights_ref, scores.shape)
    values, slopes_of = jax.vjp(lambda x: loss_of(x, labels), scores)
    losses[chunk] = jnp.sum(weights * values)
    slopes = slopes_of(weights)[0]
    for start in starts:
      if len(starts) > 1:
        left, right = factors(start)
      d_left = plt.dot(slopes, right)
      if has_means:
        d_left = plt.dot(means, d_left, trans_a=True)
      write(0, size=num_inputs, start=start, values=d_left)
      write(
        1,
        size=num_outputs,
        start=start,
        values=plt.dot(slopes, left, trans_a=True),
      )

  kernel.__name__ = 'window_products'  # in traces
  shapes = (num,), *((*x.shape, dim) for x in ids)
  inputs = *vectors, *ids, found.weights, *([found.means] if has_means else [])
  num_warps = max(num_inputs, num_outputs) * columns // _WARP_NUMBERS
  return pl.pallas_call(
    kernel,
    grid=num,
    out_shape=[jax.ShapeDtypeStruct(x, jnp.float32) for x in shapes],
    compiler_params=plt.CompilerParams(
      num_warps=min(8, max(1, num_warps)), num_stages=1
    ),
    interpret=interpret,
  )(*inputs)
