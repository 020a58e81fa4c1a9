"""Seconds to answer analogy questions over a large table.

  python experiments/bench_evaluation.py --questions=questions-words.txt

The table is random; the words of the questions have rows all over it, so that
every question is asked.
"""

import argparse
import pathlib
import resource
import time

import machine
import numpy as np

from jaxemb.evaluation import words


def main() -> None:
  """Prints questions, seconds and peak memory."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--questions', required=True)
  parser.add_argument('--vocab', type=int, default=300_000)
  parser.add_argument('--dim', type=int, default=300)
  args = parser.parse_args()
  text = pathlib.Path(args.questions).read_text(encoding='utf-8')
  lines = [line for line in text.splitlines() if not line.startswith(':')]
  asked = sorted({word for line in lines for word in line.split()})
  names = [f'other{i}' for i in range(args.vocab)]
  rng = np.random.default_rng(0)
  places = rng.choice(args.vocab, len(asked), replace=False)
  for place, word in zip(places, asked, strict=True):
    names[place] = word
  vectors = rng.standard_normal((args.vocab, args.dim), np.float32)
  start = time.perf_counter()
  (result,) = words.evaluate(names, vectors, [args.questions]).values()
  secs = time.perf_counter() - start
  peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  print(
    f'{result["found"]:,} of {result["total"]:,} questions over {args.vocab:,} '
    f'x {args.dim}, 3CosAdd and 3CosMul: {secs:.1f} s, table '
    f'{vectors.nbytes / 1e6:,.0f} MB, peak memory {peak_bytes / 1e6:,.0f} MB'
  )


if __name__ == '__main__':
  machine.run(main)
