"""N-grams and their buckets are those of fastText and gensim."""

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.ops import ngrams

WORDS = [
  'a', 'the', 'where', 'overwhelmingly', '</s>', '<', '>', '<>', '', '</s',
  'größe', 'naïve', 'дом', '東京都', '🦊x', '1990s', 'e\u0301', "don't",
  'x' * 60,
]  # fmt: skip
SPECS = [(3, 6), (1, 1), (1, 3), (2, 2), (5, 5), (4, 80)]


def _oracle(word: bytes, minn: int, maxn: int, num_buckets: int) -> list[int]:
  """Does what computeSubwords of fastText does, byte by byte."""
  if word == b'</s>':
    return []
  word = b'<' + word + b'>'
  buckets = []
  for i in range(len(word)):
    ngram = b''
    if word[i] & 0xC0 == 0x80:
      continue
    j, n = i, 1
    while j < len(word) and n <= maxn:
      ngram += word[j : j + 1]
      j += 1
      while j < len(word) and word[j] & 0xC0 == 0x80:
        ngram += word[j : j + 1]
        j += 1
      if n >= minn and not (n == 1 and (i == 0 or j == len(word))):
        h = 2166136261
        for x in ngram:
          h = ((h ^ (x if x < 128 else x - 256)) % 2**32) * 16777619 % 2**32
        buckets.append(h % num_buckets)
      n += 1
  return buckets


@pytest.mark.parametrize('chars', SPECS)
@pytest.mark.parametrize('num_buckets', [1, 1000, 2_000_000, 2**31 - 1])
def test_buckets_are_those_of_fasttext(chars, num_buckets):
  spec = ngrams.Subwords(*chars, num_buckets)
  broken = [b'\xff\xfe', b'\x80abc', b'caf\xc3']  # not UTF-8
  words = WORDS + broken
  result = ngrams.of_words(words, spec)
  assert result.starts.dtype == np.int64 and result.buckets.dtype == np.int32
  assert result.starts[-1] == len(result.buckets)
  for i, word in enumerate(words):
    raw = word if isinstance(word, bytes) else word.encode()
    expected = _oracle(raw, *chars, num_buckets)
    assert result.of(i).tolist() == expected, word
    assert [x for _, x in ngrams.of_word(word, spec)] == expected, word


@pytest.mark.parametrize('chars', SPECS)
def test_buckets_are_those_of_gensim(chars):
  fasttext = pytest.importorskip('gensim.models.fasttext')
  spec = ngrams.Subwords(*chars, 1000)
  words = [x for x in WORDS if x != '</s>']  # which gensim takes apart
  result = ngrams.of_words(words, spec)
  for i, word in enumerate(words):
    expected = fasttext.ft_ngram_hashes(word, *chars, 1000)
    assert result.of(i).tolist() == expected, word


def test_ngrams_of_a_word_are_spelled():
  spec = ngrams.Subwords(3, 4)
  assert [x for x, _ in ngrams.of_word('дом', spec)] == [
    '<до', '<дом', 'дом', 'дом>', 'ом>',
  ]  # fmt: skip


def test_words_beyond_one_block_continue_the_first(monkeypatch):
  spec = ngrams.Subwords(3, 6)
  expected = ngrams.of_words(WORDS, spec)
  monkeypatch.setattr(ngrams, '_BLOCK_WORDS', 4)
  result = ngrams.of_words(WORDS, spec)
  np.testing.assert_array_equal(result.starts, expected.starts)
  np.testing.assert_array_equal(result.buckets, expected.buckets)
  none = ngrams.of_words([], spec)
  assert none.starts.tolist() == [0] and none.buckets.dtype == np.int32


def test_ranges_are_parsed():
  assert ngrams.parse('3-6') == ngrams.Subwords(3, 6, 2_000_000)
  assert ngrams.parse(' 5 ', buckets=10) == ngrams.Subwords(5, 5, 10)


@pytest.mark.parametrize(
  ('setting', 'buckets'),
  [('6-3', 10), ('0-3', 10), ('x', 10), ('3-', 10), ('3-101', 10), ('3-6', 0)],
)
def test_no_range_is_one_line(setting, buckets):
  with pytest.raises(errors.UserError) as caught:
    ngrams.parse(setting, buckets)
  assert '\n' not in str(caught.value)
