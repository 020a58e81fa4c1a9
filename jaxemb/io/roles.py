"""What the columns of a table are for, declared, named by a header, or shown.

A kind of data declares its `Role`s. The setting `data.columns` assigns columns
to them; what it leaves open is matched against the known names of each role. No
column gets a role by its contents here: a kind that does so shows it.
"""

import dataclasses
import fnmatch
import itertools
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxemb import errors
from jaxemb.io import columns as columns_lib

# An entry of the setting, whose name may be in quotes.
_QUOTED = re.compile(r'\s*+([^,:"]*+:)?\s*"((?:[^"]|"")*)"([^,"]*)(?:,|$)')
_MINIMUM = re.compile(r'(.*?)(?:>=\s*(\S+))?', re.DOTALL)
# What names of columns end in, such as source_node.
_LAST_WORDS = frozenset(
  'id ids uuid guid name node entity key code type label address ip uri url '
  'index number'.split()
)
_SHOWN_COLUMNS, _SHOWN_CHARS = 12, 40


@dataclasses.dataclass(frozen=True)
class Role:
  """What a column may be for.

  `names` are known names in headers: groups of words, the first group that a
  header has wins, and two columns of one group are ambiguous. Case, quotes,
  `_`, `-`, spaces and the types of RecBole and Neo4j (`user_id:token`) do not
  matter.
  """

  name: str
  names: tuple[str, ...] = ()
  is_required: bool = False
  takes_many: bool = False  # columns
  takes_minimum: bool = False  # of values, as in `rating:stars>=4`

  def known(self) -> list[set[str]]:
    """Returns the names of each group as `simplified` spells them."""
    return [set(map(simplified, x.split())) for x in self.names]


class Columns(NamedTuple):
  """Which columns have a role."""

  names: tuple[str, ...]  # of all columns; numbers from 1 on without a header
  by_role: Mapping[str, tuple[int, ...]]  # from 0 on
  minimum: Mapping[str, float] = {}  # by role
  has_header: bool = True
  unused: tuple[int, ...] = ()  # those declared so, from 0 on

  def roles(self) -> list[str]:
    """Returns the role of each column, or '-'."""
    by_column = {i: role for role, x in self.by_role.items() for i in x}
    return [by_column.get(i, '-') for i in range(len(self.names))]

  # Hides tuple.index, which is of no use for fields.
  def index(self, role: str) -> int | None:  # type: ignore[override]
    """Returns the column of a role that takes one, or None."""
    return next(iter(self.by_role.get(role, ())), None)

  def named(self) -> dict[str, str]:
    """Returns names of columns by role, with minima, as they are shown."""
    shown = {}
    for role, columns in self.by_role.items():
      text = _some([self.names[i] for i in columns])
      if role in self.minimum:
        text += f' >= {self.minimum[role]:g}'
      shown[role] = text
    return shown


class Input(NamedTuple):
  """Files as they were understood, for log and report."""

  files: tuple[str, ...]
  form: str  # such as 'csv, header'
  columns: Mapping[str, str]  # by role
  first: Mapping[str, str]  # values of the first row, by role
  unused: tuple[str, ...] = ()  # names of columns

  @classmethod
  def of(
    cls,
    files: Sequence[pathlib.Path | str],
    form: str,
    columns: Columns,
    row: Sequence[Any],
  ) -> 'Input':
    """Makes it of the first row that has values, cells in order of columns."""
    roles = zip(columns.names, columns.roles(), strict=True)
    unused = [name for name, role in roles if role == '-']
    return cls(
      files=tuple(map(str, files)),
      form=form + (', header' if columns.has_header else ', no header'),
      columns=columns.named(),
      first={
        role: _some([str(row[i]) for i in x if i < len(row)])
        for role, x in columns.by_role.items()
      },
      unused=tuple(unused),
    )

  def values(self) -> dict[str, Any]:
    """Returns it as the report has it."""
    return self._asdict() | {'shown': self.line()}

  def line(self) -> str:
    """Returns it as a line of the log."""
    files = _some(self.files[:3], max_chars=200)
    files += f' and {len(self.files) - 3} more' * (len(self.files) > 3)
    parts = [f'{files} ({self.form}): {_pairs(self.columns)}']
    if self.unused:
      parts.append(f'not used: {_some(self.unused)}')
    parts.append(f'first row: {_pairs(self.first)}')
    return '; '.join(parts)


def _pairs(values):
  return ', '.join(f'{k}={v}' for k, v in values.items()) or 'nothing'


def _some(names: Sequence[str], max_chars: int = _SHOWN_CHARS) -> str:
  more = ['...'] * (len(names) > _SHOWN_COLUMNS)
  shown = [
    x if len(x) <= max_chars else f'{x[:max_chars]}...'
    for x in names[:_SHOWN_COLUMNS]
  ]
  return ' '.join([*shown, *more])


def simplified(name: str) -> str:
  """Returns the name of a column without what writers of headers differ in."""
  name = name.strip('\ufeff"\' \t\r').lower()
  name = re.sub(r'\([^()]*\)$', '', name)  # :START_ID(Person)
  name = re.sub(r'(?<=.):[\w\[\]-]*$', '', name)  # user_id:token, id:string[]
  return re.sub(r'[\W_]+', '', name) or name


def is_number(text: str) -> bool:
  """Whether `float` reads it."""
  try:
    float(text)
  except ValueError:
    return False
  return True


def whole_number(text: str) -> int | None:
  """Returns the number that digits write, None for other text.

  Also for more digits than a 64-bit integer has.
  """
  return int(text) if re.fullmatch('[0-9]{1,18}', text) else None


def words(name: str) -> list[str]:
  """Returns the words of a name, such as node and id of nodeId or NODE_ID."""
  found = re.findall(r'[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+', name)
  return [x.lower() for x in found]


def below(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
  """Returns the rows below a header, but for those that repeat it."""
  header = [x.lower() for x in rows[0]]
  return [x for x in rows if [y.lower() for y in x] != header]


def is_header(
  roles: Sequence[Role], rows: Sequence[Sequence[str]], declared: str = ''
) -> bool:
  """Whether the first of some rows is a header.

  It is if it has a name of `declared`, which is `data.columns`; numbers from 0
  on, as pandas calls columns, above text; known names of several roles, or of
  all that are required; several names such as film_id; or one above nothing but
  numbers. What stands for a missing value is neither a name nor a number.
  """
  first = [x.strip() for x in rows[0]]
  names = [simplified(x) for x in first]
  named = {x.partition(':')[2] for x in _entries(declared) if ':' in x}
  matches = filter(None, map(_MINIMUM.fullmatch, named))
  named = {simplified(x[1]) for x in matches} - {'', '-'}
  if any(x in named and not is_number(x) for x in names):
    return True
  rest = below(rows)
  columns = [
    [x[i] for x in rest if len(x) > i and not _is_missing(x[i])]
    for i in range(len(first))
  ]
  is_text = [bool(x) and not any(map(is_number, x)) for x in columns]
  is_index = first[0] == '' and len(first) > 1
  if first[is_index:] == [*map(str, range(len(first) - is_index))]:
    return is_index or any(is_text)
  values = {x.strip() for row in rest for x in row}
  new = {x for x, cell in zip(names, first, strict=True) if cell not in values}
  known = {x.name for x in roles if any(y & new for y in x.known())}
  required = {x.name for x in roles if x.is_required}
  is_alone = values.isdisjoint(x for x in first if x)
  if len(known) > 1 or (known and len(first) == 1):
    return True
  ends = [words(x)[-1:] for x in first if len(words(x)) > 1]
  is_plain = sum(x[0] in _LAST_WORDS for x in ends) > 1
  if is_alone and (is_plain or (known and required <= known)):
    return True
  numbers = [x for x in first if is_number(x) and not _is_missing(x)]
  may_be_names = numbers in ([], ['0']) or (
    len(numbers) > 1
    and all(whole_number(x) is not None for x in numbers)
    and all(int(y) == int(x) + 1 for x, y in itertools.pairwise(numbers))
  )
  return may_be_names and any(
    re.search(r'[^\W\d_]', x)
    and not (is_number(x) or _is_missing(x))
    and bool(column)
    and all(map(is_number, column))
    for x, column in zip(first, columns, strict=True)
  )


def _is_missing(text):
  return text.strip().lower() in columns_lib.MISSING


def assign(
  where: str,
  roles: Sequence[Role],
  names: Sequence[str],
  declared: str = '',
  has_header: bool = True,
) -> Columns:
  """Returns the columns of a table's roles, by the setting and by its header.

  `names` are those of all columns, or any texts where there is no header;
  `declared` is `data.columns`. Required roles may be missing: see `require`.
  Raises a `UserError` for a setting that does not fit, or names that do.
  """
  header = [x.strip('\ufeff') for x in names]
  if not has_header:
    header = [str(i + 1) for i in range(len(names))]
  columns, minimum = _declared(
    where, roles, header, declared=declared, has_header=has_header
  )
  settled = {role for role, x in columns.items() if x is not None}
  columns = {role: x or [] for role, x in columns.items()}
  unused = tuple(sorted({*columns.pop('-')}))
  for role in roles:
    if (num := len(columns[role.name])) > 1 and not role.takes_many:
      raise _refusal(
        declared, f'has {num} columns for {role.name}, which takes one'
      )
  used = [x for y in columns.values() for x in y]
  if len({*used}) < len(used):
    twice = next(i for i in used if used.count(i) > 1)
    raise _refusal(declared, f'names column {twice + 1} twice')
  if has_header:
    _match(
      where,
      [x for x in roles if x.name not in settled],
      header,
      columns=columns,
      used={*used, *unused},
    )
  return Columns(
    names=tuple(header),
    by_role={k: tuple(x) for k, x in columns.items() if x},
    minimum=minimum,
    has_header=has_header,
    unused=unused,
  )


def named(
  names: Sequence[str],
  by_role: Mapping[str, Sequence[str]],
  has_header: bool = True,
) -> Columns:
  """Returns the columns of roles whose names are known; others have none."""
  index = {name: i for i, name in enumerate(names)}
  columns = {
    role: tuple(index[x] for x in chosen if x in index)
    for role, chosen in by_role.items()
    if chosen
  }
  return Columns(tuple(names), columns, has_header=has_header)


def _refusal(declared, problem):
  return errors.UserError(f'config.data.columns={declared} {problem}')


def _declared(where, roles, header, declared, has_header):
  """Columns by role, None where the setting leaves a role open; and minima."""
  entries = _entries(declared)
  is_positional = bool(entries) and not any(':' in x for x in entries)
  columns = dict.fromkeys(['-', *(x.name for x in roles)])
  if is_positional:  # says all
    columns = {x: [] for x in columns}
    if len(entries) > len(header):
      raise _refusal(
        declared,
        f'has {len(entries)} columns, and {where} has {len(header)}: '
        f'{_some(header)}',
      )
  minimum, takes_minimum = {}, {x.name for x in roles if x.takes_minimum}
  for i, entry in enumerate(entries):
    role, colon, name = entry.partition(':')
    name, least = _MINIMUM.fullmatch(role if is_positional else name).groups()
    role, name = (name if is_positional else role).strip(), name.strip()
    if role not in columns or bool(colon) == is_positional:
      raise _refusal(
        declared,
        f'names {entry!r}; give role:column, or roles in order of columns: '
        f'{", ".join(x.name for x in roles)}, or - for others',
      )
    if least is not None:
      if role not in takes_minimum or not (
        is_number(least) and math.isfinite(float(least))
      ):
        raise _refusal(
          declared,
          f'has >={least}, which is no minimum of {role}; a rating has one, '
          'such as rating:stars>=4',
        )
      minimum[role] = float(least)
    chosen = [i]
    if not is_positional:
      chosen = _chosen(where, header, name, has_header=has_header)
    columns[role] = [*(columns[role] or ()), *chosen]
  return columns, minimum


def require(where: str, roles: Sequence[Role], columns: Columns) -> Columns:
  """Returns the columns; raises a `UserError` if a required role has none."""
  missing = [
    x.name for x in roles if x.is_required and x.name not in columns.by_role
  ]
  if missing:
    setting = ','.join(f'{x}:COLUMN' for x in missing)
    what = 'whose name is known' if columns.has_header else 'declared'
    raise errors.UserError(
      f'{where} has no column {what} as {" or ".join(missing)}; give '
      f'--config.data.columns={setting}, of {_some(columns.names)}'
    )
  return columns


def _entries(declared: str) -> list[str]:
  """Splits a setting at commas, but for those in quotes."""
  entries = []
  while declared:
    if quoted := _QUOTED.match(declared):
      role, name, minimum = quoted.groups(default='')
      entry, declared = role + name, declared[quoted.end() :]
      entry = entry.replace('""', '"') + minimum
    else:
      entry, _, declared = declared.partition(',')
    entries += [entry.strip()] * bool(entry.strip())
  return entries


def _chosen(where, header, column, has_header):
  """Numbers of the columns that an entry means: name, glob or number."""
  if column == '-':
    return []
  if column in header:
    return [header.index(column)]
  if has_header:
    name = simplified(column)
    alike = [i for i, x in enumerate(header) if simplified(x) == name]
    matched = [
      i for i, x in enumerate(header) if fnmatch.fnmatchcase(x, column)
    ]
    if len(alike) == 1 or (matched and not alike):
      return alike or matched
  if match := re.fullmatch(r'(\d+)(?:-(\d+))?', column):
    first, last = int(match[1]), int(match[2] or match[1])
    if 0 < first <= last <= len(header):
      return [*range(first - 1, last)]
  what = 'names' if has_header else f'{len(header)} columns and no header'
  raise errors.UserError(
    f'config.data.columns names the column {column!r}, and {where} has '
    f'{what}: {_some(header)}'
  )


def _match(where, roles, header, columns, used):
  """Gives columns that are not `used` to roles, by known names."""
  names = [simplified(x) for x in header]
  for role in roles:
    for group in role.known():
      known = [i for i, x in enumerate(names) if x in group and i not in used]
      if len(known) > 1 and not role.takes_many:
        shown = [header[i] for i in known]
        raise errors.UserError(
          f'{where} has several columns that may be the {role.name}, '
          f'{" and ".join(shown)}; give '
          f'--config.data.columns={role.name}:{shown[0]}'
        )
      if known:
        columns[role.name] = known
        used.update(known)
        break
