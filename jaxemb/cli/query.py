"""Prints the words nearest to a word or to a sum of words.

    jaxemb query --vectors=FILE king - man + woman

If words have several senses (`config.model.name='mixture'`):

    jaxemb query --vectors=FILE --senses bank
    jaxemb query --vectors=FILE --sense=1 bank
    jaxemb query --vectors=FILE --position=1 the bank of the river

The first command prints every sense with its prior and neighbors, the second
the neighbors of one sense, and the third the probability of each sense of the
word at a position of a sentence, from 0. Each neighbor is printed once, by its
nearest sense with a prior of at least 2 %.

FILE is a workdir, an export folder or a file of vectors that `jaxemb.load`
reads. Words without a sign between them are added. A
sign is a separate term or precedes its word; a known word that begins with a
sign is not split.
"""

import argparse
import functools
import sys
from collections.abc import Container, Sequence

import numpy as np

from jaxemb import embeddings, errors
from jaxemb.evaluation import geometry, multivectors
from jaxemb.runtime import process


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code, 2 for unusable input."""
  return process.exit_code(_run, argv)


def _run(argv: Sequence[str] | None) -> None:
  flags, terms = _parse(argv)
  vectors = embeddings.load_vectors(flags.vectors, flags.encoding)
  nearest = functools.partial(
    vectors.most_similar, topn=flags.topn, min_prior=geometry.MIN_PRIOR
  )
  if not flags.senses and flags.position is None:
    positive, negative = split_expression(terms, _WordsWithRows(vectors))
    if flags.sense is not None and (len(positive) != 1 or negative):
      raise errors.UserError('--sense is that of one word; give one word')
    neighbors = nearest(positive, negative, sense=flags.sense)
    width = max((len(word) for word, _ in neighbors), default=0)
    for word, cosine in neighbors:
      print(f'{word:<{width}}  {cosine:.4f}')
    return
  words = ' '.join(terms).split()
  chances: Sequence[float] | np.ndarray
  if flags.position is not None:
    chances = vectors.disambiguate(words, flags.position)
    word = multivectors.spelled(words[flags.position], vectors)
    assert word is not None  # or it had no chances
  elif len(words) == 1:
    (word,) = words
    chances = [prior for _, prior in vectors.senses(word)]
  else:
    raise errors.UserError('--senses is of one word; give one word')
  if len(chances) == 1:
    why = 'these vectors were trained without; --config=mixture learns several'
    if vectors.sense_table is not None:
      why = (
        'several are learned for the most frequent words '
        '(--config.senses.top_ratio) and those of a file '
        '(--config.senses.words)'
      )
    print(f'{word!r} has one sense: {why}', file=sys.stderr)
  for sense, (name, _) in enumerate(vectors.senses(word)):
    near = ' '.join(neighbor for neighbor, _ in nearest(word, sense=sense))
    print(f'{name}  {chances[sense]:.4f}  {near}')


class _WordsWithRows:
  """Words to look for in an expression: with n-grams, any word has a vector."""

  def __init__(self, vectors: embeddings.Embeddings):
    self._vectors = vectors

  def __contains__(self, word: object) -> bool:
    return isinstance(word, str) and self._vectors.has_index_for(word)


def _parse(
  argv: Sequence[str] | None,
) -> tuple[argparse.Namespace, list[str]]:
  """Returns the flags and the terms of the expression."""
  # No short options: `-` and `-man` belong to the expression.
  parser = argparse.ArgumentParser(
    prog='jaxemb query',
    description='Prints the nearest neighbors of a word or an expression.',
    usage='%(prog)s --vectors=FILE [--encoding=NAME] [--topn=N] [--senses | '
    '--sense=K | --position=N] WORD [+|- WORD ...]',
    allow_abbrev=False,
    add_help=False,
  )
  add = parser.add_argument
  add('--help', action='help', help='show this help message and exit')
  text = 'workdir of a run, or file that jaxemb.load reads'
  add('--vectors', required=True, help=text)
  text = 'encoding of the words in a file (default: %(default)s)'
  add('--encoding', default='utf-8', help=text)
  text = 'number of neighbors (default: %(default)s)'
  add('--topn', type=int, default=10, help=text)
  only = parser.add_mutually_exclusive_group()
  text = 'print all senses of a word, with their neighbors'
  only.add_argument('--senses', action='store_true', help=text)
  text = 'print the neighbors of this sense of a word, from 0'
  only.add_argument('--sense', type=int, help=text)
  text = 'take WORD ... as a sentence, and print the probabilities '
  text += 'of the senses of the word at this position, from 0'
  only.add_argument('--position', type=int, help=text)
  flags, terms = parser.parse_known_args(argv)
  if unknown := [term for term in terms if term.startswith('--')]:
    parser.error(f'unrecognized arguments: {" ".join(unknown)}')
  if flags.topn < 1:
    parser.error('--topn must be 1 or more')
  return flags, terms


def split_expression(
  terms: Sequence[str], known: Container[str]
) -> tuple[list[str], list[str]]:
  """Returns words of `king - man + woman` to add, and words to subtract.

  Raises a `UserError` for other expressions.
  """
  # The name of a node may have white space, in quotes or not.
  terms = [y for x in terms for y in ([x] if x in known else x.split())]
  whole = ' '.join(terms)
  if whole in known and (len(terms) == 1 or not all(x in known for x in terms)):
    return [whole], []
  words: dict[str, list[str]] = {'+': [], '-': []}
  sign = ''
  for term in terms:
    if term in words:
      if sign:
        break
      sign = term
      continue
    if term[0] in words and not sign and term not in known:
      sign, term = term[0], term[1:]
    words[sign or '+'].append(term)
    sign = ''
  if sign or not any(words.values()):
    raise errors.UserError(
      'expected words, with one + or - between them: king - man + woman'
    )
  return words['+'], words['-']
