"""Policies: when replicas synchronise, and how much of their changes they keep.

A policy says how many steps pass between two synchronisations, which rows are
due at one, and the weight g in `strategies.synchronisation`: g = 1 adds up what
n replicas learned, g = 1 / n averages it. Rows are in falling order of
frequency, so the rows due are the first chunks of every table.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base

# Rows exchanged at once: half a megabyte stays in the cache, but a network
# wants more at a time.
_CHUNK_ROWS, _NETWORK_CHUNK_ROWS = 1024, 8192
_LEVEL_FACTOR = 4  # each level of rarer rows is due so much more seldom
_MAX_LEVEL = 12


class Elapsed(NamedTuple):
  """What has happened since the last synchronisation."""

  learning_rate: jax.Array  # float32, now


class Policy(Protocol):
  """A rule of consistency; a pytree, whose arrays go to the devices."""

  every_steps: int  # between two synchronisations
  chunk_rows: int  # rows of each table that travel at once

  def init(self) -> Any:
    """Returns the clock, a pytree of arrays, the same on all replicas."""

  def due(self, clock: Any) -> tuple[jax.Array, Any]:
    """Returns how many chunks (int32) are due now, and the new clock."""

  def weights(
    self, name: str, start: jax.Array, num: int, elapsed: Elapsed
  ) -> jax.Array:
    """Returns [num] float32, g of rows start to start + num of a table."""

  def staleness_steps(self) -> Mapping[str, np.ndarray]:
    """Returns by table, [vocab] int64, the most steps that a row waits."""

  def mean_chunks(self) -> float:
    """Returns how many chunks are due on average."""


def parallel_weights(times: Any, num: int, xp: Any = jnp) -> Any:
  """Returns g [n] of `Bounded` for `num` replicas, of m / tau = `times` [n]."""
  # The sum of a geometric series: (1 - q^n) / (1 - q) without its 0 / 0.
  powers = xp.arange(num, dtype=xp.float32)[:, None]
  return xp.mean(xp.exp(-powers * times[None]), 0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Bounded:
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
  num_replicas: int = base.static()  # n
  every_steps: int = base.static()
  chunk_rows: int = base.static()
  due_chunks: tuple[int, ...] = base.static()  # at each level
  memory_lookups: float = base.static()  # tau at the first learning rate
  first_learning_rate: float = base.static()  # tau grows as the rate falls

  def init(self) -> jax.Array:
    """Returns int32, synchronisations so far."""
    return jnp.int32(0)

  def due(self, clock: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Takes as level how often the factor divides the clock."""
    clock = clock + 1
    powers = _LEVEL_FACTOR ** np.arange(1, _MAX_LEVEL + 1)
    level = jnp.sum(clock % powers.astype(np.int32) == 0)
    level = jnp.minimum(level, len(self.due_chunks) - 1)
    return jnp.asarray(self.due_chunks, jnp.int32)[level], clock

  def weights(
    self, name: str, start: jax.Array, num: int, elapsed: Elapsed
  ) -> jax.Array:
    """See the class."""
    tau = self.first_learning_rate * self.memory_lookups
    forgetting = elapsed.learning_rate / tau
    m = jax.lax.dynamic_slice(self.lookups[name], (start,), (num,))
    return parallel_weights(m * forgetting, self.num_replicas)

  def staleness_steps(self) -> dict[str, np.ndarray]:
    """Returns steps between two synchronisations of the row's level."""
    chunks = np.arange(self.due_chunks[-1])
    levels = np.sum(chunks[:, None] >= np.array(self.due_chunks)[None], 1)
    steps = self.every_steps * _LEVEL_FACTOR ** levels.astype(np.int64)
    rows = np.repeat(steps, self.chunk_rows)
    return {name: rows[: len(x)] for name, x in self.lookups.items()}

  def mean_chunks(self) -> float:
    """Returns chunks due at each level times how often it is reached."""
    reach = float(_LEVEL_FACTOR) ** -np.arange(len(self.due_chunks))
    fraction = reach - np.append(reach[1:], 0)
    return float(np.sum(fraction * np.array(self.due_chunks)))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Periodic:
  """Averages rows over all replicas, the most frequent ones oftener.

  The first chunks of every table are due each time, all others once in
  `rest_syncs` times (Ji et al. 2016, section 3). Where all rows are due each
  time, it is plain model averaging. What a replica reads lacks at most what the
  others learned since the row's last synchronisation.
  """

  vocabs: tuple[tuple[str, int], ...]  # of the tables
  num_replicas: int
  every_steps: int
  chunk_rows: int
  hot_chunks: int  # which are due each time
  rest_syncs: int  # synchronisations from one of the other chunks to the next

  @property
  def num_chunks(self) -> int:
    """The number of chunks of all rows."""
    return -(-max(vocab for _, vocab in self.vocabs) // self.chunk_rows)

  def init(self) -> jax.Array:
    """Returns int32, synchronisations so far."""
    return jnp.int32(0)

  def due(self, clock: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the hot chunks, or all."""
    clock = clock + 1
    is_whole = clock % self.rest_syncs == 0
    return jnp.where(is_whole, self.num_chunks, self.hot_chunks), clock

  def weights(
    self, name: str, start: jax.Array, num: int, elapsed: Elapsed
  ) -> jax.Array:
    """Returns 1 / n: means."""
    return jnp.full(num, 1 / self.num_replicas, jnp.float32)

  def staleness_steps(self) -> dict[str, np.ndarray]:
    """Returns steps between two synchronisations of the row."""
    steps = np.full(self.num_chunks, self.every_steps * self.rest_syncs)
    steps[: self.hot_chunks] = self.every_steps
    rows = np.repeat(steps, self.chunk_rows)
    return {name: rows[:vocab] for name, vocab in self.vocabs}

  def mean_chunks(self) -> float:
    """Returns the mean over synchronisations of all rows and of hot ones."""
    others = self.hot_chunks * (self.rest_syncs - 1)
    return (self.num_chunks + others) / self.rest_syncs


def _vocabs(lookups_per_center):
  return tuple((name, len(x)) for name, x in lookups_per_center.items())


def average(
  lookups_per_center: Mapping[str, np.ndarray],
  num_replicas: int,
  every_steps: int,
  num_processes: int = 1,
) -> Periodic:
  """Averages all rows every `every_steps`."""
  vocabs = _vocabs(lookups_per_center)
  chunk_rows = _CHUNK_ROWS if num_processes == 1 else _NETWORK_CHUNK_ROWS
  chunk_rows = min(chunk_rows, max(vocab for _, vocab in vocabs))
  return Periodic(
    vocabs=vocabs,
    num_replicas=num_replicas,
    every_steps=every_steps,
    chunk_rows=chunk_rows,
    hot_chunks=0,
    rest_syncs=1,
  )


def hot(
  lookups_per_center: Mapping[str, np.ndarray],
  num_replicas: int,
  every_steps: int,
  num_hot: int,
  rest_syncs: int,
) -> Periodic:
  """Averages the first `num_hot` rows every `every_steps`.

  The others are averaged every `rest_syncs`-th time.
  """
  vocabs = _vocabs(lookups_per_center)
  num_hot = min(num_hot, max(vocab for _, vocab in vocabs))
  # Whole chunks are hot, as few and as full as can be.
  hot_chunks = -(-num_hot // _CHUNK_ROWS)
  chunk_rows = -(-num_hot // hot_chunks)
  return Periodic(
    vocabs=vocabs,
    num_replicas=num_replicas,
    every_steps=every_steps,
    chunk_rows=chunk_rows,
    hot_chunks=hot_chunks,
    rest_syncs=rest_syncs,
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
  vocab = max(len(x) for x in lookups_per_center.values())
  chunk_rows = min(_CHUNK_ROWS, vocab)
  every_table = lookups_per_center.values()
  highest = np.max([np.pad(x, (0, vocab - len(x))) for x in every_table], 0)
  # As urgent as the most urgent row in it or after it: the first ones are due.
  highest = np.maximum.accumulate(highest[::-1])[::-1][::chunk_rows]
  lookups_at_once = np.maximum(highest * step_centers * every_steps, 1e-30)
  levels = np.ceil(np.log(lookups / lookups_at_once) / np.log(_LEVEL_FACTOR))
  levels = np.clip(levels, 0, _MAX_LEVEL).astype(np.int32)
  # Falling urgency: chunks due at level l are those of levels 0..l.
  due = np.searchsorted(levels, np.arange(levels.max() + 1), 'right')
  words = step_centers * every_steps * float(_LEVEL_FACTOR) ** levels
  words = np.repeat(words, chunk_rows)
  return Bounded(
    lookups={
      name: (x * words[: len(x)]).astype(np.float32)
      for name, x in lookups_per_center.items()
    },
    num_replicas=num_replicas,
    every_steps=every_steps,
    chunk_rows=chunk_rows,
    due_chunks=tuple(due.tolist()),
    memory_lookups=memory_lookups,
    first_learning_rate=first_learning_rate,
  )
