"""The evaluate command: table, JSON, exit codes."""

import json

import numpy as np
import pytest

from jaxemb.storage import word2vec_format


@pytest.fixture
def folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  words = [f'w{i}' for i in range(30)]
  vectors = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
  word2vec_format.write('v.txt', words, vectors, False)
  pairs = [f'w{i} W{i + 1} {i}' for i in range(28)]
  groups = [f'{i},c{i % 3},w{i}' for i in range(30)]
  (tmp_path / 'eval').mkdir()
  for name, lines in {
    'pairs.txt': [*pairs, 'broken', 'a b 1'],
    'questions.txt': [': gram1', 'w1 w2 w3 w4'],
    'groups.csv': [',category,word', *groups],
    'README.md': ['These are some files to test with.'],
  }.items():
    (tmp_path / 'eval' / name).write_text('\n'.join(lines))
  return tmp_path


def test_table_and_json(folder, command):
  code, out, _ = command(
    'evaluate --vectors=v.txt --eval=eval,eval/pairs.txt '
    '--json=out/results.json --restrict_vocab=25'
  )
  results = json.loads((folder / 'out' / 'results.json').read_text())
  assert code == 0
  assert set(results) == {'pairs', 'questions', 'groups', 'pairs-2'}
  result = results['pairs']
  assert result == results['pairs-2'] and result['restrict_vocab'] == 25
  assert (result['found'], result['total'], result['malformed']) == (24, 29, 1)
  assert '30 words x 8' in out and 'limit 25' in out
  row = next(line for line in out.splitlines() if line.startswith('pairs '))
  for part in (f'{result["score"]:.4f}', '24 / 29', '1 malformed'):
    assert part in row


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    ('--vectors=none.txt --eval=eval', 'none.txt'),
    ('--vectors=v.txt --eval=none', 'none'),
    ('--vectors=eval/none --eval=eval', 'cannot read'),
    ('--vectors=v.txt --eval=eval/README.md', 'no benchmark recognised'),
    ('--vectors=eval/README.md --eval=eval', 'no word2vec file'),
    ('--vectors=eval --eval=eval', 'vectors.npy'),
    ('--vectors=v.txt --eval=eval --window=3', '--window=3 is of words with'),
    ('--vectors=v.txt --eval=eval --window=-1', '--window must be 0'),
    ('--vectors=v.txt --eval=eval --restrict_vocab=-1', 'vocab must be 0'),
  ],
)
def test_unusable_input_exits_with_2(folder, command, flags, message):
  code, out, err = command(f'evaluate {flags}')
  *usage, line = err.splitlines()
  assert code == 2 and out == '' and message in line
  assert not usage or usage[0].startswith('usage: ')
