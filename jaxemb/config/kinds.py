"""The kinds of data, by name, and all settings that there are with them.

A kind is an object (`run.kind.Kind`) in a folder of its own. A user's own is
named by a dotted path: `--config.data.source=my_module:KIND`.
"""

import difflib
import functools
import inspect
import pathlib
import pkgutil
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from jaxemb import errors
from jaxemb.config import schema

# Modules with a tuple KINDS; a new kind is its folder and a line here.
_MODULES = (
  'jaxemb.text.kind',
  'jaxemb.senses.kind',
  'jaxemb.documents.kind',
  'jaxemb.clicks.kind',
  'jaxemb.interactions.kinds',
  'jaxemb.graphs.kinds',
)
# What is made of a source that is no kind of its own.
_SOURCE_ALONE = 'jaxemb.run.kind:SourceAlone'

CORE = schema.read(pathlib.Path(__file__).with_name('settings.toml'))
# Negatives that a chunk shares: where contexts are weighted, and elsewhere,
# where fewer cost quality (experiments/results/step_notes.md).
_WEIGHTED_DRAWS, _USUAL_DRAWS = 16, 24
_OPTIMIZERS = 'sgd', 'adagrad', 'adam', 'adagrad_full', 'adam_full'
# What names in the core's settings stand for.
_CORE_MEMBERS = {
  'table.layout': {
    'replicated': 'jaxemb.tables.replicated:Replicated',
    'row': 'jaxemb.tables.row_sharded:RowSharded',
    'column': 'jaxemb.tables.replicated:SplitColumns',
  },
  'optimizer.name': {
    x: f'jaxemb.tables.row_optimizers:{x}' for x in _OPTIMIZERS
  },
  'strategy.policy': {
    x: f'jaxemb.strategies.policies:{x}' for x in ('bounded', 'average', 'hot')
  },
}


@functools.cache
def built_in() -> tuple[Any, ...]:
  """The kinds that come with jaxemb."""
  modules = map(pkgutil.resolve_name, _MODULES)
  return tuple(kind for module in modules for kind in module.KINDS)


@functools.cache
def members() -> dict[str, dict[str, str]]:
  """What names in the settings stand for: dotted paths, by setting and name."""
  all_kinds = built_in()
  return _CORE_MEMBERS | {
    'data.source': {x.source: x.factory for x in all_kinds},
    'model.name': {k: x for kind in all_kinds for k, x in kind.models.items()},
    'model.loss': {k: x for kind in all_kinds for k, x in kind.losses.items()},
  }


def of(config: Mapping[str, Any]) -> Any:
  """The kind of the data that settings name.

  Raises a `UserError` if a user's own cannot be imported.
  """
  source, model = config['data']['source'], config['model']['name']
  kinds = [x for x in built_in() if x.source == source] or [own(source)]
  return next((x for x in kinds if model in x.models), kinds[0])


def weights_contexts(config: Any) -> bool:
  """Whether skip-gram weights contexts by distance, in place of windows."""
  m = config.model
  return (
    m.dynamic_window
    and m.name == 'skipgram'
    # A kernel's trees take time for each context, sampling for all alike.
    and m.loss != 'hierarchical_softmax'
    and of(config).weights_contexts
  )


def shared_negatives(config: Any, is_weighted: bool) -> int:
  """Returns the negatives that a chunk shares; 0 if trees need none.

  `is_weighted`: skip-gram weights contexts (`weights_contexts`).
  """
  m = config.model
  if m.shared_negatives or m.loss == 'hierarchical_softmax':
    return m.shared_negatives
  return _WEIGHTED_DRAWS if is_weighted else _USUAL_DRAWS


@functools.cache
def own(source: str) -> Any:
  """The kind of a user's dotted path, to a kind or to what makes a source."""
  named = member('data.source', source)
  if hasattr(named, 'factory'):
    return named
  return pkgutil.resolve_name(_SOURCE_ALONE)(source)


def settings(source: str = '') -> dict[str, schema.Setting]:
  """All settings by name, with those of a user's own kind if it is named."""
  more = own(source).settings if ':' in source else ()
  of_kinds = (x for kind in built_in() for x in kind.settings)
  return {x.name: x for x in (*CORE, *of_kinds, *more)}


def find(name: str, source: str = '') -> schema.Setting:
  """The setting of a name, or a `UserError` that suggests the nearest one."""
  by_name = settings(source)
  check_replaced(name)
  if name not in by_name:
    tails = [x for x in by_name if x.split('.')[-1] == name.split('.')[-1]]
    near = tails or difflib.get_close_matches(name, by_name, 1, 0.5)
    raise errors.UserError(
      f'there is no setting config.{name}; did you mean '
      f'--config.{(near or ["model.dim"])[0]}?'
    )
  return by_name[name]


def check_replaced(name: str) -> None:
  """Raises a `UserError` for a setting that another one has replaced."""
  for kind in built_in():
    if name in kind.replaced:
      raise errors.UserError(
        f'there is no setting config.{name} any more; give '
        f'--config.{kind.replaced[name]}'
      )


def member(setting: str, name: str) -> Any:
  """What a name in a setting stands for, by `members` or by import.

  Raises a `UserError` if a user's own member cannot be imported.
  """
  names = members()[setting]
  try:
    return pkgutil.resolve_name(names.get(name, name))
  except (ImportError, AttributeError, SyntaxError, ValueError) as error:
    raise errors.UserError(
      f'config.{setting}={name}: {error}; give one of {", ".join(names)} or '
      'module:attribute of your own'
    ) from error


def bind(
  setting: str,
  name: str,
  args: Sequence[Any] = (),
  available: Mapping[str, Any] = MappingProxyType({}),
) -> functools.partial:
  """A member with arguments, and those of `available` that it has names for.

  Raises a `UserError` if it cannot be called with them.
  """
  function = member(setting, name)
  try:
    signature = inspect.signature(function)
    chosen = {k: v for k, v in available.items() if k in signature.parameters}
    signature.bind(*args, **chosen)
  except TypeError as error:
    raise errors.UserError(
      f'config.{setting}={name} cannot be called: {error}; '
      'docs/guides/extending.md shows what it is to take'
    ) from error
  return functools.partial(function, *args, **chosen)
