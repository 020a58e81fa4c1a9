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
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize

from jaxemb.merging import align
from jaxemb.merging import merge as merge_lib
from jaxemb.merging import parts as parts_lib
from jaxemb.ops import huffman
from jaxemb.senses import table

_ALIGN_WORDS = 5  # words with one sense that two parts share, per dimension
_BLOCK_BYTES = 1 << 26  # of pairs of senses
_MAX_ROUNDS = 20
_ROUNDING = 1e-9  # relative to the sum of all weights
# Fit of the maps of mean contexts: words (the most frequent), and ridge
# relative to the mean square of a column.
_FIT_WORDS, _RIDGE = 100_000, 1e-6


class _Means(NamedTuple):
  """Means of the senses of words by their priors; read like `parts.Rows`."""

  vectors: parts_lib.Rows
  starts: np.ndarray  # [vocab + 1] int64, first row of each word
  priors: np.ndarray  # [rows] float32

  @property
  def shape(self) -> tuple[int, int]:
    return len(self.starts) - 1, self.vectors.shape[1]

  def read(self, ids: np.ndarray, out: np.ndarray) -> None:
    """Reads rows [b] into out [b, dim]; zeros for negative ids."""
    rows, words = self.vectors.open(), np.maximum(ids, 0)
    starts = self.starts[words]
    sizes = np.where(ids >= 0, self.starts[words + 1] - starts, 0)
    out[:] = 0
    for k in range(int(sizes.max(initial=0))):
      has = sizes > k
      at = starts[has] + k
      out[has] += self.priors[at, None] * rows[at]


class _Table(NamedTuple):
  """A part as a table of senses; words with one vector have one sense."""

  part: parts_lib.Part
  words: Sequence[str]  # [vocab]
  counts: np.ndarray | None  # [vocab] int64, by the part; None = unknown
  means: _Means


class _Words(NamedTuple):
  """The words of all parts, the most frequent first."""

  names: list[str]  # [words]
  counts: np.ndarray  # [words] int64; all 1 = unknown
  ids: np.ndarray  # [n, words] int64, word of each part; -1 = no vote
  votes: np.ndarray  # [n, words] float64
  sizes: np.ndarray  # [n, words] int64, senses in each part
  starts: np.ndarray  # [words + 1] int64, rows of the result
  is_one_vocabulary: bool  # all parts have the same words and counts


def merge(
  parts: Sequence[parts_lib.Part],
  spec: merge_lib.Spec,
  folder: pathlib.Path | None = None,
  progress: parts_lib.Progress = lambda what, done, total: None,
) -> merge_lib.Merged:
  """Merges parts whose words have one vector or several.

  Args:
    parts: two or more, see `parts.check`.
    spec: how to merge.
    folder: where to write the result; None = it stays in memory.
    progress: called per block of words.

  Raises:
    errors.UserError: parts have no words in common.
  """
  started = time.monotonic()
  if any(part.senses is not None for part in parts):
    merged = _merge_senses(parts, spec, folder, progress)
  else:
    union = parts_lib.unite_words(parts)
    if spec.weights == 'equal':
      union = union._replace(votes=None)
    merged = merge_lib.merge_rows(parts, union, spec, folder, progress)
  secs = time.monotonic() - started
  return merged._replace(report=merged.report | {'merge_secs': secs})


def _merge_senses(
  parts: Sequence[parts_lib.Part],
  spec: merge_lib.Spec,
  folder: pathlib.Path | None,
  progress: parts_lib.Progress,
) -> merge_lib.Merged:
  merge_lib.check_columns([part.dim for part in parts])
  tables = [_table(part) for part in parts]
  words = _unite(tables, spec.weights == 'counts')
  rotations, turned = _rotations(tables, words, spec, progress)
  rows, report = _match_parts(tables, words, rotations, progress)
  sizes = np.diff(words.starts)
  owners = np.repeat(np.arange(len(sizes)), sizes)
  priors = np.stack([
    np.where(mine >= 0, x.means.priors[mine], 0)
    for x, mine in zip(tables, rows, strict=True)
  ])  # fmt: skip
  names = table.row_names(words.names, words.starts)
  votes = words.votes[:, owners] * priors
  union = parts_lib.Union(names, votes.sum(0), rows, votes)
  merged = merge_lib.merge_rows(parts, union, spec, folder, progress)
  kept, warnings = merged.ids, merged.report['warnings']
  rows, priors, owners = rows[:, kept], priors[:, kept], owners[kept]
  senses = _senses(parts, words, owners, priors, merged.vectors)

  def beside(tables, ids, weights):
    tables = [parts_lib.Rows(x) for x in tables]
    return merge_lib.SideBySide(tables, ids, weights, False, progress)

  contexts = [x.senses and x.senses.contexts for x in parts]
  obstacle = _obstacle(parts, contexts, ('concentration', 'half_weight'))
  if not obstacle:
    # A word's only sense has no mean context.
    votes = np.where(words.sizes > 1, words.votes, 0)[:, owners] * priors
    maps = _context_maps(tables, words, senses, contexts[0].half_weight)
    job = beside([x.means for x in contexts], rows, votes)
    means = job.write_averages(maps, np.eye(maps.shape[1]), folder, 'means')
    senses = dataclasses.replace(
      senses, contexts=contexts[0]._replace(means=means)
    )
  elif any(contexts):
    warnings.append(
      'mean contexts are left out, and senses are disambiguated by '
      f'likelihoods, if at all: {obstacle}'
    )
  obstacle = _outputs_obstacle(parts, words, spec)
  if not obstacle:
    first = parts[0].senses
    is_tree = first.loss == 'hierarchical_softmax'
    votes = _node_votes(words) if is_tree else words.votes
    nodes = np.tile(np.arange(votes.shape[1]), (len(parts), 1))
    ids = nodes if is_tree else words.ids
    job = beside([x.senses.outputs for x in parts], ids, votes)
    last = np.linalg.inv(merged.outer).T
    outputs = job.write_averages(merged.rotations, last, folder, 'outputs')
    senses = dataclasses.replace(
      senses, outputs=outputs, loss=first.loss, negatives=first.negatives
    )
  else:
    ending = '; sentences cannot be disambiguated'
    ending = '' if senses.can_disambiguate else ending
    warnings.append(f'outputs are left out: {obstacle}{ending}')
  report |= turned | {
    'outputs': senses.outputs is not None,
    'contexts': senses.contexts is not None,
    'lost_senses': len(names) - len(kept),
  }
  warnings += _warnings(report, parts)
  return merged._replace(
    words=senses.names(),
    counts=senses.by_row(senses.counts),
    report=merged.report | {'words': len(senses.words), 'senses': report},
    senses=senses,
  )


def of_words(part: parts_lib.Part) -> parts_lib.Part:
  """The part with one vector for each word, the mean of its senses."""
  if part.senses is None:
    return part
  found = _table(part)
  return part._replace(
    words=found.words,
    vectors=parts_lib.Rows(part.senses.mean_vectors()),
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


def _table(part: parts_lib.Part) -> _Table:
  senses, counts, num = part.senses, part.counts, len(part.words)
  if senses is None:
    means = _Means(part.vectors, np.arange(num + 1), np.ones(num, np.float32))
    return _Table(part, part.words, counts, means)
  starts = np.asarray(senses.starts, np.int64)
  if counts is not None:
    counts = np.maximum.reduceat(counts, starts[:-1])
  means = _Means(part.vectors, starts, senses.priors)
  return _Table(part, senses.words, counts, means)


def _unite(tables: Sequence[_Table], by_counts: bool) -> _Words:
  """The words of all parts; they vote by counts, if all are known, or alike."""
  union = parts_lib.unite_words(
    [x.part._replace(words=x.words, counts=None) for x in tables]
  )
  ids = union.rows.astype(np.int64)
  seen = (ids >= 0).astype(np.float64)
  is_known = all(x.counts is not None for x in tables)
  for mine, chances, each in zip(ids, seen, tables, strict=True):
    if each.counts is not None:
      chances *= each.counts[mine]
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
  ids = ids[:, order]
  sizes = np.stack([
    np.where(mine >= 0, np.diff(x.means.starts)[mine], 0)
    for x, mine in zip(tables, ids, strict=True)
  ])  # fmt: skip
  return _Words(
    [union.words[i] for i in order.tolist()],
    counts[order],
    ids,
    votes[:, order],
    sizes,
    np.append(0, np.cumsum(sizes.max(0))),
    is_one_vocabulary,
  )


def _rotations(
  tables: Sequence[_Table],
  words: _Words,
  spec: merge_lib.Spec,
  progress: parts_lib.Progress,
) -> tuple[list[np.ndarray], dict[str, Any]]:
  """[D_i, dim] float64 of each part into a common space; and for the report."""
  has, parts = words.ids >= 0, [x.part for x in tables]
  merge_lib.check_words(parts, has, 'alir')
  dims = [part.dim for part in parts]
  is_single = (words.sizes <= 1).all(0)
  shared = merge_lib.num_shared(has & is_single)
  by_single = not merge_lib.groups(
    shared >= _ALIGN_WORDS * np.minimum.outer(dims, dims)
  ).any()
  chosen = np.flatnonzero(is_single | (not by_single))
  chosen = chosen[align.fit_words(has[:, chosen], spec.align_words, dims)]
  weights = parts_lib.vote_weights(has, words.votes)
  job = merge_lib.SideBySide(
    [x.means for x in tables], words.ids, weights, spec.normalize, progress
  )
  rotations, _ = align.alir(
    job.gram(chosen), dims, max(dims), 'zero', spec.max_iterations,
    spec.tolerance,
  )  # fmt: skip
  return np.split(rotations, np.cumsum(dims)[:-1]), {
    'turned_by': 'words of one sense' if by_single else 'means of senses',
    'turned_by_words': len(chosen),
  }


def _match_parts(
  tables: Sequence[_Table],
  words: _Words,
  rotations: Sequence[np.ndarray],
  progress: parts_lib.Progress,
) -> tuple[np.ndarray, dict[str, Any]]:
  """[n, rows] int64, row of each part that each of the result is made of.

  -1 = none. Also returns what is reported.
  """
  sizes = np.diff(words.starts)
  senses = np.arange(words.starts[-1]) - np.repeat(words.starts[:-1], sizes)
  # In the order of the parts.
  all_rows = np.stack([
    np.where(
      senses < np.repeat(size, sizes),
      np.repeat(x.means.starts[ids], sizes) + senses,
      -1,
    )
    for x, ids, size in zip(tables, words.ids, words.sizes, strict=True)
  ])  # fmt: skip
  is_open = (sizes > 1) & ((words.sizes > 0).sum(0) > 1)
  done = rounds = moved = 0
  cosines = [np.zeros((2, 0))]
  for size in np.unique(sizes[is_open]).tolist():
    chosen = np.flatnonzero(is_open & (sizes == size))
    each = len(tables) * size
    each_bytes = 8 * each * (3 * each + 2 * rotations[0].shape[1])
    num_blocks = -(-len(chosen) * each_bytes // _BLOCK_BYTES)
    for block in np.array_split(chosen, min(num_blocks, len(chosen))):
      progress('matching senses', done, int(is_open.sum()))
      at = words.starts[block][:, None] + np.arange(size)
      rows, votes = all_rows[:, at], words.votes[:, block].T
      pairs = _pairs(tables, rotations, rows, votes)
      places, num_rounds = match(pairs, votes)
      rounds, done = max(rounds, num_rounds), done + len(block)
      in_order = np.broadcast_to(np.arange(size), places.shape)
      # Both relative to the weights of matched pairs: by their own, a mean of
      # few others could be higher where the total is lower.
      weights = total(pairs.weights, places)
      weights = np.where(weights > 0, weights, 1)
      cosines.append(
        np.stack([total(pairs.scores, x) / weights for x in (places, in_order)])
      )
      for mine, theirs, place in zip(
        all_rows, rows, np.moveaxis(places, 1, 0), strict=True
      ):
        moved += int(np.sum((theirs >= 0) & (place != np.arange(size))))
        mine[at[:, :1] + place] = theirs
  progress('matching senses', done, done)
  cosines = np.concatenate(cosines, 1)
  means = cosines.mean(1).tolist() if cosines.size else (None, None)
  has_fewer = np.any((words.sizes > 0) & (words.sizes < sizes), 0)
  return all_rows, {
    'words': int(np.sum(sizes > 1)),
    'rows': int(sizes.sum()),
    'matched_words': int(is_open.sum()),
    'matching_rounds': rounds,
    'moved_senses': moved,
    'cosine_matched': means[0],
    'cosine_in_order': means[1],
    'words_of_fewer_senses': int(has_fewer.sum()),
  }


def _pairs(
  tables: Sequence[_Table],
  rotations: Sequence[np.ndarray],
  rows: np.ndarray,
  votes: np.ndarray,
) -> 'Pairs':
  """Of rows [n, b, K] of the parts, -1 = none, with votes [b, n] on words."""
  vectors, priors = [], []
  for each, rotation, mine in zip(tables, rotations, rows, strict=True):
    out = np.empty((mine.size, len(rotation)), np.float32)
    each.part.vectors.read(mine.reshape(-1), out)
    rotated = out @ rotation.astype(np.float32)
    vectors.append(rotated.reshape(*mine.shape, -1))
    priors.append(np.where(mine >= 0, each.means.priors[mine], 0))
  return compare(np.stack(vectors, 1), np.stack(priors, 1), votes)


def _senses(
  parts: Sequence[parts_lib.Part],
  words: _Words,
  owners: np.ndarray,
  priors: np.ndarray,
  vectors: np.ndarray,
) -> table.Senses:
  """The rows of the result, of words [rows], with priors of parts [n, rows]."""
  # A word's only vector does not tell how often its senses are meant.
  is_telling = (words.sizes > 1) | (words.sizes.max(0) == 1)
  votes = np.where(is_telling, words.votes, 0)
  means = np.sum(votes[:, owners] * priors, 0) / votes.sum(0)[owners]
  ids, starts, sizes = np.unique(owners, return_index=True, return_counts=True)
  # Priors of words that have lost senses are scaled to sum to 1.
  has_lost = sizes < np.diff(words.starts)[ids]
  sums = np.add.reduceat(means, starts)
  scaled = np.repeat(np.where(has_lost & (sums > 0), sums, 1), sizes)
  is_lost = np.repeat(has_lost & (sums == 0), sizes)
  return table.Senses(
    [words.names[i] for i in ids.tolist()],
    words.counts[ids],
    np.append(starts, len(owners)),
    vectors,
    np.where(is_lost, 1 / np.repeat(sizes, sizes), means / scaled).astype(
      np.float32
    ),
    None,
    None,
    0,
    max(part.senses.window for part in parts if part.senses is not None),
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
  with_senses = [part for part in parts if part.senses is not None]
  rows = {x for part in with_senses for x in part.words}
  rows -= {x for part in with_senses for x in part.senses.words}
  for part in parts:
    same = [] if part.senses else [x for x in part.words if x in rows]
    if same:
      warnings.append(
        f'{part.name}: {len(same):,} words ({same[0]!r} first) have the names '
        'of senses, and stay words of their own; give the folder that they '
        'were exported to, whose priors.txt says whose they are'
      )
  return warnings


# Matching.


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


# What disambiguates.


def _obstacle(
  parts: Sequence[parts_lib.Part],
  tables: Sequence[table.Senses | table.Contexts | None],
  names: Sequence[str],
) -> str:
  """Why tables, all of the same settings, cannot be merged; '' if they can."""
  for part, each in zip(parts, tables, strict=True):
    if each is None:
      return f'{part.name} has none'
    for name in names:
      its, mine = (getattr(x, name) for x in (tables[0], each))
      if mine != its:
        return (
          f'{parts[0].name} was trained with {name}={its!r}, {part.name} with '
          f'{mine!r}; train all alike'
        )
  return ''


def _outputs_obstacle(
  parts: Sequence[parts_lib.Part], words: _Words, spec: merge_lib.Spec
) -> str:
  """Why outputs cannot be merged; '' if they can."""
  if spec.method != 'alir' or spec.normalize:
    return 'only --method=alir without --normalize keeps inner products'
  tables = [
    None if x.senses is None or x.senses.outputs is None else x.senses
    for x in parts
  ]
  obstacle = _obstacle(parts, tables, ('loss', 'negatives'))
  is_tree = not obstacle and tables[0].loss == 'hierarchical_softmax'
  if is_tree and not words.is_one_vocabulary:
    return (
      'the parts have other words or counts, and so other trees of paths '
      '(config.model.loss=hierarchical_softmax)'
    )
  return obstacle


def _node_votes(words: _Words) -> np.ndarray:
  """[n, vocab - 1] float64: parts vote as often as they saw words below."""
  num = len(words.names) - 1
  points = huffman.tree_paths(words.counts).points
  return np.stack([
    np.bincount(points.reshape(-1), np.repeat(x, points.shape[1]), num + 1)
    for x in words.votes
  ])[:, :num]  # fmt: skip


def _context_maps(
  tables: Sequence[_Table],
  words: _Words,
  merged: table.Senses,
  half_weight: float,
) -> np.ndarray:
  """[sum D_i, dim] float64: B_i of all parts, words weighing as in contexts."""
  ids = np.array([merged.index.get(name, -1) for name in words.names])
  chosen = np.flatnonzero(ids >= 0)[:_FIT_WORDS]
  frequencies = words.counts / words.counts.sum()
  roots = np.sqrt(frequencies * half_weight / (half_weight + frequencies))
  shares = words.votes / np.maximum(words.votes.sum(0), 1e-30)
  result = _Means(parts_lib.Rows(merged.vectors), merged.starts, merged.priors)
  job = merge_lib.SideBySide(
    [*(x.means for x in tables), result],
    np.append(words.ids, ids[None], 0),
    np.append(shares * roots, roots[None], 0),
    True,
    lambda what, done, total: None,
  )
  gram = np.zeros((sum(job.dims),) * 2)
  for units, weights in job.blocks('', chosen):
    align.add_gram(gram, units * np.repeat(weights, job.dims, 1))
  width = sum(job.dims[:-1])
  gram, moments = gram[:width, :width], gram[:width, width:]
  # Equal parts cannot be told apart without a ridge.
  ridge = _RIDGE * np.trace(gram) / width
  return np.linalg.solve(gram + ridge * np.eye(width), moments)
