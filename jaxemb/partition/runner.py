"""Partition-only training: trains, resumes and merges sub-models.

The strategy 'partition' trains `config.strategy.num_parts` sub-models on
samples of the text (Anand et al. 2019). They exchange nothing, and each has a
folder:

  workdir/parts/03/checkpoints/  as of a run on one device
                   vocab.txt     all words in row order, with how often the
                                 sub-model read each; 0 = it has no vector
                   export/       its vectors; all formats only for a job
                   part.json     what the report says of it, once it is done

The devices train as many side by side as they hold, then the next ones. Every
sub-model resumes from its own checkpoint and comes out the same to the last
bit, whatever is trained beside it, on this machine or another. A job of one
part (`config.strategy.part`) is a run in that folder. The run of all parts
merges the folders as `python -m jaxemb.merge` does.
"""

import contextlib
import copy
import dataclasses
import functools
import json
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from jaxemb import build, errors, loop, metrics, results, rundir
from jaxemb.data import base as data_base
from jaxemb.data import windows
from jaxemb.merging import merge as merge_lib
from jaxemb.merging import parts as parts_lib
from jaxemb.merging import senses as senses_merge
from jaxemb.runtime import distributed, mesh
from jaxemb.storage import atomic, checkpoint, word2vec_format
from jaxemb.strategies import base as strategy_base
from jaxemb.strategies import replicas
from jaxemb.tables import blocks
from jaxemb.text import partition_sampling

_WORDS_COUNTED = (
  'corpus words inside the vocabulary that sub-models have read, before '
  'frequent-word subsampling, in all epochs'
)
_DONE = 'part.json'


@dataclasses.dataclass
class SubModel:
  """A sub-model in training."""

  sampling: partition_sampling.Sampling
  counts: partition_sampling.SampleCounts
  folder: pathlib.Path
  checkpoints: checkpoint.Checkpoints
  totals: metrics.Totals

  @contextlib.contextmanager
  def named_in_errors(self) -> Iterator[None]:
    """Names the sub-model in the message of a `UserError`."""
    try:
      yield
    except errors.UserError as error:
      name = f'sub-model {self.sampling.part}'
      raise errors.UserError(f'{name}: {error}') from error


class Round(NamedTuple):
  """A dispatch of all sub-models on the devices; as `data_base.Item`."""

  batch: windows.Batch  # [models, ...]
  items: tuple[data_base.Item | None, ...]  # None = that sub-model is done
  done_before: int  # words of all
  done_after: int
  position: None = None  # every sub-model has its own


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
  is_job = s.name == 'partition' and s.part >= 0
  return folder(config, workdir, s.part) if is_job else workdir


def check_alone(
  config: ml_collections.ConfigDict, job: distributed.Job
) -> None:
  """Refuses connected processes: sub-models exchange nothing."""
  if config.strategy.name == 'partition' and (job.coordinator or job.detects):
    raise errors.UserError(
      "config.strategy.name='partition' needs no connection between processes: "
      'leave out --coordinator and --distributed, and start a process for each '
      'sub-model, with --config.strategy.part=0, 1, ...'
    )


def check(
  config: ml_collections.ConfigDict, workdir: pathlib.Path, fingerprint: str
) -> None:
  """Refuses folders of other runs, and settings that cannot be merged."""
  for part in _wanted(config):
    rundir.check(config, folder(config, workdir, part), fingerprint)
  s = config.strategy
  if s.part < 0 and s.num_parts > 1 and s.merge in ('alir', 'pca'):
    merge_lib.check_columns([config.model.dim] * s.num_parts)


def _wanted(config: ml_collections.ConfigDict) -> range:
  """The sub-models that the run trains."""
  s = config.strategy
  return range(s.num_parts) if s.part < 0 else range(s.part, s.part + 1)


def run(
  workdir: pathlib.Path, parts: build.Parts, session: loop.Session
) -> bool:
  """Trains the sub-models that are not done; merges them in a run of all.

  Returns whether all is done; if not, the same command resumes.
  """
  runner = _Runner(workdir, parts, session)
  before = runner.read_done()
  left = set(_wanted(parts.config)) - {x['part'] for x in before}
  busy = runner.train_all(sorted(left))
  if busy:
    metrics.LOG.info(
      f'sub-models {", ".join(map(str, busy))} are being trained by other '
      'processes; run the same command again when they are done, to merge all'
    )
  elif busy is not None and not runner.is_job:
    runner.write_merged(before)
  return busy == []


def _sum(done: Sequence[Mapping[str, Any]]) -> metrics.Totals:
  """Totals of sub-models that are done."""
  totals = metrics.Totals()
  for values in done:
    totals.add_model(values['totals'])
    # Those that were trained side by side took the same time.
    totals.train_secs += values['train_secs'] / values['side_by_side']
  return totals


class _Runner:
  """One start of a run."""

  def __init__(
    self, workdir: pathlib.Path, parts: build.Parts, session: loop.Session
  ):
    self.config, self.workdir, self.parts = parts.config, workdir, parts
    self.session, self.program = session, None  # the compiled dispatch
    self.folder = functools.partial(folder, parts.config, workdir)
    self.is_job = parts.config.strategy.part >= 0
    self.corpus = parts.source.corpus
    self.fingerprints = build.fingerprints(parts)
    self.key = loop.init_key(parts.config.seed)
    state = jax.eval_shape(parts.strategy.init, self.key)
    self.num_models = len(jax.tree.leaves(state)[0])  # side by side
    self.models: list[SubModel] = []  # those that are trained now

  def read_done(self) -> list[dict[str, Any]]:
    """The part.json of all sub-models that are done."""
    done = []
    for part in range(self.config.strategy.num_parts):
      path = self.folder(part) / _DONE
      try:
        if path.exists():
          values = json.loads(path.read_text())
          done.append(values | {'totals': metrics.Totals(**values['totals'])})
      except (ValueError, TypeError, KeyError) as error:
        raise errors.UserError(
          f'{path} is damaged ({error}); remove its folder to train it again'
        ) from error
    return done

  def train_all(self, wanted: Sequence[int]) -> list[int] | None:
    """Returns the parts that other processes train, or None if stopped."""
    s, source = self.config.strategy, self.parts.source
    samplings = [
      partition_sampling.Sampling(
        s.divide, s.num_parts, s.rate, part, self.config.seed
      )
      for part in wanted
    ]
    counts = partition_sampling.count_all(self.corpus, samplings, source.epochs)
    busy = []
    while samplings:
      with contextlib.ExitStack() as stack:
        self.models = []
        while samplings and len(self.models) < self.num_models:
          sampling = samplings.pop(0)
          path = self.folder(sampling.part)
          try:
            if not self.is_job:  # else it is locked as the folder of the run
              stack.enter_context(rundir.locked(path))
          except rundir.BusyError:
            busy.append(sampling.part)
            continue
          if (path / _DONE).exists():  # by another process, since the start
            continue
          rundir.record(
            self.config, self.parts.tuning, path, source.fingerprint
          )
          checkpoints = checkpoint.Checkpoints(
            path / 'checkpoints', checkpoint.TO_KEEP, metrics.LOG.error
          )
          stack.enter_context(checkpoints)
          totals, own = metrics.Totals(source.unit), counts[sampling.part]
          self.models.append(SubModel(sampling, own, path, checkpoints, totals))
        later_words = sum(counts[x.part].words for x in samplings)
        if self.models and not self._train(later_words):
          return None
    return busy

  def _train(self, later_words: int) -> bool:
    """Trains sub-models side by side; whether to their end."""
    strategy, models = self.parts.strategy, self.models
    names = ', '.join(str(model.sampling.part) for model in models)
    metrics.LOG.info(f'sub-models {names} of {self.config.strategy.num_parts}')
    state = self._restored_state()
    if self.is_job:
      totals = copy.deepcopy(models[0].totals)
    else:
      totals = _sum(self.read_done())
      for model in models:
        totals.add_model(model.totals)
      totals.train_secs += max(model.totals.train_secs for model in models)
    left_words = sum(model.counts.words - model.totals.done for model in models)
    total, epochs = totals.done + left_words, self.parts.source.epochs
    self.meter = metrics.Meter(
      home(self.config, self.workdir),
      totals,
      (total + later_words) / epochs,
      epochs,
      self.config.train.log_every_secs,
    )
    task = loop.Task(
      strategy,
      state,
      data_base.prefetch(
        self._rounds(totals.done),
        lambda batch: jax.device_put(batch, strategy.batch_sharding),
      ),
      total,
      self.meter,
      schedule=self._schedule,
      count=self._count,
      save=self._save,
      save_every_secs=self.config.train.checkpoint_every_secs,
      program=self.program,
    )
    compile_secs = totals.compile_secs
    finished = loop.run(task, self.session)
    self.program = task.program
    models[0].totals.compile_secs += totals.compile_secs - compile_secs
    if not finished:
      metrics.LOG.info(
        f'stopped and saved sub-models {names}; run the same command to resume'
      )
      return False
    for i, model in enumerate(models):
      model.totals.collectives = totals.collectives
      self._write(model, replicas.of_model(task.state, i))
    return True

  def _restored_state(self) -> Any:
    """New states, or those of the newest checkpoints."""
    state = build.new_state(self.parts, self.key)
    like = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), state
    )
    host = None
    for i, model in enumerate(self.models):
      with model.named_in_errors():
        restored = loop.restore(model.checkpoints, like, self.fingerprints)
      if restored is not None:
        host = host or jax.tree.map(np.array, state)
        jax.tree.map(lambda x, y, i=i: np.copyto(x[i], y), host, restored[0])
        model.totals = restored[1]
    if host is None:
      return state
    return jax.device_put(host, self.parts.strategy.state_sharding)

  def _rounds(self, done: int) -> Iterator[Round]:
    """Batches of all sub-models; padding for those that are done."""
    spec = self.parts.source.spec
    readers = [
      partition_sampling.items(
        self.corpus, x.sampling, spec, x.totals.position, x.totals.done
      )
      for x in self.models
    ]
    padding = windows.padding(spec.max_steps * spec.part_words, spec.window)
    while any(items := tuple(next(reader, None) for reader in readers)):
      batches = [x.batch if x else padding for x in items]
      batches += [padding] * (self.num_models - len(batches))
      batch = windows.Batch(*map(np.concatenate, zip(*batches, strict=True)))
      words = sum(x.done_after - x.done_before for x in items if x)
      items = tuple(x and x._replace(batch=None) for x in items)
      yield Round(batch, items, done, done + words)
      done += words

  def _schedule(self, item: Round) -> strategy_base.Schedule:
    """[models, ...], each by its own progress and with keys of its own."""
    none = strategy_base.Schedule(*np.zeros(2, np.float32), np.zeros(2, 'u4'))
    schedules = [none] * self.num_models
    for i, (model, own) in enumerate(zip(self.models, item.items, strict=True)):
      if own is not None:
        total, stream = model.counts.words, model.sampling.part + 1
        schedules[i] = loop.schedule(self.config, own, total, stream)
    return jax.tree.map(lambda *x: np.stack(x), *schedules)

  def _count(
    self,
    item: Round,
    rates: tuple[np.ndarray, np.ndarray],
    step_metrics: strategy_base.DispatchMetrics,
  ) -> None:
    """Counts a dispatch for each sub-model, and for all together."""
    untrained_loss = self.parts.trainable.model.untrained_loss
    step_metrics, totals = jax.device_get(step_metrics), self.meter.totals
    active = [i for i, own in enumerate(item.items) if own is not None]
    for i in active:
      model, own = self.models[i], item.items[i]
      measured = jax.tree.map(lambda x, i=i: x[i], step_metrics)
      epoch = own.index // len(self.corpus.blocks.words)
      own_rates = [x[i] for x in rates]
      with model.named_in_errors():
        model.totals.add(own, epoch, own_rates, measured, untrained_loss)
    summed = jax.tree.map(np.sum, step_metrics)
    steps = summed.steps._replace(first_bad_step=np.int32(-1))
    mean_rates = [float(np.mean(x[active])) for x in rates]
    secs_before = totals.train_secs
    self.meter.count(item, mean_rates, summed._replace(steps=steps))
    for i in active:
      self.models[i].totals.train_secs += totals.train_secs - secs_before

  def _save(self, state: Any, rates: np.ndarray) -> None:
    totals = self.meter.totals
    for i, model in enumerate(self.models):
      for name in ('started', 'encode_secs', 'total_secs'):
        setattr(model.totals, name, getattr(totals, name))
      saved = model.checkpoints, model.totals, self.fingerprints
      with model.named_in_errors():
        loop.save(*saved, replicas.of_model(state, i), rates[i])

  def _rows(self, state: Any, name: str) -> blocks.RowBlock:
    """All rows of a table of one sub-model."""
    return self.parts.trainable.tables[name].export_rows(state.tables[name])

  @functools.cached_property
  def _untrained(self) -> np.ndarray:
    """[vocab, dim], the vectors of every sub-model before training."""
    trainable = self.parts.trainable
    state = jax.jit(trainable.init)(self.key)
    return self._rows(state, trainable.model.vectors_table).rows

  def _write(self, model: SubModel, state: Any) -> None:
    """Writes the results of a sub-model."""
    parts, source, totals = self.parts, self.parts.source, model.totals
    counts, seen = model.counts, model.counts.seen
    export = results.collect(parts, functools.partial(self._rows, state))
    if export.senses is None:
      # A word may have been read and never had another one in its window.
      has_vector = (export.rows.decode() != self._untrained).any(1) & (seen > 0)
      if not has_vector.any():
        raise errors.UserError(
          f'sub-model {model.sampling.part} has learned nothing: no word has '
          'another in its window; raise --config.strategy.rate or '
          '--config.data.sample'
        )
      words = export.keys, seen * has_vector
      export = export._replace(counts=seen).select(has_vector)
    else:
      # All words stay, with the counts that the Huffman tree is made of.
      senses = export.senses
      words = senses.names(), senses.by_row(seen)
    word2vec_format.write_vocab(model.folder / 'vocab.txt', *words)
    table_bytes = mesh.num_bytes(state)
    if self.is_job:
      results.write(model.folder, parts, export, totals, table_bytes)
    else:
      # Enough to load and to merge: text formats take longer than training.
      results.write_export(model.folder / 'export', export, is_minimal=True)
    corpus_words = source.units_per_epoch * source.epochs
    values = {
      'part': model.sampling.part,
      'sampling': dataclasses.asdict(model.sampling),
      'text_fingerprint': source.fingerprint,
      'words': counts.words,
      'sentences': counts.sentences,
      'corpus_fraction': counts.words / corpus_words,
      'words_seen': int((seen > 0).sum()),
      'vocab_words': len(export.names()[0]),
      'loss_per_example': totals.loss_per_example(),
      'train_secs': totals.train_secs,
      'table_bytes': table_bytes,
      'vector_bytes': sum(x.vector_bytes for x in state.tables.values()),
      'side_by_side': len(self.models),
      'totals': dataclasses.asdict(totals),
    }
    with atomic.write(model.folder / _DONE) as file:
      file.write(json.dumps(values, indent=1).encode())

  def write_merged(self, before: Sequence[Mapping[str, Any]]) -> None:
    """Merges the sub-models, evaluates the result and writes the report.

    `before` are those that were done when this run was started.
    """
    done, session, export = self.read_done(), self.session, None
    totals = _sum(done)
    # Of earlier starts only the time of training is known.
    totals.total_secs = time.time() - session.started + _sum(before).train_secs
    totals.encode_secs, totals.started = session.encode_secs, session.started
    more: dict[str, Any] = {
      'parts': [{k: v for k, v in x.items() if k != 'totals'} for x in done],
      'words_counted': _WORDS_COUNTED,
      'merge': None,
      'vector_bytes': sum(x['vector_bytes'] for x in done),
    }
    line = f'not merged: {len(done)} sub-models in {self.workdir}'
    if (method := self.config.strategy.merge) != 'none':
      export, report = self._merged()
      num_missing = len(self.parts.source.keys) - len(export.keys)
      more |= {
        'merge': report | {'missing_words': num_missing},
        'vocab_words': len(export.keys),
        'dim': export.rows.data.shape[1],
      }
      line = (
        f'merged {len(done)} sub-models ({method}) in '
        f'{report["merge_secs"]:.1f} s: {len(export.keys):,} words, '
        f'{num_missing:,} of the vocabulary are missing'
      )
    metrics.LOG.info('%s', line)
    table_bytes = sum(x['table_bytes'] for x in done)
    results.write(self.workdir, self.parts, export, totals, table_bytes, more)

  def _merged(self) -> tuple[results.Export, dict[str, Any]]:
    """The words that any sub-model has, and the report of the merge."""
    opened = []
    for path in map(self.folder, _wanted(self.config)):
      try:
        opened.append(parts_lib.open_part(path))
      except errors.UserError as error:
        raise errors.UserError(
          f'{error}; or remove {path} and run the same command again, to train '
          'that sub-model again'
        ) from error
    if len(opened) > 1:
      spec = merge_lib.Spec(method=self.config.strategy.merge)
      merged = senses_merge.merge(opened, spec)
      report, vectors = merged.report, merged.vectors
    else:
      (merged,) = opened
      report, vectors = {'merge_secs': 0.0}, merged.vectors
    for line in report.get('warnings', ()):
      metrics.LOG.warning('%s', line)
    if 'senses' in report:
      metrics.LOG.info('%s', senses_merge.line(report['senses']))
    source, dtype = self.parts.source, self.config.table.dtype
    if merged.senses is not None:  # all words are there, in the text's order
      encoded = blocks.encode(merged.senses.vectors, dtype)
      senses = dataclasses.replace(
        merged.senses, counts=source.counts, vectors=encoded.decode()
      )
      return results.Export(
        senses.words, senses.counts, encoded, senses
      ), report
    ids = {word: i for i, word in enumerate(source.keys)}
    rows = np.array([ids[word] for word in merged.words])
    order = np.argsort(rows)
    words = [merged.words[i] for i in order]
    encoded = blocks.encode(np.asarray(vectors)[order], dtype)
    return results.Export(words, source.counts[rows[order]], encoded), report
