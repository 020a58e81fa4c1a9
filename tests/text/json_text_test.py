"""Texts of JSON in every form, against json.loads; keys that are unclear."""

import json

import hypothesis
import pytest
from hypothesis import strategies as st

from jaxemb import errors
from jaxemb.text import json_text, wiki

_KEYS = st.sampled_from(['text', 'reviewText', 'Content', 'body'])
_VALUES = st.text() | st.none() | st.integers() | st.lists(st.text())
_RECORDS = st.lists(
  st.dictionaries(st.sampled_from(['id', 'a"b', 'n{']), _VALUES), min_size=1
)


def _read(data, block_bytes=1 << 20, columns='', head_bytes=1 << 16):
  report = wiki.ReadReport()
  extract = wiki.extractor(data[:head_bytes], path='x.json', columns=columns)
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
    ('text', 'text:review', 'is not JSON'),
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


def test_other_text_is_no_json():
  for head in (b'[Intro] words', b'{} words', b'[[link]]', b'{words} "x"'):
    assert json_text.extractor(head, 'x.txt', '') is None
  assert json_text.extractor(b'{"a" and "b"} are', 'x.txt', '') is None


@pytest.mark.parametrize(
  'head', [b'["a b", "c"]', b'"a"\n"b"\n', b'{}\n', b'[]']
)
def test_json_without_objects_is_refused(head):
  with pytest.raises(errors.UserError, match='without objects'):
    json_text.extractor(head, 'x.jsonl.gz', '')


def test_empty_objects_may_come_first():
  assert _read(b'{}\n{"text": "a b"}\n')[0] == 'a b\n'
  assert _read(b'[{}, {"text": "a b"}]')[0] == 'a b\n'
