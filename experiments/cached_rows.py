"""Rows that workers' caches move, and what a perfect cache would move.

  python experiments/cached_rows.py
  python experiments/cached_rows.py --model=graphsage --workers=8 \
    --edges=4000000 --exponent=1 --mixing=0.1 --epochs=20

Nothing is trained: workers take turns, a step each, read what their cache lacks
or what others have changed, and push what they have changed, as those of
`workers.shared_rows` do on the random log or graph of experiments/workers.py.
Of the rows that steps need, each counted once for a step, it prints how many
need not move, where a cache with no row moves each of them twice:

  lfu, lru   the caches of jaxemb (`--config.table.evict`), a step at a time
  perfect    which knows all steps, and evicts the row that is needed last
             (Belady 1966)
  no limit   the same with any staleness: only evicted rows move
  frequent   if the most frequent rows were always there, and never moved
  cold       if there were room for all rows: each moves twice a worker

Rows that nobody has changed are not read: a worker makes them itself.
"""

import argparse
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import experiment
import numpy as np
import workers as workers_lib

from jaxemb import config as config_lib
from jaxemb.data import base as data_base
from jaxemb.graphs import node_source
from jaxemb.stores import cache as cache_lib

_ANY = np.iinfo(np.int64).max  # updates of a row
_CASES = ('lfu', 'lru', 'perfect', 'no limit')

# [workers, steps] of ids int32 [n] that differ, and lookups of each
Needs = list[list[tuple[np.ndarray, np.ndarray]]]


def _clicks(args: argparse.Namespace, path: pathlib.Path) -> list[Any]:
  """Returns by worker the lookups of its steps, of the log's rows to train."""
  workers_lib.write_log(args, path)
  ids = np.loadtxt(path, np.int32, delimiter=',', skiprows=1)[:, 1:]
  ids = ids[: len(ids) * 9 // 10] + args.categories * np.arange(args.fields)
  num, rng = args.workers * args.batch_examples, np.random.default_rng(1)
  steps = []
  for _ in range(args.epochs):
    order = rng.permutation(len(ids))[: len(ids) // num * num]
    steps.extend(
      ids[order].reshape(-1, args.workers, args.batch_examples, args.fields)
    )
  return [[x[i].reshape(-1) for x in steps] for i in range(args.workers)]


def _nodes(args: argparse.Namespace, path: pathlib.Path) -> list[Any]:
  """Returns by worker the lookups of its steps, nodes and their neighbors."""
  workers_lib.write_graph(args, path)
  settings = config_lib.default().data.to_dict()
  settings |= {'fanouts': '2,2', 'local': args.local, 'targets': 'classes'}
  source = node_source.make(
    data_base.SourceSpec(
      path=str(path),
      seed=1,
      epochs=args.epochs,
      num_parts=args.workers,
      part_words=args.batch_examples,
      window=0,
      chunk=1,
      shortest_window=0,
      settings=settings | {'path': str(path)},
      readers=data_base.ALONE._replace(local_parts=range(args.workers)),
      cache=path.parent,
      progress=lambda *_: None,
    )
  )
  size = args.batch_examples
  starts = range(0, source.units_per_epoch - args.workers * size + 1, size)
  steps = [
    source.sample(epoch, range(x, x + size))[1].reshape(-1)
    for epoch in range(args.epochs)
    for x in starts[: len(starts) // args.workers * args.workers]
  ]
  return [steps[i :: args.workers] for i in range(args.workers)]


def _needs(lookups: list[Any], num_rows: int) -> tuple[Needs, np.ndarray]:
  """Returns what steps need, and lookups [num_rows] of all.

  Without `num_rows` the table has a row for each id that is looked up.
  """
  whole = np.concatenate([np.concatenate(x) for x in lookups])
  rows = np.arange(num_rows, dtype=np.int32) if num_rows else np.unique(whole)
  needs = []
  for steps in lookups:
    known = (x[x <= rows[-1]] for x in steps)  # others are padding
    pairs = (np.unique(x, return_counts=True) for x in known)
    needs.append(
      [(np.searchsorted(rows, x).astype(np.int32), n) for x, n in pairs]
    )
  counts = np.zeros(len(rows), np.int64)
  for steps in needs:
    for ids, times in steps:
      counts[ids] += times
  return needs, counts


class _Worker:
  """The cache of a worker, and clocks of the rows that it has."""

  def __init__(self, cache: cache_lib.Cache, steps: Sequence[Any]):
    self.cache, self.steps = cache, steps
    self.clocks, self.updates = np.zeros((2, cache.capacity), np.int64)
    cache.foresee([[ids] for ids, _ in steps])

  def step(self, number: int, clocks: np.ndarray, bound: int) -> int:
    """Takes a step; returns how many rows are read and pushed.

    `clocks` [rows] are those of the shards, which change.
    """
    ids, lookups = self.steps[number]
    self.cache.num_fitting(1)
    moves = self.cache.take(1)
    num_evicted = self._push(*moves.out[''], clocks)
    new, new_ids = moves.into['']
    num_new = np.count_nonzero(clocks[new_ids])  # others are made
    self.clocks[new] = clocks[new_ids]
    lines = self.cache.cache_row_of[ids]
    is_old = clocks[ids] - self.clocks[lines] > bound
    self.clocks[lines[is_old]] = clocks[ids[is_old]]
    self.updates[lines] += lookups
    due = self.updates[lines] > bound
    pushed = num_evicted + self._push(lines[due], ids[due], clocks)
    return int(num_new + np.sum(is_old) + pushed)

  def _push(self, lines, ids, clocks):
    """Pushes the updates of rows; returns how many have any."""
    updates = self.updates[lines]
    clocks[ids] += updates
    self.clocks[lines] += updates
    self.updates[lines] = 0
    return np.count_nonzero(updates)

  def flush(self) -> int:
    """The rows that are left to be pushed."""
    return np.count_nonzero(self.updates)


def saved(
  needs: Needs, lookups: np.ndarray, capacity: int, bound: int, policy: str
) -> float:
  """Returns the fraction of moves that a cache saves."""
  num_steps = sum(map(len, needs))
  is_perfect = policy not in ('lfu', 'lru')
  members = [
    _Worker(
      cache_lib.Cache(
        ('',),
        len(lookups),
        capacity,
        'lru' if is_perfect else policy,
        prior=cache_lib.prior_uses(lookups / num_steps),
        look_ahead=num_steps if is_perfect else cache_lib.LOOK_AHEAD,
      ),
      steps,
    )
    for steps in needs
  ]
  clocks, moved = np.zeros(len(lookups), np.int64), 0
  bound = _ANY if policy == 'no limit' else bound
  for number in range(len(needs[0])):
    for member in members:
      moved += member.step(number, clocks, bound)
  moved += sum(x.flush() for x in members)
  num = 2 * sum(len(ids) for steps in needs for ids, _ in steps)
  return 1 - moved / num


def bounds(
  needs: Needs, lookups: np.ndarray, capacity: int
) -> tuple[float, float]:
  """Fractions that are saved if the most frequent rows, or all, are there."""
  is_there = np.zeros(len(lookups), bool)
  is_there[np.argsort(-lookups, kind='stable')[:capacity]] = True
  ids = np.concatenate([x for steps in needs for x, _ in steps])
  cold = saved(needs, lookups, len(lookups), bound=0, policy='no limit')
  return float(np.mean(is_there[ids])), cold


def main() -> None:
  """Prints the table."""
  parser = experiment.parser(__doc__)
  workers_lib.add_data_flags(parser)
  add = parser.add_argument
  add('--epochs', type=experiment.count, default=1)
  add('--local', action='store_true', help='config.data.local of graphs')
  add('--percent', type=experiment.numbers, default=[1, 2, 5, 10, 20])
  add('--staleness', type=experiment.numbers, default=[0, 10, 100])
  args = parser.parse_args()
  results = experiment.Results('cached-rows', args)
  is_graph = args.model == 'graphsage'
  make = _nodes if is_graph else _clicks
  with tempfile.TemporaryDirectory() as folder:
    made = make(args, pathlib.Path(folder, 'data'))
  needs, lookups = _needs(made, args.nodes if is_graph else 0)
  tenth = np.sort(lookups)[-len(lookups) // 10 :].sum() / lookups.sum()
  title = f'{len(lookups):,} rows, a tenth has {tenth:.0%} of the lookups'
  largest = max(len(ids) for steps in needs for ids, _ in steps)
  rows, results.found = [], {}
  for percent in args.percent:
    capacity = len(lookups) * percent // 100
    if capacity < largest:
      experiment.progress(
        f'{percent} % have no room for {largest} rows of a step', ''
      )
      continue
    often, cold = bounds(needs, lookups, capacity)
    for bound in args.staleness:
      row = [
        saved(needs, lookups, capacity=capacity, bound=bound, policy=x)
        for x in _CASES
      ]
      results.found[f'{percent} {bound}'] = [*row, often, cold]
      rows.append([f'{percent} %', bound, *row, often, cold])
  names = *_CASES, 'frequent', 'cold'
  head = {'cache': '', 's': '', **dict.fromkeys(names, '.1%')}
  results.finish(f'{title}\n{experiment.table(head, rows)}')


if __name__ == '__main__':
  experiment.main(main)
