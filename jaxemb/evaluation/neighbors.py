"""Nearest rows to sums of words and vectors, as `most_similar` ranks them."""

import functools
import numbers
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.evaluation import geometry, multivectors, neighbor_index


def as_list(items: Any) -> list:
  """Returns a list of a single item or of several, perhaps with weights.

  Raises a `ValueError` for two numbers, of which the second might be a weight.
  """
  is_weighted = (
    isinstance(items, tuple)
    and len(items) == 2
    and isinstance(items[1], numbers.Real)
    and not isinstance(items[0], tuple)
  )
  if is_weighted and isinstance(items[0], numbers.Real):
    raise ValueError(
      f'{items} may be two words, [{items[0]}, {items[1]}], or one with its '
      f'weight, [({items[0]}, {items[1]})]; give one of these lists'
    )
  is_vector = (
    isinstance(items, np.ndarray)
    and items.ndim == 1
    and items.dtype.kind == 'f'
  )
  if isinstance(items, (str, bytes, numbers.Real)) or is_weighted or is_vector:
    return [items]
  return [] if items is None else list(items)


def weighted(positive: object, negative: object) -> list[tuple[Any, float]]:
  """Returns items with their weights, by default 1 and -1.

  Raises a `ValueError` if there are none.
  """
  items = [
    x if isinstance(x, tuple) else (x, weight)
    for side, weight in ((positive, 1.0), (negative, -1.0))
    for x in as_list(side)
  ]
  if not items:
    raise ValueError('give at least one word or vector')
  return items


def sense_of(
  items: list[tuple[Any, float]],
  sense: int,
  senses: Callable[[str], list[tuple[str, float]]],
) -> str:
  """Returns the name of the row of a sense of the only item, a word.

  `senses` returns names and priors of those of a word. Raises a `ValueError`
  for other items, and a `UserError` if the word has no such sense.
  """
  word, weight = items[0]
  if len(items) != 1 or weight != 1 or not isinstance(word, str):
    raise ValueError('sense selects a sense of a single word')
  names = [name for name, _ in senses(word)]
  if not 0 <= sense < len(names):
    raise errors.UserError(f'{word!r} has {len(names)} senses, from 0 up')
  return names[sense]


def direction(
  items: Iterable[tuple[Any, float]], vector_of: Callable[[Any], np.ndarray]
) -> np.ndarray:
  """Returns the direction of the weighted sum of items, [dim] float32.

  Raises a `UserError` if the sum is zero.
  """
  target = np.asarray(sum(weight * vector_of(item) for item, weight in items))
  if not np.any(target):
    words = ', '.join(str(x) for x, _ in items if isinstance(x, str))
    raise errors.UserError(
      f'the sum of {words or "the vectors"} is a vector of zeros, which has no '
      'neighbors; give other words, or train longer'
    )
  return geometry.unit_vector(target)


def checked(vector: np.ndarray, dim: int) -> np.ndarray:
  """Returns a vector; raises a `UserError` unless it has finite numbers."""
  if vector.shape != (dim,) or not np.isfinite(vector).all():
    raise errors.UserError(
      f'a vector of shape {vector.shape} was given; give one of {dim} finite '
      'numbers'
    )
  return vector


def num_rows(
  num_words: int | None, senses: multivectors.MultiVectors | None
) -> int | None:
  """Returns how many rows the first words have; None = all."""
  if num_words is None or senses is None:
    return num_words
  return int(senses.starts[: num_words + 1][-1])


def cosmul(
  positive: Iterable[np.ndarray], negative: Iterable[np.ndarray]
) -> np.ndarray:
  """Returns scores by products and quotients of cosines, each [rows].

  They are 3CosMul's (Levy and Goldberg 2014, equation 4).
  """

  def product(side):
    factors = ((1 + x) / 2 for x in side)
    return functools.reduce(np.multiply, factors, np.float32(1))

  return product(positive) / (product(negative) + np.float32(1e-6))


def nearest(
  scores: np.ndarray,
  norms: np.ndarray,
  start: int = 0,
  **limits: Any,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns rows from `start` on by falling score, and their scores.

  `scores` are those of the first rows; `limits` are arguments of
  `geometry.nearest`.
  """
  # A word that was never trained has no neighbors.
  known = np.where(norms[: len(scores)] > 0, scores, -np.inf)
  known[:start] = -np.inf
  rows = geometry.nearest(known, **limits)
  return rows, scores[rows]


def by_index(
  index: neighbor_index.Index,
  vectors: Any,
  target: np.ndarray,
  num: int,
  excluded: Collection[int],
  senses: multivectors.MultiVectors | None = None,
  min_prior: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
  """Returns rows that an index finds near a unit target, and their cosines.

  Raises a `UserError` for an index of other vectors.
  """
  index.check(vectors)
  return index.nearest(
    target,
    num=num,
    excluded=excluded,
    senses=senses,
    min_prior=min_prior,
  )
