"""Settings that do not go together: what each strategy can honour."""

import ml_collections

from jaxemb import errors

# Settings that only one strategy has.
_STRATEGY_KEYS = {
  'replicas': ('exchange_words', 'exchange_lookups', 'memory_lookups'),
  'partition': (
    'num_parts',
    'rate',
    'divide',
    'part',
    'per_device',
    'min_seen',
    'merge',
  ),
}


# Settings that only one loss has.
_LOSS_KEYS = {
  'negative_sampling': ('negatives', 'shared_negatives'),
  'hierarchical_softmax': ('shared_nodes',),
}


def check(
  config: ml_collections.ConfigDict, usual: ml_collections.ConfigDict
) -> None:
  """Raises a `UserError` for settings that do not go together.

  Args:
    config: settings each of which may be had.
    usual: those that are not given.
  """
  _check_senses(config, usual)
  if config.model.shortest_window > config.model.window:
    raise errors.UserError(
      f'config.model.shortest_window={config.model.shortest_window} must be at '
      f'most config.model.window={config.model.window}; change one of them'
    )
  is_tree = config.model.loss == 'hierarchical_softmax'
  if config.train.init_from and (is_tree or config.model.name == 'mixture'):
    raise errors.UserError(
      f'config.train.init_from={config.train.init_from} has vectors of words, '
      f'and config.model.name={config.model.name!r} with '
      f'config.model.loss={config.model.loss!r} has tables of other things as '
      "well; give '', or another model"
    )
  for other, keys in _LOSS_KEYS.items():
    for key in keys:
      if other != config.model.loss and config.model[key] != usual.model[key]:
        raise errors.UserError(
          f'config.model.{key}={config.model[key]!r} means nothing with '
          f'config.model.loss={config.model.loss!r}; give '
          f'--config.model.loss={other}'
        )
  name, layout = config.strategy.name, config.table.layout
  for other, keys in _STRATEGY_KEYS.items():
    for key in keys:
      if other != name and config.strategy[key] != usual.strategy[key]:
        raise errors.UserError(
          f'config.strategy.{key}={config.strategy[key]!r} means nothing with '
          f'config.strategy.name={name!r}; give --config.strategy.name={other}'
        )
  _check_table(config)
  if name == 'sync':
    return
  if layout != 'replicated':
    raise errors.UserError(
      f'config.table.layout={layout!r} splits tables over devices, and '
      f'config.strategy.name={name!r} gives each its own; give '
      '--config.strategy.name=sync'
    )
  if config.mesh.table > 1:
    raise errors.UserError(
      f'config.mesh.table={config.mesh.table} devices have nothing to share '
      f'with config.strategy.name={name!r}; give --config.mesh.data instead, '
      'or --config.strategy.name=sync'
    )
  if name == 'partition':
    _check_partition(config)


def _check_table(config: ml_collections.ConfigDict) -> None:
  t = config.table
  if (t.layout, t.duplicates) == ('row', 'scatter'):
    raise errors.UserError(
      "config.table.layout='row' sends each row's gradients once and merges "
      "duplicates always; leave out config.table.duplicates='scatter'"
    )
  if t.dtype == 'float32' and t.rounding == 'nearest':
    raise errors.UserError(
      "config.table.rounding='nearest' means nothing with "
      "config.table.dtype='float32', which is not rounded; leave it out, or "
      'give --config.table.dtype=bfloat16'
    )
  if config.strategy.name == 'partition' and t.exchange_dtype != 'float32':
    raise errors.UserError(
      f'config.table.exchange_dtype={t.exchange_dtype!r} means nothing with '
      "config.strategy.name='partition', which exchanges nothing; leave it out"
    )


def _check_senses(
  config: ml_collections.ConfigDict, usual: ml_collections.ConfigDict
) -> None:
  s = config.senses
  if config.model.name != 'mixture':
    for key, value in usual.senses.items():
      if s[key] != value:
        raise errors.UserError(
          f'config.senses.{key}={s[key]!r} is only used with '
          "config.model.name='mixture'; leave it out, or give "
          '--config.model.name=mixture'
        )
    return
  if s.number > 1 and not (s.top_n or s.top_ratio or s.words):
    raise errors.UserError(
      f"config.model.name='mixture' with config.senses.number={s.number}, but "
      'no word is to have several senses; give --config.senses.top_n, '
      '.top_ratio or .words, or --config.senses.number=1'
    )
  if config.strategy.min_seen != usual.strategy.min_seen:
    raise errors.UserError(
      f'config.strategy.min_seen={config.strategy.min_seen} means nothing with '
      "config.model.name='mixture', whose words all stay; leave it out"
    )


def _check_partition(config: ml_collections.ConfigDict) -> None:
  s = config.strategy
  if s.part >= s.num_parts:
    raise errors.UserError(
      f'config.strategy.part={s.part} must be 0..{s.num_parts - 1} with '
      f'config.strategy.num_parts={s.num_parts}, or -1 for all'
    )
  num = s.num_parts if s.part < 0 else 1
  if config.mesh.data > num:
    raise errors.UserError(
      f'config.mesh.data={config.mesh.data} devices are more than there are '
      f'sub-models to train, {num}; lower it, or give 0'
    )
  if s.per_device > num:
    raise errors.UserError(
      f'config.strategy.per_device={s.per_device} is more than there are '
      f'sub-models to train, {num}; lower it'
    )
  if config.data.parts > 1:
    raise errors.UserError(
      f'config.data.parts={config.data.parts} must be 0 with '
      "config.strategy.name='partition': sub-models have shares of the "
      'sentences, see config.strategy.num_parts'
    )
