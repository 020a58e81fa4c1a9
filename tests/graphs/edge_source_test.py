"""Edges as a source, and whole runs on them."""

import collections
import json

import numpy as np
import pytest

import jaxemb
from jaxemb import config as config_lib
from jaxemb.data import base, examples
from jaxemb.graphs import edge_source, toygraph
from jaxemb.run import lifecycle as train

SPLITS = {'valid': '', 'test': '', 'candidates': 'all', 'partitions': 1}
SETTINGS = {
  **SPLITS,
  'columns': '',
  'directed': False,
  'num_nodes': 0,
  'labels': '',
  'label_column': '',
  'features': '',
}


@pytest.fixture
def make(tmp_path):
  """Makes a source of a list of edges."""

  def made(path='toygraph:200', num_parts=1, local=None, **settings):
    readers = base.ALONE._replace(local_parts=local or range(num_parts))
    given = {**SETTINGS, 'path': path, **settings}
    args = path, 7, 2, num_parts, 8, 1, 4, 1, given, readers
    return edge_source.Edges(base.SourceSpec(*args, tmp_path, lambda *x: None))

  return made


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
  source = make(partitions=3)
  items = list(source.items(None, 0))
  for i in range(0, len(items) - 1, 3):
    rest = list(source.items(items[i].position, items[i].done_after))
    assert len(rest) == len(items) - i - 1
    for x, y in zip(rest, items[i + 1 :], strict=True):
      assert x[1:] == y[1:]
      for a, b in zip(x.batch, y.batch, strict=True):
        np.testing.assert_array_equal(a, b)


def test_relations_weights_and_directions(make, tmp_path):
  lines = ['a likes b 1', 'b likes a 2', 'a knows b 3', 'c knows a 6']
  path = tmp_path / 'edges.txt'
  path.write_text('\n'.join(lines) + '\n')
  test = tmp_path / 'test.txt'
  test.write_text('b knows a 1\nc owns a 1\nd likes a 1\nc knows a 1\n')
  columns = 'source,relation,target,weight'
  # A relation leads from the first node to the second.
  given = {'columns': columns, 'source': 'edges', 'test': str(test)}
  source = make(str(path), **given)
  assert list(source.keys) == ['a', 'b', 'c'] and source.num_relations == 2
  assert source.counts.tolist() == [4, 3, 1]
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
    'a likes b': 1, 'b likes a': 2, 'a knows b': 3, 'c knows a': 6
  }  # fmt: skip
  assert source.dropped['test_edges_unknown'] == 2
  assert source.dropped['test_edges_in_training'] == 1
  assert source.context_keys == [
    *relations,
    *(f'{x} (inverse)' for x in relations),
  ]
  # b knows a: among b, a, c the target of b, and the source of a.
  vectors = np.array([[1.0, 0], [0, 1], [2, 2]], np.float32)
  operators = np.zeros((4, 2), np.float32)
  operators[relations.index('knows')] = 3, 0  # b + (3, 0) is nearest c, then a
  scores = source.evaluate(
    vectors, operators, False, lambda x, y: x + y
  )['test edges']  # fmt: skip
  # Target of b: c 8, a 3. Source of a: c is known, b alone. Target of c: a
  # alone. Source of a again, which is c: b is held out.
  assert np.isclose(scores['mean_rank'], 5 / 4)
  assert scores['found'] == 4 and scores['total'] == 8


def _run(variant, workdir, **settings):
  values = {k.replace('__', '.'): v for k, v in settings.items()}
  assert train.run(config_lib.load(f'graph:{variant}', values), workdir) == 0
  return json.loads((workdir / 'report.json').read_text())


SMALL = {'data__path': 'toygraph:1000', 'model__dim': 16, 'train__epochs': 2}


@pytest.mark.slow
def test_planted_communities_are_learned(tmp_path):
  more = {'train__epochs': 20, 'train__batch_examples': 512}
  found = _run('line', tmp_path, **SMALL | more)
  # In a random order within the community, ranks have a mean of 50.
  assert found['evaluation']['test edges']['mrr'] > 0.045
  assert found['evaluation']['clusters']['score'] > 0.9
  assert found['edges_per_sec'] > 0
  vectors = jaxemb.load(tmp_path)
  name = vectors.index_to_key[0]
  near = [x for x, _ in vectors.most_similar(name, topn=5)]
  assert sum(x.split('.')[0] == name.split('.')[0] for x in near) >= 4


@pytest.mark.slow
def test_meshes_layouts_and_stores_learn_the_same(tmp_path):
  meshes = {
    'one': {'mesh__data': 1},
    'columns': {'table__layout': 'column', 'mesh__data': 1, 'mesh__table': 4},
    'disk': {'table__store': 'disk', 'table__device_bytes': '80%'},
  }
  small = SMALL | {'model__operator': 'complex', 'model__temperature': 0.5}
  small |= {'train__batch_examples': 256}
  small |= {'optimizer__learning_rate': 0.01, 'data__partitions': 3}
  found = {}
  for name, settings in meshes.items():
    _run('relations', tmp_path / name, **small, **settings)
    found[name] = np.load(tmp_path / name / 'export' / 'vectors.npy')
  for name in meshes:
    np.testing.assert_allclose(found[name], found['one'], atol=2e-5)
  operators = tmp_path / 'one' / 'export' / 'context_vocab.txt'
  assert len(operators.read_text().split()) >= 2
  vectors = jaxemb.load(tmp_path / 'disk')
  a, b = vectors.index_to_key[:2]
  relation, other = vectors.relations.names
  assert abs(vectors.edge_scores([(a, relation, b)])[0]) <= 1.0001
  assert not np.allclose(*(vectors.related(a, x) for x in (relation, other)))
