"""Rows that workers move which have copies of a shared table's rows, as in HET.

HET (Miao et al. 2022) keeps a table on servers and copies of some rows on the
workers. Here workers look up random ids, p ~ 1 / rank^exponent, through the
package's own shards and copies; nothing is trained, and rows are one number
wide, so that a table of millions of rows fits any machine.

For every exponent, share of the rows that a worker has room for, policy and
staleness: rows read and pushed per row that a step needs, the share of rows
that need not move against no cache (each different row of a step is read once
and pushed once), and against a worker that moves a row for each lookup. Only
the second half of the steps counts, when caches are full.
"""

import itertools

import experiment
import numpy as np

from jaxemb.stores import cache as cache_lib
from jaxemb.workers import copies, shards

_WIDTH = 1
_ONE_BYTES = 4 * _WIDTH


class _Worker:
  """Copies of rows, and the cache that says which."""

  def __init__(self, table, capacity, policy, staleness):
    bounds = staleness, staleness
    self.cache = cache_lib.Cache(('rows',), table.num_rows, capacity, policy)
    self.copies = copies.Copies(table, capacity, _WIDTH, *bounds)
    self.rows = np.zeros((capacity, _WIDTH), np.float32)

  def step(self, ids: np.ndarray) -> tuple[int, int, int]:
    """Rows needed, read and pushed in a step that looks up ids [n] int32."""
    needed, updates = np.unique(ids, return_counts=True)
    moves = self.cache.admit([[ids]])
    lines = self.cache.slot_of[needed]
    num_pushed = self._push(self.copies.leave(moves.out['rows'][0]))
    fetched = self.copies.read(lines, needed)
    self.copies.commit(fetched, self.rows, fetched.lines)
    self.copies.begin(lines, updates)
    num_pushed += self._push(self.copies.due(lines))
    return len(needed), len(fetched.ids), num_pushed

  def _push(self, pending):
    num = len(pending.ids)
    deltas = self.copies.settle(pending, self.rows, pending.lines)
    push = self.copies.asking_push(pending, deltas)
    shards.together(self.copies.table.call, [push])
    return num


def measure(
  rows: int,
  workers: int,
  lookups: int,
  steps: int,
  exponent: float,
  share: float,
  policy: str,
  staleness: int,
) -> dict:
  """What all workers move in the second half of the steps."""
  shard = shards.Shard(0, 1, rows, _ONE_BYTES, _WIDTH)

  def call(requests):
    return [
      {i: getattr(shard, x.method)(*y) for i, y in x.args.items()}
      for x in requests
    ]

  def make(ids):
    return np.zeros((len(ids), _ONE_BYTES), np.uint8)

  sizes = 'rows', 1, rows, _ONE_BYTES, make, call
  tables = [shards.Sharded(*sizes, str(i), list) for i in range(workers)]
  capacity = max(1, int(rows * share))
  made = [_Worker(x, capacity, policy, staleness) for x in tables]
  chances = np.cumsum(np.arange(1, rows + 1) ** -float(exponent))
  chances /= chances[-1]
  rng, sums = np.random.default_rng(0), np.zeros(3, np.int64)
  for step in range(steps):
    for worker in made:
      drawn = np.searchsorted(chances, rng.random(lookups))
      counts = worker.step(drawn.astype(np.int32))
      sums += counts if 2 * step >= steps else 0
  needed, read, pushed = sums.tolist()
  all_lookups = workers * lookups * len(range(-(-steps // 2), steps))
  return {
    'exponent': exponent,
    'share': share,
    'policy': policy,
    'staleness': staleness,
    'needed_per_lookup': needed / all_lookups,
    'read': read / needed,
    'pushed': pushed / needed,
    'saved': 1 - (read + pushed) / (2 * needed),
    'saved_of_lookups': 1 - (read + pushed) / (2 * all_lookups),
  }


def main() -> None:
  """Measures every combination and prints a table."""
  parser = experiment.parser(__doc__)
  add = parser.add_argument
  add('--rows', type=experiment.count, default=1_000_000)
  add('--workers', type=experiment.count, default=4)
  # A batch of 128 clicks with 26 features, as HET has it.
  add('--lookups', type=experiment.count, default=3328, help='of a step')
  add('--steps', type=experiment.count, default=2000)
  add('--exponents', type=experiment.numbers, default=[0.8, 1.05, 1.2])
  add('--shares', type=experiment.numbers, default=[0.01, 0.1, 0.2])
  add('--staleness', type=experiment.numbers, default=[0, 10, 100])
  experiment.add_names(parser, '--policies', cache_lib.POLICIES)
  args = parser.parse_args()
  results = experiment.Results('het', args)
  sizes = args.rows, args.workers, args.lookups, args.steps
  points = args.exponents, args.shares, args.policies, args.staleness
  results.found = []
  for point in itertools.product(*points):
    results.found.append(measure(*sizes, *point))
    experiment.progress(*point, f'{results.found[-1]["saved"]:.3f} saved')
    results.save()
  names = {
    'exponent': '', 'share': '', 'policy': '', 'staleness': '',
    'read': '.3f', 'pushed': '.3f', 'saved': '.1%', 'saved_of_lookups': '.1%',
  }  # fmt: skip
  results.finish(
    f'{args.workers} workers, {args.rows:,} rows, {args.lookups:,} lookups in '
    'a step; rows moved per row that a step needs, and the share that is saved',
    experiment.table(names, [[x[k] for k in names] for x in results.found]),
  )


if __name__ == '__main__':
  experiment.main(main)
