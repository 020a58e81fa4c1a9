"""Quality as steps grow: how many words a step may hold, and what it takes.

  python experiments/batch_scaling.py --text=PATH --eval=FILES_AND_FOLDERS

An accelerator wants large steps, and a large step sums many updates of a
frequent row that were all made from its old value. Plain SGD diverges there;
row-wise SGD whose rows count at most `max_duplicates` occurrences a step does
not, as long as that limit falls a little with the size of the step. Each line
is one run of `python -m jaxemb.main` on one device; the recipes are what was
found best (experiments/results/step_notes.md says what else was tried).
"""

import argparse
import pathlib
import statistics
import sys
import tempfile
from typing import NamedTuple

import machine
import scored

from jaxemb import errors


class Recipe(NamedTuple):
  """How steps of a size are trained."""

  batch_words: int
  optimizer: str
  learning_rate: float
  max_duplicates: float


RECIPES = (
  Recipe(1024, 'sgd', 0.03, 16),
  Recipe(4096, 'sgd', 0.03, 16),
  Recipe(8192, 'sgd', 0.03, 16),
  Recipe(16_384, 'sgd', 0.03, 14),
  Recipe(65_536, 'sgd', 0.03, 12),
  Recipe(262_144, 'sgd', 0.03, 8),
)

# Mean quality lost against steps of 1024 words that is still accepted.
EXPECTED = {8192: 0.005, 65_536: 0.02}


def _flags(recipe: Recipe) -> list[str]:
  return [
    '--config.strategy.name=sync',
    f'--config.train.batch_words={recipe.batch_words}',
    f'--config.optimizer.name={recipe.optimizer}',
    f'--config.optimizer.learning_rate={recipe.learning_rate}',
    f'--config.optimizer.max_duplicates={recipe.max_duplicates}',
  ]


def _recipes(args: argparse.Namespace) -> list[Recipe]:
  """Those asked for, `WORDS:OPTIMIZER:RATE:LIMIT` or WORDS alone."""
  if not args.recipes:
    return list(RECIPES)
  known = {recipe.batch_words: recipe for recipe in RECIPES}
  chosen = []
  for text in args.recipes.split(','):
    words, *rest = text.split(':')
    if rest:
      name, rate, limit = rest
      chosen.append(Recipe(int(words), name, float(rate), float(limit)))
    else:
      chosen.append(known[int(words)])
  return chosen


def _table(results: list[dict]) -> str:
  """A line per recipe: medians over its seeds."""
  lines = [
    f'{"words a step":>12} {"optimizer":>9} {"rate":>6} {"limit":>6}'
    f' {"M words/s":>10} {"mean":>7} {"lost":>7} {"accepted":>9}'
  ]
  first = None
  for result in results:
    recipe = Recipe(**result['recipe'])
    head = (
      f'{recipe.batch_words:12,} {recipe.optimizer:>9} '
      f'{recipe.learning_rate:6g} {recipe.max_duplicates:6g}'
    )
    failed = [run['error'] for run in result['runs'] if 'error' in run]
    if failed:
      lines.append(f'{head}  {failed[0]}')
      continue
    mean = statistics.median(run['mean'] for run in result['runs'])
    speed = statistics.median(run['words_per_sec'] for run in result['runs'])
    if recipe.batch_words == 1024:
      first = mean
    lost = '' if first is None else f'{first - mean:.4f}'
    accepted = EXPECTED.get(recipe.batch_words, '')
    lines.append(
      f'{head} {speed / 1e6:10.2f} {mean:7.4f} {lost:>7} {accepted:>9}'
    )
  return '\n'.join(lines)


def main() -> None:
  """Runs all recipes and prints the table."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--text', default='', help='as config.data.path')
  parser.add_argument('--eval', default='', help='as config.eval.paths')
  parser.add_argument('--config', default='configs/wiki.py')
  parser.add_argument('--sample', type=float, default=1e-4)
  parser.add_argument('--epochs', type=machine.count, default=5)
  parser.add_argument('--seeds', type=machine.count, default=1)
  # All words: of the rare words' pairs 30,000 words leave too few to measure.
  parser.add_argument('--restrict_vocab', type=int, default=0)
  parser.add_argument('--recipes', default='', help='WORDS[:OPT:RATE:LIMIT],..')
  parser.add_argument(
    '--output', default='', help='JSON file; "" = in experiments/results'
  )
  args = machine.parse(parser)
  results = []
  with tempfile.TemporaryDirectory() as temporary:
    for number, recipe in enumerate(_recipes(args)):
      runs = []
      for seed in range(1, args.seeds + 1):
        workdir = pathlib.Path(temporary) / f'{number}-{seed}'
        try:
          runs.append(scored.run(args, seed, workdir, _flags(recipe)))
        except errors.UserError as error:
          if 'diverged' not in str(error):
            raise
          runs.append({'error': str(error)})
        print(recipe, runs[-1], file=sys.stderr, flush=True)
      results.append({'recipe': recipe._asdict(), 'runs': runs})
  facts = machine.describe()
  print(machine.line(facts))
  print(_table(results))
  output = pathlib.Path(
    args.output
    or pathlib.Path(__file__).parent
    / 'results'
    / f'batch-scaling-{facts["date"]}.json'
  )
  machine.write(output, facts, args, results)
  print(f'all figures in {output}')


if __name__ == '__main__':
  machine.run(main)
