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

Pairs may be weighted by their distance. The sum of the weights then stands for
the number of pairs.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import windows
from jaxemb.models import base
from jaxemb.ops import sampling
from jaxemb.tables import spec as spec_lib

INPUT = 'input'
OUTPUT = 'output'


@dataclasses.dataclass(frozen=True)
class WindowModel(base.Model):
  """A model of the windows of a text, with input and output vectors."""

  spec: base.WindowSpec = base.static()
  tables: tuple[spec_lib.TableSpec, ...] = base.static()

  vectors_table = INPUT
  contexts_table = OUTPUT


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SkipGram(WindowModel):
  """Skip-gram with negative sampling."""

  negatives: sampling.Alias  # distribution of negatives
  loss_of: sampling.Pointwise = base.static()

  @property
  def untrained_loss(self) -> float:
    """Of an example and its negatives, all scores being zero."""
    if self.loss_of is sampling.logistic_loss:  # without a program
      return (1 + self.spec.negatives) * math.log(2)
    labels = np.array([0, 1], np.float32)
    # One program, not one for each operation.
    negative, positive = jax.jit(self.loss_of)(0 * labels, labels).tolist()
    return positive + self.spec.negatives * negative

  def ids(self, batch, key):
    """Returns inputs [L / c, c], centers, and outputs [L / c, c + 2 W + N].

    If tokens are looked up once, outputs are [P, B, c + N], blocks and draws.
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

  def loss(self, params, rows, ids, batch, key):
    """Sums over pairs of a center and a token of its window."""
    s, left = self.spec, rows[INPUT]
    positive = batch.mask(s.context_weights)
    num_contexts = positive.sum(2)
    draws = self._looked_up(batch, ids[OUTPUT])[0][:, -s.shared_negatives :]
    pairs = num_contexts[..., None] - batch.hits(draws, s.context_weights)
    negative = pairs * (s.negatives / s.shared_negatives)
    first, *others = self._looked_up(batch, rows[OUTPUT])
    width, loss = first.shape[1] - negative.shape[2], 0.0
    for i, right in enumerate([first, *others]):
      weights = positive[:, :, i * width :][:, :, :width]
      if not i:
        weights = jnp.concatenate([weights, negative], 2)
      missing = right.shape[1] - weights.shape[2]
      weights = jnp.pad(weights, ((0, 0), (0, 0), (0, missing)))
      loss += self._weighted_loss(left, right, weights, num_positive=width)
    return loss, base.Aux(num_contexts.sum())

  def _looked_up(self, batch, outputs):
    """Returns the outputs of chunks, the first tokens with the draws.

    [L / c, c + 2 W + N, ...]; or if tokens are looked up once, [L / c, c + N,
    ...] and the following blocks, [L / c, c, ...]. To put blocks side by side
    takes a TPU longer than a product for each.
    """
    if not self.spec.tokens_once:
      return [outputs]
    num = batch.left.shape[1] // batch.chunk
    blocks = [outputs[:, :num]]
    for i in range(1, outputs.shape[1] - num + 1):
      blocks.append(outputs[:, i : i + num, : batch.chunk])
    return [x.reshape(-1, *x.shape[2:]) for x in blocks]

  def _weighted_loss(self, left, right, weights, num_positive):
    """Returns the loss of rows [k, c, d] with [k, w, d], the first positive."""
    scores = self.spec.row_ops.dot(left, right)
    labels = jnp.arange(scores.shape[-1]) < num_positive
    labels = jnp.broadcast_to(labels.astype(jnp.float32), scores.shape)
    return jnp.sum(weights * self.loss_of(scores, labels))


def make(
  spec: base.WindowSpec, corpus: base.Corpus, loss_of: sampling.Pointwise
) -> SkipGram:
  """Skip-gram for a corpus, with a loss of scores and labels."""
  chances = negative_probabilities(corpus.counts)
  outputs = token_lookups(spec, corpus) + draw_lookups(spec, corpus)
  return SkipGram(
    spec=spec,
    tables=tables(spec, corpus.centers, outputs),
    negatives=sampling.alias_table(chances),
    loss_of=loss_of,
  )


def tables(
  spec: base.WindowSpec, inputs: np.ndarray, outputs: np.ndarray
) -> tuple[spec_lib.TableSpec, ...]:
  """Makes input and output table, initialised as in word2vec.c.

  Of expected lookups per center, [rows] float64.
  """
  each = (INPUT, inputs, 0.5 / spec.dim), (OUTPUT, outputs, 0.0)
  return spec_lib.describe(spec.dim, *each)


def token_lookups(spec: base.WindowSpec, corpus: base.Corpus) -> np.ndarray:
  """Returns [vocab], tokens looked up per center, as the spec says."""
  # The halo of a step is left out.
  return corpus.centers if spec.tokens_once else window_lookups(spec, corpus)


def window_lookups(spec: base.WindowSpec, corpus: base.Corpus) -> np.ndarray:
  """Returns [vocab], tokens of windows per center: chunks share some."""
  return (spec.chunk + 2 * spec.window) / spec.chunk * corpus.centers


def draw_lookups(spec: base.WindowSpec, corpus: base.Corpus) -> np.ndarray:
  """Returns [vocab], negatives per center."""
  chances = negative_probabilities(corpus.counts)
  return spec.shared_negatives / spec.chunk * chances


def draw_negatives(
  spec: base.WindowSpec,
  negatives: sampling.Alias,
  batch: windows.StepBatch,
  key: jax.Array,
  has_examples: jax.Array | None = None,
) -> jax.Array:
  """Returns [L / c, N] int32, the draws that the centers of a chunk share.

  Chunks without examples, [L / c] bool, by default pairs, get padding, which
  must not count as lookups.
  """
  if has_examples is None:
    has_examples = jnp.any(batch.num_contexts() > 0, 1)
  num = spec.shared_negatives
  positions = jnp.arange(num, dtype=jnp.uint32)
  positions = batch.chunks[:, None] * np.uint32(num) + positions[None]
  draws = sampling.draw(negatives, key, positions)
  return jnp.where(has_examples[:, None], draws, spec.vocab)


def negative_probabilities(counts: np.ndarray) -> np.ndarray:
  """Returns [vocab] float64: count^0.75, normalized."""
  weights = counts.astype(np.float64) ** 0.75
  return weights / weights.sum()
