"""Concat, PCA and ALiR: merges parts into one table of vectors, with a report.

Concat and PCA cover the words that all parts have (Anand et al. 2019); ALiR
covers the words of any part, each placed by the parts that have it.

Everything happens on the host, in blocks of words: two passes over the parts
(one for the Gram matrix, one for the result), in which memory holds one block
of the parts side by side and that matrix; the result can go to a file.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.merging import align
from jaxemb.merging import parts as parts_lib
from jaxemb.senses import table as senses_lib

METHODS = ('alir', 'pca', 'concat')
WEIGHTS = ('counts', 'equal')
ALIR_ONLY = frozenset(  # settings that the other methods do not use
  ('start', 'weights', 'restore', 'align_words', 'max_iterations', 'tolerance')
)
MAX_COLUMNS = 16_384  # of all parts: their Gram matrix takes 2 GiB

Progress = Callable[[str, int, int], None]  # (what, words done, all words)

_BLOCK_BYTES = 1 << 26  # of the parts side by side; larger ones are no faster
_EXAMPLES = 5
# Mean cosines with the other parts below these, absolute and relative to the
# median, are hardly more than chance, or an outlier.
_LOW_AGREEMENT = 0.25
_LOW_RELATIVE_AGREEMENT = 0.6
_LENGTH_RATIO = 2.0

_NOT_NEGATIVE = '0 or more', lambda value: value >= 0
_POSITIVE = '1 or more', lambda value: value >= 1
_POWERS = 'above 0, and 10 at most', lambda value: 0 < value <= 10


def _flag(
  default: Any,
  text: str,
  limits: tuple[str, Callable[[Any], bool]] | None = None,
  choices: Sequence[str] | None = None,
) -> Any:
  metadata = {'help': text, 'limits': limits, 'choices': choices}
  return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Spec:
  """How to merge: the flags of the command line, with their help."""

  method: str = _flag(
    'alir',
    'alir: aligned and averaged, words of any part; pca, concat: only words of '
    'all parts',
    choices=METHODS,
  )
  dim: int = _flag(
    0, '0 = that of the largest part; concat: sum', _NOT_NEGATIVE
  )
  start: str = _flag('zero', 'initial vectors', choices=align.STARTS)
  weights: str = _flag(
    'counts',
    'of parts in the mean of a word: by how often each saw it, if known, or '
    'equal',
    choices=WEIGHTS,
  )
  normalize: bool = _flag(False, 'scale vectors to length 1, as in the paper')
  restore: bool = _flag(
    True,
    'give directions in which parts disagree the length that averaging took',
  )
  power: float = _flag(
    1.0,
    'raise the lengths of the principal directions of the result (concat: of '
    'each part) to this power: below 1, few directions dominate less',
    _POWERS,
  )
  align_words: int = _flag(
    0,
    'words that rotations are fitted on, frequent and rare; 0 = 500 per '
    'dimension',
    _NOT_NEGATIVE,
  )
  max_iterations: int = _flag(20, 'at most', _POSITIVE)
  tolerance: float = _flag(
    5e-3,
    'stop once an iteration moves vectors by less, relative to their length; '
    'scores change little beyond this',
    _NOT_NEGATIVE,
  )
  block_rows: int = 0  # words at a time; 0 = by memory
  seed: int = 1  # of a random start


class Merged(NamedTuple):
  """The result of a merge."""

  words: list[str]  # the most frequent first
  counts: np.ndarray  # [words] int64, summed over parts; all 1 = unknown
  vectors: np.ndarray  # [words, dim] float32, mapped if in a file
  trainable: dict[str, np.ndarray]  # [words, ...] float32, as of the parts
  # [D_i, dim] float64 of each part, and from their mean to the result.
  rotations: list[np.ndarray]  # none for concat
  outer: np.ndarray | None
  report: dict[str, Any]  # JSON-ready, with `warnings`, a line each
  senses: senses_lib.Senses | None = None  # of words with several vectors


@dataclasses.dataclass(frozen=True)
class SideBySide:
  """The parts side by side, read in blocks of words."""

  parts: Sequence[parts_lib.Part]
  rows: np.ndarray  # [n, words] int, row in each part, -1 = none
  by_counts: bool = False  # see `parts.vote_weights`
  normalize: bool = False
  block_rows: int = 0  # 0 = by memory
  progress: Progress = lambda what, done, total: None

  @property
  def dims(self) -> tuple[int, ...]:
    """D_i."""
    return tuple(part.dim for part in self.parts)

  @property
  def vectors(self) -> list[parts_lib.Rows]:
    """Of each part."""
    return [part.vectors for part in self.parts]

  def blocks(
    self,
    tables: Sequence[parts_lib.Rows],
    what: str,
    words: np.ndarray | None = None,
  ) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Reads rows of all parts.

    Args:
      tables: of each part, [words of the part, D_i].
      what: shown as progress.
      words: [b] int, which ones; None = all.

    Yields:
      Number of the first word; [b, sum D_i] float32 rows, which may be changed;
      and [b, n] float32 weights a_i.
    """
    all_rows = self.rows if words is None else self.rows[:, words]
    dims, num_words = [x.shape[1] for x in tables], all_rows.shape[1]
    each = self.block_rows or max(_BLOCK_BYTES // (4 * sum(dims)), 256)
    for first in range(0, num_words, each):
      self.progress(what, first, num_words)
      ids = all_rows[:, first : first + each]
      block = np.empty((ids.shape[1], sum(dims)), np.float32)
      columns = align.slices(dims)
      for part, table, mine in zip(columns, tables, ids, strict=True):
        table.read(mine, block[:, part])
        if self.normalize:
          norms = np.linalg.norm(block[:, part], axis=1, keepdims=True)
          block[:, part] /= np.where(norms > 0, norms, 1)
      weights = parts_lib.vote_weights(self.parts, ids, self.by_counts)
      yield first, block, weights
    self.progress(what, num_words, num_words)

  def gram(
    self, words: np.ndarray | None = None, random_dim: int = 0, seed: int = 0
  ) -> np.ndarray:
    """[columns, columns] float64, Q of `align`.

    Args:
      words: [b] int, of which words; None = all.
      random_dim: columns that a random start adds.
      seed: of that start.
    """
    total = np.zeros((sum(self.dims) + random_dim,) * 2)
    for first, rows, weights in self.blocks(self.vectors, 'comparing', words):
      votes = weights.sum(1, keepdims=True)
      scales = weights / np.sqrt(np.where(votes > 0, votes, 1))
      rows *= np.repeat(scales, self.dims, axis=1)
      if random_dim:
        ids = np.arange(first, first + len(rows))
        start = align.random_rows(ids, random_dim, seed)
        rows = np.concatenate([rows, start * np.sqrt(votes)], 1)
      align.add_gram(total, rows)
    return total

  def moments(self, words: np.ndarray | None = None) -> list[np.ndarray]:
    """[D_i, D_i] float64 of each part, P_i of `align`."""
    totals = [np.zeros((dim, dim)) for dim in self.dims]
    for _, rows, weights in self.blocks(self.vectors, 'measuring', words):
      rows *= np.repeat(np.sqrt(weights), self.dims, axis=1)
      for total, part in zip(totals, align.slices(self.dims), strict=True):
        align.add_gram(total, rows[:, part])
    return totals

  def averages(
    self,
    tables: Sequence[parts_lib.Rows],
    rotations: np.ndarray,
    outer: np.ndarray,
    what: str,
    fit: align.Fit | None = None,
  ) -> Iterator[np.ndarray]:
    """[b, dim] blocks of the weighted mean of rotated parts.

    Args:
      tables: of each part, [words of the part, D_i].
      rotations: [sum D_i, dim].
      outer: [dim, dim], what means are multiplied by.
      what: shown as progress.
      fit: measures how well the parts agree.
    """
    columns = align.slices([x.shape[1] for x in tables])
    rotations, outer = (x.astype(np.float32) for x in (rotations, outer))
    for _, rows, weights in self.blocks(tables, what):
      votes = weights.sum(1, keepdims=True)
      shares = weights / np.where(votes > 0, votes, 1)
      rotated = [rows[:, part] @ rotations[part] for part in columns]
      mean = shares[:, :1] * rotated[0]
      for i, x in enumerate(rotated[1:], 1):
        mean += shares[:, i, None] * x
      if fit is not None:
        fit.add(rotated, shares, mean)
      yield mean @ outer


def merge_rows(
  parts: Sequence[parts_lib.Part],
  spec: Spec,
  folder: pathlib.Path | None,
  progress: Progress,
  names: Sequence[str] | None = None,
) -> Merged:
  """Merges parts, every row being a word of its own.

  Args:
    parts: checked ones; vocabularies and dimensions may differ.
    spec: how to merge.
    folder: where to write the result; None = it stays in memory.
    progress: called per block of words.
    names: all words in the wanted order, see `parts.unite_words`.

  Raises:
    errors.UserError: the parts have no words in common.
  """
  is_alir, warnings = spec.method == 'alir', []
  if not is_alir:
    parts = [part._replace(votes=None) for part in parts]
  union = parts_lib.unite_words(parts, names)
  has = union.rows >= 0
  by_counts = is_alir and spec.weights == 'counts'
  if by_counts and not union.has_counts:
    unknown = few([p.name for p in parts if p.counts is None])
    warnings.append(
      f'all parts weigh the same: word counts are not known of {unknown}'
    )
    by_counts = False
  warnings += check_words(parts, has, spec.method)
  dim = _dim(parts, spec)
  chosen = np.flatnonzero(has.any(0) if is_alir else has.all(0))
  job = SideBySide(
    parts,
    union.rows[:, chosen],
    by_counts,
    spec.normalize,
    spec.block_rows,
    progress,
  )
  solved = outer = fitted = fit = None
  if spec.method == 'concat':
    blocks = _concatenated(job, spec.power)
  else:
    if is_alir:
      fit = align.Fit(len(parts))
      fitted = align.fit_words(job.rows >= 0, spec.align_words, job.dims)
    solved, outer = _solve(job, spec, dim, fitted)
    blocks = job.averages(job.vectors, solved.rotations, outer, 'merging', fit)
  vectors = parts_lib.write_rows(
    blocks, (len(chosen), dim), folder and folder / 'vectors.npy'
  )
  trainable = _merge_trainable(job, spec, solved, outer, folder, warnings)
  facts = _describe_parts(parts, union, chosen, fit)
  if is_alir:
    warnings += _outliers(facts, spec.normalize)
  is_lost = np.ones(len(union.words), bool)
  is_lost[chosen] = False
  lost = {
    'words': int(is_lost.sum()),
    'share_of_occurrences': union.counts[is_lost].sum() / union.counts.sum(),
    'examples': [union.words[i] for i in np.flatnonzero(is_lost)[:_EXAMPLES]],
  }
  if lost['words']:
    warnings.append(
      f'{spec.method} covers only words that are in all parts: '
      f'{lost["words"]:,} words ({lost["share_of_occurrences"]:.2%} of all '
      f'occurrences) are lost, {", ".join(lost["examples"])} first; '
      '--method=alir keeps them'
    )
  num_fitted = len(chosen) if fitted is None else len(fitted)
  report = {
    'method': spec.method,
    'start': spec.start if is_alir else None,
    'weights': ('counts' if by_counts else 'equal') if is_alir else None,
    'normalize': spec.normalize,
    'restore': spec.restore if is_alir else None,
    'power': spec.power,
    'words': len(chosen),
    'union_words': len(union.words),
    'common_words': int(has.all(0).sum()),
    'lost': lost,
    'parts': facts,
    'dim': dim,
    'align_words': num_fitted if is_alir else None,
    'displacements': list(solved.displacements) if solved else [],
    'devices': 0,  # all on the host
    'warnings': warnings,
  }
  return Merged(
    [union.words[i] for i in chosen.tolist()],
    union.counts[chosen],
    vectors,
    trainable,
    solved.per_part(job.dims) if solved else [],
    outer,
    report,
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
  for _, rows, _ in job.blocks(job.vectors, 'merging'):
    for part, matrix in zip(columns, matrices, strict=False):
      rows[:, part] = rows[:, part] @ matrix.astype(np.float32)
    yield rows


def _solve(
  job: SideBySide, spec: Spec, dim: int, fitted: np.ndarray | None
) -> tuple[align.Alignment, np.ndarray]:
  """The rotations of PCA or ALiR, and what the mean is multiplied by."""
  if spec.method == 'pca':
    gram = job.gram()
    solved = align.Alignment(align.principal(gram, dim), ())
    outer = np.eye(dim) * len(job.parts)  # PCA sums what ALiR averages
  else:
    random_dim = dim if spec.start == 'random' else 0
    gram = job.gram(fitted, random_dim, spec.seed)
    job.progress('aligning', 0, 1)
    solved = align.alir(
      gram, job.dims, dim, spec.start, spec.max_iterations, spec.tolerance
    )
    gram, outer = gram[: sum(job.dims), : sum(job.dims)], np.eye(dim)
    if spec.restore:
      moments = job.moments(fitted)
      outer = align.length_correction(gram, moments, solved.rotations)
  if spec.power != 1:
    if fitted is not None:
      gram = job.gram()  # all words, which have other principal directions
    turns = solved.rotations @ outer
    outer = outer @ align.spectral_power(turns.T @ gram @ turns, spec.power)
  return solved, outer


def _merge_trainable(
  job: SideBySide,
  spec: Spec,
  solved: align.Alignment | None,
  outer: np.ndarray | None,
  folder: pathlib.Path | None,
  warnings: list[str],
) -> dict[str, np.ndarray]:
  """Context vectors and optimizer slots, merged as the vectors were.

  What is multiplied by vectors, such as context vectors and gradients with
  respect to vectors, takes the inverse of `outer`, so that inner products stay.
  Slots of one number per row do not depend on rotations.
  """
  names = {name for part in job.parts for name in part.trainable}
  if names and (spec.method != 'alir' or spec.normalize):
    warnings.append(
      'context vectors and optimizer state are left out: only --method=alir '
      'without --normalize keeps inner products'
    )
    return {}
  common = names.intersection(*(part.trainable for part in job.parts))
  if names != common:
    missing = few(sorted(names - common))
    warnings.append(f'left out, as not all parts have it: {missing}')
  merged = {}
  for name in sorted(common):
    tables = [part.trainable[name] for part in job.parts]
    if tuple(table.shape[1] for table in tables) != job.dims:
      rotations, last = np.ones((len(tables), 1)), np.eye(1)
    elif name.startswith('optimizer/context_vectors/'):
      rotations, last = solved.rotations, outer
    else:
      rotations, last = solved.rotations, np.linalg.inv(outer).T
    merged[name] = parts_lib.write_rows(
      job.averages(tables, rotations, last, f'merging {name}'),
      (job.rows.shape[1], rotations.shape[1]),
      folder and folder / f'{name}.npy',
    )
  return merged


# Report.


def few(names: Sequence[str]) -> str:
  """The first names, and how many more there are."""
  more = f' and {len(names) - 3} more' if len(names) > 3 else ''
  return ', '.join(names[:3]) + more


def components(related: np.ndarray) -> list[list[int]]:
  """Connected components of a graph [n, n] bool, as lists of its nodes."""
  from scipy.sparse import csgraph

  num, labels = csgraph.connected_components(related)
  return [np.flatnonzero(labels == i).tolist() for i in range(num)]


def check_words(
  parts: Sequence[parts_lib.Part], has: np.ndarray, method: str
) -> list[str]:
  """Warnings of too few common words, of parts that have [n, words] bool.

  Raises:
    errors.UserError: there are none.
  """

  def listed(groups):
    groups = [few([parts[i].name for i in group]) for group in groups[:3]]
    return ' | '.join(groups)

  if method != 'alir':
    num_common, columns = int(has.all(0).sum()), sum(x.dim for x in parts)
    if not num_common:
      raise errors.UserError(
        f'no word is in all {len(parts)} parts, and {method} covers only such '
        'words; give --method=alir, which covers the words of any part'
      )
    if method == 'concat' or num_common >= columns:
      return []
    return [
      f'only {num_common:,} words are in all parts, fewer than their '
      f'{columns:,} dimensions in all: the result fits these words and says '
      'little about others'
    ]
  shared = np.array([[np.count_nonzero(a & b) for b in has] for a in has])
  groups = components(shared > 0)
  if len(groups) > 1:
    raise errors.UserError(
      'there is nothing to align on: no word of one of these is in another: '
      f'{listed(groups)}; give parts with words in common (check the case of '
      'letters)'
    )
  warnings, num_parts = [], has.sum(0)
  for part, mine in zip(parts, has, strict=True):
    num_shared = int(np.sum(mine & (num_parts > 1)))
    if num_shared < part.dim:
      warnings.append(
        f'{part.name} shares only {num_shared:,} words with other parts, fewer '
        f'than its {part.dim:,} dimensions: its other words are placed partly '
        'by chance'
      )
  # Every part may be tied to some, and these to the rest by hardly a word.
  dims = np.array([part.dim for part in parts])
  groups = components(shared >= np.minimum.outer(dims, dims))
  if not warnings and len(groups) > 1:
    most = int(np.delete(shared[groups[0]], groups[0], axis=1).max())
    warnings.append(
      f'two parts of different groups of these share {most:,} words at most, '
      f'fewer than their dimensions: {listed(groups)}; groups may be rotated '
      'by chance: merge them separately and compare'
    )
  return warnings


def _describe_parts(
  parts: Sequence[parts_lib.Part],
  union: parts_lib.Union,
  chosen: np.ndarray,
  fit: align.Fit | None,
) -> list[dict[str, Any]]:
  has, facts = union.rows >= 0, []
  is_shared = has.sum(0) > 1
  for i, part in enumerate(parts):
    residual = agreement = None
    if fit is not None and fit.words[i] and fit.squares[i]:
      residual = float(np.sqrt(fit.residuals[i] / fit.squares[i]))
      agreement = float(fit.cosines[i] / fit.words[i])
    facts.append(
      {
        'name': part.name,
        'words': int(has[i].sum()),
        'dim': part.dim,
        'missing_words': int((~has[i][chosen]).sum()),
        'shared_words': int((has[i] & is_shared).sum()),
        'rms_norm': part.rms_norm,
        'residual': residual,
        'agreement': agreement,
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
