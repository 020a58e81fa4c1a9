"""Folders of small files as one input, whose files are changed together."""

import contextlib
import pathlib
import re
from collections.abc import Callable, Mapping

_HEAD = re.compile(rb'\n=== FILE (\w[\w.+/-]*) ===\n')


def joined(files: Mapping[str, bytes]) -> bytes:
  """Returns an input that has files by name."""
  heads = {x: b'\n=== FILE %b ===\n' % x.encode() for x in files}
  assert all(map(_HEAD.fullmatch, heads.values())), [*files]
  return b''.join(heads[name] + data for name, data in files.items())


def of_folder(folder: pathlib.Path, skipped: str = r'(?!)') -> bytes:
  """Returns an input that has the files of a folder, but for some names."""
  paths = sorted(x for x in folder.rglob('*') if x.is_file())
  names = {x.relative_to(folder).as_posix(): x for x in paths}
  return joined(
    {k: x.read_bytes() for k, x in names.items() if not re.search(skipped, k)}
  )


def split(data: bytes) -> dict[str, bytes]:
  """Returns the files of an input, as far as their heads are whole."""
  _, *rest = _HEAD.split(data)
  names = (x.decode() for x in rest[::2])
  return dict(zip(names, rest[1::2], strict=True))


def unpacked(path: pathlib.Path) -> pathlib.Path:
  """Writes the files of an input to a folder beside it; returns the folder."""
  folder = path.with_name('folder')
  folder.mkdir(exist_ok=True)
  for name, data in split(path.read_bytes()).items():
    if '..' in name:
      continue
    with contextlib.suppress(OSError):  # such as a file and a folder of a name
      (folder / name).parent.mkdir(parents=True, exist_ok=True)
      (folder / name).write_bytes(data)
  return folder


def reader(
  read: Callable[[pathlib.Path], object],
) -> Callable[[pathlib.Path], object]:
  """Returns a function that reads a folder from an input."""
  return lambda path: read(unpacked(path))
