"""From settings to parts: the corpus, the model, its tables, the strategy.

The only place that turns a ConfigDict into constructor arguments, and the one
dict per kind of part that a name in the settings chooses from.
"""

import dataclasses
import logging
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from jaxemb import config as config_lib
from jaxemb import errors, model_choice, table_choice
from jaxemb.evaluation import benchmarks
from jaxemb.models import base as model_base
from jaxemb.models import skipgram
from jaxemb.ops import wire
from jaxemb.runtime import distributed
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.senses import sense_rows
from jaxemb.strategies import base as strategy_base
from jaxemb.strategies import partition, replicas, sync, timetables
from jaxemb.tables import spec as spec_lib
from jaxemb.text import download, encode, loader
from jaxemb.toywiki import toywiki

_LOG = logging.getLogger('jaxemb')

MODELS = model_choice.MODELS
LAYOUTS = table_choice.LAYOUTS
OPTIMIZERS = table_choice.OPTIMIZERS


def _sync(config, model, tables, step_spec, mesh, rates):
  del rates
  # Devices that hold other columns of the same rows want the same rows.
  splits_centers = config.table.layout != 'column'
  return sync.sync(model, tables, step_spec, mesh, splits_centers)


def _replicas(config, model, tables, step_spec, mesh, rates):
  if mesh.size == 1:
    # With whom to exchange?
    return _sync(config, model, tables, step_spec, mesh, rates)
  s = config.strategy
  # Measured with two and four replicas (experiments/results/step_notes.md):
  # what more of them learn apart must meet sooner.
  closeness = (2 / mesh.size) ** 3
  exchange_words = s.exchange_words or 16_384 * closeness
  every_steps = max(1, round(exchange_words / step_spec.part_words))
  # Equal loops from one exchange to the next: what is beyond it is padding,
  # which costs as much as a step.
  num_loops = math.ceil(every_steps / step_spec.steps_per_loop)
  step_spec = dataclasses.replace(
    step_spec, steps_per_loop=math.ceil(every_steps / num_loops)
  )
  exchange_spec = timetables.ExchangeSpec(
    every_steps,
    s.exchange_lookups or 8.0 * closeness,
    s.memory_lookups,
    config.optimizer.learning_rate,
  )
  return replicas.replicas(model, tables, step_spec, mesh, exchange_spec, rates)


def _partition(config, model, tables, step_spec, mesh, rates):
  del rates
  return partition.partition(
    model, tables, step_spec, mesh, config.strategy.per_device
  )


STRATEGIES = {'sync': _sync, 'replicas': _replicas, 'partition': _partition}


class Parts(NamedTuple):
  """What a run is made of."""

  corpus: encode.Encoded
  division: encode.Division
  loader_spec: loader.LoaderSpec
  model: model_base.Model
  strategy: strategy_base.Strategy
  eval_paths: list[str]
  mesh: jax.sharding.Mesh


def cache_folder(config: ml_collections.ConfigDict) -> pathlib.Path:
  """Where downloads, encoded corpora and compiled programs are kept."""
  if config.data.cache:
    return pathlib.Path(config.data.cache).expanduser()
  if os.environ.get('JAXEMB_CACHE'):
    return pathlib.Path(os.environ['JAXEMB_CACHE']).expanduser()
  base = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return pathlib.Path(base) / 'jaxemb'


def on_devices(
  config: ml_collections.ConfigDict, begun: Mapping[str, Any]
) -> tuple[ml_collections.ConfigDict, jax.sharding.Mesh]:
  """Chooses devices, and what the settings leave open for them to decide.

  Args:
    config: checked settings.
    begun: flat settings of the run that is resumed, or {}.

  Raises:
    UserError: for settings that do not fit the devices.
  """
  is_sync = config.strategy.name == 'sync'
  splits_tables = config.table.layout != 'replicated'
  begun_with = None
  if config.strategy.name == 'replicas' == begun.get('strategy.name'):
    begun_with = mesh_lib.Shape(begun.get('mesh.data', 0), 1)
    if config.mesh.data not in (0, begun_with.data):
      raise errors.UserError(
        f'the run was begun with {begun_with.data} replicas and goes on with '
        f'as many, not with config.mesh.data={config.mesh.data}; give 0, or '
        'another --workdir'
      )
  shape = mesh_lib.start(
    mesh_lib.Shape(config.mesh.data, config.mesh.table),
    splits_tables,
    not is_sync or splits_tables,
    begun_with,
  )
  if config.strategy.name == 'partition':
    shape = _for_models(config, shape)
  # A run that goes on with other devices has the steps that it began with.
  config.data.parts = config.data.parts or begun.get('data.parts', 0)
  if is_sync and config.data.parts:
    shape = _dealt(shape, config.data.parts)
  config.train.batch_words = config.train.batch_words or begun.get(
    'train.batch_words', 0
  )
  devices = mesh_lib.make(shape)
  if config.table.layout == 'column' and config.model.dim % shape.table:
    filled = -(-config.model.dim // shape.table) * shape.table
    _LOG.info(
      'columns: %d are filled up to %d, as many on each of %d devices',
      config.model.dim, filled, shape.table,
    )  # fmt: skip
  platform = devices.devices.flat[0].platform
  return config_lib.resolved(config, platform, shape), devices


def _dealt(shape: mesh_lib.Shape, num_parts: int) -> mesh_lib.Shape:
  """As many devices, of which the data axis divides the parts.

  Devices of the table axis share the centers of their parts, whatever number.
  """
  data = math.gcd(shape.data, num_parts)
  return mesh_lib.Shape(data, shape.table * (shape.data // data))


def _for_models(
  config: ml_collections.ConfigDict, shape: mesh_lib.Shape
) -> mesh_lib.Shape:
  """A mesh of no more devices than there are sub-models to train."""
  data = shape.data
  if not config.mesh.data and jax.devices()[0].platform != 'cpu':
    data = len(jax.devices())  # they do not slow each other down
  s = config.strategy
  num = s.num_parts if s.part < 0 else 1
  return mesh_lib.Shape(min(data, math.ceil(num / s.per_device)), 1)


def text_and_benchmarks(
  config: ml_collections.ConfigDict, progress: encode.Progress
) -> tuple[str, list[str]]:
  """Paths of the text and the evaluation sets, made or fetched if need be.

  Args:
    config: checked settings.
    progress: called now and then with (stage, done, total).

  Raises:
    UserError: if they cannot be had.
  """
  cache = cache_folder(config)
  path = config.data.path
  given = (p.strip() for p in config.eval.paths.split(','))
  eval_paths = [os.path.expanduser(p) for p in given if p]
  no_eval = eval_paths == ['none']
  if no_eval:
    eval_paths = []
  if not path or not (eval_paths or no_eval):
    progress('writing the embedded corpus', 0, 1)
    embedded = toywiki.write(
      cache / f'toywiki-{config.data.embedded_words}',
      corpus_words=config.data.embedded_words,
    )
    path = path or str(embedded.xml)
    if not (eval_paths or no_eval):
      eval_paths = [str(p) for p in embedded.eval_paths]
  if eval_paths:
    benchmarks.find(eval_paths)  # a wrong path is told before hours of training
  if path.startswith('wikipedia:'):
    path = str(
      download.wikipedia(
        path.removeprefix('wikipedia:'),
        cache,
        lambda done, total: progress('downloading', done, total),
      )
    )
  return path, eval_paths


class Trainer(NamedTuple):
  """What trains on a corpus of known counts."""

  loader_spec: loader.LoaderSpec
  model: model_base.Model
  strategy: strategy_base.Strategy


def _step_spec(
  config: ml_collections.ConfigDict,
  mesh: jax.sharding.Mesh,
  part_words: int,
  is_sync: bool,
) -> strategy_base.StepSpec:
  t = config.train
  return strategy_base.StepSpec(
    part_words,
    config.data.parts,
    config.model.window,
    config.model.chunk,
    t.loss_every_steps,
    t.steps_per_loop,
    # A loop whose length is not known is nothing for an accelerator.
    t.steps_per_loop == 1
    and (mesh.size == 1 or not is_sync)
    and config.strategy.per_device <= 1,
  )


def trainer(
  config: ml_collections.ConfigDict,
  counts: np.ndarray,
  mesh: jax.sharding.Mesh,
  words: Sequence[str] = (),
) -> Trainer:
  """The model, its tables and the strategy that the settings name.

  Args:
    config: checked settings in which all is chosen.
    counts: [vocab] int, falling, how often each word occurs.
    mesh: the devices to train on.
    words: [vocab], where the model asks which they are.

  Raises:
    UserError: for a vocabulary that the model cannot have.
  """
  d, m, t = config.data, config.model, config.train
  is_sync = config.strategy.name == 'sync' or mesh.size == 1
  num_table = mesh.shape[mesh_lib.TABLE]
  axes = spec_lib.Axes(
    mesh_lib.DATA, mesh_lib.TABLE, mesh.shape[mesh_lib.DATA], num_table
  )
  columns_axis = None
  if config.table.layout == 'column' and num_table > 1:
    columns_axis = wire.Axis(mesh_lib.TABLE, config.table.exchange_dtype)
  spec = model_base.WindowSpec(
    len(counts),
    m.dim,
    m.window,
    m.negatives,
    m.chunk,
    m.shared_negatives,
    columns_axis,
  )
  model = MODELS[m.name, m.loss](config, spec, counts, words)
  rates = model.lookup_rates(
    loader.center_probabilities(counts, d.sample),
    skipgram.negative_probabilities(counts),
  )
  tables = {
    # Each replica has tables of its own.
    name: table_choice.table(
      config,
      dataclasses.replace(table, lookups_per_center=rates[name]),
      axes if is_sync else spec_lib.Axes(),
      mesh.size,
    )
    for name, table in model.specs().items()
  }
  # A replica has a step of its own, of its own part of the corpus.
  part_words = t.batch_words // (d.parts if is_sync else 1)
  strategy = STRATEGIES[config.strategy.name](
    config,
    model,
    tables,
    _step_spec(config, mesh, part_words, is_sync),
    mesh,
    rates,
  )
  loader_spec = loader.LoaderSpec(
    config.seed, t.epochs, part_words, m.window, d.sample, m.shortest_window
  )
  return Trainer(loader_spec, model, strategy)


def parts(
  config: ml_collections.ConfigDict,
  mesh: jax.sharding.Mesh,
  progress: encode.Progress,
) -> Parts:
  """Reads the corpus and makes the parts that the settings name.

  Args:
    config: checked settings.
    mesh: the devices to train on.
    progress: called now and then with (stage, done, total).

  Raises:
    UserError: for input that cannot be used.
  """
  init_from = os.path.expanduser(config.train.init_from)
  if init_from and not os.path.exists(init_from):  # told before the work
    raise errors.UserError(
      f'config.train.init_from={init_from} does not exist; give a run, a merge '
      "or a word2vec file, or ''"
    )
  path, eval_paths = text_and_benchmarks(config, progress)
  d = config.data
  readers = encode.ALONE  # any sentence may be a sub-model's
  if config.strategy.name != 'partition':
    readers = encode.Readers(
      d.parts,
      mesh_lib.my_parts(mesh, d.parts),
      mesh_lib.my_parts(mesh, d.parts, first_only=True),
      distributed.process_id(),
      distributed.num_processes(),
      distributed.gather,
    )
  corpus = encode.encode(
    path,
    encode.Settings(
      d.tokens,
      d.lowercase,
      d.min_count,
      d.max_vocab,
      os.path.expanduser(d.counts),
    ),
    cache_folder(config),
    progress,
    readers,
  )
  corpus = _with_senses(config, corpus)
  return Parts(
    corpus,
    encode.divide(corpus, d.parts, readers),
    *trainer(config, corpus.vocabulary.counts, mesh, corpus.vocabulary.words),
    eval_paths,
    mesh,
  )


def _with_senses(
  config: ml_collections.ConfigDict, corpus: encode.Encoded
) -> encode.Encoded:
  """Says which words have several senses, and counts those that are missing."""
  s = config.senses
  if config.model.name != 'mixture' or s.number == 1:
    return corpus
  found = sense_rows.ambiguous(config, corpus.vocabulary.words)
  told = f'{found.mask.sum():,} words have {s.number} senses each'
  if s.words:
    told += (
      f'; {found.num_unknown:,} of the {found.num_listed:,} in {s.words} are '
      'not in the vocabulary'
    )
  _LOG.info('%s', told)
  if not s.words:
    return corpus
  dropped = corpus.manifest['dropped']
  dropped = dropped | {'sense_words_out_of_vocabulary': found.num_unknown}
  return corpus._replace(manifest=corpus.manifest | {'dropped': dropped})
