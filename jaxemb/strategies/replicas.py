"""Replicas: copies of the tables that train apart and meet now and then.

Every device of the data axis trains its own copy of all tables on its own part
of the data. When the copies meet, which rows and with what weight is up to a
policy (`strategies.policies`): with x_i the row of replica i and b the row at
its last meeting, all replicas go on from

  b + g * sum_i (x_i - b)

Chunks of rows of all tables travel in one sum. Dense parameters are averaged at
every meeting. Under the policy `never` nothing is exchanged and the program has
no collective: the copies are sub-models of their own, each with its own batch,
learning rates and key (Anand et al. 2019).

Optimizer state stays with its replica.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import base as data_base
from jaxemb.ops import rounding, wire
from jaxemb.runtime import hlo
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.strategies import base, policies
from jaxemb.tables import blocks, codecs
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
    shards = {x.index[0].start or 0: x for x in array.addressable_shards}
    return shards[index].data[0]

  return jax.tree.map(find, state)


def meet(
  state: ReplicaState,
  tables: Mapping[str, spec_lib.Table],
  policy: policies.Policy,
  elapsed: policies.Elapsed,
  key: jax.Array,
) -> ReplicaState:
  """Exchanges the rows that are due, on the device of one replica.

  The state is without the leading axis; `key` [2] uint32 is of the dispatch.
  """
  num_replicas = jax.lax.axis_size(mesh_lib.DATA)
  num_chunks, clock = policy.due(state.clock)
  number = jax.tree.leaves(clock)[0]

  def exchange(i, carry):
    """The i-th chunk of rows of every table."""
    own, met = map(dict, carry)
    starts, olds, encodings, terms = {}, {}, {}, {}
    for name, table in tables.items():
      spec = table.spec
      # The last chunk reaches back over rows that were exchanged just now,
      # which does not change them.
      num = min(policy.chunk_rows, spec.vocab)
      start = jnp.minimum(i * policy.chunk_rows, spec.vocab - num)
      stored, _ = table.read_range(met[name], start, num)
      new, _ = table.read_range(own[name], start, num)
      old = rounding.decode(stored, spec.dtype)
      new = rounding.decode(new, spec.dtype)
      weights = policy.weights(name, start, num, elapsed)[:, None]
      starts[name], encodings[name] = start, codecs.encoding_of(stored)
      if spec.exchange_dtype == 'float32':
        # Each replica adds its n-th of the old row: all reads come before the
        # sum, so that XLA can write both arrays in place after it.
        terms[name] = old / num_replicas + weights * (new - old)
      else:
        # In a shorter type only changes can be sent.
        terms[name], olds[name] = weights * (new - old), old
    olds, encodings, terms = jax.lax.optimization_barrier(
      (olds, encodings, terms)
    )
    whole = {k: x for k, x in terms.items() if k not in olds}
    rows = jax.lax.psum(whole, mesh_lib.DATA)
    for name, old in olds.items():
      axis = wire.Axis(mesh_lib.DATA, tables[name].spec.exchange_dtype)
      rows[name] = old + wire.psum(terms[name], axis)
    # The same on all replicas; otherwise XLA copies them to read them twice.
    encodings = jax.lax.pmax(encodings, mesh_lib.DATA)
    for j, name in enumerate(sorted(tables)):
      # Without the replica, so that all round alike.
      own_key = rounding.key(key, number, i, j)
      args = starts[name], rows[name], encodings[name], own_key
      own[name] = tables[name].write_range(own[name], *args)
      met[name] = tables[name].write_range(met[name], *args)
    return own, met

  own, met = jax.lax.fori_loop(
    0, num_chunks, exchange, (state.tables, state.met)
  )
  params = state.params
  if jax.tree.leaves(params):
    params = jax.lax.pmean(params, mesh_lib.DATA)
  return state._replace(tables=own, met=met, params=params, clock=clock)


@dataclasses.dataclass(frozen=True)
class _Replicas:
  """The functions of the strategy."""

  trainable: base.Trainable
  policy: policies.Policy
  num: int  # replicas

  @property
  def meets(self) -> bool:
    return self.policy.every_steps > 0

  def init(self, key):
    """All replicas start from the same rows."""
    state, met, clock = self.trainable.init(key), {}, ()
    if self.meets:
      for name, table in self.trainable.tables.items():
        met[name] = table.without_slots(state.tables[name])
      clock = self.policy.init()
    state = jax.tree.map(
      lambda x: jnp.broadcast_to(x[None], (self.num, *x.shape)), state
    )
    return ReplicaState(*state, met, clock)

  def constants(self):
    return base.arrays_of(self.trainable.model), base.arrays_of(self.policy)

  def dispatch(self, state, constants, batch, schedule):
    """A dispatch of one replica; its arrays have a leading axis of one."""
    trainable = self.trainable.with_arrays(constants[0])
    policy = base.with_arrays(self.policy, constants[1])
    # All replicas run as many steps, so that they meet; some are padding.
    num_steps = trainable.steps.num_steps(batch)
    count = jax.lax.pmax(jnp.max(num_steps), mesh_lib.DATA)
    replica = jax.lax.axis_index(mesh_lib.DATA)
    every = policy.every_steps
    span = schedule.last_learning_rate - schedule.first_learning_rate
    devices = base.Devices(data_base.share(1, 1, replica, 0), replica)

    def body(i, carry):
      state, metrics = carry
      first = i * every
      stop = jnp.minimum(first + every, count)
      carry = state.trained(), metrics
      trained, metrics = base.training_steps(
        trainable, batch, schedule, devices, carry, first, stop, count
      )
      state = ReplicaState(*trained, state.met, state.clock)
      learning_rate = schedule.first_learning_rate + span * (stop / count)
      elapsed = policies.Elapsed(learning_rate, stop - first)
      state = meet(state, trainable.tables, policy, elapsed, schedule.key)
      return state, metrics

    own = jax.tree.map(lambda x: x[0], state.trained())
    carry = ReplicaState(*own, state.met, state.clock), trainable.no_metrics()
    num_meetings = (count + every - 1) // every
    state, metrics = jax.lax.fori_loop(0, num_meetings, body, carry)
    axes = [mesh_lib.DATA]
    metrics = base.over_devices(trainable, metrics, batch, count, axes)
    stacked = jax.tree.map(lambda x: x[None], state.trained())
    return ReplicaState(*stacked, state.met, state.clock), metrics

  def dispatch_apart(self, state, constants, batch, schedule):
    """A dispatch of a sub-model, which waits for no other."""
    trainable = self.trainable.with_arrays(constants[0])
    trained, schedule = jax.tree.map(
      lambda x: x[0], (state.trained(), schedule)
    )
    # The batch is one part of the data, which is all that this model sees.
    count = trainable.steps.num_steps(batch)[0]
    devices = base.Devices(data_base.WHOLE)
    carry = trained, trainable.no_metrics()
    trained, metrics = base.training_steps(
      trainable, batch, schedule, devices, carry, jnp.int32(0), count, count
    )
    metrics = base.over_devices(trainable, metrics, batch, count, ())
    result = ReplicaState(*trained, {}, ()), metrics
    return jax.tree.map(lambda x: x[None], result)

  def export_rows(self, state, name, start=0, stop=None):
    """What the replicas have learned since a row's last meeting adds up."""
    table = self.trainable.tables[name]
    own = table.export_rows(state.tables[name], start, stop, has_copies=True)
    if not self.meets:
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
    return blocks.RowBlock(blocks.encode(rows, met.encoded), slots)

  def import_rows(self, state, name, ids, rows, slots):
    """Into all replicas, as if they had just met."""
    table = self.trainable.tables[name]
    new = table.import_rows(
      state.tables[name], ids, rows, slots, has_copies=True
    )
    state = state._replace(tables=state.tables | {name: new})
    if self.meets:
      met = table.import_rows(state.met[name], ids, rows)
      state = state._replace(met=state.met | {name: met})
    return state


def replicas(
  trainable: base.Trainable,
  mesh: jax.sharding.Mesh,
  policy: policies.Policy,
) -> base.Strategy:
  """The strategy; each device has a replica with tables of its own.

  Under the policy `never` batches, schedules and metrics have a leading axis of
  models, and so have exported rows.
  """
  functions = _Replicas(trainable, policy, mesh.size)
  over = jax.sharding.PartitionSpec(mesh_lib.DATA)
  everywhere = jax.sharding.PartitionSpec()
  state_spec = ReplicaState(over, over, over, everywhere, everywhere)
  if functions.meets:
    step, own_spec = functions.dispatch, everywhere
    inner, loop_steps = policy.mean_chunks(), policy.every_steps
  else:
    step, own_spec = functions.dispatch_apart, over
    inner, loop_steps = 1, trainable.steps_per_loop
  step = jax.shard_map(
    step,
    mesh=mesh,
    in_specs=(state_spec, everywhere, over, own_spec),
    out_specs=(state_spec, own_spec),
    # The rows that leave a sum are the same everywhere; JAX cannot tell.
    check_vma=False,
  )
  named = functools.partial(jax.sharding.NamedSharding, mesh)
  return base.Strategy(
    functions.init,
    functions.constants,
    jax.jit(step, donate_argnums=0),
    functions.export_rows,
    functions.import_rows,
    *jax.tree.map(named, (state_spec, everywhere, over)),
    hlo.Loop(loop_steps, inner=inner, branch=1 / trainable.loss_every_steps),
  )
