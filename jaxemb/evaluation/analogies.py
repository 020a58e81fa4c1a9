"""Word analogies on the device: 3CosAdd and 3CosMul in one pass.

Levy and Goldberg 2014, "Linguistic Regularities in Sparse and Explicit Word
Representations", equations 3 and 4: d maximises

    3CosAdd  cos(d, b) - cos(d, a) + cos(d, c)
    3CosMul  cos(d, b) cos(d, c) / (cos(d, a) + 1e-6), cosines moved to [0, 1]

Questions share few words (905 in the 19,544 of Mikolov et al. 2013): the table
is multiplied with these once, block by block, and a question combines three
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
  """Returns whether 3CosAdd and 3CosMul are right, [questions, 2] bool.

  Searches [vocab, dim] float32 vectors, perhaps memory-mapped, of lengths
  `norms` [vocab]; cosines with zero vectors are 0. `questions` [questions, 4]
  are rows of a, b, c and the expected answer; `spellings` lists all rows of a
  word by one of them, if there are several. The words of the question, in any
  spelling, are no answers, and a tie is wrong.
  """
  if len(questions) == 0:
    return np.zeros((0, 2), bool)
  rows, indices = np.unique(questions, return_inverse=True)
  indices = indices.reshape(questions.shape)
  lists = [spellings.get(int(row), [int(row)]) for row in rows]
  spelled = np.full((len(rows), max(map(len, lists))), _NO_ROW, np.int32)
  for i, spelling in enumerate(lists):
    spelled[i, : len(spelling)] = spelling
  words = geometry.unit(vectors[rows], norms[rows])
  padded = np.pad(indices, ((0, -len(indices) % _BLOCK_QUESTIONS), (0, 0)))
  blocks = tuple(
    x.reshape(-1, _BLOCK_QUESTIONS, x[0].size)
    for x in (padded[:, :3], spelled[padded[:, 3]], spelled[padded])
  )
  # Scores of the expected answer and all other words, by 3CosAdd and 3CosMul.
  best = np.full((*blocks[0].shape[:2], 2, 2), -np.inf, np.float32)
  size = min(_BLOCK_ROWS, len(vectors))
  for start in range(0, len(vectors), size):
    # The last block may overlap the one before, as it updates maxima.
    start = min(start, len(vectors) - size)
    part = slice(start, start + size)
    block = geometry.unit(vectors[part], norms[part])
    best = _search_block(
      best, questions=blocks, words=words, block=block, start=start
    )
  best = np.asarray(best).reshape(-1, 2, 2)[: len(questions)]
  is_asked = (indices[:, :3] == indices[:, 3:]).any(axis=1)
  return (best[:, 0] > best[:, 1]) & ~is_asked[:, None]


@functools.partial(jax.jit, donate_argnums=0)
def _search_block(
  best: jax.Array,
  questions: tuple[jax.Array, jax.Array, jax.Array],
  words: jax.Array,
  block: jax.Array,
  start: jax.Array,
) -> jax.Array:
  """Updates the highest scores, `best` [blocks, questions, 2, 2], with a block.

  The block [rows, dim] has the rows from `start` on. Questions are the indices
  in `words` [words, dim] of a, b and c, and rows of the expected answer and of
  all four words in every spelling. All vectors have length 1.
  """
  cosines = jnp.matmul(words, block.T, precision=jax.lax.Precision.HIGHEST)
  size = len(block)

  def inside(rows: jax.Array) -> jax.Array:
    """Returns indices in this block; those of other rows are out of range."""
    rows = rows - start
    return jnp.where((rows >= 0) & (rows < size), rows, size)

  def score_questions(item):
    best, (asked, expected, excluded) = item
    a, b, c = (cosines[asked[:, i]] for i in range(3))
    expected = inside(expected)
    take = functools.partial(
      jnp.take_along_axis, indices=expected, axis=1, mode='fill', fill_value=0
    )
    answers = _scores(take(a), take(b), take(c))
    answers = jnp.where((expected < size)[:, None], answers, -jnp.inf)
    # A cosine of +inf with `a` ranks a word last by both measures.
    index = jnp.arange(len(a))[:, None]
    a = a.at[index, inside(excluded)].set(jnp.inf, mode='drop')
    scores = answers.max(-1), _scores(a, b, c).max(-1)
    return jnp.maximum(best, jnp.stack(scores, 1))

  return jax.lax.map(score_questions, (best, questions))


def _scores(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
  """Returns 3CosAdd and 3CosMul of words by cosines, [questions, 2, words]."""
  return jnp.stack([b + c - a, (1 + b) * (1 + c) / (1 + a + 2e-6)], 1)
