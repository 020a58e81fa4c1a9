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

Senses are rows. A word has one, or K; of the windows of a step

  [k, c + 2 W] rows   words with one sense: as skip-gram has them
  [slots, K] rows     words with several, one behind the other, padding behind

so that words with one sense pay nothing for the others. There is a slot for
every token, but most steps use few of them, and compute with as many. A slot
meets the targets of the 2 W centers around it, and nothing else.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base, hierarchical, skipgram, targets
from jaxemb.ops import windows
from jaxemb.senses import em, sampled, sense_rows, table, tiles
from jaxemb.tables import spec as spec_lib
from jaxemb.text import vocab

PRIORS = 'priors'
MOMENTUM = 0.05  # of priors; rises to 1 during training
BLOCK = 'block'  # beside the ids of the tables: what the rows are

# The usual room leaves so many deviations above the mean number of slots.
_SLOT_DEVIATIONS, _TILE_DEVIATIONS = 3.0, 1.5


class Placed(NamedTuple):
  """The rows of a step's block of k chunks."""

  targets: targets.Targets
  is_single: jax.Array  # [k, c + 2 W] bool
  # [k (c + 2 W)] int32, of each slot's token among those of all chunks; behind
  # them = none
  places: jax.Array


def tables(
  spec: base.WindowSpec,
  outputs: hierarchical.Tree | sampled.Outputs,
  senses: sense_rows.Senses,
  momentum: float,
  lookups: Mapping[str, np.ndarray] | None,
) -> dict[str, spec_lib.TableSpec]:
  """Senses, outputs, and a row of priors for each ambiguous word.

  A row of priors has one more column, which is always zero.
  """
  lookups = lookups or {}
  specs = {
    skipgram.INPUT: spec_lib.TableSpec(
      skipgram.INPUT,
      senses.num_rows,
      spec.dim,
      0.5 / spec.dim,
      lookups_per_center=lookups.get(skipgram.INPUT),
    ),
    skipgram.OUTPUT: outputs.table(spec, lookups.get(skipgram.OUTPUT)),
  }
  if senses.num_ambiguous:
    specs[PRIORS] = spec_lib.TableSpec(
      PRIORS,
      senses.num_ambiguous,
      senses.num + 1,
      0.0,
      momentum=momentum,
      lookups_per_center=lookups.get(PRIORS),
    )
  return specs


def lookups(
  spec: base.WindowSpec,
  outputs: hierarchical.Tree | sampled.Outputs,
  senses: sense_rows.Senses,
  corpus: base.Corpus,
) -> dict[str, np.ndarray]:
  """Expected lookups of each row of `tables` per center."""
  windows_per_center = skipgram.window_lookups(spec)
  centers = corpus.centers
  result = {
    skipgram.INPUT: windows_per_center * centers[senses.owners()],
    skipgram.OUTPUT: outputs.lookups(spec, corpus),
  }
  if senses.num_ambiguous:
    # Averages of several replicas are averaged, never added up.
    is_ambiguous = senses.priors_rows < senses.num_ambiguous
    result[PRIORS] = 1e6 * windows_per_center * centers[is_ambiguous]
  return result


def export_senses(
  model: Any, rows: Callable[[str], np.ndarray], vocabulary: vocab.Vocabulary
) -> table.Senses:
  """The senses of a trained mixture, of either kind.

  Args:
    model: `Mixture` or `ContextMixture`.
    rows: name of a table -> its float32 rows.
    vocabulary: of the text.
  """
  senses = model.senses
  priors = np.ones(senses.num_rows, np.float32)
  if senses.num_ambiguous:
    chances = em.probabilities(
      jnp.asarray(rows(PRIORS)[:, : senses.num]), model.averages_logs
    )
    # Sums of many small changes: anything below zero is a rounding error.
    chances = np.maximum(np.asarray(chances), 0)
    chances = chances / chances.sum(1, keepdims=True)
    priors[senses.ambiguous_rows()] = chances.reshape(-1)
  return table.Senses(
    list(vocabulary.words),
    np.asarray(vocabulary.counts),
    np.append(senses.first_rows, senses.num_rows).astype(np.int64),
    rows(skipgram.INPUT),
    priors,
    rows(skipgram.OUTPUT),
    None,
    model.spec.negatives,
    model.spec.window,
  )


@dataclasses.dataclass(frozen=True)
class Mixture(base.Model):
  """The mixture over one step's rows."""

  outputs: hierarchical.Tree | sampled.Outputs  # the loss
  senses: sense_rows.Senses
  spec: base.WindowSpec
  # A sense is drawn for every pair; or once for all pairs of an occurrence.
  is_by_pair: bool
  averages_logs: bool  # priors are those of averaged LL, not averaged gammas
  tied_until: float  # share of training in which senses learn the same
  chance: float  # that a token has several senses
  lookups: Mapping[str, np.ndarray] | None = None  # by table, see `TableSpec`

  vectors_table = skipgram.INPUT
  contexts_table = skipgram.OUTPUT

  @property
  def untrained_loss(self) -> float:
    """Of a pair."""
    return self.outputs.untrained_loss

  def specs(self) -> dict[str, spec_lib.TableSpec]:
    """Senses, outputs and priors."""
    return tables(self.spec, self.outputs, self.senses, MOMENTUM, self.lookups)

  def ids(self, batch: base.StepBatch, key: jax.Array) -> dict[str, Any]:
    """Input: [k (c + 2 W) (1 + K)], of k chunks. Priors: [k (c + 2 W)]."""
    s, senses = self.spec, self.senses
    found = self.outputs.find_targets(s, batch, key)
    window = windows.chunk_windows(batch.tokens, s.chunk, s.window)
    placed = sense_rows.place(senses, s.vocab, window)
    ids = {
      skipgram.INPUT: placed.ids,
      skipgram.OUTPUT: found.ids,
      BLOCK: Placed(found, placed.is_single, placed.places),
    }
    if senses.num_ambiguous:
      ids[PRIORS] = placed.priors_ids
    return ids

  def loss(
    self,
    params: tuple[()],
    rows: Mapping[str, jax.Array],
    ids: Mapping[str, Any],
    batch: base.StepBatch,
    key: jax.Array,
  ) -> tuple[jax.Array, base.Aux]:
    """-log P(center | context), summed over the pairs."""
    del params, key
    aux = base.Aux(skipgram.num_contexts(batch).sum())
    s, g, found = self.spec, self.outputs.group, ids[BLOCK]
    sides = batch.left, batch.right
    is_single = found.is_single.astype(jnp.float32)
    num = is_single.size
    near = targets.groups(is_single[..., None], g, s.window)[:, None, :, 0]
    input_rows = rows[skipgram.INPUT]
    dim = input_rows.shape[-1]  # one device's share
    input_rows = input_rows.reshape(-1, dim)
    loss = targets.window_loss(
      s,
      found.targets,
      self.outputs.compact_rest,
      input_rows[:num].reshape(*is_single.shape, dim),
      rows[skipgram.OUTPUT],
      is_single[:, None] * windows.window_mask(*sides, s.chunk, s.window),
      near * windows.window_mask(*sides, g, s.window),
    )
    if not self.senses.num_ambiguous:
      return loss, aux

    of_senses = input_rows[num:].reshape(num, self.senses.num, dim)
    args = of_senses, rows[PRIORS], rows[skipgram.OUTPUT]
    data = found.places, found.targets.lists, batch
    loss += targets.with_grads(self._value, self._value_and_grads, args, data)
    return loss, aux

  def room(self, num_slots: int, depth: int) -> tiles.Room:
    """Of a piece: as much as most steps need.

    Args:
      num_slots: most that there can be.
      depth: most targets of a center.
    """
    near = 2 * self.spec.window
    mean = num_slots * self.chance
    deviation = (mean * (1 - self.chance)) ** 0.5
    # Half of a slot's last tile is padding.
    each = near * self.outputs.mean_targets / tiles.SIZE + 0.5
    return tiles.room(
      num_slots,
      near * depth,
      math.ceil(mean + _SLOT_DEVIATIONS * deviation),
      math.ceil(each * (mean + _TILE_DEVIATIONS * deviation)),
    )

  def _value(self, args: Any, data: Any) -> jax.Array:
    """Loss of the slots.

    Args:
      args: rows of their senses [slots, K, d] and priors [slots, K + 1], and of
        the step's targets.
      data: places of the slots, lists of targets, batch.
    """
    of_senses, priors, target_rows = args
    places, lists, batch = data
    room = self.room(len(places), lists.places.shape[1])

    def add(piece, total):
      rows = tiles.take(piece, of_senses), tiles.take(piece, priors)
      met_rows = tiles.rows_at(target_rows, piece.tiles.places)
      return total + self._piece_loss(*rows, met_rows, piece, batch.progress)

    near = tiles.near(places, lists, batch, self.spec)
    return tiles.each_piece(near, lists, room, add, jnp.float32(0))

  def _value_and_grads(self, args: Any, data: Any) -> tuple[jax.Array, Any]:
    """The same, and its gradients with respect to args."""
    of_senses, priors, target_rows = args
    places, lists, batch = data
    room = self.room(len(places), lists.places.shape[1])

    def add(piece, found):
      total, sense_grads, priors_grads, target_grads = found
      rows = tiles.take(piece, of_senses), tiles.take(piece, priors)
      met_rows = tiles.rows_at(target_rows, piece.tiles.places)
      value, grads = jax.value_and_grad(self._piece_loss, (0, 1, 2))(
        *rows, met_rows, piece, batch.progress
      )
      return (
        total + value,
        tiles.put(piece, sense_grads, grads[0]),
        tiles.put(piece, priors_grads, grads[1]),
        tiles.add_at(target_grads, piece.tiles.places, grads[2]),
      )

    near = tiles.near(places, lists, batch, self.spec)
    zeros = tuple(map(jnp.zeros_like, args))
    value, *grads = tiles.each_piece(
      near, lists, room, add, (jnp.float32(0), *zeros)
    )
    return value, tuple(grads)

  def _piece_loss(self, of_senses, priors, met_rows, piece, progress):
    cases = self.cases(of_senses, priors, met_rows, piece)
    are_tied = progress < self.tied_until
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

  def cases(
    self,
    of_senses: jax.Array,
    priors: jax.Array,
    met_rows: jax.Array,
    piece: tiles.Piece,
  ) -> em.Cases:
    """Draws: one for each pair of a slot and a center, or for each slot.

    Args:
      of_senses: [m, K, d] float32, rows of the piece's slots.
      priors: [m, K + 1] float32, likewise.
      met_rows: [t, n, d] float32, of the targets in its tiles.
      piece: some of the slots of a step.
    """
    mask = piece.near.mask
    if not self.is_by_pair:
      mask = jnp.any(mask, 1, keepdims=True)
    log_joint = tiles.log_likelihoods(
      piece.tiles, of_senses, met_rows, mask.shape[1], self.spec.row_ops
    )
    log_priors = jax.lax.stop_gradient(
      em.log_probabilities(priors[:, :-1], self.averages_logs)
    )
    log_joint += log_priors[..., None]
    return em.Cases(log_joint, mask.astype(jnp.float32), priors)

  def export_senses(
    self, rows: Callable[[str], np.ndarray], vocabulary: vocab.Vocabulary
  ) -> table.Senses:
    """See `export_senses`."""
    return export_senses(self, rows, vocabulary)

  def rows_digest(self) -> str:
    """Identifies which rows are senses of which words."""
    return self.senses.digest()


jax.tree_util.register_dataclass(
  Mixture,
  ['outputs', 'senses'],
  ['spec', 'is_by_pair', 'averages_logs', 'tied_until', 'chance'],
  ['lookups'],
)
