"""What hardware and data make of settings that leave something open.

`resolve` makes one decision after the other, each a function here; what it
decides is recorded with the run.
"""

import dataclasses
import math
from typing import Any

import ml_collections

from jaxemb import errors
from jaxemb.config import kinds
from jaxemb.kernels.cpu import support

# More threads train on rows too stale to converge (experiments/cores.py).
MAX_THREADS = 64
_SYNC_PARTS = 8  # of the corpus, whatever the mesh
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
# Of steps that a kernel takes, which learn from every chunk at once.
_FUSED_LEARNING_RATES = {
  'sgd': (0.04, 0.2, 0.03, 0.1),
  'adagrad': (0.15, 0.15, 0.1, 0.1),
}
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
  chunk: int  # centers per matrix product
  shared_nodes: int  # inner nodes next to the root that a chunk shares
  deduplicates: bool  # rows are summed by id before they are written
  loss_every_steps: int  # steps between evaluations of the loss
  steps_per_loop: int  # steps without asking the host whether there are more
  fused: bool  # a kernel takes the steps, in place of XLA's operations
  threads: int  # of each kernel, which share its tables
  row_threads: int  # of a kernel that updates rows; 0 = XLA does
  tokens_once: bool  # not once for each window that a step has them in
  row_copies: bool  # a TPU's kernels read and write rows
  row_sums: bool  # a GPU's kernels multiply rows, sum those of an id, update
  sync_words: float  # of a replica between exchanges of the frequent rows
  rest_words: float  # and, with the policy hot, between those of the others
  sync_lookups: float  # of a row between two exchanges of it
  memory_lookups: float  # after which a row has forgotten the last one


@dataclasses.dataclass(frozen=True)
class _Hardware:
  """What a run has to train on."""

  platform: str
  num_data: int  # devices along the data axis
  num_table: int  # and along the table axis
  cores: int  # that each device has for itself

  @property
  def on_cpu(self) -> bool:
    return self.platform == 'cpu'

  @property
  def num_devices(self) -> int:
    return self.num_data * self.num_table


def can_fuse(
  config: ml_collections.ConfigDict, platform: str, mesh: tuple[int, int]
) -> bool:
  """Whether a kernel can take the steps that checked settings name."""
  m, t = config.model, config.table
  return (
    _has_kernels(config, platform, mesh)
    and support.takes_steps(
      model=m.name,
      loss=m.loss,
      dtype=t.dtype,
      optimizer=config.optimizer.name,
    )
    # Nodes of a tree are compiled into the kernel as they are numbered.
    and not (t.store and m.loss == 'hierarchical_softmax')
  )


def _has_kernels(
  config: ml_collections.ConfigDict, platform: str, mesh: tuple[int, int]
) -> bool:
  """Whether kernels can change the tables at all."""
  return (
    config.train.fused
    and platform == 'cpu'
    and config.table.layout == 'replicated'
    and (config.strategy.name != 'sync' or math.prod(mesh) == 1)
  )


def _updates_by_kernel(
  config: ml_collections.ConfigDict, platform: str, mesh: tuple[int, int]
) -> bool:
  """Whether a kernel can update the rows of XLA's steps."""
  return (
    _has_kernels(config, platform, mesh)
    and config.optimizer.name in kinds.of(config).row_kernels
    and config.table.dtype == 'float32'
    and config.optimizer.rows == 'looked_up'
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
  along the data and the table axis; `cores` those that each has for itself;
  `fixed` are given fields of `Tuning`. Raises a `UserError` for settings that
  do not fit the mesh.
  """
  config = config.copy_and_resolve_references()
  config.mesh.data, config.mesh.table = mesh
  hardware = _Hardware(platform, *mesh, cores=cores)
  may_fuse = fixed.pop('fused', True)
  has_kernel = can_fuse(config, platform, mesh) and not _is_lockstep(config)
  fused = may_fuse and has_kernel
  _resolve_strategy(config)
  _resolve_optimizer(config, fused=fused, num_replicas=_replicas(config, mesh))
  _check_threads(config, has_kernel)
  chosen = _device_choices(config, hardware, may_fuse=may_fuse)
  chunk = fixed.get('chunk', kinds.of(config).chunk(config))
  chosen |= {
    'parts': _num_parts(config, hardware.num_data, chunk=chunk, fused=fused),
    'chunk': chunk,
    'shared_nodes': 64,
    'fused': fused,
    'threads': _threads(config, hardware) if fused else 1,
  }
  chosen |= _exchange_choices(config, _replicas(config, mesh)) | fixed
  _resolve_batch(config, hardware, chosen)
  _resolve_duplicates(config, fused)
  # A replica has a step of its own, from its own part of the corpus.
  is_divided = config.strategy.name == 'sync' or _is_lockstep(config)
  part_words = config.train.batch_words
  part_words //= chosen['parts'] if is_divided else 1
  return config, Tuning(part_words=part_words, **chosen)


def _is_lockstep(config: ml_collections.ConfigDict) -> bool:
  """Whether workers take each step together."""
  return config.strategy.name == 'workers' and config.strategy.pace == 'bsp'


def _replicas(config: ml_collections.ConfigDict, mesh: tuple[int, int]) -> int:
  """How many learn at the same time without seeing each other's updates."""
  s = config.strategy
  return s.num_workers if s.name == 'workers' else math.prod(mesh)


def _resolve_strategy(config: ml_collections.ConfigDict) -> None:
  s, t, kind = config.strategy, config.train, kinds.of(config)
  if s.name == 'partition':
    s.rate = s.rate or 1 / s.num_parts
  if kind.unit == 'examples':
    t.batch_words = t.batch_words or t.batch_examples


def _resolve_optimizer(
  config: ml_collections.ConfigDict, fused: bool, num_replicas: int
) -> None:
  """Chooses learning rates and epsilon."""
  o, has_dense = config.optimizer, kinds.of(config).has_dense
  if has_dense:
    o.learning_rate = o.learning_rate or _DENSE_LEARNING_RATES.get(o.name, 0.0)
    o.max_duplicates = max(o.max_duplicates, 0.0)
  if o.name != 'sgd':
    o.epsilon = o.epsilon or (1e-8 if has_dense else 1e-6)
  if not o.learning_rate:
    o.learning_rate = _learning_rate(config, fused, num_replicas)
  if (
    o.final_learning_rate == kinds.find('optimizer.final_learning_rate').default
  ):
    o.final_learning_rate = min(o.final_learning_rate, o.learning_rate)
  if o.final_learning_rate > o.learning_rate:
    raise errors.UserError(
      f'config.optimizer.final_learning_rate={o.final_learning_rate:g} is '
      f'above config.optimizer.learning_rate={o.learning_rate:g}, from which '
      'it falls; lower the first or raise the second'
    )


def _learning_rate(
  config: ml_collections.ConfigDict, fused: bool, num_replicas: int
) -> float:
  o, s, m = config.optimizer, config.strategy, config.model
  if o.name not in _LEARNING_RATES:
    raise errors.UserError(
      f'config.optimizer.name={o.name} has no usual learning rate; set '
      '--config.optimizer.learning_rate'
    )
  rates = (_FUSED_LEARNING_RATES if fused else _LEARNING_RATES)[o.name]
  is_tree = m.loss == 'hierarchical_softmax'
  rate = rates[2 * is_tree + (m.name == 'cbow')]
  is_skipgram = m.name == 'skipgram' and not is_tree
  if s.name == 'replicas' and s.policy in ('average', 'hot') and is_skipgram:
    # A mean keeps a part of what each replica learns. More diverges.
    rate *= min(num_replicas, 3) if o.name == 'sgd' else 1
  return rate


def _check_threads(config: ml_collections.ConfigDict, has_kernel: bool) -> None:
  if config.train.threads > 1 and not has_kernel:
    raise errors.UserError(
      f'config.train.threads={config.train.threads} is only used where a '
      'kernel takes the steps (docs/devices.md); remove it'
    )


def _all_threads(config: ml_collections.ConfigDict, hardware: _Hardware) -> int:
  """Threads of a kernel where settings do not say: cores of a process."""
  # A sub-model has the same bits wherever it is trained.
  is_one = config.strategy.name in ('partition', 'workers')
  return 1 if is_one else min(hardware.cores, MAX_THREADS)


def _threads(config: ml_collections.ConfigDict, hardware: _Hardware) -> int:
  threads = config.train.threads or _all_threads(config, hardware)
  return min(threads, _MAX_STORE_THREADS) if config.table.store else threads


def _num_parts(
  config: ml_collections.ConfigDict, num_data: int, chunk: int, fused: bool
) -> int:
  """How many parts of the corpus are read side by side.

  Synchronous steps take as many centers of each part. Their number depends on
  the settings, not on the mesh, so that every mesh takes the same steps; only
  a data axis that does not divide `_SYNC_PARTS` needs more. Sub-models and
  replicas have parts of their own, as have workers in lockstep; other workers
  take turns at the parts, and later there may be more workers.
  """
  s, kind = config.strategy, kinds.of(config)
  if s.name == 'workers':
    return s.num_workers * (1 if s.pace == 'bsp' else 4)
  if s.name == 'partition' or (s.name == 'sync' and fused):
    return 1
  if s.name != 'sync' or kind.unit == 'examples':
    return num_data  # a step of examples is the same, however it is cut
  num_chunks = config.train.batch_words // chunk  # 0 = not chosen
  return math.lcm(math.gcd(_SYNC_PARTS, num_chunks), num_data)


def _device_choices(
  config: ml_collections.ConfigDict, hardware: _Hardware, may_fuse: bool
) -> dict[str, Any]:
  """Fields of `Tuning` that follow from the kind of device."""
  platform, on_cpu = hardware.platform, hardware.on_cpu
  mesh = hardware.num_data, hardware.num_table
  by_kernel = may_fuse and _updates_by_kernel(config, platform, mesh)
  uses_accelerator_kernels = may_fuse and config.train.fused
  return {
    # A GPU's atomic additions come in another order in every run. A TPU would
    # move an array of the size of the vocabulary in every step to count with,
    # and sums rows of low precision by a loop, which is slow there.
    'deduplicates': not on_cpu or config.table.layout == 'row',
    'loss_every_steps': 64 if on_cpu else 1,  # logarithms take time on a CPU
    'steps_per_loop': 1 if on_cpu else 16,
    'row_threads': by_kernel * _all_threads(config, hardware),
    'tokens_once': platform == 'tpu',  # which has a price for each row
    'row_copies': False,  # these never ran
    'row_sums': uses_accelerator_kernels and platform == 'gpu',
  }


def _exchange_choices(
  config: ml_collections.ConfigDict, num_replicas: int
) -> dict[str, float]:
  """Fields of `Tuning` that say how often replicas or workers exchange rows.

  Many replicas that add up what they learned overshoot: they have to exchange
  it sooner, and to average it sooner. Measured with two, four and eight.
  """
  s, is_workers = config.strategy, config.strategy.name == 'workers'
  is_pair = num_replicas <= 2 and not is_workers
  if s.policy == 'hot':
    sync_words = s.hot_every or 131_072
    rest_words = s.sync_every or 16 * sync_words
  else:
    usual_words = 32_768 if is_pair else max(8192 // num_replicas, 16)
    if s.policy == 'average':
      usual_words = 262_144
    if is_workers:
      usual_words = 1 if _is_lockstep(config) else 8192
    rest_words = sync_words = s.sync_every or usual_words
  if rest_words < sync_words:
    raise errors.UserError(
      f'config.strategy.sync_every={rest_words} is less than the '
      f'{sync_words} words between exchanges of frequent rows; raise it, or '
      'lower --config.strategy.hot_every'
    )
  memory_lookups = 200.0 if is_pair else 100 / num_replicas
  if kinds.of(config).has_dense and is_workers:
    # Each is one of those whose mean a step learns from.
    memory_lookups *= config.train.batch_words
  return {
    'sync_words': sync_words,
    'rest_words': rest_words,
    'sync_lookups': 8.0 if is_pair else 2 / num_replicas,
    'memory_lookups': memory_lookups,
  }


def _batch_multiple(
  config: ml_collections.ConfigDict,
  hardware: _Hardware,
  chunk: int,
  parts: int,
) -> int:
  """Centers that a step must be a multiple of: whole chunks on each device."""
  s, num_table = config.strategy, hardware.num_table
  if _is_lockstep(config):
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
    splits = 1 if config.table.layout == 'column' else num_table
    per_device = parts // hardware.num_data
    return chunk * parts * (splits // math.gcd(splits, per_device))
  return chunk


def _resolve_batch(
  config: ml_collections.ConfigDict,
  hardware: _Hardware,
  chosen: dict[str, Any],
) -> None:
  """Chooses the centers of a step, or refuses a number that cannot be dealt."""
  t, kind = config.train, kinds.of(config)
  chunk, parts = chosen['chunk'], chosen['parts']
  multiple = _batch_multiple(config, hardware, chunk, parts=parts)
  if not t.batch_words:
    usual = _usual_batch_words(config, hardware, chosen)
    t.batch_words = -(-usual // multiple) * multiple
  if not t.batch_words % multiple:
    return
  if config.strategy.name == 'replicas' and hardware.num_table > 1:
    raise errors.UserError(
      f'a step of {t.batch_words} centers, as the run was begun, cannot be '
      f'divided among {hardware.num_table} replicas in chunks of {chunk}; '
      'give another number, --config.mesh.data'
    )
  what = 'centers' if kind.unit == 'words' else 'examples'
  raise errors.UserError(
    f'config.train.batch_{kind.unit}={t.batch_words} must be a multiple of '
    f'{multiple}: {chunk} {what} for each device and part of the data; set '
    f'{-(-t.batch_words // multiple) * multiple}'
  )


def _usual_batch_words(
  config: ml_collections.ConfigDict,
  hardware: _Hardware,
  chosen: dict[str, Any],
) -> int:
  """Centers of a step where settings do not say.

  They fit a core's cache; or are enough for the kernels of an accelerator; or,
  as a CPU's kernel learns from every chunk, few calls between exchanges.
  """
  s, threads = config.strategy, chosen['threads']
  is_apart = s.name in ('partition', 'workers')
  is_alone = hardware.num_devices == 1 and not is_apart
  usual = 256 if hardware.on_cpu else 8192
  if chosen['fused']:
    usual = 16_384 if is_alone else 2048
    # What threads are at is the farther apart in the text.
    usual = max(usual, 1024 * threads)
  if config.table.store:
    usual = min(usual, max(4096, 1024 * threads))
  if _is_lockstep(config):
    return usual * chosen['parts']
  exchanges = s.name in ('replicas', 'workers') and not is_alone
  if hardware.on_cpu and exchanges:
    usual = min(usual, chosen['sync_words'])
  return usual


def _resolve_duplicates(config: ml_collections.ConfigDict, fused: bool) -> None:
  """Chooses how many occurrences of a row count in a step."""
  o = config.optimizer
  if o.max_duplicates >= 0 or o.name in ('adagrad', 'adam'):
    return
  # Large steps of a small vocabulary diverge with 16; a chunk needs no limit.
  is_small_step = fused or config.train.batch_words < 4096
  limit = 16.0 if config.train.batch_words < 4096 else 8.0
  o.max_duplicates = kinds.of(config).max_duplicates(
    0.0 if fused else limit, is_small_step
  )
