"""Pieces of a text, as a stream and found one by one."""

import hashlib
import itertools
import random

import pytest

from jaxemb.text import cuts


def _text(seed, size):
  """Lines of all lengths, some far longer than a piece, in all scripts."""
  rng = random.Random(seed)
  parts = []
  while sum(map(len, parts)) < size:
    kind = rng.random()
    if kind < 0.8:
      parts.append('wörter und 東京 ' * rng.randrange(4) + '\n')
    elif kind < 0.9:
      parts.append('a long line of words\t' * rng.randrange(40))
    else:
      parts.append(rng.choice('xé東') * rng.randrange(300))
  return ''.join(parts).encode()


def _ranges(path, piece_bytes, wanted=cuts.all_pieces):
  report = cuts.ReadReport()
  size = path.stat().st_size
  pieces = list(cuts.ranges(path, size, piece_bytes, report, wanted))
  return pieces, report


def _check(pieces, data, piece_bytes):
  """What every cut into pieces has to keep."""
  assert b''.join(piece.text for piece in pieces) == data
  for i, piece in enumerate(pieces):
    assert 0 < len(piece.text) <= piece_bytes
    piece.text.decode()  # no character is cut
    is_last = i == len(pieces) - 1
    assert piece.ends_line == (is_last or piece.text.endswith(b'\n'))


SIZES = [16, 64, 400, 5000, 10**6]


@pytest.mark.parametrize('piece_bytes', SIZES)
@pytest.mark.parametrize('seed', range(4))
def test_ranges_are_the_text(tmp_path, seed, piece_bytes):
  data = _text(seed, 20_000)
  path = tmp_path / 'a.txt'
  path.write_bytes(data)
  pieces, report = _ranges(path, piece_bytes)
  _check(pieces, data, piece_bytes)
  assert report.sha256 == hashlib.sha256(data).hexdigest()
  assert report.source_bytes == report.text_bytes == len(data)
  numbers = [piece.number for piece in pieces]
  assert numbers == sorted(set(numbers))
  # Words are cut where there is no white space, and that is told.
  edges = [(a.text[-1:], b.text[:1]) for a, b in itertools.pairwise(pieces)]
  splits = any(not (a.isspace() or b.isspace()) for a, b in edges)
  assert bool(report.problems) == splits
  if splits:
    (line,) = report.problems
    assert str(path) in line and f'{piece_bytes} bytes' in line


@pytest.mark.parametrize('piece_bytes', SIZES)
def test_a_piece_is_found_by_itself(tmp_path, piece_bytes):
  data = _text(5, 5000)
  path = tmp_path / 'a.txt'
  path.write_bytes(data)
  pieces, _ = _ranges(path, piece_bytes)
  num_ranges = -(-len(data) // max(4, piece_bytes // 2))
  for number in range(0, num_ranges, 1 + num_ranges // 50):
    found, report = _ranges(path, piece_bytes, lambda i, n=number: i == n)
    assert found == [piece for piece in pieces if piece.number == number]
    # Nothing else was read, so that the file has no hash.
    assert report.source_bytes == sum(len(piece.text) for piece in found)
    if num_ranges > 1:
      assert not report.sha256
  even, _ = _ranges(path, piece_bytes, lambda i: i % 2 == 0)
  odd, _ = _ranges(path, piece_bytes, lambda i: i % 2 == 1)
  assert sorted(even + odd, key=lambda piece: piece.number) == pieces


@pytest.mark.parametrize('piece_bytes', SIZES)
@pytest.mark.parametrize('block_bytes', [1, 7, 300, 10**6])
def test_a_stream_is_the_text(tmp_path, piece_bytes, block_bytes):
  data = _text(6, 5000)
  blocks = [data[i : i + block_bytes] for i in range(0, len(data), block_bytes)]
  report = cuts.ReadReport()
  pieces = list(cuts.stream(blocks, piece_bytes, tmp_path, report))
  _check(pieces, data, piece_bytes)
  # However the blocks come.
  whole = list(cuts.stream([data], piece_bytes, tmp_path, report))
  assert pieces == whole


@pytest.mark.parametrize('data', [b'', b'x', b'\n', b' ', b'\n\n\n\n\n\n\n\n'])
def test_tiny_texts(tmp_path, data):
  path = tmp_path / 'a.txt'
  path.write_bytes(data)
  pieces, report = _ranges(path, 8)
  assert b''.join(piece.text for piece in pieces) == data
  assert report.sha256 == hashlib.sha256(data).hexdigest()
  assert not report.problems


def test_a_mark_of_byte_order_is_no_text(tmp_path):
  path = tmp_path / 'a.txt'
  for data in (b'one two\nthree four\n', b''):
    path.write_bytes(cuts.BOM + data)
    for piece_bytes in (8, 100):
      pieces, report = _ranges(path, piece_bytes)
      assert b''.join(piece.text for piece in pieces) == data
      assert report.source_bytes == len(data) + 3
      digest = hashlib.sha256(cuts.BOM + data)
      assert report.sha256 == digest.hexdigest()


def test_a_file_that_becomes_shorter_is_told(tmp_path):
  path = tmp_path / 'a.txt'
  path.write_bytes(b'some words\n' * 10)
  report = cuts.ReadReport()
  with pytest.raises(OSError, match='shorter'):
    list(cuts.ranges(path, 1000, 64, report, cuts.all_pieces))


def test_a_piece_has_room_for_a_character():
  with pytest.raises(ValueError, match='less than a character'):
    list(cuts.stream([b'abc'], 3, None, cuts.ReadReport()))
