"""Passes over pieces of text that find phrases and join them.

Pieces are counted side by side, each with keys of its own on disk, and added up
one range of keys at a time, as words are. Held in memory are the different
words, and those pairs that occur often enough to be phrases. The phrases do not
depend on the number of threads or processes. Pairs do not reach from a piece to
the next one, which only a line that is longer than a piece does.
"""

import dataclasses
import io
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from jaxemb.data import base
from jaxemb.io import text_files as sources
from jaxemb.runtime import resources
from jaxemb.text import collocations, phrases, pieces, tokenize

MAX_HELD_NAMES = 1 << 22  # words and pairs that are added up at a time


@dataclasses.dataclass
class Passes:
  """Finds or joins phrases in the pieces of this process."""

  folder: pathlib.Path  # for temporary files
  readers: base.Readers
  progress: Callable[[str, int, int], None]

  def find(
    self,
    texts: Sequence[pieces.Piece],
    rules: phrases.Rules,
    num_passes: int,
  ) -> tuple[list[pieces.Piece], phrases.Phrases]:
    """Finds phrases and joins them, pass by pass.

    Returns the new pieces in place of `texts`, and the phrases.
    """
    passes: list[list[phrases.Phrase]] = []
    while len(passes) < num_passes:
      # What the last pass joined goes into this one.
      passes.append(self.find_once(texts, rules))
      texts = self.join_once(texts, passes[-1], rules)
    return list(texts), phrases.Phrases(rules, passes)

  def join(
    self, texts: Sequence[pieces.Piece], known: phrases.Phrases
  ) -> list[pieces.Piece]:
    """Returns pieces in which known phrases are joined, in place of `texts`."""
    for once in known.passes:
      texts = self.join_once(texts, once, known.rules)
    return list(texts)

  def find_once(
    self, texts: Sequence[pieces.Piece], rules: phrases.Rules
  ) -> list[phrases.Phrase]:
    """Returns the phrases of one pass, the highest score first."""
    texts = self.counted(texts)
    connectors = _hashes(rules.connectors)

    def count(piece: pieces.Piece) -> pathlib.Path:
      words, ids = piece.open()
      names = collocations.names(words, connectors)
      pairs = collocations.count(ids, names, words.counts)
      path = piece.path.with_name(f'pairs-{piece.path.name}')
      np.concatenate(pairs).tofile(path)
      return path

    paths = list(self.map(count, texts))
    num_words = sum(int(x.open()[0].counts.sum()) for x in texts)
    num_words = sum(self.gather(num_words))
    totals, num_names = self.add_up(paths, rules.min_count)
    index = collocations.index(totals)
    scoring = collocations.Scoring(
      score=rules.score,
      threshold=rules.threshold,
      min_count=rules.min_count,
      num_names=num_names,
      num_words=num_words,
    )

    def select(piece: pieces.Piece, path: pathlib.Path) -> tuple:
      words, ids = piece.open()
      names = collocations.names(words, connectors)
      pairs = _open(path)
      path.unlink()
      return piece, collocations.select(
        ids, names=names, pairs=pairs, index=index, scoring=scoring
      )

    local = []
    for piece, candidates in self.map(select, texts, paths):
      local += _phrases_of(piece, candidates, connectors)
    chosen = {tuple(x[0]): x for part in self.gather(local) for x in part}
    found = [phrases.Phrase(words, *x[1:]) for words, x in chosen.items()]
    return sorted(found, key=lambda x: (-x.score, x.words))

  def counted(self, texts: Sequence[pieces.Piece]) -> list[pieces.Piece]:
    """Returns those pieces that no process before this one reads."""
    keys = self.gather([piece[:2] for piece in texts])
    before = {tuple(x) for part in keys[: self.readers.process] for x in part}
    return [x for x in texts if x[:2] not in before]

  def add_up(
    self, paths: Sequence[pathlib.Path], min_count: int
  ) -> tuple[collocations.Totals, int]:
    """Adds up the names of all processes, which get the same result.

    Returns the totals of all words, and of the pairs that occur `min_count`
    times, and the number of different words and pairs.
    """
    num_entries = sum(path.stat().st_size // 16 for path in paths)
    threads = resources.reading_threads()
    entries, most_threads = zip(
      *self.gather([num_entries, threads]), strict=True
    )
    num_held = max(1, MAX_HELD_NAMES // max(most_threads))
    bits = max(0, (-(-sum(entries) // num_held) - 1).bit_length())
    width = 1 << (collocations.KEY_BITS - bits)

    pairs = list(map(_open, paths))
    # The last limit is above all keys.
    limits = np.append(np.arange(1 << bits) * width, np.iinfo(np.int64).max)
    offsets = [np.searchsorted(x.keys, limits).tolist() for x in pairs]

    def of_range(number: int) -> collocations.Totals:
      ranges = [slice(*x[number : number + 2]) for x in offsets]
      parts = [
        collocations.Pairs(*(column[i] for column in x))
        for x, i in zip(pairs, ranges, strict=True)
      ]
      return collocations.add_up(parts, bits)

    chosen, num_names = [], 0
    with futures.ThreadPoolExecutor(threads) as pool:
      for totals in sources.map_ahead(
        pool,
        function=of_range,
        items=((i,) for i in range(1 << bits)),
        depth=threads - 1,
      ):
        if self.readers.num_processes > 1:
          totals = self.add_up_processes(totals, bits)
        num_names += len(totals.keys)
        is_chosen = totals.counts >= min_count  # words are above any count
        chosen.append([x[is_chosen] for x in totals])
    columns = map(np.concatenate, zip(*chosen, strict=True))
    return collocations.Totals(*columns), num_names

  def add_up_processes(
    self, totals: collocations.Totals, range_bits: int
  ) -> collocations.Totals:
    """Adds up the totals of one range over all processes."""
    message = io.BytesIO()
    np.savez(message, *totals)
    messages = map(io.BytesIO, self.readers.gather(message.getvalue()))
    parts = [collocations.Totals(*np.load(x).values()) for x in messages]
    return collocations.add_up(parts, range_bits)

  def join_once(
    self,
    texts: Sequence[pieces.Piece],
    once: Sequence[phrases.Phrase],
    rules: phrases.Rules,
  ) -> list[pieces.Piece]:
    """Returns pieces in which the phrases of one pass are joined."""
    joiner = collocations.Joiner(
      [[x.encode() for x in phrase.words] for phrase in once],
      _hashes(rules.connectors),
    )

    def join(piece: pieces.Piece) -> pieces.Piece:
      words, ids, num_joined = joiner.join(*piece.open())
      path = piece.path.with_name(f'{piece.path.name}+')
      pieces.write(path, words, ids)
      piece.path.unlink()
      counters = dict(piece.counters)
      counters['read_words'] = int(words.counts.sum())
      counters['joined_phrases'] = num_joined + counters.get(
        'joined_phrases', 0
      )
      return piece._replace(
        num_different=len(words.counts), path=path, counters=counters
      )

    return list(self.map(join, texts))

  def map(self, function: Callable, *items: Sequence) -> Iterator[Any]:
    """Yields what a function makes of pieces, on all threads."""
    threads = resources.reading_threads()
    with futures.ThreadPoolExecutor(threads) as pool:
      results = sources.map_ahead(
        pool,
        function=function,
        items=zip(*items, strict=True),
        depth=2 * threads,
      )
      for number, result in enumerate(results, 1):
        self.progress('finding phrases', number, len(items[0]))
        yield result

  def gather(self, value: Any) -> list[Any]:
    """Returns the JSON-ready values of all processes."""
    if self.readers.num_processes == 1:
      return [value]
    values = self.readers.gather(json.dumps(value).encode())
    return list(map(json.loads, values))


def _hashes(words: Sequence[str]) -> np.ndarray:
  return tokenize.words_of([x.encode() for x in words]).hashes


def _open(path: pathlib.Path) -> collocations.Pairs:
  """Maps the pairs of a piece."""
  if not path.stat().st_size:
    return collocations.Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64))
  data = np.asarray(np.memmap(path, np.int64, 'r'))
  return collocations.Pairs(*data.reshape(2, -1))


def _phrases_of(
  piece: pieces.Piece,
  candidates: collocations.Candidates,
  connectors: np.ndarray,
) -> list[tuple]:
  """Returns words, counts and scores of phrases, JSON-ready."""
  words, ids = piece.open()
  word = words.reader()
  connects = np.isin(words.hashes, connectors)
  chosen = []
  for start, count, score in zip(
    *(x.tolist() for x in candidates), strict=True
  ):
    end = start + 1
    while connects[ids[end]]:
      end += 1
    text = [word(i).decode() for i in ids[start : end + 1].tolist()]
    chosen.append((text, count, score))
  return chosen
