"""What a checkpoint of a run holds, and going on from it.

The state of the strategy; the totals, which tell where reading goes on; and the
fingerprint of the corpus that both belong to.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from jaxemb import build, errors, metrics, warm
from jaxemb.ops import rounding
from jaxemb.runtime import mesh
from jaxemb.senses import sense_rows
from jaxemb.storage import checkpoint
from jaxemb.strategies import base


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
    'tables: %s bytes on each device; the rows of all, as %s, take %s',
    f'{held_bytes:,}',
    config.table.dtype,
    f'{base.vector_bytes(shapes):,}',
  )
  whole_bytes = sum(
    math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(shapes)
  )
  mesh.check_fits(parts.mesh, held_bytes, is_split=held_bytes < whole_bytes)


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
    state = warm.begin(config, state, parts.corpus.vocabulary.words)
  return state


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
