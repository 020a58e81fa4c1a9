"""An embedded graph: planted communities, roles and features.

Nodes are members of equal communities and have one of a few roles. Every node
chooses as many friends, from its own community or, as often as its role has it,
from all nodes. Features are bits, some of which a community has more often.

So what can be known at best is known: the community of every node, which nearly
all its friends are of (NMI 1, F1 1), and of an edge that was held out little
more than that its ends are mostly of one community: a ranking that has the own
community first, in any order, is the best one but for the roles.
"""

import numpy as np

from jaxemb import errors
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import labels as labels_lib
from jaxemb.runtime import budget

_NAME = 'toygraph'
_DEFAULT_NODES = 4000
_MOST_NODES = 10_000_000
_NODE_BYTES = 2500  # of memory, while it is made
_COMMUNITY_NODES = 100
_FRIENDS = 9  # that every node chooses
_STRANGERS = 0.0, 0.05, 0.15  # share of them from all nodes, by role
_NUM_BITS, _OWN_BITS, _OFTEN, _SELDOM = 128, 8, 0.5, 0.05


def is_named(path: str) -> bool:
  """Whether a path stands for an embedded graph."""
  return not path or path.split(':')[0] == _NAME


def make(path: str = '') -> graph_lib.Graph:
  """The graph of '' or 'toygraph:NODES', of whole communities.

  Their numbers are labels. Raises a `UserError` for other paths.
  """
  size = path.removeprefix(_NAME).removeprefix(':') or str(_DEFAULT_NODES)
  num_nodes = int(size) if size.isdecimal() else 0
  if not 2 * _COMMUNITY_NODES <= num_nodes <= _MOST_NODES:
    raise errors.UserError(
      f'config.data.path={path} must be {_NAME}:NODES, '
      f'{2 * _COMMUNITY_NODES} nodes or more and at most {_MOST_NODES:,}'
    )
  budget.check_synthetic(path, num_nodes * _NODE_BYTES)
  rng = np.random.default_rng((0, num_nodes))
  num_communities = -(-num_nodes // _COMMUNITY_NODES)
  num_nodes = num_communities * _COMMUNITY_NODES
  # Numbers of nodes tell nothing.
  communities = rng.permutation(np.arange(num_nodes) % num_communities)
  members = np.argsort(communities, kind='stable')
  roles = rng.integers(0, len(_STRANGERS), num_nodes)
  sources = np.repeat(np.arange(num_nodes), _FRIENDS)
  friends = rng.integers(0, _COMMUNITY_NODES, len(sources))
  friends = members[communities[sources] * _COMMUNITY_NODES + friends]
  anybody = rng.integers(0, num_nodes, len(sources))
  is_stranger = rng.random(len(sources)) < np.array(_STRANGERS)[roles[sources]]
  targets = np.where(is_stranger, anybody, friends)
  frequent_bits = np.array([
    rng.choice(_NUM_BITS, _OWN_BITS, replace=False)
    for _ in range(num_communities)
  ])  # fmt: skip
  chances = np.full((num_communities, _NUM_BITS), _SELDOM)
  np.put_along_axis(chances, frequent_bits, _OFTEN, 1)
  features = rng.random((num_nodes, _NUM_BITS)) < chances[communities]
  names = [f'c{c}.n{i}' for i, c in enumerate(communities)]
  return graph_lib.from_edges(
    sources,
    targets,
    num_nodes,
    names=graph_lib.Names.of(names),
    features=features.astype(np.float32),
    labels=labels_lib.Labels(
      communities.astype(np.int64),
      names=[f'community {i}' for i in range(num_communities)],
    ),
  )
