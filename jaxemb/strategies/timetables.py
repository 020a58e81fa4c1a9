"""When the rows of replicas are exchanged (`strategies.replicas`).

Rows are in falling order of frequency, so that those due are always a table's
first ones: chunks of rows have levels, each of which is exchanged so much more
seldom than the one before, and every row as often as its look-ups say.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_CHUNK_ROWS = 1024  # exchanged at once: half a megabyte stays in the cache
_LEVEL_FACTOR = 4  # each level of rarer rows is exchanged so much more seldom
_MAX_LEVEL = 12


@dataclasses.dataclass(frozen=True)
class ExchangeSpec:
  """How stale a row may become."""

  every_steps: int  # between two exchanges of the most frequent rows
  lookups: float  # of a row by each replica, between two of its exchanges
  memory_lookups: float  # tau at the first learning rate
  first_learning_rate: float  # tau grows as the learning rate falls


class Timetable(NamedTuple):
  """When the rows of the tables are exchanged."""

  chunk_rows: int
  due: np.ndarray  # [levels] int32, chunks due at an exchange of each level
  # By table, [vocab] float32: m, between two exchanges of the row.
  lookups: dict[str, np.ndarray]


def timetable(
  rates: Mapping[str, np.ndarray], batch_words: int, spec: ExchangeSpec
) -> Timetable:
  """One timetable for all tables: their chunks travel together.

  Args:
    rates: by table, [vocab] float, expected look-ups of each row per center.
    batch_words: L, centers of a step.
    spec: how stale a row may become.
  """
  vocab = max(len(x) for x in rates.values())
  chunk_rows = min(_CHUNK_ROWS, vocab)
  highest = np.zeros(vocab)
  for x in rates.values():
    highest[: len(x)] = np.maximum(highest[: len(x)], x)
  # A chunk is as urgent as the most urgent row in it or behind it, so that what
  # is due is always a prefix.
  highest = np.maximum.accumulate(highest[::-1])[::-1][::chunk_rows]
  each = np.maximum(highest * batch_words * spec.every_steps, 1e-30)
  levels = np.ceil(np.log(spec.lookups / each) / np.log(_LEVEL_FACTOR))
  levels = np.clip(levels, 0, _MAX_LEVEL).astype(np.int32)
  due = np.searchsorted(levels, np.arange(levels.max() + 1), 'right')
  words = batch_words * spec.every_steps * float(_LEVEL_FACTOR) ** levels
  words = np.repeat(words, chunk_rows)
  return Timetable(
    chunk_rows,
    due.astype(np.int32),
    {k: (x * words[: len(x)]).astype(np.float32) for k, x in rates.items()},
  )


def chunks_per_exchange(timetable: Timetable) -> float:
  """How many chunks are due on average."""
  levels = np.arange(len(timetable.due))
  # Exchanges that reach each level, as a share of all.
  reach = float(_LEVEL_FACTOR) ** -levels
  return float(np.sum((reach - np.append(reach[1:], 0)) * timetable.due))


def level(num_exchanges: jax.Array) -> jax.Array:
  """How often the factor divides the number of an exchange."""
  powers = _LEVEL_FACTOR ** np.arange(1, _MAX_LEVEL + 1)
  return jnp.sum(num_exchanges % powers.astype(np.int32) == 0)
