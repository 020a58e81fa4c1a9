"""What hardware and data make of settings that leave something open.

`resolve` makes one decision after the other, each a function here; what it
decides is recorded with the run.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_collections

from jaxemb import errors
from jaxemb.config import kinds
from jaxemb.kernels.cpu import ahead

if TYPE_CHECKING:
  import numpy as np

# More threads train on rows too stale to converge (experiments/cores.py).
MAX_THREADS = 64
# Of a GPU's kernel, which do not see each other's updates: 132 blocks, as many
# as an H100 has multiprocessors, are at 2,112 words.
MOST_WORDS_IN_FLIGHT = 2112
_MOST_GPU_DIM, _MOST_GPU_WINDOW = 512, 15  # that its kernel is made for
# Of a step by a GPU's kernel: chunks of each block, centers, and steps of a run
# of whose words subsampling may drop half. Chunks have 8, 16 or 64 centers.
_BLOCK_CHUNKS, _MOST_STEP_WORDS, _LEAST_STEPS = 8, 1 << 20, 400
_STEP_MULTIPLE = 64
# Where the host makes batches: each has 128 steps (`data.blocks.group_blocks`).
_MOST_HOST_STEP_WORDS = 1 << 17
# Of a step by a CPU's kernel: calls of it cost each thread some microseconds.
_MOST_CPU_STEP_WORDS = 1 << 17
# Of a step by XLA: what it looks up lacks what its other words teach, which
# costs a text of few steps quality (docs/guides/devices.md).
_LEAST_XLA_WORDS, _MOST_XLA_WORDS, _LEAST_XLA_STEPS = 256, 2048, 1 << 16
_SYNC_PARTS = 8  # of the corpus, whatever the mesh
# Of a batch that is made on a GPU, where it takes 11 bytes a word, for steps of
# a kernel and of XLA. The host waits once for each, as does a signal.
_DEVICE_WORDS, _XLA_DEVICE_WORDS = 1 << 24, 1 << 22
_CORE_WORDS = 1 << 21  # of such a batch on a CPU, of each core: about a second
_FINAL_RATE = 'optimizer.final_learning_rate'
# More threads would have to hold back at rows that they all look up.
_MAX_STORE_THREADS = 16

# Of skip-gram, CBOW, and both with hierarchical softmax: measured on 16 M words
# of Wikipedia and on the embedded corpus, at the default batch_words.
_LEARNING_RATES = {
  'sgd': (0.03, 0.2, 0.005, 0.1),
  'adagrad': (0.15, 0.15, 0.1, 0.1),
  'adam': (0.02, 0.02, 0.02, 0.02),
  'adagrad_full': (0.05, 0.05, 0.05, 0.05),
  'adam_full': (0.005, 0.005, 0.005, 0.005),
}


# Of what settings leave open, in large text and in all that is no text.
_USUAL = {'train.epochs': 5, 'data.sample': 1e-4}
# Of a text whose words get more epochs, as the cube root of their number falls;
# with more than 30 texts of 5,000 to 80,000 words of Wikipedia get worse. A
# small vocabulary has few rare words: with the usual threshold hardly one in
# ten is left, and no two of them in a short sentence.
_LARGE_TEXT_WORDS, _MOST_EPOCHS, _LEAST_KEPT = 16e6, 30, 0.5


class _ShortSteps(NamedTuple):
  """What holds for SGD in short steps of XLA."""

  learning_rate: float
  max_duplicates: float  # occurrences of a row that count; 0 = as usual


# Of steps of at most so many words. With a tree, as all pairs look up the rows
# next to its root: longer steps diverge. And of skip-gram in sub-models, which
# have fewer words to learn from.
_SHORT_WORDS = 256
# Of a step of workers on CPUs, whose rounds may have several.
_MOST_WORKER_WORDS = 8192
_SHORT_PARTITION = _ShortSteps(0.04, max_duplicates=0.0)
_SHORT_TREES = {
  'skipgram': _ShortSteps(0.02, max_duplicates=8.0),
  'cbow': _ShortSteps(0.1, max_duplicates=0.0),
}
# Of steps that a kernel takes, which learn from every chunk at once.
_FUSED_LEARNING_RATES = {
  'sgd': (0.04, 0.2, 0.03, 0.1),
  'adagrad': (0.15, 0.15, 0.1, 0.1),
}
# Of SGD in CBOW with subwords, by a kernel and by XLA: all rows of a mean get
# its whole gradient. Measured on 16 M words of Wikipedia; .2 diverges.
_SUBWORD_CBOW_LEARNING_RATES = 0.1, 0.05
# Of SGD where skip-gram weights contexts in place of drawn windows.
_WEIGHTED_LEARNING_RATE = 0.035
# Of models with dense parameters, which learn by the mean over examples.
_DENSE_LEARNING_RATES = {
  'sgd': 1.0,
  'adagrad': 0.02,
  'adam': 0.001,
  'adagrad_full': 0.02,
  'adam_full': 0.001,
}


@dataclasses.dataclass(frozen=True)
class Tuning:
  """What devices and settings lead to; every run records it."""

  parts: int  # stretches of the corpus that are read at the same time
  part_words: int  # centers per step of each part
  step_multiple: int  # centers of which a step has a multiple
  chunk: int  # centers per matrix product
  shared_nodes: int  # inner nodes next to the root that a chunk shares
  weights_contexts: bool  # by distance, in place of windows that are drawn
  deduplicates: bool  # rows are summed by id before they are written
  loss_every_steps: int  # steps between evaluations of the loss
  steps_per_loop: int  # steps without asking the host whether there are more
  fused: bool  # a kernel takes the steps, in place of XLA's operations
  threads: int  # of each kernel, or blocks of a GPU's, which share its tables
  row_threads: int  # of a kernel that updates rows; 0 = XLA does
  tokens_once: bool  # not once for each window that a step has them in
  row_copies: bool  # a TPU's kernels read and write rows
  row_sums: bool  # a GPU's kernel sums the gradients of an id, and updates
  device_words: int  # of a batch that devices make; 0 = the host makes batches
  sync_words: float  # of a replica between exchanges of the frequent rows
  rest_words: float  # and, with the policy hot, between those of the others
  sync_lookups: float  # of a row between two exchanges of it
  memory_lookups: float  # after which a row has forgotten the last one


class _Facts(NamedTuple):
  """What decisions depend on: settings, the kind of data and hardware."""

  config: ml_collections.ConfigDict  # what is decided is set here
  kind: Any
  platform: str
  mesh: tuple[int, int]  # devices along the data axis and the table axis
  cores: int  # that each device has for itself, multiprocessors of a GPU
  may_fuse: bool  # whether kernels of whole steps are there
  has_kernel: bool  # whether there is one for the steps
  is_workers: bool
  is_lockstep: bool  # workers take each step together
  num_replicas: int  # that learn at once and do not see each other's updates
  weights_contexts: bool  # as in `Tuning`

  @property
  def on_cpu(self) -> bool:
    return self.platform == 'cpu'

  @property
  def num_devices(self) -> int:
    return math.prod(self.mesh)

  @property
  def fused(self) -> bool:
    return self.may_fuse and self.has_kernel


def _facts(
  config: ml_collections.ConfigDict,
  platform: str,
  mesh: tuple[int, int],
  cores: int,
  may_fuse: bool,
  weights_contexts: bool,
) -> _Facts:
  s = config.strategy
  is_workers = s.name == 'workers'
  is_lockstep = is_workers and s.pace == 'bsp'
  return _Facts(
    config=config,
    kind=kinds.of(config),
    platform=platform,
    mesh=mesh,
    cores=cores,
    may_fuse=may_fuse,
    has_kernel=can_fuse(config, platform, mesh) and not is_lockstep,
    is_workers=is_workers,
    is_lockstep=is_lockstep,
    num_replicas=s.num_workers if is_workers else math.prod(mesh),
    weights_contexts=weights_contexts,
  )


def can_fuse(
  config: ml_collections.ConfigDict, platform: str, mesh: tuple[int, int]
) -> bool:
  """Whether a kernel can take the steps that checked settings name."""
  m, t = config.model, config.table
  return (
    _has_kernels(config, platform, mesh)
    and ahead.takes_steps(ahead.choice_of(config))
    # Nodes of a tree are compiled into the kernel as they are numbered.
    and not (t.store and m.loss == 'hierarchical_softmax')
    # Nor do kernels take rows of n-grams from a store.
    and not (t.store and m.subwords)
    and (m.name not in ahead.PARAGRAPHS or _fits_paragraphs(config, platform))
    and (platform == 'cpu' or _fits_gpu(config))
  )


def _fits_paragraphs(config: ml_collections.ConfigDict, platform: str) -> bool:
  """Whether the kernel of documents' models can take the steps."""
  has_limit = config.optimizer.max_duplicates > 0
  return platform == 'cpu' and not (config.table.store or has_limit)


def _fits_gpu(config: ml_collections.ConfigDict) -> bool:
  """Whether a GPU's kernel is made for tables and windows of the settings."""
  m, has_all_rows = config.model, not config.table.store
  is_small = m.dim <= _MOST_GPU_DIM and m.window <= _MOST_GPU_WINDOW
  is_small = is_small and not m.subwords
  return is_small and has_all_rows and config.strategy.name != 'workers'


def _has_kernels(
  config: ml_collections.ConfigDict, platform: str, mesh: tuple[int, int]
) -> bool:
  """Whether kernels can change the tables at all."""
  return (
    config.train.fused
    and platform in ('cpu', 'gpu')
    and config.table.layout == 'replicated'
    and (config.strategy.name != 'sync' or math.prod(mesh) == 1)
  )


def resolve(
  config: ml_collections.ConfigDict,
  platform: str,
  mesh: tuple[int, int],
  cores: int = 1,
  **fixed: Any,
) -> tuple[ml_collections.ConfigDict, Tuning]:
  """Chooses what checked settings leave open, in a copy of them.

  `platform` is that of the devices, 'cpu' or another; `mesh` how many there are
  along the data and the table axis; `cores` those that each has for itself, or
  multiprocessors of a GPU; `fixed` are fields of `Tuning` that are not chosen.
  Raises a `UserError` for settings that do not fit the mesh.
  """
  config = config.copy_and_resolve_references()
  config.mesh.data, config.mesh.table = mesh
  may_fuse = fixed.pop('fused', True)
  is_weighted = fixed.get('weights_contexts', kinds.weights_contexts(config))
  facts = _facts(
    config,
    platform,
    mesh,
    cores=cores,
    may_fuse=may_fuse,
    weights_contexts=is_weighted,
  )
  s, t, kind = config.strategy, config.train, facts.kind
  if s.name == 'partition':
    s.rate = s.rate or 1 / s.num_parts
  config.update_from_flattened_dict(_usual_passes(config))
  if kind.unit == 'examples':
    t.batch_words = t.batch_words or t.batch_examples
  if t.threads > 1 and not facts.has_kernel:
    raise errors.UserError(
      f'config.train.threads={t.threads} is only used where a kernel takes the '
      'steps (docs/guides/devices.md); remove it'
    )
  chunk = fixed.get('chunk', kind.chunk(config))
  threads = _threads(facts, chunk)
  chosen = {
    **_device_choices(facts),
    'parts': _num_parts(facts, chunk),
    'chunk': chunk,
    'shared_nodes': 64,
    'weights_contexts': is_weighted,
    'fused': facts.fused,
    'threads': threads,
    'device_words': _device_words(facts, threads),
    **_exchange_choices(facts),
    **fixed,
  }
  config.model.shared_negatives = kinds.shared_negatives(config, is_weighted)
  _resolve_batch(facts, chosen)
  _resolve_optimizer(facts)
  _resolve_duplicates(facts)
  # A replica has a step of its own, from its own part of the corpus.
  is_divided = s.name == 'sync' or facts.is_lockstep
  part_words = t.batch_words // (chosen['parts'] if is_divided else 1)
  return config, Tuning(part_words=part_words, **chosen)


def left_open(config: ml_collections.ConfigDict) -> tuple[str, ...]:
  """Returns the settings whose values may follow from the data."""
  is_open = {
    'train.epochs': not config.train.epochs,
    'data.sample': config.data.sample < 0,
    'optimizer.learning_rate': not config.optimizer.learning_rate,
  }
  return tuple(name for name, value in is_open.items() if value)


def _usual_passes(config: ml_collections.ConfigDict) -> dict[str, int | float]:
  """Returns the usual epochs and subsampling, as far as they are left open."""
  return {x: _USUAL[x] for x in left_open(config) if x in _USUAL}


def fitted_passes(
  counts: 'np.ndarray', num_words: float
) -> dict[str, int | float]:
  """Returns epochs and the threshold of subsampling that suit a text.

  `counts` are those of its vocabulary, of `num_words` in all. Large texts have
  the usual ones.
  """
  from jaxemb.data import subsampling  # and with it NumPy

  if num_words >= _LARGE_TEXT_WORDS:
    return dict(_USUAL)
  usual, sample = _USUAL['train.epochs'], _USUAL['data.sample']
  epochs = round(usual * (_LARGE_TEXT_WORDS / num_words) ** (1 / 3))
  # Up to it in steps of a tenth: from 1 on no word is dropped.
  while subsampling.kept_fraction(counts, sample) < _LEAST_KEPT:
    sample *= 1.1
  return {
    'train.epochs': min(epochs, _MOST_EPOCHS),
    'data.sample': float(f'{sample:.2g}'),
  }


def _resolve_optimizer(facts: _Facts) -> None:
  """Chooses learning rates and epsilon."""
  o, has_dense = facts.config.optimizer, facts.kind.has_dense
  if has_dense:
    o.learning_rate = o.learning_rate or _DENSE_LEARNING_RATES.get(o.name, 0.0)
    o.max_duplicates = max(o.max_duplicates, 0.0)
  if o.name != 'sgd':
    o.epsilon = o.epsilon or (1e-8 if has_dense else 1e-6)
  o.learning_rate = o.learning_rate or _learning_rate(facts)
  final, default = o.final_learning_rate, kinds.find(_FINAL_RATE).default
  if final == default:
    o.final_learning_rate = min(final, o.learning_rate)
  elif final > o.learning_rate:
    raise errors.UserError(
      f'config.{_FINAL_RATE}={final:g} is above '
      f'config.optimizer.learning_rate={o.learning_rate:g}, from which it '
      'falls; lower the first or raise the second'
    )


def _learning_rate(facts: _Facts) -> float:
  o, s, m = facts.config.optimizer, facts.config.strategy, facts.config.model
  if o.name not in _LEARNING_RATES:
    raise errors.UserError(
      f'config.optimizer.name={o.name} has no usual learning rate; set '
      '--config.optimizer.learning_rate'
    )
  rates = (_FUSED_LEARNING_RATES if facts.fused else _LEARNING_RATES)[o.name]
  is_tree = m.loss == 'hierarchical_softmax'
  rate = rates[2 * is_tree + (m.name == 'cbow')]
  if facts.fused and o.name == 'sgd' and facts.weights_contexts:
    rate = _WEIGHTED_LEARNING_RATE
  if short := _short_steps(facts):
    rate = short.learning_rate
  if o.name == 'sgd' and m.subwords and m.name == 'cbow':
    rate = _SUBWORD_CBOW_LEARNING_RATES[not facts.fused]
  if o.name == 'sgd' and m.name in facts.kind.learning_rates:
    rate = facts.kind.learning_rates[m.name][not facts.fused]
  is_skipgram = m.name == 'skipgram' and not is_tree
  if s.name == 'replicas' and s.policy in ('average', 'hot') and is_skipgram:
    # A mean keeps a part of what each replica learns. More diverges.
    rate *= min(facts.num_replicas, 3) if o.name == 'sgd' else 1
  return rate


def _short_steps(facts: _Facts) -> _ShortSteps | None:
  """Returns what holds for short steps of XLA, if they are to be so short."""
  c, name = facts.config, facts.config.strategy.name
  is_short = c.train.batch_words <= _SHORT_WORDS  # 0 = not chosen
  is_short &= c.optimizer.name == 'sgd'
  # Replicas and workers have other rates.
  is_one = facts.num_devices == 1 or name in ('sync', 'partition')
  is_xla = not (facts.fused or facts.is_workers)
  if not (is_xla and is_short and is_one):
    return None
  if c.model.loss == 'hierarchical_softmax':
    return _SHORT_TREES.get(c.model.name)
  is_skipgram = c.model.name == 'skipgram'
  return _SHORT_PARTITION if is_skipgram and name == 'partition' else None


def _usual_threads(facts: _Facts) -> int:
  """Threads of a CPU's kernel where settings do not say: cores of a process."""
  # A sub-model has the same bits wherever it is trained.
  is_one = facts.config.strategy.name in ('partition', 'workers')
  return 1 if is_one else min(facts.cores, MAX_THREADS)


def _threads(facts: _Facts, chunk: int) -> int:
  """Threads, or blocks of a GPU, of the kernel that takes the steps."""
  if not facts.fused:
    return 1
  if facts.config.train.threads:
    threads = facts.config.train.threads
  elif facts.on_cpu:
    threads = _usual_threads(facts)
  else:
    words = thread_words(facts.config, chunk)
    threads = max(1, min(facts.cores, MOST_WORDS_IN_FLIGHT // words))
  return min(
    threads, _MAX_STORE_THREADS if facts.config.table.store else threads
  )


def thread_words(config: ml_collections.ConfigDict, chunk: int) -> int:
  """Centers that a thread or block of a kernel learns from at once."""
  return 1 if config.model.loss == 'hierarchical_softmax' else chunk


def fitted_batch_words(
  config: ml_collections.ConfigDict,
  tuning: Tuning,
  words: float,
  platform: str,
) -> int:
  """Returns the centers of a step of a kernel or an accelerator.

  It is as long as still leaves many steps of a run of some words. One by a
  GPU's kernel fills all blocks. In `config` steps are as long as is usual, by
  XLA the longest.
  """
  if not tuning.fused:
    fitting = round(max(words / _LEAST_XLA_STEPS, _LEAST_XLA_WORDS))
    return min(1 << (fitting.bit_length() - 1), config.train.batch_words)
  if platform == 'cpu':
    least = config.train.batch_words
    most = max(least, _MOST_CPU_STEP_WORDS)
  else:
    least = _BLOCK_CHUNKS * tuning.threads * thread_words(config, tuning.chunk)
    most = _MOST_STEP_WORDS if tuning.device_words else _MOST_HOST_STEP_WORDS
  fitting = int(min(max(words / _LEAST_STEPS, least), most))
  # Other devices, where the run may go on, can divide a multiple of many.
  multiple = max(_STEP_MULTIPLE, 1 << max(0, fitting.bit_length() - 6))
  return -(-fitting // multiple) * multiple


def with_step(
  config: ml_collections.ConfigDict, tuning: Tuning, batch_words: int
) -> tuple[ml_collections.ConfigDict, Tuning]:
  """Returns both with about so many centers a step."""
  multiple, before = tuning.step_multiple, config.train.batch_words
  config = config.copy_and_resolve_references()
  train = config.train
  train.batch_words = max(multiple, batch_words // multiple * multiple)
  part_words = tuning.part_words * train.batch_words // before
  return config, dataclasses.replace(tuning, part_words=part_words)


def _num_parts(facts: _Facts, chunk: int) -> int:
  """How many parts of the corpus are read side by side.

  Synchronous steps take as many centers of each part. Their number depends on
  the settings, not on the mesh, so that every mesh takes the same steps; only
  a data axis that does not divide `_SYNC_PARTS` needs more. Sub-models and
  replicas have parts of their own, as have workers in lockstep; other workers
  take turns at the parts, and later there may be more workers.
  """
  s, num_data = facts.config.strategy, facts.mesh[0]
  if facts.is_workers:
    return s.num_workers * (1 if s.pace == 'bsp' else 4)
  if s.name == 'partition' or (s.name == 'sync' and facts.fused):
    return 1
  if s.name != 'sync' or facts.kind.unit == 'examples':
    return num_data  # a step of examples is the same, however it is cut
  num_chunks = facts.config.train.batch_words // chunk  # 0 = not chosen
  return math.lcm(math.gcd(_SYNC_PARTS, num_chunks), num_data)


def _device_choices(facts: _Facts) -> dict[str, Any]:
  """Fields of `Tuning` that follow from the kind of device."""
  config, on_cpu = facts.config, facts.on_cpu
  updates_by_kernel = (
    facts.may_fuse
    and on_cpu
    and _has_kernels(config, facts.platform, facts.mesh)
    and config.optimizer.name in facts.kind.row_kernels
    and config.table.dtype == 'float32'
    and config.optimizer.rows == 'looked_up'
  )
  return {
    # A GPU's atomic additions come in another order in every run. A TPU would
    # move an array of the size of the vocabulary in every step to count with,
    # and sums rows of low precision by a loop, which is slow there.
    'deduplicates': not on_cpu or config.table.layout == 'row',
    'loss_every_steps': 64 if on_cpu else 1,  # logarithms take time on a CPU
    # A kernel's steps are long, and a few of them of padding cost the more.
    'steps_per_loop': 1 if on_cpu else 4 if facts.fused else 16,
    'row_threads': _usual_threads(facts) if updates_by_kernel else 0,
    'tokens_once': facts.platform == 'tpu',  # which has a price for each row
    'row_copies': False,  # these never ran
    'row_sums': facts.platform == 'gpu'
    and config.train.fused
    and not facts.fused,
  }


def _device_words(facts: _Facts, threads: int) -> int:
  """Words of a batch that devices make, or 0: the host makes them.

  It has to where rows of a store are fetched ahead of the steps, and where no
  kernel has threads on a CPU.
  """
  by_threads = facts.on_cpu and facts.fused
  may_make = (
    (by_threads or facts.platform == 'gpu')
    and facts.kind.unit == 'words'
    and facts.config.strategy.name in ('sync', 'replicas')
    and not facts.config.table.store
  )
  if not may_make:
    return 0
  if by_threads:
    return min(_DEVICE_WORDS, _CORE_WORDS * min(threads, facts.cores))
  return _DEVICE_WORDS if facts.fused else _XLA_DEVICE_WORDS


def _exchange_choices(facts: _Facts) -> dict[str, float]:
  """Fields of `Tuning` that say how often replicas or workers exchange rows.

  Many replicas that add up what they learned overshoot: they have to exchange
  it sooner, and to average it sooner. Measured with two, four and eight.
  """
  s, num_replicas = facts.config.strategy, facts.num_replicas
  is_pair = num_replicas <= 2 and not facts.is_workers
  if s.policy == 'hot':
    sync_words = s.hot_every or 131_072
    rest_words = s.sync_every or 16 * sync_words
  else:
    usual_words = 32_768 if is_pair else max(8192 // num_replicas, 16)
    if s.policy == 'average':
      usual_words = 262_144
    if facts.is_workers:
      usual_words = _round_words(facts)
    rest_words = sync_words = s.sync_every or usual_words
  if rest_words < sync_words:
    raise errors.UserError(
      f'config.strategy.sync_every={rest_words} is less than the '
      f'{sync_words} words between exchanges of frequent rows; raise it, or '
      'lower --config.strategy.hot_every'
    )
  memory_lookups = 200.0 if is_pair else 100 / num_replicas
  if facts.is_workers:
    # Of all workers: what others did is counted, not how many they are.
    memory_lookups = 200.0
  if facts.kind.has_dense and facts.is_workers:
    # Each is one of those whose mean a step learns from.
    memory_lookups = 100.0 * facts.config.train.batch_words
  return {
    'sync_words': sync_words,
    'rest_words': rest_words,
    'sync_lookups': 8.0 if is_pair else 2 / num_replicas,
    'memory_lookups': memory_lookups,
  }


def _round_words(facts: _Facts) -> int:
  """Words or examples of a worker's longest round; 1 = of one step.

  Of text measured with four and eight workers, from one million words on.
  """
  if facts.is_lockstep:
    return 1
  by_kernel = facts.kind.unit == 'words' and facts.on_cpu and facts.fused
  return 32_768 if by_kernel else 8192


def _batch_multiple(facts: _Facts, chunk: int, parts: int) -> int:
  """Centers that a step must be a multiple of: whole chunks on each device."""
  s, (num_data, num_table) = facts.config.strategy, facts.mesh
  if facts.is_lockstep:
    if parts != s.num_workers:
      raise errors.UserError(
        f'the text was cut for {parts} workers in lockstep; resume with '
        f'--config.strategy.num_workers={parts}'
      )
    return chunk * parts
  if s.name == 'replicas':
    return chunk * num_table  # which share parts
  if s.name == 'sync':
    # Devices of the table axis deal parts to each other, then split them.
    splits = 1 if facts.config.table.layout == 'column' else num_table
    per_device = parts // num_data
    return chunk * parts * (splits // math.gcd(splits, per_device))
  return chunk


def _resolve_batch(facts: _Facts, chosen: dict[str, Any]) -> None:
  """Chooses the centers of a step, or refuses a number that cannot be dealt."""
  t, unit, chunk = facts.config.train, facts.kind.unit, chosen['chunk']
  multiple = _batch_multiple(facts, chunk, chosen['parts'])
  chosen['step_multiple'] = multiple
  if not t.batch_words:
    t.batch_words = -(-_usual_batch_words(facts, chosen) // multiple) * multiple
  if not t.batch_words % multiple:
    return
  num_table = facts.mesh[1]
  if facts.config.strategy.name == 'replicas' and num_table > 1:
    raise errors.UserError(
      f'a step of {t.batch_words} centers, as the run was begun, cannot be '
      f'divided among {num_table} replicas in chunks of {chunk}; '
      'give another number, --config.mesh.data'
    )
  what = 'centers' if unit == 'words' else 'examples'
  raise errors.UserError(
    f'config.train.batch_{unit}={t.batch_words} must be a multiple of '
    f'{multiple}: {chunk} {what} for each device and part of the data; set '
    f'{-(-t.batch_words // multiple) * multiple}'
  )


def _usual_batch_words(facts: _Facts, chosen: dict[str, Any]) -> int:
  """Centers of a step where settings do not say.

  They fit a core's cache; or are enough for the kernels of an accelerator; or,
  as a CPU's kernel learns from every chunk, few calls between exchanges.
  """
  s, threads = facts.config.strategy, chosen['threads']
  is_apart = s.name in ('partition', 'workers')
  is_alone = facts.num_devices == 1 and not is_apart
  usual = _LEAST_XLA_WORDS if facts.on_cpu else _MOST_XLA_WORDS
  if _short_steps(facts):
    usual = min(usual, _SHORT_WORDS)
  if chosen['fused'] and not facts.on_cpu:
    words = threads * thread_words(facts.config, chosen['chunk'])
    usual = _BLOCK_CHUNKS * words
    if is_alone or s.name == 'partition':
      return max(usual, 16_384)
    return max(words, min(usual, int(chosen['sync_words'])))
  if chosen['fused']:
    usual = 16_384 if is_alone else 2048
    # What threads are at is the farther apart in the text.
    usual = max(usual, 1024 * threads)
  if facts.config.table.store:
    usual = min(usual, max(4096, 1024 * threads))
  if facts.is_lockstep:
    return usual * chosen['parts']
  exchanges = s.name in ('replicas', 'workers') and not is_alone
  if facts.on_cpu and exchanges:
    most = _MOST_WORKER_WORDS if facts.is_workers else usual
    usual = min(usual, chosen['sync_words'], most)
  return usual


def _resolve_duplicates(facts: _Facts) -> None:
  """Chooses how many occurrences of a row count in a step."""
  o, is_small = facts.config.optimizer, facts.config.train.batch_words < 4096
  if o.max_duplicates >= 0 or o.name in ('adagrad', 'adam'):
    return
  # Large steps of a small vocabulary diverge with 16; a chunk needs no limit.
  limit = 0.0 if facts.fused else 16.0 if is_small else 8.0
  if short := _short_steps(facts):
    limit = short.max_duplicates or limit
  o.max_duplicates = facts.kind.max_duplicates(limit, facts.fused or is_small)
