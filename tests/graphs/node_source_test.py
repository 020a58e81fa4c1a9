"""Nodes of a graph as a source: splits, order, trees, walks."""

import numpy as np
import pytest
from scipy import sparse

from jaxemb import errors
from jaxemb.data import examples
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import labels as labels_lib
from jaxemb.graphs import neighbors, node_source, toygraph
from tests.graphs import sources


def _source(graph=None, num_parts=2, part_words=16, **settings):
  settings = {'fanouts': '3,4', 'valid': '0.2', 'test': '60'} | settings
  spec = sources.spec(None, num_parts=num_parts, **settings)
  graph = graph or toygraph.make('toygraph:400')
  return node_source.NodeSource(graph, spec._replace(part_words=part_words))


def _trees(item):
  """Trees and labels of the examples of an item."""
  labels = item.batch.labels
  return item.batch.ids[labels >= 0], labels[labels >= 0]


def test_an_epoch_has_each_node_once_with_its_neighbors():
  source = _source()
  graph, splits = source.graph, source.splits
  sizes = [len(x) for x in splits.values()]
  assert sizes == [260, 80, 60] and source.units_per_epoch == 260
  assert len(np.unique(np.concatenate([*splits.values()]))) == 400
  items = list(source.items(None, 0))
  assert [x.index for x in items] == list(range(len(items)))
  assert items[-1].done_after == 520 and items[-1].position == [2, 0]
  ids, labels = (
    np.concatenate(x) for x in zip(*map(_trees, items), strict=True)
  )
  for epoch in (ids[:260], ids[260:]):
    assert set(epoch[:, 0]) == set(splits['train'])
  assert np.any(ids[:260] != ids[260:])
  np.testing.assert_array_equal(labels, graph.labels.classes[ids[:, 0]])
  for row in ids:
    own = graph.neighbors[graph.offsets[row[0]] : graph.offsets[row[0] + 1]]
    assert set(row[1:5]) - {examples.PADDING} <= set(own)
  # In whatever parts it is read, all is the same.
  other = _source(num_parts=4, part_words=8)
  found = [np.sort(_trees(x)[0], 0) for x in other.items(None, 0)]
  expected = [np.sort(_trees(x)[0], 0) for x in items]
  np.testing.assert_array_equal(np.concatenate(found), np.concatenate(expected))


def test_reading_goes_on_where_it_stopped():
  sources.check_resumes(lambda: _source(targets='walks'))


def test_parts_have_close_nodes():
  # Four communities, hardly linked, whose nodes are learned from, but for some.
  rng, num = np.random.default_rng(3), 400
  communities = rng.integers(0, 4, num)
  ends = rng.integers(0, num, (2, 30_000))
  is_own = communities[ends[0]] == communities[ends[1]]
  is_edge = is_own | (rng.random(ends.shape[1]) < 0.03)
  graph = graph_lib.from_edges(
    *ends[:, is_edge], num, labels=labels_lib.Labels(communities)
  )
  source = _source(graph, 4, 8, local=True, valid='0.1', test='27')
  train, position, epochs = source.splits['train'], None, []
  assert len(train) == 333  # 10 steps of 32, and 13 nodes
  for _ in range(2):
    found = [[] for _ in range(4)]
    for item in source.items(position, 0):
      position = item.position
      for part, some in zip(found, item.batch.ids[..., 0], strict=True):
        part.extend(some[some < num])
      if not position[1]:
        break
    assert [len(x) for x in found] == [88, 85, 80, 80]
    assert set().union(*found) == set(train)
    most = [np.bincount(communities[x], minlength=4) for x in found]
    assert sum(x.max() for x in most) > 0.85 * len(train)
    assert len({x.argmax() for x in most}) == 4
    epochs.append(found)
  # The same nodes in another order.
  for first, second in zip(*epochs, strict=True):
    assert set(first) == set(second) and first != second
  with pytest.raises(errors.UserError, match='needs several workers'):
    _source(graph, 1, 8, local=True)


def test_lookups_are_expected_rightly():
  source = _source(targets='walks')
  counts, num = np.zeros(400), 0
  for epoch in range(60):
    places = range(source.units_per_epoch)
    _, ids = source.sample(epoch, places)
    counts += np.bincount(ids[ids != examples.PADDING], minlength=400)
    num += len(ids)
  found = counts / num
  assert np.abs(found / source.frequencies - 1).mean() < 0.06
  assert found.sum() == pytest.approx(source.frequencies.sum(), rel=0.01)


def test_walks_stay_near_and_draws_go_by_degree():
  source = _source(targets='walks')
  size = neighbors.tree_sizes(source.fanouts)[-1]
  nodes, near, drawn = [], [], []
  for epoch in range(80):
    found, ids = source.sample(epoch, range(400))
    nodes, near = [*nodes, *found], [*near, *ids[:, size]]
    drawn += ids[:, 2 * size].tolist()
  assert all(x != y for x, y in zip(nodes, near, strict=True))
  labels = source.graph.labels.classes
  assert np.mean(labels[nodes] == labels[near]) > 0.8
  assert np.mean(labels[nodes] == labels[drawn]) < 0.35
  chances = source.counts**0.75 / (source.counts**0.75).sum()
  expected = chances * len(drawn)
  found = np.bincount(drawn, minlength=400)
  assert np.sum((found - expected) ** 2 / expected) < 400 + 5 * 800**0.5
  assert source.valid is None


def test_own_splits_and_several_classes():
  toy = toygraph.make('toygraph:400')
  offsets = np.arange(401) * 2
  offsets[-1] -= 2  # the last node has none
  classes = np.stack([toy.labels.classes, 4 + np.arange(400) % 2], 1)
  labels = labels_lib.Labels(classes.reshape(-1)[:-2], offsets)
  splits = {'train': np.arange(300), 'test': np.arange(350, 400)}
  graph = toy._replace(labels=labels, splits=splits)
  source = _source(graph)
  assert source.valid is None and len(source.test) == 50
  assert source.labels.num_classes == 6 and source.labels.has_many
  item = next(source.items(None, 0))
  ids, numbers = item.batch.ids, item.batch.numbers
  is_node = item.batch.labels >= 0
  found = numbers[is_node].argsort(1, kind='stable')[:, -2:]
  np.testing.assert_array_equal(found, classes[ids[is_node][:, 0]])
  one = _source(valid='50', test='0.1', train_per_class=5).splits
  assert [len(x) for x in one.values()] == [20, 50, 40]
  assert np.bincount(toy.labels.classes[one['train']]).tolist() == [5] * 4


def test_nodes_of_own_splits_without_a_label_are_counted():
  toy = toygraph.make('toygraph:400')
  labels = np.where(np.arange(400) % 4, toy.labels.classes, -1)
  labels = labels_lib.Labels(labels)
  graph = toy._replace(labels=labels, splits={'train': np.arange(40)})
  source = _source(graph)
  assert len(source.splits['train']) == 30
  assert source.dropped['split_nodes_without_label'] == 10
  with pytest.raises(errors.UserError, match='no labelled nodes to learn from'):
    _source(graph._replace(splits={'test': np.arange(40)}))


def test_features_are_sparse_where_few_are_there():
  rng = np.random.default_rng(0)
  matrix = rng.random((50, 40)) * (rng.random((50, 40)) < 0.04)
  matrix[3] = 0
  dense = node_source.prepared(rng.random((50, 40)), True)
  assert isinstance(dense, np.ndarray) and dense.dtype == np.float32
  assert node_source.prepared(sparse.csr_matrix(np.eye(3)), False).tolist() == (
    np.eye(3).tolist()
  )
  expected = matrix / np.maximum(matrix.sum(1, keepdims=True), 1e-12)
  for given in matrix, sparse.csr_matrix(matrix):
    found = node_source.prepared(given, True)
    assert sparse.issparse(found) and found.dtype == np.float32
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-6)
  matrix[20, 7] = np.nan
  for given in matrix, sparse.csr_matrix(matrix):
    with pytest.raises(errors.UserError, match='features of node 20 '):
      node_source.prepared(given, True)
