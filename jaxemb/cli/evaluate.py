"""Evaluates any word vectors on any benchmarks, and prints a table.

    jaxemb evaluate --vectors=FILE --eval=PATH[,PATH...]

FILE is what `jaxemb.load` reads: a workdir, an export folder, a word2vec file.
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
    description='Evaluates word vectors: similarity, analogies, categories.',
  )
  add = parser.add_argument
  add('--vectors', required=True, help='what jaxemb.load reads: a workdir, ...')
  text = 'that of the words of a file (%(default)s)'
  add('--encoding', default='utf-8', help=text)
  add('--eval', required=True, help='benchmarks, separated by commas')
  add('--json', help='file for the results in full')
  number: dict[str, Any] = {'type': int, 'metavar': 'N'}
  text = 'most frequent words that count; 0 = all (%(default)s)'
  add('--restrict_vocab', default=300_000, help=text, **number)
  text = 'known words around one with senses; 0 = as in training (%(default)s)'
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
