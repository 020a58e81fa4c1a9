"""Dumps of any version and kind of damage; rules of wikitext."""

import bz2
import itertools
import re
import time
import tracemalloc

import pytest

from jaxemb import errors
from jaxemb.text import wiki


def _page(title, text, namespace='<ns>0</ns>', extra=''):
  return (
    f'<page><title>{title}</title>{namespace}<id>1</id>{extra}<revision>'
    '<contributor><username>x</username></contributor><model>wikitext</model>'
    f'<text xml:space="preserve">{text}</text><sha1 /></revision></page>\n'
  )


def _dump(*pages):
  return (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" '
    'xml:lang="de"><siteinfo><namespaces>'
    '<namespace key="0" case="first-letter" />'
    '<namespace key="1">Diskussion</namespace>'
    '<namespace key="6">Datei</namespace>'
    '<namespace key="14">Kategorie</namespace>'
    '</namespaces></siteinfo>\n' + ''.join(pages) + '</mediawiki>\n'
  ).encode()


def _read(data, sizes=(1, 7, 50, 1 << 20)):
  """Pages and the report, the same in blocks of any size."""
  results = []
  for size in sizes:
    report = wiki.ReadReport()
    blocks = (data[i : i + size] for i in range(0, len(data), size))
    results.append((list(wiki.pages(blocks, report)), report))
    assert results[-1] == results[0]
  return results[0]


def test_pages():
  pages, report = _read(_dump(
    _page('A', 'one &lt;b&gt; &amp;amp; \nzwei ä'),
    _page('Diskussion:A', 'talk', '<ns>1</ns>'),
    _page('B', '#redirect [[A]]'),
    _page('C', '#WEITERLEITUNG [[A]]', extra='<redirect title="A" />'),
    _page('D', ''),
    _page('E', 'old</text></revision><revision><text>new'),
    # Old exports name the namespace in the title.
    _page('Diskussion:F', 'x', ''),
    _page('Ab: c', 'y', ''),
  ))  # fmt: skip
  assert report == wiki.ReadReport()
  assert [(page.title, page.namespace, page.redirect) for page in pages] == [
    ('A', 0, False), ('Diskussion:A', 1, False), ('B', 0, True),
    ('C', 0, True), ('D', 0, False), ('E', 0, False),
    ('Diskussion:F', 1, False), ('Ab: c', 0, False),
  ]  # fmt: skip
  assert pages[0].text == 'one <b> &amp; \nzwei ä'
  assert pages[5].text == 'new'
  assert pages[0].hidden == {'datei', 'kategorie', *wiki.HIDDEN}


def test_cut_anywhere_keeps_the_complete_pages():
  data = _dump(_page('A {0}', 'one'), _page('B', 'two'), _page('C', 'three'))
  ends = [i + 7 for i in range(len(data)) if data[i : i + 7] == b'</page>']
  for end in range(data.index(b'<page>') + 6, len(data) - 15):
    pages, report = _read(data[:end], [50])
    complete = sum(e <= end for e in ends)
    assert len(pages) == complete
    [problem] = report.problems
    place = 'in its first page'
    if complete:
      place = f'after page {complete} ("{pages[-1].title}")'
      assert report.lost_bytes == end - ends[complete - 1]
    assert problem == f'cut {place}; the pages so far are used'


def test_malformed_pages_are_skipped_and_bad_characters_replaced():
  bad = _page('Bad', 'x').replace('</text>', '</txt>')
  page = _page('A', 'a@b\x01c\x0bd\ufffee')
  open_page, no_page = '<page><title>D', 'x</page>'
  data = _dump(page, bad, _page('B', 'b'), open_page, _page('C', 'c'), no_page)
  pages, report = _read(data.replace(b'@', b'\xff\xe4'))
  assert [page.text for page in pages] == ['a\ufffd\ufffdb?c?d\ufffde', *'bc']
  assert [problem[:36] for problem in report.problems] == [
    'malformed after page 1 ("A") (no tit',
    'malformed after page 2 ("B") (a page',
    'malformed after page 3 ("C") (no tit',
  ]
  lost = bad.strip() + open_page + '\n' + no_page
  assert report.lost_bytes == len(lost)
  assert report.replaced_bytes == 2 + 2 + 3
  _, report = _read(_dump(*[bad] * 30))
  assert report.lost_bytes == 30 * len(bad.strip())
  assert len(report.problems) == 11
  assert report.problems[-1] == 'damaged in 20 more places'


def test_several_dumps_in_a_row_and_parts_without_a_header():
  one = b'<?xml version="1.0"?>\n' + _dump(_page('A', 'a'))
  part = (_page('A', 'a') + _page('B', 'b')).encode()
  for data, titles in ((one * 3, 'AAA'), (part, 'AB')):
    pages, report = _read(data)
    assert [page.title for page in pages] == [*titles]
    assert report == wiki.ReadReport()


def test_memory_stays_bounded(monkeypatch):
  page = _page('A', 'words ' * 2000).encode()
  head, tail = _dump().split(b'</mediawiki>')
  blocks = itertools.chain([head], itertools.repeat(page, 2000), [tail])
  tracemalloc.start()
  try:
    num_pages = sum(1 for _ in wiki.pages(blocks, wiki.ReadReport()))
    peak_bytes = tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()
  assert num_pages == 2000
  assert peak_bytes < 3e6  # of 24 MB
  # A page of many revisions, and what is no page at all.
  monkeypatch.setattr(wiki, '_MAX_PENDING_BYTES', 1000)
  texts = [f'{i} ' * 50 for i in range(100)]
  page = _page('A', '</text></revision><revision><text>'.join(texts))
  pages, report = _read(_dump(page, _page('B', 'b')), [100])
  assert [page.text for page in pages] == [texts[-1], 'b']
  assert report == wiki.ReadReport()
  _, report = _read(_dump(page)[:-100], [100])
  assert report.lost_bytes < 2000  # of 20 kB: old revisions are not held
  logs = _dump('<logitem>x</logitem>' * 100)
  assert _read(logs, [100]) == ([], wiki.ReadReport())


@pytest.mark.parametrize(
  'source, expected',
  [
    ('A [[dog]]s and [[Felis|cats]].', 'A dogs and cats.'),
    ('[[New York (state)|]], [[Help:Foo (bar)|]]', 'New York, Foo'),
    ('[[:Category:Dogs]] [[:File:A.png|a file]]', 'Category:Dogs a file'),
    ('[[Category:Dogs|x]]A[[de:Hund]][[zh-min-nan:Káu]]', 'A'),
    ('[[CSI: Miami]] [[wikt:dog|dog]]', 'CSI: Miami dog'),
    ('A {{t|{{u|{{v}}}}|x=[[y]]}}B', 'A  B'),
    ('{{a|{{b|\n|}}}}x', 'x'),
    ('A {{{1|{{b}}}}}C', 'A  C'),
    ('a }} b ]] c', 'a  b  c'),
    ('1848{{snd}}1934 Paris{{ndash}}Lyon', '1848 1934 Paris Lyon'),
    ("10{{nbsp}}km, co{{shy}}op, dogs{{'}}s", "10 km, coop, dogs's"),
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
    (
      'a<ref>x [[y]]</ref>b<ref name="n" />c<REF name=m>{{z}}</REF>d',
      'a b c d',
    ),
    ('a<ref>b\n\nc <!-- d', 'a b\nc  d'),
    ('a<!-- <ref> -->b<!-- x\n\ny -->c<!-- <ref -->d', 'abcd'),
    ('a<math>x_{{i}}</math>b<gallery>\nFile:A|b\n</gallery>', 'a b'),
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
  assert wiki.plain(source, frozenset(('datei', 'kategorie'))) == 'C'
  assert 'Text' in wiki.plain(source)


@pytest.mark.parametrize('source', [
  '{{' * 30_000 + 'x' + '}}' * 29_999, '{{[[' * 20_000 + '}}' * 30_000,
  '[[' * 90_000 + 'x' * 1_000_000 + ']]' * 90_000, '<ref>a' * 30_000,
  '<!--' * 50_000, '<nowiki>' * 30_000 + '</nowiki>',
  '<!-- <ref -->' * 20_000, '<ref ' * 50_000 + '</ref>' * 30_000,
  '[http://a [[b ' * 20_000, '\n{|' * 30_000 + '\n|}' * 30_000,
  "'" * 100_000, '__' * 50_000, '__' + 'A_' * 50_000, '(' * 100_000,
  '(' + ' ' * 100_000, '\n' + ':' * 100_000, '=' * 100_000, '<br' * 30_000,
  '<span ' * 30_000, '\n' + ('  ' * 100 + '\n') * 500, '[[a|b (' * 30_000,
  '[//' + 'a' * 200_000, '[//' + 'a b' * 70_000, '[//a' + '[[b]]' * 40_000,
  '[[' + '(' * 50_000 + '|]]', '[[a' + ' ' * 50_000 + 'b|]]', '&' * 100_000,
  'hard\nwrapped\n' * 30_000,
])  # fmt: skip
def test_hostile_markup_takes_linear_time(source):
  start_secs = time.process_time()
  wiki.plain(source)
  assert time.process_time() - start_secs < 20  # quadratic time is minutes


def test_references_may_have_any_digits():
  digits = '9' * 5000
  assert (
    wiki.plain(f'a &#{digits}; b &#{digits} &#233;') == 'a \ufffd b \ufffd é'
  )
  page, *_ = wiki.pages([_dump(_page(f'A&#{digits};', 'b'))], wiki.ReadReport())
  assert page.title == 'A\ufffd'


@pytest.mark.slow
def test_genuine_dumps_come_out_clean(shared_data):
  texts = []
  for path in sorted((shared_data / 'xml').glob('*.bz2')):
    data = bz2.decompress(path.read_bytes())
    pages, report = _read(data, [10_007, 1 << 20])
    assert report == wiki.ReadReport()
    assert len(pages) in (5, 206)
    for page in pages:
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
  sentence = (
    'Anarchism is a political philosophy that advocates self-governed '
    'societies based on voluntary institutions. These are often described as '
    'stateless societies, although several authors'
  )
  assert sentence in re.sub(' +', ' ', text)  # references leave spaces


_MARKUP = {
  'CoNLL-U': (
    '# sent_id = 1\n# text = The king\n1\tThe\tthe\tDET\n2\tking\tking\tN\n\n',
    '$2',
  ),
  'CoNLL 2003': ('-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\n', '$1'),
  'NER': ('the O\nking B-PER\n\nrules O\n', '$1'),
  'vertical': ('<doc id="1">\n<s>\nthe\tDT\nking\tN\n</s>\n</doc>\n', '$1'),
  'OpenSubtitles': (
    '<?xml version="1.0"?>\n<s id="1">\n <w id="1.1">the</w>\n</s>\n', '/<w['
  ),
  'XML': ('<?xml version="1.0"?>\n<book><p>the\nking</p></book>\n', 'sed'),
  'TMX': ('<tmx version="1.4"><tu><seg>the king</seg></tu></tmx>\n', 'sed'),
  'fragments': ('<p>the king</p>\nrules\n<p>and <b>sleeps</b></p>\n', 'sed'),
  'HTML': ('<!-- x -->\n<html>\n<body>\nthe king\n', '-f html'),
  'HTML 5': ('<!DOCTYPE html>\n<title>x\n', '-f html'),
  'SubRip': ('1\n00:00:01,000 --> 00:00:04,000\nthe <i>king</i>\n\n', 'grep'),
  'WebVTT': ('WEBVTT\n\n00:01.000 --> 00:04.000\nthe king\n', 'grep'),
  'LaTeX': ('% x\n\n\\documentclass{a}\nthe king\n', '-f latex'),
  'entities': ('caf&eacute; king\nthe queen&#8217;s land\n', 'html.unescape'),
  'tagged': ('the_DT king_NN rules_VBZ\nand_CC sleeps_VBZ\n', 'sed -E'),
  'tagged by |': ('the|DT king|NN\nand|CC sleeps|VBZ\n', 'sed -E'),
  'SGML': ('<DOC>\nthe king\n rules\n and sleeps\n</DOC>\n', 'sed'),
  'lyrics': ('[00:01.00]the king\n[00:04.00]rules\n', 'sed -E'),
  'SubStation': (
    '[Events]\nDialogue: 0,0:0:1,0:0:4,D,,0,0,0,,the king\n', 'Dialogue:'
  ),
  'trees': ('(S (NP (DT the) (NN king)))\n(S (VP (V rules)))\n', 'sed -E'),
}  # fmt: skip


@pytest.mark.parametrize('name', _MARKUP)
def test_text_with_markup_is_refused_with_a_command(name):
  text, command = _MARKUP[name]
  for copies in 1, 50:
    with pytest.raises(errors.UserError) as caught:
      wiki.extractor((text * copies).encode(), path='a.txt')
    message = str(caught.value)
    assert command in message and '\n' not in message


@pytest.mark.parametrize('text', [
  'the <unk> king\n<unk> rules\n', '<s> the king </s>\n<s> rules </s>\n',
  'the king<br /><br />rules\n', '(the king)\n(the (old) queen)\n',
  'new_york is a city\nand/or not\n', 'the king\nthe queen\n', 'x --> y\n',
  'AT&T; king & queen\nrules\n', '1 2\n\n3 4\n', 'the\tking rules\n\nland\tx\n',
  'n_12 n_7\nn_7 n_3\n', 'u/3 u/9\nu/9 u/1\n', '[12:05] <bob> hi\n',
  'a b\n<eos>\nc\n<eos>\n', 'type O\n\nblood O\n',
  'WEBVTT is a form\n', '5 --> 7\n', '(ha (ha ha))\n',
  'hi\tbonjour\n\nyes\toui\n',
])  # fmt: skip
def test_plain_text_may_have_such_signs(text):
  assert wiki.extractor(text.encode(), path='a.txt') is None


def test_tokens_between_spaces_may_have_tags():
  data = b'the_DT king_NN\nand_CC queens_NNS\n'
  assert wiki.extractor(data, path='a.txt', is_tokenized=True) is None
