"""Evaluation sets of the embedded encyclopedia, in the layouts of the field.

All gold answers come from the tables of facts, none from the text: similarity
is graded by the taxonomy (the number of levels that two nouns share),
analogies are pairs of families of one kind, categories are the subgroups of
the taxonomy, and two contexts of a word are similar if they are of one sense.
Sense contexts are sentences of their own, not copies from the corpus.
"""

import random

from jaxemb.toywiki import toywiki_families as families_lib

NAMES = (
  'eval/similarity.txt',
  'eval/analogies.txt',
  'eval/categories.csv',
  'eval/senses.txt',
)

# section: kind, role, role
RELATIONS = {
  'capital-country': ('country', 'capital', 'country'),
  'country-currency': ('country', 'country', 'currency'),
  'country-language': ('country', 'country', 'language'),
  'country-demonym': ('country', 'country', 'demonym'),
  'male-female': ('gender', 'male', 'female'),
  'animal-young': ('noun', 'singular', 'young'),
  'gram1-singular-plural': ('noun', 'singular', 'plural'),
  'gram2-adjective-comparative': ('adjective', 'positive', 'comparative'),
  'gram3-adjective-superlative': ('adjective', 'positive', 'superlative'),
  'gram4-adjective-adverb': ('adjective', 'positive', 'adverb'),
  'gram5-verb-past': ('verb', 'base', 'past'),
  'gram6-verb-gerund': ('verb', 'base', 'gerund'),
  'gram7-verb-third-person': ('verb', 'base', 'third'),
}

QUESTIONS_PER_PAIR = 6
PAIRS_PER_LEVEL = 120
_LEVEL_SCORES = (0.5, 3.5, 6.5, 9.0)  # by the number of shared levels


def _nouns(world: families_lib.World) -> list[tuple[str, tuple[str, ...]]]:
  """(singular or mass noun, its place in the taxonomy), one home each."""
  return [
    (family.words[role], family.place)
    for family in world.families
    for role in ('singular', 'mass')
    if family.kind == 'noun' and role in family.asked
  ]


def _similarity(world: families_lib.World, draw: families_lib.Draw) -> str:
  nouns = _nouns(world)
  found: list[set[tuple[str, str]]] = [set() for _ in _LEVEL_SCORES]
  while any(len(pairs) < PAIRS_PER_LEVEL for pairs in found):
    (word1, place1), (word2, place2) = (
      nouns[int(draw() * len(nouns))] for _ in range(2)
    )
    shared = sum(a == b for a, b in zip(place1, place2, strict=True))
    if word1 < word2 and len(found[shared]) < PAIRS_PER_LEVEL:
      found[shared].add((word1, word2))
  return ''.join(
    f'{word1}\t{word2}\t{score}\n'
    for score, pairs in zip(_LEVEL_SCORES, found, strict=True)
    for word1, word2 in sorted(pairs)
  )


def _analogies(world: families_lib.World, draw: families_lib.Draw) -> str:
  """Each pair of a relation asks for the second word of some others."""
  lines = []
  for section, (kind, role1, role2) in RELATIONS.items():
    lines.append(f': {section}')
    pairs = [
      (family.words[role1], family.words[role2])
      for family in world.families
      if family.kind == kind and {role1, role2} <= family.asked
    ]
    for index, pair in enumerate(pairs):
      others = pairs[:index] + pairs[index + 1 :]
      others.sort(key=lambda _: draw())
      lines += [
        f'{pair[0]} {pair[1]} {other[0]} {other[1]}'
        for other in others[:QUESTIONS_PER_PAIR]
      ]
  return '\n'.join(lines) + '\n'


def _categories(world: families_lib.World) -> str:
  rows = [
    f'{index},{place[0]},{word}'
    for index, (word, place) in enumerate(_nouns(world))
  ]
  return '\n'.join([',category,word', *rows]) + '\n'


def context(
  world: families_lib.World, index: int, draw: families_lib.Draw
) -> str:
  """Sentences on the subject of a sense; the fourth has its word, marked."""
  cell, word = world.cells[index], world.families[index].words['singular']
  before_and_after = ('subject', 'subject', 'subject')
  sentences = [
    families_lib.sentence(world, families_lib.pick(cell[role], draw), draw)
    for role in (*before_and_after, 'singular', *before_and_after)
  ]
  text = families_lib.with_articles(' '.join(sentences))
  tokens = text.replace(',', ' ,').replace('.', ' .').split(' ')
  return ' '.join(f'<b> {t} </b>' if t == word else t for t in tokens)


def _sense_pairs(
  world: families_lib.World, draw: families_lib.Draw
) -> list[tuple[int, int, int]]:
  """(family, family, level of similarity from 0 to 10) of pairs of contexts.

  The same sense of a word 9, two words of one subject 7, the two senses of a
  word 1, two words of different subjects 0.
  """
  senses = [i for i, f in enumerate(world.families) if f.kind == 'sense']
  place = {i: world.families[i].place for i in senses}
  pairs = []
  for first, second in zip(senses[::2], senses[1::2], strict=True):
    pairs += [(first, first, 9), (second, second, 9)] * 2
    pairs += [(first, second, 1), (second, first, 1)] * 2
    for sense in (first, second):
      others = [
        i
        for i in senses
        if place[i] != place[sense] and i not in (first, second)
      ]
      pairs.append((sense, others[int(draw() * len(others))], 0))
  pairs += [
    (i, j, 7) for i in senses for j in senses if i < j and place[i] == place[j]
  ]
  return pairs


def _senses(world: families_lib.World, draw: families_lib.Draw) -> str:
  lines = []
  for number, (i, j, level) in enumerate(_sense_pairs(world, draw), start=1):
    ratings = [
      float(min(10, max(0, level + int(draw() * 3) - 1))) for _ in range(10)
    ]
    fields = [
      str(number),
      world.families[i].words['singular'],
      'n',
      world.families[j].words['singular'],
      'n',
      context(world, i, draw),
      context(world, j, draw),
      str(sum(ratings) / 10),
      *(str(rating) for rating in ratings),
    ]
    lines.append('\t'.join(fields) + '\n')
  return ''.join(lines)


def files(world: families_lib.World, seed: int) -> dict[str, str]:
  """Texts of the evaluation files by name (`NAMES`)."""
  draw = random.Random((seed << 64) + (1 << 63)).random
  texts = (
    _similarity(world, draw),
    _analogies(world, draw),
    _categories(world),
    _senses(world, draw),
  )
  return dict(zip(NAMES, texts, strict=True))


def words(world: families_lib.World) -> set[str]:
  """All words that the similarity, analogy and category sets ask about."""
  asked = {word for word, _ in _nouns(world)}
  for kind, role1, role2 in RELATIONS.values():
    for family in world.families:
      if family.kind == kind and {role1, role2} <= family.asked:
        asked |= {family.words[role1], family.words[role2]}
  return asked
