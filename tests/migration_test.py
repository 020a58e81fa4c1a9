"""docs/migration.md: every row runs in gensim and here, with equal results."""

import pathlib
import re

import pytest
from gensim import models

import jaxemb

_PAGE = pathlib.Path(__file__).parents[1] / 'docs/migration.md'
_ROWS = re.findall(
  r'^\| `(.+)` \| `(.+)` \| (\w+) \|$', _PAGE.read_text(), re.MULTILINE
)


@pytest.fixture(scope='module')
def names(tmp_path_factory):
  folder = tmp_path_factory.mktemp('migration')
  text = (
    'the king rules the land', 'the queen rules the land', 'a dog eats',
    'a cat eats', 'the dog sees the king',
  )  # fmt: skip
  sentences = [x.split() for x in text for _ in range(20)]
  wv = models.Word2Vec(sentences, vector_size=8, sg=1, workers=1).wv
  path = str(folder / 'v.bin')
  wv.save_word2vec_format(path, str(folder / 'counts'), binary=True)
  counts = [wv.get_vecattr(x, 'count') for x in wv.index_to_key]
  vectors = jaxemb.Embeddings(wv.index_to_key, wv.vectors, counts)
  return {
    'Word2Vec': models.Word2Vec, 'KeyedVectors': models.KeyedVectors,
    'jaxemb': jaxemb, 'sentences': sentences, 'wv': wv, 'vectors': vectors,
    'folder': folder,
  }  # fmt: skip


@pytest.mark.parametrize('theirs, ours, equal', _ROWS)
def test_rows_do_the_same(theirs, ours, equal, names, monkeypatch):
  monkeypatch.chdir(names['folder'])
  expected, actual = eval(theirs, dict(names)), eval(ours, dict(names))
  if equal == 'words':
    wv = getattr(expected, 'wv', expected)
    assert {*actual.index_to_key} == {*wv.index_to_key}
    assert actual.vectors.shape == wv.vectors.shape
  elif equal == 'numbers':
    assert actual == pytest.approx(expected, abs=1e-6)
  elif equal == 'pairs':
    assert [x for x, _ in actual] == [x for x, _ in expected]
    scores = [x for _, x in expected]
    assert [x for _, x in actual] == pytest.approx(scores, abs=1e-6)
  else:
    assert equal == 'value'
    assert actual == expected


def test_there_are_rows():
  assert len(_ROWS) == 12
