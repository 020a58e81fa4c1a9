"""What a strategy is, and the training steps that all of them share."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base as model_base
from jaxemb.ops import rounding
from jaxemb.runtime import hlo
from jaxemb.tables import blocks
from jaxemb.tables import spec as table_spec

_ROUNDING = np.uint32(0x85EBCA6B)  # apart from the draws of negatives

Tables = Mapping[str, table_spec.TableState]


class TrainState(NamedTuple):
  """All that training changes; what a checkpoint holds."""

  tables: dict[str, table_spec.TableState]


@dataclasses.dataclass(frozen=True)
class StepSpec:
  """Sizes of a step: the centers that one state sees at once."""

  part_words: int  # L', centers of each part of the corpus in a step
  num_parts: int  # P, parts of the corpus
  window: int  # W, halo on both sides
  chunk: int  # c, centers per matrix product
  loss_every_steps: int  # the loss is measured in every so-manyth step
  # Steps that the device runs without asking the host whether to go on, which
  # costs an accelerator more than a step; the last ones may be padding.
  steps_per_loop: int = 1
  # Whether a step may be that of the model's usual size, where it fits: no
  # device waits for another in it, and no other model is trained beside it.
  may_be_usual: bool = False


class Share(NamedTuple):
  """Which of a step's centers a device has: a split of each of some parts."""

  before: jax.Array | int  # parts of the corpus before those of its batch
  first_part: jax.Array | int  # of those in its batch
  num_parts: int
  split: jax.Array | int  # which of `num_splits` equal ones
  num_splits: int
  # Which tables these are, where devices have some of their own: copies of a
  # table round alike, different tables each in their own way.
  stream: jax.Array | int = 0


def share(
  num_parts: int, num_devices: int, before: jax.Array, device: jax.Array
) -> Share:
  """A device's share of a batch that several devices have.

  Args:
    num_parts: in the batch.
    num_devices: that have it.
    before: int32, parts of the corpus before those of the batch.
    device: int32, which of the devices.
  """
  # Whole parts as far as they go, then splits of them.
  groups = math.gcd(num_parts, num_devices)
  each, splits = num_parts // groups, num_devices // groups
  return Share(before, each * (device // splits), each, device % splits, splits)


class Schedule(NamedTuple):
  """Where a dispatch stands: its learning rates and its random choices."""

  first_learning_rate: np.float32  # of the first step
  last_learning_rate: np.float32  # of the step behind the last
  key: np.ndarray  # [2] uint32, unique to the dispatch
  # Shares of all training that are behind, before and after the dispatch.
  first_progress: np.float32 = np.float32(1)
  last_progress: np.float32 = np.float32(1)


class StepMetrics(NamedTuple):
  """What the steps of a dispatch measured, some of them the loss."""

  loss: jax.Array  # float32, summed, nats
  examples: jax.Array  # float32, over which the loss was summed
  first_bad_step: jax.Array  # int32, first with a non-finite loss, or -1
  # int32: exchanges of rows that took another round, as one had no room
  further_rounds: jax.Array


class DispatchMetrics(NamedTuple):
  """What a dispatch tells the host; the same on all devices."""

  steps: StepMetrics
  num_steps: jax.Array  # int32
  kept_words: jax.Array  # int32, centers of all parts
  pairs: jax.Array  # int32, their (center, context) pairs


class Strategy(NamedTuple):
  """Pure functions over a state, and where their arguments live.

  The state is a `TrainState`, or another NamedTuple of arrays.
  """

  # key -> state, to be compiled
  init: Callable[[jax.Array], Any]
  # -> arrays that every step reads and none changes, on the host
  constants: Callable[[], Any]
  # (state, constants, loader batch, schedule) -> (state, `DispatchMetrics`),
  # one dispatch of many steps; the state is donated. On several CPU devices
  # wait for one's metrics before the next but one: with dozens under way XLA's
  # threads wait for each other until it gives up.
  step: Callable[..., tuple[Any, DispatchMetrics]]
  tables: Mapping[str, table_spec.Table]
  # (state, name of a table, start = 0, stop = vocab) -> the rows of a range of
  # ids with their optimizer slots; see `Table.export_rows`
  export_rows: Callable[..., blocks.RowBlock]
  # (state, name of a table, ids, rows, slots) -> state; see `Table.import_rows`
  import_rows: Callable[..., Any]
  # Shardings of the state (a prefix of its tree), of constants and schedules,
  # and of the arrays of a batch, which have the parts as their leading axis.
  state_sharding: Any
  constants_sharding: jax.sharding.Sharding
  batch_sharding: jax.sharding.Sharding
  # How often parts of the compiled `step` run.
  loop: hlo.Loop


class StepRange(NamedTuple):
  """Which steps of a dispatch to run."""

  first: jax.Array  # int32
  stop: jax.Array  # int32, behind the last
  count: jax.Array  # int32, steps over which the learning rate falls


NO_METRICS = StepMetrics(
  np.float32(0), np.float32(0), np.int32(-1), np.int32(0)
)


def init_tables(
  tables: Mapping[str, table_spec.Table], key: jax.Array
) -> dict[str, table_spec.TableState]:
  """The tables as training starts; each has a key of its own."""
  return {
    name: table.init(jax.random.fold_in(key, i))
    for i, (name, table) in enumerate(sorted(tables.items()))
  }


def vector_bytes(shapes: Any) -> int:
  """Bytes that the rows of all tables of all models take, as they are kept.

  Args:
    shapes: of a state, as `jax.eval_shape` gives them.
  """
  return sum(x.vector_bytes for x in shapes.tables.values())


def stacked(states: Any, num: int) -> Any:
  """The same states so many times, along a leading axis of models."""
  return jax.tree.map(
    lambda x: jnp.broadcast_to(x[None], (num, *x.shape)), states
  )


def sized_step(
  model: model_base.Model,
  tables: Mapping[str, table_spec.Table],
  states: Tables,
  constants: Any,
  batch: model_base.StepBatch,
  *args: Any,
) -> tuple[dict[str, table_spec.TableState], jax.Array, jax.Array | int]:
  """As `training_step`, of the model's usual size if the step fits."""
  if model.usual is None:
    return training_step(model, tables, states, constants, batch, *args)
  fits = model.fits(constants, batch).astype(jnp.int32)
  carry = states, jnp.float32(0), jnp.int32(0)
  # Loops of one turn or none: XLA copies the tables that a condition changes.
  for turns, chosen in ((fits, model.usual), (1 - fits, model)):

    def step(i, carry, chosen=chosen):
      del i
      return training_step(chosen, tables, carry[0], constants, batch, *args)

    carry = jax.lax.fori_loop(0, turns, step, carry)
  return carry


def training_step(
  model: model_base.Model,
  tables: Mapping[str, table_spec.Table],
  states: Tables,
  constants: Any,
  batch: model_base.StepBatch,
  key: jax.Array,
  learning_rate: jax.Array,
  measure: jax.Array | bool,
  step_key: jax.Array | None = None,
) -> tuple[dict[str, table_spec.TableState], jax.Array, jax.Array | int]:
  """One step: look up, differentiate with respect to the rows, update.

  Args:
    model: gives ids and loss.
    tables: the functions of each table.
    states: the state of each table.
    constants: `model.constants()` on the device.
    batch: the step's tokens, or a device's share of them.
    key: [2] uint32, of the dispatch.
    learning_rate: float32.
    measure: bool, whether the loss itself is wanted: its logarithms cost a CPU
      an eighth of a step, and only the gradient is needed to train. True, not
      an array, makes a program without a condition.
    step_key: [2] uint32, of the step, for tables that round at random.

  Returns:
    The new states, the summed loss (0 where it was not measured), and the
    further rounds that looking up took.
  """
  ids = model.ids(constants, batch, key)
  rows, states, further_rounds = {}, dict(states), 0
  for name, table in tables.items():
    found = table.lookup(states[name], ids[name])
    rows[name], states[name] = found.rows, found.state
    further_rounds += found.metrics.get('overflow_rounds', 0)
  # XLA must not fuse a gather past the scatter that follows: it would copy the
  # whole table to keep the old rows.
  rows = jax.lax.optimization_barrier(rows)

  def loss(rows):
    return model.loss(rows, ids, batch)

  if measure is True:
    value, row_grads = jax.value_and_grad(loss)(rows)
  else:
    row_grads = jax.grad(loss)(rows)
    value = jax.lax.cond(measure, loss, lambda rows: jnp.float32(0), rows)
  # The rows must have been read for the loss before a table changes in place.
  row_grads, value = jax.lax.optimization_barrier((row_grads, value))
  for i, (name, table) in enumerate(sorted(tables.items())):
    table_key = None if step_key is None else rounding.key(step_key, i)
    states[name] = table.update(
      states[name],
      ids[name],
      row_grads[name],
      rows[name],
      table_spec.Step(learning_rate, table_key),
    )
  return states, value, further_rounds


def _step_batch(batch: Any, step: jax.Array, spec: StepSpec, share: Share):
  """The tokens of a device's share of one step of a loader's batch."""
  size = spec.part_words // share.num_splits
  first = step * spec.part_words + share.split * size

  def cut(x, length):
    return jax.lax.dynamic_slice(
      x, (share.first_part, first), (share.num_parts, length)
    )

  parts = share.before + share.first_part + jnp.arange(share.num_parts)
  before = (step * spec.num_parts + parts) * spec.part_words
  before = (before + share.split * size) // spec.chunk
  chunks = before[:, None] + jnp.arange(size // spec.chunk)[None, :]
  return model_base.StepBatch(
    cut(batch.ids, size + 2 * spec.window),
    cut(batch.left, size),
    cut(batch.right, size),
    chunks.reshape(-1).astype(jnp.uint32),
  )


def _or_padding(batch: model_base.StepBatch, is_step: jax.Array):
  """The batch of a step, or one of padding, which changes nothing."""
  return batch._replace(
    tokens=jnp.where(is_step, batch.tokens, np.iinfo(np.int32).max),
    left=jnp.where(is_step, batch.left, np.uint8(0)),
    right=jnp.where(is_step, batch.right, np.uint8(0)),
  )


def training_steps(
  model: model_base.Model,
  tables: Mapping[str, table_spec.Table],
  spec: StepSpec,
  constants: Any,
  batch: Any,
  schedule: Schedule,
  steps: StepRange,
  share: Share,
  carry: tuple[Tables, StepMetrics],
) -> tuple[dict[str, table_spec.TableState], StepMetrics]:
  """Steps of a dispatch, one after the other.

  Args:
    model: gives ids and loss.
    tables: the functions of each table.
    spec: sizes of a step.
    constants: `model.constants()` on the device.
    batch: a `loader.Batch`, or a device's parts of it.
    schedule: learning rates and key.
    steps: which of the batch's steps to run.
    share: which of their centers this device has.
    carry: the state of each table, and what was measured so far.

  Returns:
    The new carry.
  """
  span = schedule.last_learning_rate - schedule.first_learning_rate
  count = jnp.maximum(steps.count, 1).astype(jnp.float32)
  slope = span / count
  advance = (schedule.last_progress - schedule.first_progress) / count

  def body(i, carry):
    states, metrics = carry
    step_batch = _step_batch(batch, i, spec, share)._replace(
      progress=schedule.first_progress + advance * i.astype(jnp.float32)
    )
    if spec.steps_per_loop > 1:
      step_batch = _or_padding(step_batch, i < steps.stop)
    measure = spec.loss_every_steps == 1 or i % spec.loss_every_steps == 0
    learning_rate = schedule.first_learning_rate + slope * i.astype(jnp.float32)
    take = sized_step if spec.may_be_usual else training_step
    states, loss, further_rounds = take(
      model,
      tables,
      states,
      constants,
      step_batch,
      schedule.key,
      learning_rate,
      measure,
      rounding.key(schedule.key ^ _ROUNDING, i, share.stream),
    )
    bad = ~jnp.isfinite(loss) & (metrics.first_bad_step < 0)
    examples = jnp.where(measure, model.num_examples(step_batch), 0.0)
    return states, StepMetrics(
      metrics.loss + loss,
      metrics.examples + examples,
      jnp.where(bad, i, metrics.first_bad_step),
      metrics.further_rounds + further_rounds,
    )

  size = spec.steps_per_loop
  if size == 1:
    return jax.lax.fori_loop(steps.first, steps.stop, body, carry)

  def loop(j, carry):
    first = steps.first + j * size
    # How often this one runs is known when it is compiled.
    return jax.lax.fori_loop(
      0, size, lambda i, carry: body(first + i, carry), carry
    )

  num_loops = (steps.stop - steps.first + size - 1) // size
  return jax.lax.fori_loop(0, num_loops, loop, carry)


def over_devices(
  metrics: StepMetrics, batch: Any, num_steps: jax.Array, axes: Sequence[str]
) -> DispatchMetrics:
  """Adds up what devices measured on centers of their own.

  Args:
    metrics: a device's.
    batch: its parts of the `loader.Batch`.
    num_steps: int32, the same everywhere.
    axes: of the mesh over which centers are split; the first one is that of
      the parts.
  """
  loss, examples, first_bad_step, further_rounds = metrics
  kept_words, pairs = jnp.sum(batch.kept_words), jnp.sum(batch.pairs)
  if axes:
    axes = tuple(axes)
    loss, examples = jax.lax.psum((loss, examples), axes)
    kept_words, pairs = jax.lax.psum((kept_words, pairs), axes[0])
    none = np.iinfo(np.int32).max
    first = jnp.where(first_bad_step < 0, none, first_bad_step)
    first = jax.lax.pmin(first, axes)
    first_bad_step = jnp.where(first == none, -1, first)
    # Devices of a table axis exchange together, and wait for each other.
    further_rounds = jax.lax.pmax(further_rounds, axes)
  steps = StepMetrics(loss, examples, first_bad_step, further_rounds)
  return DispatchMetrics(steps, num_steps, kept_words, pairs)
