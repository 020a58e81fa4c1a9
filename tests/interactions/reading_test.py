"""Tables and lists of interactions: layouts as published, and refusals."""

import csv
import itertools
import re

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyarrow import parquet

from jaxemb import errors
from jaxemb.interactions import reading
from jaxemb.io import inputs

# Of 30 users, most with three to five of 40 items; and the ratings of these.
_RNG = np.random.default_rng(0)
_PAIRS = [
  (user, item)
  for user in range(30)
  for item in _RNG.choice(40, 3 + user % 3, replace=False).tolist()
]
_RATINGS = [1 + (7 * u + 3 * i) % 5 for u, i in _PAIRS]
_TIMES = [1_400_000_000 + (7919 * u * i) % 100_000 for u, i in _PAIRS]
_ROWS = [
  {'u': u, 'i': 1000 + i, 'a': f'A{u:02}X', 'b': f'B{i:04}', 'r': r, 't': t,
   'c': 10 * r * r + u}
  for (u, i), r, t in zip(_PAIRS, _RATINGS, _TIMES, strict=True)
]  # fmt: skip
_BY_USER = [
  (u, [x for _, x in pairs])
  for u, pairs in itertools.groupby(_PAIRS, lambda x: x[0])
]


def _lines(form, header=''):
  return header + ''.join(f'{form.format(**x)}\n' for x in _ROWS)


def _read(tmp_path, text, declared='', name='ratings.txt'):
  path = tmp_path / name
  path.write_text(text)
  return reading.read(str(path), declared)


def _pairs(found):
  """Users and items by number, whatever their names."""
  return {
    (int(re.sub(r'\D', '', u)), int(re.sub(r'\D', '', x)) % 1000)
    for u, items in found.items_of.items()
    for x in items
  }


_ALL = {*_PAIRS}
_LIKED = {x for x, r in zip(_PAIRS, _RATINGS, strict=True) if r >= 4}
FOLDERS = {
  'ratings.csv': 'ratings.csv movies.csv tags.csv links.csv genome-scores.csv '
  'genome-tags.csv README.txt',
  'ratings.dat': 'ratings.dat movies.dat users.dat README',
  'u.data': 'u.data u.item u.user u.info u.genre u1.base u1.test allbut.pl '
  'mku.sh README',
  'user_artists.dat': 'user_artists.dat artists.dat tags.dat user_friends.dat '
  'user_taggedartists.dat user_taggedartists-timestamps.dat readme.txt',
  'ml.inter': 'ml.inter ml.item ml.user',
  'BX-Book-Ratings.csv': 'BX-Book-Ratings.csv BX-Books.csv BX-Users.csv',
  'out.x': 'out.x meta.x README.x',
  'train.txt': 'train.txt test.txt item_list.txt user_list.txt s_adj_mat.npz',
  'events.csv': 'events.csv category_tree.csv item_properties_part1.csv',
}
_COUNTED = {x for x, y in zip(_PAIRS, _ROWS, strict=True) if y['c'] >= 60}

# Name: form of a row, header, setting without which it is refused.
_RATED = 'user,item,rating>=4'
_ML = '{u},{i},{r}.0,{t}'
_AMAZON = (
  '{{"reviewerID": "{a}", "asin": "{b}", "reviewText": "a {r}", "overall": '
  '{r}.0, "unixReviewTime": {t}, "reviewTime": "09 13, 2009"}}'
)
_YELP = (
  '{{"review_id": "x{r}", "user_id": "{a}", "business_id": "{b}", "stars": '
  '{r}.0, "date": "2018-07-07 22:09:11"}}'
)
_AMAZON_2023 = 'user_id,parent_asin,rating,timestamp'
_RECBOLE = 'user_id:token\titem_id:token\trating:float\ttimestamp:float'
_BOOKS = '"User-ID";"ISBN";"Book-Rating"'
_RETAIL = 'timestamp,visitorid,event,itemid,transactionid'
_SESSIONS = 'sessionId;userId;itemId;timeframe;eventdate'
_GOODREADS = 'user_id,book_id,is_read,rating,is_reviewed'
_KUAIREC = 'user_id,video_id,play_duration,watch_ratio,timestamp'
_TABLES = [
  ('MovieLens 100K', '{u}\t{i}\t{r}\t{t}', '', f'{_RATED},time'),
  ('MovieLens 1M', '{u}::{i}::{r}::{t}', '', f'{_RATED},time'),
  ('MovieLens 25M', _ML, 'userId,movieId,rating,timestamp', 'rating:rating>=4'),
  ('Amazon 2014', '{a},{b},{r}.0,{t}', '', f'{_RATED},time'),
  ('Amazon 2023', '{a},{b},{r}.0,{t}000', _AMAZON_2023, 'rating:rating>=4'),
  ('Amazon JSON', _AMAZON, '', 'rating:overall>=4'),
  ('Yelp JSON', _YELP, '', 'rating:stars>=4'),
  ('RecBole', '{u}\t{i}\t{r}\t{t}.0', _RECBOLE, 'rating:rating:float>=4'),
  ('Book-Crossing', '"{u}";"{i}";"{r}"', _BOOKS, 'rating:Book-Rating>=4'),
  ('Goodreads', '{u},{i},1,{r},0', _GOODREADS, 'rating:rating>=4'),
  ('KuaiRec', '{u},{i},9,{r}.5,{t}', _KUAIREC, 'rating:watch_ratio>=4'),
  ('Epinions', '{u} {i} {r}', '', _RATED),
  ('spaces behind commas', '{u}, {i}, {r}', '', _RATED),
  ('Anime', '{u},{i},{r}', 'user_id,anime_id,rating', 'rating:rating>=4'),
  ('LastFM', '{u}\t{i}\t{c}', 'userID\tartistID\tweight', ''),
  ('tags', '{u}\t{i}\t{c}\t{t}', 'userID\tartistID\ttagID\ttimestamp', ''),
  ('Retailrocket', '{t}000,{u},view,{i},', _RETAIL, ''),
  ('Diginetica', '{c};{u};{i};{t};2016-05-09', _SESSIONS, ''),
  ('pandas with an index', '{t},{u},{i}', ',user,item', ''),
  ('KONECT', '{u} {i}', '% bip unweighted\n% 9 30 40', ''),
  ('times', '{a} {b} {t}', '', ''),
  ('pairs', '{a} {b}', '', ''),
]


def _lists(form, sign):
  """A line a user."""
  return ''.join(
    form.format(u, sign.join(map(str, x))) + '\n' for u, x in _BY_USER
  )


LAYOUTS = {
  name: (_lines(form, header and f'{header}\n'), setting)
  for name, form, header, setting in _TABLES
}
_SIZES = ''.join(f'{len(x)} {" ".join(map(str, x))}\n' for _, x in _BY_USER)
_HEADER = 'user_id:token\titem_id_list:token_seq\n'
LAYOUTS |= {
  'LightGCN': (_lists('{} {}', ' '), ''),
  'lists behind a tab': (_lists('u{}\t{}', ','), ''),
  'RecBole sessions': (_HEADER + _lists('{}\t{}', ' '), ''),
}


@pytest.mark.parametrize('name', LAYOUTS)
def test_published_layouts_are_read_or_refused_with_the_setting(name, tmp_path):
  text, setting = LAYOUTS[name]
  if setting:
    with pytest.raises(errors.UserError) as caught:
      _read(tmp_path, text)
    message = str(caught.value)
    assert f"'{setting}'" in message and '\n' not in message
  found = _read(tmp_path, text, setting)
  assert _pairs(found) == (_LIKED if setting else _ALL)
  assert found.dropped['unreadable_rows'] == 0
  if setting:
    assert found.dropped['low_ratings'] == len(_PAIRS) - len(_LIKED)


@pytest.mark.parametrize('name', LAYOUTS)
def test_a_layout_that_lost_its_header_or_order_is_right_or_refused(
  name, tmp_path
):
  text, _ = LAYOUTS[name]
  head, *rest = text.splitlines(keepends=True)
  rest = [x for x in rest if x[0] != '%']
  np.random.default_rng(1).shuffle(rest)
  for lines in rest, [head, *rest], rest[:7]:
    try:
      found = _read(tmp_path, ''.join(lines))
    except errors.UserError:
      continue
    pairs = _pairs(found)
    assert pairs == _ALL if head in lines else pairs <= _ALL


@pytest.mark.parametrize(
  'text, message',
  [
    (_lines('{a} {b} {c}'), "numbers such as .*'user,item,count'"),
    (_lines('{a}\tThe Item {i}'), "'The Item .* behind a tab, .*'user,item'"),
    (_lines('{a}\t{t}\t3.25\t4.5\t{i}'), "'user,time,-,-,item'"),
    (_SIZES, 'the number of their items'),
    (_lines('{u},Game {i},play,{c},0'), "'user,item,-,count,-'"),  # Steam
    (  # Last.fm 1K
      _lines('{a}\t2009-05-04T23:08:57Z\tm{i}\tTool\ts{i}\tSong {i}'),
      "times such as .*'user,time,item,-,-,-'",
    ),
    (_lists('u{} all i{}', ' i'), "every user has the item 'all'"),
    (_lists('{} {}', ' 3 '), 'ratings such as .* behind items'),
    (_lines('{r}:\n{u},{r},2005-09-06'), 'times such as 2005-09-06'),
    (_lines('{u},{i}', 'a,b\n'), 'known as user or item; give .*user:COLUMN'),
    (_lines('{u} {i} {i}'), 'the same user again and again'),
    (_lines('{r} {a} {b}'), "ratings .* in column 1.*'rating>=4,user,item'"),
    (_lines('{u},{i},1/{r}/2014', 'user,item,date\n'), 'columns=time:-'),
    ('user,item,bought\nu,i,True\nv,j,False\n', "'label:bought'.*'-:bought'"),
    ('user,item,liked\nu,i,Y\nu,j,perhaps\n', 'write numbers, or yes and no'),
    ('user,item,fun\nu,i,35\nu,j,100\n', "'rating:fun>=80'"),
    ('user,item,fun\nu,i,"2,5"\nu,j,"4,5"\n', "'rating:fun>=3.5'"),
    (_lines('{u},{i}', 'All reads\nuser,item\n'), "'All reads' above its head"),
  ],
)
def test_what_is_no_item_is_refused_as_what_it_is(text, message, tmp_path):
  with pytest.raises(errors.UserError, match=message):
    _read(tmp_path, text)


@pytest.mark.parametrize(
  'form, header, setting, expected',
  [
    ('{u},{i},{r}', 'user,item,rating\n', 'rating:-', _ALL),
    ('{i},{u},{r}', '', 'item,user,-', {(u, i) for u, i in _ALL}),
    ('{r},{u},{i}', 'x,y,z\n', 'user:y,item:z', _ALL),
    ('{u},{i},{c}', 'user,item,plays\n', 'count:plays>=60', _COUNTED),
    ('{a}\tItem {i}', '', 'user,item', _ALL),
    ('{u} {i}', '', 'user,items', _ALL),
  ],
)
def test_the_setting_says_what_columns_are(
  form, header, setting, expected, tmp_path
):
  found = _read(tmp_path, _lines(form, header), setting)
  assert _pairs(found) == expected


def test_labels_are_what_was_liked(tmp_path):
  words = ('false', 'True'), ('no', 'yes'), ('N', 'Y')
  for no, yes in ('0', '1'), ('-1', '1'), *words:
    text = f'user,item,label\nu1,i1,{yes}\nu1,i2,{no}\nu2,i2,{yes}\nu3,i3,\n'
    found = _read(tmp_path, text)
    assert found.items_of == {'u1': ['i1'], 'u2': ['i2']}
    assert found.dropped['low_labels'] == found.dropped['missing_labels'] == 1


@pytest.mark.parametrize('times', ['3 1 2', '2024-01-03 2024-01-01 2024-01-02'])
def test_items_are_in_the_order_of_time(times, tmp_path):
  rows = zip('xyz', times.split(), strict=True)
  text = 'user,item,timestamp\n' + ''.join(f'u,{x},{t}\n' for x, t in rows)
  assert _read(tmp_path, text).items_of == {'u': ['y', 'z', 'x']}


def test_decimal_commas_need_a_setting(tmp_path):
  text = 'user;item;rating\nu;i;2,5\nu;j;4,5\n'
  with pytest.raises(errors.UserError, match='give --config.data.decimal'):
    _read(tmp_path, text, 'rating:rating>=4')
  for more, expected in ('', {'u': ['j']}), ('u;k;3.45\n', None):
    (tmp_path / 'a.csv').write_text(text + more)
    try:
      read = reading.read(str(tmp_path / 'a.csv'), 'rating:rating>=4', ',')
      assert read.items_of == expected
    except errors.UserError as error:
      assert expected is None and "'3.45' is no number with ','" in str(error)


def test_what_is_missing_is_no_name_in_pairs_and_lists(tmp_path):
  pairs = 'user,item\nu,True\nu,NA\nNA,i\n'
  for text in pairs, 'user\titems\nu\tTrue,NA\nNA\ti\n', 'u True NA\nNA i\n':
    read = _read(tmp_path, text)
    assert read.items_of == {'u': ['true']}
    assert read.dropped['rows_without_names'] == 2


def test_headers_of_files_put_together_are_counted(tmp_path):
  header = 'user,item,rating\n'
  lines = ''.join(f'u{i % 300},i{i % 70},{i % 5}\n' for i in range(3000))
  read = _read(tmp_path, header + lines + header + lines, 'rating:rating>=3')
  assert read.dropped['unreadable_rows'] == 1
  assert 'user' not in read.items_of


@pytest.mark.parametrize('name', FOLDERS)
def test_published_folders_have_one_file_of_interactions(name, tmp_path):
  for x in FOLDERS[name].split():
    (tmp_path / x).write_text('x')
  found = inputs.find(str(tmp_path), is_other=reading.is_other)
  assert [x.name for x in found.train] == [name]


def test_files_of_other_columns_are_refused(tmp_path):
  (tmp_path / 'part-0.csv').write_text('user,item\nu,i\n')
  (tmp_path / 'part-1.csv').write_text('user,product\nu,i\n')
  with pytest.raises(errors.UserError, match='user=user, item=product, and'):
    reading.read(str(tmp_path))


@pytest.mark.parametrize('cells', [
  ('"[""a b"", ""c,\'d\\u00e9""]"', '[]', '"[""e""]"'),
  ('"[\'a b\', ""c,\'dé""]"', 'set()', "['e']"),
  ("['a b' 'c,\\'dé']", '[]', "['e']"),
  ("\"(np.str_('a b'), 'c,\\'dé')\"", '()', '"(\'e\',)"'),
  ("\"frozenset({'a b', 'c,\\'dé'})\"", 'frozenset()', "{'e'}"),
  ('"{""a b"",""c,\'dé""}"', '{}', '{e}'),
  ("a b|c,'dé", '', 'e'),
  ("a b; c,'dé", '', 'e'),
])  # fmt: skip
def test_cells_of_lists_are_items(cells, tmp_path):
  rows = ''.join(f'u{i}\t{x}\n' for i, x in enumerate(cells))
  if '"' in cells[0]:
    rows = rows.replace('\t', ',')
  for header, setting in ('user{}items\n', ''), ('', 'user,items'):
    header = header.format(',' if ',' in rows[:3] else '\t')
    found = _read(tmp_path, header + rows, setting).items_of
    assert found == {'u0': ['a b', "c,'dé"], 'u1': [], 'u2': ['e']}


@pytest.mark.parametrize(
  'text, says',
  [
    ('user,item\nu,"[1, 2]"\nv,"[3, 4]"\n', 'items:item if they are lists'),
    ('user,item\nu,1|2\nv,3|4\n', 'items:item if they are lists'),
    ('user,items\nu,"[{\'id\': 1}]"\n', 'no list of names'),
    ('user,items\nu,"[[1, 2], [3]]"\n', 'no list of names'),
    ('u,1|2\nv,3|4\n', 'a name or several'),
    ('u [1, 2]\nv [3]\n', 'has brackets'),
    ('u,[a, b, c]\nv,[d]\n', 'has brackets'),
    ('(u, a)\n(v, b)\n', 'has brackets'),
    ('user,item\nu,"a,b,c"\nv,"c,a"\n', 'items:item if they are lists'),
    ('user;item\nu;"c;a"\nv;"b;c"\n', 'items:item if they are lists'),
    ('user,items\nu,a:1 b:2\nv,c:3\n', "'a:1' in .* a row per item"),
    ('u:d,b\nv:b,c\nw:c,a\n', r"colons .* \(sed 's/: \*/,/'\)"),
    ('u: a b\nv: b\n', r"colons .* \(sed 's/: \*/ /'\)"),
  ],
)
def test_lists_that_are_unclear_are_refused(text, says, tmp_path):
  with pytest.raises(errors.UserError, match=says) as caught:
    _read(tmp_path, text)
  assert '\n' not in str(caught.value)


@pytest.mark.parametrize('form', [
  '{a},{b},', '{a}\t{b}\t', '{a}\t{b}\t ', '{u}::{i}::', '{a} {b}\t',
  '{u},{i},,',
])  # fmt: skip
def test_delimiters_may_end_lines(form, tmp_path):
  assert _pairs(_read(tmp_path, _lines(form))) == _ALL
  assert _pairs(_read(tmp_path, _lines(form), 'user,item')) == _ALL
  if form.count(',') < 3:
    header = re.sub(
      r'[\W\d]*$', '', form.format(u='user', a='user', b='item', i='item')
    )
    assert _pairs(_read(tmp_path, _lines(form, f'{header}\n'))) == _ALL


@pytest.mark.parametrize(
  'rows', ['u1\nu2 a b\nu3 b c\n', 'u1\nu2,a,b\nu3,b,c\n']
)
@pytest.mark.parametrize('setting', ['', 'user,items'])
def test_the_first_user_may_have_no_item(rows, setting, tmp_path):
  expected = {'u1': [], 'u2': ['a', 'b'], 'u3': ['b', 'c']}
  assert _read(tmp_path, rows, setting).items_of == expected


@pytest.mark.parametrize('sign', ', ')
def test_declared_names_are_a_header(sign, tmp_path):
  text = _lines(f'{{a}}{sign}{{b}}', f'viewer{sign}film\n')
  assert _pairs(_read(tmp_path, text, 'user:viewer,item:film')) == _ALL


def test_names_may_have_commas_and_types(tmp_path):
  text = 'user,item\nt:1,"Doe, Jo"\nt:2,"Roe, Jo"\nt:3,"Doe, Al"\n'
  assert _read(tmp_path, text).items_of['t:1'] == ['Doe, Jo']


def test_columns_of_lists_are_items(tmp_path):
  table = pa.table({'user': ['a', 'b', 'c'], 'items': [[3, 1], [], [2]]})
  parquet.write_table(table, tmp_path / 'a.parquet')
  found = reading.read(str(tmp_path / 'a.parquet')).items_of
  assert found == {'a': ['3', '1'], 'b': [], 'c': ['2']}


_NAME = st.text(
  st.characters(codec='utf-8', exclude_categories=['Cc', 'Cs', 'Z', 'C']),
  min_size=1,
  max_size=8,
).filter(
  lambda x: (
    not re.fullmatch(r'[\d.+\-eE]*|(?i:true|false|null|nan|none|n.?a|<na>)', x)
  )
)


@pytest.mark.slow
@hypothesis.settings(max_examples=30)
@hypothesis.given(
  st.lists(st.tuples(_NAME, _NAME), min_size=1, max_size=30),
  st.sampled_from([',', '\t', ';', '|']),
)
def test_what_csv_writes_is_read(tmp_path_factory, pairs, sign):
  path = tmp_path_factory.mktemp('csv') / 'a.csv'
  with path.open('w', newline='', encoding='utf-8') as file:
    csv.writer(file, delimiter=sign).writerows([('user', 'item'), *pairs])
  expected = {}
  for user, item in pairs:
    expected.setdefault(user, []).append(item)
  try:
    assert reading.read(str(path)).items_of == expected
  except errors.UserError:
    cells = {y for pair in pairs for y in pair}
    assert any(x in y for x in ',;|:' for y in cells) or 'item' in cells


_WORD = _NAME.filter(lambda x: not {*',;|:'} & {*x})


@hypothesis.settings(max_examples=30)
@hypothesis.given(st.lists(st.lists(_WORD, min_size=2, max_size=6), min_size=1))
def test_lists_are_read_or_refused(tmp_path_factory, lines):
  path = tmp_path_factory.mktemp('lists') / 'a.txt'
  path.write_text(''.join(' '.join(x) + '\n' for x in lines), 'utf-8')
  expected = {}
  for user, *items in lines:
    expected.setdefault(user, []).extend(items)
  assert reading.read(str(path), 'user,items').items_of == expected
  try:
    assert reading.read(str(path)).items_of == expected
  except errors.UserError:
    pass


_ANY = st.text(
  st.characters(codec='utf-8', exclude_categories=['C']), min_size=1, max_size=8
)
_COLUMNS = [
  st.booleans(),
  st.integers(-5, 10**12),
  st.none() | st.integers(0, 1000),  # floats in pandas
  st.none() | _ANY,
  st.floats(-1e5, 1e5, width=32).map(lambda x: round(x, 3)),
]


@st.composite
def _frames(draw):
  columns = {x: draw(st.sampled_from(_COLUMNS)) for x in ('user', 'item')}
  columns['rating'] = st.integers(0, 5)
  num = draw(st.integers(1, 15))
  return {k: [draw(x) for _ in range(num)] for k, x in columns.items()}


@hypothesis.settings(max_examples=40)
@hypothesis.given(_frames())
def test_all_programs_write_the_same_interactions(tmp_path_factory, columns):
  pd = pytest.importorskip('pandas')
  frame, folder = pd.DataFrame(columns), tmp_path_factory.mktemp('written')

  def found(name):
    try:
      return reading.read(str(folder / name), 'rating:rating>=3').items_of
    except errors.UserError:
      return None

  frame.to_parquet(folder / 'a.parquet')
  frame.to_csv(folder / 'a.csv', index=False)
  frame.to_csv(folder / 'index.csv.gz')
  frame.to_csv(folder / 'a.tsv', index=False, sep='\t')
  frame.to_csv(folder / 'a.txt', index=False, sep=';')
  frame.to_json(folder / 'a.jsonl', orient='records', lines=True)
  expected = found('a.parquet')
  for name in 'a.csv', 'index.csv.gz', 'a.tsv', 'a.txt', 'a.jsonl':
    assert found(name) == expected
