"""Finds the columns of a log that are its label, categories and numbers.

Published forms have known columns; of others `data.columns` says it, or the
label is known by its name and what the rest is by the first rows.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.io import columns as columns_lib
from jaxemb.io import roles, tables

_ROLES = (
  roles.Role(
    'label', ('label', 'click', 'clicked', 'target', 'y'), is_required=True
  ),
  roles.Role('category', takes_many=True),
  roles.Role('number', takes_many=True),
  roles.Role('list', takes_many=True),
)
_MIN_INDEX = 20  # rows by which row numbers are recognised
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


def form_of_others(form: str) -> str:
  """Returns the form of files beside those of a form; '' = it tells itself."""
  return '' if form in tables.WITH_NAMES else form


def reader(
  path: str, form: str = '', declared: str = '', **options: Any
) -> tables.Reader:
  """Returns the reader of a log, which may be of a known form.

  `declared` is `config.data.columns`. A model's `needed` columns tell a header,
  too.
  """
  known = set(options.get('needed') or ())

  def has_header(rows):
    names = rows[0]
    return (
      bool(known.intersection(names))
      or roles.is_header(_ROLES, rows)
      or any(
        x.rpartition(':')[2].strip() in names and not tables.is_number(x)
        for x in declared.split(',')
        if ':' in x
      )
      or len(rows) == 1
    )

  return tables.Reader(
    path, form, known_forms=KNOWN_FORMS, has_header=has_header, **options
  )


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
  settings: Mapping[str, Any], reader: tables.Reader, head: Any
) -> tuple[Schema, list[str]]:
  """Returns the schema of a log, and columns that are left out, and why.

  `settings` are those of `config.data`, `head` a `pyarrow.Table` of a reader's
  first rows. Raises a `UserError` for names that are not there, and for columns
  that may be read in two ways.
  """
  path, declared, form = settings['path'], settings['columns'], reader.form
  names = head.column_names
  chosen = roles.assign(
    path,
    _ROLES,
    names=names,
    declared=declared,
    has_header=_has_names(names),
  )
  chosen = roles.require(path, _ROLES, chosen)
  by_role = {
    role: tuple(names[i] for i in x) for role, x in chosen.by_role.items()
  }
  (label,) = by_role.pop('label')
  left_out = []
  if form == 'criteo' and not by_role:
    by_role = {'category': _CRITEO_CATEGORIES, 'number': _CRITEO_NUMBERS}
  elif not by_role:
    unused = {names[i] for i in chosen.unused}
    by_role, left_out = _guess(
      head.select([x for x in names if x != label and x not in unused]),
      form,
      settings['decimal'],
    )
  for role, columns in by_role.items():
    for name in columns:
      _check(head[name], name, role)
  schema = Schema(
    label=label,
    categories=tuple(by_role.get('category', ())),
    numbers=tuple(by_role.get('number', ())),
    lists=tuple(by_role.get('list', ())),
  )
  return schema, left_out


def _check(column, name, role):
  """Refuses a column for a role that it cannot have."""
  import pyarrow as pa

  kind = column.type
  if columns_lib.is_nested(kind) or (
    columns_lib.is_list(kind) and role != 'list'
  ):
    raise errors.UserError(
      f'column {name} is of type {kind}, which cannot be a {role}; leave it '
      'out of config.data.columns'
    )
  if role == 'list' and columns_lib.is_list(kind):
    if pa.types.is_floating(kind.value_type) and not _is_whole(column):
      raise errors.UserError(
        f'column {name} has lists of numbers with fractions, which are no '
        'categories; leave it out of config.data.columns'
      )


def _is_whole(column):
  """Whether all numbers in lists are whole."""
  values = columns_lib.plain(columns_lib.plain(column).flatten())
  values = columns_lib.numbers(values)
  return bool(np.all(np.isnan(values) | (values == np.floor(values))))


def _guess(head, form, decimal):
  """Returns columns by role, by the first rows, and others with a reason."""
  import pyarrow as pa

  by_role: dict[str, list[str]] = {'category': [], 'number': [], 'list': []}
  left_out = []
  is_guessed = form not in ('avazu', 'libsvm', 'libffm')
  for name in head.column_names:
    column, kind = head[name], head[name].type
    if columns_lib.is_nested(kind):
      left_out.append(f'{name} ({kind})')
    elif columns_lib.is_list(kind):
      if pa.types.is_floating(kind.value_type) and not _is_whole(column):
        left_out.append(f'{name} (lists of numbers)')
      else:
        by_role['list'].append(name)
    elif not is_guessed:
      role = 'number' if pa.types.is_floating(kind) else 'category'
      by_role[role].append(name)
    elif tables.is_index(name) or _is_index(column):
      left_out.append(f'{name} (row numbers)')
    else:
      is_numeric = _is_numeric(name, column, decimal)
      role = 'number' if is_numeric else 'category'
      by_role[role].append(name)
  return by_role, left_out


def _is_index(column):
  """Whether whole numbers rise by one from row to row."""
  if len(column) < _MIN_INDEX or column.null_count:
    return False
  try:
    numbers = columns_lib.numbers(column)
  except ValueError:
    return False
  return numbers[0] in (0, 1) and bool(np.all(np.diff(numbers) == 1))


def shown(reader: tables.Reader, head: Any, schema: Schema) -> roles.Input:
  """Returns how a reader's first rows are understood, for log and report."""
  names = head.column_names
  by_role = {
    'label': (schema.label,),
    'category': schema.categories,
    'number': schema.numbers,
    'list': schema.lists,
  }
  columns = roles.Columns(
    names=tuple(names),
    by_role={
      role: tuple(names.index(y) for y in x if y in names)
      for role, x in by_role.items()
      if x
    },
    has_header=_has_names(names),
  )
  row = [x[0].as_py() for x in head.columns]
  row = ['' if x is None else x for x in row]
  return roles.Input.of(reader.files, reader.form, columns, row)


def _has_names(names):
  """Whether columns have names, not numbers from 1 on."""
  return names[:1] != ['1']


def _is_numeric(name: str, column: Any, decimal: str) -> bool:
  """Whether there are only numbers, and they look like amounts, not ids.

  Fractions do, and whole numbers most of which occur once or twice.
  """
  import pyarrow as pa
  import pyarrow.compute as pc

  column = columns_lib.plain(column)
  kind = column.type
  is_text = columns_lib.is_text(kind)
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
    is_given = pc.invert(columns_lib.is_missing(values))
    values, counts = values.filter(is_given), counts[is_given.to_numpy(False)]
  try:
    numbers = columns_lib.numbers(values, decimal)
  except ValueError:
    if fitting := columns_lib.likely_decimals(values):
      raise errors.UserError(
        f'column {name} has numbers such as {values[0].as_py()!r}; give '
        f'--config.data.decimal={" or ".join(fitting)} if it is one of '
        f'numbers, or --config.data.columns=category:{name} and other columns'
      ) from None
    return False
  is_number = np.isfinite(numbers)
  if (numbers != np.floor(numbers))[is_number].any():
    return True
  seldom = counts[counts <= 2].sum() > counts.sum() / 2
  is_id = _ID_NAME.search(name)
  return bool(len(numbers) >= _MIN_DISTINCT and seldom and not is_id)
