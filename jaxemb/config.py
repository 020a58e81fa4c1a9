"""Every setting, its default and what it may be.

A file in configs/ starts from `default()` and changes what it is about; the
command line changes single keys (`--config.model.dim=300`). `check` refuses
what training could not honour, so that no setting is accepted and ignored.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from jaxemb import combinations, errors

# Of `tables.row_sharded`, which this module must not import.
_ROW_CLASSES = 256

# What names in the settings stand for, as `module:attribute`. A setting may
# name a member of the user's own in the same way.
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

_CHOICES = {key: tuple(names) for key, names in MEMBERS.items()} | {
  'data.tokens': ('words', 'whitespace'),
  'senses.method': ('contexts', 'likelihoods'),
  'table.dtype': ('float32', 'bfloat16', 'float16', 'int8'),
  'table.rounding': ('stochastic', 'nearest'),
  'table.exchange_dtype': ('float32', 'bfloat16'),
  'table.duplicates': ('', 'scatter', 'merge'),
  'strategy.name': ('replicas', 'sync', 'partition'),
  'strategy.divide': ('shuffle', 'sampling', 'equal'),
  'strategy.merge': ('alir', 'pca', 'concat', 'none'),
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

# Lowest and highest value that is meant; None = no bound.
_RANGES = {
  'seed': (0, 2**32 - 1),
  'data.embedded_words': (20_000, 10**10),
  'data.min_count': (1, 2**31 - 1),
  'data.max_vocab': (0, 2**31 - 2),
  'data.sample': (0, 1),
  'data.parts': (0, 2**20),
  'model.dim': (1, 65_536),
  'model.window': (1, 255),
  'model.shortest_window': (1, 255),
  'model.negatives': (1, 65_536),
  'model.chunk': (0, 4096),
  'model.shared_negatives': (1, 65_536),
  'model.shared_nodes': (1, 4096),
  'senses.number': (1, 50),
  'senses.top_n': (0, None),
  'senses.top_ratio': (0, 1),
  'senses.query_window': (0, None),
  'optimizer.learning_rate': (0, 10**6),
  'optimizer.final_learning_rate': (0, 10**6),
  'optimizer.max_duplicates': (-1, None),
  'optimizer.beta1': (0, 0.99999),
  'optimizer.beta2': (0.001, 0.999999),
  'optimizer.epsilon': (1e-30, None),
  'strategy.exchange_words': (0, 2**20),
  'strategy.exchange_lookups': (0, 64),
  'strategy.memory_lookups': (1e-6, None),
  'strategy.num_parts': (1, 10_000),
  'strategy.rate': (0, 1),
  'strategy.part': (-1, 9_999),
  'strategy.per_device': (1, 10_000),
  'strategy.min_seen': (1, None),
  'train.epochs': (1, 10**6),
  'train.batch_words': (0, 2**24),
  'train.loss_every_steps': (0, 2**31 - 1),
  'train.steps_per_loop': (0, 4096),
  'train.checkpoint_every_secs': (0, None),
  'train.checkpoints_to_keep': (1, None),
  'train.log_every_secs': (0, None),
  'mesh.data': (0, 4096),
  'mesh.table': (0, 4096),
  'eval.restrict_vocab': (0, None),
  'eval.every_epochs': (0, None),
}


def default() -> ml_collections.ConfigDict:
  """All settings: skip-gram as word2vec users know it."""
  c = ml_collections.ConfigDict()
  c.seed = 1  # of every random choice; the same seed gives the same vectors

  c.data = ml_collections.ConfigDict()
  c.data.source = 'text'  # or module:attribute of your own
  c.data.path = ''  # '' = the embedded corpus, 'wikipedia:simple' or
  # 'wikipedia:en' = downloaded, else a file, folder or glob
  c.data.cache = ''  # '' = $JAXEMB_CACHE, or jaxemb in the user's cache folder
  c.data.embedded_words = 2_000_000  # size of the embedded corpus
  c.data.tokens = 'words'  # runs of letters and digits; or 'whitespace'
  c.data.lowercase = True
  c.data.counts = ''  # file of `word count` lines to use instead of counting
  c.data.min_count = 5  # rarer words are left out
  c.data.max_vocab = 1_000_000  # at most so many words; 0 = no limit
  c.data.sample = 1e-4  # threshold of frequent-word subsampling; 0 = off
  c.data.parts = 0  # that are read side by side, of which each device of
  # mesh.data has as many; 0 = one each

  c.model = ml_collections.ConfigDict()
  c.model.name = 'skipgram'  # or 'cbow', 'mixture'
  c.model.dim = 100
  c.model.window = 5  # at most; drawn for every center
  c.model.shortest_window = 1  # at least; as large as window: no draw
  c.model.negatives = 5  # per positive
  c.model.loss = 'negative_sampling'  # or 'hierarchical_softmax'
  c.model.chunk = 0  # centers per matrix product; 0 = what suits the loss
  c.model.shared_negatives = 16  # draws that the centers of a chunk share
  c.model.shared_nodes = 64  # hierarchical softmax: inner nodes next to the
  # root that the centers of a chunk share

  c.senses = ml_collections.ConfigDict()  # of model.name = 'mixture'
  c.senses.number = 5  # vectors of each ambiguous word; these are the union of
  c.senses.top_n = 0  # the most frequent words,
  c.senses.top_ratio = 0.0  # the most frequent fraction of the vocabulary, and
  c.senses.words = ''  # the words of a file, one a line
  c.senses.method = 'contexts'  # soft k-means of context vectors (as MSSG); or
  # 'likelihoods', the EM of Tian et al. 2014
  c.senses.query_window = 0  # known words on each side that disambiguate a word
  # of a query; 0 = model.window, with 'contexts' twice that

  c.table = ml_collections.ConfigDict()
  c.table.layout = 'replicated'  # every device holds all rows; 'row' = each of
  # mesh.table holds a share of the rows, 'column' = a share of every row
  c.table.dtype = 'float32'  # that rows are kept in; 'bfloat16', 'float16', or
  # 'int8' with a scale for each row. All is computed in float32
  c.table.rounding = 'stochastic'  # up or down at random, right on average; or
  # 'nearest', which loses small updates
  c.table.exchange_dtype = 'float32'  # that rows and gradients travel in from
  # device to device, or 'bfloat16'; they are summed in float32
  c.table.duplicates = ''  # rows that a step has more than once: 'merge' =
  # sorted and written once; 'scatter' = written as often, of few bits summed
  # unsorted; '' = what suits the device

  _add_training(c)

  c.eval = ml_collections.ConfigDict()
  c.eval.paths = ''  # files or folders with commas between; '' = the sets that
  # come with the embedded corpus, 'none' = no evaluation
  c.eval.every_epochs = 0.0  # evaluate while training; 0 = only at the end
  c.eval.restrict_vocab = 300_000  # most frequent words that count; 0 = all
  return c


def _add_training(c: ml_collections.ConfigDict) -> None:
  """Settings of how the tables are trained, and on which devices."""
  c.optimizer = ml_collections.ConfigDict()
  c.optimizer.name = 'sgd'  # or 'adagrad', 'adam', all row-wise
  c.optimizer.learning_rate = 0.0  # 0 = what suits optimizer and model
  c.optimizer.final_learning_rate = 1e-4  # linear decay over all words
  c.optimizer.max_duplicates = -1.0  # sgd: occurrences of a row that count in
  # one step; 0 = all, -1 = what suits batch_words
  c.optimizer.beta1 = 0.9  # adam
  c.optimizer.beta2 = 0.999  # adam
  c.optimizer.epsilon = 1e-6  # adagrad, adam

  c.train = ml_collections.ConfigDict()
  c.train.epochs = 5
  c.train.init_from = ''  # a run, a merge or a word2vec file whose vectors
  # training starts from; '' = at random
  c.train.batch_words = 0  # centers per step; 0 = what suits the device
  c.train.loss_every_steps = 0  # steps from one measured loss to the next; 0 =
  # 64 on a CPU, where it takes time, else 1
  c.train.steps_per_loop = 0  # steps that a device runs without asking its host
  # whether there are more; 0 = 1 on a CPU, else 16
  c.train.checkpoint_every_secs = 300.0
  c.train.checkpoints_to_keep = 3
  c.train.log_every_secs = 2.0

  c.strategy = ml_collections.ConfigDict()
  c.strategy.name = 'replicas'  # one per device of mesh.data, 'sync', or
  # 'partition': sub-models that never meet, merged in the end
  c.strategy.policy = 'bounded'  # replicas: when they meet
  c.strategy.exchange_words = 0  # replicas: centers of each between exchanges
  # of the most frequent rows; 0 = what suits the number of replicas
  c.strategy.exchange_lookups = 0.0  # replicas: look-ups of a row by each until
  # it is exchanged; 0 = what suits the number of replicas
  c.strategy.memory_lookups = 200.0  # replicas: after which a row has forgotten
  # where it was when it was last exchanged
  c.strategy.num_parts = 10  # partition: sub-models
  c.strategy.rate = (
    0.0  # partition: of the sentences, for each; 0 = 1/num_parts
  )
  c.strategy.divide = 'shuffle'  # partition: sentences drawn anew every epoch,
  # 'sampling' = once, 'equal' = a stretch of the text for each
  c.strategy.part = -1  # partition: the only one to train, as a job of its own
  # in workdir/parts; -1 = all that are not trained yet, which are then merged
  c.strategy.per_device = 1  # partition: sub-models that a device trains at
  # once, in one batch: of several, roundings may differ
  c.strategy.min_seen = 1  # partition: words that a sub-model has read fewer
  # times, in all epochs, are missing from its vectors
  c.strategy.merge = 'alir'  # partition: 'alir', 'pca', 'concat', or 'none'

  c.mesh = ml_collections.ConfigDict()
  c.mesh.data = 0  # devices along the corpus; 0 = as many as are of use: two
  # cores of a CPU, else one device
  c.mesh.table = 0  # devices along the tables; 0 = as many as are of use where
  # table.layout splits tables, else one


def flat(config: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Nested settings as one dict with dotted keys."""
  result = {}
  for key, value in config.items():
    name = f'{prefix}{key}'
    if isinstance(value, Mapping | ml_collections.ConfigDict):
      result |= flat(value, f'{name}.')
    else:
      result[name] = value
  return result


def describe() -> str:
  """One `--config.key=default` per line."""
  return '\n'.join(f'  --config.{k}={v}' for k, v in flat(default()).items())


def check_key(key: str) -> None:
  """Raises a `UserError` that names the nearest key if `key` is not one."""
  known = list(flat(default()))
  if key in known:
    return
  nearest = difflib.get_close_matches(key, known, 1, 0.5)
  tails = [k for k in known if k.split('.')[-1] == key.split('.')[-1]]
  hint = (tails or nearest or ['model.dim'])[0]
  raise errors.UserError(
    f'there is no setting config.{key}; did you mean --config.{hint}?'
  )


def check_arguments(argv: Sequence[str]) -> None:
  """Raises a `UserError` for a `--config.key` that is not a setting."""
  for arg in argv[1:]:
    if arg.startswith(('--config.', '-config.')):
      check_key(arg.split('.', 1)[1].split('=')[0])


def check(config: ml_collections.ConfigDict) -> None:
  """Raises a `UserError` for the first setting that cannot be honoured."""
  given, known = flat(config), flat(default())
  for key in given:
    check_key(key)
  for key, value in known.items():
    if key not in given:
      raise errors.UserError(
        f'config.{key} is missing; start the config from '
        'jaxemb.config.default()'
      )
    _check_value(key, given[key], type(value))
  chunk, batch_words = _chunk(config), config.train.batch_words
  if batch_words % chunk:
    raise errors.UserError(
      f'config.train.batch_words={batch_words} must be a multiple of '
      f'config.model.chunk={chunk}; change one of them'
    )
  combinations.check(config, default())


def _check_value(key: str, value: Any, expected: type) -> None:
  if expected is float and type(value) is int:
    value = float(value)
  if type(value) is not expected:
    raise errors.UserError(
      f'config.{key}={value!r} must be of type {expected.__name__}'
    )
  choices = _CHOICES.get(key)
  is_own = key in MEMBERS and ':' in value
  if choices and value not in choices and not is_own:
    raise errors.UserError(
      f'config.{key}={value!r} is not available; choose '
      + ' or '.join(repr(choice) for choice in choices)
    )
  low, high = _RANGES.get(key, (None, None))
  # Written so that a NaN is outside.
  if not (low is None or value >= low) or not (high is None or value <= high):
    bounds = f'at least {low:,}' + (
      '' if high is None else f', at most {high:,}'
    )
    raise errors.UserError(f'config.{key}={value} must be {bounds}')


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
