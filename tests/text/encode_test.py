"""Encoding a corpus: against Counter, by several processes, cache, damage."""

import collections
import gzip
import hashlib
import itertools
import json
import os
import random
import resource
import threading
from concurrent import futures

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.data import base, windows
from jaxemb.text import encode, loader, sources, tokenize

_SETTINGS = encode.Settings('words', True, 2, 0, '')
_END = tokenize.END
_real_pieces = sources.pieces

# Number of parts; those that each process reads. Devices of two processes may
# work on the same part.
_PROCESSES = {
  'two': (4, [range(0, 2), range(2, 4)]),
  'three': (7, [range(0, 3), range(3, 5), range(5, 7)]),
  'same': (1, [range(0, 1), range(0, 1)]),
  'overlapping': (3, [range(0, 2), range(1, 3)]),
}


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
  gathered_bytes = []

  def member(index):
    def gather(data):
      sent[index] = data
      barrier.wait(60)
      everything = list(sent)
      if data.startswith(b'PK'):  # arrays, not the numbers of pieces
        gathered_bytes.append(sum(map(len, everything)))
      barrier.wait(60)
      return everything

    try:
      return function(
        num_parts, base.Readers(members[index], index, len(members), gather)
      )
    except BaseException:
      barrier.abort()
      raise

  with futures.ThreadPoolExecutor(len(members)) as pool:
    jobs = [pool.submit(member, i) for i in range(len(members))]
    return [job.result() for job in jobs], max(gathered_bytes, default=0)


def _fails(function, *args, **kwargs):
  with pytest.raises(errors.UserError) as caught:
    function(*args, **kwargs)
  message = str(caught.value)
  assert '\n' not in message
  return message


def _small_pieces(monkeypatch, piece_bytes):
  monkeypatch.setattr(encode, 'piece_bytes', lambda total_bytes: piece_bytes)


def _forbid_reading(monkeypatch):
  def fail(*args, **kwargs):
    raise AssertionError('the corpus was read again')

  monkeypatch.setattr(sources, 'pieces', fail)


def _files(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def _write_texts(folder, num_files=3, num_lines=300):
  """Files of random lines, some empty, some of rare words only."""
  rng = random.Random(0)
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


def _oracle(folder, min_count=2, max_vocab=0):
  """Vocabulary as {word: count}, ids, and the counts of all words."""
  files = []
  for path in sorted(folder.iterdir()):
    text = path.read_text(encoding='utf-8').lower().replace("'", ' ')
    files.append([line.split() for line in text.split('\n')])
  counts = collections.Counter(w for f in files for line in f for w in line)
  order = sorted(counts, key=lambda word: (-counts[word], word.encode()))
  order = [word for word in order if counts[word] >= min_count]
  rows = {word: i for i, word in enumerate(order[: max_vocab or None])}
  ids = []
  for line in itertools.chain(*files):
    ids += [*(rows[word] for word in line if word in rows), _END]
  return {word: counts[word] for word in rows}, _sentences(ids), counts


def _sentences(ids):
  """Ids of each sentence, without those that are empty."""
  groups = itertools.groupby(ids, lambda i: i == _END)
  return [list(words) for is_end, words in groups if not is_end]


def test_encodes_like_counter(tmp_path, monkeypatch):
  folder = _write_texts(tmp_path / 'texts', 5)
  results = collections.defaultdict(list)
  for piece_bytes, num_threads, *limits in (
    (150, 1, 2, 0), (150, 4, 2, 0), (400, 2, 1, 0), (1 << 16, 2, 2, 0),
    (400, 1, 5, 9), (400, 2, 5, 9),
  ):  # fmt: skip
    _small_pieces(monkeypatch, piece_bytes)
    monkeypatch.setattr(encode, 'num_threads', lambda n=num_threads: n)
    encoded = _encode(
      folder,
      tmp_path / f'{piece_bytes} {num_threads}',
      min_count=limits[0],
      max_vocab=limits[1],
    )
    chosen, sentences, counts = _oracle(folder, *limits)
    assert list(encoded.vocabulary.words) == list(chosen)
    assert encoded.vocabulary.counts.tolist() == list(chosen.values())
    assert _sentences(encoded.ids) == sentences
    assert encoded.num_words == sum(chosen.values())
    dropped = encoded.manifest['dropped']
    missing = counts.total() - encoded.num_words
    assert dropped['out_of_vocabulary_words'] == missing
    assert dropped['words_below_vocabulary'] == len(counts) - len(chosen)
    results[piece_bytes, *limits].append(_files(encoded.folder))
  # The number of threads does not matter.
  assert sorted(map(len, results.values())) == [1, 1, 2, 2]
  assert all(x[0] == x[-1] for x in results.values())


def test_a_line_of_many_pieces_is_one_sentence(tmp_path, monkeypatch):
  path = tmp_path / 'line.txt'
  # The last pieces hold no word of the vocabulary, nor the end of a line.
  path.write_text('a b, c. ' * 3000 + ' '.join(f'rare{i}' for i in range(300)))
  _small_pieces(monkeypatch, 1000)
  encoded = _encode(path, tmp_path)
  assert encoded.ids.tolist() == [0, 1, 2] * 3000 + [_END]
  # A piece ends a block, not the sentence.
  starts, words, turns = encoded.blocks
  assert words.sum() == 9000 and starts[-1] == len(encoded.ids)
  assert turns.tolist() == [*range(48), *turns[48:]] and len(turns) in (48, 49)


def test_files_are_sentences_of_their_own(tmp_path):
  texts = tmp_path / 'texts'
  texts.mkdir()
  for i, text in enumerate(['a b', '...', 'a b', '\n\na b\n', 'b a']):
    (texts / f'{i}.txt').write_text(text)
  # A name that is not UTF-8.
  with open(os.fsencode(texts) + b'/\xff.txt', 'wb') as file:
    file.write(b'a b')
  encoded = _encode(texts, tmp_path)
  assert encoded.vocabulary.words == ['a', 'b']
  expected = [[0, 1], [0, 1], [0, 1], [1, 0], [0, 1]]
  assert _sentences(encoded.ids) == expected


def test_manifest_is_true(tmp_path, monkeypatch):
  folder = _write_texts(tmp_path / 'texts')
  (folder / 'bad.txt').write_bytes(b'the \xff\xfe of ' + b'y' * 300 + b' the')
  _small_pieces(monkeypatch, 500)
  calls = collections.defaultdict(list)
  encoded = _encode(
    folder,
    tmp_path / 'cache',
    progress=lambda stage, *numbers: calls[stage].append(numbers),
  )
  manifest = encoded.manifest
  assert manifest == json.loads((encoded.folder / 'manifest.json').read_text())
  assert manifest['settings'] == _SETTINGS._asdict()
  paths = sorted(folder.iterdir())
  for path, file in zip(paths, manifest['files'], strict=True):
    assert file['path'] == str(path)
    assert file['mtime_ns'] == path.stat().st_mtime_ns
    assert file['size_bytes'] == file['read_bytes'] == path.stat().st_size
    assert file['sha256'] == hashlib.sha256(path.read_bytes()).hexdigest()
  assert isinstance(encoded.ids.base, np.memmap)
  ids = np.fromfile(encoded.folder / 'ids.bin', '<i4')
  np.testing.assert_array_equal(encoded.ids, ids)
  assert manifest['num_words'] == encoded.num_words == (ids != _END).sum()
  assert manifest['num_blocks'] == len(encoded.blocks.words)
  size_bytes = sum(path.stat().st_size for path in paths)
  assert manifest['text_bytes'] == size_bytes
  dropped = manifest['dropped']
  assert (dropped['invalid_utf8_bytes'], dropped['overlong_words']) == (2, 1)
  assert dropped['problems'] == []
  counts = np.bincount(ids[ids != _END])
  assert counts.tolist() == encoded.vocabulary.counts.tolist()
  # Temporary files are gone.
  names = {'manifest.json', 'vocab.txt', 'blocks.npz', 'ids.bin'}
  assert set(_files(encoded.folder)) == names
  assert os.listdir(tmp_path / 'cache/corpora') == [encoded.folder.name]
  reading, encoding = calls['reading'], calls['encoding']
  assert reading[-1] == (size_bytes, size_bytes) and reading == sorted(reading)
  num_pieces = len(encoding)
  assert encoding == [(i + 1, num_pieces) for i in range(num_pieces)]
  assert num_pieces > 20


def test_fingerprint_identifies_words_and_ids(tmp_path):
  path = tmp_path / 'a.txt'
  fingerprints = []
  for text in ('a b a b', 'a b b a', 'x y x y', 'x y x y\n'):
    path.write_text(text)
    encoded = _encode(path, tmp_path)
    fingerprints.append(encoded.manifest['fingerprint'])
  assert len(set(fingerprints)) == 3 and fingerprints[2] == fingerprints[3]


# The cache.


def test_unchanged_corpus_is_not_read_again(tmp_path, monkeypatch):
  folder = _write_texts(tmp_path / 'texts')
  changes = [{}, {'tokens': 'whitespace'}, {'lowercase': False}]
  changes += [{'min_count': 3}, {'max_vocab': 5}]
  firsts = [_encode(folder, tmp_path / 'cache', **x) for x in changes]
  assert len({x.folder for x in firsts}) == len(changes)
  assert "don't" in firsts[1].vocabulary.words
  assert 'The' in firsts[2].vocabulary.words
  _forbid_reading(monkeypatch)
  # A touched or copied file holds the same text, so does one that is named from
  # another working directory.
  os.utime(folder / '1.txt', (1, 1))
  monkeypatch.chdir(tmp_path)
  for path in (folder, 'texts'):
    for change, first in zip(changes, firsts, strict=True):
      again = _encode(path, tmp_path / 'cache', **change)
      assert again.manifest == first.manifest
      assert again.vocabulary.words == first.vocabulary.words
      for x, y in zip(
        (again.ids, *again.blocks), (first.ids, *first.blocks), strict=True
      ):
        np.testing.assert_array_equal(x, y)


def test_changed_text_is_read_again(tmp_path):
  path = tmp_path / 'texts' / 'a.txt'
  path.parent.mkdir()
  path.write_text('aa bb aa bb')
  os.utime(path, (1, 1))
  first = _encode(path.parent, tmp_path)
  path.write_text('cc bb cc bb')  # of the same size
  second = _encode(path.parent, tmp_path)
  assert second.folder == first.folder
  assert second.vocabulary.words == ['bb', 'cc']
  (path.parent / 'more.txt').write_text('bb ' * 50)
  assert _encode(path.parent, tmp_path).num_words == 54
  (path.parent / 'more.txt').unlink()
  assert _encode(path.parent, tmp_path).num_words == 4


@pytest.mark.parametrize(
  'name', ['ids.bin', 'vocab.txt', 'blocks.npz', 'manifest.json']
)
@pytest.mark.parametrize('damage', ['cut', 'empty', 'gone'])
def test_damaged_cache_is_made_again(tmp_path, name, damage):
  folder = _write_texts(tmp_path / 'texts', num_files=1)
  first = _encode(folder, tmp_path / 'cache')
  files = _files(first.folder)
  path = first.folder / name
  path.unlink()
  if damage != 'gone':
    half = 4 * (len(files[name]) // 8)
    path.write_bytes(files[name][:half] if damage == 'cut' else b'')
  assert _files(_encode(folder, tmp_path / 'cache').folder) == files


def test_leftovers_of_killed_runs_are_removed(tmp_path):
  folder = _write_texts(tmp_path / 'texts')
  first = _encode(folder, tmp_path / 'other')
  corpora = tmp_path / 'cache/corpora'
  node, name = encode.platform.node(), first.folder.name
  running, dead, elsewhere, old = [
    corpora / f'{name}.tmp-{suffix}'
    for suffix in (f'{node}-1', f'{node}-99999999', 'x-7', 'x-y-8')
  ]
  for leftover in (running, dead, elsewhere, old):
    leftover.mkdir(parents=True)
    (leftover / 'ids.bin').write_bytes(b'garbage')
  os.utime(old, (1, 1))
  second = _encode(folder, tmp_path / 'cache')
  assert _files(second.folder) == _files(first.folder)
  assert set(corpora.iterdir()) == {running, elsewhere, second.folder}


# Given counts and unusable text.


def test_given_counts_choose_the_vocabulary(tmp_path, monkeypatch):
  path, counts = tmp_path / 'a.txt', tmp_path / 'counts.txt'
  path.write_text('a b c unknown a b\nunknown\nc a')
  counts.write_text('b 70\na 50\nabsent 60\nrare 1\nc 1\n')
  monkeypatch.setenv('HOME', str(tmp_path))

  def encoded(given='~/counts.txt'):
    return _encode(path, tmp_path, counts=given)

  first = encoded()
  assert first.vocabulary.words == ['b', 'absent', 'a']
  assert first.vocabulary.counts.tolist() == [70, 60, 50]
  assert first.ids.tolist() == [2, 0, 2, 0, _END, 2, _END]
  assert first.num_words == 5
  dropped = first.manifest['dropped']
  assert dropped['out_of_vocabulary_words'] == 4
  assert dropped['words_below_vocabulary'] == 2
  digest = hashlib.sha256(counts.read_bytes()).hexdigest()
  assert first.manifest['counts_sha256'] == digest
  with monkeypatch.context() as patch:
    _forbid_reading(patch)
    encoded()
  counts.write_text('b 70\nc 50\n')
  changed = encoded()
  assert changed.vocabulary.words == ['b', 'c']
  # What is written as a vocabulary can be given as counts.
  again = encoded(str(changed.folder / 'vocab.txt'))
  assert again.manifest['fingerprint'] == changed.manifest['fingerprint']
  counts.write_text('A 5\nB 5\n')
  message = _fails(encoded)
  assert 'counts.txt' in message and '--config.data.lowercase' in message
  counts.unlink()
  _forbid_reading(monkeypatch)  # refused before the text is read
  assert str(counts) in _fails(encoded)
  assert 'cannot read ~no-such-user/a' in _fails(encoded, '~no-such-user/a')


def test_failures_leave_earlier_results_alone_and_nothing_behind(tmp_path):
  cache, folder = tmp_path / 'cache', _write_texts(tmp_path / 'texts', 6)
  first = _encode(folder, cache)
  files = _files(first.folder)

  def interrupt(stage, done, total):
    raise KeyboardInterrupt

  (folder / '1.txt').write_text('another text')
  with pytest.raises(KeyboardInterrupt):
    _encode(folder, cache, progress=interrupt)
  (folder / '3.txt').write_bytes(b'binary \0\0\0')
  message = _fails(_encode, folder, cache)
  assert '3.txt' in message and 'binary' in message
  for text in ('once only here', '?! \n ...', 'a a a'):
    for path in folder.iterdir():
      path.write_text(text if path.name == '3.txt' else '')
    assert '--config.data.min_count' in _fails(_encode, folder, cache)
  assert _files(first.folder) == files
  assert os.listdir(cache / 'corpora') == [first.folder.name]
  assert 'JAXEMB_CACHE' in _fails(_encode, folder, folder / '0.txt/x')
  assert 'not exist' in _fails(_encode, tmp_path / 'none', cache)


@pytest.mark.parametrize('max_file_bytes', [0, 3000, 30_000])
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

  # Pieces are small, the ids together are not.
  _small_pieces(monkeypatch, 10_000)
  monkeypatch.setattr(sources, 'pieces', counted)
  # The system refuses to write more, as on a full disk.
  limit = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, limit[1]))
  try:
    message = _fails(_encode, path, tmp_path / 'cache')
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
  assert 'cannot write' in message and str(tmp_path / 'cache') in message
  assert 'JAXEMB_CACHE' in message and 'None' not in message
  # Reading does not go on to the end of the text.
  assert (num_read < 200) == (max_file_bytes < 30_000)
  assert _files(first.folder) == files
  assert os.listdir(tmp_path / 'cache/corpora') == [first.folder.name]


# Bounded memory.


@pytest.mark.parametrize(
  'layout, min_count, max_vocab',
  [
    (None, 2, 0),
    (None, 5, 3),
    (None, 1, 100),
    ('two', 2, 0),
    ('two', 1, 15),
    ('three', 1, 100),
    ('overlapping', 5, 3),
  ],
)
def test_words_are_counted_in_bounded_memory(
  tmp_path, monkeypatch, layout, min_count, max_vocab
):
  folder = _write_texts(tmp_path / 'texts', num_files=4)
  _small_pieces(monkeypatch, 600)
  limits = {'min_count': min_count, 'max_vocab': max_vocab}
  chosen, _, _ = _oracle(folder, **limits)
  expected = _encode(folder, tmp_path / 'expected', **limits).manifest
  monkeypatch.setattr(encode, 'MAX_HELD_WORDS', 120)
  held, merge = [], tokenize.merge

  def watched(*args):
    table = merge(*args)
    held.append(int(table.size[0]))
    return table

  monkeypatch.setattr(tokenize, 'merge', watched)

  def read(*readers):
    return _encode(folder, tmp_path / 'cache', *readers, **limits)

  if layout:
    results, gathered_bytes = _together(layout, read)
    # Some 29 bytes a word, and headers.
    assert gathered_bytes < 1.5 * 120 * 29 + 100 * 100
  else:
    results = [read()]
  for encoded in results:
    for key in ('fingerprint', 'num_words', 'num_vocab_words', 'dropped'):
      assert encoded.manifest[key] == expected[key], key
  assert len(held) > 50 and len(chosen) == expected['num_vocab_words']
  if max_vocab:
    # A range of hashes more than twice what may come into the vocabulary.
    assert max(held) <= max(150, 2 * max_vocab + 150)
    assert expected['dropped']['words_below_vocabulary'] > 300


@pytest.mark.parametrize('max_held_words', [10, 10_000])
def test_no_word_is_refused_with_the_facts(
  tmp_path, monkeypatch, max_held_words
):
  path = tmp_path / 'a.txt'
  path.write_text('\n'.join(f'w{i} v{i} x' for i in range(12)))
  monkeypatch.setattr(encode, 'MAX_HELD_WORDS', max_held_words)
  _small_pieces(monkeypatch, 40)

  def read(*readers):
    return _fails(_encode, path, tmp_path, *readers, min_count=20)

  for message in (read(), *_together('two', read)[0]):
    assert 'no word occurs 20 times: 25 different words' in message
    assert 'most frequent 12 times' in message


# Blocks.


@pytest.mark.parametrize('block_words', [1, 2, 5, 64])
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


def test_blocks_do_not_span_pieces(tmp_path, monkeypatch):
  folder = _write_texts(tmp_path / 'texts')
  _small_pieces(monkeypatch, 200)
  monkeypatch.setattr(encode, 'BLOCK_WORDS', 10)
  encoded = _encode(folder, tmp_path / 'cache')
  starts, sizes, turns = encoded.blocks
  # The turn of a file's first piece is the file's number.
  first_blocks = np.flatnonzero(np.diff(turns, prepend=-1, append=-1))
  assert turns[[0, *np.flatnonzero(np.diff(turns) < 0) + 1]].tolist() == [
    0,
    1,
    2,
  ]
  assert len(sizes) > len(first_blocks) > 50
  for first, stop in itertools.pairwise(first_blocks):
    ids = encoded.ids[starts[first] : starts[stop]]
    found, words = encode.block_starts(ids, 10)
    assert (starts[first] + found).tolist() == starts[first:stop].tolist()
    assert words.tolist() == sizes[first:stop].tolist()


# Several processes.


@pytest.fixture
def texts(tmp_path, monkeypatch):
  """Texts of many pieces; one cannot be divided."""
  _small_pieces(monkeypatch, 700)
  folder = tmp_path / 'texts'
  folder.mkdir()
  rng = np.random.default_rng(0)
  for name in ('a.txt', 'b.txt.gz', 'c.txt'):
    lines = []
    for _ in range(400):
      words = (60 ** rng.random(rng.integers(0, 12))).astype(int)
      lines.append(' '.join(f'w{word}' for word in words))
    # Too long a word; one that is longer than a piece.
    lines[7] += ' ' + 'y' * 300 + '\n' + 'z' * 2000
    data = '\n'.join(lines).encode() + b'\nthe \xff of'
    (folder / name).write_bytes(
      gzip.compress(data) if name.endswith('gz') else data
    )
  return folder


@pytest.mark.parametrize('layout', _PROCESSES)
def test_processes_have_what_one_has(texts, tmp_path, layout):
  num_parts, members = _PROCESSES[layout]
  spec = loader.LoaderSpec(1, 2, 16, 3, 1e-2)

  def run(folder, *readers):
    encoded = _encode(texts, tmp_path / folder, *readers)
    steps = windows.Steps(16, num_parts, 3, 1)
    source = loader.TextSource(encoded, spec, steps, *readers[1:])
    return encoded, source, list(source.items(None, 0))

  def sentences(encoded, blocks):
    return [_sentences(encoded.block(block)) for block in blocks]

  alone, whole, expected = run('alone')
  results, _ = _together(layout, lambda *readers: run('together', *readers))
  for mine, (encoded, source, items) in zip(members, results, strict=True):
    assert encoded.vocabulary.words == alone.vocabulary.words
    # A run may go on with other processes.
    for key in alone.manifest.keys() - {'files'}:
      assert encoded.manifest[key] == alone.manifest[key], key
    assert encoded.manifest['dropped']['overlong_words'] > 3
    assert len(encoded.manifest['dropped']['problems']) == 3
    # It holds its own parts, and knows how many words all of them have.
    assert [*source.local_blocks] == list(mine)
    for part, blocks in source.local_blocks.items():
      ours = sentences(encoded, blocks)
      assert ours == sentences(alone, whole.local_blocks[part])
    for x, y in zip(source.block_words, whole.block_words, strict=True):
      np.testing.assert_array_equal(x, y)
    if len(mine) < num_parts:
      assert len(encoded.ids) < len(alone.ids)
    for item, truth in zip(items, expected, strict=True):
      assert item._replace(batch=None) == truth._replace(batch=None)
      for x, y in zip(item.batch, truth.batch, strict=True):
        np.testing.assert_array_equal(x, y[list(mine)])


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


def test_jobs_that_encode_the_same_text_at_once(texts, tmp_path, monkeypatch):
  barrier = threading.Barrier(2)
  real = encode._Encoder.run

  def run(*args):
    real(*args)
    barrier.wait(60)

  monkeypatch.setattr(encode._Encoder, 'run', run)
  monkeypatch.setattr(encode.platform, 'node', lambda: threading.get_ident())
  with futures.ThreadPoolExecutor(2) as pool:
    jobs = [pool.submit(_encode, texts, tmp_path) for _ in range(2)]
    first, second = (job.result() for job in jobs)
  assert first.manifest['fingerprint'] == second.manifest['fingerprint']
  np.testing.assert_array_equal(first.ids, second.ids)
