"""Graphs that are read from files."""

import gzip
import pathlib
from collections.abc import Callable

import pytest
from pyarrow import parquet

from jaxemb.graphs import files
from jaxemb.graphs import graph as graph_lib

SETTINGS = {
  'directed': False,
  'columns': '',
  'comments': '',
  'num_nodes': 0,
  'labels': '',
  'label_column': '',
  'features': '',
}


@pytest.fixture
def write(tmp_path: pathlib.Path) -> Callable[..., None]:
  """Writes files, of texts, bytes or tables of Arrow by name."""

  def written(files_of, folder=''):
    for name, text in files_of.items():
      path = tmp_path / folder / name
      path.parent.mkdir(parents=True, exist_ok=True)
      if isinstance(text, str | bytes):
        text = text.encode() if isinstance(text, str) else text
        path.write_bytes(gzip.compress(text) if name.endswith('.gz') else text)
      else:
        parquet.write_table(text, path)

  return written


@pytest.fixture
def read(tmp_path: pathlib.Path, write) -> Callable[..., graph_lib.Graph]:
  """Reads a file or folder as a graph; writes it before, if it is given."""

  def made(text=None, name='edges.txt', **settings):
    if text is not None:
      write({name: text})
    for key in 'labels', 'features':
      if settings.get(key):
        settings[key] = str(tmp_path / settings[key])
    settings = {**SETTINGS, 'path': str(tmp_path / name), **settings}
    return files.read(settings, tmp_path / 'cache', lambda *_: None)

  return made
