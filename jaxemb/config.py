"""Every setting: name, default, meaning, and the values it accepts.

`SETTINGS` declares each once; defaults, help, checks and what a resumed run may
change are read from it. A config file starts from `default()` and sets what it
is about; the command line sets single values (`--config.model.dim=300`). No
setting is accepted and then ignored: `check` refuses it instead.
"""

import dataclasses
import difflib
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
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
    'column': 'jaxemb.tables.replicated:SplitColumns',
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
# What may differ when a run is resumed, or how its names begin.
_MAY_CHANGE = (
  'data.path', 'senses.query_window', 'strategy.part', 'strategy.merge',
  'mesh.', 'train.checkpoint_every_secs', 'train.log_every_secs', 'eval.',
)  # fmt: skip
_MANY, _INF = 2**31 - 2, math.inf


@dataclasses.dataclass(frozen=True)
class Setting:
  """One setting, given as `--config.NAME=VALUE`."""

  name: str
  default: bool | int | float | str  # has the type of all values
  help: str
  values: tuple[float, float] | tuple[str, ...] = ()  # the limits, or all
  only_with: str = ''  # 'OTHER=A|B', a setting and its values that use this one

  @property
  def choices(self) -> tuple:
    """The names to choose from, or the lowest and the highest number."""
    return (*self.values, *MEMBERS.get(self.name, ()))

  @property
  def may_change(self) -> bool:
    """Whether it may differ when a run is resumed."""
    return self.name.startswith(_MAY_CHANGE)

  def check(self, value: Any) -> None:
    """Raises a `UserError` unless the setting may have this value."""
    kind, choices, why = type(self.default), self.choices, ''
    if type(value) is not kind and (type(value), kind) != (int, float):
      why = f'must be of type {kind.__name__}'
    elif kind is str and choices and value not in choices:
      if self.name not in MEMBERS or ':' not in value:
        why = f'is not available; choose {" or ".join(map(repr, choices))}'
    elif kind in (int, float):
      low, high = choices
      if not low <= value <= high:  # also a NaN
        why = f'must be at least {low:,}'
        why += f', at most {high:,}' * (high < _INF)
    if why:
      raise errors.UserError(f'config.{self.name}={value!r} {why}')


_NEGATIVES = 'model.loss=negative_sampling'
_MIXTURE = 'model.name=mixture'
_REPLICAS = 'strategy.name=replicas'
_PARTITION = 'strategy.name=partition'

# fmt: off
SETTINGS = (
  Setting('seed', 1, 'of all random choices', (0, 2**32 - 1)),
  Setting('data.source', 'text', 'kind of data'),
  Setting('data.path', '', "text: file, folder or glob; 'wikipedia:simple' or "
          "'wikipedia:en' to download; '' or 'toywiki:WORDS' = embedded"),
  Setting('data.tokens', 'words', 'runs of letters and digits, or as separated '
          'by whitespace', ('words', 'whitespace')),
  Setting('data.lowercase', True, 'whether to lowercase the text'),
  Setting('data.counts', '', 'file of `word count` lines, instead of counting'),
  Setting('data.min_count', 5, 'words that are rarer are dropped', (1, _MANY)),
  Setting('data.max_vocab', 10**6, 'largest vocabulary; 0 = any', (0, _MANY)),
  Setting('data.sample', 1e-4, 'subsampling threshold; 0 = off', (0, 1)),

  Setting('model.name', 'skipgram', 'the model'),
  Setting('model.dim', 100, 'size of a vector', (1, 65_536)),
  Setting('model.window', 5, 'words on each side of a center', (1, 255)),
  Setting('model.dynamic_window', True, 'draw windows from 1 to window'),
  Setting('model.loss', 'negative_sampling', 'the loss'),
  Setting('model.negatives', 5, 'for each positive', (1, 65_536), _NEGATIVES),
  Setting('model.shared_negatives', 16, 'negatives that the centers of a '
          'matrix product share', (1, 65_536), _NEGATIVES),

  Setting('senses.number', 5, 'of an ambiguous word', (1, 50), _MIXTURE),
  Setting('senses.top_ratio', 0.0, 'most frequent fraction of the vocabulary '
          'to treat as ambiguous', (0, 1), _MIXTURE),
  Setting('senses.words', '', 'file of more, one per line', (), _MIXTURE),
  Setting('senses.method', 'contexts', 'soft k-means of context vectors, as '
          'MSSG, or EM of likelihoods, as Tian et al. 2014',
          ('contexts', 'likelihoods'), _MIXTURE),
  Setting('senses.query_window', 0, 'words on each side that disambiguate a '
          'query; 0 = window (contexts: twice)', (0, _MANY), _MIXTURE),

  Setting('table.layout', 'replicated', 'how mesh.table splits tables', (),
          'strategy.name=sync'),
  Setting('table.dtype', 'float32', 'storage of rows; all is computed in '
          'float32', ('float32', 'bfloat16', 'float16', 'int8')),
  Setting('table.rounding', 'stochastic', 'right on average, or to the nearest',
          ('stochastic', 'nearest'), 'table.dtype=bfloat16|float16|int8'),
  Setting('table.exchange_dtype', 'float32', 'of rows and gradients between '
          'devices', ('float32', 'bfloat16'), 'strategy.name=replicas|sync'),

  Setting('optimizer.name', 'sgd', 'row-wise optimizer'),
  Setting('optimizer.learning_rate', 0.0, 'at first, with linear decay; '
          '0 = what suits optimizer and model', (0, 10**6)),
  Setting('optimizer.final_learning_rate', 1e-4, 'in the end', (0, 10**6)),
  Setting('optimizer.max_duplicates', -1.0, 'occurrences of a row that count '
          'in a step; 0 = all, -1 = what suits batch_words', (-1, _INF)),
  Setting('optimizer.beta1', 0.9, 'decay of the mean of gradients',
          (0, 0.99999), 'optimizer.name=adam'),
  Setting('optimizer.beta2', 0.999, 'decay of the mean of squares',
          (0.001, 0.999999), 'optimizer.name=adam'),
  Setting('optimizer.epsilon', 1e-6, 'added to the denominator', (1e-30, _INF),
          'optimizer.name=adagrad|adam'),

  Setting('strategy.name', 'replicas', 'tables on each device that exchange '
          'rows, one table for all devices, or sub-models merged in the end',
          ('replicas', 'sync', 'partition')),
  Setting('strategy.policy', 'bounded', 'when to exchange rows', (), _REPLICAS),
  Setting('strategy.sync_every', 0, 'words of a replica between exchanges of '
          'frequent rows; 0 = automatic', (0, 2**20), _REPLICAS),
  Setting('strategy.num_parts', 10, 'sub-models', (1, 10_000), _PARTITION),
  Setting('strategy.rate', 0.0, 'fraction of the sentences for each; '
          '0 = 1/num_parts', (0, 1), _PARTITION),
  Setting('strategy.divide', 'shuffle', 'sentences drawn in every epoch, drawn '
          'once, or a stretch of the text for each',
          ('shuffle', 'sampling', 'equal'), _PARTITION),
  Setting('strategy.part', -1, 'the only one to train, from 0, in '
          'workdir/parts; -1 = all, then merge', (-1, 9_999), _PARTITION),
  Setting('strategy.merge', 'alir', 'how to merge them',
          ('alir', 'pca', 'concat', 'none'), _PARTITION),

  Setting('mesh.data', 0, 'devices along the corpus; 0 = two cores of a CPU, '
          'else one device', (0, 4096)),
  Setting('mesh.table', 0, 'devices along the tables; 0 = all where '
          'table.layout splits them, else one', (0, 4096)),

  Setting('train.epochs', 5, 'passes over the text', (1, 10**6)),
  Setting('train.init_from', '', 'run, merge or word2vec file with the first '
          "vectors; '' = random"),
  Setting('train.batch_words', 0, 'centers per step; 0 = 256 on a CPU, else '
          '8192', (0, 2**24)),
  Setting('train.checkpoint_every_secs', 300.0, 'save so often', (0, _INF)),
  Setting('train.log_every_secs', 2.0, 'write metrics so often', (0, _INF)),

  Setting('eval.paths', '', 'benchmark files or folders, separated by commas; '
          "'none' = no evaluation; '' = those of the embedded corpus"),
  Setting('eval.every_epochs', 0.0, 'epochs between evaluations while '
          'training; 0 = only at the end', (0, _INF)),
  Setting('eval.restrict_vocab', 300_000, 'most frequent; 0 = all', (0, _MANY)),
)
# fmt: on


def default() -> ml_collections.ConfigDict:
  """Returns all settings: skip-gram as word2vec users know it."""
  groups: dict[str, Any] = {}
  for setting in SETTINGS:
    group, _, key = setting.name.rpartition('.')
    (groups.setdefault(group, {}) if group else groups)[key] = setting.default
  return ml_collections.ConfigDict(groups)


def flat(config: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Returns nested settings as one dict with dotted names."""
  result = {}
  for key, value in config.items():
    is_group = isinstance(value, Mapping | ml_collections.ConfigDict)
    result |= (
      flat(value, f'{prefix}{key}.') if is_group else {prefix + key: value}
    )
  return result


def find(name: str) -> Setting:
  """The setting of a name; raises a `UserError` with the nearest if none is."""
  settings = {x.name: x for x in SETTINGS}
  if name not in settings:
    tails = [x for x in settings if x.split('.')[-1] == name.split('.')[-1]]
    near = tails or difflib.get_close_matches(name, settings, 1, 0.5)
    raise errors.UserError(
      f'there is no setting config.{name}; did you mean '
      f'--config.{(near or ["model.dim"])[0]}?'
    )
  return settings[name]


def check(
  config: Mapping[str, Any], values: Mapping[str, Any] = MappingProxyType({})
) -> ml_collections.ConfigDict:
  """A copy of the settings, with values set by dotted name.

  Raises a `UserError` for the first setting that cannot be honoured.
  """
  given = flat(config) | dict(values)
  for name, value in given.items():
    find(name).check(value)
  for x in SETTINGS:
    if x.name not in given:
      raise errors.UserError(
        f'config.{x.name} is missing; start the config from '
        'jaxemb.config.default()'
      )
  for x in SETTINGS:
    value, (other, _, users) = given[x.name], x.only_with.partition('=')
    if not other or value == x.default or ':' in given[other]:
      continue  # what members of the user's own read is not known
    if given[other] not in (users := users.split('|')):
      raise errors.UserError(
        f'config.{x.name}={value} is only used when config.{other} is '
        f'{" or ".join(users)}; remove it or set --config.{other}={users[0]}'
      )
  checked = default()
  checked.update_from_flattened_dict(given)
  for message in _conflicts(checked):
    raise errors.UserError(message)
  return checked


def _conflicts(config: ml_collections.ConfigDict) -> Iterator[str]:
  """What concerns several settings and is not `only_with`."""
  m, s, path = config.model, config.senses, config.data.path
  size = path.removeprefix('toywiki:')
  if size != path and not (size.isdecimal() and int(size) >= 20_000):
    yield f'config.data.path={path} must be toywiki:WORDS, 20000 words or more'
  is_mixture, is_tree = m.name == 'mixture', m.loss == 'hierarchical_softmax'
  if config.train.init_from and (is_tree or is_mixture):
    model = f'name={m.name}' if is_mixture else f'loss={m.loss}'
    yield (
      f'config.train.init_from={config.train.init_from} has one vector per '
      f'word, but config.model.{model} needs other tables; change one of them'
    )
  if is_mixture and s.number > 1 and not (s.top_ratio or s.words):
    yield (
      f'config.model.name=mixture with config.senses.number={s.number} has no '
      'ambiguous words; set --config.senses.top_ratio or .words, or '
      '--config.senses.number=1'
    )
  s, mesh = config.strategy, config.mesh
  if mesh.table > 1 and s.name != 'sync':
    yield (
      f'config.mesh.table={mesh.table} is only used when config.strategy.name '
      'is sync; set --config.mesh.data instead, or --config.strategy.name=sync'
    )
  if s.part >= s.num_parts:
    yield (
      f'config.strategy.part={s.part} must be 0..{s.num_parts - 1} or -1 = all'
    )
  num = s.num_parts if s.part < 0 else 1
  if s.name == 'partition' and mesh.data > num:
    yield (
      f'config.mesh.data={mesh.data} is more than the number of sub-models to '
      f'train, {num}; lower it or set 0'
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

  `platform` is that of the devices that train, 'cpu' or another; `mesh` how
  many of them lie along the data and the table axis; `fixed` are fields of
  `Tuning` that are not to be chosen. Raises a `UserError` for settings that do
  not fit the mesh.
  """
  config = config.copy_and_resolve_references()
  o, s, t, table = config.optimizer, config.strategy, config.train, config.table
  config.mesh.data, config.mesh.table = num_data, num_table = mesh
  on_cpu, is_sync = platform == 'cpu', s.name == 'sync'
  is_tree = config.model.loss == 'hierarchical_softmax'
  if s.name == 'partition':
    s.rate = s.rate or 1 / s.num_parts
  if not o.learning_rate:
    if o.name not in _LEARNING_RATES:
      raise errors.UserError(
        f'config.optimizer.name={o.name} has no usual learning rate; set '
        '--config.optimizer.learning_rate'
      )
    rates = _LEARNING_RATES[o.name]
    o.learning_rate = rates[2 * is_tree + (config.model.name == 'cbow')]
  # What more replicas learn apart has to meet sooner: measured with two and
  # four (experiments/results/step_notes.md).
  closeness = (2 / math.prod(mesh)) ** 3
  chosen = {
    'parts': 1 if s.name == 'partition' else num_data,
    'chunk': 64 if is_tree else 16,
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
  multiple, parts = chosen['chunk'], chosen['parts']  # of each replica or model
  if is_sync:
    # Devices of the table axis deal parts to each other, then split them.
    splits = 1 if table.layout == 'column' else num_table
    multiple *= parts * (splits // math.gcd(splits, parts // num_data))
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
  part_words = t.batch_words // (parts if is_sync else 1)
  return config, Tuning(part_words=part_words, **chosen)
