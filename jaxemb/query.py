"""Prints the words nearest to a word or to a sum of words.

    python -m jaxemb.query --vectors=FILE king - man + woman

With vectors of senses (`config.model.name='mixture'`):

    python -m jaxemb.query --vectors=FILE --senses bank
    python -m jaxemb.query --vectors=FILE --sense=1 bank
    python -m jaxemb.query --vectors=FILE --position=1 the bank of the river

print every sense with its prior and neighbors, the neighbors of one sense, and
the probability of each sense at a position of a sentence, counted from 0. Of
the neighbors each word comes once, as its nearest sense; senses with a prior
below 2 % are left out.

FILE is what `jaxemb.load` reads. Words without a sign between them are added.
A sign may stand alone or at the front of its word; a word of the vocabulary
that itself begins with a sign is taken as that word.
"""

import argparse
import logging
import sys
from collections.abc import Container, Sequence

from jaxemb import embeddings, errors
from jaxemb.evaluation import geometry
from jaxemb.senses import table


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code, 2 for unusable input."""
  flags, terms = _parse(argv)
  logging.captureWarnings(True)
  logging.basicConfig(format='%(message)s', stream=sys.stderr)
  try:
    vectors = embeddings.load(flags.vectors)
    if flags.senses or flags.position is not None:
      _print_senses(vectors, flags, terms)
      return 0
    positive, negative = split_expression(terms, vectors)
    if flags.sense is not None and (len(positive) != 1 or negative):
      raise errors.UserError('--sense is that of one word; give one word')
    found = vectors.most_similar(
      positive,
      negative,
      flags.topn,
      sense=flags.sense,
      min_prior=geometry.MIN_PRIOR,
    )
  except (errors.UserError, KeyError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  width = max((len(word) for word, _ in found), default=0)
  for word, cosine in found:
    print(f'{word:<{width}}  {cosine:.4f}')
  return 0


def _print_senses(
  vectors: embeddings.Embeddings,
  flags: argparse.Namespace,
  terms: Sequence[str],
) -> None:
  """Every sense of a word, with its prior or its probability in a sentence."""
  words = [word for term in terms for word in term.split()]
  if flags.position is not None:
    chances = vectors.disambiguate(words, flags.position)
    word = table.spelled(words[flags.position], vectors)
  elif len(words) == 1:
    word = words[0]
    chances = [prior for _, prior in vectors.senses(word)]
  else:
    raise errors.UserError('--senses is of one word; give one word')
  names = [name for name, _ in vectors.senses(word)]
  for sense, (name, chance) in enumerate(zip(names, chances, strict=True)):
    near = vectors.most_similar(
      word, topn=flags.topn, sense=sense, min_prior=geometry.MIN_PRIOR
    )
    print(f'{name}  {chance:.4f}  ' + ' '.join(other for other, _ in near))


def split_expression(
  terms: Sequence[str], known: Container[str]
) -> tuple[list[str], list[str]]:
  """Words of `king - man + woman` to add and to subtract.

  Raises:
    errors.UserError: a sign without a word after it, or no word.
  """
  terms = [term for argument in terms for term in argument.split()]
  if len(terms) == 1 and terms[0] in known:
    return terms, []
  words = {'+': [], '-': []}
  sign = ''
  for term in terms:
    if term in words:
      if sign:
        raise errors.UserError(
          f'two signs without a word between: {sign} {term}'
        )
      sign = term
      continue
    if term[0] in words and not sign and term not in known:
      sign, term = term[0], term[1:]
    words[sign or '+'].append(term)
    sign = ''
  if sign or not (words['+'] or words['-']):
    raise errors.UserError(
      'expected words, with + or - between: king - man + woman'
    )
  return words['+'], words['-']


def _parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
  # No short options: `-` and `-man` belong to the expression.
  parser = argparse.ArgumentParser(
    prog='python -m jaxemb.query',
    description='Prints the words nearest to an expression.',
    usage='%(prog)s --vectors=FILE [--topn=N] [--senses | --sense=K | '
    '--position=N] WORD [+|- WORD ...]',
    allow_abbrev=False,
    add_help=False,
  )
  add = parser.add_argument
  add('--help', action='help', help='shows this')
  add('--vectors', required=True, help='what jaxemb.load reads: a workdir, ...')
  add('--topn', type=int, default=10, help='number of words (%(default)s)')
  only = parser.add_mutually_exclusive_group()
  only.add_argument('--senses', action='store_true', help='all of a word')
  only.add_argument('--sense', type=int, help='which sense of the word')
  only.add_argument('--position', type=int, help='of a word in a sentence')
  flags, terms = parser.parse_known_args(argv)
  unknown = [term for term in terms if term.startswith('--')]
  if unknown:
    parser.error(f'unrecognized arguments: {" ".join(unknown)}')
  if flags.topn < 1:
    parser.error('--topn must be 1 or more')
  return flags, terms


if __name__ == '__main__':
  sys.exit(main())
