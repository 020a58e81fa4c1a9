"""Tables in a store beside tables on the device: speed, rows moved, memory.

  python experiments/stored_tables.py --rows=200000 --dim=100

trains skip-gram on random ids (zipf.py) with tables where each case says, in a
process of its own, in turns.

  --cases=CASE,...   `device`, or the place and the room on the device, such as
                     memory:25% or disk:64MB
  centers/s          median of the runs, each the median of its dispatches
  speed              as a share of `device`
  MB/step            of rows that came to the device
  hits               rows that were there when a stretch of steps needed them
  hidden             time of fetching in which the device had something to do
  first step s       from the start of the process
  peak MB            of its memory; stores in files are mapped, and of those
                     pages the system keeps what it has room for
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

import experiment


def measure(case: Mapping[str, Any]) -> dict[str, Any]:
  """Measures a case in this process."""
  import jax
  import psutil
  import zipf

  from jaxemb.runtime import resources

  started = psutil.Process().create_time()
  place, _, room = case['case'].partition(':')
  settings = {
    'model.dim': case['dim'],
    'optimizer.name': case['optimizer'],
    'train.threads': case['threads'],
    'train.batch_words': case['batch_words'],
    'table.store': '' if place == 'device' else place,
    'table.device_bytes': room,
  }
  with tempfile.TemporaryDirectory(dir=case['folder'] or None) as folder:
    job = zipf.make(settings, case['rows'], folder=pathlib.Path(folder))
    corpus = zipf.corpus(job.counts, case['words'])
    state, constants = zipf.start(job)
    step, store = job.strategy.step, job.strategy.store
    secs, centers, first = [], [], 0.0
    batches = _with_next(job, corpus)
    for batch, following in batches:
      if store:
        store.expect(*following)
      start = time.perf_counter()
      state, metrics = step(state, constants, *batch)
      jax.block_until_ready(state)
      secs.append(time.perf_counter() - start)
      first = first or time.time() - started
      centers.append(int(metrics.counters['kept_words']))
      if len(secs) == case['warm_dispatches'] and store:
        store.take_counts()
      timed = secs[case['warm_dispatches'] :]
      if len(timed) > 4 and sum(timed) > case['secs']:
        break
    found = {
      'centers_per_sec': statistics.median(
        n / x for n, x in list(zip(centers, secs, strict=True))[-len(timed) :]
      ),
      'first_step_secs': first,
      'table_bytes': zipf.state_bytes(job),
    }
    if store:
      steps = sum(centers[-len(timed) :]) / job.step_words
      counts = store.take_counts()
      found |= {
        'bytes_per_step': counts['bytes_fetched'] / steps,
        'hit_rate': 1 - counts['rows_fetched'] / counts['rows_needed'],
        'hidden': 1 - counts['fetch_waited_secs'] / counts['fetch_secs'],
        'store_bytes': store.store_bytes,
      }
      store.close()
  return found | {'peak_rss_bytes': resources.peak_rss_bytes()}


def _with_next(job: Any, corpus: Any) -> Iterator[tuple[tuple, tuple]]:
  """Batches with their schedules, and those of the next one."""
  import zipf

  before = None
  for i, batch in enumerate(zipf.full_batches(job, corpus)):
    now = batch, zipf.schedule(job, i)
    if before:
      yield before, now
    before = now


def _in_process(case: Mapping[str, Any]) -> dict[str, Any]:
  command = [sys.executable, __file__, f'--case={json.dumps(case)}']
  done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
  if done.returncode:
    raise RuntimeError(f'{case["case"]} ended with {done.returncode}')
  return json.loads(done.stdout.splitlines()[-1])


def table(found: Mapping[str, list[dict[str, Any]]]) -> str:
  """A line for each case, of medians."""
  rows, whole = [], None
  for case, runs in found.items():

    def median(key, runs=runs):
      values = [x[key] for x in runs if key in x]
      return statistics.median(values) if values else None

    rate = median('centers_per_sec')
    whole = rate if case == 'device' else whole
    moved = median('bytes_per_step')
    rows.append(
      [
        case,
        rate / 1e6,
        rate / whole if whole else None,
        moved and moved / 1e6,
        median('hit_rate'),
        median('hidden'),
        median('first_step_secs'),
        median('table_bytes') / 1e6,
        median('peak_rss_bytes') / 1e6,
      ]
    )
  head = {
    'case': '', 'M centers/s': '.3f', 'speed': '.2f', 'MB/step': ',.3f',
    'hits': '.2f', 'hidden': '.2f', 'first step s': '.1f',
    'device MB': ',.0f', 'peak MB': ',.0f',
  }  # fmt: skip
  return experiment.table(head, rows)


def main() -> None:
  """Measures all cases and prints the table."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('--rows', type=experiment.count, default=200_000, help='of each table')
  add('--dim', type=experiment.count, default=100)
  add('--optimizer', default='sgd')
  add('--threads', type=int, default=0, help='config.train.threads')
  add('--batch_words', type=int, default=4096)
  add('--words', type=experiment.count, default=8_000_000, help='of a text')
  add('--cases', default='device,memory:25%,disk:12.5%')
  add('--runs', type=experiment.count, default=3)
  add('--secs', type=float, default=5.0, help='of timed dispatches, or more')
  add('--warm_dispatches', type=experiment.count, default=8)
  add('--folder', default='', help='for stores in files; default: temporary')
  add('--case', type=json.loads, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.case is not None:
    print(json.dumps(measure(args.case)))
    return
  results = experiment.Results('stored-tables', args)
  names = args.cases.split(',')
  results.found = {case: [] for case in names}
  for _ in range(args.runs):
    for case in names:
      experiment.progress('measuring', case)
      settings = {k: v for k, v in vars(args).items() if k != 'output'}
      settings = {**settings, 'case': case}
      results.found[case].append(_in_process(settings))
      results.save()
  results.finish(
    f'two tables of {args.rows:,} x {args.dim}, {args.optimizer}',
    table(results.found),
  )


if __name__ == '__main__':
  experiment.main(main)
