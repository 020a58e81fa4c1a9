"""What vectors tell of the labels of nodes: classification, clusters.

Classification is as DeepWalk (Perozzi et al. 2014) and node2vec have it: one
logistic regression for each label, one against the rest, with an L2 penalty
(C = 1), on the vectors as they are, of a random half of the labelled nodes. Of
each other node, which has k labels, the k most likely ones are predicted. Micro
F1 is of all predictions, macro F1 the mean over labels, both averaged over ten
splits.

Clusters are by k-means on unit vectors, as many as there are labels. They are
compared with the labels by normalized mutual information, I(A, B) over the mean
of H(A) and H(B).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.evaluation import geometry

_NUM_SPLITS = 10
_TRAIN_FRACTION = 0.5  # of the labelled nodes
_MAX_NODES = 20_000  # more are drawn from


def evaluate(
  vectors: np.ndarray, labels: Any, num_total: int | None = None
) -> dict[str, dict[str, Any]]:
  """Scores of vectors [n, d] by bool labels [n, classes], an array or sparse.

  A classifier learns from half of the nodes that have labels. `num_total`
  counts also labelled nodes without a vector.
  """
  from scipy import sparse

  labels = sparse.csr_matrix(labels)
  rows = np.flatnonzero(labels.getnnz(1))
  num = len(rows)
  if num > _MAX_NODES:
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(num, _MAX_NODES, replace=False))
  total = num if num_total is None else num_total
  count = {'found': num, 'total': total, 'used': len(rows)}
  if num < 4:
    return {'labels': {'score': float('nan'), **count, 'found': 0}}
  vectors, labels = vectors[rows], labels[rows]
  # Classes that no node has tell nothing.
  labels = labels[:, labels.getnnz(0) > 0].toarray()
  f1_scores = _classify(vectors, labels)
  scores = {'labels': {'score': f1_scores['macro_f1'], **f1_scores, **count}}
  if (labels.sum(1) == 1).all():
    clusters = geometry.cluster(geometry.unit(vectors), labels.shape[1])
    scores['clusters'] = {'score': nmi(clusters, labels.argmax(1)), **count}
  return scores


def _classify(vectors, labels):
  """Micro and macro F1 and their deviations, as `evaluate` has them."""
  scores = []
  for split in range(_NUM_SPLITS):
    order = np.random.default_rng((1, split)).permutation(len(vectors))
    num_train = max(1, int(_TRAIN_FRACTION * len(order)))
    train, test = np.split(order, [num_train])
    weights = fit(vectors[train], labels[train])
    chances = vectors[test] @ weights[:-1] + weights[-1]
    scores.append(f1(labels[test], top(chances, labels[test].sum(1))))
  names = 'micro_f1', 'macro_f1', 'micro_f1_deviation', 'macro_f1_deviation'
  values = np.concatenate([np.mean(scores, 0), np.std(scores, 0)]).tolist()
  return {**dict(zip(names, values, strict=True)), 'share': _TRAIN_FRACTION}


@jax.jit
def _losses(weights, inputs, signs):
  """[n] logistic losses of vectors, summed over classes, and all slopes."""
  margins = signs * jnp.matmul(inputs, weights, precision='highest')
  losses = jax.nn.softplus(-margins).sum(1)
  slopes = -signs * jax.nn.sigmoid(-margins)
  return losses, jnp.matmul(inputs.T, slopes, precision='highest')


def fit(vectors: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """[d + 1, classes] float32 weights, the biases last.

  They minimize, for each class, half the squared length of the weights, but for
  the bias, plus the sum over the vectors [n, d] of the logistic loss.
  """
  from scipy import optimize

  # Axes of equal curvature, which is about that of the classes' shares times
  # the vectors' principal axes: the same minimum, in a fifth of the steps.
  vectors = np.asarray(vectors, np.float32)
  center = vectors.mean(0)
  vectors = vectors - center
  products = vectors.T @ vectors
  if not np.isfinite(products).all():  # of vectors that diverged
    return np.zeros((len(products) + 1, labels.shape[1]), np.float32)
  spread, axes = np.linalg.eigh(products)
  inputs = np.pad(vectors @ axes, ((0, 0), (0, 1)), constant_values=1)
  signs = np.where(labels, np.float32(1), np.float32(-1))
  shape = inputs.shape[1], signs.shape[1]
  penalty = np.ones((shape[0], 1), np.float32)
  penalty[-1] = 0
  fractions = (labels.sum(0) + 1) / (len(labels) + 2)
  spread = np.append(np.maximum(spread, 0), len(vectors))[:, None]
  scales = 1 / np.sqrt(penalty + 0.5 * fractions * (1 - fractions) * spread)
  on_device = jax.device_put((inputs, signs))

  def loss(flat):
    weights = (flat.reshape(shape) * scales).astype(np.float32)
    losses, grads = jax.device_get(_losses(weights, *on_device))
    value = losses.sum(dtype=np.float64)
    value += 0.5 * np.sum(penalty * weights**2, dtype=np.float64)
    grads = (grads + penalty * weights) * scales
    return value, grads.astype(np.float64).ravel()

  start = np.zeros(shape)
  start[-1] = np.log(fractions / (1 - fractions)) / scales[-1]
  minimum = optimize.minimize(
    loss, start.ravel(), jac=True, method='L-BFGS-B',
    options={'maxiter': 300, 'maxcor': 20, 'ftol': 1e-7},
  )  # fmt: skip
  weights = minimum.x.reshape(shape) * scales
  slopes = axes @ weights[:-1]
  biases = weights[-1:] - center @ slopes
  return np.concatenate([slopes, biases]).astype(np.float32)


def top(scores: np.ndarray, counts: np.ndarray) -> np.ndarray:
  """[n, classes] bool, the `counts` [n] highest scores of each row."""
  ranks = np.argsort(np.argsort(-scores, 1, kind='stable'), 1)
  return ranks < counts[:, None]


def f1(labels: np.ndarray, predicted: np.ndarray) -> tuple[float, float]:
  """Micro and macro F1 of predictions, both [n, classes] bool.

  A class that is neither there nor predicted has an F1 of 0.
  """
  hits = (labels & predicted).sum(0)
  sums = labels.sum(0) + predicted.sum(0)
  micro = 2 * hits.sum() / max(1, sums.sum())
  return float(micro), float(np.mean(2 * hits / np.maximum(sums, 1)))


def nmi(first: np.ndarray, second: np.ndarray) -> float:
  """Normalized mutual information of two partitions [n] int."""
  from scipy import stats  # takes long

  joint = stats.contingency.crosstab(first, second).count / len(first)
  of_first, of_second, of_both = map(
    stats.entropy, (joint.sum(1), joint.sum(0), joint.ravel())
  )
  mean = (of_first + of_second) / 2
  return float((2 * mean - of_both) / mean) if mean > 0 else 1.0
