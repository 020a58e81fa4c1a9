"""Tables and lists of interactions, as the items of each user.

A row is a user and an item, maybe with a rating, a count, a label and a time;
or a user and several items. What a column is for is declared by `data.columns`,
known by its name, or plain from the first rows; else it is refused.
"""

import contextlib
import functools
import itertools
import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.interactions import contents
from jaxemb.io import columns as columns_lib
from jaxemb.io import inputs, keys, roles, tables

ROLES = (
  roles.Role(
    'user',
    (
      'user_id user uid user_key reviewer_id customer_id customer visitor_id '
      'member_id account_id client_id profile_id playlist_id reader_id',
      'user_name login author',
      'session_id session order_id basket_id invoice_no',
    ),
    is_required=True,
  ),
  roles.Role(
    'item',
    (
      'parent_asin',
      'item_id item iid item_key asin isbn movie_id movie artist_id book_id '
      'product_id product business_id track_id song_id video_id anime_id '
      'news_id article_id app_id game_id poi_id location_id venue_id recipe_id '
      'joke_id post_id photo_id beer_id sku stock_code',
      'song artist book track title',
    ),
  ),
  roles.Role('items', ('items item_list item_ids item_id_list',)),
  roles.Role(
    'rating',
    (
      'rating ratings stars star_rating score overall book_rating preference '
      'grade mark points evaluation value vote',
    ),
    takes_minimum=True,
  ),
  roles.Role(
    'count',
    (
      'count counts weight plays play_count listen_count num_plays quantity '
      'frequency',
    ),
    takes_minimum=True,
  ),
  roles.Role(
    'label',
    ('label liked like click clicked is_click is_like is_liked',),
    takes_minimum=True,
  ),
  roles.Role(
    'time',
    (
      'unix_review_time',
      'timestamp unix_timestamp time_stamp time ts',
      'datetime date event_time created_at review_time',
    ),
  ),
)
_AMOUNTS = 'rating', 'count', 'label'
_FLAGS = {'true': '1', 'yes': '1', 'false': '0', 'no': '0'}
_SIGNS = {' ': 'white space', '\t': 'tabs', ',': 'commas', ';': 'semicolons'}
# An item that every one of so many users has tells nothing, and is none.
_MANY_USERS = 20
# What datasets of interactions have beside these.
_OTHERS = re.compile(
  r'(users?|items?|entit(y|ies)|relations?|orgs?|tags|movies|books|artists|links'
  r'|category|genome|bx-(books|users))([_-](list|friends|info|features|propert'
  r'|profiles|tree|tagged|scores|tags).*)?\.\w+|meta[._].*|allbut\.pl'
  r'|u\.(user|item|info|genre|occupation)|u[1-5ab]\.(base|test)'
  r'|.*\.(np[yz]|pkl|user|item|kg|link|net)',
  re.IGNORECASE,
)

ItemsOf = dict[str, list[str]]  # by user


class Read(NamedTuple):
  """What files have."""

  items_of: ItemsOf  # as often as they are listed, by time where it is known
  dropped: dict[str, int]
  inputs: list[roles.Input]

  def with_split(self, split: 'Read') -> 'Read':
    """The same, with what was read and dropped of held-out files."""
    names = dict.fromkeys((*self.dropped, *split.dropped))
    dropped = {
      x: self.dropped.get(x, 0) + split.dropped.get(x, 0) for x in names
    }
    return self._replace(dropped=dropped, inputs=self.inputs + split.inputs)


class _Plan(NamedTuple):
  """How a file is read."""

  file: pathlib.Path
  form: str
  columns: roles.Columns
  keys: Sequence[str]  # of columns in the reader's tables
  row: Sequence[str]  # the first one
  layout: tables.Layout
  list_sign: str = ''  # within a cell: ' ' or ','


def is_other(path: pathlib.Path) -> bool:
  """Whether a file of a folder is known to have no interactions."""
  return bool(_OTHERS.fullmatch(path.name))


def read(path: str, declared: str = '') -> Read:
  """Reads files of interactions; `declared` is `data.columns`.

  Raises a `UserError` for files that cannot be read, that may mean several
  things, or in which nobody has an item.
  """
  import pyarrow as pa

  files = inputs.together(path, 'file of interactions', is_other=is_other)
  _refuse_empty(path, files)
  plans = {x: _plan(x, declared) for x in files}
  _check_alike(plans)
  pairs = _Pairs()
  for file, plan in plans.items():
    pairs.read(file, plan)
  if not pairs.num:
    raise errors.UserError(
      f'{path} has no line `user item item ...` or row with a user and an item '
      'that counts; set config.data.path to files of such lines'
    )
  first = plans[files[0]]
  if not declared:
    pairs.check(path)
  row = columns_lib.names(pa.array(first.row, pa.large_string()))
  shown = roles.Input.of(
    files, _form(first), first.columns, row=row.strings().to_pylist()
  )
  return Read(pairs.items_of(), pairs.dropped, [shown])


def _refuse_empty(path, files):
  if not any(x.stat().st_size for x in files):
    raise errors.UserError(
      f'{path} has only empty files; set config.data.path to files of '
      'interactions'
    )


def _form(plan):
  sign, form = plan.layout.delimiter, plan.form
  form = f'{_SIGNS.get(sign, sign)} between columns' if sign else form
  return form + ', lists of items' * ('items' in plan.columns.by_role)


def _check_alike(plans):
  """Raises a `UserError` for files that have other columns."""
  (first, plan), *others = plans.items()
  for file, other in others:
    if _named(plan) != _named(other):
      raise errors.UserError(
        f'{file} has {_named(other)}, and {first} before it {_named(plan)}; '
        'give files of one kind'
      )


def _named(plan):
  """Roles, and names of columns in headers; a list may have one item."""
  if not plan.columns.has_header:
    found = (x.removesuffix('s') for x in plan.columns.by_role)
    return ', '.join(found) + ' without a header'
  return ', '.join(f'{k}={v}' for k, v in plan.columns.named().items())


# What the columns of a file are.


def _plan(file: pathlib.Path, declared: str) -> _Plan:
  """How a file is read; raises a `UserError` where that is not plain."""
  head = contents.sample(file)
  rows, layout = head.rows, head.layout
  has_header = head.has_names or roles.is_header(ROLES, rows)
  if not has_header:
    _refuse_header(file, rows[0])
    declared = declared or contents.columns(file, rows, layout.delimiter)
  names, rows = rows[0], rows[has_header:]
  is_list = declared.replace(' ', '') == contents.LISTS and not head.has_names
  if is_list:
    columns = roles.Columns(
      ('1', '2 ...'), {'user': (0,), 'items': (1,)}, has_header=has_header
    )
    has_cells = layout.delimiter != ' ' and all(len(x) < 3 for x in rows)
    layout = layout._replace(is_ragged=not has_cells)
  else:
    columns = _assigned(file, names, declared, has_header=has_header)
    is_ragged = any(len(x) > 2 for x in rows) and bool(layout.delimiter)
    is_ragged &= columns.roles() == ['user', 'items']
    layout = layout._replace(is_ragged=is_ragged)
    _refuse_amounts(file, columns, rows, declared=declared)
  keys_ = columns.names
  if layout.delimiter:
    keys_ = [str(i) for i in range(len(keys_))]
  row = rows[0] if rows else ()
  if layout.is_ragged:
    row = *row[:1], ' '.join(row[1:])
  return _Plan(
    file,
    head.form,
    columns,
    keys=keys_,
    row=row,
    layout=layout._replace(columns=keys_, skips_first=has_header),
    list_sign=_list_sign(columns, rows),
  )


def _refuse_header(file, row):
  """Raises a `UserError` for a header that is not cut into its names."""
  words = [x for x in re.split(r'[^\w-]+', ' '.join(row)) if x]
  if roles.is_header(ROLES, [words]):
    raise errors.UserError(
      f'{file} begins with {" ".join(row)[:80]!r}, which is a header, and what '
      'is between its columns is not between those of all rows; mend the file'
    )


def _assigned(file, names, declared, has_header):
  columns = roles.assign(
    str(file), ROLES, names, declared=declared, has_header=has_header
  )
  by_role = columns.by_role
  if 'item' in by_role and 'items' in by_role:
    columns = columns._replace(
      by_role={k: x for k, x in by_role.items() if k != 'items'}
    )
  wanted = [x for x in ROLES if x.name == 'user']
  if 'items' not in by_role:
    wanted.append(roles.Role('item', is_required=True))
  roles.require(str(file), wanted, columns)
  if 'rating' in by_role and 'rating' not in columns.minimum:
    name = columns.names[by_role['rating'][0]]
    raise errors.UserError(
      f'{file} has ratings, in the column {name}; say from which one on an '
      f"item counts as liked, such as --config.data.columns='rating:{name}>=4' "
      '(in quotes), or rating:- if all of them do'
    )
  return columns


def _list_sign(columns, rows):
  """What is between the items of a cell: a comma or white space."""
  index = columns.index('items')
  if index is None:
    return ''
  cells = [x[index] for x in rows if len(x) > index]
  return ',' if any(',' in x for x in cells) else ' '


def _refuse_amounts(file, columns, rows, declared):
  """Raises a `UserError` for a column without a role that looks like one."""
  for i, role in enumerate(columns.roles()):
    kind = contents.kind_of([x[i] for x in rows if len(x) > i])
    if role == '-' and kind and columns.has_header and not declared:
      name = columns.names[i]
      raise errors.UserError(
        f'{file} has {kind} in the column {name}; say from which one on an '
        f"item counts, such as --config.data.columns='rating:{name}>=4' (in "
        f'quotes), or -:{name} if all of them do'
      )


# Rows, block by block.


class _Block(NamedTuple):
  """Users and items of some rows."""

  users: keys.Text
  items: keys.Text
  is_pair: np.ndarray  # [n] bool; others are users without an item
  times: np.ndarray | None  # [n] float64
  dropped: dict[str, int]


def _block(plan, table):
  """The users and items of a table, in the order of its rows."""
  names = {role: plan.keys[x[0]] for role, x in plan.columns.by_role.items()}
  is_kept, dropped = _kept(plan, table, names)
  if not is_kept.all():
    table = table.select(is_kept)
  times, is_ragged = None, plan.layout.is_ragged
  if 'time' in names:
    times = _times(table.columns[names['time']], plan.file)
  users = table.columns[names['user']]
  users = (columns_lib.names if is_ragged else columns_lib.values)(users)
  if is_ragged:
    items = table.text(names['items'])
    # A user alone stands for its own items.
    is_pair = users.starts != items.starts
  elif 'items' in names:
    users, items, is_pair, owners = _flat(
      users, table.columns[names['items']], plan.list_sign
    )
    times = times if times is None else times[owners]
  else:
    items = columns_lib.values(table.columns[names['item']])
    is_pair = np.ones(len(users.starts), bool)
  is_named = (users.stops > users.starts) & (
    (items.stops > items.starts) | ~is_pair
  )
  if num := int(np.sum(~is_named)):
    dropped['rows_without_names'] = num
    users, items = users.select(is_named), items.select(is_named)
    is_pair = is_pair[is_named]
    times = times if times is None else times[is_named]
  return _Block(users, items, is_pair, times=times, dropped=dropped)


def _kept(plan, table, names):
  """[rows] bool, of those whose rating, count and label are high enough."""
  is_kept, dropped = np.ones(table.num_rows, bool), {}
  for role in _AMOUNTS:
    if role not in names:
      continue
    values = _amounts(table.columns[names[role]], role, plan.file)
    least = plan.columns.minimum.get(role)
    is_high = values > 0 if least is None else values >= least
    is_missing = np.isnan(values)
    counted = {
      f'missing_{role}s': is_kept & is_missing,
      f'low_{role}s': is_kept & ~is_high & ~is_missing,
    }
    dropped |= {k: int(x.sum()) for k, x in counted.items()}
    is_kept &= is_high
  return is_kept, dropped


def _amounts(column, role, file):
  """[rows] float64, NaN for missing ones."""
  import pyarrow as pa

  try:
    return columns_lib.numbers(column)
  except (ValueError, pa.ArrowInvalid):
    strings = columns_lib.names(column).strings().to_pylist()
  strings = [_FLAGS.get(x.lower(), x) for x in strings]
  try:
    return columns_lib.numbers(pa.array(strings, pa.large_string()))
  except (ValueError, pa.ArrowInvalid) as error:
    raise errors.UserError(
      f'{file} has a {role} that is no number: {errors.one_line(error)}; mend '
      f'the file, or give --config.data.columns={role}:-'
    ) from error


def _times(column, file):
  """[rows] float64, seconds or what else orders rows; NaN for missing ones."""
  import pyarrow as pa
  import pyarrow.compute as pc

  if not isinstance(column, keys.Text):
    column = columns_lib.plain(column)
    if pa.types.is_temporal(column.type):
      column = pc.cast(pc.cast(column, pa.timestamp('us')), pa.int64())
  try:
    return columns_lib.numbers(column)
  except (ValueError, pa.ArrowInvalid):
    strings = columns_lib.names(column).strings()
    strings = pc.if_else(pc.equal(strings, ''), None, strings)
  for kind in pa.timestamp('us', 'UTC'), pa.timestamp('us'):
    with contextlib.suppress(pa.ArrowInvalid):
      return columns_lib.numbers(pc.cast(pc.cast(strings, kind), pa.int64()))
  raise errors.UserError(
    f'{file} has a time, {strings[0]}, that is neither a number nor a date as '
    '2024-01-31; give --config.data.columns=time:-, or mend the file'
  )


def _flat(users, column, sign):
  """Users and items of rows with lists; a row without items is its user's."""
  import pyarrow.compute as pc

  if not isinstance(column, keys.Text):
    column = columns_lib.plain(column)
  if isinstance(column, keys.Text) or not columns_lib.is_list(column.type):
    strings = columns_lib.names(column).strings()
    strings = pc.utf8_trim(strings, ' \t\r[]')
    pattern = r'\s*,\s*' if sign == ',' else r'\s+'
    column = pc.split_pattern_regex(strings, pattern)
  owners = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
  items = columns_lib.names(pc.list_flatten(column))
  is_item = items.stops > items.starts
  owners, items = owners[is_item], items.select(is_item)
  alone = np.setdiff1d(np.arange(len(users.starts)), owners)
  order = np.argsort(np.append(owners, alone), kind='stable')
  owners = np.append(owners, alone)[order]
  is_pair = order < len(items.starts)
  none = np.zeros(len(alone), items.starts.dtype)
  items = keys.Text(
    items.data,
    np.append(items.starts, none)[order],
    np.append(items.stops, none)[order],
  )
  return users.select(owners), items, is_pair, owners


class _Pairs:
  """All pairs of user and item that were read."""

  def __init__(self):
    self._users, self._items = keys.Keys(), keys.Keys()
    self._user_names, self._item_names = [], []
    self._found, self._times = [], []
    self.dropped = {'invalid_utf8_bytes': 0, 'unreadable_rows': 0}

  @property
  def num(self) -> int:
    """How many pairs there are."""
    return self._columns.shape[1]

  @functools.cached_property
  def _columns(self):
    return np.concatenate([np.zeros((2, 0), np.int32), *self._found], 1)

  def read(self, file: pathlib.Path, plan: _Plan) -> None:
    """Adds a file's."""
    reader = tables.Reader(
      str(file),
      form=plan.form,
      layouts={file: plan.layout} if plan.layout.delimiter else None,
      remedy='give --config.data.columns, or another file',
    )
    then = functools.partial(_block, plan)
    for block in reader.tables(lambda done, size: None, then):
      users, new_users = self._users.add(block.users.hashes())
      self._user_names += block.users.strings(new_users).to_pylist()
      items = block.items.select(block.is_pair)
      numbers, new_items = self._items.add(items.hashes())
      self._item_names += items.strings(new_items).to_pylist()
      self._found.append(np.stack([users[block.is_pair], numbers]))
      if block.times is not None:
        self._times.append(block.times[block.is_pair])
      for name, num in block.dropped.items():
        self.dropped[name] = self.dropped.get(name, 0) + num
    self.dropped['unreadable_rows'] += reader.num_bad
    self.dropped['invalid_utf8_bytes'] += reader.num_invalid_bytes

  def check(self, path: str) -> None:
    """Raises a `UserError` for an item that every user has."""
    users, items = self._columns
    num_users = self._users.num
    if num_users < _MANY_USERS:
      return
    for item in np.flatnonzero(np.bincount(items) >= num_users):
      if len(np.unique(users[items == item])) == num_users:
        raise errors.UserError(
          f'{path}: every user has the item {self._item_names[item]!r}, as if '
          'it were none; say what columns are, such as --config.data.columns='
          f"'user,item,rating>=4' (in quotes), or {contents.LISTS} for lists"
        )

  def items_of(self) -> ItemsOf:
    """The items of each user, in their order or by time."""
    users, items = self._columns
    order = np.argsort(users, kind='stable')
    if self._times:
      order = np.lexsort((np.concatenate(self._times), users))
    sizes = np.bincount(users, minlength=self._users.num)
    names = np.array(self._item_names, object)[items[order]]
    ends = np.cumsum(sizes)
    pairs = itertools.pairwise([0, *ends])
    lists = [names[start:stop].tolist() for start, stop in pairs]
    return dict(zip(self._user_names, lists, strict=True))
