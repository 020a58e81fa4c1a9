"""Encodes text as ids, once; afterwards the corpus is memory-mapped.

  read    tokenizes each piece (some megabytes) with ids of its own, and writes
          its words and ids to disk
  join    replaces words by phrases, such as `new_york`, pass by pass
  count   adds up the words of all pieces and chooses the vocabulary
  map     translates the ids of the pieces and appends them to one file

Memory is bounded, whatever the size of the text: the words of a piece are on
disk, sorted by hash, and one range of hashes is counted at a time. Results do
not depend on the number of threads or processes. A folder in the cache holds

  manifest.json   settings, input files with sizes and hashes, counters
  vocab.txt       `word count` lines, most frequent first
  ids.bin         int32 ids, `tokenize.END` after each sentence
  blocks.npz      `Blocks`, the units of shuffling
  counts.npy      what the text alone has of words that a run knew already
  phrases.txt     the phrases that were joined, if any

A folder is reused while its own checksums and the paths, sizes, times and
samples of the input files (`io.cache`) are the same.

Devices train on parts of the corpus side by side: piece n of file f belongs to
part (f + n) % num_parts. A process reads only the parts of its own devices, but
knows the sizes of all blocks.
"""

import codecs
import collections
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import logging
import multiprocessing
import os
import pathlib
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.data import base
from jaxemb.data import blocks as blocks_lib
from jaxemb.io import cache as cache_lib
from jaxemb.io import roles
from jaxemb.io import text_files as sources
from jaxemb.runtime import resources
from jaxemb.storage import atomic, checksums, formats, packed, word2vec_format
from jaxemb.text import ahead, growth, passes, tokenize, wiki
from jaxemb.text import phrases as phrases_lib
from jaxemb.text import pieces as pieces_lib

MAX_HELD_WORDS = 1 << 22  # words of a table in memory, some 200 MB

_LOG = logging.getLogger('jaxemb')
_MAX_CAPITALS = 0.01  # of the words of a run that goes on in lower case
FORMAT = formats.Format('an encoded text', number=13, remedy=cache_lib.REMEDY)
_UNKNOWN = -2  # the new id of a word outside the vocabulary
_SHOWN_CHARS = 60  # of the first line of a text
_MIN_PIECE_BYTES, _MAX_PIECE_BYTES = 1 << 16, 8 << 20

# Bytes of input that make starting processes worth it.
_MANY_BYTES = 64 << 20


class Settings(NamedTuple):
  """Settings that the ids depend on, named as in `config.data`."""

  tokens: str  # 'words', 'words+emoji' or 'whitespace', see `tokenize`
  lowercase: bool
  min_count: int
  max_vocab: int  # 0 = no limit
  counts: str  # a file of `word count` lines instead of counting, or ''
  encoding: str = sources.UTF_8  # of the text
  columns: str = ''  # which key or column is the text; '' = by its name
  every_line: bool = False  # has its END, also one without a word
  phrases: str = ''  # passes that find them, or their file; '' = none
  phrases_score: str = 'word2vec'
  phrases_threshold: float = phrases_lib.USUAL  # what suits the score
  phrases_min_count: int = 5
  phrases_connectors: str = ''  # see `phrases.connectors`

  def num_passes(self) -> int:
    """Returns how often phrases are searched for."""
    return int(self.phrases) if self.phrases.isdecimal() else 0

  def phrase_rules(self) -> phrases_lib.Rules:
    """Returns what is a phrase."""
    score, threshold = self.phrases_score, self.phrases_threshold
    if threshold == phrases_lib.USUAL:
      threshold = phrases_lib.THRESHOLDS[score]
    return phrases_lib.Rules(
      score=score,
      threshold=threshold,
      min_count=self.phrases_min_count,
      connectors=phrases_lib.connectors(self.phrases_connectors),
    )


def settings_of(settings: Mapping[str, Any], **more: Any) -> Settings:
  """Returns those of `config.data`, and `more` that it has not."""
  names = [x for x in Settings._fields if x in settings]
  return Settings(**{x: settings[x] for x in names} | more)


class Encoded(NamedTuple):
  """A corpus ready for training, as far as this process reads it."""

  folder: pathlib.Path
  words: Sequence[str]  # the vocabulary, by falling count
  counts: np.ndarray  # [vocab] int64, occurrences of each
  ids: np.ndarray  # [num_ids] int32, memory-mapped
  blocks: blocks_lib.Blocks
  manifest: dict[str, Any]
  # [vocab] int64, of the counts those in this text; None = all.
  text_counts: np.ndarray | None = None
  phrases: bytes = b''  # phrases.txt, if any were joined

  @property
  def num_words(self) -> int:
    """Words of the whole corpus, without those outside the vocabulary."""
    return int(self.blocks.words.sum())

  def block(self, number: int) -> np.ndarray:
    """Returns the ids of a block, [n] int32."""
    start, stop = self.blocks.starts[number : number + 2]
    return self.ids[start:stop]

  def read(self, numbers: np.ndarray) -> Iterable[np.ndarray]:
    """Yields the ids of blocks."""
    return map(self.block, numbers)


def encode(
  path: str,
  settings: Settings,
  cache: pathlib.Path,
  progress: Callable[[str, int, int], None],
  num_parts: int = 1,
  readers: base.Readers = base.ALONE,
  known: base.Known | None = None,
) -> Encoded:
  """Encodes the corpus at `path`, or reuses the cache if it is unchanged.

  Each process encodes its own parts of `num_parts`; vocabulary and manifest are
  those of the whole corpus. `progress` is called from this thread with (stage,
  done, total): bytes of 'reading', pieces of 'encoding'. The vocabulary has all
  `known` words. Raises a `UserError` for input that cannot be used.
  """
  files, held_out = sources.without_splits(path, sources.find(path))
  counts = os.path.expanduser(settings.counts)
  encoding = codecs.lookup(settings.encoding).name
  settings = settings._replace(counts=counts, encoding=encoding)
  sizes_bytes = {str(source.path): source.size_bytes for source in files}
  check_same_files(readers.process, _gather(readers, sizes_bytes))
  inputs = [source.path for source in files]
  if os.path.isfile(counts):
    inputs.append(pathlib.Path(counts))
  if known and settings.lowercase and not readers.process:
    _warn_of_capitals(known)
  phrase_files = _phrase_files(settings, known)
  inputs += phrase_files
  known_phrases = _known_phrases(settings, phrase_files)
  unused = [str(x.path) for x in held_out]
  of_inputs = cache_lib.identity_of(inputs)
  identity = [settings, FORMAT.number, of_inputs, unused]
  if known:
    identity.append(known.fingerprint)
  if readers.num_processes > 1:
    # Processes that read the same parts may share a cache, but not a folder.
    identity += [num_parts, readers.process, *readers.local_parts]
  folder = cache_lib.folder_of(cache / 'corpora', '', identity)
  encoded = _open_cached(folder)
  # All or none: the processes choose a vocabulary together.
  if all(_gather(readers, encoded is not None)) and encoded is not None:
    return encoded
  with atomic.folder(folder, cache_lib.REMEDY, is_checked=True) as temporary:
    encoder = _Encoder(
      files=files,
      settings=settings,
      folder=temporary,
      progress=progress,
      num_parts=num_parts,
      readers=readers,
      unused=unused,
      known=known,
      known_phrases=known_phrases,
    )
    encoder.run()
    cache_lib.check_unchanged(inputs, of_inputs, encoder.has_left_out)
    # Opened before the move: another job may replace it at any moment.
    encoded = _open(temporary)
  return encoded._replace(folder=folder)


def _warn_of_capitals(known: base.Known) -> None:
  """Warns of words that text in lower case does not have."""
  num, total = sum(x != x.lower() for x in known.keys), len(known.keys)
  if num > _MAX_CAPITALS * total:
    _LOG.warning(
      f'{num:,} of the {total:,} words of {known.path} have capital letters, '
      'and the text is lowercased; give --config.data.lowercase=false if '
      'theirs was not'
    )


def _phrase_files(
  settings: Settings, known: base.Known | None
) -> list[pathlib.Path]:
  """Returns the files of phrases that are joined before any are searched for.

  Those of a run that is continued come first, as they did in its text: its
  vocabulary has them.
  """
  files = []
  if known:
    files = [phrases_lib.file_of(known.path)]
    files = [x for x in files if x.name == phrases_lib.FILE]
  if settings.phrases and not settings.phrases.isdecimal():
    files.append(phrases_lib.file_of(settings.phrases))
  return files


def _known_phrases(
  settings: Settings, files: Sequence[pathlib.Path]
) -> phrases_lib.Phrases | None:
  """Returns the phrases of files, one after the other, or None.

  Raises a `UserError` if they do not go together, or with those that are
  searched for.
  """
  if not files:
    return None
  first, *others = map(phrases_lib.load, files)
  if settings.num_passes():
    others.append(phrases_lib.Phrases(settings.phrase_rules(), ()))
  for phrases in others:
    first = first.then(phrases)
  return first


def check_same_files(process: int, sizes_bytes: list[dict[str, int]]) -> None:
  """Checks that all processes see the same files, given as {path: size}.

  Otherwise some words would be read twice and others not at all. Raises a
  `UserError` in every process, with the first difference.
  """
  for other, files in enumerate(sizes_bytes):
    if different := sizes_bytes[process].items() ^ files.items():
      path, _ = min(different)
      sizes = (
        f'{sizes_bytes[i].get(path, 0):,} bytes in process {i}'
        for i in (other, process)
      )
      raise errors.UserError(
        f'{path} has {" and ".join(sizes)}; give all processes the same text'
      )


def _gather(readers: base.Readers, value: Any) -> list[Any]:
  """Returns the JSON-ready values of all processes."""
  return list(map(json.loads, readers.gather(json.dumps(value).encode())))


def piece_bytes(total_bytes: int) -> int:
  """Returns the size of pieces: small enough for parts to have many."""
  return min(_MAX_PIECE_BYTES, max(_MIN_PIECE_BYTES, total_bytes // 64))


@dataclasses.dataclass
class _Encoder:
  """Encodes those parts of a corpus that this process reads."""

  files: list[sources.Source]
  settings: Settings
  folder: pathlib.Path
  progress: Callable[[str, int, int], None]
  num_parts: int
  readers: base.Readers
  unused: list[str]  # files of the folder that it holds out
  known: base.Known | None = None  # words that are in the vocabulary
  known_phrases: phrases_lib.Phrases | None = None  # to join

  def __post_init__(self):
    self.reports = [wiki.ReadReport() for _ in self.files]

  def has_left_out(self, path: pathlib.Path) -> bool:
    """Whether nothing was read of what a file has got since it was found."""
    return any(
      source.path == path and report.source_bytes <= source.size_bytes
      for source, report in zip(self.files, self.reports, strict=True)
    )

  def run(self) -> None:
    """Writes the files of the folder."""
    counts = self.settings.counts
    listed = _read_counts(counts) if counts else None  # refused before reading
    tokenize.prepare(self.settings.tokens, self.settings.lowercase)
    ahead.wait()
    pieces: Sequence[pieces_lib.Piece] = self.read()
    self.check_encoding(pieces)
    pieces, phrases = self.join(pieces)
    if self.known:
      words, num_different = self.grow(pieces, growth.words_of(self.known))
    else:
      words, num_different = self.choose_words(pieces, listed)
    with open(self.folder / 'vocab.txt', 'wb') as file:
      names = [x.decode() for x in words.texts()]
      word2vec_format.put_counts(file, names, words.counts)
    digests, totals = self.map(pieces, words)
    if not totals['num_words']:
      path = self.known.path if self.known and not counts else counts
      raise errors.UserError(
        f'no word of {path} occurs in the text; check it, '
        '--config.data.lowercase and --config.data.tokens'
      )
    content = [sources.file_sha256(self.folder / 'vocab.txt'), *digests]
    manifest = FORMAT.stamp() | {
      'size_bytes': sum(x.size_bytes for x in self.files),
      # By this process.
      'num_read_files': sum(x.source_bytes > 0 for x in self.reports),
      'read_bytes': sum(x.source_bytes for x in self.reports),
      # Of vocabulary and ids, whatever the process: what a run resumes on.
      'fingerprint': hashlib.sha256(' '.join(content).encode()).hexdigest(),
      'num_vocab_words': len(words.counts),
      'num_words': totals['num_words'],
      'num_phrases': [*map(len, phrases.passes if phrases is not None else ())],
      'joined_phrases': totals['joined_phrases'],
      'text_bytes': totals['text_bytes'],
      'inputs': [x._asdict() for x in self.inputs()],
      'dropped': self.dropped(totals)
      | {'words_below_vocabulary': num_different - len(words.counts)},
    }
    checksums.seal(self.folder, manifest)

  def join(
    self, pieces: Sequence[pieces_lib.Piece]
  ) -> tuple[Sequence[pieces_lib.Piece], phrases_lib.Phrases | None]:
    """Joins phrases, and writes which; returns the new pieces and them."""
    phrases, num_passes = self.known_phrases, self.settings.num_passes()
    run = passes.Passes(self.folder, self.readers, self.progress)
    if phrases is not None:
      pieces = run.join(pieces, phrases)
    if num_passes:
      rules = self.settings.phrase_rules()
      pieces, new = run.find(pieces, rules, num_passes)
      phrases = new if phrases is None else phrases.then(new)
    if phrases is not None:
      phrases.save(self.folder / phrases_lib.FILE)
    return pieces, phrases

  def grow(
    self, pieces: Sequence[pieces_lib.Piece], known: tokenize.Words
  ) -> tuple[tokenize.Words, int]:
    """Returns the `known` words with new ones, and how many are different.

    Writes counts.npy. Raises a `UserError` if there is no room for new words.
    """
    counted, num_different, _ = self.count(pieces, known.hashes)
    words = growth.grown(
      known,
      counted,
      min_count=self.settings.min_count,
      max_vocab=self.settings.max_vocab,
    )
    counts = growth.counts_in(words, counted)
    np.save(self.folder / 'counts.npy', counts)
    return words, num_different + int(np.count_nonzero(counts == 0))

  def choose_words(
    self, pieces: Sequence[pieces_lib.Piece], listed: tokenize.Words | None
  ) -> tuple[tokenize.Words, int]:
    """Returns the vocabulary and the number of different words.

    It is chosen from the `listed` counts or, without them, from the pieces.
    Raises a `UserError` if it has fewer than two words.
    """
    s = self.settings
    if listed is None:
      words, num_different, most = self.count(pieces)
    else:
      words, most = listed, listed.counts.max()
      num_different = len(words.counts)
    words = words.subset(words.best(s.min_count, s.max_vocab))
    if len(words.counts) > 1:
      return words, num_different
    problems = [x for report in self.reports for x in report.problems]
    raise errors.UserError(
      _too_few(
        s,
        words=words,
        pieces=pieces,
        num_different=num_different,
        most=int(most),
        problem=next((x for x in problems if not x.endswith(': empty')), ''),
      )
    )

  def inputs(self) -> list[roles.Input]:
    """Returns the files of each form and the first line of one of them."""
    # The process that reads the first piece of a file knows its first line.
    gathered = _gather(self.readers, [x.first for x in self.reports])
    firsts = zip(*gathered, strict=True)
    by_form: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    for source, report, lines in zip(
      self.files, self.reports, firsts, strict=True
    ):
      key = report.form, *report.columns.items()
      first = next(filter(None, lines), '')
      by_form.setdefault(key, []).append((str(source.path), first))
    return [
      roles.Input(
        files=tuple(path for path, _ in files),
        form=form,
        columns=dict(columns) or {'text': 'all'},
        first={'text': next((x for _, x in files if x), '')},
      )
      for (form, *columns), files in by_form.items()
    ]

  def dropped(self, totals: collections.Counter) -> dict[str, Any]:
    """Returns what was left out of the corpus, counted over all processes."""
    reports = self.reports
    problems = [problem for report in reports for problem in report.problems]
    if self.unused:
      names = self.unused[:6] + ['...'] * (len(self.unused) > 6)
      problems.append(
        f'not used: {", ".join(names)}, held out beside train; a glob as '
        'config.data.path takes all files of a folder'
      )
    all_problems = itertools.chain(*_gather(self.readers, problems))
    # Every process reads files that cannot be divided: not summed over them.
    return {
      'out_of_vocabulary_words': totals['read_words'] - totals['num_words'],
      'problems': [*dict.fromkeys(all_problems)],  # several may have the same
      'overlong_words': totals['overlong_words'],
      'emoji': totals['emoji'],
      'invalid_utf8_bytes': totals['invalid_utf8_bytes']
      + sum(x.replaced_bytes for x in reports),
      'lost_bytes': sum(x.lost_bytes for x in reports),
      'redirects': sum(x.redirects for x in reports),
      'other_namespace_pages': sum(x.other_namespace_pages for x in reports),
    }

  def check_encoding(self, pieces: Sequence[pieces_lib.Piece]) -> None:
    """Raises a `UserError` for text in another encoding.

    A few files of many are reported as problems instead.
    """
    encoding = self.settings.encoding.upper()
    total: collections.Counter[int] = collections.Counter()
    invalid: collections.Counter[int] = collections.Counter()
    for piece in pieces:
      total[piece.file] += piece.counters['text_bytes']
      invalid[piece.file] += piece.counters['invalid_utf8_bytes']
    for file, report in enumerate(self.reports):
      invalid[file] += report.replaced_bytes
      # Every process decodes the whole file, whatever pieces it reads.
      total[file] = report.recoded_bytes or total[file]
    wrong = [i for i in total if invalid[i] > sources.MAX_INVALID * total[i]]
    if not wrong:
      return
    if invalid.total() <= sources.MAX_INVALID * total.total():
      for i in wrong:
        self.reports[i].problems.append(
          f'{self.files[i].path}: {invalid[i]:,} of {total[i]:,} bytes are not '
          f'{encoding}; replaced'
        )
      return
    worst = max(wrong, key=lambda i: invalid[i])
    path = self.files[worst].path
    likely = _likely_encoding(path, of_invalid=encoding == 'UTF-8')
    # Of JSON and dumps all text may be lost.
    percent = min(100, 100 * invalid[worst] / max(1, total[worst]))
    remedy = f'it looks like {likely}: give --config.data.encoding={likely}'
    if likely.upper() == encoding:
      remedy = 'it is damaged, or no text: remove it'
    raise errors.UserError(
      f'{percent:.0f} % of the bytes of {path} are not {encoding} '
      f'({len(wrong)} such files); {remedy}'
    )

  def read(self) -> list[pieces_lib.Piece]:
    """Tokenizes the pieces of this process, in order; fills the reports.

    Files are read in parallel, as unpacking is slow; one feeds all tokenizers.
    """
    files, threads = self.files, resources.reading_threads()
    total_bytes = sum(source.size_bytes for source in files)
    # Two pieces in flight for each thread, over all the files being read.
    depth = max(1, 2 * threads // len(files) - 1)

    def read_source(file: int) -> list[pieces_lib.Piece]:
      texts = sources.pieces(
        files[file],
        report=self.reports[file],
        piece_bytes=piece_bytes(total_bytes),
        wanted=lambda number: (
          (file + number) % self.num_parts in self.readers.local_parts
        ),
        encoding=self.settings.encoding,
        extractor=functools.partial(
          wiki.extractor,
          columns=self.settings.columns,
          is_tokenized=self.settings.tokens == 'whitespace',
          path=str(files[file].path),
          pool=strippers if total_bytes > _MANY_BYTES else None,
        ),
      )
      return list(
        sources.map_ahead(
          tokenizers,
          function=self.write_piece,
          items=((file, text) for text in texts),
          depth=depth,
        )
      )

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
          read_bytes = sum(x.source_bytes for x in self.reports)
          self.progress('reading', read_bytes, total_bytes)
        return [piece for job in jobs for piece in job.result()]
      except BaseException:
        # The readers end when none of their pieces is tokenized.
        for pool in (file_readers, tokenizers):
          pool.shutdown(wait=False, cancel_futures=True)
        raise

  def write_piece(self, file: int, piece: sources.Piece) -> pieces_lib.Piece:
    """Writes the words and ids of a piece to disk."""
    s = self.settings
    ids, words, invalid_bytes, overlong_words, emoji = tokenize.tokenize(
      piece.text,
      definition=s.tokens,
      lowercase=s.lowercase,
      ends_line=piece.ends_line,
      every_line=s.every_line,
    )
    if not piece.number:
      self.reports[file].first = _first_line(piece.text)
    counters = {
      'text_bytes': len(piece.text),
      'read_words': int(words.counts.sum()),
      'invalid_utf8_bytes': invalid_bytes,
      'overlong_words': overlong_words,
      'emoji': emoji,
    }
    order = np.argsort(words.hashes)
    # The new index of each word; the last one maps END to itself.
    numbers = np.full(len(order) + 1, tokenize.END, np.int32)
    numbers[order] = np.arange(len(order))
    path = self.folder / f'piece-{file:06d}-{piece.number:06d}'
    pieces_lib.write(path, words.subset(order), numbers[ids])
    return pieces_lib.Piece(
      file=file,
      number=piece.number,
      num_different=len(order),
      path=path,
      counters=counters,
    )

  def count(
    self,
    pieces: Sequence[pieces_lib.Piece],
    known: np.ndarray | None = None,
  ) -> tuple[tokenize.Words, int, int]:
    """Counts the words of all processes, which get the same result.

    Returns the vocabulary, perhaps with rarer words, the number of different
    words, and the highest count. With the hashes of `known` words it has these
    and all that occur `min_count` times.
    """
    min_count, max_vocab = self.settings.min_count, self.settings.max_vocab
    if known is not None:
      max_vocab = 0  # of which `known` words are a part
    # The first process that reads a piece counts it.
    keys = _gather(self.readers, [piece[:3] for piece in pieces])
    keys = [set(map(tuple, keys_of_process)) for keys_of_process in keys]
    counted_before = set().union(*keys[: self.readers.process])
    most_words = sum(n for _, _, n in set().union(*keys))
    num_tables = max(1, -(-most_words // MAX_HELD_WORDS))
    chosen, num_different, most = [], 0, 0
    limits = [
      (i << tokenize.HASH_BITS) // num_tables for i in range(num_tables + 1)
    ]
    for first, stop in itertools.pairwise(limits):
      words = tokenize.add_up(
        x.words(first, stop) for x in pieces if x[:3] not in counted_before
      )
      if self.readers.num_processes > 1:
        message = io.BytesIO()
        np.savez(message, *words)
        messages = map(io.BytesIO, self.readers.gather(message.getvalue()))
        words = tokenize.add_up(
          tokenize.Words(*np.load(x).values()) for x in messages
        )
      num_different += len(words.counts)
      most = max(most, int(words.counts.max(initial=0)))
      is_chosen = words.counts >= min_count
      if known is not None:
        is_chosen |= np.isin(words.hashes, known)
      chosen.append(words.subset(np.flatnonzero(is_chosen)))
      # Not for every table: it takes as long as sorting all words.
      if max_vocab and sum(len(x.counts) for x in chosen) > 2 * max_vocab:
        words = tokenize.concatenated(chosen)
        chosen = [words.subset(words.best(min_count, max_vocab))]
        min_count = int(chosen[0].counts[-1])  # which other words must reach
    return tokenize.concatenated(chosen), num_different, most

  def map(
    self, pieces: Sequence[pieces_lib.Piece], vocabulary: tokenize.Words
  ) -> tuple[list[str], collections.Counter]:
    """Writes the ids of this process and all blocks; removes the pieces.

    Returns file, number and SHA-256 of the ids for every piece of the corpus,
    and the sums of the counters of the pieces.
    """
    num_ids, threads = 0, resources.reading_threads()
    local_pieces, starts = [], {}
    order = np.argsort(vocabulary.hashes)
    hashes = vocabulary.hashes[order]

    def mapped(piece: pieces_lib.Piece) -> tuple:
      words, ids = piece.open()
      positions = np.searchsorted(hashes[:-1], words.hashes)
      is_known = hashes[positions] == words.hashes
      new_ids = np.where(is_known, order[positions], _UNKNOWN)
      new_ids = np.append(new_ids, tokenize.END).astype(np.int32)
      ids = _map_ids(ids, new_ids, self.settings.every_line)
      sha256 = hashlib.sha256(ids).hexdigest()
      return piece, ids, sha256, *block_starts(ids, blocks_lib.BLOCK_WORDS)

    with (
      open(self.folder / 'ids.bin', 'wb') as file,
      futures.ThreadPoolExecutor(threads) as pool,
    ):
      for piece, ids, sha256, firsts, sizes in sources.map_ahead(
        pool,
        function=mapped,
        items=((piece,) for piece in pieces),
        depth=2 * threads,
      ):
        file.write(ids)
        key = piece.file, piece.number
        counters = piece.counters | {'num_words': int(sizes.sum())}
        local_pieces.append([*key, sha256, sizes.tolist(), counters])
        starts[key] = num_ids + firsts
        num_ids += len(ids)
        piece.path.unlink()
        self.progress('encoding', len(local_pieces), len(pieces))
    # Several processes may read the same piece.
    all_pieces = itertools.chain(*_gather(self.readers, local_pieces))
    by_key = {(file, number): rest for file, number, *rest in all_pieces}
    columns, digests = [np.zeros((3, 0), np.int64)], []
    totals: collections.Counter[str] = collections.Counter()
    for key, (sha256, sizes, counters) in sorted(by_key.items()):
      firsts = starts.get(key, [num_ids] * len(sizes))
      columns.append(np.array([firsts, sizes, [sum(key)] * len(sizes)], int))
      digests.append(f'{key[0]} {key[1]} {sha256}')
      totals.update(counters)
    firsts, sizes, numbers = np.concatenate(columns, 1)
    # Blocks of other processes are empty: they start where the next one does.
    firsts = np.minimum.accumulate(np.append(firsts, num_ids)[::-1])[::-1]
    blocks = blocks_lib.Blocks(firsts, sizes, numbers)
    np.savez(self.folder / 'blocks.npz', **blocks._asdict())
    return digests, totals


def _likely_encoding(path: pathlib.Path, of_invalid: bool) -> str:
  """Guesses from the start of a file, or from its first bytes not in UTF-8."""
  decoder = codecs.getincrementaldecoder(sources.UTF_8)()
  with packed.File(path) as file:
    while block := file.read(1 << 16):
      if not of_invalid:
        return sources.guess_encoding(block)
      try:
        decoder.decode(block)
      except UnicodeDecodeError as error:
        rest = error.object[error.start :] + file.read(1 << 16)
        return sources.guess_encoding(rest)
  return sources.UTF_8


def _first_line(text: bytes) -> str:
  """Returns the first line with text, shortened."""
  lines = text[:4096].decode(errors='replace').splitlines()
  line = next(filter(str.strip, lines), '').strip()
  return line if len(line) <= _SHOWN_CHARS else f'{line[:_SHOWN_CHARS]}...'


def _too_few(
  settings: Settings,
  words: tokenize.Words,
  pieces: Sequence[pieces_lib.Piece],
  num_different: int,
  most: int,
  problem: str,
) -> str:
  """Returns why there are not two `words`, and what to do."""
  segment = (
    'where a language has no spaces, segment it first (jieba, MeCab, ...) and '
    'give --config.data.tokens=whitespace'
  )
  longest = max(
    pieces[0].open()[0].texts() if pieces else [], key=len, default=b''
  )
  num_overlong = sum(x.counters['overlong_words'] for x in pieces)
  if num_overlong and not (num_different or problem):
    return f'all {num_overlong:,} words are too long to be words: {segment}'
  if not num_different:
    why = f' ({problem})' if problem else ': only punctuation or markup'
    return (
      f'the text has no word{why}; set config.data.path to text, or '
      '--config.data.tokens=words+emoji or whitespace if signs are words'
    )
  if sum('\u0e00' <= c <= '\u9fff' for c in longest.decode()) > 8:
    return f'words are whole sentences, {longest.decode()[:20]!r}: {segment}'
  chosen = [f'only one word ({x.decode()!r})' for x in words.texts()]
  subject = chosen[0] if chosen else 'no word'
  return (
    f'{subject} occurs {settings.min_count} times or more: {num_different:,} '
    f'different words, the most frequent {most:,} times, and '
    'two are needed to learn from contexts; lower --config.data.min_count or '
    'give more text'
  )


def _read_counts(path: str) -> tokenize.Words:
  """Reads `config.data.counts`: `word count` lines in any order."""
  try:
    names, counts = word2vec_format.read_vocab(path)
  except errors.UserError as error:
    raise errors.UserError(f'config.data.counts: {error}') from error
  words = tokenize.words_of([x.encode() for x in names])
  return words._replace(counts=counts)


def _start_stripper() -> None:
  """Worker initializer: ignores signals, exits when the parent dies."""
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
  parent = multiprocessing.parent_process()

  def watch() -> None:
    if parent is not None:
      parent.join()
      os._exit(0)

  threading.Thread(target=watch, daemon=True).start()


def _map_ids(
  ids: np.ndarray, new_ids: np.ndarray, every_line: bool
) -> np.ndarray:
  """Translates ids; drops words that have none, and ENDs of lines without any.

  Unless `every_line` has its END.

  `new_ids` has END behind those of the words, which may be `_UNKNOWN`.
  """
  mapped = new_ids[ids]
  mapped = mapped[mapped != _UNKNOWN]
  if every_line:
    return mapped
  is_end = mapped == tokenize.END
  # Not the first: the sentence may have begun in the piece before.
  is_repeated = np.append(False, is_end[1:] & is_end[:-1])[: len(mapped)]
  return mapped[~is_repeated]


def block_starts(
  ids: np.ndarray, block_words: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns starts and numbers of words of blocks, [num_blocks] int64 each.

  A block has at most `block_words` words and ends with a sentence; a sentence
  longer than a block is cut.
  """
  ends = np.flatnonzero(ids == tokenize.END)
  words_before = ends - np.arange(len(ends))  # each END
  num_words = len(ids) - len(ends)
  starts, firsts, first = [], [], 0  # of blocks, in ids and in words
  start = 0
  while first < num_words:
    starts.append(start)
    firsts.append(first)
    stop = first + block_words
    if stop >= num_words:
      break
    num_ends = int(np.searchsorted(words_before, stop, 'right'))
    sentence = int(words_before[num_ends - 1]) if num_ends else 0
    first = sentence if sentence > first else stop
    start = first + num_ends
  sizes = np.diff(firsts, append=num_words)
  return np.array(starts, np.int64), sizes[: len(starts)].astype(np.int64)


def _open_cached(folder: pathlib.Path) -> Encoded | None:
  """Opens a folder of the cache; logs why it cannot if there is one."""
  try:
    return _open(folder)
  except FileNotFoundError:
    pass
  except Exception as error:  # damaged in any way, or of another format
    cache_lib.log_unusable(folder, error)
  return None


def _open(folder: pathlib.Path) -> Encoded:
  """Opens a corpus folder; raises various errors if it is damaged."""
  manifest = checksums.opened(folder)
  # The folder's name has the number, too, as it had before manifests did.
  FORMAT.check(folder, {'format': FORMAT.number} | manifest)
  words, counts = word2vec_format.read_vocab(folder / 'vocab.txt')
  of_text = folder / 'counts.npy'
  text_counts = np.load(of_text) if of_text.exists() else None
  with np.load(folder / 'blocks.npz') as arrays:
    blocks = blocks_lib.Blocks(**arrays)
  path, ids = folder / 'ids.bin', np.zeros(0, np.int32)
  if path.stat().st_size:  # a process without text has nothing to map
    ids = np.asarray(np.memmap(path, '<i4', 'r'))
  phrases = folder / phrases_lib.FILE
  sizes = len(words), len(ids)
  if sizes != (manifest['num_vocab_words'], blocks.starts[-1]):
    raise ValueError('vocabulary or ids have changed')
  return Encoded(
    folder=folder,
    words=words,
    counts=counts,
    ids=ids,
    blocks=blocks,
    manifest=manifest,
    text_counts=text_counts,
    phrases=phrases.read_bytes() if phrases.exists() else b'',
  )
