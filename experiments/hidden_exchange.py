"""How much of the time of exchanges the policy `delayed` hides.

  python experiments/hidden_exchange.py --text=FILE

Two processes on this machine, with a thread each, train replicas over loopback:

  apart      rows are never exchanged
  average    all rows become means every --sync_every words
  delayed    the same, one exchange later, beside the steps

  hidden = 1 - (time of delayed - time of apart) / (average - apart)

Loopback is as fast as the cores that copy its bytes, which train meanwhile, so
that nothing of it could be hidden on two busy cores. --link_megabytes limits
each connection, as a network does (Linux, SO_MAX_PACING_RATE); 125 are a
gigabit per second. Times are of training, without compilation; the three take
turns.
"""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import runpy
import socket
import statistics
import sys
import tempfile
import threading
import time

import experiment
import launch_local
import numpy as np

_MAX_PACING_RATE = 47  # SO_MAX_PACING_RATE of Linux, bytes per second
_LIMIT = 'HIDDEN_EXCHANGE_LINK_BYTES'  # in the environment of the processes
_POLICIES = {
  'apart': {'strategy.policy': 'hidden_exchange:Apart'},
  'average': {'strategy.policy': 'average'},
  'delayed': {'strategy.policy': 'delayed', 'strategy.delayed': 'average'},
}


@dataclasses.dataclass(frozen=True)
class Apart:
  """A policy by which replicas never meet."""

  lookups_per_center: dict
  num_replicas: int
  every_steps: int
  chunk_rows = 1024

  def init(self) -> np.ndarray:
    """Meetings so far."""
    return np.int32(0)

  def due(self, clock: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nothing."""
    return np.int32(0), clock + 1

  def weights(self, name, start, num, elapsed) -> np.ndarray:
    """Of means."""
    return np.full(num, np.float32(1 / self.num_replicas))

  def staleness_steps(self) -> dict[str, np.ndarray]:
    """For ever."""
    lookups = self.lookups_per_center.items()
    return {k: np.full(len(x), 2**31) for k, x in lookups}

  def mean_chunks(self) -> float:
    """None."""
    return 0.0


def _limit_links(bytes_per_sec: int) -> None:
  """Limits all connections of this process, for as long as it lives."""
  while True:
    for name in os.listdir('/proc/self/fd'):
      with contextlib.suppress(OSError):
        if not os.readlink(f'/proc/self/fd/{name}').startswith('socket'):
          continue
        with socket.socket(fileno=os.dup(int(name))) as link:
          rate = bytes_per_sec
          link.setsockopt(socket.SOL_SOCKET, _MAX_PACING_RATE, rate)
    time.sleep(0.05)


def _train(
  args: argparse.Namespace, name: str, folder: pathlib.Path
) -> dict[str, float]:
  workdir = folder / 'run'
  settings = {
    'data.path': args.text, 'eval.paths': 'none', 'train.threads': '1',
    'train.epochs': args.epochs, 'strategy.sync_every': args.sync_every,
    **_POLICIES[name],
  }  # fmt: skip
  flags = [f'--config.{k}={x}' for k, x in settings.items()]
  flags = [f'--config={args.config}', f'--workdir={workdir}', *flags]
  command = sys.executable, os.path.abspath(__file__), '--process'
  os.environ[_LIMIT] = str(round(1e6 * args.link_megabytes))
  code = launch_local.run([*flags, *args.override], 2, command=command)
  if code:
    raise SystemExit(code)
  report = experiment.read_report(workdir)
  return {
    'train_secs': report['train_secs'],
    'bytes_per_word': report['collectives']['bytes_per_word']['total'],
    'waited_secs': sum(x['waited_secs'] or 0 for x in report['hosts']),
    'loss': report['loss_per_example'],
  }


def main() -> None:
  """Runs the three in turn and prints a table."""
  if sys.argv[1:2] == ['--process']:
    del sys.argv[1]
    if limit := int(os.environ[_LIMIT]):
      threading.Thread(target=_limit_links, args=(limit,), daemon=True).start()
    return runpy.run_module('jaxemb.main', run_name='__main__')
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('--text', default='', help='config.data.path; "" = the embedded corpus')
  add('--config', default='wiki')
  add('--epochs', type=experiment.count, default=2)
  add('--sync_every', type=experiment.count, default=262_144)
  add('--link_megabytes', type=float, default=125.0, help='per second; 0 = all')
  add('--runs', type=experiment.count, default=3)
  args = experiment.parse(parser)
  results = experiment.Results('hidden-exchange', args)

  def measure(name, run):
    with tempfile.TemporaryDirectory() as folder:
      return _train(args, name, pathlib.Path(folder))

  sides = {
    name: lambda run, name=name: measure(name, run) for name in _POLICIES
  }
  results.found = experiment.in_turn(sides, args.runs)
  secs = {
    name: [x['train_secs'] for x in runs]
    for name, runs in results.found.items()
  }
  hidden = [
    1 - (delayed - apart) / (average - apart)
    for apart, average, delayed in zip(*secs.values(), strict=True)
  ]
  results.found['hidden'] = hidden
  rows = [
    (name, *(statistics.median(x[k] for x in runs) for k in runs[0]))
    for name, runs in results.found.items()
    if name in _POLICIES
  ]
  head = {
    'policy': '', 'train s': '.2f', 'bytes/word': ',.0f', 'waited s': '.2f',
    'loss': '.3f',
  }  # fmt: skip
  shown = ', '.join(f'{x:.0%}' for x in hidden)
  results.finish(
    experiment.table(head, rows),
    f'hidden: {statistics.median(hidden):.0%} (of each round: {shown})',
  )
  return None


if __name__ == '__main__':
  experiment.main(main)
