"""The first pass: text to numbered pieces on disk.

Each piece of text (some megabytes) is numbered with its own words and set
aside, so that the text is read, decompressed, parsed and tokenized only once.
"""

import multiprocessing
import os
import pathlib
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import NamedTuple

import numpy as np

from jaxemb.text import corpus, cuts, tokens

# From this size of the input files on, processes are worth their start.
_MANY_BYTES = 64 << 20

_MIN_PIECE_BYTES, _MAX_PIECE_BYTES = 1 << 16, 8 << 20

# A thread has two pieces in flight, some 80 MB: more would break the bound on
# memory without reading any faster.
_MAX_THREADS = 8

# ids, arena, starts and counts. Not .npy files, whose heads are Python code:
# Python 3.11 cannot parse in two threads when JAX is told of garbage in between
# (SystemError: AST constructor recursion depth mismatch).
_PIECE_DTYPES = (np.int32, np.uint8, np.int64, np.int64)

# (stage, done, total): how far 'reading' (bytes) or 'encoding' (pieces) is.
Progress = Callable[[str, int, int], None]


class Piece(NamedTuple):
  """A tokenized piece set aside on disk."""

  path: pathlib.Path
  counters: tokens.Counters
  file: int  # index of its source
  number: int  # in its source
  text_bytes: int
  num_different: int  # words


def num_threads() -> int:
  """Threads that are of use: one per processor, up to a bound."""
  try:
    cpus = len(os.sched_getaffinity(0))
  except AttributeError:  # not on macOS and Windows
    cpus = os.cpu_count() or 1
  return min(cpus, _MAX_THREADS)


def piece_bytes(total_bytes: int) -> int:
  """Size of the pieces of a corpus: parts of it are made of many."""
  return min(_MAX_PIECE_BYTES, max(_MIN_PIECE_BYTES, total_bytes // 64))


def _start_stripper() -> None:
  """Makes a process leave signals to its parent, and end with it."""
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
  parent = multiprocessing.parent_process()

  def watch() -> None:
    parent.join()
    os._exit(0)

  threading.Thread(target=watch, daemon=True).start()


def _scan_piece(
  piece: cuts.Piece,
  file: int,
  folder: pathlib.Path,
  definition: str,
  lowercase: bool,
) -> Piece:
  """Tokenizes one piece and sets it aside; `load` reads it."""
  path = folder / f'piece-{file:06d}-{piece.number:06d}'
  ids, table, counters = tokens.tokenize(
    piece.text, definition, lowercase, piece.ends_line
  )
  n = int(table.sizes[0])
  starts = table.starts[: n + 1]
  arrays = (ids, table.arena[: starts[n]], starts, table.counts[:n])
  with open(path, 'wb') as opened:
    np.array([len(array) for array in arrays], np.int64).tofile(opened)
    for array, dtype in zip(arrays, _PIECE_DTYPES, strict=True):
      array.astype(dtype, copy=False).tofile(opened)
  return Piece(path, counters, file, piece.number, len(piece.text), n)


def scan(
  sources: list[corpus.Source],
  reports: list[cuts.ReadReport],
  definition: str,
  lowercase: bool,
  folder: pathlib.Path,
  progress: Progress,
  wanted: Callable[[int, int], bool],
) -> list[Piece]:
  """Tokenizes all text into pieces on disk, in the order of the text.

  Several files are read at once because decompression is the slow part; a
  single file feeds all tokenizing threads.

  Args:
    sources: the files.
    reports: one for each file, filled while it is read.
    definition: of words, one of `tokens.DEFINITIONS`.
    lowercase: whether words are lower-cased.
    folder: where the pieces go.
    progress: called now and then with ('reading', bytes so far, of all).
    wanted: whether to read the piece of a file (index) and number.

  Raises:
    UserError: for text that cannot be used.
    OSError: if a piece cannot be written.
  """
  threads = num_threads()
  total_bytes = sum(source.size_bytes for source in sources)
  room = threading.BoundedSemaphore(2 * threads)
  failed = threading.Event()

  def finished(job: futures.Future) -> None:
    room.release()
    # A full disk should not wait for the end of the text.
    if job.exception() is not None:
      failed.set()

  def scan_source(index: int) -> list[futures.Future]:
    jobs = []
    for piece in corpus.pieces(
      sources[index],
      reports[index],
      piece_bytes(total_bytes),
      pool,
      lambda number: wanted(index, number),
    ):
      if failed.is_set():
        break
      room.acquire()
      job = tokenizers.submit(
        _scan_piece, piece, index, folder, definition, lowercase
      )
      job.add_done_callback(finished)
      jobs.append(job)
    return jobs

  with (
    futures.ThreadPoolExecutor(threads) as readers,
    futures.ThreadPoolExecutor(threads) as tokenizers,
    # Stripping markup is Python code. Processes start when first used; "spawn"
    # because a fork of a process with threads or JAX in it may hang.
    futures.ProcessPoolExecutor(
      threads, multiprocessing.get_context('spawn'), _start_stripper
    ) as strippers,
  ):
    pool = strippers if total_bytes > _MANY_BYTES else None
    reading = [readers.submit(scan_source, i) for i in range(len(sources))]
    try:
      for _ in _until_done(reading):
        read_bytes = sum(report.source_bytes for report in reports)
        progress('reading', read_bytes, total_bytes)
      return [job.result() for source in reading for job in source.result()]
    except BaseException:
      failed.set()
      for job in reading:
        job.cancel()
      raise


def _until_done(jobs: list[futures.Future]) -> Iterator[None]:
  """Comes back now and then until all are done; raises what they raise."""
  pending = set(jobs)
  while pending:
    done, pending = futures.wait(pending, timeout=0.2)
    for job in done:
      job.result()
    yield


def load(path: pathlib.Path) -> tuple[np.ndarray, ...]:
  """ids, arena, starts and counts of a piece's own words."""
  with open(path, 'rb') as file:
    lengths = np.fromfile(file, np.int64, len(_PIECE_DTYPES))
    return tuple(
      np.fromfile(file, dtype, length)
      for dtype, length in zip(_PIECE_DTYPES, lengths, strict=True)
    )


def load_words(path: pathlib.Path) -> tuple[np.ndarray, ...]:
  """arena, starts and counts of a piece's own words, without its ids."""
  with open(path, 'rb') as file:
    num_ids, *lengths = np.fromfile(file, np.int64, len(_PIECE_DTYPES)).tolist()
    file.seek(num_ids * np.dtype(_PIECE_DTYPES[0]).itemsize, os.SEEK_CUR)
    return tuple(
      np.fromfile(file, dtype, length)
      for dtype, length in zip(_PIECE_DTYPES[1:], lengths, strict=True)
    )
