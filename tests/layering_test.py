"""The house keeps its order: who imports whom, and how long things are."""

import ast
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / 'jaxemb'

# A module imports from levels below its own, and freely inside its package.
LEVELS = [
  {'errors', 'hlo', 'keys', 'ops', 'spelling'},
  {'combinations', 'mixtures'},
  {'config', 'data', 'hosts', 'processes', 'progress', 'signals'},
  {'mesh', 'arguments', 'watch'},
  {'tables', 'storage', 'evaluation'},
  {'exports'},
  {'models', 'embeddings', 'metrics', 'workdirs', 'reporting'},
  {
    'strategies',
    'report',
    'merging',
    'sense_tables',
    'model_choice',
    'table_choice',
  },
  {'build', 'warm'},
  {'dispatches', 'results', 'saving', 'evaluate', 'query', 'loop', 'merge'},
  {'rounds', 'merged'},
  {'submodels'},
  {'train'},
  {'main'},
]
# Narrower: the only ones of jaxemb that these may import beside themselves.
ONLY = {
  'errors': set(),
  'hlo': set(),
  'ops': set(),
  'spelling': set(),
  'mesh': {'errors', 'hosts', 'processes'},
  'processes': {'errors'},
  'watch': {'errors', 'processes'},
  'progress': set(),
  'arguments': {'config', 'errors'},
  'combinations': {'errors'},
  'config': {'combinations', 'errors', 'mixtures'},
  'keys': set(),
  'mixtures': set(),
  'data': {'errors'},
  'hosts': set(),
  'metrics': {'errors', 'hosts', 'progress', 'storage'},
  'tables': {'ops', 'mesh'},
  'storage': {'errors'},
  'evaluation': {'errors', 'ops', 'spelling'},
  'models': {'ops', 'tables'},
  'reporting': {'evaluation'},
  'merging': {
    'embeddings',
    'errors',
    'evaluation',
    'hosts',
    'ops',
    'storage',
    'tables',
  },
  'strategies': {'hlo', 'ops', 'mesh', 'tables', 'models'},
  'main': {'arguments', 'config', 'errors', 'processes', 'train'},
  '': {'embeddings'},  # jaxemb/__init__.py
}
# Distribution: what is imported of it, where the name differs.
IMPORT_NAMES = {
  'absl-py': 'absl',
  'ml-collections': 'ml_collections',
  'orbax-checkpoint': 'orbax',
}
MAX_LINES = {'main.py': 70, 'train.py': 250}

FILES = sorted(PACKAGE.rglob('*.py'))
every_file = pytest.mark.parametrize(
  'path', FILES, ids=[str(path.relative_to(PACKAGE)) for path in FILES]
)


def _tree(path):
  return ast.parse(path.read_text(encoding='utf-8'))


def _unit(name):
  """Package or module directly under jaxemb: 'ops' of 'jaxemb.ops.losses'."""
  return name.split('.')[1] if '.' in name else ''


def _module(path):
  parts = path.relative_to(ROOT).with_suffix('').parts
  return '.'.join(part for part in parts if part != '__init__')


def _imports(tree):
  """Full names of all modules that a file imports, wherever it does."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f'relative import in line {node.lineno}'
      for alias in node.names:
        yield f'{node.module}.{alias.name}'


def _level(unit):
  found = [i for i, units in enumerate(LEVELS) if unit in units]
  assert found, f'{unit} has no level: add it to LEVELS'
  return found[0]


def _misplaced(path):
  unit = _unit(_module(path))
  for name in _imports(_tree(path)):
    top = name.split('.')[0]
    if top in ('configs', 'experiments', 'tests', 'colab'):
      yield name
    if top != 'jaxemb':
      continue
    other = _unit(name)
    if other == unit:
      continue
    above = bool(unit) and _level(other) >= _level(unit)
    if above or other not in ONLY.get(unit, {other}):
      yield name


@every_file
def test_imports_only_from_levels_below(path):
  assert not list(_misplaced(path))


@every_file
def test_imports_modules_not_names(path):
  for name in _imports(_tree(path)):
    if name.startswith('jaxemb.') and path != PACKAGE / '__init__.py':
      target = ROOT / name.replace('.', '/')
      assert target.is_dir() or target.with_suffix('.py').exists(), name


@every_file
def test_imports_what_the_package_depends_on(path):
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  names = [re.match(r'[\w-]+', d)[0] for d in project['dependencies']]
  known = {IMPORT_NAMES.get(name, name) for name in names}
  known |= {'jaxemb', 'scipy'} | sys.stdlib_module_names  # jax brings scipy
  found = {name.split('.')[0] for name in _imports(_tree(path))}
  assert found <= known


@every_file
def test_a_module_says_what_it_is(path):
  docstring = ast.get_docstring(_tree(path))
  assert docstring and docstring.splitlines()[0].strip()


@every_file
def test_sizes(path):
  tree = _tree(path)
  functions = [
    node
    for node in ast.walk(tree)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
  ]
  for function in functions:
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function):
      docstring = function.body[0]
      lines -= docstring.end_lineno - docstring.lineno + 1
    assert lines <= 60, f'{function.name}: {lines} lines'
  num_lines = len(path.read_text(encoding='utf-8').splitlines())
  if functions:  # plain data may be long
    name = str(path.relative_to(PACKAGE))
    assert num_lines <= MAX_LINES.get(name, 400)


def test_every_package_has_an_init():
  folders = {path.parent for path in FILES}
  assert all((folder / '__init__.py').exists() for folder in folders)


def test_levels_name_what_exists():
  units = {_unit(_module(path)) for path in FILES} - {''}
  named = set().union(*LEVELS)
  assert sum(len(level) for level in LEVELS) == len(named)
  assert named == units


def test_misplaced_imports_are_seen(tmp_path, monkeypatch):
  monkeypatch.setitem(globals(), 'ROOT', tmp_path)
  for place, line, bad in [
    ('ops/x.py', 'from jaxemb import errors', True),
    ('ops/x.py', 'import jaxemb.ops.losses', False),
    ('data/x.py', 'from jaxemb.ops import losses', True),
    ('data/x.py', 'from jaxemb import errors', False),
    ('storage/x.py', 'def f():\n  from jaxemb import embeddings', True),
    ('evaluation/x.py', 'from jaxemb import embeddings', True),
    ('models/x.py', 'from jaxemb.strategies import sync', True),
    ('models/x.py', 'from jaxemb.tables import spec', False),
    ('results.py', 'from jaxemb import train', True),
    ('results.py', 'from jaxemb import query', True),
    ('reporting/x.py', 'from jaxemb.reporting import y', False),
    ('reporting/x.py', 'from jaxemb import embeddings', True),
    ('train.py', 'from jaxemb import main', True),
    ('build.py', 'from configs import wiki', True),
    ('build.py', 'from jaxemb.strategies import sync', False),
    ('__init__.py', 'from jaxemb import train', True),
  ]:
    path = tmp_path / 'jaxemb' / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line)
    assert bool(list(_misplaced(path))) == bad, (place, line)


_IMPORT_ALL = """
import importlib, sys
import jaxemb
assert 'jax' not in sys.modules, 'jaxemb alone imports jax'
for name in sys.argv[1:]:
  importlib.import_module(name)
import jax
try:
  jax.devices()
except RuntimeError:
  print('no back end so far')
"""


def test_training_starts_without_what_takes_long_to_import():
  code = "import sys, jaxemb.train; print('scipy.stats' in sys.modules)"
  command = [sys.executable, '-c', code]
  assert subprocess.check_output(command, cwd=ROOT, text=True) == 'False\n'


def test_importing_starts_no_back_end(tmp_path):
  # With a platform that does not exist, starting one raises.
  done = subprocess.run(
    [sys.executable, '-c', _IMPORT_ALL, *map(_module, FILES)],
    cwd=ROOT,
    env={'JAX_PLATFORMS': 'none_such', 'HOME': str(tmp_path)},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout == 'no back end so far\n'
