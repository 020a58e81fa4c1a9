"""The skip-gram mixture: several vectors for an ambiguous word (Tian 2014).

A context word I with K senses predicts the center O, for every pair anew by one
of its senses, which is not observed (Tian et al. 2014, eq. 4):

  P(O | I) = sum_k pi_k prod_n sigmoid((1 - 2 code_n) v_k . u_n)

with a vector v_k and a prior pi_k per sense and one vector per output, here an
inner node of a Huffman tree, or words and negatives (our own addition). One
step of EM per training step: with the responsibilities

  gamma_k = softmax_k(LL_k),  LL_k = log pi_k + log P(O | I, k)

vectors move by the gradient of -log P(O | I), which is that of the single-sense
loss with every sense's pairs weighted by gamma_k. Priors are running averages
of gamma, or of LL (see `em.priors_grads`).

A pair tells little of which sense is meant. All pairs of an occurrence have the
same one: drawn once for all of them (`is_by_pair` False), LL_k is the sum over
the window. And what gamma makes of contexts that mean nothing yet would stay:
for a first share of training the senses of a word are tied, and learn the same
from everything (see `em`).

Senses are rows. A word has one, or K; of the window of a chunk

  [c + 2 W] rows    words with one sense: as skip-gram has them
  [slots, K] rows   words with several, one behind the other, padding behind

so that words with one sense pay nothing for the others. There is a slot for
every token, but most steps use few of them, and compute with as many.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import (
  base,
  em,
  sampled,
  sense_rows,
  skipgram,
  targets,
  tree,
)
from jaxemb.ops import windows
from jaxemb.tables import spec as spec_lib

PRIORS = 'priors'
BLOCK = 'block'  # beside the ids of the tables: what the rows are

# The usual number of slots leaves so many deviations above the mean.
_DEVIATIONS = 4.0


class Constants(NamedTuple):
  """What every step reads."""

  outputs: Any  # of the loss
  first_rows: jax.Array
  priors_rows: jax.Array


class Placed(NamedTuple):
  """The rows of a step's block."""

  targets: targets.Targets
  is_single: jax.Array  # [k, c + 2 W] bool
  places: jax.Array  # [k, c + 2 W] int32, of each slot's token; c + 2 W = none


class Sizes(NamedTuple):
  """How much of its room a step computes with."""

  slots: int  # of a chunk
  near: int  # slots of a group's window
  rest: int  # outputs of a group's own


@dataclasses.dataclass(frozen=True)
class Mixture:
  """The model over one step's rows; implements `base.Model`."""

  spec: base.WindowSpec
  outputs: tree.Outputs | sampled.Outputs  # the loss
  senses: sense_rows.Senses
  # A sense is drawn for every pair; or once for all pairs of an occurrence.
  is_by_pair: bool
  averages_logs: bool  # priors are those of averaged LL, not averaged gammas
  tied_until: float  # share of training in which senses learn the same
  usual: Sizes  # in most steps

  vectors_table = skipgram.INPUT

  @property
  def decisions(self) -> float:
    """Binary decisions per pair."""
    return self.outputs.decisions

  def specs(self) -> Mapping[str, spec_lib.TableSpec]:
    """Senses, outputs, and a row of priors for each ambiguous word.

    A row of priors has one more column, which is always zero.
    """
    s, found = self.spec, self.senses
    specs = {
      skipgram.INPUT: spec_lib.TableSpec(
        skipgram.INPUT, found.num_rows, s.dim, 0.5 / s.dim
      ),
      skipgram.OUTPUT: self.outputs.spec(s),
    }
    if found.num_ambiguous:
      specs[PRIORS] = spec_lib.TableSpec(
        PRIORS, found.num_ambiguous, found.num + 1, 0.0, is_averages=True
      )
    return specs

  def constants(self) -> Constants:
    """Of the loss, and where words have their rows."""
    found = self.senses
    return Constants(
      self.outputs.constants(), found.first_rows, found.priors_rows
    )

  def ids(
    self, constants: Constants, batch: base.StepBatch, key: jax.Array
  ) -> dict[str, Any]:
    """Input: [L / c, (c + 2 W) (1 + K)]. Priors: [L / c, c + 2 W]."""
    s, senses = self.spec, self.senses
    found = self.outputs.find(s, constants.outputs, batch, key)
    window = windows.chunk_windows(batch.tokens, s.chunk, s.window)
    words = jnp.minimum(window, s.vocab - 1)
    first = constants.first_rows.at[words].get(mode='promise_in_bounds')
    if not senses.num_ambiguous:
      ids = jnp.where(window < s.vocab, first, senses.num_rows)
      block = Placed(found, jnp.ones_like(window, bool), window[:, :0])
      return {skipgram.INPUT: ids, skipgram.OUTPUT: found.ids, BLOCK: block}
    row = constants.priors_rows.at[words].get(mode='promise_in_bounds')
    is_word = window < s.vocab
    is_ambiguous = is_word & (row < senses.num_ambiguous)
    is_single = is_word & ~is_ambiguous
    # Slot j is of the j-th ambiguous token.
    width = window.shape[1]
    behind = jnp.cumsum(is_ambiguous, 1)
    slots = jnp.arange(width)
    places = jnp.sum(behind[:, None, :] <= slots[None, :, None], 2)
    is_slot = places < width
    taken = jnp.minimum(places, width - 1)
    first_of = jnp.take_along_axis(first, taken, 1)[..., None]
    rows = jnp.where(
      is_slot[..., None],
      first_of + jnp.arange(senses.num)[None, None],
      senses.num_rows,
    )
    single = jnp.where(is_single, first, senses.num_rows)
    return {
      skipgram.INPUT: jnp.concatenate([single, rows.reshape(len(rows), -1)], 1),
      skipgram.OUTPUT: found.ids,
      PRIORS: jnp.where(
        is_slot,
        jnp.take_along_axis(row, taken, 1),
        senses.num_ambiguous,
      ),
      BLOCK: Placed(found, is_single, places),
    }

  def loss(
    self,
    rows: Mapping[str, jax.Array],
    ids: Mapping[str, Any],
    batch: base.StepBatch,
  ) -> jax.Array:
    """-log P(center | context), summed over the pairs, in nats."""
    s, g, found = self.spec, self.outputs.group, ids[BLOCK]
    sides = batch.left, batch.right
    is_single = found.is_single.astype(jnp.float32)
    width = is_single.shape[1]
    near = targets.groups(is_single[..., None], g, s.window)[:, None, :, 0]
    loss = targets.window_loss(
      s,
      found.targets,
      self.outputs.usual_rest,
      rows[skipgram.INPUT][:, :width],
      rows[skipgram.OUTPUT],
      is_single[:, None] * windows.window_mask(*sides, s.chunk, s.window),
      near * windows.window_mask(*sides, g, s.window),
    )
    if not self.senses.num_ambiguous:
      return loss

    are_tied = batch.progress < self.tied_until

    def slots_loss(sizes, rows):
      cases = self.cases(sizes, rows, found, batch)
      chances = jax.lax.stop_gradient(em.responsibilities(cases, are_tied))
      logs = jnp.log(jnp.maximum(chances, 1e-30))
      bounds = jnp.sum(chances * (cases.log_joint - logs), -2)
      value = -jnp.sum(cases.mask * bounds)
      # Worth nothing, with the gradient that priors want.
      grads = jax.lax.stop_gradient(
        em.priors_grads(cases, chances, self.averages_logs)
      )
      nothing = cases.priors - jax.lax.stop_gradient(cases.priors)
      return value + jnp.sum(grads * nothing)

    return loss + targets.usual_or_all(
      self.is_more(found),
      slots_loss,
      (self.usual, self.all_sizes()),
      (dict(rows),),
      s.columns_axis is None,
    )

  def all_sizes(self) -> Sizes:
    """Room for any step."""
    s, g = self.spec, self.outputs.group
    return Sizes(
      s.chunk + 2 * s.window, g + 2 * s.window, self.outputs.most_rest
    )

  def is_more(self, found: Placed) -> jax.Array:
    """bool, whether a step needs more than the usual room."""
    width = found.places.shape[1]
    first, behind = self._near(found)
    is_more = jnp.any(found.places[:, self.usual.slots :] < width)
    is_more |= jnp.any(behind - first > self.usual.near)
    if found.targets.rest_owners is None:
      return is_more
    return is_more | targets.has_more(
      found.targets, self.usual.rest, self.outputs.group
    )

  def _near(self, found: Placed) -> tuple[jax.Array, jax.Array]:
    """[k, c / g] int32: first slot in each group's window, and one behind."""
    s, g = self.spec, self.outputs.group
    starts = jnp.arange(0, s.chunk, g)[None, :, None]
    places = found.places[:, None, :]
    stops = starts + g + 2 * s.window
    return jnp.sum(places < starts, 2), jnp.sum(places < stops, 2)

  def cases(
    self,
    sizes: Sizes,
    rows: Mapping[str, jax.Array],
    found: Placed,
    batch: base.StepBatch,
  ) -> em.Cases:
    """Draws: one for each pair of a slot and a center, or for each slot."""
    s, g, num = self.spec, self.outputs.group, self.senses.num
    num_chunks, width = found.places.shape
    num_groups, dim = s.chunk // g, rows[skipgram.INPUT].shape[-1]
    slots = rows[skipgram.INPUT][:, width : width + sizes.slots * num]
    shared = targets.shared_block(found.targets, slots, rows[skipgram.OUTPUT])
    # [k, slots, K, c / g, g] -> [k, c / g, slots, K, g]
    log_joint = targets.log_likelihoods(shared, s.columns_axis)
    log_joint = log_joint.reshape(
      num_chunks, sizes.slots, num, num_groups, g
    ).transpose(0, 3, 1, 2, 4)
    first, behind = self._near(found)
    near = first[..., None] + jnp.arange(sizes.near)[None, None]
    is_near = near < behind[..., None]
    near = jnp.minimum(near, sizes.slots - 1)

    def of_groups(x):
      # [k, slots, n] -> [k, c / g, near, n]
      flat = near.reshape(num_chunks, -1, 1)
      return jnp.take_along_axis(x, flat, 1).reshape(*near.shape, -1)

    log_joint = jnp.take_along_axis(log_joint, near[..., None, None], 2)
    if found.targets.rest_owners is not None:
      own = of_groups(slots.reshape(num_chunks, sizes.slots, -1))
      rest = targets.rest_block(
        found.targets,
        own.reshape(num_chunks * num_groups, -1, dim),
        rows[skipgram.OUTPUT],
        sizes.rest,
        g,
      )
      more = targets.log_likelihoods(rest, s.columns_axis)
      log_joint += more.reshape(log_joint.shape)
    places = of_groups(found.places[:, : sizes.slots, None])[..., 0]
    mask = self._mask(places, batch)
    mask = (mask & is_near[..., None]).astype(jnp.float32)
    priors = rows[PRIORS][:, : sizes.slots]
    if self.is_by_pair:
      # [k, (c / g) near, ...]
      priors = of_groups(priors).reshape(num_chunks, -1, num + 1)
      log_joint = log_joint.reshape(num_chunks, -1, num, g)
      mask = mask.reshape(num_chunks, -1, g)
    else:
      sums = jnp.sum(mask[..., None, :] * log_joint, -1)
      chunk = jnp.arange(num_chunks)[:, None, None]
      nothing = jnp.zeros((num_chunks, sizes.slots, num))
      log_joint = nothing.at[chunk, near].add(sums)[..., None]
      has_pairs = nothing[..., 0].at[chunk, near].max(jnp.max(mask, -1))
      mask = has_pairs[..., None]
    log_priors = jax.lax.stop_gradient(
      em.log_probabilities(priors[..., :-1], self.averages_logs)
    )
    return em.Cases(log_joint + log_priors[..., None], mask, priors)

  def _mask(self, places: jax.Array, batch: base.StepBatch) -> jax.Array:
    """[k, c / g, near, g] bool, which tokens are contexts of which center."""
    s, g = self.spec, self.outputs.group
    num_groups = s.chunk // g
    centers = jnp.arange(s.chunk).reshape(1, num_groups, 1, g)
    offset = places[..., None] - s.window - centers
    left, right = (
      x.astype(jnp.int32).reshape(-1, num_groups, 1, g)
      for x in (batch.left, batch.right)
    )
    return (offset >= -left) & (offset <= right) & (offset != 0)

  def lookup_rates(
    self, centers: np.ndarray, negatives: np.ndarray
  ) -> dict[str, np.ndarray]:
    """Of the senses of windows, of outputs and of priors."""
    s, senses = self.spec, self.senses
    windows_per_center = (s.chunk + 2 * s.window) / s.chunk
    rates = {
      skipgram.INPUT: windows_per_center * centers[senses.owners()],
      skipgram.OUTPUT: self.outputs.rates(s, centers, negatives),
    }
    if senses.num_ambiguous:
      # Averages of several replicas are averaged, never added up.
      is_ambiguous = senses.priors_rows < senses.num_ambiguous
      rates[PRIORS] = 1e6 * windows_per_center * centers[is_ambiguous]
    return rates

  def num_examples(self, batch: base.StepBatch) -> jax.Array:
    """Number of (center, context) pairs."""
    return skipgram.num_contexts(batch).sum()


def usual_sizes(
  spec: base.WindowSpec,
  outputs: tree.Outputs | sampled.Outputs,
  chance: float,
) -> Sizes:
  """Room that most steps can do with.

  Args:
    spec: sizes.
    outputs: of the loss.
    chance: that a token has several senses.
  """

  def room(width):
    mean = width * chance
    wanted = mean + _DEVIATIONS * (mean * (1 - chance)) ** 0.5
    return min(width, 2 * int(np.ceil(wanted / 2)) or 1)

  width = spec.chunk + 2 * spec.window
  near = outputs.group + 2 * spec.window
  slots = room(width)
  return Sizes(slots, min(room(near), slots), outputs.usual_rest)
