"""Time and memory of a merge, on parts that this makes itself.

  python experiments/bench_merge.py
  python experiments/bench_merge.py --parts=4 --words=200000 --format=bin

Every part is a rotated, noisy copy of the same vectors, and lacks other words;
it has --words of them. `python -m jaxemb.merge` runs as a process of its own.
Cosines: the largest error of the merged vectors' cosines, against those of the
vectors without noise (10 words by 1000).
"""

import argparse
import json
import pathlib
import resource
import sys
import tempfile
import time
from typing import Any

import experiment
import numpy as np

from jaxemb.evaluation import geometry
from jaxemb.storage import word2vec_format

_BLOCK_ROWS = 50_000
_MISSING = 0.1  # fraction of the union that a part lacks


def _truth(first: int, stop: int, dim: int) -> np.ndarray:
  """[rows, dim] float32, some of the vectors that all parts have."""
  rng = np.random.default_rng([7, first])
  spectrum = 1 / np.sqrt(1 + np.arange(dim, dtype=np.float32))
  return rng.standard_normal((stop - first, dim), np.float32) * spectrum


def _make(folder: pathlib.Path, part: int, args: argparse.Namespace) -> None:
  """Writes one part."""
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
    end = written + len(rows)
    vectors[written:end] = rows @ rotation.astype(np.float32)
    written = end
  vectors.flush()
  ids = np.flatnonzero(has)
  words = [f'w{i}' for i in ids]
  word2vec_format.write_vocab(folder / 'vocab.txt', words, num_union - ids)
  if args.format == 'bin':
    word2vec_format.write(folder / 'vectors.bin', words, vectors, True)
    (folder / 'vectors.npy').unlink()


def _cosine_error(output: pathlib.Path, args: argparse.Namespace) -> float:
  words, _ = word2vec_format.read_vocab(output / 'export' / 'vocab.txt')
  merged = np.load(output / 'export' / 'vectors.npy', mmap_mode='r')
  truth = _truth(0, _BLOCK_ROWS, args.dim)
  rows = {word: row for row, word in enumerate(words)}
  ids = [i for i in range(min(1000, len(truth))) if f'w{i}' in rows]
  units = (
    geometry.unit(np.array(x, np.float64))
    for x in (merged[[rows[f'w{i}'] for i in ids]], truth[ids])
  )
  found, expected = (x[:10] @ x.T for x in units)
  return float(np.abs(found - expected).max())


def measure(folder: pathlib.Path, args: argparse.Namespace) -> dict[str, Any]:
  """Makes the parts and merges them."""
  paths = [folder / str(part) for part in range(args.parts)]
  for part, path in enumerate(paths):
    _make(path, part, args)
  if args.format == 'bin':
    paths = [path / 'vectors.bin' for path in paths]
  output = folder / 'merged'
  command = [sys.executable, '-m', 'jaxemb.merge', *map(str, paths)]
  command += [f'--output={output}', f'--method={args.method}']
  others_cores, start = experiment.load(), time.perf_counter()
  experiment.call(command)
  total_secs = time.perf_counter() - start
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  cpu_secs = used.ru_utime + used.ru_stime
  report = json.loads((output / 'merge.json').read_text())
  names = (
    'union_words', 'read_secs', 'merge_secs', 'export_secs', 'peak_rss_bytes',
    'displacements',
  )  # fmt: skip
  given = ('parts', 'words', 'dim', 'noise', 'format', 'method')
  error = None if args.method == 'concat' else _cosine_error(output, args)
  return {
    **{k: getattr(args, k) for k in given},
    **{k: report[k] for k in names},
    'total_secs': total_secs,
    'cpu_secs': cpu_secs,
    # The merge is a process of its own.
    'others_cores': max(others_cores() - cpu_secs / total_secs, 0.0),
    'part_bytes': 4 * args.words * args.dim,
    'result_bytes': 4 * report['words'] * report['dim'],
    'cosine_error': error,
  }


def main() -> None:
  """Makes parts, merges them and prints the times."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('--parts', type=int, default=10)
  add('--words', type=int, default=1_000_000, help='of each part')
  add('--dim', type=int, default=300)
  add('--noise', type=float, default=0.5, help='relative to the vectors')
  add('--format', choices=('npy', 'bin'), default='npy')
  add('--method', choices=('alir', 'pca', 'concat'), default='alir')
  add('--quick', action='store_true', help='tiny, for tests')
  args = parser.parse_args()
  if args.quick:
    args.parts, args.words, args.dim = 3, 2000, 16
  results = experiment.Results('merge', args, same=())
  results.found = results.found or []
  with tempfile.TemporaryDirectory() as folder:
    found = measure(pathlib.Path(folder), args)
  results.found.append(found)
  results.finish(
    f'{args.parts} parts x {args.words:,} words x {args.dim} ({args.format}), '
    f'{found["union_words"]:,} words in all: total {found["total_secs"]:.1f} s '
    f'(reading {found["read_secs"]:.1f}, merging {found["merge_secs"]:.1f}, '
    f'export {found["export_secs"]:.1f}; {found["cpu_secs"]:.0f} CPU-s; '
    f'{found["others_cores"]:.1f} cores used by others), '
    f'peak {found["peak_rss_bytes"] / 1e9:.2f} GB; cosines '
    f'{found["cosine_error"]}'
  )


if __name__ == '__main__':
  experiment.main(main)
