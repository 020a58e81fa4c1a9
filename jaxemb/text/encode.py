"""Text to id shards, once: afterwards the corpus is memory-mapped.

  read    Each piece of the text (some megabytes) is tokenized with words and
          ids of its own, which are written to disk.
  count   The words of all pieces are added up; the vocabulary is chosen.
  map     The pieces' ids become ids of the vocabulary and are appended to the
          shards, in the order of the text.

Text is thus read, decompressed and parsed a single time, and memory holds a few
pieces and a bounded number of words, whatever the size: words lie on disk by
buckets of their hashes, and as many buckets are counted at once as fit. Results
do not depend on the number of threads or processes. A corpus folder in the
cache holds

  manifest.json   settings, input files with sizes and hashes, shards, counters
  vocab.txt       `word count` lines, most frequent first
  ids-00000.bin   int32 ids, `tokenize.END` after each sentence
  blocks.npz      `Blocks`, the units of shuffling
  pieces.npy      [num_pieces, 2] int32, file and number of each piece

Devices train on parts of the corpus side by side: piece n of file f belongs to
part (f + n) % num_parts. A process reads only the parts of its own devices.
"""

import contextlib
import dataclasses
import errno
import hashlib
import io
import itertools
import json
import multiprocessing
import os
import pathlib
import platform
import shutil
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, BinaryIO, NamedTuple

import numba
import numpy as np
import psutil

from jaxemb import errors
from jaxemb.storage import word2vec_format
from jaxemb.text import sources, tokenize, vocab, wiki

BLOCK_WORDS = 4096  # at most
# A sentence may end before and after every word.
MAX_BLOCK_IDS = 2 * BLOCK_WORDS + 1

MAX_HELD_WORDS = 1 << 22  # of a table in memory, some 200 MB
# Beyond 2 billion words, summed over the pieces, one may exceed that limit.
NUM_BUCKETS = 512

_FORMAT = 4
_MIN_PIECE_BYTES, _MAX_PIECE_BYTES = 1 << 16, 8 << 20
_SHARD_IDS = 1 << 26  # a shard is closed once it has that many

# A thread has two pieces in flight, some 80 MB: more would break the bound on
# memory without reading any faster.
_MAX_THREADS = 8
# Input files of this size are worth the start of processes.
_MANY_BYTES = 64 << 20
# An older temporary folder belongs to no process, even on another machine.
_LEFTOVER_SECS = 7 * 24 * 3600

# (stage, done, total): progress of 'reading' (bytes) or 'encoding' (pieces).
Progress = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class Settings:
  """What the ids depend on besides the text."""

  tokens: str  # one of tokenize.DEFINITIONS
  lowercase: bool
  min_count: int
  max_vocab: int  # 0 = no limit
  counts: str  # a file of `word count` lines instead of counting, or ''


class Readers(NamedTuple):
  """The processes that read a corpus together, seen from one of them."""

  num_parts: int  # of the corpus
  local_parts: range  # read by this process
  process: int
  num_processes: int
  # The bytes that each process passes, by process; all take part.
  gather: Callable[[bytes], list[bytes]]


# One process reads everything, however many parts it is divided into.
ALONE = Readers(1, range(1), 0, 1, lambda data: [data])


class Blocks(NamedTuple):
  """Runs of sentences within a piece; they are shuffled as one."""

  starts: np.ndarray  # [num_blocks + 1] int64, in the concatenated shards
  words: np.ndarray  # [num_blocks] int32
  pieces: np.ndarray  # [num_blocks] int32, the piece that contains the block


class Encoded(NamedTuple):
  """A corpus ready for training, as far as this process reads it."""

  folder: pathlib.Path
  vocabulary: vocab.Vocabulary
  shards: tuple[np.ndarray, ...]  # memory-mapped int32 ids
  blocks: Blocks
  pieces: np.ndarray  # [num_pieces, 2] int32, file and number of each
  num_words: int  # of the whole corpus, without words outside the vocabulary
  manifest: dict[str, Any]

  def block(self, number: int) -> np.ndarray:
    """[n] int32, the ids of a block."""
    start, stop = self.blocks.starts[number : number + 2].tolist()
    for shard in self.shards:
      if start < len(shard):
        return shard[start:stop]
      start -= len(shard)
      stop -= len(shard)
    raise IndexError(number)


class Division(NamedTuple):
  """A corpus in parts, which are read side by side."""

  # The parts that this process reads: [n] int64, indices into `blocks`.
  local: dict[int, np.ndarray]
  block_words: tuple[np.ndarray, ...]  # of every part, [its blocks] int32


class _Piece(NamedTuple):
  """A tokenized piece of text on disk.

  Its file has, for its n words by buckets: int64 the first word of each bucket
  and of none, [n + 1] where each word starts, [n] counts, [n] numbers of the
  words in the ids; then the bytes of the words, and int32 ids.
  """

  file: int  # index of its source
  number: int  # in its source
  path: pathlib.Path
  counters: tokenize.Counters
  text_bytes: int
  num_different: int  # words


def encode(
  path: str,
  settings: Settings,
  cache: pathlib.Path,
  progress: Progress,
  readers: Readers = ALONE,
) -> Encoded:
  """The corpus at `path` as id shards, taken from the cache if unchanged.

  Of several processes each encodes the parts that it reads; the vocabulary and
  the numbers in the manifest are those of the whole corpus. `progress` is
  called now and then from this thread.

  Raises:
    UserError: for input that cannot be used.
  """
  files = sources.find(path)
  sizes_bytes = {str(source.path): source.size_bytes for source in files}
  everyone = _gather_json(readers, [sizes_bytes, [*readers.local_parts]])
  check_same_files(readers.process, [sizes for sizes, _ in everyone])
  # What a lower process reads as well, it counts.
  lower = itertools.chain(*(parts for _, parts in everyone[: readers.process]))
  counted_parts = {*readers.local_parts} - {*lower}
  identity = [dataclasses.asdict(settings)]
  identity += [[str(source.path.absolute()) for source in files], _FORMAT]
  num_parts, local_parts, process, num_processes, _ = readers
  # Processes that read the same parts may share a cache, but not a folder.
  identity.append([num_parts, process, *local_parts] * (num_processes > 1))
  name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
  folder = cache / 'corpora' / name
  encoded = _reuse(folder, files, settings)
  # All or none: the processes choose a vocabulary together.
  if all(readers.gather(b'' if encoded is None else b'reused')):
    return encoded
  temporary = folder.with_name(f'{name}.tmp-{platform.node()}-{os.getpid()}')
  shutil.rmtree(temporary, ignore_errors=True)
  try:
    temporary.mkdir(parents=True)
    _remove_leftovers(temporary.parent)
    _encode(files, settings, temporary, progress, readers, counted_parts)
    # Opened before the move: another job may replace it at any moment.
    encoded = _open(temporary)._replace(folder=folder)
    shutil.rmtree(folder, ignore_errors=True)
    _move(temporary, folder)
    return encoded
  except OSError as error:
    raise errors.UserError(
      f'cannot write the encoded corpus to {folder}: '
      f'{error.strerror or error}; free space there or set '
      'JAXEMB_CACHE to another folder'
    ) from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def divide(
  corpus: Encoded, num_parts: int, readers: Readers = ALONE
) -> Division:
  """Divides a corpus into parts; all processes take part."""
  part_of_piece = _part_of(*corpus.pieces.T, num_parts)
  part_of_block = part_of_piece[corpus.blocks.pieces]
  is_alone = readers.num_processes == 1
  parts = range(num_parts) if is_alone else readers.local_parts
  local = {i: np.flatnonzero(part_of_block == i) for i in parts}
  words = [corpus.blocks.words[blocks] for blocks in local.values()]
  block_words = {}
  for indices, *arrays in _gather_arrays(readers, np.array(parts), *words):
    block_words |= zip(indices.tolist(), arrays, strict=True)
  return Division(local, tuple(block_words[i] for i in range(num_parts)))


def _part_of(file: Any, number: Any, num_parts: int) -> Any:
  return (file + number) % num_parts


def check_same_files(process: int, sizes_bytes: list[dict[str, int]]) -> None:
  """Checks that all processes see files of the same names and sizes.

  Otherwise some words would be read twice and others not at all. `sizes_bytes`
  are those that each process sees, by path.

  Raises:
    UserError: in every process, naming the first difference.
  """
  ours = sizes_bytes[process]
  for other, theirs in enumerate(sizes_bytes):
    for path in sorted(ours.keys() | theirs.keys()):
      here, there = (
        f'has {files[path]:,} bytes' if path in files else 'is missing'
        for files in (ours, theirs)
      )
      if here != there:
        raise errors.UserError(
          f'{path} {there} in process {other} and {here} in process {process}; '
          'give all processes the same text'
        )


def _encode(
  files: list[sources.Source],
  settings: Settings,
  folder: pathlib.Path,
  progress: Progress,
  readers: Readers,
  counted_parts: set[int],
) -> None:
  """Reads, counts and maps the text and writes the files of the folder."""
  counts_sha256 = ''
  if settings.counts:  # refused before the text is read
    counts_path = pathlib.Path(settings.counts)
    table = vocab.read_counts(counts_path)
    num_different = int(table.sizes[0])
    counts_sha256 = sources.file_sha256(counts_path)
  reports = [wiki.ReadReport() for _ in files]
  pieces = _read(files, reports, settings, folder, progress, readers)
  names = np.array([x[:2] for x in pieces], np.int32).reshape(-1, 2)
  is_counted = np.isin(_part_of(*names.T, readers.num_parts), [*counted_parts])
  counted = list(itertools.compress(pieces, is_counted))
  if not settings.counts:
    table, num_different = _count(counted, settings, readers)
  vocabulary, ids = vocab.select(table, settings.min_count, settings.max_vocab)
  vocab.write_counts(folder / 'vocab.txt', vocabulary)
  shards, blocks, hashes = _map(pieces, table, ids, folder, progress)
  np.savez(folder / 'blocks.npz', **blocks._asdict())
  np.save(folder / 'pieces.npy', names)
  # Files that cannot be divided are reported on by the first process alone.
  own_reports = [
    report
    for source, report in zip(files, reports, strict=True)
    if readers.process == 0 or sources.is_divisible(source)
  ]
  num_words = int(blocks.words[is_counted[blocks.pieces]].sum())
  mine = {
    'num_words': num_words,
    'num_blocks': int(is_counted[blocks.pieces].sum()),
    'text_bytes': sum(piece.text_bytes for piece in counted),
    'pages': sum(report.pages for report in own_reports),
    'dropped': _dropped(counted, own_reports, num_words),
    'problems': [line for report in own_reports for line in report.problems],
    'pieces': [
      [*name, sha256]
      for name, sha256 in zip(names.tolist(), hashes, strict=True)
    ],
  }
  everyone = _gather_json(readers, mine)
  totals = {
    name: sum(x[name] for x in everyone)
    for name in ('num_words', 'num_blocks', 'text_bytes', 'pages')
  }
  if not totals['num_words']:
    raise errors.UserError(
      f'no word of {settings.counts} occurs in the text; check '
      '--config.data.counts, --config.data.lowercase and --config.data.tokens'
    )
  dropped = {
    name: sum(x['dropped'][name] for x in everyone) for name in mine['dropped']
  }
  # Several processes may read the same piece or meet the same damage.
  problems = dict.fromkeys(line for x in everyone for line in x['problems'])
  hashed = sorted({tuple(piece) for x in everyone for piece in x['pieces']})
  vocab_sha256 = sources.file_sha256(folder / 'vocab.txt')
  content = ' '.join([vocab_sha256, *('{} {} {}'.format(*x) for x in hashed)])
  num_vocab_words = len(vocabulary.words)
  manifest = {
    'format': _FORMAT,
    'settings': dataclasses.asdict(settings),
    'counts_sha256': counts_sha256,
    'files': [
      source._asdict()
      | {'path': str(source.path), 'sha256': report.sha256}
      | {'read_bytes': report.source_bytes}  # by this process
      for source, report in zip(files, reports, strict=True)
    ],
    'shards': shards,
    # Of vocabulary and ids, whatever the process: what a run resumes on.
    'fingerprint': hashlib.sha256(content.encode()).hexdigest(),
    'num_vocab_words': num_vocab_words,
    **totals,
    'dropped': {
      **dropped,
      'words_below_vocabulary': num_different - num_vocab_words,
      'problems': list(problems),
    },
  }
  (folder / 'manifest.json').write_text(json.dumps(manifest, indent=1))


def _dropped(
  pieces: list[_Piece], reports: list[wiki.ReadReport], num_words: int
) -> dict[str, int]:
  """Counts what was lost between the bytes and the `num_words` ids."""
  counters = [piece.counters for piece in pieces]
  num_read = sum(c.num_words for c in counters)
  return {
    'invalid_utf8_bytes': sum(c.invalid_bytes for c in counters)
    + sum(report.replaced_bytes for report in reports),
    'overlong_words': sum(c.overlong_words for c in counters),
    'lost_bytes': sum(report.lost_bytes for report in reports),
    'redirects': sum(report.redirects for report in reports),
    'other_namespace_pages': sum(r.other_namespace_pages for r in reports),
    'out_of_vocabulary_words': num_read - num_words,
  }


# Read: text to tokenized pieces on disk.


def num_threads() -> int:
  """Number of useful threads: one per usable processor, up to a bound."""
  try:
    cpus = len(os.sched_getaffinity(0))
  except AttributeError:  # not on macOS and Windows
    cpus = os.cpu_count() or 1
  return min(cpus, _MAX_THREADS)


def piece_bytes(total_bytes: int) -> int:
  """Size of a corpus's pieces: small enough for parts to have many of them."""
  return min(_MAX_PIECE_BYTES, max(_MIN_PIECE_BYTES, total_bytes // 64))


def _read(
  files: list[sources.Source],
  reports: list[wiki.ReadReport],
  settings: Settings,
  folder: pathlib.Path,
  progress: Progress,
  readers: Readers,
) -> list[_Piece]:
  """Tokenizes this process's pieces, in the order of the text.

  Several files are read at once because decompression is the slow part; a
  single file feeds all tokenizing threads. Reports are filled on the way.
  """
  threads = num_threads()
  total_bytes = sum(source.size_bytes for source in files)
  # Two pieces in flight for each thread, over all the files being read.
  depth = max(1, 2 * threads // len(files) - 1)
  stopped = threading.Event()

  def read_source(file: int) -> list[_Piece]:
    texts = sources.pieces(
      files[file],
      reports[file],
      piece_bytes(total_bytes),
      strippers if total_bytes > _MANY_BYTES else None,
      lambda number: (
        _part_of(file, number, readers.num_parts) in readers.local_parts
      ),
    )
    texts = itertools.takewhile(lambda _: not stopped.is_set(), texts)
    jobs = ((text, file, settings, folder) for text in texts)
    return list(sources.map_ahead(tokenizers, _tokenize_piece, jobs, depth))

  with (
    futures.ThreadPoolExecutor(threads) as file_readers,
    futures.ThreadPoolExecutor(threads) as tokenizers,
    # Stripping markup is Python code. Processes start when first used; "spawn"
    # because a fork of a process with threads or JAX in it may hang.
    futures.ProcessPoolExecutor(
      threads, multiprocessing.get_context('spawn'), _start_stripper
    ) as strippers,
  ):
    jobs = [file_readers.submit(read_source, i) for i in range(len(files))]
    try:
      pending = set(jobs)
      while pending:
        done, pending = futures.wait(pending, timeout=0.2)
        for job in done:
          job.result()
        read_bytes = sum(report.source_bytes for report in reports)
        progress('reading', read_bytes, total_bytes)
      return [piece for job in jobs for piece in job.result()]
    except BaseException:
      stopped.set()
      for job in jobs:
        job.cancel()
      raise


def _start_stripper() -> None:
  """Worker initializer: ignores signals, exits when the parent dies."""
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
  parent = multiprocessing.parent_process()

  def watch() -> None:
    parent.join()
    os._exit(0)

  threading.Thread(target=watch, daemon=True).start()


def _tokenize_piece(
  piece: sources.Piece, file: int, settings: Settings, folder: pathlib.Path
) -> _Piece:
  path = folder / f'piece-{file:06d}-{piece.number:06d}'
  ids, table, counters = tokenize.tokenize(
    piece.text, settings.tokens, settings.lowercase, piece.ends_line
  )
  buckets = tokenize.buckets(table, NUM_BUCKETS)
  order = np.argsort(buckets, kind='stable')
  sizes = np.bincount(buckets, minlength=NUM_BUCKETS)
  arena, starts, counts = tokenize.subset(table, order)
  with open(path, 'wb') as opened:
    for array in (np.cumsum([0, *sizes]), starts, counts, order, arena, ids):
      opened.write(array)
  text_bytes = len(piece.text)
  return _Piece(file, piece.number, path, counters, text_bytes, len(order))


def _read_words(
  file: BinaryIO, n: int, first: int, stop: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Arena, starts and counts of buckets first..stop-1 of a piece of n words."""

  def read(position: int, count: int) -> np.ndarray:
    file.seek(8 * position)
    return np.fromfile(file, np.int64, count)

  start, end = read(first, stop - first + 1)[[0, -1]]
  starts = read(NUM_BUCKETS + 1 + start, end - start + 1)
  counts = read(NUM_BUCKETS + n + 2 + start, end - start)
  file.seek(8 * (NUM_BUCKETS + 3 * n + 2) + starts[0])
  arena = np.fromfile(file, np.uint8, starts[-1] - starts[0])
  return arena, starts - starts[0], counts


# Count: exactly and in bounded memory, independent of order and of processes.


def _count(
  pieces: list[_Piece], settings: Settings, readers: Readers
) -> tuple[tokenize.WordTable, int]:
  """Counts the words of all processes; all get the same.

  Returns at least the words that get a row, and how many different words there
  are.

  Raises:
    UserError: if no word occurs often enough.
  """
  most_words = sum(
    _gather_json(readers, sum(piece.num_different for piece in pieces))
  )
  num_tables = min(max(1, -(-most_words // MAX_HELD_WORDS)), NUM_BUCKETS)
  min_count, max_vocab = settings.min_count, settings.max_vocab
  chosen = _empty()
  num_different = most = 0
  for i in range(num_tables):
    first, stop = (NUM_BUCKETS * j // num_tables for j in (i, i + 1))
    table = _empty()
    for piece in pieces:
      with open(piece.path, 'rb') as file:
        words = _read_words(file, piece.num_different, first, stop)
      table = tokenize.merge(table, *words)
    table = _sum_tables(readers, table)
    counts = table.counts[: int(table.sizes[0])]
    num_different += len(counts)
    most = max(most, int(counts.max(initial=0)))
    entries = np.flatnonzero(counts >= min_count)
    chosen = tokenize.merge(chosen, *tokenize.subset(table, entries))
    # Not for every table: it takes as long as sorting them all.
    if max_vocab and chosen.sizes[0] > 2 * max_vocab:
      best = vocab.best(chosen, min_count, max_vocab)
      min_count = int(chosen.counts[best[-1]])  # that a better word must reach
      chosen = tokenize.merge(_empty(), *tokenize.subset(chosen, best))
  if not chosen.sizes[0]:
    raise vocab.none_left(min_count, num_different, most)
  return chosen, num_different


def _empty() -> tokenize.WordTable:
  return tokenize.empty(1 << 16, 1 << 20)


def _sum_tables(
  readers: Readers, table: tokenize.WordTable
) -> tokenize.WordTable:
  """The counts of all processes added up."""
  if readers.num_processes == 1:
    return table
  total = _empty()
  entries = np.arange(int(table.sizes[0]))
  for words in _gather_arrays(readers, *tokenize.subset(table, entries)):
    total = tokenize.merge(total, *words)
  return total


# Map: pieces with ids of their own to shards with ids of the vocabulary.


def _map(
  pieces: list[_Piece],
  table: tokenize.WordTable,
  ids: np.ndarray,
  folder: pathlib.Path,
  progress: Progress,
) -> tuple[list[dict[str, Any]], Blocks, list[str]]:
  """Writes the shards and removes the pieces.

  `ids` [num_words] int32 has the id of each entry of `table`, or -1. Returns
  `file` and `num_ids` of each shard, the blocks, and each piece's SHA-256.
  """
  shards, hashes = [], []
  starts, words, owners = [], [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
  num_ids, threads = 0, num_threads()
  with futures.ThreadPoolExecutor(threads) as pool:
    jobs = ((piece, table, ids) for piece in pieces)
    mapped = sources.map_ahead(pool, _map_piece, jobs, 2 * threads)
    for i, (new_ids, block_starts, block_words, sha256) in enumerate(mapped):
      if len(new_ids):
        if not shards or shards[-1]['num_ids'] >= _SHARD_IDS:
          shards.append({'file': f'ids-{len(shards):05d}.bin', 'num_ids': 0})
        with open(folder / shards[-1]['file'], 'ab') as file:
          file.write(new_ids)
        shards[-1]['num_ids'] += len(new_ids)
      starts.append(num_ids + block_starts)
      words.append(block_words)
      owners.append(np.full(len(block_words), i, np.int32))
      hashes.append(sha256)
      num_ids += len(new_ids)
      progress('encoding', i + 1, len(pieces))
  starts.append(np.array([num_ids], np.int64))
  return shards, Blocks(*map(np.concatenate, (starts, words, owners))), hashes


def _map_piece(
  piece: _Piece, table: tokenize.WordTable, ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
  """Ids of a piece, starts and words of its blocks, SHA-256 of the ids."""
  n = piece.num_different
  with open(piece.path, 'rb') as file:
    arena, starts, _ = _read_words(file, n, 0, NUM_BUCKETS)
    local_ids = np.fromfile(file, np.int32)
    file.seek(8 * (NUM_BUCKETS + 2 * n + 2))
    order = np.fromfile(file, np.int64, n)
  piece.path.unlink()
  entries = tokenize.lookup(table, arena, starts)
  new_ids = np.empty(n, np.int32)
  new_ids[order] = np.where(entries >= 0, ids[entries], -1)
  mapped = _map_ids(local_ids, new_ids)
  sha256 = hashlib.sha256(mapped).hexdigest()
  return mapped, *block_starts(mapped, BLOCK_WORDS), sha256


@numba.njit(nogil=True, cache=True)
def _map_ids(ids, new_ids):
  """Replaces ids, drops words whose new id is -1 and repeated ends."""
  out = np.empty(len(ids), np.int32)
  n = 0
  for i in range(len(ids)):
    if ids[i] == tokenize.END:
      # Also at the start: the sentence may have begun in the piece before.
      if n == 0 or out[n - 1] != tokenize.END:
        out[n] = tokenize.END
        n += 1
    else:
      new_id = new_ids[ids[i]]
      if new_id >= 0:
        out[n] = new_id
        n += 1
  return out[:n].copy()


@numba.njit(nogil=True, cache=True)
def block_starts(
  ids: np.ndarray, block_words: int
) -> tuple[np.ndarray, np.ndarray]:
  """[num_blocks] int64, where blocks of at most `block_words` words start.

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
    if ids[i] == tokenize.END:
      sentence = i + 1
      sentence_words = 0
      continue
    if words == block_words:
      is_cut = sentence_words >= words  # within a sentence
      starts[n] = block
      sizes[n] = words if is_cut else words - sentence_words
      block = i if is_cut else sentence
      words -= sizes[n]
      n += 1
    words += 1
    sentence_words += 1
  if words > 0:
    starts[n] = block
    sizes[n] = words
    n += 1
  return starts[:n].copy(), sizes[:n].copy()


# The cache.


def _move(temporary: pathlib.Path, folder: pathlib.Path) -> None:
  try:
    temporary.rename(folder)
  except OSError as error:
    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
      raise
    # Another job was faster; its result is the same.


def _remove_leftovers(folder: pathlib.Path) -> None:
  """Removes what runs that were killed while encoding left behind."""
  for path in folder.glob('*.tmp-*'):
    node, pid = path.name.split('.tmp-', 1)[1].rsplit('-', 1)
    is_dead = node == platform.node() and not psutil.pid_exists(int(pid))
    if is_dead or time.time() - path.stat().st_mtime > _LEFTOVER_SECS:
      shutil.rmtree(path, ignore_errors=True)


def _reuse(
  folder: pathlib.Path, files: list[sources.Source], settings: Settings
) -> Encoded | None:
  """The corpus of an earlier run, if its files and all inputs are unchanged."""
  with contextlib.suppress(
    OSError,
    EOFError,
    ValueError,
    KeyError,
    zipfile.BadZipFile,
    errors.UserError,
  ):
    encoded = _open(folder)
    manifest = encoded.manifest
    if settings.counts:
      counts_sha256 = sources.file_sha256(pathlib.Path(settings.counts))
      if counts_sha256 != manifest['counts_sha256']:
        return None
    for source, known in zip(files, manifest['files'], strict=True):
      # A copied or touched file has another time but the same content.
      if source.size_bytes != known['size_bytes'] or (
        source.mtime_ns != known['mtime_ns']
        and sources.file_sha256(source.path) != known['sha256']
      ):
        return None
    return encoded
  return None


def _open(folder: pathlib.Path) -> Encoded:
  """Opens a corpus folder; raises various errors if it is damaged."""
  manifest = json.loads((folder / 'manifest.json').read_text())
  shards = tuple(
    np.asarray(np.memmap(folder / shard['file'], '<i4', 'r'))
    for shard in manifest['shards']
  )
  if [len(x) for x in shards] != [x['num_ids'] for x in manifest['shards']]:
    raise ValueError('a shard has changed')
  vocabulary = vocab.Vocabulary(
    *word2vec_format.read_vocab(folder / 'vocab.txt')
  )
  if len(vocabulary.words) != manifest['num_vocab_words']:
    raise ValueError('the vocabulary has changed')
  return Encoded(
    folder,
    vocabulary,
    shards,
    Blocks(**np.load(folder / 'blocks.npz')),
    np.load(folder / 'pieces.npy'),
    manifest['num_words'],
    manifest,
  )


# What processes tell each other.


def _gather_arrays(
  readers: Readers, *arrays: np.ndarray
) -> Iterator[list[np.ndarray]]:
  """The arrays of every process."""
  message = io.BytesIO()
  np.savez(message, *arrays)
  for data in readers.gather(message.getvalue()):
    yield [*np.load(io.BytesIO(data)).values()]


def _gather_json(readers: Readers, value: Any) -> list[Any]:
  return list(map(json.loads, readers.gather(json.dumps(value).encode())))
