"""Node map: a graph in two dimensions, with neighbors close to each other.

Run `python node_map.py [EDGES] [PLOT]`.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np

import jaxemb

edges = sys.argv[1] if len(sys.argv) > 1 else 'toygraph:1000'
plot = sys.argv[2] if len(sys.argv) > 2 else __file__.replace('.py', '.png')

nodes = jaxemb.train(
  edges,
  config='graph:relations',
  dim=2,
  epochs=40,
  settings={
    'model.score': 'distance',  # the score of an edge is minus its length^2
    'model.operator': 'none',
    'model.n3': 0.0,
    'data.test': '',
  },
)

# Names of nodes begin with their community, as in c3.n17.
names = [name.split('.')[0] for name in nodes.index_to_key]
communities, numbers = np.unique(names, return_inverse=True)
points = nodes.vectors
squares = ((points[:, None] - points) ** 2).sum(2)
np.fill_diagonal(squares, np.inf)
same = np.mean(numbers[squares.argmin(1)] == numbers)
print(f'{len(nodes)} nodes in {len(communities)} communities')
print(f'nearest node in the same community: {same:.3f}')

figure, panel = plt.subplots(figsize=(5, 5), layout='constrained')
panel.scatter(*points.T, c=numbers, s=8, cmap='tab10')
panel.set(aspect='equal', xticks=[], yticks=[])
panel.set_title(f'{len(nodes)} nodes, colored by community')
figure.savefig(plot, dpi=130)
