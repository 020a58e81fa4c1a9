"""Corpus readers: files, formats, compression, long lines, bad input."""

import bz2
import concurrent.futures
import gzip
import hashlib
import json
import lzma
import os
import random

import pytest
import zstandard

from jaxemb import errors
from jaxemb.text import compressed, corpus, cuts, wiki

_PACKERS = {
  '': lambda data: data,
  '.gz': gzip.compress,
  '.bz2': bz2.compress,
  '.xz': lzma.compress,
  '.zst': zstandard.ZstdCompressor(write_checksum=True).compress,
}
_TEXT = 'Erster Satz.\nein zweiter Ä\n\nlast line without end'.encode()
_DOCS = """<doc id="1" url="http://x" title="A">
A

One &lt;b&gt; &amp;lt; &quot;two&quot;.
a < b </doc> <doc x> </doc>
</doc>
<doc id="2" url="http://y" title="B">
B

Three.

</doc>
"""


def _write(path, data):
  path.write_bytes(data.encode() if isinstance(data, str) else data)
  return str(path)


def _read(path, **kwargs):
  """All text of one file, its pieces and the report."""
  [source] = corpus.sources(str(path))
  report = cuts.ReadReport()
  pieces = list(corpus.pieces(source, report, **kwargs))
  text = b''.join(piece.text for piece in pieces)
  assert report.text_bytes == len(text)
  assert report.source_bytes == source.size_bytes
  raw = source.path.read_bytes()
  assert report.sha256 == hashlib.sha256(raw).hexdigest()
  return text, pieces, report


def _fails(path, *words):
  with pytest.raises(errors.UserError) as caught:
    for source in corpus.sources(str(path)):
      for _ in corpus.pieces(source, cuts.ReadReport()):
        pass
  message = str(caught.value)
  assert '\n' not in message
  for word in words:
    assert word in message, message


def test_sources_of_file_folder_and_glob(tmp_path):
  for name in ('b/wiki_00', 'a/wiki_01', 'a/wiki_00', 'c/.hidden', '.d/x'):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('some text')
  (tmp_path / 'a/loop').symlink_to(tmp_path)
  (tmp_path / 'linked').symlink_to(tmp_path / 'b/wiki_00')

  def found(path):
    sources = corpus.sources(str(path))
    assert all(source.size_bytes == 9 for source in sources)
    assert all(s.mtime_ns == s.path.stat().st_mtime_ns for s in sources)
    return [str(source.path.relative_to(tmp_path)) for source in sources]

  everything = ['a/wiki_00', 'a/wiki_01', 'b/wiki_00', 'linked']
  assert found(tmp_path) == everything
  assert found(tmp_path / '*' / 'wiki_00') == ['a/wiki_00', 'b/wiki_00']
  assert found(tmp_path / 'b' / '**' / 'wiki*') == ['b/wiki_00']
  assert found(tmp_path / 'a/wiki_01') == ['a/wiki_01']
  odd = tmp_path / 'odd[1].txt'
  odd.write_text('some text')
  assert found(odd) == ['odd[1].txt']


def test_sources_refuses_what_holds_no_text(tmp_path):
  _fails(tmp_path / 'absent.txt', 'absent.txt does not exist', 'config.data')
  _fails(tmp_path / '*.bz2', '*.bz2 matches no file')
  _fails(tmp_path, 'no files')
  _write(tmp_path / 'empty.txt', b'')
  _fails(tmp_path / 'empty.txt', 'empty.txt is empty')
  _fails(tmp_path, 'only empty files')
  os.mkfifo(tmp_path / 'pipe')
  _fails(tmp_path / 'pipe', 'not a regular file')


def test_an_empty_file_among_others_is_noted(tmp_path):
  _write(tmp_path / 'a.txt', b'')
  _write(tmp_path / 'b.bz2', b'')
  _write(tmp_path / 'c.txt', 'text')
  for source in corpus.sources(str(tmp_path))[:2]:
    report = cuts.ReadReport()
    assert list(corpus.pieces(source, report)) == []
    assert report.problems == [f'{source.path}: empty']


@pytest.mark.parametrize('suffix', _PACKERS)
@pytest.mark.parametrize('num_streams', [1, 3])
def test_plain_text_in_every_compression(tmp_path, suffix, num_streams):
  data = _PACKERS[suffix](b'\xef\xbb\xbf' + _TEXT)
  data += _PACKERS[suffix](b'\n' + _TEXT) * (num_streams - 1)
  text, pieces, report = _read(_write(tmp_path / f'a.txt{suffix}', data))
  assert text == b'\n'.join([_TEXT] * num_streams)
  assert [piece.ends_line for piece in pieces] == [True]
  assert report.problems == []


@pytest.mark.parametrize('suffix', [s for s in _PACKERS if s])
def test_cut_or_damaged_compression(tmp_path, suffix):
  rng = random.Random(0)
  words = [f'w{rng.randrange(10**6)}' for _ in range(50_000)]
  data = _PACKERS[suffix](' '.join(words).encode())
  for size in (len(data) // 2, len(data) - 1):
    path = tmp_path / f'cut{suffix}'
    _write(path, data[:size])
    _fails(path, str(path), 'again')
  path = tmp_path / f'second_is_cut{suffix}'
  _write(path, data + data[: len(data) // 2])
  _fails(path, str(path), 'again')
  path = tmp_path / f'damaged{suffix}'
  _write(path, data[:1000] + bytes(50) + data[1050:])
  _fails(path, str(path), 'again')
  path = tmp_path / f'wrong{suffix}'
  _write(path, 'just text ' * 1000)
  _fails(path, str(path), 'again')


def test_pieces_end_at_line_ends(tmp_path):
  rng = random.Random(1)
  lines = ['x' * rng.randrange(60) for _ in range(5000)]
  data = '\n'.join(lines).encode()
  path = _write(tmp_path / 'a.txt', data)
  text, pieces, _ = _read(path, piece_bytes=200)
  assert text == data
  assert all(piece.ends_line for piece in pieces)
  assert all(piece.text.endswith(b'\n') for piece in pieces[:-1])
  assert max(len(piece.text) for piece in pieces) <= 200
  assert len(pieces) < len(data) / 60


@pytest.mark.parametrize('suffix', _PACKERS)
def test_a_line_longer_than_a_piece_is_cut_at_white_space(tmp_path, suffix):
  line = 'words and\tmore \u00e4 ' * 30_000
  data = f'first\n{line}\nlast'.encode()
  path = _write(tmp_path / f'a{suffix}', _PACKERS[suffix](data))
  text, pieces, report = _read(path, piece_bytes=1000)
  assert text == data
  assert max(len(piece.text) for piece in pieces) <= 1000
  assert pieces[0] == cuts.Piece(b'first\n', True)
  assert not pieces[1].ends_line
  assert all(p.text[-1:] in (b' ', b'\t', b'\n') for p in pieces[:-1])
  assert sum(piece.ends_line for piece in pieces) == 2
  assert not report.problems


def test_text_without_white_space_is_cut_between_characters(tmp_path):
  data = ('\u8a9e\u00e4x\U0001f600' * 5000).encode()
  path = _write(tmp_path / 'a.txt', data)
  text, pieces, report = _read(path, piece_bytes=101)
  assert text == data
  assert all(piece.text.decode() for piece in pieces)
  assert min(len(piece.text) for piece in pieces[:-1]) >= 47
  assert 'no white space in 101 bytes' in report.problems[0]
  path = _write(tmp_path / 'b.txt', b'\x80' * 5000)
  assert _read(path, piece_bytes=4)[0] == b'\x80' * 5000


def test_invalid_utf8_is_handed_on_as_it_is(tmp_path):
  data = b'good \xff\xfe bad \xc3\n'
  assert _read(_write(tmp_path / 'a.txt', data))[0] == data


@pytest.mark.parametrize('block_bytes', [100, 1 << 20])
@pytest.mark.parametrize('end', ['\n', '\r\n'])
def test_wikiextractor_docs(tmp_path, monkeypatch, block_bytes, end):
  monkeypatch.setattr(compressed, 'BLOCK_BYTES', block_bytes)
  monkeypatch.setattr(corpus, '_HEAD_BYTES', 50)
  docs = ('\n' + _DOCS).replace('\n', end)
  text, _, report = _read(_write(tmp_path / 'wiki_00', docs))
  lines = [line.strip() for line in text.decode().split('\n')]
  assert [line for line in lines if line] == [
    'A',
    'One <b> &lt; "two".',
    'a < b </doc> <doc x> </doc>',
    'B',
    'Three.',
  ]
  assert report.pages == 2


def test_a_long_line_in_a_doc(tmp_path):
  line = 'words &amp; ' * 1_000_000
  docs = _DOCS.replace('Three.', line)
  text, pieces, report = _read(_write(tmp_path / 'a', docs), piece_bytes=10**6)
  assert text.decode().split('\n')[-3] == line.replace('&amp;', '&')
  assert max(len(piece.text) for piece in pieces) <= 10**6


def test_a_doc_line_is_known_by_its_place(tmp_path, monkeypatch):
  monkeypatch.setattr(wiki, '_MAX_LINE_BYTES', 100)
  monkeypatch.setattr(compressed, 'BLOCK_BYTES', 50)
  monkeypatch.setattr(corpus, '_HEAD_BYTES', 50)
  line = 'words ' + '<doc ' * 100 + 'end'
  docs = _DOCS.replace('Three.', line)
  text, _, report = _read(_write(tmp_path / 'a', docs))
  assert text.decode().split('\n')[-3] == line
  assert report.pages == 2


def test_json_lines(tmp_path):
  lines = [
    json.dumps({'id': '1', 'title': 'A', 'text': 'A\n\nOne &lt;b&gt; ä.'}),
    '{"broken": ',
    '[1, 2]',
    json.dumps({'id': '2', 'text': None}),
    '',
    json.dumps({'text': 'as &lt;it&gt; is'}, ensure_ascii=False),
  ]
  path = _write(tmp_path / 'a.json', '\n'.join(lines))
  text, _, report = _read(path)
  assert text.decode() == 'A\n\nOne <b> ä.\nas &lt;it&gt; is\n'
  assert report.pages == 2
  assert report.lost_bytes == len(''.join(lines[1:4]))
  assert report.problems[0].startswith(f'{path}: 3 lines skipped')


def _dump(*bodies):
  pages = [
    f'<page><title>T{i}</title><ns>{"01"[body == "talk"]}</ns><revision>'
    f'<text>{body}</text></revision></page>\n'
    for i, body in enumerate(bodies)
  ]
  return '<mediawiki version="0.11">\n' + ''.join(pages) + '</mediawiki>\n'


@pytest.mark.parametrize('suffix', _PACKERS)
def test_dump(tmp_path, suffix):
  dump = _dump("'''A''' [[b]]\n\nc", 'talk', '#REDIRECT [[A]]', 'd', '{{e}}')
  data = _PACKERS[suffix](dump.encode())
  text, _, report = _read(_write(tmp_path / f'a.xml{suffix}', data))
  assert text == b'A b\nc\nd\n'
  assert (report.pages, report.redirects) == (3, 1)
  assert report.other_namespace_pages == 1
  assert (report.lost_bytes, report.problems) == (0, [])


def test_what_follows_the_last_stream_is_hashed_too(tmp_path):
  data = bz2.compress(_TEXT) + b'no stream ' * 20_000
  text, _, report = _read(_write(tmp_path / 'a.bz2', data))
  assert text == _TEXT
  assert 'behind its compressed data' in report.problems[0]


def test_multistream_dump(tmp_path):
  dump = _dump(*(f'Text {i} of a page' for i in range(100))).encode()
  data = b''.join(
    bz2.compress(dump[i : i + 997]) for i in range(0, len(dump), 997)
  )
  text, _, report = _read(_write(tmp_path / 'a.xml.bz2', data))
  assert report.pages == 100
  assert text.count(b'\n') == 100


def test_cut_dump_is_used_and_said(tmp_path):
  dump = _dump('first', 'second', 'third')
  path = _write(tmp_path / 'a.xml', dump[: dump.index('third') + 3])
  text, _, report = _read(path)
  assert text == b'first\nsecond\n'
  assert report.problems == [
    f'{path}: cut after page 2 ("T1"); the pages so far are used'
  ]
  assert report.lost_bytes > 0


def test_dump_with_many_malformed_pages_and_bad_bytes(tmp_path):
  bad = '<page><oops></page>'
  dump = _dump('first @').replace('</mediawiki>', bad * 30 + '</mediawiki>')
  data = dump.encode().replace(b'@', b'\xff')
  text, _, report = _read(_write(tmp_path / 'a.xml', data))
  assert text == 'first \ufffd\n'.encode()
  assert report.replaced_bytes == 1
  assert report.lost_bytes >= 29 * len(bad)
  assert len(report.problems) == 11
  assert '20 more places' in report.problems[-1]


def test_a_pool_changes_nothing(tmp_path, monkeypatch):
  monkeypatch.setattr(compressed, 'BLOCK_BYTES', 1000)
  dump = _dump(*(f'Page {i} ' * (i % 50 + 1) for i in range(500)))
  path = _write(tmp_path / 'a.xml', dump)
  expected = _read(path, piece_bytes=5000)
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    assert _read(path, piece_bytes=5000, pool=pool) == expected
  assert expected[2].pages == 500


def test_binary_files_are_refused(tmp_path):
  data = random.Random(0).randbytes(10_000)
  _fails(_write(tmp_path / 'a.txt', data), 'a.txt is binary', 'UTF-8')
  _fails(_write(tmp_path / 'b.txt', bz2.compress(data)), 'the suffix .bz2')
  _fails(_write(tmp_path / 'c.gz', gzip.compress(data)), 'c.gz is binary')
  text = 'text with words ' * 100
  for encoding in ('utf-16', 'utf-32'):
    path = _write(tmp_path / encoding, text.encode(encoding))
    _fails(path, 'UTF-16', 'iconv')
  _fails(_write(tmp_path / 'd.txt', text.encode('utf-16-le')), 'binary')
  tar = b'name'.ljust(257, b'\0') + b'ustar\x0000' + text.encode()
  _fails(_write(tmp_path / 'e.tar', tar), 'tar archive')
  control = '\x1b[1mbold\x1b[0m text\f\v\t ' * 10
  assert _read(_write(tmp_path / 'f.txt', control))[0] == control.encode()


def test_unreadable_file(tmp_path):
  path = tmp_path / 'a.txt'
  _write(path, 'text')
  [source] = corpus.sources(str(path))
  path.unlink()
  with pytest.raises(errors.UserError, match='cannot be read'):
    list(corpus.pieces(source, cuts.ReadReport()))


@pytest.mark.skipif(not os.path.isdir('/proc/self/fd'), reason='needs /proc')
def test_stopping_early_closes_the_file(tmp_path):
  path = _write(tmp_path / 'a.txt', 'some words\n' * 500_000)
  [source] = corpus.sources(path)
  pieces = corpus.pieces(source, cuts.ReadReport(), 1000)
  next(pieces)
  num_open = len(os.listdir('/proc/self/fd'))
  pieces.close()
  assert len(os.listdir('/proc/self/fd')) == num_open - 1


def test_genuine_files(shared_data):
  text, _, report = _read(shared_data / 'xml' / 'enwiki-table-markup.xml.bz2')
  assert report.pages == 5
  assert b'The constructive vote of no confidence' in text
  path = shared_data / 'text' / 'text8.first12549840.bz2'
  text, pieces, report = _read(path)
  assert len(text) == 12_549_840
  assert text.startswith(b' anarchism originated as a term of abuse')
  assert [piece.ends_line for piece in pieces] == [False, True]


def test_genuine_wikiextractor_output(shared_data):
  path = shared_data / 'text' / 'enwiki2015.AA.txt.bz2'
  head = bz2.BZ2Decompressor().decompress(path.read_bytes(), 10_000_000)
  head = head[: head.rindex(b'<doc ')]
  report = cuts.ReadReport()
  text = b''.join(corpus._text(iter((head,)), path, report, None))
  assert report.pages == head.count(b'\n<doc ') + 1
  assert b'doc' not in text.replace(b'docu', b'').split(b'\n')
  lines = text.decode().split('\n')
  assert lines[:2] == ['Anarchism', '']
  assert not [line for line in lines if line.startswith(('<doc', '</doc'))]
  assert len(text) > 0.98 * len(head)
