"""Examples in docstrings of the Python reference give what they show."""

import doctest
import functools
import importlib.util
import inspect
import pathlib
import pydoc
import re

import pytest

import jaxemb
from tests import doc_files

_PAGE = pathlib.Path(__file__).parents[1] / 'docs/reference/python.md'
# Names of the page whose examples run one after the other in a folder.
_GROUPS = {
  'vectors': ['jaxemb.embeddings.Embeddings'],
  'text': [
    'jaxemb.train',
    'jaxemb.load',
    'jaxemb.load_phrases',
    'jaxemb.text.phrases.Phrases',
  ],
  'documents': ['jaxemb.documents.trained.Documents'],
  'clicks': ['jaxemb.clicks.predictor.ClickModel'],
}
# Packages that are in extras of jaxemb, by the example that needs them.
_NEEDED = {
  'Embeddings.index': 'usearch',
  'Embeddings.load_index': 'usearch',
  'Embeddings.save_onnx': 'onnxruntime',
  'Embeddings.save_static_model': 'model2vec',
  'ClickModel.save_onnx': 'jax2onnx',
}


def _methods(owner: type) -> dict[str, object]:
  """Returns what the reference shows of a class, in the order of the source."""
  found = {k: x for k, x in vars(owner).items() if not k.startswith('_')}
  return {
    k: x
    for k, x in found.items()
    if inspect.isroutine(x) or isinstance(x, functools.cached_property)
  }


def _documented(path: str) -> dict[str, object]:
  """Returns an object of the page and its methods, by name."""
  owner = pydoc.locate(path)
  if not inspect.isclass(owner):
    return {owner.__name__: owner}
  methods = {f'{owner.__name__}.{k}': x for k, x in _methods(owner).items()}
  return {owner.__name__: owner} | methods


def _examples(name: str, documented: object) -> doctest.DocTest:
  text = inspect.getdoc(documented)
  return doctest.DocTestParser().get_doctest(text, {}, name, None, None)


def test_all_functions_and_methods_have_examples():
  paths = re.findall(r'^::: (\S+)$', _PAGE.read_text(), re.MULTILINE)
  assert sorted(paths) == sorted(x for group in _GROUPS.values() for x in group)
  without = [
    name
    for path in paths
    for name, documented in _documented(path).items()
    if not any(x.want for x in _examples(name, documented).examples)
  ]
  assert not without


def _write_files() -> None:
  """Writes the files that examples load."""
  doc_files.fasttext_model('model.bin', buckets=8)
  doc_files.run_of_relations('runs/graph')
  doc_files.run_of_senses('runs/mixture')


def _run(name: str, documented: object, names: dict) -> str:
  """Runs the examples of a docstring; returns what went wrong."""
  failures: list[str] = []
  test = _examples(name, documented)
  test.globs = names
  runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
  runner.run(test, out=failures.append, clear_globs=False)
  return ''.join(failures)


@pytest.mark.slow
@pytest.mark.parametrize('group', _GROUPS)
def test_examples_give_what_they_show(group, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  _write_files()
  failures = ''
  for path in _GROUPS[group]:
    documented = _documented(path)
    first = next(iter(documented))
    names: dict = {}
    failures += _run(first, documented.pop(first), names)
    for name, method in documented.items():
      needed = _NEEDED.get(name)
      if needed and importlib.util.find_spec(needed) is None:
        continue
      # Some examples change the vectors.
      own = {
        k: x.in_memory() if isinstance(x, jaxemb.Embeddings) else x
        for k, x in names.items()
      }
      failures += _run(name, method, own)
  assert not failures, failures
