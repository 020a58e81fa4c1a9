"""Values of words by name, such as tags or weights, beside their vectors."""

import contextlib
import pathlib
from collections.abc import Mapping

import numpy as np

from jaxemb import errors
from jaxemb.storage import atomic, export

FILE = 'attributes.npz'
_PREFIX = 'word_'  # of names, which arguments of NumPy's have as well


def holding(
  values: np.ndarray | None, name: str, dtype: np.dtype, num_words: int
) -> np.ndarray:
  """Returns [num_words] values of an attribute that can hold those of a type.

  They are new, and zero, if the attribute is (None). Raises a `TypeError` if
  it has values of another type.
  """
  if values is None:
    kind = object if dtype.kind in 'US' else dtype  # strings of any length
    values = np.zeros(num_words, np.int64 if name == 'count' else kind)
  if not np.can_cast(dtype, values.dtype, 'same_kind'):
    raise TypeError(f'{name!r} has values of {values.dtype}, not of {dtype}')
  return values


def write(folder: pathlib.Path, attributes: Mapping[str, np.ndarray]) -> None:
  """Writes attributes.npz, of [vocab] values, or removes an earlier one.

  Raises a `UserError` for Python objects, which it cannot hold.
  """
  arrays = {}
  for name, values in attributes.items():
    if values.dtype == object and all(map(_is_text_or_unset, values)):
      values = np.array([x or '' for x in values], str)  # unset ones are 0
    if values.dtype == object:
      raise errors.UserError(
        f'attribute {name!r} has Python objects, which are not saved; delete '
        f'attributes[{name!r}]'
      )
    arrays[name] = values
  if not arrays:
    with contextlib.suppress(NotADirectoryError):  # whoever writes says so
      (folder / FILE).unlink(missing_ok=True)
    return
  with atomic.write(folder / FILE) as file:
    np.savez(file, **{_PREFIX + name: x for name, x in arrays.items()})


def _is_text_or_unset(value: object) -> bool:
  return isinstance(value, str) or (type(value) is int and value == 0)


def read(folder: pathlib.Path, num_words: int) -> dict[str, np.ndarray]:
  """Returns what `write` has written.

  Raises a `UserError` if it is damaged, or of another number of words.
  """
  path = folder / FILE
  if not path.exists():
    return {}
  with export.reading(path), np.load(path) as arrays:
    attributes = {}
    for name, values in arrays.items():
      name = name.removeprefix(_PREFIX)
      if len(values) != num_words:
        raise ValueError(f'{len(values)} {name} for the {num_words} words')
      is_text = values.dtype.kind == 'U'
      attributes[name] = values.astype(object) if is_text else values
    return attributes
