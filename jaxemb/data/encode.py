"""Text to id shards, once: afterwards the corpus is memory-mapped.

The text is read, decompressed, parsed and tokenized a single time. Each piece
of it (some megabytes) is numbered with its own words and set aside on disk;
when all pieces are counted and the vocabulary is chosen, their local ids are
mapped to global ones, which is a table lookup. Memory holds a few pieces and
the count of at most `PRUNE_FACTOR * max_vocab` words, whatever the corpus size.

A corpus folder (in the cache, named by its settings and input files):

  manifest.json   settings, input files with sizes and hashes, shards, counters
  vocab.txt       `word count` lines, most frequent first
  ids-00000.bin   int32 ids, `tokens.END` after each sentence
  blocks.npy      [num_blocks + 1] int64, where each block of at most
                  `BLOCK_WORDS` words starts in the concatenated shards

Pieces are merged in the order of the text, so that nothing depends on threads.
"""

import dataclasses
import hashlib
import json
import multiprocessing
import os
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.data import corpus, tokens, vocab, word_table

# The unit of shuffling and of the reader's position.
BLOCK_WORDS = 4096

# While counting, as many words as this times `max_vocab` are held; beyond, the
# rarest are pruned as in word2vec.c's ReduceVocab.
PRUNE_FACTOR = 4

_SHARD_IDS = 1 << 26

# From this size of the input files on, processes are worth their start.
_MANY_BYTES = 64 << 20
_FORMAT = 1

# (stage, done, total): how far 'reading' (bytes) or 'encoding' (pieces) is.
Progress = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class Settings:
  """What the ids depend on besides the text."""

  tokens: str  # one of tokens.DEFINITIONS
  lowercase: bool
  min_count: int
  max_vocab: int  # 0 = no limit
  counts: str  # a file of `word count` lines instead of counting, or ''


class Encoded(NamedTuple):
  """A corpus ready for training."""

  folder: pathlib.Path
  vocabulary: vocab.Vocabulary
  shards: tuple[np.ndarray, ...]  # memory-mapped int32 ids
  blocks: np.ndarray  # [num_blocks + 1] int64
  num_words: int  # ids that are words, that is without sentence ends
  manifest: dict[str, Any]


class _Piece(NamedTuple):
  """A tokenized piece set aside on disk."""

  path: pathlib.Path
  counters: tokens.Counters
  ends_line: bool


def encode(
  path: str, settings: Settings, cache: pathlib.Path, progress: Progress
) -> Encoded:
  """The corpus at `path` as id shards, taken from the cache if unchanged.

  Args:
    path: a file, folder or glob of text, see `corpus.sources`.
    settings: definition of words and vocabulary.
    cache: folder that holds encoded corpora.
    progress: called now and then from this thread.

  Raises:
    UserError: for input that cannot be used.
  """
  sources = corpus.sources(path)
  identity = json.dumps(
    [
      dataclasses.asdict(settings),
      [str(source.path.absolute()) for source in sources],
      _FORMAT,
    ]
  )
  name = hashlib.sha256(identity.encode()).hexdigest()[:16]
  folder = cache / 'corpora' / name
  encoded = _reuse(folder, sources, settings)
  if encoded is not None:
    return encoded
  temporary = folder.with_name(f'{name}.tmp{os.getpid()}')
  shutil.rmtree(temporary, ignore_errors=True)
  try:
    temporary.mkdir(parents=True)
    _encode(sources, settings, temporary, progress)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
  except OSError as error:
    raise errors.UserError(
      f'cannot write the encoded corpus to {folder}: '
      f'{error.strerror or error}; free space there or set '
      '--config.data.cache to another folder'
    ) from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)
  return _open(folder)


def _file_hash(path: pathlib.Path) -> str:
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _reuse(
  folder: pathlib.Path, sources: list[corpus.Source], settings: Settings
) -> Encoded | None:
  """The corpus of an earlier run, if its files and all inputs are unchanged."""
  try:
    manifest = json.loads((folder / 'manifest.json').read_text())
    for shard in manifest['shards']:
      if (folder / shard['file']).stat().st_size != 4 * shard['num_ids']:
        return None
    if settings.counts:
      if _file_hash(pathlib.Path(settings.counts)) != manifest['counts_sha256']:
        return None
    for source, known in zip(sources, manifest['files'], strict=True):
      if source.size_bytes != known['size_bytes']:
        return None
      # A copied or touched file has another time but the same content.
      if source.mtime_ns != known['mtime_ns']:
        if _file_hash(source.path) != known['sha256']:
          return None
    encoded = _open(folder)
    if len(encoded.vocabulary.words) != manifest['num_vocab_words']:
      return None
    return encoded
  except (OSError, EOFError, ValueError, KeyError):
    return None


def _open(folder: pathlib.Path) -> Encoded:
  manifest = json.loads((folder / 'manifest.json').read_text())
  words, counts = [], []
  with open(folder / 'vocab.txt', encoding='utf-8', newline='\n') as file:
    for line in file:
      word, count = line.rstrip('\n').rsplit(' ', 1)
      words.append(word)
      counts.append(int(count))
  return Encoded(
    folder,
    vocab.Vocabulary(words, np.asarray(counts, np.int64)),
    tuple(
      np.memmap(folder / shard['file'], '<i4', 'r')
      for shard in manifest['shards']
    ),
    np.load(folder / 'blocks.npy'),
    manifest['num_words'],
    manifest,
  )


def _encode(
  sources: list[corpus.Source],
  settings: Settings,
  folder: pathlib.Path,
  progress: Progress,
) -> None:
  counts_sha256 = ''
  if settings.counts:
    counts_path = pathlib.Path(settings.counts)
    table = vocab.read_counts(counts_path)
    counts_sha256 = _file_hash(counts_path)
  num_threads = _num_cpus()
  reports = [corpus.ReadReport() for _ in sources]
  pieces = _scan(sources, reports, settings, folder, num_threads, progress)
  dropped = {
    'invalid_utf8_bytes': sum(p.counters.invalid_bytes for p in pieces)
    + sum(report.replaced_bytes for report in reports),
    'lost_bytes': sum(report.lost_bytes for report in reports),
    'overlong_words': sum(p.counters.overlong_words for p in pieces),
    'problems': [line for report in reports for line in report.problems],
  }
  if not settings.counts:
    table = _merge_counts(pieces, settings.max_vocab, dropped)
  vocabulary, ids = vocab.select(table, settings.min_count, settings.max_vocab)
  vocab.write_counts(folder / 'vocab.txt', vocabulary)
  shards, num_words = _write_shards(
    pieces, table, ids, folder, num_threads, progress
  )
  if num_words == 0:
    raise errors.UserError(
      f'no word of {settings.counts} occurs in the text; check '
      '--config.data.counts, --config.data.lowercase and --config.data.tokens'
    )
  seen_words = sum(p.counters.num_words for p in pieces)
  dropped['out_of_vocabulary_words'] = seen_words - num_words
  dropped['words_below_vocabulary'] = int(table.sizes[0]) - len(
    vocabulary.words
  )
  starts = _write_blocks(folder, shards)
  manifest = {
    'format': _FORMAT,
    'settings': dataclasses.asdict(settings),
    'counts_sha256': counts_sha256,
    'files': [
      {
        'path': str(source.path),
        'size_bytes': source.size_bytes,
        'mtime_ns': source.mtime_ns,
        'sha256': report.sha256,
      }
      for source, report in zip(sources, reports, strict=True)
    ],
    'shards': shards,
    'fingerprint': _fingerprint(folder, shards),
    'num_vocab_words': len(vocabulary.words),
    'num_words': num_words,
    'num_blocks': len(starts) - 1,
    'text_bytes': sum(report.text_bytes for report in reports),
    'pages': sum(report.pages for report in reports),
    'dropped': dropped
    | {
      'redirects': sum(report.redirects for report in reports),
      'other_namespace_pages': sum(
        report.other_namespace_pages for report in reports
      ),
    },
  }
  (folder / 'manifest.json').write_text(json.dumps(manifest, indent=1))


def _num_cpus() -> int:
  """Processors that this process may use."""
  try:
    return len(os.sched_getaffinity(0))
  except AttributeError:  # not on macOS and Windows
    return os.cpu_count() or 1


def _scan(
  sources: list[corpus.Source],
  reports: list[corpus.ReadReport],
  settings: Settings,
  folder: pathlib.Path,
  num_threads: int,
  progress: Progress,
) -> list[_Piece]:
  """Tokenizes all text into pieces on disk, in the order of the text."""
  total_bytes = sum(source.size_bytes for source in sources)
  room = threading.BoundedSemaphore(2 * num_threads)
  failed = threading.Event()

  def scan_piece(piece: corpus.Piece, path: pathlib.Path) -> _Piece:
    try:
      ids, table, counters = tokens.tokenize(
        piece.text, settings.tokens, settings.lowercase, piece.ends_line
      )
      n = int(table.sizes[0])
      starts = table.starts[: n + 1]
      with open(path, 'wb') as file:
        for array in (ids, table.arena[: starts[n]], starts, table.counts[:n]):
          np.save(file, array)
      return _Piece(path, counters, piece.ends_line)
    except BaseException:
      failed.set()  # a full disk should not wait for the end of the text
      raise
    finally:
      room.release()

  # Several files are read at once because decompression is the slow part;
  # a single file feeds all tokenizing threads.
  with (
    futures.ThreadPoolExecutor(num_threads) as readers,
    futures.ThreadPoolExecutor(num_threads) as tokenizers,
    # Stripping markup is Python code. Processes start when first used; "spawn"
    # because a fork of a process with threads or JAX in it may hang.
    futures.ProcessPoolExecutor(
      num_threads, multiprocessing.get_context('spawn')
    ) as strippers,
  ):
    pool = strippers if total_bytes > _MANY_BYTES else None

    def scan_source(index: int) -> list[futures.Future]:
      jobs = []
      for piece in corpus.pieces(sources[index], reports[index], pool=pool):
        if failed.is_set():
          break
        room.acquire()
        path = folder / f'piece-{index:06d}-{len(jobs):06d}'
        jobs.append(tokenizers.submit(scan_piece, piece, path))
      return jobs

    reading = [readers.submit(scan_source, i) for i in range(len(sources))]
    try:
      pending = set(reading)
      while pending:
        done, pending = futures.wait(pending, timeout=0.2)
        for job in done:
          job.result()
        read_bytes = sum(report.source_bytes for report in reports)
        progress('reading', read_bytes, total_bytes)
      return [job.result() for source in reading for job in source.result()]
    except BaseException:
      failed.set()
      for job in reading:
        job.cancel()
      raise


def _fingerprint(folder: pathlib.Path, shards: list[dict[str, Any]]) -> str:
  """Names this vocabulary and these ids, for a run that resumes on them."""
  hashes = [_file_hash(folder / 'vocab.txt'), *(s['sha256'] for s in shards)]
  return hashlib.sha256(' '.join(hashes).encode()).hexdigest()


def _load_piece(path: pathlib.Path) -> tuple[np.ndarray, ...]:
  """ids, arena, starts and counts of a piece's own words."""
  with open(path, 'rb') as file:
    return tuple(np.load(file) for _ in range(4))


def _merge_counts(
  pieces: list[_Piece], max_vocab: int, dropped: dict[str, Any]
) -> word_table.WordTable:
  """Counts of all words; those pruned are counted in `dropped`."""
  limit = PRUNE_FACTOR * max_vocab if max_vocab else np.iinfo(np.int64).max
  table = word_table.empty(1 << 16, 1 << 20)
  threshold = pruned_words = pruned_occurrences = 0
  for piece in pieces:
    _, arena, starts, counts = _load_piece(piece.path)
    table = word_table.merge(table, arena, starts, counts)
    while table.sizes[0] > limit:
      threshold += 1
      table, words, occurrences = word_table.prune(table, threshold)
      pruned_words += words
      pruned_occurrences += occurrences
  dropped['pruned_words'] = pruned_words
  dropped['pruned_occurrences'] = pruned_occurrences
  dropped['pruned_up_to_count'] = threshold
  return table


@numba.njit(nogil=True, cache=True)
def _map_ids(ids: np.ndarray, new_ids: np.ndarray) -> tuple[np.ndarray, int]:
  """Global ids without the words that have none, and how many are words."""
  out = np.empty(len(ids), np.int32)
  n = 0
  num_words = 0
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
        num_words += 1
  return out[:n].copy(), num_words


def _mapped(
  piece: _Piece, table: word_table.WordTable, ids: np.ndarray
) -> tuple[np.ndarray, int]:
  local_ids, arena, starts, _ = _load_piece(piece.path)
  entries = word_table.lookup(table, arena, starts)
  new_ids = np.where(entries >= 0, ids[entries], -1).astype(np.int32)
  piece.path.unlink()
  return _map_ids(local_ids, new_ids)


def _ahead(function: Callable, items: list, num_threads: int) -> Iterator:
  """Results in order, computed by threads a little ahead of their use."""
  with futures.ThreadPoolExecutor(num_threads) as pool:
    jobs = []
    for item in items:
      jobs.append(pool.submit(function, item))
      if len(jobs) > 2 * num_threads:
        yield jobs.pop(0).result()
    for job in jobs:
      yield job.result()


def _write_shards(
  pieces: list[_Piece],
  table: word_table.WordTable,
  ids: np.ndarray,
  folder: pathlib.Path,
  num_threads: int,
  progress: Progress,
) -> tuple[list[dict[str, Any]], int]:
  shards: list[dict[str, Any]] = []
  num_words = 0
  file = digest = None
  mapped = _ahead(lambda p: _mapped(p, table, ids), pieces, num_threads)
  try:
    for i, (new_ids, words) in enumerate(mapped):
      if file is None or shards[-1]['num_ids'] >= _SHARD_IDS:
        if file is not None:
          file.close()
          shards[-1]['sha256'] = digest.hexdigest()
        shards.append({'file': f'ids-{len(shards):05d}.bin', 'num_ids': 0})
        file = open(folder / shards[-1]['file'], 'wb')
        digest = hashlib.sha256()
      data = new_ids.astype('<i4', copy=False).tobytes()
      file.write(data)
      digest.update(data)
      shards[-1]['num_ids'] += len(new_ids)
      num_words += words
      progress('encoding', i + 1, len(pieces))
    shards[-1]['sha256'] = digest.hexdigest()
  finally:
    if file is not None:
      file.close()
  return shards, num_words


@numba.njit(nogil=True, cache=True)
def block_starts(ids: np.ndarray, block_words: int) -> np.ndarray:
  """[num_blocks] int64: where blocks of at most `block_words` words start.

  A block ends with a sentence; a sentence longer than a block is cut.
  """
  starts = np.empty(2 * (len(ids) // block_words) + 2, np.int64)
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
      n += 1
      if sentence_words < words:
        block = sentence
        words = sentence_words
      else:
        block = i
        words = 0
    words += 1
    sentence_words += 1
  if words > 0:
    starts[n] = block
    n += 1
  return starts[:n].copy()


def _write_blocks(
  folder: pathlib.Path, shards: list[dict[str, Any]]
) -> np.ndarray:
  starts = []
  first = 0
  for shard in shards:
    ids = np.memmap(folder / shard['file'], '<i4', 'r')
    starts.append(first + block_starts(ids, BLOCK_WORDS))
    first += shard['num_ids']
  blocks = np.concatenate([*starts, [first]]).astype(np.int64)
  np.save(folder / 'blocks.npy', blocks)
  return blocks
