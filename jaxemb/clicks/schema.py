"""Finds the columns of a log that are its label, categories and numbers.

Published forms have known columns. Of other logs `data.columns` names them, or
the label is known by its name and the role of the rest by the first rows.
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
  roles.Role('label', ('label click clicked target y',), is_required=True),
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
_AVAZU = (
  'id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,'
  'app_domain,app_category,device_id,device_ip,device_model,device_type,'
  'device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21'
).split(',')


def _with_times(table):
  """Makes columns of time of Avazu's hour, YYMMDDHH, as in the benchmark.

  Removes its id, which is of no use.
  """
  import pyarrow as pa
  import pyarrow.compute as pc

  times = pc.strptime(table['hour'], '%y%m%d%H', 's')
  day = pc.day_of_week(times)
  table = table.drop_columns(['id', 'hour'])
  for name, column in (
    ('hour', pc.hour(times)),
    ('weekday', day),
    ('weekend', pc.greater_equal(day, 5)),
  ):
    column = pc.cast(pc.cast(column, pa.int64()), pa.string())
    table = table.append_column(name, column)
  return table


# Published logs. Criteo's has no header; Avazu's has one, or is a piece of it.
_KNOWN_FORMS = {
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
  """Returns the form of files beside those of a form; '' = to be recognised."""
  return '' if form in tables.WITH_NAMES else form


def reader(
  path: str, form: str = '', declared: str = '', **options: Any
) -> tables.Reader:
  """Returns the reader of a log, which may be of a known form.

  `declared` is `config.data.columns`; its names, and a model's `needed`
  columns, mark a first row as a header.
  """
  names = [x.replace('"', '""') for x in options.get('needed') or ()]
  needed = [f'-:"{x}"' for x in names]
  declared = ','.join([declared, *needed])

  def has_header(rows):
    return len(rows) == 1 or roles.is_header(_ROLES, rows, declared)

  return tables.Reader(
    path, form, known_forms=_KNOWN_FORMS, has_header=has_header, **options
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
    """All columns that are read, the label first."""
    return (self.label, *self.numbers, *self.categories, *self.lists)


def make(
  settings: Mapping[str, Any], reader: tables.Reader, head: Any
) -> tuple[Schema, list[str]]:
  """Returns the schema of a log, and columns that are left out, with reasons.

  `settings` are those of `config.data`, `head` a `pyarrow.Table` of a reader's
  first rows. Raises a `UserError` for unknown names, and for columns that may
  be read in two ways.
  """
  path, names = settings['path'], head.column_names
  chosen = roles.assign(
    path,
    _ROLES,
    names=names,
    declared=settings['columns'],
    has_header=_has_names(names),
  )
  chosen = roles.require(path, _ROLES, chosen)
  by_role = {k: [names[i] for i in x] for k, x in chosen.by_role.items()}
  (label,) = by_role.pop('label')
  left_out = []
  for role, columns in by_role.items():
    for name in columns:
      _check(head[name], name, role)
  if not by_role and reader.form == 'criteo':
    by_role = {'category': [*_CRITEO_CATEGORIES], 'number': [*_CRITEO_NUMBERS]}
  elif not by_role:
    unused = {label, *(names[i] for i in chosen.unused)}
    by_role, left_out = _guess(
      head.select([x for x in names if x not in unused]),
      reader.form,
      settings['decimal'],
    )
  schema = Schema(
    label=label,
    categories=tuple(by_role.get('category', ())),
    numbers=tuple(by_role.get('number', ())),
    lists=tuple(by_role.get('list', ())),
  )
  return schema, left_out


def shown(reader: tables.Reader, head: Any, schema: Schema) -> roles.Input:
  """Returns how a reader's first rows are understood, for log and report."""
  by_role = {
    'label': (schema.label,),
    'category': schema.categories,
    'number': schema.numbers,
    'list': schema.lists,
  }
  names = head.column_names
  columns = roles.named(names, by_role, has_header=_has_names(names))
  row = [_shown(x[0]) for x in head.columns]
  return roles.Input.of(reader.files, reader.form, columns, row)


def _shown(value):
  try:
    return '' if value.as_py() is None else value.as_py()
  except (ValueError, OverflowError):  # a time that Python has not
    return '?'


def _has_names(names):
  """Whether columns have names, not numbers from 1 on."""
  return names[:1] != ['1']


def _problem(column):
  """Returns what keeps a column from being categories or numbers, or ''."""
  import pyarrow as pa

  kind = column.type
  if columns_lib.is_nested(kind):
    return str(kind)
  if columns_lib.is_list(kind) and pa.types.is_floating(kind.value_type):
    values = columns_lib.plain(columns_lib.plain(column).flatten())
    values = columns_lib.numbers(values)
    if not np.all(np.isnan(values) | (values == np.floor(values))):
      return 'lists of fractions'
  return ''


def _check(column, name, role):
  """Refuses a column for a role that it cannot have."""
  problem = _problem(column)
  if columns_lib.is_list(column.type) and role != 'list':
    problem = problem or 'lists'
  if problem:
    raise errors.UserError(
      f'column {name} has values of type {column.type} ({problem}), which '
      f'cannot be a {role}; leave it out of config.data.columns'
    )


def _guess(head, form, decimal):
  """Returns columns by role, by the first rows, and others with a reason."""
  import pyarrow as pa

  by_role: dict[str, list[str]] = {'category': [], 'number': [], 'list': []}
  left_out = []
  for name in head.column_names:
    column, kind = head[name], head[name].type
    if problem := _problem(column):
      left_out.append(f'{name} ({problem})')
    elif columns_lib.is_list(kind):
      by_role['list'].append(name)
    elif form in ('avazu', 'libsvm', 'libffm'):
      role = 'number' if pa.types.is_floating(kind) else 'category'
      by_role[role].append(name)
    elif tables.is_index(name) or _is_index(column):
      left_out.append(f'{name} (row numbers)')
    else:
      is_numeric = _is_numeric(name, column, decimal)
      by_role['number' if is_numeric else 'category'].append(name)
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


def _is_numeric(name, column, decimal):
  """Whether there are only numbers, and they look like amounts, not ids.

  Fractions do, and whole numbers most of which occur once or twice.
  """
  import pyarrow as pa
  import pyarrow.compute as pc

  column = columns_lib.plain(column)
  kind = column.type
  is_text = columns_lib.is_text(kind)
  is_number = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal
  if not is_text and not any(x(kind) for x in is_number):
    return False
  counted = pc.value_counts(column.drop_null())
  values, counts = counted.field('values'), counted.field('counts').to_numpy()
  if is_text:
    is_value = pc.invert(columns_lib.is_missing(values))
    values, counts = values.filter(is_value), counts[is_value.to_numpy(False)]
  try:
    numbers = columns_lib.numbers(values, decimal)
  except ValueError:
    if not is_text:  # integers that no float is, as ids are
      return False
    if fitting := columns_lib.likely_decimals(values):
      raise errors.UserError(
        f'column {name} has numbers such as {values[0].as_py()!r}; give '
        f'--config.data.decimal={" or ".join(fitting)} if it is one of '
        f'numbers, or --config.data.columns=category:{name} and other columns'
      ) from None
    if odd := columns_lib.odd_number(values, decimal):
      raise errors.UserError(
        f'column {name} has numbers, but for some such as {odd!r}; correct or '
        f'empty these, or give --config.data.columns=category:{name} and other '
        'columns'
      ) from None
    return False
  is_fraction = np.isfinite(numbers) & (numbers != np.floor(numbers))
  is_rare = counts[counts <= 2].sum() > counts.sum() / 2
  return bool(
    is_fraction.any()
    or (len(numbers) >= _MIN_DISTINCT and is_rare and not _ID_NAME.search(name))
  )
