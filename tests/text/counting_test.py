"""Words counted by buckets and by processes: what Counter counts."""

import collections
import random
import threading
from concurrent import futures

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.text import counting, encode, scan, teams, tokens, vocab, word_table

_SETTINGS = encode.Settings('words', True, 1, 0, '')


def _ignore(stage, done, total):
  del stage, done, total


def _together(num, function):
  """What `function` of each process's team returns; the most bytes gathered."""
  barrier = threading.Barrier(num)
  sent = [b''] * num
  gathered_bytes = []

  def member(index):
    def gather(data):
      sent[index] = data
      barrier.wait(60)
      found = list(sent)
      gathered_bytes.append(sum(map(len, found)))
      barrier.wait(60)
      return found

    mine = range(6 * index // num, 6 * (index + 1) // num)
    team = teams.Team(6, mine, mine, index, num, gather)
    try:
      return function(team)
    except BaseException:
      barrier.abort()
      raise

  with futures.ThreadPoolExecutor(num) as pool:
    jobs = [pool.submit(member, i) for i in range(num)]
    return [job.result() for job in jobs], max(gathered_bytes, default=0)


def _texts(num_texts, seed=0):
  """Lists of words: some in all texts, many in one; ties everywhere."""
  rng = random.Random(seed)
  letters = 'abzß東'
  texts = []
  for i in range(num_texts):
    words = [f'w{int(300 ** rng.random())}' for _ in range(rng.randrange(40))]
    words += [f'r{i}x{rng.randrange(70)}' for _ in range(80)]
    words += [''.join(rng.choices(letters, k=3)) for _ in range(9)]
    rng.shuffle(words)
    texts.append(words)
  return texts


def _pieces(texts, folder, first=0):
  """Pieces as they are set aside."""
  pieces = []
  for i, words in enumerate(texts, first):
    text = ' '.join(words).encode()
    _, table, counters = tokens.tokenize(text, 'whitespace', False)
    n = int(table.sizes[0])
    entries = np.arange(n)
    path = folder / f'piece-{i}'
    with open(path, 'wb') as file:
      arrays = (np.zeros(i, np.int32), *word_table.subset(table, entries))
      np.array([len(array) for array in arrays]).tofile(file)
      for array in arrays:
        array.tofile(file)
    pieces.append(scan.Piece(path, counters, 0, i, len(text), n))
  return pieces


def _expected(texts, min_count, max_vocab):
  counts = collections.Counter(word for words in texts for word in words)
  order = sorted(counts, key=lambda word: (-counts[word], word.encode()))
  order = [word for word in order if counts[word] >= min_count]
  order = order[: max_vocab or None]
  return order, [counts[word] for word in order], len(counts)


def _bound(texts, num_buckets):
  """MAX_HELD_WORDS with which there are so many buckets."""
  return -(-sum(len(set(words)) for words in texts) // num_buckets)


@pytest.mark.parametrize('num_buckets', [1, 2, 7])
@pytest.mark.parametrize('min_count', [1, 5])
@pytest.mark.parametrize('max_vocab', [0, 3, 40])
def test_counts_like_counter(
  tmp_path, monkeypatch, num_buckets, min_count, max_vocab
):
  texts = _texts(30)
  order, counts, num_different = _expected(texts, min_count, max_vocab)
  monkeypatch.setattr(counting, 'MAX_HELD_WORDS', _bound(texts, num_buckets))
  used = []
  real = word_table.buckets

  def watched(table, num):
    used.append(num)
    return real(table, num)

  monkeypatch.setattr(word_table, 'buckets', watched)
  for num in (1, 2, 3):

    def run(team, num=num):
      folder = tmp_path / f'{num}-{team.index}'
      folder.mkdir()
      # The processes have texts in another order, too.
      mine = texts[team.index :: num][:: (-1) ** num]
      found = counting.count(
        _pieces(mine, folder), min_count, max_vocab, folder, team
      )
      # Only the pieces are left.
      assert len(list(folder.iterdir())) == len(mine)
      return found

    used.clear()
    for found in _together(num, run)[0]:
      vocabulary, ids = vocab.select(found.table, min_count, max_vocab)
      assert vocabulary.words == order
      assert vocabulary.counts.tolist() == counts
      assert len(ids) == int(found.table.sizes[0])
      assert found.num_different == num_different
    assert set(used) == ({num_buckets} if num_buckets > 1 else set())


@pytest.mark.parametrize('num', [1, 2, 3])
def test_what_is_held_and_gathered_is_bounded(tmp_path, monkeypatch, num):
  texts = [[f'w{100 * i + j}' for j in range(100)] for i in range(60)]
  texts += [['often', 'more', 'more'] * 9 for _ in range(60)]
  monkeypatch.setattr(counting, 'MAX_HELD_WORDS', 500)
  sizes = []
  real = word_table.merge

  def watched(*args):
    table = real(*args)
    sizes.append(int(table.sizes[0]))
    return table

  monkeypatch.setattr(word_table, 'merge', watched)

  def run(team):
    folder = tmp_path / f'{team.index}'
    folder.mkdir()
    mine = texts[team.index :: num]
    return counting.count(_pieces(mine, folder), 2, 5, folder, team)

  all_found, gathered_bytes = _together(num, run)
  for found in all_found:
    assert sorted(word_table.words(found.table)) == [b'more', b'often']
    assert found.num_different == 6002
  # A bucket has a little more than its share of the words.
  assert 400 < max(sizes) <= 1.2 * 500
  # Some 21 bytes a word and what tells the arrays.
  assert gathered_bytes < 1.2 * 500 * 21 + num * 200


@pytest.mark.parametrize('max_vocab', [1, 3, 20, 60, 400])
def test_the_best_of_many_ties_come_in_any_bucket(
  tmp_path, monkeypatch, max_vocab
):
  rng = random.Random(max_vocab)
  counts = {f'{rng.randrange(10**6)}': rng.randint(1, 4) for _ in range(300)}
  texts = [[w for w, n in counts.items() if n > i] for i in range(4)]
  order, expected, _ = _expected(texts, 1, max_vocab)
  monkeypatch.setattr(counting, 'MAX_HELD_WORDS', 10)
  sizes = []
  real = vocab.best

  def watched(table, *limits):
    sizes.append(int(table.sizes[0]))
    return real(table, *limits)

  monkeypatch.setattr(vocab, 'best', watched)
  table, num_different = counting.count(
    _pieces(texts, tmp_path), 1, max_vocab, tmp_path, teams.ALONE
  )
  assert num_different == len(counts)
  # One bucket more than twice what may come into the vocabulary.
  bound = 2 * max_vocab + 20
  assert max([*sizes, int(table.sizes[0])]) <= bound
  if max_vocab > 1:  # one word is refused
    assert bool(sizes) == (2 * max_vocab < len(counts))
    vocabulary, _ = vocab.select(table, 1, max_vocab)
    assert vocabulary.words == order
    assert vocabulary.counts.tolist() == expected


def test_few_words_are_neither_set_aside_nor_dropped(tmp_path, monkeypatch):
  texts = _texts(8)
  # The pieces have more, all in all.
  num_different = _expected(texts, 1, 0)[2]
  monkeypatch.setattr(
    counting, 'MAX_HELD_WORDS', num_different + len(set(texts[-1]))
  )
  monkeypatch.setattr(counting, '_set_aside', None)
  found = counting.count(_pieces(texts, tmp_path), 5, 3, tmp_path, teams.ALONE)
  assert found.num_different == num_different == int(found.table.sizes[0])


def test_a_piece_of_more_words_than_are_held(tmp_path, monkeypatch):
  texts = _texts(3)
  monkeypatch.setattr(counting, 'MAX_HELD_WORDS', 20)
  monkeypatch.setattr(counting, 'MAX_BUCKETS', 3)
  assert _bound(texts, 3) > 20
  found = counting.count(_pieces(texts, tmp_path), 1, 0, tmp_path, teams.ALONE)
  order, counts, _ = _expected(texts, 1, 0)
  vocabulary, _ = vocab.select(found.table, 1, 0)
  assert vocabulary.words == order and vocabulary.counts.tolist() == counts


@pytest.mark.parametrize('max_held_words', [10, 10_000])
def test_no_word_is_refused_with_the_facts(
  tmp_path, monkeypatch, max_held_words
):
  texts = [[f'w{i}', f'v{i}', 'x'] for i in range(12)]
  (tmp_path / 'a.txt').write_text('\n'.join(' '.join(x) for x in texts))
  monkeypatch.setattr(counting, 'MAX_HELD_WORDS', max_held_words)
  monkeypatch.setattr(scan, 'piece_bytes', lambda total_bytes: 40)

  def run(team):
    settings = encode.dataclasses.replace(_SETTINGS, min_count=20)
    with pytest.raises(errors.UserError) as caught:
      encode.encode(str(tmp_path / 'a.txt'), settings, tmp_path, _ignore, team)
    return str(caught.value)

  for num in (1, 2):
    for message in _together(num, run)[0]:
      assert 'no word occurs 20 times: 25 different words' in message
      assert 'most frequent 12 times' in message


def test_the_corpus_does_not_depend_on_processes_nor_buckets(
  tmp_path, monkeypatch
):
  texts = tmp_path / 'texts'
  texts.mkdir()
  lines = [' '.join(words) for words in _texts(40, seed=1)]
  for i in range(4):
    text = '\n'.join(lines[i::4])
    (texts / f'{i}.txt').write_text(text, encoding='utf-8')
  monkeypatch.setattr(scan, 'piece_bytes', lambda total_bytes: 900)
  manifests = []
  for max_held_words, nums in ((10_000, (1, 2)), (300, (1, 2, 3))):
    monkeypatch.setattr(counting, 'MAX_HELD_WORDS', max_held_words)
    for num in nums:
      cache = tmp_path / f'{max_held_words}-{num}'

      def run(team, cache=cache):
        settings = encode.dataclasses.replace(
          _SETTINGS, min_count=2, max_vocab=50
        )
        return encode.encode(str(texts), settings, cache, _ignore, team)

      manifests += [corpus.manifest for corpus in _together(num, run)[0]]
  for manifest in manifests:
    for key in ('fingerprint', 'num_words', 'num_vocab_words', 'dropped'):
      assert manifest[key] == manifests[0][key], key
