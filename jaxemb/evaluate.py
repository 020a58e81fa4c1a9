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
from jaxemb.evaluation import benchmarks, summary, words
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
    print(summary.format_table(results))
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
  parser.add_argument(
    '--vectors',
    required=True,
    help='workdir, export folder, or word2vec, GloVe or fastText .vec file',
  )
  parser.add_argument(
    '--eval',
    required=True,
    help='benchmark files and folders, separated by commas',
  )
  parser.add_argument(
    '--restrict_vocab',
    type=int,
    default=300_000,
    help='only so many most frequent words count; 0 for all (%(default)s)',
  )
  parser.add_argument(
    '--window',
    type=int,
    default=0,
    help='of vectors of senses: known words of a context that count, on each '
    'side; 0 = config.senses.query_window (%(default)s)',
  )
  parser.add_argument('--json', help='file for the results in full')
  flags = parser.parse_args(argv)
  if flags.restrict_vocab < 0:
    parser.error('--restrict_vocab must be 0 (no limit) or more')
  if flags.window < 0:
    parser.error('--window must be 0 (config.senses.query_window) or more')
  return flags


if __name__ == '__main__':
  sys.exit(main())
