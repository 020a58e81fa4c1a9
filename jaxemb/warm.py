"""Training that starts from vectors that are there: `config.train.init_from`.

A new state is made as ever, and the rows of known words are written over it
where they lie, on whatever mesh and in whatever layout. Words that are not
there keep their random start. Words that have several vectors there start from
the mean of these, by priors.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np

from jaxemb import errors, metrics
from jaxemb.merging import parts as parts_lib
from jaxemb.merging import senses
from jaxemb.merging import tables as tables_lib
from jaxemb.ops import rounding
from jaxemb.tables import precision, sharded


def begin(
  config: ml_collections.ConfigDict, state: Any, words: Sequence[str]
) -> Any:
  """A state that starts from `config.train.init_from`.

  Args:
    config: the settings.
    state: a new one, of any strategy; not to be used any more.
    words: [vocab] words of its rows.

  Raises:
    UserError: What to start from cannot be used, or has other dimensions.
  """
  path = os.path.expanduser(config.train.init_from)
  trainable = parts_lib.has_trainable(path)
  part = senses.of_words(parts_lib.open_part(path, None, trainable))
  if part.dim != config.model.dim:
    raise errors.UserError(
      f'config.train.init_from={path} has vectors of {part.dim} numbers, and '
      f'config.model.dim={config.model.dim}; give --config.model.dim={part.dim}'
    )
  parts_lib.check_rows(part)
  places = _places(part, words)
  num_found = int(np.sum(places >= 0))
  num_known = len(part.words)
  if part.counts is not None:
    num_known = int(np.count_nonzero(part.counts))
  if not num_found:
    raise errors.UserError(
      f'config.train.init_from={path} has none of the {len(words):,} words of '
      'the text; give other vectors (check the case of letters)'
    )
  rows = {tables_lib.EXPORTED: part.vectors, **part.trainable}
  state, used = filled(
    state,
    rows,
    places,
    config.table.layout,
    config.table.dtype,
    config.table.scales == 'learned',
  )
  metrics.LOG.info(
    'starting from %s: %s of %s words (%s start at random, %s of its words are '
    'not in the text); tables %s, all else starts anew',
    path,
    f'{num_found:,}',
    f'{len(words):,}',
    f'{len(words) - num_found:,}',
    f'{num_known - num_found:,}',
    ', '.join(used),
  )
  return state


def _places(part: parts_lib.Part, words: Sequence[str]) -> np.ndarray:
  """[vocab] int64, row of each word in the part, -1 = none."""
  rows = {word: row for row, word in enumerate(part.words)}
  places = np.fromiter((rows.get(w, -1) for w in words), np.int64, len(words))
  if part.counts is not None:
    # What the part has never seen is as it was drawn.
    places[(places >= 0) & (part.counts[np.maximum(places, 0)] == 0)] = -1
  return places


def filled(
  state: Any,
  rows: dict[str, parts_lib.Rows],
  places: np.ndarray,
  layout: str,
  dtype: str = 'float32',
  learns_scales: bool = False,
) -> tuple[Any, list[str]]:
  """Writes rows over those of a state.

  Args:
    state: with `tables`, and `exchanged` if it has replicas.
    rows: by name as in `merging.tables`.
    places: [vocab] int, row of each word in `rows`, -1 = none.
    layout: of the state's tables.
    dtype: that its rows are kept in.
    learns_scales: whether scales of rows of int8 are learned.

  Returns:
    The state, and the names of what was used.
  """
  vocab = len(places)
  ids = sharded.stored_ids(layout, vocab)
  figure_ids = sharded.figure_ids(layout, vocab)
  states, used = dict(state.tables), []

  def kept(rows):
    return _kept(rows, dtype, learns_scales)

  def fill(table, name):
    if isinstance(table, rounding.Scaled):
      return rounding.Scaled(
        fill_array(table.codes, name, lambda rows: kept(rows).codes),
        fill_array(table.scales, name, lambda rows: kept(rows).scales[:, None]),
      )
    is_low = table.dtype != np.float32
    return fill_array(table, name, kept if is_low else np.asarray)

  def fill_array(array, name, encode):
    if name not in used:
      used.append(name)
    is_rows = tables_lib.leading_axes(array.shape, ids) is not None
    inside = ids if is_rows else figure_ids
    inside = np.where(inside < vocab, places[np.minimum(inside, vocab - 1)], -1)
    return _filled(array, rows[name], inside, encode)

  for name, table in states.items():
    if name in rows:
      table = table._replace(vectors=fill(table.vectors, name))
    slots = {
      key: fill(array, f'{name}.{key}')
      for key, array in table.slots._asdict().items()
      if f'{name}.{key}' in rows
    }
    states[name] = table._replace(slots=table.slots._replace(**slots))
  state = state._replace(tables=states)
  if hasattr(state, 'exchanged'):
    # Replicas start from what they last had in common.
    exchanged = {
      name: fill(array, name) if name in rows else array
      for name, array in state.exchanged.items()
    }
    state = state._replace(exchanged=exchanged)
  return state, used


def _filled(
  array: jax.Array,
  rows: parts_lib.Rows,
  places: np.ndarray,
  encode: Callable[[np.ndarray], np.ndarray],
) -> jax.Array:
  """An array with known rows in place of its own, shard by shard.

  Args:
    array: [places.shape, columns], perhaps without columns, perhaps behind a
      leading axis of models.
    rows: what to write.
    places: row in `rows` of each row of the array, -1 = it keeps its own.
    encode: rows of float32 as the array has them.
  """
  leading = tables_lib.leading_axes(array.shape, places)
  has_columns = array.ndim > leading + places.ndim

  def change(block: np.ndarray, index: tuple[slice, ...]) -> np.ndarray:
    wanted = places[index[leading : leading + places.ndim]]
    has = wanted >= 0
    found = np.zeros((int(has.sum()), rows.shape[1]), np.float32)
    if len(found):
      rows.read(wanted[has], found)
    found = encode(found)
    if has_columns:
      # Columns that only fill up are zero.
      more = max(array.shape[-1] - found.shape[1], 0)
      found = np.pad(found, ((0, 0), (0, more)))[:, index[-1]]
    else:
      found = found[:, 0]
    block[(slice(None),) * leading + (has,)] = found
    return block

  return _by_shards(array, change)


def _kept(rows: np.ndarray, dtype: str, learns_scales: bool) -> Any:
  """Rows of float32 as tables keep them; none of their numbers is cut."""
  scales = None
  if dtype == 'int8' and learns_scales:
    room = np.abs(rows).max(1, initial=precision.least_room(rows.shape[1]))
    scales = np.asarray(rounding.row_scales(room))
  return rounding.encode_on_host(rows, dtype, scales)


def _by_shards(
  array: jax.Array,
  change: Callable[[np.ndarray, tuple[slice, ...]], np.ndarray],
) -> jax.Array:
  """Changes an array where its shards lie."""
  return jax.make_array_from_single_device_arrays(
    array.shape,
    array.sharding,
    [
      jax.device_put(change(np.array(shard.data), shard.index), shard.device)
      for shard in array.addressable_shards
    ],
  )
