"""Whole runs on the embedded graph: what trains on text trains on walks."""

import json

import numpy as np
import pytest

import jaxemb
from jaxemb import config as config_lib
from jaxemb.run import lifecycle as train

SMALL = {
  'data.path': 'toygraph:400',
  'model.dim': 16,
  'model.window': 3,
  'data.walks': 10,
  'data.walk_length': 20,
  'train.epochs': 4,
}


@pytest.mark.slow
def test_communities_are_found(tmp_path):
  assert train.run(config_lib.load('graph', SMALL), tmp_path) == 0
  scores = json.loads((tmp_path / 'report.json').read_text())['evaluation']
  assert scores['labels']['macro_f1'] > 0.98
  assert scores['clusters']['score'] > 0.95
  edges = scores['test edges']
  assert edges['auc'] > 0.75 and edges['found'] > 250
  assert 'Ranks of the ends of edges' in (tmp_path / 'report.html').read_text()
  vectors = jaxemb.load(tmp_path)
  node = vectors.index_to_key[0]
  community = node.split('.')[0]
  near = vectors.most_similar(node, topn=10)
  assert sum(x.split('.')[0] == community for x, _ in near) >= 9
  scores = vectors.edge_scores([(node, x) for x, _ in near])
  np.testing.assert_allclose(scores, [x for _, x in near], atol=1e-5)
  assert not len(vectors.edge_scores([]))


@pytest.mark.slow
def test_walks_that_go_nowhere_else(tmp_path):
  # A row occurs in half of a step, and its gradients are one sum.
  lines = [f'a{i} b{i}\n' for i in range(200)]
  (tmp_path / 'pairs.txt').write_text(''.join(lines))
  given = {'data.path': str(tmp_path / 'pairs.txt'), 'data.walks': 20}
  given |= {'train.fused': False, 'optimizer.learning_rate': 0.04}
  # With 64, draws of so few nodes count in the limit of a row as its own pair
  # does, and a pair of 200 is not learned yet after 20 walks, but after 80.
  given['model.shared_negatives'] = 24
  config = config_lib.load('graph:deepwalk', given)
  assert train.run(config, tmp_path / 'run') == 0
  vectors = jaxemb.load(tmp_path / 'run')
  near = [vectors.most_similar(f'a{i}', topn=1)[0][0] for i in range(200)]
  assert near == [f'b{i}' for i in range(200)]
