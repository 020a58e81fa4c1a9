"""Edges as a source, and whole runs on them."""

import collections
import types

import numpy as np
import pytest

import jaxemb
from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.data import examples
from jaxemb.graphs import edge_source, kinds, toygraph
from jaxemb.models import edge_scores
from jaxemb.run import lifecycle as train
from jaxemb.run import vectors as vectors_lib
from jaxemb.storage import export
from tests import runs
from tests.graphs import sources


@pytest.fixture
def make(tmp_path):
  """Makes a source of a list of edges."""
  return lambda **settings: edge_source.Edges(
    sources.spec(tmp_path, **settings)
  )


def _edges(items):
  found = collections.Counter()
  for item in items:
    is_example = item.batch.labels == 1
    assert (is_example == (item.batch.ids[..., 0] != examples.PADDING)).all()
    found.update(map(tuple, item.batch.ids[is_example].tolist()))
  return found


@pytest.mark.parametrize(('num_parts', 'partitions'), [(3, 1), (1, 4)])
def test_every_epoch_has_every_edge_once(
  num_parts, partitions, make, monkeypatch
):
  monkeypatch.setattr(edge_source, '_DISPATCH', 60)
  source = make(num_parts=num_parts, partitions=partitions)
  items = list(source.items(None, 0))
  assert [x.index for x in items] == list(range(len(items)))
  num = source.units_per_epoch
  assert items[-1].done_after == 2 * num
  graph = toygraph.make('toygraph:200')
  names = graph.keys()
  wanted = {
    frozenset((names[i], names[j]))
    for i in range(graph.num_nodes)
    for j in graph.neighbors[graph.offsets[i] : graph.offsets[i + 1]]
  }
  epochs = [[x for x in items if x.done_after <= num]]
  epochs.append(items[len(epochs[0]) :])
  turned = []
  for some in epochs:
    found = _edges(some)
    assert set(found.values()) == {1} and len(found) == num == len(wanted)
    keys = {frozenset(source.keys[i] for i in x) for x in found}
    assert keys == wanted
    turned.append({x for x in found if x[0] > x[1]})
  # Either end is the source, in half of the edges, others in each epoch.
  both = turned[0] & turned[1]
  assert abs(len(turned[0]) / num - 0.5) < 0.06
  assert abs(len(both) / num - 0.25) < 0.06
  for item in items:
    batch = item.batch
    assert item.own == batch.examples.sum()
    if partitions > 1:
      ids = batch.ids[batch.labels == 1]
      of = np.searchsorted(source.partitions, ids, 'right') - 1
      assert len({tuple(sorted(x)) for x in of.tolist()}) == 1


def test_few_partitions_are_loaded():
  for num in (1, 2, 3, 4, 7, 16):
    order = edge_source.bucket_order(num)
    back = edge_source.bucket_order(num, is_back=True)
    assert sorted(back) == sorted(order)
    pairs = {(i, j) for i in range(num) for j in range(i, num)}
    assert len(order) == len(pairs) and set(order) == pairs
    # Two at first, then one for each other pair: no order has fewer.
    least = 1 if num == 1 else num * (num - 1) // 2 + 1
    assert edge_source.num_loads(order) == edge_source.num_loads(back) == least
    # What was used last is used first.
    both = edge_source.num_loads(order + back)
    assert both < 2 * least or num == 1


def test_reading_goes_on_where_it_stopped(make, monkeypatch):
  monkeypatch.setattr(edge_source, '_DISPATCH', 300)
  sources.check_resumes(lambda: make(partitions=3))


def test_relations_weights_and_directions(make, tmp_path):
  lines = ['a likes b 1', 'b likes a 2', 'a knows b 3', 'c knows a 6']
  lines.append('c knows c 3')
  path = tmp_path / 'edges.txt'
  path.write_text('\n'.join(lines) + '\n')
  test = tmp_path / 'test.txt'
  test.write_text('b knows a 1\nc owns a 1\nd likes a 1\nc knows a 1\n')
  columns = 'source,relation,target,weight'
  # A relation leads from the first node to the second.
  settings = {'source': 'edges', 'columns': columns, 'test': str(test)}
  source = make(path=str(path), **settings)
  assert list(source.keys) == ['a', 'b', 'c'] and source.num_relations == 2
  assert source.counts.tolist() == [4, 3, 3]
  found = {}
  relations = source.graph.relation_names
  for item in list(source.items(None, 0))[:1]:
    is_example = item.batch.labels == 1
    rows = zip(
      item.batch.ids[is_example], item.batch.numbers[is_example], strict=True
    )
    for (s, t, r), (weight,) in rows:
      name = source.keys[s], relations[r], source.keys[t]
      found[' '.join(name)] = round(3 * float(weight), 5)
  assert found == {
    'a likes b': 1, 'b likes a': 2, 'a knows b': 3, 'c knows a': 6,
    'c knows c': 3,
  }  # fmt: skip
  assert source.dropped['test_edges_of_unknown_nodes'] == 1
  assert source.dropped['test_edges_of_unknown_relations'] == 1
  assert source.dropped['test_edges_in_training'] == 1
  assert source.context_keys == [
    *relations,
    *(f'{x} (inverse)' for x in relations),
  ]
  # b knows a: among b, a, c the target of b, and the source of a.
  vectors = np.array([[1.0, 0], [0, 1], [2, 2]], np.float32)
  operators = np.zeros((4, 2), np.float32)
  operators[relations.index('knows')] = 3, 0  # b + (3, 0) is nearest c, then a
  score = edge_scores.EdgeScore('translation')
  scores = source.evaluate(vectors, operators, score)['test edges']
  # Target of b: c 8, a 3. Source of a: c is known, a 1, b 0. Target of c: c is
  # known, a 5, b 2. Source of a again, c 2: b is held out, a 1. Others are in
  # the middle of three nodes.
  assert np.isclose(scores['mean_rank'], (2 + 2 + 1 + 1 + 4 * 2) / 8)
  assert np.isclose(scores['known_mrr'], 3 / 4)
  assert scores['found'] == 2 and scores['total'] == 4


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('has_known', [True, False])
def test_what_a_fraction_takes_whole_is_unknown(has_known, make, tmp_path):
  every = [(f'a{i}', 'is', f'b{i}') for i in range(20)]
  if has_known:  # relations of one edge, and others
    nodes = [(f'a{i}', f'a{j}') for i in range(6) for j in range(6)]
    every += [(a, f'r{i}', b) for i, (a, b) in enumerate(nodes)]
    every += [(a, 'to', b) for a, b in nodes]
  path = tmp_path / 'edges.txt'
  path.write_text(''.join(f'{" ".join(x)}\n' for x in every))
  settings = {'columns': 'source,relation,target', 'source': 'edges'}
  source = make(path=str(path), test='0.4', **settings)
  names = source.keys, source.graph.relation_names, source.keys
  trained = {
    tuple(x[i] for x, i in zip(names, (s, r, t), strict=True))
    for s, t, r in _edges(source.items(None, 0))
  }
  nodes = {x for s, _, t in trained for x in (s, t)}
  held = [x for x in every if x not in trained]
  held_known = [x for x in held if {x[0], x[2]} <= nodes]
  relations = {x for _, x, _ in trained}
  num_known = sum(x in relations for _, x, _ in held_known)
  lost = len(held) - len(held_known), len(held_known) - num_known
  kinds = ('nodes', 'relations')
  counted = [source.dropped[f'test_edges_of_unknown_{x}'] for x in kinds]
  assert tuple(counted) == lost and lost[0] and bool(lost[1]) == has_known
  rows = np.ones((len(source.keys), 2), np.float32)
  operators = np.ones((len(source.context_keys), 2), np.float32)
  score = edge_scores.EdgeScore('diagonal')
  found = source.evaluate(rows, operators, score)['test edges']
  assert found['found'] == num_known and found['total'] == len(held)
  assert ('known_mrr' in found) == has_known == bool(num_known)


@pytest.mark.parametrize('contexts', ['none', 'targets', 'complex'])
@pytest.mark.parametrize('measure', ['product', 'cosine', 'distance'])
def test_edge_scores_are_those_that_rank_edges(
  measure, contexts, make, tmp_path
):
  source, rng = make(), np.random.default_rng(0)
  num, is_known = len(source.keys), contexts == 'complex'
  num_rows = {'none': 0, 'targets': num, 'complex': 2}[contexts]
  rows, others = (np.float32(rng.normal(size=(x, 4))) for x in (num, num_rows))
  others = others if num_rows else None
  score = edge_scores.EdgeScore(
    contexts if is_known else 'none', measure, temperature=0.5
  )
  model = types.SimpleNamespace(score=score)
  collected = vectors_lib.Export(
    source.keys,
    source.counts,
    rows=export.Encoded(rows),
    others={} if others is None else {'context_vectors': others},
    context_keys=source.context_keys,
  )
  parts = types.SimpleNamespace(trainable=types.SimpleNamespace(model=model))
  collected = kinds.Edges()._with_scores(parts, collected)
  collected.embeddings().save(tmp_path)
  found = jaxemb.load(tmp_path)
  pairs = [(a, b) for a in source.keys[:6] for b in source.keys[:6]]
  relations = [source.context_keys[0]] if is_known else []
  scores = found.edge_scores([(a, *relations, b) for a, b in pairs])
  wanted = source._scorer(rows, others, score)(2 * np.arange(6), None)
  np.testing.assert_allclose(scores, wanted[:, :6].ravel(), 1e-4, 1e-5)
  some = found.vectors_for_all([source.keys[5], source.keys[2]])
  edge = some.index_to_key[0], *relations, some.index_to_key[1]
  np.testing.assert_allclose(some.edge_scores([edge]), wanted[5, 2], 1e-4)
  if is_known:
    with pytest.raises(errors.UserError, match='give .source, relation, targ'):
      found.edge_scores(pairs)


def test_contexts_of_own_models_need_not_be_of_nodes():
  rows = np.ones((3, 2), np.float32)
  collected = vectors_lib.Export(
    keys=list('abc'),
    counts=np.ones(3, np.int64),
    rows=export.Encoded(rows),
    others={'context_vectors': rows[:2]},
    context_keys=['r', 'r (inverse)'],
  )
  parts = types.SimpleNamespace(trainable=types.SimpleNamespace(model=None))
  collected = kinds.Edges()._with_scores(parts, collected)
  assert collected.relations.targets is None


def _run(variant, workdir, settings):
  config = config_lib.load(f'graph:{variant}', SMALL | settings)
  assert train.run(config, workdir) == 0
  return jaxemb.load(workdir)


SMALL = {'data.path': 'toygraph:1000', 'model.dim': 16, 'train.epochs': 2}


@pytest.mark.slow
def test_planted_communities_are_learned(tmp_path):
  _run('line', tmp_path, {'train.epochs': 20, 'train.batch_examples': 512})
  found = runs.report(tmp_path)
  # In a random order within the community, ranks have a mean of 50.
  assert found['evaluation']['test edges']['mrr'] > 0.045
  assert found['evaluation']['clusters']['score'] > 0.9
  assert found['edges_per_sec'] > 0


@pytest.mark.slow
def test_meshes_layouts_and_stores_learn_the_same(tmp_path):
  meshes = {
    'one': {'mesh.data': 1},
    'columns': {'table.layout': 'column', 'mesh.data': 1, 'mesh.table': 4},
    'disk': {'table.store': 'disk', 'table.device_bytes': '80%'},
  }
  small = {
    'model.dim': 22,  # of 24 columns on four devices
    'model.operator': 'complex',
    'model.temperature': 0.5,
    'model.chunk': 64,
    'model.shared_negatives': 37,
    'train.batch_examples': 256,
    'optimizer.name': 'adagrad',
    'optimizer.learning_rate': 0.01,
    'data.partitions': 3,
  }
  one, *others = (
    _run('relations', tmp_path / name, small | settings)
    for name, settings in meshes.items()
  )
  for vectors in others:
    np.testing.assert_allclose(vectors.vectors, one.vectors, atol=2e-5)
  a, b = one.index_to_key[:2]
  relation, other = one.relations.names
  assert abs(one.edge_scores([(a, relation, b)])[0]) <= 1 / 0.5 + 1e-4
  assert not np.allclose(*(one.related(a, x) for x in (relation, other)))


@pytest.mark.slow
def test_the_best_model_is_kept_by_ranks_among_drawn_nodes(tmp_path):
  settings = {
    'data.candidates': 'uniform', 'data.valid': '0.2', 'eval.every_epochs': 1.0,
  }  # fmt: skip
  _run('line', tmp_path, settings)
  found = runs.report(tmp_path)
  assert found['best']['validation']['mrr'] > 0
  assert all(
    'among 1,000 uniform' in x for x in found['evaluation'] if 'edges' in x
  )
