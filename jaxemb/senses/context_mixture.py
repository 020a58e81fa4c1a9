"""The mixture whose senses are told by the words around: stochastic EM.

Beside its pairs a context word I has x, the mean of the unit vectors of the
words around it, in which frequent words weigh less (Arora et al. 2017):

  P(O, x | I) = sum_k pi_k N(x; m_k, 1 / (2 kappa)) P(O | I, k)

with a mean m_k for each sense. What a pair says of the sense is the likelihood
of one word; x says what the text there is about, and is left alone with the E
step:

  gamma_k = softmax_k( log pi_k - kappa |x - m_k|^2 )

This is the soft k-means of contexts that multi-sense skip-gram has as a hard
one (MSSG, Neelakantan et al. 2014). One sense is drawn from gamma and stands in
the window as a word's only vector does, so that a step costs little more than
that of skip-gram; means move towards the x of the draws, priors towards gamma.
The mean of these steps is the M step (Celeux and Diebolt 1985). The senses of a
word start as one, and are told apart by the draws.

The text of a sense is short, and the senses of a word have much in common. Of
what the drawn sense learns the others learn a share; and what sets a sense
apart is first of all where it occurs, so that its vector is

  v_k = r_k + shift |r| (m_k - m)

with a row r_k, the word's mean row r and mean context m, both weighted by
priors. So are the vectors in P(O | I, k) and those that users get.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base, hierarchical, skipgram, targets
from jaxemb.ops import products, sampling, windows
from jaxemb.senses import em, mixture, sampled, sense_rows, table
from jaxemb.tables import spec as spec_lib
from jaxemb.text import vocab

MEANS = 'context_means'
MOMENTUM = 0.9  # of priors and means; rises to 1 during training
HALF_WEIGHT = 1e-3  # relative frequency of a word of weight 1/2 in contexts
# Per word of a context: a mean of n words has 1/n of the variance. SCWS scores
# are best with 25 where windows of up to 5 words have 6 on average.
_CONCENTRATION_PER_WORD = 25 / 6
_ROOM, _MOST = 1.2, 0.8  # shares, of the mean and of all tokens
_KEY = np.uint32(0x7F4A7C15)  # what is drawn here is not what negatives are


class Placed(NamedTuple):
  """The rows of a step's block of k chunks, and what is drawn by."""

  targets: targets.Targets
  places: jax.Array  # [slots] int32, as `sense_rows.Slots` has them
  weights: jax.Array  # [k, c + 2 W] float32, of tokens in contexts
  uniforms: jax.Array  # [slots] float32


@dataclasses.dataclass(frozen=True)
class ContextMixture(base.Model):
  """The mixture over one step's rows."""

  outputs: hierarchical.Tree | sampled.Outputs  # the loss
  senses: sense_rows.Senses
  weights: Any  # [vocab] float32, of words in contexts
  spec: base.WindowSpec
  concentration: float  # kappa
  chance: float  # that a token has several senses
  tied_until: float = 0.2  # fraction of training in which all senses of a word
  # share their gradients, as contexts mean nothing yet
  shared: float = 0.9  # fraction of a sense's gradient that its siblings get
  shift: float = 1.25  # of vectors towards the contexts of their sense
  is_compact: bool = False  # has room for as many of them as most steps have
  lookups: Mapping[str, np.ndarray] | None = None  # by table, see `TableSpec`

  vectors_table = skipgram.INPUT
  contexts_table = skipgram.OUTPUT
  averages_logs = False  # priors are averages of gamma

  @property
  def untrained_loss(self) -> float:
    """Of a pair."""
    return self.outputs.untrained_loss

  def specs(self) -> dict[str, spec_lib.TableSpec]:
    """As `mixture.tables`, and a row of means for each of several senses.

    A row of means has one more column, which is always zero.
    """
    senses = self.senses
    specs = mixture.tables(
      self.spec, self.outputs, senses, MOMENTUM, self.lookups
    )
    if senses.num_ambiguous:
      num, width = senses.num_ambiguous * senses.num, self.spec.dim + 1
      lookups = None
      if self.lookups:
        lookups = np.repeat(self.lookups[mixture.PRIORS], senses.num)
      specs[MEANS] = spec_lib.TableSpec(
        MEANS,
        num,
        width,
        0.0,
        momentum=MOMENTUM,
        lookups_per_center=lookups,
      )
    return specs

  @property
  def compact(self) -> base.Model | None:
    """The same with room for as many slots as most steps need."""
    # Where most tokens have several senses little is saved.
    most = _ROOM * self.chance > _MOST
    if self.is_compact or not self.senses.num_ambiguous or most:
      return None
    return dataclasses.replace(self, is_compact=True)

  def fits(self, batch: base.StepBatch) -> jax.Array:
    """bool, whether the step is one of those."""
    s = self.spec
    window = windows.chunk_windows(batch.tokens, s.chunk, s.window)
    found = sense_rows.are_ambiguous(self.senses, s.vocab, window)
    return jnp.sum(found) <= self._compact_room(window.size)

  def _compact_room(self, num_tokens: int) -> int:
    mean = num_tokens * self.chance
    # A text has more of some words here than there.
    return min(math.ceil(_ROOM * mean + 3 * mean**0.5 + 1), num_tokens)

  def ids(self, batch: base.StepBatch, key: jax.Array) -> dict[str, Any]:
    """Input: [k (c + 2 W) + S K], of k chunks, S slots. Means: [S, K]."""
    s, senses = self.spec, self.senses
    found = self.outputs.find_targets(s, batch, key)
    window = windows.chunk_windows(batch.tokens, s.chunk, s.window)
    room = self._compact_room(window.size) if self.is_compact else None
    slots = sense_rows.place(senses, s.vocab, window, room)
    ids = {skipgram.INPUT: slots.ids, skipgram.OUTPUT: found.ids}
    weights = self.weights.at[window].get(mode='fill', fill_value=0)
    offsets = jnp.arange(window.shape[1], dtype=jnp.uint32)[None]
    positions = batch.chunks[:, None] * np.uint32(window.shape[1]) + offsets
    bits = sampling.random_bits(key ^ _KEY, positions.reshape(-1))
    uniforms = (bits >> 8).astype(jnp.float32) * np.float32(2**-24)
    uniforms = uniforms.at[slots.places].get(mode='clip')
    if senses.num_ambiguous:
      ids[mixture.PRIORS] = slots.priors_ids
      every = jnp.arange(senses.num)[None]
      means = senses.num * slots.priors_ids[:, None] + every
      ids[MEANS] = jnp.minimum(means, senses.num_ambiguous * senses.num)
    ids[mixture.BLOCK] = Placed(found, slots.places, weights, uniforms)
    return ids

  def loss(
    self,
    params: tuple[()],
    rows: Mapping[str, jax.Array],
    ids: Mapping[str, Any],
    batch: base.StepBatch,
    key: jax.Array,
  ) -> tuple[jax.Array, base.Aux]:
    """-log P(center | context, drawn sense), summed over pairs."""
    del params, key
    s, found = self.spec, ids[mixture.BLOCK]
    sides = batch.left, batch.right
    mask = windows.window_mask(*sides, s.chunk, s.window)
    token_rows, nothing = rows[skipgram.INPUT], 0.0
    if self.senses.num_ambiguous:
      token_rows, nothing = self.drawn(rows, found, mask, batch.progress)
    loss = nothing + targets.window_loss(
      s,
      found.targets,
      self.outputs.compact_rest,
      token_rows,
      rows[skipgram.OUTPUT],
      mask,
      windows.window_mask(*sides, self.outputs.group, s.window),
    )
    return loss, base.Aux(skipgram.num_contexts(batch).sum())

  def drawn(
    self,
    rows: Mapping[str, jax.Array],
    found: Placed,
    mask: jax.Array,
    progress: jax.Array | float,
  ) -> tuple[jax.Array, jax.Array]:
    """Vectors of tokens: of those with several senses, that of the drawn one.

    Args:
      rows: of the tables.
      found: what they are of.
      mask: [k, c, c + 2 W] float32, which tokens are contexts of which center.
      progress: share of training behind.

    Returns:
      [k, c + 2 W, d] float32; and 0, with the gradients that averages want.
    """
    num, input_rows = found.weights.size, rows[skipgram.INPUT]
    dim = input_rows.shape[-1]  # one device's share
    of_senses = input_rows[num:].reshape(-1, self.senses.num, dim)

    def with_slots(slots):
      filled = input_rows[:num].at[found.places].set(slots, mode='drop')
      return filled.reshape(*found.weights.shape, dim)

    priors = em.probabilities(rows[mixture.PRIORS][:, :-1], self.averages_logs)
    common = jax.lax.stop_gradient(jnp.einsum('sk,skd->sd', priors, of_senses))
    contexts, is_some = jax.lax.stop_gradient(
      self.contexts(with_slots(common), found, mask)
    )
    are_tied = progress < self.tied_until
    cases, apart = self.cases(rows, contexts, is_some)
    chances = jax.lax.stop_gradient(em.responsibilities(cases, are_tied))
    sums = jnp.cumsum(chances[:, :-1, 0], 1)
    chosen = jax.nn.one_hot(
      jnp.sum(sums < found.uniforms[:, None], 1), self.senses.num
    )
    # Those that start apart by chance are one as long as they are tied.
    meant = jnp.where(are_tied, jnp.eye(self.senses.num)[:1], chosen)
    meant_rows = jnp.einsum('sk,skd->sd', meant, of_senses)
    shared = jnp.where(are_tied, 1.0, self.shared)
    learning = (1 - shared) * meant_rows + shared * of_senses.sum(1)
    slots = learning + jax.lax.stop_gradient(meant_rows - learning)
    shifts = self.shift * shifted(
      common, priors, rows[MEANS][..., :-1], self.spec.row_ops
    )
    shifts = jnp.einsum('sk,skd->sd', meant, jax.lax.stop_gradient(shifts))
    slots += jnp.where(are_tied, 0.0, shifts)

    counts = (chosen * is_some[:, None])[..., None]
    means_grads = jnp.concatenate([counts * apart, counts], -1)
    nothing = _with_gradient(
      cases.priors, em.priors_grads(cases, chances, self.averages_logs)
    )
    return with_slots(slots), nothing + _with_gradient(rows[MEANS], means_grads)

  def cases(
    self, rows: Mapping[str, jax.Array], contexts: jax.Array, is_some: jax.Array
  ) -> tuple[em.Cases, jax.Array]:
    """Of each slot one, without a derivative; and m_k - x, [slots, K, dim].

    Args:
      rows: of the tables.
      contexts: [slots, dim] float32, x.
      is_some: [slots] float32, 1 = there is one.
    """
    priors, means = rows[mixture.PRIORS], rows[MEANS][..., :-1]
    apart = jax.lax.stop_gradient(means - contexts[:, None])
    logs = em.log_probabilities(
      jax.lax.stop_gradient(priors[:, :-1]), self.averages_logs
    )
    logs -= self.concentration * jnp.sum(apart * apart, -1)
    return em.Cases(logs[..., None], is_some[:, None], priors), apart

  def contexts(
    self, token_rows: jax.Array, found: Placed, mask: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Means around the slots, x: of the centers that a token is a context of.

    Args:
      token_rows: [k, c + 2 W, d] float32, d one device's share of dim.
      found: what they are of.
      mask: [k, c, c + 2 W] float32.

    Returns:
      [slots, dim] float32; and [slots] float32, whether there is a word around.
    """
    s = self.spec
    centers = slice(s.window, token_rows.shape[1] - s.window)
    vectors = s.row_ops.whole(token_rows[:, centers], s.dim)
    lengths = jnp.linalg.norm(vectors, axis=-1, keepdims=True)
    weights = found.weights[:, centers, None]
    vectors = vectors * (weights / jnp.maximum(lengths, 1e-30))
    near = mask.transpose(0, 2, 1)
    # One product for both.
    sums = products.weighted_sums(
      near, jnp.concatenate([vectors, weights], -1)
    ).reshape(found.weights.size, -1)
    sums = sums.at[found.places].get(mode='fill', fill_value=0)
    total = sums[:, -1:]
    return sums[:, :-1] / jnp.maximum(total, 1e-30), (total[:, 0] > 0) * 1.0

  def export_senses(
    self, rows: Callable[[str], np.ndarray], vocabulary: vocab.Vocabulary
  ) -> table.Senses:
    """The trained senses, their vectors moved by `shifted`; see `mixture`."""
    senses = mixture.export_senses(self, rows, vocabulary)
    if not self.senses.num_ambiguous:
      return senses
    is_ambiguous = self.senses.ambiguous_rows()
    by_word = self.senses.num_ambiguous, self.senses.num
    means, vectors = np.zeros_like(senses.vectors), senses.vectors.copy()
    means[is_ambiguous] = rows(MEANS)[:, :-1]
    shifts = shifted(
      senses.mean_vectors()[np.diff(senses.starts) > 1],
      senses.priors[is_ambiguous].reshape(by_word),
      means[is_ambiguous].reshape(*by_word, -1),
    )
    vectors[is_ambiguous] += self.shift * np.asarray(shifts).reshape(
      -1, vectors.shape[1]
    )
    # Text of a query is not subsampled, and more words steady a mean.
    return dataclasses.replace(
      senses,
      vectors=vectors,
      window=2 * senses.window,
      contexts=table.Contexts(means, self.concentration, HALF_WEIGHT),
    )

  def rows_digest(self) -> str:
    """Identifies which rows are senses of which words."""
    return self.senses.digest()


jax.tree_util.register_dataclass(
  ContextMixture,
  ['outputs', 'senses', 'weights'],
  [
    'spec',
    'concentration',
    'chance',
    'tied_until',
    'shared',
    'shift',
    'is_compact',
  ],
  ['lookups'],
)


def concentration(shortest_window: int, window: int) -> float:
  """Returns kappa for windows drawn uniformly from shortest_window..window."""
  return _CONCENTRATION_PER_WORD * (shortest_window + window)


def shifted(
  common: jax.Array,
  chances: jax.Array,
  means: jax.Array,
  row_ops: products.RowOps = products.WHOLE_ROWS,
) -> jax.Array:
  """[words, K, d], |r| (m_k - m).

  Args:
    common: [words, d] float32, r; d one device's share of dim.
    chances: [words, K] float32, priors.
    means: [words, K, dim] float32, of contexts.
    row_ops: of the layout that holds the rows.
  """
  squares = row_ops.sum_columns(jnp.sum(common * common, -1))
  apart = means - jnp.einsum('wk,wkd->wd', chances, means)[:, None]
  apart = row_ops.own(apart, common.shape[-1])
  return jnp.sqrt(squares)[:, None, None] * apart


def _with_gradient(rows: jax.Array, grads: jax.Array) -> jax.Array:
  """0, of which rows have these gradients."""
  nothing = rows - jax.lax.stop_gradient(rows)
  return jnp.sum(jax.lax.stop_gradient(grads) * nothing)
