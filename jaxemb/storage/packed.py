"""Opens packed and plain files alike; writes what a suffix asks for.

gzip, bzip2, xz, zstandard and zip are recognised by their first bytes, whatever
the name of the file. Of a zip archive its only file is read. Other archives and
files of other programs are refused by name.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import pathlib
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import zstandard

from jaxemb import errors

_BLOCK_BYTES = 1 << 20
_STEP_BYTES = 1 << 13  # unpacked at once: nothing else bounds what comes out
_HEAD_BYTES = 512
_ERRORS = (
  EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError,
  zipfile.BadZipFile, NotImplementedError,
  ValueError,  # of names in zip archives that are no UTF-8
)  # fmt: skip
SUFFIXES = '.gz', '.bz2', '.xz', '.zst', '.zip'


class _Format(NamedTuple):
  """A format of streams, of which a file has one or several."""

  begins: str  # regular expression of a file's first bytes
  magic: bytes  # of each stream; b'' = the library knows
  decompressor: Callable[[], Any]


_FORMATS = {
  'gzip': _Format(
    r'\x1f\x8b', b'\x1f\x8b', lambda: zlib.decompressobj(wbits=31)
  ),
  'bzip2': _Format(
    r'BZh[1-9](1AY&SY|\x17rE8P\x90)', b'BZh', bz2.BZ2Decompressor
  ),
  'xz': _Format(r'\xfd7zXZ\x00', b'\xfd7zXZ\0', lzma.LZMADecompressor),
  'zstandard': _Format(
    r'\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18',
    b'',
    lambda: zstandard.ZstdDecompressor().decompressobj(),
  ),
}
_ZIP = r'PK(\x03\x04|\x05\x06)'
_UNPACK = 'unpack it first, and give a file of it'
_AS_TEXT = 'save it as plain text'
_AS_CSV = 'save it as CSV, or read it with pandas and give the table in Python'
_LINES = 'write what it has as lines of text, or CSV'
_PICKLE = (
  f'it can run any code when it is read: {_LINES} (vectors of gensim: '
  'save_word2vec_format)'
)
_OTHERS = (  # that are not read: what they are, how they begin, what to do
  ('a tar archive', r'(?s).{257}ustar', _UNPACK),
  ('a 7z archive', r'7z\xbc\xaf\x27\x1c', _UNPACK),
  ('a rar archive', r'Rar!\x1a\x07', _UNPACK),
  ('packed by compress', r'\x1f\x9d', _UNPACK),
  ('packed by lz4', r'\x04\x22M\x18', _UNPACK),
  ('a PDF', r'(\xef\xbb\xbf)?\s*%PDF-\d', 'extract its text first (pdftotext)'),
  ('PostScript', r'%!PS|\xc5\xd0\xd3\xc6', 'extract its text first (ps2ascii)'),
  ('a pickle', r'\x80[\x02-\x05]|\([ld]p\d+\n|c[\w.]+\n\w+\np0\n', _PICKLE),
  ('Rich Text', r'\{\\rtf\d', _AS_TEXT),
  ('an old Excel or Word file', r'\xd0\xcf\x11\xe0', 'save it as text or CSV'),
  ('Parquet', r'PAR1[\x00-\x1f]', _LINES),
  ('Arrow or Feather', r'ARROW1\x00', 'write it as Parquet or CSV'),
  ('ORC', r'ORC[\x00-\x08\x0e-\x1f\x80-\xff]', 'write it as Parquet or CSV'),
  ('Avro', r'Obj\x01', 'write it as Parquet or CSV'),
  ('a NumPy array', r'\x93NUMPY', _LINES),
  ('HDF5', r'\x89HDF', _LINES),
  ('a database of SQLite', r'SQLite format 3\x00', _LINES),
)
# Of programs that write zip archives, by their members, a line each.
_OFFICE = r'(?ms)(?=.*^\[Content_Types\]\.xml$).*^'
_DOCUMENTS = (
  ('an Excel workbook', rf'{_OFFICE}xl/', _AS_CSV),
  ('a Word document', rf'{_OFFICE}word/', _AS_TEXT),
  ('a PowerPoint document', rf'{_OFFICE}ppt/', _AS_TEXT),
  ('an e-book', r'(?ms).*^META-INF/container\.xml$', _AS_TEXT),
  ('an OpenDocument file', r'(?s)mimetype\n.*\bcontent\.xml', _AS_CSV),
  ('a NumPy archive', r'(.+\.npy(\n|$))+$', _LINES),
)


class File(io.BufferedReader):
  """What a file holds, unpacked, as a binary stream.

  Raises an `OSError` for damaged data wherever it reads, and a `UserError` if
  it is an archive that has no single file.
  """

  def __init__(self, path: pathlib.Path | str):
    self.packing = ''  # '' = none
    self.num_ignored = 0  # bytes after the packed data
    self._file = open(path, 'rb', buffering=0)  # noqa: SIM115
    try:
      super().__init__(self._raw(path), _BLOCK_BYTES)
      self._check(path)
    except BaseException:
      self._file.close()
      raise

  @property
  def read_bytes(self) -> int:
    """How much of the file on disk has been read."""
    return self._file.tell()

  def close(self) -> None:
    """Closes the stream and the file."""
    # Nothing that was read is lost if that fails.
    with contextlib.suppress(OSError):
      super().close()
    with contextlib.suppress(OSError):
      self._file.close()

  def _raw(self, path):
    head = self._file.read(_HEAD_BYTES)
    self._file.seek(0)
    for name, known in _FORMATS.items():
      if _begins(head, known.begins):
        self.packing = name
        return _Unpacked(self._streams(known))
    if _begins(head, _ZIP):
      self.packing = 'zip'
      return _Unpacked(self._member(path))
    return self._file

  def _check(self, path):
    head = self.peek(_HEAD_BYTES)
    for what, begins, remedy in _OTHERS:
      if _begins(head, begins):
        raise errors.UserError(f'{path} is {what}: {remedy}')
    begins = _ZIP, *(x.begins for x in _FORMATS.values())
    if self.packing and any(_begins(head, x) for x in begins):
      raise errors.UserError(f'{path} is packed twice: unpack it once')

  def _streams(self, known: _Format) -> Iterator[bytes]:
    """Yields blocks of all streams in a row."""
    stream, magic = known.decompressor(), known.magic
    data, out = b'', []
    steps = iter(self._steps())
    for step in steps:
      # Zeros may stand between streams.
      data = (data + step).lstrip(b'\0') if stream.eof else step
      while data and (not stream.eof or data.startswith(magic)):
        if stream.eof:
          stream = known.decompressor()
        out.append(stream.decompress(data))
        data = stream.unused_data.lstrip(b'\0')
      if data and len(data) >= len(magic):
        break
      if sum(map(len, out)) >= _BLOCK_BYTES:
        yield b''.join(out)
        out.clear()
    yield b''.join(out)
    self.num_ignored = len(data) + sum(map(len, steps))
    if not stream.eof:
      raise EOFError('it ends too early')

  def _steps(self):
    while block := self._file.read(_BLOCK_BYTES):
      for start in range(0, len(block), _STEP_BYTES):
        yield block[start : start + _STEP_BYTES]

  def _member(self, path) -> Iterator[bytes]:
    """Yields blocks of the only file of a zip archive."""
    with zipfile.ZipFile(self._file) as archive:
      # `is_dir` fails for an empty name.
      files = (x for x in archive.infolist() if x.filename[-1:] != '/')
      # macOS and hidden files are no data.
      hidden = re.compile(r'(^|/)(\.[^/]|__MACOSX/)')
      members = [x for x in files if not hidden.search(x.filename)]
      every = '\n'.join(x.filename for x in members)
      for what, names, remedy in _DOCUMENTS:
        if re.match(names, every):
          raise errors.UserError(f'{path} is {what}: {remedy}')
      if len(members) != 1:
        names = ', '.join(x.filename for x in members[:8])
        names += ', ...' * (len(members) > 8)
        what = f'{len(members)} files ({names})' if members else 'no file'
        raise errors.UserError(
          f'{path} is a zip archive of {what}; unpack it and give one file'
        )
      if members[0].flag_bits & 1:
        raise errors.UserError(f'{path} is encrypted: unpack it first')
      with archive.open(members[0]) as member:
        while block := member.read(_BLOCK_BYTES):
          yield block
      self._file.seek(0, io.SEEK_END)


class _Unpacked(io.RawIOBase):
  """Blocks of bytes as a stream."""

  def __init__(self, blocks: Iterator[bytes]):
    self._blocks, self._block = blocks, memoryview(b'')

  def readable(self) -> bool:
    """Returns True."""
    return True

  def readinto(self, room) -> int:
    """Fills `room` as far as a block goes; raises `OSError` for bad data."""
    try:
      while not self._block:
        self._block = memoryview(next(self._blocks))
    except StopIteration:
      return 0
    except _ERRORS as error:
      raise OSError(str(error) or 'its packed data are damaged') from error
    num = min(len(room), len(self._block))
    room[:num] = self._block[:num]
    self._block = self._block[num:]
    return num


def _begins(head: bytes, pattern: str) -> bool:
  return re.match(pattern.encode('latin-1'), head) is not None


@contextlib.contextmanager
def packer(file: BinaryIO, path: pathlib.Path | str) -> Iterator[BinaryIO]:
  """Gives a stream that writes to an open file, packed as `path` is named."""
  path = pathlib.Path(path)
  suffix = path.suffix.lower()
  stream: Any
  with contextlib.ExitStack() as stack:
    if suffix == '.gz':
      stream = gzip.GzipFile('', 'wb', 6, file, mtime=0)
    elif suffix == '.bz2':
      stream = bz2.BZ2File(file, 'wb')
    elif suffix == '.xz':
      stream = lzma.LZMAFile(file, 'wb')
    elif suffix == '.zst':
      stream = zstandard.ZstdCompressor(write_checksum=True).stream_writer(
        file, closefd=False
      )
    elif suffix == '.zip':
      archive = stack.enter_context(zipfile.ZipFile(file, 'w'))
      member = zipfile.ZipInfo(path.stem)
      member.compress_type = zipfile.ZIP_DEFLATED
      stream = archive.open(member, 'w', force_zip64=True)
    else:
      stream = contextlib.nullcontext(file)
    yield stack.enter_context(stream)
