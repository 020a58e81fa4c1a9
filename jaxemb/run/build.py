"""The parts of a run: source, model, tables and strategy of its settings."""

import contextlib
import dataclasses
import logging
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import ml_collections
import numpy as np

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.config import kinds
from jaxemb.data import base as data_base
from jaxemb.data import blocks as blocks_lib
from jaxemb.evaluation import benchmarks
from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import ahead
from jaxemb.kernels.cpu import step as native
from jaxemb.kernels.gpu import driver
from jaxemb.kernels.gpu import step as gpu_step
from jaxemb.merging import warm_start
from jaxemb.models import base as model_base
from jaxemb.ops import sampling
from jaxemb.run import devices, rundir, start, trainer
from jaxemb.run import kind as kind_lib
from jaxemb.runtime import budget, distributed
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.stores import local as stores
from jaxemb.strategies import base as strategy_base
from jaxemb.workers import remote

_RATE = 'optimizer.learning_rate'
_LOG = logging.getLogger('jaxemb')
_DATA_FRACTION = 0.5  # of the memory beside tables, which the data may take
_ROWS_PER_THREAD = 250  # five times as many as diverge
# Of a GPU, whose blocks keep pace: with 250, CBOW loses a hundredth of the
# analogies of 14,000 words.
_ROWS_PER_BLOCK = 500
# Most of learning rate * negatives / keys in steps of a kernel, and of XLA, of
# which each learns from more centers at once. Twice as much and more diverges:
# texts of 10 to 400 words, with 5 to 20 negatives.
_FUSED_RATE_BOUND, _RATE_BOUND = 0.02, 0.0025
_MOST_SHOWN = 200_000  # keys in a report
_LISTED_BYTES, _INDEXED_BYTES = 70, 180  # of a word, in a list and in a dict
_MIN_KNOWN = 0.5  # of the items of a set
_MOST_FREE_EXAMPLES = 1 << 16  # of a step, however few there are


class Parts(NamedTuple):
  """What a run is made of."""

  config: ml_collections.ConfigDict  # resolved
  tuning: config_lib.Tuning
  mesh: jax.sharding.Mesh
  kind: kind_lib.Kind
  source: data_base.Source
  trainable: strategy_base.Trainable
  strategy: strategy_base.Strategy
  benchmarks: list[benchmarks.Benchmark]  # to evaluate on
  dropped: Mapping[str, Any]  # of the data, counted
  # Of all that a checkpoint depends on, by the name that messages give it.
  fingerprints: Mapping[str, str]
  # The process that compiles the kernel, until `wait_for_kernel`.
  compiling: ahead.Compiling | None = None
  # The run that is continued, if one is.
  known: data_base.Known | None = None
  memory: budget.Memory | None = None  # of this process, from `check_fits`

  @property
  def setup(self) -> devices.Setup:
    """Settings, and what devices and data make of them."""
    return devices.Setup(self.config, self.tuning, self.mesh, kind=self.kind)

  @property
  def total_units(self) -> int:
    """Units of progress, such as words, over all epochs."""
    return round(self.source.units_per_epoch * self.source.epochs)

  def new_state(self, key: jax.Array) -> Any:
    """The state before training, from `config.train.init_from` if there is one.

    Raises a `UserError` if that cannot be used.
    """
    state, path = self.strategy.init(key), start.path_of(self.config)
    if self.known:
      return self.kind.go_on(self, state)
    if not path:
      return state
    return warm_start.begin(
      path, self.trainable, self.strategy, state=state, words=self.source.keys
    )

  def close(self) -> None:
    """Closes the stores of tables, if there are any."""
    if self.strategy.store:
      self.strategy.store.close()

  def check_fits(self) -> budget.Memory:
    """Logs what each device will hold; returns the memory of this process.

    Raises a `UserError` with the number of devices or hosts that would have
    room.
    """
    store = self._check_store() if self.strategy.store else None
    state = self.strategy.init.eval_shape(sampling.key_shape())
    held = self.strategy.device_bytes(state)
    vectors = sum(x.vector_bytes for x in state.tables.values())
    _LOG.info(
      f'tables: {held / 1e6:.1f} MB per device ({vectors / 1e6:.1f} MB '
      f'{self.config.table.dtype} vectors of all tables)'
    )

    # Of replicas there are several copies, each on one device.
    copy = min(_num_bytes(state), held * self.mesh.shape['table'])
    smaller = self.kind.smaller
    if 2 * _num_bytes(state[1:]) > held:  # layers, which each device has whole
      copy, smaller = 0, 'lower --config.model.hidden or --config.model.dim'
    budget.check_state(
      list(self.mesh.devices.flat),
      held_bytes=held,
      copy_bytes=copy,
      result_bytes=self._result_bytes(state, store is not None),
      smaller=smaller,
    )
    memory = self._memory(state, store)
    if not store:  # which was checked
      memory.check(smaller)
    _LOG.info(memory.describe())
    return memory

  def _memory(self, state: Any, store: budget.Store | None) -> budget.Memory:
    """Returns what this process takes, of the shapes of a state."""
    devices = self.mesh.local_devices
    on_host = self.setup.platform == 'cpu'
    state_bytes = self.strategy.device_bytes(state) * len(devices) * on_host
    rows_bytes = batch_bytes = 0
    if store:
      state_bytes, rows_bytes = store.resident_bytes, store.rows_bytes
      state_bytes = 0 if store.num_workers else state_bytes
    if not self.tuning.fused:
      item = next(iter(self.source.items(None, 0)), None)
      arrays = jax.tree.leaves(item.batch if item else ())
      # Two that are read ahead, the next one and this.
      batch_bytes = 4 * sum(getattr(x, 'nbytes', 0) for x in arrays)
      del item, arrays  # before what is free is read
    return budget.memory(
      has_dense=bool(jax.tree.leaves(state.params)),
      merges=self.config.strategy.name == 'partition',
      state_bytes=state_bytes,
      rows_bytes=rows_bytes,
      batch_bytes=batch_bytes,
      snapshot_bytes=0 if store else self._snapshot_bytes(state),
      result_bytes=self._result_bytes(state, store is not None),
    )

  def _snapshot_bytes(self, state: Any) -> int:
    """Returns what this process copies to write a checkpoint."""
    if self.setup.platform == 'cpu':
      # Arrays on CPUs are written from where they are. TensorStore copies those
      # with an axis of length one, such as that of replicas in a shard.
      state = state.trained() if self.strategy.num_replicas else ()
    fraction = len(self.mesh.local_devices) / self.mesh.size
    return int(fraction * _num_bytes(state))

  def _result_bytes(self, state: Any, has_store: bool) -> int:
    """Returns what this process takes for results."""
    # Tables are copied; those of another type and those in a store are read
    # for the report, and models make further arrays of them.
    num_copies = max(1, self.strategy.num_replicas)
    result_bytes: float = 4 * self.trainable.model.num_derived(
      len(self.source.keys)
    )
    if not has_store:
      tables = state.tables.values()
      vectors = _num_bytes([x.vectors for x in tables]) / num_copies
      copied = vectors + _num_bytes([x.opt_state for x in tables]) / num_copies
      if self.kind.exports_optimizer:
        result_bytes += copied
      else:  # which is read with vectors, and goes
        result_bytes = max(copied, vectors + result_bytes)
    num_keys = max(1, len(self.source.keys))
    vectors_bytes = 4 * self.config.model.dim * num_keys
    if has_store or self.config.table.dtype != 'float32':
      result_bytes += min(1, _MOST_SHOWN / num_keys) * vectors_bytes
    if self.config.strategy.name == 'partition':
      # Copied, compared with vectors before training, and selected, of one
      # sub-model after the other; and words by name, to merge all.
      result_bytes = 2 * result_bytes + 2 * vectors_bytes
      lists_bytes = _LISTED_BYTES * self.config.strategy.num_parts
      result_bytes += (lists_bytes + _INDEXED_BYTES) * num_keys
    return int(result_bytes)

  def _check_store(self) -> budget.Store:
    """Logs the memory budget of tables in a store and returns it.

    Raises a `UserError` if the machine has less.
    """
    config, store, smaller = self.config, self.strategy.store, self.kind.smaller
    where, num_workers = config.table.store, 0
    step_centers, shared_bytes = config.train.batch_words, 0
    resident_bytes = store.store_bytes
    if where == 'disk':
      resident_bytes = min(resident_bytes, stores.MAPPED_BYTES)
    elif where == 'memory':
      smaller = f'give --config.table.store=disk, or {smaller}'
    else:
      shared_bytes = remote.OBJECT_STORE_BYTES
    if config.strategy.name == 'workers':
      num_workers = config.strategy.num_workers
      step_centers = self.tuning.part_words
      # The coordinator has those of now and of pushes on the way.
      shared_bytes += (num_workers + 3) * store.dense_bytes
    needed = budget.Store(
      table_bytes=store.store_bytes,
      resident_bytes=resident_bytes,
      rows_bytes=store.rows_bytes(step_centers),
      num_workers=num_workers,
      shared_bytes=shared_bytes,
    )
    if where != 'remote' or not os.environ.get('RAY_ADDRESS'):
      needed.check(smaller)
    _LOG.info(needed.describe())
    return needed


def _num_bytes(tree: Any) -> int:
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def make_source(
  setup: devices.Setup,
  readers: data_base.Readers,
  cache: pathlib.Path,
  progress: Callable[[str, int, int], None] = lambda *_: None,
  known: data_base.Known | None = None,
) -> data_base.Source:
  """The data that resolved settings name; `progress` as of `parts`.

  It has all `known` keys, of a run that is continued.
  """
  config, tuning, _, kind = setup
  m = config.model
  spec = data_base.SourceSpec(
    path=config.data.path,
    seed=config.seed,
    epochs=config.train.epochs,
    num_parts=tuning.parts,
    part_words=tuning.part_words,
    window=m.window,
    chunk=tuning.chunk,
    shortest_window=kind_lib.shortest_window(config, tuning),
    settings=config.data.to_dict(),
    readers=readers,
    cache=cache,
    progress=progress,
    device_words=tuning.device_words,
    # Evaluations come after whole batches.
    batch_epochs=config.eval.every_epochs % 1 or 1.0,
    known=known,
    has_windows='model.window' in kind.used(config),
  )
  source = kind.make_source(spec)
  # Of all at once the next multiple, or power of two, is no mistake.
  most = max(2 * source.units_per_epoch, _MOST_FREE_EXAMPLES)
  if source.unit != 'words' and spec.part_words > most:
    raise errors.UserError(
      f'a step of {spec.part_words:,} {source.unit} is more than twice the '
      f'{source.units_per_epoch:,.0f} that there are; lower '
      f'--config.train.batch_{kind.unit}'
    )
  return source


def _readers(setup: devices.Setup) -> data_base.Readers:
  """The processes that read the data together."""
  if setup.config.strategy.name == 'partition':
    return data_base.ALONE  # any sentence may be a sub-model's
  return data_base.Readers(
    local_parts=mesh_lib.my_parts(setup.mesh, setup.tuning.parts),
    process=distributed.process_id(),
    num_processes=distributed.num_processes(),
    gather=distributed.gather,
  )


def _named_benchmarks(
  config: ml_collections.ConfigDict,
) -> list[benchmarks.Benchmark] | None:
  """The sets in `config.eval.paths`, or None if it has no paths.

  Raises a `UserError` for files that are no benchmarks.
  """
  paths = [x.strip() for x in config.eval.paths.split(',') if x.strip()]
  if not paths:
    return None
  if paths == ['none']:
    return []
  return benchmarks.find(map(os.path.expanduser, paths))


def source_benchmarks(
  config: ml_collections.ConfigDict, source: data_base.Source
) -> list[benchmarks.Benchmark]:
  """The sets of a source of which its keys know enough to say much."""
  # A click log has no sets and 34 million keys, which take minutes to read.
  if not (paths := source.eval_paths()):
    return []
  sets = benchmarks.find(paths)
  # Those of the embedded corpus fit it, and other texts perhaps.
  if kinds.of(config).is_embedded(config.data.path):
    return sets
  known, left_out = {x.upper() for x in source.keys}, []
  for one in sets:
    of_all = [all(x.upper() in known for x in y) for y in one.words]
    if sum(of_all) < _MIN_KNOWN * len(of_all):
      left_out.append(one.name)
  if left_out:
    _LOG.info(
      f'not evaluated on {", ".join(left_out)} of the embedded corpus: the '
      'text has not even half of their words; give --config.eval.paths'
    )
  return [x for x in sets if x.name not in left_out]


def corpus_of(
  source: data_base.Source, known: data_base.Known | None
) -> model_base.Corpus:
  """What models are made from."""
  return model_base.Corpus(
    keys=source.keys,
    counts=source.counts,
    centers=source.frequencies,
    source=source,
    earlier=getattr(source, 'earlier', None),
    earlier_contexts=getattr(source, 'earlier_contexts', None),
    known=known,
  )


def reside(parts: Parts) -> None:
  """Has devices that make batches hold the data, if tables leave room.

  A CPU reads it where it is, even in a file that is larger than memory.

  All processes take part, where each has made its parts.
  """
  source, strategy, mesh = parts.source, parts.strategy, parts.mesh
  hold = getattr(source, 'reside', None)
  if not parts.tuning.device_words or hold is None:
    return
  on_cpu = parts.setup.platform == 'cpu'
  state = strategy.init.eval_shape(sampling.key_shape())
  free_bytes = budget.free_bytes(list(mesh.devices.flat))
  room_bytes = max(0, free_bytes - strategy.device_bytes(state))
  num_data = mesh.shape[mesh_lib.DATA]
  num_bytes = hold(int(_DATA_FRACTION * room_bytes) * num_data, on_cpu)
  _LOG.info(
    f'batches are made on the device, which holds all {num_bytes / 1e6:,.1f} '
    'MB of ids'
    if num_bytes
    else 'batches are made on the device, of ids that are sent with each'
  )


def _compiling(
  setup: devices.Setup, cache: pathlib.Path
) -> ahead.Compiling | None:
  """Has the kernel compiled on another core, while the text is read.

  Returns the process that does, for one of a CPU.
  """
  config, tuning, mesh, _ = setup
  if not tuning.fused:
    return None
  if setup.platform == 'cpu':
    return ahead.compiling(ahead.choice_of(config), cache)
  if expected := gpu_step.expected(config.to_dict(), tuning.chunk):
    with contextlib.suppress(ffi.Unavailable):  # whoever needs it says why
      facts = [driver.facts(x) for x in mesh.devices.flat]
      gpu_step.compile(expected, facts, cache / 'programs')
  return None


def _with_threads(setup: devices.Setup, num_keys: int) -> devices.Setup:
  """Caps the threads, or blocks of a GPU, of a kernel for few keys."""
  if setup.config.train.threads:
    return setup
  # What each thread learns of a row meanwhile adds up: with six rows two
  # threads diverge in every second run, with fifty in every third of weighted
  # walks.
  on_cpu = setup.platform == 'cpu'
  each = _ROWS_PER_THREAD if on_cpu else _ROWS_PER_BLOCK
  most = max(1, num_keys // each)
  threads = min(setup.tuning.threads, most)
  return setup._replace(
    tuning=dataclasses.replace(setup.tuning, threads=threads)
  )


def fit_passes(
  setup: devices.Setup, source: data_base.Source, left_open: Sequence[str]
) -> tuple[devices.Setup, data_base.Source]:
  """Fits epochs and subsampling, if `left_open`, to a small text."""
  left_open = [x for x in left_open if x != _RATE]
  if not (setup.kind.fits_passes and left_open):
    return setup, source
  text = cast(blocks_lib.BlockSource, source)  # which all such kinds read
  num_words = text.units_per_epoch
  if text.earlier_words is not None:
    num_words += text.earlier_words.sum()
  fitted = config_lib.fitted_passes(text.word_counts, num_words)
  config = setup.config.copy_and_resolve_references()
  config.update_from_flattened_dict({x: fitted[x] for x in left_open})
  flat = config_lib.flat(config)
  if all(flat[x] == config_lib.flat(setup.config)[x] for x in left_open):
    return setup, source
  epochs, sample = config.train.epochs, config.data.sample
  _LOG.info(
    f'a text of {num_words:,.0f} words is small: {epochs} epochs, subsampling '
    f'threshold {sample:g} (--config.train.epochs, --config.data.sample)'
  )
  text = text.with_passes(epochs, sample=sample)
  return setup._replace(config=config), text


def fit_rate(
  setup: devices.Setup, source: data_base.Source, left_open: Sequence[str]
) -> devices.Setup:
  """Fits the learning rate of SGD, if it is left open, to the data."""
  optimizer = setup.config.optimizer
  if _RATE not in left_open or optimizer.name != 'sgd':
    return setup
  usual = optimizer.learning_rate
  rate = usual * setup.kind.rate_factor(setup.config, source)
  if setup.config.model.loss == 'negative_sampling':
    rate = _bounded_rate(
      rate,
      negatives=setup.config.model.negatives,
      # Of the words of documents, which are what negatives are.
      frequencies=getattr(source, 'word_frequencies', source.frequencies),
      most=_FUSED_RATE_BOUND if setup.tuning.fused else _RATE_BOUND,
    )
  if rate == usual:
    return setup
  config = setup.config.copy_and_resolve_references()
  rate = float(f'{rate:.2g}')
  config.optimizer.learning_rate = rate
  config.optimizer.final_learning_rate = min(
    rate, optimizer.final_learning_rate
  )
  _LOG.info(
    f'learning rate {rate:g}, which suits these data (--config.{_RATE})'
  )
  return setup._replace(config=config)


def _bounded_rate(
  rate: float, *, negatives: int, frequencies: np.ndarray, most: float
) -> float:
  """Returns a learning rate with which few keys do not diverge.

  A step learns from many centers at once, of which each changes `negatives` of
  n rows. Where rate * negatives / n exceeds `most`, the rate falls with the
  root of it. Of keys that are not equally frequent n is 1 / sum(frequency^2).
  """
  frequencies = frequencies / max(frequencies.sum(), 1e-30)
  num_keys = 1 / max((frequencies**2).sum(), 1e-30)
  return rate * min(1.0, (most * num_keys / (rate * negatives)) ** 0.5)


def fit_steps(
  setup: devices.Setup, source: data_base.Source
) -> tuple[devices.Setup, data_base.Source]:
  """Fits steps to the size of the data.

  Those of workers are always as long, as are a CPU's but for a kernel that is
  alone, and those of a GPU's kernel between exchanges of replicas.
  """
  config, tuning, name = setup.config, setup.tuning, setup.config.strategy.name
  is_apart = name == 'partition'
  if setup.platform == 'cpu':
    is_free = setup.is_alone and tuning.fused and not is_apart
    is_free = is_free and not config.table.store
  else:
    is_free = is_apart or setup.is_alone or not tuning.fused
  if name == 'workers' or not is_free:
    return setup, source
  num_words: float = source.units_per_epoch * source.epochs
  if is_apart:
    num_words *= config.strategy.rate
  elif name == 'replicas':
    num_words /= setup.mesh.size
  fitting = config_lib.fitted_batch_words(
    config, tuning, num_words, platform=setup.platform
  )
  return _with_step(setup, source, fitting)


def _with_step(
  setup: devices.Setup, source: data_base.Source, batch_words: int
) -> tuple[devices.Setup, data_base.Source]:
  """Returns both with other steps, if the source can be cut into such."""
  if not hasattr(source, 'with_step'):
    return setup, source
  config, tuning = config_lib.with_step(setup.config, setup.tuning, batch_words)
  setup = setup._replace(config=config, tuning=tuning)
  return setup, source.with_step(tuning.part_words)


def _make_trainer(
  setup: devices.Setup,
  source: data_base.Source,
  fits_steps: bool,
  known: data_base.Known | None,
  **given: Any,
) -> tuple[devices.Setup, data_base.Source, trainer.Trainer]:
  """Makes what trains, by shorter steps if these fit and others do not.

  `given` are arguments of `trainer.make`. Raises a `UserError` for steps that
  the device has no room for.
  """
  corpus = corpus_of(source, known)
  try:
    return setup, source, trainer.make(setup, corpus, source.steps, **given)
  except trainer.StepTooLargeError as error:
    if not fits_steps:
      raise
    before = setup.config.train.batch_words
    setup, source = _with_step(setup, source, error.fitting_words)
    after = setup.config.train.batch_words
    if after >= before:
      raise
    _LOG.info(
      f'steps have {after:,} words in place of {before:,}, whose rows '
      'config.table.device_bytes has no room for'
    )
  return setup, source, trainer.make(setup, corpus, source.steps, **given)


def parts(
  setup: devices.Setup,
  cache: pathlib.Path,
  progress: Callable[[str, int, int], None] = lambda *_: None,
  folder: pathlib.Path | None = None,
  cluster: remote.Cluster | None = None,
  fits_steps: bool = False,
  left_open: Sequence[str] = (),
) -> Parts:
  """Reads the data and makes the parts that the settings name.

  `progress` is called with (stage, done, total); `cache` is for downloads and
  encoded texts, the `folder` for tables in files, the `cluster` for those of
  workers; `fits_steps`: steps may be fitted to the data and to the memory, as
  may be the settings that are `left_open`.
  The kernel may still be compiled by another process: `wait_for_kernel`. Raises
  a `UserError` for unusable input, and `ffi.Unavailable` where there is no
  kernel for it.
  """
  config, tuning, _, kind = setup
  keeps_programs = cache == rundir.cache_folder()
  # If a trace of it may stay.
  compiling = _compiling(setup, cache) if keeps_programs else None
  # Wrong paths are refused before the work.
  start.check(config)
  benchmark_sets = _named_benchmarks(config)
  known = start.known(config)
  source = make_source(
    setup, _readers(setup), cache=cache, progress=progress, known=known
  )
  setup, source = fit_passes(setup, source, left_open)
  setup = fit_rate(setup, source, left_open)
  setup = _with_threads(setup, len(source.keys))
  if fits_steps:
    setup, source = fit_steps(setup, source)
  setup, source, (trainable, strategy) = _make_trainer(
    setup,
    source,
    fits_steps=fits_steps,
    known=known,
    compiles_later=bool(compiling),
    folder=folder,
    cluster=cluster,
    programs=cache / 'programs' if keeps_programs else None,
  )
  if benchmark_sets is None:
    benchmark_sets = source_benchmarks(config, source)
  of_kind = kind.fingerprints(trainable.model)
  return Parts(
    *setup,
    source=source,
    trainable=trainable,
    strategy=strategy,
    benchmarks=benchmark_sets,
    dropped={**source.dropped, **kind.dropped(config, source)},
    fingerprints={'the data': source.fingerprint, **of_kind},
    compiling=compiling,
    known=known,
  )


def wait_for_kernel(parts: Parts) -> None:
  """Waits until the kernel can be called; then the parts can train.

  Raises `ffi.Unavailable` where it cannot be compiled.
  """
  if parts.compiling:
    native.finish(parts.compiling)
