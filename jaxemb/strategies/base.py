"""What a strategy is, and the training steps that all of them share.

A strategy decides which device takes which examples of a step and when copies
of the tables meet. It is made of pure functions over a state; a dispatch is one
compiled program of many steps.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import base as data_base
from jaxemb.models import base as model_base
from jaxemb.ops import rounding
from jaxemb.runtime import hlo
from jaxemb.tables import blocks
from jaxemb.tables import spec as spec_lib

_ROUNDING = np.uint32(0x85EBCA6B)  # apart from the draws of negatives


class TrainState(NamedTuple):
  """All that training changes; what a checkpoint holds."""

  tables: dict[str, spec_lib.TableState]
  params: Any = ()  # dense parameters
  optimizer: Any = ()  # optax's state of the dense parameters


class StepMetrics(NamedTuple):
  """What the steps of a dispatch measured."""

  loss: jax.Array  # float32, nats, summed over the steps that measured it
  examples: jax.Array  # float32, over which the loss was summed
  first_bad_step: jax.Array  # int32, first with a non-finite loss, or -1
  # Sums: of lookups over all steps, of the model where the loss is measured.
  sums: dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Trainable:
  """What every strategy trains."""

  model: model_base.Model
  tables: Mapping[str, spec_lib.Table]
  steps: data_base.Steps
  loss_every_steps: int  # evaluate the loss every N steps, gradients otherwise
  # Steps that the device runs without asking the host whether to go on, which
  # costs an accelerator more than a step; the last ones may be padding.
  steps_per_loop: int = 1
  # Whether a step may use the model's compact variant: no device waits for
  # another in it, and no other model is trained beside it.
  may_be_compact: bool = False

  def init(self, key: jax.Array) -> TrainState:
    """The state before training; every table has a key of its own."""
    tables = {
      name: table.init(jax.random.fold_in(key, i))
      for i, (name, table) in enumerate(sorted(self.tables.items()))
    }
    params = self.model.init(jax.random.fold_in(key, len(tables)))
    if not jax.tree.leaves(params):
      return TrainState(tables)
    return TrainState(tables, params, self.model.optimizer().init(params))

  def with_arrays(self, arrays: Sequence[jax.Array]) -> 'Trainable':
    """The same with the device's arrays in the model."""
    return dataclasses.replace(self, model=with_arrays(self.model, arrays))

  def no_metrics(self) -> StepMetrics:
    """What was measured before the first step of a dispatch."""
    counts = {k for table in self.tables.values() for k in table.metrics}
    sums = {name: jnp.int32(0) for name in sorted(counts)}
    sums |= {name: jnp.float32(0) for name in self.model.metrics}
    return StepMetrics(jnp.float32(0), jnp.float32(0), jnp.int32(-1), sums)


def _is_array(leaf: Any) -> bool:
  return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def arrays_of(tree: Any) -> list[Any]:
  """The arrays in a model or policy, which steps read and never change."""
  return [x for x in jax.tree.leaves(tree) if _is_array(x)]


def with_arrays(tree: Any, arrays: Sequence[jax.Array]) -> Any:
  """The same model or policy with these in place of its `arrays_of`."""
  leaves, form = jax.tree.flatten(tree)
  arrays = iter(arrays)
  leaves = [next(arrays) if _is_array(x) else x for x in leaves]
  return jax.tree.unflatten(form, leaves)


class Schedule(NamedTuple):
  """Progress of a dispatch: its learning rates and its random choices."""

  first_learning_rate: np.float32  # of the first step
  last_learning_rate: np.float32  # of the step after the last
  key: np.ndarray  # [2] uint32, unique to the dispatch
  # Shares of all training that are done before and after the dispatch.
  first_progress: np.float32 = np.float32(1)
  last_progress: np.float32 = np.float32(1)


class StepRange(NamedTuple):
  """Which steps of a dispatch to run."""

  first: jax.Array  # int32
  stop: jax.Array  # int32, after the last
  count: jax.Array  # int32, steps over which the learning rate falls


class DispatchMetrics(NamedTuple):
  """What a dispatch reports to the host; the same on all devices."""

  steps: StepMetrics
  num_steps: jax.Array  # int32
  counters: dict[str, jax.Array]  # int32, of `data.base.Steps.counters`


class Strategy(NamedTuple):
  """Pure functions over a state, and the shardings of their arguments.

  The state is a `TrainState`, or another NamedTuple with the same fields.
  """

  # key -> state, to be compiled
  init: Callable[[jax.Array], Any]
  # -> host arrays that every step reads and none changes
  constants: Callable[[], Any]
  # (state, constants, batch, schedule) -> (state, `DispatchMetrics`), one
  # dispatch of many steps; the state is donated. On several CPU devices wait
  # for one's metrics before the next but one: with dozens under way XLA's
  # threads wait for each other until it gives up.
  step: Callable[..., tuple[Any, DispatchMetrics]]
  # (state, name of a table, start = 0, stop = None) -> `blocks.RowBlock` of
  # these rows on the host, with a leading axis of models that never meet. All
  # processes take part.
  export_rows: Callable[..., blocks.RowBlock]
  # state -> state, with all rows where checkpoints and exports find them.
  flush: Callable[[Any], Any]
  # (state, name of a table, ids, rows, slots) -> state, see
  # `tables.spec.Table.import_rows`; the state is donated.
  import_rows: Callable[..., Any]
  # Shardings of the state (a prefix of its tree), of constants and schedules,
  # and of the arrays of a batch, which have the parts as their leading axis.
  state_sharding: Any
  constants_sharding: jax.sharding.Sharding
  batch_sharding: jax.sharding.Sharding
  # How often the loops of the compiled `step` run.
  loop: hlo.Loop


def flush(tables: Mapping[str, spec_lib.Table], state: Any) -> Any:
  """See `Strategy.flush`."""
  states = {k: table.flush(state.tables[k]) for k, table in tables.items()}
  return state._replace(tables=states)


def stacked(states: Any, num: int) -> Any:
  """The same states `num` times, along a leading axis."""
  return jax.tree.map(
    lambda x: jnp.broadcast_to(x[None], (num, *x.shape)), states
  )


class StepResult(NamedTuple):
  """One step."""

  state: TrainState
  loss: jax.Array  # float32, summed; 0 where it was not measured
  examples: jax.Array  # float32
  sums: dict[str, jax.Array]


class StepContext(NamedTuple):
  """What the host has decided for a step."""

  key: jax.Array  # [2] uint32, of the dispatch
  learning_rate: jax.Array  # float32
  # bool; the logarithms of the loss cost a CPU an eighth of a step, and only
  # gradients are needed to train. True, not an array: no condition at all.
  measure: jax.Array | bool
  # [2] uint32, of the step, for tables that round stochastically
  rounding_key: jax.Array | None = None
  # Axes of the mesh over which the examples of the step are split.
  axes: tuple[str, ...] = ()


def training_step(
  trainable: Trainable, state: TrainState, batch: Any, context: StepContext
) -> StepResult:
  """Looks up rows, differentiates the loss by them, updates their tables."""
  model, tables = trainable.model, dict(state.tables)
  ids = model.ids(batch, context.key)
  rows, sums = {}, {}
  for name, table in trainable.tables.items():
    found = table.lookup(tables[name], ids[name])
    rows[name], tables[name] = found.rows, found.state
    for metric, value in found.metrics.items():
      sums[metric] = sums.get(metric, 0) + value
  # XLA must not fuse a gather past the scatter that follows: it would copy the
  # whole table to keep the old rows.
  rows = jax.lax.optimization_barrier(rows)

  def loss(args):
    return model.loss(*args, ids, batch, context.key)

  args = state.params, rows
  if context.measure is True:
    (value, aux), grads = jax.value_and_grad(loss, has_aux=True)(args)
    measured = 1.0
  else:
    grads, aux = jax.grad(loss, has_aux=True)(args)
    value = jax.lax.cond(
      context.measure, lambda x: loss(x)[0], lambda x: jnp.float32(0), args
    )
    measured = jnp.where(context.measure, 1.0, 0.0)
  # The rows must have been read for the loss before a table changes in place.
  grads, value = jax.lax.optimization_barrier((grads, value))
  param_grads, row_grads = grads
  for i, (name, table) in enumerate(sorted(trainable.tables.items())):
    key = context.rounding_key
    key = None if key is None else rounding.key(key, i)
    step = spec_lib.Step(context.learning_rate, key)
    tables[name] = table.update(
      tables[name], ids[name], row_grads[name], rows[name], step
    )
  state = TrainState(tables, state.params, state.optimizer)
  if jax.tree.leaves(state.params):
    state = _dense_step(trainable, state, param_grads, aux, context)
  sums |= {name: measured * value for name, value in aux.metrics.items()}
  return StepResult(state, value, measured * aux.examples, sums)


def _dense_step(
  trainable: Trainable,
  state: TrainState,
  grads: Any,
  aux: model_base.Aux,
  context: StepContext,
) -> TrainState:
  """Updates dense parameters by the gradient of the mean loss."""
  import optax

  examples = aux.examples
  if context.axes:
    grads, examples = jax.lax.psum((grads, examples), context.axes)
  grads = jax.tree.map(lambda x: x / jnp.maximum(examples, 1), grads)
  updates, optimizer = trainable.model.optimizer().update(
    grads, state.optimizer, state.params
  )
  # A step of padding changes nothing, whatever an optimizer's momentum.
  new = optax.apply_updates(state.params, updates), optimizer
  params, optimizer = jax.tree.map(
    lambda x, y: jnp.where(examples > 0, x, y),
    new,
    (state.params, state.optimizer),
  )
  return state._replace(params=params, optimizer=optimizer)


def _rounding_key(
  trainable: Trainable, schedule: Schedule, step: jax.Array, stream: jax.Array
) -> jax.Array | None:
  """[2] uint32, for tables that round stochastically; None = there is none."""
  specs = [table.spec for table in trainable.tables.values()]
  if all(x.dtype == 'float32' or x.rounding == 'nearest' for x in specs):
    return None
  return rounding.key(schedule.key ^ _ROUNDING, step, stream)


def _compact_or_full_step(
  trainable: Trainable, state: TrainState, batch: Any, context: StepContext
) -> StepResult:
  """As `training_step`, by the model's compact variant if the step fits it."""
  model = trainable.model
  fits = model.fits(batch).astype(jnp.int32)
  variants = [
    dataclasses.replace(trainable, model=x) for x in (model.compact, model)
  ]
  nothing = trainable.no_metrics()
  result = StepResult(state, nothing.loss, nothing.examples, nothing.sums)
  # Loops of one turn or none: XLA copies the tables that a condition changes.
  for turns, variant in zip((fits, 1 - fits), variants, strict=True):
    result = jax.lax.fori_loop(
      0,
      turns,
      lambda _, result, variant=variant: training_step(
        variant, result.state, batch, context
      ),
      result,
    )
  return result


def training_steps(
  trainable: Trainable,
  batch: Any,
  schedule: Schedule,
  steps: StepRange,
  share: data_base.Share,
  carry: tuple[TrainState, StepMetrics],
  stream: jax.Array | int = 0,
  axes: tuple[str, ...] = (),
) -> tuple[TrainState, StepMetrics]:
  """Steps of a dispatch, one after the other.

  Args:
    trainable: what to train.
    batch: of the source, or a device's parts of it.
    schedule: learning rates and key.
    steps: which of the batch's steps to run.
    share: which of their examples this device has.
    carry: the state, and what was measured so far.
    stream: which tables these are, where devices have some of their own: copies
      of a table round alike, different tables each in their own way.
    axes: of the mesh, over which the examples of a step are split.
  """
  count = jnp.maximum(steps.count, 1).astype(jnp.float32)
  slope = (schedule.last_learning_rate - schedule.first_learning_rate) / count
  advance = (schedule.last_progress - schedule.first_progress) / count
  take = training_step
  if trainable.may_be_compact and trainable.model.compact is not None:
    take = _compact_or_full_step

  def body(i, carry):
    state, metrics = carry
    index = i.astype(jnp.float32)
    step_batch = trainable.steps.step(
      batch, i, share, schedule.first_progress + advance * index
    )
    if trainable.steps_per_loop > 1:
      step_batch = trainable.steps.pad(step_batch, i < steps.stop)
    every = trainable.loss_every_steps
    context = StepContext(
      schedule.key,
      schedule.first_learning_rate + slope * index,
      every == 1 or i % every == 0,
      _rounding_key(trainable, schedule, i, stream),
      axes,
    )
    result = take(trainable, state, step_batch, context)
    is_bad = ~jnp.isfinite(result.loss) & (metrics.first_bad_step < 0)
    return result.state, StepMetrics(
      metrics.loss + result.loss,
      metrics.examples + result.examples,
      jnp.where(is_bad, i, metrics.first_bad_step),
      {k: x + result.sums[k] for k, x in metrics.sums.items()},
    )

  size = trainable.steps_per_loop
  if size == 1:
    return jax.lax.fori_loop(steps.first, steps.stop, body, carry)

  def loop(j, carry):
    first = steps.first + j * size
    # The length of this one is known when it is compiled.
    return jax.lax.fori_loop(
      0, size, lambda i, carry: body(first + i, carry), carry
    )

  num_loops = (steps.stop - steps.first + size - 1) // size
  return jax.lax.fori_loop(0, num_loops, loop, carry)


def over_devices(
  trainable: Trainable,
  metrics: StepMetrics,
  batch: Any,
  num_steps: jax.Array,
  axes: Sequence[str],
) -> DispatchMetrics:
  """Adds up what devices measured on examples of their own.

  Args:
    trainable: what was trained.
    metrics: a device's.
    batch: its parts of the source's batch.
    num_steps: int32, the same everywhere.
    axes: of the mesh over which examples are split; the first one is that of
      the parts.
  """
  counters = dict(trainable.steps.counters(batch))
  if axes:
    axes = tuple(axes)
    loss, examples = jax.lax.psum((metrics.loss, metrics.examples), axes)
    counters = jax.lax.psum(counters, axes[0])
    none = np.iinfo(np.int32).max
    first = metrics.first_bad_step
    first = jax.lax.pmin(jnp.where(first < 0, none, first), axes)
    first = jnp.where(first == none, -1, first)
    # Devices look rows up together, and count the same.
    sums = {
      name: (jax.lax.psum if name in trainable.model.metrics else jax.lax.pmax)(
        x, axes
      )
      for name, x in metrics.sums.items()
    }
    metrics = StepMetrics(loss, examples, first, sums)
  return DispatchMetrics(metrics, num_steps, counters)
