"""Training without a text: the package's parts on a corpus of Zipf ids.

What `build.parts` makes of a text is made here for a vocabulary of any size, on
ids drawn from Zipf's law, p ~ 1 / (rank + 2.7), in sentences of about 20 words.
The loader subsamples and packs them as it does a real text, so that centers,
contexts and negatives are spread over the tables as in training.
"""

import collections
import pathlib
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import machine
import ml_collections
import numpy as np

from jaxemb import build
from jaxemb import config as config_lib
from jaxemb.models import skipgram
from jaxemb.ops import sampling
from jaxemb.runtime import mesh
from jaxemb.strategies import base as strategy_base
from jaxemb.text import encode, loader, tokenize, vocab

_NOTIONAL_WORDS = 10**10  # of the corpus whose counts the vocabulary has
_MEAN_SENTENCE_WORDS = 20
# So low that large steps do not diverge; it does not matter for the time.
_LEARNING_RATE = 1e-3


class Job(NamedTuple):
  """The parts that train."""

  config: ml_collections.ConfigDict
  tuning: config_lib.Tuning
  mesh: jax.sharding.Mesh
  model: skipgram.SkipGram
  strategy: strategy_base.Strategy
  loader_spec: loader.LoaderSpec
  counts: np.ndarray  # [vocab] int64

  @property
  def kept_share(self) -> float:
    """Of raw words, those that subsampling keeps: the centers."""
    keep = loader.keep_probabilities(self.counts, self.loader_spec.sample)
    return float((self.counts * keep).sum() / self.counts.sum())

  @property
  def step_words(self) -> int:
    """Centers of a step of all devices."""
    return self.tuning.parts * self.loader_spec.part_words


class Effort(NamedTuple):
  """How long to measure."""

  ready_words: int  # raw words that dispatches are cut from
  min_dispatches: int
  min_secs: float


def zipf_counts(num_rows: int) -> np.ndarray:
  """[num_rows] int64: counts in a large corpus, p ~ 1 / (rank + 2.7)."""
  weights = 1 / (np.arange(1, num_rows + 1) + 2.7)
  scaled = weights * (_NOTIONAL_WORDS / weights.sum())
  return np.maximum(1, np.rint(scaled)).astype(np.int64)


def write_corpus(
  counts: np.ndarray, num_words: int, path: pathlib.Path
) -> encode.Encoded:
  """Random sentences, memory-mapped as an encoded text is.

  Args:
    counts: [vocab] int64, ids are drawn in proportion.
    num_words: of the corpus.
    path: file for the ids.
  """
  rng = np.random.Generator(np.random.Philox(num_words))
  table = sampling.alias_table(counts)
  with open(path, 'wb') as file:
    for first in range(0, num_words, 1 << 20):
      size = min(1 << 20, num_words - first)
      slots = rng.integers(0, len(counts), size, np.int32)
      is_own = rng.random(size, np.float32) < table.probability[slots]
      ids = np.where(is_own, slots, table.alias[slots]).astype(np.int32)
      ends = np.cumsum(1 + rng.poisson(_MEAN_SENTENCE_WORDS - 1, size))
      ends = np.append(ends[ends < size], size)
      np.insert(ids, ends, tokenize.END).tofile(file)
  ids = np.memmap(path, np.int32, 'r')
  starts, sizes = encode.block_starts(ids, encode.BLOCK_WORDS)
  # Each block a piece of its own: parts of the corpus are equal.
  numbers = np.arange(len(starts), dtype=np.int32)
  blocks = encode.Blocks(np.append(starts, len(ids)), sizes, numbers)
  pieces = np.stack([np.zeros_like(numbers), numbers], 1)
  words = range(len(counts))  # nobody asks for their names
  return encode.Encoded(
    path.parent,
    vocab.Vocabulary(words, counts),
    (ids,),
    blocks,
    pieces,
    num_words,
    {},
  )


def make(config: ml_collections.ConfigDict, num_rows: int, **fixed: Any) -> Job:
  """The parts for a vocabulary of so many rows; starts JAX.

  Args:
    config: checked settings.
    num_rows: of each table.
    **fixed: fields of `config.Tuning` that are not to be chosen.
  """
  shape = mesh.start(
    mesh.Shape(config.mesh.data, config.mesh.table),
    config.table.layout != 'replicated',
    config.strategy.name != 'sync' or config.table.layout != 'replicated',
  )
  devices = mesh.make(shape)
  platform = devices.devices.flat[0].platform
  config, tuning = config_lib.resolve(config, platform, shape, **fixed)
  counts = zipf_counts(num_rows)
  made = build.trainer(config, tuning, counts, devices)
  spec = loader.LoaderSpec(
    config.seed,
    config.train.epochs,
    tuning.part_words,
    config.model.window,
    config.data.sample,
    1 if config.model.dynamic_window else config.model.window,
  )
  return Job(config, tuning, devices, made.model, made.strategy, spec, counts)


def state_bytes(job: Job) -> int:
  """Bytes that the tables will take on all devices."""

  def placed(sharding, part):
    return sum(
      len(sharding.device_set)
      * int(np.prod(sharding.shard_shape(x.shape)))
      * x.dtype.itemsize
      for x in jax.tree.leaves(part)
    )

  shapes = jax.eval_shape(job.strategy.init, jax.random.key(0))
  each = jax.tree.map(placed, job.strategy.state_sharding, shapes)
  return sum(jax.tree.leaves(each))


def shapes(job: Job) -> tuple[Any, ...]:
  """The arguments of a dispatch, as shapes on the mesh, to be compiled."""

  def placed(sharding, part):
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), part
    )

  spec, num_parts = job.loader_spec, job.tuning.parts
  size = spec.max_steps * spec.part_words
  figures = jax.ShapeDtypeStruct((num_parts,), np.int32)
  batch = loader.Batch(
    jax.ShapeDtypeStruct((num_parts, size + 2 * spec.window), np.int32),
    jax.ShapeDtypeStruct((num_parts, size), np.uint8),
    jax.ShapeDtypeStruct((num_parts, size), np.uint8),
    *[figures] * 3,
  )
  strategy = job.strategy
  state = jax.eval_shape(strategy.init, jax.random.key(0))
  return (
    jax.tree.map(placed, strategy.state_sharding, state),
    placed(strategy.constants_sharding, strategy.constants()),
    placed(strategy.batch_sharding, batch),
    schedule(job, 0),
  )


def too_large(job: Job) -> str:
  """Why the tables do not fit the memory, or ''."""
  stats = job.mesh.devices.flatten()[0].memory_stats() or {}
  if 'bytes_limit' in stats:
    available = job.mesh.size * stats['bytes_limit']
  else:  # the devices share the host's memory
    available = machine.memory_bytes('MemAvailable')
  # Beside the tables: the random numbers of one while it is made (measured:
  # three times its size); a gigabyte of batches, programs and libraries.
  random_bytes = 3 * 4 * len(job.counts) * job.config.model.dim
  needed = state_bytes(job) + random_bytes + 10**9
  if needed <= available:
    return ''
  return f'needs {needed / 1e9:.1f} GB, {available / 1e9:.1f} GB are available'


def start(job: Job) -> tuple[Any, Any]:
  """The tables as training starts, and the constants, on the devices."""
  init = jax.jit(job.strategy.init, out_shardings=job.strategy.state_sharding)
  state = init(jax.random.key(job.config.seed))
  constants = job.strategy.constants()
  constants = jax.device_put(constants, job.strategy.constants_sharding)
  return jax.block_until_ready((state, constants))


def full_batches(job: Job, corpus: encode.Encoded) -> Iterator[loader.Loaded]:
  """The loader's batches, on the devices, cut to full steps on all of them.

  Epoch follows epoch, each with choices of its own.
  """
  division = encode.divide(corpus, job.tuning.parts)
  start = loader.Position(0, 0)
  for item in loader.batches(corpus, division, job.loader_spec, start, 0):
    steps = item.batch.kept_words.min() // job.loader_spec.part_words
    if not steps:
      continue  # the rest of an epoch
    num_steps = np.full_like(item.batch.num_steps, steps)
    batch = item.batch._replace(
      num_steps=num_steps, kept_words=num_steps * job.loader_spec.part_words
    )
    batch = jax.device_put(batch, job.strategy.batch_sharding)
    yield item._replace(batch=jax.block_until_ready(batch))


def schedule(job: Job, index: int) -> strategy_base.Schedule:
  """A learning rate, and the key of a dispatch."""
  rate = np.float32(_LEARNING_RATE)
  key = np.random.SeedSequence((job.config.seed, index))
  return strategy_base.Schedule(rate, rate, key.generate_state(2, np.uint32))


def _check(metrics: strategy_base.DispatchMetrics) -> None:
  """Waits for a dispatch; a time without a result means nothing."""
  if int(metrics.steps.first_bad_step) >= 0:
    raise FloatingPointError('training diverged')


def time_dispatches(
  job: Job, corpus: encode.Encoded, effort: Effort, state: Any, constants: Any
) -> dict[str, Any]:
  """Dispatches of full steps, whose batches are ready; the first is not timed.

  Args:
    job: the parts.
    corpus: what batches are cut from.
    effort: how long to measure.
    state: as `start` makes it; is used up.
    constants: as `start` makes them.

  Returns:
    Figures as `_figures` names them.
  """
  secs, sizes = [], []
  for item in full_batches(job, corpus):
    plan = schedule(job, len(secs))
    start_secs = time.perf_counter()
    state, metrics = job.strategy.step(state, constants, item.batch, plan)
    _check(jax.block_until_ready((state, metrics))[1])
    secs.append(time.perf_counter() - start_secs)
    sizes.append(int(metrics.kept_words))
    enough = len(secs) > effort.min_dispatches
    if enough and sum(secs[1:]) >= effort.min_secs:
      break
  rates = [n / t for n, t in zip(sizes[1:], secs[1:], strict=True)]
  return _figures(job, state, rates) | {
    'dispatch_steps': statistics.median(sizes) / job.step_words,
    'first_dispatch_secs': secs[0],  # with compilation
  }


def time_epochs(
  job: Job, corpus: encode.Encoded, effort: Effort, state: Any, constants: Any
) -> dict[str, Any]:
  """Epochs as the training loop runs them; the first is not timed.

  The loader works beside it, always some batches ahead. Arguments and result as
  of `time_dispatches`.
  """
  division = encode.divide(corpus, job.tuning.parts)
  num_blocks = max(len(words) for words in division.block_words)
  num_batches = job.loader_spec.num_batches(num_blocks)
  items = loader.prefetch(
    loader.batches(corpus, division, job.loader_spec, loader.Position(0, 0), 0),
    lambda batch: jax.device_put(batch, job.strategy.batch_sharding),
  )
  waiting: collections.deque = collections.deque()
  ends: list[float] = []  # of epochs
  for item in items:
    plan = schedule(job, item.index)
    state, metrics = job.strategy.step(state, constants, item.batch, plan)
    waiting.append((item.index, metrics))
    if len(waiting) < 2:
      continue  # one dispatch is under way while the one before it is awaited
    index, metrics = waiting.popleft()
    _check(metrics)
    if (index + 1) % num_batches == 0:
      ends.append(time.perf_counter())
    if len(ends) > 1 and ends[-1] - ends[0] >= effort.min_secs:
      break
  items.close()
  kept_words = job.kept_share * corpus.num_words
  rates = [kept_words / (b - a) for a, b in zip(ends, ends[1:], strict=False)]
  return _figures(job, jax.block_until_ready(state), rates) | {
    'epoch_secs': kept_words / statistics.median(rates)
  }


def _figures(job: Job, state: Any, rates: list[float]) -> dict[str, Any]:
  """From centers per second of each dispatch or epoch."""
  median = statistics.median(rates)
  return {
    'centers_per_sec': median,
    'min_centers_per_sec': min(rates),
    'max_centers_per_sec': max(rates),
    'raw_words_per_sec': median / job.kept_share,
    # All devices step at once.
    'step_secs': job.step_words / median,
    'timed': len(rates),
    'devices': job.mesh.size,
    'table_bytes': mesh.num_bytes(state),
  }
