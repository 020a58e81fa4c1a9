"""Runs gensim's tests of KeyedVectors with `jaxemb.Embeddings` in its place.

    python experiments/gensim_tests.py [--gensim=CHECKOUT]

Takes the tests and their data from a checkout of gensim, or from the installed
package (extra `bench`); neither is copied. `KeyedVectors` of gensim's modules
is `Embeddings`, and its private reader of files calls `load_word2vec_format`
without the size of its blocks. Prints the tests that fail, with the last line
of each, and how many passed.
"""

import argparse
import contextlib
import importlib.util
import pathlib
import unittest
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import gensim
from gensim.test import utils

import jaxemb

# Tests that read a pickle of gensim's, its own format.
OWN_FORMAT = {'Gensim320Test.test'}


class Results(NamedTuple):
  """Names of tests that passed, and of failed ones the last line by name."""

  passed: list[str]
  failed: dict[str, str]


def _load_word2vec_format(
  cls: type, fname: str, binary_chunk_size: int = 0, **options: Any
) -> jaxemb.Embeddings:
  """Loads a file as gensim's function does, in blocks of our own size."""
  del binary_chunk_size
  return cls.load_word2vec_format(fname, **options)


@contextlib.contextmanager
def _replaced(folder: pathlib.Path) -> Iterator[None]:
  """Puts ours in place of gensim's, and the data of `folder`."""
  modules = gensim.models, gensim.models.keyedvectors
  with contextlib.ExitStack() as stack:
    for module in modules:
      patch = mock.patch.object(module, 'KeyedVectors', jaxemb.Embeddings)
      stack.enter_context(patch)
    for name, value in (
      (modules[1], {'_load_word2vec_format': _load_word2vec_format}),
      (utils, {'module_path': str(folder)}),
    ):
      stack.enter_context(mock.patch.multiple(name, **value))
    stack.enter_context(warnings.catch_warnings(action='ignore'))
    yield


def run(checkout: pathlib.Path | None = None) -> Results:
  """Runs the tests of a checkout, or of the installed gensim."""
  root = pathlib.Path(gensim.__file__).parent
  folder = (checkout / 'gensim' if checkout else root) / 'test'
  path = folder / 'test_keyedvectors.py'
  with _replaced(folder):
    spec = importlib.util.spec_from_file_location('gensim_keyedvectors', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    result = unittest.TestResult()
    tests = [test for case in suite for test in case]
    for test in tests:
      test.run(result)
  failed = {
    _name(test): text.strip().splitlines()[-1]
    for test, text in result.failures + result.errors
  }
  passed = [_name(x) for x in tests if _name(x) not in failed]
  return Results(passed, failed)


def _name(test: unittest.TestCase) -> str:
  return '.'.join(test.id().split('.')[-2:])


def main() -> None:
  """Prints the results."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--gensim', type=pathlib.Path, help='folder of a clone')
  results = run(parser.parse_args().gensim)
  for name, line in results.failed.items():
    print(f'{name}: {line}')
  others = {*results.passed, *results.failed} - OWN_FORMAT
  num_passed = len(others - results.failed.keys())
  print(
    f"{num_passed} of {len(others)} tests passed that do not read gensim's "
    f'own format ({num_passed / len(others):.1%}); '
    f'{len(results.passed)} of all {len(others | OWN_FORMAT)}'
  )


if __name__ == '__main__':
  main()
