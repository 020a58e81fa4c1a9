"""Concat, PCA and ALiR: merges parts into one table of vectors, with a report.

Concat and PCA cover the words that all parts have (Anand et al. 2019); ALiR
covers the words of any part, each placed by the parts that have it.

All on the host, in blocks of words, in two passes: one for the Gram matrix of
the parts side by side, one for the result, which can go to a file.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # parts of it are loaded when they are used

from jaxemb import errors
from jaxemb.evaluation import geometry, multivectors
from jaxemb.merging import align
from jaxemb.merging import parts as parts_lib

# Settings with a choice of values, and those that ALiR alone uses.
CHOICES = {
  'method': ('alir', 'pca', 'concat'),
  'start': align.STARTS,
  'weights': ('counts', 'equal'),
}
ALIR_ONLY = (
  'start', 'weights', 'restore', 'align_words', 'max_iterations', 'tolerance'
)  # fmt: skip
MAX_COLUMNS = 16_384  # of all parts: their Gram matrix takes 2 GiB

_BLOCK_BYTES = 1 << 26  # of the parts side by side; larger ones are no faster
_EXAMPLES = 5
_LOW_AGREEMENT = 0.25  # mean cosines below are hardly more than chance
_LOW_RELATIVE_AGREEMENT = 0.6  # to the median; below is an outlier
_LENGTH_RATIO = 2.0


@dataclasses.dataclass(frozen=True)
class Spec:
  """How to merge, see `jaxemb.merge`; UserError for unusable settings."""

  method: str = 'alir'
  dim: int = 0
  start: str = 'zero'
  weights: str = 'counts'
  normalize: bool = False
  restore: bool = True
  power: float = 1.0
  align_words: int = 0
  max_iterations: int = 20
  tolerance: float = 5e-3

  def __post_init__(self):
    for name, is_valid, limits in (
      ('dim', self.dim >= 0, '0 or more'),
      ('power', 0 < self.power <= 10, 'above 0, and 10 at most'),
      ('align_words', self.align_words >= 0, '0 or more'),
      ('max_iterations', self.max_iterations >= 1, '1 or more'),
      ('tolerance', self.tolerance >= 0, '0 or more'),
    ):
      if not is_valid:
        raise errors.UserError(f'--{name} must be {limits}')
    for name in ALIR_ONLY if self.method != 'alir' else ():
      value = getattr(self, name)
      if value != getattr(Spec, name):
        raise errors.UserError(
          f'--{"no-" if value is False else ""}{name} is not used with '
          f'--method={self.method}; leave it out'
        )


class Merged(NamedTuple):
  """The result of a merge."""

  words: list[str]  # the most frequent first
  counts: np.ndarray  # [words] int64, summed over parts; all 1 = unknown
  vectors: np.ndarray  # [words, dim] float32, mapped if in a file
  trainable: dict[str, np.ndarray]  # [words, ...] float32, as of the parts
  ids: np.ndarray  # [words] int64, which words of the union
  # [sum D_i, dim] float64, and from the mean to the result; None for concat.
  rotations: np.ndarray | None
  outer: np.ndarray | None
  report: dict[str, Any]  # JSON-ready, with `warnings`, a line each
  senses: multivectors.MultiVectors | None = None  # if words have several


class SideBySide(NamedTuple):
  """Tables of n parts side by side, read in blocks of words."""

  tables: Sequence[np.ndarray]  # [rows, D_i] of each part
  rows: np.ndarray  # [n, words] int, row in each part, -1 = none
  weights: np.ndarray  # [n, words], a_i
  normalize: bool
  folder: pathlib.Path | None  # where results go; None = they stay in memory
  progress: parts_lib.Progress

  @property
  def dims(self) -> list[int]:
    """D_i."""
    return [table.shape[1] for table in self.tables]

  def blocks(
    self, what: str, words: np.ndarray | slice = np.s_[:]
  ) -> Iterator[tuple[list[np.ndarray], np.ndarray]]:
    """Of some words rows [b, D_i] float32 of each part, weights [n, b, 1]."""
    rows, weights = self.rows[:, words], self.weights[:, words, None]
    num_words = rows.shape[1]
    step = max(_BLOCK_BYTES // (4 * sum(self.dims)), 256)
    for first in range(0, num_words, step):
      self.progress(what, first, num_words)
      block = np.s_[:, first : first + step]
      read = list(map(parts_lib.take, self.tables, rows[block]))
      if self.normalize:
        read = list(map(geometry.unit, read))
      yield read, weights[block]
    self.progress(what, num_words, num_words)

  def gram(
    self, words: np.ndarray | slice = np.s_[:], random_dim: int = 0
  ) -> np.ndarray:
    """[columns, columns] float64, Q of `align`, with columns of random rows."""
    total = np.zeros((sum(self.dims) + random_dim,) * 2)
    rng = np.random.default_rng(0)
    for rows, weights in self.blocks('comparing', words):
      votes = weights.sum(0)
      scales = weights / np.sqrt(np.where(votes > 0, votes, 1))
      random = rng.normal(size=(len(votes), random_dim)) * np.sqrt(votes)
      columns = [*map(np.multiply, rows, scales), random]
      scaled = np.concatenate(columns, 1, dtype=np.float64)
      total += scaled.T @ scaled
    return total

  def moments(self, words: np.ndarray | slice = np.s_[:]) -> list[np.ndarray]:
    """[D_i, D_i] float64 of each part, P_i of `align`: Q of the part alone."""
    return [
      self._replace(tables=[x], rows=y[None], weights=z[None]).gram(words)
      for x, y, z in zip(self.tables, self.rows, self.weights, strict=True)
    ]

  def write_averages(
    self,
    name: str,
    rotations: np.ndarray,
    outer: np.ndarray,
    fit: np.ndarray | None = None,
  ) -> np.ndarray:
    """[words, dim] float32, weighted means of rotated parts, times `outer`.

    Of rotations [sum D_i, d], outer [d, dim]; adds `align.agreement` to `fit`.
    """
    rotations, outer = (x.astype(np.float32) for x in (rotations, outer))
    by_part = [rotations[part] for part in align.slices(self.dims)]

    def average(rows, weights):
      votes = weights.sum(0)
      fractions = weights / np.where(votes > 0, votes, 1)
      fractions = fractions.astype(np.float32)
      rotated = list(map(np.matmul, rows, by_part))
      mean = sum(map(np.multiply, rotated, fractions))
      if fit is not None:
        fit[:] += align.agreement(rotated, fractions[..., 0], mean)
      return mean @ outer

    return self._write(name, outer.shape[1], average)

  def write_concatenated(self, name: str, power: float) -> np.ndarray:
    """[words, sum D_i] float32, all parts, each with its spectral power."""
    matrices = []
    if power != 1:
      matrices = [align.spectral_power(x, power) for x in self.moments()]
      matrices = [x.astype(np.float32) for x in matrices]

    def concatenate(rows, _):
      rows = map(np.matmul, rows, matrices) if matrices else rows
      return np.concatenate(list(rows), 1)

    return self._write(name, sum(self.dims), concatenate)

  def _write(self, name: str, dim: int, combine: Callable) -> np.ndarray:
    blocks = (combine(*block) for block in self.blocks(f'merging {name}'))
    shape = self.rows.shape[1], dim
    return parts_lib.write_rows(blocks, shape, self.folder, name=name)


def vote_weights(has: np.ndarray, votes: np.ndarray) -> np.ndarray:
  """[n, words] float32, the weights a_i of parts that have [n, words] bool.

  In proportion to votes [n, words], or equal if all are 0. They sum to the
  number of these parts, so that frequent words do not outweigh all others.
  """
  votes = np.where(votes.any(0), votes, has)
  totals = np.maximum(votes.sum(0), np.finfo(np.float64).tiny)
  return (votes / totals * has.sum(0)).astype(np.float32)


def merge_rows(
  parts: Sequence[parts_lib.Part],
  union: parts_lib.Union,
  spec: Spec,
  folder: pathlib.Path | None,
  progress: parts_lib.Progress,
) -> Merged:
  """Merges checked parts, every row of the `union` being a word of its own.

  The result goes to files in the folder, or stays in memory. Raises a
  `UserError` if parts have no words in common, or not as many dimensions.
  """
  is_alir, has = spec.method == 'alir', union.rows >= 0
  warnings = check_words(parts, has, spec.method) + _losses(parts)
  dim = _dim([part.dim for part in parts], spec)
  ids = np.flatnonzero(has.any(0) if is_alir else has.all(0))
  job = SideBySide(
    tables=[part.vectors for part in parts],
    rows=union.rows[:, ids],
    weights=vote_weights(has, union.votes if is_alir else has)[:, ids],
    normalize=spec.normalize,
    folder=folder,
    progress=progress,
  )
  rotations, outer, displacements = None, None, list[float]()
  trainable, fit = {}, np.zeros((4, len(parts)))
  if spec.method == 'concat':
    vectors = job.write_concatenated('vectors', spec.power)
  else:
    rotations, outer, displacements = solve(job, spec, dim)
    vectors = job.write_averages(
      'vectors', rotations, outer, fit=fit if is_alir else None
    )
  if is_alir and not spec.normalize:
    trainable, missing = _merge_trainable(parts, job, rotations, outer=outer)
    if missing:
      warnings.append(f'left out, as not all parts have it: {_few(missing)}')
  part_reports = _report_parts(parts, has, fit, num_words=len(ids))
  lost = _report_lost(union, ids, spec.method, warnings=warnings)
  if is_alir:
    warnings += _outliers(part_reports, spec.normalize)
  report = _used_settings(parts, spec, warnings) | {
    'words': len(ids),
    'union_words': len(union.words),
    'lost': lost,
    'parts': part_reports,
    'dim': dim,
    'displacements': displacements,
    'warnings': warnings,
  }
  return Merged(
    words=[union.words[i] for i in ids.tolist()],
    counts=union.counts[ids],
    vectors=vectors,
    trainable=trainable,
    ids=ids,
    rotations=rotations,
    outer=outer,
    report=report,
  )


def _used_settings(parts, spec, warnings):
  """Settings as they were used; warns where these are not those of `spec`."""
  used = dataclasses.asdict(spec)
  if spec.method != 'alir':
    return used | dict.fromkeys(ALIR_ONLY)
  unknown = [part.name for part in parts if part.counts is None]
  if spec.weights == 'counts' and unknown:
    used['weights'] = 'equal'
    warnings.append(
      f'all parts weigh the same: word counts are not known of {_few(unknown)}'
    )
  return used


def _merge_trainable(parts, job, rotations, outer):
  """Tables beside the vectors that all parts have, and names of the others."""
  names = {name for part in parts for name in part.trainable}
  common = names.intersection(*(part.trainable for part in parts))
  trainable = {}
  for name in sorted(common):
    tables = job._replace(tables=[part.trainable[name] for part in parts])
    if tables.dims != job.dims:  # one number per row, which nothing rotates
      matrices = np.ones((len(parts), 1)), np.eye(1)
    elif name.startswith('optimizer/context_vectors/'):
      matrices = rotations, outer
    else:
      # Context vectors and gradients: inner products with vectors stay.
      matrices = rotations, np.linalg.inv(outer).T
    trainable[name] = tables.write_averages(name, *matrices)
  return trainable, sorted(names - common)


def _report_parts(parts, has, fit, num_words):
  """The report of each part, with `align.agreement` in `fit`."""
  return [
    {
      'name': part.name,
      'words': num,
      'dim': part.dim,
      'missing_words': max(num_words - num, 0),
      'rms_norm': part.rms_norm,
      'residual': float(np.sqrt(residual / square)) if square else None,
      'agreement': float(cosines / words) if square else None,
    }
    for part, num, (square, residual, cosines, words) in zip(
      parts, has.sum(1).tolist(), fit.T, strict=True
    )
  ]


def _report_lost(union, ids, method, warnings):
  """The report of words that the result, of words `ids`, lacks."""
  ids = np.setdiff1d(np.arange(len(union.words)), ids)
  fraction = union.counts[ids].sum() / union.counts.sum()
  examples = [union.words[i] for i in ids[:_EXAMPLES]]
  if len(ids):
    warnings.append(
      f'{method} covers only words that are in all parts: {len(ids):,} words '
      f'({fraction:.2%} of all occurrences) are lost, {", ".join(examples)} '
      'first; --method=alir keeps them'
    )
  return {
    'words': len(ids),
    'share_of_occurrences': fraction,
    'examples': examples,
  }


def solve(
  job: SideBySide, spec: Spec, dim: int
) -> tuple[np.ndarray, np.ndarray, list[float]]:
  """Rotations and outer as of `Merged`, and displacements."""
  if spec.method == 'pca':
    moved: list[float] = []
    gram = job.gram()
    rotations = align.principal(gram, dim)
    outer = np.eye(dim) * len(job.tables)  # PCA sums what ALiR averages
  else:
    words = align.fit_words(job.rows >= 0, spec.align_words, job.dims)
    gram = job.gram(words, dim if spec.start == 'random' else 0)
    job.progress('aligning', 0, 1)
    rotations, moved = align.alir(
      gram,
      job.dims,
      dim,
      start=spec.start,
      max_iterations=spec.max_iterations,
      tolerance=spec.tolerance,
    )
    gram, outer = gram[: sum(job.dims), : sum(job.dims)], np.eye(dim)
    if spec.restore:
      outer = align.length_correction(gram, job.moments(words), rotations)
    if spec.power != 1 and len(words) < job.rows.shape[1]:
      gram = job.gram()  # all words, which have other principal directions
  if spec.power != 1:
    whole = rotations @ outer
    outer = outer @ align.spectral_power(whole.T @ gram @ whole, spec.power)
  return rotations, outer, moved


def _dim(dims: Sequence[int], spec: Spec) -> int:
  """Dimensions of the result."""
  most = max(dims) if spec.method == 'alir' else sum(dims)
  least = most if spec.method == 'concat' else 1
  if spec.dim and not least <= spec.dim <= most:
    raise errors.UserError(
      f'--dim={spec.dim} is impossible: {spec.method} of these parts gives '
      f'{least:,} to {most:,} dimensions; leave it out'
    )
  if spec.method == 'concat':
    return most
  check_columns(dims)
  return spec.dim or max(dims)


def check_columns(dims: Sequence[int]) -> None:
  """Raises a `UserError` for more dimensions than can be aligned at once."""
  if sum(dims) > MAX_COLUMNS:
    raise errors.UserError(
      f'the parts have {sum(dims):,} dimensions in all, and {MAX_COLUMNS:,} '
      'can be aligned at once; merge groups of parts, then their results (in a '
      'run: --config.strategy.merge=none)'
    )


def _few(names: Sequence[str]) -> str:
  """The first names, and how many more there are."""
  more = f' and {len(names) - 3} more' if len(names) > 3 else ''
  return ', '.join(names[:3]) + more


def tied(has: np.ndarray, least: np.ndarray) -> tuple[np.ndarray, int]:
  """[n] int, groups of parts [n, words] bool that share `least` words [n, n].

  Also returns how many words two parts of different groups share, at most.
  """
  shared = has.astype(np.float64) @ has.T
  groups = scipy.sparse.csgraph.connected_components(shared >= least)[1]
  return groups, int(np.max(shared, where=groups[:, None] != groups, initial=0))


def check_words(
  parts: Sequence[parts_lib.Part], has: np.ndarray, method: str
) -> list[str]:
  """Warnings if parts [n, words] bool share few words; UserError if none."""
  dims, common = [part.dim for part in parts], int(has.all(0).sum())
  if method != 'alir':
    if not common:
      raise errors.UserError(
        f'no word is in all {len(parts)} parts, and {method} covers only such '
        'words; give --method=alir, which covers the words of any part'
      )
    if method == 'concat' or common >= sum(dims):
      return []
    return [
      f'only {common:,} words are in all parts, fewer than their {sum(dims):,} '
      'dimensions in all: the result fits these words and says little about '
      'others'
    ]

  def listed(groups):
    members = (np.flatnonzero(groups == x) for x in np.unique(groups)[:3])
    return ' | '.join(_few([parts[i].name for i in x]) for x in members)

  groups, _ = tied(has, np.ones(1))
  if groups.any():
    raise errors.UserError(
      'there is nothing to align on: no word of one of these is in another: '
      f'{listed(groups)}; give parts with words in common (check the case of '
      'letters)'
    )
  # Groups may be tied to each other by hardly a word.
  groups, most = tied(has, np.minimum.outer(dims, dims))
  if not groups.any():
    return []
  return [
    f'two parts of different groups of these share {most:,} words at most, '
    f'fewer than their dimensions: {listed(groups)}; groups may be rotated by '
    'chance: merge them separately and compare'
  ]


def _losses(parts: Sequence[parts_lib.Part]) -> list[str]:
  """Warnings of what parts have beside vectors that is not merged."""
  warnings = []
  for name in sorted({x for part in parts for x in part.lost}):
    owners = [part.name for part in parts if name in part.lost]
    warnings.append(f'{name} are not merged, which are of {_few(owners)}')
  return warnings


def _outliers(part_reports, normalize):
  """Warnings of parts that disagree with the others, or are much longer."""
  warnings = []
  agreements = {x['name']: x['agreement'] or 0.0 for x in part_reports}
  median = float(np.median(list(agreements.values())))
  limit = max(_LOW_AGREEMENT, _LOW_RELATIVE_AGREEMENT * median)
  low = [f'{k} ({x:.2f})' for k, x in agreements.items() if x < limit]
  if low:
    warnings.append(
      f'drifted apart from the other parts: {_few(low)} (mean cosine of its '
      f'vectors with those of the others, median {median:.2f}); merge without '
      'them and compare'
    )
  lengths = sorted((x['rms_norm'], x['name']) for x in part_reports)
  (least, short), (most, long) = lengths[0], lengths[-1]
  if not normalize and most / least > _LENGTH_RATIO:
    warnings.append(
      f'vectors of {long} are {most / least:.1f} times as long as those of '
      f'{short} and count as much more; --normalize makes all equal'
    )
  return warnings
