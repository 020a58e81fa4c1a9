"""Which row of the table a document has, in each form that files have."""

import json

import jax
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.data import subsampling
from jaxemb.documents import kind, loader
from jaxemb.runtime import resources
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


def test_batches_are_the_same_of_any_threads_and_without_windows(
  tmp_path, monkeypatch
):
  rng, path = np.random.default_rng(0), tmp_path / 'text.txt'
  texts = [' '.join(rng.choice(sources.WORDS, n)) for n in [900] * 40]
  path.write_text('\n'.join(texts))
  made = sources.source(path, tmp_path, sample=0.01)
  (item,) = made.items(None, 0)
  assert 0 < item.batch.words.kept_words[0] < 20_000
  assert item.batch.words.pairs[0]
  monkeypatch.setattr(resources, 'usable_cores', lambda: 24)
  (again,) = made.items(None, 0)
  jax.tree.map(np.testing.assert_array_equal, again, item)
  for cores in 24, 1:
    monkeypatch.setattr(resources, 'usable_cores', lambda cores=cores: cores)
    plain = sources.source(path, tmp_path, sample=0.01, has_windows=False)
    (batch,) = (x.batch for x in plain.items(None, 0))
    assert not batch.words.left.any() and not batch.words.pairs[0]
    same = item.batch.words._replace(
      left=batch.words.left, right=batch.words.right, pairs=batch.words.pairs
    )
    jax.tree.map(
      np.testing.assert_array_equal, batch, item.batch._replace(words=same)
    )
  monkeypatch.setattr(made, '_most_words', lambda: 5000)
  with pytest.raises(RuntimeError, match='more words than were expected'):
    [*made.with_step(32).items(None, 0)]


def test_subsampling_counts_what_is_in_the_text_and_is_changed(tmp_path):
  path = tmp_path / 'text.txt'
  path.write_text('a b a b a c\nd c d d c b\n' * 50)
  made = sources.source(path, tmp_path)
  np.testing.assert_allclose(made.frequencies, 0.01)
  changed = made.with_passes(3, sample=0.05).with_step(32)
  keep = subsampling.keep_probabilities(made.word_counts, 0.05)
  kept = dict(zip(made.context_keys, keep, strict=True))
  first, second = (sum(map(kept.get, x)) for x in ('ababac', 'dcddcb'))
  np.testing.assert_allclose(
    changed.frequencies[:2], np.array([first, second]) / (first + second) / 50
  )
  np.testing.assert_array_equal(changed.counts, made.counts)
  kept_counts = made.word_counts * keep
  np.testing.assert_allclose(
    changed.word_frequencies, kept_counts / kept_counts.sum()
  )
  # Equal documents have their random numbers.
  texts = _words(made.with_passes(1, sample=0.05))
  assert len({tuple(x) for x in texts}) > 10
  np.testing.assert_allclose(made.frequencies, 0.01)


@pytest.mark.parametrize(
  ('words', 'epochs', 'factor'),
  [
    (66, 10, 1),
    (300, 10, (660 / 3000) ** (1 / 4)),
    (9, 9, 1.2),
    (500, 90, 0.6),
  ],
)
def test_learning_rates_fall_with_the_words_of_a_document(
  tmp_path, words, epochs, factor
):
  path = tmp_path / 'text.txt'
  path.write_text('\n'.join([' '.join(['a', 'b'] * (words // 2)), ''] * 5))
  settings = {'train.epochs': epochs, 'data.sample': 0.0}
  config = config_lib.load('documents', settings)
  (documents,) = kind.KINDS
  made = sources.source(path, tmp_path)
  assert documents.rate_factor(config, made) == pytest.approx(factor, rel=0.05)
  config.model.name = 'dm'
  assert documents.rate_factor(config, made) == 1


_PAGE = '<page><title>{}</title><ns>{}</ns>{}<text>{}</text></page>\n'


def test_what_dumps_lack_is_counted(tmp_path):
  pages = [_PAGE.format(f'T{i}', 0, '', 'a b c') for i in range(3)]
  pages += [
    _PAGE.format('R', 0, '<redirect title="T1" />', 'd'),
    _PAGE.format('Talk:T', 1, '', 'e'),
    _PAGE.format('J', 0, '<model>json</model>', 'f'),
  ]
  path = tmp_path / 'dump.xml'
  path.write_text('<mediawiki>\n' + ''.join(pages) + '<page><title>cut')
  for _ in range(2):  # the second time out of the cache
    made = sources.source(path, tmp_path)
    assert made.keys == ['T0', 'T1', 'T2']
    dropped = {k: x for k, x in made.dropped.items() if x}
    (problem,) = dropped.pop('problems')
    assert problem.startswith(f'{path}: cut after page 6')
    assert dropped.pop('lost_bytes') > 10
    assert dropped == {'redirects': 1, 'other_namespace_pages': 2}


def test_a_cache_from_before_formats_had_numbers_is_used(tmp_path):
  path = tmp_path / 'rows.jsonl'
  path.write_text('{"id": "x", "text": "a b"}\n' * 9)
  sources.source(path, tmp_path)
  (tags,) = tmp_path.rglob('documents/*/tags.json')
  stored = json.loads(tags.read_text())
  del stored['format'], stored['jaxemb']
  tags.write_text(json.dumps(stored))
  sources.source(path, tmp_path)
  assert json.loads(tags.read_text()) == stored


def test_rows_that_cannot_be_read_need_tags(tmp_path):
  rows = [f'{{"id": "x{i}", "text": "a b"}}\n' for i in range(200)]
  rows[100] = '{"id": \n'
  path = tmp_path / 'rows.jsonl'
  path.write_text(''.join(rows))
  made = sources.source(path, tmp_path, columns='tag:id')
  assert len(made.keys) == 199 and made.dropped['unreadable_rows'] == 1
  with pytest.raises(errors.UserError, match='1 rows of .*tag:COLUMN'):
    sources.source(path, tmp_path)


def test_documents_are_read_as_for_training(tmp_path):
  path = tmp_path / 'text.txt'
  text = 'sé or\r\rüb\x85er a\u2028b\r\n\nz'
  for encoding, data in ('utf-8', b'\xef\xbb\xbf'), ('utf-16', b''):
    path.write_bytes(data + text.encode(encoding))
    texts = [x for x, _ in loader.read(str(path), encoding=encoding)]
    assert texts == ['sé or', '', 'üb\x85er a\u2028b', '', 'z']
    made = sources.source(path, tmp_path, encoding=encoding)
    assert made.keys == list(map(str, range(5)))
    assert made.counts.tolist() == [2, 0, 4, 0, 1]
  path = tmp_path / 'table.csv'
  path.write_text('text\nsé\n')
  with pytest.raises(errors.UserError, match='is for lines of text'):
    sources.source(path, tmp_path, encoding='cp1252')


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
