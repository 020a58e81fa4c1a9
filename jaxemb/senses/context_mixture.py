"""The mixture whose senses are inferred from contexts, by stochastic EM.

An occurrence of a context word I has x, the mean of the unit vectors of the
words around it, in which frequent words weigh less (Arora et al. 2017). With a
mean m_k for each sense the mixture of x and of its pairs is

  P(O, x | I) = sum_k pi_k N(x; m_k, 1 / (2 kappa)) P(O | I, k)

A pair adds the likelihood of one word to what x says about the text, and is
left out of the E step:

  gamma_k = softmax_k( log pi_k - kappa |x - m_k|^2 )

This is a soft k-means of contexts, the hard version of which is multi-sense
skip-gram (MSSG, Neelakantan et al. 2014). One sense is drawn from gamma and
takes the place of the word's vector in the window, so that a step costs little
more than that of skip-gram. Means are running averages of the x of their draws,
priors of gamma (stochastic EM, Celeux and Diebolt 1985). The senses of a word
start as one and are separated by the draws.

A sense has few occurrences, and the senses of a word have much in common. So
the siblings of the drawn sense get a share of its gradient; and since a sense
differs first of all in where it occurs, its vector is

  v_k = r_k + shift |r| (m_k - m)

with a row r_k, and the word's mean row r and mean context m, both weighted by
priors. This v_k is in P(O | I, k) and in the export.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base, skipgram, targets
from jaxemb.ops import products, sampling, windows
from jaxemb.senses import mixture, table
from jaxemb.senses import rows as rows_lib
from jaxemb.tables import spec as spec_lib
from jaxemb.text import vocab

MEANS = 'context_means'
WEIGHTS, UNIFORMS = 'weights', 'uniforms'  # beside the ids of the tables
_MOMENTUM = 0.9  # of priors and means; rises to 1 during training
_HALF_WEIGHT = 1e-3  # relative frequency of a word of weight 1/2 in contexts
# kappa per word of a context: a mean of n words has 1/n of the variance. SCWS
# scores are best with 25 where windows of up to 5 words have 6 on average.
_CONCENTRATION_PER_WORD = 25 / 6
# Slots of the compact variant, relative to their mean number; and their largest
# fraction of all tokens, above which it saves little.
_COMPACT, _MAX_COMPACT = 1.2, 0.8
_KEY = np.uint32(0x7F4A7C15)  # keeps draws independent of those of negatives


@dataclasses.dataclass(frozen=True)
class ContextMixture(base.Model):
  """The mixture over one step's rows."""

  outputs: mixture.Outputs  # the loss
  rows: rows_lib.Rows
  weights: Any  # [vocab] float32, of words in contexts
  spec: base.WindowSpec
  chance: float  # that a token is ambiguous
  concentration: float  # kappa
  tied_until: float = 0.2  # fraction of training in which all senses of a word
  # share their gradients, as contexts mean nothing yet
  shared: float = 0.9  # fraction of a sense's gradient that its siblings get
  shift: float = 1.25  # of vectors towards the contexts of their sense
  is_compact: bool = False  # as many slots as most steps need
  lookups: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

  vectors_table = skipgram.INPUT
  contexts_table = skipgram.OUTPUT

  @property
  def untrained_loss(self) -> float:
    """Of a pair."""
    return self.outputs.untrained_loss

  def specs(self) -> dict[str, spec_lib.TableSpec]:
    """As `mixture.tables`, and a mean context for each sense.

    A row of means has one more column, which stays zero, like that of priors.
    """
    specs = mixture.tables(
      self.spec, self.outputs, self.rows, _MOMENTUM, self.lookups
    )
    if self.rows.num_ambiguous:
      priors = specs[mixture.PRIORS]
      lookups = priors.lookups_per_center
      if lookups is not None:
        lookups = np.repeat(lookups, self.rows.num_senses)
      specs[MEANS] = dataclasses.replace(
        priors,
        name=MEANS,
        vocab=priors.vocab * self.rows.num_senses,
        dim=self.spec.dim + 1,
        lookups_per_center=lookups,
      )
    return specs

  @property
  def compact(self) -> base.Model | None:
    """The variant with as many slots as most steps need."""
    saves_little = _COMPACT * self.chance > _MAX_COMPACT
    if self.is_compact or not self.rows.num_ambiguous or saves_little:
      return None
    return dataclasses.replace(self, is_compact=True)

  def fits(self, batch: base.StepBatch) -> jax.Array:
    """bool, whether the compact variant has enough slots."""
    s = self.spec
    window = windows.chunk_windows(batch.tokens, s.chunk, s.window)
    _, is_ambiguous = self.rows.find(window)
    return jnp.sum(is_ambiguous) <= self._compact_slots(window.size)

  def _compact_slots(self, num_tokens: int) -> int:
    mean = num_tokens * self.chance
    # Texts are clustered: some have more of some words.
    slots = math.ceil(_COMPACT * mean + 3 * mean**0.5 + 1)
    return min(slots, num_tokens)

  def ids(self, batch: base.StepBatch, key: jax.Array) -> dict[str, Any]:
    """Input: [k (c + 2 W) + S K], of k chunks and S slots. Means: [S, K].

    Beside these the weights [k, c + 2 W] float32 of tokens in contexts, and
    uniform numbers [S] float32 to draw senses by.
    """
    s, rows = self.spec, self.rows
    found = self.outputs.find_targets(s, batch, key)
    window = windows.chunk_windows(batch.tokens, s.chunk, s.window)
    num_slots = self._compact_slots(window.size) if self.is_compact else None
    slots = rows_lib.slots(rows, window, num_slots)
    ids = {skipgram.INPUT: slots.ids, skipgram.OUTPUT: found.ids}
    weights = self.weights.at[window].get(mode='fill', fill_value=0)
    offsets = jnp.arange(window.shape[1], dtype=jnp.uint32)[None]
    positions = batch.chunks[:, None] * np.uint32(window.shape[1]) + offsets
    bits = sampling.random_bits(key ^ _KEY, positions.reshape(-1))
    uniforms = (bits >> 8).astype(jnp.float32) * np.float32(2**-24)
    uniforms = uniforms.at[slots.tokens].get(mode='clip')
    if rows.num_ambiguous:
      ids[mixture.PRIORS] = slots.priors_ids
      means = rows.num_senses * slots.priors_ids[:, None]
      means += jnp.arange(rows.num_senses)[None]
      ids[MEANS] = jnp.minimum(means, rows.num_ambiguous * rows.num_senses)
    ids |= {mixture.TARGETS: found, mixture.SLOTS: slots}
    return ids | {WEIGHTS: weights, UNIFORMS: uniforms}

  def loss(
    self,
    params: tuple[()],
    rows: Mapping[str, jax.Array],
    ids: Mapping[str, Any],
    batch: base.StepBatch,
    key: jax.Array,
  ) -> tuple[jax.Array, base.Aux]:
    """-log P(center | context, drawn sense), summed over the pairs."""
    del params, key
    s, sides = self.spec, (batch.left, batch.right)
    mask = windows.window_mask(*sides, s.chunk, s.window)
    token_rows, zero = rows[skipgram.INPUT], 0.0
    if self.rows.num_ambiguous:
      token_rows, zero = self._drawn(rows, ids, mask, batch.progress)
    loss = zero + targets.window_loss(
      s,
      ids[mixture.TARGETS],
      self.outputs.compact_rest,
      token_rows,
      rows[skipgram.OUTPUT],
      mask,
      windows.window_mask(*sides, self.outputs.group, s.window),
    )
    return loss, base.Aux(skipgram.num_contexts(batch).sum())

  def _drawn(
    self,
    rows: Mapping[str, jax.Array],
    ids: Mapping[str, Any],
    mask: jax.Array,
    progress: jax.Array | float,
  ) -> tuple[jax.Array, jax.Array]:
    """Vectors of all tokens, those of a drawn sense in the slots.

    Takes rows and ids of the tables, a mask [k, c, c + 2 W] float32 of which
    tokens are contexts of which center, and the fraction of training done.

    Returns:
      [k, c + 2 W, d] float32; and 0, with the gradients of priors and means.
    """
    weights, tokens = ids[WEIGHTS], ids[mixture.SLOTS].tokens
    num, input_rows = weights.size, rows[skipgram.INPUT]
    num_senses, dim = self.rows.num_senses, input_rows.shape[-1]
    senses = input_rows[num:].reshape(-1, num_senses, dim)

    def with_slots(slots):
      filled = input_rows[:num].at[tokens].set(slots, mode='drop')
      return filled.reshape(*weights.shape, dim)

    prior_rows, mean_rows = rows[mixture.PRIORS], rows[MEANS]
    priors = jax.lax.stop_gradient(self.priors_of(prior_rows))
    common = jax.lax.stop_gradient(jnp.einsum('sk,skd->sd', priors, senses))
    contexts, has_context = jax.lax.stop_gradient(
      self._contexts(with_slots(common), weights, tokens, mask)
    )
    # E step.
    are_tied = progress < self.tied_until
    means = jax.lax.stop_gradient(mean_rows[..., :-1])
    distances = means - contexts[:, None]
    logs = mixture.log_priors(priors)
    logs -= self.concentration * jnp.sum(distances * distances, -1)
    gamma = jax.nn.softmax(jnp.where(are_tied, 0.0, logs), axis=-1)
    # Tied senses may have been initialised apart: all stand for the first.
    sums = jnp.cumsum(gamma[:, :-1], 1)
    drawn = jax.nn.one_hot(
      jnp.sum(sums < ids[UNIFORMS][:, None], 1), num_senses
    )
    used = jnp.where(are_tied, jnp.eye(num_senses)[:1], drawn)
    used_rows = jnp.einsum('sk,skd->sd', used, senses)
    shared = jnp.where(are_tied, 1.0, self.shared)
    learning = (1 - shared) * used_rows + shared * senses.sum(1)
    slots = learning + jax.lax.stop_gradient(used_rows - learning)
    shifts = self.shift * shifted(common, priors, means, self.spec.row_ops)
    shifts = jnp.einsum('sk,skd->sd', used, shifts)
    slots += jnp.where(are_tied, 0.0, shifts)
    # M step.
    num_seen = has_context[:, None]
    said = num_seen * gamma - num_seen / num_senses
    prior_grads = jnp.concatenate(
      [num_seen * prior_rows[:, :-1] - said, num_seen], -1
    )
    counts = (drawn * num_seen)[..., None]
    mean_grads = jnp.concatenate([counts * distances, counts], -1)
    zero = mixture.with_gradient(prior_rows, prior_grads)
    zero += mixture.with_gradient(mean_rows, mean_grads)
    return with_slots(slots), zero

  def _contexts(
    self,
    token_rows: jax.Array,
    weights: jax.Array,
    tokens: jax.Array,
    mask: jax.Array,
  ) -> tuple[jax.Array, jax.Array]:
    """Mean x around each slot: of the centers that its token is a context of.

    Args:
      token_rows: [k, c + 2 W, d] float32.
      weights: [k, c + 2 W] float32.
      tokens: [slots] int32, see `rows.Slots`.
      mask: [k, c, c + 2 W] float32.

    Returns:
      [slots, dim] float32; and [slots] float32, 1 = there is a word around.
    """
    s = self.spec
    centers = slice(s.window, token_rows.shape[1] - s.window)
    vectors = s.row_ops.whole(token_rows[:, centers], s.dim)
    lengths = jnp.linalg.norm(vectors, axis=-1, keepdims=True)
    center_weights = weights[:, centers, None]
    vectors = vectors * (center_weights / jnp.maximum(lengths, 1e-30))
    # One product for the sums of vectors and of weights.
    sums = products.weighted_sums(
      mask.transpose(0, 2, 1), jnp.concatenate([vectors, center_weights], -1)
    ).reshape(weights.size, -1)
    sums = sums.at[tokens].get(mode='fill', fill_value=0)
    total = sums[:, -1:]
    return sums[:, :-1] / jnp.maximum(total, 1e-30), (total[:, 0] > 0) * 1.0

  def priors_of(self, rows: jax.Array) -> jax.Array:
    """[..., K] priors of rows [..., K + 1], which hold pi - 1/K."""
    rows = rows[..., :-1]
    # Sums of many small changes are zero but for rounding, which would add up.
    return rows - jnp.mean(rows, -1, keepdims=True) + 1 / rows.shape[-1]

  def export_senses(
    self,
    table_rows: Callable[[str], np.ndarray],
    vocabulary: vocab.Vocabulary,
  ) -> table.Senses:
    """The trained senses with shifted vectors; see `mixture.export_senses`."""
    senses = mixture.export_senses(self, table_rows, vocabulary)
    if not self.rows.num_ambiguous:
      return senses
    mask = self.rows.are_ambiguous()
    is_sense = mask[self.rows.owners()]
    by_word = self.rows.num_ambiguous, self.rows.num_senses
    means, vectors = np.zeros_like(senses.vectors), senses.vectors.copy()
    means[is_sense] = table_rows(MEANS)[:, :-1]
    shifts = shifted(
      senses.mean_vectors()[mask],
      senses.priors[is_sense].reshape(by_word),
      means[is_sense].reshape(*by_word, -1),
    )
    vectors[is_sense] += self.shift * np.asarray(shifts).reshape(
      -1, vectors.shape[1]
    )
    return dataclasses.replace(
      senses,
      vectors=vectors,
      # Text of a query is not subsampled, and more words steady a mean.
      window=2 * senses.window,
      contexts=table.Contexts(means, self.concentration, _HALF_WEIGHT),
    )


jax.tree_util.register_dataclass(
  ContextMixture,
  ['outputs', 'rows', 'weights'],
  [
    'spec', 'chance', 'concentration', 'tied_until', 'shared', 'shift',
    'is_compact',
  ],
  ['lookups'],
)  # fmt: skip


def make(
  spec: base.WindowSpec,
  corpus: base.Corpus,
  outputs: mixture.Outputs,
  mask: np.ndarray,
  num_senses: int,
  min_window: int,
) -> ContextMixture:
  """The mixture; words of the mask [vocab] bool have `num_senses` each.

  Windows are uniform in [min_window, spec.window].
  """
  rows = rows_lib.number(mask, num_senses)
  frequencies = corpus.counts / corpus.counts.sum()
  weights = _HALF_WEIGHT / (_HALF_WEIGHT + frequencies)
  return ContextMixture(
    outputs,
    rows,
    weights.astype(np.float32),
    spec,
    float(corpus.centers[mask].sum()),
    _CONCENTRATION_PER_WORD * (min_window + spec.window),
    lookups=mixture.lookups(spec, outputs, rows, corpus),
  )


def shifted(
  common: jax.Array,
  priors: jax.Array,
  means: jax.Array,
  row_ops: products.RowOps = products.WHOLE_ROWS,
) -> jax.Array:
  """[words, K, d], |r| (m_k - m).

  Of mean rows r [words, d], priors [words, K] and mean contexts m_k
  [words, K, dim].
  """
  squares = row_ops.sum_columns(jnp.sum(common * common, -1))
  differences = means - jnp.einsum('wk,wkd->wd', priors, means)[:, None]
  differences = row_ops.own(differences, common.shape[-1])
  return jnp.sqrt(squares)[:, None, None] * differences
