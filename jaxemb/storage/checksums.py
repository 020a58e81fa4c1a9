"""A folder of a cache whose files are checked before they are used again.

manifest.json is written last, and holds CRC-32s of all files beside it, one for
each 16 MB, and of itself: what is flipped, cut or missing is noticed. CRC-32
reads some GB/s on a core, which is little for what is read once a start. Each
process of a job reads what it maps: on other machines files are others, and
texts are encoded in parts, of which each process has its own.
"""

import json
import os
import pathlib
import zlib
from concurrent import futures
from typing import Any

from jaxemb.storage import atomic

MANIFEST = 'manifest.json'
_STRETCH_BYTES = 1 << 24
_BLOCK_BYTES = 1 << 20
_MAX_THREADS = 8


def seal(folder: pathlib.Path, manifest: dict[str, Any]) -> None:
  """Writes the manifest, JSON-ready, with checksums of all files there.

  Raises a `UserError` if it cannot be written.
  """
  manifest = manifest | {'checksums': _of_files(folder)}
  manifest['checksum'] = zlib.crc32(json.dumps(manifest).encode())
  with atomic.write(folder / MANIFEST) as file:
    file.write(json.dumps(manifest, indent=1).encode())


def opened(folder: pathlib.Path) -> dict[str, Any]:
  """The manifest, as it was sealed, of a folder whose files are as they were.

  Raises a `ValueError`, `KeyError` or `OSError` if they are not.
  """
  manifest = json.loads((folder / MANIFEST).read_text())
  checksum = manifest.pop('checksum')
  if checksum != zlib.crc32(json.dumps(manifest).encode()):
    raise ValueError(f'{folder / MANIFEST} has changed')
  sealed, found = manifest.pop('checksums'), _of_files(folder)
  for name in sealed.keys() | found.keys():
    if sealed.get(name) != found.get(name):
      raise ValueError(f'{folder / name} has changed')
  return manifest


def _of_files(folder: pathlib.Path) -> dict[str, list[int]]:
  """CRC-32s of the files in a folder, by their names."""
  with futures.ThreadPoolExecutor(
    min(_MAX_THREADS, os.cpu_count() or 1)
  ) as pool:
    jobs = {
      path.name: [
        pool.submit(_of_stretch, path, start)
        for start in range(0, path.stat().st_size, _STRETCH_BYTES)
      ]
      for path in folder.iterdir()
      if path.is_file() and path.name != MANIFEST and path.name[0] != '.'
    }
    return {name: [x.result() for x in of] for name, of in jobs.items()}


def _of_stretch(path: pathlib.Path, start: int) -> int:
  checksum = 0
  with open(path, 'rb', buffering=0) as file:
    file.seek(start)
    for _ in range(_STRETCH_BYTES // _BLOCK_BYTES):
      checksum = zlib.crc32(file.read(_BLOCK_BYTES), checksum)
  return checksum
