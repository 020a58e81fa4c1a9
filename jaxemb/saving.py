"""What a checkpoint of a run holds, and going on from it.

The state of the strategy; the totals, which tell where reading goes on; and the
fingerprint of the corpus that both belong to.
"""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from jaxemb import build, errors, metrics
from jaxemb.merging import parts as parts_lib
from jaxemb.merging import senses
from jaxemb.ops import rounding
from jaxemb.runtime import mesh, resources
from jaxemb.senses import sense_rows
from jaxemb.storage import checkpoint
from jaxemb.strategies import base

_WARM_ROWS = 65_536  # read and written at once


@jax.jit
def _all_finite(state: Any) -> jax.Array:
  finite = [rounding.is_finite(x) for x in jax.tree.leaves(state)]
  return jnp.stack(finite).all()


def check_fits(
  config: ml_collections.ConfigDict, parts: build.Parts, shapes: Any
) -> None:
  """Says what each device will hold, and refuses what it has no room for.

  Args:
    config: the settings.
    parts: the run's parts.
    shapes: of a new state.

  Raises:
    UserError: naming the number of devices or hosts that would do.
  """
  held_bytes = mesh.bytes_per_device(shapes, parts.strategy.state_sharding)
  metrics.LOG.info(
    'tables: %.1f MB per device (all %s vectors: %.1f MB)',
    held_bytes / 1e6,
    config.table.dtype,
    base.vector_bytes(shapes) / 1e6,
  )
  whole_bytes = sum(
    math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(shapes)
  )
  is_split = held_bytes < whole_bytes
  num_shards = parts.mesh.shape[mesh.TABLE] if is_split else 1
  devices = list(parts.mesh.devices.flat)
  resources.check_fits(devices, held_bytes, held_bytes * num_shards)


def start(
  config: ml_collections.ConfigDict,
  key: jax.Array,
  parts: build.Parts,
  saved: checkpoint.Checkpoints,
) -> tuple[Any, metrics.Totals]:
  """A new state, or that of the newest checkpoint.

  Args:
    config: the settings.
    key: of a new state.
    parts: the run's parts.
    saved: the run's checkpoints.

  Raises:
    UserError: if the text has changed since the run began, the tables do not
      fit the devices, or a new run cannot start from what it is to start from.
  """
  strategy = parts.strategy
  shapes = jax.eval_shape(strategy.init, key)
  check_fits(config, parts, shapes)
  like = jax.tree.map(
    lambda sharding, part: jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), part
    ),
    strategy.state_sharding,
    shapes,
  )
  restored = restore(saved, like, parts)
  if restored is None:
    return new_state(config, key, parts), metrics.Totals()
  return restored


def new_state(
  config: ml_collections.ConfigDict, key: jax.Array, parts: build.Parts
) -> Any:
  """The state that training starts from.

  Args:
    config: the settings.
    key: of what is random.
    parts: the run's parts.

  Raises:
    UserError: if what the settings start from cannot be used.
  """
  strategy = parts.strategy
  init = jax.jit(strategy.init, out_shardings=strategy.state_sharding)
  state = init(key)
  if config.train.init_from:
    words = parts.corpus.vocabulary.words
    state = warm_start(config, strategy, state, words)
  return state


def warm_start(
  config: ml_collections.ConfigDict,
  strategy: base.Strategy,
  state: Any,
  words: Sequence[str],
) -> Any:
  """Replaces rows of a new state by those of `config.train.init_from`.

  Words that are not there keep their random start. Words that have several
  vectors there start from their mean, weighted by the priors.

  Args:
    config: the settings.
    strategy: of the state.
    state: new; donated.
    words: [vocab], of the rows.

  Raises:
    UserError: the vectors cannot be used, or have other dimensions.
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
  # Words that the part never saw still have random vectors there.
  row_of = {
    word: row
    for row, word in enumerate(part.words)
    if part.counts is None or part.counts[row]
  }
  ids = np.array([i for i, w in enumerate(words) if w in row_of], np.int64)
  if not len(ids):
    raise errors.UserError(
      f'config.train.init_from={path} has none of the {len(words):,} words of '
      'the text; give other vectors (check the case of letters)'
    )
  rows = np.array([row_of[words[i]] for i in ids])
  stored, used = {'vectors': part.vectors, **part.trainable}, []
  titles = {'input': 'vectors', 'output': 'context_vectors'}
  for name, table in strategy.tables.items():
    title = titles.get(name)
    if title not in stored:
      continue
    paths = {x: f'optimizer/{title}/{x}' for x in table.slot_reductions}
    slots = {x: path for x, path in paths.items() if path in stored}
    used += [title, *slots.values()]
    for start in range(0, len(ids), _WARM_ROWS):
      here = slice(start, start + _WARM_ROWS)
      state = strategy.import_rows(
        state,
        name,
        ids[here],
        _read(stored[title], rows[here]),
        {x: _read(stored[path], rows[here]) for x, path in slots.items()},
      )
  metrics.LOG.info(
    'starting from %s: %s of %s words (%s start at random, %s of its words are '
    'not in the text); tables %s, all else starts anew',
    path,
    f'{len(ids):,}',
    f'{len(words):,}',
    f'{len(words) - len(ids):,}',
    f'{len(row_of) - len(ids):,}',
    ', '.join(used),
  )
  return state


def _read(stored: parts_lib.Rows, rows: np.ndarray) -> np.ndarray:
  """[n, dim] float32; [n] where rows have one number."""
  found = np.empty((len(rows), *stored.shape[1:]), np.float32)
  stored.read(rows, found)
  return found[:, 0] if stored.shape[1:] == (1,) else found


def restore(
  saved: checkpoint.Checkpoints, like: Any, parts: build.Parts
) -> tuple[Any, metrics.Totals] | None:
  """The state of the newest checkpoint and what was counted; None = no one.

  Args:
    saved: the checkpoints.
    like: the state's form, see `checkpoint.Checkpoints.restore`.
    parts: corpus and model of the run.

  Raises:
    UserError: if the text, or which words have several senses, has changed
      since the run began.
  """
  restored = saved.restore(like)
  if restored is None:
    return None
  if restored.record['corpus'] != parts.corpus.manifest['fingerprint']:
    raise errors.UserError(
      'the text is not the one that this run began with, or has changed; '
      'give another --workdir'
    )
  if restored.record.get('senses', '') != sense_rows.digest(parts.model):
    raise errors.UserError(
      'the words of config.senses.words have changed since this run began; '
      'give the old list, or another --workdir'
    )
  totals = metrics.Totals(**restored.record['totals'])
  metrics.LOG.info('resuming behind %s words', f'{totals.words:,}')
  return restored.state, totals


def save(
  saved: checkpoint.Checkpoints,
  state: Any,
  totals: metrics.Totals,
  parts: build.Parts,
  learning_rate: float,
  is_final: bool,
) -> None:
  """Saves in the background; refuses to keep a state that is not finite."""
  if not _all_finite(state):
    raise metrics.diverged(totals.steps, totals.words, float(learning_rate))
  record = {
    'totals': dataclasses.asdict(totals),
    'corpus': parts.corpus.manifest['fingerprint'],
    'senses': sense_rows.digest(parts.model),
  }
  saved.save(totals.steps, state, record, is_final)
