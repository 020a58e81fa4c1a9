"""The mixture whose senses are inferred from contexts, by stochastic EM.

An occurrence of a context word I has x, the mean of the unit vectors of the
words around it, in which frequent words weigh less (Arora et al. 2017). With a
mean m_k for each sense the mixture of x and of its pairs is

  P(O, x | I) = sum_k pi_k N(x; m_k, 1 / (2 kappa)) P(O | I, k)

A pair carries little information beside x and is left out of the E step:

  gamma_k = softmax_k( log pi_k - kappa |x - m_k|^2 )

This is soft k-means of contexts; multi-sense skip-gram (MSSG, Neelakantan et
al. 2014) is the hard version. One sense is drawn from gamma and replaces the
vector of the word in the window, so a step costs little more than one of
skip-gram. Means are running averages of the x of their draws, priors of gamma
(stochastic EM, Celeux and Diebolt 1985). The senses of a word start equal, and
the draws separate them.

A sense is rare and has much in common with the other senses of its word, which
get a fraction of its gradient. As senses differ above all in their contexts,
the vector of a sense, in P(O | I, k) and in the export, is

  v_k = r_k + shift |r| (m_k - m)

with a row r_k and the mean row r and mean context m of the word, both weighted
by priors.
"""

import dataclasses
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import windows
from jaxemb.models import base, columns
from jaxemb.ops import sampling
from jaxemb.senses import mixture

MEANS = 'context_means'
WEIGHTS, UNIFORMS = 'weights', 'uniforms'  # entries of the ids
_MOMENTUM = 0.9  # of priors and means; rises to 1 during training
_HALF_WEIGHT = 1e-3  # relative frequency of a word of weight 1/2 in contexts
# kappa per word of a context: a mean of n words has 1/n of the variance. 25 is
# best on SCWS where contexts have 6 words on average (windows of up to 5).
_CONCENTRATION_PER_WORD = 25 / 6
# Slots of the compact variant per expected slot; its largest part of tokens.
_COMPACT, _MAX_COMPACT = 1.2, 0.8
_WORDS_AT_ONCE = 1 << 12  # whose senses are exported: arrays of all take memory
_KEY = np.uint32(0x7F4A7C15)  # makes draws independent of the negatives


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ContextMixture(mixture.Mixture):
  """The mixture whose senses are inferred from contexts."""

  weights: Any  # [vocab] float32, of words in contexts
  chance: float = base.static()  # probability of ambiguous tokens
  concentration: float = base.static()  # kappa
  # Progress up to which senses share all gradients: contexts are still random.
  tied_until: float = base.static(default=0.2)
  shared: float = base.static(default=0.9)  # fraction of a gradient
  shift: float = base.static(default=1.25)  # of vectors towards mean contexts
  is_compact: bool = base.static(default=False)  # has slots for most steps

  @property
  def compact(self) -> base.Model | None:
    """Returns the variant with as many slots as most steps need."""
    if self.is_compact or _COMPACT * self.chance > _MAX_COMPACT:
      return None
    return dataclasses.replace(self, is_compact=True)

  def fits(self, batch: windows.StepBatch) -> jax.Array:
    """Returns whether the compact variant has enough slots, a bool."""
    is_ambiguous = self.rows.find_ambiguous(batch.windows())
    return jnp.sum(is_ambiguous) <= self._compact_slots(is_ambiguous.size)

  def _compact_slots(self, num_tokens: int) -> int:
    mean = num_tokens * self.chance
    # Texts are clustered.
    slots = math.ceil(_COMPACT * mean + 3 * mean**0.5 + 1)
    return min(slots, num_tokens)

  def ids(self, batch, key):
    """Returns the ids of `Mixture.ids`, and of means [S, K].

    Also returns weights [k, c + 2 W] float32 of tokens in contexts, and uniform
    numbers [S] float32 to draw senses with.
    """
    rows = self.rows
    window = batch.windows()
    num_slots = self._compact_slots(window.size) if self.is_compact else None
    ids = super().ids(batch, key, num_slots)
    slots = ids[mixture.SLOTS]
    ids[WEIGHTS] = self.weights.at[window].get(mode='fill', fill_value=0)
    width = window.shape[1]
    positions = jnp.arange(width, dtype=jnp.uint32)[None]
    positions += batch.chunks[:, None] * np.uint32(width)
    positions = positions.reshape(-1).at[slots.tokens].get(mode='clip')
    bits = sampling.random_bits(key ^ _KEY, positions)
    ids[UNIFORMS] = (bits >> 8).astype(jnp.float32) * np.float32(2**-24)
    means = rows.num_senses * slots.priors_ids[:, None]
    means += jnp.arange(rows.num_senses)[None]
    ids[MEANS] = jnp.minimum(means, rows.num_ambiguous * rows.num_senses)
    return ids

  def _with_senses(self, token_rows, senses, rows, ids, batch, mask):
    """Returns vectors of drawn senses, and gradients of running averages."""
    weights, tokens = ids[WEIGHTS], ids[mixture.SLOTS].tokens

    def with_slots(slots):
      flat = token_rows.reshape(weights.size, -1)
      return flat.at[tokens].set(slots, mode='drop').reshape(token_rows.shape)

    fixed, num_senses = jax.lax.stop_gradient, self.rows.num_senses
    averages = rows[mixture.PRIORS], rows[MEANS]
    prior_rows, mean_rows = fixed(averages)
    priors = self.priors_of(prior_rows)
    common = fixed(jnp.einsum('sk,skd->sd', priors, senses))
    contexts, has_context = self._contexts(
      fixed(with_slots(common)), weights, tokens, mask=mask
    )
    # E step.
    are_tied = batch.progress < self.tied_until
    means = mean_rows[..., :-1]
    distances = means - contexts[:, None]
    logs = mixture.log_priors(priors)
    logs -= self.concentration * jnp.sum(distances * distances, -1)
    gamma = jax.nn.softmax(jnp.where(are_tied, 0.0, logs), axis=-1)
    # Tied senses may differ initially: all are read as the first.
    sums = jnp.cumsum(gamma[:, :-1], 1)
    drawn = jax.nn.one_hot(
      jnp.sum(sums < ids[UNIFORMS][:, None], 1), num_senses
    )
    used = jnp.where(are_tied, jnp.eye(num_senses)[:1], drawn)
    used_rows = jnp.einsum('sk,skd->sd', used, senses)
    shared = jnp.where(are_tied, 1.0, self.shared)
    learning = (1 - shared) * used_rows + shared * senses.sum(1)
    slots = learning + fixed(used_rows - learning)
    shifts = self.shift * shifted(
      common, priors, means, row_ops=self.spec.row_ops
    )
    shifts = jnp.einsum('sk,skd->sd', used, shifts)
    slots += jnp.where(are_tied, 0.0, shifts)
    # M step.
    num_seen = has_context[:, None]
    observed = num_seen * gamma - num_seen / num_senses
    prior_grads = num_seen * prior_rows[:, :-1] - observed
    counts = (drawn * num_seen)[..., None]
    grads = (
      jnp.concatenate([prior_grads, num_seen], -1),
      jnp.concatenate([counts * distances, counts], -1),
    )
    return with_slots(slots), mask, (0.0, averages, grads)

  def _contexts(self, token_rows, weights, tokens, mask):
    """Returns x of each slot, from the centers around it: [slots, dim] float32.

    Takes rows [k, c + 2 W, d] and weights [k, c + 2 W] of all tokens. Also
    returns [slots] float32, 1 = there is a center.
    """
    s = self.spec
    centers = slice(s.window, s.window + s.chunk)
    vectors = s.row_ops.whole(token_rows[:, centers], s.dim)
    lengths = jnp.linalg.norm(vectors, axis=-1, keepdims=True)
    center_weights = weights[:, centers, None]
    vectors = vectors * (center_weights / jnp.maximum(lengths, 1e-30))
    # One product for the sums of vectors and of weights.
    sums = columns.weighted_sums(
      mask.transpose(0, 2, 1), jnp.concatenate([vectors, center_weights], -1)
    ).reshape(weights.size, -1)
    sums = sums.at[tokens].get(mode='fill', fill_value=0)
    total = sums[:, -1:]
    return sums[:, :-1] / jnp.maximum(total, 1e-30), (total[:, 0] > 0) * 1.0

  def priors_of(self, rows: jax.Array) -> jax.Array:
    """Returns priors [..., K] of rows [..., K + 1], which hold pi - 1/K."""
    rows = rows[..., :-1]
    # Changes sum to zero up to rounding errors, which would accumulate.
    return rows - jnp.mean(rows, -1, keepdims=True) + 1 / rows.shape[-1]

  def num_derived(self, num_keys):
    """See `base.Model`: shifted vectors, and means of all rows."""
    return 2 * self.rows.num * self.spec.dim

  def export_senses(self, table_rows, words, counts):
    """Returns the trained senses with shifted vectors."""
    senses = super().export_senses(table_rows, words, counts)
    mask = self.rows.are_ambiguous()
    is_sense = mask[self.rows.owners()]
    common = senses.mean_vectors()[mask]
    means, vectors = np.zeros_like(senses.vectors), senses.vectors.copy()
    means[is_sense] = table_rows(MEANS)[:, :-1]
    by_word = np.flatnonzero(is_sense).reshape(-1, self.rows.num_senses)
    for start in range(0, len(by_word), _WORDS_AT_ONCE):
      rows = by_word[start : start + _WORDS_AT_ONCE]
      shifts = shifted(
        common[start : start + len(rows)], senses.priors[rows], means[rows]
      )
      vectors[rows] += self.shift * np.asarray(shifts)
    return dataclasses.replace(
      senses,
      vectors=vectors,
      # Text of a query is not subsampled, and means of more words vary less.
      window=2 * senses.window,
      means=means,
      concentration=self.concentration,
      half_weight=_HALF_WEIGHT,
    )


def make(
  spec: base.WindowSpec,
  corpus: base.Corpus,
  outputs: mixture.Outputs,
  mask: np.ndarray,
  num_senses: int,
  min_window: int,
) -> ContextMixture:
  """Returns the mixture for windows uniform in [min_window, spec.window].

  Other arguments are those of `mixture.make`.
  """
  rows = mixture.number(mask, num_senses)
  tables = mixture.tables(spec, corpus, outputs, rows=rows, momentum=_MOMENTUM)
  # A row of means has one more column, which stays zero, like that of priors.
  priors = tables[-1]
  lookups = cast(np.ndarray, priors.lookups_per_center)
  means = dataclasses.replace(
    priors,
    name=MEANS,
    vocab=priors.vocab * num_senses,
    dim=spec.dim + 1,
    lookups_per_center=np.repeat(lookups, num_senses),
  )
  tables = *tables, means
  frequencies = corpus.counts / corpus.counts.sum()
  weights = _HALF_WEIGHT / (_HALF_WEIGHT + frequencies)
  return ContextMixture(
    spec=spec,
    tables=tables,
    outputs=outputs,
    rows=rows,
    weights=weights.astype(np.float32),
    chance=float(corpus.centers[mask].sum()),
    concentration=_CONCENTRATION_PER_WORD * (min_window + spec.window),
  )


def shifted(
  common: jax.Array,
  priors: jax.Array,
  means: jax.Array,
  row_ops: columns.RowOps = columns.WHOLE_ROWS,
) -> jax.Array:
  """Returns |r| (m_k - m), [words, K, d].

  Takes r [words, d], priors [words, K] and m_k [words, K, dim].
  """
  squares = row_ops.sum_columns(jnp.sum(common * common, -1))
  differences = means - jnp.einsum('wk,wkd->wd', priors, means)[:, None]
  differences = row_ops.own(differences, common.shape[-1])
  return jnp.sqrt(squares)[:, None, None] * differences
