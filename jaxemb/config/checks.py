"""Settings as a user gives them: defaults, and what cannot be honoured.

No setting is accepted and then ignored: `check` refuses it instead.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import ml_collections

from jaxemb import errors
from jaxemb.config import kinds, schema

# Replicas that exchange rows in every step are one model, and those that never
# do are sub-models: policies that are strategies.
_POLICY_STRATEGIES = {'bsp': 'sync', 'never': 'partition'}


def default(source: str = '') -> ml_collections.ConfigDict:
  """All settings at their defaults: skip-gram as word2vec users know it.

  `source` adds those of a user's own kind of data, and names it.
  """
  groups: dict[str, Any] = {}
  for setting in kinds.settings(source).values():
    group, _, key = setting.name.rpartition('.')
    (groups.setdefault(group, {}) if group else groups)[key] = setting.default
  if source:
    groups['data']['source'] = source
  return ml_collections.ConfigDict(groups)


def check(
  config: Mapping[str, Any], values: Mapping[str, Any] = MappingProxyType({})
) -> ml_collections.ConfigDict:
  """A copy of the settings, with values set by dotted name.

  Raises a `UserError` for the first setting that cannot be honoured.
  """
  settings = schema.flat(config) | dict(values)
  source = settings.get('data.source', '')
  if ':' in source:  # whose settings the config may not have
    of_source = {x.name: x.default for x in kinds.own(source).settings}
    settings = of_source | settings
  members = kinds.members()
  for name, value in settings.items():
    kinds.find(name, source).check(value, members.get(name))
  check_complete(settings)
  _apply_policy(settings)
  _apply_store(settings)
  checked = default(source if ':' in source else '')
  checked.update_from_flattened_dict(settings)
  kind = kinds.of(checked)
  for conflicts in (
    _unfit(checked, kind),
    _uncontinued(checked, kind),
    _unused(checked, kind),
    _core_conflicts(checked, kind),
    kind.check(checked),
  ):
    for message in conflicts:
      raise errors.UserError(message)
  return checked


def check_complete(settings: Mapping[str, Any]) -> None:
  """Raises a `UserError` if a setting is missing, of flat ones."""
  for name in kinds.settings(settings.get('data.source', '')):
    if name not in settings:
      raise errors.UserError(
        f'config.{name} is missing; start the config from '
        'jaxemb.config.default()'
      )


def _apply_policy(settings: dict[str, Any]) -> None:
  """Replaces a policy that is a strategy by that strategy."""
  policy, name = settings['strategy.policy'], settings['strategy.name']
  strategy = _POLICY_STRATEGIES.get(policy)
  if not strategy:
    return
  if name not in ('replicas', strategy):
    raise errors.UserError(
      f'config.strategy.policy={policy} is config.strategy.name={strategy}, '
      f'not {name}; remove one of them'
    )
  if every := settings['strategy.sync_every']:
    raise errors.UserError(
      f'config.strategy.sync_every={every} is not used when '
      f'config.strategy.policy is {policy}; remove it'
    )
  settings['strategy.policy'] = kinds.find('strategy.policy').default
  settings['strategy.name'] = strategy
  num_parts = kinds.find('strategy.num_parts').default
  if policy == 'never' and settings['strategy.num_parts'] == num_parts:
    settings['strategy.num_parts'] = settings['mesh.data'] or num_parts


def _apply_store(settings: dict[str, Any]) -> None:
  """Chooses a store where the strategy or the room for rows needs one."""
  if settings['strategy.name'] == 'workers':
    if settings['table.store'] not in ('', 'remote'):
      raise errors.UserError(
        f'config.table.store={settings["table.store"]} is of one process, and '
        'workers share their tables; remove it'
      )
    settings['table.store'] = 'remote'
  if settings['table.device_bytes'] and not settings['table.store']:
    settings['table.store'] = 'memory'


def is_used(setting: schema.Setting, config: Any, kind: Any) -> bool:
  """Whether a kind of data uses a setting, whatever its value."""
  if kind.uses_all:
    return True
  if setting.optional:
    return setting.name in kind.used(config)
  return setting in kind.settings or setting in kinds.CORE


def _unused(config: ml_collections.ConfigDict, kind: Any) -> Iterator[str]:
  """Settings that were changed and that nothing would read."""
  settings = schema.flat(config)
  for setting in kinds.settings(config.data.source).values():
    value = settings[setting.name]
    if value == setting.default:
      continue
    what = f'config.{setting.name}={value}'
    if not is_used(setting, config, kind):
      yield f'{what} is {_users(setting, kind)}'
    condition = kind.only_with.get(setting.name, setting.only_with)
    other, _, users = condition.partition('=')
    if not other or ':' in settings[other]:
      continue  # what members of the user's own read is not known
    if settings[other] not in (users := users.split('|')):
      names = kind.members(other)
      fitting = [x for x in users if names is None or x in names]
      change = ''.join(f' or set --config.{other}={x}' for x in fitting[:1])
      yield (
        f'{what} is only used when config.{other} is {" or ".join(users)}; '
        f'remove it{change}'
      )


def _users(setting: schema.Setting, kind: Any) -> str:
  """Says which kinds of data use a setting, and what to do."""
  users = [
    x
    for x in kinds.built_in()
    if setting in x.settings or setting.name in x.uses
  ]
  same = [x for x in users if x.source == kind.source]
  if same and kind not in same:
    models = list(same[0].models)
    return (
      f'only used when config.model.name is {" or ".join(models)}; remove it '
      f'or set --config.model.name={models[0]}'
    )
  names = ' or '.join(dict.fromkeys(x.source for x in users if x is not kind))
  return (
    f'not used with {kind.source}, only used when config.data.source is '
    f'{names}; remove it'
  )


def _unfit(config: ml_collections.ConfigDict, kind: Any) -> Iterator[str]:
  """Models, losses and strategies that the kind of data does not have."""
  if kind.uses_all:
    return
  for what, value in (('name', config.model.name), ('loss', config.model.loss)):
    setting = f'model.{what}'
    # A loss may be at its default, which nothing reads.
    is_read = what == 'name' or setting in kind.used(config)
    if ':' in value or value in kind.members(setting) or not is_read:
      continue
    what = 'model' if what == 'name' else what
    owners = [x for x in kinds.built_in() if value in x.members(setting)]
    sources = list(dict.fromkeys(x.source for x in owners))
    misfit = (
      f'is no {what} of {kind.source}, and does not learn from {kind.source}; '
      f'choose {" or ".join(kind.members(setting))}, or start from '
      f'--config={kind.start}'
    )
    if 1 <= len(sources) <= 2:  # more have what learns from windows
      misfit = (
        f'is a {what} of {" or ".join(sources)}; set '
        f'--config.data.source={sources[0]}, or start from '
        f'--config={owners[0].start}'
      )
    yield f'config.{setting}={value} {misfit}'
  strategy = config.strategy.name
  if why := kind.undivided.get(strategy):
    yield (
      f'config.strategy.name={strategy} does not {why}; choose sync or replicas'
    )


def _monitor_conflicts(monitor: str, available: Sequence[str]) -> Iterator[str]:
  """What is wrong with a list of metrics, of those that a kind monitors."""
  names = schema.names(monitor)
  if not {*names} <= {*available} and available:
    several = ', or several, separated by commas' * (len(available) > 1)
    yield (
      f'config.eval.monitor={monitor} is not available; choose '
      f'{" or ".join(available)}{several}'
    )


def _uncontinued(config: ml_collections.ConfigDict, kind: Any) -> Iterator[str]:
  """Yields why a run is not continued, of a kind that does not."""
  if config.data.grow and kind.uncontinued:
    yield (
      f'--from={config.train.init_from} does not go on with '
      f'config.model.name={config.model.name}, which {kind.uncontinued}; train '
      'on old and new data together'
    )


def _growth_conflicts(config: ml_collections.ConfigDict) -> Iterator[str]:
  """What does not go with a run that is continued on new data."""
  if not config.train.init_from:
    yield 'config.data.grow=True needs the run to continue; give it as --from'
  if config.strategy.name == 'partition':
    yield (
      f'--from={config.train.init_from} does not go with '
      'config.strategy.name=partition, whose sub-models leave out what their '
      'data lack; choose another strategy'
    )


def _core_conflicts(
  config: ml_collections.ConfigDict, kind: Any
) -> Iterator[str]:
  """What is wrong between settings of strategy, mesh and tables."""
  s, mesh, table = config.strategy, config.mesh, config.table
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
  if config.data.grow:
    yield from _growth_conflicts(config)
  ks = schema.sizes('eval.k', config.eval.k)
  if len({*ks}) < len(ks):
    yield f'config.eval.k={config.eval.k} has a number twice; remove one'
  yield from _monitor_conflicts(config.eval.monitor, kind.monitors)
  if table.device_bytes:
    schema.room_bytes(table.device_bytes, 0)
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
  if kind.has_dense and config.optimizer.rows == 'all':
    if table.layout == 'row' or table.store:
      yield (
        'config.optimizer.rows=all needs all rows on each device; remove it, '
        'or config.table.layout=row and config.table.store'
      )
