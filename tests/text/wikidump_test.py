"""Dumps: pages of any version, cut, malformed, glued and invalid ones."""

import bz2
import tracemalloc

import pytest

from jaxemb.text import wiki


def _page(title, text, namespace='<ns>0</ns>', extra=''):
  return (
    f'<page><title>{title}</title>{namespace}<id>1</id>{extra}<revision>'
    '<contributor><username>x</username></contributor><model>wikitext</model>'
    f'<text xml:space="preserve">{text}</text><sha1 /></revision></page>\n'
  )


def _dump(*pages, version='0.11'):
  return (
    f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-{version}/" '
    'xml:lang="de"><siteinfo><namespaces>'
    '<namespace key="0" case="first-letter" />'
    '<namespace key="1">Diskussion</namespace>'
    '<namespace key="6">Datei</namespace>'
    '<namespace key="14">Kategorie</namespace>'
    '</namespaces></siteinfo>\n' + ''.join(pages) + '</mediawiki>\n'
  ).encode()


def _read(data, block_bytes=1 << 20):
  starts = range(0, len(data), block_bytes)
  items = list(wiki.pages(data[i : i + block_bytes] for i in starts))
  return (
    [item for item in items if isinstance(item, wiki.Page)],
    [item for item in items if isinstance(item, wiki.Damage)],
  )


@pytest.mark.parametrize('block_bytes', [1, 7, 1 << 20])
def test_pages(block_bytes):
  data = _dump(
    _page('A', 'one &lt;b&gt; &amp;amp; \nzwei ä'),
    _page('Diskussion:A', 'talk', '<ns>1</ns>'),
    _page('B', '#redirect [[A]]'),
    _page('C', '#WEITERLEITUNG [[A]]', extra='<redirect title="A" />'),
    _page('D', ''),
  )
  pages, damages = _read(data, block_bytes)
  assert not damages
  assert [page.title for page in pages] == ['A', 'Diskussion:A', 'B', 'C', 'D']
  assert pages[0].text == 'one <b> &amp; \nzwei ä'
  assert [page.namespace for page in pages] == [0, 1, 0, 0, 0]
  assert [page.redirect for page in pages] == [False, False, True, True, False]
  assert {'datei', 'kategorie', 'file', 'category'} <= pages[0].hidden
  assert 'diskussion' not in pages[0].hidden


def test_old_exports_name_the_namespace_in_the_title():
  data = _dump(
    _page('Diskussion:A', 'x', ''), _page('Ab: c', 'y', ''), version='0.3'
  )
  assert [page.namespace for page in _read(data)[0]] == [1, 0]


def test_last_revision_counts():
  data = _dump(_page('A', 'old</text></revision><revision><text>new'))
  assert [page.text for page in _read(data)[0]] == ['new']


def test_cut_anywhere_keeps_the_complete_pages():
  data = _dump(_page('A {0}', 'one'), _page('B', 'two'), _page('C', 'three'))
  ends = [i + 7 for i in range(len(data)) if data[i : i + 7] == b'</page>']
  for end in range(data.index(b'<page>') + 6, len(data) - 15):
    pages, damages = _read(data[:end], 50)
    complete = sum(e <= end for e in ends)
    assert len(pages) == complete
    [damage] = damages
    if complete:
      title = ['A {0}', 'B', 'C'][complete - 1]
      assert damage.message.startswith(f'cut after page {complete} ("{title}")')
      assert damage.lost_bytes == end - ends[complete - 1]
    else:
      assert damage.message.startswith('cut in its first page')


@pytest.mark.parametrize('block_bytes', [3, 1 << 20])
def test_malformed_page_is_skipped(block_bytes):
  bad = _page('Bad', 'x').replace('</text>', '</txt>')
  data = _dump(_page('A', 'a'), bad, _page('B', 'b'), bad, _page('C', 'c'))
  pages, damages = _read(data, block_bytes)
  assert [page.title for page in pages] == ['A', 'B', 'C']
  assert [damage.message[:26] for damage in damages] == [
    'malformed after page 1 ("A',
    'malformed after page 2 ("B',
  ]
  assert sum(damage.lost_bytes for damage in damages) == 2 * len(bad.strip())


@pytest.mark.parametrize('block_bytes', [3, 1 << 20])
def test_several_dumps_in_a_row_and_parts_without_a_header(block_bytes):
  one = b'<?xml version="1.0"?>\n' + _dump(_page('A', 'a'))
  pages, damages = _read(one * 3, block_bytes)
  assert [page.title for page in pages] == ['A', 'A', 'A']
  assert not damages
  part = (_page('A', 'a') + _page('B', 'b')).encode()
  pages, damages = _read(part, block_bytes)
  assert [page.title for page in pages] == ['A', 'B']
  assert not damages


def test_what_xml_may_not_contain_is_replaced_and_counted():
  data = _dump(_page('A', 'a@b\x01c\x0bd\ufffee'), _page('B', 'b'))
  data = data.replace(b'@', b'\xff\xe4')
  pages, damages = _read(data)
  assert pages[0].text == 'a\ufffd\ufffdb?c?d\ufffde'
  assert pages[1].text == 'b'
  assert [damage.message for damage in damages] == ['']
  assert damages[0].replaced_bytes == 2 + 2 + 3


def test_memory_stays_bounded():
  page = _page('A', 'words ' * 2000).encode()
  head, tail = _dump().split(b'</mediawiki>')

  def blocks():
    yield head
    for _ in range(2000):
      yield page
    yield b'</mediawiki>' + tail

  tracemalloc.start()
  try:
    num_pages = sum(1 for _ in wiki.pages(blocks()))
    peak_bytes = tracemalloc.get_traced_memory()[1]
  finally:
    tracemalloc.stop()
  assert num_pages == 2000
  assert peak_bytes < 3e6  # of 24 MB


def test_genuine_dump(shared_data):
  [path] = (shared_data / 'xml').glob('*shortened.bz2')
  data = bz2.decompress(path.read_bytes())
  pages, damages = _read(data)
  assert len(pages) == 206
  assert sum(page.redirect for page in pages) == 100
  assert not damages
  assert pages == _read(data, 10_007)[0]
  pages, [damage] = _read(data[:3_000_000])
  assert len(pages) == 124
  assert damage == wiki.Damage(
    'cut after page 124 ("Alkane"); the pages so far are used', 24578, 0
  )
