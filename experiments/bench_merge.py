"""Time and memory of a merge, on parts that this makes itself.

  python experiments/bench_merge.py
  python experiments/bench_merge.py --parts=4 --words=200000 --format=bin

Every part is a rotated, noisy copy of the same vectors, from which each lacks
other words; a part has --words of them. The command `python -m jaxemb.merge`
runs as a process of its own.

  making     the parts, which does not count
  total      the whole process, with its start
  reading    of words, and of what is no .npy file
  merging    two passes over all parts, with the alignment
  CPU-s      seconds of all cores that the process took
  export     vectors.npy .bin .txt, vocab.txt, projector/
  peak       resident memory of the process
  cosines    the largest error of the merged vectors' cosines, against those of
             the vectors without noise (10 words by 1000)
"""

import argparse
import json
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any

import machine
import numpy as np

from jaxemb.storage import word2vec_format

_RESULTS = pathlib.Path(__file__).resolve().parent / 'results'
_BLOCK_ROWS = 50_000


def _truth(first: int, stop: int, dim: int) -> np.ndarray:
  """[rows, dim] float32, some of the vectors that all parts have."""
  rng = np.random.default_rng([7, first])
  spectrum = 1 / np.sqrt(1 + np.arange(dim, dtype=np.float32))
  return rng.standard_normal((stop - first, dim), np.float32) * spectrum


def _make(folder: pathlib.Path, part: int, args: argparse.Namespace) -> None:
  """Writes one part."""
  num_union = round(args.words / (1 - args.missing))
  rng = np.random.default_rng([11, part])
  has = np.zeros(num_union, bool)
  has[rng.choice(num_union, args.words, replace=False)] = True
  turn, _ = np.linalg.qr(rng.standard_normal((args.dim, args.dim)))
  folder.mkdir(parents=True)
  shape = (args.words, args.dim)
  vectors = np.lib.format.open_memmap(
    folder / 'vectors.npy', 'w+', '<f4', shape
  )
  noise = rng.standard_normal((_BLOCK_ROWS, args.dim), np.float32)
  place = 0
  for first in range(0, num_union, _BLOCK_ROWS):
    stop = min(first + _BLOCK_ROWS, num_union)
    rows = _truth(first, stop, args.dim)[has[first:stop]]
    # Drawn once for each part; other words get it in another order.
    rows += args.noise * np.sqrt(np.mean(rows**2)) * noise[: len(rows)]
    rows = rows @ turn.astype(np.float32)
    noise = np.roll(noise, 1 + first // _BLOCK_ROWS, (0, 1))
    vectors[place : place + len(rows)] = rows
    place += len(rows)
  vectors.flush()
  words = [f'w{i}' for i in np.flatnonzero(has)]
  counts = num_union - np.flatnonzero(has)
  word2vec_format.write_vocab(folder / 'vocab.txt', words, counts)
  if args.format == 'bin':
    word2vec_format.write(folder / 'vectors.bin', words, vectors, True)
    (folder / 'vectors.npy').unlink()


def _cosine_error(output: pathlib.Path, args: argparse.Namespace) -> float:
  """Of some merged vectors."""
  words, _ = word2vec_format.read_vocab(output / 'export' / 'vocab.txt')
  merged = np.load(output / 'export' / 'vectors.npy', mmap_mode='r')
  num_union = round(args.words / (1 - args.missing))
  truth = _truth(0, min(_BLOCK_ROWS, num_union), args.dim)
  rows = {word: row for row, word in enumerate(words)}
  ids = [i for i in range(min(1000, len(truth))) if f'w{i}' in rows]
  found = np.array(merged[[rows[f'w{i}'] for i in ids]], np.float64)
  truth = truth[ids].astype(np.float64)
  found /= np.linalg.norm(found, axis=1, keepdims=True)
  truth /= np.linalg.norm(truth, axis=1, keepdims=True)
  return float(np.abs(found[:10] @ found.T - truth[:10] @ truth.T).max())


def _measure(folder: pathlib.Path, args: argparse.Namespace) -> dict[str, Any]:
  start = time.perf_counter()
  paths = [folder / str(part) for part in range(args.parts)]
  for part, path in enumerate(paths):
    _make(path, part, args)
  making_secs = time.perf_counter() - start
  if args.format == 'bin':
    paths = [path / 'vectors.bin' for path in paths]
  output = folder / 'merged'
  command = [sys.executable, '-m', 'jaxemb.merge', *map(str, paths)]
  command += [f'--output={output}', f'--method={args.method}']
  load, start = machine.Load(), time.perf_counter()
  subprocess.run(command, check=True)
  total_secs = time.perf_counter() - start
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  cpu_secs = used.ru_utime + used.ru_stime
  report = json.loads((output / 'merge.json').read_text())
  return {
    'parts': args.parts,
    'words': args.words,
    'union_words': report['union_words'],
    'dim': args.dim,
    'format': args.format,
    'method': args.method,
    'noise': args.noise,
    'making_secs': making_secs,
    'total_secs': total_secs,
    'read_secs': report['read_secs'],
    'merge_secs': report['merge_secs'],
    'export_secs': report['export_secs'],
    'cpu_secs': cpu_secs,
    # The merge is a process of its own, and no other.
    'others_cores': max(load.others_cores() - cpu_secs / total_secs, 0.0),
    'peak_rss_bytes': report['peak_rss_bytes'],
    'part_bytes': 4 * args.words * args.dim,
    'result_bytes': 4 * report['words'] * report['dim'],
    'displacements': report['displacements'],
    'cosine_error': None
    if args.method == 'concat'
    else _cosine_error(output, args),
  }


def _arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--parts', type=int, default=10)
  add('--words', type=int, default=1_000_000, help='of each part')
  add('--dim', type=int, default=300)
  add('--missing', type=float, default=0.1, help='share of the union')
  add('--noise', type=float, default=0.5, help='relative to the vectors')
  add('--format', choices=('npy', 'bin'), default='npy')
  add('--method', choices=('alir', 'pca', 'concat'), default='alir')
  add('--folder', help='for the parts, removed afterwards; default: temporary')
  add('--output', type=pathlib.Path, help='default: results/merge-DATE.json')
  add('--quick', action='store_true', help='tiny, for tests')
  return parser.parse_args()


def main() -> None:
  """Makes parts, merges them, prints the figures and writes the file."""
  args = _arguments()
  if args.quick:
    args.parts, args.words, args.dim = 3, 2000, 16
  folder = pathlib.Path(tempfile.mkdtemp(prefix='merge-', dir=args.folder))
  try:
    found = _measure(folder, args)
  finally:
    shutil.rmtree(folder)
  print(
    f'{args.parts} parts x {args.words:,} words x {args.dim} ({args.format}), '
    f'{found["union_words"]:,} words in all: total {found["total_secs"]:.1f} s '
    f'(reading {found["read_secs"]:.1f}, merging {found["merge_secs"]:.1f}, '
    f'export {found["export_secs"]:.1f}; {found["cpu_secs"]:.0f} CPU-s; '
    f'{found["others_cores"]:.1f} cores taken by others), '
    f'peak {found["peak_rss_bytes"] / 1e9:.2f} GB; making '
    f'{found["making_secs"]:.1f} s; cosines {found["cosine_error"]}'
  )
  facts = machine.describe()
  print(machine.line(facts))
  output = args.output or _RESULTS / f'merge-{machine.today()}.json'
  runs = json.loads(output.read_text())['runs'] if output.exists() else []
  output.parent.mkdir(parents=True, exist_ok=True)
  text = json.dumps({'machine': facts, 'runs': [*runs, found]}, indent=1)
  output.write_text(text + '\n')


if __name__ == '__main__':
  machine.run(main)
