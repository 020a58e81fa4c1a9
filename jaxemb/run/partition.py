"""Partition-only training: trains, resumes and merges sub-models.

The strategy 'partition' trains `config.strategy.num_parts` sub-models on
samples of the text (Anand et al. 2019). They exchange nothing, and each has a
folder:

  workdir/parts/03/checkpoints/  as of a run on one device
                   vocab.txt     all words in row order, with how often the
                                 sub-model read each; 0 = it has no vector
                   export/       its vectors; all formats only for a job
                   part.json     what the report says of it, once it is done

Each device trains one after the other, in a thread. A sub-model resumes from
its own checkpoint, and has the same bits whatever is trained beside it. A job
of one part (`config.strategy.part`) is a run in that folder. The run of all
parts merges the folders as `python -m jaxemb.merge` does.
"""

import contextlib
import copy
import dataclasses
import functools
import json
import pathlib
import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any, cast

import jax
import ml_collections
import numpy as np

from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.data import blocks as blocks_lib
from jaxemb.data import partition_sampling
from jaxemb.merging import merge as merge_lib
from jaxemb.merging import multivectors as multivectors_merge
from jaxemb.merging import parts as parts_lib
from jaxemb.report import pages
from jaxemb.run import build, loop, metrics, results, rundir
from jaxemb.run import vectors as vectors_lib
from jaxemb.runtime import mesh
from jaxemb.storage import atomic, checkpoint, damage, word2vec_format
from jaxemb.strategies import base as strategy_base
from jaxemb.tables import spec as spec_lib

_WORDS_COUNTED = (
  'corpus words inside the vocabulary that sub-models have read, before '
  'frequent-word subsampling, in all epochs'
)
_DONE = 'part.json'


def folder(
  config: ml_collections.ConfigDict, workdir: pathlib.Path, part: int
) -> pathlib.Path:
  """The folder of a sub-model."""
  digits = max(2, len(str(config.strategy.num_parts - 1)))
  return workdir / 'parts' / f'{part:0{digits}}'


def check(
  config: ml_collections.ConfigDict, workdir: pathlib.Path, fingerprint: str
) -> None:
  """Refuses folders of other runs, and settings that cannot be merged."""
  for part in _wanted(config):
    path = folder(config, workdir, part)
    rundir.check(config, path)
    rundir.check_data(path, fingerprint)
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
  """Trains the sub-models that are left; a run of all merges them.

  Returns whether all is done; if not, the same command resumes.
  """
  runner = _Runner(workdir, parts, session)
  before = runner.read_done()
  if left := runner.left():
    runner.train_all(left, before)
  if left := runner.left():
    if not session.stop.is_set():
      metrics.LOG.info(
        f'sub-models {", ".join(map(str, left))} are being trained by other '
        'processes; run the same command again when they are done, to merge all'
      )
  elif not runner.is_job:
    runner.write_merged(before)
  return not left


def _sum(done: Iterable[metrics.Totals]) -> metrics.Totals:
  """Sums the totals of sub-models."""
  totals = metrics.Totals()
  for other in done:
    totals.add_model(other)
  return totals


class _Meter(loop.Meter):
  """Counts a sub-model, and with it the run."""

  def __init__(
    self, totals: metrics.Totals, units_per_epoch: float, run: '_Runner'
  ):
    """Continues from `totals`, which is changed in place."""
    self.totals, self._units_per_epoch, self._run = totals, units_per_epoch, run
    self._compile_secs = totals.compile_secs  # of earlier starts

  def start(self) -> None:
    """Sub-models that train side by side also compiled side by side."""
    secs = self.totals.compile_secs - self._compile_secs
    secs /= self._run.parts.mesh.size
    self.totals.compile_secs = self._compile_secs + secs
    with self._run.lock:
      self._run.meter.start()

  def count(
    self, item: data_base.Item, learning_rates: Sequence[float], measured: Any
  ) -> None:
    """Sub-models that train side by side share the time."""
    loss = self._run.parts.trainable.model.untrained_loss
    measured = jax.device_get(measured)  # while others count
    with self._run.lock:
      self.totals.add(
        item,
        self._units_per_epoch,
        learning_rates,
        step_metrics=measured,
        untrained_loss=loss,
      )
      run = self._run.meter.totals
      before, units = run.train_secs, item.done_after - item.done_before
      item = item._replace(done_before=run.done, done_after=run.done + units)
      self._run.meter.count(item, learning_rates, measured)
      self.totals.train_secs += run.train_secs - before


class _Runner:
  """One start of a run."""

  def __init__(
    self, workdir: pathlib.Path, parts: build.Parts, session: loop.Session
  ):
    self.config, self.workdir, self.parts = parts.config, workdir, parts
    self.session = session
    # This strategy trains on text alone.
    self.source = cast(blocks_lib.BlockSource, parts.source)
    self.folder = functools.partial(folder, parts.config, workdir)
    self.is_job = parts.config.strategy.part >= 0
    # What sub-models of one process waited for together is counted once.
    self.part_session = session
    if not self.is_job:
      self.part_session = session._replace(compile_secs=0.0)
    self.lock = threading.Lock()  # of the meter
    self.writing = threading.Lock()  # of results
    # Strategies of one device each, with the compiled dispatch.
    self.free: queue.SimpleQueue = queue.SimpleQueue()
    self.free.put((parts.strategy, None))  # of the first device
    for device in parts.mesh.devices.flat[1:]:
      alone = mesh.make(mesh.Shape(1, 1), devices=[device])
      self.free.put((strategy_base.sync(parts.trainable, alone), None))

  def left(self) -> list[int]:
    """The sub-models to be trained."""
    parts = _wanted(self.config)
    return [x for x in parts if not (self.folder(x) / _DONE).exists()]

  def read_done(self) -> list[dict[str, Any]]:
    """The part.json of all sub-models that are done."""
    done = []
    for part in range(self.config.strategy.num_parts):
      path = self.folder(part) / _DONE
      try:
        if path.exists():
          values = json.loads(path.read_text())
          done.append(values | {'totals': metrics.Totals(**values['totals'])})
      except (TypeError, *damage.ERRORS) as error:
        raise errors.UserError(
          f'{path} is damaged ({error}); remove its folder to train it again'
        ) from error
    return done

  def train_all(
    self, wanted: Sequence[int], done: Sequence[Mapping[str, Any]]
  ) -> None:
    """Trains sub-models, as many at a time as devices."""
    s, source = self.config.strategy, self.source
    samplings = [
      partition_sampling.Sampling(
        method=s.divide,
        num_parts=s.num_parts,
        rate=s.rate,
        part=part,
        seed=self.config.seed,
      )
      for part in wanted
    ]
    counts = partition_sampling.count_all(
      source.corpus, samplings, source.epochs
    )
    # Of all sub-models: what is there, and the words in the end.
    totals = [] if self.is_job else [x['totals'] for x in done]
    words = sum(x.done for x in totals) + sum(x.words for x in counts)
    for part in wanted:
      record = checkpoint.newest_record(self.folder(part) / 'checkpoints')
      totals += [metrics.Totals(**record['totals'])] if record else []
    self.meter = metrics.Meter(
      workdir=self.folder(s.part) if self.is_job else self.workdir,
      totals=_sum(totals),
      units_per_epoch=words / source.epochs,
      epochs=source.epochs,
      log_every_secs=self.config.train.log_every_secs,
    )
    with (
      contextlib.closing(self.meter),
      futures.ThreadPoolExecutor(self.parts.mesh.size, 'device') as pool,
    ):
      list(pool.map(self._train, samplings, counts))

  def _train(
    self,
    sampling: partition_sampling.Sampling,
    counts: partition_sampling.SampleCounts,
  ) -> None:
    """Trains a sub-model on a free device, unless another process does."""
    part, path = sampling.part, self.folder(sampling.part)
    if self.session.stop.is_set():
      return
    source = copy.copy(self.source)  # the text, as this one reads it
    source.units_per_epoch = counts.words / source.epochs
    source.items = functools.partial(  # type: ignore[method-assign]  # of it
      partition_sampling.items, source.corpus, sampling, source.spec
    )
    strategy, program = self.free.get()
    parts = self.parts._replace(source=source, strategy=strategy)
    try:
      # A job's is locked as the folder of the run.
      with contextlib.nullcontext() if self.is_job else rundir.locked(path):
        if (path / _DONE).exists():  # by another process, since the start
          return
        metrics.LOG.info(
          f'sub-model {part} of {self.config.strategy.num_parts}'
        )
        rundir.record(
          self.config.to_dict(),
          self.parts.tuning,
          path,
          fingerprint=source.fingerprint,
        )
        with loop.open_checkpoints(path) as checkpoints:
          trained = loop.train(
            checkpoints,
            parts,
            self.part_session,
            make_meter=lambda totals: _Meter(
              totals, source.units_per_epoch, self
            ),
            stream=(part + 1,),
            program=program,
          )
          if trained is not None:
            program = trained.program
            with self.writing:  # there is memory for the results of one
              self._write(path, sampling, counts, trained=trained)
    except rundir.BusyError:  # another process trains it
      pass
    except BaseException as error:
      self.session.stop.set()  # the others save
      if isinstance(error, errors.UserError):
        raise errors.UserError(f'sub-model {part}: {error}') from error
      raise
    finally:
      self.free.put((strategy, program))

  @functools.cached_property
  def _untrained(self) -> np.ndarray:
    """[vocab, dim], the vectors of every sub-model before training."""
    strategy, model = self.parts.strategy, self.parts.trainable.model
    state = strategy.init(loop.init_key(self.config.seed))
    return strategy.export_rows(state, model.vectors_table).rows

  def _write(
    self,
    path: pathlib.Path,
    sampling: partition_sampling.Sampling,
    counts: partition_sampling.SampleCounts,
    trained: loop.Trained,
  ) -> None:
    """Writes the results of a sub-model."""
    parts, source, seen = self.parts, self.source, counts.seen
    state, totals, _ = trained
    export = parts.kind.collect(parts, state, path)
    if senses := export.multi:
      # All words stay, with the counts that the Huffman tree is made of.
      words = senses.names(), senses.by_row(seen)
    else:
      # A word may have been read and never had another one in its window.
      has_vector = (export.rows.decode() != self._untrained).any(1) & (seen > 0)
      if not has_vector.any():
        raise errors.UserError(
          'nothing was learned: no word has another in its window; raise '
          '--config.strategy.rate or --config.data.sample'
        )
      words = export.keys, seen * has_vector
      export = export._replace(counts=seen).select(has_vector)
    word2vec_format.write_vocab(path / 'vocab.txt', *words)
    if self.is_job:
      results.write(path, parts, export, totals=totals)
    else:
      # Enough to load and to merge: text formats take longer than training.
      vectors_lib.write_export(path / 'export', export, is_minimal=True)
    corpus_words = source.units_per_epoch * source.epochs
    values = {
      'part': sampling.part,
      'sampling': dataclasses.asdict(sampling),
      'text_fingerprint': source.fingerprint,
      'words': counts.words,
      'sentences': counts.sentences,
      'corpus_fraction': counts.words / corpus_words,
      'words_seen': int((seen > 0).sum()),
      'vocab_words': len(export.names()[0]),
      'loss_per_example': totals.loss_per_example(),
      'train_secs': totals.train_secs,
      'table_bytes': mesh.num_bytes(state),
      'vector_bytes': sum(x.vector_bytes for x in state.tables.values()),
      'totals': dataclasses.asdict(totals),
    }
    with atomic.write(path / _DONE) as file:
      file.write(json.dumps(values, indent=1).encode())

  def write_merged(self, before: Sequence[Mapping[str, Any]]) -> None:
    """Merges, evaluates and reports; `before` was done before this start."""
    done, session = self.read_done(), self.session
    totals = _sum(x['totals'] for x in done)
    # Of earlier starts only the time of training is known.
    totals.total_secs = time.time() - session.started
    totals.total_secs += sum(x['totals'].train_secs for x in before)
    totals.begin(session)
    more: dict[str, Any] = {
      'parts': [{k: v for k, v in x.items() if k != 'totals'} for x in done],
      'words_counted': _WORDS_COUNTED,
      'merge': None,
      **{k: sum(x[k] for x in done) for k in ('table_bytes', 'vector_bytes')},
    }
    method = self.config.strategy.merge
    if method == 'none':
      metrics.LOG.info(f'not merged: {len(done)} sub-models in {self.workdir}')
      values = results.summary(self.parts, totals) | {'evaluation': {}} | more
      pages.write_json(self.workdir, values)
      return
    export, report = self._merged()
    num_missing = len(self.source.keys) - len(export.keys)
    metrics.LOG.info(
      f'merged {len(done)} sub-models ({method}) in '
      f'{report["merge_secs"]:.1f} s: {len(export.keys):,} words, '
      f'{num_missing:,} of the vocabulary are missing'
    )
    more |= {
      'merge': report | {'missing_words': num_missing},
      'vocab_words': len(export.keys),
      'dim': export.rows.data.shape[1],
    }
    results.write(self.workdir, self.parts, export, totals=totals, more=more)

  def _merged(self) -> tuple[vectors_lib.Export, dict[str, Any]]:
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
    merged: parts_lib.Part | merge_lib.Merged = opened[0]
    report: dict[str, Any] = {'merge_secs': 0.0}
    if len(opened) > 1:
      spec = merge_lib.Spec(method=self.config.strategy.merge)
      several = multivectors_merge.merge(opened, spec)
      merged, report = several, several.report
    for line in report.get('warnings', ()):
      metrics.LOG.warning('%s', line)
    if line := multivectors_merge.line(report):
      metrics.LOG.info('%s', line)
    source, senses = self.source, merged.senses
    words = senses.words if senses else merged.words
    vectors = np.asarray((senses or merged).vectors)
    ids = {word: i for i, word in enumerate(source.keys)}
    rows = np.array([ids[word] for word in words])
    if not senses:  # those of words with senses are in the text's order
      order = np.argsort(rows)
      rows, vectors = rows[order], vectors[order]
    encoded, counts = (
      spec_lib.encode_rows(vectors, self.config.table.dtype),
      source.counts[rows],
    )
    if senses:
      decoded = encoded.decode()
      senses = dataclasses.replace(senses, counts=counts, vectors=decoded)
    keys = [source.keys[i] for i in rows]
    return vectors_lib.Export(keys, counts, encoded, multi=senses), report
