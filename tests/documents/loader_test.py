"""Which row of the table a document has, in each form that files have."""

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from jaxemb import errors
from tests.documents import sources

TEXTS = ['a b c', '', 'b c d', '...', 'c d e', 'a']


def _sorted(texts):
  return [sorted(x.replace('.', '').split()) for x in texts]


def _words(made):
  (item,) = made.items(None, 0)
  return sources.words_of(made, item)


@pytest.mark.parametrize('end', ['\n', '\r\n', '\r'])
def test_every_line_is_a_document(tmp_path, end):
  path = tmp_path / 'text.txt'
  path.write_bytes(end.join(TEXTS).encode())
  made = sources.source(path, tmp_path)
  assert made.keys == list(map(str, range(len(TEXTS))))
  assert _words(made) == _sorted(TEXTS)
  assert made.counts.tolist() == [len(x) for x in _sorted(TEXTS)]
  for cut in made, made.with_step(64):
    np.testing.assert_allclose(cut.frequencies, made.counts / 10)
  # Words that are left out leave their documents.
  made = sources.source(path, tmp_path, min_count=2)
  assert len(made.keys) == len(TEXTS) and made.context_keys == list('cabd')
  assert made.counts.tolist() == [3, 0, 3, 0, 2, 1]


def test_files_and_long_documents(tmp_path):
  rng = np.random.default_rng(0)
  texts = [
    ' '.join(rng.choice(sources.WORDS, n)) for n in (3, 9000, 0, 5, 5000, 1)
  ]
  folder = tmp_path / 'texts'
  folder.mkdir()
  (folder / 'a.txt').write_text('\n'.join(texts[:3]))  # ends with a line end
  (folder / 'b.txt').write_text('\n'.join(texts[3:]) + '\n')
  made = sources.source(folder, tmp_path)
  assert len(made.corpus.blocks.words) > 3  # documents are cut
  # A last line without anything is none.
  expected = _sorted([*texts[:2], *texts[3:]])
  assert _words(made) == expected


def test_pieces_are_cut_between_documents(tmp_path):
  texts = [f'word{i % 7} ' * (i % 5) for i in range(40_000)]
  path = tmp_path / 'text.txt'
  path.write_bytes('\r\n'.join(texts).encode())
  made = sources.source(path, tmp_path, part_words=2048)
  assert len({*made.corpus.blocks.pieces}) > 3
  assert len(made.keys) == len(texts)
  assert made.counts.tolist() == [i % 5 for i in range(len(texts))]
  items = [sources.words_of(made, x) for x in made.items(None, 0)]
  every = [sorted(sum(x, [])) for x in zip(*items, strict=True)]
  assert every == _sorted(texts)


@pytest.mark.parametrize('form', ['csv', 'tsv', 'jsonl', 'parquet'])
def test_rows_with_a_tag_are_documents(tmp_path, form):
  texts, tags = [*TEXTS, 'e\nf'], ['x', 'y', 'x', '7', 'z', 'y', 'x']
  path = tmp_path / f'rows.{form}'
  rows = [{'id': x, 'body': y} for x, y in zip(tags, texts, strict=True)]
  if form == 'parquet':
    parquet.write_table(pa.table({'id': tags, 'body': texts}), path)
  elif form == 'jsonl':
    path.write_text(''.join(json.dumps(x) + '\n' for x in rows))
  else:
    sign = {'csv': ',', 'tsv': '\t'}[form]
    lines = [f'{x["id"]}{sign}"{x["body"]}"\n' for x in rows]
    path.write_text(f'id{sign}body\n' + ''.join(lines))
  made = sources.source(path, tmp_path, columns='tag:id,text:body')
  # Documents with a tag share its row.
  assert made.keys == ['x', 'y', '7', 'z']
  assert _words(made) == _sorted(['a b c b c d e f', 'a', '', 'c d e'])
  assert made.counts.tolist() == [8, 1, 0, 3]
  # By its name, and with numbers in place of tags.
  made = sources.source(path, tmp_path)
  assert made.keys == list(map(str, range(7)))
  assert _words(made) == _sorted(texts)
  assert (
    made.fingerprint
    != sources.source(path, tmp_path, columns='tag:id,text:body').fingerprint
  )


def test_articles_of_the_embedded_corpus(tmp_path):
  made = sources.source('toywiki:20000', tmp_path)
  assert len({*made.keys}) == len(made.keys) > 20
  assert made.keys[0] == 'Translating' or made.counts.min() > 10
  assert made.counts.sum() == made.corpus.num_words


@pytest.mark.parametrize(
  ('name', 'text', 'settings', 'message'),
  [
    ('a.txt', '<doc id="1">\na b\n</doc>\n', {}, 'JSON lines'),
    ('a.csv', 'id,value\n1,2\n', {}, '--config.data.columns=text:COLUMN'),
    ('a.csv', 'tag,text\n,a b\n', {}, 'without a tag'),
    ('a.csv', 'x,text\n1,a b\n', {'columns': 'text:y'}, "column 'y'"),
  ],
)
def test_what_is_no_document_is_refused(
  tmp_path, name, text, settings, message
):
  (tmp_path / name).write_text(text)
  with pytest.raises(errors.UserError, match=message) as caught:
    sources.source(tmp_path / name, tmp_path, **settings)
  assert '\n' not in str(caught.value)


def test_files_of_different_forms_are_refused(tmp_path):
  folder = tmp_path / 'both'
  folder.mkdir()
  (folder / 'a.txt').write_text('a b\n')
  (folder / 'b.csv').write_text('text\na b\n')
  with pytest.raises(errors.UserError, match='different forms'):
    sources.source(folder, tmp_path)
