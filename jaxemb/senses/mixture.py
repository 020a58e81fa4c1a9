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

so that words with one sense, which are computed as in `models.targets`, pay
nothing for the others. The token of a slot is a context of up to 2 W centers,
each with a list of up to D targets. Slots are computed in blocks, as many as a
step has.
"""

import dataclasses
import hashlib
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from jaxemb import errors
from jaxemb.models import base, skipgram, targets
from jaxemb.ops import chunks, losses
from jaxemb.senses import table
from jaxemb.tables import spec as spec_lib
from jaxemb.text import vocab

PRIORS = 'priors'
SLOTS = 'slots'  # beside the ids of the tables
_MOMENTUM = 0.05  # of priors; rises to 1 during training
_NUM_BLOCKS = 16  # if all tokens of a step are ambiguous

Outputs = targets.Tree | targets.Sampled


class Slots(NamedTuple):
  """Rows of the tokens of k windows, with a slot for each ambiguous token."""

  ids: jax.Array  # [k w + slots K]
  is_ambiguous: jax.Array  # [k, w] bool
  # [slots] int32, the token of each slot among the k w; k w = none. Empty if no
  # word is ambiguous.
  tokens: jax.Array
  priors_ids: jax.Array  # [slots] int32


@dataclasses.dataclass(frozen=True)
class Rows:
  """The rows of each word, and last of padding; a pytree."""

  # [vocab + 1] int32; senses of word i are rows starts[i]..starts[i + 1]
  starts: Any
  # [vocab + 1] int32, row of its priors; `num_ambiguous` = has none
  priors: Any
  num_senses: int  # K, of ambiguous words
  num: int  # rows of the vector table
  num_ambiguous: int  # rows of the table of priors

  def owners(self) -> np.ndarray:
    """[num] int64, the word of each row."""
    return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

  def are_ambiguous(self) -> np.ndarray:
    """[vocab] bool."""
    return np.asarray(self.priors)[:-1] < self.num_ambiguous

  def digest(self) -> str:
    """Identifies which rows are senses of which words."""
    return hashlib.sha256(np.asarray(self.starts)[:-1].tobytes()).hexdigest()

  def find_ambiguous(self, window: jax.Array) -> jax.Array:
    """[k, w] bool, of ids of words; those at or above vocab are padding."""
    return self.priors.at[window].get(mode='clip') < self.num_ambiguous

  def slots(self, window: jax.Array, num_slots: int | None = None) -> Slots:
    """The rows of all tokens [k, w], ids of words.

    There are at least as many slots as ambiguous tokens; None = k w.
    """
    is_ambiguous = self.find_ambiguous(window)
    starts = self.starts.at[window].get(mode='clip')
    ids = jnp.where(is_ambiguous, self.num, starts).reshape(-1)
    if not self.num_ambiguous:
      return Slots(ids, is_ambiguous, ids[:0], ids[:0])
    is_ambiguous = is_ambiguous.reshape(-1)
    slot = jnp.where(is_ambiguous, jnp.cumsum(is_ambiguous) - 1, window.size)
    tokens = jnp.full(num_slots or window.size, window.size)
    tokens = tokens.at[slot].set(jnp.arange(window.size), mode='drop')
    words = (
      window.reshape(-1)
      .at[tokens]
      .get(mode='fill', fill_value=len(self.starts))
    )
    senses = self.starts.at[words].get(mode='clip')[:, None]
    senses += jnp.arange(self.num_senses)[None]
    senses = jnp.minimum(senses, self.num).reshape(-1)
    return Slots(
      jnp.concatenate([ids, senses]),
      is_ambiguous.reshape(window.shape),
      tokens,
      self.priors.at[words].get(mode='clip'),
    )


jax.tree_util.register_dataclass(
  Rows, ['starts', 'priors'], ['num_senses', 'num', 'num_ambiguous']
)


def number(mask: np.ndarray, num_senses: int) -> Rows:
  """Numbers the rows of all words, those in the mask [vocab] ambiguous."""
  mask = np.asarray(mask, bool) & (num_senses > 1)
  starts = np.append(0, np.cumsum(np.where(mask, num_senses, 1)))
  num, num_ambiguous = int(starts[-1]), int(mask.sum())
  priors = np.where(mask, np.cumsum(mask) - 1, num_ambiguous)
  priors = np.append(priors, num_ambiguous).astype(np.int32)
  return Rows(starts.astype(np.int32), priors, num_senses, num, num_ambiguous)


class Ambiguous(NamedTuple):
  """Words that get several senses."""

  mask: np.ndarray  # [vocab] bool
  num_listed: int = 0  # distinct words of the list
  num_unknown: int = 0  # of these, outside the vocabulary


def ambiguous(
  config: ml_collections.ConfigDict, words: Sequence[str]
) -> Ambiguous:
  """The words [vocab], by falling count, that get several senses.

  The file `config.senses.words` has a word in the first field of each line that
  is neither blank nor a `#` comment. UserError if it cannot be read, or has no
  word of these.
  """
  path = config.senses.words
  mask = np.arange(len(words)) < np.ceil(config.senses.top_ratio * len(words))
  if not path:
    return Ambiguous(mask)
  try:
    text = pathlib.Path(path).expanduser().read_text(encoding='utf-8-sig')
  except (OSError, UnicodeDecodeError) as error:
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


@dataclasses.dataclass(frozen=True)
class Mixture(skipgram.WindowModel):
  """The mixture over one step's rows."""

  outputs: Outputs  # the loss
  rows: Rows

  @property
  def untrained_loss(self) -> float:
    """Of a pair."""
    return self.outputs.untrained_loss

  def ids(self, batch, key, num_slots=None):
    """Input: [k (c + 2 W) + S K], of k chunks and S slots. Priors: [S]."""
    s = self.spec
    found = self.outputs.find(s, batch, key)
    window = chunks.windows(batch.tokens, s.chunk, s.window)
    slots = self.rows.slots(window, num_slots)
    ids = {skipgram.INPUT: slots.ids, skipgram.OUTPUT: found.ids}
    if self.rows.num_ambiguous:
      ids[PRIORS] = slots.priors_ids
    return ids | {targets.TARGETS: found, SLOTS: slots}

  def loss(self, params, rows, ids, batch, key):
    """-log P(center | context), summed over the pairs."""
    del params, key
    s, shape = self.spec, ids[SLOTS].is_ambiguous.shape
    num, dim = math.prod(shape), rows[skipgram.INPUT].shape[-1]
    tokens, senses = jnp.split(rows[skipgram.INPUT], [num])
    tokens = tokens.reshape(*shape, dim)
    mask = chunks.mask(batch.left, batch.right, s.chunk, s.window)
    more = 0.0, (), ()
    if self.rows.num_ambiguous:
      senses = senses.reshape(-1, self.rows.num_senses, dim)
      args = tokens, senses, rows, ids, batch, mask
      tokens, mask, more = self._with_senses(*args)
    loss = targets.window_loss(
      s,
      ids[targets.TARGETS],
      self.outputs.compact_rest,
      tokens,
      rows[skipgram.OUTPUT],
      mask,
    )
    loss += losses.with_gradient(*more)
    return loss, base.Aux(skipgram.num_contexts(batch).sum())

  def _with_senses(self, token_rows, senses, rows, ids, batch, mask):
    """What ambiguous tokens change in the loss of words with one sense.

    Takes the rows of tokens [k, c + 2 W, d] and of the senses in the slots
    [slots, K, d], and the mask [k, c, c + 2 W] of contexts. Returns the rows of
    tokens and the mask, and what is added to the loss: a value and its
    gradients with respect to some rows, as `losses.with_gradient` takes them.
    """
    args = senses, rows[PRIORS], rows[skipgram.OUTPUT]
    value, grads = self._slots_loss(jax.lax.stop_gradient(args), ids, batch)
    mask = jnp.where(ids[SLOTS].is_ambiguous[:, None], 0.0, mask)
    return token_rows, mask, (value, args, grads)

  def _slots_loss(self, args, ids, batch):
    """Loss of all slots of a step, block by block, and its gradients.

    With respect to rows of senses [slots, K, d], of priors [slots, K + 1] and
    of the step's targets [k, ..., d].
    """
    senses, priors, target_rows = args
    tokens, found = ids[SLOTS].tokens, ids[targets.TARGETS]
    num_block = -(-len(tokens) // _NUM_BLOCKS)
    num_slots = jnp.sum(tokens < len(tokens))
    flat_targets = target_rows.reshape(-1, target_rows.shape[-1])

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
        for x in (found.places, found.place_signs)
      )
      met = flat_targets.at[places].get(mode='promise_in_bounds')
      loss_and_grads = jax.value_and_grad(self._block_loss, (0, 1), True)
      (value, averages), grads = loss_and_grads(
        senses.at[slots].get(mode='fill', fill_value=0),
        met.reshape(num_block, -1, met.shape[-1]),
        signs * mask[..., None],
        priors.at[slots].get(mode='fill', fill_value=0)[:, :-1],
        mask,
      )
      met_grads = jax.lax.optimization_barrier(grads[1].reshape(met.shape))
      return (
        first + num_block,
        total + value,
        sense_grads.at[slots].set(grads[0], mode='drop'),
        prior_grads.at[slots].set(averages, mode='drop'),
        target_grads.at[places].add(met_grads, mode='promise_in_bounds'),
      )

    zeros = (jnp.zeros_like(x) for x in (senses, priors, flat_targets))
    _, value, *grads = jax.lax.while_loop(
      lambda carry: carry[0] < num_slots,
      add_block,
      (jnp.int32(0), jnp.float32(0), *zeros),
    )
    return value, (*grads[:2], grads[2].reshape(target_rows.shape))

  def _block_loss(self, senses, met, signs, prior_rows, mask):
    """-log P, summed over the pairs of m slots, by its lower bound of EM.

    Of rows of senses [m, K, d], output rows [m, 2 W D, d] of the centers around
    each slot with their signs [m, 2 W, D], and rows of priors [m, K]; the mask
    [m, 2 W] is 1 for a pair. Returns also the gradients of priors [m, K + 1].
    """
    scores = self.spec.row_ops.dot(senses, met, is_narrow=True)
    logs = losses.log_chances(scores, signs.reshape(len(met), 1, -1))
    logs = logs.reshape(*senses.shape[:2], *signs.shape[1:])
    log_joint = jnp.sum(logs, -1)
    log_joint += log_priors(jax.nn.softmax(prior_rows))[..., None]
    # For fixed gamma, sum_k gamma_k (LL_k - log gamma_k) has the value and the
    # gradient of log P.
    gamma = jax.lax.stop_gradient(jax.nn.softmax(log_joint, axis=1))
    bounds = gamma * (log_joint - jnp.log(jnp.maximum(gamma, 1e-30)))
    num = jnp.sum(mask, -1, keepdims=True)
    grads = num * prior_rows - jnp.sum(mask[:, None] * log_joint, -1)
    loss = -jnp.sum(mask * jnp.sum(bounds, 1))
    return loss, jnp.concatenate([grads, num], -1)

  def priors_of(self, rows: jax.Array) -> jax.Array:
    """[..., K] priors of rows [..., K + 1] of the table."""
    return jax.nn.softmax(rows[..., :-1], axis=-1)

  def export_senses(
    self,
    table_rows: Callable[[str], np.ndarray],
    vocabulary: vocab.Vocabulary,
  ) -> table.Senses:
    """The trained senses, from the float32 rows of each table."""
    rows = self.rows
    priors = np.ones(rows.num, np.float32)
    if rows.num_ambiguous:
      chances = np.asarray(self.priors_of(jnp.asarray(table_rows(PRIORS))))
      # Sums of many small changes: what is below zero is a rounding error.
      chances = np.maximum(chances, 0)
      chances = chances / chances.sum(1, keepdims=True)
      priors[rows.are_ambiguous()[rows.owners()]] = chances.reshape(-1)
    return table.Senses(
      list(vocabulary.words),
      np.asarray(vocabulary.counts),
      np.asarray(rows.starts, np.int64),
      table_rows(skipgram.INPUT),
      priors,
      table_rows(skipgram.OUTPUT),
      self.outputs.loss,
      self.spec.negatives,
      self.spec.window,
    )


jax.tree_util.register_dataclass(
  Mixture, ['outputs', 'rows'], ['spec', 'tables']
)


def make(
  spec: base.WindowSpec,
  corpus: base.Corpus,
  outputs: Outputs,
  mask: np.ndarray,
  num_senses: int,
) -> Mixture:
  """The mixture; words of the mask [vocab] bool have `num_senses` each."""
  rows = number(mask, num_senses)
  made = tables(spec, corpus, outputs, rows, _MOMENTUM)
  return Mixture(spec, made, outputs, rows)


def tables(
  spec: base.WindowSpec,
  corpus: base.Corpus,
  outputs: Outputs,
  rows: Rows,
  momentum: float,
) -> tuple[spec_lib.TableSpec, ...]:
  """Vectors, outputs, and a row of priors for each ambiguous word, if any.

  A row of priors has one more column, which stays zero: its gradient counts the
  observations of the step.
  """
  lookups = skipgram.window_lookups(spec, corpus)
  made = skipgram.tables(
    spec, lookups[rows.owners()], outputs.lookups(spec, corpus)
  )
  if not rows.num_ambiguous:
    return made
  priors = spec_lib.TableSpec(
    PRIORS,
    rows.num_ambiguous,
    rows.num_senses + 1,
    0.0,
    momentum=momentum,
    # So many that replicas always average running averages, never add them.
    lookups_per_center=1e6 * lookups[rows.are_ambiguous()],
  )
  return (*made, priors)


def log_priors(priors: jax.Array) -> jax.Array:
  """[..., K] float32, not below `losses.MIN_LOG`."""
  logs = jnp.log(jnp.maximum(priors, 1e-30))
  return jnp.maximum(logs, losses.MIN_LOG)


def _near(spec, tokens, batch):
  """[m, 2 W] centers around tokens [m], int32; and float32, 1 = a pair."""
  c, w = spec.chunk, spec.window
  # Positions of the token relative to its centers.
  offsets = jnp.asarray([[x for x in range(-w, w + 1) if x]])
  chunk, place = (x[:, None] for x in jnp.divmod(tokens, c + 2 * w))
  inside = place - w - offsets
  is_center = (inside >= 0) & (inside < c) & (chunk < batch.left.size // c)
  centers = jnp.where(is_center, c * chunk + inside, 0)
  left, right = (
    x.reshape(-1).at[centers].get(mode='promise_in_bounds').astype(jnp.int32)
    for x in (batch.left, batch.right)
  )
  is_pair = is_center & (offsets >= -left) & (offsets <= right)
  return centers, is_pair.astype(jnp.float32)
