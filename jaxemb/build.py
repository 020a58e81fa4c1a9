"""From settings to parts: the corpus, the model, its tables, the strategy.

The only place that turns a ConfigDict into constructor arguments, and the one
dict per kind of part that a name in the settings chooses from.
"""

import os
import pathlib
from typing import NamedTuple

import jax
import ml_collections
import numpy as np

from jaxemb.data import download, encode, loader, scan, toywiki
from jaxemb.evaluation import benchmarks
from jaxemb.models import base as model_base
from jaxemb.models import cbow, skipgram
from jaxemb.ops import rowopt
from jaxemb.strategies import base as strategy_base
from jaxemb.strategies import replicas, sync
from jaxemb.tables import sharded

MODELS = {'skipgram': skipgram.SkipGram, 'cbow': cbow.Cbow}
LAYOUTS = {'replicated': sharded.replicated}
OPTIMIZERS = {
  'sgd': lambda o: rowopt.sgd(o.max_duplicates),
  'adagrad': lambda o: rowopt.adagrad(o.epsilon),
  'adam': lambda o: rowopt.adam(o.beta1, o.beta2, o.epsilon),
}


def _sync(config, model, tables, step_spec, mesh, rates):
  del config, rates
  return sync.sync(model, tables, step_spec, mesh)


def _replicas(config, model, tables, step_spec, mesh, rates):
  if mesh.size == 1:
    return sync.sync(model, tables, step_spec, mesh)  # with whom to exchange?
  s = config.strategy
  # Measured with two and four replicas (experiments/results/step_notes.md):
  # what more of them learn apart must meet sooner.
  closeness = (2 / mesh.size) ** 3
  exchange_words = s.exchange_words or 16_384 * closeness
  exchange_spec = replicas.ExchangeSpec(
    max(1, round(exchange_words / step_spec.batch_words)),
    s.exchange_lookups or 8.0 * closeness,
    s.memory_lookups,
    config.optimizer.learning_rate,
  )
  return replicas.replicas(model, tables, step_spec, mesh, exchange_spec, rates)


STRATEGIES = {'sync': _sync, 'replicas': _replicas}


class Parts(NamedTuple):
  """What a run is made of."""

  corpus: encode.Encoded
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


def text_and_benchmarks(
  config: ml_collections.ConfigDict, progress: scan.Progress
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


def trainer(
  config: ml_collections.ConfigDict,
  counts: np.ndarray,
  mesh: jax.sharding.Mesh,
) -> Trainer:
  """The model, its tables and the strategy that the settings name.

  Args:
    config: checked settings in which all is chosen.
    counts: [vocab] int, falling, how often each word occurs.
    mesh: the devices to train on.
  """
  d, m, t = config.data, config.model, config.train
  spec = model_base.WindowSpec(
    len(counts), m.dim, m.window, m.negatives, m.chunk, m.shared_negatives
  )
  model = MODELS[m.name](spec, skipgram.negative_distribution(counts))
  optimizer = OPTIMIZERS[config.optimizer.name](config.optimizer)
  tables = {
    name: LAYOUTS[config.table.layout](
      table, optimizer, config.table.duplicates == 'merge'
    )
    for name, table in model.specs().items()
  }
  strategy = STRATEGIES[config.strategy.name](
    config,
    model,
    tables,
    strategy_base.StepSpec(
      t.batch_words, m.window, t.loss_every_steps, t.steps_per_loop
    ),
    mesh,
    model.lookup_rates(
      loader.center_probabilities(counts, d.sample),
      skipgram.negative_probabilities(counts),
    ),
  )
  loader_spec = loader.LoaderSpec(
    config.seed, t.epochs, t.batch_words, m.window, d.sample, mesh.size
  )
  return Trainer(loader_spec, model, strategy)


def parts(
  config: ml_collections.ConfigDict,
  mesh: jax.sharding.Mesh,
  progress: scan.Progress,
) -> Parts:
  """Reads the corpus and makes the parts that the settings name.

  Args:
    config: checked settings.
    mesh: the devices to train on.
    progress: called now and then with (stage, done, total).

  Raises:
    UserError: for input that cannot be used.
  """
  path, eval_paths = text_and_benchmarks(config, progress)
  d = config.data
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
  )
  return Parts(
    corpus, *trainer(config, corpus.vocabulary.counts, mesh), eval_paths, mesh
  )
