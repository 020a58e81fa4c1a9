"""Policies: when replicas meet, and how much of their changes they keep.

A policy says how many steps pass between two meetings, which rows are due at
one, and the weight g in `strategies.replicas`: g = 1 adds up what n replicas
learned, g = 1 / n averages it. Rows are in falling order of frequency, so the
rows due are the first chunks of every table.
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
_LEVEL_FACTOR = 4  # each level of rarer rows meets so much more seldom
_MAX_LEVEL = 12


class Elapsed(NamedTuple):
  """What has happened since the last meeting."""

  learning_rate: jax.Array  # float32, now


class Policy(Protocol):
  """A rule of consistency; a pytree, whose arrays go to the devices."""

  every_steps: int  # between two meetings
  chunk_rows: int  # rows of each table that travel at once

  def init(self) -> Any:
    """The clock, a pytree of arrays, the same on all replicas."""

  def due(self, clock: Any) -> tuple[jax.Array, Any]:
    """How many chunks (int32) are due at this meeting; and the new clock."""

  def weights(
    self, name: str, start: jax.Array, num: int, elapsed: Elapsed
  ) -> jax.Array:
    """[num] float32, g of rows start to start + num of a table."""

  def staleness_steps(self) -> Mapping[str, np.ndarray]:
    """By table, [vocab] int64: steps between two meetings of a row at most."""

  def mean_chunks(self) -> float:
    """How many chunks are due at a meeting on average."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Bounded:
  """Rows meet after a bounded number of lookups: sums if few, means if many.

  With m lookups of the row by each replica since it met, and tau lookups after
  which a row has forgotten its start,

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
  due_chunks: tuple[int, ...] = base.static()  # at a meeting of each level
  memory_lookups: float = base.static()  # tau at the first learning rate
  first_learning_rate: float = base.static()  # tau grows as the rate falls

  def init(self) -> jax.Array:
    """int32, meetings so far."""
    return jnp.int32(0)

  def due(self, clock: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The level of a meeting is how often the factor divides its number."""
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
    # The sum of a geometric series: (1 - q^n) / (1 - q) without its 0 / 0.
    powers = jnp.arange(self.num_replicas, dtype=jnp.float32)[:, None]
    return jnp.mean(jnp.exp(-powers * (m * forgetting)[None]), 0)

  def staleness_steps(self) -> dict[str, np.ndarray]:
    """Steps from one meeting of the row's level to the next."""
    chunks = np.arange(self.due_chunks[-1])
    levels = np.sum(chunks[:, None] >= np.array(self.due_chunks)[None], 1)
    steps = self.every_steps * _LEVEL_FACTOR ** levels.astype(np.int64)
    rows = np.repeat(steps, self.chunk_rows)
    return {name: rows[: len(x)] for name, x in self.lookups.items()}

  def mean_chunks(self) -> float:
    """Meetings that reach each level, as a share of all, times their chunks."""
    reach = float(_LEVEL_FACTOR) ** -np.arange(len(self.due_chunks))
    share = reach - np.append(reach[1:], 0)
    return float(np.sum(share * np.array(self.due_chunks)))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Periodic:
  """Rows become means of all replicas, the most frequent ones oftener.

  The first chunks of every table meet each time, all others at one meeting in
  `rest_meetings` (Ji et al. 2016, section 3). Where all rows meet each time, it
  is plain model averaging. What a replica reads lacks at most what the others
  learned since a row met.
  """

  vocabs: tuple[tuple[str, int], ...]  # of the tables
  num_replicas: int
  every_steps: int
  chunk_rows: int
  hot_chunks: int  # which meet each time
  rest_meetings: int  # meetings between two of the other chunks

  @property
  def num_chunks(self) -> int:
    """Of all rows."""
    return -(-max(vocab for _, vocab in self.vocabs) // self.chunk_rows)

  def init(self) -> jax.Array:
    """int32, meetings so far."""
    return jnp.int32(0)

  def due(self, clock: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The hot chunks, or all."""
    clock = clock + 1
    is_whole = clock % self.rest_meetings == 0
    return jnp.where(is_whole, self.num_chunks, self.hot_chunks), clock

  def weights(
    self, name: str, start: jax.Array, num: int, elapsed: Elapsed
  ) -> jax.Array:
    """1 / n: means."""
    return jnp.full(num, 1 / self.num_replicas, jnp.float32)

  def staleness_steps(self) -> dict[str, np.ndarray]:
    """Steps from one meeting of the row to the next."""
    steps = np.full(self.num_chunks, self.every_steps * self.rest_meetings)
    steps[: self.hot_chunks] = self.every_steps
    rows = np.repeat(steps, self.chunk_rows)
    return {name: rows[:vocab] for name, vocab in self.vocabs}

  def mean_chunks(self) -> float:
    """Those of meetings of all rows, and of the others."""
    others = self.hot_chunks * (self.rest_meetings - 1)
    return (self.num_chunks + others) / self.rest_meetings


def _vocabs(lookups_per_center):
  return tuple((name, len(x)) for name, x in lookups_per_center.items())


def average(
  lookups_per_center: Mapping[str, np.ndarray],
  num_replicas: int,
  every_steps: int,
  num_processes: int = 1,
) -> Periodic:
  """All rows become means every `every_steps`."""
  vocabs = _vocabs(lookups_per_center)
  chunk_rows = _CHUNK_ROWS if num_processes == 1 else _NETWORK_CHUNK_ROWS
  chunk_rows = min(chunk_rows, max(vocab for _, vocab in vocabs))
  return Periodic(
    vocabs=vocabs,
    num_replicas=num_replicas,
    every_steps=every_steps,
    chunk_rows=chunk_rows,
    hot_chunks=0,
    rest_meetings=1,
  )


def hot(
  lookups_per_center: Mapping[str, np.ndarray],
  num_replicas: int,
  every_steps: int,
  num_hot: int,
  rest_meetings: int,
) -> Periodic:
  """The first `num_hot` rows become means every `every_steps`.

  The others do so at every `rest_meetings`-th meeting.
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
    rest_meetings=rest_meetings,
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
  """Levels of chunks: the most frequent rows meet every `every_steps`.

  The others meet after so many `lookups` by each replica, of those expected
  [vocab] per center and table; a replica's step has `step_centers`.
  """
  vocab = max(len(x) for x in lookups_per_center.values())
  chunk_rows = min(_CHUNK_ROWS, vocab)
  every_table = lookups_per_center.values()
  highest = np.max([np.pad(x, (0, vocab - len(x))) for x in every_table], 0)
  # As urgent as the most urgent row in it or after it: the first ones are due.
  highest = np.maximum.accumulate(highest[::-1])[::-1][::chunk_rows]
  each = np.maximum(highest * step_centers * every_steps, 1e-30)
  levels = np.ceil(np.log(lookups / each) / np.log(_LEVEL_FACTOR))
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
