"""Merging of parts whose words have several vectors.

Sense k of a word in one part is not sense k in another. Parts are turned to
each other by their words with one sense (`ops.align`); there, word by word,
senses that lie close and are meant as often are found to be the same
(`ops.match`). Then their rows are named alike, and merged as if senses were
words.

What a part has to say about a sense is how often it saw the word times the
prior. Priors are averages weighted by how often the parts saw the word, of the
parts in which it has several senses, if any: one vector does not say how often
a sense is meant. A word has as many senses as in the part where it has most;
those that other parts lack are placed by the parts that have them. What tells
senses from each other in a text is merged with them: the means of their
contexts (`sense_contexts`), and outputs, which turn with the vectors so that
their products stay; the inner nodes of a Huffman tree are the same only where
the whole tree is.
"""

import dataclasses
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb.merging import align
from jaxemb.merging import merge as merge_lib
from jaxemb.merging import parts as parts_lib
from jaxemb.senses import match, sense_contexts, sense_outputs, sense_words
from jaxemb.senses import table as senses_lib

_ENOUGH = 5  # words with one sense that two parts share, per dimension
_BLOCK_BYTES = 1 << 26  # of the senses of some words in all parts


class _Same(NamedTuple):
  """Which senses are the same, and figures of it."""

  # Of each part [its rows] int64, row of the result; -1 = not to be merged.
  targets: list[np.ndarray]
  report: dict[str, Any]


def merge(
  parts: Sequence[parts_lib.Part],
  spec: merge_lib.Spec,
  folder: pathlib.Path | None = None,
  skip_bad: bool = False,
  progress: merge_lib.Progress = lambda what, done, total: None,
) -> merge_lib.Merged:
  """Merges parts, of words with one vector or with several.

  Args:
    parts: at least two; those of one vector per word have one sense of each.
    spec: how to merge.
    folder: where to write the result; None = it stays in memory.
    skip_bad: whether to go on without parts that are empty or not finite.
    progress: called now and then with what is done, words done, all words.

  Raises:
    errors.UserError: Parts that cannot be used or have no words in common.
  """
  usable = parts_lib.usable_parts(parts, skip_bad)
  parts = usable.parts
  if all(part.senses is None for part in parts):
    return merge_lib.merge_usable(usable, spec, folder, progress)
  merge_lib.check_columns([part.dim for part in parts])
  tables = [sense_words.table(part) for part in parts]
  words = sense_words.unite(parts, tables, spec.weights == 'counts')
  rotations, report = _rotations(parts, tables, words, spec, progress)
  same = _match(parts, tables, words, rotations, progress)
  names = senses_lib.row_names(words.names, words.starts)
  renamed = [
    _renamed(*x, names)
    for x in zip(parts, tables, words.votes, words.rows, same.targets,
                 strict=True)
  ]  # fmt: skip
  merged = merge_lib.merge_usable(
    usable._replace(parts=renamed), spec, folder, progress, names
  )
  index = {name: i for i, name in enumerate(names)}
  kept = np.array([index[name] for name in merged.words])
  outputs, obstacle = sense_outputs.merge(
    parts, words, spec, merged, folder, progress
  )
  priors = _priors(tables, words, same.targets)
  found = _whole(parts, words, kept, priors, merged.vectors, outputs)
  contexts, warnings = sense_contexts.merge(
    parts, tables, words, same.targets, found, kept
  )
  found = dataclasses.replace(found, contexts=contexts)
  if obstacle:
    left_out = f'outputs are left out: {obstacle}'
    if not found.can_disambiguate:
      left_out += '; sentences cannot be disambiguated'
    warnings.append(left_out)
  report |= same.report | {
    'outputs': outputs is not None, 'contexts': contexts is not None,
    'lost_senses': len(names) - len(kept)
  }  # fmt: skip
  warnings += _warnings(report) + _of_rows(parts)
  return merged._replace(
    words=found.names(),
    counts=found.by_row(found.counts),
    report=merged.report
    | {
      'words': len(found.words),
      'senses': report,
      'warnings': merged.report['warnings'] + warnings,
      'merge_secs': time.monotonic() - usable.started,
    },
    senses=found,
  )


def line(found: Mapping[str, Any]) -> str:
  """What a report says of senses, for people."""
  told = f'senses: {found["words"]:,} words have several'
  if found['cosine_matched'] is None:
    return told
  return (
    f'{told}; mean cosine of those that were made one '
    f'{found["cosine_matched"]:.3f}, and {found["cosine_in_order"]:.3f} by the '
    'same weights, had they been taken in the order of the parts'
  )


def _rotations(
  parts: Sequence[parts_lib.Part],
  tables: Sequence[sense_words.Table],
  words: sense_words.Words,
  spec: merge_lib.Spec,
  progress: merge_lib.Progress,
) -> tuple[list[np.ndarray], dict[str, Any]]:
  """[D_i, dim] float64 of each part, into a space of all; and figures."""
  dims = [part.dim for part in parts]
  of_words = [
    parts_lib.Part(
      part.name,
      table.words,
      sense_words.mean_rows(part.vectors, table.starts, table.priors),
      votes=sense_words.of_part(words.votes[i], words.rows[i], table),
    )
    for i, (part, table) in enumerate(zip(parts, tables, strict=True))
  ]
  has, chosen = words.rows >= 0, np.arange(words.rows.shape[1])
  merge_lib.check_words(of_words, has, 'alir')
  is_single = (words.sizes <= 1).all(0)
  shared = np.array([[np.sum(a & b & is_single) for b in has] for a in has])
  by_single = len(merge_lib.components(shared >= _ENOUGH * np.minimum.outer(
    np.array(dims), np.array(dims)
  ))) == 1  # fmt: skip
  if by_single:
    chosen = np.flatnonzero(is_single)
  fitted = align.fit_words(has[:, chosen], spec.align_words, dims)
  chosen = chosen if fitted is None else chosen[fitted]
  table = merge_lib.SideBySide(
    of_words, words.rows, False, spec.normalize, spec.block_rows, progress
  )
  solved = align.alir(
    table.gram(chosen), dims, max(dims), 'zero', spec.max_iterations,
    spec.tolerance,
  )  # fmt: skip
  report = {
    'turned_by': 'words of one sense' if by_single else 'means of senses',
    'turned_by_words': len(chosen),
  }
  return solved.per_part(dims), report


def _match(
  parts: Sequence[parts_lib.Part],
  tables: Sequence[sense_words.Table],
  words: sense_words.Words,
  rotations: Sequence[np.ndarray],
  progress: merge_lib.Progress,
) -> _Same:
  """Finds which senses are the same."""
  targets = [
    sense_words.in_order(words, rows, table)
    for rows, table in zip(words.rows, tables, strict=True)
  ]
  sizes = np.diff(words.starts)
  is_open = (sizes > 1) & ((words.sizes > 0).sum(0) > 1)
  dim, done, rounds = rotations[0].shape[1], 0, 0
  moved, figures = 0, [np.zeros((2, 0))]
  for size in np.unique(sizes[is_open]).tolist():
    chosen = np.flatnonzero(is_open & (sizes == size))
    each = max(_BLOCK_BYTES // match.num_bytes(len(parts), size, dim), 1)
    for block in np.array_split(chosen, -(-len(chosen) // each)):
      progress('matching senses', done, int(is_open.sum()))
      at, pairs = _block(parts, tables, words, rotations, block, size)
      found = match.match(pairs, words.votes[:, block].T)
      rounds, done = max(rounds, found.rounds), done + len(block)
      straight = np.broadcast_to(np.arange(size), found.places.shape)
      figures.append(
        np.stack(
          [
            match.cosines(pairs, places, found.places)
            for places in (found.places, straight)
          ]
        )
      )
      for i, mine in enumerate(at):
        has = mine >= 0
        places = found.places[:, i]
        moved += int(np.sum(has & (places != straight[:, i])))
        targets[i][mine[has]] = (words.starts[block][:, None] + places)[has]
  progress('matching senses', done, done)
  cosines = np.concatenate(figures, 1)
  means = [float(np.mean(x)) if len(x) else None for x in cosines]
  num_apart = np.sum((words.sizes > 0) & (words.sizes < sizes), 0) > 0
  return _Same(
    targets,
    {
      'words': int(np.sum(sizes > 1)),
      'rows': int(sizes.sum()),
      'matched_words': int(is_open.sum()),
      'matching_rounds': rounds,
      'moved_senses': moved,
      'cosine_matched': means[0],
      'cosine_in_order': means[1],
      'words_of_fewer_senses': int(num_apart.sum()),
    },
  )


def _block(
  parts: Sequence[parts_lib.Part],
  tables: Sequence[sense_words.Table],
  words: sense_words.Words,
  rotations: Sequence[np.ndarray],
  block: np.ndarray,
  size: int,
) -> tuple[list[np.ndarray], match.Compared]:
  """[b, K] int rows of each part, -1 = none; and pairs of senses."""
  rows = np.zeros((len(block), len(parts), size, rotations[0].shape[1]))
  priors, at = np.zeros(rows.shape[:3]), []
  for i, (part, table) in enumerate(zip(parts, tables, strict=True)):
    found = table.starts[np.maximum(words.rows[i, block], 0)][:, None]
    found = found + np.arange(size)
    is_here = np.arange(size) < words.sizes[i, block][:, None]
    found = np.where(is_here, found, -1)
    out = np.empty((found.size, part.dim), np.float32)
    part.vectors.read(found.reshape(-1), out)
    turned = out @ rotations[i].astype(np.float32)
    rows[:, i] = turned.reshape(*found.shape, -1)
    priors[:, i] = np.where(is_here, table.priors[np.maximum(found, 0)], 0)
    at.append(found)
  return at, match.compare(rows, priors, words.votes[:, block].T)


def _renamed(
  part: parts_lib.Part,
  table: sense_words.Table,
  votes: np.ndarray,
  rows: np.ndarray,
  targets: np.ndarray,
  names: Sequence[str],
) -> parts_lib.Part:
  """The same rows by the names that they have in the result."""
  counts = part.counts
  if counts is not None:
    # Words that nobody saw stay: the tree of paths is made of all.
    counts = np.where(targets >= 0, np.maximum(counts, 1), 0)
  return part._replace(
    words=[names[i] if i >= 0 else '' for i in targets.tolist()],
    counts=counts,
    votes=sense_words.by_row(votes, rows, table) * table.priors,
    senses=None,
  )


def _priors(
  tables: Sequence[sense_words.Table],
  words: sense_words.Words,
  targets: Sequence[np.ndarray],
) -> np.ndarray:
  """[rows] float64, averages over the parts, weighted by votes."""
  total = np.zeros(words.starts[-1])
  # Else the one sense that a vector is taken for would get all of its votes.
  is_told = (words.sizes > 1) | (words.sizes.max(0) == 1)
  votes = np.where(is_told, words.votes, 0)
  for i, (table, mine) in enumerate(zip(tables, targets, strict=True)):
    by_row = sense_words.by_row(votes[i], words.rows[i], table)
    has = mine >= 0
    total[mine[has]] += by_row[has] * table.priors[has]
  return total / np.repeat(votes.sum(0), np.diff(words.starts))


def _whole(
  parts: Sequence[parts_lib.Part],
  words: sense_words.Words,
  kept: np.ndarray,
  priors: np.ndarray,
  vectors: np.ndarray,
  outputs: sense_outputs.Outputs | None,
) -> senses_lib.Senses:
  """The senses of the result, those that the method keeps."""
  sizes = np.diff(words.starts)
  owners = np.repeat(np.arange(len(sizes)), sizes)[kept]
  left = np.bincount(owners, minlength=len(sizes))
  is_left, starts = left > 0, np.append(0, np.cumsum(left[left > 0]))
  left, mine = left[is_left], priors[kept]
  # Of words that have lost senses, what is left sums to 1 again.
  has_lost = np.repeat(left < sizes[is_left], left)
  sums = np.repeat(np.add.reduceat(mine, starts[:-1]), left)
  shares = mine / np.where(sums > 0, sums, 1)
  shares = np.where(sums > 0, shares, 1 / np.repeat(left, left))
  mine = np.where(has_lost, shares, mine)
  windows = [x.senses.window for x in parts if x.senses is not None]
  return senses_lib.Senses(
    [words.names[i] for i in np.flatnonzero(is_left).tolist()],
    words.counts[is_left],
    starts,
    vectors,
    mine.astype(np.float32),
    None if outputs is None else outputs.rows,
    None if outputs is None else outputs.loss,
    0 if outputs is None else outputs.negatives,
    max(windows),
  )


def _warnings(report: dict[str, Any]) -> list[str]:
  """Lines on senses."""
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
  return warnings


def _of_rows(parts: Sequence[parts_lib.Part]) -> list[str]:
  """Lines on parts without senses whose words are names of others' rows."""
  rows = set()
  for part in parts:
    if part.senses is not None:
      rows.update(set(part.words) - set(part.senses.words))
  warnings = []
  for part in parts:
    found = [] if part.senses else [x for x in part.words if x in rows]
    if found:
      warnings.append(
        f'{part.name}: {len(found):,} words ({found[0]!r} first) are named as '
        'senses are, and stay words of their own; give the folder that they '
        'were exported to, whose priors.txt says whose they are'
      )
  return warnings
