"""Corpus readers: files, formats, compression, pieces, bad input."""

import bz2
import concurrent.futures
import functools
import gzip
import itertools
import json
import lzma
import os
import random

import pytest
import zstandard

from jaxemb import errors
from jaxemb.io import text_files as sources
from jaxemb.text import records, wiki

_PACKERS = {
  '': lambda data: data,
  '.gz': gzip.compress,
  '.bz2': bz2.compress,
  '.xz': lzma.compress,
  '.zst': zstandard.ZstdCompressor(write_checksum=True).compress,
}
_BOM = b'\xef\xbb\xbf'
_TEXT = 'Erster Satz.\nein zweiter Ä\n\nlast line without end'.encode()


def _write(path, data):
  path.write_bytes(data.encode() if isinstance(data, str) else data)
  return str(path)


def _pieces(path, *args, **kwargs):
  """The wanted pieces of one file and the report."""
  [source] = sources.find(str(path))
  report = wiki.ReadReport()
  kwargs.setdefault('extractor', wiki.extractor)
  return list(sources.pieces(source, report, *args, **kwargs)), report


def _read(path, *args, **kwargs):
  """All text of one file, its pieces and the report."""
  pieces, report = _pieces(path, *args, **kwargs)
  with open(path, 'rb') as file:
    raw = file.read()
  assert report.source_bytes == len(raw)
  return b''.join(piece.text for piece in pieces), pieces, report


def _fails(path, *words):
  with pytest.raises(errors.UserError) as caught:
    for source in sources.find(str(path)):
      list(sources.pieces(source, wiki.ReadReport()))
  message = str(caught.value)
  assert '\n' not in message
  for word in words:
    assert word in message, message


def test_finds_file_folder_and_glob(tmp_path):
  for name in ('b/wiki_00', 'a/wiki_01', 'a/wiki_00', 'c/.hidden', '.d/x'):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('some text')
  (tmp_path / 'a/loop').symlink_to(tmp_path)
  (tmp_path / 'linked').symlink_to(tmp_path / 'b/wiki_00')
  (tmp_path / 'c/odd[1].txt').write_text('some text')
  for path, names in (
    ('.', 'a/wiki_00 a/wiki_01 b/wiki_00 c/odd[1].txt linked'),
    ('*/wiki_00', 'a/wiki_00 b/wiki_00'),
    ('b/**/wiki*', 'b/wiki_00'),
    ('a/wiki_01', 'a/wiki_01'),
    ('c/odd[1].txt', 'c/odd[1].txt'),
  ):
    files = [tmp_path / name for name in names.split()]
    assert sources.find(str(tmp_path / path)) == [(file, 9) for file in files]


def test_what_is_text_and_what_is_not(tmp_path):
  data = random.Random(0).randbytes(10_000)
  for name, bad, *words in (
    ('b.txt', bz2.compress(data), 'b.txt is binary'),
    ('c.gz', gzip.compress(data), 'c.gz is binary'),
    ('e.txt', 'text with words '.encode('utf-32'), 'UTF-16', 'iconv'),
    ('f.txt', 'text with words '.encode('utf-16-le'), 'binary'),
  ):
    _fails(_write(tmp_path / name, bad), *words)
  control = '\x1b[1mbold\x1b[0m text\f\v\t ' * 10
  assert _read(_write(tmp_path / 'h.txt', control))[0] == control.encode()


def test_utf_16_without_its_mark_is_refused(tmp_path):
  path = _write(tmp_path / 'a.txt', 'a b c\n'.encode('utf-16-le'))
  with pytest.raises(errors.UserError, match='such as utf-16-le'):
    _read(path, encoding='utf-16')


def test_files_that_change_under_the_reader_or_are_empty(tmp_path):
  path = _write(tmp_path / 'a.txt', 'some words\n' * 10)
  [source] = sources.find(path)
  longer = source._replace(size_bytes=1000)
  with pytest.raises(errors.UserError, match='shorter'):
    list(sources.pieces(longer, wiki.ReadReport(), 64))
  os.unlink(path)
  with pytest.raises(errors.UserError, match='cannot be read'):
    list(sources.pieces(source, wiki.ReadReport()))
  for name, text in (('a.txt', b''), ('b.bz2', b''), ('c.txt', b'text')):
    _write(tmp_path / name, text)
  for source in sources.find(str(tmp_path))[:2]:
    report = wiki.ReadReport()
    assert list(sources.pieces(source, report)) == []
    assert report.problems == [f'{source.path}: empty']


def _dump(*bodies):
  pages = [
    f'<page><title>T{i}</title><ns>{"01"[body == "talk"]}</ns><revision>'
    f'<text>{body}</text></revision></page>\n'
    for i, body in enumerate(bodies)
  ]
  return '<mediawiki version="0.11">\n' + ''.join(pages) + '</mediawiki>\n'


@pytest.mark.parametrize('suffix', _PACKERS)
def test_every_compression_of_text_and_dumps(tmp_path, monkeypatch, suffix):
  def pack(data):
    size = -(-len(data) // 3)  # of each stream
    parts = (data[i : i + size] for i in range(0, len(data), size))
    return b''.join(map(_PACKERS[suffix], parts))

  path = _write(tmp_path / f'a.txt{suffix}', pack(_BOM + _TEXT))
  text, pieces, report = _read(path)
  assert text == _TEXT and report.problems == []
  assert [piece.ends_line for piece in pieces] == [True]
  dump = _dump("'''A''' [[b]]\n\nc", 'talk', '#REDIRECT [[A]]', 'd', '{{e}}')
  path = _write(tmp_path / f'b{suffix}', pack(dump.encode()))
  text, _, report = _read(path, 8)
  assert text == b'A b\nc\nd\n'
  assert (report.pages, report.redirects) == (3, 1)
  assert report.other_namespace_pages == 1
  assert (report.lost_bytes, report.problems) == (0, [])
  monkeypatch.setattr(sources, 'BLOCK_BYTES', 1)  # an article a batch
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    extractor = functools.partial(wiki.extractor, pool=pool)
    assert _read(path, 8, extractor=extractor) == _read(path, 8)
  assert _read(path, 8)[0] == text


@pytest.mark.parametrize('suffix', ['.gz', '.bz2', '.xz'])
def test_bytes_after_compressed_data_are_reported(tmp_path, suffix):
  stream = _PACKERS[suffix](_TEXT)
  data = stream + bytes(30_000) + stream + bytes(8)  # padding
  for rest in (b'', b'?', b'no stream ' * 20_000):
    path = _write(tmp_path / f'a{suffix}', data + rest)
    text, _, report = _read(path)
    assert text == 2 * _TEXT
    ignored = f'{len(rest)} bytes after its compressed data ignored'
    assert report.problems == [f'{path}: {ignored}'] * bool(rest)


def _lines(seed, size):
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


@pytest.mark.parametrize(
  'suffix, block_bytes, piece_bytes',
  [('', 1 << 20, 16), ('', 1 << 20, 400), ('.gz', 7, 64), ('.gz', 300, 10**6)],
)
def test_pieces_are_the_text(
  tmp_path, monkeypatch, suffix, block_bytes, piece_bytes
):
  monkeypatch.setattr(sources, 'BLOCK_BYTES', block_bytes)
  data = _lines(0, 3000)
  path = _write(tmp_path / f'a{suffix}', _PACKERS[suffix](data))
  text, pieces, report = _read(path, piece_bytes)
  assert text == data
  for piece in pieces:
    assert 0 < len(piece.text) <= piece_bytes
    piece.text.decode()  # no character is cut
    is_last = piece is pieces[-1]
    assert piece.ends_line == (is_last or piece.text.endswith(b'\n'))
  numbers = [piece.number for piece in pieces]
  assert numbers == sorted(set(numbers))
  # Words are cut where there is no white space, which is reported.
  edges = [(a.text[-1:], b.text[:1]) for a, b in itertools.pairwise(pieces)]
  splits = any(not (a.isspace() or b.isspace()) for a, b in edges)
  expected = f'{path}: no white space in {piece_bytes} bytes; cut inside a word'
  assert report.problems == [expected] * splits
  [source] = sources.find(path)
  assert sources.is_divisible(source) == (not suffix)
  # A piece of plain text is read by itself.
  num_ranges = -(-len(data) // max(4, piece_bytes // 2))
  for number in range(0, num_ranges, 1 + num_ranges // 10):
    wanted, report = _pieces(path, piece_bytes, wanted=number.__eq__)
    assert wanted == [piece for piece in pieces if piece.number == number]
    if not suffix:
      # Nothing else was read.
      assert report.source_bytes == sum(len(piece.text) for piece in wanted)


@pytest.mark.parametrize('bom, data', [
  *itertools.product((b'', _BOM), (b'x', b'\n', b' ', b'\n' * 8)),
  (b'', b'good \xff\xfe bad \xc3\n'), (b'', b'\x80' * 5000),
])  # fmt: skip
def test_odd_and_invalid_texts_are_handed_on_as_they_are(tmp_path, bom, data):
  path = _write(tmp_path / 'a.txt', bom + data)
  for piece_bytes in (4, 8, 100):
    assert _read(path, piece_bytes)[0] == data


_DOCS = """<doc id="1" url="http://x" title="A">
A

One &lt;b&gt; &amp;lt; &quot;two&quot;.
a < b </doc> <doc x> </doc>
</doc>
<doc id="2" url="http://y" title="B">
B

{}

</doc>
"""


@pytest.mark.parametrize(
  ('block_bytes', 'end'), [(50, '\r\n'), (1 << 20, '\n')]
)
def test_wikiextractor_docs(tmp_path, monkeypatch, block_bytes, end):
  monkeypatch.setattr(sources, 'BLOCK_BYTES', block_bytes)
  monkeypatch.setattr(sources, '_HEAD_BYTES', 50)
  monkeypatch.setattr(wiki, '_MAX_LINE_BYTES', 100)
  long_line = 'words &amp; ' * 10_000 + '<doc ' * 100 + 'end'
  docs = ('\n' + _DOCS.format(long_line)).replace('\n', end)
  text, pieces, report = _read(_write(tmp_path / 'wiki_00', docs), 1000)
  lines = [line.strip() for line in text.decode().split('\n')]
  assert [line for line in lines if line] == [
    'A',
    'One <b> &lt; "two".',
    'a < b </doc> <doc x> </doc>',
    'B',
    long_line.replace('&amp;', '&'),
  ]
  assert max(len(piece.text) for piece in pieces) <= 1000
  assert report.pages == 2


@pytest.mark.parametrize('block_bytes', [20, 1 << 20])
def test_json_lines(tmp_path, monkeypatch, block_bytes):
  monkeypatch.setattr(sources, 'BLOCK_BYTES', block_bytes)
  monkeypatch.setattr(sources, '_HEAD_BYTES', 50)
  monkeypatch.setattr(records, '_MAX_RECORD_BYTES', 200)
  lines = [
    json.dumps({'id': '1', 'title': 'A', 'text': 'A\n\nOne &lt;b&gt; ä.'}),
    '{"broken": ',
    '[1, 2]',
    json.dumps({'id': '2', 'text': None}),
    '',
    json.dumps({'text': 'as &lt;it&gt; is'}, ensure_ascii=False),
  ]
  bad = lines[1:4]
  if block_bytes < 200:  # a line that is too long to be held
    bad += [json.dumps({'text': 'long' * 100})]
  path = _write(tmp_path / 'a.json', '\n'.join(lines + bad[3:]))
  text, _, report = _read(path)
  assert text.decode() == 'A\n\nOne <b> ä.\nas &lt;it&gt; is\n'
  assert report.pages == 2
  assert report.lost_bytes == len(''.join(bad))
  assert 'lines skipped: no JSON object' in report.problems[0]


@pytest.mark.slow
def test_genuine_files(shared_data, tmp_path):
  text, pieces, _ = _read(shared_data / 'text' / 'text8.first12549840.bz2')
  assert len(text) == 12_549_840
  assert text.startswith(b' anarchism originated as a term of abuse')
  assert [piece.ends_line for piece in pieces] == [False, True]
  path = shared_data / 'text' / 'enwiki2015.AA.txt.bz2'
  head = bz2.BZ2Decompressor().decompress(path.read_bytes(), 10_000_000)
  head = head[: head.rindex(b'<doc ')]
  text, _, report = _read(_write(tmp_path / 'AA', head))
  assert report.pages == head.count(b'\n<doc ') + 1
  lines = text.decode().split('\n')
  assert lines[:2] == ['Anarchism', '']
  assert not [line for line in lines if line.startswith(('<doc', '</doc'))]
  assert len(text) > 0.98 * len(head)


def test_text_in_utf_8_is_guessed_even_if_it_is_cut():
  assert sources.guess_encoding('größe'.encode()[:-2]) == 'utf-8'
  assert sources.guess_encoding('größere Dinge'.encode('cp1252')) == 'cp1252'


@pytest.mark.parametrize(
  'names, held_out',
  [
    ('train.txt valid.txt test.txt', 'test.txt valid.txt'),
    ('wiki.train.tokens wiki.test.tokens x.txt', 'wiki.test.tokens'),
    ('train/pos/1.txt test/pos/2.txt', 'test/pos/2.txt'),
    ('test.txt valid.txt', ''),
    ('train.txt contest.txt exam-test.txt', ''),
  ],
)
def test_a_folder_holds_out_its_test_set(tmp_path, names, held_out):
  root = tmp_path / 'test'  # whatever is above the folder
  for name in names.split():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    _write(root / name, b'text')
  found = sources.find(str(root))
  used, unused = sources.without_splits(str(root), found)
  assert sorted(used + unused) == found
  assert [str(x.path.relative_to(root)) for x in unused] == held_out.split()
  assert sources.without_splits(f'{root}/**', found) == (found, [])
