"""What several vectors for a word cost: words/s beside those of one vector.

  python experiments/bench_mixture.py --text=PATH --scws=scws-ratings.txt

Trains as DMWE does (configs/mixture.py:dmwe: 50 dims, hierarchical softmax, a
window of 5, no subsampling, several senses for the words of SCWS), one epoch at
a time and in turn: one sense for every word, and both methods of
`config.senses.method`. The SCWS scores are those of one epoch.
"""

import argparse
import pathlib
import statistics
import tempfile

import machine
import scored

from jaxemb.senses import evaluate as senses

# Words/s of an epoch on twenty cores of DMWE's page.
EXPECTED = 156_000
MODELS = {
  'one sense': ('--config.senses.number=1',),
  'contexts': ('--config.senses.method=contexts',),
  'likelihoods': (),
}


def main() -> None:
  """Makes the runs in turn and prints medians."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--text', default='', help='as config.data.path; "" = embedded')
  add('--scws', required=True, help='ratings of pairs of words in context')
  add('--models', default=':'.join(MODELS), help='with colons between')
  add('--senses', type=machine.count, default=5, help='of each of the words')
  add('--runs', type=machine.count, default=3)
  add('--epochs', type=machine.count, default=1)
  add('--output', default='', help='JSON file; "" = in experiments/results')
  args = machine.parse(parser)
  unknown = set(args.models.split(':')) - set(MODELS)
  if unknown:
    parser.error(f'there is no model {unknown.pop()!r}')
  args.eval, args.restrict_vocab, args.sample = args.scws, 0, 0.0
  args.config = 'configs/mixture.py:dmwe'
  facts = machine.describe()
  results = pathlib.Path(__file__).parent / 'results'
  output = args.output or results / f'bench-mixture-{facts["date"]}.json'
  words = sorted({w for x in senses.read_scws(args.scws) for w in x.words})
  found: dict[str, list[dict]] = {x: [] for x in args.models.split(':')}
  for run in range(args.runs):
    for name, runs in found.items():
      with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        (folder / 'words.txt').write_text('\n'.join(words) + '\n')
        flags = [
          '--config.senses.top_ratio=0.0',
          f'--config.senses.words={folder / "words.txt"}',
          f'--config.senses.number={args.senses}',
          *MODELS[name],
        ]
        runs.append(scored.run(args, run + 1, folder / 'run', flags))
      machine.write(output, facts, args, found)
  speeds = {
    name: statistics.median(x['words_per_sec'] for x in runs)
    for name, runs in found.items()
  }
  first = next(iter(speeds.values()))
  print(f'{"":14}{"words/s":>12}{"slower":>8}  scores of the last run')
  for name, speed in speeds.items():
    scores = found[name][-1]['scores']
    print(
      f'{name:14}{speed:12,.0f}{first / speed:8.2f}  '
      + ', '.join(f'{k} {v:.3f}' for k, v in scores.items() if v is not None)
    )
  print(f'DMWE, twenty cores {EXPECTED:,}; all figures in {output}')
  print(machine.line(facts))


if __name__ == '__main__':
  machine.run(main)
