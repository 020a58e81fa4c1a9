"""ALiR and PCA against float64 loops over words."""

import numpy as np
import pytest

from jaxemb.merging import align, merge
from jaxemb.merging import parts as parts_lib


def _orthogonal(rng, size):
  return np.linalg.qr(rng.normal(size=(size, size)))[0]


def _parts(seed, vocab, dims, truth_dim, missing, noise):
  """Rotated copies of the same rows; [vocab, D_i] each, and who has what."""
  rng = np.random.default_rng(seed)
  truth = rng.normal(size=(vocab, truth_dim)) / np.sqrt(
    1 + np.arange(truth_dim)
  )
  parts = []
  for dim in dims:
    turn = _orthogonal(rng, max(dim, truth_dim))[:truth_dim, :dim]
    parts.append(truth @ turn + noise * rng.normal(size=(vocab, dim)))
  has = rng.random((vocab, len(dims))) >= missing
  has[np.arange(vocab), rng.integers(0, len(dims), vocab)] = True
  parts = [np.where(has[:, i, None], m, 0) for i, m in enumerate(parts)]
  return truth, parts, has


def _merged(parts, weights, dim, start, iterations):
  """Rows, rotations, displacements and fit, by passes over blocks of rows."""
  rows = np.where(weights > 0, np.arange(len(weights))[:, None], -1).T
  tables = [parts_lib.Rows(m.astype(np.float32)) for m in parts]
  job = merge.SideBySide(
    tables, rows, weights.T.astype(np.float32), False, lambda *args: None
  )
  gram = job.gram(random_dim=dim if start == 'random' else 0)
  turns, moved = align.alir(gram, job.dims, dim, start, iterations, 1e-6)
  fit = np.zeros((4, len(parts)))
  y = job.write_averages(turns, np.eye(dim), None, 'vectors', fit)
  return y.astype(np.float64), turns, moved, fit


def _random(weights, dim):
  return np.random.default_rng(0).normal(size=(len(weights), dim))


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
  cross = np.zeros((m.shape[1], y.shape[1]))
  for w in range(len(m)):
    cross += weights[w] * np.outer(m[w], y[w])
  left, _, right = np.linalg.svd(cross, full_matrices=False)
  return left @ right


def _oracle(parts, weights, y, iterations):
  """ALiR from a given Y; displacements relative to the new Y, by weight."""
  moved = []
  for _ in range(iterations):
    turns = [_turn(m, weights[:, i], y) for i, m in enumerate(parts)]
    new = _mean(parts, weights, turns)
    total = weights.sum(1)
    square = np.sum(total * np.sum((new - y) ** 2, 1))
    moved.append(np.sqrt(square / np.sum(total * np.sum(new**2, 1))))
    y = new
  return y, turns, moved


def _cosines(y):
  unit = y / np.linalg.norm(y, axis=1, keepdims=True)
  return unit @ unit.T


@pytest.mark.parametrize('by_counts', [False, True])
def test_random_start_is_that_of_the_paper(by_counts):
  _, parts, has = _parts(0, 120, (8, 8, 8), 8, 0.3, 0.2)
  weights = has.astype(np.float64)
  if by_counts:
    weights *= np.random.default_rng(1).integers(1, 50, has.shape)
    weights *= has.sum(1, keepdims=True) / weights.sum(1, keepdims=True)
  y, found, displacements, fit = _merged(parts, weights, 8, 'random', 4)
  wanted, turns, moved = _oracle(parts, weights, _random(weights, 8), 4)
  assert np.abs(y - wanted).max() < 1e-5
  assert displacements == pytest.approx(moved, rel=1e-4)
  for i, m in enumerate(parts):
    turn = found[8 * i : 8 * i + 8]
    assert np.abs(turn - turns[i]).max() < 1e-5
    mine = has[:, i] & (has.sum(1) > 1)
    turned = m @ turn
    expected = np.sum(turned[mine] ** 2), np.sum((turned - wanted)[mine] ** 2)
    assert fit[:2, i] == pytest.approx(expected, rel=1e-4)
    assert fit[3, i] == mine.sum()
    cosines = 0.0
    for w in np.flatnonzero(mine):
      others = sum(
        weights[w, j] * (parts[j][w] @ turns[j]) for j in {0, 1, 2} - {i}
      )
      cosines += np.dot(turned[w], others) / (
        np.linalg.norm(turned[w]) * np.linalg.norm(others)
      )
    assert fit[2, i] == pytest.approx(cosines, rel=1e-4)


def test_zero_start_joins_the_parts_to_the_largest():
  _, parts, has = _parts(0, 100, (6, 6, 6), 6, 0.4, 0.2)
  parts[1] = 3 * parts[1]
  weights = has.astype(np.float64)
  # By hand: the second part stays; the one that it says most about comes next.
  turns, there = [None, np.eye(6), None], [1]

  def ties(i, j):
    z = [parts[k] * (weights[:, k] / np.sqrt(weights.sum(1)))[:, None]
         for k in (i, j)]  # fmt: skip
    return np.linalg.norm(z[0].T @ z[1])

  while len(there) < 3:
    i = max(
      {0, 1, 2} - set(there), key=lambda i: sum(ties(i, j) for j in there)
    )
    y = np.zeros((100, 6))
    for w in range(100):
      for j in there:
        y[w] += weights[w, j] / weights[w].sum() * (parts[j][w] @ turns[j])
    turns[i] = _turn(parts[i], weights[:, i], y)
    there.append(i)
  start = _mean(parts, weights, turns)
  y, _, found, _ = _merged(parts, weights, 6, 'zero', 2)
  wanted, _, moved = _oracle(parts, weights, start, 2)
  assert np.abs(y - wanted).max() < 1e-5
  assert found == pytest.approx(moved, rel=1e-3)


@pytest.mark.parametrize('start', align.STARTS)
def test_all_starts_reach_the_same_point(start):
  _, parts, has = _parts(0, 200, (8,) * 4, 8, 0.3, 0.3)
  weights = has.astype(np.float64)
  y, _, moved, _ = _merged(parts, weights, 8, start, 100)
  best, *_ = _merged(parts, weights, 8, 'zero', 100)
  assert moved[-1] <= 1e-6 and len(moved) < 100
  assert np.abs(_cosines(y) - _cosines(best)).max() < 1e-4


def test_rotated_copies_are_recovered():
  truth, parts, has = _parts(0, 1000, (20,) * 8, 20, 0.3, 0.0)
  y, *_ = _merged(parts, has.astype(np.float64), 20, 'zero', 3)
  assert np.abs(_cosines(y) - _cosines(truth)).max() < 1e-5


@pytest.mark.parametrize('start', align.STARTS)
def test_blocks_do_not_matter(start, monkeypatch):
  _, parts, has = _parts(0, 900, (8, 6, 8), 8, 0.3, 0.3)
  weights = has.astype(np.float64)
  one, _, first, _ = _merged(parts, weights, 8, start, 5)
  monkeypatch.setattr(merge, '_BLOCK_BYTES', 1)
  other, _, second, _ = _merged(parts, weights, 8, start, 5)
  assert np.abs(one - other).max() < 1e-6
  assert first == pytest.approx(second, rel=1e-9)


@pytest.mark.parametrize('dim', [12, 9])
def test_parts_of_other_dimensions(dim):
  # The truth has 9 dimensions; parts of 12 hold it in some subspace.
  truth, parts, has = _parts(0, 600, (9, 12, 9, 12), 9, 0.3, 0.0)
  y, turns, *_ = _merged(parts, has.astype(np.float64), dim, 'zero', 3)
  assert y.shape[1] == dim
  assert np.abs(_cosines(y) - _cosines(truth)).max() < 1e-5
  if dim == 12:  # products of rows stay, so that vectors and contexts fit
    turn = turns[:9]
    assert np.abs(turn @ turn.T - np.eye(9)).max() < 1e-6


def test_a_chain_of_parts_is_aligned():
  # The first and the last part have no word in common.
  truth, parts, _ = _parts(0, 300, (8, 8, 8), 8, 0.0, 0.0)
  has = np.zeros((300, 3), bool)
  has[:120, 0] = has[80:220, 1] = has[180:, 2] = True
  parts = [np.where(has[:, i, None], m, 0) for i, m in enumerate(parts)]
  y, *_ = _merged(parts, has.astype(np.float64), 8, 'zero', 1)
  assert np.abs(_cosines(y) - _cosines(truth)).max() < 1e-5


def test_fewer_common_words_than_dimensions_stay_finite():
  _, parts, _ = _parts(0, 100, (8, 8), 8, 0.0, 0.0)
  has = np.zeros((100, 2), bool)
  has[:52, 0] = has[48:, 1] = True
  parts = [np.where(has[:, i, None], m, 0) for i, m in enumerate(parts)]
  y, _, moved, _ = _merged(parts, has.astype(np.float64), 8, 'zero', 20)
  assert np.isfinite(y).all()
  # What nothing is said about stays where it is, instead of jumping about.
  assert moved[-1] < 1e-3
  for i, m in enumerate(parts):
    assert np.allclose((y @ y.T)[np.ix_(has[:, i] & (has.sum(1) < 2),) * 2],
                       (m @ m.T)[np.ix_(has[:, i] & (has.sum(1) < 2),) * 2],
                       atol=1e-4)  # fmt: skip


def test_procrustes_is_the_best_rotation():
  rng = np.random.default_rng(0)
  x, turn = rng.normal(size=(50, 6)), _orthogonal(rng, 6)
  y = x @ turn + 0.1 * rng.normal(size=(50, 6))
  best = align.procrustes(x.T @ y)
  assert np.abs(align.procrustes(x.T @ (x @ turn)) - turn).max() < 1e-12
  for _ in range(100):
    small = rng.normal(size=(6, 6)) * 0.01
    other = best @ np.linalg.qr(np.eye(6) + small - small.T)[0]
    error = min(np.linalg.norm(x @ w - y) for w in (other, -other))
    assert np.linalg.norm(x @ best - y) <= error


def test_principal_directions_are_those_of_the_svd():
  x = np.random.default_rng(0).normal(size=(40, 10))
  y = x @ align.principal(x.T @ x, 4)
  left, values, _ = np.linalg.svd(x, full_matrices=False)
  wanted = left[:, :4] * values[:4]
  assert np.abs(np.abs(y) - np.abs(wanted)).max() < 1e-10


def _moments(parts, weights, dims):
  """Q and P_i, a word at a time."""
  gram, moments = np.zeros((sum(dims),) * 2), [np.zeros((d, d)) for d in dims]
  for w, mine in enumerate(weights):
    side = [a * m[w] for a, m in zip(mine, parts, strict=True)]
    gram += np.outer(np.concatenate(side), np.concatenate(side)) / mine.sum()
    for i, m in enumerate(parts):
      moments[i] += mine[i] * np.outer(m[w], m[w])
  return gram, moments


def test_lengths_that_averaging_took_are_restored():
  dims = (6, 5, 6)
  _, parts, has = _parts(0, 300, dims, 5, 0.3, 0.6)
  weights = has * np.random.default_rng(1).uniform(0.5, 2, has.shape)
  gram, moments = _moments(parts, weights, dims)
  turns, _ = align.alir(gram, dims, 5, 'zero', 9, 1e-6)
  outer = align.length_correction(gram, moments, turns)
  assert np.abs(outer - outer.T).max() < 1e-12
  split = np.split(turns, np.cumsum(dims)[:-1])
  y = _mean(parts, weights, split)
  mass = weights.sum(1, keepdims=True)
  directions = np.linalg.eigh(y.T @ (mass * y))[1]
  for direction in directions.T:
    total = sum(
      weights[w, i] * (m[w] @ split[i] @ direction) ** 2
      for i, m in enumerate(parts)
      for w in range(len(weights))
    )
    before = np.sum(mass[:, 0] * (y @ direction) ** 2)
    after = np.sum(mass[:, 0] * (y @ outer @ direction) ** 2)
    assert before < 0.95 * total
    assert after == pytest.approx(total, rel=1e-9)


def test_parts_that_agree_are_left_as_they_are():
  dims = (8, 9, 8)  # the second has a direction that nobody knows of
  _, parts, has = _parts(0, 300, dims, 8, 0.3, 0.0)
  gram, moments = _moments(parts, has.astype(np.float64), dims)
  turns, _ = align.alir(gram, dims, 9, 'zero', 9, 1e-9)
  outer = align.length_correction(gram, moments, turns)
  split = np.split(turns, np.cumsum(dims)[:-1])
  y = _mean(parts, has, split)
  assert np.abs(y @ outer - y).max() < 1e-6 * np.abs(y).max()
  # And rounding is not blown up to anything.
  assert np.abs(np.linalg.eigvalsh(outer)).max() <= np.sqrt(3) + 1e-9


def test_directions_that_no_word_has_keep_their_length():
  rng = np.random.default_rng(3)
  rows = rng.normal(size=(3, 6))  # of six directions three
  square, nothing = rows.T @ rows, 1e-15 * np.eye(6)
  q = np.tile(square / 2 + nothing, (2, 2))
  turns = np.concatenate([np.eye(6)] * 2)
  outer = align.length_correction(q, [square + 4 * nothing] * 2, turns)
  np.testing.assert_allclose(outer, np.eye(6), 0, 1e-9)


def test_gram_is_exact_in_float64():
  # A float32 sum would lose what single rows add.
  rows = np.full((300, 2), 1e-3, np.float32)
  rows[0] = 3e2
  total = np.zeros((2, 2))
  for row in rows:
    align.add_gram(total, row[None])
  wanted = rows.astype(np.float64).T @ rows
  assert np.abs(total - wanted).max() < 1e-9
