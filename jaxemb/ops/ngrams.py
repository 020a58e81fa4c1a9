"""N-grams of characters of words, and the buckets that they hash to.

As in fastText (Bojanowski et al. 2017; dictionary.cc): a word is wrapped in `<`
and `>`, its n-grams are sequences of UTF-8 characters, and their FNV-1a hash
takes bytes with their sign. `<` and `>` alone are no n-grams; the end of a
sentence, `</s>`, has none.
"""

import dataclasses
import re
from collections.abc import Sequence
from concurrent import futures
from typing import NamedTuple

import numba
import numpy as np

from jaxemb import errors
from jaxemb.runtime import resources

END_OF_SENTENCE = '</s>'
MAX_CHARS = 100  # an n-gram of a word longer than that helps nobody
_MAX_BUCKETS = 2**31 - 1  # fastText counts in int32
_BLOCK_WORDS = 1 << 16  # encoded at once


@dataclasses.dataclass(frozen=True)
class Subwords:
  """Which n-grams of a word have rows, and how many rows they share."""

  min_chars: int
  max_chars: int
  buckets: int = 2_000_000

  def __post_init__(self):
    if not 1 <= self.min_chars <= self.max_chars <= MAX_CHARS:
      raise errors.UserError(
        f'n-grams of {self.min_chars} to {self.max_chars} characters are none; '
        f'give a range within 1 to {MAX_CHARS}, such as 3-6'
      )
    if not 1 <= self.buckets <= _MAX_BUCKETS:
      raise errors.UserError(
        f'n-grams cannot have {self.buckets:,} buckets; give 1 to '
        f'{_MAX_BUCKETS:,}, such as 2,000,000'
      )


class Ngrams(NamedTuple):
  """Buckets of the n-grams of n words, one word behind the other."""

  starts: np.ndarray  # [n + 1] int64, of each word in `buckets`
  buckets: np.ndarray  # [total] int32

  def of(self, word: int) -> np.ndarray:
    """Returns the buckets of a word by its number, [n-grams] int32."""
    return self.buckets[self.starts[word] : self.starts[word + 1]]


def parse(setting: str, buckets: int = 2_000_000) -> Subwords:
  """Reads a range such as `3-6`, or one length such as `5`.

  Raises a `UserError` for anything else.
  """
  match = re.fullmatch(r'\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?', str(setting))
  if not match:
    raise errors.UserError(
      f'{setting!r} is no range of characters; give one such as 3-6'
    )
  first, last = match.groups()
  return Subwords(int(first), int(last or first), buckets)


def of_word(word: str | bytes, subwords: Subwords) -> list[tuple[str, int]]:
  """Returns the n-grams of one word with their buckets, in fastText's order.

  For single words: nothing is compiled.
  """
  word = word if isinstance(word, bytes) else _encode(word)
  if word == END_OF_SENTENCE.encode():
    return []
  wrapped = b'<' + word + b'>'
  # A character begins at each byte that does not continue one.
  begins = [i for i, x in enumerate(wrapped) if x & 0xC0 != 0x80]
  begins.append(len(wrapped))
  num_chars = len(begins) - 1
  ngrams = []
  for i in range(num_chars):
    for n in range(subwords.min_chars, subwords.max_chars + 1):
      if i + n > num_chars:
        break
      if n == 1 and i in (0, num_chars - 1):
        continue
      ngram = wrapped[begins[i] : begins[i + n]]
      text = ngram.decode('utf-8', 'backslashreplace')
      ngrams.append((text, _hash(ngram) % subwords.buckets))
  return ngrams


def of_words(words: Sequence[str | bytes], subwords: Subwords) -> Ngrams:
  """Returns the buckets of the n-grams of each word."""
  starts = np.zeros(len(words) + 1, np.int64)
  parts = []
  for first in range(0, len(words), _BLOCK_WORDS):
    block = words[first : first + _BLOCK_WORDS]
    encoded = [x if isinstance(x, bytes) else _encode(x) for x in block]
    ends = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))
    text = np.frombuffer(b''.join(encoded), np.uint8)
    begins = ends - np.diff(ends, prepend=0)
    part = of_text(text, begins=begins, ends=ends, subwords=subwords)
    starts[first + 1 : first + 1 + len(block)] = part.starts[1:] + starts[first]
    parts.append(part.buckets)
  return Ngrams(starts, np.concatenate(parts) if parts else np.zeros(0, 'i4'))


def of_text(
  text: np.ndarray,
  begins: np.ndarray,
  ends: np.ndarray,
  subwords: Subwords,
) -> Ngrams:
  """Returns the buckets of words that are slices of a text, [n] each.

  `text` is uint8, UTF-8; words are `text[begins[i]:ends[i]]`, int64. Many words
  take all cores.
  """
  chars = subwords.min_chars, subwords.max_chars
  num_buckets = np.uint32(subwords.buckets)
  firsts = range(0, len(begins), _BLOCK_WORDS)
  blocks = [slice(x, min(x + _BLOCK_WORDS, len(begins))) for x in firsts]

  def count(words: slice) -> np.ndarray:
    return _count(text, begins[words], ends[words], *chars)

  def fill(words: slice) -> None:
    part = buckets[starts[words.start] : starts[words.stop]]
    _fill(text, begins[words], ends[words], *chars, num_buckets, part)

  with futures.ThreadPoolExecutor(len(resources.affinity())) as pool:
    apply = pool.map if len(blocks) > 1 else map
    counts = [np.zeros(1, np.int64), *apply(count, blocks)]
    starts = np.cumsum(np.concatenate(counts))
    buckets = np.empty(starts[-1], np.int32)
    for _ in apply(fill, blocks):
      pass
  return Ngrams(starts, buckets)


def _encode(word: str) -> bytes:
  return word.encode('utf-8', 'backslashreplace')  # of lone surrogates


def _hash(ngram: bytes) -> int:
  value = 2166136261
  for x in ngram:
    value = (value ^ (x | 0xFFFFFF00 if x > 127 else x)) * 16777619 & 0xFFFFFFFF
  return value


@numba.njit(nogil=True, cache=True)
def _is_end_of_sentence(text, begin, end):
  return (
    end - begin == 4
    and text[begin] == 60
    and text[begin + 1] == 47
    and text[begin + 2] == 115
    and text[begin + 3] == 62
  )


@numba.njit(nogil=True, cache=True)
def _count(text, begins, ends, min_chars, max_chars):
  """Numbers of n-grams of each word, [n] int64."""
  counts = np.zeros(len(begins), np.int64)
  for word in range(len(begins)):
    begin, end = begins[word], ends[word]
    if _is_end_of_sentence(text, begin, end):
      continue
    num_chars = 2
    for i in range(begin, end):
      num_chars += (text[i] & 0xC0) != 0x80
    for n in range(min_chars, min(max_chars, num_chars) + 1):
      counts[word] += num_chars - n + 1 - (2 if n == 1 else 0)
  return counts


@numba.njit(nogil=True, cache=True)
def _fill(text, begins, ends, min_chars, max_chars, num_buckets, buckets):
  """Writes the buckets of all n-grams of all words."""
  size = 2
  for word in range(len(begins)):
    size = max(size, ends[word] - begins[word] + 2)
  wrapped = np.empty(size, np.uint32)  # bytes with their sign
  position = 0
  for word in range(len(begins)):
    begin, end = begins[word], ends[word]
    if _is_end_of_sentence(text, begin, end):
      continue
    size = end - begin + 2
    wrapped[0], wrapped[size - 1] = 60, 62
    for i in range(begin, end):
      x = np.uint32(text[i])
      wrapped[1 + i - begin] = x | np.uint32(0xFFFFFF00) if x > 127 else x
    for i in range(size):
      if (wrapped[i] & 0xC0) == 0x80:
        continue
      value = np.uint32(2166136261)
      n, j = 0, i
      while j < size and n < max_chars:
        value = np.uint32((value ^ wrapped[j]) * np.uint32(16777619))
        j += 1
        while j < size and (wrapped[j] & 0xC0) == 0x80:
          value = np.uint32((value ^ wrapped[j]) * np.uint32(16777619))
          j += 1
        n += 1
        if n >= min_chars and not (n == 1 and (i == 0 or j == size)):
          buckets[position] = value % num_buckets
          position += 1
