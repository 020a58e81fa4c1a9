"""Finds the columns of a log that are its label, categories and numbers.

Published forms have known columns; in others the label is named and the rest is
guessed by the first rows.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.io import tables

_LABELS = 'label', 'click', 'clicked', 'target', 'y'
# What stands for a number that is missing, in lower case.
MISSING = '', '?', 'na', 'n/a', 'nan', 'none', 'null', '\\n'
# Columns of whole numbers with fewer different values are read as categories.
_MIN_DISTINCT = 200
# So are those with such a name, however many.
_ID_NAME = re.compile(
  r'(?i:(^|[\W_])(ids?|uid|ip|key|code|zip|hash|user|item|no|nr)$)|[a-z]I[dD]$'
)

_CRITEO_NUMBERS = tuple(f'I{i}' for i in range(1, 14))
_CRITEO_CATEGORIES = tuple(f'C{i}' for i in range(1, 27))
# What is made of Avazu's hour, YYMMDDHH, as in the benchmark; its id is of no
# use.
TIMES = 'hour', 'weekday', 'weekend'

_AVAZU = (
  'id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,'
  'app_domain,app_category,device_id,device_ip,device_model,device_type,'
  'device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21'
).split(',')


def _with_times(table: Any) -> Any:
  """Replaces Avazu's hour by `TIMES`, and removes its id."""
  import pyarrow as pa
  import pyarrow.compute as pc

  if 'hour' not in table.column_names:
    return table
  times = pc.strptime(table['hour'], '%y%m%d%H', 's')
  day = pc.day_of_week(times)
  new = pc.hour(times), day, pc.greater_equal(day, 5)
  table = table.drop_columns(
    [x for x in ('id', 'hour') if x in table.column_names]
  )
  for name, column in zip(TIMES, new, strict=True):
    column = pc.cast(pc.cast(column, pa.int64()), pa.string())
    table = table.append_column(name, column)
  return table


# Published logs. Criteo's has no header; Avazu's has one, or is a piece of it.
KNOWN_FORMS = {
  'criteo': tables.KnownForm(
    columns=('label', *_CRITEO_NUMBERS, *_CRITEO_CATEGORIES),
    delimiter='\t',
    quote='',
    matches=lambda line: (
      line.count('\t') == 39 and not line.startswith('label')
    ),
  ),
  'avazu': tables.KnownForm(
    columns=_AVAZU,
    delimiter=',',
    quote='"',
    matches=lambda line: line.startswith('id,click,hour,C1'),
    tidy=_with_times,
  ),
}


def reader(path: str, form: str = '', **options: Any) -> tables.Reader:
  """Returns the reader of a log, which may be of a known form."""
  return tables.Reader(path, form, known_forms=KNOWN_FORMS, **options)


@dataclasses.dataclass(frozen=True)
class Schema:
  """Names of columns, in the order of fields."""

  label: str
  categories: tuple[str, ...]
  numbers: tuple[str, ...] = ()
  lists: tuple[str, ...] = ()  # of several categories

  @property
  def columns(self) -> tuple[str, ...]:
    """All that are read, the label first."""
    return (self.label, *self.numbers, *self.categories, *self.lists)


def make(
  settings: Mapping[str, Any], form: str, head: Any
) -> tuple[Schema, list[str]]:
  """Returns the schema of a table's first rows, and lines for the log.

  `settings` are those of `config.data`, `head` a `pyarrow.Table` of strings or
  numbers. Raises a `UserError` for names that are not there.
  """
  import pyarrow as pa

  names = tuple(head.column_names)
  chosen = {
    k: tuple(x.strip() for x in settings[k].split(',') if x.strip())
    for k in ('categorical', 'numeric', 'multi')
  }
  label = settings['label'] or _guess_label(names)
  for name in (label, *itertools.chain(*chosen.values())):
    if name not in names:
      raise errors.UserError(
        f'{settings["path"]} has no column {name}; it has {_some(names)}'
      )
  for kind, columns in chosen.items():
    if label in columns:
      raise errors.UserError(
        f'config.data.{kind} names {label}, which is the label; leave it out'
      )
  if any(chosen.values()):
    return Schema(label, *chosen.values()), []
  if form == 'criteo':
    return Schema(label, _CRITEO_CATEGORIES, _CRITEO_NUMBERS), []
  is_guessed = form not in ('avazu', 'libsvm', 'libffm')
  categories, numbers, lists = [], [], []
  for name in names:
    column = head[name]
    if name == label:
      continue
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
      lists.append(name)
    elif (
      _is_numeric(name, column)
      if is_guessed
      else pa.types.is_floating(column.type)
    ):
      numbers.append(name)
    else:
      categories.append(name)
  schema = Schema(
    label=label,
    categories=tuple(categories),
    numbers=tuple(numbers),
    lists=tuple(lists),
  )
  line = (
    f'label {label}; categories: {_some(categories)}; numbers: {_some(numbers)}'
    + (f'; lists: {_some(lists)}' if lists else '')
    + ' (guessed; name others by --config.data.categorical and .numeric)'
  )
  return schema, [line] if is_guessed else []


def _guess_label(names):
  known = {x.lower(): x for x in names}
  for name in _LABELS:
    if name in known:
      return known[name]
  raise errors.UserError(
    'config.data.label is not given, and no column is called '
    f'{", ".join(_LABELS)}; name one of {_some(names)}'
  )


def _some(names: Sequence[str]) -> str:
  more = ' ...' if len(names) > 30 else ''
  return (', '.join(names[:30]) or 'none') + more


def _is_numeric(name: str, column: Any) -> bool:
  """Whether there are only numbers, and they look like amounts, not ids.

  Fractions do, and whole numbers most of which occur once or twice.
  """
  import pyarrow as pa
  import pyarrow.compute as pc

  kind = column.type
  is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
  if not (
    is_text
    or pa.types.is_integer(kind)
    or pa.types.is_floating(kind)
    or pa.types.is_decimal(kind)
  ):
    return False
  counted = pc.value_counts(column.drop_null())
  values, counts = counted.field('values'), counted.field('counts').to_numpy()
  if is_text:
    names = pc.utf8_lower(pc.utf8_trim_whitespace(values))
    is_given = pc.invert(pc.is_in(names, pa.array(MISSING, kind)))
    values, counts = values.filter(is_given), counts[is_given.to_numpy(False)]
  try:
    numbers = pc.cast(values, pa.float64())
  except pa.ArrowInvalid:
    return False
  numbers = numbers.to_numpy(zero_copy_only=False)
  is_number = np.isfinite(numbers)
  if (numbers != np.floor(numbers))[is_number].any():
    return True
  seldom = counts[counts <= 2].sum() > counts.sum() / 2
  is_id = _ID_NAME.search(name)
  return bool(len(numbers) >= _MIN_DISTINCT and seldom and not is_id)
