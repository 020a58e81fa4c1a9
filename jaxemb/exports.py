"""Reads what a run has exported: vectors, words and senses."""

import pathlib
from typing import NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.senses import table as senses
from jaxemb.storage import rows_file, word2vec_format


class Export(NamedTuple):
  """What is in the files."""

  names: list[str]  # of the rows
  vectors: np.ndarray  # [rows, dim] float32, mapped into memory if kept so
  counts: np.ndarray  # [rows] int64
  senses: senses.Senses | None  # of a model whose words have several vectors


def read(path: pathlib.Path) -> Export:
  """Reads a workdir, its export folder or vectors.npy.

  Raises:
    errors.UserError: Missing, cut or damaged.
  """
  folder = path if path.is_dir() else path.parent
  if (folder / 'export').is_dir():
    folder = folder / 'export'
  try:
    vectors = rows_file.load(folder / rows_file.NAME)
  except (OSError, ValueError, EOFError) as error:
    hint = (
      'a workdir whose run has ended, its export folder, or a word2vec file'
    )
    if (folder / 'parts').is_dir():
      hint = f'its sub-models, {folder}/parts/*, or let the run merge them'
    raise errors.UserError(
      f'no usable vectors.npy in {folder}: {error}; give {hint}'
    ) from error
  names, counts = word2vec_format.read_vocab(folder / 'vocab.txt')
  if len(names) != len(vectors) or len(set(names)) != len(names):
    raise errors.UserError(
      f'{folder}: vocab.txt has {len(set(names))} different words in '
      f'{len(names)} lines, vectors.npy has {len(vectors)} rows; export again'
    )
  return Export(
    names, vectors, counts, senses.read(folder, names, counts, vectors)
  )
