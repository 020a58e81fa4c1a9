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
  'data.source': {'text': 'jaxemb.text.loader:make'},
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

# Of skip-gram, CBOW, and both with hierarchical softmax: measured on 16 M words
# of Wikipedia and on the embedded corpus, at the default batch_words.
_LEARNING_RATES = {
  'sgd': (0.03, 0.2, 0.005, 0.1),
  'adagrad': (0.15, 0.15, 0.1, 0.1),
  'adam': (0.02, 0.02, 0.02, 0.02),
}
EMBEDDED = 'toywiki:'  # config.data.path of an embedded corpus of another size
_ROW_CLASSES = 256  # `tables.row_sharded.NUM_CLASSES`, without importing JAX


@dataclasses.dataclass(frozen=True)
class Setting:
  """One setting, given as `--config.NAME=VALUE`."""

  name: str
  default: bool | int | float | str  # has the type of all values
  help: str
  limits: tuple[float, float] | tuple[()] = ()  # lowest and highest number
  choices: tuple[str, ...] = ()
  only_with: tuple[str, ...] = ()  # a setting, and its values that use this
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


_NEGATIVES = ('model.loss', 'negative_sampling')
_MIXTURE = ('model.name', 'mixture')
_LOW_PRECISION = ('table.dtype', 'bfloat16', 'float16', 'int8')
_SYNC = ('strategy.name', 'sync')
_REPLICAS = ('strategy.name', 'replicas')
_PARTITION = ('strategy.name', 'partition')
_MANY = 2**31 - 2

# fmt: off
SETTINGS = (
  Setting('seed', 1, 'of all random choices', (0, 2**32 - 1)),
  Setting('data.source', 'text', 'kind of data, or module:attribute'),
  Setting('data.path', '', "text: file, folder or glob; 'wikipedia:simple' or "
          "'wikipedia:en' to download; '' or 'toywiki:WORDS' = embedded",
          may_change=True),
  Setting('data.tokens', 'words', 'runs of letters and digits, or as separated '
          'by whitespace', choices=('words', 'whitespace')),
  Setting('data.lowercase', True, 'whether to lowercase the text'),
  Setting('data.counts', '', 'file of `word count` lines, instead of counting'),
  Setting('data.min_count', 5, 'words that are rarer are dropped', (1, _MANY)),
  Setting('data.max_vocab', 1_000_000, 'largest vocabulary; 0 = no limit',
          (0, _MANY)),
  Setting('data.sample', 1e-4, 'subsampling threshold; 0 = off', (0, 1)),

  Setting('model.name', 'skipgram', 'the model, or module:attribute'),
  Setting('model.dim', 100, 'size of a vector', (1, 65_536)),
  Setting('model.window', 5, 'words on each side of a center', (1, 255)),
  Setting('model.dynamic_window', True, 'draw windows from 1 to window'),
  Setting('model.loss', 'negative_sampling', 'the loss, or module:attribute'),
  Setting('model.negatives', 5, 'negatives for each positive', (1, 65_536),
          only_with=_NEGATIVES),
  Setting('model.shared_negatives', 16, 'negatives that the centers of a '
          'matrix product share', (1, 65_536), only_with=_NEGATIVES),

  Setting('senses.number', 5, 'vectors of an ambiguous word', (1, 50),
          only_with=_MIXTURE),
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
  Setting('strategy.sync_every', 0, 'words of a replica between exchanges of '
          'frequent rows; 0 = automatic', (0, 2**20), only_with=_REPLICAS),
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
  Setting('train.checkpoint_every_secs', 300.0, 'time between checkpoints',
          (0, math.inf), may_change=True),
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
    is_group = isinstance(value, Mapping | ml_collections.ConfigDict)
    result |= (
      flat(value, f'{prefix}{key}.') if is_group else {prefix + key: value}
    )
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
  m, s, path = config.model, config.senses, config.data.path
  size = path.removeprefix(EMBEDDED)
  if size != path and not (size.isdecimal() and int(size) >= 20_000):
    raise errors.UserError(
      f'config.data.path={path} must be {EMBEDDED}WORDS, 20000 words or more'
    )
  is_mixture, is_tree = m.name == 'mixture', m.loss == 'hierarchical_softmax'
  if config.train.init_from and (is_tree or is_mixture):
    model = f'name={m.name}' if is_mixture else f'loss={m.loss}'
    raise errors.UserError(
      f'config.train.init_from={config.train.init_from} has one vector per '
      f'word, but config.model.{model} needs other tables; change one of them'
    )
  if is_mixture and s.number > 1 and not (s.top_ratio or s.words):
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
      f'config.strategy.part={s.part} must be 0..{s.num_parts - 1} or -1 = all'
    )
  if s.name == 'partition' and config.mesh.data > num:
    raise errors.UserError(
      f'config.mesh.data={config.mesh.data} is more than the number of '
      f'sub-models to train, {num}; lower it or set 0'
    )


@dataclasses.dataclass(frozen=True)
class Tuning:
  """What follows from devices and settings; every run records it."""

  parts: int  # stretches of the corpus that are read at the same time
  part_words: int  # centers per step of each part
  chunk: int  # centers per matrix product
  shared_nodes: int  # inner nodes next to the root that a chunk shares
  deduplicates: bool  # rows are summed by id before they are written
  loss_every_steps: int  # steps between evaluations of the loss
  steps_per_loop: int  # steps without asking the host whether there are more
  sync_words: float  # of a replica between exchanges of the frequent rows
  sync_lookups: float  # of a row between two exchanges of it
  memory_lookups: float  # after which a row has forgotten the last one


def resolve(
  config: ml_collections.ConfigDict,
  platform: str,
  mesh: tuple[int, int],
  **fixed: Any,
) -> tuple[ml_collections.ConfigDict, Tuning]:
  """Chooses what checked settings leave open, in a copy of them.

  Args:
    config: checked settings.
    platform: of the devices that train, 'cpu' or another.
    mesh: devices along the data and the table axis.
    **fixed: fields of `Tuning` that are not to be chosen.

  Raises:
    UserError: for settings that do not fit the mesh.
  """
  config = config.copy_and_resolve_references()
  o, s, t, table = config.optimizer, config.strategy, config.train, config.table
  config.mesh.data, config.mesh.table = mesh
  on_cpu, is_sync = platform == 'cpu', s.name == 'sync'
  if s.name == 'partition':
    s.rate = s.rate or 1 / s.num_parts
  if not o.learning_rate:
    o.learning_rate = _learning_rate(config)
  # What more replicas learn apart has to meet sooner: measured with two and
  # four (experiments/results/step_notes.md).
  closeness = (2 / math.prod(mesh)) ** 3
  chosen = {
    'parts': 1 if s.name == 'partition' else mesh[0],
    'chunk': 64 if config.model.loss == 'hierarchical_softmax' else 16,
    'shared_nodes': 64,
    # Atomic additions of a GPU are made in another order in every run. Without
    # a sort low-precision rows are summed by a loop, which is slow on a TPU.
    'deduplicates': platform in ('gpu', 'cuda', 'rocm')
    or table.layout == 'row'
    or (table.dtype != 'float32' and not on_cpu),
    'loss_every_steps': 64 if on_cpu else 1,  # logarithms take time on a CPU
    'steps_per_loop': 1 if on_cpu else 16,
    'sync_words': s.sync_every or 16_384 * closeness,
    'sync_lookups': 8 * closeness,
    'memory_lookups': 200.0,
  } | fixed
  multiple = _centers_multiple(config, chosen['parts'], chosen['chunk'])
  if not t.batch_words:
    # Fits a core's cache; or enough for the kernels of an accelerator.
    t.batch_words = -(-(256 if on_cpu else 8192) // multiple) * multiple
  if t.batch_words % multiple:
    raise errors.UserError(
      f'config.train.batch_words={t.batch_words} must be a multiple of '
      f'{multiple}: {chosen["chunk"]} centers for each device and part of the '
      f'corpus; set {-(-t.batch_words // multiple) * multiple}'
    )
  if o.max_duplicates < 0 and o.name not in ('adagrad', 'adam'):
    # Large steps of a small vocabulary diverge with 16.
    o.max_duplicates = 16.0 if t.batch_words < 4096 else 8.0
  # A replica has a step of its own, from its own part of the corpus.
  part_words = t.batch_words // (chosen['parts'] if is_sync else 1)
  return config, Tuning(part_words=part_words, **chosen)


def _learning_rate(config: ml_collections.ConfigDict) -> float:
  name, model = config.optimizer.name, config.model
  if name not in _LEARNING_RATES:
    raise errors.UserError(
      f'config.optimizer.name={name} has no usual learning rate; set '
      '--config.optimizer.learning_rate'
    )
  is_tree = model.loss == 'hierarchical_softmax'
  return _LEARNING_RATES[name][2 * is_tree + (model.name == 'cbow')]


def _centers_multiple(
  config: ml_collections.ConfigDict, parts: int, chunk: int
) -> int:
  """What the centers of a step are a multiple of, on the mesh."""
  data, table = config.mesh.data, config.mesh.table
  if config.strategy.name != 'sync':
    return chunk  # of each replica or sub-model
  if config.table.layout == 'row' and _ROW_CLASSES % table:
    raise errors.UserError(
      f'config.mesh.table={table} must divide {_ROW_CLASSES} with '
      'config.table.layout=row'
    )
  # Devices of the table axis deal parts to each other, then split them.
  splits = 1 if config.table.layout == 'column' else table
  return chunk * parts * (splits // math.gcd(splits, parts // data))
