"""AUC, log loss and calibration against loops over pairs of rows."""

import math

import numpy as np
import pytest

from jaxemb.clicks import metrics as clicks
from jaxemb.evaluation import ranking


def _auc(labels, scores):
  ones, zeros = scores[labels == 1], scores[labels == 0]
  wins = sum(float(x > y) + 0.5 * float(x == y) for x in ones for y in zeros)
  return wins / (len(ones) * len(zeros))


@pytest.mark.parametrize('digits', [0, 1, 8])
def test_auc_counts_pairs_and_half_of_ties(digits):
  rng = np.random.default_rng(digits)
  labels = rng.integers(0, 2, 200)
  scores = np.round(rng.random(200) + 0.3 * labels, digits)
  assert ranking.auc(labels, scores) == pytest.approx(_auc(labels, scores))
  assert ranking.auc(labels, np.zeros(200)) == 0.5
  assert math.isnan(ranking.auc(np.ones(5), scores[:5]))


def test_groups_of_both_kinds_count_by_their_rows():
  rng = np.random.default_rng(0)
  labels, groups = rng.integers(0, 2, 300), rng.integers(0, 7, 300)
  labels[groups == 3] = 1
  scores = rng.random(300)
  total = weight = 0
  for group in set(range(7)) - {3}:
    rows = groups == group
    total += rows.sum() * _auc(labels[rows], scores[rows])
    weight += rows.sum()
  found, number = clicks.group_auc(labels, scores, groups)
  assert found == pytest.approx(total / weight) and number == 6


def test_log_loss_and_calibration():
  labels = np.array([1, 0, 0, 1])
  scores = np.array([0.9, 0.2, 0.0, 1.0])
  found = clicks.evaluate(labels, scores)
  expected = -(math.log(0.9) + math.log(0.8)) / 4
  assert found['log_loss'] == pytest.approx(expected, abs=1e-6)
  assert found['calibration'] == pytest.approx(2.1 / 2)
  assert sum(x[0] for x in found['bins']) == 4
