"""Encoding a corpus: against Counter, the cache, damage, limits, memory."""

import collections
import hashlib
import json
import os
import pathlib
import random
import resource
import subprocess
import sys

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.text import (
  corpus,
  counting,
  encode,
  scan,
  shards,
  tokens,
  vocab,
  word_table,
)

_SETTINGS = encode.Settings('words', True, 2, 0, '')
_END = tokens.END
_real_pieces = corpus.pieces


def _ignore(stage, done, total):
  del stage, done, total


def _encode(path, cache, **changes):
  settings = encode.dataclasses.replace(_SETTINGS, **changes)
  return encode.encode(str(path), settings, cache, _ignore)


def _fails(function, *args, **kwargs):
  with pytest.raises(errors.UserError) as caught:
    function(*args, **kwargs)
  message = str(caught.value)
  assert '\n' not in message
  return message


def _small_pieces(monkeypatch, piece_bytes):
  """Cuts the text into pieces of so few bytes from now on."""
  monkeypatch.setattr(scan, 'piece_bytes', lambda total_bytes: piece_bytes)


def _forbid_reading(monkeypatch):
  def fail(*args, **kwargs):
    raise AssertionError('the corpus was read again')

  monkeypatch.setattr(corpus, 'pieces', fail)


def _files(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def _ids(encoded):
  return np.concatenate(encoded.shards).tolist()


def _write_texts(folder, num_files=3, num_lines=300, seed=0):
  """Files of random lines, some empty, some of rare words only."""
  rng = random.Random(seed)
  folder.mkdir(exist_ok=True)
  common = ['the', 'The', 'of', 'Ärger', 'na\u0308', '東京', 'x1', "don't"]
  for i in range(num_files):
    lines = []
    for _ in range(num_lines):
      words = rng.choices(common, k=rng.randrange(9))
      if rng.random() < 0.3:
        words += [f'w{rng.randrange(500)}' for _ in range(rng.randrange(6))]
      rng.shuffle(words)
      lines.append(' '.join(words))
    (folder / f'{i}.txt').write_text('\n'.join(lines), encoding='utf-8')
  return folder


def _oracle(paths, min_count=2, max_vocab=0):
  """Vocabulary as {word: count}, and ids with a sentence end per line."""
  files = []
  for path in paths:
    text = path.read_text(encoding='utf-8').lower().replace("'", ' ')
    files.append([line.split() for line in text.split('\n')])
  counts = collections.Counter(w for f in files for line in f for w in line)
  order = sorted(counts, key=lambda word: (-counts[word], word.encode()))
  order = [word for word in order if counts[word] >= min_count]
  order = order[: max_vocab or None]
  rows = {word: i for i, word in enumerate(order)}
  ids = []
  for file in files:
    for i, line in enumerate(file):
      ids += [rows[word] for word in line if word in rows]
      # An empty line ends no sentence twice; but a file may begin with an end.
      if (i == 0 and not line) or (ids and ids[-1] != _END):
        ids.append(_END)
  return {word: counts[word] for word in order}, ids, sum(counts.values())


def _without_repeated_ends(ids):
  ids = np.asarray(ids)
  keep = (ids != _END) | (np.roll(ids, 1) != _END)
  keep[:1] = ids[:1] != _END
  return ids[keep].tolist()


@pytest.mark.parametrize('min_count, max_vocab', [(1, 0), (2, 0), (5, 9)])
def test_encodes_like_counter(tmp_path, min_count, max_vocab):
  folder = _write_texts(tmp_path / 'texts')
  encoded = _encode(
    folder, tmp_path / 'cache', min_count=min_count, max_vocab=max_vocab
  )
  counts, ids, num_seen = _oracle(
    sorted(folder.iterdir()), min_count, max_vocab
  )
  assert list(encoded.vocabulary.words) == list(counts)
  assert encoded.vocabulary.counts.tolist() == list(counts.values())
  assert _without_repeated_ends(_ids(encoded)) == _without_repeated_ends(ids)
  assert encoded.num_words == sum(counts.values())
  dropped = encoded.manifest['dropped']
  assert dropped['out_of_vocabulary_words'] == num_seen - encoded.num_words
  assert all(shard.dtype == np.int32 for shard in encoded.shards)


def test_threads_do_not_matter(tmp_path, monkeypatch):
  folder = _write_texts(tmp_path / 'texts', num_files=5)
  _small_pieces(monkeypatch, 400)
  monkeypatch.setattr(shards, '_SHARD_IDS', 700)
  results = []
  for num_threads in (1, 2, 4):
    monkeypatch.setattr(scan, 'num_threads', lambda n=num_threads: n)
    encoded = _encode(folder, tmp_path / f'cache{num_threads}', max_vocab=20)
    results.append(_files(encoded.folder))
  assert len(results[0]) > 8
  assert results[0] == results[1] == results[2]


@pytest.mark.parametrize('piece_bytes', [40, 97, 1000])
def test_sentences_do_not_depend_on_pieces(tmp_path, monkeypatch, piece_bytes):
  folder = _write_texts(tmp_path / 'texts', num_lines=60)
  whole = _encode(folder, tmp_path / 'whole')
  _small_pieces(monkeypatch, piece_bytes)
  cut = _encode(folder, tmp_path / 'cut')
  assert cut.vocabulary.words == whole.vocabulary.words
  assert _without_repeated_ends(_ids(cut)) == _without_repeated_ends(
    _ids(whole)
  )


def test_a_line_of_many_pieces_is_one_sentence(tmp_path, monkeypatch):
  path = tmp_path / 'line.txt'
  path.write_text('a b, c. ' * 3000)
  _small_pieces(monkeypatch, 1000)
  encoded = _encode(path, tmp_path)
  ids = _ids(encoded)
  assert ids.count(_END) == 1 and ids[-1] == _END
  assert len(ids) == 9001
  assert encoded.blocks.words.sum() == 9000
  # A piece ends a block, not the sentence.
  assert len(encoded.blocks.words) == len(encoded.pieces) == 48


def test_files_are_sentences_of_their_own(tmp_path):
  texts = tmp_path / 'texts'
  texts.mkdir()
  for i, text in enumerate(['a b', '...', 'a b', '\n\na b\n', 'b a']):
    (texts / f'{i}.txt').write_text(text)
  encoded = _encode(texts, tmp_path)
  assert encoded.vocabulary.words == ['a', 'b']
  expected = [0, 1, _END, 0, 1, _END, 0, 1, _END, 1, 0, _END]
  assert _without_repeated_ends(_ids(encoded)) == expected


def test_manifest_is_true(tmp_path, monkeypatch):
  folder = _write_texts(tmp_path / 'texts')
  (folder / 'bad.txt').write_bytes(b'the \xff\xfe of ' + b'y' * 300 + b' the')
  _small_pieces(monkeypatch, 500)
  monkeypatch.setattr(shards, '_SHARD_IDS', 1000)
  encoded = _encode(folder, tmp_path / 'cache')
  manifest = encoded.manifest
  assert manifest == json.loads((encoded.folder / 'manifest.json').read_text())
  assert manifest['settings'] == encode.dataclasses.asdict(_SETTINGS)
  assert manifest['counts_sha256'] == ''
  paths = sorted(folder.iterdir())
  assert manifest['files'] == [
    {
      'path': str(path),
      'size_bytes': path.stat().st_size,
      'mtime_ns': path.stat().st_mtime_ns,
      'sha256': hashlib.sha256(path.read_bytes()).hexdigest(),
      'read_bytes': path.stat().st_size,
    }
    for path in paths
  ]
  assert len(manifest['shards']) > 2
  for shard, ids in zip(manifest['shards'], encoded.shards, strict=True):
    data = (encoded.folder / shard['file']).read_bytes()
    assert len(data) == 4 * shard['num_ids']
    assert np.frombuffer(data, '<i4').tolist() == ids.tolist()
  ids = np.array(_ids(encoded))
  assert manifest['num_words'] == encoded.num_words == (ids != _END).sum()
  assert manifest['num_blocks'] == len(encoded.blocks.words)
  assert manifest['num_vocab_words'] == len(encoded.vocabulary.words)
  assert manifest['text_bytes'] == sum(path.stat().st_size for path in paths)
  dropped = manifest['dropped']
  assert dropped['invalid_utf8_bytes'] == 2
  assert dropped['overlong_words'] == 1
  assert dropped['problems'] == []
  counts = np.bincount(ids[ids != _END])
  assert counts.tolist() == encoded.vocabulary.counts.tolist()
  # Only what a corpus folder should hold is left.
  assert set(_files(encoded.folder)) == {
    'manifest.json',
    'vocab.txt',
    'blocks.npz',
    'pieces.npy',
    *(shard['file'] for shard in manifest['shards']),
  }
  assert os.listdir(tmp_path / 'cache/corpora') == [encoded.folder.name]


def test_fingerprint_names_words_and_ids(tmp_path):
  path = tmp_path / 'a.txt'
  fingerprints = []
  for text in ('a b a b', 'a b b a', 'x y x y'):
    path.write_text(text)
    encoded = _encode(path, tmp_path)
    fingerprints.append(encoded.manifest['fingerprint'])
  assert len(set(fingerprints)) == 3
  other = tmp_path / 'b.txt'
  other.write_text('x y x y\n')
  again = _encode(other, tmp_path)
  assert again.manifest['fingerprint'] == fingerprints[2]


def test_unchanged_corpus_is_not_read_again(tmp_path, monkeypatch):
  folder = _write_texts(tmp_path / 'texts')
  first = _encode(folder, tmp_path / 'cache')
  _forbid_reading(monkeypatch)
  second = _encode(folder, tmp_path / 'cache')
  assert second.manifest == first.manifest
  assert _ids(second) == _ids(first)
  assert second.vocabulary.words == first.vocabulary.words
  for x, y in zip(second.blocks, first.blocks, strict=True):
    np.testing.assert_array_equal(x, y)
  assert all(isinstance(shard, np.memmap) for shard in second.shards)
  # A touched or copied file holds the same text.
  os.utime(folder / '1.txt', (1, 1))
  assert _ids(_encode(folder, tmp_path / 'cache')) == _ids(first)
  # So does the same file named from another working directory.
  monkeypatch.chdir(tmp_path)
  assert _ids(_encode('texts', tmp_path / 'cache')) == _ids(first)


def test_changed_content_of_same_size_is_read(tmp_path):
  path = tmp_path / 'a.txt'
  path.write_text('aa bb aa bb')
  os.utime(path, (1, 1))
  first = _encode(path, tmp_path)
  path.write_text('cc bb cc bb')
  second = _encode(path, tmp_path)
  assert second.folder == first.folder
  assert second.vocabulary.words == ['bb', 'cc']


def test_other_settings_are_another_folder(tmp_path, monkeypatch):
  folder = _write_texts(tmp_path / 'texts')
  changes = [
    {},
    {'tokens': 'whitespace'},
    {'lowercase': False},
    {'min_count': 3},
    {'max_vocab': 5},
  ]
  encoded = [_encode(folder, tmp_path / 'cache', **c) for c in changes]
  assert len({e.folder for e in encoded}) == len(changes)
  assert 'The' in encoded[2].vocabulary.words
  assert "don't" in encoded[1].vocabulary.words
  _forbid_reading(monkeypatch)
  for change, first in zip(changes, encoded, strict=True):
    again = _encode(folder, tmp_path / 'cache', **change)
    assert again.vocabulary.words == first.vocabulary.words


def test_added_or_removed_file_is_seen(tmp_path):
  folder = _write_texts(tmp_path / 'texts')
  first = _encode(folder, tmp_path / 'cache')
  (folder / 'more.txt').write_text('the ' * 50)
  second = _encode(folder, tmp_path / 'cache')
  assert second.num_words == first.num_words + 50
  (folder / 'more.txt').unlink()
  assert _encode(folder, tmp_path / 'cache').num_words == first.num_words


@pytest.mark.parametrize(
  'name',
  ['ids-00000.bin', 'vocab.txt', 'blocks.npz', 'pieces.npy', 'manifest.json'],
)
@pytest.mark.parametrize('damage', ['cut', 'empty', 'gone'])
def test_damaged_cache_is_made_again(tmp_path, name, damage):
  folder = _write_texts(tmp_path / 'texts', num_files=1)
  first = _encode(folder, tmp_path / 'cache')
  files = _files(first.folder)
  path = first.folder / name
  if damage == 'cut':
    path.write_bytes(files[name][: 4 * (len(files[name]) // 8)])
  elif damage == 'empty':
    path.write_bytes(b'')
  else:
    path.unlink()
  second = _encode(folder, tmp_path / 'cache')
  assert _files(second.folder) == files


def test_leftovers_of_a_killed_run_do_no_harm(tmp_path):
  folder = _write_texts(tmp_path / 'texts')
  first = _encode(folder, tmp_path / 'other')
  corpora = tmp_path / 'cache/corpora'
  for pid in (os.getpid(), 99_999_999):
    leftover = corpora / f'{first.folder.name}.tmp{pid}'
    leftover.mkdir(parents=True)
    for name in ('piece-000000-000000', 'ids-00000.bin', 'ids-00009.bin'):
      (leftover / name).write_bytes(b'garbage')
  second = _encode(folder, tmp_path / 'cache')
  assert _files(second.folder) == _files(first.folder)


def test_given_counts_choose_the_vocabulary(tmp_path, monkeypatch):
  path, counts = tmp_path / 'a.txt', tmp_path / 'counts.txt'
  path.write_text('a b c unknown a b\nunknown\nc a')
  counts.write_text('b 70\na 50\nabsent 60\nrare 1\nc 1\n')
  encoded = _encode(path, tmp_path, counts=str(counts))
  assert encoded.vocabulary.words == ['b', 'absent', 'a']
  assert encoded.vocabulary.counts.tolist() == [70, 60, 50]
  assert _ids(encoded) == [2, 0, 2, 0, _END, 2, _END]
  assert encoded.num_words == 5
  dropped = encoded.manifest['dropped']
  assert dropped['out_of_vocabulary_words'] == 4
  assert dropped['words_below_vocabulary'] == 2
  digest = hashlib.sha256(counts.read_bytes()).hexdigest()
  assert encoded.manifest['counts_sha256'] == digest
  with monkeypatch.context() as patch:
    _forbid_reading(patch)
    _encode(path, tmp_path, counts=str(counts))
  counts.write_text('b 70\nc 50\n')
  changed = _encode(path, tmp_path, counts=str(counts))
  assert changed.vocabulary.words == ['b', 'c']
  counts.unlink()
  # Found out before the text is read.
  _forbid_reading(monkeypatch)
  message = _fails(_encode, path, tmp_path, counts=str(counts))
  assert str(counts) in message


def test_given_counts_without_a_word_of_the_text(tmp_path):
  path, counts = tmp_path / 'a.txt', tmp_path / 'counts.txt'
  path.write_text('a b\n')
  counts.write_text('A 5\nB 5\n')
  message = _fails(_encode, path, tmp_path, counts=str(counts))
  assert str(counts) in message and '--config.data.lowercase' in message


@pytest.mark.parametrize('text', ['once only here', '?! \n ...', 'a a a'])
def test_unusable_text_leaves_earlier_results_alone(tmp_path, text):
  path = tmp_path / 'a.txt'
  path.write_text('a b a b')
  first = _encode(path, tmp_path)
  files = _files(first.folder)
  path.write_text(text)
  assert '--config.data.min_count' in _fails(_encode, path, tmp_path)
  assert _files(first.folder) == files
  assert os.listdir(tmp_path / 'corpora') == [first.folder.name]


def test_words_that_memory_has_no_room_for_are_counted(tmp_path, monkeypatch):
  folder = _write_texts(tmp_path / 'texts')
  _small_pieces(monkeypatch, 600)
  first = _encode(folder, tmp_path / 'first', max_vocab=15)
  tables = []
  merge = word_table.merge

  def watched(*args):
    tables.append(merge(*args))
    return tables[-1]

  monkeypatch.setattr(counting, 'MAX_HELD_WORDS', 120)
  monkeypatch.setattr(word_table, 'merge', watched)
  encoded = _encode(folder, tmp_path / 'second', max_vocab=15)
  assert len(tables) > 50
  assert max(int(table.sizes[0]) for table in tables) <= 120
  assert encoded.manifest['fingerprint'] == first.manifest['fingerprint']
  assert encoded.manifest['dropped'] == first.manifest['dropped']
  counts, _, num_seen = _oracle(sorted(folder.iterdir()), 1)
  dropped = encoded.manifest['dropped']
  assert dropped['words_below_vocabulary'] == len(counts) - 15 > 300
  assert dropped['out_of_vocabulary_words'] == num_seen - encoded.num_words
  # What was set aside is gone.
  names = {path.name for path in encoded.folder.iterdir()}
  assert names == {path.name for path in first.folder.iterdir()}


def _check_blocks(ids, starts, block_words):
  """What every cut into blocks has to keep."""
  is_word = np.asarray(ids) != _END
  assert starts[0] == 0
  edges = [*starts, len(ids)]
  for n, (start, stop) in enumerate(zip(edges, edges[1:], strict=False)):
    num_words = is_word[start:stop].sum()
    assert 0 < num_words <= block_words
    if n + 1 == len(starts):
      continue
    # The next sentence, or what is left of it, did not fit.
    behind = np.flatnonzero(~is_word[stop:])
    end = stop + behind[0] if len(behind) else len(ids)
    assert num_words + (end - stop) > block_words
    if is_word[stop - 1]:
      # Cut within a sentence, so the block is full and nothing but that.
      assert num_words == block_words
      inside = is_word[start:stop]
      assert inside[np.argmax(inside) :].all()


@pytest.mark.parametrize('block_words', [1, 2, 5, 64])
def test_blocks_of_random_sentences(block_words):
  rng = np.random.default_rng(block_words)
  for mean in (0.3, 3, 10, 100, 300):
    for _ in range(12):
      ids = []
      for _ in range(rng.integers(1, 30)):
        ids += [7] * rng.poisson(mean) + [_END] * rng.integers(1, 3)
      ids = [_END] * rng.integers(3) + ids + [7] * rng.integers(3)
      starts, sizes = shards.block_starts(np.array(ids, np.int32), block_words)
      assert sizes.sum() == ids.count(7) and (sizes <= block_words).all()
      assert starts.dtype == np.int64
      if set(ids) == {_END}:
        assert len(starts) == 0
      else:
        _check_blocks(ids, starts.tolist(), block_words)


@pytest.mark.parametrize(
  'sentences, expected',
  [
    ('aaaa.', [0]),
    ('aaaaa.', [0, 4]),
    ('aaa.aa.a.', [0, 4]),
    ('aa.aa.aa.', [0, 6]),
    ('a.aaaaaaaaa.aaa.', [0, 2, 6, 10]),
    ('.aaaaaaaaa', [0, 5, 9]),  # the text begins with the end of a sentence
    ('..aaaa.aaaaa', [0, 7, 11]),
    ('...', []),
    ('', []),
  ],
)
def test_blocks_end_with_sentences(sentences, expected):
  ids = np.array([_END if c == '.' else 3 for c in sentences], np.int32)
  assert shards.block_starts(ids, 4)[0].tolist() == expected


def test_blocks_do_not_span_shards(tmp_path, monkeypatch):
  folder = _write_texts(tmp_path / 'texts')
  whole = _encode(folder, tmp_path / 'whole')
  _small_pieces(monkeypatch, 200)
  monkeypatch.setattr(shards, '_SHARD_IDS', 150)
  monkeypatch.setattr(shards, 'BLOCK_WORDS', 40)
  encoded = _encode(folder, tmp_path / 'cache')
  assert len(encoded.shards) > 5
  assert all(len(shard) >= 150 for shard in encoded.shards[:-1])
  ids = _ids(encoded)
  assert _without_repeated_ends(ids) == _without_repeated_ends(_ids(whole))
  edges = np.cumsum([0, *map(len, encoded.shards)])
  starts, sizes, pieces = encoded.blocks
  assert set(edges) <= set(starts)
  # Each piece is cut by itself; none goes over the end of a shard.
  whole_ids = np.concatenate(encoded.shards)
  assert sorted(set(pieces)) == list(range(len(encoded.pieces)))
  for piece in set(pieces):
    mine = np.flatnonzero(pieces == piece)
    first, stop = starts[mine[0]], starts[mine[-1] + 1]
    found, words = shards.block_starts(whole_ids[first:stop], 40)
    assert (first + found).tolist() == starts[mine].tolist()
    assert words.tolist() == sizes[mine].tolist()
    assert not ((edges > first) & (edges < stop)).any()


def test_no_empty_shard_behind_a_full_one(tmp_path, monkeypatch):
  path = tmp_path / 'a.txt'
  # The last pieces hold no word of the vocabulary, nor the end of a line.
  path.write_text('a b ' * 50 + ' '.join(f'rare{i}' for i in range(50)))
  _small_pieces(monkeypatch, 100)
  monkeypatch.setattr(shards, '_SHARD_IDS', 100)
  encoded = _encode(path, tmp_path)
  assert [len(shard) for shard in encoded.shards] in ([100, 1], [101])
  assert encoded.blocks.starts[-1] == 101
  assert _ids(encoded) == [0, 1] * 50 + [_END]


@pytest.mark.parametrize('max_file_bytes', [0, 3000])
def test_full_disk(tmp_path, monkeypatch, max_file_bytes):
  path = tmp_path / 'a.txt'
  path.write_text('a b c ' * 2000)
  first = _encode(path, tmp_path / 'cache')
  files = _files(first.folder)
  path.write_text('a b d ' * 200_000)
  num_read = 0

  def counted(*args, **kwargs):
    nonlocal num_read
    for piece in _real_pieces(*args, **kwargs):
      num_read += 1
      yield piece

  _small_pieces(monkeypatch, 20_000)
  monkeypatch.setattr(corpus, 'pieces', counted)
  # The system refuses to write more, as on a full disk.
  limit = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, limit[1]))
  try:
    message = _fails(_encode, path, tmp_path / 'cache')
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
  assert 'cannot write' in message and str(tmp_path / 'cache') in message
  assert '--config.data.cache' in message and 'None' not in message
  assert num_read < 80  # of 120
  assert _files(first.folder) == files
  assert os.listdir(tmp_path / 'cache/corpora') == [first.folder.name]


def test_full_disk_while_writing_shards(tmp_path, monkeypatch):
  folder = _write_texts(tmp_path / 'texts')
  _small_pieces(monkeypatch, 500)
  real_open = open

  def failing_open(path, mode='r', **kwargs):
    if 'w' in mode and pathlib.Path(path).name.startswith('ids-'):
      raise OSError(28, 'No space left on device')
    return real_open(path, mode, **kwargs)

  monkeypatch.setattr(shards, 'open', failing_open, raising=False)
  message = _fails(_encode, folder, tmp_path / 'cache')
  assert 'No space left on device' in message
  assert os.listdir(tmp_path / 'cache/corpora') == []


def test_cache_that_cannot_be_written(tmp_path):
  path = tmp_path / 'a.txt'
  path.write_text('a b a b')
  message = _fails(_encode, path, path / 'cache')
  assert str(path / 'cache') in message and '--config.data.cache' in message


def test_errors_of_the_reader_pass_through(tmp_path):
  folder = _write_texts(tmp_path / 'texts', num_files=6)
  (folder / '3.txt').write_bytes(b'binary \0\0\0')
  message = _fails(_encode, folder, tmp_path / 'cache')
  assert '3.txt' in message and 'binary' in message
  message = _fails(_encode, tmp_path / 'nothing', tmp_path / 'cache')
  assert 'does not exist' in message
  assert os.listdir(tmp_path / 'cache/corpora') == []


def test_interrupt_leaves_nothing_behind(tmp_path):
  folder = _write_texts(tmp_path / 'texts')

  def interrupt(stage, done, total):
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    encode.encode(str(folder), _SETTINGS, tmp_path / 'cache', interrupt)
  assert os.listdir(tmp_path / 'cache/corpora') == []


def test_progress_reaches_the_total(tmp_path, monkeypatch):
  folder = _write_texts(tmp_path / 'texts')
  _small_pieces(monkeypatch, 500)
  calls = []
  encode.encode(
    str(folder), _SETTINGS, tmp_path / 'cache', lambda *a: calls.append(a)
  )
  size = sum(path.stat().st_size for path in folder.iterdir())
  reading = [call[1:] for call in calls if call[0] == 'reading']
  encoding = [call[1:] for call in calls if call[0] == 'encoding']
  assert reading[-1] == (size, size)
  assert encoding == [(i + 1, len(encoding)) for i in range(len(encoding))]
  assert reading == sorted(reading)


def test_file_names_that_are_not_utf8(tmp_path):
  path = os.fsencode(tmp_path) + b'/a\xff.txt'
  try:
    with open(path, 'wb') as file:
      file.write(b'a b a b')
  except OSError:
    pytest.skip('the file system takes no such name')
  encoded = _encode(os.fsdecode(path), tmp_path)
  assert encoded.num_words == 4


_MEASURE = """
import pathlib, sys
from jaxemb.text import (counting, encode)
counting.MAX_HELD_WORDS = 200_000
folder = pathlib.Path(sys.argv[1])
settings = encode.Settings('words', True, 5, 50_000, '')
encoded = encode.encode(
  str(folder / 'text.txt'), settings, folder, lambda *args: None
)
assert len(encoded.vocabulary.words) == 50_000
assert encoded.manifest['dropped']['words_below_vocabulary'] > 500_000
# Not getrusage, whose figure on Linux includes that of the parent process.
for line in open('/proc/self/status'):
  if line.startswith('VmHWM:'):
    print(1024 * int(line.split()[1]))
"""


@pytest.mark.skipif(
  not pathlib.Path('/proc/self/status').exists(), reason='needs Linux'
)
def test_memory_is_bounded(tmp_path):
  # 25 MB: half 60,000 frequent words, half a million rare ones.
  rng = np.random.default_rng(0)
  num_words = 3_125_000
  numbers = rng.integers(0, 60_000, num_words)
  is_rare = rng.random(num_words) < 0.5
  numbers[is_rare] = rng.integers(60_000, 1_060_000, is_rare.sum())
  text = np.full((num_words, 8), ord(' '), np.uint8)
  for place in range(7):
    text[:, place] = ord('a') + numbers % 26
    numbers //= 26
  text[19::20, 7] = ord('\n')
  (tmp_path / 'text.txt').write_bytes(text.tobytes())
  root = pathlib.Path(encode.__file__).parents[2]
  done = subprocess.run(
    [sys.executable, '-c', _MEASURE, str(tmp_path)],
    cwd=root,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert int(done.stdout) < 600e6


def test_vocabulary_on_disk_is_a_counts_file(tmp_path):
  folder = _write_texts(tmp_path / 'texts')
  first = _encode(folder, tmp_path / 'cache')
  counts = first.folder / 'vocab.txt'
  table = vocab.read_counts(counts)
  names = [word.decode() for word in word_table.words(table)]
  assert names == first.vocabulary.words
  second = _encode(folder, tmp_path / 'cache', counts=str(counts))
  assert second.manifest['fingerprint'] == first.manifest['fingerprint']
