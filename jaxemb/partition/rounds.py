"""Sub-models that are trained side by side, as one task of the loop.

Each has its own batches, schedule, totals and checkpoints, and stands wherever
its own checkpoint says; the loop sees one state with all of them. One that is
done before the others gets padding.
"""

import contextlib
import pathlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from jaxemb import build, dispatches, errors, loop, metrics, saving
from jaxemb.runtime import distributed, mesh
from jaxemb.storage import checkpoint
from jaxemb.strategies import base as strategy_base
from jaxemb.text import loader, partition_sampling


class Model(NamedTuple):
  """A sub-model that is being trained."""

  part: int
  share: partition_sampling.Sampling
  census: partition_sampling.SampleCounts
  saved: checkpoint.Checkpoints
  totals: metrics.Totals  # those of its checkpoint


class Place(NamedTuple):
  """What all rounds of one start of a run have in common."""

  config: ml_collections.ConfigDict
  parts: build.Parts
  text: partition_sampling.Indexed
  log: pathlib.Path  # folder for the records of training
  session: loop.Session
  decisions: distributed.Decisions


class Together(NamedTuple):
  """Batches of all sub-models of a round, as one for the loop."""

  batch: loader.Batch  # [models, ...], or what became of it
  loaded: tuple[loader.Loaded | None, ...]  # None = that model is done
  words_before: int  # of all
  words_after: int
  after: loader.Position = loader.Position(0, 0)  # each has its own


class Trained(NamedTuple):
  """What a round leaves behind."""

  models: list[Model]
  state: Any  # of all, see `of_model`
  finished: bool
  program: Any  # for the next round


def _stacked(trees: Sequence[Any]) -> Any:
  return jax.tree.map(lambda *x: np.stack(x), *trees)


def _items(
  models: Sequence[Model],
  text: partition_sampling.Indexed,
  spec: loader.LoaderSpec,
  num: int,
  words_before: int,
) -> Iterator[Together]:
  """Batches of `num` models, of which the first are those that there are."""
  readers = [
    partition_sampling.batches(
      text,
      model.share,
      spec,
      loader.Position(model.totals.epoch, model.totals.block),
      model.totals.words,
    )
    for model in models
  ]
  size = spec.max_steps * spec.part_words
  nothing = np.zeros(1, np.int32)
  padding = loader.Batch(
    np.full(
      (1, size + 2 * spec.window),
      len(text.corpus.vocabulary.counts),
      np.int32,
    ),
    np.zeros((1, size), np.uint8),
    np.zeros((1, size), np.uint8),
    *[nothing] * 3,
  )
  while True:
    loaded = tuple(next(reader, None) for reader in readers)
    found = [x for x in loaded if x is not None]
    if not found:
      return
    batches = [padding if x is None else x.batch for x in loaded]
    batches += [padding] * (num - len(batches))
    batch = loader.Batch(*map(np.concatenate, zip(*batches, strict=True)))
    words_after = words_before + sum(
      x.words_after - x.words_before for x in found
    )
    loaded = tuple(x and x._replace(batch=None) for x in loaded)
    yield Together(batch, loaded, words_before, words_after)
    words_before = words_after


def schedules(
  config: ml_collections.ConfigDict, models: Sequence[Model], num: int
) -> Callable[[Together], strategy_base.Schedule]:
  """Every model's learning rates, by its own progress, and its own keys.

  Args:
    config: checked settings in which all is chosen.
    models: of the round.
    num: models of the strategy; those beyond have nothing to do.
  """
  each = [
    dispatches.schedules(config, model.census.words, (model.part + 1,))
    for model in models
  ]
  nothing = strategy_base.Schedule(
    np.float32(0), np.float32(0), np.zeros(2, np.uint32)
  )

  def schedule(item: Together) -> strategy_base.Schedule:
    plans = [
      nothing if loaded is None else plan(loaded)
      for plan, loaded in zip(each, item.loaded, strict=True)
    ]
    return _stacked(plans + [nothing] * (num - len(plans)))

  return schedule


@contextlib.contextmanager
def _named(model: Model) -> Iterator[None]:
  """Says of an error which model it is about."""
  try:
    yield
  except errors.UserError as error:
    raise errors.UserError(f'sub-model {model.part}: {error}') from error


class _Meters:
  """Counts dispatches for each model, and for all together."""

  def __init__(
    self,
    models: Sequence[Model],
    meter: metrics.Meter,
    totals: metrics.Totals,
    place: Place,
  ):
    self._models, self._meter, self._totals = models, meter, totals
    self._max_loss = metrics.max_loss(place.parts.model.decisions)
    self._epoch_blocks = len(place.text.sentences.block_shards)

  def start(self) -> None:
    self._meter.start()

  def count(
    self, item: Together, rates: tuple[np.ndarray, np.ndarray], told: Any
  ) -> None:
    """As `metrics.Meter.count`; every figure is one for each model."""
    told = jax.device_get(told)
    found = []
    for i, model in enumerate(self._models):
      if item.loaded[i] is None:
        continue
      mine = jax.tree.map(lambda x, i=i: x[i], told)
      found.append((model, item.loaded[i], mine, (rates[0][i], rates[1][i])))
      with _named(model):
        metrics.check_finite(
          model.totals, item.loaded[i], found[-1][3], mine, self._max_loss
        )
    together = jax.tree.map(np.sum, told)
    together = together._replace(
      steps=together.steps._replace(first_bad_step=np.int32(-1))
    )
    mean_rates = tuple(
      float(np.mean(x)) for x in zip(*(y[3] for y in found), strict=True)
    )
    secs_before = self._totals.train_secs
    self._meter.count(item, mean_rates, together)
    secs = self._totals.train_secs - secs_before
    for model, loaded, mine, _ in found:
      model.totals.add(loaded, loaded.index // self._epoch_blocks, mine, secs)

  def close(self) -> None:
    self._meter.close()


def of_model(state: Any, index: int) -> Any:
  """A copy of a model's arrays, on the device where they lie."""

  def find(array):
    for shard in array.addressable_shards:
      first = shard.index[0].start or 0
      if first <= index < first + len(shard.data):
        return shard.data[index - first]
    raise IndexError(index)

  return jax.tree.map(find, state)


def num_models(parts: build.Parts) -> int:
  """How many the devices train side by side."""
  shapes = jax.eval_shape(parts.strategy.init, jax.random.key(0))
  return jax.tree.leaves(shapes)[0].shape[0]


def _start(place: Place, models: Sequence[Model]) -> tuple[list[Model], Any]:
  """New states, or those of the newest checkpoints."""
  strategy = place.parts.strategy
  key = dispatches.tables_key(place.config)
  state = saving.new_state(place.config, key, place.parts)
  like = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), state
  )
  models = list(models)
  restored = {}
  for i, model in enumerate(models):
    with _named(model):
      found = saving.restore(model.saved, like, place.parts)
    totals = metrics.Totals() if found is None else found[1]
    models[i] = model._replace(totals=totals)
    if found is not None:
      restored[i] = jax.tree.leaves(found[0])
  if restored:
    leaves, tree = jax.tree.flatten(state)
    leaves = [np.array(x) for x in leaves]
    for i, values in restored.items():
      for leaf, value in zip(leaves, values, strict=True):
        leaf[i] = value
    state = mesh.put(jax.tree.unflatten(tree, leaves), strategy.state_sharding)
  return models, state


def _copy_times(source: metrics.Totals, target: metrics.Totals) -> None:
  for name in ('started', 'encode_secs', 'total_secs'):
    setattr(target, name, getattr(source, name))


def train(
  place: Place,
  models: Sequence[Model],
  before: metrics.Totals,
  later_words: int,
  program: Any,
  stop: threading.Event,
) -> Trained:
  """Trains sub-models side by side, to their end or until told to stop.

  Args:
    place: of the run.
    models: at most `num_models`, from where their checkpoints stand.
    before: totals of the other sub-models that are done.
    later_words: that those of later rounds will read.
    program: of the round before, or None.
    stop: set when training is to stop, after saving.

  Raises:
    UserError: naming the sub-model whose training diverged.
  """
  config, parts = place.config, place.parts
  strategy, num = parts.strategy, num_models(parts)
  models, state = _start(place, models)
  totals = metrics.add_up([before, *(model.totals for model in models)])
  totals.train_secs = before.train_secs
  totals.train_secs += max(model.totals.train_secs for model in models)
  is_alone = config.strategy.part >= 0
  if is_alone:  # a run of its own, with times of its own
    _copy_times(models[0].totals, totals)
  left = sum(model.census.words - model.totals.words for model in models)
  total_words = totals.words + left
  meter = metrics.Meter(
    place.log,
    totals,
    (total_words + later_words) / config.train.epochs,
    config.train.epochs,
    config.train.log_every_secs,
  )
  items = loader.prefetch(
    _items(models, place.text, parts.loader_spec, num, totals.words),
    lambda batch: mesh.put(batch, strategy.batch_sharding),
  )

  def save(state: Any, rates: np.ndarray, is_final: bool) -> None:
    if is_alone:
      _copy_times(totals, models[0].totals)
    for i, model in enumerate(models):
      mine = of_model(state, i)
      with _named(model):
        saving.save(model.saved, mine, model.totals, parts, rates[i], is_final)

  task = loop.Task(
    strategy,
    state,
    items,
    schedules(config, models, num),
    totals,
    _Meters(models, meter, totals, place),
    total_words,
    save,
    config.train.checkpoint_every_secs,
    place.decisions,
    program,
  )
  compile_secs = totals.compile_secs
  found = loop.run(task, stop, place.session)
  for model in models:
    model.totals.collectives = totals.collectives
  models[0].totals.compile_secs += totals.compile_secs - compile_secs
  return Trained(models, found.state, found.finished, found.program)
