"""Skip-gram with negative sampling (Mikolov et al. 2013b, eq. 4).

For every pair of a center and a word in its window, with vectors v and u:

  loss = -log sigmoid(v . u) - sum_{k=1..K} log sigmoid(-v . u_k)

with negatives u_k ~ count^0.75. Computed one pair at a time this touches forty
rows per word. Here a chunk of c centers meets the c + 2 W tokens of its window
and N negatives that the chunk shares, in one matrix product:

               window (c + 2 W)    negatives (N)
  scores = [c]  masked to windows   weighted          = v @ [u_window; u_neg].T

A negative stands for K / N draws for each of a center's pairs, so the expected
gradient is that of K draws per pair. A draw that equals the pair's own context
does not count, as in word2vec.c: the weight of (center, negative) is K / N
times the number of the center's contexts that differ from the negative.

Such small products are fast on a CPU as [c, w] x [w, d]. Autodiff's contract
the first axis of both factors, at half the speed: transposing the left factor,
which is small, saves an eighth of a training step.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import windows
from jaxemb.models import base
from jaxemb.ops import sampling, wire
from jaxemb.tables import spec as spec_lib

INPUT = 'input'
OUTPUT = 'output'


def _turned(x: jax.Array) -> jax.Array:
  """[k, c, w] -> [k, w, c], in memory."""
  # The barriers keep XLA from folding the transpose into the product again.
  x = jax.lax.optimization_barrier(x)
  return jax.lax.optimization_barrier(x.transpose(0, 2, 1))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _dot(left, right, columns, is_narrow):
  # The right factor of a product is repacked: let it be the smaller one,
  # unless that is narrow (c = 2 to 8 or so), which takes three times as long.
  if is_narrow:
    found = jnp.einsum('kcd,kwd->kcw', left, right)
  else:
    found = jnp.einsum('kwd,kcd->kwc', right, left)
  if columns is not None:
    found = wire.psum(found, columns)
  found = jax.lax.optimization_barrier(found)
  return found if is_narrow else found.transpose(0, 2, 1)


def _dot_backward(columns, is_narrow, factors, slopes):
  left, right = factors  # every device has all slopes, and its own columns
  # Keeps the transpose of the scores from being folded into the first product.
  slopes = jax.lax.optimization_barrier(slopes)
  return (
    jnp.einsum('kcw,kwd->kcd', slopes, right),
    jnp.einsum('kwc,kcd->kwd', _turned(slopes), left),
  )


_dot.defvjp(lambda *args: (_dot(*args), args[:2]), _dot_backward)


@jax.custom_vjp
def weighted_sums(weights: jax.Array, rows: jax.Array) -> jax.Array:
  """[k, c, d], sums of rows [k, w, d]; weights [k, c, w] have no derivative."""
  return jnp.einsum('kcw,kwd->kcd', weights, rows)


def _weighted_sums_backward(weights, slopes):
  return None, jnp.einsum('kwc,kcd->kwd', _turned(weights), slopes)


weighted_sums.defvjp(
  lambda weights, rows: (weighted_sums(weights, rows), weights),
  _weighted_sums_backward,
)


@dataclasses.dataclass(frozen=True)
class RowOps:
  """Operations on rows that hide from models how a layout splits columns.

  Rows are whole, or have d of `dim` columns, padded with zeros to as many on
  every device.
  """

  columns: wire.Axis | None = None

  def dot(
    self, left: jax.Array, right: jax.Array, is_narrow: bool = False
  ) -> jax.Array:
    """[k, c, w], products of all rows [k, c, d] and [k, w, d] of each chunk.

    They are summed over devices, their derivatives not; `is_narrow`: c is tiny.
    """
    return _dot(left, right, self.columns, is_narrow=is_narrow)

  def sum_columns(self, sums: jax.Array) -> jax.Array:
    """[...], sums over a device's columns -> sums over all."""
    return jax.lax.psum(sums, self.columns.name) if self.columns else sums

  def whole(self, rows: jax.Array, dim: int) -> jax.Array:
    """[..., d] -> [..., dim], on every device."""
    if self.columns is None:
      return rows
    rows = jax.lax.all_gather(rows, self.columns.name, axis=-1, tiled=True)
    return rows[..., :dim]

  def own(self, rows: jax.Array, num_columns: int) -> jax.Array:
    """[..., dim] -> [..., d], a device's d = `num_columns` columns."""
    if self.columns is None:
      return rows
    size = num_columns * jax.lax.axis_size(self.columns.name)
    padding = [(0, 0)] * (rows.ndim - 1) + [(0, size - rows.shape[-1])]
    first = num_columns * jax.lax.axis_index(self.columns.name)
    rows = jnp.pad(rows, padding)
    return jax.lax.dynamic_slice_in_dim(rows, first, num_columns, -1)


WHOLE_ROWS = RowOps()


@dataclasses.dataclass(frozen=True)
class WindowSpec:
  """Sizes that the word2vec models share."""

  vocab: int
  dim: int
  window: int  # W
  negatives: int  # K, negatives per positive
  chunk: int  # c, centers per matrix product
  shared_negatives: int  # N, draws that the centers of a chunk share
  # Whether a token is looked up once in a step, not once for each window.
  tokens_once: bool = False
  row_ops: RowOps = WHOLE_ROWS  # from the layout of the tables


class Products(NamedTuple):
  """What a loss of products of a chunk's rows is made of, beside the rows."""

  weights: jax.Array  # [k, c, w] float32, of the loss of each score
  num_positive: int  # of the w outputs, the first ones have label 1
  examples: jax.Array  # float32
  # [k, c, v] float32, of input rows, to be multiplied; None = these are c.
  means: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class WindowModel(base.Model):
  """A model of the windows of a text, with input and output vectors."""

  spec: WindowSpec = base.static()
  tables: tuple[spec_lib.TableSpec, ...] = base.static()

  vectors_table = INPUT
  contexts_table = OUTPUT

  def specs(self) -> dict[str, spec_lib.TableSpec]:
    """By name."""
    return {table.name: table for table in self.tables}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SkipGram(WindowModel):
  """Skip-gram with negative sampling."""

  negatives: sampling.Alias  # distribution of negatives
  loss_of: sampling.Pointwise = base.static()

  @property
  def untrained_loss(self) -> float:
    """Of an example and its negatives, all scores being zero."""
    labels = np.array([0, 1], np.float32)
    # One program, not one for each operation.
    negative, positive = jax.jit(self.loss_of)(0 * labels, labels).tolist()
    return positive + self.spec.negatives * negative

  def ids(self, batch, key):
    """Input: [L / c, c] centers. Output: [L / c, c + 2 W + N].

    If tokens are looked up once, output: [P, B, c + N], blocks and draws.
    """
    s = self.spec
    draws = draw_negatives(s, self.negatives, batch, key=key)
    if s.tokens_once:
      blocks = batch.blocks()
      draws = draws.reshape(len(blocks), -1, s.shared_negatives)
      halo = ((0, 0), (0, blocks.shape[1] - draws.shape[1]), (0, 0))
      draws = jnp.pad(draws, halo, constant_values=s.vocab)
      outputs = jnp.concatenate([blocks, draws], 2)
    else:
      outputs = jnp.concatenate([batch.windows(), draws], 1)
    return {INPUT: batch.centers(), OUTPUT: outputs}

  def products(self, ids, batch):
    """Of centers and the tokens of their windows."""
    s, mask, num_contexts = self.spec, batch.mask(), batch.num_contexts()
    draws = self._looked_up(batch, ids[OUTPUT])[0][:, -s.shared_negatives :]
    pairs = num_contexts[..., None] - batch.num_hits(draws)
    weights = jnp.concatenate(
      [mask, pairs * (s.negatives / s.shared_negatives)], 2
    )
    return Products(weights, mask.shape[2], num_contexts.sum())

  def loss(self, params, rows, ids, batch, key):
    """Summed over `Products.examples`."""
    found, left = self.products(ids, batch), rows[INPUT]
    positive, negative = jnp.split(found.weights, [found.num_positive], 2)
    first, *others = self._looked_up(batch, rows[OUTPUT])
    width, loss = first.shape[1] - negative.shape[2], 0.0
    for i, right in enumerate([first, *others]):
      weights = positive[:, :, i * width :][:, :, :width]
      if not i:
        weights = jnp.concatenate([weights, negative], 2)
      missing = right.shape[1] - weights.shape[2]
      weights = jnp.pad(weights, ((0, 0), (0, 0), (0, missing)))
      loss += self._weighted_loss(left, right, weights, num_positive=width)
    return loss, base.Aux(found.examples)

  def _looked_up(self, batch, outputs):
    """What chunks meet of what was looked up, the first tokens with the draws.

    [L / c, c + 2 W + N, ...]; or if tokens are looked up once, [L / c, c + N,
    ...] and the following blocks, [L / c, c, ...]. To put blocks side by side
    takes a TPU longer than a product for each.
    """
    if not self.spec.tokens_once:
      return [outputs]
    num = batch.left.shape[1] // batch.chunk
    some = [outputs[:, :num]]
    for i in range(1, outputs.shape[1] - num + 1):
      some.append(outputs[:, i : i + num, : batch.chunk])
    return [x.reshape(-1, *x.shape[2:]) for x in some]

  def _weighted_loss(self, left, right, weights, num_positive):
    """Of rows [k, c, d] and [k, w, d]; the first columns are positive."""
    scores = self.spec.row_ops.dot(left, right)
    labels = jnp.arange(scores.shape[-1]) < num_positive
    labels = jnp.broadcast_to(labels.astype(jnp.float32), scores.shape)
    return jnp.sum(weights * self.loss_of(scores, labels))


def make(
  spec: WindowSpec, corpus: base.Corpus, loss_of: sampling.Pointwise
) -> SkipGram:
  """Skip-gram for a corpus, with a loss of scores and labels."""
  chances = negative_probabilities(corpus.counts)
  outputs = token_lookups(spec, corpus) + draw_lookups(spec, corpus)
  made = tables(spec, corpus.centers, outputs)
  return SkipGram(spec, made, sampling.alias_table(chances), loss_of)


def tables(
  spec: WindowSpec, inputs: np.ndarray, outputs: np.ndarray
) -> tuple[spec_lib.TableSpec, spec_lib.TableSpec]:
  """Input and output table, initialised as in word2vec.c.

  Of expected lookups per center, [rows] float64.
  """
  each = (INPUT, inputs, 0.5 / spec.dim), (OUTPUT, outputs, 0.0)
  return tuple(
    spec_lib.TableSpec(
      name=name,
      vocab=len(x),
      dim=spec.dim,
      init_scale=scale,
      lookups_per_center=x,
    )
    for name, x, scale in each
  )


def token_lookups(spec: WindowSpec, corpus: base.Corpus) -> np.ndarray:
  """[vocab], tokens looked up per center, as the spec says."""
  # The halo of a step is left out.
  return corpus.centers if spec.tokens_once else window_lookups(spec, corpus)


def window_lookups(spec: WindowSpec, corpus: base.Corpus) -> np.ndarray:
  """[vocab], tokens of windows per center: neighbouring chunks share some."""
  return (spec.chunk + 2 * spec.window) / spec.chunk * corpus.centers


def draw_lookups(spec: WindowSpec, corpus: base.Corpus) -> np.ndarray:
  """[vocab], negatives per center."""
  chances = negative_probabilities(corpus.counts)
  return spec.shared_negatives / spec.chunk * chances


def draw_negatives(
  spec: WindowSpec,
  negatives: sampling.Alias,
  batch: windows.StepBatch,
  key: jax.Array,
) -> jax.Array:
  """[L / c, N] int32, the draws that the centers of a chunk share.

  Chunks without pairs get padding, which must not count as lookups.
  """
  has_pairs = jnp.any(batch.num_contexts() > 0, 1)
  num = spec.shared_negatives
  positions = jnp.arange(num, dtype=jnp.uint32)
  positions = batch.chunks[:, None] * np.uint32(num) + positions[None]
  draws = sampling.draw(negatives, key, positions)
  return jnp.where(has_pairs[:, None], draws, spec.vocab)


def negative_probabilities(counts: np.ndarray) -> np.ndarray:
  """[vocab] float64: count^0.75, normalized."""
  weights = counts.astype(np.float64) ** 0.75
  return weights / weights.sum()
