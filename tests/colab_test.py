"""The notebooks run from the first cell to the last, and carry no output."""

import pathlib

import nbclient
import nbformat
import pytest

_NOTEBOOKS = sorted(
  (pathlib.Path(__file__).parents[1] / 'colab').glob('*.ipynb')
)
# Values of its forms, replaced by smaller ones.
_CHOICES = {
  'quickstart': {'epochs = 15': 'epochs = 3'},
  'sharded_tables': {'epochs = 2': 'epochs = 1'},
}
# Pictures that it shows, and reports in the folder of its name.
_RESULTS = {'quickstart': (1, 1), 'sharded_tables': (3, 3)}


@pytest.mark.parametrize('path', _NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_have_no_output(path):
  for cell in nbformat.read(path, as_version=4).cells:
    if cell.cell_type == 'code':
      assert not cell.outputs and cell.execution_count is None


@pytest.mark.slow
@pytest.mark.parametrize('path', _NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path, tmp_path, monkeypatch):
  monkeypatch.setenv('JAXEMB_CACHE', str(tmp_path / 'cache'))
  # The notebook sees the package as it is installed here.
  monkeypatch.setenv('PYTHONPATH', str(path.parents[1]))
  text = path.read_text(encoding='utf-8')
  for default, smaller in _CHOICES[path.stem].items():
    assert text.count(default) == 1
    text = text.replace(default, smaller)
  notebook = nbformat.reads(text, as_version=4)
  nbclient.NotebookClient(
    notebook,
    timeout=300,
    kernel_name='python3',
    resources={'metadata': {'path': str(tmp_path)}},
  ).execute()
  outputs = [o for c in notebook.cells for o in c.get('outputs', [])]
  pictures = [o for o in outputs if 'image/png' in o.get('data', {})]
  reports = list((tmp_path / path.stem).rglob('report.html'))
  assert (len(pictures), len(reports)) == _RESULTS[path.stem]
