"""The query command: expressions, output, exit codes."""

import numpy as np
import pytest

from jaxemb import errors, query
from jaxemb.storage import word2vec_format

_WORDS = ['king', 'man', 'woman', 'queen', 'x-ray', '-', '-5']


@pytest.mark.parametrize(
  ('terms', 'expected'),
  [
    (['king'], (['king'], [])),
    (['king', '-', 'man', '+', 'woman'], (['king', 'woman'], ['man'])),
    (['king - man + woman'], (['king', 'woman'], ['man'])),
    (['king', '-man', '+woman'], (['king', 'woman'], ['man'])),
    (['-', 'man', 'king'], (['king'], ['man'])),
    (['king', 'queen'], (['king', 'queen'], [])),
    (['x-ray', '-', 'king'], (['x-ray'], ['king'])),
    (['-'], (['-'], [])),
    (['king', '-5'], (['king', '-5'], [])),
    (['king', '-', '-5'], (['king'], ['-5'])),
    ([], None),
    ([''], None),
    (['king', '-'], None),
    (['king', '-', '+', 'man'], None),
    (['+'], None),
  ],
)
def test_expressions(terms, expected):
  if expected is None:
    with pytest.raises(errors.UserError, match='expected words'):
      query.split_expression(terms, _WORDS)
  else:
    assert query.split_expression(terms, _WORDS) == expected


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    ('--vectors=v.bin king - man + woman --topn=2', ''),
    ('king -man --topn 2 +woman --vectors v.bin', ''),
    ('-man --topn=2 woman --vectors=v.bin + king', ''),
    ('--vectors=v.bin quen', 'near: queen'),
    ('--vectors=v.bin', 'expected words'),
    ('--vectors=v.binx king', 'cannot read'),
    ('king', '--vectors'),
    ('--vectors', '--vectors'),
    ('--vectors=v.bin --topn=0 king', '--topn'),
    ('--vectors=v.bin --top=3 king', '--top=3'),
  ],
)
def test_command(tmp_path, monkeypatch, command, line, message):
  monkeypatch.chdir(tmp_path)
  vectors = np.random.default_rng(0).normal(size=(7, 20)).astype(np.float32)
  vectors[3] = vectors[0] - vectors[1] + vectors[2]
  word2vec_format.write(tmp_path / 'v.bin', _WORDS, vectors, True)
  code, out, err = command(f'query {line}')
  if message:
    assert code == 2 and not out and message in err.splitlines()[-1]
  else:
    (word, cosine), _ = map(str.split, out.splitlines())
    assert code == 0 and word == 'queen' and 0.5 < float(cosine) <= 1
