"""One vector per word, or several: the table of DMWE on any text.

  python experiments/dmwe_scws.py --text=PATH --scws=scws-ratings.txt

Skip-gram and the mixture (Tian et al. 2014; Microsoft's DMWE), each with
hierarchical softmax and with negative sampling, on the same text and epochs.
The words of the questions have several senses, as in DMWE's script. Scores are
rank correlations with human ratings of word pairs in context: of the most
likely senses (MaxSimC), of all senses by their probability (AvgSimC), of mean
vectors (single). Runs that the output file has already are not made again.

As DMWE trains: --models='mixture, tree' --config=mixture:dmwe --sample=0.
"""

import argparse
import pathlib
import statistics
import tempfile
from typing import Any

import experiment

from jaxemb import config as config_lib
from jaxemb.senses import evaluate

MODELS = {
  'skip-gram, tree': ('skipgram', 'hierarchical_softmax'),
  'mixture, tree': ('mixture', 'hierarchical_softmax'),
  'skip-gram, negatives': ('skipgram', 'negative_sampling'),
  'mixture, negatives': ('mixture', 'negative_sampling'),
}
MEASURES = ('MaxSimC', 'AvgSimC', 'single')
# From DMWE's page: Wiki2014, 3.4 G words, 20 epochs, 50 dims, 20 cores; it does
# not name the measure. words/s are words of an epoch over its seconds.
EXPECTED = {
  'skip-gram, tree': {'rho': 0.5505, 'words_per_sec': 238_000},
  'mixture, tree': {'rho': 0.5695, 'words_per_sec': 156_000},
}
# MaxSimC and AvgSimC that others published, on 1 G words of Wikipedia.
ANCHORS = {
  'Huang et al. 2012, 50 dims': (0.261, 0.657),
  'Tian et al. 2014, 50 dims': (0.636, 0.654),
  'MSSG-6K, 300 dims': (0.573, 0.693),
  'MSSG-30K, 300 dims': (0.593, 0.692),
  'Qiu et al. 2016, 300 dims': (0.649, 0.661),
  'Li & Jurafsky, 300 dims': (0.666, 0.668),
  'AdaGram, 300 dims': (0.538, 0.612),
  'MUSE, 300 dims': (0.679, 0.687),
  'GASI, 300 dims': (0.682, 0.683),
  'GASI-beta, 300 dims': (0.664, 0.695),
}


def _run(
  args: argparse.Namespace,
  name: str,
  dim: int,
  seed: int,
  folder: pathlib.Path,
) -> dict[str, Any]:
  model, loss = MODELS[name]
  settings = {'model.name': model, 'model.loss': loss, 'model.dim': dim}
  if loss == 'hierarchical_softmax':
    settings['optimizer.name'] = 'adagrad'
  args = argparse.Namespace(**vars(args))
  if model == 'mixture':
    # Only the listed words have several, whatever the config says.
    questions = evaluate.read_scws(args.scws)
    words = folder / 'words.txt'
    words.write_text('\n'.join(sorted({w for x in questions for w in x.words})))
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
    run['scores'] = {x: scores[f'{stem} {x}'] for x in evaluate.MEASURES}
  return run


def table(found: dict[str, dict[str, dict]]) -> str:
  """A line per model: means over its seeds, then what was published."""
  rows: list[list[Any]] = []
  for name, runs in found.items():
    means = [
      [x['scores'].get(measure) for x in runs.values()] for measure in MEASURES
    ]
    cells = [None if None in x else f'{statistics.mean(x):.4f}' for x in means]
    best = [max(x['scores'].values()) for x in runs.values()]
    speed, secs = (
      statistics.median(x[key] for x in runs.values())
      for key in ('words_per_sec', 'epoch_secs')
    )
    spread = f'{max(best) - min(best):.4f}'
    rows.append([name, *cells, spread, f'{speed:,.0f}', f'{secs:.1f}'])
  rows.append(['published'])
  for name, x in EXPECTED.items():
    speed = f'{x["words_per_sec"]:,}'
    rows.append([f'  DMWE, {name}', None, None, x['rho'], None, speed])
  rows += [[f'  {name}', *scores] for name, scores in ANCHORS.items()]
  head = ('model, dims', *MEASURES, 'spread', 'words/s', 's/epoch')
  return experiment.table(head, rows)


def main() -> None:
  """Makes the runs that are missing, and prints the table."""
  parser = experiment.parser(__doc__)
  experiment.add_run_flags(parser)
  add = parser.add_argument
  add('--scws', required=True, help='ratings of pairs of words in context')
  models = experiment.choices('model', MODELS, ':')
  add('--models', type=models, default=[*MODELS], help='separated by colons')
  add('--dims', type=experiment.numbers, default=[50])
  add('--seeds', type=experiment.numbers, default=[1, 2, 3])
  add('--senses', type=experiment.count, default=5, help='of each of the words')
  args = experiment.parse(parser)
  evaluate.read_scws(args.scws)  # an unreadable file is reported at once
  args.eval = args.scws
  results = experiment.Results('dmwe-scws', args, ('models', 'dims', 'seeds'))
  for seed in args.seeds:
    for dim in args.dims:
      for name in args.models:
        runs = results.found.setdefault(f'{name}, {dim}', {})
        if str(seed) in runs:
          continue
        with tempfile.TemporaryDirectory() as folder:
          run = _run(args, name, dim, seed, pathlib.Path(folder))
        runs[str(seed)] = run
        experiment.progress(name, dim, seed, run)
        results.save()
  results.finish(table(results.found))


if __name__ == '__main__':
  experiment.main(main)
