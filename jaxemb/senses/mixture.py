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

A word has one row of the vector table, or K consecutive ones and a row of the
table of priors. The windows of a step look up

  [k, c + 2 W] rows   of words with one sense, padding for others
  [slots, K] rows     of ambiguous tokens, packed, padding at the end

so that words with one sense cost nothing extra. The token of a slot is a
context of up to 2 W centers, each with up to D targets (`models.targets`).
Slots are computed in blocks, as many as a step needs.
"""

import dataclasses
import functools
import hashlib
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from jaxemb import errors
from jaxemb.evaluation import multivectors
from jaxemb.kernels.gpu import row_sums
from jaxemb.models import base, skipgram, targets
from jaxemb.tables import dedup, row_access, row_optimizers
from jaxemb.tables import spec as spec_lib

PRIORS = 'priors'
SLOTS = 'slots'  # an entry of the ids
_MOMENTUM = 0.05  # of priors; rises to 1 during training
_NUM_BLOCKS = 16  # if all tokens of a step are ambiguous

Outputs = targets.Tree | targets.Sampled


class Slots(NamedTuple):
  """Ids of the tokens of k windows, with a slot for each ambiguous token."""

  ids: jax.Array  # [k w + slots K]
  is_ambiguous: jax.Array  # [k, w] bool
  tokens: jax.Array  # [slots] int32, index of the token; k w = unused slot
  priors_ids: jax.Array  # [slots] int32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
  """Which rows belong to which word; the last entry is padding."""

  starts: Any  # [vocab + 1] int32, as of `evaluation.multivectors`
  priors: Any  # [vocab + 1] int32, row of priors; `num_ambiguous` = none
  num_senses: int = base.static()  # K, of ambiguous words
  num: int = base.static()  # rows of the vector table
  num_ambiguous: int = base.static()  # rows of the table of priors

  def owners(self) -> np.ndarray:
    """Returns the word of each row, [num] int64."""
    return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

  def are_ambiguous(self) -> np.ndarray:
    """Returns [vocab] bool, whether words have several senses."""
    return np.asarray(self.priors)[:-1] < self.num_ambiguous

  def digest(self) -> str:
    """Returns a hash of the assignment of rows to words."""
    return hashlib.sha256(np.asarray(self.starts)[:-1].tobytes()).hexdigest()

  def find_ambiguous(self, window: jax.Array) -> jax.Array:
    """Returns [k, w] bool; ids at or above vocab are padding."""
    return self.priors.at[window].get(mode='clip') < self.num_ambiguous

  def slots(self, window: jax.Array, num_slots: int | None = None) -> Slots:
    """Returns the slots of tokens [k, w], of which `num_slots` must suffice."""
    is_ambiguous = self.find_ambiguous(window)
    starts = self.starts.at[window].get(mode='clip')
    ids = jnp.where(is_ambiguous, self.num, starts).reshape(-1)
    is_ambiguous = is_ambiguous.reshape(-1)
    slot = jnp.where(is_ambiguous, jnp.cumsum(is_ambiguous) - 1, window.size)
    tokens = jnp.full(num_slots or window.size, window.size)
    tokens = tokens.at[slot].set(jnp.arange(window.size), mode='drop')
    words = window.reshape(-1)
    words = words.at[tokens].get(mode='fill', fill_value=len(self.starts))
    senses = self.starts.at[words].get(mode='clip')[:, None]
    senses += jnp.arange(self.num_senses)[None]
    senses = jnp.minimum(senses, self.num).reshape(-1)
    return Slots(
      ids=jnp.concatenate([ids, senses]),
      is_ambiguous=is_ambiguous.reshape(window.shape),
      tokens=tokens,
      priors_ids=self.priors.at[words].get(mode='clip'),
    )


def number(mask: np.ndarray, num_senses: int) -> Rows:
  """Numbers the rows; words of the mask [vocab] have `num_senses`."""
  starts = np.append(0, np.cumsum(np.where(mask, num_senses, 1)))
  num, num_ambiguous = int(starts[-1]), int(mask.sum())
  spec_lib.check_rows(skipgram.INPUT, num)
  priors = np.where(mask, np.cumsum(mask) - 1, num_ambiguous)
  priors = np.append(priors, num_ambiguous).astype(np.int32)
  return Rows(
    starts=starts.astype(np.int32),
    priors=priors,
    num_senses=num_senses,
    num=num,
    num_ambiguous=num_ambiguous,
  )


class Ambiguous(NamedTuple):
  """Words that get several senses."""

  mask: np.ndarray  # [vocab] bool
  num_listed: int = 0  # distinct words of the list
  num_unknown: int = 0  # listed words outside the vocabulary


def ambiguous(
  config: ml_collections.ConfigDict, words: Sequence[str]
) -> Ambiguous:
  """Chooses the words that get several senses; `words` are by falling count.

  The file `config.senses.words` has a word in the first field of each line that
  is neither blank nor a `#` comment. Raises a `UserError` if it cannot be read
  or has no word of the vocabulary.
  """
  path = config.senses.words
  mask = np.arange(len(words)) < np.ceil(config.senses.top_ratio * len(words))
  if not path:
    return Ambiguous(mask)
  try:
    file = pathlib.Path(os.path.expanduser(path))
    text = file.read_text(encoding='utf-8-sig')
  except (OSError, ValueError) as error:
    raise errors.UserError(
      f'cannot read config.senses.words={path}: {error}; give a text file with '
      "a word per line, or ''"
    ) from error
  text = text.lower() if config.data.lowercase else text
  fields = [line.split()[0] for line in text.splitlines() if line.split()]
  listed = {word for word in fields if not word.startswith('#')}
  is_listed = np.array([word in listed for word in words])
  num_known = int(is_listed.sum())
  if not num_known:
    raise errors.UserError(
      f'config.senses.words={path} has {len(listed):,} words, none of the '
      f'{len(words):,} of the vocabulary; give one per line (check upper and '
      'lower case)'
    )
  return Ambiguous(mask | is_listed, len(listed), len(listed) - num_known)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mixture(skipgram.WindowModel):
  """The mixture whose senses are inferred from likelihoods."""

  outputs: Outputs  # the loss
  rows: Rows

  @property
  def untrained_loss(self) -> float:
    """Loss of a pair before training."""
    return self.outputs.untrained_loss

  def ids(self, batch, key, num_slots=None):
    """Returns ids of k chunks and S slots.

    Those of vectors are [k (c + 2 W) + S K], those of priors [S].
    """
    target_ids = self.outputs.find(self.spec, batch, key)
    slots = self.rows.slots(batch.windows(), num_slots)
    return {
      skipgram.INPUT: slots.ids,
      skipgram.OUTPUT: target_ids.ids,
      PRIORS: slots.priors_ids,
      targets.TARGETS: target_ids,
      SLOTS: slots,
    }

  def loss(self, params, rows, ids, batch, key):
    """Returns -log P(center | context), summed over the pairs."""
    is_ambiguous, dim = ids[SLOTS].is_ambiguous, rows[skipgram.INPUT].shape[-1]
    tokens, senses = jnp.split(rows[skipgram.INPUT], [is_ambiguous.size])
    tokens = tokens.reshape(*is_ambiguous.shape, dim)
    senses = senses.reshape(-1, self.rows.num_senses, dim)
    tokens, mask, more = self._with_senses(
      tokens, senses, rows, ids=ids, batch=batch, mask=batch.mask()
    )
    loss = targets.window_loss(
      self.spec.row_ops,
      targets=ids[targets.TARGETS],
      compact_rest=self.outputs.compact_rest,
      token_rows=tokens,
      target_rows=rows[skipgram.OUTPUT],
      mask=mask,
    )
    loss += targets.with_gradient(*more)
    return loss, base.Aux(batch.num_contexts().sum())

  def _with_senses(self, token_rows, senses, rows, ids, batch, mask):
    """Returns rows and mask of the tokens in the loss of single senses.

    Takes the rows of tokens [k, c + 2 W, d] and of senses [slots, K, d], and
    the mask [k, c, c + 2 W] of contexts. Also returns the loss to add, as
    arguments of `targets.with_gradient`.
    """
    args = senses, rows[PRIORS], rows[skipgram.OUTPUT]
    value, grads = self._slots_loss(jax.lax.stop_gradient(args), ids, batch)
    mask = jnp.where(ids[SLOTS].is_ambiguous[:, None], 0.0, mask)
    return token_rows, mask, (value, args, grads)

  def _slots_loss(self, args, ids, batch):
    """Returns the loss of all slots, computed in blocks, and its gradients.

    `args` are rows of senses [slots, K, d], priors [slots, K + 1] and targets
    [k, ..., d].
    """
    senses, priors, target_rows = args
    tokens, target_ids = ids[SLOTS].tokens, ids[targets.TARGETS]
    num_block = -(-len(tokens) // _NUM_BLOCKS)
    num_slots = jnp.sum(tokens < len(tokens))
    flat_targets = target_rows.reshape(-1, target_rows.shape[-1])
    kernels = row_access.XLA
    if self.spec.sums_by_kernel:
      kernels = row_sums.kernels(flat_targets.shape[1])

    def add_block(carry):
      first, total, sense_grads, prior_grads, target_grads = carry
      slots = first + jnp.arange(num_block)
      centers, mask = _near(
        self.spec,
        tokens.at[slots].get(mode='fill', fill_value=len(tokens)),
        batch,
      )
      places, signs = (
        x.at[centers].get(mode='promise_in_bounds')
        for x in (target_ids.places, target_ids.place_signs)
      )
      block_targets = flat_targets.at[places].get(mode='promise_in_bounds')
      signs = signs * mask[..., None]
      loss_and_grads = jax.value_and_grad(self._block_loss, (0, 1), True)
      (value, averages), grads = loss_and_grads(
        senses.at[slots].get(mode='fill', fill_value=0),
        block_targets.reshape(num_block, -1, block_targets.shape[-1]),
        signs,
        priors.at[slots].get(mode='fill', fill_value=0)[:, :-1],
        mask,
      )
      block_grads = grads[1].reshape(block_targets.shape)
      block_grads = jax.lax.optimization_barrier(block_grads)
      ids = jnp.where(signs != 0, places, len(flat_targets))
      return (
        first + num_block,
        total + value,
        sense_grads.at[slots].set(grads[0], mode='drop'),
        prior_grads.at[slots].set(averages, mode='drop'),
        dedup.add(target_grads, ids, rows=block_grads, kernels=kernels),
      )

    zeros = (jnp.zeros_like(x) for x in (senses, priors, flat_targets))
    _, value, *grads = jax.lax.while_loop(
      lambda carry: carry[0] < num_slots,
      add_block,
      (jnp.int32(0), jnp.float32(0), *zeros),
    )
    return value, (*grads[:2], grads[2].reshape(target_rows.shape))

  def _block_loss(self, senses, target_rows, signs, prior_rows, mask):
    """Returns -log P, summed over the pairs of m slots, by the bound of EM.

    Takes rows of senses [m, K, d], targets [m, 2 W D, d] of the centers around
    each slot with their signs [m, 2 W, D], rows of priors [m, K] and the mask
    [m, 2 W] of pairs. Also returns the gradients of priors [m, K + 1].
    """
    scores = self.spec.row_ops.dot(senses, target_rows, is_narrow=True)
    logs = targets.log_chances(scores, signs.reshape(len(senses), 1, -1))
    logs = logs.reshape(*senses.shape[:2], *signs.shape[1:])
    log_joint = jnp.sum(logs, -1)
    log_joint += log_priors(jax.nn.softmax(prior_rows))[..., None]
    # For fixed gamma the bound has the value and the gradient of log P.
    gamma = jax.lax.stop_gradient(jax.nn.softmax(log_joint, axis=1))
    bounds = gamma * (log_joint - jnp.log(jnp.maximum(gamma, 1e-30)))
    num = jnp.sum(mask, -1, keepdims=True)
    grads = num * prior_rows - jnp.sum(mask[:, None] * log_joint, -1)
    loss = -jnp.sum(mask * jnp.sum(bounds, 1))
    return loss, jnp.concatenate([grads, num], -1)

  def priors_of(self, rows: jax.Array) -> jax.Array:
    """Returns priors [..., K] of rows [..., K + 1] of the table."""
    return jax.nn.softmax(rows[..., :-1], axis=-1)

  def export_senses(
    self,
    table_rows: Callable[[str], np.ndarray],
    words: Sequence[str],
    counts: np.ndarray,
  ) -> multivectors.MultiVectors:
    """Returns the trained senses, from the float32 rows of each table."""
    rows = self.rows
    priors = np.ones(rows.num, np.float32)
    chances = np.asarray(self.priors_of(jnp.asarray(table_rows(PRIORS))))
    # Negative values are rounding errors.
    chances = np.maximum(chances, 0)
    chances = chances / chances.sum(1, keepdims=True)
    priors[rows.are_ambiguous()[rows.owners()]] = chances.reshape(-1)
    return multivectors.MultiVectors(
      words=list(words),
      counts=np.asarray(counts),
      starts=np.asarray(rows.starts, np.int64),
      vectors=table_rows(skipgram.INPUT),
      priors=priors,
      outputs=table_rows(skipgram.OUTPUT),
      loss=self.outputs.loss,
      negatives=self.spec.negatives,
      window=self.spec.window,
    )


def make(
  spec: base.WindowSpec,
  corpus: base.Corpus,
  outputs: Outputs,
  mask: np.ndarray,
  num_senses: int,
) -> Mixture:
  """Returns the mixture; words of the mask [vocab] have `num_senses` each."""
  rows = number(mask, num_senses)
  specs = tables(spec, corpus, outputs, rows=rows, momentum=_MOMENTUM)
  return Mixture(spec=spec, tables=specs, outputs=outputs, rows=rows)


def tables(
  spec: base.WindowSpec,
  corpus: base.Corpus,
  outputs: Outputs,
  rows: Rows,
  momentum: float,
) -> tuple[spec_lib.TableSpec, ...]:
  """Returns tables of vectors, outputs and priors of ambiguous words.

  Priors have one more column, which stays zero: its gradient counts the
  observations of a step.
  """
  lookups = skipgram.window_lookups(spec, corpus)
  specs = skipgram.tables(
    spec, lookups[rows.owners()], outputs.lookups(spec, corpus)
  )
  priors = spec_lib.TableSpec(
    name=PRIORS,
    vocab=rows.num_ambiguous,
    dim=rows.num_senses + 1,
    init_scale=0.0,
    row_optimizer=functools.partial(averaging, momentum),
    memory_lookups=-1 / math.log(momentum),
    # So high that replicas always average running averages, never add them.
    lookups_per_center=1e6 * lookups[rows.are_ambiguous()],
  )
  return (*specs, priors)


def averaging(
  momentum: float, learning_rate: float, final_learning_rate: float
) -> row_optimizers.RowOptimizer:
  """Returns the optimizer of rows that are running averages of examples.

  With every example x a row moves to m row + (1 - m) x. A step has n of them,
  of which it knows the sum of (row - x), as the gradient, and n, as the
  gradient of the last column, which itself stays. All examples of a step count
  alike:

    row <- m^n row + (1 - m^n) mean(x)

  m starts as `momentum` and rises to 1 in proportion as the learning rate falls
  to the final one; where that equals the first, m is constant.
  """
  span = learning_rate - final_learning_rate

  def init(vocab, dim):
    return row_optimizers.ScratchState(jnp.zeros(vocab, jnp.float32))

  def update(state, row_grads, learning_rate):
    num, scratch = row_grads.grads[..., -1], state.scratch
    if row_grads.counts is None:
      num, scratch = row_optimizers.totals(scratch, row_grads.ids, num)
    left = 1.0
    if span:
      left = jnp.clip((learning_rate - final_learning_rate) / span, 0, 1)
    factor = (1 - (1 - momentum) * left) ** num
    scale = (factor - 1) / jnp.maximum(num, 1.0)
    deltas = scale[..., None] * row_grads.grads
    deltas = deltas.at[..., -1].set(0.0)
    return deltas, row_optimizers.ScratchState(scratch)

  return row_optimizers.RowOptimizer(init, update, uses_squares=False)


def log_priors(priors: jax.Array) -> jax.Array:
  """Returns logarithms [..., K] float32, not below `targets.MIN_LOG`."""
  logs = jnp.log(jnp.maximum(priors, 1e-30))
  return jnp.maximum(logs, targets.MIN_LOG)


def _near(spec, tokens, batch):
  """Returns centers [m, 2 W] around tokens [m], and float32, 1 = a pair."""
  c, w = spec.chunk, spec.window
  # Positions of the token relative to its centers.
  offsets = jnp.asarray([[x for x in range(-w, w + 1) if x]])
  chunk, position = (x[:, None] for x in jnp.divmod(tokens, c + 2 * w))
  inside = position - w - offsets
  is_center = (inside >= 0) & (inside < c) & (chunk < batch.left.size // c)
  centers = jnp.where(is_center, c * chunk + inside, 0)
  left, right = (
    x.reshape(-1).at[centers].get(mode='promise_in_bounds').astype(jnp.int32)
    for x in (batch.left, batch.right)
  )
  is_pair = is_center & (offsets >= -left) & (offsets <= right)
  return centers, is_pair.astype(jnp.float32)
