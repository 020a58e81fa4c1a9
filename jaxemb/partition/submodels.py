"""A run of sub-models: who is trained where, what each leaves, and the merge.

The strategy 'partition' trains `config.strategy.num_parts` sub-models, each in
a folder of its own:

  workdir/parts/03/checkpoints/  a state like that of a run on one device, and
                                 where its reading goes on
                   vocab.txt     all words, in the order of the rows, with how
                                 often it read each; 0 = it has no vector of it
                   export/       vectors of its words; of a job in all formats
                   part.json     figures; it is there when the sub-model is done

As many as the devices hold at once are trained side by side, a round; then the
next ones. Each goes on from its own checkpoint, whoever is beside it, so any of
them can be trained by another process or machine, or again when its folder is
removed. A job of one part (`config.strategy.part`) is a run in that folder.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
import threading
import time
from collections.abc import Sequence
from concurrent import futures
from typing import Any

import jax
import ml_collections
import numpy as np

from jaxemb import build, dispatches, errors, loop, metrics, results, saving
from jaxemb import rundir as workdirs
from jaxemb.partition import merged, rounds
from jaxemb.runtime import distributed, mesh
from jaxemb.senses import sense_rows
from jaxemb.storage import atomic, checkpoint
from jaxemb.strategies import base as strategy_base
from jaxemb.tables import blocks
from jaxemb.text import encode, partition_sampling, vocab


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
  """Raises a `UserError` where connected processes are to train sub-models.

  They have nothing to tell each other, and would only wait.
  """
  is_connected = bool(job.coordinator) or job.detects
  if config.strategy.name == 'partition' and is_connected:
    raise errors.UserError(
      "config.strategy.name='partition' needs no connection between processes: "
      'leave out --coordinator and --distributed, and start a process for each '
      'sub-model, with --config.strategy.part=0, 1, ...'
    )


def share(
  config: ml_collections.ConfigDict, part: int
) -> partition_sampling.Sampling:
  """What a sub-model gets of the text."""
  s = config.strategy
  return partition_sampling.Sampling(
    s.divide, s.num_parts, s.rate, part, config.seed
  )


def figures(
  config: ml_collections.ConfigDict, workdir: pathlib.Path, part: int
) -> dict[str, Any] | None:
  """What `part.json` says of a sub-model; None if it is not done."""
  path = folder(config, workdir, part) / 'part.json'
  try:
    return json.loads(path.read_text()) if path.exists() else None
  except ValueError as error:
    raise errors.UserError(
      f'{path} is damaged ({error}); remove its folder to train it again'
    ) from error


def check(
  config: ml_collections.ConfigDict, workdir: pathlib.Path, text: str
) -> None:
  """Raises a `UserError` for sub-models that others than this run have left.

  Args:
    config: checked settings in which all is chosen.
    workdir: folder of the whole run.
    text: fingerprint of the corpus.
  """
  for part in _wanted(config):
    workdirs.check(config, folder(config, workdir, part))
    workdirs.check_text(folder(config, workdir, part), text)
  if config.strategy.part < 0:
    merged.check(config)


def _wanted(config: ml_collections.ConfigDict) -> range:
  """The sub-models that a run is about."""
  s = config.strategy
  return range(s.num_parts) if s.part < 0 else range(s.part, s.part + 1)


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
  s, wanted = config.strategy, _wanted(config)
  done = [figures(config, workdir, part) for part in wanted]
  left = [part for part, found in zip(wanted, done, strict=True) if not found]
  _check_fits(config, parts)
  place = rounds.Place(
    config,
    parts,
    partition_sampling.index(parts.corpus),
    home(config, workdir),
    session,
    distributed.Decisions('saves'),
  )
  trainer = _Trainer(place, workdir, _censuses(place, left))
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
  if s.part < 0:
    folders = [folder(config, workdir, part) for part in wanted]
    found = _done(config, workdir)
    totals = merged.totals(found)
    # Of earlier starts, training is all that is known.
    totals.total_secs += time.time() - session.started
    totals.total_secs += merged.totals([x for x in done if x]).train_secs
    totals.encode_secs, totals.started = session.encode_secs, session.started
    merged.write(config, workdir, parts, folders, found, totals)
  return True


def _done(
  config: ml_collections.ConfigDict, workdir: pathlib.Path
) -> list[dict[str, Any]]:
  """Figures of all sub-models that are done."""
  every = range(config.strategy.num_parts)
  found = [figures(config, workdir, part) for part in every]
  return [x for x in found if x]


def _check_fits(config: ml_collections.ConfigDict, parts: build.Parts) -> None:
  shapes = jax.eval_shape(parts.strategy.init, jax.random.key(0))
  try:
    saving.check_fits(config, parts, shapes)
  except errors.UserError as error:
    if config.strategy.per_device <= 1:
      raise
    held_bytes = mesh.bytes_per_device(shapes, parts.strategy.state_sharding)
    raise errors.UserError(
      f'{config.strategy.per_device} sub-models need {held_bytes / 1e9:,.1f} '
      'GB on each device, which has less; lower --config.strategy.per_device'
    ) from error


def _censuses(
  place: rounds.Place, wanted: Sequence[int]
) -> dict[int, partition_sampling.SampleCounts]:
  """What each part will read."""
  config = place.config

  def census(part: int) -> partition_sampling.SampleCounts:
    return partition_sampling.count(
      place.text, share(config, part), config.train.epochs
    )

  with futures.ThreadPoolExecutor(encode.num_threads()) as pool:
    found = dict(zip(wanted, pool.map(census, wanted), strict=True))
  for part, each in found.items():
    if not each.words:
      raise errors.UserError(
        f'sub-model {part} of {config.strategy.num_parts} gets no sentence; '
        'lower --config.strategy.num_parts or raise --config.strategy.rate'
      )
  return found


class _Trainer:
  """Opens, trains and closes the sub-models of one start of a run."""

  def __init__(
    self,
    place: rounds.Place,
    workdir: pathlib.Path,
    censuses: dict[int, partition_sampling.SampleCounts],
  ):
    self._place, self._workdir, self._censuses = place, workdir, censuses
    self._vectors_table = place.parts.model.vectors_table
    self._program = None

  def train_all(
    self, wanted: Sequence[int], stop: threading.Event
  ) -> list[int] | None:
    """Round by round; those that others train, or None if told to stop."""
    left, elsewhere = list(wanted), []
    num = rounds.num_models(self._place.parts)
    while left:
      with contextlib.ExitStack() as stack:
        models: list[rounds.Model] = []
        while left and len(models) < num:
          part = left.pop(0)
          try:
            models += self._open(part, stack)
          except workdirs.BusyError:
            elsewhere.append(part)
        later_words = sum(self._censuses[part].words for part in left)
        if models and not self._train(models, later_words, stop):
          return None
    return elsewhere

  def _folder(self, part: int) -> pathlib.Path:
    return folder(self._place.config, self._workdir, part)

  def _open(self, part: int, stack: contextlib.ExitStack) -> list[rounds.Model]:
    """A sub-model, with its folder locked; none if it is done by now.

    Raises:
      BusyError: if another process trains it.
    """
    config, place = self._place.config, self._folder(part)
    workdirs.make(place)
    if config.strategy.part < 0:  # else it is locked as the folder of the run
      stack.enter_context(workdirs.locked(place))
    if figures(config, self._workdir, part):
      return []
    text = self._place.parts.corpus.manifest['fingerprint']
    workdirs.record(config, place, text)
    saved = stack.enter_context(
      checkpoint.Checkpoints(
        place / 'checkpoints',
        config.train.checkpoints_to_keep,
        metrics.LOG.error,
      )
    )
    census = self._censuses[part]
    return [
      rounds.Model(part, share(config, part), census, saved, metrics.Totals())
    ]

  def _train(
    self,
    models: Sequence[rounds.Model],
    later_words: int,
    stop: threading.Event,
  ) -> bool:
    """A round; whether it came to its end."""
    config = self._place.config
    names = ', '.join(str(model.part) for model in models)
    metrics.LOG.info('sub-models %s of %d', names, config.strategy.num_parts)
    before = metrics.Totals()
    if config.strategy.part < 0:
      before = merged.totals(_done(config, self._workdir))
    found = rounds.train(
      self._place, models, before, later_words, self._program, stop
    )
    self._program = found.program
    if not found.finished:
      metrics.LOG.info('stopped; sub-models %s saved; start again', names)
      return False
    for i, model in enumerate(found.models):
      self._finish(model, rounds.of_model(found.state, i), len(models))
    return True

  @functools.cached_property
  def _start_rows(self) -> np.ndarray:
    """[vocab, dim], how the vectors of every sub-model began."""
    strategy = self._place.parts.strategy
    first = jax.jit(
      lambda key: jax.tree.map(lambda x: x[0], strategy.init(key))
    )
    state = first(dispatches.tables_key(self._place.config))
    return self._rows(state, self._vectors_table).decode()

  def _rows(self, state: Any, name: str) -> blocks.Encoded:
    """Rows of a sub-model."""
    table = self._place.parts.strategy.tables[name]
    return table.export_rows(state.tables[name]).encoded

  def _finish(self, model: rounds.Model, state: Any, beside: int) -> None:
    """Writes what a sub-model leaves."""
    config, parts = self._place.config, self._place.parts
    place, census, totals = self._folder(model.part), model.census, model.totals
    rows = self._rows(state, self._vectors_table)
    vocabulary = parts.corpus.vocabulary
    senses = sense_rows.of_model(
      config,
      parts.model,
      lambda name: self._rows(state, name).decode(),
      vocabulary,
    )
    words, read = vocabulary.words, census.seen
    # A word may have been read and never had another beside it.
    has = (rows.decode() != self._start_rows).any(1)
    if senses is not None:
      words, read = senses.names(), senses.by_row(read)
    has &= read >= config.strategy.min_seen
    if not has.any():
      raise errors.UserError(
        f'sub-model {model.part} has learned nothing: no word has another in '
        'its window; raise --config.strategy.rate or --config.data.sample'
      )
    seen = read * has
    if senses is not None:
      # All stay together, with the counts that the tree of paths is made of.
      has[:], seen, read = True, read, senses.by_row(vocabulary.counts)
    vocab.write_counts(place / 'vocab.txt', vocab.Vocabulary(words, seen))
    mine = vocab.Vocabulary([words[i] for i in np.flatnonzero(has)], read[has])
    self._export(model, rows.select(has), senses, mine, mesh.num_bytes(state))
    found = {
      'part': model.part,
      'share': dataclasses.asdict(model.share),
      'corpus': parts.corpus.manifest['fingerprint'],
      'words': census.words,
      'sentences': census.sentences,
      'corpus_share': census.words
      / (parts.corpus.num_words * config.train.epochs),
      'words_seen': int((census.seen > 0).sum()),
      'vocab_words': len(mine.words),
      'loss_per_example': totals.loss_per_example(),
      'train_secs': totals.train_secs,
      'table_bytes': mesh.num_bytes(state),
      'vector_bytes': strategy_base.vector_bytes(state),
      'beside': beside,  # sub-models that the devices trained at once
      'totals': dataclasses.asdict(totals),
    }
    with atomic.write(place / 'part.json') as file:
      file.write(json.dumps(found, indent=1).encode())

  def _export(
    self,
    model: rounds.Model,
    rows: blocks.Encoded,
    senses: Any,
    mine: vocab.Vocabulary,
    num_bytes: int,
  ) -> None:
    """Writes rows named `mine`; of a job, all else that a run leaves too."""
    config, parts = self._place.config, self._place.parts
    place = self._folder(model.part)
    if config.strategy.part < 0:
      # Enough to load and to merge: text takes longer than training.
      results.write_rows(place / 'export', rows, mine, senses)
      return
    if senses is None:  # else all words have vectors
      parts = parts._replace(corpus=parts.corpus._replace(vocabulary=mine))
    totals = model.totals
    results.write(config, place, parts, rows, totals, num_bytes, found=senses)
