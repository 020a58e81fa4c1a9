"""Tests of the embedded encyclopedia: bytes, XML, facts, evaluation sets."""

import bz2
import collections
import csv
import html
import json
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.toywiki import toywiki, toywiki_eval
from jaxemb.toywiki import toywiki_families as families_lib

_NAMESPACE = '{http://www.mediawiki.org/xml/export-0.10/}'


def _pages(path: pathlib.Path) -> list[tuple[str, str, bool, str]]:
  """(title, namespace key, is a redirect, wiki text) of each page."""
  pages = []
  with bz2.open(path) as file:
    for _, page in xml.etree.ElementTree.iterparse(file):
      if page.tag == _NAMESPACE + 'page':
        pages.append(
          (
            page.findtext(_NAMESPACE + 'title'),
            page.findtext(_NAMESPACE + 'ns'),
            page.find(_NAMESPACE + 'redirect') is not None,
            page.findtext(f'{_NAMESPACE}revision/{_NAMESPACE}text'),
          )
        )
  return pages


def _paragraphs(wikitext: str) -> list[str]:
  """Running text only: no templates, tables, references, headings, lists."""
  text = re.sub(r'<!--.*?-->|<ref.*?</ref>', '', wikitext, flags=re.S)
  for _ in range(2):
    text = re.sub(r'\{\{[^{}]*\}\}', '', text)
  text = re.sub(r'\{\|.*?\|\}', '', text, flags=re.S)
  text = re.sub(r'\[\[(Category|File):.*?\]\]', '', text)
  text = re.sub(r'\[\[(?:[^]|]*\|)?(.*?)\]\]', r'\1', text)
  text = html.unescape(text).replace("'''", '').replace("''", '')
  return [line for line in text.split('\n') if line and line[0] not in '=*']


def _articles(path: pathlib.Path) -> list[list[str]]:
  return [
    _paragraphs(text)
    for _, ns, is_redirect, text in _pages(path)
    if ns == '0' and not is_redirect
  ]


def _counts(articles: list[list[str]]) -> collections.Counter:
  return collections.Counter(
    word
    for article in articles
    for paragraph in article
    for word in re.findall(r'[a-z]+|[0-9]+', paragraph.lower())
  )


@pytest.fixture(scope='module')
def small(tmp_path_factory) -> toywiki.Corpus:
  return toywiki.write(tmp_path_factory.mktemp('small'), 0, 20_000)


@pytest.fixture(scope='module')
def default(tmp_path_factory) -> toywiki.Corpus:
  return toywiki.write(tmp_path_factory.mktemp('default'))


@pytest.fixture(scope='module')
def default_articles(default) -> list[list[str]]:
  return _articles(default.xml)


@pytest.fixture(scope='module')
def default_counts(default_articles) -> collections.Counter:
  return _counts(default_articles)


@pytest.fixture(scope='module')
def world() -> families_lib.World:
  return families_lib.build(0)


def _bytes(corpus: toywiki.Corpus) -> list[bytes]:
  return [path.read_bytes() for path in (corpus.xml, *corpus.eval_paths)]


def test_same_bytes_in_another_process_with_other_hashes(small, tmp_path):
  code = (
    'import pathlib, sys; from jaxemb.toywiki import toywiki; '
    'toywiki.write(pathlib.Path(sys.argv[1]), 0, 20_000)'
  )
  root = pathlib.Path(toywiki.__file__).parents[2]
  environment = {**os.environ, 'PYTHONHASHSEED': '7', 'PYTHONPATH': str(root)}
  command = [sys.executable, '-c', code, str(tmp_path)]
  subprocess.run(command, check=True, env=environment)
  manifest = json.loads((tmp_path / 'toywiki.json').read_text())
  again = toywiki.write(tmp_path, 0, 20_000)
  assert _bytes(again) == _bytes(small)
  assert manifest['settings']['corpus_words'] == 20_000


def test_seed_changes_the_text_but_not_the_facts(small, tmp_path):
  other = toywiki.write(tmp_path, 1, 20_000)
  assert other.xml.read_bytes() != small.xml.read_bytes()
  assert other.eval_paths[2].read_bytes() == small.eval_paths[2].read_bytes()


def test_words_reach_the_size_asked_for(small, default_counts):
  num_words = _counts(_articles(small.xml)).total()
  manifest = json.loads((small.xml.parent / 'toywiki.json').read_text())
  assert num_words == manifest['article_words']
  assert 20_000 <= num_words < 21_500
  total = default_counts.total()
  assert toywiki.DEFAULT_WORDS <= total < toywiki.DEFAULT_WORDS + 1500


def test_a_larger_corpus_begins_with_the_smaller_one(small, tmp_path):
  larger = toywiki.write(tmp_path, 0, 40_000)
  pages = _pages(small.xml)
  assert _pages(larger.xml)[: len(pages)] == pages


def test_xml_is_a_wellformed_dump_with_pages_to_skip(default):
  pages = _pages(default.xml)
  kinds = collections.Counter(
    (ns, is_redirect) for _, ns, is_redirect, _ in pages
  )
  assert set(kinds) == {('0', False), ('0', True), ('1', False), ('14', False)}
  assert min(kinds.values()) >= 100
  assert len({title for title, *_ in pages}) == len(pages)
  for _, ns, is_redirect, text in pages:
    skipped = ns != '0' or is_redirect
    assert skipped == ('unsigned' in text or text.startswith('#REDIRECT'))
  head = bz2.open(default.xml).read(4000).decode()
  assert '<namespace key="1" case="first-letter">Talk</namespace>' in head
  assert '<namespace key="0" case="first-letter" />' in head


def test_articles_have_the_markup_of_real_ones(small):
  articles = '\n'.join(
    text
    for _, ns, is_redirect, text in _pages(small.xml)
    if ns == '0' and not is_redirect
  )
  for markup in (
    "'''", '[[', '|', '\n== ', '{{Infobox ', '\n{| class=', '<ref name=',
    '</ref>', '[[Category:', '[[File:', '\n* [[', '<!--', '&nbsp;',
  ):  # fmt: skip
    assert markup in articles, markup


def test_paragraphs_are_plain_sentences_once_stripped(small):
  for article in _articles(small.xml):
    assert len(article) >= 2
    for paragraph in article:
      assert re.fullmatch(r"[A-Za-z0-9 ,.'\xa0]+\.", paragraph), paragraph
      assert not re.search(r'\ba [aei]', paragraph.replace('a eur', ''))


def test_known_facts_are_told(default_articles):
  """True pairs stand together in many paragraphs, false ones in few."""
  paragraphs = [set(re.findall(r'\w+', p)) for a in default_articles for p in a]
  for word, right, wrong in (
    ('Paris', 'France', 'Japan'),
    ('Japan', 'yen', 'yuan'),
    ('Israel', 'Hebrew', 'Hindi'),
    ('Denmark', 'Dane', 'Swede'),
    ('kitten', 'cat', 'dog'),
    ('eagles', 'talons', 'acorns'),
  ):
    together = sum({word, right} <= words for words in paragraphs)
    apart = sum({word, wrong} <= words for words in paragraphs)
    assert together >= 8 > 2 * apart, (word, right, together, wrong, apart)


def test_frequencies_are_zipf_like(default_counts):
  counts = np.array(sorted(default_counts.values(), reverse=True))

  def slope(first: int, last: int) -> float:
    ranks = np.arange(first, last)
    return np.polyfit(np.log(ranks), np.log(counts[first - 1 : last - 1]), 1)[0]

  assert -1.3 < slope(10, 3000) < -0.8
  assert -1.6 < slope(1, int((counts >= 5).sum())) < -0.9
  assert counts[0] / counts.sum() > 0.05
  assert 0.3 < (counts < 5).mean() < 0.7
  assert (counts >= 5).sum() > 10_000


@pytest.mark.parametrize('corpus_words', [0, toywiki.MIN_WORDS])
def test_every_evaluated_word_reaches_min_count(
  corpus_words, world, default_counts, tmp_path
):
  counts = default_counts
  if corpus_words:
    counts = _counts(_articles(toywiki.write(tmp_path, 3, corpus_words).xml))
  words = {word.lower() for word in toywiki_eval.words(world)}
  words |= {f.words['singular'] for f in world.families if f.kind == 'sense'}
  assert len(words) > 1000
  assert {word: counts[word] for word in words if counts[word] < 5} == {}


def test_analogies_are_distinct_and_right(small, world):
  section, questions = '', collections.defaultdict(list)
  for line in small.eval_paths[1].read_text().splitlines():
    if line.startswith(': '):
      section = line[2:]
    else:
      questions[section].append(tuple(line.split()))
  assert list(questions) == list(toywiki_eval.RELATIONS)
  for name, lines in questions.items():
    assert len(lines) >= 80, name
    assert len(set(lines)) == len(lines)
    assert all(len({w.lower() for w in line}) == 4 for line in lines), name
    second_of = collections.defaultdict(set)
    for a, b, c, d in lines:
      second_of[a].add(b)
      second_of[c].add(d)
    assert all(len(seconds) == 1 for seconds in second_of.values()), name
  assert {line[:2] for line in questions['capital-country']} >= {
    ('Paris', 'France'),
    ('Tokyo', 'Japan'),
  }
  assert ('goose', 'geese') not in {
    line[:2] for line in questions['gram1-singular-plural']
  }
  pairs = {line[:2] for line in questions['gram1-singular-plural']}
  assert {('wolf', 'wolves'), ('cherry', 'cherries')} <= pairs
  assert ('swift', 'swiftest') in {
    line[:2] for line in questions['gram3-adjective-superlative']
  }


def test_asked_words_have_one_home(world):
  """No asked word is also in another family, whatever its letters' case."""
  homes = collections.Counter(
    word.lower() for family in world.families for word in family.words.values()
  )
  asked = toywiki_eval.words(world)
  assert all(homes[word.lower()] == 1 for word in asked)
  associates = {
    word.lower() for family in world.families for word in family.associates
  }
  relation_words = {
    family.words[role].lower()
    for family in world.families
    for role in family.asked
    if role != 'mass'
  }
  assert associates & relation_words == set()


def test_similarity_is_graded_by_the_taxonomy(small, world):
  lines = small.eval_paths[0].read_text().splitlines()
  rows = [line.split('\t') for line in lines]
  assert len({(a, b) for a, b, _ in rows}) == len(rows) >= 400
  place = {
    word: family.place
    for family in world.families
    for word in family.words.values()
    if family.kind == 'noun'
  }
  for a, b, score in rows:
    shared = len(set(place[a]) & set(place[b]))
    assert float(score) == (0.5, 3.5, 6.5, 9.0)[shared]


def test_categories_have_the_usual_columns(small):
  with open(small.eval_paths[2], newline='') as file:
    rows = list(csv.DictReader(file))
  assert list(rows[0]) == ['', 'category', 'word']
  assert len({row['word'] for row in rows}) == len(rows) > 200
  sizes = collections.Counter(row['category'] for row in rows)
  assert len(sizes) >= 20 and min(sizes.values()) >= 8
  assert {'category': 'metal', 'word': 'iron'}.items() <= max(
    rows, key=lambda row: row['word'] == 'iron'
  ).items()


def test_senses_have_the_layout_of_scws(small):
  levels = collections.defaultdict(list)
  for number, line in enumerate(small.eval_paths[3].read_text().splitlines()):
    fields = line.split('\t')
    assert len(fields) == 18 and fields[0] == str(number + 1)
    ratings = [float(field) for field in fields[8:]]
    assert float(fields[7]) == pytest.approx(np.mean(ratings))
    assert all(0 <= rating <= 10 for rating in ratings)
    for word, context in ((fields[1], fields[5]), (fields[3], fields[6])):
      assert re.findall(r'<b> (\S+) </b>', context) == [word]
      assert len(context.split()) > 40
    levels[fields[1] == fields[3]].append(float(fields[7]))
  assert min(len(group) for group in levels.values()) >= 80
  same_word = np.array(levels[True])
  assert (same_word > 7).sum() >= 100 and (same_word < 3).sum() >= 100


def test_contexts_of_senses_are_not_copied_from_the_corpus(
  small, default_articles
):
  def sentences(text: str) -> set[str]:
    plain = text.replace('<b> ', '').replace(' </b>', '').replace(' ,', ',')
    return {s.strip() for s in re.split(r'\s?\.', plain)}

  told = set()
  for article in default_articles:
    told |= sentences(' '.join(article))
  asked = set()
  for line in small.eval_paths[3].read_text().splitlines():
    asked |= sentences(' '.join(line.split('\t')[5:7]))
  assert len(asked & told) / len(asked) < 0.05


def test_reuses_what_is_intact_and_repairs_what_is_damaged(tmp_path):
  corpus = toywiki.write(tmp_path, 0, 5_000)
  before = _bytes(corpus)
  stamps = [
    path.stat().st_mtime_ns for path in (corpus.xml, *corpus.eval_paths)
  ]
  (tmp_path / 'mine.txt').write_text('kept')
  assert toywiki.write(tmp_path, 0, 5_000) == corpus
  assert stamps == [
    path.stat().st_mtime_ns for path in (corpus.xml, *corpus.eval_paths)
  ]
  damaged = bytearray(before[0])
  damaged[len(damaged) // 2] ^= 1
  corpus.xml.write_bytes(damaged)
  toywiki.write(tmp_path, 0, 5_000)
  assert _bytes(corpus) == before
  corpus.eval_paths[1].unlink()
  toywiki.write(tmp_path, 0, 5_000)
  assert _bytes(corpus) == before
  (tmp_path / 'toywiki.json').write_text('[]')
  toywiki.write(tmp_path, 0, 5_000)
  assert _bytes(corpus) == before
  toywiki.write(tmp_path, 0, 6_000)
  assert _bytes(corpus)[0] != before[0]
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    'eval', 'mine.txt', 'toywiki-pages-articles.xml.bz2', 'toywiki.json',
  ]  # fmt: skip


def test_unusable_settings_are_named(tmp_path):
  with pytest.raises(errors.UserError, match='seed -1'):
    toywiki.write(tmp_path, -1)
  with pytest.raises(errors.UserError, match='corpus_words 0'):
    toywiki.write(tmp_path, 0, 0)
  (tmp_path / 'file').write_text('')
  with pytest.raises(errors.UserError, match='choose another cache folder'):
    toywiki.write(tmp_path / 'file' / 'inside', 0, 1000)
