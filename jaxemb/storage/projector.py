"""Files for the TensorBoard projector and projector.tensorflow.org.

`tensorboard --logdir=FOLDER` shows them; the web page takes the two .tsv files
by hand. Both draw at most 100,000 points, so only the most frequent words are
written.
"""

import pathlib
from collections.abc import Sequence

import numpy as np

from jaxemb.storage import atomic, word2vec_format

MAX_WORDS = 100_000
_BLOCK_ROWS = 4096
_CONFIG = b"""embeddings {
  tensor_name: "words"
  tensor_path: "tensors.tsv"
  metadata_path: "metadata.tsv"
}
"""


def write(
  folder: pathlib.Path | str,
  words: Sequence[str],
  vectors: np.ndarray,
  counts: np.ndarray,
  max_words: int = MAX_WORDS,
) -> int:
  """Writes tensors.tsv, metadata.tsv and projector_config.pbtxt.

  Args:
    folder: created if missing; earlier files are replaced whole.
    words: [vocab] words; white space becomes underscores.
    vectors: [vocab, dim] float32; may be memory-mapped.
    counts: [vocab] int occurrences, by which words are chosen.
    max_words: the most words to write.

  Returns:
    Number of words written.

  Raises:
    errors.UserError: a file cannot be written.
  """
  folder = pathlib.Path(folder)
  rows = np.argsort(-np.asarray(counts), kind='stable')[:max_words]
  with atomic.write(folder / 'tensors.tsv') as file:
    for start in range(0, len(rows), _BLOCK_ROWS):
      block = np.asarray(vectors[rows[start : start + _BLOCK_ROWS]])
      for line in word2vec_format.text_rows(block):
        file.write(line.replace(b' ', b'\t') + b'\n')
  spelled, _ = word2vec_format.spell([words[row] for row in rows])
  with atomic.write(folder / 'metadata.tsv') as file:
    file.write(b'word\tcount\n')
    for word, row in zip(spelled, rows, strict=True):
      file.write(b'%b\t%d\n' % (word, counts[row]))
  with atomic.write(folder / 'projector_config.pbtxt') as file:
    file.write(_CONFIG)
  return len(rows)
