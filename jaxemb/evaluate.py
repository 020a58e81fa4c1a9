"""Evaluates any word vectors on any benchmarks, and prints a table.

    python -m jaxemb.evaluate --vectors=FILE --eval=PATH[,PATH...]

FILE is what `jaxemb.load` reads: a workdir, an export folder, a word2vec file.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from jaxemb import embeddings, errors
from jaxemb.evaluation import benchmarks, words
from jaxemb.senses import evaluate as senses
from jaxemb.storage import atomic

_NUMBERS = {
  'restrict_vocab': (300_000, 'most frequent words that count; 0 = all'),
  'window': (0, 'known words around one with senses; 0 = as in training'),
}


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code, 2 for unusable input."""
  return errors.exit_code(_run, argv)


def _run(argv: Sequence[str] | None) -> None:
  parser = argparse.ArgumentParser(
    prog='python -m jaxemb.evaluate',
    description='Evaluates word vectors: similarity, analogies, categories.',
  )
  add = parser.add_argument
  add('--vectors', required=True, help='what jaxemb.load reads: a workdir, ...')
  add('--eval', required=True, help='benchmarks, separated by commas')
  add('--json', help='file for the results in full')
  for name, (default, text) in _NUMBERS.items():
    text = f'{text} (%(default)s)'
    add(f'--{name}', type=int, default=default, help=text)
  flags = parser.parse_args(argv)
  for name in _NUMBERS:
    if getattr(flags, name) < 0:
      parser.error(f'--{name} must be 0 or more')
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
    in_context = benchmarks.with_contexts(paths)
    results |= senses.evaluate(loaded.sense_table, in_context, flags.window)
  print(f'{flags.vectors}: {len(vectors):,} words x {vectors.vector_size}')
  print(words.format_table(results))
  if flags.json:
    with atomic.write(flags.json) as file:
      file.write(json.dumps(results, indent=2).encode())


if __name__ == '__main__':
  sys.exit(main())
