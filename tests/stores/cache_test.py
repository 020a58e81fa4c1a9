"""Cache rows, against a device that is a dict."""

import numpy as np
import pytest

from jaxemb.stores import cache as cache_lib

VOCAB, CAPACITY = 1000, 100


def _steps(seed, num):
  """Ids of two tables, with repetitions and padding."""
  rng = np.random.default_rng(seed)
  for _ in range(num):
    words = (VOCAB * rng.random(20) ** 3).astype(np.int32)
    others = rng.integers(0, VOCAB + 3, 10).astype(np.int32)
    yield words, np.concatenate([words, others])


def _admit(cache, *needed):
  cache.foresee(needed)
  return cache.take(cache.num_fitting(len(needed)))


@pytest.mark.parametrize('policy', ['lru', 'lfu'])
def test_rows_are_where_the_map_says(policy):
  cache = cache_lib.Cache(('a', 'b'), VOCAB, CAPACITY, policy)
  device = {'a': {}, 'b': {}}
  steps = list(_steps(0, 400))
  cache.foresee(steps)
  while steps:
    num, num_needed = cache.num_fitting(4), 0
    moves = cache.take(num)
    done, steps = steps[:num], steps[num:]
    for i, (name, held) in enumerate(device.items()):
      for cache_row, id_ in zip(*moves.out[name], strict=True):
        assert held.pop(cache_row) == id_
      for cache_row, id_ in zip(*moves.into[name], strict=True):
        assert cache_row not in held
        held[cache_row] = id_
      needed = {x for step in done for x in step[i].tolist() if x < VOCAB}
      num_needed += len(needed)
      for id_ in needed:
        assert held[cache.cache_row_of[id_]] == id_
      assert dict(zip(*cache.held(name), strict=True)) == held
    assert moves.num_needed == num_needed


def test_what_is_used_stays():
  def fetched(policy):
    cache = cache_lib.Cache(('a',), VOCAB, 40, policy)
    often, num = np.arange(20, dtype=np.int32), 0
    for _ in range(12):
      _admit(cache, [often])
    for i in range(60):
      # Rows that come once, in between; every third time they are alone.
      once = np.arange(20 * i, 20 * i + 20, dtype=np.int32) % 900 + 100
      moves = _admit(cache, [once if i % 3 else np.append(often, once)])
      num += np.isin(moves.into['a'][1], often).sum()
    return num

  lru, lfu = map(fetched, ('lru', 'lfu'))
  assert lru > 3 * lfu


def test_by_lru_goes_what_was_used_longest_ago():
  cache, last_use = cache_lib.Cache(('a',), VOCAB, 200, 'lru'), {}
  rng = np.random.default_rng(0)
  for i in range(300):
    needed = (VOCAB * rng.random(12) ** 2).astype(np.int32)
    moves = _admit(cache, [needed])
    gone = moves.out['a'][1].tolist()
    others = sorted(last_use[x] for x in last_use.keys() - set(needed.tolist()))
    assert sorted(last_use.pop(x) for x in gone) == others[: len(gone)]
    last_use |= dict.fromkeys(needed.tolist(), i)
    assert len(last_use) <= 200
  assert len(last_use) == 200


def test_a_step_that_does_not_fit_is_refused():
  cache = cache_lib.Cache(('a', 'b'), VOCAB, 8)
  step = np.arange(6, dtype=np.int32), np.arange(3, 9, dtype=np.int32)
  with pytest.raises(cache_lib.TooSmall) as error:
    _admit(cache, step)
  assert error.value.args == (9,)
  cache = cache_lib.Cache(('a', 'b'), VOCAB, 8)
  assert _admit(cache, (step[0], step[0])).num_needed == 12


def test_nine_tables_of_one_vocabulary_share_two_maps():
  vocabs = {f't{i}': VOCAB for i in range(9)} | {'other': 7}
  lookups = {k: np.full(x, 0.1) for k, x in vocabs.items()}
  capacities = dict.fromkeys(vocabs, 5)
  found = cache_lib.caches(vocabs, capacities, policy='lfu', lookups=lookups)
  assert [len(x.names) for x in found] == [1, 8, 1]
  assert {(x.num_rows, x.capacity) for x in found} == {(VOCAB, 5), (7, 5)}
  ids = np.arange(4, dtype=np.int32)
  moves = _admit(found[1], [ids] * 8)
  assert all(len(x[0]) == 4 for x in moves.into.values())


@pytest.mark.parametrize('policy', ['lru', 'lfu'])
def test_foreseen_steps_evict_as_few_rows_as_can_be(policy):
  rng, most = np.random.default_rng(2), 40
  steps = [np.unique(VOCAB * rng.random(12) ** 3) for _ in range(200)]
  cache = cache_lib.Cache(('a',), VOCAB, most, policy, look_ahead=200)
  cache.foresee([[x.astype(np.int32)] for x in steps])
  num = 0
  for _ in steps:
    cache.num_fitting(1)
    num += len(cache.take(1).into['a'][0])

  # Belady 1966: of the rows that a step does not need, those needed last go.
  steps, held, least = [set(x.astype(int)) for x in steps], set(), 0
  for i, needed in enumerate(steps):
    later = {
      x: next((j for j in range(i, 200) if x in steps[j]), 200) for x in held
    }
    least += len(needed - held)
    rest = sorted(held - needed, key=later.get)
    held = needed | set(rest[: most - len(needed)])
  assert num == least


def test_rows_come_with_expected_uses():
  often = np.arange(10, dtype=np.int32)
  lookups = np.zeros(VOCAB)
  lookups[often] = 0.3
  found = []
  for prior in (None, cache_lib.prior_uses(lookups)):
    cache = cache_lib.Cache(('a',), VOCAB, 30, prior=prior)
    _admit(cache, [often])
    for i in range(10):  # rows that were used as often, and later
      for _ in range(2):
        _admit(cache, [np.arange(10 * i, 10 * i + 10, dtype=np.int32) + 10])
    found.append(np.isin(cache.held('a')[1], often).sum())
  assert found == [0, 10]
