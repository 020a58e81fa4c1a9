"""ALiR and PCA against float64 loops over words."""

import numpy as np
import pytest

from jaxemb.merging import align, merge
from tests import oracle


def _parts(vocab, dims, truth_dim, missing, noise):
  """Rotated copies of the same rows; [vocab, D_i] each, and who has what."""
  rng = np.random.default_rng(0)
  scale = 1 / np.sqrt(1 + np.arange(truth_dim))
  truth, parts = rng.normal(size=(vocab, truth_dim)) * scale, []
  for dim in dims:
    turn = oracle.rotation(rng, max(dim, truth_dim))[:truth_dim, :dim]
    parts.append(truth @ turn + noise * rng.normal(size=(vocab, dim)))
  has = rng.random((vocab, len(dims))) >= missing
  has[np.arange(vocab), rng.integers(0, len(dims), vocab)] = True
  return truth, _masked(parts, has), has.astype(np.float64)


def _masked(parts, has):
  return [np.where(has[:, i, None], m, 0) for i, m in enumerate(parts)]


def _side_by_side(parts, weights):
  rows = np.where(weights > 0, np.arange(len(weights))[:, None], -1).T
  tables = [m.astype(np.float32) for m in parts]
  weights = weights.T.astype(np.float32)
  return merge.SideBySide(tables, rows, weights, False, None, lambda *_: None)


def _merged(parts, weights, dim, start, iterations):
  """Rows, rotations, displacements and fit, by passes over blocks of rows."""
  job = _side_by_side(parts, weights)
  gram = job.gram(random_dim=dim if start == 'random' else 0)
  turns, moved = align.alir(gram, job.dims, dim, start, iterations, 1e-6)
  fit = np.zeros((4, len(parts)))
  y = job.write_averages('vectors', turns, np.eye(dim), fit)
  return y.astype(np.float64), turns, moved, fit


def _mean(parts, weights, turns):
  """Y of the paper, a word at a time."""
  y = np.zeros((len(weights), turns[0].shape[1]))
  for w in range(len(weights)):
    for i, m in enumerate(parts):
      y[w] += weights[w, i] * (m[w] @ turns[i])
    y[w] /= weights[w].sum()
  return y


def _turn(m, weights, y):
  """Orthogonal Procrustes on the words that the part has."""
  cross = sum(a * np.outer(m[w], y[w]) for w, a in enumerate(weights))
  left, _, right = np.linalg.svd(cross, full_matrices=False)
  return left @ right


def _oracle(parts, weights, y, iterations):
  """ALiR from a given Y; displacements relative to the new Y, by weight."""
  moved, total = [], weights.sum(1)
  for _ in range(iterations):
    turns = [_turn(m, weights[:, i], y) for i, m in enumerate(parts)]
    new = _mean(parts, weights, turns)
    square = np.sum(total * np.sum((new - y) ** 2, 1))
    moved.append(np.sqrt(square / np.sum(total * np.sum(new**2, 1))))
    y = new
  return y, turns, moved


@pytest.mark.parametrize('by_counts', [False, True])
def test_random_start_is_that_of_the_paper(by_counts):
  _, parts, weights = _parts(120, (8, 8, 8), 8, 0.3, 0.2)
  has = weights > 0
  if by_counts:
    weights *= np.random.default_rng(1).integers(1, 50, has.shape)
    weights *= has.sum(1, keepdims=True) / weights.sum(1, keepdims=True)
  y, found, displacements, fit = _merged(parts, weights, 8, 'random', 4)
  start = np.random.default_rng(0).normal(size=(120, 8))
  wanted, turns, moved = _oracle(parts, weights, start, 4)
  assert np.abs(y - wanted).max() < 1e-5
  assert displacements == pytest.approx(moved, rel=1e-4)
  assert np.abs(found - np.concatenate(turns)).max() < 1e-5
  for i, m in enumerate(parts):
    mine = np.flatnonzero(has[:, i] & (has.sum(1) > 1))
    turned, cosines = m @ turns[i], 0.0
    for w in mine:
      others = sum(
        weights[w, j] * (parts[j][w] @ turns[j]) for j in {0, 1, 2} - {i}
      )
      cosines += np.dot(turned[w], others) / (
        np.linalg.norm(turned[w]) * np.linalg.norm(others)
      )
    gaps = (turned - wanted)[mine]
    expected = np.sum(turned[mine] ** 2), np.sum(gaps**2), cosines, len(mine)
    assert fit[:, i] == pytest.approx(expected, rel=1e-4)


def test_zero_start_joins_the_parts_to_the_largest():
  # A chain: each part has words in common with the next alone.
  _, parts, _ = _parts(280, (6,) * 4, 6, 0.0, 0.0)
  has = np.zeros((280, 4))
  for i, first in enumerate((200, 150, 100, 50)):
    has[first : first + 80, i] = 1
  parts[3] *= 3
  _, turns, moved, _ = _merged(_masked(parts, has > 0), has, 6, 'zero', 20)
  # The largest stays as it is, and those tied to it already fit.
  assert np.abs(turns[18:] - np.eye(6)).max() < 1e-5
  assert moved[0] < 1e-5


@pytest.mark.parametrize('start', align.STARTS)
def test_all_starts_reach_the_same_point(start):
  _, parts, weights = _parts(200, (8,) * 4, 8, 0.3, 0.3)
  y, _, moved, _ = _merged(parts, weights, 8, start, 100)
  best, *_ = _merged(parts, weights, 8, 'zero', 100)
  assert moved[-1] <= 1e-6 and len(moved) < 100
  np.testing.assert_allclose(oracle.cosines(y), oracle.cosines(best), 0, 1e-4)


def _corrected(parts, weights, dim):
  """Y, the rotations, and the matrix that restores lengths."""
  job = _side_by_side(parts, weights)
  gram = job.gram()
  turns, _ = align.alir(gram, job.dims, dim, 'zero', 9, 1e-9)
  outer = align.length_correction(gram, job.moments(), turns)
  turns = [turns[part] for part in align.slices(job.dims)]
  return _mean(parts, weights, turns), turns, outer


def test_lengths_that_averaging_took_are_restored():
  _, parts, weights = _parts(300, (6, 5, 6), 5, 0.3, 0.6)
  weights *= np.random.default_rng(1).uniform(0.5, 2, weights.shape)
  y, turns, outer = _corrected(parts, weights, 5)
  assert np.abs(outer - outer.T).max() < 1e-12
  mass = weights.sum(1, keepdims=True)
  for direction in np.linalg.eigh(y.T @ (mass * y))[1].T:
    total = sum(
      np.sum(a * (m @ turn @ direction) ** 2)
      for a, m, turn in zip(weights.T, parts, turns, strict=True)
    )
    before = np.sum(mass[:, 0] * (y @ direction) ** 2)
    after = np.sum(mass[:, 0] * (y @ outer @ direction) ** 2)
    assert before < 0.95 * total
    assert after == pytest.approx(total, rel=1e-6)


def test_gram_is_exact_in_float64(monkeypatch):
  # A float32 sum would lose what the other blocks add.
  monkeypatch.setattr(merge, '_BLOCK_BYTES', 1)
  rows = np.full((2560, 2), 1e-3, np.float32)
  rows[0] = 3e2
  found = _side_by_side([rows], np.ones((2560, 1))).gram()
  small = np.float64(rows[1, 0]) ** 2
  np.testing.assert_allclose(found, 9e4 + 2559 * small, 1e-13)
