"""Evaluates any word vectors on any benchmarks, and prints a table.

    jaxemb evaluate --vectors=FILE --eval=PATH[,PATH...]

FILE is a workdir, an export folder or a file of vectors that `jaxemb.load`
reads.
"""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from jaxemb import embeddings, errors
from jaxemb.evaluation import benchmarks, words
from jaxemb.runtime import process
from jaxemb.storage import atomic


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code, 2 for unusable input."""
  return process.exit_code(_run, argv)


def _run(argv: Sequence[str] | None) -> None:
  parser = argparse.ArgumentParser(
    prog='jaxemb evaluate',
    description='Evaluates word vectors on similarity, analogies and '
    'categories.',
  )
  add = parser.add_argument
  text = 'workdir of a run, or file that jaxemb.load reads'
  add('--vectors', required=True, help=text)
  text = 'encoding of the words in a file (default: %(default)s)'
  add('--encoding', default='utf-8', help=text)
  text = 'benchmark files or folders, separated by commas'
  add('--eval', required=True, help=text)
  add('--json', help='JSON file to write with all results')
  number: dict[str, Any] = {'type': int, 'metavar': 'N'}
  text = 'number of most frequent words that are evaluated; 0 = all words '
  text += '(default: %(default)s)'
  add('--restrict_vocab', default=300_000, help=text, **number)
  text = 'number of words on each side that disambiguate a word with several '
  text += 'senses; 0 = senses.query_window of the run (default: %(default)s)'
  add('--window', default=0, help=text, **number)
  flags = parser.parse_args(argv)
  for name in ('restrict_vocab', 'window'):
    if getattr(flags, name) < 0:
      parser.error(f'--{name} must be 0 or more')
  loaded = embeddings.load_vectors(flags.vectors, flags.encoding)
  if flags.window and loaded.sense_table is None:
    raise errors.UserError(
      f'--window={flags.window} is for words with several vectors, and '
      f'{flags.vectors} has one for each; leave it out'
    )
  paths = filter(None, flags.eval.split(','))
  results = loaded.evaluate(
    benchmarks.find(paths), flags.restrict_vocab, flags.window
  )
  num_words = len(loaded.of_words())
  print(f'{flags.vectors}: {num_words:,} words x {loaded.vector_size}')
  print(words.format_table(results))
  if flags.json:
    with atomic.write(flags.json) as file:
      file.write(json.dumps(results, indent=2).encode())
