"""The second pass: pieces with local ids to shards with global ones.

A table lookup per piece. Shards are raw int32 files; blocks, which end where a
piece ends, are the unit of shuffling and of the reader's position.
"""

import hashlib
import pathlib
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb.text import scan, tokens, word_table

BLOCK_WORDS = 4096  # at most so many words in a block
# A sentence may end before and behind every word.
MAX_BLOCK_IDS = 2 * BLOCK_WORDS + 1

_SHARD_IDS = 1 << 26  # a shard is closed when it has so many


@numba.njit(nogil=True, cache=True)
def _map_ids(ids: np.ndarray, new_ids: np.ndarray) -> np.ndarray:
  """Global ids without the words that have none."""
  out = np.empty(len(ids), np.int32)
  n = 0
  for i in range(len(ids)):
    if ids[i] == tokens.END:
      # Also at the start: the sentence may have begun in the piece before.
      if n == 0 or out[n - 1] != tokens.END:
        out[n] = tokens.END
        n += 1
    else:
      new_id = new_ids[ids[i]]
      if new_id >= 0:
        out[n] = new_id
        n += 1
  return out[:n].copy()


def _mapped(
  piece: scan.Piece, table: word_table.WordTable, ids: np.ndarray
) -> np.ndarray:
  local_ids, arena, starts, _ = scan.load(piece.path)
  entries = word_table.lookup(table, arena, starts)
  new_ids = np.where(entries >= 0, ids[entries], -1).astype(np.int32)
  piece.path.unlink()
  return _map_ids(local_ids, new_ids)


def _ahead(function: Callable, items: list) -> Iterator:
  """Results in order, computed by threads a little ahead of their use."""
  threads = scan.num_threads()
  with futures.ThreadPoolExecutor(threads) as pool:
    jobs = []
    for item in items:
      jobs.append(pool.submit(function, item))
      if len(jobs) > 2 * threads:
        yield jobs.pop(0).result()
    for job in jobs:
      yield job.result()


def write(
  pieces: list[scan.Piece],
  table: word_table.WordTable,
  ids: np.ndarray,
  folder: pathlib.Path,
  progress: scan.Progress,
) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
  """Writes the shards; removes the pieces.

  Args:
    pieces: in the order of the text.
    table: all words that were counted.
    ids: [num_words] int32, the id of each entry of `table`, or -1.
    folder: where shards go.
    progress: called with ('encoding', pieces done, of all).

  Returns:
    Per shard its `file` and `num_ids`; per piece its ids and their SHA-256.
  """
  shards: list[dict[str, Any]] = []
  written: list[tuple[int, str]] = []
  file = None
  mapped = _ahead(lambda p: _mapped(p, table, ids), pieces)
  try:
    for i, new_ids in enumerate(mapped):
      if file is None or shards[-1]['num_ids'] >= _SHARD_IDS:
        if file is not None:
          file.close()
        shards.append({'file': f'ids-{len(shards):05d}.bin', 'num_ids': 0})
        file = open(folder / shards[-1]['file'], 'wb')
      data = new_ids.astype('<i4', copy=False).tobytes()
      file.write(data)
      shards[-1]['num_ids'] += len(new_ids)
      written.append((len(new_ids), hashlib.sha256(data).hexdigest()))
      progress('encoding', i + 1, len(pieces))
  finally:
    if file is not None:
      file.close()
  return shards, written


@numba.njit(nogil=True, cache=True)
def block_starts(
  ids: np.ndarray, block_words: int
) -> tuple[np.ndarray, np.ndarray]:
  """[num_blocks] int64: where blocks of at most `block_words` words start.

  A block ends with a sentence; a sentence longer than a block is cut. Also
  [num_blocks] int32, the words of each block.
  """
  starts = np.empty(2 * (len(ids) // block_words) + 2, np.int64)
  sizes = np.empty(len(starts), np.int32)
  n = 0
  block = 0  # start of this block
  words = 0  # in this block
  sentence = 0  # start of this sentence
  sentence_words = 0
  for i in range(len(ids)):
    if ids[i] == tokens.END:
      sentence = i + 1
      sentence_words = 0
      continue
    if words == block_words:
      starts[n] = block
      if sentence_words < words:
        sizes[n] = words - sentence_words
        block = sentence
        words = sentence_words
      else:
        sizes[n] = words
        block = i
        words = 0
      n += 1
    words += 1
    sentence_words += 1
  if words > 0:
    starts[n] = block
    sizes[n] = words
    n += 1
  return starts[:n].copy(), sizes[:n].copy()


class Blocks(NamedTuple):
  """Where the blocks of a corpus are; pieces of the text have some each."""

  starts: np.ndarray  # [num_blocks + 1] int64, in the concatenated shards
  words: np.ndarray  # [num_blocks] int32
  pieces: np.ndarray  # [num_blocks] int32, the piece that a block is of


def blocks(
  folder: pathlib.Path, shards: list[dict[str, Any]], piece_ids: list[int]
) -> Blocks:
  """Cuts the pieces into blocks.

  Args:
    folder: of the shards.
    shards: what `write` returned; a piece lies in one shard.
    piece_ids: ids of each piece.
  """
  starts, words, pieces = [], [], []
  first = 0
  left = list(enumerate(piece_ids))[::-1]
  for shard in shards:
    ids = np.memmap(folder / shard['file'], '<i4', 'r')
    offset = 0
    while offset < len(ids):
      number, size = left.pop()
      found, sizes = block_starts(ids[offset : offset + size], BLOCK_WORDS)
      starts.append(first + offset + found)
      words.append(sizes)
      pieces.append(np.full(len(found), number, np.int32))
      offset += size
    first += len(ids)
  return Blocks(
    np.concatenate([*starts, [first]]).astype(np.int64),
    np.concatenate([*words, np.zeros(0, np.int32)]),
    np.concatenate([*pieces, np.zeros(0, np.int32)]),
  )
