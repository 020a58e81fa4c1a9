"""Processes that read a corpus together, as threads: what one alone has."""

import gzip
import itertools
import threading
from concurrent import futures

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.text import encode, loader, scan, teams, tokens

# By process, the parts that it reads, and those that no process before it does.
TEAMS = {
  'two': (4, [(range(0, 2), range(0, 2)), (range(2, 4), range(2, 4))]),
  'three': (
    7,
    [
      (range(0, 3), range(0, 3)),
      (range(3, 5), range(3, 5)),
      (range(5, 7), range(5, 7)),
    ],
  ),
  # Devices of both work on the same part, or on one of the parts.
  'same': (1, [(range(0, 1), range(0, 1)), (range(0, 1), range(0))]),
  'overlapping': (3, [(range(0, 2), range(0, 2)), (range(1, 3), range(2, 3))]),
}
every_team = pytest.mark.parametrize('name', TEAMS)

SETTINGS = encode.Settings('words', True, 2, 0, '')


def _together(name, function):
  """What `function` of each process's team returns, all at once."""
  num_parts, members = TEAMS[name]
  barrier = threading.Barrier(len(members))
  sent = [b''] * len(members)

  def member(index):
    def gather(data):
      sent[index] = data
      barrier.wait(60)
      found = list(sent)
      barrier.wait(60)
      return found

    mine, counted = members[index]
    team = teams.Team(num_parts, mine, counted, index, len(members), gather)
    try:
      return function(team)
    except BaseException:
      barrier.abort()
      raise

  with futures.ThreadPoolExecutor(len(members)) as pool:
    jobs = [pool.submit(member, i) for i in range(len(members))]
    return [job.result() for job in jobs]


def _ignore(stage, done, total):
  del stage, done, total


def _encode(folder, cache, team=teams.ALONE, **changes):
  settings = encode.dataclasses.replace(SETTINGS, **changes)
  return encode.encode(str(folder), settings, cache, _ignore, team)


@pytest.fixture
def texts(tmp_path, monkeypatch):
  """Texts of many pieces; one of them is no range's."""
  monkeypatch.setattr(scan, 'piece_bytes', lambda total_bytes: 700)
  folder = tmp_path / 'texts'
  folder.mkdir()
  rng = np.random.default_rng(0)
  for name in ('a.txt', 'b.txt.gz', 'c.txt'):
    lines = []
    for _ in range(400):
      words = (60 ** rng.random(rng.integers(0, 12))).astype(int)
      lines.append(' '.join(f'w{word}' for word in words))
    # Too long a word; one that no piece has room for.
    lines[7] += ' ' + 'y' * 300 + '\n' + 'z' * 2000
    data = '\n'.join(lines).encode() + b'\nthe \xff of'
    if name.endswith('gz'):
      data = gzip.compress(data)
    (folder / name).write_bytes(data)
  return folder


def _ids(corpus, part):
  """The sentences of a part, block by block."""
  ids = np.concatenate(corpus.shards)
  starts = corpus.blocks.starts
  blocks = []
  for b in part.blocks:
    # Ends of sentences that follow one another may be of pieces without words.
    ends = itertools.groupby(
      ids[starts[b] : starts[b + 1]].tolist(), lambda i: i == tokens.END
    )
    blocks.append([list(words) for is_end, words in ends if not is_end])
  return blocks


@every_team
def test_together_they_have_what_one_has(texts, tmp_path, name):
  alone = _encode(texts, tmp_path / 'alone')
  num_parts, members = TEAMS[name]
  whole = encode.divide(alone, num_parts)
  assert [part.index for part in whole.mine] == list(range(num_parts))

  def read(team):
    corpus = _encode(texts, tmp_path / 'together', team)
    return corpus, encode.divide(corpus, num_parts, team)

  for (mine, _), (corpus, division) in zip(
    members, _together(name, read), strict=True
  ):
    assert corpus.vocabulary.words == alone.vocabulary.words
    np.testing.assert_array_equal(
      corpus.vocabulary.counts, alone.vocabulary.counts
    )
    assert corpus.num_words == alone.num_words
    # A run may go on with other processes.
    for key in ('fingerprint', 'num_words', 'num_blocks', 'num_vocab_words'):
      assert corpus.manifest[key] == alone.manifest[key], key
    assert corpus.manifest['dropped'] == alone.manifest['dropped']
    assert corpus.manifest['dropped']['overlong_words'] > 3
    assert len(corpus.manifest['dropped']['problems']) == 3
    assert corpus.manifest['text_bytes'] == alone.manifest['text_bytes']
    # It holds its own parts, and knows of all how many words they have.
    assert [part.index for part in division.mine] == list(mine)
    for part in division.mine:
      assert _ids(corpus, part) == _ids(alone, whole.mine[part.index])
    for found, expected in zip(
      division.block_words, whole.block_words, strict=True
    ):
      np.testing.assert_array_equal(found, expected)
    if len(mine) < num_parts:
      held = sum(len(shard) for shard in corpus.shards)
      assert held < sum(len(shard) for shard in alone.shards)


@every_team
def test_together_they_read_the_batches_of_one(texts, tmp_path, name):
  num_parts, members = TEAMS[name]
  spec = loader.LoaderSpec(1, 2, 16, 3, 1e-2)
  start = loader.Position(0, 0)
  alone = _encode(texts, tmp_path / 'alone')
  expected = list(
    loader.batches(alone, encode.divide(alone, num_parts), spec, start, 0)
  )

  def read(team):
    corpus = _encode(texts, tmp_path / 'together', team)
    division = encode.divide(corpus, num_parts, team)
    return list(loader.batches(corpus, division, spec, start, 0))

  for (mine, _), found in zip(members, _together(name, read), strict=True):
    for item, truth in zip(found, expected, strict=True):
      assert item._replace(batch=None) == truth._replace(batch=None)
      for x, y in zip(item.batch, truth.batch, strict=True):
        np.testing.assert_array_equal(x, y[list(mine)])


def test_all_take_the_corpus_from_the_cache_or_none(
  texts, tmp_path, monkeypatch
):
  def read(team):
    return _encode(texts, tmp_path, team)

  first = _together('two', read)
  read_pieces = []
  real = scan.scan

  def counted(*args):
    read_pieces.append(args)
    return real(*args)

  monkeypatch.setattr(scan, 'scan', counted)
  again = _together('two', read)
  assert not read_pieces
  for a, b in zip(first, again, strict=True):
    assert a.manifest == b.manifest and a.folder == b.folder
  # What one has lost, all make again.
  (again[1].folder / 'vocab.txt').unlink()
  third = _together('two', read)
  assert len(read_pieces) == 2
  assert [x.manifest for x in third] == [x.manifest for x in first]


def test_files_that_differ_between_processes_are_refused(tmp_path):
  for index, text in enumerate(('one two\n' * 9, 'one two\n' * 8)):
    (tmp_path / f'{index}').mkdir()
    (tmp_path / f'{index}' / 'a.txt').write_text(text)
  for index, changed in enumerate(('a.txt has 64', 'b.txt is missing')):
    if index:
      (tmp_path / '1' / 'a.txt').write_text('one two\n' * 9)
      (tmp_path / '0' / 'b.txt').write_text('three\n')

    def read(team):
      # The same path, of which each host has its own.
      real = encode.corpus.sources(str(tmp_path / f'{team.index}'))
      sizes = {f'/text/{x.path.name}': x.size_bytes for x in real}
      with pytest.raises(errors.UserError) as caught:
        teams.check_alike(team, sizes)
      return str(caught.value)

    first, second = _together('two', read)
    assert changed in first and 'in process 1' in first
    assert 'in process 0' in second and '\n' not in first


def test_jobs_that_encode_the_same_text_at_once(texts, tmp_path, monkeypatch):
  barrier = threading.Barrier(2)
  real = encode._encode

  def encoded(*args):
    real(*args)
    barrier.wait(60)

  monkeypatch.setattr(encode, '_encode', encoded)
  monkeypatch.setattr(encode.platform, 'node', lambda: threading.get_ident())
  with futures.ThreadPoolExecutor(2) as pool:
    jobs = [pool.submit(_encode, texts, tmp_path) for _ in range(2)]
    first, second = (job.result() for job in jobs)
  assert first.manifest['fingerprint'] == second.manifest['fingerprint']
  np.testing.assert_array_equal(first.shards[0], second.shards[0])


def test_a_vocabulary_of_rare_words_needs_the_counts_of_all(tmp_path):
  # Each process sees one occurrence.
  (tmp_path / 'a.txt').write_text('one two\nthree four\n')
  (tmp_path / 'b.txt').write_text('one two\nfive six\n')
  found = _together(
    'two', lambda team: _encode(tmp_path / '*.txt', tmp_path, team)
  )
  for corpus in found:
    assert corpus.vocabulary.words == ['one', 'two']
    assert corpus.num_words == 4


def test_all_are_told_of_a_text_without_words(tmp_path):
  (tmp_path / 'a.txt').write_text('one two\nthree four\n')
  for change in ({}, {'counts': str(tmp_path / 'counts')}):
    (tmp_path / 'counts').write_text('absent 9\nmissing 8\n')

    def read(team, change=change):
      with pytest.raises(errors.UserError) as caught:
        _encode(tmp_path / 'a.txt', tmp_path, team, **change)
      return str(caught.value)

    first, second = _together('two', read)
    assert first == second


def test_arrays_travel_as_they_are():
  arrays = {
    'a': np.arange(5) + 10,
    'b': np.zeros((0, 2), np.uint8),
    'c': np.arange(6, dtype=np.uint16).reshape(2, 3)[:, ::-1],
  }
  assert not teams.unpack(teams.pack({}))
  found = teams.unpack(teams.pack(arrays))
  assert found.keys() == arrays.keys()
  for key, array in arrays.items():
    assert found[key].dtype == array.dtype
    np.testing.assert_array_equal(found[key], array)


def test_pieces_are_dealt_in_turn():
  team = teams.Team(3, range(1, 3), range(2, 3), 1, 2, None)
  assert [team.reads(0, i) for i in range(4)] == [False, True, True, False]
  # Files begin with different parts, so that short ones are dealt as well.
  assert [team.reads(1, i) for i in range(4)] == [True, True, False, True]
  assert [team.counts(0, i) for i in range(4)] == [False, False, True, False]
  assert all(teams.ALONE.reads(5, i) for i in range(9))
  assert all(teams.ALONE.counts(5, i) for i in range(9))
