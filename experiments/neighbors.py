"""Measures an index of neighbors against the cosines of all rows.

    pip install -e '.[ann]'
    python experiments/neighbors.py --rows=1000000 --dim=300
    python experiments/neighbors.py --vectors=runs/wiki-.../export

Without --vectors, rows lie in topics of topics, with variances of dimensions
that fall as those of trained vectors do. Exact neighbors are those of
`most_similar`; recall is the fraction of the 10 nearest words that the index
finds, for words drawn from ranges of rows, of which the first are the most
frequent words. Rates are queries per second: `single` are queries one by one
(as gensim's exact ones are), `batch` are 1,000 at once on all cores, beside
exact ones of one matrix product.
"""

import argparse
import time
from typing import Any

import experiment
import numpy as np

import jaxemb
from jaxemb.evaluation import neighbor_index

_BLOCK_ROWS = 50_000
_NUM = 10
_RANGES = 0, 1_000, 10_000, 100_000
_RATES = 'exact_single', 'index_single', 'exact_batch', 'index_batch'
_MIN_SECS = 1.0  # of each timing


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


def _rates(vectors, index, words: list[str]) -> dict[str, float]:
  """Returns queries per second, exact and by the index."""
  targets = vectors[words * (1 + 1000 // len(words))][:1000]
  units = targets / np.linalg.norm(targets, axis=1, keepdims=True)

  def exact_batch():
    cosines = units[:100] @ vectors.vectors.T / vectors.norms
    np.argpartition(-cosines, _NUM, axis=1)

  def single(**options):
    for word in words[:20]:
      vectors.most_similar(word, topn=_NUM, **options)

  rates = (
    20 / _seconds(single),
    20 / _seconds(lambda: single(indexer=index)),
    100 / _seconds(exact_batch),
    1000 / _seconds(lambda: index.search(targets, _NUM)),
  )
  return dict(zip(_RATES, rates, strict=True))


def _seconds(function) -> float:
  """Returns the median seconds of calls that take a second together."""
  function()
  times = []
  while sum(times) < _MIN_SECS or len(times) < 3:
    start = time.perf_counter()
    function()
    times.append(time.perf_counter() - start)
  return float(np.median(times))


def _recall(vectors, index, exact: dict[str, set]) -> float:
  """Returns the fraction of the nearest words that the index finds."""
  found = [
    len(nearest & {*dict(vectors.most_similar(word, indexer=index))})
    for word, nearest in exact.items()
  ]
  return float(np.mean(found)) / _NUM


def _exact(vectors, num_queries: int) -> dict[str, dict[str, set]]:
  """Returns the nearest words of drawn words, by range of rows."""
  rng, exact = np.random.default_rng(1), {}
  edges = [x for x in _RANGES if x < len(vectors)] + [len(vectors)]
  for first, stop in zip(edges[:-1], edges[1:], strict=True):
    size = min(num_queries, stop - first)
    rows = first + rng.choice(stop - first, size, replace=False)
    words = [vectors.index_to_key[row] for row in rows.tolist()]
    exact[f'rows {first:,} to {stop:,}'] = {
      x: {*dict(vectors.most_similar(x, topn=_NUM))} for x in words
    }
  return exact


def _measure(vectors, args: argparse.Namespace) -> dict[str, Any]:
  exact = _exact(vectors, args.queries)
  start = time.perf_counter()
  index = vectors.index(
    connectivity=args.connectivity, expansion_add=args.expansion_add
  )
  found = {
    'build_secs': time.perf_counter() - start,
    'bytes': index.graph.memory_usage,
    'searches': {},
  }
  for expansion in args.expansion_search:
    index.graph.expansion_search = expansion
    recalls = {k: _recall(vectors, index, x) for k, x in exact.items()}
    rates = _rates(vectors, index, [*list(exact.values())[-1]])
    found['searches'][expansion] = recalls | rates
  return found


def _table(found: dict[str, Any]) -> str:
  """Returns a table of searches, a row for each `expansion_search`."""
  searches = found['searches']
  names = [*next(iter(searches.values()))]
  head = {'expansion_search': ''}
  head |= {x: '.1f' if x in _RATES else '.4f' for x in names}
  head |= {'single, times exact': '.0f', 'batch, times exact': '.1f'}
  rows = [
    [
      str(expansion),
      *row.values(),
      *(
        row[x] / row[y] for x, y in zip(_RATES[1::2], _RATES[::2], strict=True)
      ),
    ]
    for expansion, row in searches.items()
  ]
  built = f'{found["build_secs"]:.0f} s to build, {found["bytes"] / 1e6:.0f} MB'
  return f'{experiment.table(head, rows)}\n{built}'


def main() -> None:
  """Measures and prints the table."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('--vectors', help='a run, export or file of vectors; default: synthetic')
  add('--rows', type=experiment.count, default=1_000_000, help='of synthetic')
  add('--dim', type=experiment.count, default=300, help='of synthetic')
  add('--queries', type=experiment.count, default=100, help='of each range')
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
