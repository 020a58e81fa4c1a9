"""Files of word vectors: every format that is read, and what `save` writes.

Arrays in and out: `Embeddings` is made of what `read` returns.
"""

import contextlib
import pathlib
import types
import warnings
from collections.abc import Collection, Mapping, Sequence
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


def write(folder: pathlib.Path | str, contents: Contents) -> int:
  """Writes a folder for `read`, and removes what an earlier export had there.

  Returns how many words were renamed. Raises a `UserError` if there are none,
  if attributes or n-grams cannot be written, and then writes nothing, or if a
  file cannot be written.
  """
  folder = pathlib.Path(folder)
  if not len(contents.words):
    raise errors.UserError(f'{folder}: there are no words to save; add one')
  attributes = attributes_lib.encoded(contents.attributes)
  if contents.subwords is not None:  # which may refuse, too
    subwords_lib.write(folder, contents.subwords)
  attributes_lib.write(folder, attributes)
  counted = export.write(
    folder,
    words=contents.words,
    rows=export.Encoded(contents.vectors),
    counts=contents.counts,
    is_minimal=True,
  )
  multivectors.write(folder, contents.sense_table)
  export.write_relations(folder, contents.relations)
  if contents.subwords is None:
    subwords_lib.write(folder, None)
  with contextlib.suppress(NotADirectoryError):
    # Of documents with other vectors; without it, their words are not read.
    (folder / export.DOCUMENTS).unlink(missing_ok=True)
  return counted['words_renamed_in_exports']


def warn_of_losses(
  path: pathlib.Path | str,
  contents: Contents,
  num_renamed: int = 0,
  holds: Collection[str] = (),
) -> None:
  """Warns the caller's caller of what a file does not have of vectors.

  `holds` names what else than words, vectors and counts the file has.
  """
  relations = contents.relations
  parts = {
    'attributes': bool(contents.attributes),
    'senses': contents.sense_table is not None,
    'relations': relations is not None
    and (relations.operator != 'none' or relations.targets is not None),
    'n-grams': contents.subwords is not None,
  }
  lost = [name for name, is_there in parts.items() if is_there]
  if lost := [name for name in lost if name not in holds]:
    warnings.warn(
      f'{path} has vectors without their {", ".join(lost)}; `save` writes all',
      stacklevel=3,
    )
  if num_renamed:
    warnings.warn(
      f'{path}: {num_renamed:,} words with white space or characters that '
      'UTF-8 lacks were renamed',
      stacklevel=3,
    )


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
