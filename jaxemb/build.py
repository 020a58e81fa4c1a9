"""From settings to the parts of a run: source, model, tables, strategy.

The only place that turns a ConfigDict into constructor arguments. Names in the
settings stand for members of `config.MEMBERS`; a user's own member is given as
`module:attribute`.
"""

import dataclasses
import importlib
import inspect
import logging
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.data import windows
from jaxemb.evaluation import benchmarks
from jaxemb.merging import warm_start
from jaxemb.models import base as model_base
from jaxemb.models import hierarchical
from jaxemb.ops import products, wire
from jaxemb.runtime import distributed, resources
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.senses import context_mixture, mixture
from jaxemb.senses import rows as sense_rows
from jaxemb.strategies import base as strategy_base
from jaxemb.strategies import policies, replicas, sync
from jaxemb.tables import row_optimizers
from jaxemb.tables import spec as spec_lib
from jaxemb.text import loader

_LOG = logging.getLogger('jaxemb')


def member(key: str, name: str) -> Any:
  """What a name in the settings stands for.

  Raises:
    UserError: if a user's own member cannot be imported.
  """
  path = config_lib.MEMBERS[key].get(name, name)
  module, _, attribute = path.partition(':')
  try:
    return getattr(importlib.import_module(module), attribute)
  except (ImportError, AttributeError, SyntaxError, ValueError) as error:
    raise errors.UserError(
      f'config.{key}={name}: {error}; give one of '
      f'{", ".join(config_lib.MEMBERS[key])} or module:attribute of your own'
    ) from error


def call(
  key: str, name: str, args: Sequence[Any], available: Mapping[str, Any]
) -> Any:
  """Calls a member with those of the available arguments that it takes."""
  function = member(key, name)
  return function(*args, **_accepted(key, name, function, args, available))


def _accepted(
  key: str,
  name: str,
  function: Callable[..., Any],
  args: Sequence[Any],
  available: Mapping[str, Any],
) -> dict[str, Any]:
  """Those of the available arguments that a member takes.

  Raises:
    UserError: if it cannot be called with them.
  """
  try:
    signature = inspect.signature(function)
    chosen = {k: v for k, v in available.items() if k in signature.parameters}
    signature.bind(*args, **chosen)
  except TypeError as error:
    raise errors.UserError(
      f'config.{key}={name} cannot be called: {error}; docs/extending.md shows '
      'what it is to take'
    ) from error
  return chosen


class Parts(NamedTuple):
  """What a run is made of."""

  source: data_base.Source
  trainable: strategy_base.Trainable
  strategy: strategy_base.Strategy
  eval_paths: list[str]
  mesh: jax.sharding.Mesh
  tuning: config_lib.Tuning
  dropped: Mapping[str, Any]  # of the data, counted


def cache_folder() -> pathlib.Path:
  """Where downloads, encoded corpora and compiled programs are kept."""
  if os.environ.get('JAXEMB_CACHE'):
    return pathlib.Path(os.environ['JAXEMB_CACHE']).expanduser()
  base = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
  return pathlib.Path(base) / 'jaxemb'


def on_devices(
  config: ml_collections.ConfigDict,
  begun: Mapping[str, Any],
  **fixed: Any,
) -> tuple[ml_collections.ConfigDict, config_lib.Tuning, jax.sharding.Mesh]:
  """Chooses devices, and what the settings leave open for them to decide.

  `begun` has the flat settings of the run that is resumed, or is {}; `fixed`
  are fields of the tuning that are not to be chosen.

  Raises:
    UserError: for settings that do not fit the devices.
  """
  is_sync = config.strategy.name == 'sync'
  splits_tables = config.table.layout != 'replicated'
  wanted = mesh_lib.Shape(config.mesh.data, config.mesh.table)
  is_resumed = config.strategy.name == 'replicas' == begun.get('strategy.name')
  if is_resumed:
    num_replicas = begun.get('mesh.data', 0)
    if wanted.data not in (0, num_replicas):
      raise errors.UserError(
        f'the run was begun with {num_replicas} replicas and goes on with as '
        f'many, not with config.mesh.data={wanted.data}; give 0, or another '
        '--workdir'
      )
    wanted = mesh_lib.Shape(num_replicas, 1)
  uses_cores = not is_sync or splits_tables
  data, table = mesh_lib.start(wanted, splits_tables, uses_cores, is_resumed)
  if config.strategy.name == 'partition':
    s = config.strategy
    if not wanted.data and jax.devices()[0].platform != 'cpu':
      data = len(jax.devices())  # they do not slow each other down
    data, table = min(data, s.num_parts if s.part < 0 else 1), 1
  # A run that is resumed on other devices has the steps that it began with.
  if 'tuning.parts' in begun:
    fixed = {'parts': begun['tuning.parts']} | fixed
  if is_sync and 'parts' in fixed:
    # The data axis has to divide the parts; devices of the table axis share
    # the centers of their parts, whatever their number.
    num_devices = data * table
    data = math.gcd(data, fixed['parts'])
    table = num_devices // data
  begun_words = begun.get('train.batch_words', 0)
  config.train.batch_words = config.train.batch_words or begun_words
  shape = mesh_lib.Shape(data, table)
  devices = mesh_lib.make(shape)
  if config.table.layout == 'column' and config.model.dim % table:
    _LOG.info(
      'columns: %d are filled up to %d, as many on each of %d devices',
      config.model.dim,
      -(-config.model.dim // table) * table,
      table,
    )
  platform = devices.devices.flat[0].platform
  return *config_lib.resolve(config, platform, shape, **fixed), devices


class Trainer(NamedTuple):
  """What trains on data of known counts."""

  trainable: strategy_base.Trainable
  strategy: strategy_base.Strategy

  @property
  def model(self) -> model_base.Model:
    """What is trained."""
    return self.trainable.model


def trainer(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  counts: np.ndarray,
  mesh: jax.sharding.Mesh,
  words: Sequence[str] = (),
  frequencies: np.ndarray | None = None,
  steps: data_base.Steps | None = None,
) -> Trainer:
  """The model, its tables and the strategy that the settings name.

  Args:
    config: checked settings in which all is chosen.
    tuning: the rest of what was chosen.
    counts: [vocab] int, falling, how often each word occurs.
    mesh: of the devices.
    words: [vocab], for models that ask which they are.
    frequencies: [vocab] float64, chance that an example is of each word; None =
      that of a text.
    steps: of the source; None = those of a text.

  Raises:
    UserError: for a vocabulary that the model cannot have.
  """
  m, t = config.model, config.train
  is_sync = config.strategy.name == 'sync' or mesh.size == 1
  if frequencies is None:
    frequencies = loader.center_probabilities(counts, config.data.sample)
  columns = None
  if config.table.layout == 'column' and mesh.shape[mesh_lib.TABLE] > 1:
    columns = wire.Axis(mesh_lib.TABLE, config.table.exchange_dtype)
  spec = model_base.WindowSpec(
    len(counts),
    m.dim,
    m.window,
    m.negatives,
    tuning.chunk,
    m.shared_negatives,
    products.RowOps(columns),
  )
  corpus = model_base.Corpus(words, counts, frequencies)
  model = _model(config, spec, corpus, tuning.shared_nodes)
  # Each replica has tables of its own.
  axes = spec_lib.Axes()
  if is_sync:
    shape = mesh.shape[mesh_lib.DATA], mesh.shape[mesh_lib.TABLE]
    axes = spec_lib.Axes(mesh_lib.DATA, mesh_lib.TABLE, *shape)
  tables = {
    name: _table(
      config, tuning.deduplicates, table, axes, t.batch_words / mesh.size
    )
    for name, table in model.specs().items()
  }
  trainable = strategy_base.Trainable(
    model,
    tables,
    steps
    or windows.Steps(tuning.part_words, tuning.parts, m.window, tuning.chunk),
    tuning.loss_every_steps,
    tuning.steps_per_loop,
    # A loop whose length is not known is slow on an accelerator.
    tuning.steps_per_loop == 1 and (mesh.size == 1 or not is_sync),
  )
  return Trainer(trainable, _strategy(config, tuning, trainable, mesh))


def _model(
  config: ml_collections.ConfigDict,
  spec: model_base.WindowSpec,
  corpus: model_base.Corpus,
  shared_nodes: int,
) -> model_base.Model:
  m, s = config.model, config.senses
  is_tree = m.loss == 'hierarchical_softmax'
  if is_tree and len(corpus.counts) < 2:
    raise errors.UserError(
      'config.model.loss=hierarchical_softmax needs a vocabulary of two words '
      'or more; give more text, or lower --config.data.min_count'
    )
  if m.name == 'mixture':
    if is_tree:
      outputs = hierarchical.tree(corpus, spec.chunk, shared_nodes)
    else:
      outputs = mixture.sampled(spec, corpus)
    mask = sense_rows.ambiguous(config, corpus.keys).mask
    args = spec, corpus, outputs, mask, s.number
    if s.method == 'likelihoods':
      return mixture.make(*args)
    return context_mixture.make(*args, 1 if m.dynamic_window else m.window)
  if is_tree and m.name in ('skipgram', 'cbow'):
    return hierarchical.make(spec, corpus, m.name == 'cbow', shared_nodes)
  loss_of = None if is_tree else member('model.loss', m.loss)
  if loss_of:
    _accepted('model.loss', m.loss, loss_of, ('scores', 'labels'), {})
  return call('model.name', m.name, (spec, corpus, loss_of), {})


def _table(
  config: ml_collections.ConfigDict,
  deduplicates: bool,
  spec: spec_lib.TableSpec,
  axes: spec_lib.Axes,
  device_centers: float,
) -> spec_lib.Table:
  """A table in the layout that the settings name, with its optimizer."""
  o, t, layout = config.optimizer, config.table, config.table.layout
  if spec.momentum is None:
    optimizer = call('optimizer.name', o.name, (), o)
    spec = dataclasses.replace(
      spec,
      dtype=t.dtype,
      rounding=t.rounding,
      exchange_dtype=t.exchange_dtype,
    )
  else:
    optimizer = row_optimizers.averages(
      spec.momentum, o.learning_rate, o.final_learning_rate
    )
    if layout == 'column':
      # Whole on every device of the table axis, all of which see all of it.
      layout, axes = 'replicated', dataclasses.replace(axes, num_table=1)
  available = {
    'spec': spec,
    'optimizer': optimizer,
    'axes': axes,
    'deduplicates': deduplicates,
    'device_centers': device_centers,
  }
  return call('table.layout', layout, (), available)


def _strategy(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  trainable: strategy_base.Trainable,
  mesh: jax.sharding.Mesh,
) -> strategy_base.Strategy:
  s = config.strategy
  if s.name == 'partition':
    return replicas.replicas(trainable, mesh, policies.Never())
  if s.name == 'sync' or mesh.size == 1:
    # Devices that hold other columns of the same rows take the same examples.
    return sync.sync(trainable, mesh, config.table.layout != 'column')
  every_steps = max(1, round(tuning.sync_words / tuning.part_words))
  # Equal loops from one meeting to the next: what is beyond it is padding,
  # which costs as much as a step.
  num_loops = math.ceil(every_steps / trainable.steps_per_loop)
  trainable = dataclasses.replace(
    trainable, steps_per_loop=math.ceil(every_steps / num_loops)
  )
  available = {
    'lookups_per_center': {
      name: spec.lookups_per_center
      for name, spec in trainable.model.specs().items()
    },
    'num_replicas': mesh.size,
    'step_centers': tuning.part_words,
    'every_steps': every_steps,
    'lookups': tuning.sync_lookups,
    'memory_lookups': tuning.memory_lookups,
    'first_learning_rate': config.optimizer.learning_rate,
  }
  policy = call('strategy.policy', s.policy, (), available)
  return replicas.replicas(trainable, mesh, policy)


def parts(
  config: ml_collections.ConfigDict,
  tuning: config_lib.Tuning,
  mesh: jax.sharding.Mesh,
  progress: Callable[[str, int, int], None],
  cache: pathlib.Path,
) -> Parts:
  """Reads the corpus and makes the parts that the settings name.

  `progress` is called now and then with (stage, done, total); `cache` is for
  downloads and encoded texts.

  Raises:
    UserError: for input that cannot be used.
  """
  init_from = os.path.expanduser(config.train.init_from)
  if init_from and not os.path.exists(init_from):  # told before the work
    raise errors.UserError(
      f'config.train.init_from={init_from} does not exist; give a run, a merge '
      "or a word2vec file, or ''"
    )
  eval_paths = [
    os.path.expanduser(x.strip())
    for x in config.eval.paths.split(',')
    if x.strip()
  ]
  is_evaluated = eval_paths != ['none']
  if eval_paths and is_evaluated:
    benchmarks.find(eval_paths)  # a wrong path is reported before the work
  d, m = config.data, config.model
  readers = data_base.ALONE  # any sentence may be a sub-model's
  if config.strategy.name != 'partition':
    readers = data_base.Readers(
      mesh_lib.my_parts(mesh, tuning.parts),
      distributed.process_id(),
      distributed.num_processes(),
      distributed.gather,
    )
  spec = data_base.SourceSpec(
    d.path,
    config.seed,
    config.train.epochs,
    tuning.parts,
    tuning.part_words,
    m.window,
    tuning.chunk,
    1 if m.dynamic_window else m.window,
    d.to_dict(),
    readers,
    cache,
    progress,
  )
  source = call('data.source', d.source, (spec,), {})
  made = trainer(
    config,
    tuning,
    source.counts,
    mesh,
    source.keys,
    source.frequencies,
    source.steps,
  )
  dropped = _describe_senses(config, source.keys)
  if not eval_paths and is_evaluated:
    eval_paths = list(source.eval_paths())
  return Parts(
    source,
    made.trainable,
    made.strategy,
    eval_paths if is_evaluated else [],
    mesh,
    tuning,
    dict(source.dropped) | dropped,
  )


def fingerprints(parts: Parts) -> dict[str, str]:
  """Of what a checkpoint belongs to, named for a message about a change."""
  rows = getattr(parts.trainable.model, 'rows', None)
  return {
    'the data': parts.source.fingerprint,
    'config.senses.words': rows.digest()
    if isinstance(rows, sense_rows.Rows)
    else '',
  }


def _describe_senses(
  config: ml_collections.ConfigDict, words: Sequence[str]
) -> dict[str, int]:
  """Logs which words have several senses; counts those that are missing."""
  s = config.senses
  if config.model.name != 'mixture' or s.number == 1:
    return {}
  ambiguous = sense_rows.ambiguous(config, words)
  line = f'{ambiguous.mask.sum():,} words have {s.number} senses each'
  if not s.words:
    _LOG.info('%s', line)
    return {}
  _LOG.info(
    '%s; %s of the %s in %s are not in the vocabulary',
    line,
    f'{ambiguous.num_unknown:,}',
    f'{ambiguous.num_listed:,}',
    s.words,
  )
  return {'sense_words_out_of_vocabulary': ambiguous.num_unknown}


def check_fits(config: ml_collections.ConfigDict, parts: Parts) -> None:
  """Logs what each device will hold, and refuses what it has no room for.

  Raises:
    UserError: naming the number of devices or hosts that would do.
  """
  strategy = parts.strategy
  state = jax.eval_shape(strategy.init, jax.random.key(0))
  held_bytes = mesh_lib.bytes_per_device(state, strategy.state_sharding)
  vector_bytes = sum(x.vector_bytes for x in state.tables.values())
  _LOG.info(
    'tables: %.1f MB per device (%.1f MB %s vectors of all tables)',
    held_bytes / 1e6,
    vector_bytes / 1e6,
    config.table.dtype,
  )
  whole_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
  devices = list(parts.mesh.devices.flat)
  num_shards = parts.mesh.shape[mesh_lib.TABLE]
  if held_bytes >= whole_bytes:
    num_shards = 1
  resources.check_fits(devices, held_bytes, held_bytes * num_shards)


def new_state(
  config: ml_collections.ConfigDict, parts: Parts, key: jax.Array
) -> Any:
  """The state before training, from `config.train.init_from` if there is one.

  Raises:
    UserError: if what the settings start from cannot be used.
  """
  strategy = parts.strategy
  state = jax.jit(strategy.init, out_shardings=strategy.state_sharding)(key)
  path = os.path.expanduser(config.train.init_from)
  if not path:
    return state
  return warm_start.begin(
    path, parts.trainable, strategy, state, parts.source.keys
  )
