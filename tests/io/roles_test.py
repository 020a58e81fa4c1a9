"""Columns by setting and by header."""

import hypothesis
import pytest
from hypothesis import strategies as st

from jaxemb import errors
from jaxemb.io import roles

ROLES = (
  roles.Role('user', ('user_id user', 'reviewer'), is_required=True),
  roles.Role('item', ('item item_id movie_id',), is_required=True),
  roles.Role('rating', ('rating',), takes_minimum=True),
  roles.Role('tag', ('tags',), takes_many=True),
)
HEADER = 'userId', 'movieId', 'rating', 'tag a', 'tag b'


def _assigned(declared='', names=HEADER, **options):
  return roles.assign('f.csv', ROLES, names, declared, **options)


@pytest.mark.parametrize(
  'declared, expected',
  [
    ('', 'user item rating - -'),
    ('rating:-', 'user item - - -'),
    ('tag:tag*', 'user item rating tag tag'),
    ('tag:"tag a", "tag:tag b"', 'user item rating tag tag'),
    ('rating:"rating">=2', 'user item rating - -'),
    ('user:movieId,item:user_id', 'item user rating - -'),
    ('item,user', 'item user - - -'),
    ('user,-,item,-,rating>=2', 'user - item - rating'),
  ],
)
def test_a_setting_goes_before_names(declared, expected):
  assert _assigned(declared).roles() == expected.split()


@pytest.mark.parametrize(
  'declared, message',
  [
    ('user:nobody', "names the column 'nobody', and f.csv has names: userId"),
    ('person:userId', "names 'person:userId'; give role:column"),
    ('user:userId,user:movieId', 'has 2 columns for user, which takes one'),
    ('user:1,item:1', 'names column 1 twice'),
    ('user,item,-,-,-,-', 'has 6 columns, and f.csv has 5'),
    ('user:userId>=3', '>=3, which is no minimum of user'),
    ('rating:rating>=nan', '>=nan, which is no minimum of rating'),
    ('rating:rating>=-inf', '>=-inf, which is no minimum of rating'),
  ],
)
def test_a_setting_that_does_not_fit_is_refused(declared, message):
  with pytest.raises(errors.UserError) as caught:
    _assigned(declared)
  assert message in str(caught.value) and '\n' not in str(caught.value)


def test_minima_are_of_their_columns():
  columns = _assigned('rating:rating>=3.5')
  assert columns.minimum == {'rating': 3.5} and columns.index('rating') == 2
  assert columns.named()['rating'] == 'rating >= 3.5'
  columns = _assigned('user,item,rating >= 4', '1 2 3'.split())
  assert columns.minimum == {'rating': 4} and columns.index('tag') is None


def test_without_a_header_columns_are_numbers():
  columns = _assigned('user:3,item:1', 'a b c'.split(), has_header=False)
  assert columns.roles() == ['item', '-', 'user']
  assert columns.names == ('1', '2', '3')
  with pytest.raises(errors.UserError, match='3 columns and no header'):
    _assigned('user:a', 'a b c'.split(), has_header=False)
  with pytest.raises(errors.UserError, match='no column declared as user or i'):
    roles.require('f', ROLES, _assigned('', ['a'], has_header=False))


@pytest.mark.parametrize(
  'names, expected',
  [
    ('user_id:token item_id:token rating:float', 'user item rating'),
    (':USER_ID(Person) "Item-Id" x', 'user item -'),
    ('\ufeffUser Movie_ID x', 'user item -'),
    ('reviewer user item', '- user item'),  # the first group that is there
  ],
)
def test_names_are_known_in_all_spellings(names, expected):
  assert _assigned(names=names.split()).roles() == expected.split()


def test_what_is_ambiguous_or_missing_is_refused():
  message = 'may be the item, item and movieId; give .*columns=item:item'
  with pytest.raises(errors.UserError, match=message):
    _assigned(names=['user', 'item', 'movieId'])
  message = 'no column whose name is known as item; .*item:COLUMN, of user x'
  with pytest.raises(errors.UserError, match=message):
    roles.require('f', ROLES, _assigned(names=['user', 'x']))
  assert roles.require('f', ROLES, _assigned()).index('item') == 1


@pytest.mark.parametrize(
  'rows, expected',
  [
    ('user item;u1 i1', True),
    ('user item;user i1', False),  # a user called user
    ('x y;1 2;3 4', True),
    ('u1 i1;u2 i2', False),
    ('user item', True),
    ('user film;u1 i1;u2 i2', False),  # an item has a name, too
    ('film_id viewerName;i1 u1;i2 u2', True),
    ('film_id user_name;i1 u1;user_name u2', False),
    ('0 1 2;u1 i1 3;u2 i2 4', True),
    ('0 1 2;1 2 3;1 3 1', False),
    ('1 NA u3;0 3 u1;1 - u2', False),
    ('? 5 u3;7 3 u1;8 3 u2', False),
    ('null u3;7 u1;8 u2', False),
    ('5 unknown u3;7 3 u1;8 3 u2', False),
    ('x 2001 2002;7 ? 1;8 3 3', True),
    ('x 2001 2002;a 5 1;b 3 3', False),
    ('x y;1 ?;3 None', True),
  ],
)
def test_headers_are_told_from_rows(rows, expected):
  rows = [x.split() for x in rows.split(';')]
  assert roles.is_header(ROLES, rows) is expected


def test_a_name_that_is_declared_or_required_makes_a_header():
  rows = [['label', 'b'], ['yes', 'c'], ['no', 'd']]
  role = roles.Role('label', ('label',), is_required=True)
  assert roles.is_header([role], rows)
  assert not roles.is_header([role], [*rows, ['label', 'x']][::-1])
  assert not roles.is_header([role], [*rows, ['no', 'b']])
  for declared in 'user:label', 'item:"B">=3,user:x':
    assert roles.is_header(ROLES, rows, declared)
  for declared in 'user:1,item:2', 'user,item', 'user:-':
    assert not roles.is_header(ROLES, rows, declared)


_NAMES = st.lists(
  st.text(st.characters(codec='utf-8', exclude_characters='\ufeff'), min_size=1)
  .map(str.strip)
  .filter(lambda x: x and not x.strip('-').isdigit() and '>=' not in x),
  min_size=2,
  max_size=6,
  unique_by=roles.simplified,
)


@hypothesis.given(_NAMES, st.data())
def test_any_column_can_be_named(names, data):
  order = data.draw(st.permutations(range(len(names))))
  chosen = zip(('user', 'item'), order, strict=False)
  entries = [f'{role}:{names[i]}'.replace('"', '""') for role, i in chosen]
  quoted = [f'"{x}"' for x in entries]
  columns = _assigned(','.join(quoted), names)
  assert [columns.index('user'), columns.index('item')] == order[:2]


def test_unused_columns_are_known_however_they_are_written():
  role = roles.Role('label')
  for declared in '"-:b,c",label:a', '-:"b,c",label:a', '- : 2,label:a':
    columns = roles.assign('f', [role], ['a', 'b,c'], declared=declared)
    assert columns.unused == (1,) and columns.roles() == ['label', '-']
  assert roles.assign('f', [role], 'ab', declared='label,-').unused == (1,)
