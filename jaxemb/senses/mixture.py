"""The skip-gram mixture: several vectors for an ambiguous word (Tian 2014).

A context word I with K senses predicts the center O, pair by pair, by one of
its senses, which is latent (Tian et al. 2014, eq. 4):

  P(O | I) = sum_k pi_k prod_n sigmoid((1 - 2 code_n) v_k . u_n)

with a vector v_k and a prior pi_k per sense and one vector per output: an inner
node of a Huffman tree, or words and negatives (our addition). Each training
step is one step of EM. With the responsibilities

  gamma_k = softmax_k(LL_k),  LL_k = log pi_k + log P(O | I, k)

the gradient of -log P(O | I) is that of the single-sense loss with the pairs of
sense k weighted by gamma_k. Priors are pi = softmax(a) of the running averages
a <- m a + (1 - m) LL, as in the authors' code (store_multinomial = 0).

Words with one sense are computed as in `models.targets`. The token of a slot
(an ambiguous token, see `senses.rows`) is a context of up to 2 W centers, each
with a list of up to D targets. Slots are computed in blocks, as many as a step
has.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base, hierarchical, skipgram, targets
from jaxemb.ops import losses, sampling, windows
from jaxemb.senses import rows as rows_lib
from jaxemb.senses import table
from jaxemb.tables import spec as spec_lib
from jaxemb.text import vocab

PRIORS = 'priors'
TARGETS, SLOTS = 'targets', 'slots'  # beside the ids of the tables
_MOMENTUM = 0.05  # of priors; rises to 1 during training
_NUM_BLOCKS = 16  # if all tokens of a step are ambiguous


@dataclasses.dataclass(frozen=True)
class Sampled:
  """Negative sampling of centers, in place of the tree of `hierarchical`.

  As in `models.skipgram`, a chunk of c centers shares N negatives of weight
  K / N, and a negative that equals a pair's own word does not count. Here the
  contexts predict the center; the pairs are the same.
  """

  negatives: sampling.Alias
  decisions: float  # per pair
  group: int  # c
  compact_rest: int = 0

  loss = 'negative_sampling'

  @property
  def untrained_loss(self) -> float:
    """Nats per pair."""
    return self.decisions * math.log(2)

  def table(
    self, spec: base.WindowSpec, lookups: np.ndarray | None
  ) -> spec_lib.TableSpec:
    """The table of output vectors."""
    return spec_lib.TableSpec(
      skipgram.OUTPUT, spec.vocab, spec.dim, 0.0, lookups_per_center=lookups
    )

  def lookups(self, spec: base.WindowSpec, corpus: base.Corpus) -> np.ndarray:
    """[vocab] float64, expected lookups of each row per center."""
    negatives = skipgram.negative_probabilities(corpus.counts)
    return corpus.centers + spec.shared_negatives / spec.chunk * negatives

  def find_targets(
    self, spec: base.WindowSpec, batch: base.StepBatch, key: jax.Array
  ) -> targets.Targets:
    """Centers and negatives: [L / c, c + N] ids."""
    draws = skipgram.draw_negatives(spec, self.negatives, batch, key)
    centers = skipgram.centers(spec, batch)
    differs = (centers[:, :, None] != draws[:, None, :]).astype(jnp.float32)
    own = jnp.broadcast_to(
      jnp.eye(spec.chunk)[None], (len(centers), spec.chunk, spec.chunk)
    )
    weights = spec.negatives / spec.shared_negatives * differs
    ids = jnp.concatenate([centers, draws], 1)
    # The list of a center: itself, and the negatives of its chunk.
    places = jnp.arange(ids.size).reshape(ids.shape)
    drawn = jnp.broadcast_to(places[:, None, spec.chunk :], weights.shape)
    places = jnp.concatenate([places[:, : spec.chunk, None], drawn], 2)
    list_weights = jnp.concatenate(
      [jnp.ones_like(weights[..., :1]), -weights], 2
    )
    depth = places.shape[-1]
    lists = targets.Lists(
      places.reshape(-1, depth),
      list_weights.reshape(-1, depth),
      jnp.broadcast_to(jnp.array([depth, 0]), (centers.size, 2)),
      depth,
    )
    return targets.Targets(
      ids,
      jnp.concatenate([own, weights], 2),
      jnp.concatenate([own, jnp.zeros_like(differs)], 2),
      lists,
    )


jax.tree_util.register_dataclass(
  Sampled, ['negatives'], ['decisions', 'group', 'compact_rest']
)
Outputs = hierarchical.Tree | Sampled


def sampled(spec: base.WindowSpec, corpus: base.Corpus) -> Sampled:
  """Negative sampling for a corpus."""
  return Sampled(
    sampling.alias_table(skipgram.negative_probabilities(corpus.counts)),
    1.0 + spec.negatives,
    spec.chunk,
  )


def lookups(
  spec: base.WindowSpec,
  outputs: Outputs,
  rows: rows_lib.Rows,
  corpus: base.Corpus,
) -> dict[str, np.ndarray]:
  """Expected lookups of each row of `tables` per center."""
  windows_per_center = skipgram.window_lookups(spec)
  result = {
    skipgram.INPUT: windows_per_center * corpus.centers[rows.owners()],
    skipgram.OUTPUT: outputs.lookups(spec, corpus),
  }
  if rows.num_ambiguous:
    # So many that replicas always average running averages, never add them.
    ambiguous = corpus.centers[rows.are_ambiguous()]
    result[PRIORS] = 1e6 * windows_per_center * ambiguous
  return result


def tables(
  spec: base.WindowSpec,
  outputs: Outputs,
  rows: rows_lib.Rows,
  momentum: float,
  lookups: Mapping[str, np.ndarray],
) -> dict[str, spec_lib.TableSpec]:
  """Vectors, outputs, and a row of priors for each ambiguous word.

  A row of priors has one more column, which stays zero: its gradient counts the
  observations of the step.
  """
  specs = skipgram.tables(dataclasses.replace(spec, vocab=rows.num), lookups)
  specs[skipgram.OUTPUT] = outputs.table(spec, lookups.get(skipgram.OUTPUT))
  if rows.num_ambiguous:
    specs[PRIORS] = spec_lib.TableSpec(
      PRIORS,
      rows.num_ambiguous,
      rows.num_senses + 1,
      0.0,
      momentum=momentum,
      lookups_per_center=lookups.get(PRIORS),
    )
  return specs


def with_gradient(rows: jax.Array, grads: jax.Array) -> jax.Array:
  """0, with these gradients with respect to the rows."""
  zeros = rows - jax.lax.stop_gradient(rows)
  return jnp.sum(jax.lax.stop_gradient(grads) * zeros)


def log_priors(priors: jax.Array) -> jax.Array:
  """[..., K] float32, not below `losses.MIN_LOG`."""
  logs = jnp.log(jnp.maximum(priors, 1e-30))
  return jnp.maximum(logs, losses.MIN_LOG)


def export_senses(
  model: Any,
  table_rows: Callable[[str], np.ndarray],
  vocabulary: vocab.Vocabulary,
) -> table.Senses:
  """The senses of a trained mixture, from the float32 rows of its tables."""
  rows = model.rows
  priors = np.ones(rows.num, np.float32)
  if rows.num_ambiguous:
    chances = np.asarray(model.priors_of(jnp.asarray(table_rows(PRIORS))))
    # Sums of many small changes: what is below zero is a rounding error.
    chances = np.maximum(chances, 0)
    chances = chances / chances.sum(1, keepdims=True)
    priors[rows.are_ambiguous()[rows.owners()]] = chances.reshape(-1)
  return table.Senses(
    list(vocabulary.words),
    np.asarray(vocabulary.counts),
    np.append(rows.first, rows.num).astype(np.int64),
    table_rows(skipgram.INPUT),
    priors,
    table_rows(skipgram.OUTPUT),
    model.outputs.loss,
    model.spec.negatives,
    model.spec.window,
  )


@dataclasses.dataclass(frozen=True)
class Mixture(base.Model):
  """The mixture over one step's rows."""

  outputs: Outputs  # the loss
  rows: rows_lib.Rows
  spec: base.WindowSpec
  lookups: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

  vectors_table = skipgram.INPUT
  contexts_table = skipgram.OUTPUT

  @property
  def untrained_loss(self) -> float:
    """Of a pair."""
    return self.outputs.untrained_loss

  def specs(self) -> dict[str, spec_lib.TableSpec]:
    """Vectors, outputs and priors."""
    return tables(self.spec, self.outputs, self.rows, _MOMENTUM, self.lookups)

  def ids(self, batch: base.StepBatch, key: jax.Array) -> dict[str, Any]:
    """Input: [k (c + 2 W) (1 + K)], of k chunks. Priors: [k (c + 2 W)]."""
    s = self.spec
    found = self.outputs.find_targets(s, batch, key)
    window = windows.chunk_windows(batch.tokens, s.chunk, s.window)
    slots = rows_lib.slots(self.rows, window)
    ids = {skipgram.INPUT: slots.ids, skipgram.OUTPUT: found.ids}
    if self.rows.num_ambiguous:
      ids[PRIORS] = slots.priors_ids
    return ids | {TARGETS: found, SLOTS: slots}

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
    s, g = self.spec, self.outputs.group
    found, slots = ids[TARGETS], ids[SLOTS]
    sides = batch.left, batch.right
    is_single = slots.is_single.astype(jnp.float32)
    num = is_single.size
    near = targets.groups(is_single[..., None], g, s.window)[:, None, :, 0]
    input_rows = rows[skipgram.INPUT]
    dim = input_rows.shape[-1]
    input_rows = input_rows.reshape(-1, dim)
    loss = targets.window_loss(
      s,
      found,
      self.outputs.compact_rest,
      input_rows[:num].reshape(*is_single.shape, dim),
      rows[skipgram.OUTPUT],
      is_single[:, None] * windows.window_mask(*sides, s.chunk, s.window),
      near * windows.window_mask(*sides, g, s.window),
    )
    if self.rows.num_ambiguous:
      senses = input_rows[num:].reshape(num, self.rows.num_senses, dim)
      args = senses, rows[PRIORS], rows[skipgram.OUTPUT]
      value_and_grads = functools.partial(_slots_loss_and_grads, s)
      loss += targets.with_grads(
        lambda *x: value_and_grads(*x)[0],
        value_and_grads,
        args,
        (slots.tokens, found.lists, batch),
      )
    return loss, base.Aux(skipgram.num_contexts(batch).sum())

  def priors_of(self, rows: jax.Array) -> jax.Array:
    """[..., K] priors of rows [..., K + 1] of the table."""
    return jax.nn.softmax(rows[..., :-1], axis=-1)

  def export_senses(
    self, rows: Callable[[str], np.ndarray], vocabulary: vocab.Vocabulary
  ) -> table.Senses:
    """See `export_senses`."""
    return export_senses(self, rows, vocabulary)


jax.tree_util.register_dataclass(
  Mixture, ['outputs', 'rows'], ['spec'], ['lookups']
)


def make(
  spec: base.WindowSpec,
  corpus: base.Corpus,
  outputs: Outputs,
  mask: np.ndarray,
  num_senses: int,
) -> Mixture:
  """The mixture; words of the mask [vocab] bool have `num_senses` each."""
  rows = rows_lib.number(mask, num_senses)
  return Mixture(outputs, rows, spec, lookups(spec, outputs, rows, corpus))


def _slots_loss_and_grads(
  spec: base.WindowSpec, args: Any, data: Any
) -> tuple[jax.Array, Any]:
  """Loss of all slots of a step, block by block, and its gradients.

  Args:
    spec: sizes.
    args: rows of the slots' senses [slots, K, d] and priors [slots, K + 1], and
      of the step's targets.
    data: tokens of the slots, lists of targets, batch.
  """
  senses, priors, target_rows = args
  tokens, lists, batch = data
  num_block = -(-len(tokens) // _NUM_BLOCKS)
  num_slots = jnp.sum(tokens < len(tokens))
  centers, mask = _near(spec, tokens, batch)
  # The list of a center has two segments, padded.
  columns = jnp.arange(lists.places.shape[1])[None]
  is_target = (columns < lists.sizes[:, :1]) | (
    (columns >= lists.gap) & (columns < lists.gap + lists.sizes[:, 1:])
  )
  list_places = jnp.where(is_target, lists.places, 0)
  list_weights = jnp.where(is_target, lists.weights, 0.0)
  flat_targets = target_rows.reshape(-1, target_rows.shape[-1])

  def add_block(carry):
    first, total, sense_grads, prior_grads, target_grads = carry
    slots = first + jnp.arange(num_block)
    near = centers.at[slots].get(mode='fill', fill_value=0)
    has_pair = mask.at[slots].get(mode='fill', fill_value=0)
    places = list_places.at[near].get(mode='promise_in_bounds').reshape(-1)
    weights = list_weights.at[near].get(mode='promise_in_bounds')
    met = flat_targets.at[places].get(mode='promise_in_bounds')
    value, grads = jax.value_and_grad(_block_loss, (0, 1, 2))(
      senses.at[slots].get(mode='fill', fill_value=0),
      priors.at[slots].get(mode='fill', fill_value=0),
      met.reshape(num_block, -1, met.shape[-1]),
      weights * has_pair[..., None],
      has_pair,
      spec,
    )
    met_grads = jax.lax.optimization_barrier(grads[2].reshape(met.shape))
    return (
      first + num_block,
      total + value,
      sense_grads.at[slots].set(grads[0], mode='drop'),
      prior_grads.at[slots].set(grads[1], mode='drop'),
      target_grads.at[places].add(met_grads, mode='promise_in_bounds'),
    )

  zeros = (jnp.zeros_like(x) for x in (senses, priors, flat_targets))
  _, value, *grads = jax.lax.while_loop(
    lambda carry: carry[0] < num_slots,
    add_block,
    (jnp.int32(0), jnp.float32(0), *zeros),
  )
  return value, (*grads[:2], grads[2].reshape(target_rows.shape))


def _block_loss(
  senses: jax.Array,
  priors: jax.Array,
  met: jax.Array,
  weights: jax.Array,
  mask: jax.Array,
  spec: base.WindowSpec,
) -> jax.Array:
  """-log P, summed over the pairs of m slots, by its lower bound of EM.

  Args:
    senses: [m, K, d] float32.
    priors: [m, K + 1] float32, rows of the table.
    met: [m, 2 W D, d] float32, output rows of the centers around each slot.
    weights: [m, 2 W, D] float32, see `targets.Lists`; 0 = padding.
    mask: [m, 2 W] float32, 1 = a pair.
    spec: sizes.
  """
  scores = spec.row_ops.narrow_dot(senses, met)
  logs = losses.log_chances(scores, weights.reshape(len(met), 1, -1))
  logs = logs.reshape(*senses.shape[:2], *weights.shape[1:])
  prior_rows = jax.lax.stop_gradient(priors[:, :-1])
  log_joint = (
    jnp.sum(logs, -1) + log_priors(jax.nn.softmax(prior_rows))[..., None]
  )
  # For fixed gamma, sum_k gamma_k (LL_k - log gamma_k) has the value and the
  # gradient of log P.
  gamma = jax.lax.stop_gradient(jax.nn.softmax(log_joint, axis=1))
  bounds = gamma * (log_joint - jnp.log(jnp.maximum(gamma, 1e-30)))
  num = jnp.sum(mask, -1, keepdims=True)
  grads = num * prior_rows - jnp.sum(mask[:, None] * log_joint, -1)
  return with_gradient(priors, jnp.concatenate([grads, num], -1)) - jnp.sum(
    mask * jnp.sum(bounds, 1)
  )


def _near(
  spec: base.WindowSpec, tokens: jax.Array, batch: base.StepBatch
) -> tuple[jax.Array, jax.Array]:
  """[slots, 2 W] centers around tokens, int32; and float32, 1 = a pair."""
  c, w = spec.chunk, spec.window
  # Positions of the token relative to its centers.
  offsets = jnp.asarray([[x for x in range(-w, w + 1) if x]])
  chunk, place = (x[:, None] for x in jnp.divmod(tokens, c + 2 * w))
  inside = place - w - offsets
  is_center = (inside >= 0) & (inside < c) & (chunk < batch.left.size // c)
  centers = jnp.where(is_center, c * chunk + inside, 0)
  left, right = (
    jnp.asarray(x, jnp.int32)
    .reshape(-1)
    .at[centers]
    .get(mode='promise_in_bounds')
    for x in (batch.left, batch.right)
  )
  is_pair = is_center & (offsets >= -left) & (offsets <= right)
  return centers, is_pair.astype(jnp.float32)
