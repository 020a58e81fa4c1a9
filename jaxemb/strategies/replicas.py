"""Replicas: copies of the tables that train apart and meet now and then.

Every device of the data axis trains its own copy of all tables on its own part
of the data. When the copies meet, which rows and with what weight is up to a
policy (`strategies.policies`): with x_i the row of replica i and b the row at
its last meeting, all replicas go on from

  b + g * sum_i (x_i - b)

Chunks of rows of all tables travel in one sum. Dense parameters are averaged at
every meeting. Under the policy `never` nothing is exchanged and the program has
no collective: the copies are sub-models of their own, each with its own batch,
learning rates and key (Anand et al. 2019), and a device may train several.

Optimizer state stays with its replica.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import base as data_base
from jaxemb.ops import rounding, wire
from jaxemb.runtime import hlo
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.strategies import base, policies
from jaxemb.tables import blocks
from jaxemb.tables import spec as spec_lib


class ReplicaState(NamedTuple):
  """The state of all replicas, whose arrays have a leading axis over them."""

  tables: dict[str, spec_lib.TableState]  # leaves [n, ...]
  params: Any  # leaves [n, ...]
  optimizer: Any  # leaves [n, ...]
  met: dict[str, spec_lib.TableState]  # rows at their last meeting, once
  clock: Any  # of the policy

  def trained(self) -> base.TrainState:
    """What a step changes."""
    return base.TrainState(self.tables, self.params, self.optimizer)


def of_model(state: Any, index: int) -> Any:
  """A copy of one model's arrays, on the device that holds them."""

  def find(array):
    for shard in array.addressable_shards:
      first = shard.index[0].start or 0
      if first <= index < first + len(shard.data):
        return shard.data[index - first]
    raise IndexError(index)

  return jax.tree.map(find, state)


def _meet_chunk(
  i: jax.Array,
  tables: dict[str, spec_lib.TableState],
  met: dict[str, spec_lib.TableState],
  *,
  layouts: Mapping[str, spec_lib.Table],
  policy: policies.Policy,
  elapsed: policies.Elapsed,
  num_replicas: int,
  key: jax.Array,
) -> tuple[dict[str, spec_lib.TableState], dict[str, spec_lib.TableState]]:
  """Exchanges the i-th chunk of rows of every table.

  Args:
    i: int32.
    tables: one replica's.
    met: the rows at their last meeting.
    layouts: the functions of the tables.
    policy: gives the weights.
    elapsed: since the last meeting.
    num_replicas: n.
    key: [2] uint32, the same on all replicas, so that they round alike.
  """
  starts, olds, encodings, terms = {}, {}, {}, {}
  for name, table in layouts.items():
    # The last chunk reaches back over rows that were exchanged just now, which
    # does not change them.
    num = min(policy.chunk_rows, table.spec.vocab)
    start = starts[name] = jnp.minimum(
      i * policy.chunk_rows, table.spec.vocab - num
    )
    old = table.read_range(met[name], start, num)
    own = table.read_range(tables[name], start, num).rows
    weights = policy.weights(name, start, num, elapsed)[:, None]
    encodings[name] = old.encoding
    if table.spec.exchange_dtype == 'float32':
      # Each replica adds its n-th of the old row: all reads come before the
      # sum, so that XLA can write both arrays in place after it.
      terms[name] = old.rows / num_replicas + weights * (own - old.rows)
    else:
      # In a shorter type only changes can be sent.
      terms[name], olds[name] = weights * (own - old.rows), old.rows
  olds, encodings, terms = jax.lax.optimization_barrier(
    (olds, encodings, terms)
  )
  rows = _summed(terms, olds, layouts)
  # The same on all replicas; otherwise XLA copies them to read them twice.
  encodings = jax.lax.pmax(encodings, mesh_lib.DATA)
  tables, met = dict(tables), dict(met)
  for j, name in enumerate(sorted(layouts)):
    args = starts[name], rows[name], encodings[name], rounding.key(key, j)
    tables[name] = layouts[name].write_range(tables[name], *args)
    met[name] = layouts[name].write_range(met[name], *args)
  return tables, met


def _summed(
  terms: dict[str, jax.Array],
  olds: dict[str, jax.Array],
  layouts: Mapping[str, spec_lib.Table],
) -> dict[str, jax.Array]:
  """[num, dim] float32 by table, the rows of all replicas together."""
  whole = {k: x for k, x in terms.items() if k not in olds}
  rows = jax.lax.psum(whole, mesh_lib.DATA)
  for name, old in olds.items():
    axis = wire.Axis(mesh_lib.DATA, layouts[name].spec.exchange_dtype)
    rows[name] = old + wire.psum(terms[name], axis)
  return rows


def meet(
  state: ReplicaState,
  trainable: base.Trainable,
  policy: policies.Policy,
  elapsed: policies.Elapsed,
  num_replicas: int,
  key: jax.Array,
) -> ReplicaState:
  """Exchanges the rows that are due, on one replica's device.

  Args:
    state: of one replica, without the leading axis.
    trainable: its tables.
    policy: what is due.
    elapsed: since the last meeting.
    num_replicas: n.
    key: [2] uint32, of the dispatch.
  """
  num_chunks, clock = policy.due(state.clock)
  number = jax.tree.leaves(clock)[0]

  def body(i, carry):
    return _meet_chunk(
      i,
      *carry,
      layouts=trainable.tables,
      policy=policy,
      elapsed=elapsed,
      num_replicas=num_replicas,
      key=rounding.key(key, number, i),
    )

  tables, met = jax.lax.fori_loop(
    0, num_chunks, body, (state.tables, state.met)
  )
  params = state.params
  if jax.tree.leaves(params):
    params = jax.lax.pmean(params, mesh_lib.DATA)
  return state._replace(tables=tables, met=met, params=params, clock=clock)


def _dispatch(
  trainable: base.Trainable,
  policy: policies.Policy,
  num_replicas: int,
  state: ReplicaState,
  constants: Any,
  batch: Any,
  schedule: base.Schedule,
) -> tuple[ReplicaState, base.DispatchMetrics]:
  """A dispatch of one replica; its arrays have a leading axis of one."""
  trainable = trainable.with_arrays(constants[0])
  policy = base.with_arrays(policy, constants[1])
  shared = state.met, state.clock
  own = jax.tree.map(lambda x: x[0], state.trained())
  # All replicas run as many steps, so that they meet; some are padding.
  num_steps = trainable.steps.num_steps(batch)
  count = jax.lax.pmax(jnp.max(num_steps), mesh_lib.DATA)
  replica = jax.lax.axis_index(mesh_lib.DATA)
  every = policy.every_steps
  span = schedule.last_learning_rate - schedule.first_learning_rate

  def body(i, carry):
    state, metrics = carry
    first = i * every
    stop = jnp.minimum(first + every, count)
    trained, metrics = base.training_steps(
      trainable,
      batch,
      schedule,
      base.StepRange(first, stop, count),
      data_base.share(1, 1, replica, 0),
      (state.trained(), metrics),
      stream=replica,
    )
    learning_rate = schedule.first_learning_rate + span * (stop / count)
    state = ReplicaState(*trained, state.met, state.clock)
    elapsed = policies.Elapsed(learning_rate, stop - first)
    key = schedule.key
    return meet(state, trainable, policy, elapsed, num_replicas, key), metrics

  carry = ReplicaState(*own, *shared), trainable.no_metrics()
  num_meetings = (count + every - 1) // every
  state, metrics = jax.lax.fori_loop(0, num_meetings, body, carry)
  metrics = base.over_devices(trainable, metrics, batch, count, [mesh_lib.DATA])
  stacked = jax.tree.map(lambda x: x[None], state.trained())
  return ReplicaState(*stacked, state.met, state.clock), metrics


def _dispatch_apart(
  trainable: base.Trainable,
  state: ReplicaState,
  constants: Any,
  batch: Any,
  schedule: base.Schedule,
) -> tuple[ReplicaState, base.DispatchMetrics]:
  """A dispatch of one device's sub-models."""
  trainable = trainable.with_arrays(constants[0])
  # As many steps for all of a device, some of them padding; other devices do
  # not wait.
  stop = jnp.max(trainable.steps.num_steps(batch))

  def dispatch(trained, batch, schedule):
    # One part of the data, which is all that this model sees.
    batch = jax.tree.map(lambda x: x[None], batch)
    count = trainable.steps.num_steps(batch)[0]
    trained, metrics = base.training_steps(
      trainable,
      batch,
      schedule,
      base.StepRange(jnp.int32(0), stop, count),
      data_base.WHOLE,
      (trained, trainable.no_metrics()),
    )
    return trained, base.over_devices(trainable, metrics, batch, count, ())

  args = state.trained(), batch, schedule
  trained, metrics = _each(dispatch, args)
  return ReplicaState(*trained, {}, ()), metrics


def _each(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
  """`jax.vmap`, or for a single model the function itself.

  One model on a device is then the same to the last bit as one alone; several
  are computed in one product, which may round differently.
  """
  if len(jax.tree.leaves(args)[0]) > 1:
    return jax.vmap(function)(*args)
  result = function(*jax.tree.map(lambda x: x[0], args))
  return jax.tree.map(lambda x: x[None], result)


def _export_rows(
  trainable: base.Trainable,
  meets: bool,
  state: ReplicaState,
  name: str,
  start: int = 0,
  stop: int | None = None,
) -> blocks.RowBlock:
  """What the replicas have learned since a row's last meeting adds up."""
  table = trainable.tables[name]
  own = blocks.read(table, state.tables[name], start, stop, has_copies=True)
  if not meets:
    return own
  met = table.export_rows(state.met[name], start, stop)
  old = met.rows
  # At the end the learning rate is so low that nothing was forgotten.
  rows = np.array(old)
  for copy in own.rows:
    rows += copy - old
  slots = {
    slot: getattr(x, table.slot_reductions[slot])(0)
    for slot, x in own.slots.items()
  }
  encoded = blocks.encode(rows, met.encoded)
  return blocks.RowBlock(encoded, slots)


def _import_rows(
  trainable: base.Trainable,
  meets: bool,
  state: ReplicaState,
  name: str,
  ids: np.ndarray,
  rows: np.ndarray,
  slots: Mapping[str, np.ndarray],
) -> ReplicaState:
  table = trainable.tables[name]
  new = blocks.write(
    table, state.tables[name], ids, rows, slots, has_copies=True
  )
  state = state._replace(tables=state.tables | {name: new})
  if meets:
    met = table.import_rows(state.met[name], ids, rows)
    state = state._replace(met=state.met | {name: met})
  return state


def replicas(
  trainable: base.Trainable,
  mesh: jax.sharding.Mesh,
  policy: policies.Policy,
  per_device: int = 1,
) -> base.Strategy:
  """The strategy.

  Under the policy `never` batches, schedules and metrics have a leading axis of
  models, and so have exported rows.

  Args:
    trainable: what each replica trains, with tables of one device.
    mesh: devices along the data axis.
    policy: when replicas meet.
    per_device: sub-models that a device trains at once, which never meet.
  """
  num = per_device * mesh.shape[mesh_lib.DATA]
  meets = policy.every_steps > 0
  over = jax.sharding.PartitionSpec(mesh_lib.DATA)
  everywhere = jax.sharding.PartitionSpec()
  state_spec = ReplicaState(over, over, over, everywhere, everywhere)

  def init(key: jax.Array) -> ReplicaState:
    """All replicas start from the same rows."""
    state = trainable.init(key)
    met, clock = {}, ()
    if meets:
      met = {
        name: table.without_slots(state.tables[name])
        for name, table in trainable.tables.items()
      }
      clock = policy.init()
    return ReplicaState(*base.stacked(state, num), met, clock)

  if meets:
    step = functools.partial(_dispatch, trainable, policy, num)
    schedule_spec = metrics_spec = everywhere
    inner = policy.mean_chunks()
    loop_steps = policy.every_steps
  else:
    step = functools.partial(_dispatch_apart, trainable)
    schedule_spec = metrics_spec = over
    inner, loop_steps = 1, trainable.steps_per_loop
  step = jax.shard_map(
    step,
    mesh=mesh,
    in_specs=(state_spec, everywhere, over, schedule_spec),
    out_specs=(state_spec, metrics_spec),
    # The rows that leave a sum are the same everywhere; JAX cannot tell.
    check_vma=False,
  )
  named = functools.partial(jax.sharding.NamedSharding, mesh)
  return base.Strategy(
    init,
    lambda: (base.arrays_of(trainable.model), base.arrays_of(policy)),
    jax.jit(step, donate_argnums=0),
    functools.partial(_export_rows, trainable, meets),
    functools.partial(base.flush, trainable.tables),
    functools.partial(_import_rows, trainable, meets),
    ReplicaState(*map(named, state_spec)),
    named(everywhere),
    named(over),
    hlo.Loop(loop_steps, inner=inner, branch=1 / trainable.loss_every_steps),
  )
