"""Files read block by block: counted, hashed, decompressed, one block ahead."""

import bz2
import concurrent.futures
import gzip
import hashlib
import lzma
import pathlib
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

import zstandard

BLOCK_BYTES = 1 << 20
DAMAGE = (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError)
SUFFIXES = {
  b'\x1f\x8b': '.gz',
  b'BZh': '.bz2',
  b'\xfd7zXZ\x00': '.xz',
  b'\x28\xb5\x2f\xfd': '.zst',
}


class CountedFile:
  """A file that counts and hashes what is read from it.

  Attributes:
    read_bytes: How much that is so far.
  """

  def __init__(self, file: BinaryIO):
    self.read_bytes = 0
    self._file = file
    self._sha256 = hashlib.sha256()

  def read(self, num_bytes: int = -1) -> bytes:
    """Up to `num_bytes` bytes; b'' at the end."""
    block = self._file.read(num_bytes)
    self._sha256.update(block)
    self.read_bytes += len(block)
    return block

  def sha256(self) -> str:
    """Of the whole file, in hex; reads what is left of it."""
    while self.read(BLOCK_BYTES):
      pass
    return self._sha256.hexdigest()


def is_compressed(path: pathlib.Path) -> bool:
  """Whether a file's suffix says so."""
  return path.suffix.lower() in SUFFIXES.values()


def unpack(file: CountedFile, path: pathlib.Path) -> Iterator[bytes]:
  """Blocks of a file, decompressed if its suffix says so.

  Every stream of a .gz, .bz2 or .xz file and every frame of a .zst file.

  Raises:
    DAMAGE, OSError: While iterating, when the data are cut or damaged.
  """
  suffix = path.suffix.lower()
  if suffix == '.zst':
    return _unpack_zstd(file)
  openers: dict[str, Callable[..., BinaryIO]] = {
    '.gz': lambda file: gzip.GzipFile(fileobj=file, mode='rb'),
    '.bz2': bz2.BZ2File,
    '.xz': lzma.LZMAFile,
  }
  source = openers[suffix](file) if suffix in openers else file
  return iter(lambda: source.read(BLOCK_BYTES), b'')


def _unpack_zstd(file: CountedFile) -> Iterator[bytes]:
  """Like the library's reader, but notices when the last frame is cut."""
  frame = None
  out: list[bytes] = []
  for block in iter(lambda: file.read(BLOCK_BYTES), b''):
    # Small steps, because a step's output has no limit but its input.
    for start in range(0, len(block), 4096):
      data = block[start : start + 4096]
      while data:
        frame = frame or zstandard.ZstdDecompressor().decompressobj()
        out.append(frame.decompress(data))
        data = frame.unused_data
        if frame.eof:
          frame = None
      if sum(map(len, out)) >= BLOCK_BYTES:
        yield b''.join(out)
        out.clear()
  if frame:
    raise EOFError('it ends in the middle of a frame')
  yield b''.join(out)


def ahead(blocks: Iterator[bytes]) -> Iterator[bytes]:
  """Fetches the next block in a thread while the last one is worked on."""
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    future = thread.submit(next, blocks, None)
    while (block := future.result()) is not None:
      future = thread.submit(next, blocks, None)
      yield block


def file_sha256(path: pathlib.Path) -> str:
  """SHA-256 of a file's bytes as they lie on disk, in hexadecimal."""
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
