"""The documentation: examples and notebooks run as they stand, names exist."""

import os
import pathlib
import re
import sys

import matplotlib.pyplot
import nbformat
import numpy as np
import pytest
from IPython.core import interactiveshell

import jaxemb
from jaxemb import config as config_lib
from tests import forks, runs

_ROOT = pathlib.Path(__file__).parents[1]
_PAGES = sorted([_ROOT / 'README.md', *(_ROOT / 'docs').rglob('*.md')])
_SOURCES = 'https://github.com/jaxemb/jaxemb/blob/main/'
_GENERATED = 'reference/all_settings.md', 'reference/commands.md'
every_page = pytest.mark.parametrize('page', _PAGES, ids=lambda x: x.stem)
_NOTEBOOKS = sorted((_ROOT / 'colab').glob('*.ipynb'))
every_notebook = pytest.mark.parametrize(
  'path', _NOTEBOOKS, ids=lambda x: x.stem
)
_SETTINGS = {x.name: x for x in config_lib.settings().values()}
_EXAMPLES = runs.examples()


@pytest.mark.slow
@pytest.mark.parametrize(
  'names',
  ['my_loss my_policy', 'my_model my_optimizer my_table', 'my_source',
   'my_kind'],
)  # fmt: skip
def test_examples_train(names, tmp_path, monkeypatch):
  for module, text in _EXAMPLES.items():  # a kind has the source above it
    (tmp_path / f'{module}.py').write_text(text)
  monkeypatch.syspath_prepend(str(tmp_path))
  settings, is_kind = {}, names == 'my_kind'
  for name in names.split():
    values = dict(
      re.findall(r'^#.*--config\.([\w.]+)=(\S+)', _EXAMPLES[name], re.MULTILINE)
    )
    known = config_lib.settings(values.get('data.source', ''))
    assert any(':' in x for x in values.values())
    settings |= {k: type(known[k].default)(v) for k, v in values.items()}
  is_policy = 'my_policy' in names
  settings |= {'mesh.data': 2} if is_policy else {'strategy.name': 'sync'}
  data, run = tmp_path / 'text.txt', tmp_path / 'run'
  data.write_text('the king rules the land\nthe dog eats the meat\n' * 300)
  arguments = {'dim': 8, 'epochs': 2, 'min_count': 1, 'sample': 0.0}
  if is_kind:
    data, arguments = config_lib.default('my_kind:KIND'), {}
    settings |= {'model.dim': 8, 'train.epochs': 2, 'data.sample': 0.0}
  vectors = jaxemb.train(data, workdir=run, settings=settings, **arguments)
  assert np.isfinite(vectors.vectors).all() and vectors.vectors.std() > 0
  is_ring = is_kind or names == 'my_source'
  assert ('node0' if is_ring else 'the') in vectors
  if is_kind:
    assert runs.report(run)['evaluation']['ring']['found'] == 50
  for module in _EXAMPLES.keys() & sys.modules.keys():
    del sys.modules[module]


@every_page
def test_names_and_links_in_the_docs_exist(page):
  text = page.read_text()
  named = set(re.findall(r'--config\.([a-z]+\.\w+)', text))
  assert named <= {*_SETTINGS, 'data.steps_apart'}
  scripts = re.findall(r'(?:colab|configs|experiments)/\w+\.\w+', text)
  scripts += [f'experiments/{x}' for x in re.findall(r'bench_\w+\.py', text)]
  for script in scripts:
    assert (_ROOT / script).is_file(), script
  for link in re.findall(r'\]\(([^)\s]+)\)', text):
    name, _, anchor = link.partition('#')
    if name.startswith(_SOURCES):
      target = _ROOT / name.removeprefix(_SOURCES)
    else:
      target = page.parent / name if name else page
    if os.path.relpath(target, _ROOT / 'docs') in _GENERATED:
      continue
    assert target.exists(), link
    if anchor:
      titles = re.findall(r'^#+ (.*)', target.read_text(), re.MULTILINE)
      slugs = [re.sub(r'[^\w -]', '', x.lower()) for x in titles]
      assert anchor in [x.replace(' ', '-') for x in slugs], link


@every_notebook
def test_notebooks_have_no_output(path):
  for cell in nbformat.read(path, as_version=4).cells:
    if cell.cell_type == 'code':
      assert not cell.outputs and cell.execution_count is None


# Choices of its forms and smaller ones, its pictures, and the reports in the
# folder of its name.
_NOTEBOOK_RUNS = {
  'quickstart': (
    {'epochs = 15': 'epochs = 3', "text = ''": "text = 'toywiki:60000'"},
    1,
    1,
  ),
  'own_data': (
    {
      'toywiki:100000': 'toywiki:60000',
      'epochs = 5': 'epochs = 1',
      'num = 200_000': 'num = 4_000',
    },
    0,
    4,
  ),
  'sharded_tables': (
    {
      "'jax_num_cpu_devices', 8": "'jax_num_cpu_devices', 4",
      'words = 100_000': 'words = 20_000',
      'dim = 128': 'dim = 16',
      'epochs = 2': 'epochs = 1',
      "('replicated', 'row', 'column')": "('replicated', 'row')",
    },
    3,
    2,
  ),
}


def _run_cells(path):
  """Runs a notebook's cells as IPython does; says how many pictures it shows.

  In a folder of its name.
  """
  os.chdir(path.parent)
  matplotlib.use('agg')
  pictures = []
  matplotlib.pyplot.show = lambda: pictures.append(0)
  shell = interactiveshell.InteractiveShell()
  for cell in nbformat.read(path, as_version=4).cells:
    if cell.cell_type == 'code':
      shell.run_cell(cell.source).raise_error()
  path.with_suffix('.pictures').write_text(str(len(pictures)))


@pytest.mark.slow
@every_notebook
def test_notebooks_run(path, tmp_path, monkeypatch):
  # The notebook sees the package as it is installed here.
  monkeypatch.setenv('PYTHONPATH', str(_ROOT))
  smaller, num_pictures, num_reports = _NOTEBOOK_RUNS[path.stem]
  text = path.read_text(encoding='utf-8')
  for default, choice in smaller.items():
    assert text.count(default) == 1
    text = text.replace(default, choice)
  copy = tmp_path / path.name
  copy.write_text(text, encoding='utf-8')
  forks.call(_run_cells, [[copy]], os.environ, tmp_path / 'said.txt')
  assert copy.with_suffix('.pictures').read_text() == str(num_pictures)
  reports = list((tmp_path / path.stem).rglob('report.html'))
  assert len(reports) == num_reports
