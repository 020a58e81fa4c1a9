"""Merging of what tells senses from each other: words or nodes of a tree."""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxemb.merging import merge as merge_lib
from jaxemb.merging import parts as parts_lib
from jaxemb.ops import huffman
from jaxemb.senses import sense_words

NAME = 'outputs'


class Outputs(NamedTuple):
  """Merged outputs."""

  rows: np.ndarray  # [vocab or vocab - 1, dim] float32
  loss: str
  negatives: int


def merge(
  parts: Sequence[parts_lib.Part],
  words: sense_words.Words,
  spec: merge_lib.Spec,
  merged: merge_lib.Merged,
  folder: pathlib.Path | None,
  progress: merge_lib.Progress,
) -> tuple[Outputs | None, str]:
  """Turns outputs as the vectors were, so that products of rows stay.

  Args:
    parts: whose outputs are merged.
    words: of the result.
    spec: how vectors were merged.
    merged: the vectors.
    folder: where to write the result; None = it stays in memory.
    progress: called now and then.

  Returns:
    The outputs, or None, and why; '' where there is nothing to say.
  """
  reason = _obstacle(parts, words, spec)
  if reason:
    return None, reason
  facts, rows, votes = parts[0].senses, words.rows, words.votes
  if facts.loss == 'hierarchical_softmax':
    nodes = len(words.names) - 1
    rows = np.broadcast_to(np.arange(nodes), (len(parts), nodes))
    votes = _votes_on_nodes(words)
  tables = [parts_lib.as_rows(part.senses.outputs) for part in parts]
  voting = [
    part._replace(votes=_by_row(*x, table.shape[0]))
    for part, *x, table in zip(parts, votes, rows, tables, strict=True)
  ]
  table = merge_lib.SideBySide(
    voting, rows, False, False, spec.block_rows, progress
  )
  turns = np.concatenate(merged.rotations)
  last = np.linalg.inv(merged.outer).T
  outputs = parts_lib.write_rows(
    table.averages(tables, turns, last, f'merging {NAME}'),
    (rows.shape[1], len(last)),
    folder and folder / f'{NAME}.npy',
  )
  return Outputs(outputs, facts.loss, facts.negatives), ''


def _obstacle(
  parts: Sequence[parts_lib.Part],
  words: sense_words.Words,
  spec: merge_lib.Spec,
) -> str:
  """Why outputs cannot be merged; '' if they can."""
  without = [
    part.name
    for part in parts
    if part.senses is None or part.senses.outputs is None
  ]
  if without:
    return f'{without[0]} has nothing of the kind'
  if spec.method != 'alir' or spec.normalize:
    return 'only --method=alir without --normalize keeps products of vectors'
  first = parts[0]
  for part in parts[1:]:
    for name in ('loss', 'negatives'):
      mine, its = (getattr(x.senses, name) for x in (part, first))
      if mine != its:
        return (
          f'{first.name} was trained with {name}={its!r}, {part.name} with '
          f'{mine!r}'
        )
  if first.senses.loss == 'hierarchical_softmax' and not words.is_one:
    return (
      'the parts have other words or counts, and so other trees of paths '
      '(config.model.loss=hierarchical_softmax)'
    )
  return ''


def _votes_on_nodes(words: sense_words.Words) -> np.ndarray:
  """[n, nodes] float64: how often each part saw words below an inner node."""
  paths = huffman.tree_paths(words.counts)
  num_nodes = len(words.names) - 1
  return np.stack(
    [
      np.bincount(
        paths.points.reshape(-1),
        np.repeat(votes, paths.points.shape[1]),
        num_nodes + 1,
      )[:num_nodes]
      for votes in words.votes
    ]
  )


def _by_row(votes: np.ndarray, rows: np.ndarray, num: int) -> np.ndarray:
  """[num] float64, votes of the rows of a part."""
  found = np.zeros(num)
  found[rows[rows >= 0]] = votes[rows >= 0]
  return found
