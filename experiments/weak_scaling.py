"""One device against two, each with as much to do: words/s per device kept.

  python experiments/weak_scaling.py

Two devices train one table together (strategy sync) in each layout, and two
replicas; a step has `--batch_words` centers per device. On a CPU a device is a
core, and what travels between devices is copied in memory: the figures say what
the layouts cost beside the network, not what a network does to them.
"""

import argparse
import pathlib
import statistics
import tempfile

import jax
import jobs
import machine

from jaxemb import config as config_lib

# (name, strategy, layout, data axis, table axis)
CASES = (
  ('replicas', 'replicas', 'replicated', 2, 1),
  ('replicated', 'sync', 'replicated', 2, 1),
  ('row', 'sync', 'row', 1, 2),
  ('column', 'sync', 'column', 1, 2),
)


def _rate(
  args: argparse.Namespace, strategy: str, layout: str, data: int, table: int
) -> float:
  """Centers per second of all devices."""
  config = config_lib.default()
  config.model.dim = args.dim
  config.strategy.name, config.table.layout = strategy, layout
  config.mesh.data, config.mesh.table = data, table
  # Replicas have a step each.
  devices = 1 if strategy == 'replicas' else data * table
  config.train.batch_words = args.batch_words * devices
  job = jobs.make(config, args.vocab)
  effort = jobs.Effort(args.words, args.dispatches, args.secs)
  with tempfile.TemporaryDirectory() as folder:
    corpus = jobs.write_corpus(
      job.counts, args.words, pathlib.Path(folder) / 'ids'
    )
    found = jobs.time_dispatches(job, corpus, effort, *jobs.start(job))
  return found['centers_per_sec']


def main() -> None:
  """Measures all cases in turn and prints a table."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--vocab', type=int, default=72_000)
  parser.add_argument('--dim', type=int, default=100)
  parser.add_argument('--batch_words', type=int, default=256)
  parser.add_argument('--words', type=int, default=4_000_000)
  parser.add_argument('--dispatches', type=int, default=2)
  parser.add_argument('--secs', type=float, default=3.0)
  parser.add_argument('--runs', type=machine.count, default=3)
  names = ','.join(name for name, *_ in CASES)
  parser.add_argument('--cases', default=names)
  parser.add_argument('--output', default='', help='JSON file; "" = none')
  args = parser.parse_args()
  jax.config.update('jax_num_cpu_devices', 2)
  results: dict[str, list[tuple[float, float]]] = {}
  for _ in range(args.runs):
    for name, strategy, layout, data, table in CASES:
      if name not in args.cases.split(','):
        continue
      one = _rate(args, 'sync', layout, 1, 1)
      two = _rate(args, strategy, layout, data, table)
      results.setdefault(name, []).append((one, two))
  facts = machine.describe()
  print(machine.line(facts))
  print(f'{"":>11} {"1 device":>9} {"2 devices":>9} {"kept per device":>16}')
  for name, pairs in results.items():
    ones, twos = zip(*pairs, strict=True)
    kept = statistics.median(two / one / 2 for one, two in pairs)
    print(
      f'{name:>11} {statistics.median(ones) / 1e6:8.2f}M '
      f'{statistics.median(twos) / 1e6:8.2f}M {kept:16.0%}'
    )
  if args.output:
    machine.write(args.output, facts, args, results)


if __name__ == '__main__':
  machine.run(main)
