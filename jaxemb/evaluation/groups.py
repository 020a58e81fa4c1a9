"""Groups of vectors: their means, what is central in them, and distances."""

import collections
import math
from collections.abc import Callable, Sequence

import numpy as np

from jaxemb import errors
from jaxemb.evaluation import geometry, word_movers


def mean(
  rows: Sequence[np.ndarray], weights: np.ndarray, is_unit: bool = False
) -> np.ndarray:
  """Returns the mean of [n, dim] rows, perhaps at length 1, [dim] float32.

  It is divided by the sum of absolute weights, [n]. Raises a `ValueError` if
  there is none, and a `UserError` if one is not finite.
  """
  if not np.any(weights):
    raise ValueError('none of the words has a vector and a weight')
  result = weights @ np.stack(rows) / np.abs(weights).sum()
  if not np.isfinite(result).all():
    raise errors.UserError(
      'a vector or a weight of the mean is not finite; mend or remove it'
    )
  result = geometry.unit_vector(result) if is_unit else result
  return result.astype(np.float32)


def centralities(rows: Sequence[np.ndarray]) -> np.ndarray:
  """Returns products of [n, dim] rows with the direction of their mean, [n].

  Raises a `ValueError` if there is none.
  """
  if not len(rows):
    raise ValueError('none of the words has a vector')
  stacked = np.stack(rows)
  return stacked @ geometry.unit_vector(stacked.mean(axis=0))


def movers_distance(
  documents: Sequence[Sequence[str]], vector_of: Callable[[str], np.ndarray]
) -> float:
  """Returns Word Mover's distance of two lists of words.

  Infinite if one of them is empty.
  """
  if not all(documents):
    return math.inf
  counts = [collections.Counter(words) for words in documents]
  first, second = (
    np.array([vector_of(word) for word in words], np.float64)
    for words in counts
  )
  shares = [np.array([*x.values()]) / x.total() for x in counts]
  return word_movers.distance(first, second, (shares[0], shares[1]))
