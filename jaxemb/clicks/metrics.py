"""How well probabilities of clicks fit: AUC, log loss, calibration.

AUC is exact: the chance that a click has a higher score than a row without one,
ties counting half (Hanley and McNeil 1982). That of groups is the mean over
groups that have both kinds of rows, weighted by their rows (Zhu et al. 2017).
"""

from typing import Any

import numpy as np

from jaxemb.evaluation import ranking

_NUM_BINS = 20
_LEAST = 1e-7  # probabilities are cut there for log loss


def group_auc(
  labels: np.ndarray, scores: np.ndarray, groups: np.ndarray
) -> tuple[float, int]:
  """Returns the mean AUC of groups [n] int with both labels, their number."""
  order = np.argsort(groups, kind='stable')
  ordered = groups[order]
  edges = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
  total = weight = number = 0
  for rows in np.split(order, edges[1:]):
    area = ranking.auc(labels[rows], scores[rows])
    if not np.isnan(area):
      total, weight = total + area * len(rows), weight + len(rows)
      number += 1
  return (total / weight if weight else float('nan')), number


def evaluate(
  labels: np.ndarray,
  scores: np.ndarray,
  groups: np.ndarray | None = None,
) -> dict[str, Any]:
  """Returns metrics of labels [n] and probabilities [n].

  `score` is the AUC; `calibration` the mean probability by the fraction of
  clicks; `bins` are (rows, mean probability, fraction of clicks) of equal
  numbers of rows.
  """
  labels = np.asarray(labels).astype(np.float64)
  scores = np.asarray(scores).astype(np.float64)
  sure = np.clip(scores, _LEAST, 1 - _LEAST)
  loss = -np.mean(labels * np.log(sure) + (1 - labels) * np.log1p(-sure))
  bins = [
    [len(x), float(scores[x].mean()), float(labels[x].mean())]
    for x in np.array_split(np.argsort(scores, kind='stable'), _NUM_BINS)
    if len(x)
  ]
  area = ranking.auc(labels, scores)
  result = {
    'score': area,
    'auc': area,
    'log_loss': float(loss),
    'clicks': float(labels.mean()),
    'predicted_clicks': float(scores.mean()),
    'calibration': float(scores.mean() / max(labels.mean(), _LEAST)),
    'bins': bins,
    'found': len(labels),
    'total': len(labels),
  }
  if groups is not None:
    result['group_auc'], result['groups'] = group_auc(labels, scores, groups)
  return result
