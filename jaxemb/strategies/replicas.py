"""Replicas: copies of the tables that train apart and meet now and then.

Every device trains its own copy of all tables on its own share of the data. A
policy (`strategies.policies`) says when they meet (`strategies.meetings`).
Dense parameters are averaged at every meeting; the state of their optimizer,
and slots that are neither summed nor averaged, stay with their replica.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import base as data_base
from jaxemb.runtime import hlo
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.strategies import base, meetings, policies
from jaxemb.tables import spec as spec_lib

_AXES = meetings.AXES


class ReplicaState(NamedTuple):
  """The state of all replicas, whose arrays have a leading axis over them."""

  tables: dict[str, spec_lib.TableState]  # leaves [n, ...]
  params: Any  # leaves [n, ...]
  optimizer: Any  # leaves [n, ...]
  # Rows and their slots at their last meeting, once.
  met: dict[str, spec_lib.TableState]
  clock: Any  # of the policy
  # What is on its way, leaves [n, ...], if the policy is delayed.
  handover: meetings.Handover | tuple[()] = ()

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
  due, clock = policy.due(state.clock)
  number, loop = jax.tree.leaves(clock)[0], jax.lax.fori_loop
  meeting = meetings.Meeting(tables, policy, elapsed, key, number)
  params, own, met, sent = state.params, state.tables, state.met, state.handover
  has_params = bool(jax.tree.leaves(params))
  if not sent:
    own, met = loop(0, due, meeting.exchange, (own, met))
    if has_params:
      params = jax.lax.pmean(params, _AXES)
    return state._replace(tables=own, met=met, params=params, clock=clock)
  # What was handed over at the meeting before: no step since has waited for it.
  arriving = meeting._replace(elapsed=sent.elapsed)
  num, values = sent.num_chunks, sent.values
  met = loop(0, num, lambda i, met: arriving.add_up(i, met, values), met)
  own = loop(0, num, lambda i, own: arriving.catch_up(i, own, met, values), own)
  own, values = loop(0, due, meeting.hand_over, (own, values))
  if has_params:
    mean = jax.lax.pmean(sent.params, _AXES)
    params = jax.tree.map(lambda x, y, z: x + y - z, params, mean, sent.params)
  handover = meetings.Handover(values, params, due, elapsed)
  return ReplicaState(own, params, state.optimizer, met, clock, handover)


def _of_all(state, change):
  """The state with the arrays changed that have a leading axis of replicas."""
  trained = jax.tree.map(change, state.trained())
  handover = jax.tree.map(change, state.handover)
  return state._replace(**trained._asdict(), handover=handover)


def _met(table, state):
  """What of a table replicas have in common, from its state."""
  slots, names = state.slots, meetings.exchanged(table)
  if names:
    others = dict.fromkeys(set(slots._fields) - set(names), ())
  return state._replace(
    slots=slots._replace(**others) if names else (), scratch=()
  )


def _values(table, state):
  """All rows and slots that are exchanged."""
  return meetings.read(table, state, jnp.int32(0), table.spec.vocab)[0]


def _at_rest(policy):
  """For the weights of rows that are not trained any further."""
  return policies.Elapsed(jnp.float32(0), jnp.int32(policy.every_steps))


def _combined(state, num, trainable, policy):
  """The state of one, as if the first `num` replicas in it had met."""
  first = jax.tree.map(lambda x: x[0], state.trained())
  tables = {}
  for name, table in trainable.tables.items():
    values, vocab = _values(table, state.met[name]), table.spec.vocab
    read = jax.vmap(functools.partial(_values, table))
    copies, args = read(state.tables[name]), (num, jnp.int32(0), vocab)
    args = *args, _at_rest(policy)
    for k, g in meetings.weights(table, policy, *args).items():
      is_used = meetings.like(jnp.arange(len(copies[k])) < num, copies[k])
      changes = jnp.where(is_used, copies[k] - values[k][None], 0)
      values[k] += meetings.like(g, values[k]) * jnp.sum(changes, 0)
    rows = values.pop(meetings.ROWS)
    args = jnp.arange(vocab), rows, values
    tables[name] = table.write_rows(first.tables[name], *args)
  params = jax.tree.map(lambda x: jnp.mean(x[:num], 0), state.params)
  return base.TrainState(tables, params, first.optimizer)


def replicas(
  trainable: base.Trainable,
  mesh: jax.sharding.Mesh,
  make_policy: Callable[[int], policies.Policy],
) -> base.Strategy:
  """The strategy; each device has a replica.

  `make_policy` returns the policy of a number of replicas.
  """
  num_replicas, num_sharing = mesh.size, mesh.shape[mesh_lib.TABLE]
  policy = make_policy(num_replicas)

  def copied(state):
    """All replicas, which have just met, from the state of one."""
    met = {k: _met(trainable.tables[k], x) for k, x in state.tables.items()}
    handover = ()
    if isinstance(policy, policies.Delayed):
      values = {k: _values(trainable.tables[k], x) for k, x in met.items()}
      args = state.params, jnp.int32(0), _at_rest(policy)
      handover = meetings.Handover(values, *args)
    state = ReplicaState(*state, met, policy.init(), handover)
    shape = (num_replicas,)
    return _of_all(state, lambda x: jnp.broadcast_to(x[None], shape + x.shape))

  def init(key):
    return copied(trainable.init(key))

  def dispatch(state, constants, batch, schedule):
    """Of one replica, whose arrays have a leading axis of one."""
    given = trainable.with_arrays(constants[0])
    rule = base.with_arrays(policy, constants[1])
    # All replicas run as many steps, so that they meet; some are padding.
    num_steps = given.steps.num_steps(batch)
    count = jax.lax.pmax(jnp.max(num_steps), mesh_lib.DATA)
    replica, every = jax.lax.axis_index(_AXES), rule.every_steps
    before = len(num_steps) * jax.lax.axis_index(mesh_lib.DATA)
    share = data_base.share(
      len(num_steps), num_sharing, before, jax.lax.axis_index(mesh_lib.TABLE)
    )
    span = schedule.last_learning_rate - schedule.first_learning_rate
    devices = base.Devices(share, replica)

    def body(i, carry):
      state, metrics = carry
      first = i * every
      stop = jnp.minimum(first + every, count)
      trained, metrics = base.training_steps(
        given,
        batch,
        schedule,
        devices,
        (state.trained(), metrics),
        first,
        stop,
        count,
      )
      learning_rate = schedule.first_learning_rate + span * (stop / count)
      elapsed = policies.Elapsed(learning_rate, stop - first)
      state = state._replace(**trained._asdict())
      state = meet(state, given.tables, rule, elapsed, schedule.key)
      return state, metrics

    state = _of_all(state, lambda x: x[0])
    num_meetings = (count + every - 1) // every
    state, metrics = jax.lax.fori_loop(
      0, num_meetings, body, (state, given.no_metrics())
    )
    axes = _AXES if num_sharing > 1 else _AXES[:1]
    metrics = base.over_devices(given, metrics, batch, count, axes)
    return _of_all(state, lambda x: x[None]), metrics

  def export_rows(state, name, start=0, stop=None):
    """As a last meeting of all rows, at a learning rate of zero."""
    table = trainable.tables[name]
    own = table.export_rows(state.tables[name], start, stop, has_copies=True)
    met = table.export_rows(state.met[name], start, stop)
    old = met.rows
    weights = policy.weights(name, start, len(old), _at_rest(policy))
    weights = np.asarray(weights)
    rows = np.array(old)
    for copy in own.rows:
      rows += weights[:, None] * (copy - old)
    slots = {}
    for k, copies in own.slots.items():
      reduction, slots[k] = table.slot_reductions[k], copies.mean(0)
      if reduction == 'sum':
        slots[k] = met.slots[k] + weights * (copies - met.slots[k]).sum(0)
    return spec_lib.RowBlock(spec_lib.encode_rows(rows, met.encoded), slots)

  def import_rows(state, name, ids, rows, slots):
    """Into all replicas, as if they had just met."""
    table = trainable.tables[name]
    new = table.import_rows(
      state.tables[name], ids, rows, slots, has_copies=True
    )
    exchanged = meetings.exchanged(table)
    slots = {k: x for k, x in slots.items() if k in exchanged}
    met = table.import_rows(state.met[name], ids, rows, slots)
    state = state._replace(
      tables=state.tables | {name: new}, met=state.met | {name: met}
    )
    if not (sent := state.handover):
      return state

    @functools.partial(jax.jit, donate_argnums=0)
    def put(values, met):
      new = _values(table, met)
      return jax.tree.map(
        lambda x, y: x.at[:, ids].set(y[ids][None]), values, new
      )

    values = sent.values | {name: put(sent.values[name], met)}
    return state._replace(handover=sent._replace(values=values))

  def from_copies(num):
    """The shapes of `num` replicas, or of one table (0), and how to go on.

    Each device has as many of them; what it has too many of is not used.
    """
    each = -(-num // num_replicas)

    def stacked(x):
      shape = each * num_replicas, *x.shape[1:]
      return jax.ShapeDtypeStruct(shape, x.dtype, sharding=x.sharding)

    def alone(x):
      shape, sharding = x.shape[1:], named(everywhere)
      return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)

    like, old = new.eval_shape(jax.random.key(0)), make_policy(max(num, 1))

    def convert(saved):
      return copied(_combined(saved, num, trainable, old) if num else saved)

    if num:
      like = _of_all(like, stacked)
    else:
      like = jax.tree.map(alone, like.trained())
    return like, jax.jit(convert, out_shardings=shardings)

  over = jax.sharding.PartitionSpec(_AXES if num_sharing > 1 else _AXES[0])
  everywhere = jax.sharding.PartitionSpec()
  state_spec = ReplicaState(over, over, over, everywhere, everywhere, over)
  step = jax.shard_map(
    dispatch,
    mesh=mesh,
    in_specs=(
      state_spec,
      everywhere,
      jax.sharding.PartitionSpec(mesh_lib.DATA),
      everywhere,
    ),
    out_specs=(state_spec, everywhere),
    # The rows that leave a sum are the same everywhere; JAX cannot tell.
    check_vma=False,
  )
  named = functools.partial(jax.sharding.NamedSharding, mesh)
  shardings = jax.tree.map(named, state_spec)
  constants = base.arrays_of(trainable.model), base.arrays_of(policy)
  new = jax.jit(init, out_shardings=shardings)

  return base.Strategy(
    new,
    lambda: jax.device_put(constants, named(everywhere)),
    jax.jit(step, donate_argnums=0),
    export_rows,
    import_rows,
    named(jax.sharding.PartitionSpec(mesh_lib.DATA)),
    hlo.Loop(
      policy.every_steps,
      inner=policy.mean_chunks(),
      branch=1 / trainable.loss_every_steps,
    ),
    policy,
    num_replicas,
    from_copies,
  )
