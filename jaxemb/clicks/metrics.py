"""How well probabilities of clicks fit: AUC, log loss, calibration, fields.

AUC is exact: the chance that a click has a higher score than a row without one,
ties counting half (Hanley and McNeil 1982). That of groups is the mean over
groups that have both kinds of rows, weighted by their rows (Zhu et al. 2017).
"""

from typing import Any

import numpy as np

from jaxemb.clicks import encoder as encoder_lib
from jaxemb.clicks import predictor
from jaxemb.evaluation import ranking

_NUM_BINS = 20
_LEAST = 1e-7  # probabilities are cut there for log loss
_MAX_ABLATED_ROWS, _MAX_ABLATED_FIELDS = 50_000, 60


def group_auc(
  labels: np.ndarray, scores: np.ndarray, groups: np.ndarray
) -> tuple[float, int]:
  """Returns the mean AUC of groups [n] int with both labels, their number."""
  order = np.argsort(groups, kind='stable')
  ordered = groups[order]
  edges = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
  total, weight, number = 0.0, 0, 0
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


def of_model(
  model: predictor.ClickModel, rows: encoder_lib.Rows, group: str = ''
) -> dict[str, Any]:
  """Returns metrics of a model on rows, also by the categories of a field."""
  groups = None
  if group:
    field = next(x for x in model.encoder.fields.ids if x.name == group)
    groups = np.asarray(rows.ids[:, field.first_column])
  return evaluate(rows.labels, model.scores(rows), groups)


def importances(
  model: predictor.ClickModel, rows: encoder_lib.Rows
) -> list[tuple[str, float]]:
  """Returns (field, AUC lost without it), the largest first.

  All vectors of the field are replaced by their mean, on the first rows.
  """
  rows = encoder_lib.Rows(*(x[:_MAX_ABLATED_ROWS] for x in rows))
  whole = ranking.auc(rows.labels, model.scores(rows))
  losses = [
    (x.name, whole - ranking.auc(rows.labels, model.scores(rows, x.name)))
    for x in model.encoder.fields.ids[:_MAX_ABLATED_FIELDS]
  ]
  return sorted(losses, key=lambda x: -x[1])
