"""Documents for tests, and what is made of them."""

import pathlib
from collections.abc import Sequence

import numpy as np

from jaxemb import config as config_lib
from jaxemb.data import base
from jaxemb.documents import loader
from jaxemb.models import base as models

WORDS = 'the quick brown fox jumps over the lazy dog again'.split()


def source(
  path: pathlib.Path,
  cache: pathlib.Path,
  part_words: int = 64,
  has_windows: bool = True,
  **settings,
) -> loader.DocumentSource:
  """The documents of a file, without rare or subsampled words left out."""
  data = config_lib.default().data.to_dict()
  data |= {'min_count': 1, 'sample': 0.0, **settings}
  return loader.make(
    base.SourceSpec(
      path=str(path),
      seed=1,
      epochs=1,
      num_parts=1,
      part_words=part_words,
      window=2,
      chunk=8,
      shortest_window=1,
      settings=data,
      readers=base.ALONE,
      cache=cache,
      progress=lambda *_: None,
      has_windows=has_windows,
    )
  )


class Counted:
  """A source as far as models ask: of documents with expected words."""

  def __init__(self, counts: np.ndarray, num_documents: int):
    frequencies = counts / counts.sum()
    words = [str(i) for i in range(len(counts))]
    self._words = models.Corpus(words, counts, frequencies, self)
    self.frequencies = np.full(num_documents, 1 / num_documents)

  def word_corpus(self) -> models.Corpus:
    """As of `loader.DocumentSource`."""
    return self._words

  def corpus(self) -> models.Corpus:
    """What the core makes of the source."""
    counts = np.ones(len(self.frequencies), int)
    keys = [str(i) for i in range(len(counts))]
    return models.Corpus(keys, counts, self.frequencies, self)


def words_of(
  source: loader.DocumentSource, item: base.Item
) -> list[Sequence[str]]:
  """The words that a batch has of each row, sorted."""
  words, documents = item.batch
  window, found = source.spec.window, [[] for _ in source.keys]
  num = int(words.kept_words[0])
  centers = words.ids[0][window : window + num]
  for word, row in zip(centers, documents[0][:num], strict=True):
    found[row].append(source.context_keys[word])
  assert (documents[0][num:] > len(source.keys)).all()
  return [sorted(x) for x in found]
