"""One vector for a word, or several: the table of DMWE on any text.

  python experiments/dmwe_scws.py --text=PATH --scws=scws-ratings.txt

Skip-gram and the mixture (Tian et al. 2014; Microsoft's DMWE), each with
hierarchical softmax and with negative sampling, of the same text and epochs.
The words of the questions have several senses, as in DMWE's script. Scores are
rank correlations with people's ratings of pairs in their contexts: of the most
likely senses (MaxSimC), of all by their chances (AvgSimC), of mean vectors
(single); beside them stand words/s, and seconds for an epoch. A run that is in
the output already is not made again.

As DMWE trains it: --models='mixture, tree' --config=configs/mixture.py:dmwe
--sample=0.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
from typing import Any

import machine
import scored

from jaxemb import config as config_lib
from jaxemb.senses import evaluate as senses

MODELS = {
  'skip-gram, tree': ('skipgram', 'hierarchical_softmax'),
  'mixture, tree': ('mixture', 'hierarchical_softmax'),
  'skip-gram, negatives': ('skipgram', 'negative_sampling'),
  'mixture, negatives': ('mixture', 'negative_sampling'),
}
# Flags that may differ between calls that fill in one file of results.
_FREE = ('models', 'dims', 'seeds', 'output')
MEASURES = ('MaxSimC', 'AvgSimC', 'single')
# Of DMWE's page, Wiki2014, 3.4 G words, 20 epochs, 50 dims, 20 cores: which
# measure it is of is not said. words/s are words of an epoch over its seconds.
EXPECTED = {
  'skip-gram, tree': {'rho': 0.5505, 'words_per_sec': 238_000},
  'mixture, tree': {'rho': 0.5695, 'words_per_sec': 156_000},
}
# MaxSimC and AvgSimC that others published, of 1 G words of Wikipedia.
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


def _flags(
  args: argparse.Namespace, name: str, dim: int, words: pathlib.Path
) -> list[str]:
  model, loss = MODELS[name]
  flags = [
    f'--config.model.name={model}',
    f'--config.model.loss={loss}',
    f'--config.model.dim={dim}',
  ]
  if loss == 'hierarchical_softmax':
    flags.append('--config.optimizer.name=adagrad')
  settings = config_lib.default().senses  # models without senses
  if model == 'mixture':
    # Only the listed words have several, whatever the config says.
    settings = {
      'words': words, 'number': args.senses, 'top_ratio': 0.0
    }  # fmt: skip
  return flags + [f'--config.senses.{k}={x}' for k, x in settings.items()]


def _run(
  args: argparse.Namespace,
  name: str,
  dim: int,
  seed: int,
  folder: pathlib.Path,
) -> dict[str, Any]:
  """Figures of one run."""
  flags = _flags(args, name, dim, folder / 'words.txt')
  args = argparse.Namespace(**vars(args))
  if MODELS[name][0] != 'mixture':
    args.override = [
      x for x in args.override if not x.startswith('--config.senses.')
    ]
  found = scored.run(args, seed, folder / 'run', flags)
  report = json.loads((folder / 'run' / 'report.json').read_text())
  scores = found['scores']
  if MODELS[name][0] == 'mixture':
    stem = pathlib.Path(args.scws).stem
    kept = {x: scores[f'{stem} {x}'] for x in senses.MEASURES}
  else:
    kept = {'single': scores['scws']}
  words = report['corpus_words']
  return {
    'scores': kept,
    'words_per_sec': found['words_per_sec'],
    'epoch_secs': words / found['words_per_sec'],
    'loss': found['loss'],
    **{k: found[k] for k in ('commit', 'date', 'cores')},
  }


def _table(found: dict[str, dict[str, dict]]) -> str:
  lines = [
    f'{"model, dims":28}'
    + ''.join(f'{x:>9}' for x in MEASURES)
    + f'{"spread":>9}{"words/s":>12}{"s/epoch":>9}'
  ]
  for name, runs in found.items():
    cells, best = [], [max(x['scores'].values()) for x in runs.values()]
    for measure in MEASURES:
      each = [x['scores'].get(measure) for x in runs.values()]
      cells.append(
        f'{"":9}' if None in each else f'{statistics.mean(each):9.4f}'
      )
    speed, secs = (
      statistics.median(x[key] for x in runs.values())
      for key in ('words_per_sec', 'epoch_secs')
    )
    lines.append(
      f'{name:28}{"".join(cells)}{max(best) - min(best):9.4f}'
      f'{speed:12,.0f}{secs:9.1f}'
    )
  lines.append('published')
  for name, x in EXPECTED.items():
    lines.append(f'  DMWE, {name:18}{x["rho"]:27.4f}{x["words_per_sec"]:21,}')
  for name, (best, mean) in ANCHORS.items():
    lines.append(f'  {name:26}{best:9.3f}{mean:9.3f}')
  return '\n'.join(lines)


def _arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--text', default='', help='as config.data.path; "" = embedded')
  add('--scws', required=True, help='ratings of pairs of words in context')
  add('--models', default=':'.join(MODELS), help='with colons between')
  add('--dims', default='50')
  add('--seeds', default='1,2,3')
  add('--epochs', type=machine.count, default=5)
  add('--sample', type=float, default=1e-4)
  add('--senses', type=machine.count, default=5, help='of each of the words')
  add('--config', default='configs/wiki.py')
  add('--output', default='', help='JSON file; "" = in experiments/results')
  args = machine.parse(parser)
  unknown = set(args.models.split(':')) - set(MODELS)
  if unknown:
    parser.error(f'there is no model {unknown.pop()!r}')
  args.eval, args.restrict_vocab = args.scws, 0
  return args


def main() -> None:
  """Makes the runs that are not there yet, and prints the table."""
  args = _arguments()
  facts = machine.describe()
  results = pathlib.Path(__file__).parent / 'results'
  output = pathlib.Path(
    args.output or results / f'dmwe-scws-{facts["date"]}.json'
  )
  earlier = machine.earlier(output, args, _FREE)
  found: dict[str, dict[str, dict]] = earlier.get('results', {})
  words = {w for x in senses.read_scws(args.scws) for w in x.words}
  for seed in args.seeds.split(','):
    for dim in map(int, args.dims.split(',')):
      for name in args.models.split(':'):
        runs = found.setdefault(f'{name}, {dim}', {})
        if seed in runs:
          continue
        with tempfile.TemporaryDirectory() as temporary:
          folder = pathlib.Path(temporary)
          (folder / 'words.txt').write_text('\n'.join(sorted(words)) + '\n')
          runs[seed] = _run(args, name, dim, int(seed), folder)
        print(name, dim, seed, runs[seed], file=sys.stderr, flush=True)
        machine.write(output, facts, args, found)
  print(_table(found), machine.line(facts), sep='\n')


if __name__ == '__main__':
  machine.run(main)
