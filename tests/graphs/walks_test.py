"""Transitions of walks against their chances, and walks as a corpus."""

import numpy as np
import pytest

from jaxemb.data import blocks as blocks_lib
from jaxemb.graphs import edge_splits, walk_source, walks
from jaxemb.graphs import graph as graph_lib
from tests import marking
from tests.graphs import sources

NODES, NUM_WALKS = 12, 60_000


def _graph(has_weights, directed):
  rng = np.random.default_rng(0)
  sources, targets = rng.integers(0, NODES, (2, 40))
  weights = rng.integers(1, 6, 40).astype('f4') if has_weights else None
  args = sources, targets, NODES, weights, None, directed
  return graph_lib.from_edges(*args)


def _matrix(graph):
  found = np.zeros((NODES, NODES))
  nodes = np.repeat(np.arange(NODES), np.diff(graph.offsets))
  found[nodes, graph.neighbors] = 1 if graph.weights is None else graph.weights
  return found


@pytest.mark.parametrize(
  ('has_weights', 'directed', 'p', 'q'),
  [
    (False, False, 0.25, 4),
    marking.slow(True, True, 0.25, 4),
    marking.slow(True, False, 1, 1),
    marking.slow(False, True, 4, 0.5),
    marking.slow(True, False, 8, 8),
  ],
)
def test_transitions_have_their_chances(has_weights, directed, p, q):
  graph = _graph(has_weights, directed)
  walker = walks.Walker.of(graph, 6, p, q, 123, 2)
  made = walker.walks(np.arange(NUM_WALKS))
  weights = _matrix(graph)
  counts = np.zeros((NODES,) * 3)
  for i in range(2, 6):
    is_node = made[:, i] >= 0
    np.add.at(counts, tuple(made[is_node, i - 2 : i + 1].T), 1)
  chi2 = freedom = 0
  for a in range(NODES):
    for b in range(NODES):
      if (num := counts[a, b].sum()) < 100:
        continue
      bias = np.where(weights[a] > 0, 1, 1 / q)
      bias[a] = 1 / p
      expected = num * bias * weights[b] / (bias * weights[b]).sum()
      can = expected > 0
      assert not counts[a, b][~can].any()
      chi2 += np.sum((counts[a, b] - expected)[can] ** 2 / expected[can])
      freedom += can.sum() - 1
  assert freedom > 40
  assert abs(chi2 - freedom) < 5 * np.sqrt(2 * freedom)


def test_a_draw_that_rounds_up_to_one_stays():
  weights = np.array([1, 1, 1, 4, 2, 3], np.float32)
  stays, others = walks._aliases(np.array([0, 3, 6]), weights)
  own = np.array([0, 1, 2, 0, 1, 2])
  assert (others == own)[stays == 1].all()
  assert (others != own)[stays < 1].all()


def test_walks_depend_on_nothing_but_their_number():
  graph = _graph(True, False)
  one = walks.Walker.of(graph, 9, 0.5, 2, 7, 1)
  every = one.walks(np.arange(3000))
  some = np.random.default_rng(0).permutation(3000)
  np.testing.assert_array_equal(
    one._replace(num_threads=3).walks(some), every[some]
  )
  assert not np.array_equal(
    one._replace(key=np.uint64(8)).walks(some), every[some]
  )
  # Each pass begins once at each node.
  num = len(one.starts)
  for i in range(3):
    starts = every[i * num : (i + 1) * num, 0]
    assert sorted(starts) == one.starts.tolist()


@pytest.fixture
def make(tmp_path):
  """Makes a source of walks."""

  def made(**settings):
    settings = {
      'walks': 3,
      'walk_length': 8,
      'q': 0.5,
      'sample': 0.0,
      **settings,
    }
    return walk_source.Walks(sources.spec(tmp_path, **settings))

  return made


@pytest.mark.slow
def test_blocks_are_walks_and_counts_are_visits(make, monkeypatch):
  source = make(walks=60)
  corpus, graph = source.corpus, source.graph
  blocks = corpus.blocks
  every = [corpus.block(i) for i in range(len(blocks.words))]
  for ids, words, start, stop in zip(
    every, blocks.words, blocks.starts[:-1], blocks.starts[1:], strict=True
  ):
    assert len(ids) == stop - start and (ids >= 0).sum() == words
    assert len(ids) <= blocks_lib.MAX_BLOCK_IDS
  ids = np.concatenate(every)
  visits = np.bincount(ids[ids >= 0], minlength=len(source.keys))
  np.testing.assert_array_equal(visits, source.counts)
  assert (np.diff(source.counts) <= 0).all()
  pairs = np.stack([ids[:-1], ids[1:]], 1)
  pairs = source.corpus.nodes[pairs[(pairs >= 0).all(1)]]
  assert edge_splits.has_edges(graph, pairs).all()
  names = graph.keys()
  assert all(
    names[source.corpus.nodes[i]] == x for i, x in enumerate(source.keys)
  )
  # Of a part of the blocks.
  monkeypatch.setattr(walk_source, '_COUNTED_STEPS', corpus.num_words // 2)
  estimated = make(walks=60)
  order = estimated.corpus.ids_of[source.corpus.nodes]
  both = np.stack([source.counts, estimated.counts[order]])
  assert np.corrcoef(both)[0, 1] > 0.8
  assert abs(both.sum(1) - corpus.num_words).max() < 0.05 * corpus.num_words


def test_reading_goes_on_where_it_stopped_and_parts_are_shared(make):
  sources.check_resumes(lambda: make(num_parts=2))
  whole, *parts = (
    sum(x.own for x in make(num_parts=2, parts=parts).items(None, 0))
    for parts in (range(2), range(1), range(1, 2))
  )
  assert sum(parts) == whole == 2 * 200 * 3 * 8 and min(parts) > 0


@pytest.mark.slow
def test_walks_of_a_directed_graph_end_where_no_edge_leads_on(make, tmp_path):
  (tmp_path / 'edges').write_text('a b\nb c\nd c\n')
  source = make(path=str(tmp_path / 'edges'), directed=True)
  counts = dict(zip(source.keys, source.counts.tolist(), strict=True))
  assert counts == {'a': 3, 'b': 6, 'c': 9, 'd': 3}
  assert source.units_per_epoch == 21


@pytest.mark.parametrize('directed', [False, True])
def test_edges_that_are_held_out_are_not_walked(
  directed, make, monkeypatch, tmp_path
):
  monkeypatch.setattr(walk_source, '_READ_NODES', 30)
  path, ends = (
    tmp_path / 'edges',
    np.random.default_rng(0).integers(0, 200, (900, 2)),
  )
  np.savetxt(path, ends, '%d')
  settings = {'path': str(path), 'directed': directed}
  whole = make(**settings).graph
  source = make(**settings, valid='0.1', test='0.2')
  held = np.concatenate([x.edges for x in source.held.values()])
  num = whole.num_edges
  assert abs(len(held) / num - 0.28) < 0.05
  assert source.graph.num_edges + len(held) == num
  # What is filtered are all edges, by ids.
  known = np.concatenate([*source._known()], 1).T
  nodes = np.arange(whole.num_nodes)
  ends = np.repeat(nodes, np.diff(whole.offsets)), whole.neighbors
  ids = source.corpus.ids_of[np.stack(ends, 1)]
  has_both, is_known = (ids >= 0).all(1), (known >= 0).all(1)
  assert len(known) == len(ids)
  assert {*map(tuple, known[is_known, :2])} == {*map(tuple, ids[has_both])}
  assert not edge_splits.has_edges(source.graph, held).any()
  assert edge_splits.has_edges(whole, held).all()
