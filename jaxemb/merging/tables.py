"""Whole tables out of the states that checkpoints hold, and back into states.

Whatever the layout, the strategy and the mesh: a state's arrays have rows in
some form (`row_sharded.stored_ids`), perhaps behind a leading axis of models.
Tables that go with exported vectors are named `<table>`, those of a row
optimizer `<table>.<slot>`.
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxemb import errors
from jaxemb.ops import rounding
from jaxemb.storage import checkpoint, word2vec_format
from jaxemb.tables import blocks, replicated, row_sharded

EXPORTED = 'input'  # the table that a run exports

_SCRATCH = 'scratch'  # holds nothing between steps
# State of row optimizers that adds up over what replicas did; the rest is
# averaged.
_SUMS = ('sum_squares', 'num_updates')


def leading_axes(shape: tuple[int, ...], ids: np.ndarray) -> int | None:
  """Axes of models before those of the rows; None = these are no rows."""
  for first in (0, 1):
    if shape[first : first + ids.ndim] == ids.shape:
      return first if len(shape) - first - ids.ndim <= 1 else None
  return None


def in_order(array: np.ndarray, ids: np.ndarray, vocab: int) -> np.ndarray:
  """Rows in order of ids.

  Args:
    array: [*ids.shape, ...].
    ids: of each row, see `row_sharded.stored_ids`.
    vocab: number of rows; ids from there on are left out.
  """
  if np.array_equal(ids, np.arange(vocab)):
    return array
  rows = np.empty((vocab, *array.shape[ids.ndim :]), array.dtype)
  rows[ids[ids < vocab]] = array[ids < vocab]
  return rows


def _kept(saved: checkpoint.Arrays, name: str) -> Any:
  """An array as it is in the files, or `rounding.Scaled` ones."""
  if name in saved.shapes:
    return saved.read(name)
  return rounding.Scaled(
    saved.read(f'{name}/codes'), saved.read(f'{name}/scales')
  )


def _decoded(kept: Any, dtype: str, model: int | None = None) -> np.ndarray:
  """An array of float32, or of something else that is no row.

  Args:
    kept: see `_kept`.
    dtype: that rows are kept in.
    model: which of those along the leading axis; None = there is none.
  """
  if model is not None:
    kept = jax.tree.map(lambda x: x[model], kept)
  is_low = isinstance(kept, rounding.Scaled) or kept.dtype == np.uint16
  return blocks.from_stored(kept, dtype).decode() if is_low else kept


def _model(
  saved: checkpoint.Arrays,
  name: str,
  dtype: str,
  leading: int,
  model: int | None,
) -> np.ndarray:
  """An array of one model: of one of several, or of what replicas make."""
  kept = _kept(saved, name)
  if not leading:
    return _decoded(kept, dtype)
  table, *slot = name.split('/')[1:]
  old = f'exchanged/{table}/vectors'
  num = len(jax.tree.leaves(kept)[0])
  if model is not None or num == 1:
    return _decoded(kept, dtype, model or 0)
  if not any(x in saved.shapes for x in (old, f'{old}/codes')):
    raise errors.UserError(
      f'{saved.folder} holds {num} sub-models side by side; give the folder of '
      'each'
    )
  if slot == ['vectors']:
    # What replicas learned since a row was last exchanged adds up.
    rows = _decoded(_kept(saved, old), dtype)
    total = np.array(rows)
    for i in range(num):
      total += _decoded(kept, dtype, i) - rows
    return total
  return kept.sum(0) if slot[-1] in _SUMS else kept.mean(0)


def of_checkpoint(
  folder: pathlib.Path,
  layout: str,
  dtype: str,
  vocab: int,
  dim: int,
  scratch: pathlib.Path | None,
  model: int | None = None,
) -> dict[str, Any]:
  """All tables of a checkpoint of a run, [vocab, ...] in order of ids.

  Args:
    folder: of the run's checkpoints, or of one of them.
    layout: of its tables.
    dtype: that its rows are kept in.
    vocab: its words.
    dim: its numbers per row.
    scratch: folder to keep them in; None = memory.
    model: which of several sub-models that are side by side; None = the only
      one, or what all replicas make together.

  Returns:
    By name, the exported table among them; single numbers are [vocab, 1].

  Raises:
    errors.UserError: The checkpoint is damaged, or of another vocabulary.
  """
  from jaxemb.merging import parts

  saved = checkpoint.Arrays(folder)
  row_ids = figure_ids = np.arange(vocab)
  if layout == 'row':
    row_ids = figure_ids = row_sharded.stored_ids(vocab)
  elif layout == 'column':
    figure_ids = np.arange(replicated.num_scalars(vocab))
  found = {}
  for name, shape in saved.shapes.items():
    top, *rest = name.removesuffix('/codes').split('/')
    if top != 'tables' or rest[-1] in (_SCRATCH, 'scales'):
      continue
    ids, leading = row_ids, leading_axes(shape, row_ids)
    if leading is None:
      ids, leading = figure_ids, leading_axes(shape, figure_ids)
    if leading is None:
      if rest[-1] == 'vectors' and rest[0] == EXPORTED:
        raise errors.UserError(
          f'{folder}: table {rest[0]!r} of shape {shape} does not have the '
          f'{vocab:,} words of the vocabulary; give the folder of one run'
        )
      continue
    rows = in_order(
      _model(saved, '/'.join((top, *rest)), dtype, leading, model), ids, vocab
    )
    rows = rows[:, :dim] if rows.ndim > 1 else rows[:, None]
    title = rest[0] if rest[-1] == 'vectors' else f'{rest[0]}.{rest[-1]}'
    found[title] = parts.spool(np.asarray(rows, np.float32), scratch, title)
  return found


def has_trainable(folder: pathlib.Path) -> bool:
  """Whether a run without export/orbax/ has context vectors of words."""
  model = settings(folder).get('model', {})
  return (
    (folder / 'checkpoints').is_dir()
    and bool(model)
    and model.get('loss') != 'hierarchical_softmax'
    and model.get('name') != 'mixture'
  )


def read_trainable(
  folder: pathlib.Path, words: Sequence[str]
) -> dict[str, np.ndarray]:
  """Rows of a run without export/orbax/, by path in that tree."""
  run = settings(folder)
  form = (
    run['table'].get('layout', 'replicated'),
    run['table'].get('dtype', 'float32'),
  )
  files = folder / 'vocab.txt', folder / 'export' / 'vocab.txt'
  file = next(x for x in files if x.exists())
  names, _ = word2vec_format.read_vocab(file)
  ids = {name: i for i, name in enumerate(names)}
  rows = np.array([ids[word] for word in words])
  found = of_checkpoint(
    folder / 'checkpoints', *form, len(names), run['model']['dim'], None
  )
  result = {}
  for name, table in found.items():
    table_name, _, slot = name.partition('.')
    new = {'input': 'vectors', 'output': 'context_vectors'}[table_name]
    result[f'optimizer/{new}/{slot}' if slot else new] = table.open()[rows]
  del result['vectors']
  return result


def settings(folder: pathlib.Path) -> Mapping[str, Any]:
  """The settings of the run in a folder, or {}."""
  try:
    found = json.loads((folder / 'config.json').read_text())
  except (OSError, ValueError):
    return {}
  # Other programs write files of that name, too.
  is_ours = isinstance(found, dict) and all(
    isinstance(found.get(key), dict) for key in ('model', 'table')
  )
  return found if is_ours else {}
