"""The embedded encyclopedia: bytes, markup, facts and frequencies."""

import bz2
import collections
import functools
import hashlib
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.text import wiki
from jaxemb.text.toywiki import toywiki


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


def _bytes(corpus):
  return [path.read_bytes() for path in (corpus.xml, *corpus.eval_paths)]


def test_bytes_depend_on_seed_and_size_alone(tmp_path):
  first = toywiki.write(tmp_path / 'first', 0, 20_000)
  xml, *sets = _bytes(first)
  digest = hashlib.sha256(bz2.decompress(xml) + b''.join(sets)).hexdigest()
  # Raise toywiki.VERSION if it changes.
  assert digest.startswith('c19002441cc87ab0')
  seed1 = toywiki.write(tmp_path / 'seed', 1, 20_000)
  differs = [a != b for a, b in zip(_bytes(seed1), _bytes(first), strict=True)]
  assert differs == [True, True, True, False, True]  # all but the categories
  larger = toywiki.write(tmp_path / 'larger', 0, 40_000)
  pages = _pages(first)
  assert _pages(larger)[: len(pages)] == pages


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
