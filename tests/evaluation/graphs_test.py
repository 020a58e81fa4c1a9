"""Ranks of edges and F1 of labels, against loops."""

import numpy as np
import pytest
from scipy import optimize, sparse

from jaxemb.graphs import link_ranking as links
from jaxemb.graphs import node_classification as nodes
from jaxemb.storage import export

NODES, RELATIONS = 9, 2


def _spread(low, high, step):
  """Sources, targets and relations of planted edges, with two self loops."""
  rows = [
    (i % NODES, i * step % NODES, i % RELATIONS) for i in range(low, high)
  ]
  return tuple(np.array([*dict.fromkeys(rows)]).T)


EDGES = {
  'train': _spread(0, 30, 4), 'valid': _spread(40, 60, 5),
  'test': _spread(60, 72, 7),
}  # fmt: skip
# Ranks of the test's targets, then of its sources, by PyKEEN 1.11.1, which is
# asked again where it is installed:
#   pytest tests/evaluation/graphs_test.py -k pykeen
PYKEEN = [
  2.5, 2.5, 3.5, 3.0, 1.5, 6.0, 1.5, 6.0, 6.0, 3.0, 6.5, 2.5,
  7.5, 4.0, 3.5, 5.0, 5.0, 4.0, 1.5, 4.0, 5.5, 4.5, 1.5, 4.0,
]  # fmt: skip


def _planted(queries, others):
  """Scores with many ties."""
  nodes = np.arange(NODES) if others is None else others
  nodes = np.broadcast_to(nodes, (len(queries), nodes.shape[-1]))
  queries = queries[:, None]
  return ((7 * queries + 5 * nodes + queries * nodes) % 4).astype(np.float32)


def _ranks(monkeypatch, score=_planted, **options):
  """Ranks of EDGES['test'], and what `evaluate` returns."""
  ranks, summary = [], links._summary

  def kept(of_split, *rest, **more):
    ranks.append(of_split)
    return summary(of_split, *rest, **more)

  monkeypatch.setattr(links, '_summary', kept)
  held = {'test': EDGES['test']}
  options = {'num_relations': RELATIONS, **options}
  degrees = np.ones(NODES)
  found = links.evaluate(score, held, EDGES.values, degrees, **options)
  return ranks[0], found


@pytest.mark.parametrize('block', [1, 30, 1 << 20])
def test_ranks_are_those_of_pykeen(block, monkeypatch):
  monkeypatch.setattr(links, '_BLOCK_SCORES', block)
  ranks, found = _ranks(monkeypatch)
  assert ranks.tolist() == PYKEEN
  ranks = np.array(PYKEEN)
  found = found['test edges']
  assert found['score'] == found['mrr'] == pytest.approx(np.mean(1 / ranks))
  assert found['hits@3'] == np.mean(ranks <= 3) and 'known_mrr' not in found
  assert found['found'] == found['total'] == len(ranks) / 2


def test_pykeen_still_has_these_ranks():
  torch, evaluation = map(pytest.importorskip, ('torch', 'pykeen.evaluation'))
  filters = pytest.importorskip('pykeen.evaluation.evaluator')
  evaluator = evaluation.RankBasedEvaluator()
  every, test = (
    torch.as_tensor(np.stack([x, r, y], 1))
    for x, y, r in (np.concatenate([*EDGES.values()], 1), EDGES['test'])
  )
  for target, place in ('tail', 2), ('head', 0):
    first = 2 * RELATIONS * test[:, 2 - place] + test[:, 1]
    queries = first + RELATIONS * (target == 'head')
    scores = torch.as_tensor(_planted(queries.numpy(), None))
    true = scores.gather(1, test[:, [place]])
    known, _ = filters.create_sparse_positive_filter_(
      test, every, filter_col=place
    )
    filters.filter_scores_(scores, known).scatter_(1, test[:, [place]], true)
    evaluator.process_scores_(test, target, true_scores=true, scores=scores)
  ranks = [evaluator.ranks[x, 'realistic'] for x in ('tail', 'head')]
  assert np.concatenate([y for x in ranks for y in x]).tolist() == PYKEEN


def _slow_rank(scores, answer, others):
  higher = sum(scores[x] > scores[answer] for x in others)
  ties = sum(scores[x] == scores[answer] for x in others)
  if np.isnan(scores[answer]):
    ties = sum(not np.isnan(scores[x]) for x in others)
  return 1 + higher + ties / 2


@pytest.mark.parametrize('candidates', ['all', 'uniform'])
def test_ranks_are_those_of_a_loop(candidates, monkeypatch):
  rng, num, is_all = np.random.default_rng(0), 40, candidates == 'all'
  drawn = rng.integers(0, num, (200, links._NUM_DRAWN))
  monkeypatch.setattr(links, '_draw', lambda *_: drawn[:188])
  table = rng.integers(-3, 4, (2 * num, num)).astype(np.float32)  # with ties
  table[2:4, 7] = table[9] = np.nan
  sources, targets = rng.integers(0, num, (2, 100))
  targets[:9] = sources[:9]
  targets[50:53] = sources[53:56] = -1
  edges = sources, targets, np.zeros(100, np.int64)
  queries = [*(2 * sources), *(2 * targets + 1)]
  answers = [*targets, *sources]
  known = {}
  for query, answer in zip(queries, answers, strict=True):
    known.setdefault(query, set()).add(answer)
  ranks, rows = [], iter(drawn.tolist())
  for query, answer in zip(queries, answers, strict=True):
    if answer < 0 or query < 0:
      ranks.append(((num if is_all else 1001) + 1) / 2)
      continue
    others = range(num) if is_all else next(rows)
    others = [x for x in others if x not in known[query]]
    ranks.append(_slow_rank(table[query], answer, others))

  def score(queries, others):
    rows = table[queries]
    return rows if others is None else np.take_along_axis(rows, others, 1)

  found = links.evaluate(
    score,
    {'test': edges},
    lambda: [tuple(x[i : i + 30] for x in edges) for i in range(0, 100, 30)],
    np.ones(num),
    candidates=candidates,
    ks=(2, 5),
  )
  title = 'test edges' + ', 200 queries among 1,000 uniform' * (not is_all)
  ranks, has_all = np.array(ranks), np.min([queries, answers], 0) >= 0
  expected = {'mrr': ranks, 'known_mrr': ranks[has_all]}
  for name, some in expected.items():
    assert found[title][name] == pytest.approx(np.mean(1 / some))
  assert found[title]['known_hits@5'] == np.mean(ranks[has_all] <= 5)
  assert found[title]['hits@2'] == np.mean(ranks <= 2)
  counts = [found[title][x] for x in ('found', 'total', 'self_loops')]
  assert counts == [94, 100, np.sum(sources == targets)]


@pytest.mark.parametrize('candidates', ['all', 'degree'])
def test_a_score_that_tells_edges_ranks_them_first(candidates):
  edges = np.array([(u, v) for u in range(3) for v in range(3)] * 20).T
  edges = *edges, np.zeros_like(edges[0])
  vectors = np.repeat(np.eye(2, dtype=np.float32), 3, 0)
  args = links.cosines(vectors), {'test': edges}, lambda: [edges]
  (found,) = links.evaluate(
    *args, np.full(6, 2), candidates=candidates
  ).values()
  assert found['auc'] == 1 and found['mrr'] == 1


def test_scores_of_vectors_that_are_read_on_demand(monkeypatch):
  monkeypatch.setattr(links, '_BLOCK_NUMBERS', 20)
  rng = np.random.default_rng(2)
  rows = rng.normal(size=(11, 4)).astype(np.float32)
  rows[3] = 0
  score = links.cosines(
    export.OnDemand(rows.__getitem__, rows.shape, rows.dtype)
  )
  nodes_, others = np.array([7, 0, 7]), rng.integers(0, 11, (3, 5))
  lengths = np.linalg.norm(rows, axis=1)
  lengths[3] = 1
  expected = rows[nodes_].astype(np.float64) @ rows.T
  expected /= lengths[nodes_][:, None] * lengths
  queries = 2 * nodes_ + [0, 1, 0]
  np.testing.assert_allclose(score(queries, None), expected, 1e-5, 1e-6)
  expected = np.take_along_axis(expected, others, 1)
  np.testing.assert_allclose(score(queries, others), expected, 1e-5, 1e-6)


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
