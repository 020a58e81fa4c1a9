"""Readers of vectors and of files that jaxemb writes."""

import pathlib

from jaxemb import embeddings
from tests.fuzz import fuzzing


def _use(path: pathlib.Path) -> None:
  """Loads vectors and looks at all of them."""
  vectors = embeddings.load_vectors(path)
  word = vectors.index_to_key[-1]
  vectors.most_similar(word, topn=2)


def _word2vec_text() -> list[bytes]:
  return [
    b'3 2\nthe 0.1 -0.2\nof 1e-3 4\n\xc3\xa9t\xc3\xa9 -1 0\n',
    b'the 0.1 -0.2\nof 1e-3 4\nNew York 5 6\n',
    b'3 2\r\nthe\t1\t2\r\na\t3\t4\r\n b\t3\t4\r\n',
  ]


TARGETS = (
  fuzzing.Target('word2vec_text', '.txt', seeds=_word2vec_text, read=_use),
)
