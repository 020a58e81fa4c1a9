"""Files for the TensorBoard projector and projector.tensorflow.org.

`tensorboard --logdir=FOLDER` shows them; the web page takes the two .tsv files
by hand. Both draw at most 100,000 points, so only the most frequent words are
written.
"""

import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxemb.storage import atomic, float_text

MAX_WORDS = 100_000
_BLOCK_ROWS = 4096
_SPACE = re.compile(r'[ \t-\r]')
_CONFIG = b"""embeddings {
  tensor_name: "words"
  tensor_path: "tensors.tsv"
  metadata_path: "metadata.tsv"
}
"""


class Chosen(NamedTuple):
  """What was written: `num_words` of `num_total`, the most frequent ones."""

  num_words: int
  num_total: int


def write(
  folder: pathlib.Path | str,
  words: Sequence[str],
  vectors: np.ndarray,
  counts: np.ndarray | None = None,
  max_words: int = MAX_WORDS,
) -> Chosen:
  """Writes tensors.tsv, metadata.tsv and projector_config.pbtxt.

  White space in a word becomes an underscore.

  Args:
    folder: Made if missing; files of an earlier call are replaced whole.
    words: [vocab] words.
    vectors: [vocab, dim] float32; may be memory-mapped.
    counts: [vocab] int, occurrences, which choose the words to write and are
      a column; without them the first words are written.
    max_words: The most words to write.

  Returns:
    How many words were written, of how many.

  Raises:
    errors.UserError: A file cannot be written.
  """
  folder = pathlib.Path(folder)
  rows = np.arange(min(len(words), max_words))
  if counts is not None:
    rows = np.argsort(-np.asarray(counts), kind='stable')[:max_words]
  with atomic.write(folder / 'tensors.tsv') as file:
    for start in range(0, len(rows), _BLOCK_ROWS):
      block = vectors[rows[start : start + _BLOCK_ROWS]]
      lines = float_text.format_rows(np.asarray(block, '<f4'))
      file.write(b''.join(lines).replace(b' ', b'\t'))
  with atomic.write(folder / 'metadata.tsv') as file:
    # A single column has no header, by the projector's rules.
    lines = [] if counts is None else ['word\tcount']
    for row in rows:
      word = _SPACE.sub('_', words[row]) or '_'
      lines.append(word if counts is None else f'{word}\t{counts[row]}')
    file.write('\n'.join([*lines, '']).encode('utf-8', 'backslashreplace'))
  with atomic.write(folder / 'projector_config.pbtxt') as file:
    file.write(_CONFIG)
  return Chosen(len(rows), len(words))
