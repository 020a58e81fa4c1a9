"""Concat, PCA and ALiR: merges parts into one table of vectors, with a report.

Concat and PCA cover the words that all parts have (Anand et al. 2019); ALiR
covers the words of any part, each placed by the parts that have it.

Everything happens on the host, in blocks of words: two passes over the parts
(one for the Gram matrix, one for the result), in which memory holds one block
of the parts side by side and that matrix; the result can go to a file.
"""

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.merging import align
from jaxemb.merging import parts as parts_lib
from jaxemb.senses import table as senses_lib

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
# Mean cosines with the other parts below these, absolute and relative to the
# median, are hardly more than chance, or an outlier.
_LOW_AGREEMENT = 0.25
_LOW_RELATIVE_AGREEMENT = 0.6
_LENGTH_RATIO = 2.0


@dataclasses.dataclass(frozen=True)
class Spec:
  """How to merge; `jaxemb.merge` says what the settings mean.

  Raises:
    errors.UserError: a setting is out of range, or the method does not use it.
  """

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
  senses: senses_lib.Senses | None = None  # of words with several vectors


class SideBySide(NamedTuple):
  """Tables of n parts side by side, read in blocks of words."""

  tables: Sequence[parts_lib.Rows]  # [rows, D_i] of each part
  rows: np.ndarray  # [n, words] int, row in each part, -1 = none
  weights: np.ndarray  # [n, words], a_i
  normalize: bool
  progress: parts_lib.Progress

  @property
  def dims(self) -> list[int]:
    """D_i."""
    return [table.shape[1] for table in self.tables]

  def blocks(
    self, what: str, words: np.ndarray | slice = np.s_[:]
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """[b, sum D_i] float32 rows, which may be changed, and [b, n] weights.

    Args:
      what: shown as progress.
      words: ids or slice of the words to read.
    """
    rows, all_weights = self.rows[:, words], self.weights[:, words]
    num_words, columns = rows.shape[1], align.slices(self.dims)
    step = max(_BLOCK_BYTES // (4 * sum(self.dims)), 256)
    for first in range(0, num_words, step):
      self.progress(what, first, num_words)
      ids = rows[:, first : first + step]
      block = np.empty((ids.shape[1], sum(self.dims)), np.float32)
      for part, table, mine in zip(columns, self.tables, ids, strict=True):
        table.read(mine, block[:, part])
        if self.normalize:
          norms = np.linalg.norm(block[:, part], axis=1, keepdims=True)
          block[:, part] /= np.where(norms > 0, norms, 1)
      yield block, all_weights[:, first : first + step].T
    self.progress(what, num_words, num_words)

  def gram(
    self, words: np.ndarray | slice = np.s_[:], random_dim: int = 0
  ) -> np.ndarray:
    """[columns, columns] float64, Q of `align`, with columns of random rows."""
    total = np.zeros((sum(self.dims) + random_dim,) * 2)
    rng = np.random.default_rng(0)
    for rows, weights in self.blocks('comparing', words):
      votes = weights.sum(1, keepdims=True)
      scales = weights / np.sqrt(np.where(votes > 0, votes, 1))
      rows *= np.repeat(scales, self.dims, axis=1)
      random = rng.normal(size=(len(rows), random_dim)) * np.sqrt(votes)
      align.add_gram(total, np.concatenate([rows, random], 1))
    return total

  def moments(self, words: np.ndarray | slice = np.s_[:]) -> list[np.ndarray]:
    """[D_i, D_i] float64 of each part, P_i of `align`."""
    totals = [np.zeros((dim, dim)) for dim in self.dims]
    for rows, weights in self.blocks('measuring', words):
      rows *= np.repeat(np.sqrt(weights), self.dims, axis=1)
      for total, part in zip(totals, align.slices(self.dims), strict=True):
        align.add_gram(total, rows[:, part])
    return totals

  def write_averages(
    self,
    rotations: np.ndarray,
    outer: np.ndarray,
    folder: pathlib.Path | None,
    name: str,
    fit: np.ndarray | None = None,
  ) -> np.ndarray:
    """[words, dim] float32, weighted means of rotated parts.

    Args:
      rotations: [sum D_i, dim].
      outer: [dim, dim], what means are multiplied by.
      folder: where to write it; None = it stays in memory.
      name: of the file, shown as progress.
      fit: [4, n], to which `align.agreement` is added.
    """
    columns, dim = align.slices(self.dims), outer.shape[1]
    rotations, outer = (x.astype(np.float32) for x in (rotations, outer))

    def means():
      for rows, weights in self.blocks(f'merging {name}'):
        votes = weights.sum(1, keepdims=True)
        shares = (weights / np.where(votes > 0, votes, 1)).astype(np.float32)
        rotated = [rows[:, part] @ rotations[part] for part in columns]
        mean = sum(
          x * share[:, None] for x, share in zip(rotated, shares.T, strict=True)
        )
        if fit is not None:
          fit[:] += align.agreement(rotated, shares, mean)
        yield mean @ outer

    shape = self.rows.shape[1], dim
    return parts_lib.write_rows(means(), shape, folder, name).open()


def merge_rows(
  parts: Sequence[parts_lib.Part],
  union: parts_lib.Union,
  spec: Spec,
  folder: pathlib.Path | None,
  progress: parts_lib.Progress,
) -> Merged:
  """Merges parts, every row being a word of its own.

  Args:
    parts: checked ones; vocabularies and dimensions may differ.
    union: their words.
    spec: how to merge.
    folder: where to write the result; None = it stays in memory.
    progress: called per block of words.

  Raises:
    errors.UserError: the parts have no words in common.
  """
  is_alir, warnings, has = spec.method == 'alir', [], union.rows >= 0
  by_counts = is_alir and spec.weights == 'counts'
  unknown = [part.name for part in parts if part.counts is None]
  if by_counts and unknown:
    warnings.append(
      f'all parts weigh the same: word counts are not known of {few(unknown)}'
    )
    by_counts = False
  warnings += check_words(parts, has, spec.method)
  dim = _dim(parts, spec)
  ids = np.flatnonzero(has.any(0) if is_alir else has.all(0))
  votes = union.votes[:, ids] if is_alir and union.votes is not None else None
  job = SideBySide(
    [part.vectors for part in parts],
    union.rows[:, ids],
    parts_lib.vote_weights(has[:, ids], votes),
    spec.normalize,
    progress,
  )
  rotations = outer = fit = num_fitted = None
  moved, trainable = [], {}
  if spec.method == 'concat':
    shape = len(ids), dim
    blocks = _concatenated(job, spec.power)
    vectors = parts_lib.write_rows(blocks, shape, folder, 'vectors').open()
  else:
    if is_alir:
      fit = np.zeros((4, len(parts)))
      rotations, outer, moved, num_fitted = _solve(job, spec, dim)
    else:
      rotations, outer = _principal(job, spec.power, dim)
    vectors = job.write_averages(rotations, outer, folder, 'vectors', fit)
  if is_alir and not spec.normalize:
    trainable = _merge_trainable(job, parts, rotations, outer, folder, warnings)
  facts = _describe_parts(parts, has, len(ids), fit)
  if is_alir:
    warnings += _outliers(facts, spec.normalize)
  lost_ids = np.setdiff1d(np.arange(len(union.words)), ids)
  lost = {
    'words': len(lost_ids),
    'share_of_occurrences': union.counts[lost_ids].sum() / union.counts.sum(),
    'examples': [union.words[i] for i in lost_ids[:_EXAMPLES]],
  }
  if lost['words']:
    warnings.append(
      f'{spec.method} covers only words that are in all parts: '
      f'{lost["words"]:,} words ({lost["share_of_occurrences"]:.2%} of all '
      f'occurrences) are lost, {", ".join(lost["examples"])} first; '
      '--method=alir keeps them'
    )
  report = {
    'method': spec.method,
    'start': spec.start if is_alir else None,
    'weights': ('counts' if by_counts else 'equal') if is_alir else None,
    'normalize': spec.normalize,
    'restore': spec.restore if is_alir else None,
    'power': spec.power,
    'words': len(ids),
    'union_words': len(union.words),
    'common_words': int(has.all(0).sum()),
    'lost': lost,
    'parts': facts,
    'dim': dim,
    'align_words': num_fitted,
    'displacements': moved,
    'devices': 0,  # all on the host
    'warnings': warnings,
  }
  words = [union.words[i] for i in ids.tolist()]
  return Merged(
    words, union.counts[ids], vectors, trainable, ids, rotations, outer, report
  )


def _dim(parts: Sequence[parts_lib.Part], spec: Spec) -> int:
  """Dimensions of the result."""
  dims = [part.dim for part in parts]
  most = max(dims) if spec.method == 'alir' else sum(dims)
  if spec.method == 'concat':
    if spec.dim not in (0, most):
      raise errors.UserError(
        f'--dim={spec.dim} is impossible: concat gives the {most:,} dimensions '
        'of all parts; leave it out, or give --method=pca'
      )
    return most
  if spec.dim > most:
    raise errors.UserError(
      f'--dim={spec.dim} is more than the parts have, {most:,}; give less'
    )
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


def _concatenated(job: SideBySide, power: float) -> Iterator[np.ndarray]:
  """Blocks of all parts side by side, each with its own spectral power."""
  columns, matrices = align.slices(job.dims), []
  if power != 1:
    matrices = [align.spectral_power(x, power) for x in job.moments()]
  for rows, _ in job.blocks('merging vectors'):
    for part, matrix in zip(columns, matrices, strict=False):
      rows[:, part] = rows[:, part] @ matrix.astype(np.float32)
    yield rows


def _principal(
  job: SideBySide, power: float, dim: int
) -> tuple[np.ndarray, np.ndarray]:
  """Rotations of PCA, and what the mean is multiplied by."""
  gram = job.gram()
  rotations = align.principal(gram, dim)
  outer = np.eye(dim) * len(job.tables)  # PCA sums what ALiR averages
  return rotations, _with_power(outer, rotations, gram, power)


def _solve(
  job: SideBySide, spec: Spec, dim: int
) -> tuple[np.ndarray, np.ndarray, list[float], int]:
  """Rotations of ALiR, what the mean is multiplied by, displacements, words."""
  words = align.fit_words(job.rows >= 0, spec.align_words, job.dims)
  gram = job.gram(words, dim if spec.start == 'random' else 0)
  job.progress('aligning', 0, 1)
  rotations, moved = align.alir(
    gram, job.dims, dim, spec.start, spec.max_iterations, spec.tolerance
  )
  gram, outer = gram[: sum(job.dims), : sum(job.dims)], np.eye(dim)
  if spec.restore:
    outer = align.length_correction(gram, job.moments(words), rotations)
  if spec.power != 1 and len(words) < job.rows.shape[1]:
    gram = job.gram()  # all words, which have other principal directions
  outer = _with_power(outer, rotations, gram, spec.power)
  return rotations, outer, moved, len(words)


def _with_power(
  outer: np.ndarray, rotations: np.ndarray, gram: np.ndarray, power: float
) -> np.ndarray:
  if power == 1:
    return outer
  turns = rotations @ outer
  return outer @ align.spectral_power(turns.T @ gram @ turns, power)


def _merge_trainable(
  job: SideBySide,
  parts: Sequence[parts_lib.Part],
  rotations: np.ndarray,
  outer: np.ndarray,
  folder: pathlib.Path | None,
  warnings: list[str],
) -> dict[str, np.ndarray]:
  """Context vectors and optimizer slots, merged as the vectors were.

  What is multiplied by vectors, such as context vectors and gradients with
  respect to vectors, takes the inverse of `outer`, so that inner products stay.
  Slots of one number per row do not depend on rotations.
  """
  names = {name for part in parts for name in part.trainable}
  common = names.intersection(*(part.trainable for part in parts))
  if names != common:
    missing = few(sorted(names - common))
    warnings.append(f'left out, as not all parts have it: {missing}')
  merged = {}
  for name in sorted(common):
    each = job._replace(tables=[part.trainable[name] for part in parts])
    if each.dims != job.dims:
      args = np.ones((len(parts), 1)), np.eye(1)
    elif name.startswith('optimizer/context_vectors/'):
      args = rotations, outer
    else:
      args = rotations, np.linalg.inv(outer).T
    merged[name] = each.write_averages(*args, folder, name)
  return merged


# Report.


def few(names: Sequence[str]) -> str:
  """The first names, and how many more there are."""
  more = f' and {len(names) - 3} more' if len(names) > 3 else ''
  return ', '.join(names[:3]) + more


def groups(related: np.ndarray) -> np.ndarray:
  """[n] int, the connected component of each node of a graph [n, n] bool."""
  from scipy.sparse import csgraph

  return csgraph.connected_components(related)[1]


def num_shared(has: np.ndarray) -> np.ndarray:
  """[n, n] int, words that any two parts share, of [n, words] bool."""
  return np.array([[np.count_nonzero(a & b) for b in has] for a in has])


def check_words(
  parts: Sequence[parts_lib.Part], has: np.ndarray, method: str
) -> list[str]:
  """Warnings of too few common words, of parts that have [n, words] bool.

  Raises:
    errors.UserError: there are none.
  """
  dims = np.array([part.dim for part in parts])
  if method != 'alir':
    num_common = int(has.all(0).sum())
    if not num_common:
      raise errors.UserError(
        f'no word is in all {len(parts)} parts, and {method} covers only such '
        'words; give --method=alir, which covers the words of any part'
      )
    if method == 'concat' or num_common >= sum(dims):
      return []
    return [
      f'only {num_common:,} words are in all parts, fewer than their '
      f'{sum(dims):,} dimensions in all: the result fits these words and says '
      'little about others'
    ]
  shared = num_shared(has)

  def listed(labels):
    names = ([parts[i].name for i in np.flatnonzero(labels == x)]
             for x in np.unique(labels)[:3])  # fmt: skip
    return ' | '.join(map(few, names))

  labels = groups(shared > 0)
  if labels.any():
    raise errors.UserError(
      'there is nothing to align on: no word of one of these is in another: '
      f'{listed(labels)}; give parts with words in common (check the case of '
      'letters)'
    )
  # Every part may be tied to some, and these to the rest by hardly a word.
  labels = groups(shared >= np.minimum.outer(dims, dims))
  if not labels.any():
    return []
  most = int(shared[labels[:, None] != labels].max())
  return [
    f'two parts of different groups of these share {most:,} words at most, '
    f'fewer than their dimensions: {listed(labels)}; groups may be rotated by '
    'chance: merge them separately and compare'
  ]


def _describe_parts(
  parts: Sequence[parts_lib.Part],
  has: np.ndarray,
  num_words: int,
  fit: np.ndarray | None,
) -> list[dict[str, Any]]:
  facts, is_shared = [], has.sum(0) > 1
  for i, (part, mine) in enumerate(zip(parts, has, strict=True)):
    squares, residuals, cosines, words = (
      np.zeros(4) if fit is None else fit[:, i]
    )
    facts.append(
      {
        'name': part.name,
        'words': int(mine.sum()),
        'dim': part.dim,
        'missing_words': max(num_words - int(mine.sum()), 0),
        'shared_words': int((mine & is_shared).sum()),
        'rms_norm': part.rms_norm,
        'residual': float(np.sqrt(residuals / squares)) if squares else None,
        'agreement': float(cosines / words) if squares else None,
      }
    )
  return facts


def _outliers(facts: Sequence[dict[str, Any]], normalize: bool) -> list[str]:
  """Warnings of parts that disagree with the others, or are much longer."""
  warnings = []
  agreements = [x['agreement'] or 0.0 for x in facts]
  median = float(np.median(agreements))
  limit = max(_LOW_AGREEMENT, _LOW_RELATIVE_AGREEMENT * median)
  pairs = zip(facts, agreements, strict=True)
  low = [f'{x["name"]} ({value:.2f})' for x, value in pairs if value < limit]
  if low:
    warnings.append(
      f'drifted apart from the other parts: {few(low)} (mean cosine of its '
      f'vectors with those of the others, median {median:.2f}); merge without '
      'them and compare'
    )
  least, *_, most = sorted(facts, key=lambda x: x['rms_norm'])
  ratio = most['rms_norm'] / least['rms_norm']
  if not normalize and ratio > _LENGTH_RATIO:
    warnings.append(
      f'vectors of {most["name"]} are {ratio:.1f} times as long as those of '
      f'{least["name"]} and count as much more; --normalize makes all equal'
    )
  return warnings
