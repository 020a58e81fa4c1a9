"""The layers of the package: a folder imports only what stands before it."""

import ast
import functools
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / 'jaxemb'

# Kinds of data (the last line but one) import the core and not each other; the
# core imports none of them. They are found by name.
LAYERS = """
  errors runtime storage ops data io evaluation tables models strategies
  stores kernels workers merging config vector_files missing_names embeddings
  report run
  text senses documents interactions clicks graphs
  api cli query predict plan evaluate merge launch __main__ main __init__
""".split()
KINDS = {'text', 'senses', 'documents', 'clicks', 'interactions', 'graphs'}
# Senses are of words, and documents have some.
TOGETHER = ('senses', 'text'), ('documents', 'text')

# Distribution: what is imported of it, where the name differs.
IMPORT_NAMES = {
  'ml-collections': 'ml_collections',
  'ml-dtypes': 'ml_dtypes',
  'orbax-checkpoint': 'orbax',
}


@functools.cache
def _trees():
  paths = sorted(PACKAGE.rglob('*.py'))
  return [(path, ast.parse(path.read_text('utf-8'))) for path in paths]


def _imports(tree):
  """Full names of all modules that a file imports, wherever it does."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f'relative import in line {node.lineno}'
      yield from (f'{node.module}.{alias.name}' for alias in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == (
      'errors.optional'
    ):
      yield node.args[0].value


def test_a_folder_imports_only_layers_below():
  misplaced = []
  for path, tree in _trees():
    folder = path.relative_to(PACKAGE).with_suffix('').parts[0]
    assert folder in LAYERS, f'{path} is in no layer'
    for name in _imports(tree):
      top, *rest = name.split('.')
      if top != 'jaxemb' or not rest or rest[0] in (folder, 'errors'):
        continue
      is_above = LAYERS.index(rest[0]) > LAYERS.index(folder)
      if is_above or {folder, rest[0]} <= KINDS:
        if (folder, rest[0]) not in TOGETHER:
          misplaced.append(f'{path.relative_to(PACKAGE)} imports {name}')
  assert not misplaced


def test_modules_are_imported_and_not_names():
  for path, tree in _trees():
    for name in _imports(tree):
      if name.startswith('jaxemb.') and path.name != '__init__.py':
        target = ROOT / name.replace('.', '/')
        assert target.is_dir() or target.with_suffix('.py').exists(), name


def test_every_import_is_declared_and_every_dependency_imported():
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  # Extras that the package itself imports, where they are used.
  needed = project['dependencies'] + sum(
    (
      project['optional-dependencies'][x] for x in ('ray', 'ann', 'hub', 'onnx')
    ),
    [],
  )
  names = [re.match(r'[\w-]+', d)[0] for d in needed]
  declared = {IMPORT_NAMES.get(name, name) for name in names}
  imported = {x.split('.')[0] for _, tree in _trees() for x in _imports(tree)}
  assert imported - set(sys.stdlib_module_names) == declared | {'jaxemb'}


_IMPORT_ALL = """
import importlib, sys
import jaxemb
assert 'jax' not in sys.modules, 'jaxemb alone imports jax'
import jaxemb.embeddings
assert 'jax' not in sys.modules, 'loading vectors imports jax'
import jaxemb.run.lifecycle
assert 'scipy.stats' not in sys.modules, 'what takes long to import'
for name in sys.argv[1:]:
  importlib.import_module(name)
import jax
try:
  jax.devices()
except RuntimeError:
  print('no back end so far')
"""


@pytest.mark.slow
def test_importing_starts_no_back_end_and_training_imports_little(tmp_path):
  # With a platform that does not exist, starting one raises.
  names = [x.relative_to(ROOT).with_suffix('') for x, _ in _trees()]
  names = ['.'.join(x.parts).removesuffix('.__init__') for x in names]
  done = subprocess.run(
    [sys.executable, '-c', _IMPORT_ALL, *names],
    cwd=ROOT,
    env={'JAX_PLATFORMS': 'none_such', 'HOME': str(tmp_path)},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout == 'no back end so far\n'
