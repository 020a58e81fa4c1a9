"""Digests that name what numba compiles: it looks at the time of one file."""

import hashlib
import importlib.metadata
import os
import pathlib
import sys
from collections.abc import Iterable

from llvmlite import binding


def digest(paths: Iterable[pathlib.Path]) -> str:
  """Returns a digest of source files, of the compiler and of the CPU.

  64 hexadecimal digits. Raises `PackageNotFoundError` for an unknown compiler.
  """
  names = (
    sys.version,
    *map(importlib.metadata.version, ('numba', 'llvmlite')),
    os.environ.get('NUMBA_CPU_NAME') or binding.get_host_cpu_name(),
    os.environ.get('NUMBA_CPU_FEATURES', ''),
  )
  texts = b''.join(x.read_bytes() for x in paths)
  return hashlib.sha256(texts + repr(names).encode()).hexdigest()
