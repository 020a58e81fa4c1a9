"""Policies: when replicas synchronise, and how much of their changes they keep.

A policy says how many steps pass between two synchronisations, which rows are
due at one, and the weight g in `strategies.synchronisation`: g = 1 adds up what
n replicas learned, g = 1 / n averages it. Rows are in falling order of
frequency, so the rows due are the first chunks of every table.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base

# Rows exchanged at once: half a megabyte stays in the cache, but a network
# wants more at a time.
_CHUNK_ROWS, _NETWORK_CHUNK_ROWS = 1024, 8192
_LEVEL_FACTOR = 4  # each level of rarer rows is due so much more seldom
_MAX_LEVEL = 12


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Policy:
  """A policy that averages rows over all replicas (copies of the tables).

  Frequent rows are averaged more often than rare ones, or equally often if all
  `periods` are 1 (model averaging). A policy is a pytree. Its arrays are copied
  to the devices. Your own policy need not be a subclass, but must have
  `every_steps`, `chunk_rows` and these methods.

  Attributes:
    periods: [chunks] int32, synchronisations between two exchanges of a chunk;
      each period is a multiple of the previous one.
    num_replicas: number of replicas.
    every_steps: steps between two synchronisations.
    chunk_rows: rows of each table that are exchanged at once.
  """

  periods: Any
  num_replicas: int = base.static()
  every_steps: int = base.static()
  chunk_rows: int = base.static()

  def due(self, number: jax.Array) -> jax.Array:
    """Returns how many chunks are due at synchronisation `number`.

    `number` counts from 1. A chunk has `chunk_rows` rows of each table. The
    chunks with the most frequent rows come first.
    """
    return jnp.sum(number % self.periods == 0)

  def weights(
    self, name: str, start: jax.Array | int, num: int, learning_rate: jax.Array
  ) -> jax.Array:
    """Returns the weights g of `num` rows, [num] float32.

    The rows are those of table `name` from row `start` on. The sum of the
    changes of a row in all replicas is multiplied by its g.
    """
    return jnp.full(num, 1 / self.num_replicas, jnp.float32)

  def staleness_steps(self) -> np.ndarray:
    """Returns the steps between synchronisations of each chunk, [chunks]."""
    return self.every_steps * np.asarray(self.periods, np.int64)


def parallel_weights(times: Any, num: int, xp: Any = jnp) -> Any:
  """Returns g [n] of `Bounded` for `num` replicas, of m / tau = `times` [n]."""
  # The sum of a geometric series: (1 - q^n) / (1 - q) without its 0 / 0.
  powers = xp.arange(num, dtype=xp.float32)[:, None]
  return xp.mean(xp.exp(-powers * times[None]), 0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Bounded(Policy):
  """Synchronises rows after a bounded number of lookups: sums if few.

  With m lookups of the row by each replica since its last synchronisation, and
  tau lookups after which a row has forgotten its start,

    g = (1 - q^n) / (n (1 - q)),    q = exp(-m / tau).

  In a quadratic bowl one replica brings a row 1 - q of its way to the bottom,
  and n, one after the other, 1 - q^n: g makes n parallel updates worth as much.
  This is local SGD (Stich 2019) with a period for each row, as in HET (Miao et
  al. 2022), but known in advance from the words' frequencies.
  """

  lookups: dict[str, Any]  # by table, [vocab] float32: m
  memory_lookups: float = base.static()  # tau at the first learning rate
  first_learning_rate: float = base.static()  # tau grows as the rate falls

  def weights(
    self, name: str, start: jax.Array | int, num: int, learning_rate: jax.Array
  ) -> jax.Array:
    """See the class."""
    tau = self.first_learning_rate * self.memory_lookups
    m = jax.lax.dynamic_slice(self.lookups[name], (start,), (num,))
    return parallel_weights(m * (learning_rate / tau), self.num_replicas)


def mean_chunks(policy: Policy) -> float:
  """Returns how many chunks a synchronisation exchanges on average."""
  return float(np.sum(policy.every_steps / policy.staleness_steps()))


def _vocab(lookups_per_center):
  """Returns the number of rows of the largest table."""
  return max(len(x) for x in lookups_per_center.values())


def average(
  lookups_per_center: Mapping[str, np.ndarray],
  num_replicas: int,
  every_steps: int,
  num_processes: int = 1,
) -> Policy:
  """Averages all rows every `every_steps`."""
  vocab = _vocab(lookups_per_center)
  chunk_rows = _CHUNK_ROWS if num_processes == 1 else _NETWORK_CHUNK_ROWS
  chunk_rows = min(chunk_rows, vocab)
  return Policy(
    periods=np.ones(-(-vocab // chunk_rows), np.int32),
    num_replicas=num_replicas,
    every_steps=every_steps,
    chunk_rows=chunk_rows,
  )


def hot(
  lookups_per_center: Mapping[str, np.ndarray],
  num_replicas: int,
  every_steps: int,
  num_hot: int,
  rest_syncs: int,
) -> Policy:
  """Averages the first `num_hot` rows every `every_steps`.

  The others are averaged every `rest_syncs`-th time (Ji et al. 2016, section
  3). What a replica reads lacks at most what the others learned since.
  """
  vocab = _vocab(lookups_per_center)
  num_hot = min(num_hot, vocab)
  # Whole chunks are hot, as few and as full as can be.
  hot_chunks = -(-num_hot // _CHUNK_ROWS)
  chunk_rows = -(-num_hot // hot_chunks)
  is_hot = np.arange(-(-vocab // chunk_rows)) < hot_chunks
  return Policy(
    periods=np.where(is_hot, 1, rest_syncs).astype(np.int32),
    num_replicas=num_replicas,
    every_steps=every_steps,
    chunk_rows=chunk_rows,
  )


def bounded(
  lookups_per_center: Mapping[str, np.ndarray],
  num_replicas: int,
  step_centers: int,
  every_steps: int,
  lookups: float,
  memory_lookups: float,
  first_learning_rate: float,
) -> Bounded:
  """Synchronises the most frequent rows every `every_steps`.

  The others are due after so many `lookups` by each replica, of those expected
  [vocab] per center and table; a replica's step has `step_centers`.
  """
  vocab = _vocab(lookups_per_center)
  chunk_rows = min(_CHUNK_ROWS, vocab)
  every_table = lookups_per_center.values()
  highest = np.max([np.pad(x, (0, vocab - len(x))) for x in every_table], 0)
  # As urgent as the most urgent row in it or after it: the first ones are due.
  highest = np.maximum.accumulate(highest[::-1])[::-1][::chunk_rows]
  lookups_at_once = np.maximum(highest * step_centers * every_steps, 1e-30)
  levels = np.ceil(np.log(lookups / lookups_at_once) / np.log(_LEVEL_FACTOR))
  periods = _LEVEL_FACTOR ** np.clip(levels, 0, _MAX_LEVEL)
  words = np.repeat(step_centers * every_steps * periods, chunk_rows)
  return Bounded(
    periods=periods.astype(np.int32),
    num_replicas=num_replicas,
    every_steps=every_steps,
    chunk_rows=chunk_rows,
    lookups={
      name: (x * words[: len(x)]).astype(np.float32)
      for name, x in lookups_per_center.items()
    },
    memory_lookups=memory_lookups,
    first_learning_rate=first_learning_rate,
  )
