"""Concat, PCA and ALiR: from parts to one table, with a report.

Concat and PCA cover the words that all parts have (Anand et al. 2019); ALiR
covers those that any part has, each placed by the parts that have it.
"""

import dataclasses
import pathlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxemb import errors
from jaxemb.merging import align, align_words, passes, quality, tables
from jaxemb.merging import gram as gram_lib
from jaxemb.merging import parts as parts_lib
from jaxemb.runtime import hosts
from jaxemb.senses import table as senses_lib

METHODS = ('alir', 'pca', 'concat')
STARTS = align.STARTS
WEIGHTS = ('counts', 'equal')

# Columns of the Gram matrix, of which two lie in a device's memory.
MAX_COLUMNS = 16_384


@dataclasses.dataclass(frozen=True)
class Spec:
  """How to merge.

  Attributes:
    method: one of METHODS.
    dim: of the result; 0 = that of the largest part, for Concat of all.
    start: of ALiR, one of STARTS.
    weights: of the parts' votes on a word, 'counts' (how often each saw it,
      where all parts know) or 'equal'.
    normalize: whether vectors are brought to length 1 first.
    restore: of ALiR, whether directions in which parts disagree get back the
      length that averaging took, see `ops.align.restore`.
    power: to which the lengths of the result's principal directions, or for
      Concat those of each part, are raised, see `ops.align.flatten`; 1 = they
      stay.
    align_words: of ALiR, about how many words the rotations are fitted on, see
      `merging.align_words`; 0 = 500 for each dimension of the largest part.
    max_iterations: of ALiR.
    tolerance: displacement below which ALiR stops, relative to the vectors.
    block_rows: words at a time; 0 = what suits memory.
    seed: of ALiR's random start.
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
  block_rows: int = 0
  seed: int = 1


class Merged(NamedTuple):
  """What came of it.

  Attributes:
    words: the most frequent first.
    counts: [words] int64, summed over the parts; 1 where they are not known.
    vectors: [words, dim] float32; memory-mapped if it went to a file.
    others: by name, [words, ...] float32 like the parts' `others`.
    rotations: [D_i, dim] float64, from each part to what parts are averages
      of; none for Concat.
    outer: [dim, dim] float64, from there to the result; none for Concat.
    report: JSON-ready figures, and `warnings`, a line each.
    senses: whose rows these are, if words have several.
  """

  words: list[str]
  counts: np.ndarray
  vectors: np.ndarray
  others: dict[str, np.ndarray]
  rotations: list[np.ndarray]
  outer: np.ndarray | None
  report: dict[str, Any]
  senses: senses_lib.Senses | None = None


class _Made(NamedTuple):
  """The vectors, and how they came about."""

  vectors: np.ndarray
  solved: align.Alignment | None = None
  outer: np.ndarray | None = None
  measured: align.Measured | None = None


def merge(
  parts: Sequence[parts_lib.Part],
  spec: Spec,
  mesh: jax.sharding.Mesh,
  folder: pathlib.Path | None = None,
  skip_bad: bool = False,
  progress: passes.Progress = lambda what, done, total: None,
) -> Merged:
  """Merges parts.

  Args:
    parts: at least two, of the same or other words and dimensions.
    spec: how to merge.
    mesh: devices to work on, all of them alike.
    folder: where to write the result; None = it stays in memory.
    skip_bad: whether to go on without parts that are empty or not finite.
    progress: called now and then with what is done, words done, all words.

  Raises:
    errors.UserError: Parts that cannot be used or have no words in common.
  """
  usable = parts_lib.usable(parts, skip_bad)
  return merge_usable(usable, spec, mesh, folder, progress)


def merge_usable(
  usable: parts_lib.Usable,
  spec: Spec,
  mesh: jax.sharding.Mesh,
  folder: pathlib.Path | None,
  progress: passes.Progress,
  names: Sequence[str] | None = None,
) -> Merged:
  """Merges parts that have been looked at.

  Args:
    usable: the parts.
    spec: how to merge.
    mesh: devices to work on.
    folder: where to write the result; None = it stays in memory.
    progress: see `merge`.
    names: words in the order that is wanted, see `parts.unite`.
  """
  parts, rms_norms, skipped, started = usable
  warnings = [f'left out: {x["reason"]}' for x in skipped]
  union = parts_lib.unite(parts, names)
  has = union.rows >= 0
  by_counts, more = _by_counts(parts, spec, union)
  warnings += more
  warnings += quality.check_words(parts, has, spec.method)
  dim = _dim(parts, spec)
  chosen = np.flatnonzero(has.any(0) if spec.method == 'alir' else has.all(0))
  job = passes.Passes(
    parts,
    union.rows[:, chosen],
    mesh,
    spec.method == 'alir',
    by_counts,
    spec.normalize,
    spec.block_rows,
    progress,
  )
  fitted = None
  if spec.method == 'alir':
    fitted = align_words.choose(job.places >= 0, spec.align_words, job.dims)
  if spec.method == 'concat':
    made = _Made(_side_by_side(job, spec, dim, folder))
  else:
    made = _turned(job, spec, dim, fitted, folder)
  solved, outer = made.solved, made.outer
  others, more = _others(job, spec, solved, outer, folder)
  warnings += more
  report, more = _report(job, spec, union, chosen, rms_norms, made.measured)
  warnings += more
  ends = np.cumsum(job.dims)[:-1]
  return Merged(
    [union.words[i] for i in chosen.tolist()],
    union.counts[chosen],
    made.vectors,
    others,
    [] if solved is None else np.split(solved.rotations, ends),
    outer,
    report
    | {
      'dim': dim,
      'align_words': _num_fitted(job, spec, fitted),
      'skipped': skipped,
      'displacements': [] if solved is None else list(solved.displacements),
      'merge_secs': time.monotonic() - started,
      'peak_rss_bytes': hosts.peak_rss_bytes(),
      'warnings': warnings,
    },
  )


def _by_counts(
  parts: Sequence[parts_lib.Part], spec: Spec, union: parts_lib.Union
) -> tuple[bool, list[str]]:
  """Whether counts weigh the votes; and a warning if they ought to."""
  if spec.method != 'alir' or spec.weights != 'counts':
    return False, []
  if union.has_counts:
    return True, []
  unknown = quality.few([p.name for p in parts if p.counts is None])
  return False, [
    f'all parts weigh the same: word counts are not known of {unknown}'
  ]


def _report(
  job: passes.Passes,
  spec: Spec,
  union: parts_lib.Union,
  chosen: np.ndarray,
  rms_norms: Sequence[float],
  measured: align.Measured | None,
) -> tuple[dict[str, Any], list[str]]:
  """What is said of words and parts; and warnings."""
  is_alir = spec.method == 'alir'
  figures = quality.of_parts(
    job.parts, union, chosen, rms_norms, measured if is_alir else None
  )
  lost = quality.lost(union, chosen)
  warnings = quality.apart(figures, spec.normalize) if is_alir else []
  if lost['words']:
    warnings.append(quality.lost_line(lost, spec.method))
  weights = 'counts' if job.by_counts else 'equal'
  report = {
    'method': spec.method,
    'start': spec.start if is_alir else None,
    'weights': weights if is_alir else None,
    'normalize': spec.normalize,
    'restore': spec.restore if is_alir else None,
    'power': spec.power,
    'words': len(chosen),
    'union_words': len(union.words),
    'common_words': int((union.rows >= 0).all(0).sum()),
    'lost': lost,
    'parts': figures,
    'devices': job.mesh.size,
  }
  return report, warnings


def _dim(parts: Sequence[parts_lib.Part], spec: Spec) -> int:
  """Numbers per vector of the result."""
  dims = [part.dim for part in parts]
  if spec.method == 'concat':
    if spec.dim not in (0, sum(dims)):
      raise errors.UserError(
        f'--dim={spec.dim} cannot be had: concat gives the {sum(dims):,} '
        'dimensions of all parts; leave it out, or give --method=pca'
      )
    return sum(dims)
  most = max(dims) if spec.method == 'alir' else sum(dims)
  if spec.dim > most:
    raise errors.UserError(
      f'--dim={spec.dim} is more than the parts have, {most:,}; give less'
    )
  check_columns(dims)
  return spec.dim or max(dims)


def check_columns(dims: Sequence[int]) -> None:
  """Raises a `UserError` for more dimensions than can be compared."""
  if sum(dims) > MAX_COLUMNS:
    raise errors.UserError(
      f'the parts have {sum(dims):,} dimensions in all, and {MAX_COLUMNS:,} '
      'can be compared at once; merge groups of parts, then what came of them'
    )


def _solve(
  job: passes.Passes, spec: Spec, dim: int, fitted: np.ndarray | None
) -> tuple[align.Alignment, np.ndarray]:
  """Where parts are turned to, and what their average is multiplied by."""
  is_random = spec.method == 'alir' and spec.start == 'random'
  restores = spec.method == 'alir' and spec.restore
  gram, moments = job.compare(
    fitted, restores, dim if is_random else 0, spec.seed
  )
  job.progress('aligning', 0, 1)
  if spec.method == 'pca':
    solved = align.Alignment(align.principal(gram, dim), ())
  else:
    solved = align.solve(
      gram, job.dims, dim, spec.start, spec.max_iterations, spec.tolerance
    )
  turns, outer = solved.rotations, np.eye(dim)
  gram = gram[: len(turns), : len(turns)]  # without a random start
  if restores:
    outer = align.restore(gram, moments, turns)
  if spec.power != 1:
    if fitted is not None:
      # Of the whole table: other words have other directions.
      gram = job.compare().gram
    mean = outer.T @ turns.T @ gram @ turns @ outer
    outer = outer @ align.flatten(mean, spec.power)
  return solved, outer


def _sink(
  job: passes.Passes, dim: int, folder: pathlib.Path | None
) -> passes.Sink:
  shape = job.places.shape[1], dim
  return passes.Sink(shape, folder and folder / 'vectors.npy')


def _num_fitted(
  job: passes.Passes, spec: Spec, fitted: np.ndarray | None
) -> int | None:
  """Words that rotations were fitted on, where there are any."""
  if spec.method != 'alir':
    return None
  return job.places.shape[1] if fitted is None else len(fitted)


def _turned(
  job: passes.Passes,
  spec: Spec,
  dim: int,
  fitted: np.ndarray | None,
  folder: pathlib.Path | None,
) -> _Made:
  """PCA and ALiR."""
  solved, outer = _solve(job, spec, dim, fitted)
  sink, rows = _sink(job, dim, folder), [part.vectors for part in job.parts]
  measured = job.turn(rows, solved.rotations, outer, sink, 'merging')
  return _Made(sink.close(), solved, outer, measured)


def _side_by_side(
  job: passes.Passes, spec: Spec, dim: int, folder: pathlib.Path | None
) -> np.ndarray:
  """Concat; parts have no directions in common, and each is evened alone."""
  evened = []
  if spec.power != 1:
    evened = [
      align.flatten(square, spec.power).astype(np.float32)
      for square in job.squares()
    ]
  sink, columns = _sink(job, dim, folder), gram_lib.slices(job.dims)
  for block in job.blocks([part.vectors for part in job.parts], 'merging'):
    for part, matrix in zip(columns, evened, strict=False):
      block.rows[:, part] = block.rows[:, part] @ matrix
    sink.write(block.rows[: block.size])
  return sink.close()


def _others(
  job: passes.Passes,
  spec: Spec,
  solved: align.Alignment | None,
  outer: np.ndarray,
  folder: pathlib.Path | None,
) -> tuple[dict[str, np.ndarray], list[str]]:
  """Merges what goes with the vectors in the same way; and warnings.

  Rows as wide as the vectors take the same rotations. Where vectors are then
  multiplied by a matrix, what is multiplied by vectors, and gradients by
  vectors, take its inverse: products of rows stay. Single numbers of a row do
  not depend on rotations.
  """
  names = {name for part in job.parts for name in part.others}
  if names and (spec.method != 'alir' or spec.normalize):
    return {}, [
      'context vectors and optimizer state are left out: only --method=alir '
      'without --normalize keeps products of vectors'
    ]
  common = {n for n in names if all(n in part.others for part in job.parts)}
  merged = {}
  for name in sorted(common):
    rows = [part.others[name] for part in job.parts]
    widths = tuple(r.shape[1] for r in rows)
    turns, last = solved.rotations, np.linalg.inv(outer).T
    if widths != job.dims:
      turns, last = np.ones((len(rows), 1)), np.eye(1)
    elif '.' in name and not name.startswith(f'{tables.EXPORTED}.'):
      last = outer
    sink = passes.Sink(
      (job.places.shape[1], turns.shape[1]),
      folder and folder / 'tables' / f'{name}.npy',
    )
    job.turn(rows, turns, last, sink, f'merging {name}')
    merged[name] = sink.close()
  if names == common:
    return merged, []
  left = quality.few(sorted(names - common))
  return merged, [f'left out, as not all parts have it: {left}']
