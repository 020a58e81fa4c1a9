"""Texts of JSON and tables in every form; keys and columns that are unclear."""

import csv
import io
import json

import hypothesis
import pytest
from hypothesis import strategies as st

from jaxemb import errors
from jaxemb.text import records, wiki

_KEYS = st.sampled_from(['text', 'reviewText', 'Content', 'body'])
_VALUES = st.text() | st.none() | st.integers() | st.lists(st.text())
_RECORDS = st.lists(
  st.dictionaries(st.sampled_from(['id', 'a"b', 'n{']), _VALUES), min_size=1
)


def _read(
  data, block_bytes=1 << 20, columns='', head_bytes=1 << 16, path='x.json'
):
  report = wiki.ReadReport()
  extract = wiki.extractor(data[:head_bytes], path=path, columns=columns)
  blocks = (data[i : i + block_bytes] for i in range(0, len(data), block_bytes))
  return b''.join(extract(blocks, report)).decode(), report


def _written(records, form):
  if form == 'lines':
    return ''.join(json.dumps(x, ensure_ascii=False) + '\n' for x in records)
  if form == 'carriage returns':
    return ''.join(json.dumps(x) + '\r' for x in records)
  if form == 'over lines':
    return ''.join(json.dumps(x, indent=1) + '\n' for x in records)
  return json.dumps(records, indent=2 if form == 'indented array' else None)


@pytest.mark.parametrize('form', [
  'lines', 'carriage returns', 'over lines', 'array', 'indented array',
])  # fmt: skip
@hypothesis.given(_RECORDS, _KEYS, st.data())
@hypothesis.settings(max_examples=30, deadline=None)
def test_every_form_has_the_same_text(form, records, key, data):
  texts = data.draw(st.lists(
    st.text(st.characters(codec='utf-8')),
    min_size=len(records), max_size=len(records),
  ))  # fmt: skip
  records = [{**x, key: y} for x, y in zip(records, texts, strict=True)]
  written = _written(records, form).encode('utf-8', 'replace')
  block_bytes = data.draw(st.integers(1, 200))
  head_bytes = data.draw(st.integers(1, 100)) + written.find(b'"')
  columns = data.draw(st.sampled_from(['', f'text:{key}']))
  try:
    text, report = _read(written, block_bytes, columns, head_bytes)
  except errors.UserError as error:
    # The key is not in the head, which says which are.
    assert 'config.data.columns' in str(error)
    assert head_bytes < len(written)
    return
  assert text == ''.join(x + '\n' for x in texts)
  assert report.pages == len(records) and not report.problems


@pytest.mark.parametrize(
  'data, columns, says',
  [
    ({'id': 1, 'review': 'x'}, '', 'give --config.data.columns=text:COLUMN'),
    ({'text': 'x', 'body': 'y'}, '', 'config.data.columns=text:text'),
    ({'review': 'x'}, 'text:stars', "the column 'stars'"),
    ({'text': None}, '', 'config.data.columns'),
    ({'review': 'x'}, 'words:review', 'role:column'),
    ('text', 'text:review', 'is neither JSON nor'),
  ],
)
def test_unclear_keys_are_refused(data, columns, says):
  with pytest.raises(errors.UserError) as caught:
    _read(json.dumps(data).strip('"').encode(), columns=columns)
  assert says in str(caught.value) and '\n' not in str(caught.value)


def test_a_key_is_given_or_known():
  data = b'{"id": "a", "review": "x", "text": "y"}\n'
  assert _read(data)[0] == 'y\n'
  text, report = _read(data, columns='text:review')
  assert text == 'x\n' and report.columns == {'text': 'review'}
  # The first object may lack it.
  assert _read(b'{"id": 1}\n{"id": 2, "body": "z"}\n')[0] == 'z\n'


def test_what_is_damaged_is_lost_and_counted():
  objects = [json.dumps({'text': f'{i} words'}) for i in range(4)]
  cut = '[' + ', '.join(objects)[:-5]
  text, report = _read(cut.encode(), 7)
  assert text == '0 words\n1 words\n2 words\n'
  assert report.problems == ['JSON damaged after 3 objects']
  assert report.lost_bytes == len(objects[3]) - 5
  text, report = _read(f'[{objects[0]}, 7, {{"text": 8}}]'.encode())
  assert text == '0 words\n'
  assert report.problems == ['2 objects skipped: no text as "text"']


def test_what_is_nested_deeply_is_text_or_lost():
  few, many = 500, 100_000
  assert _read(b'[' * few + b'"a b"' + b']' * few)[0] == 'a b\n'
  record = b'{"text": ' + b'[' * few + b'"c"' + b']' * few + b'}'
  assert _read(b'[{"text": "b"}, ' + record + b']')[0] == 'b\nc\n'
  lines = [b'{"text": "b"}', b'{"text": ' + b'[' * many, b'{"text": "d"}']
  text, report = _read(b'\n'.join(lines))
  assert text == 'b\nd\n' and report.problems


@pytest.mark.parametrize('key', [rb'\q', '\t', '\\'])
def test_keys_may_be_damaged(key):
  key = key if isinstance(key, bytes) else key.encode()
  with pytest.raises(errors.UserError, match='config.data.columns'):
    _read(b'{"%b": "x y", "b' % key)
  with pytest.raises(errors.UserError):
    _read(b'{"%b": [{"id": 1}, {"id": 2}]}' % key)


def test_other_text_is_no_json():
  for head in (b'["Intro", words]', b'{} words', b'[[link]]', b'{words} "x"'):
    assert records.extractor(head, 'x.txt', '') is None
  for head in b'["Hello", "you"] she said.\n', b'["a"]\nand more ["b"]\n':
    assert records.extractor(head, 'x.txt', '') is None
  for head in b'{"a" and "b"} are', b'text, he wrote\nand more, much, more\n':
    assert records.extractor(head, 'x.txt', '') is None


@pytest.mark.parametrize('head', [b'{}\n', b'[]', b'[1, 2]', b'{"a": {}}'])
def test_json_without_text_is_refused(head):
  with pytest.raises(errors.UserError, match='without text'):
    records.extractor(head, 'x.jsonl.gz', '')


@pytest.mark.parametrize(
  'data, path, columns',
  [
    ('["a b", "c\\n"]', 'x.txt', ''),
    ('"a b"\n"c\\n"\n', 'x.jsonl', ''),
    ('{"total": 2, "reviews": ["a b", "c\\n"], "end": {}}', 'x', ''),
    ('{"reviews": ["a b", "c\\n"]}', 'x.json', 'text:reviews'),
    ('{"reviews": [{"text": "a b"}, {"text": "c\\n"}]}', 'x.json', ''),
    ('{"of":[{"id":"a]","say":"a b"},{"say":"c\\n"}]}', 'x', 'text:say'),
  ],
)
@pytest.mark.parametrize('block_bytes', [1, 1000])
def test_arrays_of_texts(data, path, columns, block_bytes):
  text, report = _read(data.encode(), block_bytes, columns=columns, path=path)
  assert text == 'a b\nc\n\n' and not report.problems
  assert report.pages == 2 and not report.lost_bytes


_TOKENS = [['a', 'b'], ['c', 'd', 'e'], ['f']]
_JSON_LINES = [
  ([{'id': 1, 'tokens': x} for x in _TOKENS], 'text:tokens'),
  ([{'text': x, 'id': 1} for x in _TOKENS], ''),
  ([{'sentences': ['a b', 'c d e']}, {'sentences': ['f']}], 'text:sentences'),
  ([{'of': [['a', 'b'], ['c', 'd', 'e']]}, {'of': [['f']]}], 'text:of'),
  (_TOKENS, ''),
  ([['a b', 'c d e'], ['f', ' ']], ''),
  ([[{'text': 'a b'}, {'text': 'c d e'}], [{'text': 'f'}]], ''),
]


@pytest.mark.parametrize('records, columns', _JSON_LINES)
@pytest.mark.parametrize('form', ['lines', 'over lines', 'array'])
@pytest.mark.parametrize('path', ['x.txt', 'x.json'])
def test_lists_within_records(records, columns, form, path):
  data = _written(records, form).encode()
  if columns:
    with pytest.raises(errors.UserError, match='columns=text:COLUMN, of'):
      _read(data, path=path)
  for block_bytes in 1, 1000:
    text, report = _read(data, block_bytes, columns=columns, path=path)
    assert text.split('\n')[:3] == ['a b', 'c d e', 'f']
    assert not report.problems and not report.lost_bytes


@pytest.mark.parametrize(
  'data, says',
  [
    ('{"of": [{"text": "a"}]}\n{"of": [{"text": "b"}]}\n', "jq '.. | .KEY?"),
    ('{"id": 1, "of": [["a"]]}\n{"of": [["b"]]}\n', 'COLUMN, of of'),
    ('{"of": ["%s"]}\n{"of": ["b"]}\n' % ('a ' * 9000), 'columns=text:of'),
    ('{"of": [{"text": "%s"}]}\n{"a": 1}\n' % ('a ' * 9000), 'more than the'),
  ],
)
def test_no_record_is_left_unread(data, says):
  with pytest.raises(errors.UserError) as caught:
    _read(data.encode(), 77, head_bytes=8000)
  assert says in str(caught.value) and '\n' not in str(caught.value)


@pytest.mark.parametrize(
  'data',
  [
    '{"text": "a b"\n}\n{"text": "c"\n}\n',
    '{"id": "1"\n,"text": "a b"}\n{"text": "c"}\n',
    '{"text": "a b"},\n{"text": "c"}\n',
    '{"text": "a b"}{"text": "c"}',
    '[{"text": "a b"}]\n[{"text": "c"}]',
    '[\n{"text": "a b"}\n]\n[{"text": "c"}\n]',
  ],
)
def test_records_may_end_and_begin_anywhere(data):
  for head_bytes in len(data), 22:
    text, report = _read(data.encode(), 5, head_bytes=head_bytes)
    assert text == 'a b\nc\n' and not report.problems


_CELLS = st.text(
  st.characters(codec='utf-8', exclude_characters='\0\r\n \t')
  | st.sampled_from([*'," ab', '\n'])
)


@hypothesis.given(
  st.lists(_CELLS, min_size=2), st.sampled_from(',;\t'), st.integers(1, 99)
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_a_column_of_a_table(texts, sign, block_bytes):
  texts = [f'x{x}' for x in texts]
  file = io.StringIO()
  rows = csv.writer(file, delimiter=sign, quoting=csv.QUOTE_ALL)
  rows.writerows(
    [('label', 'text'), *((i % 2, x) for i, x in enumerate(texts))]
  )
  data = file.getvalue().encode()
  text, report = _read(data, block_bytes, path='x.csv')
  assert text == ''.join(f'{x}\n' for x in texts)
  assert report.columns == {'text': 'text'} and not report.problems


@pytest.mark.parametrize(
  'data, path, columns, expected',
  [
    ('text,label\n"good, fine",pos\nbad,neg\n', 'x.txt', '', 'good, fine|bad|'),
    ('id,tweet\n1,a b\n2,c\n', 'x.csv', 'text:tweet', 'a b|c|'),
    ('label\ttweet\npos\ta "b"\nneg\tc\n', 'x', 'text:tweet', 'a "b"|c|'),
    ('1\ta b\n2\tc d\n', 'x.tsv.gz', 'text:2', 'a b|c d|'),
    ('text\n"a, b"\n"c"\n', 'x.csv', '', 'a, b|c|'),
    ('text,n\na b,1\nc\n', 'x.csv', 'text:1', 'a b|c|'),
    ('id,tweet\n1,a\n2,b\n', 'x.csv', '', None),
    ('1\ta b\n2\tc d\n', 'x.tsv', '', None),
    ('text,body\na,b\nc,d\n', 'x.csv', '', None),
    ('id,tweet\n1,a\n2,b\n', 'x.csv', 'text:words', None),
  ],
)
def test_tables_are_read_or_refused(data, path, columns, expected):
  if expected is None:
    with pytest.raises(errors.UserError, match=r'config\.data\.columns'):
      _read(data.encode(), columns=columns, path=path)
    return
  text, _ = _read(data.encode(), columns=columns, path=path)
  assert text.replace('\n', '|') == expected


@pytest.mark.parametrize(
  'bad, says',
  [
    ('1,the king, and more', '3 cells'),
    ('1', '1 cells'),
    ('1,a,,', ''),
  ],
)
def test_rows_of_another_width_are_counted_or_refused(bad, says):
  for num in 1, 400:
    data = 'id,text\n' + f'{bad}\n' + '2,"a, b"\n' * num
    if says and num == 1:
      with pytest.raises(errors.UserError, match=f'first is line 2: {says}'):
        _read(data.encode(), path='x.csv')
      continue
    text, report = _read(data.encode(), path='x.csv')
    assert report.pages == num + (not says) and len(report.problems) == bool(
      says
    )
    assert text.endswith('a, b\n' * num)


def test_a_table_may_repeat_its_header_and_has_to_close_its_quotes():
  data = b'id,text\n1,a b\nid,text\n2,c d\n'
  text, report = _read(data, path='x.csv')
  assert text == 'a b\nc d\n' and len(report.problems) == 1
  for num in 3, 30_000:
    with pytest.raises(errors.UserError, match='quote that is not closed'):
      _read(data + b'3,"e f\n' + b'4,g h\n' * num, path='x.csv')


@pytest.mark.parametrize(
  'row',
  ['1\tthe king rules', 'the king rules\tle roi', '7\teng\tthe king rules'],
)
def test_a_table_without_a_header_is_refused_with_its_texts(row):
  number = 1 + row.split('\t').index('the king rules')
  with pytest.raises(errors.UserError, match=f"text:{number} for .*'the king"):
    _read(f'{row}\n'.encode() * 9, path='x.tsv')


def test_empty_objects_may_come_first():
  assert _read(b'{}\n{"text": "a b"}\n')[0] == 'a b\n'
  assert _read(b'[{}, {"text": "a b"}]')[0] == 'a b\n'
