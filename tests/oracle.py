"""The truth: the same mathematics in float64, one word and one pair at a time.

Nothing here is clever. Losses walk over centers, over their contexts, over the
draws of their chunk; optimizers walk over occurrences and rows. A step is what
`data.windows.StepBatch` holds, as NumPy arrays, run by run; ids behind the
vocabulary are padding.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

INPUT, OUTPUT, NGRAMS = 'input', 'output', 'ngrams'


class Step(NamedTuple):
  """What one step of a model amounts to."""

  loss: float  # nats, summed
  examples: float
  # By table: the rows looked up, and d loss / d row of every occurrence.
  ids: dict[str, list[int]]
  grads: dict[str, np.ndarray]  # [n, dim]


def sigmoid(x: float) -> float:
  """1 / (1 + e^-x)."""
  if x >= 0:
    return 1 / (1 + math.exp(-x))
  return math.exp(x) / (1 + math.exp(x))


def logistic_loss(score: float, label: int) -> float:
  """-log sigmoid(score) for label 1, -log sigmoid(-score) for label 0."""
  return float(np.logaddexp(0, -score if label else score))


def log_chance(vector, outputs, word: int, paths=None, negatives=()) -> float:
  """Log P(word | vector), by its path or by (word, weight) negatives."""
  terms = [(word, 1, 1.0), *((other, 0, weight) for other, weight in negatives)]
  if paths is not None:
    points, codes, lengths = (x[word] for x in paths)
    steps = zip(points[:lengths], codes[:lengths], strict=True)
    terms = [(point, 1 - int(code), 1.0) for point, code in steps]
  return -sum(w * logistic_loss(outputs[n] @ vector, x) for n, x, w in terms)


def random_bits(key, counter: int) -> int:
  """`ops.sampling.random_bits` of one counter."""

  def mix(x):
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) % 2**32
    x = ((x ^ (x >> 15)) * 0x735A2D97) % 2**32
    return x ^ (x >> 15)

  first = mix((counter * 0x9E3779B9 + int(key[0])) % 2**32)
  return mix(first ^ int(key[1]))


def row(table: np.ndarray, word: int) -> np.ndarray:
  """The row of a word; padding gives the last row."""
  return table[min(word, len(table) - 1)]


def contexts(i: int, left: np.ndarray, right: np.ndarray) -> list[int]:
  """Offsets from center i to its contexts, in order."""
  return [o for o in range(-int(left[i]), int(right[i]) + 1) if o]


def _window_step(
  is_cbow, tokens, left, right, draws, tables, window, chunk, negatives,
  weights, ngrams=None,
) -> Step:  # fmt: skip
  """Negative sampling, example by example.

  Args:
    is_cbow: the mean of its contexts predicts a center, instead of the center
      each of them.
    tokens: [P, L' + 2 W] int, by run, with a halo of W on both sides.
    left: [P, L'] int, contexts before each center.
    right: [P, L'] int, contexts behind it.
    draws: by chunk of all runs, the words that its centers share as negatives.
    tables: {name: [vocab, dim] float64}.
    window: W.
    chunk: c, centers per chunk.
    negatives: K per example.
    weights: of examples by the distance of the context, from 1 on; () = 1 each.
    ngrams: rows of the n-grams of each word, by which words are means of rows,
      all of which get the whole gradient; None = words have a row each.

  Returns:
    A `Step`. Input occurrences are the centers, of CBOW the windows of the
    chunks; output occurrences, chunk by chunk, the window, of CBOW the centers,
    and then the draws.
  """
  dim, width = tables[INPUT].shape[1], chunk + 2 * window
  loss, examples = 0.0, 0
  names = (INPUT, OUTPUT) if ngrams is None else (INPUT, OUTPUT, NGRAMS)
  all_ids, all_grads = {k: [] for k in names}, {k: [] for k in names}
  for k, drawn in enumerate(draws):
    run, first = divmod(k * chunk, len(left[0]))
    around = [int(word) for word in tokens[run][first:][:width]]
    centers = around[window : window + chunk]
    inputs, targets = (around, centers) if is_cbow else (centers, around)
    ids = {INPUT: inputs, OUTPUT: targets + [int(word) for word in drawn]}
    rows_of = [[(INPUT, place)] for place in range(len(inputs))]
    if ngrams is not None:
      ids[NGRAMS] = []
      for place, word in enumerate(inputs):
        for ngram in ngrams[word] if word < len(ngrams) else ():
          rows_of[place].append((NGRAMS, len(ids[NGRAMS])))
          ids[NGRAMS].append(int(ngram))
    grads = {name: [np.zeros(dim) for _ in x] for name, x in ids.items()}
    for c in range(chunk):
      offsets = contexts(first + c, left[run], right[run])
      places = [window + c + offset for offset in offsets]
      if is_cbow:
        pairs = [(places, c, 1.0)] if places else []
      else:
        pairs = [
          ([c], place, weights[abs(offset) - 1] if weights else 1.0)
          for place, offset in zip(places, offsets, strict=True)
        ]
      examples += sum(pair_weight for *_, pair_weight in pairs)
      for sources, target, pair_weight in pairs:
        averaged = [x for source in sources for x in rows_of[source]]
        hidden = np.mean([row(tables[k], ids[k][x]) for k, x in averaged], 0)
        hidden_grad = np.zeros(dim)
        terms = [(target, 1, 1.0)]
        for place, word in enumerate(drawn, len(targets)):
          if word != targets[target]:
            terms.append((place, 0, negatives / len(drawn)))
        for place, label, weight in terms:
          weight *= pair_weight
          other = row(tables[OUTPUT], ids[OUTPUT][place])
          score = float(hidden @ other)
          loss += weight * logistic_loss(score, label)
          slope = weight * (sigmoid(score) - label)
          hidden_grad += slope * other
          grads[OUTPUT][place] += slope * hidden
        fraction = 1 / len(sources) if ngrams is None else 1
        for name, place in averaged:
          grads[name][place] += fraction * hidden_grad
    for name in ids:
      all_ids[name] += ids[name]
      all_grads[name] += grads[name]
  all_grads = {k: np.array(x).reshape(-1, dim) for k, x in all_grads.items()}
  return Step(loss, examples, all_ids, all_grads)


skipgram = functools.partial(_window_step, False)
cbow = functools.partial(_window_step, True)


def tree(is_cbow, words, tables, path) -> Step:
  """Hierarchical softmax of one center.

  Args:
    is_cbow: the mean of the contexts predicts the center, instead of each.
    words: ids of its contexts; input occurrences.
    tables: {name: [vocab or nodes, dim] float64}.
    path: (node, code) pairs from the root; nodes are output occurrences.

  Returns:
    A `Step`.
  """
  nodes, dim = [int(node) for node, _ in path], tables[INPUT].shape[1]
  ids = {INPUT: [int(word) for word in words], OUTPUT: nodes}
  grads = {name: np.zeros((len(x), dim)) for name, x in ids.items()}
  places, loss = [*range(len(words))], 0.0
  examples = [places] if is_cbow and places else [[x] for x in places]
  for sources in examples:
    hidden = np.mean([tables[INPUT][words[x]] for x in sources], 0)
    hidden_grad = np.zeros(dim)
    for place, (node, code) in enumerate(path):
      score = float(hidden @ tables[OUTPUT][node])
      label = 1 - int(code)
      loss += logistic_loss(score, label)
      slope = sigmoid(score) - label
      hidden_grad += slope * tables[OUTPUT][node]
      grads[OUTPUT][place] += slope * hidden
    for source in sources:
      grads[INPUT][source] += hidden_grad / len(sources)
  return Step(loss, len(examples), ids, grads)


# Row optimizers. They change `table` [vocab, dim] float64 and `slots`, a dict
# that starts empty, in place. What has `rounded` rounds a row whenever an
# occurrence was added to it.


def _present(table, ids, grads) -> dict[int, list[np.ndarray]]:
  """The gradients of every row that occurs, occurrence by occurrence."""
  present: dict[int, list[np.ndarray]] = {}
  for word, grad in zip(ids, grads, strict=True):
    if word < len(table):
      present.setdefault(int(word), []).append(np.asarray(grad, np.float64))
  return present


def _descend(table, word, each, rate, rounded):
  for grad in each:
    table[word] = rounded(table[word] - rate * grad)


def sgd(
  table, slots, ids, grads, learning_rate, max_duplicates, rounded=lambda x: x
):
  """The summed gradient, as if of at most `max_duplicates` occurrences."""
  del slots
  for word, each in _present(table, ids, grads).items():
    scale = 1.0
    if max_duplicates and len(each) > max_duplicates:
      scale = max_duplicates / len(each)
    _descend(table, word, each, learning_rate * scale, rounded)


def adagrad(
  table, slots, ids, grads, learning_rate, epsilon, rounded=lambda x: x
):
  """One accumulator a row, of the mean square of each occurrence."""
  for word, each in _present(table, ids, grads).items():
    for grad in each:
      slots[word] = slots.get(word, 0.0) + float(np.mean(grad * grad))
    root = math.sqrt(slots[word]) + epsilon
    _descend(table, word, each, learning_rate / root, rounded)


def adam(table, slots, ids, grads, learning_rate, beta1, beta2, epsilon):
  """Adam on the rows that occur, with one second moment and count a row."""
  for word, each in _present(table, ids, grads).items():
    mean, square, count = slots.get(word, (np.zeros(table.shape[1]), 0.0, 0))
    mean = beta1 * mean + (1 - beta1) * sum(each)
    squares = sum(float(np.mean(grad * grad)) for grad in each)
    square = beta2 * square + (1 - beta2) * squares
    count += 1
    slots[word] = mean, square, count
    root = math.sqrt(square / (1 - beta2**count)) + epsilon
    table[word] -= learning_rate * mean / (1 - beta1**count) / root


def adagrad_full(table, slots, ids, grads, learning_rate, epsilon):
  """One accumulator a number, of the square of a step's gradient."""
  for word, each in _present(table, ids, grads).items():
    grad = sum(each).astype(np.float64)
    slots[word] = slots.get(word, np.zeros(table.shape[1])) + grad * grad
    table[word] -= learning_rate * grad / (np.sqrt(slots[word]) + epsilon)


def adam_full(table, slots, ids, grads, learning_rate, beta1, beta2, epsilon):
  """Adam on the rows that occur, with two moments a number."""
  zeros = np.zeros(table.shape[1])
  for word, each in _present(table, ids, grads).items():
    grad = sum(each).astype(np.float64)
    mean, square, count = slots.get(word, (zeros, zeros, 0))
    mean = beta1 * mean + (1 - beta1) * grad
    square = beta2 * square + (1 - beta2) * grad * grad
    count += 1
    slots[word] = mean, square, count
    root = np.sqrt(square / (1 - beta2**count)) + epsilon
    table[word] -= learning_rate * mean / (1 - beta1**count) / root


# Material for tests.


def rotation(rng, size: int) -> np.ndarray:
  """A random orthogonal matrix [size, size]."""
  return np.linalg.qr(rng.normal(size=(size, size)))[0]


def cosines(rows: np.ndarray) -> np.ndarray:
  """[n, n], of all pairs of rows."""
  units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
  return units @ units.T


class Tokens(NamedTuple):
  """Tokens with their windows, as the loader packs them."""

  ids: np.ndarray  # [n + 2 W] int32
  left: np.ndarray  # [n] uint8
  right: np.ndarray  # [n] uint8


def pack(sentences, vocab: int, size: int, window: int, rng) -> Tokens:
  """Sentences without gaps, dynamic windows, then padding up to `size`."""
  ids = np.full(size + 2 * window, vocab, np.int32)
  left, right = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
  n = 0
  for sentence in sentences:
    for i, word in enumerate(sentence):
      if n == size:
        return Tokens(ids, left, right)
      reach = int(rng.integers(1, window + 1))
      ids[window + n] = word
      left[n] = min(reach, i)
      # A sentence cut at the end of the tokens has no contexts behind it.
      right[n] = min(reach, len(sentence) - 1 - i, size - 1 - n)
      n += 1
  return Tokens(ids, left, right)


def random_sentences(rng, vocab: int, num_words: int, lengths) -> list:
  """Sentences of `num_words` words in all; low ids are the frequent words."""
  sentences, n = [], 0
  while n < num_words:
    length = min(int(rng.choice(lengths)), num_words - n)
    words = np.minimum(rng.exponential(vocab / 3, length), vocab - 1)
    sentences.append(words.astype(np.int32))
    n += length
  return sentences


def middle(tokens: Tokens, first: int, length: int) -> Tokens:
  """`length` centers from `first` on, with their halo."""
  halo = len(tokens.ids) - len(tokens.left)
  return Tokens(
    tokens.ids[first : first + length + halo],
    tokens.left[first : first + length],
    tokens.right[first : first + length],
  )
