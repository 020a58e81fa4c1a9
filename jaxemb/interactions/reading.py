"""Tables and lists of interactions, as the items of each user.

A row is a user and an item, maybe with a rating, a count, a label and a time;
or a user and several items. What a column is for is declared by `data.columns`,
known by its name, or plain from the first rows; else it is refused.
"""

import collections
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
  dropped: collections.Counter[str]
  inputs: list[roles.Input]


class _Plan(NamedTuple):
  """How a file is read."""

  file: pathlib.Path
  form: str
  columns: roles.Columns
  keys: Sequence[str]  # of columns in the reader's tables
  row: Sequence[str]  # the first one
  layout: tables.Layout
  list_sign: str  # between the items of a cell, see `columns.list_sign`
  decimal: str  # `data.decimal`

  def described(self) -> str:
    """Returns what has to be alike in all files; a list may have one item."""
    if not self.columns.has_header:
      names = (x.removesuffix('s') for x in self.columns.by_role)
      return ', '.join(names) + ' without a header'
    return ', '.join(f'{k}={v}' for k, v in self.columns.named().items())

  def shown(self, files: Sequence[pathlib.Path]) -> roles.Input:
    """Returns what log and report show of files."""
    import pyarrow as pa

    sign, form = self.layout.delimiter, self.form
    if sign:
      form = f'{_SIGNS.get(sign, sign)} between columns'
    form += ', lists of items' * ('items' in self.columns.by_role)
    row = columns_lib.names(pa.array(self.row, pa.large_string()))
    row = row.strings().to_pylist()
    return roles.Input.of(files, form, self.columns, row=row)


def is_other(path: pathlib.Path) -> bool:
  """Whether a file of a folder is known to have no interactions."""
  return bool(_OTHERS.fullmatch(path.name))


def read(path: str, declared: str = '', decimal: str = '') -> Read:
  """Reads files of interactions, by `data.columns` and `data.decimal`.

  Raises a `UserError` for files that cannot be read, that may mean several
  things, or in which nobody has an item.
  """
  files = inputs.together(path, 'file of interactions', is_other=is_other)
  if not any(x.stat().st_size for x in files):
    raise errors.UserError(
      f'{path} has only empty files; set config.data.path to files of '
      'interactions'
    )
  plans = [_plan(x, declared, decimal) for x in files]
  for plan in plans:
    if plan.described() != plans[0].described():
      raise errors.UserError(
        f'{plan.file} has {plan.described()}, and {files[0]} before it '
        f'{plans[0].described()}; give files of one kind'
      )
  pairs = _Pairs()
  for plan in plans:
    pairs.read(plan)
  if not pairs.num:
    raise errors.UserError(
      f'{path} has no line `user item item ...` or row with a user and an item '
      'that counts; set config.data.path to files of such lines'
    )
  if not declared:
    pairs.check(path)
  return Read(pairs.items_of(), pairs.dropped, [plans[0].shown(files)])


# What the columns of a file are.


def _plan(file, declared, decimal):
  """How a file is read; raises a `UserError` where that is not plain."""
  head = contents.sample(file, functools.partial(roles.is_header, ROLES))
  rows, layout = head.rows, head.layout
  has_header = head.has_names or roles.is_header(ROLES, rows, declared)
  if not has_header:
    words = re.split(r'[^\w-]+', ' '.join(rows[0]))
    words = {roles.simplified(x) for x in words if x}
    num_known = sum(any(words & y for y in x.known()) for x in ROLES)
    if num_known > 1 and not declared:
      raise errors.UserError(
        f'{file} begins with {" ".join(rows[0])[:80]!r}, which is a header, '
        'and what is between its columns is not between those of all rows; '
        'mend the file'
      )
    contents.refuse_signs(file, rows, layout.delimiter)
    declared = declared or contents.columns(file, rows, layout.delimiter)
  names = rows[0]
  if has_header:
    rows = roles.below(rows)
  if declared.replace(' ', '') == contents.LISTS:
    names = [*names, ''][:2]  # the first line may be a user alone
  columns = roles.assign(
    str(file), ROLES, names, declared=declared, has_header=has_header
  )
  columns = _checked(file, columns, rows, declared=declared)
  if has_header and 'item' not in declared:
    _refuse_cells(file, columns, rows)
  keys_, row = columns.names, rows[0] if rows else ()
  if layout.delimiter:
    keys_ = [str(i) for i in range(len(keys_))]
  if columns.roles() == ['user', 'items'] and layout.delimiter:
    is_ragged = layout.delimiter == ' ' or any(len(x) > 2 for x in rows)
    layout = layout._replace(is_ragged=is_ragged)
    row = *row[:1], ' '.join(row[1:])
  index = columns.index('items')
  cells = [x[index] for x in rows if index is not None and len(x) > index]
  return _Plan(
    file,
    head.form,
    columns,
    keys=keys_,
    row=row,
    layout=layout._replace(columns=keys_, skips_first=has_header),
    list_sign=columns_lib.list_sign(cells),
    decimal=decimal,
  )


def _checked(file, columns, rows, declared):
  """The columns; raises a `UserError` where it is open which rows count."""
  by_role = dict(columns.by_role)
  if 'item' in by_role:
    by_role.pop('items', None)
  wanted = [x for x in ROLES if x.name == 'user']
  if 'items' not in by_role:
    wanted.append(roles.Role('item', is_required=True))
  columns = roles.require(str(file), wanted, columns._replace(by_role=by_role))
  for i, role in enumerate(columns.roles()):
    values = [x[i] for x in rows if len(x) > i]
    if role == '-' and columns.has_header and not declared:
      is_graded = {*by_role} & {*_AMOUNTS}
      role = '' if is_graded else contents.grade(columns.names[i], values)
    elif role != 'rating' or role in columns.minimum:
      role = ''
    if role:
      name = columns.names[i]
      least = f'>={contents.threshold(values)}' * (role == 'rating')
      setting = f'{role}:{name}{least}'
      if not columns.has_header:
        setting = ','.join(x + least * (x == role) for x in columns.roles())
      raise errors.UserError(
        f'{file} has {role}s, in the column {name}; say which items count as '
        f"liked, such as --config.data.columns='{setting}' (in quotes), or "
        f"'-:{name}' if all rows do"
      )
  return columns


def _refuse_cells(file, columns, rows):
  """Raises a `UserError` if cells have several items, or items have numbers."""
  for role in {'item', 'items'} & {*columns.by_role}:
    index = columns.index(role)
    cells = [x[index] for x in rows if len(x) > index]
    if role == 'items':
      pieces = [y for x in cells for y in re.split(r'[\s,;|]+', x)]
      rated = [x for x in pieces if re.fullmatch(r'.+:[\d.]+', x)]
      cell = rated[0] if 2 * len(rated) > len(pieces) else ''
    else:
      cell = contents.several(cells)
    if cell:
      name = columns.names[index]
      other = 'write a row per item if that has a rating'
      if role == 'item':
        other = f'items:{name} if they are lists'
      raise errors.UserError(
        f'{file} has {cell!r} in the column {name}; give '
        f'--config.data.columns={role}:{name} if that is the name of one item, '
        f'or {other}'
      )


# Rows, block by block.


class _Block(NamedTuple):
  """Users and items of some rows."""

  users: keys.Text
  items: keys.Text
  is_pair: np.ndarray  # [n] bool; others are users without an item
  times: np.ndarray | None  # [n] float64
  dropped: dict[str, int]

  def select(self, rows: np.ndarray) -> '_Block':
    """Returns the rows of a mask."""
    return self._replace(
      users=self.users.select(rows),
      items=self.items.select(rows),
      is_pair=self.is_pair[rows],
      times=None if self.times is None else self.times[rows],
    )


def _block(plan, table):
  """The users and items of a table, in the order of its rows."""
  names = {role: plan.keys[x[0]] for role, x in plan.columns.by_role.items()}
  is_kept, dropped = _kept(plan, table, names)
  if not is_kept.all():
    table = table.select(is_kept)
  columns = {role: table.columns[x] for role, x in names.items()}
  users, times = columns_lib.values(columns['user']), None
  if 'time' in columns:
    times = _times(columns['time'], plan.file)
  if plan.layout.is_ragged:
    items = columns_lib.values(columns['items'])
    # A user alone stands for its own items.
    is_pair = columns['user'].starts != columns['items'].starts
  elif 'items' in columns:
    owners, items, is_pair = _flat(columns['items'], plan)
    users = users.select(owners)
    times = times if times is None else times[owners]
  else:
    items = columns_lib.values(columns['item'])
    is_pair = np.ones(len(items.starts), bool)
  block = _Block(users, items, is_pair, times=times, dropped=dropped)
  is_named = (users.stops > users.starts) & (
    (items.stops > items.starts) | ~is_pair
  )
  if num := int(np.sum(~is_named)):
    dropped['rows_without_names'] = num
    block = block.select(is_named)
  return block


def _kept(plan, table, names):
  """[rows] bool, of those whose rating, count and label are high enough."""
  is_kept, dropped = np.ones(table.num_rows, bool), {}
  for role in _AMOUNTS:
    if role not in names:
      continue
    values = _amounts(plan, table.columns[names[role]], role)
    least = plan.columns.minimum.get(role)
    is_high = values > 0 if least is None else values >= least
    is_missing = np.isnan(values)
    dropped[f'missing_{role}s'] = int(np.sum(is_kept & is_missing))
    dropped[f'low_{role}s'] = int(np.sum(is_kept & ~is_high & ~is_missing))
    is_kept &= is_high
  return is_kept, dropped


def _amounts(plan, column, role):
  """[rows] float64, NaN for missing ones."""
  import pyarrow as pa

  try:
    return columns_lib.numbers(column, plan.decimal)
  except (ValueError, pa.ArrowInvalid):
    texts = columns_lib.values(column).strings().to_pylist()
  texts = [str(contents.FLAGS.get(x.lower(), x)) for x in texts]
  try:
    return columns_lib.numbers(pa.array(texts, pa.large_string()), plan.decimal)
  except (ValueError, pa.ArrowInvalid) as error:
    raise errors.UserError(
      f'{plan.file} has a {role} that is no number: {errors.one_line(error)}; '
      'give --config.data.decimal, a comma or a point, if that is before '
      'fractions, or write numbers, or yes and no'
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


def _flat(column, plan):
  """Rows and items of a column of lists, and which rows have any.

  A row without items is there once, with an item that does not count.
  """
  import pyarrow.compute as pc

  if not isinstance(column, keys.Text):
    column = columns_lib.plain(column)
  if isinstance(column, keys.Text) or not columns_lib.is_list(column.type):
    try:
      column = columns_lib.split_lists(column, plan.list_sign)
    except ValueError as error:
      raise errors.UserError(
        f'{plan.file} has lists of items, of which {error}; write an item per '
        'row, or lists such as ["a", "b"]'
      ) from error
  owners = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
  items = columns_lib.names(pc.list_flatten(column))
  is_item = items.stops > items.starts
  owners, items = owners[is_item], columns_lib.values(items.select(is_item))
  alone = np.setdiff1d(np.arange(len(column)), owners)
  order = np.argsort(np.append(owners, alone), kind='stable')
  starts, stops = (
    np.append(x, np.zeros_like(x, shape=len(alone)))[order]
    for x in (items.starts, items.stops)
  )
  owners, is_pair = np.append(owners, alone)[order], order < len(items.starts)
  return owners, keys.Text(items.data, starts, stops), is_pair


class _Pairs:
  """All pairs of user and item that were read."""

  def __init__(self):
    self._users, self._items = keys.Keys(), keys.Keys()
    self._user_names, self._item_names = [], []
    self._blocks, self._times = [np.zeros((2, 0), np.int32)], []
    self.dropped = collections.Counter(invalid_utf8_bytes=0, unreadable_rows=0)

  @property
  def num(self) -> int:
    """How many pairs there are."""
    return self._columns.shape[1]

  @functools.cached_property
  def _columns(self):
    return np.concatenate(self._blocks, 1)

  def read(self, plan: _Plan) -> None:
    """Adds those of a file."""
    reader = tables.Reader(
      str(plan.file),
      form=plan.form,
      layouts={plan.file: plan.layout} if plan.layout.delimiter else None,
      remedy='give --config.data.columns, or another file',
    )
    then = functools.partial(_block, plan)
    for block in reader.tables(lambda done, size: None, then):
      users, new_users = self._users.add(block.users.hashes())
      self._user_names += block.users.strings(new_users).to_pylist()
      items = block.items.select(block.is_pair)
      numbers, new_items = self._items.add(items.hashes())
      self._item_names += items.strings(new_items).to_pylist()
      self._blocks.append(np.stack([users[block.is_pair], numbers]))
      if block.times is not None:
        self._times.append(block.times[block.is_pair])
      self.dropped.update(block.dropped)
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
