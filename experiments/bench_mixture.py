"""What several vectors per word cost: words/s against one vector per word.

  python experiments/bench_mixture.py --text=PATH --scws=scws-ratings.txt

Trains as DMWE does (the config mixture:dmwe: 50 dims, hierarchical softmax, a
window of 5, no subsampling, several senses for the words of SCWS), in turn with
one sense for every word and with both methods of `config.senses.method`.
"""

import argparse
import functools
import pathlib
import statistics
import tempfile
from typing import Any

import experiment

from jaxemb.evaluation import benchmarks

# Words/s of an epoch on twenty cores, from DMWE's page.
EXPECTED = 156_000
MODELS: dict[str, dict[str, Any]] = {
  'one sense': {'senses.number': 1},
  'contexts': {'senses.method': 'contexts'},
  'likelihoods': {},
}


def _run(args: argparse.Namespace, model: str, run: int) -> dict[str, Any]:
  (asked,) = benchmarks.find([args.scws])
  words = {word for pair in asked.words for word in pair}
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    path = folder / 'words.txt'
    path.write_text('\n'.join(sorted(words)) + '\n')
    settings = {'senses.words': path, 'senses.number': args.senses}
    settings |= MODELS[model]
    return experiment.score(args, run + 1, folder / 'run', settings)


def main() -> None:
  """Makes the runs in turn and prints medians."""
  parser = experiment.parser(__doc__)
  experiment.add_run_flags(parser, config='mixture:dmwe', epochs=1, sample=0.0)
  add = parser.add_argument
  add('--scws', required=True, help='ratings of pairs of words in context')
  experiment.add_names(parser, '--models', MODELS, ':')
  add('--senses', type=experiment.count, default=5, help='of each of the words')
  add('--runs', type=experiment.count, default=3)
  args = experiment.parse(parser)
  args.eval = args.scws
  results = experiment.Results('bench-mixture', args)
  sides = {x: functools.partial(_run, args, x) for x in args.models}
  results.found = experiment.in_turn(sides, args.runs)
  rows, first = [], None
  for name, runs in results.found.items():
    speed = statistics.median(x['words_per_sec'] for x in runs)
    first = first or speed
    scores = runs[-1]['scores'].items()
    scores = ', '.join(f'{k} {v:.3f}' for k, v in scores if v is not None)
    rows.append((name, speed, first / speed, scores))
  head = {'': '', 'words/s': ',.0f', 'slower': '.2f', 'last scores': ''}
  expected = f'DMWE, twenty cores: {EXPECTED:,}'
  results.finish(experiment.table(head, rows), expected)


if __name__ == '__main__':
  experiment.main(main)
