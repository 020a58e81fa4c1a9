"""Files of word vectors: every format that is read, and what `save` writes.

Arrays in and out: `Embeddings` is made of what `read` returns.
"""

import pathlib
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.evaluation import multivectors
from jaxemb.evaluation import subwords as subwords_lib
from jaxemb.io import static_models
from jaxemb.ops import growing
from jaxemb.storage import attributes as attributes_lib
from jaxemb.storage import export, word2vec_format


class Contents(NamedTuple):
  """Words and their vectors, and what a file or folder has of these."""

  words: Sequence[str]  # [vocab]
  vectors: np.ndarray  # [vocab, dim]
  counts: np.ndarray | None = None  # [vocab] int64, if known
  sense_table: multivectors.MultiVectors | None = None
  relations: export.Relations | None = None
  attributes: Mapping[str, np.ndarray] = types.MappingProxyType({})
  subwords: subwords_lib.NgramVectors | None = None


def model_folder(path: pathlib.Path | str) -> pathlib.Path | None:
  """Returns the folder of a model that predicts, or None for vectors."""
  folders = pathlib.Path(path), pathlib.Path(path, 'export')
  return next((x for x in folders if (x / 'model.json').is_file()), None)


def read(path: pathlib.Path | str, encoding: str = 'utf-8') -> Contents:
  """Reads any format, as `embeddings.load_vectors` does, but no bucket.

  Raises a `UserError` if the file is missing, not recognized, cut or damaged.
  """
  if folder := model_folder(path):
    raise errors.UserError(
      f'{folder} has a model of clicks, not vectors of words; jaxemb predict '
      'applies it'
    )
  if static_models.is_static(path):
    return Contents(*static_models.read(path))
  if word2vec_format.is_fasttext(path):
    model, vectors, ngrams = subwords_lib.of_file(path)
    return Contents(model.words, vectors, model.counts, subwords=ngrams)
  words, vectors, counts, folder = export.read(path, encoding)
  if not folder:
    return Contents(words, vectors, counts)
  senses = multivectors.read(
    folder, names=words, counts=counts, vectors=vectors
  )
  return Contents(
    words,
    vectors,
    counts,
    sense_table=senses,
    relations=export.read_relations(folder, num_nodes=len(words)),
    attributes=attributes_lib.read(folder, len(words)),
    subwords=subwords_lib.read(folder, vectors.shape[1]),
  )


def write(folder: pathlib.Path | str, contents: Contents) -> None:
  """Writes a folder for `read`, and removes what an earlier export had there.

  Raises a `UserError` if a file cannot be written.
  """
  folder = pathlib.Path(folder)
  arrays = attributes_lib.encoded(contents.attributes)  # which may refuse
  attributes_lib.write(folder, arrays)
  export.write(
    folder,
    words=contents.words,
    rows=export.Encoded(contents.vectors),
    counts=contents.counts,
    is_minimal=True,
  )
  multivectors.write(folder, contents.sense_table)
  export.write_relations(folder, contents.relations)
  subwords_lib.write(folder, contents.subwords)


def write_fasttext(path: pathlib.Path | str, contents: Contents) -> None:
  """Writes fastText's `.bin`.

  Raises a `UserError` if it cannot be written, or for words of several vectors.
  """
  if contents.sense_table is not None:
    raise errors.UserError(
      'senses cannot be written as a .bin: use of_words() first'
    )
  subwords_lib.write_model(
    path,
    words=contents.words,
    vectors=contents.vectors,
    counts=contents.counts,
    ngrams=contents.subwords,
  )


def write_word2vec(
  path: pathlib.Path | str,
  words: Sequence[str],
  vectors: Any,
  order_by: np.ndarray | None = None,
  vocab_path: pathlib.Path | str | None = None,
  prefix: str = '',
  **options: Any,
) -> int:
  """Writes a word2vec file, and to `vocab_path` the values of `order_by`.

  Rows are sorted by falling values of `order_by`, [vocab]; None = as they are.
  `options` are those of `word2vec_format.write`. Returns how many words had
  white space. Raises a `UserError` if a file cannot be written.
  """
  order = np.arange(len(words))
  if order_by is not None:
    order = growing.descending(order_by)
  if (np.diff(order) < 0).any():
    words, order_by = [words[row] for row in order.tolist()], order_by[order]
    by_row = vectors
    vectors = export.OnDemand(
      lambda rows: by_row[order[rows]], by_row.shape, by_row.dtype
    )
  words = [prefix + x for x in words] if prefix else words
  renamed = word2vec_format.write(path, words, vectors, **options)
  if vocab_path is not None:
    word2vec_format.write_vocab(
      vocab_path, words, order_by, appends=options['appends']
    )
  return renamed
