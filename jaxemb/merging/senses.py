"""Merges parts whose words have several vectors (senses).

Parts are rotated to each other by their words with one sense (`align`). There,
word by word, senses that are close and equally frequent are matched; matched
rows get one name, and are merged as if senses were words.

With x_ik the rotated vector of sense k in part i, p_ik its prior and c_i how
often part i saw the word, the senses of each part are permuted to

  maximize sum_{i < j} sum_k sqrt(n_ij min(p_ik, p_jk)) cos(x_ik, x_jk)

with n_ij = sqrt(c_i c_j): cosines, because the length of a vector tells how
often a sense was seen, weighted by the root of how often both parts saw it, as
sampling errors are. For one part this is an assignment problem. Parts join by
falling c_i, then each is assigned anew until none moves, as in generalized
Procrustes analysis; every move increases the sum.

A part votes on a sense by how often it saw the word times the prior. A word has
as many senses as in the part where it has most. Priors are averages over the
parts in which the word has several senses, if any. What disambiguates senses is
merged with them. Outputs are rotated inversely, so that inner products stay;
those of a Huffman tree only if all parts have the same one. Mean contexts m are
means of unit vectors u of words: matrices B_i that map the parts' unit vectors
to those of the result, by least squares over all words, also map the means,

  u = sum_i a_i u_i B_i    and so    m = sum_i a_i m_i B_i

with the shares a_i of the votes on a word, or on a sense. B_i holds rotation,
scaling, and how much longer unit vectors are than means of several.
"""

import dataclasses
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from jaxemb.evaluation import geometry
from jaxemb.merging import align
from jaxemb.merging import merge as merge_lib
from jaxemb.merging import parts as parts_lib
from jaxemb.ops import huffman
from jaxemb.senses import table

_ALIGN_WORDS = 5  # words with one sense that two parts share, per dimension
_BLOCK_BYTES = 1 << 26  # of pairs of senses
_MAX_ROUNDS = 20
_ROUNDING = 1e-9  # relative to the sum of all weights
# Fit of the maps of mean contexts: words (the most frequent), words at a time,
# and ridge relative to the mean square of a column.
_FIT_WORDS, _FIT_BLOCK, _RIDGE = 100_000, 4096, 1e-6


class _Part(NamedTuple):
  """A part as a table of senses; words with one vector have one sense."""

  part: parts_lib.Part
  words: Sequence[str]  # [vocab]
  starts: np.ndarray  # [vocab + 1] int64, first row of each word
  priors: np.ndarray  # [rows] float32
  counts: np.ndarray | None  # [vocab] int64, by the part; None = unknown

  def by_word(self, ids: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[vocab] float64, values [words] of all words; 0 = no vote on the word."""
    result = np.zeros(len(self.words))
    result[ids[ids >= 0]] = values[ids >= 0]
    return result

  def by_row(self, ids: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[rows] float64, `by_word` for each sense."""
    return np.repeat(self.by_word(ids, values), np.diff(self.starts))

  def means(self) -> '_Means':
    """[vocab, dim], the means of senses."""
    return _Means(self.part.vectors.open, self.starts, self.priors)


@dataclasses.dataclass(frozen=True)
class _Means:
  """Means of senses weighted by priors; read like `parts.Rows`."""

  open: Callable[[], np.ndarray]
  starts: np.ndarray
  priors: np.ndarray

  @property
  def shape(self) -> tuple[int, int]:
    return len(self.starts) - 1, self.open().shape[1]

  def read(self, ids: np.ndarray, out: np.ndarray) -> None:
    """Reads rows [b] into out [b, dim]; zeros for negative ids."""
    rows, words = self.open(), np.maximum(ids, 0)
    starts = self.starts[words]
    sizes = np.where(ids >= 0, self.starts[words + 1] - starts, 0)
    out[:] = 0
    for k in range(int(sizes.max(initial=0))):
      has = sizes > k
      at = starts[has] + k
      out[has] += self.priors[at, None] * rows[at]

  def units(self, ids: np.ndarray) -> np.ndarray:
    """[b, dim] float32, of length 1; zeros for negative ids."""
    out = np.empty((len(ids), self.shape[1]), np.float32)
    self.read(ids, out)
    return geometry.unit(out)


class _Words(NamedTuple):
  """The words of all parts, the most frequent first."""

  names: list[str]  # [words]
  counts: np.ndarray  # [words] int64; all 1 = unknown
  starts: np.ndarray  # [words + 1] int64, rows of the result
  ids: np.ndarray  # [n, words] int64, word of each part; -1 = no vote
  votes: np.ndarray  # [n, words] float64
  sizes: np.ndarray  # [n, words] int64, senses in each part
  is_one_vocabulary: bool  # all parts have the same words and counts


class _Matched(NamedTuple):
  """The row of the result of each row of each part; -1 = none."""

  targets: list[np.ndarray]  # [rows of the part] int64
  report: dict[str, Any]


def merge(
  parts: Sequence[parts_lib.Part],
  spec: merge_lib.Spec,
  folder: pathlib.Path | None = None,
  skip_bad: bool = False,
  progress: merge_lib.Progress = lambda what, done, total: None,
) -> merge_lib.Merged:
  """Merges parts whose words have one vector or several.

  Args:
    parts: at least two.
    spec: how to merge.
    folder: where to write the result; None = it stays in memory.
    skip_bad: whether to leave out parts that are empty or not finite.
    progress: called per block of words.

  Raises:
    errors.UserError: parts cannot be used or have no words in common.
  """
  from jaxemb.runtime import resources  # imports JAX

  started = time.monotonic()
  parts, skipped = parts_lib.check_all(parts, skip_bad)
  if all(part.senses is None for part in parts):
    merged = merge_lib.merge_rows(parts, spec, folder, progress)
  else:
    merged = _merge_senses(parts, spec, folder, progress)
  left_out = [f'left out: {x["reason"]}' for x in skipped]
  report = merged.report | {
    'skipped': skipped,
    'warnings': left_out + merged.report['warnings'],
    'merge_secs': time.monotonic() - started,
    'peak_rss_bytes': resources.peak_rss_bytes(),
  }
  return merged._replace(report=report)


def _merge_senses(
  parts: Sequence[parts_lib.Part],
  spec: merge_lib.Spec,
  folder: pathlib.Path | None,
  progress: merge_lib.Progress,
) -> merge_lib.Merged:
  merge_lib.check_columns([part.dim for part in parts])
  tables = [_table(part) for part in parts]
  words = _unite(tables, spec.weights == 'counts')
  rotations, report = _rotations(tables, words, spec, progress)
  matched = _match_parts(tables, words, rotations, progress)
  names = table.row_names(words.names, words.starts)
  renamed = [
    _renamed(*args, names)
    for args in zip(tables, words.ids, words.votes, matched.targets,
                    strict=True)
  ]  # fmt: skip
  merged = merge_lib.merge_rows(renamed, spec, folder, progress, names)
  rows = {name: i for i, name in enumerate(names)}
  kept = np.array([rows[name] for name in merged.words])
  senses = _senses(tables, words, matched.targets, kept, merged.vectors)
  warnings = []
  obstacle = _contexts_obstacle(parts)
  if not obstacle:
    contexts = _contexts(tables, words, matched.targets, senses, kept)
    senses = dataclasses.replace(senses, contexts=contexts)
  elif any(x.senses is not None and x.senses.contexts for x in parts):
    warnings.append(
      'mean contexts are left out, and senses are disambiguated by '
      f'likelihoods, if at all: {obstacle}'
    )
  obstacle = _outputs_obstacle(parts, words, spec)
  if not obstacle:
    senses = dataclasses.replace(
      senses,
      outputs=_outputs(parts, words, spec, merged, folder, progress),
      loss=parts[0].senses.loss,
      negatives=parts[0].senses.negatives,
    )
  else:
    ending = '; sentences cannot be disambiguated'
    ending = '' if senses.can_disambiguate else ending
    warnings.append(f'outputs are left out: {obstacle}{ending}')
  report |= matched.report | {
    'outputs': senses.outputs is not None,
    'contexts': senses.contexts is not None,
    'lost_senses': len(names) - len(kept),
  }
  warnings += _warnings(report, parts)
  return merged._replace(
    words=senses.names(),
    counts=senses.by_row(senses.counts),
    report=merged.report
    | {
      'words': len(senses.words),
      'senses': report,
      'warnings': merged.report['warnings'] + warnings,
    },
    senses=senses,
  )


def of_words(part: parts_lib.Part) -> parts_lib.Part:
  """The part with one vector for each word, the mean of its senses."""
  if part.senses is None:
    return part
  found = _table(part)
  return part._replace(
    words=found.words,
    vectors=parts_lib.as_rows(part.senses.mean_vectors()),
    counts=found.counts,
    senses=None,
  )


def line(report: Mapping[str, Any]) -> str:
  """One line about the senses of a report."""
  text = f'senses: {report["words"]:,} words have several'
  if report['cosine_matched'] is None:
    return text
  return (
    f'{text}; mean cosine of matched ones {report["cosine_matched"]:.3f}, with '
    f'the same weights {report["cosine_in_order"]:.3f} in the order of the '
    'parts'
  )


def _table(part: parts_lib.Part) -> _Part:
  senses, counts = part.senses, part.counts
  if senses is None:
    num = len(part.words)
    return _Part(part, part.words, np.arange(num + 1), np.ones(num), counts)
  starts = np.asarray(senses.starts, np.int64)
  if counts is not None:
    counts = np.maximum.reduceat(counts, starts[:-1])
  return _Part(part, senses.words, starts, senses.priors, counts)


def _unite(tables: Sequence[_Part], by_counts: bool) -> _Words:
  """The words of all parts; they vote by counts, if all are known, or alike."""
  union = parts_lib.unite_words(
    [parts_lib.Part(x.part.name, x.words, x.part.vectors) for x in tables]
  )
  ids = union.rows.astype(np.int64)
  seen = (ids >= 0).astype(np.float64)
  is_known = all(x.counts is not None for x in tables)
  for i, each in enumerate(tables):
    if each.counts is not None:
      seen[i] *= each.counts[np.maximum(ids[i], 0)]
  # All parts vote on words that none has seen: they are as initialised.
  seen = np.where(seen.any(0), seen, ids >= 0)
  ids = np.where(seen > 0, ids, -1)
  votes = seen if by_counts and is_known else (ids >= 0).astype(np.float64)
  first = tables[0].part.senses
  is_one_vocabulary = first is not None and all(
    x.part.senses is not None
    and x.words == first.words
    and np.array_equal(x.part.senses.counts, first.counts)
    for x in tables
  )
  counts = seen.sum(0).astype(np.int64)
  if is_one_vocabulary:
    counts = np.asarray(first.counts)[ids.max(0)]
    order = np.argsort(ids.max(0))
  elif is_known:
    order = np.argsort(-counts, kind='stable')
  else:
    counts, order = np.ones_like(counts), np.arange(len(counts))
  ids, votes = ids[:, order], votes[:, order]
  sizes = np.stack(
    [
      np.where(mine >= 0, np.diff(x.starts)[np.maximum(mine, 0)], 0)
      for x, mine in zip(tables, ids, strict=True)
    ]
  )
  return _Words(
    [union.words[i] for i in order.tolist()],
    counts[order],
    np.append(0, np.cumsum(sizes.max(0))),
    ids,
    votes,
    sizes,
    is_one_vocabulary,
  )


def _rotations(
  tables: Sequence[_Part],
  words: _Words,
  spec: merge_lib.Spec,
  progress: merge_lib.Progress,
) -> tuple[list[np.ndarray], dict[str, Any]]:
  """[D_i, dim] float64 of each part into a common space; and for the report."""
  dims = [x.part.dim for x in tables]
  parts = [
    parts_lib.Part(x.part.name, x.words, x.means(), votes=x.by_word(*args))
    for x, *args in zip(tables, words.ids, words.votes, strict=True)
  ]
  has, chosen = words.ids >= 0, np.arange(words.ids.shape[1])
  merge_lib.check_words(parts, has, 'alir')
  is_single = (words.sizes <= 1).all(0)
  shared = np.array([[np.sum(a & b & is_single) for b in has] for a in has])
  enough = _ALIGN_WORDS * np.minimum.outer(np.array(dims), np.array(dims))
  by_single = len(merge_lib.components(shared >= enough)) == 1
  if by_single:
    chosen = np.flatnonzero(is_single)
  fitted = align.fit_words(has[:, chosen], spec.align_words, dims)
  chosen = chosen if fitted is None else chosen[fitted]
  job = merge_lib.SideBySide(
    parts, words.ids, False, spec.normalize, spec.block_rows, progress
  )
  solved = align.alir(
    job.gram(chosen), dims, max(dims), 'zero', spec.max_iterations,
    spec.tolerance,
  )  # fmt: skip
  return solved.per_part(dims), {
    'turned_by': 'words of one sense' if by_single else 'means of senses',
    'turned_by_words': len(chosen),
  }


def _match_parts(
  tables: Sequence[_Part],
  words: _Words,
  rotations: Sequence[np.ndarray],
  progress: merge_lib.Progress,
) -> _Matched:
  """Matches the senses of all words that several parts have."""
  targets = [_in_order(*x, words) for x in zip(tables, words.ids, strict=True)]
  sizes = np.diff(words.starts)
  is_open = (sizes > 1) & ((words.sizes > 0).sum(0) > 1)
  done = rounds = moved = 0
  cosines_of = [np.zeros((2, 0))]
  for size in np.unique(sizes[is_open]).tolist():
    chosen = np.flatnonzero(is_open & (sizes == size))
    each = len(tables) * size
    each_bytes = 8 * each * (3 * each + 2 * rotations[0].shape[1])
    num_blocks = -(-len(chosen) * each_bytes // _BLOCK_BYTES)
    for block in np.array_split(chosen, min(num_blocks, len(chosen))):
      progress('matching senses', done, int(is_open.sum()))
      rows, pairs = _pairs(tables, words, rotations, block, size)
      places, num_rounds = match(pairs, words.votes[:, block].T)
      rounds, done = max(rounds, num_rounds), done + len(block)
      in_order = np.broadcast_to(np.arange(size), places.shape)
      cosines_of.append(
        np.stack([cosines(pairs, x, places) for x in (places, in_order)])
      )
      moved += int(np.sum((rows >= 0) & (places != in_order)))
      firsts = words.starts[block][:, None]
      for i, mine in enumerate(targets):
        has = rows[:, i] >= 0
        mine[rows[:, i][has]] = (firsts + places[:, i])[has]
  progress('matching senses', done, done)
  means = [
    float(np.mean(x)) if len(x) else None for x in np.concatenate(cosines_of, 1)
  ]
  has_fewer = np.sum((words.sizes > 0) & (words.sizes < sizes), 0) > 0
  return _Matched(
    targets,
    {
      'words': int(np.sum(sizes > 1)),
      'rows': int(sizes.sum()),
      'matched_words': int(is_open.sum()),
      'matching_rounds': rounds,
      'moved_senses': moved,
      'cosine_matched': means[0],
      'cosine_in_order': means[1],
      'words_of_fewer_senses': int(has_fewer.sum()),
    },
  )


def _in_order(part: _Part, ids: np.ndarray, words: _Words) -> np.ndarray:
  """[rows of the part] int64 targets before matching; -1 = none."""
  has, firsts = ids >= 0, np.full(len(part.words), -1)
  firsts[ids[has]] = words.starts[:-1][has]
  sizes = np.diff(part.starts)
  firsts = np.repeat(firsts, sizes)
  senses = np.arange(len(firsts)) - np.repeat(part.starts[:-1], sizes)
  return np.where(firsts >= 0, firsts + senses, -1)


def _pairs(
  tables: Sequence[_Part],
  words: _Words,
  rotations: Sequence[np.ndarray],
  block: np.ndarray,
  size: int,
) -> tuple[np.ndarray, 'Pairs']:
  """[b, n, K] int rows of a block of words in each part; -1 = none."""
  rows = np.empty((len(block), len(tables), size), np.int64)
  vectors = np.zeros((*rows.shape, rotations[0].shape[1]))
  priors = np.zeros(rows.shape)
  for i, each in enumerate(tables):
    first = each.starts[np.maximum(words.ids[i, block], 0)][:, None]
    has = np.arange(size) < words.sizes[i, block][:, None]
    rows[:, i] = mine = np.where(has, first + np.arange(size), -1)
    out = np.empty((mine.size, each.part.dim), np.float32)
    each.part.vectors.read(mine.reshape(-1), out)
    rotated = out @ rotations[i].astype(np.float32)
    vectors[:, i] = rotated.reshape(*mine.shape, -1)
    priors[:, i] = np.where(has, each.priors[np.maximum(mine, 0)], 0)
  return rows, compare(vectors, priors, words.votes[:, block].T)


def _renamed(
  each: _Part,
  ids: np.ndarray,
  votes: np.ndarray,
  targets: np.ndarray,
  names: Sequence[str],
) -> parts_lib.Part:
  """The part with its rows named as in the result."""
  counts = each.part.counts
  if counts is not None:
    # Words that no part saw stay: the Huffman tree is made of all.
    counts = np.where(targets >= 0, np.maximum(counts, 1), 0)
  return each.part._replace(
    words=[names[i] if i >= 0 else '' for i in targets.tolist()],
    counts=counts,
    votes=each.by_row(ids, votes) * each.priors,
    senses=None,
  )


def _senses(
  tables: Sequence[_Part],
  words: _Words,
  targets: Sequence[np.ndarray],
  kept: np.ndarray,
  vectors: np.ndarray,
) -> table.Senses:
  """The rows [kept] of the result, with their priors."""
  sizes = np.diff(words.starts)
  priors = np.zeros(words.starts[-1])
  # A word's only vector does not tell how often its senses are meant.
  is_telling = (words.sizes > 1) | (words.sizes.max(0) == 1)
  votes = np.where(is_telling, words.votes, 0)
  for i, (each, rows) in enumerate(zip(tables, targets, strict=True)):
    has = rows >= 0
    by_row = each.by_row(words.ids[i], votes[i])
    priors[rows[has]] += by_row[has] * each.priors[has]
  priors = (priors / np.repeat(votes.sum(0), sizes))[kept]
  owners = np.repeat(np.arange(len(sizes)), sizes)[kept]
  left = np.bincount(owners, minlength=len(sizes))
  words_left = np.flatnonzero(left)
  left = left[words_left]
  starts = np.append(0, np.cumsum(left))
  # Priors of words that have lost senses are scaled to sum to 1.
  has_lost = np.repeat(left < sizes[words_left], left)
  sums = np.repeat(np.add.reduceat(priors, starts[:-1]), left)
  scaled = priors / np.where(sums > 0, sums, 1)
  scaled = np.where(sums > 0, scaled, 1 / np.repeat(left, left))
  return table.Senses(
    [words.names[i] for i in words_left.tolist()],
    words.counts[words_left],
    starts,
    vectors,
    np.where(has_lost, scaled, priors).astype(np.float32),
    None,
    None,
    0,
    max(x.part.senses.window for x in tables if x.part.senses is not None),
  )


def _warnings(
  report: Mapping[str, Any], parts: Sequence[parts_lib.Part]
) -> list[str]:
  warnings = []
  if report['words_of_fewer_senses']:
    warnings.append(
      f'{report["words_of_fewer_senses"]:,} words have fewer senses in some '
      'part than in another: the further senses are placed by those that have '
      'them'
    )
  if report['lost_senses']:
    warnings.append(
      f'{report["lost_senses"]:,} senses that not all parts have are lost, and '
      'priors are shared out among those that stay; --method=alir keeps them'
    )
  rows = set()
  for part in parts:
    if part.senses is not None:
      rows.update(set(part.words) - set(part.senses.words))
  for part in parts:
    same = [] if part.senses else [x for x in part.words if x in rows]
    if same:
      warnings.append(
        f'{part.name}: {len(same):,} words ({same[0]!r} first) have the names '
        'of senses, and stay words of their own; give the folder that they '
        'were exported to, whose priors.txt says whose they are'
      )
  return warnings


# ---- matching


class Pairs(NamedTuple):
  """All pairs of senses of each word: of part i, sense k with part j, sense m.

  The weights of a part with itself are 0.
  """

  weights: np.ndarray  # [b, n, K, n, K] float64
  scores: np.ndarray  # weights times cosines


def compare(rows: np.ndarray, priors: np.ndarray, votes: np.ndarray) -> Pairs:
  """Weights and scores of all pairs of senses.

  Args:
    rows: [b, n, K, dim], x; zeros = the part lacks the sense.
    priors: [b, n, K].
    votes: [b, n], c; 0 = the part lacks the word.
  """
  num_words, num_parts, _, dim = rows.shape
  lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
  units = rows / np.where(lengths > 0, lengths, 1)
  units = units.reshape(num_words, -1, dim).astype(np.float64)
  has = (lengths[..., 0] > 0) & (votes[..., None] > 0)
  chances = np.where(has, priors, 0).astype(np.float64)
  weights = np.minimum(chances[:, :, :, None, None], chances[:, None, None])
  roots = np.sqrt(votes)
  weights *= roots[:, :, None, None, None] * roots[:, None, None, :, None]
  weights = np.sqrt(weights)
  own = np.arange(num_parts)
  weights[:, own, :, own] = 0
  products = units @ np.swapaxes(units, 1, 2)
  return Pairs(weights, weights * products.reshape(weights.shape))


def match(pairs: Pairs, votes: np.ndarray) -> tuple[np.ndarray, int]:
  """Permutes the senses of all parts, word by word.

  Args:
    pairs: see `compare`.
    votes: [b, n], c.

  Returns:
    [b, n, K] int, the sense of the result that each becomes (those that a part
    lacks take what is left); and the number of rounds.
  """
  num_words, num_parts, num_senses = pairs.scores.shape[:3]
  order = np.argsort(-votes, 1, kind='stable')
  places = np.tile(np.arange(num_senses), (num_words, num_parts, 1))
  has_joined = np.arange(num_parts) == order[:, :1]
  limits = _ROUNDING * pairs.weights.sum((1, 2, 3, 4))
  moving, rounds = np.arange(num_words), 0
  while len(moving) and rounds < _MAX_ROUNDS:
    has_moved = np.full(len(moving), rounds == 0 and num_parts > 2)
    for step in range(rounds == 0, num_parts):
      part = order[moving, step]
      # [moving, K, K], of each sense as each sense of the result.
      gains = np.einsum(
        'bkjm,bjmr->bkr',
        pairs.scores[moving, part],
        (places[moving][..., None] == np.arange(num_senses))
        * has_joined[moving][..., None, None],
      )
      old, new = places[moving, part], _assign(gains)
      change = np.take_along_axis(gains, np.stack([old, new], 2), 2).sum(1)
      moves = (change[:, 1] - change[:, 0] > limits[moving]) | (rounds == 0)
      places[moving, part] = np.where(moves[:, None], new, old)
      has_joined[moving, part] = True
      has_moved |= moves & (rounds > 0)
    moving, rounds = moving[has_moved], rounds + 1
  return places, rounds


def _assign(scores: np.ndarray) -> np.ndarray:
  """[b, K] int, permutations with the largest sum of scores [b, K, K]."""
  best = np.argmax(scores, -1)
  # Where all choose differently, each has its best.
  is_open = np.any(np.sort(best, -1) != np.arange(scores.shape[-1]), -1)
  for i in np.flatnonzero(is_open):
    best[i] = optimize.linear_sum_assignment(scores[i], maximize=True)[1]
  return best


def total(values: np.ndarray, places: np.ndarray) -> np.ndarray:
  """[b] float64, sums over matched pairs of values [b, n, K, n, K]."""
  is_matched = places[:, :, :, None, None] == places[:, None, None]
  return np.sum(values * is_matched, (1, 2, 3, 4)) / 2


def cosines(
  pairs: Pairs, places: np.ndarray, matched: np.ndarray
) -> np.ndarray:
  """[b] float64, total scores relative to the weights of `matched`.

  For `matched` itself it is the weighted mean cosine of matched pairs. By their
  own weights, a mean of few others could be higher where the total is lower.

  Args:
    pairs: see `compare`.
    places: [b, n, K] int.
    matched: [b, n, K] int, from `match`.
  """
  weights = total(pairs.weights, matched)
  return total(pairs.scores, places) / np.where(weights > 0, weights, 1)


# ---- what disambiguates


def _outputs_obstacle(
  parts: Sequence[parts_lib.Part], words: _Words, spec: merge_lib.Spec
) -> str:
  """Why outputs cannot be merged; '' if they can."""
  for part in parts:
    if part.senses is None or part.senses.outputs is None:
      return f'{part.name} has none'
  if spec.method != 'alir' or spec.normalize:
    return 'only --method=alir without --normalize keeps inner products'
  obstacle = _difference(parts, lambda x: x, ('loss', 'negatives'))
  is_tree = parts[0].senses.loss == 'hierarchical_softmax'
  if not obstacle and is_tree and not words.is_one_vocabulary:
    return (
      'the parts have other words or counts, and so other trees of paths '
      '(config.model.loss=hierarchical_softmax)'
    )
  return obstacle


def _difference(
  parts: Sequence[parts_lib.Part],
  facts: Callable[[table.Senses], Any],
  names: Sequence[str],
) -> str:
  """The first of some settings that differs; '' if none does."""
  first = parts[0]
  for part in parts[1:]:
    for name in names:
      its, mine = (getattr(facts(x.senses), name) for x in (first, part))
      if mine != its:
        return (
          f'{first.name} was trained with {name}={its!r}, {part.name} with '
          f'{mine!r}'
        )
  return ''


def _outputs(
  parts: Sequence[parts_lib.Part],
  words: _Words,
  spec: merge_lib.Spec,
  merged: merge_lib.Merged,
  folder: pathlib.Path | None,
  progress: merge_lib.Progress,
) -> np.ndarray:
  """[vocab or vocab - 1, dim] float32, the merged outputs."""
  ids, votes = words.ids, words.votes
  if parts[0].senses.loss == 'hierarchical_softmax':
    # Parts vote on a node as often as they saw words below it.
    num = len(words.names) - 1
    points = huffman.tree_paths(words.counts).points
    ids = np.broadcast_to(np.arange(num), (len(parts), num))
    votes = [
      np.bincount(
        points.reshape(-1), np.repeat(x, points.shape[1]), num + 1
      )[:num]
      for x in votes
    ]  # fmt: skip
  outputs = [parts_lib.as_rows(part.senses.outputs) for part in parts]
  voting = []
  for part, rows, mine, values in zip(parts, outputs, ids, votes, strict=True):
    by_row = np.zeros(rows.shape[0])
    by_row[mine[mine >= 0]] = values[mine >= 0]
    voting.append(part._replace(votes=by_row))
  job = merge_lib.SideBySide(
    voting, ids, False, False, spec.block_rows, progress
  )
  last = np.linalg.inv(merged.outer).T
  return parts_lib.write_rows(
    job.averages(
      outputs, np.concatenate(merged.rotations), last, 'merging outputs'
    ),
    (ids.shape[1], len(last)),
    folder and folder / 'outputs.npy',
  )


def _contexts_obstacle(parts: Sequence[parts_lib.Part]) -> str:
  """Why mean contexts cannot be merged; '' if they can."""
  for part in parts:
    if part.senses is None or part.senses.contexts is None:
      return f'{part.name} has none'
  names = 'concentration', 'half_weight'
  obstacle = _difference(parts, lambda senses: senses.contexts, names)
  hint = '; train all with the same --config.model.window and .dynamic_window'
  return obstacle and obstacle + hint


def _contexts(
  tables: Sequence[_Part],
  words: _Words,
  targets: Sequence[np.ndarray],
  merged: table.Senses,
  kept: np.ndarray,
) -> table.Contexts:
  """Mean contexts, averaged sense by sense.

  Args:
    tables: of the parts.
    words: of all parts.
    targets: of each part, see `_Matched`.
    merged: the result.
    kept: [rows of the result] int64, rows of `words`.
  """
  first = tables[0].part.senses.contexts
  maps = _context_maps(tables, words, merged, first.half_weight)
  sums = np.zeros((int(words.starts[-1]), merged.vectors.shape[1]))
  totals = np.zeros(len(sums))
  for i, (each, rows) in enumerate(zip(tables, targets, strict=True)):
    # A word's only sense has no mean context.
    votes = np.where(words.sizes[i] > 1, words.votes[i], 0)
    weights = each.by_row(words.ids[i], votes) * each.priors
    has = np.flatnonzero((rows >= 0) & (weights > 0))
    means = each.part.senses.contexts.means[has] @ maps[i]
    sums[rows[has]] += weights[has, None] * means
    totals[rows[has]] += weights[has]
  means = sums / np.maximum(totals, 1e-30)[:, None]
  return first._replace(means=means[kept].astype(np.float32))


def _context_maps(
  tables: Sequence[_Part],
  words: _Words,
  merged: table.Senses,
  half_weight: float,
) -> list[np.ndarray]:
  """[D_i, dim] float64 of each part: B_i, fitted by words as in contexts."""
  ids = np.array([merged.index.get(name, -1) for name in words.names])
  chosen = np.flatnonzero(ids >= 0)[:_FIT_WORDS]
  frequencies = words.counts / words.counts.sum()
  weights = frequencies * half_weight / (half_weight + frequencies)
  shares = words.votes / np.maximum(words.votes.sum(0), 1e-30)
  dims = [x.part.dim for x in tables]
  width, dim = sum(dims), merged.vectors.shape[1]
  gram, moments = np.zeros((width, width)), np.zeros((width, dim))
  means = [x.means() for x in tables]
  result = _Means(
    parts_lib.as_rows(merged.vectors).open, merged.starts, merged.priors
  )
  for first in range(0, len(chosen), _FIT_BLOCK):
    block = chosen[first : first + _FIT_BLOCK]
    roots = np.sqrt(weights[block])[:, None]
    units = [
      shares[i, block, None] * x.units(words.ids[i, block])
      for i, x in enumerate(means)
    ]
    units = roots * np.concatenate(units, 1)
    gram += units.T @ units
    moments += units.T @ (roots * result.units(ids[block]))
  # Equal parts cannot be told apart without a ridge.
  gram[np.diag_indices(width)] += _RIDGE * np.trace(gram) / width
  return np.split(np.linalg.solve(gram, moments), np.cumsum(dims)[:-1])
