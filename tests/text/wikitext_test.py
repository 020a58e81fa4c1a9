"""Wikitext: each rule, hostile nesting, and genuine articles."""

import bz2
import time

import pytest

from jaxemb.text import wiki


@pytest.mark.parametrize(
  'source, expected',
  [
    ('A [[dog]]s and [[Felis|cats]].', 'A dogs and cats.'),
    ('[[New York (state)|]], [[Help:Foo (bar)|]]', 'New York, Foo'),
    ('[[:Category:Dogs]] [[:File:A.png|a file]]', 'Category:Dogs a file'),
    ('[[Category:Dogs|x]]A[[de:Hund]][[zh-min-nan:Káu]]', 'A'),
    ('[[CSI: Miami]] [[wikt:dog|dog]]', 'CSI: Miami dog'),
    ('A {{t|{{u|{{v}}}}|x=[[y]]}}B', 'A B'),
    ('{{a|{{b|\n|}}}}x', 'x'),
    ('A {{{1|{{b}}}}}C', 'A C'),
    ('a }} b ]] c', 'a  b  c'),
    ('lost {{cite|x\nkept', 'lost kept'),
    ('a [[b c\n\nd [[e]] f', 'a b c\nd e f'),
    ('a\n{| class="x"\n|-\n| b\n{|\n| c\n|}\n| d\n|}\ne', 'a\ne'),
    ('{{start}}{| class="x"\n| b\n|}\ne', 'e'),
    ('{{t|\n{| a\n|}}}b', 'b'),
    ('{{t|\n{| a\n|}} b }}c', 'c'),
    ('{| a\n| {{t|\n|}} b\n|}\nc', 'c'),
    ('a\n{| style="x"\n| b\n\n! c !! d\nwords', 'a\nwords'),
    ('[[File:A.jpg|thumb|A [[dog]] and [[a|b]] [http://x y]]]Z', 'Z'),
    ('[[Image:A.jpg]]\n[[file : A.jpg|x]]Z', 'Z'),
    ('[http://x.org/a?b=c a label] [//x.org] https://y.org z', 'a label   z'),
    ('[http://x a [[dog]] here]', 'a dog here'),
    ("'''A''' ''b'' '''''c''''' d's '''e''''s", "A b c d's e's"),
    ('== H ==\n===I===\ntext', 'H\nI\ntext'),
    ('* a\n** b\n# c\n; d\n: e\n#* f', 'a\nb\nc\nd\ne\nf'),
    ('one\ntwo\n\nthree', 'one two\nthree'),
    ('a<ref>x [[y]]</ref>b<ref name="n" />c<REF name=m>{{z}}</REF>d', 'abcd'),
    ('a<ref>b\n\nc <!-- d', 'ab\nc  d'),
    ('a<!-- <ref> -->b<!-- x\n\ny -->c', 'abc'),
    ('a<math>x_{{i}}</math>b<gallery>\nFile:A|b\n</gallery>', 'ab'),
    ("<nowiki>[[a]] {{b}} ''c'' &lt;</nowiki>", "[[a]] {{b}} ''c'' <"),
    ('<nowiki />a<source lang="c">if (a) { b; }</source>', 'a'),
    ('<references><ref name="a">b</ref></references>c', 'c'),
    ('H<sub>2</sub>O a<br />b <span style="x">c</span>', 'H2O a b c'),
    ('<div class="x">a</div><blockquote>b</blockquote>', 'a\nb'),
    ('x < y, y > z, a<b>c</b>', 'x < y, y > z, ac'),
    ('__TOC__a__NOTOC__ b__init__', 'a b__init__'),
    ('a&nbsp;b &ndash; c &amp; &lt;d&gt;', 'a b – c & <d>'),
    ('Word ({{lang|x}}; ) end', 'Word  end'),
    ('a ----\n----\nb', 'a ----\nb'),
    ('', ''),
    ('{{a}}\n\n[[Category:B]]\n', ''),
  ],
)
def test_plain(source, expected):
  assert wiki.plain(source) == expected


def test_hidden_links_follow_the_language_of_the_wiki():
  source = '[[Datei:A.jpg|mini|Text]][[Kategorie:B]]C'
  hidden = frozenset(('datei', 'kategorie'))
  assert wiki.plain(source, hidden) == 'C'
  assert 'Text' in wiki.plain(source)


@pytest.mark.parametrize(
  'source',
  [
    '{{' * 30_000 + 'x' + '}}' * 29_999,
    '[[' * 90_000 + 'x' * 1_000_000 + ']]' * 90_000,
    '{{[[' * 20_000 + '}}' * 30_000,
    '<ref>a' * 30_000,
    '<!--' * 50_000,
    '<nowiki>' * 30_000 + '</nowiki>',
    '[http://a [[b ' * 20_000,
    '\n{|' * 30_000 + '\n|}' * 30_000,
    "'" * 100_000,
    '__' * 50_000,
    '__' + 'A_' * 50_000,
    '(' * 100_000,
    '(' + ' ' * 100_000,
    '\n' + ':' * 100_000,
    '=' * 100_000,
    '<br' * 30_000,
    '<span ' * 30_000,
    '\n' + ('  ' * 100 + '\n') * 500,
    '[[a|b (' * 30_000,
    '[[' + '(' * 50_000 + '|]]',
    '[[a' + ' ' * 50_000 + 'b|]]',
    '&' * 100_000,
    'hard\nwrapped\n' * 30_000,
  ],
)
def test_hostile_markup_takes_linear_time(source):
  start_secs = time.process_time()
  wiki.plain(source)
  assert time.process_time() - start_secs < 2  # quadratic ones take minutes


def test_batch_ends_every_paragraph_and_drops_empty_pages():
  batch = wiki.plain_batch(['a\n\nb', '{{c}}', 'é'], wiki.HIDDEN)
  assert batch == 'a\nb\né\n'.encode()


def test_genuine_articles_come_out_clean(shared_data):
  texts = []
  for name in sorted((shared_data / 'xml').glob('*.bz2')):
    for page in wiki.pages([bz2.decompress(name.read_bytes())]):
      assert isinstance(page, wiki.Page)
      if not page.redirect and page.namespace == 0:
        texts.append(wiki.plain(page.text, page.hidden))
  text = '\n'.join(texts)
  assert len(texts) == 111
  assert len(text) > 2_900_000
  none = ('{{', '}}', '[[', ']]', '{|', '|}', '</', '<ref', '<br', '==', "''")
  none += ('style=', 'class=', '://', '__', '&nbsp;', '&amp;', '()', '\n\n')
  assert {markup: text.count(markup) for markup in none if markup in text} == {}
  few = {'|': 10, '<': 10, '>': 30, '{': 10, '}': 10, 'px': 3, 'thumb': 10}
  assert {m: text.count(m) for m in few if text.count(m) > few[m]} == {}
  lines = text.split('\n')
  assert 'Etymology and terminology' in lines
  assert not [line for line in lines if line != line.strip(' ')]
  for sentence in (
    'Anarchism is a political philosophy that advocates self-governed '
    'societies based on voluntary institutions. These are often described as '
    'stateless societies, although several authors',
    'Autism is a neurodevelopmental disorder characterized by impaired social '
    'interaction',
    'Alabama is nicknamed the Yellowhammer State, after the state bird.',
    'The constructive vote of no confidence (in German: konstruktives '
    'Misstrauensvotum, in Spanish: moción de censura constructiva) is a',
  ):
    assert sentence in text, sentence
