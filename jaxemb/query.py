"""Prints the words nearest to a word or to a sum of words.

    python -m jaxemb.query --vectors=FILE king - man + woman

Of a model whose words have senses (`config.model.name='mixture'`):

    python -m jaxemb.query --vectors=FILE --senses bank
    python -m jaxemb.query --vectors=FILE --sense=1 bank
    python -m jaxemb.query --vectors=FILE --position=1 the bank of the river

print every sense with its prior and neighbours, the neighbours of one sense,
and how likely each sense is at a position of a sentence, counted from 0. Of the
neighbours each word comes once, as its nearest sense; senses that are meant in
less than one of fifty occurrences are left out.

FILE is what `jaxemb.load` reads. Words without a sign between them are added.
A sign may stand alone or at the front of its word; a word of the vocabulary
that itself begins with a sign is taken as that word.
"""

import argparse
import logging
import sys
from collections.abc import Container, Sequence

from jaxemb import embeddings, errors
from jaxemb.evaluation import nearest
from jaxemb.senses import table

_SIGNS = ('+', '-')


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code, 2 for unusable input."""
  flags, terms = _parse(list(sys.argv[1:] if argv is None else argv))
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
      min_prior=nearest.MIN_PRIOR,
    )
  except (errors.UserError, KeyError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  width = max(len(word) for word, _ in found) if found else 0
  for word, cosine in found:
    print(f'{word:<{width}}  {cosine:.4f}')
  return 0


def _print_senses(
  vectors: embeddings.Embeddings,
  flags: argparse.Namespace,
  terms: Sequence[str],
) -> None:
  """Every sense of a word: by its prior, or in a sentence."""
  words = [word for term in terms for word in term.split()]
  if flags.position is None:
    if len(words) != 1:
      raise errors.UserError('--senses is of one word; give one word')
    chances = [prior for _, prior in vectors.senses(words[0])]
    word = words[0]
  else:
    chances = vectors.disambiguate(words, flags.position)
    word = table.spelled(words[flags.position], vectors)
  for sense, chance in enumerate(chances):
    name, _ = vectors.senses(word)[sense]
    near = vectors.most_similar(
      word, topn=flags.topn, sense=sense, min_prior=nearest.MIN_PRIOR
    )
    print(f'{name}  {chance:.4f}  ' + ' '.join(other for other, _ in near))


def split_expression(
  terms: Sequence[str], known: Container[str]
) -> tuple[list[str], list[str]]:
  """Splits `king - man + woman` into words to add and to subtract.

  Args:
    terms: Words and signs, by argument; an argument may hold several.
    known: The words that exist.

  Returns:
    The words with sign + (or none), and those with sign -.

  Raises:
    errors.UserError: A sign has no word behind it, or there is no word.
  """
  terms = [term for argument in terms for term in argument.split()]
  if len(terms) == 1 and terms[0] in known:
    return terms, []
  parts = {'+': [], '-': []}
  sign = ''
  for term in terms:
    if term in _SIGNS:
      if sign:
        raise errors.UserError(
          f'two signs without a word between: {sign} {term}'
        )
      sign = term
      continue
    if term[0] in _SIGNS and not sign and term not in known:
      sign, term = term[0], term[1:]
    parts[sign or '+'].append(term)
    sign = ''
  if sign or not (parts['+'] or parts['-']):
    raise errors.UserError(
      'expected words, with + or - between: king - man + woman'
    )
  return parts['+'], parts['-']


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
  parser = argparse.ArgumentParser(
    prog='python -m jaxemb.query',
    description='Prints the words nearest to an expression.',
    usage='%(prog)s --vectors=FILE [--topn=N] [--senses | --sense=K | '
    '--position=N] WORD [+|- WORD ...]',
    allow_abbrev=False,
  )
  parser.add_argument(
    '--vectors',
    required=True,
    help='workdir, export folder, or word2vec, GloVe or fastText .vec file',
  )
  parser.add_argument(
    '--topn', type=int, default=10, help='number of words (%(default)s)'
  )
  parser.add_argument(
    '--senses', action='store_true', help='every sense of a word'
  )
  parser.add_argument('--sense', type=int, help='which sense of the word')
  parser.add_argument(
    '--position', type=int, help='of a word in a sentence, to tell its sense'
  )
  # Only long flags are options: `-` and `-man` belong to the expression.
  options, terms = [], []
  rest = iter(argv)
  for argument in rest:
    if argument in ('--vectors', '--topn', '--sense', '--position'):
      options += [argument, *next(([value] for value in rest), [])]
    elif argument.startswith('--') or argument == '-h':
      options.append(argument)
    else:
      terms.append(argument)
  flags = parser.parse_args(options)
  if flags.topn < 1:
    parser.error('--topn must be 1 or more')
  asked = {
    '--senses': flags.senses,
    '--sense': flags.sense is not None,
    '--position': flags.position is not None,
  }
  given = [name for name, is_given in asked.items() if is_given]
  if len(given) > 1:
    parser.error(f'{" and ".join(given)} ask for different things; give one')
  return flags, terms


if __name__ == '__main__':
  sys.exit(main())
