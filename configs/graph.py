r"""Vectors of nodes from random walks over a graph.

  jaxemb train --config=graph            the embedded graph
  jaxemb train --config=graph:deepwalk   as Perozzi et al. 2014
  jaxemb train --config=graph:node2vec   as Grover and Leskovec 2016
  jaxemb train --config=graph:line       of edges, as Tang et al. 2015
  jaxemb train --config=graph:relations  knowledge graphs: ComplEx with N3

  jaxemb train --config=graph:deepwalk --config.data.path=edges.tsv

Files have an edge a line: two nodes, and maybe a weight and a relation. Without
one, an embedded graph of 4,000 nodes in 40 communities is used, of whose edges
a tenth is held out.
"""

import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors


def get_config(
  variant: str = '', data_path: str = ''
) -> ml_collections.ConfigDict:
  """Settings of '', 'deepwalk', 'node2vec', 'line' or 'relations'.

  `data_path` is the user's own graph; '' = the embedded one.
  """
  if variant in ('line', 'relations'):
    return _of_edges(variant, data_path)
  config = config_lib.default()
  config.data.source = 'graph'
  config.data.sample = 0.0
  config.model.dim = 128
  config.model.window = 10
  config.train.epochs = 1
  if variant == 'deepwalk':
    config.data.walks, config.data.walk_length = 80, 40
    config.model.shared_negatives = 64
    config.optimizer.learning_rate = 0.025
  elif variant == 'node2vec':
    config.data.walks, config.data.walk_length = 10, 80
    config.data.p, config.data.q = 0.25, 0.25
    config.train.epochs = 5
  elif variant:
    raise errors.UserError(
      f'the config graph has no variant {variant!r}; choose deepwalk, '
      'node2vec, line or relations'
    )
  elif not data_path:
    config.data.walks, config.data.walk_length = 20, 40
    config.data.test = '0.1'
    config.model.window = 5
    config.train.epochs = 5
  return config


def _of_edges(name, data_path):
  """Models of edges, which need no walks."""
  config = config_lib.default()
  config.data.source = 'edges'
  if not data_path:
    config.data.test = '0.1'
  config.model.name = name
  config.strategy.name = 'sync'
  config.train.batch_examples = 1024
  if name == 'line':
    config.model.dim = 128
    config.model.order = 1
    config.model.shared_negatives = 64
    config.optimizer.name = 'adagrad'
    config.train.epochs = 50
    return config
  config.model.dim = 256
  config.model.loss = 'softmax'
  config.model.operator = 'complex'
  config.model.n3 = 0.05
  # With the 127 other edges of a chunk, 511 negatives on each side.
  config.model.chunk = 128
  config.model.shared_negatives = 384
  config.optimizer.name = 'adagrad_full'
  config.optimizer.learning_rate = 0.5
  config.train.epochs = 30
  return config
