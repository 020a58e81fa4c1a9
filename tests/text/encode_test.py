"""Encoding a corpus: against Counter, by several processes, cache, damage."""

import collections
import gzip
import itertools
import os
import random
import re
import threading
from concurrent import futures

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.data import base
from jaxemb.io import text_files as sources
from jaxemb.runtime import resources
from jaxemb.storage import checksums
from jaxemb.text import encode, loader, passes, tokenize
from tests import corpora, marking

_SETTINGS = encode.Settings('words', True, 2, 0, '')
_END = tokenize.END

# Number of parts; those that each process reads. Devices of two processes may
# work on the same part.
_PROCESSES = {
  'two': (4, [range(0, 2), range(2, 4)]),
  'three': (7, [range(0, 3), range(3, 5), range(5, 7)]),
  'same': (1, [range(0, 1), range(0, 1)]),
  'overlapping': (3, [range(0, 2), range(1, 3)]),
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
  """Texts of many pieces, even where they are small."""
  monkeypatch.setattr(encode, 'piece_bytes', lambda total_bytes: 800)


@pytest.fixture(scope='module')
def texts(tmp_path_factory):
  """A folder of random lines; one of its files cannot be divided."""
  folder, rng = tmp_path_factory.mktemp('texts'), random.Random(0)
  common = ['the', 'The', 'of', 'Ärger', 'na\u0308', '東京', 'x1', "don't"]
  for name in ('0.txt', '1.txt.gz', '2.txt'):
    lines = ['y' * 300]
    for _ in range(400):
      words = rng.choices(common, k=rng.randrange(9))
      if rng.random() < 0.3:
        words += [f'w{rng.randrange(500)}' for _ in range(rng.randrange(6))]
      rng.shuffle(words)
      lines.append(' '.join(words))
    data = '\n'.join(lines).encode() + b'\nthe \xff of'
    pack = gzip.compress if name.endswith('.gz') else bytes
    (folder / name).write_bytes(pack(data))
  return folder


def _oracle(folder, min_count=2, max_vocab=0):
  """Vocabulary as {word: count}, ids of each sentence, counts of all words."""
  sentences = []
  for path in sorted(folder.iterdir()):
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == '.gz' else data
    text = re.sub("['\ufffd]", ' ', data.decode(errors='replace').lower())
    sentences += [re.sub('y{256,}', '', x).split() for x in text.split('\n')]
  counts = collections.Counter(itertools.chain(*sentences))
  order = sorted(counts, key=lambda word: (-counts[word], word.encode()))
  order = [word for word in order if counts[word] >= min_count]
  rows = {word: i for i, word in enumerate(order[: max_vocab or None])}
  ids = [[rows[word] for word in x if word in rows] for x in sentences]
  return {word: counts[word] for word in rows}, [x for x in ids if x], counts


def _sentences(ids):
  """Ids of each sentence, without those that are empty."""
  groups = itertools.groupby(ids, lambda i: i == _END)
  return [list(words) for is_end, words in groups if not is_end]


def _encode(path, cache, *readers, progress=lambda *_: None, **changes):
  settings = _SETTINGS._replace(**changes)
  return encode.encode(str(path), settings, cache, progress, *readers)


def _together(layout, function):
  """Results of `function` for each process; the most bytes of arrays.

  The processes, which are threads, pass it the number of parts and readers.
  """
  num_parts, members = _PROCESSES[layout]
  barrier = threading.Barrier(len(members))
  sent = [b''] * len(members)
  gathered_bytes = [0]

  def member(index):
    def gather(data):
      sent[index] = data
      barrier.wait(60)
      everything = list(sent)
      if data.startswith(b'PK'):  # arrays, not the numbers of pieces
        gathered_bytes.append(sum(map(len, everything)))
      barrier.wait(60)
      return everything

    readers = base.Readers(members[index], index, len(members), gather)
    try:
      return function(num_parts, readers)
    except BaseException:
      barrier.abort()
      raise

  with futures.ThreadPoolExecutor(len(members)) as pool:
    return list(pool.map(member, range(len(members)))), max(gathered_bytes)


def _fails(function, *args, **kwargs):
  with pytest.raises(errors.UserError) as caught:
    function(*args, **kwargs)
  message = str(caught.value)
  assert '\n' not in message
  return message


def _forbid_reading(monkeypatch):
  def fail(*args, **kwargs):
    raise AssertionError('the corpus was read again')

  monkeypatch.setattr(sources, 'pieces', fail)


def _files(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir()}


_KNOWN = base.Known(
  path='run',
  keys=['the', 'absent', 'w7', '東京', 'w8'],
  counts=np.array([50, 20, 9, 3, 1]),
  fingerprint='of the run',
)


def _grown(counts, min_count, max_vocab=0):
  """{word: (count of both, count in the text)} of a vocabulary that grows."""
  old = dict(zip(_KNOWN.keys, _KNOWN.counts.tolist(), strict=True))
  new = [x for x in counts if x not in old and counts[x] >= min_count]
  new.sort(key=lambda x: (-counts[x], x.encode()))
  if max_vocab:
    new = new[: max_vocab - len(old)]
  both = {x: old.get(x, 0) + counts[x] for x in [*old, *new]}
  order = sorted(both, key=lambda x: (-both[x], x.encode()))
  return {x: (both[x], counts[x]) for x in order}


@pytest.mark.parametrize(('min_count', 'max_vocab'), [(4, 0), (2, 30)])
def test_a_vocabulary_grows(texts, tmp_path, min_count, max_vocab):
  limits = {'min_count': min_count, 'max_vocab': max_vocab}
  *_, counts = _oracle(texts)
  wanted = _grown(counts, min_count, max_vocab)
  settings = _SETTINGS._replace(**limits)

  def encoded(num_parts, readers):
    cache = tmp_path / str(readers.process)
    return encode.encode(
      str(texts),
      settings,
      cache,
      progress=lambda *_: None,
      num_parts=num_parts,
      readers=readers,
      known=_KNOWN,
    )

  several, _ = _together('two', encoded)
  for corpus in (encoded(1, base.ALONE), *several):
    assert corpus.words == list(wanted)
    both, here = np.array(list(wanted.values())).T
    assert corpus.counts.tolist() == both.tolist()
    assert corpus.text_counts.tolist() == here.tolist()
    assert corpus.num_words == here.sum()
    dropped = corpus.manifest['dropped']['words_below_vocabulary']
    assert dropped == len(counts) - np.count_nonzero(here)
  ids = encoded(1, base.ALONE).ids
  ids = ids[ids != _END]
  assert np.bincount(ids, minlength=len(wanted)).tolist() == here.tolist()
  # It is of that run alone.
  other = _KNOWN._replace(fingerprint='of another run')
  folders = [
    encode.encode(
      str(texts), settings, tmp_path, lambda *_: None, known=x
    ).folder
    for x in (None, _KNOWN, other)
  ]
  assert len(set(folders)) == 3


def test_a_vocabulary_without_room_does_not_grow_silently(texts, tmp_path):
  said = _fails(
    encode.encode,
    str(texts),
    _SETTINGS._replace(max_vocab=5),
    tmp_path,
    progress=lambda *_: None,
    known=_KNOWN,
  )
  assert 'max_vocab=5 has no room for new words beside the 5' in said


def test_encodes_like_counter(texts, tmp_path, monkeypatch):
  results = collections.defaultdict(list)
  for piece_bytes, num_threads, *limits in (
    (800, 1, 2, 0), (800, 4, 2, 0), (1500, 2, 1, 0), (1 << 16, 2, 2, 0),
    (1500, 1, 5, 9), (1500, 2, 5, 9),
  ):  # fmt: skip
    monkeypatch.setattr(encode, 'piece_bytes', lambda _, n=piece_bytes: n)
    monkeypatch.setattr(resources, 'reading_threads', lambda n=num_threads: n)
    limits = dict(zip(('min_count', 'max_vocab'), limits, strict=True))
    cache = tmp_path / f'{piece_bytes} {num_threads}'
    encoded = _encode(texts, cache, **limits)
    chosen, sentences, counts = _oracle(texts, **limits)
    assert encoded.words == list(chosen)
    assert encoded.counts.tolist() == list(chosen.values())
    assert _sentences(encoded.ids) == sentences
    assert encoded.num_words == sum(chosen.values())
    dropped = encoded.manifest['dropped']
    missing = counts.total() - encoded.num_words
    assert dropped['out_of_vocabulary_words'] == missing
    assert dropped['words_below_vocabulary'] == len(counts) - len(chosen)
    results[piece_bytes, *limits.values()].append(_files(encoded.folder))
  # The number of threads does not matter.
  assert sorted(map(len, results.values())) == [1, 1, 2, 2]
  assert all(x[0] == x[-1] for x in results.values())


def test_a_line_of_many_pieces_is_one_sentence(tmp_path):
  path = tmp_path / 'line.txt'
  # The last pieces hold no word of the vocabulary, nor the end of a line.
  path.write_text('a b, c. ' * 3000 + ' '.join(f'rare{i}' for i in range(300)))
  encoded = _encode(path, tmp_path)
  assert encoded.ids.tolist() == [0, 1, 2] * 3000 + [_END]
  # A piece ends a block, not the sentence.
  starts, words, turns = encoded.blocks
  assert words.sum() == 9000 and starts[-1] == len(encoded.ids)
  assert turns.tolist() == [*range(60), *turns[60:]] and len(turns) in (60, 61)


def test_files_are_sentences_of_their_own(tmp_path):
  texts = tmp_path / 'texts'
  texts.mkdir()
  for i, text in enumerate(['a b', '...', 'a b', '\n\na b\n', 'b a']):
    (texts / f'{i}.txt').write_text(text)
  # A name that is not UTF-8.
  with open(os.fsencode(texts) + b'/\xff.txt', 'wb') as file:
    file.write(b'a b')
  encoded = _encode(texts, tmp_path)
  assert encoded.words == ['a', 'b']
  expected = [[0, 1], [0, 1], [0, 1], [1, 0], [0, 1]]
  assert _sentences(encoded.ids) == expected
  # The turn of a file's first piece is the file's number.
  assert encoded.blocks.pieces.tolist() == [0, 2, 3, 4, 5]


def test_what_was_read_and_dropped_is_counted(texts, tmp_path):
  calls = collections.defaultdict(list)
  encoded = _encode(
    texts, tmp_path, progress=lambda stage, *x: calls[stage].append(x)
  )
  assert isinstance(encoded.ids.base, np.memmap)
  datas = [path.read_bytes() for path in sorted(texts.iterdir())]
  size_bytes, manifest = sum(map(len, datas)), encoded.manifest
  assert manifest['size_bytes'] == manifest['read_bytes'] == size_bytes
  text_bytes = size_bytes - len(datas[1]) + len(gzip.decompress(datas[1]))
  assert manifest['text_bytes'] == text_bytes
  dropped = manifest['dropped']
  assert (dropped['invalid_utf8_bytes'], dropped['overlong_words']) == (3, 3)
  assert dropped['problems'] == [] and dropped['redirects'] == 0
  # Temporary files are gone.
  names = {'manifest.json', 'vocab.txt', 'blocks.npz', 'ids.bin'}
  assert set(_files(encoded.folder)) == names
  assert os.listdir(tmp_path / 'corpora') == [encoded.folder.name]
  reading, encoding = calls['reading'], calls['encoding']
  assert reading[-1] == (size_bytes, size_bytes) and reading == sorted(reading)
  num_pieces = len(encoding)
  assert encoding == [(i + 1, num_pieces) for i in range(num_pieces)]
  assert num_pieces > 20


# The cache.


def test_unchanged_corpus_is_not_read_again(texts, tmp_path, monkeypatch):
  changes = [{}, {'tokens': 'whitespace'}, {'lowercase': False}]
  changes += [{'min_count': 3}, {'max_vocab': 5}]
  firsts = [_encode(texts, tmp_path, **x) for x in changes]
  assert len({x.folder for x in firsts}) == len(changes)
  assert "don't" in firsts[1].words
  assert 'The' in firsts[2].words
  _forbid_reading(monkeypatch)
  monkeypatch.chdir(texts.parent)  # named from another working directory
  for path in (texts, texts.name):
    for change, first in zip(changes, firsts, strict=True):
      again = _encode(path, tmp_path, **change)
      assert (again.words, again.manifest) == (first.words, first.manifest)
      for x, y in zip(
        (again.ids, *again.blocks), (first.ids, *first.blocks), strict=True
      ):
        np.testing.assert_array_equal(x, y)


def test_changed_text_is_read_again(tmp_path):
  path = tmp_path / 'texts' / 'a.txt'
  path.parent.mkdir()
  path.write_text('aa bb aa bb')
  first = _encode(path.parent, tmp_path)
  fingerprints = [first.manifest['fingerprint']]
  # The first ones have the same size, and all have the same time.
  times = path.stat()
  for text in ('cc bb cc bb', 'bb cc bb cc', 'bb cc cc bb', 'bb cc cc bb\n'):
    path.write_text(text)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    changed = _encode(path.parent, tmp_path)
    assert changed.words == ['bb', 'cc']
    fingerprints.append(changed.manifest['fingerprint'])
  # Of words and ids.
  assert len(set(fingerprints)) == 4 and fingerprints[3] == fingerprints[4]
  (path.parent / 'more.txt').write_text('bb ' * 50)
  assert _encode(path.parent, tmp_path).num_words == 54


@pytest.mark.parametrize(
  'text, encoding',
  [
    ('die größe der straße über dem fluss', 'cp1252'),
    ('我们 今天 去 学校 学习', 'gb18030'),
  ],
)
def test_another_encoding_is_refused_named_and_read(tmp_path, text, encoding):
  path, lines = tmp_path / 'a.txt', f'{text}\n' * 50
  path.write_text(lines, encoding)
  message = _fails(_encode, path, tmp_path)
  assert f'--config.data.encoding={encoding}' in message and '%' in message
  ours = _encode(path, tmp_path, encoding=encoding)
  path.write_text(lines)
  theirs = _encode(path, tmp_path)
  assert ours.words == theirs.words
  np.testing.assert_array_equal(ours.ids, theirs.ids)
  # A file of many is named, and read.
  (tmp_path / 'all').mkdir()
  (tmp_path / 'all' / 'b.txt').write_text(lines * 100)
  (tmp_path / 'all' / 'c.txt').write_text(lines[:300], encoding)
  [problem] = _encode(tmp_path / 'all', tmp_path).manifest['dropped'][
    'problems'
  ]
  assert 'c.txt' in problem and 'not UTF-8' in problem


def test_a_text_may_be_lost_wholly_and_not_in_its_encoding(tmp_path):
  path = tmp_path / 'a.json'
  path.write_bytes(b'[{"text": "\xff\xfe\xfd",')
  assert '100 %' in _fails(_encode, path, tmp_path)


def test_an_encoding_is_guessed_where_a_file_is_not_utf_8(tmp_path):
  path = tmp_path / 'a.txt'
  line = 'да и мы дома были там\n'
  path.write_bytes(9000 * line.encode() + 9000 * line.encode('cp1251'))
  message = _fails(_encode, path, tmp_path)
  assert '--config.data.encoding=cp1251' in message


def test_damaged_cache_is_made_again(tmp_path):
  (tmp_path / 'a.txt').write_text('a b c ' * 99)
  folder = _encode(tmp_path / 'a.txt', tmp_path).folder
  files = _files(folder)
  for name, data in files.items():
    half = 4 * (len(data) // 8)
    flipped = data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]
    for damaged in (data[:half], b'', flipped, None):
      (folder / name).unlink()
      if damaged is not None:
        (folder / name).write_bytes(damaged)
      assert _encode(tmp_path / 'a.txt', tmp_path).folder == folder
      assert _files(folder) == files, (name, damaged)


def test_a_cache_from_before_formats_had_numbers_is_used(tmp_path):
  (tmp_path / 'a.txt').write_text('a b c ' * 99)
  folder = _encode(tmp_path / 'a.txt', tmp_path).folder
  manifest = checksums.opened(folder)
  del manifest['format'], manifest['jaxemb']
  checksums.seal(folder, manifest)
  files = _files(folder)
  _encode(tmp_path / 'a.txt', tmp_path)
  assert _files(folder) == files


# Given counts and unusable text.


def test_given_counts_choose_the_vocabulary(tmp_path, monkeypatch):
  path, counts = tmp_path / 'a.txt', tmp_path / 'counts.txt'
  path.write_text('a b c unknown a b\nunknown\nc a')
  counts.write_text('b 70\na 50\nabsent 60\nrare 1\nc 1\n')
  monkeypatch.setenv('HOME', str(tmp_path))

  def encoded(given='~/counts.txt'):
    return _encode(path, tmp_path, counts=given)

  first = encoded()
  assert first.words == ['b', 'absent', 'a']
  assert first.counts.tolist() == [70, 60, 50]
  assert first.ids.tolist() == [2, 0, 2, 0, _END, 2, _END]
  assert first.num_words == 5
  dropped = first.manifest['dropped']
  assert dropped['out_of_vocabulary_words'] == 4
  assert dropped['words_below_vocabulary'] == 2
  counts.write_text('b 70\nc 50\n')
  changed = encoded()
  assert changed.words == ['b', 'c']
  # What is written as a vocabulary can be given as counts.
  again = encoded(str(changed.folder / 'vocab.txt'))
  assert again.manifest['fingerprint'] == changed.manifest['fingerprint']
  counts.write_text('A 5\nB 5\n')
  message = _fails(encoded)
  assert 'counts.txt' in message and '--config.data.lowercase' in message
  counts.unlink()
  _forbid_reading(monkeypatch)  # refused before the text is read
  message = _fails(encoded)
  assert 'config.data.counts: ' in message and str(counts) in message
  assert 'cannot read ~no-such-user/a' in _fails(encoded, '~no-such-user/a')


def test_failures_leave_earlier_results_alone_and_nothing_behind(tmp_path):
  cache, folder = tmp_path / 'cache', tmp_path / 'texts'
  folder.mkdir()
  paths = [folder / f'{i}.txt' for i in range(6)]
  for path in paths:
    path.write_text('a b c ' * 99)
  first = _encode(folder, cache)
  files = _files(first.folder)

  def interrupt(stage, done, total):
    raise KeyboardInterrupt

  paths[1].write_text('another text')
  with pytest.raises(KeyboardInterrupt):
    _encode(folder, cache, progress=interrupt)
  paths[3].write_bytes(b'binary \0\0\0')
  message = _fails(_encode, folder, cache)
  assert '3.txt' in message and 'binary' in message
  assert _files(first.folder) == files
  assert os.listdir(cache / 'corpora') == [first.folder.name]
  assert 'JAXEMB_CACHE' in _fails(_encode, folder, paths[0] / 'x')


# Bounded memory.


@pytest.mark.parametrize(
  'layout, min_count, max_vocab',
  [(None, 2, 0), ('two', 1, 15), ('overlapping', 5, 3)],
)
def test_words_are_counted_in_bounded_memory(
  texts, tmp_path, monkeypatch, layout, min_count, max_vocab
):
  limits = {'min_count': min_count, 'max_vocab': max_vocab}
  expected = _encode(texts, tmp_path / 'expected', **limits).manifest
  monkeypatch.setattr(encode, 'MAX_HELD_WORDS', 120)
  held, add_up = [], tokenize.add_up

  def watched(parts):
    words = add_up(parts)
    held.append(len(words.counts))
    return words

  monkeypatch.setattr(tokenize, 'add_up', watched)

  def read(*readers):
    return _encode(texts, tmp_path / 'cache', *readers, **limits)

  if layout:
    results, gathered_bytes = _together(layout, read)
    # Some 29 bytes a word, and headers.
    assert gathered_bytes < 1.5 * 120 * 29 + 100 * 100
  else:
    results = [read()]
  for encoded in results:
    for key in ('fingerprint', 'num_words', 'num_vocab_words', 'dropped'):
      assert encoded.manifest[key] == expected[key], key
  assert len(held) > 10
  assert max(held) <= 150


# Blocks.


@pytest.mark.parametrize('block_words', marking.slow_after(2, [5, 1, 2, 64]))
def test_blocks_of_random_sentences(block_words):
  rng = np.random.default_rng(block_words)
  for mean in np.repeat([0.3, 3, 10, 100, 300], 12):
    ids = [_END] * rng.integers(3)
    for _ in range(rng.integers(1, 30)):
      ids += [7] * rng.poisson(mean) + [_END] * rng.integers(1, 3)
    ids += [7] * rng.integers(3)
    is_word = np.array(ids) != _END
    starts, sizes = encode.block_starts(np.array(ids, np.int32), block_words)
    assert sizes.sum() == is_word.sum() and starts[:1].tolist() in ([], [0])
    edges = itertools.pairwise([*starts.tolist(), len(ids)])
    for (start, stop), size in zip(edges, sizes, strict=True):
      inside = is_word[start:stop]
      behind = is_word[stop : stop + block_words + 1]
      assert 0 < size == inside.sum() <= block_words
      # The next sentence, or the rest of it, did not fit.
      if len(behind):
        assert size + np.argmin(np.append(behind, False)) > block_words
        if inside[-1]:
          # Cut within a sentence, so the block is full and nothing but that.
          assert size == block_words and inside[np.argmax(inside) :].all()


# Several processes.


@pytest.mark.parametrize('layout', _PROCESSES)
def test_processes_have_what_one_has(texts, tmp_path, monkeypatch, layout):
  num_parts, members = _PROCESSES[layout]
  # Half of a piece is less than the longest word.
  monkeypatch.setattr(encode, 'piece_bytes', lambda total_bytes: 520)

  def run(folder, *readers):
    encoded = _encode(texts, tmp_path / folder, *readers)
    spec = corpora.spec(num_parts, 1e-2, *readers[1:], epochs=2, window=3)
    return encoded, list(loader.TextSource(encoded, spec).items(None, 0))

  alone, expected = run('alone')
  results, _ = _together(layout, lambda *readers: run('together', *readers))
  for mine, (encoded, items) in zip(members, results, strict=True):
    assert encoded.words == alone.words
    # A run may go on with other processes.
    for key in alone.manifest.keys() - {'read_bytes', 'num_read_files'}:
      assert encoded.manifest[key] == alone.manifest[key], key
    assert len(encoded.manifest['dropped']['problems']) == 2
    # It holds its own parts, and knows how many words all of them have.
    for x, y in zip(encoded.blocks[1:], alone.blocks[1:], strict=True):
      np.testing.assert_array_equal(x, y)
    for block, turn in enumerate(alone.blocks.pieces):
      is_mine = turn % num_parts in mine
      ours = _sentences(encoded.block(block))
      assert ours == is_mine * _sentences(alone.block(block))
    if len(mine) < num_parts:
      assert len(encoded.ids) < len(alone.ids)
    for item, truth in zip(items, expected, strict=True):
      of_all = [x._replace(batch=None, own=0) for x in (item, truth)]
      assert of_all[0] == of_all[1]
      for x, y in zip(item.batch, truth.batch, strict=True):
        np.testing.assert_array_equal(x, y[list(mine)])
    of_mine = np.isin(alone.blocks.pieces % num_parts, list(mine))
    own_words = int(alone.blocks.words[of_mine].sum())
    assert sum(item.own for item in items) == 2 * own_words


@pytest.mark.slow
@pytest.mark.parametrize('layout', _PROCESSES)
def test_processes_find_the_phrases_that_one_finds(
  texts, tmp_path, monkeypatch, layout
):
  monkeypatch.setattr(passes, 'MAX_HELD_NAMES', 500)

  def run(folder, *readers):
    rules = {'phrases_threshold': 0.1, 'phrases_min_count': 2}
    return _encode(texts, tmp_path / folder, *readers, phrases='2', **rules)

  alone = run('alone')
  assert min(alone.manifest['num_phrases']) > 0
  results, _ = _together(layout, lambda *readers: run('together', *readers))
  for encoded in results:
    assert encoded.phrases == alone.phrases
    for key in alone.manifest.keys() - {'read_bytes', 'num_read_files'}:
      assert encoded.manifest[key] == alone.manifest[key], key


def test_a_process_may_have_no_text(tmp_path):
  (tmp_path / 'a.txt').write_text('a b a b')

  def run(*readers):
    return _encode(tmp_path / 'a.txt', tmp_path / 'cache', *readers)

  (first, second), _ = _together('two', run)
  assert (len(first.ids), len(second.ids)) == (5, 0)
  assert first.manifest['fingerprint'] == second.manifest['fingerprint']


def test_all_processes_use_the_cache_or_none(texts, tmp_path, monkeypatch):
  def manifests():
    results, _ = _together('two', lambda *args: _encode(texts, tmp_path, *args))
    return [x.folder for x in results], [x.manifest for x in results]

  folders, first = manifests()
  with monkeypatch.context() as patch:
    _forbid_reading(patch)
    assert manifests() == (folders, first)
  # What one has lost, all make again.
  for folder in folders:
    (folder / 'mark').write_bytes(b'')
  (folders[1] / 'vocab.txt').unlink()
  assert manifests() == (folders, first)
  assert not any((folder / 'mark').exists() for folder in folders)


def test_files_that_differ_between_processes_are_refused():
  same = {'/text/a.txt': 72}
  for other, difference in (
    ({'/text/a.txt': 64}, 'a.txt has 64'),
    (same | {'/text/b.txt': 5}, 'b.txt has 5'),
  ):
    message = _fails(encode.check_same_files, 0, [same, other])
    assert difference in message and 'in process 1' in message
    assert 'in process 0' in _fails(encode.check_same_files, 1, [same, other])


def test_a_text_that_changes_while_it_is_read_is_no_mixture(tmp_path):
  path = tmp_path / 'text.txt'
  path.write_bytes(b'a b c a b c\n' * 50)
  expected = _encode(path, tmp_path / 'whole').words
  os.utime(path, (1, 1))

  def grow(*unused):
    if path.stat().st_mtime == 1:
      with path.open('ab') as file:
        file.write(b'd e d e\n' * 50)

  assert _encode(path, tmp_path / 'cache', progress=grow).words == expected
  os.utime(path, (1, 1))

  def write_over(*unused):
    with path.open('r+b') as file:
      file.write(b'f g h f g h\n' * 50)

  with pytest.raises(errors.UserError, match=r'text\.txt was changed while'):
    _encode(path, tmp_path / 'cache', progress=write_over)
