"""Word families of the embedded encyclopedia, and sentences about them.

A family is one entry of a table of facts: a country with its capital,
currency, language and demonym; a noun with its plural; a verb with its forms.
The one idea: a sentence is about one role of one family (a cell). Its pattern
brings the words that are typical of the role, its slots the words that are
typical of the family, so that a word's contexts are role + family, which is
what makes analogies work in real text too. Patterns are compiled once into
(template, pools); a sentence costs one random number per slot.
"""

import bisect
import collections
import random
import re
import types
from collections.abc import Callable, Iterable
from typing import NamedTuple

from jaxemb.toywiki import toywiki_facts as facts
from jaxemb.toywiki import toywiki_patterns as patterns

Draw = Callable[[], float]  # the next random number, uniform in [0, 1)

NUM_BACKGROUND = 30_000
_BAG_SIZE = 1 << 18
_NUM_NAMES = 4_000
_NUM_PLACES = 1_201
_PLACES_PER_FAMILY = 5
_ZIPF_SHIFT = 100  # Mandelbrot's: word frequency is 1 / (rank + shift)

_A_BEFORE_VOWEL = re.compile(
  r'\b([Aa]) (?!(?i:uni|use|eur|one\b))(?=[aeiouAEIOU])'
)

_STARTS = 'b br c cl d dr f fl g gr h j k l m n p pl r s st t tr v z'.split()
_MIDDLES = 'b d g k l m n p r s t v'.split()
_VOWELS = 'a e i o u'.split()
_ENDS = 'n l r s th nd m x'.split()


class Pattern(NamedTuple):
  """A compiled sentence pattern: `template % one word of each pool`."""

  template: str
  pools: tuple[list[str], ...]


class Family(NamedTuple):
  """A word family: who is in it and which words go with it.

  `words` maps a role to its word; `asked` are those roles that evaluation
  sets may ask for: the word has no other home in the tables. `place` is
  (subgroup, category, domain) for nouns and (subject,) for senses.
  """

  kind: str
  title: str
  words: dict[str, str]
  asked: frozenset[str]
  associates: tuple[str, ...]
  place: tuple[str, ...]


class World(NamedTuple):
  """Everything that sentences are drawn from.

  `cells[i][role]` are the patterns of role `role` of `families[i]`.
  """

  families: tuple[Family, ...]
  cells: tuple[dict[str, list[Pattern]], ...]
  background: list[Pattern]
  openings: list[Pattern]
  closings: list[Pattern]


def _lines(table: str) -> list[str]:
  return [line for line in table.splitlines() if line]


def _with_s(word: str) -> str:
  """Regular plural of a noun, or third person of a verb."""
  if re.search(r'(s|x|z|ch|sh)$', word):
    return word + 'es'
  if re.search(r'[^aeiou]y$', word):
    return word[:-1] + 'ies'
  return word + 's'


def _rows(table: str) -> Iterable[tuple[list[str], tuple[str, ...]]]:
  for line in _lines(table):
    fields, _, associates = line.partition('|')
    yield fields.split(), tuple(associates.split())


def _tabled(
  kind: str, table: str, roles: tuple[str, ...], title: str
) -> Iterable[Family]:
  for fields, associates in _rows(table):
    members = dict(zip(roles, fields, strict=True))
    words = {r: w.rstrip('_') for r, w in members.items() if w != '-'}
    asked = frozenset(r for r in words if not members[r].endswith('_'))
    name = title.format(**words).capitalize()
    yield Family(kind, name, words, asked, associates, ())


def _nouns() -> Iterable[Family]:
  young = dict(line.split() for line in _lines(facts.YOUNG))
  levels = {line.split()[0]: line.split() for line in _lines(facts.TAXONOMY)}
  for subgroup, table in facts.NOUNS.items():
    for (noun,), associates in _rows(table):
      singular, _, plural = noun.partition('/')
      if subgroup in facts.MASS:
        words = {'mass': singular}
      else:
        words = {'singular': singular, 'plural': plural or _with_s(singular)}
      if plural == singular:
        del words['plural']
      if singular in young:
        words['young'] = young[singular]
      yield Family(
        'noun',
        singular.capitalize(),
        words,
        frozenset(words),
        associates,
        tuple(levels[subgroup]),
      )


def _senses() -> Iterable[Family]:
  for line in _lines(facts.SENSES):
    word, *subjects = line.split()
    for subject in subjects:
      title = f'{word.capitalize()} ({subject.replace("_", " ")})'
      yield Family(
        'sense', title, {'singular': word}, frozenset(), (), (subject,)
      )


def families() -> tuple[Family, ...]:
  """All word families of the tables, in the order of the tables."""
  found = [
    *_tabled(
      'country',
      facts.COUNTRIES,
      ('country', 'capital', 'currency', 'language', 'demonym'),
      '{country}',
    ),
    *_nouns(),
    *_tabled('gender', facts.GENDERS, ('male', 'female'), '{male}'),
    *_tabled(
      'adjective',
      facts.ADJECTIVES,
      ('positive', 'comparative', 'superlative', 'adverb'),
      '{positive} (adjective)',
    ),
    *_tabled(
      'verb', facts.VERBS, ('base', 'past', 'gerund', 'third'), '{gerund}'
    ),
    *_senses(),
  ]
  homes = collections.Counter(
    word.lower() for family in found for word in family.words.values()
  )
  homes.update(_shared_words())
  return tuple(
    family._replace(
      asked=frozenset(
        role for role in family.asked if homes[family.words[role].lower()] == 1
      )
    )
    for family in found
  )


def _tables(module: types.ModuleType) -> list[object]:
  return [table for name, table in vars(module).items() if name.isupper()]


def _words_of(tables: object) -> set[str]:
  return set(re.findall(r'[a-z]+', repr(tables).lower()))


def _shared_words() -> set[str]:
  """Words that sentences about any family may use."""
  lexicon = [*facts.LEXICON.values(), *facts.SUBJECTS.values()]
  names = [facts.HE_NAMES, facts.SHE_NAMES]
  return _words_of([lexicon, names, _tables(patterns)])


def _made_up_words(count: int, draw: Draw) -> list[str]:
  """Distinct pronounceable words that are in no table and no pattern."""
  taken = _words_of([_tables(facts), _tables(patterns)])

  def syllable(consonants: list[str]) -> str:
    return (
      consonants[int(draw() * len(consonants))]
      + _VOWELS[int(draw() * len(_VOWELS))]
    )

  words = []
  while len(words) < count:
    word = syllable(_STARTS) + syllable(_MIDDLES) + syllable(_MIDDLES)
    if draw() < 0.5:
      word += syllable(_MIDDLES)
    if draw() < 0.5:
      word += _ENDS[int(draw() * len(_ENDS))]
    if word not in taken:
      taken.add(word)
      words.append(word)
  return words


def _zipf_bag(words: list[str]) -> list[str]:
  """A list in which the word of rank r stands about 1 / (r + shift) times.

  Whole numbers only, so that it is the same on every machine.
  """
  total, cumulative = 0, []
  for rank in range(len(words)):
    total += 10**9 // (rank + 1 + _ZIPF_SHIFT)
    cumulative.append(total)
  return [
    words[bisect.bisect(cumulative, total * slot // _BAG_SIZE)]
    for slot in range(_BAG_SIZE)
  ]


def _compile(
  lines: str, words: dict[str, str], pools: dict[str, list[str]]
) -> list[Pattern]:
  """Patterns whose slots can all be filled from `words` and `pools`.

  A slot that stands k times in a pattern draws from k disjoint parts of its
  pool, so that no sentence says `the wings and the wings`.
  """
  compiled = []
  for index, line in enumerate(_lines(lines)):
    slots = re.findall(r'\{(\w+)\}', line)
    if any(slot not in words and slot not in pools for slot in slots):
      continue
    drawn = [slot for slot in slots if slot not in words]
    fill = {slot: words.get(slot, '%s') for slot in slots}
    parts = []
    for position, slot in enumerate(drawn):
      pool, count = pools[slot], drawn.count(slot)
      if count > 1 and len(pool) < _BAG_SIZE:
        pool = pool[(drawn[:position].count(slot) + index) % count :: count]
      parts.append(pool)
    compiled.append(Pattern(line.format(**fill), tuple(parts)))
  return compiled


def _lexicon(family: Family) -> dict[str, list[str]]:
  """Pools of nouns, verbs and adjectives; closer levels weigh more."""
  if family.kind == 'noun':
    levels = [facts.LEXICON[level] for level in family.place]
    sources = 6 * levels[:1] + 2 * levels[1:]
  elif family.kind == 'sense':
    sources = [facts.SUBJECTS[family.place[0]]]
  else:
    return {}
  nouns, verbs, adjectives = (
    [word for source in sources for word in source[i].split()] for i in range(3)
  )
  thirds = [_with_s(verb) for verb in verbs]
  return {'n': nouns, 'v': verbs, 'vs': thirds, 'a': adjectives}


def build(seed: int) -> World:
  """The families with their compiled patterns and the background of a seed."""
  draw = random.Random(seed).random
  members = families()
  made_up = _made_up_words(NUM_BACKGROUND + _NUM_NAMES + _NUM_PLACES, draw)
  names = [word.capitalize() for word in made_up[NUM_BACKGROUND:]]
  places, names = names[_NUM_NAMES:], names[:_NUM_NAMES]
  general = {
    'z': _zipf_bag(made_up[:NUM_BACKGROUND]),
    'N': names,
    'y': [str(year) for year in range(1480, 2021)],
    'he': facts.HE_NAMES.split(),
    'she': facts.SHE_NAMES.split(),
  }
  cells = []
  for index, family in enumerate(members):
    first = _PLACES_PER_FAMILY * index
    own = [
      places[(first + 241 * i) % _NUM_PLACES] for i in range(_PLACES_PER_FAMILY)
    ]
    pools = {**general, **_lexicon(family), 'l': list(family.associates)}
    if family.kind == 'country':
      pools['l'] += own
    elif family.kind != 'sense':
      pools['N'] = own
    roles = patterns.SENTENCES[family.kind]
    cells.append(
      {
        role: _compile(
          lines, {**family.words, 'x': family.words.get(role, '')}, pools
        )
        for role, lines in roles.items()
        if role in family.words or role == 'subject'
      }
    )
  return World(
    members,
    tuple(cells),
    _compile(patterns.BACKGROUND, {}, general),
    _compile(patterns.OPENINGS, {}, general),
    _compile(patterns.CLOSINGS, {}, general),
  )


def _fill(pattern: Pattern, draw: Draw) -> str:
  template, pools = pattern
  return template % tuple([pool[int(draw() * len(pool))] for pool in pools])


def pick(patterns_: list[Pattern], draw: Draw) -> Pattern:
  """One of the patterns, each as likely as the others."""
  return patterns_[int(draw() * len(patterns_))]


def sentence(world: World, pattern: Pattern, draw: Draw) -> str:
  """A sentence of a pattern, with its capital letter and full stop."""
  text = _fill(pattern, draw)
  ornament = draw()
  if ornament < 0.25:
    text = _fill(pick(world.openings, draw), draw) + ', ' + text
  elif ornament < 0.5:
    text += ' ' + _fill(pick(world.closings, draw), draw)
  return text[0].upper() + text[1:] + '.'


def with_articles(text: str) -> str:
  """Says `an` where patterns say `a` before a vowel."""
  return _A_BEFORE_VOWEL.sub(r'\1n ', text)
