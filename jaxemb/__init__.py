"""Trains embedding tables with JAX, from a laptop to clusters.

`jaxemb.load(path)` returns trained vectors as `jaxemb.Embeddings`. Importing
this package alone does not import jax.
"""

import os
import pathlib
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from jaxemb.embeddings import Embeddings, load

__version__ = '0.1.0'
__all__ = ['Embeddings', 'load']

# numba keeps compiled loops beside the sources or in the home folder, and fails
# where it may write neither (a container's user, say).
_places = (pathlib.Path(__file__).parent, pathlib.Path(os.path.expanduser('~')))
if not any(os.access(place, os.W_OK) for place in _places):
  os.environ.setdefault(
    'NUMBA_CACHE_DIR', os.path.join(tempfile.gettempdir(), 'jaxemb-numba')
  )


def __getattr__(name: str) -> object:
  if name not in __all__:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  from jaxemb import embeddings

  return getattr(embeddings, name)


def __dir__() -> list[str]:
  return sorted([*globals(), *__all__])
