"""Measures an index of neighbors against the cosines of all rows.

    pip install -e '.[ann]'
    python experiments/neighbors.py --rows=1000000 --dim=300
    python experiments/neighbors.py --vectors=runs/wiki-.../export

Without --vectors, rows lie in topics of topics, with variances of dimensions
that fall as those of trained vectors do. Words are drawn from ranges of rows,
of which the first are the most frequent words. Recall is the fraction of the 10
words nearest by `most_similar` that the index finds, too. Searches with and
without the index alternate, and times are exceeded by nine tenths of them, as
other work on the machine interrupts long ones. `batch` are times of one of
1,000 queries at once, by `index.search`, and of one of 100 by a matrix product,
on all cores.
"""

import argparse
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import experiment
import numpy as np

import jaxemb
from jaxemb.evaluation import neighbor_index

_BLOCK_ROWS = 50_000
_NUM = 10
_RANGES = 0, 1_000, 10_000, 100_000
_BATCH, _EXACT_BATCH = 1_000, 100
_BATCHES = 3


def synthetic(num_rows: int, dim: int) -> np.ndarray:
  """Returns [num_rows, dim] float32 rows in topics of topics."""
  rng = np.random.default_rng(0)
  scales = (np.arange(dim) + 10.0) ** -0.5
  scales /= np.linalg.norm(scales)
  num_topics = max(2, num_rows // 100)
  fields = rng.standard_normal((100, dim)) * scales
  topics = rng.standard_normal((num_topics, dim)) * scales
  field_of = rng.integers(100, size=num_topics)
  rows = np.empty((num_rows, dim), np.float32)
  for start in range(0, num_rows, _BLOCK_ROWS):
    block = rows[start : start + _BLOCK_ROWS]
    topic = rng.integers(num_topics, size=len(block))
    noise = rng.standard_normal(block.shape, dtype=np.float32) * scales
    block[:] = 0.5 * fields[field_of[topic]] + 0.7 * topics[topic] + 0.8 * noise
    block *= rng.lognormal(0, 0.3, size=(len(block), 1))
  return rows


def _drawn(vectors, num_queries: int) -> dict[str, list[str]]:
  """Returns drawn words by range of rows."""
  rng, words = np.random.default_rng(1), {}
  edges = [x for x in _RANGES if x < len(vectors)] + [len(vectors)]
  for first, stop in zip(edges[:-1], edges[1:], strict=True):
    size = min(num_queries, stop - first)
    rows = first + rng.choice(stop - first, size, replace=False)
    words[f'{first:,} to {stop:,}'] = [
      vectors.index_to_key[row] for row in rows.tolist()
    ]
  return words


def _timed(function: Callable, *args, **options) -> tuple[Any, float]:
  """Returns the result and the seconds of a call."""
  start = time.perf_counter()
  result = function(*args, **options)
  return result, time.perf_counter() - start


def _fast(secs: Sequence[float]) -> float:
  """Returns what nine tenths of the times exceed."""
  return float(np.quantile(secs, 0.1))


def _singles(
  vectors, index, words: Sequence[str], expansions: Sequence[int]
) -> dict[str, Any]:
  """Returns seconds, exact and by expansion, and the recalls.

  A word is searched once in a pass over all: what the caches of the CPU hold is
  then of other words.
  """
  exact, exact_secs = {}, []
  near = {x: {} for x in expansions}
  secs = {x: [] for x in expansions}
  for number, expansion in enumerate(expansions):
    index.graph.expansion_search = expansion
    for position, word in enumerate(words):
      if position % len(expansions) == number:
        exact[word], sec = _timed(vectors.most_similar, word, topn=_NUM)
        exact_secs.append(sec)
      near[expansion][word], sec = _timed(
        vectors.most_similar, word, topn=_NUM, indexer=index
      )
      secs[expansion].append(sec)
  common = {
    x: sum(len(dict(exact[w]).keys() & dict(near[x][w]).keys()) for w in words)
    for x in expansions
  }
  return {
    'exact': _fast(exact_secs),
    'index': [_fast(x) for x in secs.values()],
    'recall': [x / _NUM / len(words) for x in common.values()],
  }


def _batches(vectors, index, expansions: Sequence[int]) -> dict[str, Any]:
  """Returns seconds per query, exact and by expansion."""
  rng = np.random.default_rng(2)
  rows = rng.choice(len(vectors), _BATCH, replace=len(vectors) < _BATCH)
  units = vectors.vectors[rows] / vectors.norms[rows, None]

  def exact():
    cosines = units[:_EXACT_BATCH] @ vectors.vectors.T / vectors.norms
    np.argpartition(-cosines, _NUM, axis=1)

  exact_secs, secs = [], []
  for _ in range(_BATCHES):
    exact_secs.append(_timed(exact)[1])
    for expansion in expansions:
      index.graph.expansion_search = expansion
      secs.append(_timed(index.search, units, _NUM)[1])
  shape = _BATCHES, len(expansions)
  return {
    'exact': _fast(exact_secs) / _EXACT_BATCH,
    'index': [_fast(x) / _BATCH for x in np.reshape(secs, shape).T],
  }


def _index(vectors, args: argparse.Namespace) -> tuple[Any, float | None]:
  """Returns an index and the seconds of building it; None if it was read."""
  if args.index and args.index.exists():
    return vectors.load_index(args.index), None
  settings = {x: getattr(args, x) for x in ('connectivity', 'expansion_add')}
  index, secs = _timed(vectors.index, **settings)
  if args.index:
    index.save(args.index)
  return index, secs


def _measure(vectors, args: argparse.Namespace) -> dict[str, Any]:
  index, build_secs = _index(vectors, args)
  words, expansions = _drawn(vectors, args.queries), args.expansion_search
  vectors.most_similar(words[[*words][0]][0], indexer=index)  # loads both
  results = {
    name: _singles(vectors, index, chosen, expansions)
    for name, chosen in words.items()
  }
  return {
    'build_secs': build_secs,
    'bytes': index.graph.serialized_length,
    'expansions': expansions,
    'singles': results,
    'batches': _batches(vectors, index, expansions),
  }


def _table(results: dict[str, Any]) -> str:
  """Returns a table of searches by range of rows and `expansion_search`."""
  head = {
    'rows': '', 'expansion_search': '', 'recall@10': '.3f', 'exact ms': '.1f',
    'index ms': '.2f', 'times': '.0f',
  }  # fmt: skip
  searches = results['singles'] | {'batch': results['batches']}
  rows = []
  for name, search in searches.items():
    recalls = search.get('recall', [None] * len(results['expansions']))
    rows += [
      [name, str(x), recall, 1e3 * search['exact'], 1e3 * secs,
       search['exact'] / secs]
      for x, recall, secs in zip(
        results['expansions'], recalls, search['index'], strict=True
      )
    ]  # fmt: skip
  size = f'{results["bytes"] / 1e6:.0f} MB'
  if results['build_secs'] is not None:
    size += f', {results["build_secs"]:.0f} s to build'
  return f'{experiment.table(head, rows)}\nindex: {size}'


def main() -> None:
  """Measures and prints the table."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('--vectors', help='a run, export or file of vectors; default: synthetic')
  add('--rows', type=experiment.count, default=1_000_000, help='of synthetic')
  add('--dim', type=experiment.count, default=300, help='of synthetic')
  add('--queries', type=experiment.count, default=100, help='of each range')
  add(
    '--index',
    type=pathlib.Path,
    help='folder of an index: read if it exists, else written',
  )
  defaults = neighbor_index.Settings()
  add('--connectivity', type=int, default=defaults.connectivity)
  add('--expansion_add', type=int, default=defaults.expansion_add)
  add(
    '--expansion_search',
    type=experiment.numbers,
    default=[64, 128, 256, 512],
    help='default: 64,128,256,512',
  )
  args = experiment.parse(parser)
  results = experiment.Results('neighbors', args)
  if args.vectors:
    vectors = jaxemb.load(args.vectors)
  else:
    rows = synthetic(args.rows, args.dim)
    vectors = jaxemb.Embeddings([f'w{i}' for i in range(len(rows))], rows)
  results.found = _measure(vectors, args)
  results.finish(_table(results.found))


if __name__ == '__main__':
  experiment.main(main)
