"""Word analogies on the device: 3CosAdd and 3CosMul in one pass.

Levy and Goldberg 2014, "Linguistic Regularities in Sparse and Explicit Word
Representations", equations 3 and 4: d maximises

    3CosAdd  cos(d, b) - cos(d, a) + cos(d, c)
    3CosMul  cos(d, b) cos(d, c) / (cos(d, a) + 1e-6), cosines moved to [0, 1]

Questions share few words (905 in the 19,544 of Mikolov et al. 2013): the table
is multiplied with those once, block by block, and a question combines three
rows of the product. The expected word must score higher than all others.
"""

import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.evaluation import geometry

_BLOCK_QUESTIONS = 256
_BLOCK_ROWS = 2048
_NO_ROW = np.iinfo(np.int32).max  # pads spellings


def solve(
  vectors: np.ndarray,
  norms: np.ndarray,
  questions: np.ndarray,
  spellings: Mapping[int, Sequence[int]],
) -> np.ndarray:
  """[questions, 2] bool: answered right by 3CosAdd, by 3CosMul.

  Searches [vocab, dim] float32 vectors, perhaps memory-mapped, of lengths
  `norms` [vocab]; cosines of length 0 are 0. `questions` [questions, 4] int are
  rows of a, b, c and of the expected answer; `spellings` has all rows of a word
  by that row, if there are several. The words of the question, in any spelling,
  are no answers, and a tie counts as wrong.
  """
  if len(questions) == 0:
    return np.zeros((0, 2), bool)
  rows, given = np.unique(questions, return_inverse=True)
  given = given.reshape(questions.shape)
  lists = [spellings.get(int(row), [int(row)]) for row in rows]
  spelled = np.full((len(rows), max(map(len, lists))), _NO_ROW, np.int32)
  for i, spelling in enumerate(lists):
    spelled[i, : len(spelling)] = spelling
  words = geometry.unit(vectors[rows], norms[rows])
  padded = np.pad(given, ((0, -len(given) % _BLOCK_QUESTIONS), (0, 0)))
  blocks = tuple(
    x.reshape(-1, _BLOCK_QUESTIONS, x[0].size)
    for x in (padded[:, :3], spelled[padded[:, 3]], spelled[padded])
  )
  # Of the expected answer and of all other words, by 3CosAdd and by 3CosMul.
  best = jnp.full((*blocks[0].shape[:2], 2, 2), -jnp.inf)
  size = min(_BLOCK_ROWS, len(vectors))
  for start in range(0, len(vectors), size):
    # The last block overlaps the one before: a maximum does not mind.
    start = min(start, len(vectors) - size)
    part = slice(start, start + size)
    block = geometry.unit(vectors[part], norms[part])
    best = _search_block(
      best, questions=blocks, words=words, block=block, start=start
    )
  best = np.asarray(best).reshape(-1, 2, 2)[: len(questions)]
  is_given = (given[:, :3] == given[:, 3:]).any(axis=1)
  return (best[:, 0] > best[:, 1]) & ~is_given[:, None]


@functools.partial(jax.jit, donate_argnums=0)
def _search_block(
  best: jax.Array,
  questions: tuple[jax.Array, jax.Array, jax.Array],
  words: jax.Array,
  block: jax.Array,
  start: jax.Array,
) -> jax.Array:
  """Updates the highest scores, `best` [blocks, questions, 2, 2], by a block.

  The block [rows, dim] is of rows from `start` on. Questions are the indices in
  `words` [words, dim] of a, b and c, and rows of the expected answer and of all
  four words in every spelling. All vectors have length 1.
  """
  cosines = jnp.matmul(words, block.T, precision=jax.lax.Precision.HIGHEST)
  size = len(block)

  def inside(rows: jax.Array) -> jax.Array:
    """Rows of this block; others are out of range."""
    rows = rows - start
    return jnp.where((rows >= 0) & (rows < size), rows, size)

  def score_questions(item):
    best, (given, expected, excluded) = item
    a, b, c = (cosines[given[:, i]] for i in range(3))
    expected = inside(expected)
    take = functools.partial(
      jnp.take_along_axis, indices=expected, axis=1, mode='fill', fill_value=0
    )
    answers = _scores(take(a), take(b), take(c))
    answers = jnp.where((expected < size)[:, None], answers, -jnp.inf)
    # A cosine of +inf with `a` puts a word last by both measures.
    each = jnp.arange(len(a))[:, None]
    a = a.at[each, inside(excluded)].set(jnp.inf, mode='drop')
    scores = answers.max(-1), _scores(a, b, c).max(-1)
    return jnp.maximum(best, jnp.stack(scores, 1))

  return jax.lax.map(score_questions, (best, questions))


def _scores(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
  """[questions, 2, words]: 3CosAdd and 3CosMul of words with these cosines."""
  return jnp.stack([b + c - a, (1 + b) * (1 + c) / (1 + a + 2e-6)], 1)
