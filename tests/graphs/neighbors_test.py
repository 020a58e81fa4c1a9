"""Sampled neighbors against plain loops, and their statistics."""

import numpy as np
import pytest

from jaxemb.data import examples
from jaxemb.graphs import neighbors

FANOUTS = (3, 2)
KEY = np.uint64(7)
# Of node 0 five neighbors, of 1 two, of 2 none, of 3 one, twice; and so on.
OFFSETS = np.array([0, 5, 7, 7, 9, 12, 13])
NEIGHBORS = np.array([1, 2, 3, 4, 5, 0, 4, 0, 0, 0, 1, 3, 2], np.int32)


def _of(node):
  return NEIGHBORS[OFFSETS[node] : OFFSETS[node + 1]].tolist()


def _sample(nodes, places, replaces=False, fanouts=FANOUTS, num_threads=1):
  lists = OFFSETS, NEIGHBORS
  trees = neighbors.Trees(*lists, fanouts, replaces, num_threads)
  return trees.sample(np.asarray(nodes, np.int32), np.asarray(places), KEY)


@pytest.mark.parametrize('replaces', [False, True])
def test_trees_have_neighbors_in_exact_numbers(replaces):
  nodes = np.arange(600) % 6
  found = _sample(nodes, np.arange(600), replaces)
  assert found.shape == (600, 10)
  for row in found.tolist():
    first, width = 0, 1
    for fanout in FANOUTS:
      for i in range(width):
        start = first + width + i * fanout
        parent, children = row[first + i], row[start : start + fanout]
        kept = [x for x in children if x != examples.PADDING]
        own = [] if parent == examples.PADDING else _of(parent)
        assert set(kept) <= set(own)
        if replaces:
          assert len(kept) == (fanout if own else 0)
        else:
          assert len(kept) == min(fanout, len(own))
          assert all(kept.count(x) <= own.count(x) for x in kept)
      first, width = first + width, width * fanout


@pytest.mark.parametrize('replaces', [False, True])
def test_every_set_is_equally_likely(replaces):
  num = 40_000
  tree = (3,)
  found = _sample(np.zeros(num), np.arange(num), replaces, tree)[:, 1:]
  sets, counts = np.unique(np.sort(found, 1), axis=0, return_counts=True)
  if replaces:  # by the number of their orders
    sizes = [len(set(x)) for x in sets.tolist()]
    chances = np.array([{1: 1, 2: 3, 3: 6}[x] for x in sizes]) / 125
    assert len(sets) == 35
  else:
    chances = np.full(10, 0.1)
    assert len(sets) == 10
  deviations = np.sqrt(num * chances * (1 - chances))
  assert np.all(np.abs(counts - num * chances) < 4.5 * deviations)


def test_a_tree_depends_on_its_place_alone():
  nodes, places = np.arange(500) % 6, np.arange(500)
  whole = _sample(nodes, places)
  np.testing.assert_array_equal(_sample(nodes, places, num_threads=3), whole)
  order = np.random.default_rng(0).permutation(500)[:99]
  some = _sample(nodes[order], places[order])
  np.testing.assert_array_equal(some, whole[order])
  assert np.any(_sample(nodes, places + 500) != whole)


@pytest.mark.parametrize('replaces', [False, True])
def test_expected_lookups_are_those_of_samples(replaces):
  num = 60_000
  nodes = np.arange(num) % 2 * 4  # nodes 0 and 4
  found = _sample(nodes, np.arange(num), replaces)
  found = found[found != examples.PADDING]
  chances = np.array([0.5, 0, 0, 0, 0.5, 0])
  trees = neighbors.Trees(OFFSETS, NEIGHBORS, FANOUTS, replaces)
  expected = trees.expected_lookups(chances)
  found = np.bincount(found, minlength=6) / num
  np.testing.assert_allclose(found, expected, atol=0.03)


@pytest.mark.parametrize('is_max', [False, True])
def test_means_and_largest_values_of_all_neighbors(is_max):
  values = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
  found = neighbors.aggregated(
    OFFSETS, NEIGHBORS, values, is_max=is_max, num_threads=2
  )
  for node in range(6):
    own = values[_of(node)].astype(np.float64)
    if not len(own):
      expected = np.zeros(4)
    else:
      expected = np.maximum(own.max(0), 0) if is_max else own.mean(0)
    np.testing.assert_allclose(found[node], expected, atol=1e-6)


def test_walks_end_at_the_last_other_node():
  num = 60_000
  starts = np.full(num, 3, np.int32)  # to 0 and then to any of five
  args = starts, np.arange(num), KEY
  ends = neighbors.walk(OFFSETS, NEIGHBORS, *args, 2)
  counts = np.bincount(ends, minlength=6) / num
  # After one step 0; after two any of 0's, where 3 itself does not count.
  expected = [0.5 + 0.1, 0.1, 0.1, 0, 0.1, 0.1]
  np.testing.assert_allclose(counts, expected, atol=0.01)
  alone = np.full(3, 2, np.int32)
  ends = neighbors.walk(OFFSETS, NEIGHBORS, alone, np.arange(3), KEY, 4)
  assert ends.tolist() == [2, 2, 2]


def test_uniform_draws_are_uniform():
  found = neighbors.uniform(np.arange(50_000), KEY)
  counts = np.histogram(found, 20, (0, 1))[0]
  assert np.sum((counts - 2500) ** 2 / 2500) < 45  # chi squared of 19
