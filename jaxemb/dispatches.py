"""What each dispatch trains on: its tokens, learning rates and random key."""

from collections.abc import Callable, Iterator

import jax
import ml_collections
import numpy as np

from jaxemb import build, metrics
from jaxemb.runtime import mesh
from jaxemb.strategies import base as strategy_base
from jaxemb.text import loader

# Streams of random numbers that a seed has.
_TABLES, _NEGATIVES = 0, 1


def tables_key(config: ml_collections.ConfigDict) -> jax.Array:
  """The key of the tables' first values."""
  # Named, so that a user's JAX settings cannot change what a seed means.
  key = jax.random.key(config.seed, impl='threefry2x32')
  return jax.random.fold_in(key, _TABLES)


def schedules(
  config: ml_collections.ConfigDict,
  total_words: int,
  stream: tuple[int, ...] = (),
) -> Callable[[loader.Loaded], strategy_base.Schedule]:
  """Linear decay on global progress, and the key of each dispatch.

  Args:
    config: checked settings.
    total_words: of all epochs.
    stream: names the random choices where several models have the same seed.
  """
  o = config.optimizer

  def learning_rate(words: int) -> np.float32:
    span = o.final_learning_rate - o.learning_rate
    return np.float32(o.learning_rate + span * (words / total_words))

  def schedule(item: loader.Loaded) -> strategy_base.Schedule:
    # NumPy's, because a JAX operation would wait for the dispatch under way.
    key = np.random.SeedSequence((config.seed, _NEGATIVES, item.index, *stream))
    return strategy_base.Schedule(
      learning_rate(item.words_before),
      learning_rate(item.words_after),
      key.generate_state(2, np.uint32),
      np.float32(item.words_before / total_words),
      np.float32(item.words_after / total_words),
    )

  return schedule


def batches(
  parts: build.Parts, totals: metrics.Totals
) -> Iterator[loader.Loaded]:
  """What remains to be read, brought to the devices ahead of its use."""
  position = loader.Position(totals.epoch, totals.block)
  return loader.prefetch(
    loader.batches(
      parts.corpus, parts.division, parts.loader_spec, position, totals.words
    ),
    lambda batch: mesh.put_parts(
      batch,
      parts.strategy.batch_sharding,
      mesh.my_parts(parts.mesh, len(parts.division.block_words)),
      len(parts.division.block_words),
    ),
  )
