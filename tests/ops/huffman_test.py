"""Huffman's codes against a heap, and paths against their split form."""

import heapq
import itertools

import numpy as np
import pytest

from jaxemb.ops import huffman

COUNTS = {
  'zipf': (10_000 / np.arange(1, 200)).astype(int),
  'equal': np.full(37, 5),
  'two': np.array([7, 3]),
  'powers': 2 ** np.arange(12)[::-1],
  'zeros': np.array([5, 0, 0, 0, 2]),
  'unordered': np.random.default_rng(0).integers(1, 100, 50),
}
every_count = pytest.mark.parametrize('counts', COUNTS.values(), ids=COUNTS)


def _least_cost(counts):
  """Sum over words of count times code length, of the best code."""
  heap, cost = counts.tolist(), 0
  heapq.heapify(heap)
  while len(heap) > 1:
    both = heapq.heappop(heap) + heapq.heappop(heap)
    cost += both
    heapq.heappush(heap, both)
  return cost


def _steps(paths, word):
  length = paths.lengths[word]
  return list(
    zip(
      paths.points[word, :length].tolist(),
      paths.codes[word, :length].tolist(),
      strict=True,
    )
  )


@every_count
def test_paths_are_a_best_code(counts):
  paths = huffman.tree_paths(counts)
  assert (counts * paths.lengths).sum() == _least_cost(counts)
  steps = [_steps(paths, word) for word in range(len(counts))]
  # A tree: who has gone the same way so far is at the same node.
  nodes = {}
  for path in steps:
    for depth, (point, _) in enumerate(path):
      way = tuple(code for _, code in path[:depth])
      assert nodes.setdefault(way, point) == point
  assert sorted(nodes.values()) == list(range(len(counts) - 1))
  assert nodes[()] == 0
  codes = {tuple(code for _, code in path) for path in steps}
  assert len(codes) == len(counts) and not codes & nodes.keys()
  # Frequent nodes first, and nothing behind a path's end.
  passed = np.zeros(len(counts) - 1)
  for path, count in zip(steps, counts, strict=True):
    assert all(a < b for (a, _), (b, _) in itertools.pairwise(path))
    np.add.at(passed, [point for point, _ in path], count)
  assert (np.diff(passed) <= 0).all()
  behind = np.arange(paths.points.shape[1]) >= paths.lengths[:, None]
  assert (paths.points[behind] == len(counts) - 1).all()
  assert not paths.codes[behind].any()


@every_count
@pytest.mark.parametrize('num_dense', [1, 3, 1000])
def test_split_paths_are_the_paths(counts, num_dense):
  paths = huffman.tree_paths(counts)
  split = huffman.split(paths, num_dense)
  size = min(num_dense, len(counts) - 1)
  assert split.signs.shape[1] == size
  for word in range(len(counts)):
    signs = split.signs[split.exits[word]]
    found = [(int(n), int(signs[n] < 0)) for n in np.flatnonzero(signs)]
    deep = split.deep[word]
    deep = deep[deep < 2 * (len(counts) - 1)]
    found += [(int(x) >> 1, int(x) & 1) for x in deep]
    assert found == _steps(paths, word)
  assert (split.deep >> 1 >= size).all()


def test_one_word_has_no_tree():
  with pytest.raises(ValueError, match='two words'):
    huffman.tree_paths(np.array([3]))


def _below(tree):
  """The words below each inner node, by code."""
  sets = [[set(), set()] for _ in tree.nodes]
  for word, above in enumerate(tree.words.tolist()):
    while above >= 0:
      sets[above >> 1][above & 1].add(word)
      above = int(tree.nodes[above >> 1])
  return sets


@every_count
@pytest.mark.parametrize('num_old', [2, None])
def test_a_tree_that_grows_keeps_what_old_words_share(counts, num_old):
  rng = np.random.default_rng(1)
  num_old = num_old or (len(counts) + 2) // 2
  ids = rng.permutation(len(counts))[:num_old]
  old = huffman.links(rng.integers(1, 50, num_old))
  # Twice: a grown tree grows as one of counts does.
  for added in (0, (len(counts) - num_old) // 2, len(counts)):
    before, num = old, len(ids)
    rest = np.setdiff1d(np.arange(len(counts)), ids)
    known = np.append(ids, rest[:added])
    order = rng.permutation(len(known))
    ids_of = np.argsort(order)[:num]
    old, rows = huffman.grown(before, ids_of, counts[known[order]])
    ids = known[order]
    sums = huffman.sums(old, counts[ids])
    below, of_old = _below(old), _below(before)
    assert [counts[ids][[*x | y]].sum() for x, y in below] == sums.tolist()
    assert (np.diff(sums) <= 0).all()
    above = np.append(old.words, old.nodes[1:])  # each code of a node once
    assert sorted(above) == list(range(2 * len(sums))) and old.nodes[0] < 0
    assert all(old.nodes[1:] >> 1 < np.arange(1, len(sums)))
    assert sorted(rows[rows >= 0]) == list(range(num - 1))
    for node, row in enumerate(rows.tolist()):
      if row >= 0:
        moved = [{int(ids_of[x]) for x in y} for y in of_old[row]]
        assert below[node] == moved
    steps = [_steps(huffman.paths(old), x) for x in range(len(ids))]
    for word, path in enumerate(steps):
      assert [(n, word in below[n][1]) for n, _ in path] == path
