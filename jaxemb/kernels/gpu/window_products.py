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
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

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
    """Returns loss, examples and gradients of the rows of ids [k, w]."""
    names = skipgram.INPUT, skipgram.OUTPUT
    chunks = model.products(ids, batch)
    losses, *grads = products(
      [tables[x].vectors for x in names],
      [ids[x] for x in names],
      chunks,
      loss_of=model.loss_of,
      interpret=self.interpret,
    )
    return losses.sum(), chunks.examples, dict(zip(names, grads, strict=True))


def products(
  vectors: list[jax.Array],
  ids: list[jax.Array],
  chunks: skipgram.Products,
  loss_of: sampling.Pointwise,
  interpret: bool = False,
) -> list[jax.Array]:
  """Returns losses [k] of chunks, and gradients [k, v or w, dim] of rows.

  Of the input and the output table: vectors [vocab, dim] float32, ids [k, v]
  and [k, w]; ids from `vocab` on have rows of zeros. `interpret`: without a
  GPU.
  """
  import jax.experimental.pallas as pl  # takes long, and few need it
  import jax.experimental.pallas.triton as plt

  num, dim = len(ids[0]), vectors[0].shape[1]
  columns = min(_COLUMNS, max(32, _size(dim)))
  sizes = [_size(x.shape[1]) for x in ids]
  means = [] if chunks.means is None else [chunks.means]

  def kernel(*refs):
    (left, right, *id_refs, weights), refs = refs[:5], refs[5:]
    losses, *grads = refs[len(means) :]
    chunk = _Chunk(triton=plt, index=pl.program_id(0), columns=columns)
    sides = [
      _Side(table, chunk.ids(x, size, beyond=table.shape[0]), out)
      for table, x, size, out in zip(
        (left, right), id_refs, sizes, grads, strict=True
      )
    ]
    shape = _size(chunks.weights.shape[1]), sizes[1]
    losses[chunk.index] = _differentiate(
      chunk,
      sides,
      means=chunk.matrix(refs[0], (shape[0], sizes[0])) if means else None,
      weights=chunk.matrix(weights, shape),
      loss_of=functools.partial(_loss, loss_of, chunks.num_positive),
    )

  kernel.__name__ = 'window_products'  # in traces
  shapes = (num,), *((*x.shape, dim) for x in ids)
  num_warps = max(sizes) * columns // _WARP_NUMBERS
  return pl.pallas_call(
    kernel,
    grid=num,
    out_shape=[jax.ShapeDtypeStruct(x, jnp.float32) for x in shapes],
    compiler_params=plt.CompilerParams(
      num_warps=min(8, max(1, num_warps)), num_stages=1
    ),
    interpret=interpret,
  )(*vectors, *ids, chunks.weights, *means)


def _loss(loss_of, num_positive, scores):
  labels = jnp.arange(scores.shape[1], dtype=jnp.int32) < num_positive
  labels = jnp.broadcast_to(labels.astype(jnp.float32)[None], scores.shape)
  return loss_of(scores, labels)


class _Side(NamedTuple):
  """Rows of a chunk that are looked up in one table."""

  table: Any
  ids: jax.Array  # [n], padded
  grads: Any  # [k, v, dim]


class _Chunk(NamedTuple):
  """A program of the kernel, and how it reads and writes its chunk's arrays."""

  triton: Any
  index: jax.Array
  columns: int  # of a block

  def ids(self, ref: Any, size: int, beyond: int) -> jax.Array:
    """[size], ids of the chunk, then what is beyond the vocabulary."""
    at = jnp.arange(size, dtype=jnp.int32)
    mask = at < ref.shape[1]
    return self.triton.load(ref.at[self.index, at], mask=mask, other=beyond)

  def matrix(self, ref: Any, shape: tuple[int, int]) -> jax.Array:
    """A matrix of the chunk, padded with zeros."""
    rows, columns = (jnp.arange(x, dtype=jnp.int32) for x in shape)
    mask = rows[:, None] < ref.shape[1]
    mask &= columns[None, :] < ref.shape[2]
    at = ref.at[self.index, rows[:, None], columns[None, :]]
    return self.triton.load(at, mask=mask, other=0.0)

  def rows(self, side: _Side, start: int) -> jax.Array:
    """Columns of rows, from `start` on."""
    (vocab, dim), ids = side.table.shape, side.ids[:, None]
    at = (start + jnp.arange(self.columns, dtype=jnp.int32))[None, :]
    mask = (ids < vocab) & (at < dim)
    return self.triton.load(side.table.at[ids, at], mask=mask, other=0.0)

  def put_grads(self, side: _Side, start: int, values: jax.Array) -> None:
    """Writes gradients of such columns."""
    _, num, dim = side.grads.shape
    rows = jnp.arange(len(values), dtype=jnp.int32)[:, None]
    at = (start + jnp.arange(self.columns, dtype=jnp.int32))[None, :]
    mask = (rows < num) & (at < dim)
    to = side.grads.at[self.index, rows, at]
    self.triton.store(to, values, mask=mask)


def _differentiate(chunk, sides, means, weights, loss_of):
  """Writes the gradients of a chunk's rows; returns its loss."""
  dot = chunk.triton.dot
  starts = range(0, sides[0].table.shape[1], chunk.columns)

  def factors(start):
    left, right = (chunk.rows(side, start) for side in sides)
    return left if means is None else dot(means, left), right

  scores = jnp.zeros(weights.shape, jnp.float32)
  for start in starts:
    left, right = factors(start)
    scores += dot(left, right, trans_b=True)
  values, slopes_of = jax.vjp(loss_of, scores)
  slopes = slopes_of(weights)[0]
  for start in starts:
    if len(starts) > 1:
      left, right = factors(start)
    d_left = dot(slopes, right)
    if means is not None:
      d_left = dot(means, d_left, trans_a=True)
    chunk.put_grads(sides[0], start, d_left)
    chunk.put_grads(sides[1], start, dot(slopes, left, trans_a=True))
  return jnp.sum(weights * values)
