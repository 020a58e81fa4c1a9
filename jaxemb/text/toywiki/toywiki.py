"""Toywiki: a small generated encyclopedia with its own evaluation sets.

The corpus to train on when no data is given: real facts (`facts.toml`) in
sentence patterns (`patterns.toml`), over a background of made-up words with
Zipf's frequencies, written as a MediaWiki dump and read like a real one. The
same size gives the same text on every machine.

A sentence is about one role of one word family, such as the capital of
(country, capital, currency, language, demonym): its pattern brings words
typical of the role, its slots words typical of the family, which is what makes
analogies work in real text. Page i is a pure function of i: each round has one
article per family, later rounds about other aspects.

Gold answers come from the facts, never from the text: similarity grows with the
shared levels of the taxonomy, categories are its lowest level, analogies pair
families of one kind, and contexts of an ambiguous word, none of them in the
corpus, are similar if they have the same sense.

At the default size gensim 4.4 (skip-gram, 5 negatives, window 5, min_count 5,
5 epochs) gets 97.5 to 99.0 % of the analogies right (3CosAdd over the whole
vocabulary), category purity .94 to 1.00 (k-means++) and Spearman .84 to .88 on
the similarities; half the size gets 80 % of the analogies.
"""

import bisect
import collections
import functools
import gzip
import importlib.resources
import itertools
import operator
import pathlib
import random
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from xml.sax import saxutils

import numpy as np

from jaxemb.io import cache as cache_lib
from jaxemb.storage import checksums

VERSION = 2  # raise it whenever the bytes change
DEFAULT_WORDS = 2_000_000
_XML_NAME = 'toywiki-pages-articles.xml.gz'
_PAGES_PER_STREAM = 100

_NUM_BACKGROUND, _NUM_NAMES, _NUM_PLACES = 30_000, 4_000, 1_201
_STARTS = 'b br c cl d dr f fl g gr h j k l m n p pl r s st t tr v z'.split()
_MIDDLES, _VOWELS, _ENDS = 'bdgklmnprstv', 'aeiou', 'n l r s th nd m x'.split()
_ZIPF_SHIFT = 100  # word frequency is 1 / (rank + shift) (Zipf-Mandelbrot)
_BAG_SIZE = 1 << 18
# It begins with letters, which the engine skips to.
_A_BEFORE_VOWEL = re.compile(
  r'([Aa]) (?=[aeiouAEIOU])(?<!\w..)(?!(?i:uni|use|eur|one\b))'
)
_PAIRS_PER_LEVEL = 120
_SIMILARITIES = (0.5, 3.5, 6.5, 9.0)  # by the number of shared levels
_QUESTIONS_PER_PAIR = 6

Draw = Callable[[], float]  # the next random number, uniform in [0, 1)
Pools = dict[str, list[str]]  # the words that may fill a slot
Pattern = tuple[str, list[Sequence[str]]]  # template % one word of each pool


class Corpus(NamedTuple):
  """Paths of the dump and of the evaluation sets."""

  xml: pathlib.Path
  eval_paths: tuple[pathlib.Path, ...]


class Family(NamedTuple):
  """A line of a table of facts, with what is said about it."""

  kind: str  # country, noun, gender, adjective, verb or sense
  title: str  # of its first article
  words: dict[str, str]  # by role
  asked: set[str]  # roles whose word has no other use: for evaluation sets
  associates: list[str]  # words that go with this family and few others
  taxonomy: list[str]  # subgroup, category and domain, or subject of a sense
  cells: dict[str, list[Pattern]]  # what is said, by role


class World(NamedTuple):
  """What the corpus is made of."""

  families: list[Family]
  common: dict[str, list[Pattern]]  # background, openings, closings
  data: dict[str, Any]  # both data files


def _resource(name: str) -> str:
  return (importlib.resources.files(__package__) / name).read_text('utf-8')


def _pick(items: Sequence[Any], draw: Draw) -> Any:
  return items[int(draw() * len(items))]


def _made_up_words(count: int, taken: set[str], draw: Draw) -> list[str]:
  """Returns distinct pronounceable words that are not in `taken`."""
  shape = [_STARTS, _VOWELS, _MIDDLES, _VOWELS, _MIDDLES, _VOWELS]
  words: dict[str, None] = {}
  while len(words) < count:
    word = ''.join([x[int(draw() * len(x))] for x in shape])
    if draw() < 0.5:
      word += _pick(_MIDDLES, draw) + _pick(_VOWELS, draw)
    if draw() < 0.5:
      word += _pick(_ENDS, draw)
    if word not in taken:
      words[word] = None
  return list(words)


def _zipf_bag(words: list[str]) -> list[str]:
  """Repeats each word by its frequency; integers are alike on all machines."""
  ranks = np.arange(1, len(words) + 1) + _ZIPF_SHIFT
  sums = np.cumsum(10**9 // ranks)
  draws = sums[-1] * np.arange(_BAG_SIZE) // _BAG_SIZE
  return [words[i] for i in np.searchsorted(sums, draws, 'right').tolist()]


@functools.cache
def _lines(text: str) -> list[tuple[str, list[str]]]:
  """Returns lines of patterns with the slots of each."""
  return [(line, re.findall(r'{(\w+)}', line)) for line in text.splitlines()]


def _compile(text: str, pools: Pools, words: dict[str, str]) -> list[Pattern]:
  """Returns patterns whose slots can all be filled from `words` and `pools`.

  A slot that occurs k times in a pattern draws from k disjoint parts of its
  pool, so that no sentence says `the wings and the wings`.
  """
  patterns, values = [], dict.fromkeys(pools, '%s') | words
  for index, (line, slots) in enumerate(_lines(text)):
    if not values.keys() >= {*slots}:
      continue
    drawn = [slot for slot in slots if slot not in words]
    chosen: list[Sequence[str]] = []
    for position, slot in enumerate(drawn):
      pool, count = pools[slot], 1 if slot == 'z' else drawn.count(slot)
      if count > 1:
        pool = pool[(drawn[:position].count(slot) + index) % count :: count]
      chosen.append(pool)
    patterns.append((line.format_map(values), chosen))
  return patterns


def _family(
  table: dict[str, str], line: str, data: dict[str, Any], pools: Pools
) -> Family:
  """Returns the family of a line; adds its slots to `pools`."""
  kind, taxonomy = table['kind'], table['taxonomy'].split()
  fields, _, associates = line.partition('|')
  entries = dict(zip(table['roles'].split(), fields.split(), strict=True))
  asked = {role for role, word in entries.items() if word[-1] not in '-_'}
  words = {r: word.rstrip('_') for r, word in entries.items() if word != '-'}
  title = table['title'].format(**words).replace('_', ' ').capitalize()
  roles = list(words)
  if kind == 'sense':
    taxonomy = [words.pop('subject')]
  levels = [data['lexicon'][level] for level in taxonomy]
  if kind == 'noun':  # its subgroup weighs most
    levels = 6 * levels[:1] + 2 * levels[1:]
  for slot, *column in zip(('n', 'v', 'vs', 'a'), *levels, strict=True):
    pools[slot] = ' '.join(column).split()
  cells = {}
  for role in roles:
    known = words | {'x': words.get(role, '')}
    cells[role] = _compile(data['cells'][kind][role]['patterns'], pools, known)
  return Family(
    kind=kind,
    title=title,
    words=words,
    asked=asked,
    associates=associates.split(),
    taxonomy=taxonomy,
    cells=cells,
  )


@functools.cache
def build_world() -> World:
  """Reads the data files and compiles their patterns with made-up words."""
  facts, patterns = _resource('facts.toml'), _resource('patterns.toml')
  data = tomllib.loads(facts) | tomllib.loads(patterns)
  taken = set(re.findall('[a-z]+', (facts + patterns).lower()))
  num_words = _NUM_BACKGROUND + _NUM_NAMES + _NUM_PLACES
  made_up = _made_up_words(num_words, taken, random.Random(0).random)
  names = [word.capitalize() for word in made_up[_NUM_BACKGROUND:]]
  pools = {
    'z': _zipf_bag(made_up[:_NUM_BACKGROUND]),
    'N': names[:_NUM_NAMES],
    'y': [str(year) for year in range(1480, 2021)],
    'he': data['he'].split(),
    'she': data['she'].split(),
  }
  places = names[_NUM_NAMES:]
  families: list[Family] = []
  for table in data['families']:
    for line in table['lines'].splitlines():
      line_pools = pools | {'l': line.partition('|')[2].split()}
      first = 5 * len(families)
      nearby = [places[(first + 241 * i) % _NUM_PLACES] for i in range(5)]
      if table['kind'] == 'country':
        line_pools['l'] += nearby
      elif table['kind'] != 'sense':
        line_pools['N'] = nearby
      families.append(_family(table, line, data, pools=line_pools))
  common = {k: _compile(v, pools, {}) for k, v in data['common'].items()}
  return World(families, common, data)


def _sentences(world: World, patterns: Iterable[Pattern], draw: Draw) -> str:
  """Returns a text with one sentence per pattern."""

  def fill(pattern: Pattern) -> str:
    template, pools = pattern
    return template % tuple([x[int(draw() * len(x))] for x in pools])

  sentences = []
  for pattern in patterns:
    text = fill(pattern)
    ornament = draw()
    if ornament < 0.25:
      text = fill(_pick(world.common['openings'], draw)) + ', ' + text
    elif ornament < 0.5:
      text += ' ' + fill(_pick(world.common['closings'], draw))
    sentences.append(text[0].upper() + text[1:] + '.')
  return _A_BEFORE_VOWEL.sub(r'\1n ', ' '.join(sentences))


def _paragraph(
  world: World, patterns: list[Pattern], draw: Draw
) -> Iterator[Pattern]:
  """Yields three to six patterns, most of them from `patterns`."""
  first = int(draw() * len(patterns))
  for position in range(3 + int(draw() * 4)):
    subject = draw()
    if subject < 0.86:  # a prime stride, so that they differ
      yield patterns[(first + 11 * position) % len(patterns)]
    elif subject < 0.96:
      yield _pick(world.common['background'], draw)
    else:
      cells = _pick(world.families, draw).cells
      yield _pick(_pick([*cells.values()], draw), draw)


def _mark_up(
  text: str, words: Iterable[str], markup: dict[str, Any], draw: Draw
) -> str:
  """Adds links, emphasis and references that leave the words as they are."""
  for word in words:
    style = draw()
    if f' {word} ' in text:
      style = markup['styles'][bisect.bisect((0.4, 0.6, 0.7), style)]
      marked = style.format(word, word.capitalize())
      text = text.replace(f' {word} ', f' {marked} ', 1)
  if draw() < 0.15:
    numbers = draw() * 100, 1800 + int(draw() * 200), draw() * 400
    text += markup['citation'] % numbers
  return text.replace(' in 1', ' in&nbsp;1', 1) if draw() < 0.1 else text


def _article(world: World, number: int) -> tuple[str, str, int]:
  """Returns title, wikitext and the number of words of the running text."""
  draw = random.Random(number + 1).random
  round_index, index = divmod(number, len(world.families))
  family = world.families[index]
  title = family.title
  if round_index:
    aspects = world.data['aspects']
    volume, aspect = divmod(round_index - 1, len(aspects))
    title = f'{aspects[aspect]} of {title}'
    title += f' (volume {volume + 1})' if volume else ''
  words = list(dict.fromkeys(family.words.values()))
  roles = sorted(family.cells, key=lambda role: draw())
  markup, kind = world.data['markup'], family.kind
  known = [f'| {role} = [[{word}]]' for role, word in family.words.items()]
  area = int(draw() * 9000) + 10
  infobox = markup['infobox'] % (kind, '\n'.join(known), area, family.title)
  parts, num_words = [infobox], 0
  for position, role in enumerate([roles[-1], *roles]):
    if position:
      parts.append(f'== {_pick(world.data["headings"], draw)} ==')
    cell = world.data['cells'][kind][role]
    for _ in range(1 + int(draw() * cell['max_paragraphs'])):
      patterns = _paragraph(world, family.cells[role], draw)
      plain = _sentences(world, patterns, draw)
      num_words += plain.count(' ') + 1
      parts.append(
        _mark_up(
          plain, words=words + family.associates, markup=markup, draw=draw
        )
      )
    if not position:
      bold = f" '''{words[0]}''' "
      parts[-1] = parts[-1].replace(f' {words[0]} ', bold, 1)
  if draw() < 0.3:
    rows = (
      markup['row'] % (1500 + int(draw() * 500), draw() * 10**6)
      for _ in range(3)
    )
    parts.append(markup['table'] % ''.join(rows))
  links = [f'* [[{word}]]' for word in family.associates or words]
  parts.append(markup['ending'] % ('\n'.join(links), kind.capitalize()))
  return title, '\n\n'.join(parts), num_words


def _pages(world: World, corpus_words: int, template: str) -> Iterator[str]:
  """Yields the XML of each article and its companions."""
  page_id = total_words = 0
  for round_index in itertools.count():
    draw = random.Random((1 << 96) + round_index).random
    for index in sorted(range(len(world.families)), key=lambda _: draw()):
      number = round_index * len(world.families) + index
      article, text, num_words = _article(world, number)
      pages = [(0, article, text)]
      for every, ns, title, text in world.data['companions']:
        if (page_id + 1) % every == 0:
          fields = {'article': article}
          pages.append((ns, title.format(**fields), text.format(**fields)))
      xml = ''
      for ns, title, text in pages:
        page_id += 1
        redirect = ''
        if text.startswith('#REDIRECT'):
          redirect = f'    <redirect title="{article}" />\n'
        text = saxutils.escape(text, {'"': '&quot;'})
        xml += template.format(
          title=title, ns=ns, page_id=page_id, redirect=redirect, text=text
        )
      yield xml
      total_words += num_words
      if total_words >= corpus_words:
        return


def nouns(world: World) -> list[tuple[str, list[str]]]:
  """Returns nouns without another use, (singular or mass noun, taxonomy)."""
  return [
    (family.words[role], family.taxonomy)
    for family in world.families
    for role in ('singular', 'mass')
    if family.kind == 'noun' and role in family.asked
  ]


def _similarity(world: World, draw: Draw) -> Iterator[str]:
  """Yields pairs of nouns with the score of the levels that they share."""
  levels: list[set[tuple[str, str]]] = [set() for _ in _SIMILARITIES]
  candidates = nouns(world)
  while min(map(len, levels)) < _PAIRS_PER_LEVEL:
    word1, taxonomy1 = _pick(candidates, draw)
    word2, taxonomy2 = _pick(candidates, draw)
    level = levels[sum(map(operator.eq, taxonomy1, taxonomy2))]
    if word1 < word2 and len(level) < _PAIRS_PER_LEVEL:
      level.add((word1, word2))
  for score, level in zip(_SIMILARITIES, levels, strict=True):
    yield from (f'{word1}\t{word2}\t{score}' for word1, word2 in sorted(level))


def analogies(world: World) -> dict[str, list[tuple[str, str]]]:
  """Returns pairs of words by relation."""
  relations = collections.defaultdict(list)
  for section, relation in world.data['analogies'].items():
    kind, a, b = relation.split()
    for family in world.families:
      if family.kind == kind and family.asked.issuperset((a, b)):
        relations[section].append((family.words[a], family.words[b]))
  return relations


def _analogies(world: World, draw: Draw) -> Iterator[str]:
  """Asks each pair of a relation for the second word of some other pairs."""
  for section, pairs in analogies(world).items():
    yield f': {section}'
    for index, (a, b) in enumerate(pairs):
      others = pairs[:index] + pairs[index + 1 :]
      others.sort(key=lambda _: draw())
      yield from (f'{a} {b} {c} {d}' for c, d in others[:_QUESTIONS_PER_PAIR])


def _categories(world: World, draw: Draw) -> Iterator[str]:
  del draw
  yield ',category,word'
  for number, (word, taxonomy) in enumerate(nouns(world)):
    yield f'{number},{taxonomy[0]},{word}'


def context(world: World, sense: Family, draw: Draw) -> str:
  """Returns sentences about a sense; its word is marked in the fourth."""
  roles = ['subject'] * 3 + ['singular'] + ['subject'] * 3
  patterns = (_pick(sense.cells[role], draw) for role in roles)
  text = _sentences(world, patterns, draw)
  tokens = text.replace(',', ' ,').replace('.', ' .').split(' ')
  word = sense.words['singular']
  return ' '.join(f'<b> {t} </b>' if t == word else t for t in tokens)


def _sense_pairs(
  senses: list[Family], draw: Draw
) -> Iterator[tuple[Family, Family, int]]:
  """Yields pairs of senses with their similarity, from 0 to 9."""
  for a, b in zip(senses[::2], senses[1::2], strict=True):  # of one word
    yield from [(a, a, 9), (b, b, 9)] * 2 + [(a, b, 1), (b, a, 1)] * 2
    for x in (a, b):
      others = [y for y in senses if y.taxonomy != x.taxonomy]
      others = [y for y in others if y.words != x.words]
      yield x, _pick(others, draw), 0
  for a, b in itertools.combinations(senses, 2):
    if a.taxonomy == b.taxonomy:  # two words of one subject
      yield a, b, 7


def _senses(world: World, draw: Draw) -> Iterator[str]:
  """Yields pairs of contexts with ten ratings, in the layout of SCWS."""
  senses = [family for family in world.families if family.kind == 'sense']
  for number, (a, b, level) in enumerate([*_sense_pairs(senses, draw)], 1):
    drawn = [level + int(draw() * 3) - 1 for _ in range(10)]
    ratings = [float(min(10, max(0, rating))) for rating in drawn]
    words = [a.words['singular'], 'n', b.words['singular'], 'n']
    contexts = [context(world, sense, draw) for sense in (a, b)]
    fields = [number, *words, *contexts, sum(ratings) / 10, *ratings]
    yield '\t'.join(map(str, fields))


_EVALUATIONS = {
  'similarity.txt': _similarity,
  'analogies.txt': _analogies,
  'categories.csv': _categories,
  'senses.txt': _senses,
}


def write(cache: pathlib.Path, corpus_words: int = DEFAULT_WORDS) -> Corpus:
  """Writes the corpus into a folder of the cache, unless an earlier call has.

  It ends with the page that reaches `corpus_words` of running text. Below
  1,000,000 some words of the evaluation sets are rarer than a min_count of 5.
  Raises a `UserError` if the folder cannot be written.
  """
  folder = cache / f'toywiki-{corpus_words}-{VERSION}'
  make = functools.partial(_write, corpus_words=corpus_words)
  cache_lib.opened(folder, load=checksums.opened, make=make)
  return Corpus(folder / _XML_NAME, tuple(folder / x for x in _EVALUATIONS))


def write_evaluations(cache: pathlib.Path) -> tuple[pathlib.Path, ...]:
  """Writes the evaluation sets alone, which are those of any size.

  As `write`, which takes ten times as long.
  """
  folder = cache / f'toywiki-evaluation-{VERSION}'

  def make(folder: pathlib.Path) -> None:
    _write_evaluations(folder, build_world())
    checksums.seal(folder, {})

  cache_lib.opened(folder, load=checksums.opened, make=make)
  return tuple(folder / x for x in _EVALUATIONS)


def _write(folder: pathlib.Path, corpus_words: int) -> None:
  """Writes the dump and the evaluation sets."""
  world = build_world()
  xml, page, tail = re.split(
    '(  <page>.*</page>\n)', _resource('dump.xml'), flags=re.S
  )
  pages = itertools.chain(_pages(world, corpus_words, page), [tail])
  with open(folder / _XML_NAME, 'wb') as file:
    while xml:
      # bz2, as Wikipedia's, takes as long as a third of the making.
      file.write(gzip.compress(xml.encode(), 1, mtime=0))
      xml = ''.join(itertools.islice(pages, _PAGES_PER_STREAM))
  _write_evaluations(folder, world)
  checksums.seal(folder, {})


def _write_evaluations(folder: pathlib.Path, world: World) -> None:
  draw = random.Random(1 << 63).random
  for name, evaluation in _EVALUATIONS.items():
    lines = (f'{x}\n' for x in evaluation(world, draw))
    (folder / name).write_text(''.join(lines), encoding='utf-8')
