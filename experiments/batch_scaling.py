"""Quality as steps grow: how many words a step may hold, and at what price.

  python experiments/batch_scaling.py --text=PATH --eval=FILES_AND_FOLDERS

An accelerator wants large steps, and a large step sums many updates of a
frequent row that were all computed from its old value. Plain SGD diverges;
row-wise SGD that counts at most `max_duplicates` occurrences of a row per step
does not, as long as that limit falls a little with the size of the step. Each
run is on one device; the recipes are the best that were found
(experiments/results/step_notes.md).
"""

import argparse
import functools
import pathlib
import statistics
from typing import Any, NamedTuple

import experiment

from jaxemb import errors


class Recipe(NamedTuple):
  """How to train with steps of a size."""

  batch_words: int
  optimizer: str
  learning_rate: float
  max_duplicates: float


_LIMITS = {
  1024: 16, 4096: 16, 8192: 16, 16_384: 14, 65_536: 12, 262_144: 8,
}  # fmt: skip
RECIPES = {x: Recipe(x, 'sgd', 0.03, limit) for x, limit in _LIMITS.items()}
# Loss of mean quality against steps of 1024 words that is accepted.
EXPECTED = {8192: 0.005, 65_536: 0.02}


def _recipes(text: str) -> list[Recipe]:
  """Parses `WORDS:OPTIMIZER:RATE:LIMIT,...` or `WORDS,...`."""
  chosen = []
  for recipe in text.split(','):
    words, *rest = recipe.split(':')
    if rest:
      name, rate, limit = rest
      chosen.append(Recipe(int(words), name, float(rate), float(limit)))
    else:
      chosen.append(RECIPES[int(words)])
  return chosen


def _run(
  args: argparse.Namespace, name: str, seed: int, folder: pathlib.Path
) -> dict[str, Any]:
  (recipe,) = _recipes(name)
  settings = {
    'strategy.name': 'sync',
    'train.batch_words': recipe.batch_words,
    'optimizer.name': recipe.optimizer,
    'optimizer.learning_rate': recipe.learning_rate,
    'optimizer.max_duplicates': recipe.max_duplicates,
  }
  try:
    return experiment.score(args, seed, folder / 'run', settings)
  except errors.UserError as error:
    if 'diverged' not in str(error):
      raise
    return {'error': str(error)}


def table(found: dict[str, dict[str, dict]]) -> str:
  """A line per recipe: medians over its seeds."""
  rows, first = [], None
  for name, runs in found.items():
    (recipe,) = _recipes(name)
    failed = [run['error'] for run in runs.values() if 'error' in run]
    if failed:
      rows.append([*recipe, failed[0]])
      continue
    mean, speed = (
      statistics.median(run[key] for run in runs.values())
      for key in ('mean', 'words_per_sec')
    )
    if recipe.batch_words == 1024:
      first = mean
    lost = None if first is None else first - mean
    accepted = EXPECTED.get(recipe.batch_words)
    rows.append([*recipe, speed / 1e6, mean, lost, accepted])
  head = {
    'words per step': '', 'optimizer': '', 'rate': '', 'limit': '',
    'M words/s': '.2f', 'mean': '.4f', 'lost': '.4f', 'accepted': '',
  }  # fmt: skip
  return experiment.table(head, rows)


def main() -> None:
  """Runs all recipes and prints the table."""
  parser = experiment.parser(__doc__)
  # All words: among 30,000 few pairs of rare words are left.
  experiment.add_run_flags(parser)
  add, default = parser.add_argument, [*RECIPES.values()]
  add('--seeds', type=experiment.count, default=1)
  usage = 'WORDS[:OPTIMIZER:RATE:LIMIT],...'
  add('--recipes', type=_recipes, default=default, help=usage)
  args = experiment.parse(parser)
  results = experiment.Results('batch-scaling', args)
  names = [':'.join(map(str, recipe)) for recipe in args.recipes]
  seeds, run = range(1, args.seeds + 1), functools.partial(_run, args)
  experiment.add_runs(results, results.found, names, seeds, run)
  results.finish(table(results.found))


if __name__ == '__main__':
  experiment.main(main)
