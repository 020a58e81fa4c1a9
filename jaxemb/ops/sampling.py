"""Negative sampling (Mikolov et al. 2013b): drawn words, and the loss of pairs.

Words are drawn by Walker's alias method: a uniform entry, then a coin between
the entry's own word and its alias, so that a draw costs one random read
whatever the vocabulary. The bits are a counter-based hash of (key, position)
rather than threefry, which took a seventh of a training step on a CPU.
"""

from collections.abc import Callable
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numba
import numpy as np

from jaxemb.ops import hashing

_ENTRIES = 64  # of an alias table in a line of it

# (scores [...], labels [...] 0 or 1) -> nats [...]
Pointwise = Callable[[jax.Array, jax.Array], jax.Array]


@jax.custom_jvp
def logistic_loss(
  scores: jax.Array, labels: jax.Array, counts: jax.Array | float = 1.0
) -> jax.Array:
  """Returns -log sigmoid(s) where the label is 1, else -log sigmoid(-s).

  The derivative is sigmoid(s) - label, one exponential; what autodiff makes of
  a stable softplus costs several. Scores [...] of any size do not overflow.
  `counts` examples with the same score, of which `labels` have label 1, are
  summed; both are data, without a derivative.

  >>> float(logistic_loss(jnp.float32(-1000), jnp.float32(1)))
  1000.0
  >>> float(logistic_loss(jnp.float32(-1000), 2.0, 5.0))
  2000.0
  """
  # In this order no small loss is lost beside a large score.
  linear = counts * jnp.maximum(scores, 0) - labels * scores
  return linear + counts * jnp.log1p(jnp.exp(-jnp.abs(scores)))


@logistic_loss.defjvp
def _logistic_loss_jvp(primals, tangents):
  scores, labels, counts = primals
  slope = counts * jax.nn.sigmoid(scores) - labels
  return logistic_loss(*primals), slope * tangents[0]


def key_shape() -> jax.ShapeDtypeStruct:
  """Returns what stands for any key in `eval_shape`.

  To make a key takes programs, each of which a GPU compiles for a while.
  """
  return jax.eval_shape(lambda: jax.random.key(0))


class Alias(NamedTuple):
  """A discrete distribution over 0..vocab-1, in n >= vocab entries."""

  # [n / 64, 128] int32. Of an entry the bits of a float32, the chance to keep
  # the word of the entry's own number, and the word taken otherwise, side by
  # side: a TPU reads 128 numbers in less time than two in different places.
  lines: jax.Array  # of the host until a program takes it


@numba.njit(nogil=True, cache=True)
def _build(scaled, alias, work, small):
  """Vose's algorithm; `scaled` (mean 1) becomes the keep probabilities.

  `work` has the numbers of the entries below 1, `small` of them, and behind
  them the others. Returns where those begin and end that are left over.
  """
  large = small
  while small > 0 and large < len(work):
    small -= 1
    s, g = work[small], work[large]
    alias[s] = g
    scaled[g] -= 1.0 - scaled[s]
    if scaled[g] < 1.0:
      large += 1
      work[small] = g
      small += 1
  return small, large


def alias_table(weights: np.ndarray) -> Alias:
  """Makes the alias table, on the host, of weights [vocab] >= 0, not all 0."""
  scaled = np.asarray(weights, np.float64)
  scaled = np.pad(scaled, (0, -len(scaled) % _ENTRIES))  # which are never drawn
  scaled = scaled * (len(scaled) / scaled.sum())
  alias = np.arange(len(scaled), dtype=np.int32)
  is_small = scaled < 1
  small, large = np.flatnonzero(is_small), np.flatnonzero(~is_small)[::-1]
  work = np.concatenate([small, large])
  stop, start = _build(scaled, alias, work, len(small))
  # What is left differs from 1 by rounding only.
  scaled[work[:stop]] = scaled[work[start:]] = 1.0
  pairs = np.stack([scaled.astype(np.float32).view(np.int32), alias], 1)
  return Alias(cast(jax.Array, pairs.reshape(-1, 2 * _ENTRIES)))


def _mix(x: jax.Array) -> jax.Array:
  """A 32-bit finalizer of low bias (of Wellons's hash-prospector list)."""
  x = (x ^ (x >> 16)) * np.uint32(0x21F0AAAD)
  x = (x ^ (x >> 15)) * np.uint32(0x735A2D97)
  return x ^ (x >> 15)


def random_bits(key: jax.Array, positions: jax.Array) -> jax.Array:
  """Returns [...] uint32 random bits, a pure function of (key, position).

  The key is [2] uint32, shared with no other use; positions are [...] uint32.
  """
  return _mix(_mix(positions * np.uint32(0x9E3779B9) + key[0]) ^ key[1])


def uniform_rows(
  key: jax.Array, ids: jax.Array, columns: jax.Array, scale: float
) -> jax.Array:
  """Returns [..., d] float32, uniform in [-scale, scale).

  A pure function of the key [2] uint32, ids of rows [...] and columns [d].
  """
  ids, columns = ids.astype(jnp.uint32), columns.astype(jnp.uint32)
  if isinstance(ids, np.ndarray) and ids.ndim == 1:
    # NumPy takes ten times as long.
    out = np.empty((len(ids), len(columns)), np.float32)
    hashing.fill_uniform(
      key[0],
      key[1],
      ids=ids,
      columns=columns,
      scale=np.float32(scale),
      out=out,
    )
    return out
  # Two hashes of a row: with one, some would be others moved by a column.
  first = random_bits(key, ids)
  second = random_bits(key[::-1] ^ np.uint32(0x5BD1E995), ids)
  columns = columns * np.uint32(0x9E3779B9)
  columns = columns.reshape(*[1] * ids.ndim, -1)
  bits = _mix(_mix(first[..., None] + columns) ^ second[..., None])
  unit = (bits >> 8).astype(jnp.float32) * np.float32(2**-23) - 1
  return np.float32(scale) * unit


def _scale(bits: jax.Array, size: int) -> jax.Array:
  """Returns floor(bits * size / 2^32), exactly, without 64-bit integers."""
  high, low = bits >> 16, bits & 0xFFFF
  size_high, size_low = np.uint32(size >> 16), np.uint32(size & 0xFFFF)
  carry = high * size_low + ((low * size_low) >> 16)
  middle = low * size_high + (carry & 0xFFFF)
  return high * size_high + (carry >> 16) + (middle >> 16)


def draw_uniform(size: int, key: jax.Array, positions: jax.Array) -> jax.Array:
  """Returns [...] int32 below `size`, a pure function of (key, position)."""
  return _scale(random_bits(key, positions), size).astype(jnp.int32)


def draw(table: Alias, key: jax.Array, positions: jax.Array) -> jax.Array:
  """Draws [...] int32 words, a pure function of (key, position)."""
  bits = random_bits(key, positions)
  entries = _scale(bits, _ENTRIES * table.lines.shape[0]).astype(jnp.int32)
  coins = (_mix(bits + key[1]) >> 8).astype(jnp.float32) * np.float32(2**-24)
  chance, alias = jax.lax.platform_dependent(
    table.lines, entries, tpu=_from_lines, default=_from_pairs
  )
  chance = jax.lax.bitcast_convert_type(chance, jnp.float32)
  return jnp.where(coins < chance, entries, alias)


def _from_pairs(lines, entries):
  """Returns both numbers of entries [...], int32."""
  pairs = lines.reshape(-1, 2)  # more numbers than int32 has, of 2^30 words
  return tuple(
    pairs.at[entries, i].get(mode='promise_in_bounds') for i in range(2)
  )


def _from_lines(lines, entries):
  line = lines.at[entries // _ENTRIES].get(mode='promise_in_bounds')
  first = 2 * (entries % _ENTRIES)[..., None]
  positions = (
    jax.lax.broadcasted_iota(jnp.int32, line.shape, entries.ndim) - first
  )
  return tuple(jnp.where(positions == i, line, 0).sum(-1) for i in range(2))


def softmax_loss(positives: jax.Array, negatives: jax.Array) -> jax.Array:
  """Returns [...] nats of scores [...] and those of negatives [..., N]."""
  # Not `logsumexp` of both in one array: it would be written and read again.
  top = jax.lax.stop_gradient(jnp.maximum(positives, jnp.max(negatives, -1)))
  others = jnp.sum(jnp.exp(negatives - top[..., None]), -1)
  return jnp.log(jnp.exp(positives - top) + others) + top - positives
