"""The buffers of a call of a word2vec kernel (`turns`), as kernels take them.

Arguments that are only read are `left` and `right` [k, c] uint8, the contexts
on both sides of each center, at most W; then

  numbers     [3 + W] float32, learning rate, parameter of the optimizer (of SGD
              occurrences of a row in a chunk that count, 0 = all; of Adagrad
              epsilon), K, and what a context counts, by its distance
  integers    [13] int32, `descent.SGD` or `ADAGRAD`; the key of stochastic
              rounding, and whether there is any; whether hierarchical softmax
              averages: CBOW; N; the key of the draws; entries of the alias
              table, 0 = draws are given; the number of `descent`, 0 = none;
              uses after which a thread merges its local copy of a tree's node,
              or of the row of an n-gram, into the table; how many of the first
              ones have such copies;
              with subwords the most n-grams of a word
  brakes      those of `rows.Table`, of inputs, outputs and n-grams, if any
  tokens      [P, L' + 2 W] int32, of runs of k / P chunks each
  chunks      [k] uint32, their numbers among the chunks that draw with the key
  more        `ops.sampling.Alias.lines`, or draws [k, N]; of a tree `exits`,
              `firsts` and `deep` of `ops.huffman.Split`; with subwords
              `starts` and `rows` of `models.subwords.WordRows` behind the draws

Changed are the vectors of all tables and then their optimizer states. Kernels
write the loss, in nats, and the number of its examples.
"""

import math

import numba
import numpy as np

from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import rows, turns

# A loss takes longer than all else of a chunk: each 64th chunk has one.
LOSS_EVERY_CHUNKS = 64
LEFT, RIGHT, NUMBERS, INTEGERS, BRAKES = range(turns.READ, turns.READ + 5)
INPUTS, OUTPUTS, NGRAMS = range(3)  # numbers of tables
NUM_TABLES = 3
TOKENS, CHUNKS, MORE = range(BRAKES + NUM_TABLES, BRAKES + NUM_TABLES + 3)
VECTORS = turns.RESULTS


@numba.njit(**rows.INLINE)
def table(frame, number, kind):
  """The table of a number."""
  numbers = ffi.vector(frame, ffi.ARGUMENTS, NUMBERS, np.float32)
  integers = ffi.vector(frame, ffi.ARGUMENTS, INTEGERS, np.int32)
  descent = np.uintp(integers[9])
  return rows.Table(
    ffi.matrix(frame, ffi.RESULTS, VECTORS + number, kind),
    numbers[0],
    numbers[1],
    ffi.vector(frame, ffi.ARGUMENTS, BRAKES + number, np.float32),
    ffi.address(descent) if descent else np.uintp(0),
    frame,
    number,
  )


@numba.njit(**rows.INLINE)
def arrays(frame, kind):
  """The tables of inputs and outputs, `left` and `right`."""
  left = ffi.matrix(frame, ffi.ARGUMENTS, LEFT, np.uint8)
  right = ffi.matrix(frame, ffi.ARGUMENTS, RIGHT, np.uint8)
  inputs, outputs = table(frame, INPUTS, kind), table(frame, OUTPUTS, kind)
  return inputs, outputs, left, right


@numba.njit(**rows.JIT)
def find_window(tokens, chunk, num_chunks, i):
  """The run that chunk i is of, and where its window begins there."""
  per_run = num_chunks // tokens.shape[0]
  return i // per_run, i % per_run * chunk


@numba.njit(**rows.JIT)
def measure(scores, weights):
  """The loss, in nats, whose derivative is `rows.slopes`."""
  total = 0.0
  for x in range(weights.shape[0]):
    for j in range(weights.shape[1]):
      weight, score = weights[x, j], scores[x, j]
      if weight:
        score = -score if weight < 0 else score
        loss = max(score, 0.0) + math.log1p(math.exp(-abs(score)))
        total += abs(weight) * loss
  return total
