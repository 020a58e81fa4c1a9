"""The commands query and evaluate: what they print, and exit codes."""

import json

import numpy as np
import pytest

from jaxemb.cli import query
from jaxemb.storage import word2vec_format

_WORDS = ['king', 'man', 'woman', 'queen', 'x-ray', '-', '-5']
_WORDS += [f'w{i}' for i in range(30)]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('commands')
  vectors = np.random.default_rng(0).normal(size=(37, 20)).astype(np.float32)
  vectors[3] = vectors[0] - vectors[1] + vectors[2]
  word2vec_format.write(folder / 'v.bin', _WORDS, vectors, True)
  pairs = [f'w{i} W{i + 1} {i}' for i in range(28)]
  groups = [f'{i},c{i % 3},w{i}' for i in range(30)]
  (folder / 'eval').mkdir()
  for name, lines in {
    'pairs.txt': [*pairs, 'broken', 'a b 1'],
    'questions.txt': [': gram1', 'w1 w2 w3 w4'],
    'groups.csv': [',category,word', *groups],
    'README.md': ['These are some files to test with.'],
  }.items():
    (folder / 'eval' / name).write_text('\n'.join(lines))
  return folder


@pytest.fixture
def run(folder, monkeypatch, command):
  """Runs a command line in the folder."""
  monkeypatch.chdir(folder)
  return command


@pytest.mark.parametrize(
  ('terms', 'expected'),
  [
    (['king'], (['king'], [])),
    (['king - man + woman'], (['king', 'woman'], ['man'])),
    (['king', '-man', '+woman'], (['king', 'woman'], ['man'])),
    (['-', 'man', 'king'], (['king'], ['man'])),
    (['x-ray', '-', 'king'], (['x-ray'], ['king'])),
    (['-'], (['-'], [])),
    (['king', '-', '-5'], (['king'], ['-5'])),
    (['Ada', 'King'], (['Ada King'], [])),
    (['Ada King', '-', 'man'], (['Ada King'], ['man'])),
  ],
)
def test_expressions(terms, expected):
  known = [*_WORDS, 'Ada King']
  assert query.split_expression(terms, known) == expected


@pytest.mark.parametrize(
  'line',
  [
    '--vectors=v.bin king - man + woman --topn=2',
    'king -man --topn 2 +woman --vectors v.bin',
  ],
)
def test_query(run, line):
  code, out, _ = run(f'query {line}')
  (word, cosine), _ = map(str.split, out.splitlines())
  assert code == 0 and word == 'queen' and 0.5 < float(cosine) <= 1


def test_evaluate(folder, run):
  code, out, _ = run(
    'evaluate --vectors=v.bin --eval=eval,eval/pairs.txt '
    '--json=out/results.json --restrict_vocab=32'
  )
  results = json.loads((folder / 'out' / 'results.json').read_text())
  assert code == 0
  assert set(results) == {'pairs', 'questions', 'groups', 'pairs-2'}
  result = results['pairs']
  assert result == results['pairs-2'] and result['restrict_vocab'] == 32
  assert (result['found'], result['total'], result['malformed']) == (24, 29, 1)
  assert '37 words x 20' in out and 'limit 32' in out
  row = next(line for line in out.splitlines() if line.startswith('pairs '))
  for part in (f'{result["score"]:.4f}', '24 / 29', '1 malformed'):
    assert part in row
