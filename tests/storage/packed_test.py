"""Packed files: read whatever their name, written as they are named."""

import bz2
import gzip
import io
import lzma
import os
import pickle
import tarfile
import zipfile

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from jaxemb import errors
from jaxemb.storage import packed

_DATA = np.random.default_rng(0).bytes(1000) + b'a line of words\n' * 70_000


def _zip(members):
  file = io.BytesIO()
  with zipfile.ZipFile(file, 'w', zipfile.ZIP_DEFLATED) as archive:
    for name, data in members.items():
      archive.writestr(name, data)
  return file.getvalue()


def _parquet():
  file = io.BytesIO()
  parquet.write_table(pa.table({'text': ['a b']}), file)
  return file.getvalue()


def _tar(data):
  file = io.BytesIO()
  with tarfile.open(fileobj=file, mode='w') as archive:
    info = tarfile.TarInfo('a.txt')
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))
  return file.getvalue()


_PACKERS = {
  '': lambda data: data,
  'gzip': gzip.compress,
  'bzip2': bz2.compress,
  'xz': lzma.compress,
  'zstandard': zstandard.ZstdCompressor(write_checksum=True).compress,
  'zip': lambda data: _zip({
    'a/': b'', 'a/x': data, '__MACOSX/a/._x': b'1', 'a/.DS_Store': b'2',
  }),
}  # fmt: skip


@pytest.mark.parametrize('name', ['v', 'v.CSV.GZ'])
@pytest.mark.parametrize('packing', _PACKERS)
def test_is_recognised_by_its_first_bytes(tmp_path, packing, name):
  path = tmp_path / name
  path.write_bytes(_PACKERS[packing](_DATA))
  with packed.File(path) as file:
    assert file.packing == packing
    assert file.read(10) == _DATA[:10]
    assert 0 < file.read_bytes <= path.stat().st_size
    assert file.read() == _DATA[10:]
    assert file.read_bytes == path.stat().st_size
  assert file.closed and file._file.closed


@pytest.mark.parametrize(
  'data', [b'', b'BZh 1AY', b'PK', b'\x1f', b'_*M', b'ORCHID 1', b'PAR1 gene']
)
def test_what_only_begins_alike_is_plain(tmp_path, data):
  path = tmp_path / 'v.gz'
  path.write_bytes(data)
  with packed.File(path) as file:
    assert (file.packing, file.read()) == ('', data)


@pytest.mark.parametrize('packing', [x for x in _PACKERS if x])
def test_damaged_data_raise_an_os_error(tmp_path, packing):
  whole = _PACKERS[packing](_DATA)
  middle = len(whole) // 2
  path = tmp_path / 'v'
  for data in (
    whole[:-9],
    whole[:middle],
    whole[: middle - 30] + bytes(60) + whole[middle + 30 :],
  ):
    path.write_bytes(data)
    with pytest.raises(OSError), packed.File(path) as file:
      file.read()


def test_names_in_archives_may_be_damaged(tmp_path):
  path = tmp_path / 'a.zip'
  path.write_bytes(_zip({'é.txt': b'1'}).replace('é'.encode(), b'\xff\xff'))
  with pytest.raises(OSError, match='utf-8'), packed.File(path) as file:
    file.read()


_REFUSED = [
  (_zip({'a.txt': b'1', 'b.txt': b'2'}), r'2 files \(a.txt, b.txt\)'),
  (_zip({'a/': b''}), 'of no file'),
  (gzip.compress(_tar(b'text')), 'a tar archive'),
  (_tar(b'text'), 'a tar archive'),
  (_zip({'a.gz': gzip.compress(b'text')}), 'packed twice'),
  (b'7z\xbc\xaf\x27\x1c' + bytes(100), 'a 7z archive'),
  (
    _zip({'[Content_Types].xml': b'', 'xl/a.xml': b''}),
    'Excel.* save it as CSV',
  ),
  (_zip({'word/a.xml': b'', '[Content_Types].xml': b''}), 'a Word document'),
  (_zip({'mimetype': b'', 'content.xml': b''}), 'an OpenDocument'),
  (_zip({'a.npy': b'', 'b.npy': b''}), 'a NumPy archive'),
  (_parquet(), 'Parquet'),
  (gzip.compress(b'%PDF-1.7 '), 'a PDF: extract its text'),
  (b'\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1', 'an old Excel or Word file'),
  (rb'{\rtf1\ansi the king', 'Rich Text'),
  (b'\xef\xbb\xbf\n%PDF-1.4\nthe king', 'a PDF: extract its text'),
  (b'%!PS-Adobe-3.0\n(the king) show', 'PostScript: extract its text'),
  *(
    (pickle.dumps(x, protocol), 'a pickle: it can run any code')
    for x in ({'the': 1}, ['the'], np.ones(3))
    for protocol in (0, 2, 4, 5)
  ),
]


# gzip writes the time: names of tests are the same in all processes.
@pytest.mark.parametrize(
  ('data', 'message'), _REFUSED, ids=range(len(_REFUSED))
)
def test_what_has_no_single_file_is_refused(tmp_path, data, message):
  path = tmp_path / 'v'
  path.write_bytes(data)
  with pytest.raises(errors.UserError, match=message):
    packed.File(path)


@pytest.mark.parametrize(
  'text',
  [b'a %PDF-1.4', b'%PDF- or %!Ps', b'(lp0 c.x\n', b'cat\ndog\np1\n'],
)
def test_text_that_tells_of_other_formats_is_read(tmp_path, text):
  path = tmp_path / 'v'
  path.write_bytes(text)
  with packed.File(path) as file:
    assert file.read() == text


@pytest.mark.parametrize('suffix', ['', '.txt', *packed.SUFFIXES, '.GZ'])
def test_is_written_as_it_is_named(tmp_path, suffix):
  path = tmp_path / f'v.txt{suffix}'
  texts = []
  for _ in range(2):
    with path.open('wb') as plain, packed.packer(plain, path) as file:
      file.write(_DATA[:5])
      file.write(_DATA[5:])
    texts.append(path.read_bytes())
  assert texts[0] == texts[1]
  assert (len(texts[0]) < len(_DATA)) == (suffix not in ('', '.txt'))
  with packed.File(path) as file:
    assert file.read() == _DATA


@pytest.mark.parametrize('suffix', ['', '.gz'])
def test_a_file_that_cannot_be_closed_has_been_read(suffix, tmp_path):
  path = tmp_path / f'file{suffix}'
  path.write_bytes(gzip.compress(_DATA) if suffix else _DATA)
  file = packed.File(path)
  assert file.read() == _DATA
  os.close(file._file.fileno())  # as where the disk cannot close it
  file.close()
