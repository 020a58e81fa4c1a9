"""A process that compiles the tokenizer while JAX is imported.

Its first use would take as long as all else before training. Later runs have
what numba keeps.
"""

import contextlib
import importlib.metadata
import pathlib
import subprocess
import sys

from jaxemb.kernels import sources
from jaxemb.kernels.cpu import ahead

_started: list[subprocess.Popen] = []


def start(cache: pathlib.Path) -> None:
  """Starts the process, unless a mark in `cache` tells that it has run."""
  source = pathlib.Path(__file__).with_name('tokenize.py')
  # Without the process the run itself compiles.
  with contextlib.suppress(OSError, importlib.metadata.PackageNotFoundError):
    mark = cache / 'programs' / f'tokenize-{sources.digest([source])[:16]}'
    if not mark.exists():
      _started.append(ahead.start(__name__, mark))


def wait() -> None:
  """Waits for the process, if there is one: to compile twice takes longer."""
  while _started:
    _started.pop().wait()


if __name__ == '__main__':
  from jaxemb.kernels.cpu import linking
  from jaxemb.text import tokenize

  linking.hurry()
  tokenize.compile()
  for path in map(pathlib.Path, sys.argv[1:]):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
  linking.leave()
