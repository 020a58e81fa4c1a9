"""Partition-only training: trains, resumes and merges sub-models.

The strategy 'partition' trains `config.strategy.num_parts` sub-models that
never meet (Anand et al. 2019), each in a folder of its own:

  workdir/parts/03/checkpoints/  as of a run on one device
                   vocab.txt     all words in order of rows, with how often the
                                 sub-model read each; 0 = it has no vector
                   export/       vectors of its words; of a job in all formats
                   part.json     figures, once the sub-model is done

As many as the devices hold are trained side by side, a round; then the next
ones. Each goes on from its own checkpoint, whoever is beside it, so any of them
can be trained by another process or machine, or again when its folder is
removed. A job of one part (`config.strategy.part`) is a run in that folder. The
run of all merges the folders as `python -m jaxemb.merge` does.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from jaxemb import build, errors, loop, metrics, results, rundir
from jaxemb.data import base as data_base
from jaxemb.data import windows
from jaxemb.report import report
from jaxemb.runtime import distributed, mesh
from jaxemb.storage import atomic, checkpoint
from jaxemb.strategies import base as strategy_base
from jaxemb.tables import blocks
from jaxemb.text import encode, partition_sampling, vocab

_WORDS_COUNTED = (
  'corpus words inside the vocabulary that sub-models have read, before '
  'frequent-word subsampling, in all epochs'
)


class SubModel(NamedTuple):
  """A sub-model that is being trained."""

  part: int
  sampling: partition_sampling.Sampling
  counts: partition_sampling.SampleCounts
  checkpoints: checkpoint.Checkpoints
  totals: metrics.Totals  # of its checkpoint


class Round(NamedTuple):
  """One dispatch of the sub-models of a round; as `data.base.Item`."""

  batch: windows.Batch  # [models, ...], or what became of it on the devices
  items: tuple[data_base.Item | None, ...]  # None = that model is done
  done_before: int  # words of all
  done_after: int
  position: None = None  # each model has its own


def folder(
  config: ml_collections.ConfigDict, workdir: pathlib.Path, part: int
) -> pathlib.Path:
  """The folder of a sub-model."""
  digits = max(2, len(str(config.strategy.num_parts - 1)))
  return workdir / 'parts' / f'{part:0{digits}}'


def home(
  config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> pathlib.Path:
  """Where a run logs: its folder, or that of the only part that it trains."""
  s = config.strategy
  is_part = s.name == 'partition' and s.part >= 0
  return folder(config, workdir, s.part) if is_part else workdir


def check_alone(
  config: ml_collections.ConfigDict, job: distributed.Job
) -> None:
  """Refuses connected processes: sub-models have nothing to exchange."""
  is_connected = bool(job.coordinator) or job.detects
  if config.strategy.name == 'partition' and is_connected:
    raise errors.UserError(
      "config.strategy.name='partition' needs no connection between processes: "
      'leave out --coordinator and --distributed, and start a process for each '
      'sub-model, with --config.strategy.part=0, 1, ...'
    )


def check(
  config: ml_collections.ConfigDict, workdir: pathlib.Path, fingerprint: str
) -> None:
  """Refuses folders of other runs, and what could not be merged once trained.

  Args:
    config: checked settings in which all is chosen.
    workdir: folder of the whole run.
    fingerprint: of the text.
  """
  from jaxemb.merging import merge

  for part in _wanted(config):
    rundir.check(config, folder(config, workdir, part))
    rundir.check_data(folder(config, workdir, part), fingerprint)
  s = config.strategy
  num_columns = s.num_parts * config.model.dim
  is_aligned = s.num_parts > 1 and s.merge in ('alir', 'pca')
  if s.part < 0 and is_aligned and num_columns > merge.MAX_COLUMNS:
    raise errors.UserError(
      f'{s.num_parts} sub-models of {config.model.dim} dimensions have more '
      f'than {merge.MAX_COLUMNS:,} in all and cannot be merged at once; '
      'give --config.strategy.merge=none and merge groups of them with '
      'python -m jaxemb.merge'
    )


def run(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  parts: build.Parts,
  stop: threading.Event,
  session: loop.Session,
) -> bool:
  """Trains the sub-models that are not there yet; merges where it trains all.

  Args:
    config: settings in which all is chosen, see `check`.
    workdir: folder of the whole run.
    parts: what the run is made of.
    stop: set when training is to stop, after saving.
    session: this start of the run.

  Returns:
    Whether all is done; if not, the same command goes on.

  Raises:
    UserError: for text or settings that cannot be used.
  """
  before = _done(config, workdir)
  done_parts = {x['part'] for x in before}
  left = [part for part in _wanted(config) if part not in done_parts]
  build.check_fits(config, parts)
  text = partition_sampling.index(parts.source.corpus)
  trainer = _Trainer(
    config, workdir, parts, text, session, _sample_counts(config, text, left)
  )
  elsewhere = trainer.train_all(left, stop)
  if elsewhere is None:
    return False
  if elsewhere:
    metrics.LOG.info(
      'sub-models %s are being trained by other processes; start again when '
      'they are done, to merge all',
      ', '.join(map(str, elsewhere)),
    )
    return False
  if config.strategy.part < 0:
    done = _done(config, workdir)
    totals = _sum(done)
    # Of earlier starts, training is all that is known.
    totals.total_secs += time.time() - session.started
    totals.total_secs += _sum(before).train_secs
    totals.encode_secs, totals.started = session.encode_secs, session.started
    _write_merged(config, workdir, parts, done, totals)
  return True


def _wanted(config: ml_collections.ConfigDict) -> range:
  """The sub-models that a run is about."""
  s = config.strategy
  return range(s.num_parts) if s.part < 0 else range(s.part, s.part + 1)


def _part_json(
  config: ml_collections.ConfigDict, workdir: pathlib.Path, part: int
) -> dict[str, Any] | None:
  path = folder(config, workdir, part) / 'part.json'
  try:
    return json.loads(path.read_text()) if path.exists() else None
  except ValueError as error:
    raise errors.UserError(
      f'{path} is damaged ({error}); remove its folder to train it again'
    ) from error


def _done(
  config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> list[dict[str, Any]]:
  """What `part.json` says of all sub-models that are done."""
  every = range(config.strategy.num_parts)
  found = (_part_json(config, workdir, part) for part in every)
  return [x for x in found if x]


def _sum(done: Sequence[Mapping[str, Any]]) -> metrics.Totals:
  """Totals of sub-models that are done."""
  whole = metrics.add_up([metrics.Totals(**x['totals']) for x in done])
  # Those that were trained side by side took the same time.
  whole.train_secs = sum(x['train_secs'] / x['beside'] for x in done)
  return whole


def _sampling(
  config: ml_collections.ConfigDict, part: int
) -> partition_sampling.Sampling:
  s = config.strategy
  return partition_sampling.Sampling(
    s.divide, s.num_parts, s.rate, part, config.seed
  )


def _sample_counts(
  config: ml_collections.ConfigDict,
  text: partition_sampling.Indexed,
  wanted: Sequence[int],
) -> dict[int, partition_sampling.SampleCounts]:
  """What each part will read."""

  def count(part: int) -> partition_sampling.SampleCounts:
    return partition_sampling.count(
      text, _sampling(config, part), config.train.epochs
    )

  with futures.ThreadPoolExecutor(encode.num_threads()) as pool:
    found = dict(zip(wanted, pool.map(count, wanted), strict=True))
  for part, each in found.items():
    if not each.words:
      raise errors.UserError(
        f'sub-model {part} of {config.strategy.num_parts} gets no sentence; '
        'lower --config.strategy.num_parts or raise --config.strategy.rate'
      )
  return found


@contextlib.contextmanager
def _naming(model: SubModel) -> Iterator[None]:
  """Says of an error which model it is about."""
  try:
    yield
  except errors.UserError as error:
    raise errors.UserError(f'sub-model {model.part}: {error}') from error


def of_model(state: Any, index: int) -> Any:
  """A copy of a model's arrays, on the device that holds them."""

  def find(array):
    for shard in array.addressable_shards:
      first = shard.index[0].start or 0
      if first <= index < first + len(shard.data):
        return shard.data[index - first]
    raise IndexError(index)

  return jax.tree.map(find, state)


class _Trainer:
  """Opens, trains and closes the sub-models of one start of a run."""

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    workdir: pathlib.Path,
    parts: build.Parts,
    text: partition_sampling.Indexed,
    session: loop.Session,
    sample_counts: dict[int, partition_sampling.SampleCounts],
  ):
    self._config, self._workdir, self._parts = config, workdir, parts
    self._text, self._session, self._sample_counts = (
      text,
      session,
      sample_counts,
    )
    self._decisions = distributed.Decisions('saves')
    self._fingerprints = build.fingerprints(parts)
    self._key = loop.tables_key(config.seed)
    shapes = jax.eval_shape(parts.strategy.init, self._key)
    self._num = jax.tree.leaves(shapes)[0].shape[0]  # side by side
    self._program = None

  def train_all(
    self, wanted: Sequence[int], stop: threading.Event
  ) -> list[int] | None:
    """Round by round; those that others train, or None if told to stop."""
    left, elsewhere = list(wanted), []
    while left:
      with contextlib.ExitStack() as stack:
        models: list[SubModel] = []
        while left and len(models) < self._num:
          part = left.pop(0)
          try:
            models += self._open(part, stack)
          except rundir.BusyError:
            elsewhere.append(part)
        later_words = sum(self._sample_counts[part].words for part in left)
        if models and not self._train(models, later_words, stop):
          return None
    return elsewhere

  def _folder(self, part: int) -> pathlib.Path:
    return folder(self._config, self._workdir, part)

  def _open(self, part: int, stack: contextlib.ExitStack) -> list[SubModel]:
    """A sub-model, with its folder locked; none if it is done by now.

    Raises:
      BusyError: if another process trains it.
    """
    config, path = self._config, self._folder(part)
    rundir.make(path)
    if config.strategy.part < 0:  # else it is locked as the folder of the run
      stack.enter_context(rundir.locked(path))
    if _part_json(config, self._workdir, part):
      return []
    rundir.record(config, path, self._parts.source.fingerprint)
    checkpoints = checkpoint.Checkpoints(
      path / 'checkpoints',
      config.train.checkpoints_to_keep,
      metrics.LOG.error,
    )
    stack.enter_context(checkpoints)
    totals = metrics.Totals(self._parts.source.unit)
    sampling, counts = _sampling(config, part), self._sample_counts[part]
    return [SubModel(part, sampling, counts, checkpoints, totals)]

  def _start(self, models: Sequence[SubModel]) -> tuple[list[SubModel], Any]:
    """New states, or those of the newest checkpoints."""
    strategy = self._parts.strategy
    state = build.new_state(self._config, self._parts, self._key)
    form = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), state
    )
    models, restored = list(models), {}
    for i, model in enumerate(models):
      with _naming(model):
        found = loop.restore(model.checkpoints, form, self._fingerprints)
      if found is not None:
        restored[i] = jax.tree.leaves(found[0])
        models[i] = model._replace(totals=found[1])
    if restored:
      leaves, tree = jax.tree.flatten(state)
      leaves = [np.array(x) for x in leaves]
      for i, values in restored.items():
        for leaf, value in zip(leaves, values, strict=True):
          leaf[i] = value
      state = mesh.put(
        jax.tree.unflatten(tree, leaves), strategy.state_sharding
      )
    return models, state

  def _train(
    self,
    models: Sequence[SubModel],
    later_words: int,
    stop: threading.Event,
  ) -> bool:
    """Trains a round; whether it came to its end."""
    config, parts = self._config, self._parts
    names = ', '.join(str(model.part) for model in models)
    metrics.LOG.info('sub-models %s of %d', names, config.strategy.num_parts)
    is_job = config.strategy.part >= 0  # a run of its own, with its own times
    before = metrics.Totals(parts.source.unit)
    if not is_job:
      before = _sum(_done(config, self._workdir))
    models, state = self._start(models)
    totals = metrics.add_up([before, *(model.totals for model in models)])
    totals.train_secs = before.train_secs
    totals.train_secs += max(model.totals.train_secs for model in models)
    if is_job:
      _copy_times(models[0].totals, totals)
    total = totals.done
    total += sum(model.counts.words - model.totals.done for model in models)
    meter = metrics.Meter(
      home(config, self._workdir),
      totals,
      (total + later_words) / config.train.epochs,
      config.train.epochs,
      config.train.log_every_secs,
    )
    items = data_base.prefetch(
      self._items(models, totals.done),
      lambda batch: mesh.put(batch, parts.strategy.batch_sharding),
    )

    def save(state: Any, rates: np.ndarray) -> None:
      if is_job:
        _copy_times(totals, models[0].totals)
      for i, model in enumerate(models):
        with _naming(model):
          loop.save(
            model.checkpoints,
            of_model(state, i),
            model.totals,
            self._fingerprints,
            rates[i],
          )

    compile_secs = totals.compile_secs
    task = loop.Task(
      parts.strategy,
      state,
      items,
      self._schedules(models),
      totals,
      _Meters(
        models,
        meter,
        totals,
        parts.trainable.model.untrained_loss,
        len(self._text.sentences.block_shards),
      ),
      total,
      save,
      config.train.checkpoint_every_secs,
      self._decisions,
      program=self._program,
    )
    trained = loop.run(task, stop, self._session)
    self._program = trained.program
    for model in models:
      model.totals.collectives = totals.collectives
    models[0].totals.compile_secs += totals.compile_secs - compile_secs
    if not trained.finished:
      metrics.LOG.info('stopped; sub-models %s saved; start again', names)
      return False
    for i, model in enumerate(models):
      self._finish(model, of_model(trained.state, i), len(models))
    return True

  def _items(self, models: Sequence[SubModel], done: int) -> Iterator[Round]:
    """Batches of all models of the program; one that is done gets padding."""
    spec = self._parts.source.spec
    readers = [
      partition_sampling.items(
        self._text,
        model.sampling,
        spec,
        model.totals.position,
        model.totals.done,
      )
      for model in models
    ]
    size = spec.max_steps * spec.part_words
    padding = windows.padding(size, spec.window)
    while True:
      items = tuple(next(reader, None) for reader in readers)
      if not any(items):
        return
      batches = [padding if x is None else x.batch for x in items]
      batches += [padding] * (self._num - len(batches))
      batch = windows.Batch(*map(np.concatenate, zip(*batches, strict=True)))
      words = sum(x.done_after - x.done_before for x in items if x)
      items = tuple(x and x._replace(batch=None) for x in items)
      yield Round(batch, items, done, done + words)
      done += words

  def _schedules(
    self, models: Sequence[SubModel]
  ) -> Callable[[Round], strategy_base.Schedule]:
    """Every model's learning rates, by its own progress, and its own keys."""
    o = self._config.optimizer
    each = [
      loop.schedules(
        self._config.seed,
        (o.learning_rate, o.final_learning_rate),
        model.counts.words,
        (model.part + 1,),
      )
      for model in models
    ]
    nothing = strategy_base.Schedule(
      np.float32(0), np.float32(0), np.zeros(2, np.uint32)
    )

    def schedule(item: Round) -> strategy_base.Schedule:
      schedules = [
        nothing if x is None else of_model(x)
        for of_model, x in zip(each, item.items, strict=True)
      ]
      schedules += [nothing] * (self._num - len(schedules))
      return jax.tree.map(lambda *x: np.stack(x), *schedules)

    return schedule

  def _rows(self, state: Any, name: str) -> blocks.RowBlock:
    """All rows of a table of one model."""
    table = self._parts.trainable.tables[name]
    return table.export_rows(state.tables[name])

  @functools.cached_property
  def _start_rows(self) -> np.ndarray:
    """[vocab, dim], the vectors of every sub-model before training."""
    init = jax.jit(self._parts.trainable.init)
    name = self._parts.trainable.model.vectors_table
    return self._rows(init(self._key), name).rows

  def _finish(self, model: SubModel, state: Any, beside: int) -> None:
    """Writes the results of a sub-model."""
    config, parts, source = self._config, self._parts, self._parts.source
    path, counts, totals = self._folder(model.part), model.counts, model.totals
    export = results.collect(
      config, parts, functools.partial(self._rows, state)
    )
    num_seen = counts.seen
    if export.senses is None:
      # A word may have been read and never had another beside it.
      has = (export.rows.decode() != self._start_rows).any(1)
      has &= num_seen >= config.strategy.min_seen
      if not has.any():
        raise errors.UserError(
          f'sub-model {model.part} has learned nothing: no word has another in '
          'its window; raise --config.strategy.rate or --config.data.sample'
        )
      names, seen = export.keys, num_seen * has
      export = results.only(export._replace(counts=num_seen), has)
    else:
      # All stay together, with the counts that the tree of paths is made of.
      names, seen = export.senses.names(), export.senses.by_row(num_seen)
    vocab.write_counts(path / 'vocab.txt', vocab.Vocabulary(names, seen))
    if config.strategy.part < 0:
      # Enough to load and to merge: text formats take longer than training.
      results.write_rows(path / 'export', export)
    else:
      table_bytes = mesh.num_bytes(state)
      results.write(config, path, parts, export, totals, table_bytes)
    num_words = source.units_per_epoch * config.train.epochs
    figures = {
      'part': model.part,
      'sampling': dataclasses.asdict(model.sampling),
      'corpus': source.fingerprint,
      'words': counts.words,
      'sentences': counts.sentences,
      'corpus_share': counts.words / num_words,
      'words_seen': int((num_seen > 0).sum()),
      'vocab_words': len(export.names()[0]),
      'loss_per_example': totals.loss_per_example(),
      'train_secs': totals.train_secs,
      'table_bytes': mesh.num_bytes(state),
      'vector_bytes': sum(x.vector_bytes for x in state.tables.values()),
      'beside': beside,  # sub-models that the devices trained at once
      'totals': dataclasses.asdict(totals),
    }
    with atomic.write(path / 'part.json') as file:
      file.write(json.dumps(figures, indent=1).encode())


def _copy_times(source: metrics.Totals, target: metrics.Totals) -> None:
  for name in ('started', 'encode_secs', 'total_secs'):
    setattr(target, name, getattr(source, name))


class _Meters:
  """Counts dispatches for each model, and for all together."""

  def __init__(
    self,
    models: Sequence[SubModel],
    meter: metrics.Meter,
    totals: metrics.Totals,
    untrained_loss: float,
    epoch_blocks: int,
  ):
    self._epoch_blocks = epoch_blocks
    self._models, self._meter, self._totals = models, meter, totals
    self._untrained_loss = untrained_loss
    self.start, self.resume, self.close = meter.start, meter.resume, meter.close

  def count(
    self,
    item: Round,
    rates: tuple[np.ndarray, np.ndarray],
    step_metrics: strategy_base.DispatchMetrics,
  ) -> None:
    """As `metrics.Meter.count`; all metrics have an axis of models."""
    step_metrics = jax.device_get(step_metrics)
    each = []
    for i, model in enumerate(self._models):
      if item.items[i] is None:
        continue
      own = jax.tree.map(lambda x, i=i: x[i], step_metrics)
      own_rates = rates[0][i], rates[1][i]
      with _naming(model):
        metrics.check_finite(model.totals, own_rates, own, self._untrained_loss)
      each.append((model, item.items[i], own, own_rates))
    whole = jax.tree.map(np.sum, step_metrics)
    steps = whole.steps._replace(first_bad_step=np.int32(-1))
    means = tuple(float(np.mean([x[3][i] for x in each])) for i in range(2))
    secs_before = self._totals.train_secs
    self._meter.count(item, means, whole._replace(steps=steps))
    secs = self._totals.train_secs - secs_before
    for model, own_item, own, _ in each:
      epoch = own_item.index // self._epoch_blocks
      model.totals.add(own_item, epoch, own, secs)


def _write_merged(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  parts: build.Parts,
  done: Sequence[Mapping[str, Any]],
  totals: metrics.Totals,
) -> None:
  """Merges the sub-models, evaluates the result and writes the report.

  Args:
    config: the settings.
    workdir: folder of the run.
    parts: data, evaluation sets and devices.
    done: what `part.json` says of each.
    totals: sums over them.
  """
  more: dict[str, Any] = {
    'parts': [{k: v for k, v in x.items() if k != 'totals'} for x in done],
    'words_counted': _WORDS_COUNTED,
    'merge': None,
    'vector_bytes': sum(x['vector_bytes'] for x in done),
  }
  table_bytes = sum(x['table_bytes'] for x in done)
  if config.strategy.merge == 'none':
    figures = results.page(config, parts, totals, table_bytes)
    report.write_json(workdir, figures | {'evaluation': {}} | more)
    metrics.LOG.info('not merged: %d sub-models in %s', len(done), workdir)
    return
  folders = [folder(config, workdir, part) for part in _wanted(config)]
  export, merged = _merge(config, parts.source, folders)
  num_missing = len(parts.source.keys) - len(export.keys)
  metrics.LOG.info(
    'merged %d sub-models (%s) in %.1f s: %s words, %s of the vocabulary are '
    'missing',
    len(done),
    config.strategy.merge,
    merged['merge_secs'],
    f'{len(export.keys):,}',
    f'{num_missing:,}',
  )
  more['merge'] = merged | {'missing_words': num_missing}
  more['dim'] = export.rows.data.shape[1]
  results.write(config, workdir, parts, export, totals, table_bytes, more)


def _merge(
  config: ml_collections.ConfigDict,
  source: data_base.Source,
  folders: Sequence[pathlib.Path],
) -> tuple[results.Export, dict[str, Any]]:
  """The words that any sub-model has, and figures of the merge."""
  from jaxemb.merging import merge as merge_lib
  from jaxemb.merging import senses as senses_merge

  opened = [_open_part(path) for path in folders]
  figures: dict[str, Any] = {'merge_secs': 0.0, 'warnings': []}
  words, senses = opened[0].words, opened[0].senses
  if len(opened) > 1:
    spec = merge_lib.Spec(method=config.strategy.merge)
    merged = senses_merge.merge(opened, spec)
    figures, words, senses = merged.report, merged.words, merged.senses
    for line in figures['warnings']:
      metrics.LOG.warning('%s', line)
    if senses is not None:
      metrics.LOG.info('%s', senses_merge.line(figures['senses']))
  if senses is not None:
    # Sub-models keep all words of the text, in its order.
    words, vectors = senses.words, np.asarray(senses.vectors)
  else:
    vectors = merged.vectors if len(opened) > 1 else opened[0].vectors.open()
  ids = {word: i for i, word in enumerate(source.keys)}
  foreign = next((word for word in words if word not in ids), None)
  if foreign is not None:
    raise errors.UserError(
      f'a sub-model has a word that the text has not, {foreign!r}: it is of '
      'another text; merge with python -m jaxemb.merge'
    )
  rows = np.array([ids[word] for word in words])
  if senses is None:
    order = np.argsort(rows)
    words, rows = [words[i] for i in order], rows[order]
    vectors = np.asarray(vectors)[order]
  encoded = blocks.encode(np.asarray(vectors), config.table.dtype)
  counts = source.counts[rows]
  if senses is not None:
    senses = dataclasses.replace(
      senses, counts=counts, vectors=encoded.decode()
    )
  return results.Export(words, counts, encoded, senses), figures


def _open_part(path: pathlib.Path) -> Any:
  """A sub-model; an error says how to mend it."""
  from jaxemb.merging import parts

  try:
    part = parts.open_part(path)
    parts.check_rows(part)
  except errors.UserError as error:
    raise errors.UserError(
      f'{error}; or remove {path} and start again, to train that sub-model anew'
    ) from error
  return part
