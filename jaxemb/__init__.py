"""Trains embedding tables with JAX, from a laptop to clusters.

`jaxemb.load(path)` returns trained vectors as `jaxemb.Embeddings`. Importing
this package alone does not import jax.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from jaxemb.embeddings import Embeddings, load

__version__ = '0.1.0'
__all__ = ['Embeddings', 'load']


def __getattr__(name: str) -> object:
  if name not in __all__:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  from jaxemb import embeddings

  return getattr(embeddings, name)


def __dir__() -> list[str]:
  return sorted([*globals(), *__all__])
