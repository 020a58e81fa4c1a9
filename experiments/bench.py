"""Speed and memory of one part of jaxemb.

  python experiments/bench.py encode --text=FILE_FOLDER_OR_GLOB
  python experiments/bench.py analogies --questions=questions-words.txt
  python experiments/bench.py merge --parts=10 --words=1000000
  python experiments/bench.py rows
  python experiments/bench.py layouts
  python experiments/bench.py stores --cases=device,memory:25%,disk:12.5%

What is measured:

  encode     MB of raw text per second, read, parsed, counted and encoded
  analogies  seconds to answer questions over a large random table
  merge      of rotated, noisy copies of the same vectors, each of which lacks
             other words: seconds, memory, and the largest error of cosines
             (10 words by 1000) against the vectors without noise
  rows       time of a step on random ids as tables grow
  layouts    centers/s per device of two devices that train one table in each
             layout, or two replicas, against one device with half of the work;
             a device of a CPU is a core, so that no network is measured
  stores     of tables on the device, in memory or on disk: centers/s, rows
             moved, fetching hidden behind steps, memory; on random ids
"""

import argparse
import functools
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

import experiment
import numpy as np

from jaxemb.evaluation import benchmarks, geometry, words
from jaxemb.runtime import resources
from jaxemb.storage import word2vec_format
from jaxemb.text import encode


def _encode(args: argparse.Namespace, results: experiment.Results) -> None:
  settings = encode.Settings('words', True, 5, args.max_vocab, '')
  rates = []
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    warm = folder / 'warm.txt'  # numba compiles on it
    warm.write_text('some words to compile with\n' * 99)
    for i, text in enumerate([str(warm)] + args.runs * [args.text]):
      start = time.perf_counter()
      corpus = encode.encode(text, settings, folder / str(i), lambda *_: None)
      secs = time.perf_counter() - start
      rates.append(corpus.manifest['text_bytes'] / secs / 1e6)
  results.found = {
    'text_bytes': corpus.manifest['text_bytes'],
    'words': corpus.num_words,
    'vocab_words': len(corpus.words),
    'megabytes_per_sec': rates[1:],
    'peak_rss_bytes': resources.peak_rss_bytes(),
  }
  results.finish(
    f'{corpus.num_words:,} words: {statistics.median(rates[1:]):.1f} MB/s, '
    f'median of {args.runs} ({min(rates[1:]):.1f} to {max(rates[1:]):.1f}); '
    f'peak memory {resources.peak_rss_bytes() / 1e6:,.0f} MB'
  )


def _analogies(args: argparse.Namespace, results: experiment.Results) -> None:
  text = pathlib.Path(args.questions).read_text(encoding='utf-8')
  lines = [line for line in text.splitlines() if not line.startswith(':')]
  asked = sorted({word for line in lines for word in line.split()})
  names = [f'other{i}' for i in range(args.vocab)]
  rng = np.random.default_rng(0)
  # The words of the questions have rows all over the table.
  rows = rng.choice(args.vocab, len(asked), replace=False)
  for row, word in zip(rows, asked, strict=True):
    names[row] = word
  vectors = rng.standard_normal((args.vocab, args.dim), np.float32)
  start = time.perf_counter()
  questions = benchmarks.find([args.questions])
  (scores,) = words.evaluate(names, vectors, questions).values()
  results.found = {
    'secs': time.perf_counter() - start,
    'answered': scores['found'],
    'questions': scores['total'],
    'peak_rss_bytes': resources.peak_rss_bytes(),
  }
  results.finish(
    f'{scores["found"]:,} of {scores["total"]:,} questions over '
    f'{args.vocab:,} x {args.dim}, 3CosAdd and 3CosMul: '
    f'{results.found["secs"]:.1f} s, table {vectors.nbytes / 1e6:,.0f} MB, '
    f'peak memory {results.found["peak_rss_bytes"] / 1e6:,.0f} MB'
  )


# Merging.

_BLOCK_ROWS = 50_000
_MISSING = 0.1  # fraction of the union that a part lacks


def _truth(first: int, stop: int, dim: int) -> np.ndarray:
  """[rows, dim] float32, some of the vectors that all parts have."""
  rng = np.random.default_rng([7, first])
  spectrum = 1 / np.sqrt(1 + np.arange(dim, dtype=np.float32))
  return rng.standard_normal((stop - first, dim), np.float32) * spectrum


def _write_part(
  folder: pathlib.Path, part: int, args: argparse.Namespace
) -> None:
  num_union = round(args.words / (1 - _MISSING))
  rng = np.random.default_rng([11, part])
  has = np.zeros(num_union, bool)
  has[rng.choice(num_union, args.words, replace=False)] = True
  rotation, _ = np.linalg.qr(rng.standard_normal((args.dim, args.dim)))
  folder.mkdir(parents=True)
  vectors = np.lib.format.open_memmap(
    folder / 'vectors.npy', 'w+', '<f4', (args.words, args.dim)
  )
  noise = rng.standard_normal((_BLOCK_ROWS, args.dim), np.float32)
  written = 0
  for first in range(0, num_union, _BLOCK_ROWS):
    stop = min(first + _BLOCK_ROWS, num_union)
    rows = _truth(first, stop, args.dim)[has[first:stop]]
    # Drawn once for each part; other words get it in another order.
    rows += args.noise * np.sqrt(np.mean(rows**2)) * noise[: len(rows)]
    noise = np.roll(noise, 1 + first // _BLOCK_ROWS, (0, 1))
    vectors[written : written + len(rows)] = rows @ rotation.astype(np.float32)
    written += len(rows)
  vectors.flush()
  ids = np.flatnonzero(has)
  names = [f'w{i}' for i in ids]
  word2vec_format.write_vocab(folder / 'vocab.txt', names, num_union - ids)


def _cosine_error(output: pathlib.Path, dim: int) -> float:
  names, _ = word2vec_format.read_vocab(output / 'export' / 'vocab.txt')
  merged = np.load(output / 'export' / 'vectors.npy', mmap_mode='r')
  truth = _truth(0, _BLOCK_ROWS, dim)
  rows = {word: row for row, word in enumerate(names)}
  ids = [i for i in range(1000) if f'w{i}' in rows]
  units = (
    geometry.unit(np.array(x, np.float64))
    for x in (merged[[rows[f'w{i}'] for i in ids]], truth[ids])
  )
  cosines, expected = (x[:10] @ x.T for x in units)
  return float(np.abs(cosines - expected).max())


def _merge(args: argparse.Namespace, results: experiment.Results) -> None:
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    parts = [folder / str(part) for part in range(args.parts)]
    for part, path in enumerate(parts):
      _write_part(path, part, args)
    output = folder / 'merged'
    command = [sys.executable, '-m', 'jaxemb.merge', *map(str, parts)]
    start = time.perf_counter()
    experiment.call([*command, f'--output={output}'])
    total_secs = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = json.loads((output / 'merge.json').read_text())
    names = (
      'union_words', 'read_secs', 'merge_secs', 'export_secs', 'peak_rss_bytes',
    )  # fmt: skip
    results.found = found = {
      **{k: report[k] for k in names},
      'total_secs': total_secs,
      'cpu_secs': used.ru_utime + used.ru_stime,
      'cosine_error': _cosine_error(output, args.dim),
    }
  results.finish(
    f'{args.parts} parts x {args.words:,} words x {args.dim}, '
    f'{found["union_words"]:,} words in all: {total_secs:.1f} s '
    f'(reading {found["read_secs"]:.1f}, merging {found["merge_secs"]:.1f}, '
    f'export {found["export_secs"]:.1f}; {found["cpu_secs"]:.0f} CPU-s), peak '
    f'{found["peak_rss_bytes"] / 1e9:.2f} GB; largest error of a cosine '
    f'{found["cosine_error"]:.3f}'
  )


# Random ids.


def _rows(args: argparse.Namespace, results: experiment.Results) -> None:
  import zipf

  sizes = [int(x) for x in args.cases.split(',')] if args.cases else _SIZES
  for rows in sizes:
    job = zipf.make({'model.dim': args.dim, 'mesh.data': 1}, rows)
    if obstacle := zipf.obstacle(job):
      results.found[rows] = {'obstacle': obstacle}
      continue
    effort = zipf.Effort(args.words, 2, args.secs)
    corpus = zipf.corpus(job.counts, args.words)
    results.found[rows] = zipf.time_dispatches(job, corpus, effort)
  first = results.found[sizes[0]]
  table = [
    [
      f'{rows:,}',
      x.get('centers_per_sec'),
      first['centers_per_sec'] / x['centers_per_sec'] if len(x) > 1 else None,
      x.get('obstacle'),
    ]
    for rows, x in results.found.items()
  ]
  head = {'rows': '', 'centers/s': ',.0f', 'time': '.2f', '': ''}
  results.finish(experiment.table(head, table))


_SIZES = 72_000, 1_000_000, 10_000_000

# Name: (strategy, layout, data axis, table axis)
_LAYOUTS = {
  'replicas': ('replicas', 'replicated', 2, 1),
  'replicated': ('sync', 'replicated', 2, 1),
  'row': ('sync', 'row', 1, 2),
  'column': ('sync', 'column', 1, 2),
}


def _centers_per_sec(
  args: argparse.Namespace, strategy: str, layout: str, shape: tuple[int, int]
) -> float:
  import zipf

  devices = 1 if strategy == 'replicas' else shape[0] * shape[1]
  job = zipf.make(
    {
      'model.dim': args.dim, 'strategy.name': strategy, 'table.layout': layout,
      'mesh.data': shape[0], 'mesh.table': shape[1], 'train.threads': 1,
      'train.batch_words': args.batch_words * devices,
    },
    args.rows,
  )  # fmt: skip
  effort = zipf.Effort(args.words, 2, args.secs)
  corpus = zipf.corpus(job.counts, args.words)
  return zipf.time_dispatches(job, corpus, effort)['centers_per_sec']


def _layouts(args: argparse.Namespace, results: experiment.Results) -> None:
  experiment.simulate_devices(2, platforms='')

  def measure(case: str, run: int) -> tuple[float, float]:
    del run
    strategy, layout, *shape = _LAYOUTS[case]
    return (
      _centers_per_sec(args, 'sync', layout, (1, 1)),
      _centers_per_sec(args, strategy, layout, tuple(shape)),
    )

  names = args.cases.split(',') if args.cases else _LAYOUTS
  sides = {case: functools.partial(measure, case) for case in names}
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


# Stores.

_WARM_DISPATCHES = 8


def measure_store(case: Mapping[str, Any]) -> dict[str, Any]:
  """Trains with tables at one place, in this process."""
  import jax
  import psutil
  import zipf

  started = psutil.Process().create_time()
  place, _, room = case['case'].partition(':')
  settings = {
    'model.dim': case['dim'],
    'train.batch_words': case['batch_words'],
    'table.store': '' if place == 'device' else place,
    'table.device_bytes': room,
  }
  with tempfile.TemporaryDirectory() as folder:
    job = zipf.make(settings, case['rows'], folder=pathlib.Path(folder))
    corpus = zipf.corpus(job.counts, case['words'])
    state, constants = zipf.start(job)
    step, store = job.strategy.step, job.strategy.store
    secs, centers, first = [], [], 0.0
    for batch, following in _with_next(job, corpus):
      if store:
        store.expect(*following)
      start = time.perf_counter()
      state, metrics = step(state, constants, *batch)
      jax.block_until_ready(state)
      secs.append(time.perf_counter() - start)
      first = first or time.time() - started
      centers.append(int(metrics.counters['kept_words']))
      if len(secs) == _WARM_DISPATCHES and store:
        store.take_counts()
      timed = secs[_WARM_DISPATCHES:]
      if len(timed) > 4 and sum(timed) > case['secs']:
        break
    rates = np.divide(centers, secs)[_WARM_DISPATCHES:]
    found = {
      'centers_per_sec': float(np.median(rates)),
      'first_step_secs': first,
      'table_bytes': zipf.state_bytes(job),
    }
    if store:
      steps = sum(centers[_WARM_DISPATCHES:]) / job.step_words
      counts = store.take_counts()
      found |= {
        'bytes_per_step': counts['bytes_fetched'] / steps,
        'hit_rate': 1 - counts['rows_fetched'] / counts['rows_needed'],
        'hidden': 1 - counts['fetch_waited_secs'] / counts['fetch_secs'],
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
  command = [sys.executable, __file__, 'stores', f'--case={json.dumps(case)}']
  done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
  if done.returncode:
    raise RuntimeError(f'{case["case"]} ended with {done.returncode}')
  return json.loads(done.stdout.splitlines()[-1])


def _stores(args: argparse.Namespace, results: experiment.Results) -> None:
  if args.case is not None:
    print(json.dumps(measure_store(args.case)))
    return
  names = (args.cases or 'device,memory:25%,disk:12.5%').split(',')
  sizes = {k: getattr(args, k) for k in ('rows', 'dim', 'words', 'secs')}
  sizes['batch_words'] = 4096
  sides = {
    case: lambda _, case=case: _in_process({**sizes, 'case': case})
    for case in names
  }
  results.found = experiment.in_turn(sides, args.runs)
  head = {
    'centers_per_sec': ',.0f', 'bytes_per_step': ',.0f', 'hit_rate': '.2f',
    'hidden': '.2f', 'first_step_secs': '.1f', 'table_bytes': ',',
    'peak_rss_bytes': ',',
  }  # fmt: skip
  rows = [
    [case, *(_median(runs, key) for key in head)]
    for case, runs in results.found.items()
  ]
  results.finish(
    f'two tables of {args.rows:,} x {args.dim}',
    experiment.table({'case': '', **head}, rows),
  )


def _median(runs: list[Mapping[str, Any]], key: str) -> float | None:
  values = [x[key] for x in runs if key in x]
  return statistics.median(values) if values else None


_WHAT = {
  'encode': _encode,
  'analogies': _analogies,
  'merge': _merge,
  'rows': _rows,
  'layouts': _layouts,
  'stores': _stores,
}
_DEFAULTS = {
  'analogies': {'vocab': 300_000, 'dim': 300},
  'merge': {'words': 1_000_000, 'dim': 300},
  'rows': {'words': 4_000_000},
  'layouts': {'rows': 72_000, 'words': 4_000_000},
}


def main() -> None:
  """Measures what the first argument names."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('what', choices=_WHAT)
  add('--text', help='encode: config.data.path')
  add('--runs', type=experiment.count, default=3)
  add('--max_vocab', type=int, default=1_000_000, help='encode')
  add('--questions', help='analogies')
  add('--vocab', type=int, help='analogies: rows of the table')
  add('--parts', type=int, default=10, help='merge')
  add('--noise', type=float, default=0.5, help='merge: relative to the vectors')
  add('--dim', type=int, default=100)
  add('--rows', type=experiment.count, default=200_000, help='of a table')
  add('--words', type=experiment.count, default=8_000_000)
  add('--batch_words', type=int, default=256, help='layouts: of a device')
  add('--secs', type=float, default=5.0, help='of timed dispatches')
  add('--cases', default='', help='layouts, stores')
  add('--case', type=json.loads, help=argparse.SUPPRESS)
  what = next((x for x in sys.argv[1:] if x in _WHAT), '')
  parser.set_defaults(**_DEFAULTS.get(what, {}))
  args = experiment.parse(parser)
  _WHAT[args.what](args, experiment.Results(f'bench-{args.what}', args))


if __name__ == '__main__':
  experiment.main(main)
