"""Measures in four minutes how a machine's cores share a training.

  python experiments/cores.py                              on random ids
  python experiments/cores.py --text=FILE --threads=1,2,8,12

Steps are those of the kernel by themselves, on random ids, with batches that
are ready. Training is that of whole runs: batches are read, cut, packed and
dispatched as well, from the text, or from random words in the frequencies of a
language. It has --epochs for each core in use, so that all runs take about as
long. Rounds follow each other for --secs in all; numbers are their medians.

  speed-up    words/s against one thread of the same round
  efficiency  speed-up by the cores that the threads can have
  CPU/word    CPU seconds per word, against one thread of the same round
  outside     share of the CPU seconds of training in threads that Python
              started: what reads, cuts, packs and dispatches, and is not in the
              kernel's threads. What XLA itself does in those is not told apart

The last line says how long a line of the cache takes from one core to another:
threads share rows, and a virtual machine's cores may be far apart, and move.

More threads than cores (--threads) tell what each would cost on a larger
machine, but for what its cores would wait for each other's memory: then only
CPU/word and outside mean something. Where there are several sockets, the last
line is one table on each, as `jaxemb launch --sockets` has them.
"""

import argparse
import concurrent.futures
import functools
import json
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

import experiment
import numba
import numpy as np
import zipf

from jaxemb.cli import plan
from jaxemb.kernels import ffi
from jaxemb.runtime import resources
from jaxemb.text import encode

_SOCKETS = 'one table a socket'
_KINDS = 'steps', 'training'
_SCRIPT = pathlib.Path(__file__).with_name('thread_times.py')


def _doubled(last: int) -> list[int]:
  """1, 2, 4, ... and the last."""
  return sorted({*(2**i for i in range(last.bit_length())), last})


def _cores(threads: int) -> int:
  """Cores that so many threads have; 0 threads have all."""
  usable = resources.usable_cores()
  return min(threads or usable, usable)


def _train(
  args: argparse.Namespace, text: str, cache: pathlib.Path, threads: int
) -> dict[str, float]:
  """A whole run in a process of its own; 0 threads: a table on each socket."""
  settings = {
    'data.path': text,
    'data.sample': args.sample,
    'eval.paths': 'none',
    'train.epochs': args.epochs * _cores(threads),
    'train.threads': threads,
  }
  with tempfile.TemporaryDirectory() as folder:
    workdir = pathlib.Path(folder, 'run')
    times = pathlib.Path(folder, 'times.json')
    program = str(_SCRIPT), str(times), '-m', 'jaxemb.main'
    if not threads:
      program = '-m', 'jaxemb.launch', '--sockets', '--'
    report = experiment.train(args, workdir, settings, cache, program=program)
    cores = sum(x['mean_cores'] for x in report['hosts'])
    found = {'rate': report['words_per_sec']}
    found['cost'] = cores / found['rate']
    if threads:
      secs = json.loads(times.read_text())
      found['outside'] = secs['python_secs'] / secs['cpu_secs']
  return found


def _steps(
  args: argparse.Namespace, corpus: encode.Encoded, threads: int
) -> dict[str, float]:
  """Steps on random ids, in this process."""
  settings = {
    'data.sample': args.sample, 'mesh.data': 1, 'train.threads': threads,
  }  # fmt: skip
  job = zipf.make(settings, args.vocab)
  effort = zipf.Effort(args.words, min_dispatches=2, min_secs=2.0)
  found = zipf.time_dispatches(job, corpus, effort)
  cost = found['cpu_secs_per_center'] * job.kept_fraction
  return {'rate': found['words_per_sec'], 'cost': cost}


def _rounds(
  sides: Mapping[str, Callable[[], dict[str, float]]], secs: float
) -> dict[str, list[dict[str, float]]]:
  """Rounds of all sides, at least one, that end within so many seconds."""
  found = {name: [] for name in sides}
  start = time.monotonic()
  while True:
    for name, measure in sides.items():
      found[name].append(measure())
      experiment.progress(name, found[name][-1])
    spent = time.monotonic() - start
    if spent + spent / len(found[name]) > secs:
      return found


def _write_words(corpus: encode.Encoded, path: pathlib.Path) -> str:
  """Writes a random corpus as a text; returns the path."""
  names = [f'w{x}' for x in corpus.words]
  experiment.write_tokens(corpus.ids, names, path)
  return str(path)


def _measure(
  args: argparse.Namespace, folder: pathlib.Path
) -> dict[str, dict[str, list[dict[str, float]]]]:
  """Rounds of training, then of steps, by the number of threads."""
  start = time.monotonic()
  corpus = zipf.corpus(plan.zipf_counts(args.vocab), args.words)
  text = args.text or _write_words(corpus, folder / 'words')
  train = functools.partial(_train, args, text, folder / 'cache')
  train(1)  # compiles, and encodes the text
  sides = {str(x): functools.partial(train, x) for x in args.threads}
  if len(resources.sockets()) > 1:
    sides[_SOCKETS] = functools.partial(train, 0)
  left = args.secs - (time.monotonic() - start)
  found = {'training': _rounds(sides, 0.7 * left)}
  # They start JAX, with its threads, in this process.
  steps = functools.partial(_steps, args, corpus)
  sides = {str(x): functools.partial(steps, x) for x in args.threads}
  left = args.secs - (time.monotonic() - start)
  return found | {'steps': _rounds(sides, left)}


@numba.njit(nogil=True)
def _return_ball(address, is_first, num_times):
  """Adds 1 to the number there whenever it is even, or odd."""
  for turn in range(num_times):
    while ffi.add(address, 0, 0) != 2 * turn + (not is_first):
      pass
    ffi.add(address, 0, 1)


def _line_secs() -> list[float]:
  """Seconds that a line of the cache takes from one core to another.

  Of the first core and each of some others; none where threads have no cores.
  """
  if not hasattr(os, 'sched_setaffinity'):
    return []
  cores, found, num_times = sorted(os.sched_getaffinity(0)), [], 20_000
  balls = np.zeros(32, np.int64)
  address = np.uintp(balls[16:].ctypes.data // 64 * 64)  # a line of its own

  def play(core, is_first):
    os.sched_setaffinity(0, {core})  # of this thread
    _return_ball(address, is_first, num_times)

  _return_ball(address, True, 0)  # compiles it
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    for other in cores[1 :: max(1, len(cores) // 8)]:
      balls[:] = 0
      start = time.perf_counter()
      both = (cores[0], True), (other, False)
      for played in [pool.submit(play, *x) for x in both]:
        played.result()
      found.append((time.perf_counter() - start) / (2 * num_times))
  return found


def _table(
  found: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]],
) -> str:
  head, rows = {'threads': ''}, []
  for kind in _KINDS:
    head |= {f'{kind}: M words/s': '.2f', f'{kind}: speed-up': '.2f'}
    head |= {f'{kind}: efficiency': '.0%', f'{kind}: CPU/word': '.2f'}
  head['outside'] = '.2%'
  for name, runs in found['training'].items():
    cores = _cores(0 if name == _SOCKETS else int(name))
    row = [name]
    for kind in _KINDS:
      cells = [None] * 4
      if rounds := found[kind].get(name):
        pairs = [*zip(rounds, found[kind]['1'], strict=True)]
        speed_up, cost = (
          statistics.median(x[key] / one[key] for x, one in pairs)
          for key in ('rate', 'cost')
        )
        rate = statistics.median(x['rate'] for x in rounds) / 1e6
        cells = rate, speed_up, speed_up / cores, cost
      row += cells
    shares = [x['outside'] for x in runs if 'outside' in x]
    rows.append([*row, statistics.median(shares) if shares else None])
  return experiment.table(head, rows)


def main() -> None:
  """Measures and prints the table."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('--text', default='', help='a file; "" = random words')
  add('--config', default='wiki', help='name or file of a config')
  add('--sample', type=float, default=1e-4, help='config.data.sample')
  add('--epochs', type=experiment.count, default=1, help='for each core')
  add(
    '--threads',
    type=experiment.numbers,
    default=_doubled(resources.usable_cores()),
    help='default: 1, 2, 4, ... and all cores',
  )
  add('--secs', type=float, default=240.0, help='of all measurements')
  add('--vocab', type=int, default=72_000, help='of random ids')
  add('--words', type=int, default=10_000_000, help='random ids')
  args = experiment.parse(parser)
  args.threads = sorted({1, *args.threads})
  os.environ['JAX_PLATFORMS'] = 'cpu'
  experiment.simulate_devices(1)
  if args.threads[-1] > resources.usable_cores():
    os.environ['NPROC'] = str(args.threads[-1])  # threads that XLA is to have
  results = experiment.Results('cores', args)
  with tempfile.TemporaryDirectory() as folder:
    results.found = _measure(args, pathlib.Path(folder))
  shown = _table(results.found)
  if secs := _line_secs():
    results.found['line_secs'] = secs
    shown += f'\na line of the cache takes {min(secs) * 1e9:.0f} to '
    shown += f'{max(secs) * 1e9:.0f} ns from the first core to others'
  results.finish(shown)


if __name__ == '__main__':
  experiment.main(main)
