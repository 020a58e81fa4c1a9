"""Evaluates any word vectors on any benchmarks, and prints a table.

    python -m jaxemb.evaluate --vectors=FILE --eval=PATH[,PATH...]

FILE is what `jaxemb.load` reads: a workdir, an export folder, a word2vec file.
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence

from jaxemb import embeddings, errors
from jaxemb.evaluation import benchmarks, words
from jaxemb.senses import evaluate as senses
from jaxemb.storage import atomic


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code, 2 for unusable input."""
  flags = _parse(argv)
  logging.captureWarnings(True)
  logging.basicConfig(format='%(message)s', stream=sys.stderr)
  try:
    loaded = embeddings.load(flags.vectors)
    if flags.window and loaded.sense_table is None:
      raise errors.UserError(
        f'--window={flags.window} is of words with several vectors, and '
        f'{flags.vectors} has one for each; leave it out'
      )
    vectors = loaded.of_words()
    paths = [path for path in flags.eval.split(',') if path]
    results = words.evaluate(
      vectors.index_to_key, vectors.vectors, paths, flags.restrict_vocab
    )
    if loaded.sense_table is not None:
      results |= senses.evaluate(
        loaded.sense_table, benchmarks.with_contexts(paths), flags.window
      )
    print(f'{flags.vectors}: {len(vectors):,} words x {vectors.vector_size}')
    print(words.format_table(results))
    if flags.json:
      with atomic.write(flags.json) as file:
        file.write(json.dumps(results, indent=2).encode())
  except errors.UserError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog='python -m jaxemb.evaluate',
    description='Evaluates word vectors: similarity, analogies, categories.',
  )
  add = parser.add_argument
  add('--vectors', required=True, help='what jaxemb.load reads: a workdir, ...')
  add('--eval', required=True, help='benchmarks, separated by commas')
  add(
    '--restrict_vocab',
    type=int,
    default=300_000,
    help='most frequent words that count; 0 for all (%(default)s)',
  )
  add(
    '--window',
    type=int,
    default=0,
    help='with senses: known context words on each side; 0 as in training',
  )
  add('--json', help='file for the results in full')
  flags = parser.parse_args(argv)
  for name in ('restrict_vocab', 'window'):
    if getattr(flags, name) < 0:
      parser.error(f'--{name} must be 0 or more')
  return flags


if __name__ == '__main__':
  sys.exit(main())
