"""One vector per word, or several: the table of DMWE on any text.

  python experiments/dmwe_scws.py --text=PATH --scws=scws-ratings.txt

Skip-gram and the mixture (Tian et al. 2014; Microsoft's DMWE), each with
hierarchical softmax and with negative sampling, on the same text and epochs;
the words of the questions have several senses, as in DMWE's script. Scores are
rank correlations with human ratings of word pairs in context
(evaluation/contexts.py). Runs that the output file already has are skipped.

As DMWE trains: --models='mixture, tree' --config=mixture:dmwe --sample=0.
"""

import argparse
import functools
import json
import pathlib
import statistics
from typing import Any

import experiment

from jaxemb import config as config_lib
from jaxemb.evaluation import benchmarks, contexts

MODELS = {
  'skip-gram, tree': ('skipgram', 'hierarchical_softmax'),
  'mixture, tree': ('mixture', 'hierarchical_softmax'),
  'skip-gram, negatives': ('skipgram', 'negative_sampling'),
  'mixture, negatives': ('mixture', 'negative_sampling'),
}
MEASURES = ('MaxSimC', 'AvgSimC', 'single')


def _run(
  args: argparse.Namespace, case: str, seed: int, folder: pathlib.Path
) -> dict[str, Any]:
  name, _, dim = case.rpartition(', ')
  model, loss = MODELS[name]
  settings = {'model.name': model, 'model.loss': loss, 'model.dim': dim}
  if loss == 'hierarchical_softmax':
    settings['optimizer.name'] = 'adagrad'
  args = argparse.Namespace(**vars(args))
  if model == 'mixture':
    # Only the listed words have several, whatever the config says.
    (asked,) = benchmarks.find([args.scws])
    words = folder / 'words.txt'
    words.write_text('\n'.join(sorted({w for x in asked.words for w in x})))
    settings |= {
      'senses.words': words,
      'senses.number': args.senses,
      'senses.top_ratio': 0.0,
    }
  else:
    senses = config_lib.default().senses
    settings |= {f'senses.{key}': value for key, value in senses.items()}
    args.override = [x for x in args.override if '--config.senses.' not in x]
  run = experiment.score(args, seed, folder / 'run', settings)
  scores, stem = run['scores'], pathlib.Path(args.scws).stem
  run['scores'] = {'single': scores.get('scws')}
  if model == 'mixture':
    run['scores'] = {x: scores[f'{stem} {x}'] for x in contexts.MEASURES}
  return run


def table(found: dict[str, dict[str, dict]]) -> str:
  """A line per model: means over its seeds, then what was published."""
  rows: list[list[Any]] = []
  for name, runs in found.items():
    row = [name]
    for measure in MEASURES:
      scores = [x['scores'].get(measure) for x in runs.values()]
      row.append(None if None in scores else statistics.mean(scores))
    best = [max(x['scores'].values()) for x in runs.values()]
    row.append(max(best) - min(best))
    for key in ('words_per_sec', 'epoch_secs'):
      row.append(statistics.median(x[key] for x in runs.values()))
    rows.append(row)
  rows.append(['published'])
  file = pathlib.Path(__file__).with_name('scws_published.json')
  published = json.loads(file.read_text())['rows']
  rows += [[f'  {name}', *cells] for name, cells in published.items()]
  head = {'model, dims': '', **dict.fromkeys((*MEASURES, 'spread'), '.4f')}
  return experiment.table(head | {'words/s': ',.0f', 's/epoch': '.1f'}, rows)


def main() -> None:
  """Makes the runs that are missing, and prints the table."""
  parser = experiment.parser(__doc__)
  experiment.add_run_flags(parser)
  add = parser.add_argument
  add('--scws', required=True, help='ratings of pairs of words in context')
  experiment.add_names(parser, '--models', MODELS, ':')
  add('--dims', type=experiment.numbers, default=[50])
  add('--seeds', type=experiment.numbers, default=[1, 2, 3])
  add('--senses', type=experiment.count, default=5, help='of each of the words')
  args = experiment.parse(parser)
  benchmarks.find([args.scws])  # an unreadable file is reported at once
  args.eval = args.scws
  results = experiment.Results(
    'dmwe-scws', args, (*experiment.RUN_FLAGS, 'scws', 'senses')
  )
  cases = [f'{x}, {dim}' for dim in args.dims for x in args.models]
  run = functools.partial(_run, args)
  experiment.add_runs(results, results.found, cases, args.seeds, run)
  results.finish(table(results.found))


if __name__ == '__main__':
  experiment.main(main)
