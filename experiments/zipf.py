"""Training on random ids: the package's parts, and no text.

Words have the counts of Zipf's law, p ~ 1 / (rank + 2.7), for a vocabulary of
any size, and stand in random sentences of about 20 words. The loader subsamples
and packs them as it does a text, so that lookups spread over the tables as in
training.
"""

import pathlib
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np
import psutil

from jaxemb import config as config_lib
from jaxemb.cli import plan
from jaxemb.data import base as data_base
from jaxemb.data import blocks as blocks_lib
from jaxemb.data import subsampling, windows
from jaxemb.models import base as model_base
from jaxemb.ops import sampling
from jaxemb.run import devices as devices_lib
from jaxemb.run import trainer as trainer_lib
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.strategies import base as strategy_base
from jaxemb.text import encode, loader, tokenize

_MEAN_SENTENCE_WORDS = 20
# So low that large steps do not diverge; the time does not depend on it.
_LEARNING_RATE = 1e-3


class Job(NamedTuple):
  """What trains."""

  config: ml_collections.ConfigDict
  mesh: jax.sharding.Mesh
  trainer: trainer_lib.Trainer
  spec: data_base.SourceSpec
  counts: np.ndarray  # [vocab] int64

  @property
  def strategy(self) -> strategy_base.Strategy:
    """Of the training."""
    return self.trainer.strategy

  @property
  def steps(self) -> windows.Steps:
    """Sizes of a step."""
    return self.trainer.trainable.steps

  @property
  def step_words(self) -> int:
    """Centers in a step of all devices."""
    return self.steps.num_parts * self.steps.part_words

  @property
  def kept_fraction(self) -> float:
    """Fraction of the corpus words that subsampling keeps: the centers."""
    keep = subsampling.keep_probabilities(self.counts, self.config.data.sample)
    return float((self.counts * keep).sum() / self.counts.sum())

  def source(self, corpus: encode.Encoded) -> loader.TextSource:
    """The corpus, read over and over."""
    return loader.TextSource(corpus, self.spec)


class Effort(NamedTuple):
  """How long to measure."""

  ready_words: int  # corpus words from which dispatches are made
  min_dispatches: int
  min_secs: float


def make(
  settings: Mapping[str, Any],
  num_rows: int,
  folder: pathlib.Path | None = None,
  devices: Sequence[jax.Device] = (),
  run_words: float = 0,
  **fixed: Any,
) -> Job:
  """Builds what trains tables of `num_rows` rows; starts JAX.

  `settings` are by dotted name, others are the defaults; `fixed` are fields of
  `config.Tuning` that are not to be chosen, the `folder` is for stores; without
  `devices` JAX's own are chosen from. With `run_words` an accelerator's steps
  are as long as in a run of so many words.
  """
  config = config_lib.default()
  config = config_lib.check(config, settings)
  setup = devices_lib.choose(config, {}, devices, **fixed)
  config, tuning, mesh, _ = setup
  if run_words and setup.platform != 'cpu':
    words = config_lib.fitted_batch_words(
      config, tuning, run_words, platform=setup.platform
    )
    config, tuning = config_lib.with_step(config, tuning, words)
    setup = setup._replace(config=config, tuning=tuning)
  counts = plan.zipf_counts(num_rows)
  spec = data_base.SourceSpec(
    '',
    config.seed,
    10**6,  # epochs: until it took long enough
    tuning.parts,
    tuning.part_words,
    config.model.window,
    tuning.chunk,
    1,
    config.data.to_dict(),
    data_base.ALONE._replace(local_parts=range(tuning.parts)),
    pathlib.Path(),
    lambda *_: None,
  )
  frequencies = subsampling.center_probabilities(counts, config.data.sample)
  corpus = model_base.Corpus((), counts, frequencies)
  steps = windows.Steps.of(spec)
  trainer = trainer_lib.make(setup, corpus, steps, folder=folder)
  return Job(config, mesh, trainer, spec, counts)


def corpus(counts: np.ndarray, num_words: int) -> encode.Encoded:
  """Random sentences, with ids in proportion to `counts`, [vocab] int64."""
  rng = np.random.Generator(np.random.Philox(num_words))
  pairs = sampling.alias_table(counts).lines.reshape(-1, 2)
  chances, others = pairs[:, :1].copy().view(np.float32)[:, 0], pairs[:, 1]
  parts = []
  for first in range(0, num_words, 1 << 20):
    size = min(1 << 20, num_words - first)
    slots = rng.integers(0, len(pairs), size, np.int32)
    is_own = rng.random(size, np.float32) < chances[slots]
    ids = np.where(is_own, slots, others[slots]).astype(np.int32)
    ends = np.cumsum(1 + rng.poisson(_MEAN_SENTENCE_WORDS - 1, size))
    ends = np.append(ends[ends < size], size)
    parts.append(np.insert(ids, ends, tokenize.END))
  ids = np.concatenate(parts)
  starts, sizes = encode.block_starts(ids, blocks_lib.BLOCK_WORDS)
  # Each block is a piece: parts of the corpus are equal.
  return encode.Encoded(
    pathlib.Path(),
    range(len(counts)),  # words: their names do not matter
    counts,
    ids,
    blocks_lib.Blocks(
      np.append(starts, len(ids)), sizes, np.arange(len(starts))
    ),
    {},
  )


def state_bytes(job: Job) -> int:
  """Bytes of the tables on one device."""
  form = job.strategy.init.eval_shape(jax.random.key(0))
  return mesh_lib.num_bytes(form) // job.mesh.size


def obstacle(job: Job) -> str:
  """Why the tables do not fit the memory, or ''."""
  stats = job.mesh.devices.flat[0].memory_stats() or {}
  # Without a limit the devices share the host's memory.
  available_bytes = job.mesh.size * stats.get('bytes_limit', 0)
  available_bytes = available_bytes or psutil.virtual_memory().available
  # The random numbers of a table while it is made (measured: three times its
  # size); a gigabyte of batches, programs and libraries.
  random_bytes = 3 * 4 * len(job.counts) * job.config.model.dim
  needed = (job.mesh.size * state_bytes(job) + random_bytes) / 1e9 + 1
  has = available_bytes / 1e9
  if needed <= has:
    return ''
  return f'needs {needed:.1f} GB, {has:.1f} GB are available'


def lower(job: Job) -> jax.stages.Lowered:
  """The program of a dispatch, from shapes of state and batch."""
  strategy, spec = job.strategy, job.spec
  shape = job.steps.num_parts, blocks_lib.batch_words(spec.part_words)
  batch = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=strategy.batch_sharding
    ),
    windows.pack(np.zeros(shape, np.int32), spec.window, spec.part_words),
  )
  state = strategy.init.eval_shape(jax.random.key(0))
  return strategy.step.lower(
    state, strategy.constants(), batch, schedule(job, 0)
  )


def start(job: Job) -> tuple[Any, Any]:
  """The state as training starts, and the constants, on the devices."""
  strategy = job.strategy
  state = strategy.init(jax.random.key(job.config.seed))
  return jax.block_until_ready((state, strategy.constants()))


def schedule(job: Job, index: int) -> strategy_base.Schedule:
  """A learning rate, and the key of a dispatch."""
  rate = np.float32(_LEARNING_RATE)
  key = np.random.SeedSequence((job.config.seed, index))
  return strategy_base.Schedule(rate, rate, key.generate_state(2, np.uint32))


def full_batches(job: Job, corpus: encode.Encoded) -> Iterator[windows.Batch]:
  """Batches on the devices, cut to steps that are full in all parts.

  Raises a `ValueError` if an epoch has none.
  """
  is_empty = True
  for item in job.source(corpus).items(None, 0):
    steps = item.batch.kept_words.min() // job.steps.part_words
    if not steps:  # the rest of an epoch
      if is_empty and item.done_after >= corpus.num_words:
        raise ValueError('the text is too short for a full step: raise --words')
      continue
    is_empty = False
    num_steps = np.full_like(item.batch.num_steps, steps)
    batch = item.batch._replace(
      num_steps=num_steps, kept_words=num_steps * job.steps.part_words
    )
    yield jax.block_until_ready(
      jax.device_put(batch, job.strategy.batch_sharding)
    )


def _check(metrics: strategy_base.DispatchMetrics) -> None:
  """Waits for a dispatch; the time of one that diverged means nothing."""
  if int(metrics.steps.first_bad_step) >= 0:
    raise FloatingPointError('training diverged')


def time_dispatches(
  job: Job, corpus: encode.Encoded, effort: Effort
) -> dict[str, Any]:
  """Times dispatches of full steps, whose batches are ready, but the first."""
  state, constants = start(job)
  secs, cpu_secs, centers = [], [], []
  for batch in full_batches(job, corpus):
    args = constants, batch, schedule(job, len(secs))
    start_secs, start_cpu_secs = time.perf_counter(), time.process_time()
    state, metrics = job.strategy.step(state, *args)
    _check(jax.block_until_ready((state, metrics))[1])
    secs.append(time.perf_counter() - start_secs)
    cpu_secs.append(time.process_time() - start_cpu_secs)
    centers.append(int(metrics.counters['kept_words']))
    is_enough = len(secs) > effort.min_dispatches
    if is_enough and sum(secs[1:]) >= effort.min_secs:
      break
  rates = np.divide(centers, secs)[1:].tolist()
  return _speeds(job, rates) | {
    'dispatch_steps': statistics.median(centers) / job.step_words,
    'cpu_secs_per_center': sum(cpu_secs[1:]) / sum(centers[1:]),
    'first_dispatch_secs': secs[0],  # with compilation
  }


def _speeds(job: Job, rates: list[float]) -> dict[str, Any]:
  """From centers per second of each dispatch or epoch."""
  median = statistics.median(rates)
  return {
    'centers_per_sec': median,
    'min_centers_per_sec': min(rates),
    'max_centers_per_sec': max(rates),
    'words_per_sec': median / job.kept_fraction,
    'step_secs': job.step_words / median,  # all devices step at once
    'timed': len(rates),
    'devices': job.mesh.size,
    'table_bytes': job.mesh.size * state_bytes(job),
  }
