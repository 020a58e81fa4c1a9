"""Words/s per device: two devices against one, with as much work for each.

  python experiments/weak_scaling.py

Two devices train one table together (strategy sync) in each layout, or two
replicas; a step has --batch_words centers per device. A device of a CPU is a
core, and what travels between devices is copied in memory: the results say what
layouts cost besides the network, not what a network does to them.
"""

import argparse
import functools
import statistics

import experiment
import zipf

# Name: (strategy, layout, data axis, table axis)
CASES = {
  'replicas': ('replicas', 'replicated', 2, 1),
  'replicated': ('sync', 'replicated', 2, 1),
  'row': ('sync', 'row', 1, 2),
  'column': ('sync', 'column', 1, 2),
}


def rate(
  args: argparse.Namespace, strategy: str, layout: str, data: int, table: int
) -> float:
  """Centers per second of all devices."""
  # Replicas have a step each.
  devices = 1 if strategy == 'replicas' else data * table
  job = zipf.make(
    {
      'model.dim': args.dim, 'strategy.name': strategy, 'table.layout': layout,
      'mesh.data': data, 'mesh.table': table, 'train.threads': 1,
      'train.batch_words': args.batch_words * devices,
    },
    args.vocab,
  )  # fmt: skip
  effort = zipf.Effort(args.words, 2, args.secs)
  corpus = zipf.corpus(job.counts, args.words)
  return zipf.time_dispatches(job, corpus, effort)['centers_per_sec']


def main() -> None:
  """Measures all cases in turn and prints a table."""
  parser = experiment.parser(__doc__)
  parser.add_argument('--vocab', type=int, default=72_000)
  parser.add_argument('--dim', type=int, default=100)
  parser.add_argument('--batch_words', type=int, default=256)
  parser.add_argument('--words', type=int, default=4_000_000)
  parser.add_argument('--secs', type=float, default=3.0)
  parser.add_argument('--runs', type=experiment.count, default=3)
  experiment.add_names(parser, '--cases', CASES)
  args = parser.parse_args()
  experiment.simulate_devices(2, platforms='')

  def measure(case: str, run: int) -> tuple[float, float]:
    del run
    layout = CASES[case][1]
    return rate(args, 'sync', layout, 1, 1), rate(args, *CASES[case])

  sides = {case: functools.partial(measure, case) for case in args.cases}
  results = experiment.Results('weak-scaling', args)
  results.found = experiment.in_turn(sides, args.runs)
  rows = []
  for name, pairs in results.found.items():
    ones, twos = (statistics.median(x) / 1e6 for x in zip(*pairs, strict=True))
    kept = statistics.median(two / one / 2 for one, two in pairs)
    rows.append((name, ones, twos, kept))
  head = {
    'M centers/s': '', '1 device': '.2f', '2 devices': '.2f',
    'kept per device': '.0%',
  }  # fmt: skip
  results.finish(experiment.table(head, rows))


if __name__ == '__main__':
  experiment.main(main)
