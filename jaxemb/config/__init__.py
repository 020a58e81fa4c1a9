"""Settings: defaults, checks, and what is chosen where they leave it open.

settings.toml declares each once. A config file starts from `default()` and
changes some; the command line sets single values (`--config.model.dim=300`). No
setting is accepted and then ignored: `check` refuses it instead.
"""

import dataclasses
import difflib
import math
import pathlib
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import ml_collections

from jaxemb import errors

# What names in the settings stand for; `module:attribute` is a user's own.
MEMBERS = {
  'data.source': {
    'text': 'jaxemb.text.loader:make',
    'clicks': 'jaxemb.clicks.loader:make',
    'interactions': 'jaxemb.interactions.loader:Interactions',
    'item_sets': 'jaxemb.interactions.loader:ItemSets',
    'nodes': 'jaxemb.graphs.nodes:make',
    'graph': 'jaxemb.graphs.loader:Walks',
    'edges': 'jaxemb.graphs.edges:Edges',
  },
  'model.name': {
    'skipgram': 'jaxemb.models.skipgram:make',
    'cbow': 'jaxemb.models.cbow:make',
    'mixture': 'jaxemb.senses.mixture:make',
    'logistic': 'jaxemb.clicks.models:logistic',
    'fm': 'jaxemb.clicks.models:fm',
    'wide_deep': 'jaxemb.clicks.models:wide_deep',
    'deepfm': 'jaxemb.clicks.models:deepfm',
    'dcn': 'jaxemb.clicks.models:dcn',
    'dcn_v2': 'jaxemb.clicks.models:dcn_v2',
    'dlrm': 'jaxemb.clicks.models:dlrm',
    'factorization': 'jaxemb.interactions.factorization:make',
    'graphsage': 'jaxemb.graphs.graphsage:make',
    'line': 'jaxemb.graphs.edge_models:line',
    'relations': 'jaxemb.graphs.edge_models:relations',
  },
  'model.loss': {
    'negative_sampling': 'jaxemb.ops.sampling:logistic_loss',
    'hierarchical_softmax': 'jaxemb.models.hierarchical:make',
    'bpr': 'jaxemb.interactions.factorization:bpr',
    'softmax': 'jaxemb.interactions.factorization:softmax',
    'margin': 'jaxemb.graphs.edge_models:margin',
    'logistic': 'jaxemb.graphs.edge_models:logistic',
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
    'adagrad_full': 'jaxemb.tables.row_optimizers:adagrad_full',
    'adam_full': 'jaxemb.tables.row_optimizers:adam_full',
  },
  'strategy.policy': {
    'bounded': 'jaxemb.strategies.policies:bounded',
    'average': 'jaxemb.strategies.policies:average',
    'hot': 'jaxemb.strategies.policies:hot',
  },
}

# Replicas that meet in every step are one model, and those that never meet are
# sub-models: policies that are strategies.
_POLICY_STRATEGIES = {'bsp': 'sync', 'never': 'partition'}

# Of skip-gram, CBOW, and both with hierarchical softmax: measured on 16 M words
# of Wikipedia and on the embedded corpus, at the default batch_words.
_LEARNING_RATES = {
  'sgd': (0.03, 0.2, 0.005, 0.1),
  'adagrad': (0.15, 0.15, 0.1, 0.1),
  'adam': (0.02, 0.02, 0.02, 0.02),
  'adagrad_full': (0.05, 0.05, 0.05, 0.05),
  'adam_full': (0.005, 0.005, 0.005, 0.005),
}
# Of models with dense parameters, which learn by the mean over examples.
_DENSE_LEARNING_RATES = {
  'sgd': 1.0,
  'adagrad': 0.02,
  'adam': 0.001,
  'adagrad_full': 0.02,
  'adam_full': 0.001,
}
_DENSE = 'clicks', 'nodes'  # sources of models with dense parameters
_PAIRS = 'interactions', 'edges'
_MOST_TOY_ROWS = 100_000_000  # which are made in memory
_SYNC_PARTS = 8  # of the corpus, whatever the mesh
_OF_EXAMPLES = _DENSE + _PAIRS  # whose steps are counted in examples
CLICK_MODELS = tuple(
  k for k, x in MEMBERS['model.name'].items() if 'clicks.models:' in x
)
# Of steps that a kernel takes, which learn from every chunk at once.
_FUSED_LEARNING_RATES = {
  'sgd': (0.04, 0.2, 0.03, 0.1),
  'adagrad': (0.15, 0.15, 0.1, 0.1),
}


# With more, too much is learned at once of what others do not know yet
# (experiments/cores.py).
MAX_THREADS = 64


@dataclasses.dataclass(frozen=True)
class Setting:
  """One setting, given as `--config.NAME=VALUE`."""

  name: str
  default: bool | int | float | str  # has the type of all values
  help: str
  values: Sequence[float] | Sequence[str] = ()  # the limits, or all
  only_with: str = ''  # 'OTHER=A|B', a setting and its values that use this one
  may_change: bool = False  # when a run is resumed
  most_used: bool = False  # --help shows these first

  @property
  def choices(self) -> tuple:
    """The names to choose from, or the lowest and the highest number."""
    return (*self.values, *MEMBERS.get(self.name, ()))

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
        why += f', at most {high:,}' * (high < math.inf)
    if why:
      raise errors.UserError(f'config.{self.name}={value!r} {why}')


_TABLE = pathlib.Path(__file__).with_name('settings.toml').read_text('utf-8')
SETTINGS = tuple(Setting(k, **x) for k, x in tomllib.loads(_TABLE).items())


def default() -> ml_collections.ConfigDict:
  """All settings at their defaults: skip-gram as word2vec users know it."""
  groups: dict[str, Any] = {}
  for setting in SETTINGS:
    group, _, key = setting.name.rpartition('.')
    (groups.setdefault(group, {}) if group else groups)[key] = setting.default
  return ml_collections.ConfigDict(groups)


def flat(config: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Nested settings as one dict with dotted names."""
  result = {}
  for key, value in config.items():
    name = f'{prefix}{key}'
    is_group = isinstance(value, Mapping | ml_collections.ConfigDict)
    result |= flat(value, f'{name}.') if is_group else {name: value}
  return result


def find(name: str) -> Setting:
  """The setting of a name, or a `UserError` that suggests the nearest one."""
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
  policy, name = given['strategy.policy'], given['strategy.name']
  if strategy := _POLICY_STRATEGIES.get(policy):
    if name not in ('replicas', strategy):
      raise errors.UserError(
        f'config.strategy.policy={policy} is config.strategy.name={strategy}, '
        f'not {name}; remove one of them'
      )
    if given['strategy.sync_every']:
      raise errors.UserError(
        f'config.strategy.sync_every={given["strategy.sync_every"]} is not '
        f'used when config.strategy.policy is {policy}; remove it'
      )
    given['strategy.policy'] = find('strategy.policy').default
    given['strategy.name'] = strategy
    parts = find('strategy.num_parts').default
    if policy == 'never' and given['strategy.num_parts'] == parts:
      given['strategy.num_parts'] = given['mesh.data'] or parts
  if name == 'workers' and given['table.store'] not in ('', 'remote'):
    raise errors.UserError(
      f'config.table.store={given["table.store"]} is of one process, and '
      'workers share their tables; remove it'
    )
  if name == 'workers':
    given['table.store'] = 'remote'
  if given['table.device_bytes'] and not given['table.store']:
    given['table.store'] = 'memory'
  for x in SETTINGS:
    value, (other, _, users) = given[x.name], x.only_with.partition('=')
    if not other or value == x.default or ':' in given[other]:
      continue  # what members of the user's own read is not known
    if given[other] not in (users := users.split('|')):
      fitting = (k for k in users if _fits(given['data.source'], other, k))
      change = ''.join(f' or set --config.{other}={k}' for k in [*fitting][:1])
      raise errors.UserError(
        f'config.{x.name}={value} is only used when config.{other} is '
        f'{" or ".join(users)}; remove it{change}'
      )
  checked = default()
  checked.update_from_flattened_dict(given)
  for message in _conflicts(checked):
    raise errors.UserError(message)
  return checked


def _fits(source: str, name: str, value: str) -> bool:
  """Whether a source can have a value of a setting, whatever else it needs."""
  config = default()
  config.update_from_flattened_dict({'data.source': source, name: value})
  return name not in dict(_unfit(config))


def room_bytes(text: str, whole_bytes: int) -> int:
  """Bytes as users write them, such as 64MB, or 10% of some.

  Raises a `UserError`.
  """
  found = re.fullmatch(r'(\d+(?:\.\d*)?) *([kKMGT]?i?[bB]?|%)', text.strip())
  if not found or not float(found[1]):
    raise errors.UserError(
      f'config.table.device_bytes={text} is no size; give one such as 64MB, or '
      '10%'
    )
  if found[2] == '%':
    return round(whole_bytes * float(found[1]) / 100)
  power = ' KMGT'.index((found[2].upper() + ' ')[0].replace('B', ' '))
  return round(float(found[1]) * (1024 if 'i' in text else 1000) ** power)


# What data of other kinds do not use, beyond `only_with`.
_OF_TEXT = (
  'data.tokens',
  'data.encoding',
  'data.lowercase',
  'data.counts',
  'data.max_vocab',
  'data.sample',
  'model.window',
  'model.dynamic_window',
  'model.negatives',
  'model.shared_negatives',
  'optimizer.max_duplicates',
  'train.init_from',
  'train.batch_words',
  'train.threads',
  'eval.paths',
  'eval.restrict_vocab',
)


def _dense_conflicts(config: ml_collections.ConfigDict) -> Iterator[str]:
  """What is wrong between settings of models with dense parameters."""
  if config.optimizer.rows == 'all':
    if config.table.layout == 'row' or config.table.store:
      yield (
        'config.optimizer.rows=all needs all rows on each device; remove it, '
        'or config.table.layout=row and config.table.store'
      )


def _click_conflicts(config: ml_collections.ConfigDict) -> Iterator[str]:
  """What is wrong between settings of clicks."""
  path = config.data.path
  size = path.removeprefix('toyclicks:')
  is_size = size.isdecimal() and 1000 <= int(size) <= _MOST_TOY_ROWS
  if size != path and not is_size:
    yield (
      f'config.data.path={path} must be toyclicks:ROWS, 1000 rows or more and '
      f'at most {_MOST_TOY_ROWS:,}'
    )
  yield from _unused(config, _OF_TEXT)
  yield from _dense_conflicts(config)
  if config.eval.monitor == 'score':
    yield 'config.eval.monitor=score is of nodes; give auc or log_loss'
  for key in ('hidden', 'lower_hidden'):
    sizes(f'model.{key}', config.model[key])


def _node_conflicts(config: ml_collections.ConfigDict) -> Iterator[str]:
  """What is wrong between settings of nodes."""
  m = config.model
  used = {'optimizer.max_duplicates'}
  if config.data.targets == 'walks':
    used |= {'model.window', 'model.negatives'}
  elif m.temperature:
    yield (
      f'config.model.temperature={m.temperature} is only used when '
      'config.data.targets is walks; remove it'
    )
  yield from _unused(config, _OF_TEXT, used)
  if config.eval.monitor == 'auc':
    yield 'config.eval.monitor=auc is of clicks; give score or log_loss'
  yield from _dense_conflicts(config)
  if m.inputs == 'features':
    for key in ('layout', 'dtype', 'store'):
      value = config.table[key]
      if value != find(f'table.{key}').default:
        yield (
          f'config.table.{key}={value} needs a table, and nodes have none; set '
          '--config.model.inputs=rows or both'
        )
    if config.strategy.name == 'replicas':
      yield (
        'config.strategy.name=replicas exchanges rows, and nodes have none; '
        'set --config.model.inputs=rows or both, or '
        '--config.strategy.name=sync'
      )
  sizes('model.hidden', m.hidden)


def smaller(config: ml_collections.ConfigDict) -> tuple[str, str]:
  """What to do where tables have no room; and what a step is counted in."""
  unit = 'examples' if config.data.source in _OF_EXAMPLES else 'words'
  others = {
    'clicks': ' or raise --config.data.min_count',
    'text': ' or --config.data.max_vocab',
  }
  more = others.get(config.data.source, '')
  return f'lower --config.model.dim{more}', unit


# What sets of items have of text: windows over them, and what these need.
_OF_WINDOWS = (
  'data.sample',
  'model.window',
  'model.dynamic_window',
  'model.negatives',
  'train.batch_words',
  'train.threads',
)
_OF_FACTORS = 'model.shared_negatives', 'optimizer.max_duplicates'

_NOT_OF_WALKS = (
  'data.tokens',
  'data.lowercase',
  'data.counts',
  'data.min_count',
  'data.max_vocab',
  'eval.paths',
  'eval.restrict_vocab',
)


def _unused(
  config: ml_collections.ConfigDict,
  keys: Iterable[str],
  used: Collection[str] = (),
) -> Iterator[str]:
  """Settings that the source does not use, of `keys` but for those used."""
  given, source = flat(config), config.data.source
  for key in keys:
    if key not in used and given[key] != find(key).default:
      yield f'config.{key}={given[key]} is not used with {source}; remove it'


def _interaction_conflicts(config: ml_collections.ConfigDict) -> Iterator[str]:
  """What is wrong between settings of users and items."""
  is_pairs = config.data.source == 'interactions'
  used = _OF_FACTORS + (() if is_pairs else _OF_WINDOWS)
  yield from _unused(config, _OF_TEXT, used)


def _edge_conflicts(config: ml_collections.ConfigDict) -> Iterator[str]:
  """What is wrong between settings of edges of a graph."""
  used = _OF_FACTORS + ('model.negatives',)
  yield from _unused(config, _OF_TEXT + _NOT_OF_WALKS, used)


def _graph_conflicts(config: ml_collections.ConfigDict) -> Iterator[str]:
  """What is wrong between settings of walks over a graph."""
  yield from _unused(config, _NOT_OF_WALKS)


def sizes(name: str, text: str) -> tuple[int, ...]:
  """Positive integers separated by commas, or a `UserError`."""
  found = [x.strip() for x in text.split(',') if x.strip()]
  if not all(x.isdecimal() and int(x) for x in found):
    raise errors.UserError(
      f'config.{name}={text} must be positive numbers separated by commas'
    )
  return tuple(map(int, found))


_OF_SOURCES = {
  'clicks': _click_conflicts,
  'graph': _graph_conflicts,
  'edges': _edge_conflicts,
  'interactions': _interaction_conflicts,
  'item_sets': _interaction_conflicts,
  'nodes': _node_conflicts,
}
# What sub-models and workers, or sub-models alone, do not do.
_UNDIVIDED = {
  **dict.fromkeys(_DENSE, 'train models with dense parameters'),
  'interactions': 'divide users',
  'item_sets': 'divide users',
  'edges': 'divide edges',
}


def _unfit(config: ml_collections.ConfigDict) -> Iterator[tuple[str, str]]:
  """Values that the source cannot have, whatever else is set.

  By the names of their settings, what is to be said of each.
  """
  source, strategy = config.data.source, config.strategy.name
  model, loss = config.model.name, config.model.loss
  is_own = ':' in model
  if source == 'clicks':
    if model not in CLICK_MODELS and not is_own:
      known = ', '.join(CLICK_MODELS)
      yield 'model.name', f'is no model of clicks; choose one of {known}'
  elif model in CLICK_MODELS:
    yield (
      'model.name',
      'is a model of clicks; set --config.data.source=clicks, or start from '
      '--config=ctr',
    )
  if source == 'edges':
    losses = {
      'line': ('negative_sampling',),
      'relations': ('softmax', 'margin', 'logistic'),
    }
    if model not in losses and not is_own:
      yield (
        'model.name',
        'does not learn from edges; choose line or relations, or start from '
        '--config=graph:relations',
      )
    names = losses.get(model, (loss,))
    if ':' not in loss and loss not in names:
      choice = ' or '.join(names)
      yield 'model.loss', f'is no loss of {model}; choose {choice}'
  elif model in ('line', 'relations') and ':' not in source:
    yield (
      'model.name',
      'is a model of edges; set --config.data.source=edges, or start from '
      f'--config=graph:{model}',
    )
  if source in ('interactions', 'item_sets'):
    is_pairs = source == 'interactions'
    models = ('factorization',) if is_pairs else ('skipgram', 'cbow')
    losses = ('bpr', 'softmax') if is_pairs else ('negative_sampling',)
    for key, name, names in ('name', model, models), ('loss', loss, losses):
      if name not in names and ':' not in name:
        yield (
          f'model.{key}',
          f'does not learn from config.data.source={source}; choose '
          f'{" or ".join(names)}, or start from --config=rec',
        )
  elif ':' not in source and source != 'edges':
    if model == 'factorization' or loss in ('bpr', 'softmax'):
      yield (
        'model.name' if model == 'factorization' else 'model.loss',
        'is of users and items; set --config.data.source=interactions, or '
        'start from --config=rec',
      )
  if source == 'nodes':
    if model != 'graphsage' and not is_own:
      yield (
        'model.name',
        'does not learn from nodes; set --config.model.name=graphsage, or '
        'start from --config=graphsage',
      )
  elif model == 'graphsage':
    yield (
      'model.name',
      'is a model of nodes; set --config.data.source=nodes, or start from '
      '--config=graphsage',
    )
  undivided = ('partition',) if source in _DENSE else ('partition', 'workers')
  if source in _UNDIVIDED and strategy in undivided:
    what = _UNDIVIDED[source]
    yield 'strategy.name', f'does not {what}; choose sync or replicas'


def _conflicts(config: ml_collections.ConfigDict) -> Iterator[str]:
  """What is wrong between settings, beyond `only_with`."""
  m, s, path = config.model, config.senses, config.data.path
  size = path.removeprefix('toywiki:')
  if size != path and not (size.isdecimal() and int(size) >= 20_000):
    yield f'config.data.path={path} must be toywiki:WORDS, 20000 words or more'
  try:
    ''.encode(config.data.encoding)
  except LookupError as error:
    yield f'config.data.encoding: {error}; give one such as cp1252 or gb18030'
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
  for name, what in _unfit(config):
    yield f'config.{name}={flat(config)[name]} {what}'
  if of_source := _OF_SOURCES.get(config.data.source):
    yield from of_source(config)
  s, mesh = config.strategy, config.mesh
  table = config.table
  if table.store:
    wanted = '--config.table.store and --config.table.device_bytes'
    if s.name == 'partition' or max(mesh.data, mesh.table) > 1:
      yield (
        'tables in a store are trained on one device, without sub-models; '
        f'remove {wanted}, or the other settings of devices'
      )
    if table.layout != 'replicated':
      yield (
        f'config.table.layout={table.layout} splits tables over devices, and '
        f'a store is used by one; remove it, or {wanted}'
      )
  if table.device_bytes:
    room_bytes(table.device_bytes, 0)
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
  """What devices and settings lead to; every run records it."""

  parts: int  # stretches of the corpus that are read at the same time
  part_words: int  # centers per step of each part
  chunk: int  # centers per matrix product
  shared_nodes: int  # inner nodes next to the root that a chunk shares
  deduplicates: bool  # rows are summed by id before they are written
  loss_every_steps: int  # steps between evaluations of the loss
  steps_per_loop: int  # steps without asking the host whether there are more
  fused: bool  # a kernel takes the steps, in place of XLA's operations
  threads: int  # of each kernel, which share its tables
  row_threads: int  # of a kernel that updates rows; 0 = XLA does
  tokens_once: bool  # not once for each window that a step has them in
  row_copies: bool  # a TPU's kernels read and write rows
  row_sums: bool  # a GPU's kernels multiply rows, sum those of an id, update
  sync_words: float  # of a replica between exchanges of the frequent rows
  rest_words: float  # and, with the policy hot, between those of the others
  sync_lookups: float  # of a row between two exchanges of it
  memory_lookups: float  # after which a row has forgotten the last one


def _num_parts(
  config: ml_collections.ConfigDict, num_data: int, chunk: int
) -> int:
  """How many parts of the corpus are read side by side.

  Synchronous steps take as many centers of each part. Their number depends on
  the settings, not on the mesh, so that every mesh takes the same steps; only
  a data axis that does not divide `_SYNC_PARTS` needs more. Sub-models and
  replicas have parts of their own, as have workers in lockstep; other workers
  take turns at the parts, and later there may be more workers.
  """
  s = config.strategy
  if s.name == 'workers':
    return s.num_workers * (1 if s.pace == 'bsp' else 4)
  if s.name == 'partition':
    return 1
  if s.name != 'sync' or config.data.source in _OF_EXAMPLES:
    return num_data  # a step of examples is the same, however it is cut
  num_chunks = config.train.batch_words // chunk  # 0 = not chosen
  return math.lcm(math.gcd(_SYNC_PARTS, num_chunks), num_data)


def _has_kernels(
  config: ml_collections.ConfigDict, platform: str, mesh: tuple[int, int]
) -> bool:
  """Whether kernels can change the tables at all."""
  return (
    config.train.fused
    and platform == 'cpu'
    and config.table.layout == 'replicated'
    and (config.strategy.name != 'sync' or math.prod(mesh) == 1)
  )


def can_fuse(
  config: ml_collections.ConfigDict, platform: str, mesh: tuple[int, int]
) -> bool:
  """Whether `native.step` has a kernel for what checked settings name."""
  m, t = config.model, config.table
  return (
    _has_kernels(config, platform, mesh)
    and m.name in ('skipgram', 'cbow')
    and m.loss in MEMBERS['model.loss']
    and t.dtype in ('float32', 'bfloat16')
    and config.optimizer.name in _FUSED_LEARNING_RATES
    # Nodes of a tree are compiled into the kernel as they are numbered.
    and not (t.store and m.loss == 'hierarchical_softmax')
  )


def _updates_by_kernel(
  config: ml_collections.ConfigDict, platform: str, mesh: tuple[int, int]
) -> bool:
  """Whether `native.updates` has a kernel for the rows of checked settings."""
  source, optimizer = config.data.source, config.optimizer.name
  is_full = optimizer in ('adagrad_full', 'adam_full')
  return (
    _has_kernels(config, platform, mesh)
    and (
      (source in _DENSE and is_full)
      or (source == 'edges' and (is_full or optimizer == 'adagrad'))
    )
    and config.table.dtype == 'float32'
    and config.optimizer.rows == 'looked_up'
  )


def resolve(
  config: ml_collections.ConfigDict,
  platform: str,
  mesh: tuple[int, int],
  cores: int = 1,
  **fixed: Any,
) -> tuple[ml_collections.ConfigDict, Tuning]:
  """Chooses what checked settings leave open, in a copy of them.

  `platform` is that of the devices, 'cpu' or another; `mesh` how many there are
  along the data and the table axis; `cores` those that each has for itself;
  `fixed` are given fields of `Tuning`. Raises a `UserError` for settings that
  do not fit the mesh.
  """
  config = config.copy_and_resolve_references()
  o, s, t, table = config.optimizer, config.strategy, config.train, config.table
  config.mesh.data, config.mesh.table = num_data, num_table = mesh
  on_cpu, is_sync = platform == 'cpu', s.name == 'sync'
  is_partition = s.name == 'partition'
  is_tree = config.model.loss == 'hierarchical_softmax'
  has_kernel = can_fuse(config, platform, mesh)
  may_fuse = fixed.pop('fused', True)
  fused = may_fuse and has_kernel
  has_row_kernel = may_fuse and _updates_by_kernel(config, platform, mesh)
  if is_partition:
    s.rate = s.rate or 1 / s.num_parts
  is_workers, is_lockstep = s.name == 'workers', s.pace == 'bsp'
  fused = fused and not (is_workers and is_lockstep)
  num_replicas = s.num_workers if is_workers else math.prod(mesh)
  source = config.data.source
  is_dense, is_pairs = source in _DENSE, source in _PAIRS
  is_walks = source == 'nodes' and config.data.targets == 'walks'
  if is_dense or is_pairs:
    t.batch_words = t.batch_words or t.batch_examples
  if is_dense:
    o.learning_rate = o.learning_rate or _DENSE_LEARNING_RATES.get(o.name, 0.0)
    o.max_duplicates = max(o.max_duplicates, 0.0)
  if o.name != 'sgd':
    o.epsilon = o.epsilon or (1e-8 if is_dense else 1e-6)
  if not o.learning_rate:
    if o.name not in _LEARNING_RATES:
      raise errors.UserError(
        f'config.optimizer.name={o.name} has no usual learning rate; set '
        '--config.optimizer.learning_rate'
      )
    rates = (_FUSED_LEARNING_RATES if fused else _LEARNING_RATES)[o.name]
    o.learning_rate = rates[2 * is_tree + (config.model.name == 'cbow')]
    is_skipgram = config.model.name == 'skipgram' and not is_tree
    if s.name == 'replicas' and s.policy in ('average', 'hot') and is_skipgram:
      # Of what each learns a mean keeps a part. More diverges.
      o.learning_rate *= min(num_replicas, 3) if o.name == 'sgd' else 1
  if o.final_learning_rate == find('optimizer.final_learning_rate').default:
    o.final_learning_rate = min(o.final_learning_rate, o.learning_rate)
  if o.final_learning_rate > o.learning_rate:
    raise errors.UserError(
      f'config.optimizer.final_learning_rate={o.final_learning_rate:g} is '
      f'above config.optimizer.learning_rate={o.learning_rate:g}, from which '
      'it falls; lower the first or raise the second'
    )
  is_alone = math.prod(mesh) == 1 and not is_partition and not is_workers
  if t.threads > 1 and not (has_kernel and not (is_workers and is_lockstep)):
    raise errors.UserError(
      f'config.train.threads={t.threads} is only used where a kernel takes the '
      'steps (docs/devices.md); remove it'
    )
  # A sub-model has the same bits wherever it is trained.
  is_one = is_partition or is_workers
  threads = t.threads or (1 if is_one else min(cores, MAX_THREADS))
  if table.store:
    # More would have to hold back at rows that they all look up, by their ids.
    threads = min(threads, 16)
  # Many replicas that add up what they learned overshoot: they have to exchange
  # it sooner, and to average it sooner. Measured with two, four and eight
  # (experiments/results/step_notes.md).
  is_pair = num_replicas <= 2 and not is_workers
  if s.policy == 'hot':
    sync_words = s.hot_every or 131_072
    rest_words = s.sync_every or 16 * sync_words
  else:
    usual_words = 32_768 if is_pair else max(8192 // num_replicas, 16)
    if s.policy == 'average':
      usual_words = 262_144
    if is_workers:
      usual_words = 1 if is_lockstep else 8192
    rest_words = sync_words = s.sync_every or usual_words
  if rest_words < sync_words:
    raise errors.UserError(
      f'config.strategy.sync_every={rest_words} is less than the '
      f'{sync_words} words between exchanges of frequent rows; raise it, or '
      'lower --config.strategy.hot_every'
    )
  chunk = 64 if is_tree or is_pairs or is_walks else 1 if is_dense else 16
  if source == 'edges':
    chunk = config.model.chunk
  chosen = {
    'parts': 1 if is_sync and fused else _num_parts(config, num_data, chunk),
    'chunk': chunk,
    'shared_nodes': 64,
    # A GPU's atomic additions come in another order in every run. A TPU would
    # move an array of the size of the vocabulary in every step to count with,
    # and sums rows of low precision by a loop, which is slow there.
    'deduplicates': not on_cpu or table.layout == 'row',
    'loss_every_steps': 64 if on_cpu else 1,  # logarithms take time on a CPU
    'steps_per_loop': 1 if on_cpu else 16,
    'fused': fused,
    'threads': threads if fused else 1,
    'row_threads': has_row_kernel * (1 if is_one else min(cores, MAX_THREADS)),
    # A TPU has a price for each row.
    'tokens_once': platform == 'tpu',
    'row_copies': may_fuse and t.fused and platform == 'tpu',
    'row_sums': may_fuse and t.fused and platform == 'gpu',
    'sync_words': sync_words,
    'rest_words': rest_words,
    'sync_lookups': 8.0 if is_pair else 2 / num_replicas,
    'memory_lookups': 200.0 if is_pair else 100 / num_replicas,
  } | fixed
  if is_dense and is_workers:
    # Each is one of those whose mean a step learns from.
    chosen['memory_lookups'] *= t.batch_words
  if is_workers and is_lockstep and chosen['parts'] != s.num_workers:
    raise errors.UserError(
      f'the text was cut for {chosen["parts"]} workers in lockstep; resume '
      'with '
      f'--config.strategy.num_workers={chosen["parts"]}'
    )
  multiple, parts = chosen['chunk'], chosen['parts']  # of each replica or model
  if s.name == 'replicas':
    multiple *= num_table  # which share parts
  if is_workers and is_lockstep:
    multiple *= parts  # a step of all
  if is_sync:
    # Devices of the table axis deal parts to each other, then split them.
    splits = 1 if table.layout == 'column' else num_table
    multiple *= parts * (splits // math.gcd(splits, parts // num_data))
  if not t.batch_words:
    # Fits a core's cache; or enough for the kernels of an accelerator; or, as
    # a kernel learns from every chunk, few calls, between which replicas meet.
    usual = 256 if on_cpu else 8192
    if fused:
      usual = 16_384 if is_alone else 2048
      # What threads are at is the farther apart in the text.
      usual = max(usual, 1024 * chosen['threads'])
    if table.store:
      usual = min(usual, max(4096, 1024 * chosen['threads']))
    if is_workers and is_lockstep:
      usual *= parts
    is_apart = s.name == 'replicas' or (is_workers and not is_lockstep)
    if on_cpu and is_apart and not is_alone:
      usual = min(usual, sync_words)
    t.batch_words = -(-usual // multiple) * multiple
  if t.batch_words % multiple and s.name == 'replicas' and num_table > 1:
    raise errors.UserError(
      f'a step of {t.batch_words} centers, as the run was begun, cannot be '
      f'divided among {num_table} replicas in chunks of {chosen["chunk"]}; '
      'give another number, --config.mesh.data'
    )
  if t.batch_words % multiple:
    key, what = ('words', 'centers')
    if is_dense or is_pairs:
      key = what = 'examples'
    raise errors.UserError(
      f'config.train.batch_{key}={t.batch_words} must be a multiple of '
      f'{multiple}: {chosen["chunk"]} {what} for each device and part of the '
      f'data; set {-(-t.batch_words // multiple) * multiple}'
    )
  if o.max_duplicates < 0 and o.name not in ('adagrad', 'adam'):
    # Large steps of a small vocabulary diverge with 16; a chunk needs no limit.
    limit = 16.0 if t.batch_words < 4096 else 8.0
    o.max_duplicates = 0.0 if fused else limit
    if config.data.source == 'graph' and (fused or t.batch_words < 4096):
      # Walks come back to a node, also within a chunk, and those in a pair of
      # nodes go nowhere else: more diverges on such graphs.
      o.max_duplicates = 2.0
  # A replica has a step of its own, from its own part of the corpus.
  is_divided = is_sync or (is_workers and is_lockstep)
  part_words = t.batch_words // (parts if is_divided else 1)
  return config, Tuning(part_words=part_words, **chosen)
