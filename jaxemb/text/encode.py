"""Text to ids, once: afterwards the corpus is memory-mapped.

  read    Each piece of the text (some megabytes) is tokenized with words and
          ids of its own, which are written to disk.
  count   The words of all pieces are added up; the vocabulary is chosen.
  map     The pieces' ids become ids of the vocabulary and are appended to one
          file, in the order of the text.

Text is thus read, decompressed and parsed a single time, and memory holds a few
pieces and a bounded number of words, whatever the size: the words of a piece
lie on disk in the order of their hashes, and a range of hashes is counted at
once that fits. Results do not depend on the number of threads or processes. A
corpus folder in the cache holds

  manifest.json   settings, input files with sizes and hashes, counters
  vocab.txt       `word count` lines, most frequent first
  ids.bin         int32 ids, `tokenize.END` after each sentence
  blocks.npz      `Blocks`, the units of shuffling

Devices train on parts of the corpus side by side, to which pieces are dealt in
turn: piece n of file f belongs to part (f + n) % num_parts. A process reads
only the parts of its own devices.
"""

import collections
import contextlib
import dataclasses
import functools
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numba
import numpy as np
import psutil

from jaxemb import errors
from jaxemb.data import base
from jaxemb.storage import word2vec_format
from jaxemb.text import sources, tokenize, vocab, wiki

BLOCK_WORDS = 4096  # at most
# A sentence may end before and after every word.
MAX_BLOCK_IDS = 2 * BLOCK_WORDS + 1

MAX_HELD_WORDS = 1 << 22  # of a table in memory, some 200 MB

_FORMAT = 5
_MIN_PIECE_BYTES, _MAX_PIECE_BYTES = 1 << 16, 8 << 20

# A thread has two pieces in flight, some 80 MB: more would break the bound on
# memory without reading any faster.
_MAX_THREADS = 8
# Input files of this size are worth the start of processes.
_MANY_BYTES = 64 << 20
# An older temporary folder belongs to no process, even on another machine.
_LEFTOVER_SECS = 7 * 24 * 3600

# What may be lost between the bytes and the words.
_DROPPED = (
  'invalid_utf8_bytes',
  'overlong_words',
  'lost_bytes',
  'redirects',
  'other_namespace_pages',
)


class Settings(NamedTuple):
  """What the ids depend on besides the text; named as in `config.data`."""

  tokens: str  # one of tokenize.DEFINITIONS
  lowercase: bool
  min_count: int
  max_vocab: int  # 0 = no limit
  counts: str  # a file of `word count` lines instead of counting, or ''


class Blocks(NamedTuple):
  """Runs of sentences within a piece; they are shuffled as one."""

  starts: np.ndarray  # [num_blocks + 1] int64, in the ids
  words: np.ndarray  # [num_blocks] int64, how many
  turns: np.ndarray  # [num_blocks] int64; turn % num_parts is a block's part


class Encoded(NamedTuple):
  """A corpus ready for training, as far as this process reads it."""

  folder: pathlib.Path
  vocabulary: vocab.Vocabulary
  ids: np.ndarray  # [num_ids] int32, memory-mapped
  blocks: Blocks
  num_words: int  # of the whole corpus, without words outside the vocabulary
  manifest: dict[str, Any]

  def block(self, number: int) -> np.ndarray:
    """[n] int32, the ids of a block."""
    start, stop = self.blocks.starts[number : number + 2]
    return self.ids[start:stop]


def encode(
  path: str,
  settings: Settings,
  cache: pathlib.Path,
  progress: Callable[[str, int, int], None],
  num_parts: int = 1,
  readers: base.Readers = base.ALONE,
) -> Encoded:
  """The corpus at `path` as ids, taken from the cache if unchanged.

  Of several processes each encodes its parts of `num_parts`; the vocabulary and
  the numbers in the manifest are those of the whole corpus. `progress` is
  called now and then, from this thread, with the stage, 'reading' (bytes) or
  'encoding' (pieces), and how much of it is done, of how much.

  Raises:
    UserError: for input that cannot be used.
  """
  files = sources.find(path)
  sizes_bytes = {str(source.path): source.size_bytes for source in files}
  everyone = _gather(readers, [sizes_bytes, [*readers.local_parts]])
  check_same_files(readers.process, [sizes for sizes, _ in everyone])
  # What a lower process reads as well, it counts.
  lower = set().union(*(parts for _, parts in everyone[: readers.process]))
  identity = [settings, _FORMAT]
  identity += [str(source.path.absolute()) for source in files]
  if readers.num_processes > 1:
    # Processes that read the same parts may share a cache, but not a folder.
    identity += [num_parts, readers.process, *readers.local_parts]
  name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
  folder = cache / 'corpora' / name
  encoded = _reuse(folder, files, settings)
  # All or none: the processes choose a vocabulary together.
  if all(_gather(readers, encoded is not None)):
    return encoded
  temporary = folder.with_name(f'{name}.tmp-{platform.node()}-{os.getpid()}')
  shutil.rmtree(temporary, ignore_errors=True)
  try:
    temporary.mkdir(parents=True)
    _remove_leftovers(temporary.parent)
    encoder = _Encoder(files, settings, temporary, progress, num_parts, readers)
    encoder.run({*readers.local_parts} - lower)
    # Opened before the move: another job may replace it at any moment.
    encoded = _open(temporary)._replace(folder=folder)
    shutil.rmtree(folder, ignore_errors=True)
    try:
      temporary.rename(folder)
    except OSError:
      if not folder.exists():
        raise
      # Another job was faster; its result is the same.
    return encoded
  except OSError as error:
    raise errors.UserError(
      f'cannot write the encoded corpus to {folder}: '
      f'{error.strerror or error}; free space there or set JAXEMB_CACHE to '
      'another folder'
    ) from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def check_same_files(process: int, sizes_bytes: list[dict[str, int]]) -> None:
  """Checks that all processes see files of the same names and sizes, by path.

  Otherwise some words would be read twice and others not at all.

  Raises:
    UserError: in every process, naming the first difference.
  """
  ours = sizes_bytes[process]
  for other, theirs in enumerate(sizes_bytes):
    if different := ours.items() ^ theirs.items():
      path, _ = min(different)
      here, there = (
        f'has {files[path]:,} bytes' if path in files else 'is missing'
        for files in (ours, theirs)
      )
      raise errors.UserError(
        f'{path} {there} in process {other} and {here} in process {process}; '
        'give all processes the same text'
      )


def _gather(readers: base.Readers, value: Any) -> list[Any]:
  """What JSON makes of the value of every process."""
  return list(map(json.loads, readers.gather(json.dumps(value).encode())))


def gather_arrays(
  readers: base.Readers, *arrays: np.ndarray
) -> Iterator[list[np.ndarray]]:
  """The arrays of every process."""
  message = io.BytesIO()
  np.savez(message, *arrays)
  for data in readers.gather(message.getvalue()):
    yield [*np.load(io.BytesIO(data)).values()]


def num_threads() -> int:
  """Number of useful threads: one per usable processor, up to a bound."""
  if hasattr(os, 'sched_getaffinity'):  # not on macOS and Windows
    return min(len(os.sched_getaffinity(0)), _MAX_THREADS)
  return min(os.cpu_count() or 1, _MAX_THREADS)


def piece_bytes(total_bytes: int) -> int:
  """Size of a corpus's pieces: small enough for parts to have many of them."""
  return min(_MAX_PIECE_BYTES, max(_MIN_PIECE_BYTES, total_bytes // 64))


class _Piece(NamedTuple):
  """A tokenized piece of text, of which words and ids are on disk."""

  file: int  # index of its source
  number: int  # in its source
  path: pathlib.Path
  num_different: int  # words
  numbers: collections.Counter  # what was read and dropped

  @property
  def turn(self) -> int:
    return self.file + self.number

  def open(self) -> tuple[tokenize.Words, np.ndarray, np.ndarray]:
    """Its words by hash, their numbers in the ids, and the ids."""
    n = self.num_different
    # Copied on write: numba compiles again for arrays that are read-only.
    data = np.asarray(np.memmap(self.path, np.uint8, 'c'))
    numbers = data[: 8 * (4 * n + 1)].view(np.int64)
    hashes, counts, order, starts = np.split(numbers, [n, 2 * n, 3 * n])
    first = len(data) - starts[-1]
    words = tokenize.Words(hashes, counts, starts, data[first:])
    return words, order, data[numbers.nbytes : first].view(np.int32)

  def words(self, first: int, stop: int) -> tokenize.Words:
    """Those words whose hashes are in a range."""
    hashes, counts, starts, arena = self.open()[0]
    i, j = np.searchsorted(hashes, [first, stop])
    return tokenize.Words(hashes[i:j], counts[i:j], starts[i : j + 1], arena)


@dataclasses.dataclass
class _Encoder:
  """Encodes those parts of a corpus that this process reads."""

  files: list[sources.Source]
  settings: Settings
  folder: pathlib.Path
  progress: Callable[[str, int, int], None]
  num_parts: int
  readers: base.Readers

  def run(self, counted_parts: set[int]) -> None:
    """Writes the files of the folder.

    `counted_parts` are those whose words no other process counts.
    """
    s, files = self.settings, self.files
    counts_sha256 = ''
    if s.counts:  # refused before the text is read
      counts_path = pathlib.Path(os.path.expanduser(s.counts))
      words = vocab.read_counts(counts_path)
      counts_sha256 = sources.file_sha256(counts_path)
    reports = [wiki.ReadReport() for _ in files]
    pieces = self.read(reports)
    if s.counts:
      table = tokenize.merge(tokenize.empty(), words)
      num_different, most = len(words.counts), words.counts.max()
    else:
      table, num_different, most = self.count(
        [x for x in pieces if x.turn % self.num_parts in counted_parts]
      )
    limits = s.min_count, s.max_vocab
    vocabulary, ids = vocab.select(table.words(), *limits, num_different, most)
    with open(self.folder / 'vocab.txt', 'wb') as file:
      encoded = [word.encode() for word in vocabulary.words]
      word2vec_format.put_counts(file, encoded, vocabulary.counts)
    mapped = self.map(pieces, table, ids)
    lost, problems = collections.Counter(), []
    for source, report in zip(files, reports, strict=True):
      # The first process alone reports on files that cannot be divided.
      if self.readers.process == 0 or sources.is_divisible(source):
        lost.update(
          pages=report.pages,
          invalid_utf8_bytes=report.replaced_bytes,
          lost_bytes=report.lost_bytes,
          redirects=report.redirects,
          other_namespace_pages=report.other_namespace_pages,
        )
        problems += report.problems
    everyone = _gather(self.readers, [[*mapped.items()], lost, problems])
    all_mapped, all_lost, all_problems = zip(*everyone, strict=True)
    # Several processes may read the same piece or meet the same damage.
    read = {tuple(key): x for key, x in itertools.chain(*all_mapped)}
    totals = collections.Counter()
    for counted in (*read.values(), *all_lost):
      totals.update(counted)
    num_words = totals['num_words']
    if not num_words:
      raise errors.UserError(
        f'no word of {s.counts} occurs in the text; check '
        '--config.data.counts, --config.data.lowercase and --config.data.tokens'
      )
    content = [sources.file_sha256(self.folder / 'vocab.txt')]
    content += ['{} {} {}'.format(*x) for x in sorted(read)]
    manifest = {
      'format': _FORMAT,
      'settings': s._asdict(),
      'counts_sha256': counts_sha256,
      'files': [
        source._asdict()
        | {'path': str(source.path), 'sha256': report.sha256}
        | {'read_bytes': report.source_bytes}  # by this process
        for source, report in zip(files, reports, strict=True)
      ],
      # Of vocabulary and ids, whatever the process: what a run resumes on.
      'fingerprint': hashlib.sha256(' '.join(content).encode()).hexdigest(),
      'num_vocab_words': len(vocabulary.words),
      'num_words': num_words,
      'num_blocks': totals['num_blocks'],
      'text_bytes': totals['text_bytes'],
      'pages': totals['pages'],
      'dropped': {name: totals[name] for name in _DROPPED}
      | {
        'out_of_vocabulary_words': totals['read_words'] - num_words,
        'words_below_vocabulary': num_different - len(vocabulary.words),
        'problems': [*dict.fromkeys(itertools.chain(*all_problems))],
      },
    }
    (self.folder / 'manifest.json').write_text(json.dumps(manifest, indent=1))

  def read(self, reports: Sequence[wiki.ReadReport]) -> list[_Piece]:
    """Tokenizes this process's pieces, in the order of the text.

    Several files are read at once because decompression is the slow part; a
    single file feeds all tokenizing threads. Reports are filled on the way.
    """
    files, threads = self.files, num_threads()
    total_bytes = sum(source.size_bytes for source in files)
    # Two pieces in flight for each thread, over all the files being read.
    depth = max(1, 2 * threads // len(files) - 1)

    def read_source(file: int) -> list[_Piece]:
      texts = sources.pieces(
        files[file],
        reports[file],
        piece_bytes(total_bytes),
        strippers if total_bytes > _MANY_BYTES else None,
        lambda number: (
          (file + number) % self.num_parts in self.readers.local_parts
        ),
      )
      jobs = ((file, text) for text in texts)
      return list(sources.map_ahead(tokenizers, self.write_piece, jobs, depth))

    with (
      futures.ThreadPoolExecutor(threads) as file_readers,
      futures.ThreadPoolExecutor(threads) as tokenizers,
      # Stripping markup is Python code. Processes start when first used;
      # "spawn" because a fork of a process with threads or JAX may hang.
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
          self.progress('reading', read_bytes, total_bytes)
        return [piece for job in jobs for piece in job.result()]
      except BaseException:
        # The readers end when none of their pieces is tokenized.
        for pool in (file_readers, tokenizers):
          pool.shutdown(wait=False, cancel_futures=True)
        raise

  def write_piece(self, file: int, piece: sources.Piece) -> _Piece:
    """Writes the words of a piece and its ids."""
    s = self.settings
    ids, words, invalid_bytes, overlong_words = tokenize.tokenize(
      piece.text, s.tokens, s.lowercase, piece.ends_line
    )
    numbers = collections.Counter(
      text_bytes=len(piece.text),
      read_words=int(words.counts.sum()),
      invalid_utf8_bytes=invalid_bytes,
      overlong_words=overlong_words,
    )
    order = np.argsort(words.hashes)
    hashes, counts, starts, arena = words.subset(order)
    path = self.folder / f'piece-{file:06d}-{piece.number:06d}'
    with open(path, 'wb') as opened:
      for array in (hashes, counts, order, starts, ids, arena):
        opened.write(array)
    return _Piece(file, piece.number, path, len(order), numbers)

  def count(
    self, pieces: Sequence[_Piece]
  ) -> tuple[tokenize.WordTable, int, int]:
    """Counts the words of all processes, exactly; all get the same.

    Returns at least the words that get a row, how many different words there
    are, and how often the most frequent one occurs.
    """
    min_count, max_vocab = self.settings.min_count, self.settings.max_vocab
    my_words = sum(piece.num_different for piece in pieces)
    most_words = sum(_gather(self.readers, my_words))
    num_tables = max(1, -(-most_words // MAX_HELD_WORDS))
    chosen = tokenize.empty()
    num_different = most = 0
    for i in range(num_tables):
      limits = [(j << tokenize.HASH_BITS) // num_tables for j in (i, i + 1)]
      table = _sum(piece.words(*limits) for piece in pieces)
      if self.readers.num_processes > 1:
        everyone = gather_arrays(self.readers, *table.words())
        table = _sum(itertools.starmap(tokenize.Words, everyone))
      words = table.words()
      num_different += len(words.counts)
      most = max(most, int(words.counts.max(initial=0)))
      chosen = tokenize.merge(chosen, words, min_count)
      # Not for every table: it takes as long as sorting them all.
      if max_vocab and chosen.size[0] > 2 * max_vocab:
        words = chosen.words()
        best = vocab.best(words, min_count, max_vocab)
        min_count = int(words.counts[best[-1]])  # that better words must reach
        chosen = _sum([words.subset(best)])
    return chosen, num_different, most

  def map(
    self, pieces: Sequence[_Piece], table: tokenize.WordTable, ids: np.ndarray
  ) -> dict[tuple[int, int, str], collections.Counter]:
    """Writes the ids of the corpus and its blocks; removes the pieces.

    `ids` [num_words] int32 has the id of each entry of `table`, or -1. Returns
    the numbers of each piece by its file, number and SHA-256 of its ids.
    """
    num_ids, threads = 0, num_threads()
    columns, numbers = [np.zeros((3, 0), np.int64)], {}

    def mapped(piece: _Piece) -> tuple[_Piece, np.ndarray, np.ndarray, str]:
      words, order, own_ids = piece.open()
      entries = tokenize.lookup(table, words)
      new_ids = np.empty(len(order), np.int32)
      new_ids[order] = np.where(entries >= 0, ids[entries], -1)
      out = _map_ids(own_ids, new_ids)
      starts, sizes = block_starts(out, BLOCK_WORDS)
      blocks = np.stack([starts, sizes, np.full_like(starts, piece.turn)])
      piece.numbers.update(num_words=int(sizes.sum()), num_blocks=len(sizes))
      return piece, out, blocks, hashlib.sha256(out).hexdigest()

    with (
      open(self.folder / 'ids.bin', 'wb') as file,
      futures.ThreadPoolExecutor(threads) as pool,
    ):
      for piece, out, blocks, sha256 in sources.map_ahead(
        pool, mapped, ((piece,) for piece in pieces), 2 * threads
      ):
        file.write(out)
        columns.append(blocks + [[num_ids], [0], [0]])
        num_ids += len(out)
        numbers[piece.file, piece.number, sha256] = piece.numbers
        piece.path.unlink()
        self.progress('encoding', len(numbers), len(pieces))
    starts, sizes, turns = np.concatenate(columns, 1)
    blocks = Blocks(np.append(starts, num_ids), sizes, turns)
    np.savez(self.folder / 'blocks.npz', **blocks._asdict())
    return numbers


def _sum(parts: Iterable[tokenize.Words]) -> tokenize.WordTable:
  return functools.reduce(tokenize.merge, parts, tokenize.empty())


def _start_stripper() -> None:
  """Worker initializer: ignores signals, exits when the parent dies."""
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
  parent = multiprocessing.parent_process()

  def watch() -> None:
    parent.join()
    os._exit(0)

  threading.Thread(target=watch, daemon=True).start()


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
      out[n] = new_ids[ids[i]]
      n += out[n] >= 0
  return out[:n].copy()


@numba.njit(nogil=True, cache=True)
def block_starts(
  ids: np.ndarray, block_words: int
) -> tuple[np.ndarray, np.ndarray]:
  """[num_blocks] int64, where blocks of at most `block_words` words start.

  A block ends with a sentence; a sentence longer than a block is cut. Also
  [num_blocks] int64, the words of each block.
  """
  starts = np.empty(2 * (len(ids) // block_words) + 2, np.int64)
  sizes = np.empty_like(starts)
  n = 0
  block = words = 0  # start and words of this block
  sentence = sentence_words = 0  # and of this sentence
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

  def is_same(source: sources.Source, known: dict[str, Any]) -> bool:
    # A copied or touched file has another time but the same content.
    return source.size_bytes == known['size_bytes'] and (
      source.mtime_ns == known['mtime_ns']
      or sources.file_sha256(source.path) == known['sha256']
    )

  with contextlib.suppress(
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    zipfile.BadZipFile,
    errors.UserError,
  ):
    encoded = _open(folder)
    known = encoded.manifest
    counts = settings.counts
    if all(map(is_same, files, known['files'])) and (
      not counts
      or sources.file_sha256(pathlib.Path(os.path.expanduser(counts)))
      == known['counts_sha256']
    ):
      return encoded
  return None


def _open(folder: pathlib.Path) -> Encoded:
  """Opens a corpus folder; raises various errors if it is damaged."""
  manifest = json.loads((folder / 'manifest.json').read_text())
  words = vocab.Vocabulary(*word2vec_format.read_vocab(folder / 'vocab.txt'))
  blocks = Blocks(**np.load(folder / 'blocks.npz'))
  path, ids = folder / 'ids.bin', np.zeros(0, np.int32)
  if path.stat().st_size:  # a process may have no text: nothing to map
    ids = np.asarray(np.memmap(path, '<i4', 'r'))
  sizes = len(words.words), len(ids)
  if sizes != (manifest['num_vocab_words'], blocks.starts[-1]):
    raise ValueError('vocabulary or ids have changed')
  return Encoded(folder, words, ids, blocks, manifest['num_words'], manifest)
