"""Word analogies on the device: 3CosAdd and 3CosMul in one pass.

Levy and Goldberg 2014, "Linguistic Regularities in Sparse and Explicit Word
Representations", equations 3 and 4: d maximises

    3CosAdd  cos(d, b) - cos(d, a) + cos(d, c)
    3CosMul  cos(d, b) cos(d, c) / (cos(d, a) + 1e-6), cosines moved to [0, 1]

The questions share few words (905 in the 19,544 of Mikolov et al. 2013), so
the table is multiplied with those words once, block by block, and a question
only combines three rows of the product. Whether the answer is right needs no
argmax: the expected word must score higher than the best of the other words.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.evaluation import geometry

_BLOCK_QUESTIONS = 256
_BLOCK_ROWS = 2048
_NO_ROW = np.iinfo(np.int32).max


class _Questions(NamedTuple):
  """Questions in equal blocks; spellings are padded with `_NO_ROW`."""

  given: jax.Array  # [blocks, questions, 3] int32, a, b, c
  expected: jax.Array  # [blocks, questions, spellings] int32 rows of d
  excluded: jax.Array  # [blocks, questions, 4 * spellings] int32, a, b, c, d


class _Best(NamedTuple):
  """Highest scores so far, [blocks, questions, 2]: 3CosAdd and 3CosMul."""

  expected: jax.Array
  others: jax.Array


def solve(
  vectors: np.ndarray,
  norms: np.ndarray,
  questions: np.ndarray,
  spellings: Mapping[int, Sequence[int]],
) -> np.ndarray:
  """Which questions are answered right.

  The words of the question, in any spelling, are no answers. A tie with
  another word counts as wrong.

  Args:
    vectors: [vocab, dim] float32, the words to search; may be memory-mapped.
    norms: [vocab] float32, their lengths; a word of length 0 has cosine 0.
    questions: [questions, 4] int, rows of a, b, c and of the expected answer.
    spellings: all rows of a word, by its row in `questions`, for the words
      that have several (upper and lower case).

  Returns:
    [questions, 2] bool: by 3CosAdd, by 3CosMul.
  """
  num_questions, num_rows = len(questions), len(vectors)
  if num_questions == 0:
    return np.zeros((0, 2), bool)
  rows, given = np.unique(questions, return_inverse=True)
  given = given.reshape(questions.shape)
  lists = [spellings.get(int(row), [int(row)]) for row in rows]
  spelled = np.full((len(rows), max(map(len, lists))), _NO_ROW, np.int32)
  for i, spelling in enumerate(lists):
    spelled[i, : len(spelling)] = spelling
  blocks = _in_blocks(given, spelled)
  words = geometry.unit(vectors[rows], norms[rows])
  shape = (*blocks.given.shape[:2], 2)
  best = _Best(jnp.full(shape, -jnp.inf), jnp.full(shape, -jnp.inf))
  size = min(_BLOCK_ROWS, num_rows)
  for start in range(0, num_rows, size):
    # The last block overlaps the one before: a maximum does not mind.
    start = min(start, num_rows - size)
    part = slice(start, start + size)
    block = geometry.unit(vectors[part], norms[part])
    best = _search_block(best, blocks, words, block, start)
  is_right = np.asarray(best.expected > best.others)
  is_right = is_right.reshape(-1, 2)[:num_questions]
  is_given = (given[:, :3] == given[:, 3:]).any(axis=1)
  return is_right & ~is_given[:, None]


def _in_blocks(given: np.ndarray, spelled: np.ndarray) -> _Questions:
  padding = ((0, -len(given) % _BLOCK_QUESTIONS), (0, 0))
  given = np.pad(given, padding).astype(np.int32)
  num_blocks = len(given) // _BLOCK_QUESTIONS
  arrays = given[:, :3], spelled[given[:, 3]], spelled[given]
  return _Questions(
    *(x.reshape(num_blocks, _BLOCK_QUESTIONS, -1) for x in arrays)
  )


@functools.partial(jax.jit, donate_argnums=0)
def _search_block(
  best: _Best,
  questions: _Questions,
  words: jax.Array,
  block: jax.Array,
  start: jax.Array,
) -> _Best:
  """Takes one block of the table, [rows, dim], into the best scores."""
  cosines = jnp.matmul(words, block.T, precision=jax.lax.Precision.HIGHEST)
  size = len(block)

  def inside(rows: jax.Array) -> jax.Array:
    """Rows of this block; others are out of range."""
    rows = rows - start
    return jnp.where((rows >= 0) & (rows < size), rows, size)

  def score_questions(item: tuple[_Best, _Questions]) -> _Best:
    best, questions = item
    a, b, c = (cosines[questions.given[:, i]] for i in range(3))
    expected = inside(questions.expected)
    take = functools.partial(
      jnp.take_along_axis, indices=expected, axis=1, mode='fill', fill_value=0
    )
    answers = _scores(take(a), take(b), take(c))
    answers = [jnp.where(expected < size, x, -jnp.inf) for x in answers]
    # A cosine of +inf with `a` puts a word last by both measures.
    each = jnp.arange(len(a))[:, None]
    excluded = inside(questions.excluded)
    others = _scores(a.at[each, excluded].set(jnp.inf, mode='drop'), b, c)
    return _Best(
      jnp.maximum(best.expected, _row_maxima(answers)),
      jnp.maximum(best.others, _row_maxima(others)),
    )

  return jax.lax.map(score_questions, (best, questions))


def _scores(
  a: jax.Array, b: jax.Array, c: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """3CosAdd and 3CosMul of words with cosines a, b, c."""
  return b + c - a, (1 + b) * (1 + c) / (1 + a + 2e-6)


def _row_maxima(scores: Sequence[jax.Array]) -> jax.Array:
  """[rows, 2]: the largest of each row of each array."""
  return jnp.stack([x.max(axis=1) for x in scores], axis=-1)
