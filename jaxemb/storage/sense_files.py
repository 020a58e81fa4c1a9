"""Files of words with several vectors, beside those of `word2vec_format`.

priors.txt     `word sense prior` lines, in the order of the rows
outputs.npy    [vocab or vocab - 1, dim] float32, see `evaluation.senses`
means.npy      [rows, dim] float32, of contexts, where those tell senses
senses.json    what the model was trained with; no outputs.npy if loss is null,
               no means.npy without concentration
dmwe.txt       the text format of Microsoft's distributed_skipgram_mixture:
               `vocab rows dim`; of each word `word senses`, then a line
               `prior v1 v2 ...` for each of its senses
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.storage import atomic, float_text

_FACTS = {'loss', 'negatives', 'window'}
FILES = ('priors.txt', 'outputs.npy', 'senses.json')


class Stored(NamedTuple):
  """What the files hold."""

  words: list[str]
  starts: np.ndarray  # [vocab + 1] int64, first row of each word
  priors: np.ndarray  # [rows] float32
  outputs: np.ndarray | None  # [n, dim] float32; None without facts['loss']
  means: np.ndarray | None  # [rows, dim] float32; None = there are none
  facts: dict[str, Any]  # of senses.json


def has(folder: pathlib.Path) -> bool:
  """Whether vectors in a folder are those of senses."""
  return (folder / 'senses.json').exists()


def remove(folder: pathlib.Path) -> None:
  """Removes all files, if they are there."""
  for name in ('senses.json', *FILES, 'means.npy', 'dmwe.txt'):
    (folder / name).unlink(missing_ok=True)


def write(folder: pathlib.Path, stored: Stored, vectors: np.ndarray) -> None:
  """Writes all files.

  Args:
    folder: Made if missing.
    stored: Words without white space.
    vectors: [rows, dim] float32.

  Raises:
    errors.UserError: A file cannot be written.
  """
  starts = stored.starts.tolist()
  for name, array in (('outputs', stored.outputs), ('means', stored.means)):
    if array is None:
      (folder / f'{name}.npy').unlink(missing_ok=True)
      continue
    with atomic.write(folder / f'{name}.npy') as file:
      np.save(file, np.ascontiguousarray(array, '<f4'))
  with atomic.write(folder / 'priors.txt') as file:
    for i, word in enumerate(stored.words):
      for row in range(starts[i], starts[i + 1]):
        line = f'{word} {row - starts[i]} {stored.priors[row]:.9g}\n'
        file.write(line.encode())
  with atomic.write(folder / 'dmwe.txt') as file:
    file.write(
      f'{len(starts) - 1} {len(vectors)} {vectors.shape[1]}\n'.encode()
    )
    for i, word in enumerate(stored.words):
      rows = slice(starts[i], starts[i + 1])
      file.write(f'{word} {rows.stop - rows.start}\n'.encode())
      table = np.column_stack([stored.priors[rows], vectors[rows]])
      file.writelines(float_text.format_rows(table.astype(np.float32)))
  with atomic.write(folder / 'senses.json') as file:
    file.write(json.dumps(stored.facts, indent=1).encode())


def read(folder: pathlib.Path, names: Sequence[str]) -> Stored:
  """Reads what `write` wrote.

  Args:
    folder: of the files.
    names: [rows], of the vectors.

  Raises:
    errors.UserError: A file is missing or damaged, or is of other vectors.
  """
  try:
    facts = json.loads((folder / 'senses.json').read_text())
    text = (folder / 'priors.txt').read_text(encoding='utf-8')
    fields = [line.rsplit(' ', 2) for line in text.split('\n') if line]
    rows = [(word, int(k), float(prior)) for word, k, prior in fields]
    if not (isinstance(facts, dict) and facts.keys() >= _FACTS):
      raise ValueError(f'senses.json lacks one of {", ".join(sorted(_FACTS))}')
    outputs = means = None
    if facts['loss'] is not None:
      outputs = np.load(folder / 'outputs.npy', mmap_mode='r')
    if 'concentration' in facts:
      means = np.load(folder / 'means.npy', mmap_mode='r')
      if means.ndim != 2 or len(means) != len(rows):
        raise ValueError(f'means.npy has the form {means.shape}')
  except (OSError, ValueError, EOFError) as error:
    raise errors.UserError(
      f'{folder}: {", ".join(FILES)} do not go together ({error}); export again'
    ) from error
  starts = [i for i, (_, k, _) in enumerate(rows) if k == 0]
  if len(rows) != len(names) or not starts or starts[0]:
    raise errors.UserError(
      f'{folder}: priors.txt has {len(rows)} lines, vocab.txt {len(names)}; '
      'export again'
    )
  sizes = (len(starts), len(starts) - 1)
  if outputs is not None and (outputs.ndim != 2 or len(outputs) not in sizes):
    raise errors.UserError(
      f'{folder}: outputs.npy has the form {outputs.shape}, priors.txt '
      f'{len(starts)} words; export again'
    )
  return Stored(
    [rows[i][0] for i in starts],
    np.array([*starts, len(rows)], np.int64),
    np.array([prior for *_, prior in rows], np.float32),
    outputs,
    means,
    facts,
  )
