"""Trains embedding tables with JAX, from a laptop to clusters.

`jaxemb.train(sentences_or_path)` trains and `jaxemb.load(path)` loads vectors;
both return `jaxemb.Embeddings`. Importing the package does not import JAX.
"""

import os
import signal
import sys
from typing import TYPE_CHECKING

from jaxemb.api import load, load_phrases, train

if TYPE_CHECKING:
  from jaxemb.embeddings import Embeddings

__version__ = '0.1.0'
__all__ = ['Embeddings', 'load', 'load_phrases', 'train']

# Ctrl-C while `python -m jaxemb.COMMAND` is imported, which takes a second,
# ends it by that signal and without a traceback. Then `runtime.process` does.
if sys.argv[:1] == ['-m'] and 'jaxemb.' in ' '.join(sys.orig_argv[:4]):
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _private_cache() -> str:
  """A temporary folder that no other user can write to.

  numba unpickles, and so executes, what it finds in its cache.
  """
  import contextlib  # imported here to keep `import jaxemb` fast
  import pathlib
  import stat
  import tempfile

  user = getattr(os, 'getuid', int)()  # Windows has none
  folder = pathlib.Path(tempfile.gettempdir(), f'jaxemb-numba-{user}')
  with contextlib.suppress(FileExistsError):
    folder.mkdir(0o700)
  status = folder.lstat()
  is_private = status.st_uid == user and not status.st_mode & 0o022
  if stat.S_ISDIR(status.st_mode) and is_private:
    return str(folder)
  return tempfile.mkdtemp(prefix='jaxemb-numba-')


# numba caches compiled code next to the sources or in the home folder, and
# fails if it can write to neither (as in some containers).
_homes = (os.path.dirname(__file__), os.path.expanduser('~'))
if 'NUMBA_CACHE_DIR' not in os.environ:
  if not any(os.access(folder, os.W_OK) for folder in _homes):
    os.environ['NUMBA_CACHE_DIR'] = _private_cache()


def __getattr__(name: str) -> object:
  if name != 'Embeddings':
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  from jaxemb import embeddings

  return embeddings.Embeddings


def __dir__() -> list[str]:
  return sorted([*globals(), *__all__])
