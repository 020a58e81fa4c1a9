"""Toywiki: a small encyclopedia of our own, with its own evaluation sets.

What the main job trains on when no data is given, and what tests train on. It
is written from tables of real facts (`toywiki_facts`) through sentence
patterns (`toywiki_patterns`, `toywiki_families`) over a Zipf-distributed
background of made-up words, as a genuine MediaWiki pages-articles dump (XML
export 0.10, bzip2, multistream) with markup, infoboxes, tables, references,
redirects and pages of other namespaces, so that it goes through the same
parser as a real dump. Any size, the same bytes from the same (seed, size) on
every machine; memory does not grow with the size, since pages are streamed.

The one idea: page i is a pure function of (seed, i). A round of pages has one
article for each word family; the next round writes about other aspects.

At the default size gensim 4.4 (skip-gram, 5 negatives, window 5, min_count 5,
5 epochs; sample 1e-3 or 1e-4, 64 or 100 dimensions, seeds 0 and 1) gets 97.5 to
99.0 % of the analogies right by 3CosAdd over the whole vocabulary, category
purity .94 to 1.00 (k-means with greedy k-means++ starts; plain random starts
stop at poorer optima) and Spearman .84 to .88 on the similarities. Half the
size gets 80 % of the analogies. There are 30,000 background words at any size.
"""

import bz2
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import tempfile
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jaxemb import errors
from jaxemb.text import compressed
from jaxemb.toywiki import toywiki_eval
from jaxemb.toywiki import toywiki_families as families_lib
from jaxemb.toywiki import toywiki_patterns as patterns

VERSION = 1  # raise it whenever the bytes change
DEFAULT_WORDS = 2_000_000
MIN_WORDS = 1_000_000  # from here on every evaluated word occurs 5 times

XML_NAME = 'toywiki-pages-articles.xml.bz2'
_MANIFEST_NAME = 'toywiki.json'
_PAGES_PER_STREAM = 100
_MAX_STREAMS_IN_FLIGHT = 4
_STRIDE = 11  # prime, so that the patterns of a paragraph differ

_ASPECTS = (
  'History', 'Notes', 'Traditions', 'Description', 'Chronicle', 'Outline',
  'Origins', 'Study', 'Reception', 'Sources', 'Legacy', 'Timeline',
)  # fmt: skip

# Paragraphs about a role in an article are one up to this, two by default: more
# for roles with more competitors.
_MAX_PARAGRAPHS = {
  'singular': 3, 'plural': 3, 'young': 4, 'male': 4, 'female': 4,
  'positive': 1, 'comparative': 1, 'superlative': 1, 'adverb': 1, 'subject': 1,
}  # fmt: skip

_NAMESPACES = {
  -2: 'Media', -1: 'Special', 0: '', 1: 'Talk', 2: 'User', 3: 'User talk',
  4: 'Toywiki', 5: 'Toywiki talk', 6: 'File', 7: 'File talk', 8: 'MediaWiki',
  9: 'MediaWiki talk', 10: 'Template', 11: 'Template talk', 12: 'Help',
  13: 'Help talk', 14: 'Category', 15: 'Category talk',
}  # fmt: skip

_HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" \
xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" \
xsi:schemaLocation="http://www.mediawiki.org/xml/export-0.10/ \
http://www.mediawiki.org/xml/export-0.10.xsd" version="0.10" xml:lang="en">
  <siteinfo>
    <sitename>Toywiki</sitename>
    <dbname>toywiki</dbname>
    <base>https://toywiki.invalid/wiki/Main_Page</base>
    <generator>toywiki {version}</generator>
    <case>first-letter</case>
    <namespaces>
{namespaces}
    </namespaces>
  </siteinfo>
"""

_PAGE = """  <page>
    <title>{title}</title>
    <ns>{ns}</ns>
    <id>{page_id}</id>
{redirect}    <revision>
      <id>{revision_id}</id>
      <timestamp>2020-01-01T00:00:00Z</timestamp>
      <contributor>
        <username>Toywiki</username>
        <id>1</id>
      </contributor>
      <model>wikitext</model>
      <format>text/x-wiki</format>
      <text xml:space="preserve">{text}</text>
    </revision>
  </page>
"""


class Corpus(NamedTuple):
  """Where the corpus and its evaluation sets lie."""

  xml: pathlib.Path
  eval_paths: tuple[pathlib.Path, ...]


class _Article(NamedTuple):
  title: str
  text: str
  num_words: int


def _escape(text: str) -> str:
  for character, entity in (
    ('&', '&amp;'),
    ('<', '&lt;'),
    ('>', '&gt;'),
    ('"', '&quot;'),
  ):
    text = text.replace(character, entity)
  return text


def _infobox(family: families_lib.Family, draw: families_lib.Draw) -> str:
  fields = [f'| {role} = [[{word}]]' for role, word in family.words.items()]
  fields += [
    f'| area = {{{{convert|{int(draw() * 9000) + 10}|km2|abbr=on}}}}',
    f'| image = [[File:{family.title}.svg|120px]] <!-- drawn by hand -->',
  ]
  return '\n'.join([f'{{{{Infobox {family.kind}', *fields, '}}'])


def _table(draw: families_lib.Draw) -> str:
  rows = [
    f'|-\n| {1500 + int(draw() * 500)} || align="right" | {int(draw() * 10**6)}'
    for _ in range(3)
  ]
  head = '{| class="wikitext sortable"\n|+ Figures\n! Year !! Number'
  return '\n'.join([head, *rows, '|}'])


def _mark_up(text: str, words: Iterable[str], draw: families_lib.Draw) -> str:
  """Adds links, emphasis and references that leave the words as they are."""
  for word in words:
    style = draw()
    if style < 0.4:
      linked = f' [[{word}]] '
    elif style < 0.6:
      linked = f' [[{word.capitalize()} (article)|{word}]] '
    elif style < 0.7:
      linked = f" ''{word}'' "
    else:
      continue
    text = text.replace(f' {word} ', linked, 1)
  if draw() < 0.15:
    text += (
      f'<ref name="n{int(draw() * 100)}">{{{{cite book |title=Annals '
      f'|year={1800 + int(draw() * 200)} |page={int(draw() * 400)}}}}}</ref>'
    )
  if draw() < 0.1:
    text = text.replace(' in 1', ' in&nbsp;1', 1)
  return text


def _paragraph(
  world: families_lib.World,
  cell: list[families_lib.Pattern],
  draw: families_lib.Draw,
) -> str:
  """Three to six sentences: most about the cell, some about other things."""
  first = int(draw() * len(cell))
  sentences = []
  for position in range(3 + int(draw() * 4)):
    subject = draw()
    if subject < 0.86:
      pattern = cell[(first + _STRIDE * position) % len(cell)]
    elif subject < 0.96:
      pattern = families_lib.pick(world.background, draw)
    else:
      other = world.cells[int(draw() * len(world.cells))]
      cells = list(other.values())
      pattern = families_lib.pick(cells[int(draw() * len(cells))], draw)
    sentences.append(families_lib.sentence(world, pattern, draw))
  return families_lib.with_articles(' '.join(sentences))


def _article(
  world: families_lib.World, seed: int, round_index: int, index: int
) -> _Article:
  """The article about family `index` in a round, as wiki markup."""
  number = round_index * len(world.families) + index
  draw = random.Random((seed << 64) + number + 1).random
  family, cells = world.families[index], world.cells[index]
  title = family.title
  if round_index:
    volume, aspect = divmod(round_index - 1, len(_ASPECTS))
    title = f'{_ASPECTS[aspect]} of {title}'
    title += f' (volume {volume + 1})' if volume else ''
  words = list(dict.fromkeys(family.words.values()))
  roles = sorted(cells, key=lambda role: draw())
  parts, num_words = [_infobox(family, draw)], 0
  for position, role in enumerate([roles[-1], *roles]):
    if position:
      heading = patterns.HEADINGS.split('\n')[int(draw() * 12)]
      parts.append(f'== {heading} ==')
    for _ in range(1 + int(draw() * _MAX_PARAGRAPHS.get(role, 2))):
      plain = _paragraph(world, cells[role], draw)
      num_words += plain.count(' ') + 1
      parts.append(_mark_up(plain, [*words, *family.associates], draw))
    if position == 0:
      parts[-1] = parts[-1].replace(f' {words[0]} ', f" '''{words[0]}''' ", 1)
  if draw() < 0.3:
    parts.append(_table(draw))
  links = [f'* [[{word}]]' for word in family.associates or words]
  parts.append('\n'.join(['== See also ==', *links]))
  parts.append(f'{{{{toywiki-stub}}}}\n[[Category:{family.kind.capitalize()}]]')
  return _Article(title, '\n\n'.join(parts), num_words)


def _render(
  page_id: int, ns: int, title: str, text: str, target: str = ''
) -> str:
  redirect = f'    <redirect title="{_escape(target)}" />\n' if target else ''
  return _PAGE.format(
    title=_escape(title),
    ns=ns,
    page_id=page_id,
    revision_id=10 * page_id,
    redirect=redirect,
    text=_escape(text),
  )


def _companions(article: _Article, number: int) -> list[tuple[int, str, str]]:
  """Pages that a reader of articles must skip: (namespace, title, text).

  The word `unsigned` is in them and in no article, so that a leak shows.
  """
  pages = []
  if number % 5 == 0:
    text = f'#REDIRECT [[{article.title}]]\n\n{{{{R from other name}}}}'
    pages.append((0, f'{article.title} (redirect)', text))
  if number % 11 == 0:
    text = '== Wording ==\nAn unsigned remark about this page. ~~~~'
    pages.append((1, f'Talk:{article.title}', text))
  if number % 37 == 0:
    text = f'An unsigned page that lists [[{article.title}]].'
    pages.append((14, f'Category:{article.title}', text))
  return pages


def _pages(
  world: families_lib.World, seed: int, corpus_words: int
) -> Iterator[tuple[str, int]]:
  """Yields (XML of some pages, words of their article text) up to the size."""
  total_words, page_id, round_index = 0, 0, 0
  while True:
    order = list(range(len(world.families)))
    draw = random.Random(((seed + 1) << 96) + round_index).random
    order.sort(key=lambda _: draw())
    for index in order:
      article = _article(world, seed, round_index, index)
      page_id += 1
      rendered = [_render(page_id, 0, article.title, article.text)]
      for ns, title, text in _companions(article, page_id):
        page_id += 1
        target = article.title if text.startswith('#REDIRECT') else ''
        rendered.append(_render(page_id, ns, title, text, target))
      total_words += article.num_words
      yield ''.join(rendered), article.num_words
      if total_words >= corpus_words:
        return
    round_index += 1


def _streams(
  world: families_lib.World, seed: int, corpus_words: int
) -> Iterator[tuple[bytes, int]]:
  """Yields (text of one bzip2 stream, its article words)."""
  namespaces = '\n'.join(
    f'      <namespace key="{key}" case="first-letter"'
    + (f'>{name}</namespace>' if name else ' />')
    for key, name in _NAMESPACES.items()
  )
  yield _HEAD.format(version=VERSION, namespaces=namespaces).encode(), 0
  texts, num_words = [], 0
  for text, words in _pages(world, seed, corpus_words):
    texts.append(text)
    num_words += words
    if len(texts) == _PAGES_PER_STREAM:
      yield ''.join(texts).encode(), num_words
      texts, num_words = [], 0
  yield (''.join(texts) + '</mediawiki>\n').encode(), num_words


def _write_xml(
  path: pathlib.Path, world: families_lib.World, seed: int, corpus_words: int
) -> int:
  """Writes the dump, compressing beside the writing; returns its words."""
  total_words = 0
  pending: collections.deque[concurrent.futures.Future[bytes]] = (
    collections.deque()
  )
  with (
    open(path, 'wb') as file,
    concurrent.futures.ThreadPoolExecutor(2) as pool,
  ):
    for data, num_words in _streams(world, seed, corpus_words):
      total_words += num_words
      pending.append(pool.submit(bz2.compress, data))
      if len(pending) > _MAX_STREAMS_IN_FLIGHT:
        file.write(pending.popleft().result())
    while pending:
      file.write(pending.popleft().result())
  return total_words


def _is_intact(folder: pathlib.Path, settings: dict[str, int]) -> bool:
  """Whether the folder holds what `settings` would write, byte for byte."""
  try:
    manifest = json.loads((folder / _MANIFEST_NAME).read_text('utf-8'))
    return manifest['settings'] == settings and all(
      compressed.file_sha256(folder / name) == digest
      for name, digest in manifest['sha256'].items()
    )
  except (OSError, ValueError, KeyError, TypeError, AttributeError):
    return False


def _generate(folder: pathlib.Path, settings: dict[str, int]) -> None:
  """Writes all files beside their places, then moves them; manifest last."""
  seed, corpus_words = settings['seed'], settings['corpus_words']
  with tempfile.TemporaryDirectory(prefix='.toywiki-', dir=folder) as temporary:
    staging = pathlib.Path(temporary)
    world = families_lib.build(seed)
    num_words = _write_xml(staging / XML_NAME, world, seed, corpus_words)
    (staging / 'eval').mkdir()
    for name, text in toywiki_eval.files(world, seed).items():
      (staging / name).write_bytes(text.encode())
    names = [XML_NAME, *toywiki_eval.NAMES]
    manifest = {
      'settings': settings,
      'article_words': num_words,
      'sha256': {
        name: compressed.file_sha256(staging / name) for name in names
      },
    }
    (staging / _MANIFEST_NAME).write_text(json.dumps(manifest, indent=2))
    (folder / _MANIFEST_NAME).unlink(missing_ok=True)
    (folder / 'eval').mkdir(exist_ok=True)
    for name in [*names, _MANIFEST_NAME]:
      os.replace(staging / name, folder / name)


def write(
  folder: pathlib.Path, seed: int = 0, corpus_words: int = DEFAULT_WORDS
) -> Corpus:
  """Writes the corpus into `folder`, or finds it there from an earlier call.

  Args:
    folder: made if absent. Files of other names in it are left alone.
    seed: any integer >= 0. Same seed and size, same bytes.
    corpus_words: words of running text in the articles to stop after (at a
      page's end, so some hundred words later). Below `MIN_WORDS`, some words
      of the evaluation sets are rarer than a min_count of 5.

  Returns:
    Paths of the dump and of the similarity, analogy, category and sense sets.

  Raises:
    UserError: a seed or size out of range, or a folder that cannot be written.
  """
  if seed < 0 or corpus_words < 1:
    raise errors.UserError(
      f'embedded corpus: seed {seed} must be >= 0 and corpus_words '
      f'{corpus_words} >= 1; change these values'
    )
  settings = {'version': VERSION, 'seed': seed, 'corpus_words': corpus_words}
  folder = pathlib.Path(folder)
  if not _is_intact(folder, settings):
    try:
      folder.mkdir(parents=True, exist_ok=True)
      _generate(folder, settings)
    except OSError as error:
      raise errors.UserError(
        f'cannot write the embedded corpus to {folder}: {error.strerror}; '
        'choose another cache folder'
      ) from error
  return Corpus(
    folder / XML_NAME, tuple(folder / name for name in toywiki_eval.NAMES)
  )
