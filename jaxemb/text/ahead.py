"""A process that compiles the tokenizer while JAX is imported.

Its first use would take as long as all else before training. Later runs have
what numba keeps. While the text is read, the process goes on with what makes
batches: the kernel's process, which begins with the kernel, finds it compiled.
"""

import contextlib
import importlib.metadata
import pathlib
import subprocess
import sys
import time

from jaxemb.kernels import sources
from jaxemb.runtime import background

# With the marks that they leave once the tokenizer is compiled.
_started: list[tuple[subprocess.Popen, pathlib.Path]] = []


def start(cache: pathlib.Path) -> None:
  """Starts the process, unless a mark in `cache` tells that it has run."""
  source = pathlib.Path(__file__).with_name('tokenize.py')
  # Without the process the run itself compiles.
  with contextlib.suppress(OSError, importlib.metadata.PackageNotFoundError):
    mark = cache / 'programs' / f'tokenize-{sources.digest([source])[:16]}'
    if not mark.exists():
      _started.append((background.start(__name__, mark), mark))


def wait() -> None:
  """Waits while the tokenizer is compiled: to do so twice takes longer."""
  for process, mark in _started:
    while process.poll() is None and not mark.exists():
      time.sleep(0.01)


if __name__ == '__main__':
  from jaxemb.kernels.cpu import handlers, linking
  from jaxemb.text import tokenize

  linking.hurry()
  tokenize.compile()
  for path in map(pathlib.Path, sys.argv[1:]):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
  handlers.compile_batches()
  linking.leave()
