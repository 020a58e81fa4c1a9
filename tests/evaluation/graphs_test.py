"""Ranks of edges and F1 of labels, against loops."""

import numpy as np
import pytest
from scipy import optimize, sparse

from jaxemb.evaluation import ranking
from jaxemb.graphs import link_ranking as links
from jaxemb.graphs import node_classification as nodes
from jaxemb.storage import export


def test_ranks_are_those_of_a_loop():
  rng = np.random.default_rng(0)
  num = 30
  vectors = rng.integers(-2, 3, (num, 3)).astype(np.float32)  # with ties
  known = [rng.choice(num, 6, replace=False) for _ in range(num)]
  edges = np.array([(u, x[0]) for u, x in enumerate(known) if x[0] != u])
  ranks = []
  for u, v in edges:
    scores = vectors @ vectors[u].astype(np.float64)
    others = [x for x in range(num) if x != u and x not in known[u]]
    higher = sum(scores[x] > scores[v] for x in others)
    ties = sum(scores[x] == scores[v] for x in others)
    ranks.append(1 + higher + ties / 2)
  ranks = np.array(ranks)
  score = links.products(vectors, vectors)
  sets = ranking.Sets.of(known)
  found = links.evaluate(score, edges, lambda _: sets, num_total=40)
  assert found['mrr'] == pytest.approx(np.mean(1 / ranks))
  assert found['hits@3'] == pytest.approx(np.mean(ranks <= 3))
  assert found['found'] == len(edges) and found['total'] == 40


@pytest.mark.parametrize('is_cosine', [True, False])
def test_scores_of_vectors_that_are_read_on_demand(is_cosine, monkeypatch):
  monkeypatch.setattr(links, '_BLOCK_NUMBERS', 20)
  rng = np.random.default_rng(2)
  rows = [rng.normal(size=(11, 4)).astype(np.float32) for _ in range(2)]
  rows[1][3] = 0
  made = [export.OnDemand(lambda i, x=x: x[i], x.shape, x.dtype) for x in rows]
  score = links.products(*made, is_cosine)
  nodes_, others = np.array([7, 0, 7]), rng.integers(0, 11, (3, 5))
  expected = rows[0][nodes_].astype(np.float64) @ rows[1].T
  if is_cosine:
    lengths = [np.linalg.norm(x, axis=1) for x in rows]
    lengths[1][3] = 1
    expected /= lengths[0][nodes_][:, None] * lengths[1]
  np.testing.assert_allclose(score(nodes_, None), expected, 1e-5, 1e-6)
  expected = np.take_along_axis(expected, others, 1)
  np.testing.assert_allclose(score(nodes_, others), expected, 1e-5, 1e-6)


@pytest.mark.parametrize('negatives', ['all', 'uniform', 'degree'])
def test_other_nodes_are_no_neighbors(negatives):
  vectors = np.repeat(np.eye(2, dtype=np.float32), 3, 0)
  known = [sorted({0, 1, 2} - {u}) for u in range(3)]
  known += [sorted({3, 4, 5} - {u}) for u in range(3, 6)]
  edges = np.array([(u, x[0]) for u, x in enumerate(known)] * 20)
  sets, score = ranking.Sets.of(known), links.products(vectors, vectors)
  found = links.evaluate(score, edges, lambda _: sets, negatives, np.full(6, 2))
  assert found['auc'] == 1 and found['mrr'] == 1


def test_weights_are_the_minimum():
  rng = np.random.default_rng(1)
  vectors = rng.normal(size=(60, 4)) * [0.1, 1, 3, 10]
  labels = (vectors @ rng.normal(size=(4, 3)) + rng.normal(size=(60, 3))) > 0
  weights = nodes.fit(vectors, labels)

  def loss(flat, y):
    margins = np.where(y, 1, -1) * (vectors @ flat[:-1] + flat[-1])
    return 0.5 * flat[:-1] @ flat[:-1] + np.logaddexp(0, -margins).sum()

  for k in range(3):
    best = optimize.minimize(loss, np.zeros(5), (labels[:, k],))
    assert loss(weights[:, k], labels[:, k]) < best.fun + 1e-3


def test_vectors_that_diverged_tell_nothing():
  vectors = np.ones((20, 3), np.float32)
  vectors[3] = np.nan
  assert not nodes.fit(vectors, np.eye(2, dtype=bool)[[0, 1] * 10]).any()


def test_classes_that_no_node_has_do_not_count():
  rng = np.random.default_rng(0)
  classes = rng.integers(1, 3, 40)
  vectors = np.eye(3)[classes] * 9 + rng.normal(size=(40, 3)) * 0.1
  labels = np.eye(7, dtype=bool)[classes]
  found = nodes.evaluate(vectors, labels, num_total=43)
  assert found['labels']['macro_f1'] > 0.99
  assert found['labels']['found'] == 40 and found['labels']['total'] == 43


def test_f1_and_mutual_information_of_small_cases():
  labels = np.array([[1, 1, 0], [0, 1, 0], [1, 0, 0]], bool)
  scores = np.array([[3, 1, 2], [2, 1, 0], [5, 4, 3]])
  found = nodes.top(scores, labels.sum(1))
  assert found.astype(int).tolist() == [[1, 0, 1], [1, 0, 0], [1, 0, 0]]
  micro, macro = nodes.f1(labels, found)
  assert micro == pytest.approx(2 * 2 / (4 + 4))
  assert macro == pytest.approx((2 * 2 / 5 + 0 + 0) / 3)
  classes = np.array([0, 0, 1, 1])
  assert nodes.nmi(classes, 5 - classes) == pytest.approx(1)
  assert nodes.nmi(np.array([0, 1, 0, 1]), classes) == pytest.approx(0)
  assert nodes.nmi(np.array([0, 0, 0, 1]), classes) == pytest.approx(
    0.2157615543 / ((0.5623351446 + np.log(2)) / 2)
  )


def test_labels_are_found_where_vectors_have_them():
  rng = np.random.default_rng(0)
  labels = np.eye(5, dtype=bool)[rng.integers(0, 5, 200)]
  vectors = 5 * labels + rng.normal(size=(200, 5))
  found = nodes.evaluate(vectors, labels)
  assert found['labels']['micro_f1'] > 0.97 and found['clusters']['score'] > 0.9
  labels[::2] = False  # half of them are not known
  noise = nodes.evaluate(rng.normal(size=(200, 5)), labels)
  assert noise['labels']['found'] == 100 and noise['labels']['score'] < 0.35
  # An array of all nodes and communities would take 40 GB.
  rows, classes = labels.nonzero()
  many = sparse.csr_matrix(
    (np.ones(100, bool), (rows, 9_999 * classes)), (1_000_000, 40_000)
  )
  every = np.zeros((1_000_000, 5), np.float16)
  every[:200] = vectors
  again = nodes.evaluate(every, many)
  assert again == nodes.evaluate(vectors.astype(np.float16), labels)
