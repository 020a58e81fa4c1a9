"""Seconds to answer analogy questions over a large table.

  python experiments/bench_evaluation.py --questions=questions-words.txt

The table is random; the words of the questions have rows all over it, so that
every question is answered.
"""

import pathlib
import time

import experiment
import numpy as np

from jaxemb.evaluation import benchmarks, words
from jaxemb.runtime import resources


def main() -> None:
  """Prints questions, seconds and peak memory."""
  parser = experiment.parser(__doc__)
  parser.add_argument('--questions', required=True)
  parser.add_argument('--vocab', type=int, default=300_000)
  parser.add_argument('--dim', type=int, default=300)
  args = parser.parse_args()
  text = pathlib.Path(args.questions).read_text(encoding='utf-8')
  lines = [line for line in text.splitlines() if not line.startswith(':')]
  asked = sorted({word for line in lines for word in line.split()})
  names = [f'other{i}' for i in range(args.vocab)]
  rng = np.random.default_rng(0)
  rows = rng.choice(args.vocab, len(asked), replace=False)
  for row, word in zip(rows, asked, strict=True):
    names[row] = word
  vectors = rng.standard_normal((args.vocab, args.dim), np.float32)
  start = time.perf_counter()
  found = benchmarks.find([args.questions])
  (scores,) = words.evaluate(names, vectors, found).values()
  results = experiment.Results('evaluation', args)
  results.found = {
    'secs': time.perf_counter() - start,
    'answered': scores['found'],
    'questions': scores['total'],
    'peak_rss_bytes': resources.peak_rss_bytes(),
  }
  results.finish(
    f'{scores["found"]:,} of {scores["total"]:,} questions over '
    f'{args.vocab:,} x {args.dim}, 3CosAdd and 3CosMul: '
    f'{results.found["secs"]:.1f} s, table {vectors.nbytes / 1e6:,.0f} MB, '
    f'peak memory {results.found["peak_rss_bytes"] / 1e6:,.0f} MB'
  )


if __name__ == '__main__':
  experiment.main(main)
