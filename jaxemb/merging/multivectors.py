"""Merges models whose words have several vectors (senses).

Models are rotated to each other by their words with one sense (`align`). Word
by word, senses that are then close and equally frequent are matched and merged
like words.

With x_ik the rotated vector of sense k in part i, p_ik its prior and c_i how
often part i saw the word, the senses of each part are permuted to

  maximize sum_{i < j} sum_k sqrt(n_ij min(p_ik, p_jk)) cos(x_ik, x_jk)

with n_ij = sqrt(c_i c_j). Cosines are used because the length of a vector
depends on the frequency of the sense; the weights are those of sampling errors.
For one part this is an assignment problem. Parts are added by falling c_i, then
each is reassigned until nothing changes; every change increases the sum.

A part votes on a sense with the count of the word times the prior. A word has
as many senses as in the part where it has most. Priors are averages over the
parts in which the word has several senses, if any. What disambiguates senses is
merged with them. Outputs are rotated inversely, which preserves inner products;
those of a Huffman tree are merged only if all parts have the same tree. Mean
contexts m are means of unit vectors u of words: matrices B_i that map the unit
vectors of the parts to those of the result, by least squares over all words,
also map the means,

  u = sum_i a_i u_i B_i    and so    m = sum_i a_i m_i B_i

with the fractions a_i of the votes on a word or sense. B_i contains rotation,
scaling, and how much longer unit vectors are than means of several.
"""

import dataclasses
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy  # parts of it are loaded when they are used

from jaxemb.evaluation import geometry, multivectors
from jaxemb.merging import align
from jaxemb.merging import merge as merge_lib
from jaxemb.merging import parts as parts_lib
from jaxemb.ops import huffman

_ALIGN_WORDS = 5  # words with one sense that two parts share, per dimension
_BLOCK_BYTES = 1 << 26  # of pairs of senses
_MAX_ROUNDS = 20
_ROUNDING = 1e-9  # relative to the sum of all weights
_FIT_WORDS = 100_000  # the most frequent ones, for maps of mean contexts
_RIDGE = 1e-6  # relative to the mean square of a column


def merge(
  parts: Sequence[parts_lib.Part],
  spec: merge_lib.Spec,
  folder: pathlib.Path | None = None,
  progress: parts_lib.Progress = lambda what, done, total: None,
) -> merge_lib.Merged:
  """Merges two or more parts of `parts.check`, with or without senses.

  Files, progress and errors are those of `merge.merge_rows`.
  """
  started = time.monotonic()
  if any(part.senses is not None for part in parts):
    merged = _Merge(parts, spec, folder, progress=progress).run()
  else:
    union = parts_lib.unite_words(parts, spec.weights == 'counts')
    merged = merge_lib.merge_rows(
      parts, union, spec, folder=folder, progress=progress
    )
  secs = time.monotonic() - started
  return merged._replace(report=merged.report | {'merge_secs': secs})


def line(merge_report: Mapping[str, Any]) -> str:
  """Returns a line about the senses of a merge report, or ''."""
  report = merge_report.get('senses')
  if report is None:
    return ''
  text = f'senses: {report["words"]:,} words have several'
  if report['cosine_matched'] is None:
    return text
  return (
    f'{text}; mean cosine of matched ones {report["cosine_matched"]:.3f}, with '
    f'the same weights {report["cosine_in_order"]:.3f} in the order of the '
    'parts'
  )


def _table(part):
  """Returns the senses of a part; words with one vector have one sense."""
  num = len(part.words)
  return part.senses or multivectors.MultiVectors(
    words=part.words,
    counts=None,
    starts=np.arange(num + 1),
    vectors=None,
    priors=np.ones(num, np.float32),
  )


def _pick(values: Sequence[np.ndarray], ids: np.ndarray) -> np.ndarray:
  """Returns [n, ...], items of n arrays at ids [n, ...], 0 if negative."""
  pairs = zip(values, ids, strict=True)
  return np.where(ids >= 0, [array[i] for array, i in pairs], 0)


class _Merge:
  """A merge of senses.

  Attributes:
    sizes: [n, words] int, number of senses in each part.
    starts, owners: [words + 1] and [rows] int, rows of the result before any is
      lost, and their words.
    job: means of the senses of words, side by side.
    is_one_vocabulary: whether all parts have the same words and counts.
    warnings: a line each.
  """

  def __init__(self, parts, spec, folder, progress):
    merge_lib.check_columns([part.dim for part in parts])
    self.parts, self.spec = parts, spec
    self.tables = [_table(part) for part in parts]
    by_word = [part.of_words() for part in parts]
    words = parts_lib.unite_words(
      by_word, spec.weights == 'counts', keeps_unseen=True
    )
    first = self.tables[0]
    self.is_one_vocabulary = all(
      x.words == first.words and np.array_equal(x.counts, first.counts)
      for x in self.tables
    )
    if self.is_one_vocabulary:  # in the order of the text, with its counts
      order, counts = np.argsort(words.rows.max(0)), np.asarray(first.counts)
      rows, votes = words.rows[:, order], words.votes[:, order]
      words = parts_lib.Union(first.words, counts, rows=rows, votes=votes)
    self.words = words
    self.sizes = _pick([np.diff(x.starts) for x in self.tables], words.rows)
    sizes = self.sizes.max(0)
    self.starts = np.append(0, np.cumsum(sizes))
    self.owners = np.repeat(np.arange(len(sizes)), sizes)
    self.job = merge_lib.SideBySide(
      tables=[x.vectors for x in by_word],
      rows=words.rows,
      weights=merge_lib.vote_weights(words.rows >= 0, words.votes),
      normalize=False,
      folder=folder,
      progress=progress,
    )

  def run(self) -> merge_lib.Merged:
    """Returns the merged senses."""
    words, job = self.words, self.job
    rotations, fitted_on = self._rotations()
    rows, report = self._match(rotations)
    priors = _pick([x.priors for x in self.tables], rows)
    names = multivectors.row_names(words.words, self.starts)
    votes = words.votes[:, self.owners] * priors
    union = parts_lib.Union(names, votes.sum(0), rows=rows, votes=votes)
    merged = merge_lib.merge_rows(
      self.parts, union, self.spec, folder=job.folder, progress=job.progress
    )
    ids, num_lost = merged.ids, len(names) - len(merged.ids)
    self.warnings = merged.report['warnings']
    rows, priors, owners = rows[:, ids], priors[:, ids], self.owners[ids]
    senses = self._senses(owners, priors, merged.vectors)
    # A word's only sense has no mean context.
    votes = ((self.sizes > 1) * words.votes)[:, owners] * priors
    senses = self._with_contexts(senses, rows, votes)
    senses = self._with_outputs(senses, merged)
    self._warn(num_lost)
    report |= {
      'turned_by': fitted_on,
      'outputs': senses.outputs is not None,
      'contexts': senses.means is not None,
      'lost_senses': num_lost,
    }
    return merged._replace(
      words=senses.names(),
      counts=senses.by_row(senses.counts),
      report=merged.report | dict(words=len(senses.words), senses=report),
      senses=senses,
    )

  def _rotations(self):
    """Returns [D_i, dim] float32 of each part, and what they were fitted on."""
    job, dims, has = self.job, self.job.dims, self.words.rows >= 0
    merge_lib.check_words(self.parts, has, 'alir')
    is_single = (self.sizes <= 1).all(0)
    least = _ALIGN_WORDS * np.minimum.outer(dims, dims)
    by_single = not merge_lib.tied(has & is_single, least)[0].any()
    chosen = is_single | (not by_single)
    job = job._replace(
      rows=job.rows[:, chosen],
      weights=job.weights[:, chosen],
      normalize=self.spec.normalize,
    )
    spec = dataclasses.replace(
      self.spec, method='alir', start='zero', restore=False, power=1.0
    )
    rotations = merge_lib.solve(job, spec, max(dims))[0].astype(np.float32)
    fitted_on = 'words of one sense' if by_single else 'means of senses'
    return [rotations[part] for part in align.slices(dims)], fitted_on

  def _match(self, rotations):
    """Returns [n, rows] int, rows of the parts (-1 = none), and a report."""
    words, owners, progress = self.words, self.owners, self.job.progress
    sizes, priors = self.sizes.max(0), [x.priors for x in self.tables]
    # In the order of the parts.
    all_rows = _pick([x.starts for x in self.tables], words.rows)[:, owners]
    senses = np.arange(len(owners)) - self.starts[owners]
    has = senses < self.sizes[:, owners]
    all_rows = np.where(has, all_rows + senses, -1)
    is_open = (sizes > 1) & ((self.sizes > 0).sum(0) > 1)
    tables = [part.vectors for part in self.parts]
    done, num_open, cosines = 0, int(is_open.sum()), []
    for size in np.unique(sizes[is_open]).tolist():
      chosen = np.flatnonzero(is_open & (sizes == size))
      num = len(self.parts) * size
      word_bytes = 8 * num * (3 * num + 2 * rotations[0].shape[1])
      num_blocks = -(-len(chosen) * word_bytes // _BLOCK_BYTES)
      for block in np.array_split(chosen, min(num_blocks, len(chosen))):
        progress('matching senses', done, num_open)
        block_rows = self.starts[block][:, None] + np.arange(size)
        rows = all_rows[:, block_rows]
        vectors = map(parts_lib.take, tables, rows)
        vectors = np.stack(list(map(np.matmul, vectors, rotations)))
        places, block_cosines = match(
          vectors, _pick(priors, rows), words.votes[:, block]
        )
        matched = np.empty_like(rows)
        np.put_along_axis(matched, places, rows, 2)
        all_rows[:, block_rows] = matched
        done += len(block)
        cosines.append(block_cosines)
    progress('matching senses', done, done)
    means = (None, None)
    if num_open:
      means = np.concatenate(cosines, 1).mean(1).tolist()
    return all_rows, {
      'words': int(np.sum(sizes > 1)),
      'matched_words': num_open,
      'cosine_matched': means[0],
      'cosine_in_order': means[1],
    }

  def _senses(self, owners, priors, vectors):
    """Returns the senses of words [rows] with priors of parts [n, rows]."""
    ids, starts, sizes = np.unique(
      owners, return_index=True, return_counts=True
    )
    # A part with one vector for the word says nothing about its priors.
    has_priors = (self.sizes > 1) | (self.sizes.max(0) == 1)
    votes = np.where(has_priors, self.words.votes, 0)[:, owners] * priors
    # Some senses may be lost; the others are equal if no prior is known.
    totals = np.repeat(np.add.reduceat(votes.sum(0), starts), sizes)
    even = 1 / np.repeat(sizes, sizes)
    priors = np.divide(votes.sum(0), totals, even, where=totals > 0)
    return multivectors.MultiVectors(
      words=[self.words.words[i] for i in ids.tolist()],
      counts=self.words.counts[ids],
      starts=np.append(starts, len(owners)),
      vectors=vectors,
      priors=priors.astype(np.float32),
      window=max(x.window for x in self.tables),
    )

  def _with_contexts(self, senses, rows, votes):
    """Adds mean contexts, merged from rows [n, rows] of the parts by votes."""
    settings, tables = ('concentration', 'half_weight'), self.tables
    if obstacle := self._obstacle('means', *settings):
      if any(x.means is not None for x in tables):
        self.warnings.append(
          'mean contexts are left out, and senses are disambiguated by '
          f'likelihoods, if at all: {obstacle}'
        )
      return senses
    more = {name: getattr(tables[0], name) for name in settings}
    senses = dataclasses.replace(senses, **more)
    maps, tables = self._context_maps(senses), [x.means for x in tables]
    job = self.job._replace(tables=tables, rows=rows, weights=votes)
    means = job.write_averages('means', maps, np.eye(maps.shape[1]))
    return dataclasses.replace(senses, means=means)

  def _with_outputs(self, senses, merged):
    """Adds outputs, rotated inversely."""
    words, first = self.words, self.tables[0]
    is_tree = first.loss == 'hierarchical_softmax'
    if self.spec.method != 'alir' or self.spec.normalize:
      obstacle = 'only --method=alir without --normalize keeps inner products'
    else:
      obstacle = self._obstacle('outputs', 'loss', 'negatives')
    if is_tree and not obstacle and not self.is_one_vocabulary:
      obstacle = (
        'the parts have other words or counts, and so other trees of paths '
        '(config.model.loss=hierarchical_softmax)'
      )
    if obstacle:
      ending = '; sentences cannot be disambiguated'
      ending = '' if senses.can_disambiguate else ending
      self.warnings.append(f'outputs are left out: {obstacle}{ending}')
      return senses
    ids, votes = words.rows, words.votes
    if is_tree:  # a part votes on a node with the counts of the words below it
      points, num = huffman.tree_paths(words.counts).points, len(first.outputs)
      votes = np.stack([
        np.bincount(points.reshape(-1), np.repeat(x, points.shape[1]), num + 1)
        for x in votes
      ])[:, :num]  # fmt: skip
      ids = np.broadcast_to(np.arange(num), votes.shape)
    tables = [x.outputs for x in self.tables]
    job = self.job._replace(tables=tables, rows=ids, weights=votes)
    outputs = job.write_averages(
      'outputs', merged.rotations, np.linalg.inv(merged.outer).T
    )
    return dataclasses.replace(
      senses, outputs=outputs, loss=first.loss, negatives=first.negatives
    )

  def _context_maps(self, merged):
    """Returns [sum D_i, dim] float64 B_i; words weigh as in contexts."""
    words = self.words
    ids = np.array([merged.index.get(name, -1) for name in words.words])
    chosen = np.flatnonzero(ids >= 0)[:_FIT_WORDS]
    frequencies = words.counts / words.counts.sum()
    weights = merged.half_weight / (merged.half_weight + frequencies)
    fractions = words.votes / words.votes.sum(0)
    fractions = np.append(fractions, np.ones((1, len(ids))), 0)
    job = self.job._replace(
      tables=[*self.job.tables, parts_lib.Means(merged.vectors, merged)],
      rows=np.append(words.rows, ids[None], 0),
      weights=fractions * frequencies * weights,
      normalize=True,
    )
    # For every word, the parts and the result have weights that sum to 2.
    gram, width = job.gram(chosen), sum(self.job.dims)
    gram, moments = gram[:width, :width], gram[:width, width:]
    # Without a ridge, equal parts would make the system singular.
    ridge = _RIDGE * np.trace(gram) / width
    return np.linalg.solve(gram + ridge * np.eye(width), moments)

  def _obstacle(self, array: str, *settings: str) -> str:
    """Returns why arrays of that name cannot be merged; '' if they can."""
    for part, table in zip(self.parts, self.tables, strict=True):
      if getattr(table, array) is None:
        return f'{part.name} has none'
      for name in settings:
        first, value = getattr(self.tables[0], name), getattr(table, name)
        if value != first:
          return (
            f'{self.parts[0].name} was trained with {name}={first!r}, '
            f'{part.name} with {value!r}; train all alike'
          )
    return ''

  def _warn(self, num_lost: int) -> None:
    """Adds warnings of senses that some parts lack, or name as words."""
    has_fewer = (self.sizes > 0) & (self.sizes < self.sizes.max(0))
    if num_fewer := int(has_fewer.any(0).sum()):
      self.warnings.append(
        f'{num_fewer:,} words have fewer senses in some part than in another: '
        'the further senses come from those that have them'
      )
    if num_lost:
      self.warnings.append(
        f'{num_lost:,} senses that not all parts have are lost, and the priors '
        'of the others are scaled; --method=alir keeps them'
      )
    names = set()
    for part in self.parts:
      if part.senses:
        names |= {*part.words} - {*part.senses.words}
    for part in self.parts:
      same = [] if part.senses else [x for x in part.words if x in names]
      if same:
        self.warnings.append(
          f'{part.name}: {len(same):,} words ({same[0]!r} first) have the '
          'names of senses, and remain separate words; give the folder that '
          'they were exported to, whose priors.txt assigns them'
        )


def match(
  rows: np.ndarray, priors: np.ndarray, votes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Permutes the senses of all parts, word by word.

  Takes x [n, b, K, dim], priors [n, b, K] and votes c [n, b]; x and c are 0
  where a part lacks the sense or the word. Returns [n, b, K] int, the sense of
  the result that each becomes (missing senses get the remaining ones), and mean
  cosines [2, b] of matched pairs and of pairs in the order of the parts.
  """
  num_parts, num_words, num_senses, dim = rows.shape
  num = num_parts * num_senses
  rows, priors, votes = (np.swapaxes(x, 0, 1) for x in (rows, priors, votes))
  units = geometry.unit(rows.reshape(-1, dim)).reshape(num_words, num, dim)
  units = units.astype(np.float64)
  # [b, n K] of all senses, and [b, n K, n K] of their pairs.
  chances = np.where(np.any(rows, -1), priors, 0).reshape(num_words, num)
  roots = np.repeat(np.sqrt(votes), num_senses, 1)
  weights = np.minimum(chances[:, :, None], chances[:, None])
  weights = np.sqrt(weights * roots[:, :, None] * roots[:, None])
  owners = np.repeat(np.arange(num_parts), num_senses)
  weights *= owners[:, None] != owners
  scores = weights * (units @ np.swapaxes(units, 1, 2))
  limits = _ROUNDING * weights.sum((1, 2), keepdims=True)
  by_part = scores.reshape(num_words, num_parts, num_senses, num)
  order, in_order = np.argsort(-votes, 1, kind='stable'), np.arange(num_senses)
  every, places = np.arange(num_words), np.full(priors.shape, -1)
  places[every, order[:, 0]] = in_order  # the other parts follow
  for rounds in range(_MAX_ROUNDS):
    before = places.copy()
    for part in order.T[rounds == 0 :]:
      # [b, K, K], of each sense as each sense of the result.
      gains = by_part[every, part] @ (places.reshape(-1, num, 1) == in_order)
      # Without a gain, a sense keeps its name.
      gains += limits * (places[every, part][:, :, None] == in_order)
      places[every, part] = _assign(gains)
    if num_parts == 2 or np.array_equal(places, before):
      break

  def total(values, places):
    places = places.reshape(-1, num)
    return np.sum(values * (places[:, :, None] == places[:, None]), (1, 2))

  # Both are divided by the weights of matched pairs, to be comparable.
  sums = total(weights, places)
  unmoved = np.broadcast_to(in_order, places.shape)
  cosines = np.stack([total(scores, x) for x in (places, unmoved)])
  cosines /= np.where(sums > 0, sums, 1)
  return np.swapaxes(places, 0, 1), cosines


def _assign(scores: np.ndarray) -> np.ndarray:
  """Returns permutations [b, K] with the largest sum of scores [b, K, K]."""
  best = np.argmax(scores, -1)
  # Where the best choices all differ, they are the permutation.
  is_open = np.any(np.sort(best, -1) != np.arange(scores.shape[-1]), -1)
  for i in np.flatnonzero(is_open):
    best[i] = scipy.optimize.linear_sum_assignment(scores[i], maximize=True)[1]
  return best
