"""Replicas: copies of the tables that train apart and meet now and then.

Every device trains its own copy of all tables on its own share of the data. A
policy (`strategies.policies`) says when they meet (`strategies.meetings`).
Dense parameters are averaged at every meeting; the state of their optimizer,
and slots that are neither summed nor averaged, stay with their replica.
"""

import dataclasses
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
  num_meetings: jax.Array  # int32, so far
  num_steps: jax.Array  # int32, since the last meeting

  def trained(self) -> base.TrainState:
    """What a step changes."""
    return base.TrainState(self.tables, self.params, self.optimizer)


def meet(
  state: ReplicaState,
  tables: Mapping[str, spec_lib.Table],
  policy: policies.Policy,
  elapsed: policies.Elapsed,
  key: jax.Array,
  is_due: jax.Array,
) -> ReplicaState:
  """Exchanges the rows that are due, on the device of one replica.

  `state` lacks the leading axis; `key` [2] uint32 is of the dispatch. Nothing
  is exchanged unless bool `is_due`.
  """
  due, clock = policy.due(state.clock)
  due = jnp.where(is_due, due, 0)
  meeting = meetings.Meeting(
    tables=tables,
    policy=policy,
    elapsed=elapsed,
    key=key,
    number=state.num_meetings,
  )
  both = state.tables, state.met
  own, met = jax.lax.fori_loop(0, due, meeting.exchange, both)
  params, clock = _where(
    is_due, (_mean(state.params), clock), (state.params, state.clock)
  )
  return state._replace(
    tables=own,
    met=met,
    params=params,
    clock=clock,
    num_meetings=state.num_meetings + is_due,
  )


def _where(condition, new, old):
  return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)


def _mean(params):
  """Of all replicas; XLA keeps sums of nothing."""
  has_params = bool(jax.tree.leaves(params))
  return jax.lax.pmean(params, _AXES) if has_params else params


def _of_all(state, change):
  """The state with the arrays changed that have a leading axis of replicas."""
  return state._replace(**jax.tree.map(change, state.trained())._asdict())


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
  return meetings.read(table, state, start=jnp.int32(0), num=table.spec.vocab)[
    0
  ]


def _combined(state, num, trainable, policy, learning_rate):
  """The state of one, as if the first `num` replicas in it had met."""
  first = jax.tree.map(lambda x: x[0], state.trained())
  tables = {}
  for name, table in trainable.tables.items():
    values, vocab = _values(table, state.met[name]), table.spec.vocab
    read = jax.vmap(functools.partial(_values, table))
    copies, args = read(state.tables[name]), (num, jnp.int32(0), vocab)
    args = *args, policies.Elapsed(jnp.float32(learning_rate))
    for k, g in meetings.weights(table, policy, *args).items():
      is_used = meetings.like(jnp.arange(len(copies[k])) < num, copies[k])
      changes = jnp.where(is_used, copies[k] - values[k][None], 0)
      values[k] += meetings.like(g, values[k]) * jnp.sum(changes, 0)
    rows = values.pop(meetings.ROWS)
    tables[name] = table.write_rows(
      first.tables[name], ids=jnp.arange(vocab), rows=rows, slots=values
    )
  params = jax.tree.map(lambda x: jnp.mean(x[:num], 0), state.params)
  return base.TrainState(tables, params, first.optimizer)


def alone(strategy: base.Strategy) -> Callable[[int, float], tuple]:
  """`from_copies` of a strategy without copies, from that of one replica."""

  def from_copies(num, learning_rate):
    like, convert = strategy.from_copies(num, learning_rate)
    first = functools.partial(jax.tree.map, lambda x: x[0])
    return like, lambda saved: first(convert(saved).trained())

  return from_copies


@dataclasses.dataclass(frozen=True)
class _Replica:
  """What one replica runs; arrays of all have a leading axis of one."""

  trainable: base.Trainable
  policy: policies.Policy
  num_sharing: int  # replicas that share parts of the data

  def count(self, batch):
    """Steps of all replicas, so that they meet; some are padding."""
    num_steps = self.trainable.steps.num_steps(batch)
    return jax.lax.pmax(jnp.max(num_steps), mesh_lib.DATA)

  def _steps(self, carry, constants, batch, schedule, first, stop, count):
    """Those between two meetings."""
    given = self.trainable.with_arrays(constants[0])
    num_parts = len(given.steps.num_steps(batch))
    before = num_parts * jax.lax.axis_index(mesh_lib.DATA)
    device = jax.lax.axis_index(mesh_lib.TABLE)
    share = data_base.share(
      num_parts, num_devices=self.num_sharing, before=before, device=device
    )
    devices = base.Devices(share, jax.lax.axis_index(_AXES))
    return base.training_steps(
      given,
      batch,
      schedule,
      devices=devices,
      carry=carry,
      first=first,
      stop=stop,
      count=count,
    )

  def _meeting(self, constants, schedule, stop, count):
    """The tables, policy, time passed and key of one after `stop` steps."""
    span = schedule.last_learning_rate - schedule.first_learning_rate
    rate = schedule.first_learning_rate + span * (stop / count)
    elapsed = policies.Elapsed(rate)
    rule = base.with_arrays(self.policy, constants[1])
    return self.trainable.tables, rule, elapsed, schedule.key

  def _over_devices(self, metrics, batch, count):
    axes = _AXES if self.num_sharing > 1 else _AXES[:1]
    return base.over_devices(
      self.trainable, metrics, batch, num_steps=count, axes=axes
    )

  def dispatch(self, state, constants, batch, schedule):
    """All steps, and the meetings among them."""
    count, every = self.count(batch), self.policy.every_steps
    before = state.num_steps

    def body(i, carry):
      state, metrics = carry
      meeting = (i + 1) * every - before
      numbers = jnp.maximum(meeting - every, 0), jnp.minimum(meeting, count)
      carry = state.trained(), metrics
      changed, metrics = self._steps(
        carry, constants, batch, schedule, *numbers, count
      )
      state = state._replace(**changed._asdict())
      args = self._meeting(constants, schedule, stop=numbers[1], count=count)
      return meet(state, *args, meeting <= count), metrics

    carry = _of_all(state, lambda x: x[0]), self.trainable.no_metrics()
    num = (before + count + every - 1) // every
    state, metrics = jax.lax.fori_loop(0, num, body, carry)
    state = _of_all(state, lambda x: x[None])
    state = state._replace(num_steps=(before + count) % every)
    return state, self._over_devices(metrics, batch, count)


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
    state = ReplicaState(*state, met, policy.init(), jnp.int32(0), jnp.int32(0))
    shape = (num_replicas,)
    return _of_all(state, lambda x: jnp.broadcast_to(x[None], shape + x.shape))

  def init(key):
    return copied(trainable.init(key))

  def export_rows(state, name, start=0, stop=None):
    """As a last meeting of all rows, at a learning rate of zero."""
    table = trainable.tables[name]
    own = table.export_rows(state.tables[name], start, stop, has_copies=True)
    met = table.export_rows(state.met[name], start, stop)
    old = met.rows
    weights = policy.weights(
      name, start, num=len(old), elapsed=policies.Elapsed(jnp.float32(0))
    )
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
    return state._replace(
      tables=state.tables | {name: new}, met=state.met | {name: met}
    )

  def from_copies(num, learning_rate):
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
      if num:
        saved = _combined(
          saved, num, trainable, policy=old, learning_rate=learning_rate
        )
      return copied(saved)

    if num:
      like = _of_all(like, stacked)
    else:
      like = jax.tree.map(alone, like.trained())
    return like, jax.jit(convert, out_shardings=shardings)

  over = jax.sharding.PartitionSpec(_AXES if num_sharing > 1 else _AXES[0])
  everywhere = jax.sharding.PartitionSpec()
  state_spec = ReplicaState(over, over, over, *[everywhere] * 4)
  of_parts = jax.sharding.PartitionSpec(mesh_lib.DATA)

  named = functools.partial(jax.sharding.NamedSharding, mesh)
  shardings = jax.tree.map(named, state_spec)
  arrays = base.arrays_of(trainable.model), base.arrays_of(policy)
  more = {}
  if base.chooses_layouts(mesh):
    shapes = jax.eval_shape(init, jax.random.key(0))
    shardings = jax.tree.broadcast(shardings, shapes)

    def by_rows(shapes, shardings, rows):
      return {
        k: base.by_rows(x, shardings[k], rows(x)) for k, x in shapes.items()
      }

    for part in ('tables', 'met'):
      placed = by_rows(
        getattr(shapes, part), getattr(shardings, part), lambda x: x.vectors
      )
      shardings = shardings._replace(**{part: placed})
    more = {'out_shardings': (shardings, None)}
  new = jax.jit(init, out_shardings=shardings)

  def constants():
    return jax.device_put(arrays, named(everywhere))

  replica = _Replica(trainable, policy, num_sharing)
  # The rows that leave a sum are the same everywhere; JAX cannot tell.
  step = jax.shard_map(
    replica.dispatch,
    mesh=mesh,
    in_specs=(state_spec, everywhere, of_parts, everywhere),
    out_specs=(state_spec, everywhere),
    check_vma=False,
  )
  step = jax.jit(step, donate_argnums=0, **more)
  return base.Strategy(
    init=new,
    constants=constants,
    step=step,
    export_rows=export_rows,
    import_rows=import_rows,
    batch_sharding=named(of_parts),
    loop=hlo.Loop(
      policy.every_steps,
      inner=policy.mean_chunks(),
      branch=1 / trainable.loss_every_steps,
    ),
    policy=policy,
    num_copies=num_replicas,
    from_copies=from_copies,
  )
