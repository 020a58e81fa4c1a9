"""The query command: expressions, output, exit codes."""

import numpy as np
import pytest

from jaxemb import errors, query
from jaxemb.storage import word2vec_format

_WORDS = ['king', 'man', 'woman', 'queen', 'x-ray', '-', '-5']


@pytest.fixture
def path(tmp_path):
  vectors = np.random.default_rng(0).normal(size=(7, 20)).astype(np.float32)
  vectors[3] = vectors[0] - vectors[1] + vectors[2]
  word2vec_format.write(tmp_path / 'v.bin', _WORDS, vectors, True)
  return tmp_path / 'v.bin'


@pytest.mark.parametrize(
  ('terms', 'positive', 'negative'),
  [
    (['king'], ['king'], []),
    (['king', '-', 'man', '+', 'woman'], ['king', 'woman'], ['man']),
    (['king - man + woman'], ['king', 'woman'], ['man']),
    (['king', '-man', '+woman'], ['king', 'woman'], ['man']),
    (['-', 'man', 'king'], ['king'], ['man']),
    (['king', 'queen'], ['king', 'queen'], []),
    (['x-ray', '-', 'king'], ['x-ray'], ['king']),
    (['-'], ['-'], []),
    (['king', '-5'], ['king', '-5'], []),
    (['king', '-', '-5'], ['king'], ['-5']),
  ],
)
def test_expressions(terms, positive, negative):
  assert query.split_expression(terms, _WORDS) == (positive, negative)


@pytest.mark.parametrize(
  'terms', [[], [''], ['king', '-'], ['king', '-', '+', 'man'], ['+']]
)
def test_broken_expressions(terms):
  with pytest.raises(errors.UserError):
    query.split_expression(terms, _WORDS)


@pytest.mark.parametrize(
  'argv',
  [
    ['--vectors={}', 'king', '-', 'man', '+', 'woman', '--topn=2'],
    ['king', '-man', '--topn', '2', '+woman', '--vectors', '{}'],
    ['-man', '--topn=2', 'woman', '--vectors={}', '+', 'king'],
  ],
)
def test_command(path, capsys, argv):
  assert query.main([argument.format(path) for argument in argv]) == 0
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 2 and lines[0].split()[0] == 'queen'
  assert 0.5 < float(lines[0].split()[1]) <= 1


@pytest.mark.parametrize(
  ('argv', 'message'),
  [
    (['--vectors={}', 'quen'], 'near: queen'),
    (['--vectors={}'], 'expected words'),
    (['--vectors={}x', 'king'], 'cannot read'),
    (['king'], '--vectors'),
    (['--vectors'], '--vectors'),
    (['--vectors={}', '--topn=0', 'king'], '--topn'),
    (['--vectors={}', '--top=3', 'king'], '--top=3'),
  ],
)
def test_unusable_input_exits_with_2(path, capsys, argv, message):
  argv = [argument.format(path) for argument in argv]
  try:
    code = query.main(argv)
  except SystemExit as stop:
    code = stop.code
  captured = capsys.readouterr()
  assert code == 2 and captured.out == ''
  assert message in captured.err.splitlines()[-1]
