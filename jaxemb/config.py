"""Every setting: name, default, meaning, and the values it accepts.

`SETTINGS` declares each once; defaults, help, checks and what a resumed run may
change are read from it. A config file starts from `default()` and sets what it
is about; the command line sets single values (`--config.model.dim=300`). No
setting is accepted and then ignored: `check` refuses it instead.
"""

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import ml_collections

from jaxemb import errors

# What names in the settings stand for. A setting may name a member of the
# user's own in the same way, as `module:attribute`.
MEMBERS = {
  'data.source': {'text': 'jaxemb.text.loader:TextSource'},
  'model.name': {
    'skipgram': 'jaxemb.models.skipgram:make',
    'cbow': 'jaxemb.models.cbow:make',
    'mixture': 'jaxemb.senses.mixture:make',
  },
  'model.loss': {
    'negative_sampling': 'jaxemb.ops.losses:logistic_loss',
    'hierarchical_softmax': 'jaxemb.models.hierarchical:make',
  },
  'table.layout': {
    'replicated': 'jaxemb.tables.replicated:Replicated',
    'row': 'jaxemb.tables.row_sharded:make',
    'column': 'jaxemb.tables.replicated:by_columns',
  },
  'optimizer.name': {
    'sgd': 'jaxemb.tables.row_optimizers:sgd',
    'adagrad': 'jaxemb.tables.row_optimizers:adagrad',
    'adam': 'jaxemb.tables.row_optimizers:adam',
  },
  'strategy.policy': {'bounded': 'jaxemb.strategies.policies:bounded'},
}

# By optimizer, loss and whether the model is CBOW: measured on 16 M words of
# Wikipedia and on the embedded corpus, at the default batch_words.
_LEARNING_RATES = {
  ('sgd', 'negative_sampling'): (0.03, 0.2),
  ('adagrad', 'negative_sampling'): (0.15, 0.15),
  ('adam', 'negative_sampling'): (0.02, 0.02),
  ('sgd', 'hierarchical_softmax'): (0.005, 0.1),
  ('adagrad', 'hierarchical_softmax'): (0.1, 0.1),
  ('adam', 'hierarchical_softmax'): (0.02, 0.02),
}
# Centers per matrix product.
_CHUNKS = {'negative_sampling': 16, 'hierarchical_softmax': 64}
_ROW_CLASSES = 256  # `tables.row_sharded.NUM_CLASSES`, without importing JAX


@dataclasses.dataclass(frozen=True)
class Setting:
  """One setting, given as `--config.NAME=VALUE`."""

  name: str
  default: bool | int | float | str  # has the type of all values
  help: str
  limits: tuple[float, float] | tuple[()] = ()  # lowest and highest number
  choices: tuple[str, ...] = ()
  # Another setting, and the values of it that use this one.
  only_with: tuple[str, ...] = ()
  may_change: bool = False  # when a run is resumed

  def check(self, value: Any) -> None:
    """Raises a `UserError` unless the setting may have this value."""
    name, kind = f'config.{self.name}', type(self.default)
    if type(value) is not kind and not (kind is float and type(value) is int):
      raise errors.UserError(
        f'{name}={value!r} must be of type {kind.__name__}'
      )
    choices = self.choices or tuple(MEMBERS.get(self.name, ()))
    is_own = self.name in MEMBERS and ':' in value
    if choices and value not in choices and not is_own:
      raise errors.UserError(
        f'{name}={value!r} is not available; choose '
        + ' or '.join(map(repr, choices))
      )
    # A NaN is outside.
    if self.limits and not self.limits[0] <= value <= self.limits[1]:
      low, high = self.limits
      bounds = f'at least {low:,}' + f', at most {high:,}' * (high < math.inf)
      raise errors.UserError(f'{name}={value} must be {bounds}')

  def check_use(self, config: Mapping[str, Any]) -> None:
    """Raises a `UserError` if flat settings set it where nothing reads it."""
    other, *values = self.only_with or ('',)
    value = config[self.name]
    if not other or value == self.default or ':' in config[other]:
      return  # what members of the user's own read is not known
    if config[other] not in values:
      raise errors.UserError(
        f'config.{self.name}={value} is only used when config.{other} is '
        f'{" or ".join(values)}; remove it or set --config.{other}={values[0]}'
      )

  def describe(self) -> str:
    """Returns a line of help."""
    choices = self.choices or MEMBERS.get(self.name, ())
    notes = [', '.join(choices)] if choices else []
    if self.limits:
      low, high = self.limits
      is_open = high > 10**6
      notes = [f'from {low:,}' if is_open else f'{low:,} to {high:,}']
    if self.only_with:
      other, *values = self.only_with
      notes.append(f'only with {other}={"|".join(values)}')
    default = repr('') if self.default == '' else self.default
    line = f'  {f"{self.name}={default}":<36} {self.help}'
    return line + (f' ({"; ".join(notes)})' if notes else '')


_NEGATIVES = ('model.loss', 'negative_sampling')
_MIXTURE = ('model.name', 'mixture')
_LOW_PRECISION = ('table.dtype', 'bfloat16', 'float16', 'int8')
_SYNC = ('strategy.name', 'sync')
_REPLICAS = ('strategy.name', 'replicas')
_PARTITION = ('strategy.name', 'partition')
_MANY = 2**31 - 2

# fmt: off
SETTINGS = (
  Setting('seed', 1, 'of all random choices: the same seed, the same vectors',
          (0, 2**32 - 1)),

  Setting('data.source', 'text', 'kind of data, or module:attribute'),
  Setting('data.path', '', "text: file, folder or glob; 'wikipedia:simple' or "
          "'wikipedia:en' to download; '' = the embedded corpus",
          may_change=True),
  Setting('data.cache', '', 'temporary', may_change=True),
  Setting('data.embedded_words', 2_000_000, 'temporary', (20_000, 10**10)),
  Setting('data.tokens', 'words', 'runs of letters and digits, or as separated '
          'by whitespace', choices=('words', 'whitespace')),
  Setting('data.lowercase', True, 'whether to lowercase the text'),
  Setting('data.counts', '', 'file of `word count` lines, instead of counting'),
  Setting('data.min_count', 5, 'words that are rarer are dropped', (1, _MANY)),
  Setting('data.max_vocab', 1_000_000, 'largest vocabulary; 0 = no limit',
          (0, _MANY)),
  Setting('data.sample', 1e-4, 'threshold of frequent-word subsampling; '
          '0 = off', (0, 1)),
  Setting('data.parts', 0, 'temporary', (0, 2**20)),

  Setting('model.name', 'skipgram', 'the model, or module:attribute'),
  Setting('model.dim', 100, 'size of a vector', (1, 65_536)),
  Setting('model.window', 5, 'words on each side of a center', (1, 255)),
  Setting('model.shortest_window', 1, 'temporary', (1, 255)),
  Setting('model.loss', 'negative_sampling', 'the loss, or module:attribute'),
  Setting('model.negatives', 5, 'negatives for each positive', (1, 65_536),
          only_with=_NEGATIVES),
  Setting('model.shared_negatives', 16, 'negatives that the centers of a '
          'matrix product share', (1, 65_536), only_with=_NEGATIVES),
  Setting('model.chunk', 0, 'temporary', (0, 4096)),
  Setting('model.shared_nodes', 64, 'temporary', (1, 4096),
          only_with=('model.loss', 'hierarchical_softmax')),

  Setting('senses.number', 5, 'vectors of an ambiguous word', (1, 50),
          only_with=_MIXTURE),
  Setting('senses.top_n', 0, 'temporary', (0, _MANY), only_with=_MIXTURE),
  Setting('senses.top_ratio', 0.0, 'most frequent fraction of the vocabulary '
          'to treat as ambiguous', (0, 1), only_with=_MIXTURE),
  Setting('senses.words', '', 'file of more ambiguous words, one per line',
          only_with=_MIXTURE),
  Setting('senses.method', 'contexts', 'soft k-means of context vectors, as '
          'MSSG, or EM of likelihoods, as Tian et al. 2014',
          choices=('contexts', 'likelihoods'), only_with=_MIXTURE),
  Setting('senses.query_window', 0, 'words on each side that disambiguate a '
          'query; 0 = window (contexts: twice)', (0, _MANY),
          only_with=_MIXTURE, may_change=True),

  Setting('table.layout', 'replicated', 'how mesh.table splits tables, or '
          'module:attribute', only_with=_SYNC),
  Setting('table.dtype', 'float32', 'storage of rows; all is computed in '
          'float32', choices=('float32', 'bfloat16', 'float16', 'int8')),
  Setting('table.rounding', 'stochastic', 'right on average, or to the nearest',
          choices=('stochastic', 'nearest'), only_with=_LOW_PRECISION),
  Setting('table.exchange_dtype', 'float32', 'of rows and gradients between '
          'devices', choices=('float32', 'bfloat16'),
          only_with=(*_REPLICAS, 'sync')),
  Setting('table.duplicates', '', 'temporary', may_change=True,
          choices=('', 'scatter', 'merge')),

  Setting('optimizer.name', 'sgd', 'row-wise optimizer, or module:attribute'),
  Setting('optimizer.learning_rate', 0.0, 'at first; 0 = what suits optimizer '
          'and model', (0, 10**6)),
  Setting('optimizer.final_learning_rate', 1e-4, 'in the end, after linear '
          'decay', (0, 10**6)),
  Setting('optimizer.max_duplicates', -1.0, 'occurrences of a row that count '
          'in a step; 0 = all, -1 = what suits batch_words', (-1, math.inf)),
  Setting('optimizer.beta1', 0.9, 'decay of the mean of gradients',
          (0, 0.99999), only_with=('optimizer.name', 'adam')),
  Setting('optimizer.beta2', 0.999, 'decay of the mean of squares',
          (0.001, 0.999999), only_with=('optimizer.name', 'adam')),
  Setting('optimizer.epsilon', 1e-6, 'added to the denominator',
          (1e-30, math.inf), only_with=('optimizer.name', 'adagrad', 'adam')),

  Setting('strategy.name', 'replicas', 'tables on each device that exchange '
          'rows, one table for all devices, or sub-models merged in the end',
          choices=('replicas', 'sync', 'partition')),
  Setting('strategy.policy', 'bounded', 'when replicas exchange rows, or '
          'module:attribute', only_with=_REPLICAS),
  Setting('strategy.exchange_words', 0, 'temporary', (0, 2**20),
          only_with=_REPLICAS),
  Setting('strategy.exchange_lookups', 0.0, 'temporary', (0, 64),
          only_with=_REPLICAS),
  Setting('strategy.memory_lookups', 200.0, 'temporary', (1e-6, math.inf),
          only_with=_REPLICAS),
  Setting('strategy.num_parts', 10, 'sub-models', (1, 10_000),
          only_with=_PARTITION),
  Setting('strategy.rate', 0.0, 'fraction of the sentences for each; '
          '0 = 1/num_parts', (0, 1), only_with=_PARTITION),
  Setting('strategy.divide', 'shuffle', 'sentences drawn in every epoch, drawn '
          'once, or a stretch of the text for each',
          choices=('shuffle', 'sampling', 'equal'), only_with=_PARTITION),
  Setting('strategy.part', -1, 'the only one to train, from 0, in '
          'workdir/parts; -1 = all, then merge', (-1, 9_999),
          only_with=_PARTITION, may_change=True),
  Setting('strategy.per_device', 1, 'temporary', (1, 10_000),
          only_with=_PARTITION, may_change=True),
  Setting('strategy.min_seen', 1, 'temporary', (1, _MANY),
          only_with=_PARTITION),
  Setting('strategy.merge', 'alir', 'how to merge them',
          choices=('alir', 'pca', 'concat', 'none'), only_with=_PARTITION,
          may_change=True),

  Setting('mesh.data', 0, 'devices along the corpus; 0 = two cores of a CPU, '
          'else one device', (0, 4096), may_change=True),
  Setting('mesh.table', 0, 'devices along the tables; 0 = all where '
          'table.layout splits them, else one', (0, 4096), may_change=True),

  Setting('train.epochs', 5, 'passes over the text', (1, 10**6)),
  Setting('train.init_from', '', 'run, merge or word2vec file with the first '
          "vectors; '' = random"),
  Setting('train.batch_words', 0, 'centers per step; 0 = 256 on a CPU, else '
          '8192', (0, 2**24)),
  Setting('train.loss_every_steps', 0, 'temporary', (0, _MANY),
          may_change=True),
  Setting('train.steps_per_loop', 0, 'temporary', (0, 4096), may_change=True),
  Setting('train.checkpoint_every_secs', 300.0, 'time between checkpoints',
          (0, math.inf), may_change=True),
  Setting('train.checkpoints_to_keep', 3, 'temporary', (1, _MANY),
          may_change=True),
  Setting('train.log_every_secs', 2.0, 'time between lines of metrics',
          (0, math.inf), may_change=True),

  Setting('eval.paths', '', 'benchmark files or folders, separated by commas; '
          "'none' = no evaluation; '' = those of the embedded corpus",
          may_change=True),
  Setting('eval.every_epochs', 0.0, 'epochs between evaluations while '
          'training; 0 = only at the end', (0, math.inf), may_change=True),
  Setting('eval.restrict_vocab', 300_000, 'most frequent words that count; '
          '0 = all', (0, _MANY), may_change=True),
)
# fmt: on


def default() -> ml_collections.ConfigDict:
  """Returns all settings: skip-gram as word2vec users know it."""
  config = ml_collections.ConfigDict()
  for setting in SETTINGS:
    group, _, key = setting.name.rpartition('.')
    if group and group not in config:
      config[group] = ml_collections.ConfigDict()
    (config[group] if group else config)[key] = setting.default
  return config


def flat(config: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Returns nested settings as one dict with dotted names."""
  result = {}
  for key, value in config.items():
    name = f'{prefix}{key}'
    if isinstance(value, Mapping | ml_collections.ConfigDict):
      result |= flat(value, f'{name}.')
    else:
      result[name] = value
  return result


def check_key(name: str) -> None:
  """Raises a `UserError` that names the nearest setting if there is none."""
  names = [x.name for x in SETTINGS]
  if name in names:
    return
  nearest = difflib.get_close_matches(name, names, 1, 0.5)
  tails = [x for x in names if x.split('.')[-1] == name.split('.')[-1]]
  hint = (tails or nearest or ['model.dim'])[0]
  raise errors.UserError(
    f'there is no setting config.{name}; did you mean --config.{hint}?'
  )


def check_keys(given: Iterable[str]) -> None:
  """Raises a `UserError` unless these are the names of all settings."""
  for name in given:
    check_key(name)
  for setting in SETTINGS:
    if setting.name not in given:
      raise errors.UserError(
        f'config.{setting.name} is missing; start the config from '
        'jaxemb.config.default()'
      )


def check(config: ml_collections.ConfigDict) -> None:
  """Raises a `UserError` for the first setting that cannot be honoured."""
  given = flat(config)
  check_keys(given)
  for setting in SETTINGS:
    setting.check(given[setting.name])
  for setting in SETTINGS:
    setting.check_use(given)
  _check_together(config)


def _check_together(config: ml_collections.ConfigDict) -> None:
  """Checks what concerns several settings and is not `only_with`."""
  m, s, words = config.model, config.senses, config.train.batch_words
  if words % _chunk(config):
    raise errors.UserError(
      f'config.train.batch_words={words} must be a multiple of {_chunk(config)}'
    )
  is_mixture, is_tree = m.name == 'mixture', m.loss == 'hierarchical_softmax'
  if config.train.init_from and (is_tree or is_mixture):
    model = f'name={m.name}' if is_mixture else f'loss={m.loss}'
    raise errors.UserError(
      f'config.train.init_from={config.train.init_from} has one vector per '
      f'word, but config.model.{model} needs other tables as well; remove it '
      'or choose another model'
    )
  if is_mixture and s.number > 1 and not (s.top_n or s.top_ratio or s.words):
    raise errors.UserError(
      f'config.model.name=mixture with config.senses.number={s.number} has no '
      'ambiguous words; set --config.senses.top_ratio or .words, or '
      '--config.senses.number=1'
    )
  if config.mesh.table > 1 and config.strategy.name != 'sync':
    raise errors.UserError(
      f'config.mesh.table={config.mesh.table} is only used when '
      'config.strategy.name is sync; set --config.mesh.data instead, or '
      '--config.strategy.name=sync'
    )
  s = config.strategy
  num = s.num_parts if s.part < 0 else 1
  if s.part >= s.num_parts:
    raise errors.UserError(
      f'config.strategy.part={s.part} must be 0..{s.num_parts - 1} with '
      f'config.strategy.num_parts={s.num_parts}, or -1 for all'
    )
  if s.name == 'partition' and config.mesh.data > num:
    raise errors.UserError(
      f'config.mesh.data={config.mesh.data} is more than the number of '
      f'sub-models to train, {num}; lower it or set 0'
    )


def resolved(
  config: ml_collections.ConfigDict, platform: str, mesh: tuple[int, int]
) -> ml_collections.ConfigDict:
  """A copy in which what was left to choose is chosen.

  Args:
    config: checked settings.
    platform: of the devices that train, 'cpu' or another.
    mesh: devices along the data and the table axis.

  Raises:
    UserError: for settings that do not fit the mesh.
  """
  config = config.copy_and_resolve_references()
  o, t = config.optimizer, config.train
  config.mesh.data, config.mesh.table = mesh
  s = config.strategy
  if s.name == 'partition':
    s.rate = s.rate or 1 / s.num_parts
    config.data.parts = 1
  config.data.parts = config.data.parts or config.mesh.data
  if not o.learning_rate:
    is_cbow = config.model.name == 'cbow'
    loss = config.model.loss
    if loss not in ('negative_sampling', 'hierarchical_softmax'):
      loss = 'negative_sampling'
    if (o.name, loss) not in _LEARNING_RATES:
      raise errors.UserError(
        f'config.optimizer.name={o.name} has no usual learning rate; give '
        '--config.optimizer.learning_rate'
      )
    o.learning_rate = _LEARNING_RATES[o.name, loss][is_cbow]
  config.model.chunk = _chunk(config)
  on_cpu = platform == 'cpu'
  if not config.table.duplicates:
    # Atomic additions of a GPU are made in another order in every run.
    # Without a sort rows of few bits are summed by a loop, nothing for a TPU.
    is_merging = platform in ('gpu', 'cuda', 'rocm') or (
      config.table.layout == 'row'
      or (config.table.dtype != 'float32' and not on_cpu)
    )
    config.table.duplicates = 'merge' if is_merging else 'scatter'
  if not t.loss_every_steps:
    t.loss_every_steps = 64 if on_cpu else 1
  if not t.steps_per_loop:
    t.steps_per_loop = 1 if on_cpu else 16
  multiple = _centers_multiple(config)
  if not t.batch_words:
    # Fits a core's cache; or enough for the kernels of an accelerator.
    wanted = 256 if on_cpu else 8192
    t.batch_words = -(-wanted // multiple) * multiple
  if t.batch_words % multiple:
    raise errors.UserError(
      f'config.train.batch_words={t.batch_words} must be a multiple of '
      f'{multiple}: config.model.chunk={config.model.chunk} centers for each '
      'device and part of the corpus; give '
      f'{-(-t.batch_words // multiple) * multiple}'
    )
  if o.max_duplicates < 0:
    # Large steps of a small vocabulary diverge with 16.
    o.max_duplicates = 16.0 if t.batch_words < 4096 else 8.0
  return config


def _chunk(config: ml_collections.ConfigDict) -> int:
  return config.model.chunk or _CHUNKS.get(config.model.loss, 16)


def _centers_multiple(config: ml_collections.ConfigDict) -> int:
  """What the centers of a step are a multiple of, on the mesh.

  Raises:
    UserError: for parts or a layout that do not fit the mesh.
  """
  data, table = config.mesh.data, config.mesh.table
  parts, chunk = config.data.parts, config.model.chunk
  if config.strategy.name == 'replicas':
    if parts != data:
      raise errors.UserError(
        f'config.data.parts={parts} must be the number of replicas, '
        f'config.mesh.data={data}; give 0'
      )
    return chunk
  if config.strategy.name == 'partition':
    return chunk  # of each sub-model
  if parts % data:
    raise errors.UserError(
      f'config.data.parts={parts} cannot be dealt to config.mesh.data={data} '
      'devices alike; give a mesh that divides it, or another --workdir'
    )
  if config.table.layout == 'row' and _ROW_CLASSES % table:
    raise errors.UserError(
      f'config.mesh.table={table} must divide {_ROW_CLASSES} with '
      "config.table.layout='row'"
    )
  # Devices of the table axis deal parts to each other, then split them.
  splits = 1 if config.table.layout == 'column' else table
  return chunk * parts * (splits // math.gcd(splits, parts // data))
