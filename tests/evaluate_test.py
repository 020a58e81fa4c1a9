"""The evaluate command: table, JSON, exit codes."""

import json

import numpy as np
import pytest

from jaxemb import evaluate
from jaxemb.storage import word2vec_format


@pytest.fixture
def path(tmp_path):
  words = [f'w{i}' for i in range(30)]
  vectors = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
  word2vec_format.write(tmp_path / 'v.txt', words, vectors, False)
  folder = tmp_path / 'eval'
  folder.mkdir()
  lines = [f'w{i} W{i + 1} {i}' for i in range(28)]
  (folder / 'pairs.txt').write_text('\n'.join([*lines, 'broken', 'a b 1']))
  (folder / 'questions.txt').write_text(': gram1\nw1 w2 w3 w4\n')
  lines = [f'{i},c{i % 3},w{i}' for i in range(30)]
  (folder / 'groups.csv').write_text('\n'.join([',category,word', *lines]))
  (folder / 'README.md').write_text('These are some files to test with.')
  return tmp_path


def _run(capsys, *argv):
  try:
    code = evaluate.main(argv)
  except SystemExit as stop:
    code = stop.code
  captured = capsys.readouterr()
  return code, captured.out, captured.err


def test_table_and_json(path, capsys):
  code, out, _ = _run(
    capsys,
    f'--vectors={path / "v.txt"}',
    f'--eval={path / "eval"},{path / "eval" / "pairs.txt"}',
    f'--json={path / "out" / "results.json"}',
    '--restrict_vocab=25',
  )
  assert code == 0
  results = json.loads((path / 'out' / 'results.json').read_text())
  assert set(results) == {'pairs', 'questions', 'groups', 'pairs-2'}
  assert results['pairs'] == results['pairs-2']
  result = results['pairs']
  assert (result['found'], result['total'], result['malformed']) == (24, 29, 1)
  assert result['restrict_vocab'] == 25
  assert '30 words x 8' in out and 'limit 25' in out
  row = next(line for line in out.splitlines() if line.startswith('pairs '))
  assert f'{result["score"]:.4f}' in row
  assert '24 / 29' in row and '1 malformed' in row


@pytest.mark.parametrize(
  ('vectors', 'paths', 'message'),
  [
    ('none.txt', 'eval', 'none.txt'),
    ('v.txt', 'none', 'none'),
    ('eval/none', 'eval', 'cannot read'),
    ('v.txt', 'eval/README.md', 'no benchmark recognised'),
    ('eval/README.md', 'eval', 'no word2vec file'),
    ('eval', 'eval', 'vectors.npy'),
  ],
)
def test_unusable_input_exits_with_2(path, capsys, vectors, paths, message):
  code, out, err = _run(
    capsys, f'--vectors={path / vectors}', f'--eval={path / paths}'
  )
  assert code == 2 and out == ''
  assert message in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
  ('flag', 'message'),
  [
    ('--restrict_vocab=-1', '--restrict_vocab must be 0'),
    ('--window=-1', '--window must be 0'),
    ('--window=3', '--window=3 is of words with several vectors'),
  ],
)
def test_unusable_numbers(path, capsys, flag, message):
  argv = f'--vectors={path / "v.txt"}', f'--eval={path / "eval"}', flag
  code, out, err = _run(capsys, *argv)
  assert code == 2 and out == '' and message in err.splitlines()[-1]
