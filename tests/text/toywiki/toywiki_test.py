"""Tests of the embedded encyclopedia: bytes, XML, facts, evaluation sets."""

import bz2
import collections
import functools
import os
import pathlib
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.evaluation import benchmarks
from jaxemb.text import wiki
from jaxemb.text.toywiki import toywiki

ROOT = pathlib.Path(toywiki.__file__).parents[3]


def _pages(corpus):
  blocks = [bz2.decompress(corpus.xml.read_bytes())]
  return list(wiki.pages(blocks, wiki.ReadReport()))


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  """The smallest one with enough examples of each evaluated word."""
  return toywiki.write(tmp_path_factory.mktemp('corpus'), 0, 1_000_000)


@pytest.fixture(scope='module')
def pages(corpus):
  return _pages(corpus)


@pytest.fixture(scope='module')
def paragraphs(pages):
  """Running text of the articles."""
  articles = [x.text for x in pages if x.namespace == 0 and not x.redirect]
  lines = '\n'.join(map(wiki.plain, articles)).split('\n')
  return [line for line in lines if line.endswith('.')]


_world = functools.cache(toywiki.build_world)


@pytest.fixture(autouse=True)
def world(monkeypatch):
  """That of seed 0; each is built once."""
  monkeypatch.setattr(toywiki, 'build_world', _world)
  return _world(0)


def _items(corpus, index):
  """Of an evaluation set, the words and the label of each item."""
  found = benchmarks.read(corpus.eval_paths[index])
  assert found.malformed == found.blank == found.repeated == 0
  return list(zip(found.words, found.labels, strict=True))


def _bytes(corpus):
  return [path.read_bytes() for path in (corpus.xml, *corpus.eval_paths)]


@pytest.mark.slow
def test_bytes_depend_on_seed_and_size_alone(tmp_path):
  code = (
    'import pathlib, sys; from jaxemb.text.toywiki import toywiki; '
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
  pages = _pages(first)
  assert _pages(larger)[: len(pages)] == pages


def test_a_dump_with_markup_and_pages_to_skip(corpus, pages):
  ElementTree.parse(bz2.open(corpus.xml))  # well-formed
  kinds = collections.Counter((page.namespace, page.redirect) for page in pages)
  assert set(kinds) == {(0, False), (0, True), (1, False), (14, False)}
  assert min(kinds.values()) >= 50
  assert len({page.title for page in pages}) == len(pages)
  for page in pages:
    skipped = page.namespace != 0 or page.redirect
    is_marked = 'unsigned' in page.text or page.text.startswith('#REDIRECT')
    assert skipped == is_marked
  text = '\n'.join(page.text for page in pages)
  for markup in (
    "'''", '[[', '|', '\n== ', '{{Infobox ', '\n{| class=', '<ref name=',
    '</ref>', '[[Category:', '[[File:', '\n* [[', '<!--', '&nbsp;',
  ):  # fmt: skip
    assert markup in text, markup


def test_text_is_plain_and_has_the_facts(paragraphs):
  """True pairs are together in many paragraphs, false ones in few."""
  for paragraph in paragraphs[:1000]:
    assert re.fullmatch(r"[A-Za-z0-9 ,.']+\.", paragraph), paragraph
    assert not re.search(r'\ba [aei]', paragraph.replace('a eur', ''))
  sets = [set(re.findall(r'\w+', paragraph)) for paragraph in paragraphs]
  for word, right, wrong in (
    ('Paris', 'France', 'Japan'), ('Japan', 'yen', 'yuan'),
    ('Denmark', 'Dane', 'Swede'), ('kitten', 'cat', 'dog'),
    ('eagles', 'talons', 'acorns'),
  ):  # fmt: skip
    num_right = sum({word, right} <= words for words in sets)
    num_wrong = sum({word, wrong} <= words for words in sets)
    assert num_right >= 5 > 2 * num_wrong, (word, num_right, num_wrong)


def test_frequencies(paragraphs, world):
  text = ' '.join(paragraphs).lower()
  counts = collections.Counter(re.findall(r'[a-z]+|[0-9]+', text))
  assert 1_000_000 <= counts.total() < 1_001_500
  ordered = np.array(sorted(counts.values(), reverse=True))
  ranks = np.arange(10, 3000)
  slope = np.polyfit(np.log(ranks), np.log(ordered[9:2999]), 1)[0]
  assert -1.3 < slope < -0.8  # Zipf
  assert 0.3 < (ordered < 5).mean() < 0.7
  relations = toywiki.analogies(world).values()
  related = {w.lower() for pairs in relations for pair in pairs for w in pair}
  asked = {word.lower() for word, _ in toywiki.nouns(world)} | related
  senses = {f.words['singular'] for f in world.families if f.kind == 'sense'}
  assert len(asked) > 1000
  assert {word for word in asked | senses if counts[word] < 5} == set()


def test_analogies_are_distinct_and_right(corpus, world):
  questions = collections.defaultdict(list)
  for words, name in _items(corpus, 1):
    assert len({word.lower() for word in words}) == 4, words
    questions[name].append(words)
  assert list(questions) == list(world.data['analogies'])
  pairs = {name: {x[:2] for x in each} for name, each in questions.items()}
  for name, each in questions.items():
    assert len(set(each)) == len(each) >= 80, name
    assert len({first for first, _ in pairs[name]}) == len(pairs[name]), name
  assert ('Tokyo', 'Japan') in pairs['capital-country']
  assert ('wolf', 'wolves') in pairs['gram1-singular-plural']
  assert ('goose', 'geese') not in pairs['gram1-singular-plural']
  assert ('swift', 'swiftest') in pairs['gram3-adjective-superlative']


def test_similarity_and_categories_follow_the_taxonomy(corpus, world):
  taxonomy = dict(toywiki.nouns(world))
  assert taxonomy['iron'] == ['metal', 'mineral', 'matter']
  ratings = _items(corpus, 0)
  assert len({words for words, _ in ratings}) == len(ratings) >= 400
  for (a, b), rating in ratings:
    shared = len(set(taxonomy[a]) & set(taxonomy[b]))
    assert rating == (0.5, 3.5, 6.5, 9.0)[shared]
  assert _items(corpus, 2) == [((x,), taxonomy[x][0]) for x in taxonomy]


def test_senses_have_the_layout_of_scws(corpus, paragraphs):
  levels, sentences = collections.defaultdict(list), set()
  lines = corpus.eval_paths[3].read_text().splitlines()
  for number, line in enumerate(lines, start=1):
    fields = line.split('\t')
    assert len(fields) == 18 and fields[0] == str(number)
    ratings = [float(field) for field in fields[8:]]
    assert float(fields[7]) == pytest.approx(np.mean(ratings))
    assert all(0 <= rating <= 10 for rating in ratings)
    for word, context in ((fields[1], fields[5]), (fields[3], fields[6])):
      assert re.findall(r'<b> (\S+) </b>', context) == [word]
      plain = re.sub(r'</?b> ', '', context).replace(' ,', ',')
      sentences |= set(plain.split(' . '))
    levels[fields[1] == fields[3]].append(float(fields[7]))
  assert len(levels[False]) >= 80
  assert sum(x > 7 for x in levels[True]) >= 100
  assert sum(x < 3 for x in levels[True]) >= 100
  copied = sentences & set(' '.join(paragraphs).split('. '))
  assert len(copied) / len(sentences) < 0.05


def test_reuses_what_is_intact_and_repairs_what_is_damaged(tmp_path):
  corpus = toywiki.write(tmp_path, 0, 5_000)
  before = _bytes(corpus)
  stamps = [path.stat().st_mtime_ns for path in tmp_path.rglob('*')]
  assert toywiki.write(tmp_path, 0, 5_000) == corpus
  assert stamps == [path.stat().st_mtime_ns for path in tmp_path.rglob('*')]
  (tmp_path / 'mine.txt').write_text('mine')
  damaged = before[0][:-1] + b'?'
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
  for folder, seed, words, message in (
    ('a', -1, 1000, 'seed -1'),
    ('a', 0, 0, 'corpus_words 0'),
    ('mine.txt/inside', 0, 1000, 'choose another folder'),
  ):
    with pytest.raises(errors.UserError, match=message):
      toywiki.write(tmp_path / folder, seed, words)
