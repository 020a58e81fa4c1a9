"""Quality as steps grow: how many words a step may hold, and at what price.

  python experiments/batch_scaling.py --text=PATH --eval=FILES_AND_FOLDERS

An accelerator wants large steps, and a large step sums many updates of a
frequent row that were all computed from its old value. Plain SGD diverges;
row-wise SGD that counts at most `max_duplicates` occurrences of a row per step
does not, as long as that limit falls a little with the size of the step. Each
run is on one device; the recipes are the best that were found
(experiments/results/step_notes.md).
"""

import pathlib
import statistics
import tempfile
from typing import Any, NamedTuple

import experiment

from jaxemb import errors


class Recipe(NamedTuple):
  """How to train with steps of a size."""

  batch_words: int
  optimizer: str
  learning_rate: float
  max_duplicates: float


RECIPES = {
  words: Recipe(words, 'sgd', 0.03, limit)
  for words, limit in (
    (1024, 16), (4096, 16), (8192, 16), (16_384, 14), (65_536, 12),
    (262_144, 8),
  )
}  # fmt: skip

# Loss of mean quality against steps of 1024 words that is accepted.
EXPECTED = {8192: 0.005, 65_536: 0.02}


def _settings(recipe: Recipe) -> dict[str, Any]:
  return {
    'strategy.name': 'sync',
    'train.batch_words': recipe.batch_words,
    'optimizer.name': recipe.optimizer,
    'optimizer.learning_rate': recipe.learning_rate,
    'optimizer.max_duplicates': recipe.max_duplicates,
  }


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


def table(results: list[dict]) -> str:
  """A line per recipe: medians over its seeds."""
  rows, first = [], None
  for result in results:
    recipe = Recipe(**result['recipe'])
    failed = [run['error'] for run in result['runs'] if 'error' in run]
    if failed:
      rows.append([*recipe, failed[0]])
      continue
    mean = statistics.median(run['mean'] for run in result['runs'])
    speed = statistics.median(run['words_per_sec'] for run in result['runs'])
    if recipe.batch_words == 1024:
      first = mean
    lost = None if first is None else f'{first - mean:.4f}'
    accepted = EXPECTED.get(recipe.batch_words)
    rows.append([*recipe, f'{speed / 1e6:.2f}', f'{mean:.4f}', lost, accepted])
  head = (
    'words per step', 'optimizer', 'rate', 'limit', 'M words/s', 'mean', 'lost',
    'accepted',
  )  # fmt: skip
  return experiment.table(head, rows)


def main() -> None:
  """Runs all recipes and prints the table."""
  parser = experiment.parser(__doc__)
  # All words: among 30,000 few pairs of rare words are left.
  experiment.add_run_flags(parser)
  parser.add_argument('--seeds', type=experiment.count, default=1)
  parser.add_argument(
    '--recipes',
    type=_recipes,
    default=[*RECIPES.values()],
    help='WORDS[:OPTIMIZER:RATE:LIMIT],...',
  )
  args = experiment.parse(parser)
  results = experiment.Results('batch-scaling', args)
  results.found = []
  for recipe in args.recipes:
    runs: list[dict] = []
    results.found.append({'recipe': recipe._asdict(), 'runs': runs})
    for seed in range(1, args.seeds + 1):
      with tempfile.TemporaryDirectory() as folder:
        workdir = pathlib.Path(folder) / 'run'
        try:
          run = experiment.score(args, seed, workdir, _settings(recipe))
        except errors.UserError as error:
          if 'diverged' not in str(error):
            raise
          run = {'error': str(error)}
      runs.append(run)
      experiment.progress(recipe, run)
      results.save()
  results.finish(table(results.found))


if __name__ == '__main__':
  experiment.main(main)
