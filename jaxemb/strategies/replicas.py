"""Replicas: copies of the tables that train apart and meet now and then.

Every device of the data axis trains its own copy of all tables on its own part
of the data. With x_i the row of replica i and b the row at its last meeting,
all replicas go on from

  b + g * sum_i (x_i - b)

A policy (`strategies.policies`) chooses when, which rows, and g. Dense
parameters are averaged at every meeting; optimizer state stays with its
replica.
"""

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
from jaxemb.tables import codecs
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


def meet(
  state: ReplicaState,
  tables: Mapping[str, spec_lib.Table],
  policy: policies.Policy,
  elapsed: policies.Elapsed,
  key: jax.Array,
) -> ReplicaState:
  """Exchanges the rows that are due, on the device of one replica.

  `state` lacks the leading axis; `key` [2] uint32 is of the dispatch.
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
      # The last chunk overlaps the one before, whose rows do not change again.
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


def replicas(
  trainable: base.Trainable,
  mesh: jax.sharding.Mesh,
  policy: policies.Policy,
) -> base.Strategy:
  """The strategy; each device has a replica."""

  def init(key):
    state = trainable.init(key)
    met = {
      name: table._replace(slots=(), scratch=())
      for name, table in state.tables.items()
    }
    state = jax.tree.map(
      lambda x: jnp.broadcast_to(x[None], (mesh.size, *x.shape)), state
    )
    return ReplicaState(*state, met, policy.init())

  def dispatch(state, constants, batch, schedule):
    """Of one replica, whose arrays have a leading axis of one."""
    given = trainable.with_arrays(constants[0])
    rule = base.with_arrays(policy, constants[1])
    # All replicas run as many steps, so that they meet; some are padding.
    num_steps = given.steps.num_steps(batch)
    count = jax.lax.pmax(jnp.max(num_steps), mesh_lib.DATA)
    replica = jax.lax.axis_index(mesh_lib.DATA)
    every = rule.every_steps
    span = schedule.last_learning_rate - schedule.first_learning_rate
    devices = base.Devices(data_base.share(1, 1, replica, 0), replica)

    def body(i, carry):
      state, metrics = carry
      first = i * every
      stop = jnp.minimum(first + every, count)
      carry = state.trained(), metrics
      trained, metrics = base.training_steps(
        given, batch, schedule, devices, carry, first, stop, count
      )
      state = ReplicaState(*trained, state.met, state.clock)
      learning_rate = schedule.first_learning_rate + span * (stop / count)
      elapsed = policies.Elapsed(learning_rate, stop - first)
      state = meet(state, given.tables, rule, elapsed, schedule.key)
      return state, metrics

    own = jax.tree.map(lambda x: x[0], state.trained())
    carry = ReplicaState(*own, state.met, state.clock), given.no_metrics()
    num_meetings = (count + every - 1) // every
    state, metrics = jax.lax.fori_loop(0, num_meetings, body, carry)
    axes = (mesh_lib.DATA,)
    metrics = base.over_devices(given, metrics, batch, count, axes)
    stacked = jax.tree.map(lambda x: x[None], state.trained())
    return ReplicaState(*stacked, state.met, state.clock), metrics

  def export_rows(state, name, start=0, stop=None):
    """As a last meeting of all rows, at a learning rate of zero."""
    table = trainable.tables[name]
    own = table.export_rows(state.tables[name], start, stop, has_copies=True)
    met = table.export_rows(state.met[name], start, stop)
    old = met.rows
    elapsed = policies.Elapsed(jnp.float32(0), jnp.int32(policy.every_steps))
    weights = policy.weights(name, start, len(old), elapsed)
    rows = np.array(old)
    for copy in own.rows:
      rows += np.asarray(weights)[:, None] * (copy - old)
    slots = {
      slot: getattr(x, table.slot_reductions[slot])(0)
      for slot, x in own.slots.items()
    }
    return spec_lib.RowBlock(spec_lib.encode_rows(rows, met.encoded), slots)

  def import_rows(state, name, ids, rows, slots):
    """Into all replicas, as if they had just met."""
    table = trainable.tables[name]
    new = table.import_rows(
      state.tables[name], ids, rows, slots, has_copies=True
    )
    met = table.import_rows(state.met[name], ids, rows)
    return state._replace(
      tables=state.tables | {name: new}, met=state.met | {name: met}
    )

  over = jax.sharding.PartitionSpec(mesh_lib.DATA)
  everywhere = jax.sharding.PartitionSpec()
  state_spec = ReplicaState(over, over, over, everywhere, everywhere)
  step = jax.shard_map(
    dispatch,
    mesh=mesh,
    in_specs=(state_spec, everywhere, over, everywhere),
    out_specs=(state_spec, everywhere),
    # The rows that leave a sum are the same everywhere; JAX cannot tell.
    check_vma=False,
  )
  named = functools.partial(jax.sharding.NamedSharding, mesh)
  constants = base.arrays_of(trainable.model), base.arrays_of(policy)
  return base.Strategy(
    jax.jit(init, out_shardings=jax.tree.map(named, state_spec)),
    lambda: jax.device_put(constants, named(everywhere)),
    jax.jit(step, donate_argnums=0),
    export_rows,
    import_rows,
    named(over),
    hlo.Loop(
      policy.every_steps,
      inner=policy.mean_chunks(),
      branch=1 / trainable.loss_every_steps,
    ),
    policy,
  )
