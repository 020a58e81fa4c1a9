"""The strategy interface, the steps that all share, and synchronous training.

A strategy decides which device takes which examples of a step and when replicas
synchronise. A dispatch is one compiled program of many steps.

In synchronous training every step sees all earlier ones. Each device takes some
of a step's examples, from its corpus shards along the data axis: results are
the same on any mesh, up to the order in which sums are rounded. Devices of the
table axis split the examples of their shards, unless tables split columns: then
all take the same ones.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import layout

from jaxemb.data import base as data_base
from jaxemb.models import base as model_base
from jaxemb.ops import rounding, sampling
from jaxemb.runtime import hlo
from jaxemb.runtime import mesh as mesh_lib
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


class Compiled(Protocol):
  """A function that `jax.jit` returned."""

  def __call__(self, *args: Any) -> Any:
    """Calls it, compiled for these arguments."""

  def eval_shape(self, *args: Any) -> Any:
    """Returns the shapes, types and shardings of the result."""

  def lower(self, *args: Any) -> jax.stages.Lowered:
    """Returns the program for arguments like these."""
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Trainable:
  """A model with its tables and steps: what every strategy trains."""

  model: model_base.Model
  tables: Mapping[str, spec_lib.Table]
  steps: data_base.Steps
  loss_every_steps: int  # evaluate the loss every N steps, gradients otherwise
  # Steps that run without asking the host whether to go on, which costs an
  # accelerator more than a step; the last ones may be padding.
  steps_per_loop: int = 1
  # Allows the model's compact variant: no device waits for another in a step.
  may_be_compact: bool = False

  # A kernel in place of `training_step`, with its arguments and result.
  fused: Callable[..., tuple[TrainState, 'StepMetrics']] | None = None

  # Returns an optax transformation in place of the model's.
  dense: Callable[[], Any] | None = None

  # By table, [vocab] float32: 1 + learning rate x brake divides the learning
  # rate of a row, which has learned from other data before. Of SGD alone.
  brakes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def has_dense(self) -> bool:
    """Whether the model has dense parameters."""
    params = jax.eval_shape(self.model.init, sampling.key_shape())
    return bool(jax.tree.leaves(params))

  def prepare(self, batch: Any) -> Any:
    """Returns the batch that steps are cut from, of that of an item."""
    make = getattr(self.steps, 'prepare', None)
    return make(batch) if make else batch

  def optimizer(self) -> Any:
    """Returns the optax transformation that trains dense parameters."""
    return self.dense() if self.dense else self.model.optimizer()

  def init(self, key: jax.Array) -> TrainState:
    """Returns the state before training; every table has its own key."""
    tables = {
      name: table.init(jax.random.fold_in(key, i))
      for i, (name, table) in enumerate(sorted(self.tables.items()))
    }
    params = self.model.init(jax.random.fold_in(key, len(tables)))
    if not jax.tree.leaves(params):
      return TrainState(tables)
    return TrainState(tables, params, self.optimizer().init(params))

  def arrays(self) -> list[Any]:
    """Returns the arrays that steps only read."""
    return arrays_of((self.model, self.brakes))

  def with_arrays(self, arrays: Sequence[jax.Array]) -> 'Trainable':
    """Returns the same with these `arrays`."""
    model, brakes = with_arrays((self.model, self.brakes), arrays)
    return dataclasses.replace(self, model=model, brakes=brakes)

  def map_tables(self, method: str, state: Any) -> Any:
    """Returns a state whose tables a method changed, `opened` or `closed`."""
    tables = {
      name: getattr(self.tables[name], method)(x)
      for name, x in state.tables.items()
    }
    return state._replace(tables=tables)

  def no_metrics(self) -> StepMetrics:
    """Returns zeros: what is measured before the first step."""
    counts = {k for table in self.tables.values() for k in table.metrics}
    sums = {name: jnp.int32(0) for name in sorted(counts)}
    sums |= {name: jnp.float32(0) for name in self.model.metrics}
    return StepMetrics(
      loss=jnp.float32(0),
      examples=jnp.float32(0),
      first_bad_step=jnp.int32(-1),
      sums=sums,
    )


def _is_array(leaf: Any) -> bool:
  return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def arrays_of(tree: Any) -> list[Any]:
  """Returns the arrays in a model or policy, which steps only read."""
  return [x for x in jax.tree.leaves(tree) if _is_array(x)]


def with_arrays(tree: Any, arrays: Sequence[jax.Array]) -> Any:
  """Returns the model or policy with other `arrays_of` it."""
  rest = iter(arrays)
  return jax.tree.map(lambda x: next(rest) if _is_array(x) else x, tree)


class Schedule(NamedTuple):
  """Progress of a dispatch: its learning rates and its random choices."""

  first_learning_rate: np.float32  # of the first step
  last_learning_rate: np.float32  # of the step after the last
  key: np.ndarray  # [2] uint32, unique to the dispatch
  # Fractions of all training that are done before and after the dispatch.
  first_progress: np.float32 = np.float32(1)
  last_progress: np.float32 = np.float32(1)
  parts_before: np.int32 = np.int32(0)  # corpus shards before a worker's


class Devices(NamedTuple):
  """Which examples of a step a device takes."""

  share: data_base.Share
  # Number of the replica, which rounds differently from others.
  stream: jax.Array | int = 0
  axes: tuple[str, ...] = ()  # of the mesh, over which examples are split


class DispatchMetrics(NamedTuple):
  """What a dispatch reports to the host, the same on all devices."""

  steps: StepMetrics
  num_steps: jax.Array  # int32
  counters: dict[str, jax.Array]  # int32, of `data.base.Steps.counters`


class Strategy(NamedTuple):
  """Pure functions over a `TrainState`, or a NamedTuple that has its fields."""

  # key -> state, compiled; `init.eval_shape` has its shapes and shardings
  init: Compiled
  # -> arrays on the devices that every step reads and none changes
  constants: Callable[[], Any]
  # (state, constants, batch, schedule) -> (state, `DispatchMetrics`), one
  # dispatch; the state is donated. On several CPU devices wait for its metrics
  # before the next but one: with dozens under way XLA's threads deadlock.
  step: Compiled
  # (state, name of a table, start = 0, stop = None), (state, name of a table,
  # ids, rows, opt_state): see `tables.spec.Table`.
  export_rows: Callable[..., spec_lib.RowBlock]
  import_rows: Callable[..., Any]
  # Of the arrays of a batch, whose leading axis is that of corpus shards.
  batch_sharding: jax.sharding.Sharding
  # How often the loops of the compiled `step` run.
  loop: hlo.Loop
  # When replicas synchronise, `policies.Policy`; None = there are none.
  policy: Any = None
  num_replicas: int = 0  # 0 = the state has no axis of replicas
  # (number of replicas in a checkpoint, learning rate) -> (shapes of its state,
  # what makes a state of this strategy of it). None = there is no other number.
  from_replicas: (
    Callable[[int, float], tuple[Any, Callable[[Any], Any]]] | None
  ) = None
  # `fetching.Fetching` of tables of which the state has only some rows, which
  # is also the `step`; None = the state has all rows.
  store: Any = None

  def device_bytes(self, tree: Any) -> int:
    """Returns bytes of some of the state on each device, without padding."""
    return mesh_lib.num_bytes(tree) // self.batch_sharding.num_devices


class StepContext(NamedTuple):
  """What a step needs beside its batch."""

  # int32, within the dispatch. A field, in place of tuple's method.
  index: jax.Array  # type: ignore[assignment]
  key: jax.Array  # [2] uint32, of the dispatch
  learning_rate: jax.Array  # float32
  # bool, whether the loss is needed, whose logarithms cost a CPU an eighth of a
  # step. True, not an array: no condition at all.
  measure: jax.Array | bool
  devices: Devices
  ids: Any = None  # what `Model.ids` returns for the batch, if it is known
  positions: Any = None  # of these rows in the tables, if not their ids
  # float32, examples of the whole step, if other processes take some of them.
  examples: Any = None


def rounding_key(
  spec: spec_lib.TableSpec, context: StepContext, number: int
) -> jax.Array | None:
  """Returns [2] uint32 for stochastic rounding of a step's rows, or None.

  `number` tells the tables of a model apart.
  """
  if spec.dtype == 'float32' or spec.rounding != 'stochastic':
    return None
  base = context.key ^ _ROUNDING
  return rounding.key(base, context.index, context.devices.stream, number)


def training_step(
  trainable: Trainable,
  batch: Any,
  context: StepContext,
  carry: tuple[TrainState, StepMetrics],
) -> tuple[TrainState, StepMetrics]:
  """Looks up rows, differentiates the loss, updates tables and parameters."""
  state, metrics = carry
  model, ids = trainable.model, context.ids
  if ids is None:
    ids = model.ids(batch, context.key)
  positions = ids if context.positions is None else context.positions
  measured = jnp.where(context.measure, 1.0, 0.0)
  rows, tables, counts = _look_up(trainable, state.tables, positions)
  value, aux, grads = _differentiate(
    model, (state.params, rows), ids, batch=batch, context=context
  )
  # The rows must have been read for the loss before a table changes in place.
  (param_grads, row_grads), value = jax.lax.optimization_barrier((grads, value))
  examples, is_dense = aux.examples, bool(jax.tree.leaves(state.params))
  if context.devices.axes and (is_dense or model.is_mean):
    axes = context.devices.axes
    param_grads, examples = jax.lax.psum((param_grads, examples), axes)
  if context.examples is not None:
    examples = context.examples
  scale = 1 / jnp.maximum(examples, 1)
  if model.is_mean:
    row_grads = jax.tree.map(lambda x: scale * x, row_grads)
  row_grads = _slowed(
    trainable, row_grads, ids, learning_rate=context.learning_rate
  )
  tables = _update(
    trainable, tables, positions, gradients=(row_grads, rows), context=context
  )
  state = state._replace(tables=tables)
  if is_dense:
    dense = dense_step(
      trainable.optimizer(),
      model.dense_rate,
      state[1:],
      grads=jax.tree.map(lambda x: scale * x, param_grads),
      is_step=examples > 0,
      learning_rate=context.learning_rate,
    )
    state = TrainState(tables, *dense)
  sums = counts | {k: measured * aux.metrics[k] for k in model.metrics}
  examples = measured * aux.examples
  return state, added(
    metrics, context.index, value, examples=examples, sums=sums
  )


def added(
  metrics: StepMetrics,
  index: jax.Array,
  value: jax.Array,
  examples: jax.Array,
  sums: Mapping[str, jax.Array],
) -> StepMetrics:
  """Returns the metrics of a dispatch after step `index`."""
  is_bad = ~jnp.isfinite(value) & (metrics.first_bad_step < 0)
  return StepMetrics(
    loss=metrics.loss + value,
    examples=metrics.examples + examples,
    first_bad_step=jnp.where(is_bad, index, metrics.first_bad_step),
    sums={k: x + sums.get(k, 0) for k, x in metrics.sums.items()},
  )


def _look_up(trainable, tables, positions):
  """Returns rows, tables and counts (`Table.metrics`) of a lookup in each."""
  lookups, counts = {}, {}
  for name, table in trainable.tables.items():
    lookups[name] = lookup = table.lookup(tables[name], positions[name])
    for k in table.metrics:
      counts[k] = counts.get(k, 0) + lookup.metrics[k]
  rows = {name: x.rows for name, x in lookups.items()}
  # XLA must not fuse a gather past the scatter that follows: it would copy
  # the whole table to keep the old rows.
  rows = jax.lax.optimization_barrier(rows)
  return rows, {name: x.state for name, x in lookups.items()}, counts


def _differentiate(model, params_and_rows, ids, batch, context):
  """Returns the loss, 0 unless it is measured, `Aux`, and gradients."""

  def loss(params_and_rows):
    params, rows = params_and_rows
    return model.loss(params, rows, ids, batch=batch, key=context.key)

  if context.measure is True:
    gradient = jax.value_and_grad(loss, has_aux=True)
    (value, aux), grads = gradient(params_and_rows)
    return value, aux, grads
  grads, aux = jax.grad(loss, has_aux=True)(params_and_rows)
  value = jax.lax.cond(
    context.measure,
    lambda x: loss(x)[0],
    lambda x: jnp.float32(0),
    params_and_rows,
  )
  return value, aux, grads


def _slowed(trainable, row_grads, ids, learning_rate):
  """Returns gradients of rows divided as `Trainable.brakes` says."""
  slowed = {}
  for name, brakes in trainable.brakes.items():
    # Padding, whose ids are above all rows, changes nothing.
    of_ids = brakes.at[ids[name]].get(mode='fill', fill_value=0)
    slowed[name] = row_grads[name] / (1 + learning_rate * of_ids)[..., None]
  return {**row_grads, **slowed}


def _update(trainable, states, positions, gradients, context):
  """Returns the states of tables after gradients of these rows."""
  row_grads, rows = gradients
  new = {}
  for i, (name, table) in enumerate(sorted(trainable.tables.items())):
    key = rounding_key(table.spec, context, i)
    new[name] = table.update(
      states[name],
      positions[name],
      row_grads[name],
      rows=rows[name],
      step=spec_lib.Step(context.learning_rate, key),
    )
  return new


def dense_step(
  optimizer: Any,
  dense_rate: float,
  old: tuple[Any, Any],
  grads: Any,
  is_step: jax.Array,
  learning_rate: jax.Array,
) -> tuple[Any, Any]:
  """Updates dense parameters by the gradient of the mean loss.

  `old` are parameters, and the state of an optax transformation, as is what it
  returns; `dense_rate` is as of `models.base.Model`. A step of padding changes
  nothing, whatever an optimizer's momentum.
  """
  import optax

  updates, state = optimizer.update(grads, old[1], old[0])
  if dense_rate:
    rate = learning_rate * dense_rate
    updates = jax.tree.map(lambda x: rate * x, updates)
  new = optax.apply_updates(old[0], updates), state
  return jax.tree.map(lambda x, y: jnp.where(is_step, x, y), new, old)


def gathered() -> Any:
  """Returns an optax transformation that changes nothing.

  Its state is the gradient of the last step, for others to do something with.
  """
  import optax

  def update(grads, state, params=None):
    return jax.tree.map(jnp.zeros_like, grads), grads

  return optax.GradientTransformation(
    lambda params: jax.tree.map(jnp.zeros_like, params), update
  )


def _compact_or_full_step(trainable, batch, context, carry):
  """As `training_step`, by the model's compact variant if the step fits it."""
  model = trainable.model
  fits = model.fits(batch).astype(jnp.int32)
  # Loops of one step or none: XLA copies the tables that a condition changes.
  for count, variant in ((fits, model.compact), (1 - fits, model)):
    chosen = dataclasses.replace(trainable, model=variant)
    step = functools.partial(training_step, chosen, batch, context)
    carry = jax.lax.fori_loop(0, count, lambda _, x, step=step: step(x), carry)
  return carry


def training_steps(
  trainable: Trainable,
  batch: Any,
  schedule: Schedule,
  devices: Devices,
  carry: tuple[TrainState, StepMetrics],
  first: jax.Array,
  stop: jax.Array,
  count: jax.Array,
  ids_of: Callable[[jax.Array], tuple[Any, Any]] = lambda i: (None, None),
  examples: jax.Array | None = None,
) -> tuple[TrainState, StepMetrics]:
  """Takes steps `first` to `stop` of a dispatch of `count` steps.

  The batch may be a device's corpus shards; `carry` has what was measured so
  far; `ids_of` returns `StepContext.ids` and `positions` of a step; `examples`
  are those of each step, as in `StepContext`.
  """
  count = jnp.maximum(count, 1).astype(jnp.float32)
  slope = (schedule.last_learning_rate - schedule.first_learning_rate) / count
  advance = (schedule.last_progress - schedule.first_progress) / count
  every, size = trainable.loss_every_steps, trainable.steps_per_loop
  take_step = trainable.fused or training_step
  if trainable.may_be_compact and trainable.model.compact is not None:
    take_step = trainable.fused or _compact_or_full_step

  def body(i, carry):
    index = i.astype(jnp.float32)
    step_batch = trainable.steps.step(
      batch, i, devices.share, schedule.first_progress + advance * index
    )
    if size > 1:
      step_batch = trainable.steps.pad(step_batch, i < stop)
    ids, positions = ids_of(i)
    context = StepContext(
      index=i,
      key=schedule.key,
      learning_rate=schedule.first_learning_rate + slope * index,
      measure=every == 1 or i % every == 0,
      devices=devices,
      ids=ids,
      positions=positions,
      examples=examples,
    )
    return take_step(trainable, step_batch, context, carry)

  def loop(j, carry):
    start = first + j * size
    # The length of this one is known when it is compiled.
    return jax.lax.fori_loop(0, size, lambda i, x: body(start + i, x), carry)

  state, metrics = carry
  carry = trainable.map_tables('opened', state), metrics
  if size == 1:
    state, metrics = jax.lax.fori_loop(first, stop, body, carry)
  else:
    num_loops = (stop - first + size - 1) // size
    state, metrics = jax.lax.fori_loop(0, num_loops, loop, carry)
  return trainable.map_tables('closed', state), metrics


def over_devices(
  trainable: Trainable,
  metrics: StepMetrics,
  batch: Any,
  num_steps: jax.Array,
  axes: tuple[str, ...],
) -> DispatchMetrics:
  """Adds up what devices measured on their examples.

  `axes` are those over which examples are split, that of corpus shards first.
  """
  counters = dict(trainable.steps.counters(batch))
  if not axes:
    return DispatchMetrics(metrics, num_steps, counters)
  loss, examples = jax.lax.psum((metrics.loss, metrics.examples), axes)
  # Without a sign -1, for none, is the largest number.
  first = jax.lax.pmin(metrics.first_bad_step.astype(jnp.uint32), axes)
  # Devices look rows up together, and count the same.
  sums = {
    k: (jax.lax.psum if k in trainable.model.metrics else jax.lax.pmax)(x, axes)
    for k, x in metrics.sums.items()
  }
  metrics = StepMetrics(
    loss=loss,
    examples=examples,
    first_bad_step=first.astype(jnp.int32),
    sums=sums,
  )
  counters = jax.lax.psum(counters, axes[0])
  return DispatchMetrics(metrics, num_steps, counters)


def chooses_layouts(mesh: jax.sharding.Mesh) -> bool:
  """Whether a compiler for the devices lays arguments out as it likes."""
  return mesh.devices.flat[0].platform == 'tpu'


def state_shardings(
  named: Any,
  init: Callable[[jax.Array], Any],
  mesh: jax.sharding.Mesh,
  fields: Sequence[str] = ('tables',),
) -> Any:
  """Returns the shardings of a state, with layouts of tables on a TPU.

  `named` are its `NamedSharding`s; `fields` of the state hold tables by name.
  A TPU would have a table whose width is no multiple of 128 column after column
  while it is an argument, to save memory, and copy it into rows and back in
  every dispatch, which takes more.
  """
  if not chooses_layouts(mesh):
    return named
  shapes = jax.eval_shape(init, sampling.key_shape())
  named = jax.tree.broadcast(named, shapes)

  def in_rows(table, shardings):
    ndim = jax.tree.leaves(table.vectors)[0].ndim

    def laid(shape, sharding):
      width = sharding.shard_shape(shape.shape)[-1] if shape.ndim else 0
      if shape.ndim < ndim or width < mesh_lib.LEAST_TPU_WIDTH:
        return sharding  # its default layout is good
      return layout.Format(layout.Layout(tuple(range(ndim))), sharding)

    return jax.tree.map(laid, table, shardings)

  of_fields = {
    field: {
      name: in_rows(table, getattr(named, field)[name])
      for name, table in getattr(shapes, field).items()
    }
    for field in fields
  }
  return named._replace(**of_fields)


def jit_step(step: Any, shardings: Any, mesh: jax.sharding.Mesh) -> Any:
  """Compiles a dispatch, whose state has these `state_shardings`."""
  if not chooses_layouts(mesh):
    return jax.jit(step, donate_argnums=0)
  return jax.jit(step, donate_argnums=0, out_shardings=(shardings, None))


def laid_out(state: Any, like: Any) -> Any:
  """Returns a state in the layouts of steps, those of `init.eval_shape`."""

  def laid(x, like):
    wanted, now = like.format.layout, x.format.layout
    if not wanted or not now or wanted.major_to_minor == now.major_to_minor:
      return x
    return jax.device_put(x, like.format)

  return jax.tree.map(laid, state, like)


def sync(
  trainable: Trainable,
  mesh: jax.sharding.Mesh,
  splits_examples: bool = True,
) -> Strategy:
  """Returns synchronous training on a mesh of a data and a table axis.

  `splits_examples`: devices of the table axis take different ones.
  """
  tables, init = trainable.tables, trainable.init
  everywhere = jax.sharding.PartitionSpec()
  over_data = jax.sharding.PartitionSpec(mesh_lib.DATA)
  spec = TrainState(
    {name: table.partition for name, table in sorted(tables.items())},
    everywhere,
    everywhere,
  )

  step = functools.partial(_sync_dispatch, trainable, mesh, splits_examples)
  if mesh.size > 1:
    # Devices gather the same gradients and update their copies of rows alike,
    # so these stay equal. The check (vma) takes what `all_gather` returns as
    # different on each device, and would refuse the program.
    shard_map = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)
    step = shard_map(
      step,
      in_specs=(spec, everywhere, over_data, everywhere),
      out_specs=(spec, everywhere),
    )
    init = shard_map(init, in_specs=everywhere, out_specs=spec)

  named = functools.partial(jax.sharding.NamedSharding, mesh)
  constants = trainable.arrays()
  shardings = state_shardings(jax.tree.map(named, spec), init, mesh)
  return Strategy(
    init=jax.jit(init, out_shardings=shardings),
    constants=lambda: jax.device_put(constants, named(everywhere)),
    step=jit_step(step, shardings, mesh),
    export_rows=functools.partial(_export_rows, tables),
    import_rows=functools.partial(_import_rows, tables),
    batch_sharding=named(over_data),
    # The inner loop is that of overflow rounds: most steps have one.
    loop=hlo.Loop(
      trainable.steps_per_loop,
      inner=1,
      branch=1 / trainable.loss_every_steps,
    ),
  )


def _export_rows(tables, state, name, start=0, stop=None):
  return tables[name].export_rows(state.tables[name], start, stop)


def _import_rows(tables, state, name, ids, rows, opt_state):
  new = tables[name].import_rows(
    state.tables[name], ids, rows, opt_state=opt_state
  )
  return state._replace(tables=state.tables | {name: new})


def _sync_dispatch(
  trainable, mesh, splits_examples, state, constants, batch, schedule
):
  """Takes the steps of a dispatch on a device, with its part of the batch."""
  trainable = trainable.with_arrays(constants)
  batch = trainable.prepare(batch)
  num_splits = mesh.shape[mesh_lib.TABLE] if splits_examples else 1
  num_steps = trainable.steps.num_steps(batch)
  count, before, device, axes = jnp.max(num_steps), 0, 0, ()
  if mesh.size > 1:
    axes += (mesh_lib.DATA,)
    count = jax.lax.pmax(count, mesh_lib.DATA)
    before = len(num_steps) * jax.lax.axis_index(mesh_lib.DATA)
  if num_splits > 1:
    axes += (mesh_lib.TABLE,)
    device = jax.lax.axis_index(mesh_lib.TABLE)
  share = data_base.share(
    len(num_steps), num_devices=num_splits, before=before, device=device
  )
  state, metrics = training_steps(
    trainable,
    batch,
    schedule,
    devices=Devices(share, axes=axes),
    carry=(state, trainable.no_metrics()),
    first=jnp.int32(0),
    stop=count,
    count=count,
  )
  return state, over_devices(
    trainable, metrics, batch, num_steps=count, axes=axes
  )
