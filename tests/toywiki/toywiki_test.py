"""Tests of the embedded encyclopedia: bytes, XML, facts, evaluation sets."""

import bz2
import collections
import csv
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.toywiki import toywiki

ROOT = pathlib.Path(toywiki.__file__).parents[2]
_NAMESPACE = '{http://www.mediawiki.org/xml/export-0.10/}'


def _pages(path):
  """(title, namespace key, is a redirect, wikitext) of each page."""
  with bz2.open(path) as file:
    for _, page in xml.etree.ElementTree.iterparse(file):
      if page.tag == _NAMESPACE + 'page':
        title = page.findtext(_NAMESPACE + 'title')
        ns = page.findtext(_NAMESPACE + 'ns')
        is_redirect = page.find(_NAMESPACE + 'redirect') is not None
        text = page.findtext(f'{_NAMESPACE}revision/{_NAMESPACE}text')
        yield title, ns, is_redirect, text


def _paragraphs(wikitext):
  """Running text only: no templates, tables, references, headings, lists."""
  text = re.sub(r'<!--.*?-->|<ref.*?</ref>', '', wikitext, flags=re.S)
  for _ in range(2):
    text = re.sub(r'\{\{[^{}]*\}\}', '', text)
  text = re.sub(r'\{\|.*?\|\}', '', text, flags=re.S)
  text = re.sub(r'\[\[(Category|File):.*?\]\]', '', text)
  text = re.sub(r'\[\[(?:[^]|]*\|)?(.*?)\]\]', r'\1', text)
  text = text.replace('&nbsp;', ' ').replace("'''", '').replace("''", '')
  return [line for line in text.split('\n') if line and line[0] not in '=*']


def _articles(path):
  return [
    _paragraphs(text)
    for _, ns, is_redirect, text in _pages(path)
    if ns == '0' and not is_redirect
  ]


def _counts(articles):
  text = ' '.join(paragraph for article in articles for paragraph in article)
  return collections.Counter(re.findall(r'[a-z]+|[0-9]+', text.lower()))


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  """The smallest one with enough examples of each evaluated word."""
  return toywiki.write(tmp_path_factory.mktemp('corpus'), 0, 1_000_000)


@pytest.fixture(scope='module')
def articles(corpus):
  return _articles(corpus.xml)


@pytest.fixture(scope='module')
def counts(articles):
  return _counts(articles)


@pytest.fixture(scope='module')
def world():
  return toywiki.build_world(0)


def _lines(corpus, index):
  return corpus.eval_paths[index].read_text().splitlines()


def _bytes(corpus):
  return [path.read_bytes() for path in (corpus.xml, *corpus.eval_paths)]


def test_bytes_depend_on_seed_and_size_alone(tmp_path):
  code = (
    'import pathlib, sys; from jaxemb.toywiki import toywiki; '
    'toywiki.write(pathlib.Path(sys.argv[1]), 0, 20_000)'
  )
  environment = {**os.environ, 'PYTHONHASHSEED': '7', 'PYTHONPATH': str(ROOT)}
  command = [sys.executable, '-c', code, str(tmp_path / 'process')]
  subprocess.run(command, check=True, env=environment)
  first = toywiki.write(tmp_path / 'process', 0, 20_000)
  assert _bytes(toywiki.write(tmp_path / 'same', 0, 20_000)) == _bytes(first)
  seed1 = toywiki.write(tmp_path / 'seed', 1, 20_000)
  differs = [a != b for a, b in zip(_bytes(seed1), _bytes(first), strict=True)]
  assert differs == [True, True, True, False, True]  # all but the categories
  larger = toywiki.write(tmp_path / 'larger', 0, 40_000)
  pages = list(_pages(first.xml))
  assert list(_pages(larger.xml))[: len(pages)] == pages


def test_words_reach_the_size_asked_for(counts):
  assert 1_000_000 <= counts.total() < 1_001_500


def test_a_dump_with_markup_and_pages_to_skip(corpus):
  pages = list(_pages(corpus.xml))
  kinds = collections.Counter(page[1:3] for page in pages)
  assert set(kinds) == {('0', False), ('0', True), ('1', False), ('14', False)}
  assert min(kinds.values()) >= 50
  assert len({title for title, *_ in pages}) == len(pages)
  for _, ns, is_redirect, text in pages:
    skipped = ns != '0' or is_redirect
    assert skipped == ('unsigned' in text or text.startswith('#REDIRECT'))
  text = '\n'.join(page[3] for page in pages if page[1:3] == ('0', False))
  for markup in (
    "'''", '[[', '|', '\n== ', '{{Infobox ', '\n{| class=', '<ref name=',
    '</ref>', '[[Category:', '[[File:', '\n* [[', '<!--', '&nbsp;',
  ):  # fmt: skip
    assert markup in text, markup


def test_paragraphs_are_plain_sentences_once_stripped(articles):
  for article in articles[:200]:
    assert len(article) >= 2
    for paragraph in article:
      assert re.fullmatch(r"[A-Za-z0-9 ,.']+\.", paragraph), paragraph
      assert not re.search(r'\ba [aei]', paragraph.replace('a eur', ''))


def test_known_facts_are_in_the_text(articles):
  """True pairs are together in many paragraphs, false ones in few."""
  paragraphs = [set(re.findall(r'\w+', p)) for a in articles for p in a]
  for word, right, wrong in (
    ('Paris', 'France', 'Japan'),
    ('Japan', 'yen', 'yuan'),
    ('Israel', 'Hebrew', 'Hindi'),
    ('Denmark', 'Dane', 'Swede'),
    ('kitten', 'cat', 'dog'),
    ('eagles', 'talons', 'acorns'),
  ):
    num_right = sum({word, right} <= words for words in paragraphs)
    num_wrong = sum({word, wrong} <= words for words in paragraphs)
    assert num_right >= 5 > 2 * num_wrong, (word, num_right, num_wrong)


def test_frequencies_follow_zipf(counts):
  ordered = np.array(sorted(counts.values(), reverse=True))
  for first, last, low, high in (
    (10, 3000, -1.3, -0.8),
    (1, 10_000, -1.6, -0.9),
  ):
    ranks = np.arange(first, last)
    fit = np.polyfit(np.log(ranks), np.log(ordered[first - 1 : last - 1]), 1)
    assert low < fit[0] < high
  assert 0.3 < (ordered < 5).mean() < 0.7


def test_asked_words_are_frequent_and_have_no_other_use(world, counts):
  relations = {
    w for x in toywiki.analogies(world).values() for p in x for w in p
  }
  asked = {word.lower() for word, _ in toywiki.nouns(world)}
  asked |= {word.lower() for word in relations}
  senses = {f.words['singular'] for f in world.families if f.kind == 'sense'}
  assert len(asked) > 1000
  assert {word for word in asked | senses if counts[word] < 5} == set()
  uses = collections.Counter(
    word.lower() for family in world.families for word in family.words.values()
  )
  data = world.data
  shared = [data[key] for key in ('common', 'cells', 'he', 'she')]
  lexicon = list(data['lexicon'].values())
  uses.update(
    set(
      re.findall('[a-z]+', repr([shared, lexicon]).replace('\\n', ' ').lower())
    )
  )
  assert {word for word in asked if uses[word] != 1} == set()
  associates = {x.lower() for f in world.families for x in f.associates}
  assert associates.isdisjoint(word.lower() for word in relations)


def test_analogies_are_distinct_and_right(corpus, world):
  questions, section = collections.defaultdict(list), ''
  for line in _lines(corpus, 1):
    if line.startswith(': '):
      section = line[2:]
    else:
      questions[section].append(tuple(line.split()))
  assert list(questions) == list(world.data['analogies'])
  for name, lines in questions.items():
    assert len(set(lines)) == len(lines) >= 80, name
    assert all(len({w.lower() for w in line}) == 4 for line in lines), name
    pairs = {line[:2] for line in lines} | {line[2:] for line in lines}
    assert len({first for first, _ in pairs}) == len(pairs), name
  for name, right, wrong in (
    ('capital-country', ('Tokyo', 'Japan'), ('Paris', 'Japan')),
    ('gram1-singular-plural', ('wolf', 'wolves'), ('goose', 'geese')),
    (
      'gram3-adjective-superlative',
      ('swift', 'swiftest'),
      ('swift', 'swifter'),
    ),
  ):
    pairs = {line[:2] for line in questions[name]}
    assert right in pairs and wrong not in pairs


def test_similarity_and_categories_follow_the_taxonomy(corpus, world):
  taxonomy = dict(toywiki.nouns(world))
  rows = [line.split('\t') for line in _lines(corpus, 0)]
  assert len({(a, b) for a, b, _ in rows}) == len(rows) >= 400
  for a, b, score in rows:
    shared = len(set(taxonomy[a]) & set(taxonomy[b]))
    assert float(score) == (0.5, 3.5, 6.5, 9.0)[shared]
  categories = list(csv.DictReader(_lines(corpus, 2)))
  assert list(categories[0]) == ['', 'category', 'word']
  assert {row['word']: row['category'] for row in categories} == {
    word: levels[0] for word, levels in taxonomy.items()
  }
  assert taxonomy['iron'] == ['metal', 'mineral', 'matter']


def test_senses_have_the_layout_of_scws(corpus, articles):
  levels, asked = collections.defaultdict(list), []
  for number, line in enumerate(_lines(corpus, 3), start=1):
    fields = line.split('\t')
    assert len(fields) == 18 and fields[0] == str(number)
    ratings = [float(field) for field in fields[8:]]
    assert float(fields[7]) == pytest.approx(np.mean(ratings))
    assert all(0 <= rating <= 10 for rating in ratings)
    for word, context in ((fields[1], fields[5]), (fields[3], fields[6])):
      assert re.findall(r'<b> (\S+) </b>', context) == [word]
      asked += re.split(r' \.', re.sub(r' ?</?b> ?| (?=,)', ' ', context))
    levels[fields[1] == fields[3]].append(float(fields[7]))
  assert min(len(group) for group in levels.values()) >= 80
  same_word = np.array(levels[True])
  assert (same_word > 7).sum() >= 100 and (same_word < 3).sum() >= 100
  text = ' '.join(' '.join(article) for article in articles).split('.')
  corpus_sentences = {' '.join(x.split()) for x in text}
  asked = {' '.join(x.replace(' ,', ',').split()) for x in asked}
  assert len(asked & corpus_sentences) / len(asked) < 0.05


def test_reuses_what_is_intact_and_repairs_what_is_damaged(tmp_path):
  corpus = toywiki.write(tmp_path, 0, 5_000)
  before = _bytes(corpus)
  stamps = [path.stat().st_mtime_ns for path in tmp_path.rglob('*')]
  assert toywiki.write(tmp_path, 0, 5_000) == corpus
  assert stamps == [path.stat().st_mtime_ns for path in tmp_path.rglob('*')]
  (tmp_path / 'mine.txt').write_text('mine')
  damaged = bytearray(before[0])
  damaged[len(damaged) // 2] ^= 1
  for damage in (
    lambda: corpus.xml.write_bytes(damaged),
    lambda: corpus.eval_paths[1].unlink(),
    lambda: (tmp_path / 'toywiki.json').write_text('[]'),
  ):
    damage()
    toywiki.write(tmp_path, 0, 5_000)
    assert _bytes(corpus) == before
  toywiki.write(tmp_path, 0, 6_000)
  assert _bytes(corpus)[0] != before[0]
  names = ['eval', 'mine.txt', corpus.xml.name, 'toywiki.json']
  assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_unusable_settings_are_named(tmp_path):
  (tmp_path / 'file').write_text('')
  for folder, seed, words, message in (
    ('a', -1, 1000, 'seed -1'),
    ('a', 0, 0, 'corpus_words 0'),
    ('file/inside', 0, 1000, 'choose another folder'),
  ):
    with pytest.raises(errors.UserError, match=message):
      toywiki.write(tmp_path / folder, seed, words)
