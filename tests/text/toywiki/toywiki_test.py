"""The embedded encyclopedia: bytes, markup, facts and frequencies."""

import collections
import gzip
import hashlib
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from jaxemb.text import wiki
from jaxemb.text.toywiki import toywiki


def _pages(corpus):
  blocks = [gzip.decompress(corpus.xml.read_bytes())]
  return list(wiki.pages(blocks, wiki.ReadReport()))


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  """The smallest one with enough examples of each evaluated word."""
  return toywiki.write(tmp_path_factory.mktemp('corpus'), 1_000_000)


@pytest.fixture(scope='module')
def pages(corpus):
  return _pages(corpus)


@pytest.fixture(scope='module')
def paragraphs(pages):
  """Running text of the articles."""
  articles = [x.text for x in pages if x.namespace == 0 and not x.redirect]
  lines = '\n'.join(map(wiki.plain, articles)).split('\n')
  return [line for line in lines if line.endswith('.')]


def _bytes(corpus):
  return [path.read_bytes() for path in (corpus.xml, *corpus.eval_paths)]


def test_bytes_depend_on_the_size_alone(tmp_path):
  first = toywiki.write(tmp_path, 20_000)
  xml, *sets = _bytes(first)
  digest = hashlib.sha256(gzip.decompress(xml) + b''.join(sets)).hexdigest()
  # Raise toywiki.VERSION if it changes.
  assert digest.startswith('c19002441cc87ab0')
  larger = toywiki.write(tmp_path, 40_000)
  pages = _pages(first)
  assert _pages(larger)[: len(pages)] == pages


@pytest.mark.slow
def test_a_dump_is_well_formed_and_has_pages_to_skip(corpus, pages):
  ElementTree.parse(gzip.open(corpus.xml))
  kinds = collections.Counter((page.namespace, page.redirect) for page in pages)
  assert set(kinds) == {(0, False), (0, True), (1, False), (14, False)}
  assert min(kinds.values()) >= 50
  assert len({page.title for page in pages}) == len(pages)


@pytest.mark.slow
def test_frequencies(paragraphs):
  world = toywiki.build_world()
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
  corpus = toywiki.write(tmp_path, 5_000)
  before, stamp = _bytes(corpus), corpus.xml.stat().st_mtime_ns
  assert toywiki.write(tmp_path, 5_000) == corpus
  assert corpus.xml.stat().st_mtime_ns == stamp
  corpus.xml.write_bytes(before[0][:-1] + b'?')
  assert toywiki.write(tmp_path, 5_000) == corpus
  assert _bytes(corpus) == before


def test_evaluation_sets_are_those_of_any_corpus(tmp_path):
  sets = toywiki.write_evaluations(tmp_path / 'alone')
  assert not list(tmp_path.rglob('*.gz'))
  corpus = toywiki.write(tmp_path, 5_000)
  for alone, beside in zip(sets, corpus.eval_paths, strict=True):
    assert alone.name == beside.name
    assert alone.read_bytes() == beside.read_bytes()
