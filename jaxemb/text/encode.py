"""Text to id shards, once: afterwards the corpus is memory-mapped.

The text is read, decompressed, parsed and tokenized a single time. Each piece
of it (some megabytes) is numbered with its own words and set aside on disk;
when all pieces are counted and the vocabulary is chosen, their local ids are
mapped to global ones, which is a table lookup. Memory holds a few pieces and
the count of a bounded number of words (see `counting`), whatever the size.

A corpus folder (in the cache, named by its settings and input files):

  manifest.json   settings, input files with sizes and hashes, shards, counters
  vocab.txt       `word count` lines, most frequent first
  ids-00000.bin   int32 ids, `tokens.END` after each sentence
  blocks.npz      `shards.Blocks`: where each block of at most
                  `shards.BLOCK_WORDS` words starts in the concatenated shards
  pieces.npy      [num_pieces, 2] int32, file and number of each piece of text

Pieces are merged in the order of the text, so that nothing depends on threads.
A corpus is divided into parts, which are read side by side, by its pieces.
"""

import dataclasses
import errno
import hashlib
import itertools
import json
import os
import pathlib
import platform
import shutil
import time
import zipfile
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.text import (
  compressed,
  corpus,
  counting,
  cuts,
  scan,
  shards,
  teams,
  vocab,
)

_FORMAT = 4

# A temporary folder that is older than this belongs to no process (its own may
# run on another machine that shares the cache).
_LEFTOVER_SECS = 7 * 24 * 3600


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
  blocks: shards.Blocks
  pieces: np.ndarray  # [num_pieces, 2] int32, file and number of each
  num_words: int  # ids that are words, that is without sentence ends
  manifest: dict[str, Any]


class Part(NamedTuple):
  """A part of the corpus that this process reads."""

  index: int  # among all parts
  blocks: np.ndarray  # [n] int64, which of `Encoded.blocks` are its


class Division(NamedTuple):
  """A corpus in parts, which are read side by side."""

  mine: tuple[Part, ...]  # those that this process reads
  block_words: tuple[np.ndarray, ...]  # of every part, [its blocks] int32


def divide(
  corpus: Encoded, num_parts: int, team: teams.Team = teams.ALONE
) -> Division:
  """The parts of a corpus; all processes take part.

  Args:
    corpus: what this process has of it.
    num_parts: of the whole corpus.
    team: who reads which parts.
  """
  part_of_piece = teams.part_of(*corpus.pieces.T, num_parts)
  part_of_block = part_of_piece[corpus.blocks.pieces]
  mine = range(num_parts) if team.num == 1 else team.mine
  parts = [Part(i, np.flatnonzero(part_of_block == i)) for i in mine]
  words = {part.index: corpus.blocks.words[part.blocks] for part in parts}
  # Other processes read the other parts; some may be read by several.
  packed = teams.pack({str(i): x for i, x in words.items()})
  for data in team.gather(packed):
    words |= {int(i): x for i, x in teams.unpack(data).items()}
  return Division(tuple(parts), tuple(words[i] for i in range(num_parts)))


def encode(
  path: str,
  settings: Settings,
  cache: pathlib.Path,
  progress: scan.Progress,
  team: teams.Team = teams.ALONE,
) -> Encoded:
  """The corpus at `path` as id shards, taken from the cache if unchanged.

  Of several processes each encodes the parts that it reads; their counts make
  one vocabulary. What is reported is of the whole corpus.

  Args:
    path: a file, folder or glob of text, see `corpus.sources`.
    settings: definition of words and vocabulary.
    cache: folder that holds encoded corpora.
    progress: called now and then from this thread.
    team: who reads which parts.

  Raises:
    UserError: for input that cannot be used.
  """
  sources = corpus.sources(path)
  teams.check_alike(
    team, {str(source.path): source.size_bytes for source in sources}
  )
  identity = json.dumps(
    [
      dataclasses.asdict(settings),
      [str(source.path.absolute()) for source in sources],
      _FORMAT,
      # Alone, a process has all parts, whatever their number. Several that read
      # the same ones may share a cache: each has a folder of its own.
      [] if team.num == 1 else [team.num_parts, team.index, *team.mine],
    ]
  )
  name = hashlib.sha256(identity.encode()).hexdigest()[:16]
  folder = cache / 'corpora' / name
  encoded = _reuse(folder, sources, settings)
  # All or none: a vocabulary is made together.
  if all(team.gather(b'' if encoded is None else b'reused')):
    return encoded
  temporary = folder.with_name(f'{name}.tmp-{platform.node()}-{os.getpid()}')
  shutil.rmtree(temporary, ignore_errors=True)
  try:
    temporary.mkdir(parents=True)
    _remove_leftovers(temporary.parent)
    _encode(sources, settings, temporary, progress, team)
    # Opened where it is: a job that does the same may replace it at any moment.
    made = _open(temporary)._replace(folder=folder)
    shutil.rmtree(folder, ignore_errors=True)
    _move(temporary, folder)
    return made
  except OSError as error:
    raise errors.UserError(
      f'cannot write the encoded corpus to {folder}: '
      f'{error.strerror or error}; free space there or set '
      '--config.data.cache to another folder'
    ) from error
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def _move(temporary: pathlib.Path, folder: pathlib.Path) -> None:
  try:
    temporary.rename(folder)
  except OSError as error:
    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
      raise
    # Another job was faster; what it made is the same.


def _remove_leftovers(folder: pathlib.Path) -> None:
  """Removes what runs that were killed while encoding left behind."""
  for path in folder.glob('*.tmp-*'):
    node, pid = path.name.split('.tmp-', 1)[1].rsplit('-', 1)
    is_old = time.time() - path.stat().st_mtime > _LEFTOVER_SECS
    if is_old or (node == platform.node() and not _is_running(pid)):
      shutil.rmtree(path, ignore_errors=True)


def _is_running(pid: str) -> bool:
  """Whether this machine may have a process of that number."""
  processes = pathlib.Path('/proc')
  return not (processes / 'self').exists() or (processes / pid).exists()


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
      if (
        compressed.file_sha256(pathlib.Path(settings.counts))
        != manifest['counts_sha256']
      ):
        return None
    for source, known in zip(sources, manifest['files'], strict=True):
      if source.size_bytes != known['size_bytes']:
        return None
      # A copied or touched file has another time but the same content.
      if source.mtime_ns != known['mtime_ns']:
        if compressed.file_sha256(source.path) != known['sha256']:
          return None
    encoded = _open(folder)
    if len(encoded.vocabulary.words) != manifest['num_vocab_words']:
      return None
    return encoded
  except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
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
    shards.Blocks(**np.load(folder / 'blocks.npz')),
    np.load(folder / 'pieces.npy'),
    manifest['num_words'],
    manifest,
  )


def _encode(
  sources: list[corpus.Source],
  settings: Settings,
  folder: pathlib.Path,
  progress: scan.Progress,
  team: teams.Team,
) -> None:
  counts_sha256 = ''
  if settings.counts:
    counts_path = pathlib.Path(settings.counts)
    table = vocab.read_counts(counts_path)
    num_different = int(table.sizes[0])
    counts_sha256 = compressed.file_sha256(counts_path)
  reports = [cuts.ReadReport() for _ in sources]
  words = (settings.tokens, settings.lowercase)
  limits = (settings.min_count, settings.max_vocab)
  pieces = scan.scan(sources, reports, *words, folder, progress, team.reads)
  counted = [team.counts(piece.file, piece.number) for piece in pieces]
  counted_pieces = list(itertools.compress(pieces, counted))
  dropped = _dropped(counted_pieces, _told(sources, reports, team))
  if not settings.counts:
    table, num_different = counting.count(counted_pieces, *limits, folder, team)
  vocabulary, ids = vocab.select(table, *limits)
  vocab.write_counts(folder / 'vocab.txt', vocabulary)
  written, written_pieces = shards.write(pieces, table, ids, folder, progress)
  blocks = shards.blocks(folder, written, [size for size, _ in written_pieces])
  _save_blocks(folder, blocks, pieces)
  is_counted = np.asarray(counted, bool)[blocks.pieces]
  num_words = int(blocks.words[is_counted].sum())
  seen_words = sum(piece.counters.num_words for piece in counted_pieces)
  dropped['out_of_vocabulary_words'] = seen_words - num_words
  whole = teams.of_all(
    team,
    {
      'num_words': num_words,
      'num_blocks': int(is_counted.sum()),
      'text_bytes': sum(piece.text_bytes for piece in counted_pieces),
      'pages': sum(r.pages for r in _told(sources, reports, team)),
      'dropped': dropped,
      'pieces': [
        [piece.file, piece.number, sha256]
        for piece, (_, sha256) in zip(pieces, written_pieces, strict=True)
      ],
    },
  )
  _check_words(whole['num_words'], settings)
  num_vocab_words = len(vocabulary.words)
  whole['dropped']['words_below_vocabulary'] = num_different - num_vocab_words
  manifest = {
    'format': _FORMAT,
    'settings': dataclasses.asdict(settings),
    'counts_sha256': counts_sha256,
    'files': _files(sources, reports),
    'shards': written,
    'fingerprint': _fingerprint(folder, whole.pop('pieces')),
    'num_vocab_words': num_vocab_words,
  }
  (folder / 'manifest.json').write_text(json.dumps(manifest | whole, indent=1))


def _check_words(num_words: int, settings: Settings) -> None:
  if num_words == 0:
    raise errors.UserError(
      f'no word of {settings.counts} occurs in the text; check '
      '--config.data.counts, --config.data.lowercase and --config.data.tokens'
    )


def _save_blocks(
  folder: pathlib.Path, blocks: shards.Blocks, pieces: list[scan.Piece]
) -> None:
  """Where blocks and pieces are, for `_open`."""
  np.savez(folder / 'blocks.npz', **blocks._asdict())
  places = [(piece.file, piece.number) for piece in pieces]
  np.save(folder / 'pieces.npy', np.asarray(places, np.int32).reshape(-1, 2))


def _told(
  sources: list[corpus.Source], reports: list[cuts.ReadReport], team: teams.Team
) -> list[cuts.ReadReport]:
  """The reports of files that no other process tells of as well."""
  return [
    report
    for source, report in zip(sources, reports, strict=True)
    if team.index == 0 or corpus.is_divisible(source)
  ]


def _files(
  sources: list[corpus.Source], reports: list[cuts.ReadReport]
) -> list[dict[str, Any]]:
  """What tells in a later run whether the text is still the same."""
  return [
    {
      'path': str(source.path),
      'size_bytes': source.size_bytes,
      'mtime_ns': source.mtime_ns,
      'sha256': report.sha256,
      'read_bytes': report.source_bytes,  # by this process
    }
    for source, report in zip(sources, reports, strict=True)
  ]


def _dropped(
  pieces: list[scan.Piece], reports: list[cuts.ReadReport]
) -> dict[str, Any]:
  """What was lost before the vocabulary was chosen."""
  return {
    'invalid_utf8_bytes': sum(p.counters.invalid_bytes for p in pieces)
    + sum(report.replaced_bytes for report in reports),
    'overlong_words': sum(p.counters.overlong_words for p in pieces),
    'lost_bytes': sum(report.lost_bytes for report in reports),
    'redirects': sum(report.redirects for report in reports),
    'other_namespace_pages': sum(
      report.other_namespace_pages for report in reports
    ),
    'problems': [line for report in reports for line in report.problems],
  }


def _fingerprint(
  folder: pathlib.Path, pieces: list[tuple[int, int, str]]
) -> str:
  """Names this vocabulary and these ids, for a run that resumes on them."""
  hashes = [
    compressed.file_sha256(folder / 'vocab.txt'),
    *(f'{file} {number} {sha256}' for file, number, sha256 in pieces),
  ]
  return hashlib.sha256(' '.join(hashes).encode()).hexdigest()
