"""The export folder of a run, and reading vectors in any form.

    vectors.npy   rows in their storage dtype         vectors.bin   word2vec
    vocab.txt     `word count` a line, by row         vectors.txt   word2vec
    projector/    for the TensorBoard projector       orbax/        all tables

Row i of every file is line i of vocab.txt.
"""

import contextlib
import os
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.storage import atomic, projector, vectors_npy, word2vec_format


class Vectors(NamedTuple):
  """Words with their vectors."""

  words: list[str]  # [vocab] different words
  vectors: np.ndarray  # [vocab, dim] float32, memory-mapped if stored as such
  counts: np.ndarray | None = None  # [vocab] int64, if known
  remarks: tuple[str, ...] = ()  # what was replaced or left out, counted
  folder: pathlib.Path | None = None  # of an export


def write(
  folder: pathlib.Path | str,
  words: Sequence[str],
  vectors: np.ndarray,
  counts: np.ndarray,
  stored: vectors_npy.Rows | None = None,
  is_minimal: bool = False,
) -> dict[str, int]:
  """Writes every form of the vectors, with one spelling of the words.

  The files replace those of an earlier export together, once all are written.

  Args:
    folder: created if missing.
    words: [vocab] words, the most frequent first.
    vectors: [vocab, dim] float32; may be memory-mapped.
    counts: [vocab] int, occurrences of each word.
    stored: the same rows for vectors.npy; None for float32.
    is_minimal: vectors.npy and vocab.txt alone.

  Returns:
    `words`, `renamed_words` (had white space) and `projector_words`.

  Raises:
    errors.UserError: a file cannot be written.
  """
  folder, vectors = pathlib.Path(folder), np.asarray(vectors)
  spelled, num_renamed = word2vec_format.spell(words)
  with contextlib.ExitStack() as stack:
    stored = vectors_npy.Rows(vectors) if stored is None else stored
    files = vectors_npy.write(stack, folder, stored)
    for is_binary in () if is_minimal else (True, False):
      name = 'vectors.bin' if is_binary else 'vectors.txt'
      files.append(stack.enter_context(atomic.write(folder / name)))
      word2vec_format.put_rows(files[-1], spelled, vectors, is_binary)
    files.append(stack.enter_context(atomic.write(folder / 'vocab.txt')))
    word2vec_format.put_counts(files[-1], spelled, counts)
    for file in files:
      file.flush()
      os.fsync(file.fileno())
  found = {'words': len(words), 'renamed_words': num_renamed}
  if is_minimal:
    return found
  names = [word.decode() for word in spelled]
  chosen = projector.write(folder / 'projector', names, vectors, counts)
  return found | {'projector_words': chosen}


def read(path: pathlib.Path | str) -> Vectors:
  """Reads vectors in any form.

  Args:
    path: a workdir, its export folder, vectors.npy, or a word2vec, GloVe or
      fastText .vec file.

  Raises:
    errors.UserError: missing, not recognised, cut or damaged.
  """
  path = pathlib.Path(path)
  if not path.is_dir() and path.name != vectors_npy.NAME:
    words, vectors, remarks = word2vec_format.read(path)
    return Vectors(words, vectors, None, remarks)
  folder = path if path.is_dir() else path.parent
  if (folder / 'export').is_dir():
    folder = folder / 'export'
  try:
    vectors = vectors_npy.load(folder / vectors_npy.NAME)
  except (OSError, ValueError, EOFError) as error:
    hint = (
      'a workdir whose run has ended, its export folder, or a word2vec file'
    )
    if (folder / 'parts').is_dir():
      hint = f'its sub-models, {folder}/parts/*, or let the run merge them'
    raise errors.UserError(
      f'no usable vectors.npy in {folder}: {error}; give {hint}'
    ) from error
  words, counts = word2vec_format.read_vocab(folder / 'vocab.txt')
  if len(words) != len(vectors):
    raise errors.UserError(
      f'{folder}: vocab.txt has {len(words)} words, vectors.npy has '
      f'{len(vectors)} rows; export again'
    )
  return Vectors(words, vectors, counts, (), folder)
