"""How the package is written: what a reader should not have to put up with."""

import ast
import functools
import pathlib

_ROOT = pathlib.Path(__file__).parents[1]
_PACKAGE = _ROOT / 'jaxemb'
_MAX_LINES = 60
_MAX_POSITIONAL = 3
_KINDS = 'text', 'senses', 'documents', 'interactions', 'clicks', 'graphs'
_DOORS = 'cli', 'api.py', '__main__.py', '__init__.py'
# Values of data.source of the kinds, and other words for them.
_KIND_NAMES = {
  'clicks', 'interactions', 'item_sets', 'nodes', 'graph', 'edges', 'graphs',
}  # fmt: skip
# What the rebuilding has not got to.
_LONG = {'train'}
_FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef


@functools.cache
def _trees():
  return [
    (path.relative_to(_PACKAGE).as_posix(), ast.parse(path.read_text('utf-8')))
    for path in sorted(_PACKAGE.rglob('*.py'))
  ]


def test_functions_fit_on_a_screen():
  too_long = {
    x.name: f'{name}:{x.lineno}'
    for name, tree in _trees()
    for x in ast.walk(tree)
    if isinstance(x, _FUNCTIONS) and x.end_lineno - x.lineno >= _MAX_LINES
  }
  assert too_long.keys() <= _LONG, too_long


def _local_functions(tree):
  """Names of functions, classes and methods that a module defines."""
  return {
    x.name for x in ast.walk(tree) if isinstance(x, (*_FUNCTIONS, ast.ClassDef))
  }


def _modules(tree):
  """Names by which a module knows other modules of the package."""
  names = set()
  for x in ast.walk(tree):
    if isinstance(x, ast.ImportFrom) and (x.module or '').startswith('jaxemb'):
      names |= {alias.asname or alias.name for alias in x.names}
  return names


def _called(call, modules, functions):
  """The name of the function of ours that is called, or ''."""
  match call.func:
    case ast.Name(id=name) if name in functions:
      return name
    case ast.Attribute(value=ast.Name(id='self'), attr=name):
      return name if name in functions else ''
    case ast.Attribute(value=ast.Name(id=module), attr=name):
      return f'{module}.{name}' if module in modules else ''
  return ''


def _is_compiled(function):
  """Whether numba compiles it, which takes no keyword arguments."""
  return any('numba' in ast.unparse(x) for x in function.decorator_list)


def test_more_than_three_arguments_are_given_by_keyword():
  trees = [x for x in _trees() if not x[0].startswith('kernels/cpu/')]
  compiled = [
    x
    for _, tree in trees
    for x in ast.walk(tree)
    if isinstance(x, _FUNCTIONS) and _is_compiled(x)
  ]
  # Of Pallas; and what takes any number of arguments.
  names = (
    {x.name for x in compiled}
    | {'kernel', 'read'}
    | {
      x.name
      for _, tree in trees
      for x in ast.walk(tree)
      if isinstance(x, _FUNCTIONS) and x.args.vararg
    }
  )
  inside = {id(x) for function in compiled for x in ast.walk(function)}
  calls = []
  for path, tree in trees:
    modules, functions = _modules(tree), _local_functions(tree)
    for x in ast.walk(tree):
      if isinstance(x, ast.Call) and len(x.args) > _MAX_POSITIONAL:
        name = _called(x, modules, functions)
        if name.split('.')[-1] not in {'', *names} and id(x) not in inside:
          calls.append(f'{path}:{x.lineno}: {name}')
  assert not calls, '\n'.join(calls)


def _mentions(tree):
  """Lines that name a kind of data, and what they name."""
  documentation = {
    id(x.body[0].value)
    for x in ast.walk(tree)
    if isinstance(x, (ast.Module, ast.ClassDef, *_FUNCTIONS))
    and isinstance(x.body[0], ast.Expr)
  }
  for x in ast.walk(tree):
    match x:
      case ast.Constant(value=str(value)) if id(x) not in documentation:
        if value in _KIND_NAMES:
          yield x.lineno, value
      case ast.ImportFrom(module=str(module)):
        names = [f'{module}.{alias.name}'.split('.') for alias in x.names]
        for name in names:
          if name[0] == 'jaxemb' and name[1] in _KINDS:
            yield x.lineno, '.'.join(name)


def test_the_core_names_no_kind_of_data():
  lines = [
    f'{path}:{line}: {name}'
    for path, tree in _trees()
    if path.split('/')[0] not in (*_KINDS, *_DOORS)
    for line, name in _mentions(tree)
  ]
  assert not lines, '\n'.join(lines)
