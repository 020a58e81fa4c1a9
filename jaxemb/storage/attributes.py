"""Values of words by name, such as tags or weights, beside their vectors.

Text is held as Python strings of any length; what has no value is zero.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.storage import atomic, export, word2vec_format

FILE = 'attributes.npz'
COUNT = 'count'  # the attribute of gensim's that `counts` are
_PREFIX = 'word_'  # of names, which arguments of NumPy's have as well


def counts(values: Any, num_words: int) -> np.ndarray:
  """Returns a copy of counts, [num_words] int64.

  Raises a `ValueError` for another number of them, or for what is no count.
  """
  array = np.asarray(values)
  if array.shape != (num_words,):
    raise ValueError(
      f'counts of shape {array.shape} do not fit {num_words} words'
    )
  result = np.array(array, np.int64)
  if (result != array).any():
    raise ValueError('counts must be whole numbers')
  _check_range(result)
  return result


def _check_range(counts: np.ndarray) -> None:
  """Raises a `ValueError` for counts that vocab.txt is not read with."""
  bad = counts[(counts < 0) | (counts > word2vec_format.MAX_COUNT)]
  if bad.size:
    raise ValueError(
      f'counts must be from 0 to {word2vec_format.MAX_COUNT:,}, and not '
      f'{bad[0]:,}'
    )


def values(name: str, array: Any, num_words: int) -> np.ndarray:
  """Returns a copy of the values of an attribute, [num_words].

  Raises a `ValueError` for another number of them.
  """
  result = np.array(array)
  if result.dtype.kind in 'US':  # which would cut longer text
    result = np.array(array, object)
  if result.shape != (num_words,):
    raise ValueError(
      f'values of {name!r} of shape {result.shape} do not fit {num_words} words'
    )
  return result


def checked(
  extras: Mapping[str, Any], known: Mapping[str, np.ndarray], num_words: int
) -> dict[str, np.ndarray]:
  """Returns values of attributes that are to be added, each [num_words].

  Raises a `UserError` for another number of them, and a `TypeError` for values
  of another type than the known ones.
  """
  result = {}
  for name, array in extras.items():
    try:
      result[name] = values(name, array, num_words)
      holding(known.get(name), name, result[name], num_words=0)
    except ValueError as error:
      raise errors.UserError(str(error)) from error
  return result


def holding(
  old: np.ndarray | None, name: str, new: np.ndarray, num_words: int
) -> np.ndarray:
  """Returns [num_words] values of an attribute that can hold new ones.

  They are zero if the attribute is new (None). Raises a `TypeError` for values
  of another type, or that are too large for it, and a `ValueError` for counts
  below 0 or too large for files.
  """
  if old is None:
    dtype = object if new.dtype.kind in 'US' else new.dtype
    old = np.zeros(num_words, np.int64 if name == COUNT else dtype)
  if old.dtype.kind in 'US':  # which an array has that was set as it is
    old = old.astype(object)
  if not np.can_cast(new.dtype, old.dtype, 'same_kind'):
    raise TypeError(f'{name!r} has values of {old.dtype}, not of {new.dtype}')
  if old.dtype.kind in 'iu' and (new.astype(old.dtype) != new).any():
    raise TypeError(f'{name!r} has values of {old.dtype}, which is too small')
  if name == COUNT:
    _check_range(new)
  return old


def chosen(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """Returns values of rows, [rows]; zero for negative ones."""
  result = np.zeros(len(rows), array.dtype)
  result[rows >= 0] = array[rows[rows >= 0]]
  return result


def encoded(attributes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Returns what `write` writes of attributes.

  Raises a `UserError` for Python objects, which no file holds.
  """
  arrays = {}
  for name, array in attributes.items():
    plain = _plain(array) if array.dtype == object else array
    if plain is None:
      raise errors.UserError(
        f'attribute {name!r} has Python objects, which are not saved; delete '
        f'attributes[{name!r}]'
      )
    arrays[name] = plain
  return arrays


def _plain(array: np.ndarray) -> np.ndarray | None:
  """Returns an array of text in place of one of objects, if they are text."""
  for kind in str, bytes:
    unset = [type(x) is int and x == 0 for x in array]
    text = [kind() if y else x for x, y in zip(array, unset, strict=True)]
    if all(isinstance(x, kind) for x in text):
      plain = np.array(text, kind)
      if plain.tolist() == text:  # NumPy cuts NUL at the end
        return plain
  return None


def write(folder: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
  """Writes attributes.npz, of `encoded` values, or removes an earlier one.

  Raises a `UserError` if it cannot be written.
  """
  if not arrays:
    atomic.remove(folder / FILE)
    return
  named: dict[str, Any] = {_PREFIX + k: x for k, x in arrays.items()}
  with atomic.write(folder / FILE) as file:
    np.savez(file, **named)


def read(folder: pathlib.Path, num_words: int) -> dict[str, np.ndarray]:
  """Returns what `write` has written.

  Raises a `UserError` if it is damaged, or of another number of words.
  """
  path = folder / FILE
  if not path.exists():
    return {}
  with export.reading(path):
    arrays = export.load_arrays(path)
    names = [(x, x.removeprefix(_PREFIX)) for x in arrays]
    return {name: values(name, arrays[x], num_words) for x, name in names}
