"""Files of word vectors: every format that is read, and what `save` writes.

Arrays in and out: `Embeddings` is made of what `read` returns.
"""

import os
import pathlib
import types
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast

import ml_dtypes
import numpy as np

from jaxemb import errors
from jaxemb.evaluation import fasttext_models, multivectors
from jaxemb.evaluation import subwords as subwords_lib
from jaxemb.io import onnx_lookups, static_models
from jaxemb.ops import growing
from jaxemb.storage import (
  atomic,
  export,
  fasttext_format,
  ngram_files,
  parquet,
  word2vec_format,
)
from jaxemb.storage import attributes as attributes_lib

# What vectors may have beside words and counts.
_PARTS = 'attributes', 'senses', 'relations', 'n-grams'


class Contents(NamedTuple):
  """Words and their vectors, and what a file or folder has of these."""

  words: Sequence[str]  # [vocab]
  vectors: np.ndarray  # [vocab, dim]; or `LazyRows`, which stand for one
  counts: np.ndarray | None = None  # [vocab] int64, if known
  sense_table: multivectors.MultiVectors | None = None
  relations: export.Relations | None = None
  attributes: Mapping[str, np.ndarray] = types.MappingProxyType({})
  subwords: subwords_lib.NgramVectors | None = None
  # What all of these are from.
  origin: fasttext_format.Model | fasttext_models.Export | None = None


def model_folder(path: str | os.PathLike[str]) -> pathlib.Path | None:
  """Returns the folder of a model that predicts, or None for vectors."""
  folders = export.folders(path)
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
  if fasttext_format.is_model(path):
    model, composed, ngrams = fasttext_models.load(path)
    return Contents(
      model.words,
      cast(np.ndarray, composed),
      model.counts,
      subwords=ngrams,
      origin=model,
    )
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
    origin=fasttext_models.Export(pathlib.Path(folder), words),
  )


def checked(contents: Contents, num_different: int) -> Contents:
  """Returns contents with copies of counts and attributes, by their types.

  `num_different` words are different. Raises a `ValueError` for words, vectors,
  counts, senses or attributes that do not fit each other.
  """
  words, vectors, counts, senses, *_ = contents
  num = len(words)
  if vectors.ndim != 2 or {len(vectors), num_different} != {num}:
    raise ValueError(
      f'{num} words ({num_different} different) do not fit vectors of shape '
      f'{vectors.shape}'
    )
  if senses is not None and len(senses.priors) != num:
    raise ValueError(f'{len(senses.priors)} senses do not fit {num} words')
  ngrams = contents.subwords
  if ngrams is not None and ngrams.rows.shape[1] != vectors.shape[1]:
    raise ValueError(
      f'n-grams of {ngrams.rows.shape[1]} numbers do not fit vectors of '
      f'{vectors.shape[1]}'
    )
  attributes = {
    name: attributes_lib.values(name, array, num)
    for name, array in contents.attributes.items()
  }
  if attributes_lib.COUNT in attributes:  # as in gensim's `expandos`
    if counts is not None:
      raise ValueError('counts are given, and an attribute count as well')
    counts = attributes.pop(attributes_lib.COUNT)
  if counts is not None:
    counts = attributes_lib.counts(counts, num)
  return contents._replace(counts=counts, attributes=attributes)


def array(vectors: Any) -> Any:
  """Returns floats in an array, of lists or whole numbers a copy.

  What computes its rows itself stays.
  """
  if isinstance(vectors, export.LazyRows):
    return vectors
  vectors = np.asarray(vectors)
  is_float = vectors.dtype.kind == 'f' or vectors.dtype == ml_dtypes.bfloat16
  return vectors if is_float else vectors.astype(np.float32)


def check_dim(path: pathlib.Path | str, dim: int, expected: int) -> None:
  """Raises a `UserError` if a file has vectors of another dimension."""
  if dim != expected:
    raise errors.UserError(
      f'{path} has vectors of {dim} numbers, these are of {expected}; give a '
      'file of the same dimension'
    )


def write(folder: pathlib.Path | str, contents: Contents) -> None:
  """Writes a folder for `read`, and removes what an earlier export had there.

  Warns of words that were renamed. Raises a `UserError` if there are none, if
  attributes or n-grams cannot be written, and then writes nothing, or if a file
  cannot be written.
  """
  folder = pathlib.Path(folder)
  _check_words(folder, contents)
  attributes = attributes_lib.encoded(contents.attributes)
  subwords = contents.subwords
  ngrams = None if subwords is None else subwords.table()  # may refuse, too
  with atomic.together(folder) as new:
    attributes_lib.write(new, attributes)
    counted = export.write(
      new,
      words=contents.words,
      rows=export.Encoded(contents.vectors),
      counts=contents.counts,
      is_minimal=True,
    )
    multivectors.write(new, contents.sense_table)
    export.write_relations(new, contents.relations)
    ngram_files.write(new, ngrams)
    # Of documents with other vectors; without it, their words are not read.
    atomic.remove(new / export.DOCUMENTS)
  num_renamed = counted['words_renamed_in_exports']
  _warn_of_losses(folder, contents, num_renamed, holds=_PARTS)


def write_fasttext(path: pathlib.Path | str, contents: Contents) -> None:
  """Writes fastText's `.bin`.

  Raises a `UserError` if it cannot be written, or for words of several vectors.
  """
  if contents.sense_table is not None:
    raise errors.UserError(
      'senses cannot be written as a .bin: use of_words() first'
    )
  num_renamed = fasttext_models.write(
    path,
    words=contents.words,
    vectors=contents.vectors,
    counts=contents.counts,
    ngrams=contents.subwords,
    origin=contents.origin,
  )
  _warn_of_losses(path, contents, num_renamed, holds=['n-grams'])


def write_word2vec(
  path: pathlib.Path | str,
  contents: Contents,
  order_by: np.ndarray | None = None,
  vocab_path: pathlib.Path | str | None = None,
  prefix: str = '',
  **options: Any,
) -> None:
  """Writes a word2vec file, and to `vocab_path` the values of `order_by`.

  Rows are sorted by falling values of `order_by`, [vocab]; None = as they are.
  `options` are those of `word2vec_format.write`. Raises a `UserError` if a file
  cannot be written.
  """
  words, vectors, *_ = contents
  if order_by is not None:
    order = growing.descending(order_by)
    if (np.diff(order) < 0).any():
      words, order_by = [words[row] for row in order.tolist()], order_by[order]
      in_order = export.OnDemand(
        lambda rows: contents.vectors[order[rows]], vectors.shape, vectors.dtype
      )
      vectors = cast(np.ndarray, in_order)
  words = [prefix + x for x in words] if prefix else words
  num_renamed = word2vec_format.write(path, words, vectors, **options)
  if vocab_path is not None:
    word2vec_format.write_vocab(
      vocab_path, words, order_by, appends=options['appends']
    )
  _warn_of_losses(path, contents, num_renamed)


def write_safetensors(path: pathlib.Path | str, contents: Contents) -> None:
  """Writes vectors, any counts, and words in the metadata.

  Raises a `UserError` if the file cannot be written.
  """
  static_models.write(
    path, contents.words, contents.vectors, counts=contents.counts
  )
  _warn_of_losses(path, contents)


def write_static_model(
  folder: pathlib.Path | str, contents: Contents, **options: Any
) -> None:
  """Writes a folder of model2vec, by `static_models.write_model`'s options.

  A word of several senses has their mean, with a warning. Raises a `UserError`
  if the folder cannot be written.
  """
  words, vectors, _, senses, *_ = contents
  if senses is not None:
    words, vectors = senses.words, senses.mean_vectors()
  num_renamed = static_models.write_model(folder, words, vectors, **options)
  _warn_of_losses(folder, contents, num_renamed)


def write_onnx(path: pathlib.Path | str, contents: Contents) -> None:
  """Writes an ONNX model from words to vectors.

  Raises a `UserError` if there are none, or the file would be too large or
  cannot be written.
  """
  _check_words(path, contents)
  num_renamed = onnx_lookups.write(path, contents.words, contents.vectors)
  _warn_of_losses(path, contents, num_renamed)


def write_parquet(path: pathlib.Path | str, contents: Contents) -> None:
  """Writes Parquet with the columns key, count (if known) and vector.

  Raises a `UserError` if the file cannot be written.
  """
  num_renamed = parquet.write(
    path, contents.words, contents.vectors, counts=contents.counts
  )
  _warn_of_losses(path, contents, num_renamed)


def _check_words(path: pathlib.Path | str, contents: Contents) -> None:
  if not len(contents.words):
    raise errors.UserError(f'{path}: there are no words to save; add one')


def _warn_of_losses(
  path: pathlib.Path | str,
  contents: Contents,
  num_renamed: int = 0,
  holds: Collection[str] = (),
) -> None:
  """Warns of what a file does not have of vectors, and of renamed words.

  `holds` names what else than words, vectors and counts the file has.
  """
  relations, lines = contents.relations, []
  parts = {
    'attributes': bool(contents.attributes),
    'senses': contents.sense_table is not None,
    'relations': relations is not None and relations.has_rows,
    'n-grams': contents.subwords is not None,
  }
  if lost := [
    x for x, is_there in parts.items() if is_there and x not in holds
  ]:
    lines.append(f'{", ".join(lost)} are not written; `save` writes all')
  if num_renamed:
    lines.append(
      f'{num_renamed:,} words with white space or characters that UTF-8 lacks '
      'were renamed'
    )
  for line in lines:  # for the caller of a method of `Embeddings`
    warnings.warn(f'{path}: {line}', stacklevel=4)
