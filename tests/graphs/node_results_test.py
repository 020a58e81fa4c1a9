"""Whole runs of GraphSAGE: evaluated, resumed, used."""

import csv
import dataclasses
import json
import threading
import time
import tracemalloc
from concurrent import futures

import jax
import numpy as np
import pytest
from pyarrow import parquet
from scipy import sparse

import jaxemb
from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.cli import predict
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import graphsage, inference, neighbors, toygraph
from jaxemb.graphs import labels as labels_lib
from jaxemb.graphs import node_results as nodes
from jaxemb.run import lifecycle as train
from jaxemb.storage import export
from tests import runs
from tests.graphs import graphsage_test as models_test

SMOKE = {
  'data.path': 'toygraph:600',
  'data.fanouts': '4,6',
  'data.valid': '100',
  'data.test': '200',
  'model.inputs': 'both',
  'model.dim': 8,
  'train.batch_examples': 64,
  'train.epochs': 12,
  'mesh.data': 1,
}


def _run(workdir, name='graphsage', **settings):
  given = {k.replace('__', '.'): v for k, v in settings.items()}
  return train.run(config_lib.load(name, SMOKE | given), workdir)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  workdir = tmp_path_factory.mktemp('graphsage') / 'run'
  assert _run(workdir) == 0
  return workdir


@pytest.mark.slow
def test_a_run_is_evaluated_and_exported(trained):
  report = runs.report(trained)
  scores = report['evaluation']
  assert scores['test']['accuracy'] > 0.9 and scores['test']['total'] == 200
  lines = (trained / 'evaluation.jsonl').read_text().splitlines()
  each = [json.loads(x)['validation']['score'] for x in lines]
  assert len(each) == 12 and report['best']['validation']['score'] == max(each)
  assert scores['validation']['score'] == max(each)
  with (trained / 'export' / 'classes.tsv').open() as file:
    rows = list(csv.DictReader(file, delimiter='\t'))
  test = [x for x in rows if x['used'] == 'test']
  right = np.mean([x['class'] == x['label'] for x in test])
  assert right == scores['test']['accuracy'] and len(rows) == 600
  assert rows[0]['label'].startswith('community ')
  vectors, communities = jaxemb.load(trained), toygraph.make('toygraph:600')
  assert vectors.vectors.shape == (600, 16)
  node = communities.keys()[0]
  near = [x for x, _ in vectors.most_similar(node, topn=5)]
  assert sum(x.split('.')[0] == node.split('.')[0] for x in near) >= 4
  arrays = np.load(trained / 'export' / 'network.npz')
  assert arrays['nodes'].shape == (600, 8) and 'layer_0/own/bias' in arrays
  assert 'community 1' in (trained / 'report.html').read_text()
  with pytest.raises(errors.UserError, match='cannot score unseen nodes'):
    inference.load(trained).infer(communities)


def _shuffled(tmp_path):
  """A graph as a user has it, and features, in another order of nodes."""
  toy = toygraph.make('toygraph:600')
  order = np.random.default_rng(0).permutation(600)
  sources = np.repeat(np.arange(600), np.diff(toy.offsets))
  edges = np.stack([sources, toy.neighbors], 1)
  edges = edges[np.random.default_rng(1).permutation(len(edges))]
  names = list(toy.keys())
  lines = [f'{names[a]}\t{names[b]}\n' for a, b in edges if a < b]
  (tmp_path / 'edges.tsv').write_text(''.join(lines))
  lines = [
    ' '.join([names[i], *map(str, toy.features[i].tolist())]) for i in order
  ]
  (tmp_path / 'features.txt').write_text('\n'.join(lines))


@pytest.mark.slow
def test_nodes_of_another_graph(tmp_path, capsys):
  given = {'model.inputs': 'features', 'train.epochs': 2}
  assert _run(tmp_path / 'run', **given, **{'data.normalize': True}) == 0
  _shuffled(tmp_path)
  command = [f'--model={tmp_path / "run"}', f'--data={tmp_path / "edges.tsv"}']
  features = f'--features={tmp_path / "features.txt"}'
  output = tmp_path / 'found.parquet'
  command += [f'--output={output}', '--keep=vector']
  assert predict.main([*command, features]) == 0
  table = parquet.read_table(output).to_pydict()
  expected = jaxemb.load(tmp_path / 'run')
  assert {*table['node']} == {*expected.index_to_key}
  vectors = np.stack([expected[x] for x in table['node']])
  np.testing.assert_allclose(table['vector'], vectors, 1e-4, 1e-5)
  with (tmp_path / 'run/export/classes.tsv').open() as file:
    rows = {x['node']: x for x in csv.DictReader(file, delimiter='\t')}
  assert table['class'] == [rows[x]['class'] for x in table['node']]
  chances = [float(rows[x]['probability']) for x in table['node']]
  np.testing.assert_allclose(table['probability'], chances, 0, 2e-4)
  assert predict.main(command) == 2  # without features
  assert 'no features of a node' in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize('is_sparse', [False, True])
def test_all_neighbors_are_used_of_all_nodes(is_sparse):
  rng, num = np.random.default_rng(0), models_test.NUM_NODES
  offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, num))])
  others = rng.integers(0, num, offsets[-1]).astype(np.int32)
  # Fanouts that have room for all.
  made = models_test._made(aggregator='max', fanouts=(4, 4))
  (model, params, rows), spec = made, made[0].spec
  graph = graph_lib.Graph(offsets, others)
  features = model.features
  if is_sparse:
    features = sparse.csr_matrix(features)
  args = spec, params, {graphsage.NODES: rows}, features, graph
  found = inference.infer(*args)
  every = np.arange(num, dtype=np.int32)
  trees = neighbors.Trees(offsets, others, spec.fanouts)
  ids = trees.sample(every, every.astype(int), np.uint64(1))
  places = np.where(ids < num, ids, 0)
  positions = every.astype(np.uint32)
  batch = models_test._batch(spec)._replace(ids=ids, positions=positions)
  args = params, {graphsage.NODES: rows[places]}, batch, models_test.KEY
  expected = model.outputs(*args)[:, 0]
  np.testing.assert_allclose(found.outputs, expected, atol=1e-5)
  assert found.vectors.shape == (num, spec.sizes[0])
  # Of some nodes alone, from what these need.
  some = np.array([3, 4, 17])
  blocks = neighbors.blocks(offsets, others, 2, some)
  np.testing.assert_allclose(
    found.outputs_of(blocks), found.outputs[some], atol=1e-5
  )
  assert len(blocks[0].nodes) < num and len(blocks[1].offsets) == 4


@pytest.mark.slow
def test_rows_of_a_store_are_read_in_blocks(tmp_path):
  num, dim = 200_000, 64
  rng = np.random.default_rng(0)
  rows = rng.normal(size=(num, dim)).astype(np.float32)
  others = rng.integers(0, num, 2 * num, dtype=np.int32)
  graph = graph_lib.Graph(np.arange(num + 1) * 2, others)
  spec = dataclasses.replace(
    models_test.SPEC, dim=dim, num_features=0, num_nodes=num
  )
  model = graphsage.GraphSage(spec, (), None)
  params = model.init(jax.random.key(0))
  whole = inference.infer(spec, params, {graphsage.NODES: rows}, None, graph)
  read = []

  def some(ids):
    read.append(len(ids))
    return rows[ids]

  table = export.OnDemand(some, rows.shape, rows.dtype)
  tracemalloc.start()
  tables = {graphsage.NODES: table}
  found = inference.infer(spec, params, tables, None, graph, tmp_path)
  found.save(tmp_path / 'best')
  saved = inference.open_saved(tmp_path / 'best')
  loaded = inference.infer(spec, *saved, None, graph, tmp_path)
  vectors = loaded.vectors
  _, peak_bytes = tracemalloc.get_traced_memory()
  tracemalloc.stop()
  assert max(read) <= 1 << 15 and peak_bytes < rows.nbytes / 2
  np.testing.assert_array_equal(loaded.outputs, whole.outputs)
  np.testing.assert_array_equal(vectors, whole.vectors)
  with (tmp_path / 'network.npz').open('wb') as file:
    loaded.write_network(file)
  with np.load(tmp_path / 'network.npz') as saved:
    np.testing.assert_array_equal(saved['nodes'], rows)
    bias = params['layer_1']['own']['bias']
    np.testing.assert_array_equal(saved['layer_1/own/bias'], bias)
  assert {x.name for x in tmp_path.iterdir()} == {'best', 'network.npz'}


def test_what_several_threads_ask_for_is_computed_once():
  all_ask, asked = threading.Barrier(2), []

  def compute(blocks):
    asked.append(blocks)
    time.sleep(0.05)
    return 'vectors', 'outputs'

  model = inference.Inferred(compute, {})

  def ask():
    all_ask.wait()
    return model.vectors, model.outputs

  with futures.ThreadPoolExecutor(2) as pool:
    results = [x.result() for x in [pool.submit(ask) for _ in range(2)]]
  assert results == 2 * [('vectors', 'outputs')]
  assert asked == [None]


def test_scores_are_those_of_loops():
  rng = np.random.default_rng(1)
  outputs = rng.normal(size=(50, 4)).astype(np.float32)
  single, some = rng.integers(0, 4, 50), np.arange(10, 40)
  found = nodes.score_classes(labels_lib.Labels(single), outputs[some], some)
  chances = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
  right = [outputs[i].argmax() == single[i] for i in some]
  losses = [-np.log(chances[i, single[i]]) for i in some]
  assert found['score'] == found['accuracy'] == np.mean(right)
  assert found['log_loss'] == pytest.approx(np.mean(losses), rel=1e-5)
  is_class = rng.random((50, 4)) < 0.4
  offsets = np.concatenate([[0], np.cumsum(is_class.sum(1))])
  labels = labels_lib.Labels(np.nonzero(is_class)[1], offsets)
  found = nodes.score_classes(labels, outputs[some], some)
  hits = [
    [outputs[i, c] > 0 and is_class[i, c] for i in some] for c in range(4)
  ]
  sizes = [[(outputs[i, c] > 0) + is_class[i, c].astype(int) for i in some]
           for c in range(4)]  # fmt: skip
  assert found['score'] == pytest.approx(2 * np.sum(hits) / np.sum(sizes))
  each = [2 * np.sum(x) / np.sum(y) for x, y in zip(hits, sizes, strict=True)]
  assert found['macro_f1'] == pytest.approx(np.mean(each))


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_the_same_bits(
  trained, tmp_path, interrupting
):
  more = {'train__checkpoint_every_secs': 0.0}
  with interrupting(4), pytest.raises(KeyboardInterrupt):
    _run(tmp_path, **more)
  assert _run(tmp_path, **more) == 0
  assert 'resuming after' in runs.log(tmp_path)
  for name in ('export/vectors.npy', 'export/classes.tsv'):
    assert (tmp_path / name).read_bytes() == (trained / name).read_bytes()
  found, expected = (
    np.load(x / 'export/network.npz') for x in (tmp_path, trained)
  )
  for name in expected.files:
    np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.slow
def test_vectors_are_learned_from_walks(tmp_path):
  more = {'data__train_per_class': 0, 'train__epochs': 20}
  assert _run(tmp_path, 'graphsage:walks', **more) == 0
  vectors = jaxemb.load(tmp_path)
  same = [
    x.split('.')[0] == name.split('.')[0]
    for name in vectors.index_to_key[:60]
    for x, _ in vectors.most_similar(name, topn=5)
  ]
  assert np.mean(same) > 0.8  # by chance a sixth
  assert not (tmp_path / 'export' / 'classes.tsv').exists()


@pytest.mark.slow
def test_rows_may_come_from_a_store(tmp_path):
  settings = {'table__device_bytes': '80%', 'data__fanouts': '2,2'}
  settings |= {'train__batch_examples': 16, 'train__epochs': 2}
  assert _run(tmp_path, model__inputs='rows', **settings) == 0
  store = runs.report(tmp_path)['store']
  assert store['rows_fetched'] > 0
