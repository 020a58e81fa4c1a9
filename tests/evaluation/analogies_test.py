"""3CosAdd and 3CosMul against a float64 loop."""

import numpy as np
import pytest

from jaxemb.evaluation import analogies


def _loop(vectors, questions, spellings):
  """Both answers by the definitions, one question at a time."""
  vectors = vectors.astype(np.float64)
  norms = np.linalg.norm(vectors, axis=1)
  unit = vectors / np.where(norms > 0, norms, 1)[:, None]
  rows_of = lambda row: spellings.get(row, [row])  # noqa: E731
  right = []
  for a, b, c, d in questions.tolist():
    cosines = unit @ unit[[a, b, c]].T
    moved = (1 + cosines) / 2
    scores = [
      cosines[:, 1] + cosines[:, 2] - cosines[:, 0],
      moved[:, 1] * moved[:, 2] / (moved[:, 0] + 1e-6),
    ]
    answers = []
    for score in scores:
      score[rows_of(a) + rows_of(b) + rows_of(c)] = -np.inf
      answers.append(int(score.argmax()) in rows_of(d))
    right.append(answers)
  return np.array(right)


def _solve(vectors, questions, spellings):
  norms = np.linalg.norm(vectors, axis=1)
  return analogies.solve(vectors, norms, np.array(questions), spellings)


@pytest.mark.parametrize(
  ('block_rows', 'num_words', 'num_questions', 'has_spellings'),
  [
    (analogies._BLOCK_ROWS, 2 * analogies._BLOCK_ROWS + 77, 261, False),
    # A word outside the block must neither win nor be taken out in it.
    (4, 42, 400, False),
    (50, 60, 100, True),
  ],
)
def test_equals_loop(
  monkeypatch, block_rows, num_words, num_questions, has_spellings
):
  monkeypatch.setattr(analogies, '_BLOCK_ROWS', block_rows)
  rng = np.random.default_rng(num_words)
  vectors = rng.normal(size=(num_words, 8)).astype(np.float32)
  questions = rng.integers(num_words, size=(num_questions, 4))
  questions[7, 3] = questions[7, 0]
  # Every other answer is moved to where it can be found.
  a, b, c, d = questions[::2].T
  target = vectors[b] + vectors[c] - vectors[a]
  vectors[d] = target + rng.normal(size=target.shape) * 0.5
  spellings = {}
  if has_spellings:
    questions %= 20
    spellings = {row: [row, row + 20, row + 40] for row in range(0, 20, 3)}
    spellings |= {row: [row, row + 20] for row in range(1, 20, 3)}
  right = _solve(vectors, questions, spellings)
  assert 0 < right[:, 0].sum() < num_questions
  assert (right[:, 0] != right[:, 1]).any()
  np.testing.assert_array_equal(right, _loop(vectors, questions, spellings))


def test_ties_and_vectors_of_length_zero_are_no_answers():
  ones = np.ones((6, 3), np.float32)
  assert not _solve(ones, [[0, 1, 2, 3]], {}).any()
  vectors = np.eye(5, 4, dtype=np.float32)
  vectors[3] = [-1, 1, 1, 0]
  right = _solve(vectors, [[0, 1, 2, 3], [0, 1, 2, 4]], {})
  assert right.tolist() == [[True, True], [False, False]]
  assert _solve(vectors, np.zeros((0, 4), int), {}).shape == (0, 2)
