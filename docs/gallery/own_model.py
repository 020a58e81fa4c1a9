"""Your own model: skip-gram on a circle, which finds the order of the months.

Run `python own_model.py [TEXT] [PLOT]`.
"""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxemb
from jaxemb.models import skipgram

months = 'january february march april may june july august september'.split()
months += ['october', 'november', 'december']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Circle(skipgram.SkipGram):
  """Skip-gram whose word vectors have length 1."""

  def loss(self, params, rows, ids, batch, key):
    """Returns the loss of the rows that a batch looks up."""
    words = rows[skipgram.INPUT]
    words /= jnp.sqrt(1e-4 + jnp.sum(words**2, -1, keepdims=True))
    rows = rows | {skipgram.INPUT: words}
    return super().loss(params, rows, ids, batch, key)


def make(spec, corpus, loss_of):
  """Makes the model; `model='__main__:make'` names this function."""
  model = skipgram.make(spec, corpus, loss_of)
  return Circle(spec, model.tables, model.negatives, loss_of)


text = sys.argv[1] if len(sys.argv) > 1 else ''
plot = sys.argv[2] if len(sys.argv) > 2 else __file__.replace('.py', '.svg')
starts = np.random.default_rng(0).integers(0, 12, 10_000).tolist()
sizes = {'dim': 2, 'window': 3, 'negatives': 1, 'sample': 0, 'epochs': 10}
vectors = jaxemb.train(
  text or [(months * 2)[start : start + 8] for start in starts],
  model='__main__:make',
  settings={'optimizer.name': 'adagrad', 'mesh.data': 1},
  **sizes,
)
points = np.stack([vectors.get_vector(month, norm=True) for month in months])
for month, (x, y) in zip(months, points, strict=True):
  print(f'{month:9} {np.degrees(np.arctan2(y, x)):6.1f} degrees')
plt.rcParams['svg.fonttype'] = 'none'  # text stays text
figure, panel = plt.subplots(figsize=(5, 4.5), layout='constrained')
panel.add_patch(plt.Circle((0, 0), 1, fill=False, color='0.85'))
panel.plot(*points.T, 'o')
for month, point in zip(months, points, strict=True):
  panel.text(*1.35 * point, month, ha='center', va='center')
panel.set(aspect='equal', xlim=(-1.8, 1.8), ylim=(-1.6, 1.6))
panel.axis('off')
figure.savefig(plot)
