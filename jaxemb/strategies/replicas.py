"""Replicas: every device trains tables of its own, exchanging rows at times.

Each replica trains on a fraction of the data. A policy
(`strategies.policies`) says when they exchange which rows
(`strategies.synchronisation`). Dense parameters are averaged whenever they do;
the state of their optimizer, and a row optimizer's arrays that are not in its
`state_names`, stay with their replica.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.data import base as data_base
from jaxemb.ops import sampling
from jaxemb.runtime import hlo
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.strategies import base, policies, synchronisation
from jaxemb.tables import spec as spec_lib

_AXES = synchronisation.AXES
_EVERYWHERE = jax.sharding.PartitionSpec()
_OVER_DATA = jax.sharding.PartitionSpec(mesh_lib.DATA)
# Exported: each device of a CPU has those of all replicas on the way.
_NUMBERS_AT_ONCE = 1 << 22


class ReplicaState(NamedTuple):
  """The state of all replicas."""

  tables: dict[str, spec_lib.TableState]  # leaves [num_replicas, ...]
  params: Any  # leaves [num_replicas, ...]
  optimizer: Any  # leaves [num_replicas, ...]
  # Rows and their optimizer state after their last synchronisation, which all
  # replicas have in common.
  synced: dict[str, spec_lib.TableState]
  num_syncs: jax.Array  # int32, so far
  num_steps: jax.Array  # int32, since the last synchronisation

  def trained(self) -> base.TrainState:
    """Returns what a step changes."""
    return base.TrainState(self.tables, self.params, self.optimizer)

  def map_replicas(self, change: Callable[[Any], Any]) -> 'ReplicaState':
    """Changes the arrays that have a leading axis of replicas."""
    return self._replace(**jax.tree.map(change, self.trained())._asdict())


def synchronise(
  state: ReplicaState,
  tables: Mapping[str, spec_lib.Table],
  policy: policies.Policy,
  learning_rate: jax.Array,
  key: jax.Array,
  is_due: jax.Array,
) -> ReplicaState:
  """Exchanges the rows that are due, on the device of one replica.

  `state` lacks the leading axis; `key` [2] uint32 is of the dispatch. Nothing
  is exchanged unless bool `is_due`.
  """
  exchange = synchronisation.Synchronisation(
    tables=tables,
    policy=policy,
    learning_rate=learning_rate,
    key=key,
    number=state.num_syncs,
  ).exchange
  due = jnp.where(is_due, policy.due(state.num_syncs + 1), 0)
  new_tables, synced = jax.lax.fori_loop(
    0, due, exchange, (state.tables, state.synced)
  )
  params = state.params
  if jax.tree.leaves(params):  # XLA keeps sums of nothing
    params = jax.tree.map(
      lambda mean, old: jnp.where(is_due, mean, old),
      jax.lax.pmean(params, _AXES),
      params,
    )
  return state._replace(
    tables=new_tables,
    synced=synced,
    params=params,
    num_syncs=state.num_syncs + is_due,
  )


@dataclasses.dataclass(frozen=True)
class _Replicas:
  """All replicas."""

  trainable: base.Trainable
  mesh: jax.sharding.Mesh
  make_policy: Callable[[int], policies.Policy]  # of a number of replicas

  @functools.cached_property
  def policy(self) -> policies.Policy:
    """The policy of as many replicas as there are devices."""
    return self.make_policy(self.mesh.size)

  @property
  def axes(self) -> tuple[str, ...]:
    """Axes of the mesh, without that of tables if it has one device."""
    return _AXES if self.mesh.shape[mesh_lib.TABLE] > 1 else _AXES[:1]

  @functools.cached_property
  def spec(self) -> ReplicaState:
    """`PartitionSpec`s of a state."""
    # In place of arrays.
    over: Any = jax.sharding.PartitionSpec(self.axes)
    everywhere: Any = _EVERYWHERE
    return ReplicaState(
      tables=over,
      params=over,
      optimizer=over,
      synced=everywhere,
      num_syncs=everywhere,
      num_steps=everywhere,
    )

  def named(self, spec: Any = _EVERYWHERE) -> Any:
    """Returns shardings for a tree of `PartitionSpec`s."""
    named = functools.partial(jax.sharding.NamedSharding, self.mesh)
    return jax.tree.map(named, spec)

  @functools.cached_property
  def shardings(self) -> ReplicaState:
    """How the arrays of a state lie on the devices."""
    return base.state_shardings(
      self.named(self.spec), self._init, self.mesh, fields=('tables', 'synced')
    )

  def _init(self, key):
    return self._replicate(self.trainable.init(key))

  @functools.cached_property
  def init(self) -> Any:
    """The program that makes new replicas, all the same, of a key."""
    return jax.jit(self._init, out_shardings=self.shardings)

  def _replicate(self, state):
    """Returns synchronised replicas of a `TrainState`."""
    tables = self.trainable.tables
    state = ReplicaState(
      *state,
      synced={k: _synced(tables[k], x) for k, x in state.tables.items()},
      num_syncs=jnp.int32(0),
      num_steps=jnp.int32(0),
    )
    num = self.mesh.size
    return state.map_replicas(
      lambda x: jnp.broadcast_to(x[None], (num, *x.shape))
    )

  def step(self) -> Any:
    """Returns the compiled dispatch."""
    # `synced` is equal in all replicas. With a short `exchange_dtype` it comes
    # from an `all_gather` (`ops.wire.psum`), whose result the check (vma) takes
    # as different on each device; it would refuse the program.
    step = jax.shard_map(
      self._dispatch,
      mesh=self.mesh,
      in_specs=(self.spec, _EVERYWHERE, _OVER_DATA, _EVERYWHERE),
      out_specs=(self.spec, _EVERYWHERE),
      check_vma=False,
    )
    return base.jit_step(step, self.shardings, self.mesh)

  def _dispatch(self, state, constants, batch, schedule):
    """Takes all steps of a replica, and synchronises among them."""
    trainable = self.trainable.with_arrays(constants[0])
    policy = base.with_arrays(self.policy, constants[1])
    batch = trainable.prepare(batch)
    num_steps = trainable.steps.num_steps(batch)
    # Equal for all replicas; some steps are padding.
    count = jax.lax.pmax(jnp.max(num_steps), mesh_lib.DATA)
    every, before = policy.every_steps, state.num_steps
    share = data_base.share(
      len(num_steps),
      num_devices=self.mesh.shape[mesh_lib.TABLE],
      before=len(num_steps) * jax.lax.axis_index(mesh_lib.DATA),
      device=jax.lax.axis_index(mesh_lib.TABLE),
    )
    span = schedule.last_learning_rate - schedule.first_learning_rate

    def body(i, carry):
      state, metrics = carry
      stop = (i + 1) * every - before
      trained, metrics = base.training_steps(
        trainable,
        batch,
        schedule,
        devices=base.Devices(share, jax.lax.axis_index(_AXES)),
        carry=(state.trained(), metrics),
        first=jnp.maximum(stop - every, 0),
        stop=jnp.minimum(stop, count),
        count=count,
      )
      state = synchronise(
        state._replace(**trained._asdict()),
        tables=trainable.tables,
        policy=policy,
        learning_rate=schedule.first_learning_rate
        + span * (jnp.minimum(stop, count) / count),
        key=schedule.key,
        is_due=stop <= count,
      )
      return state, metrics

    carry = state.map_replicas(lambda x: x[0]), trainable.no_metrics()
    num = (before + count + every - 1) // every
    state, metrics = jax.lax.fori_loop(0, num, body, carry)
    state = state.map_replicas(lambda x: x[None])
    state = state._replace(num_steps=(before + count) % every)
    return state, base.over_devices(
      trainable,
      metrics,
      batch,
      num_steps=count,
      axes=self.axes,
    )

  def constants(self) -> Any:
    """Puts the arrays of the model and of the policy on the devices."""
    arrays = self.trainable.arrays(), base.arrays_of(self.policy)
    return jax.device_put(arrays, self.named())

  def export_rows(
    self,
    state: ReplicaState,
    name: str,
    start: int = 0,
    stop: int | None = None,
  ) -> spec_lib.RowBlock:
    """Returns rows as after synchronising all, at a learning rate of zero."""
    spec = self.trainable.tables[name].spec
    stop = spec.vocab if stop is None else stop
    weights = np.asarray(
      self.policy.weights(
        name, start, num=stop - start, learning_rate=jnp.float32(0)
      )
    )

    def read(first, num):
      rows, opt_state, encoded = self._combined(
        state, name, first, weights=weights[first - start :][:num]
      )
      return spec_lib.RowBlock(spec_lib.encode_rows(rows, encoded), opt_state)

    # A power of two, of which `encode_rows` has nothing to pad.
    size = max(1, _NUMBERS_AT_ONCE // (self.mesh.size * spec.dim))
    size = 1 << (size.bit_length() - 1)
    return spec_lib.in_pieces(read, start, stop, size=size)

  def _combined(self, state, name, start, weights, num=None):
    """Returns rows and optimizer state after synchronising `num` replicas.

    They are those of `weights` [rows] from row `start`. Also returns the
    encoded rows after their last synchronisation.
    """
    table, stop = self.trainable.tables[name], start + len(weights)
    of_replicas = table.export_rows(
      state.tables[name], start, stop, has_replicas=True
    )
    synced = table.export_rows(state.synced[name], start, stop)
    old = synced.rows
    weights, rows = np.asarray(weights)[:, None], np.array(old)
    for replica in of_replicas.rows[:num]:
      rows += weights * (replica - old)
    opt_state = {k: x[:num].mean(0) for k, x in of_replicas.opt_state.items()}
    return rows, opt_state, synced.encoded

  def import_rows(
    self,
    state: ReplicaState,
    name: str,
    ids: np.ndarray,
    rows: np.ndarray,
    opt_state: Mapping[str, np.ndarray],
  ) -> ReplicaState:
    """Replaces rows in all replicas, as if they were just synchronised."""
    table = self.trainable.tables[name]
    new = table.import_rows(
      state.tables[name], ids, rows, opt_state, has_replicas=True
    )
    synced = table.import_rows(state.synced[name], ids, rows, opt_state)
    return state._replace(
      tables=state.tables | {name: new}, synced=state.synced | {name: synced}
    )

  def from_replicas(
    self, num: int, learning_rate: float
  ) -> tuple[Any, Callable[[Any], ReplicaState]]:
    """Returns the shapes of `num` replicas' state, and what converts it.

    `num` 0 is a state without replicas. Every device gets as many replicas;
    padding replicas are ignored.
    """
    per_device = -(-num // self.mesh.size)

    def shape_of(x):
      shape = x.shape[1:]
      if not num:
        return jax.ShapeDtypeStruct(shape, x.dtype, sharding=self.named())
      shape = per_device * self.mesh.size, *shape
      return jax.ShapeDtypeStruct(shape, x.dtype, sharding=x.sharding)

    def start(saved):
      if not num:
        return self._replicate(saved)
      params = jax.tree.map(lambda x: jnp.mean(x[:num], 0), saved.params)
      first = jax.tree.map(lambda x: x[0], saved.trained())
      return self._replicate(first._replace(params=params))

    def convert(saved):
      state = jax.jit(start, out_shardings=self.shardings)(saved)
      for name, table in self.trainable.tables.items() if num else ():
        policy, vocab = self.make_policy(num), table.spec.vocab
        # The host may not have room for all.
        size = max(1, spec_lib.NUMBERS_AT_ONCE // (num * table.spec.dim))
        for first in range(0, vocab, size):
          ids = np.arange(first, min(first + size, vocab))
          weights = policy.weights(
            name, first, num=len(ids), learning_rate=jnp.float32(learning_rate)
          )
          rows, opt_state, _ = self._combined(
            saved, name, first, weights=weights, num=num
          )
          state = self.import_rows(
            state, name, ids, rows=rows, opt_state=opt_state
          )
      return state

    shapes = self.init.eval_shape(sampling.key_shape())
    if num:
      return shapes.map_replicas(shape_of), convert
    return jax.tree.map(shape_of, shapes.trained()), convert


def _synced(table, state):
  """Returns what replicas have in common of a table, from its state."""
  opt_state = ()
  if table.state_names:
    others = set(state.opt_state._fields) - set(table.state_names)
    opt_state = state.opt_state._replace(**dict.fromkeys(others, ()))
  return state._replace(opt_state=opt_state, scratch=())


def replicas(
  trainable: base.Trainable,
  mesh: jax.sharding.Mesh,
  make_policy: Callable[[int], policies.Policy],
) -> base.Strategy:
  """Returns the strategy: every device has a replica.

  `make_policy` returns the policy of a number of replicas.
  """
  all_replicas = _Replicas(trainable, mesh, make_policy)
  return base.Strategy(
    init=all_replicas.init,
    constants=all_replicas.constants,
    step=all_replicas.step(),
    export_rows=all_replicas.export_rows,
    import_rows=all_replicas.import_rows,
    batch_sharding=all_replicas.named(_OVER_DATA),
    loop=hlo.Loop(
      all_replicas.policy.every_steps,
      inner=policies.mean_chunks(all_replicas.policy),
      branch=1 / trainable.loss_every_steps,
    ),
    policy=all_replicas.policy,
    num_replicas=mesh.size,
    from_replicas=all_replicas.from_replicas,
  )


def single(strategy: base.Strategy) -> Callable[[int, float], tuple]:
  """Returns `from_replicas` of a strategy without any, from that of one."""

  def from_replicas(num, learning_rate):
    shapes, convert = strategy.from_replicas(num, learning_rate)
    first = functools.partial(jax.tree.map, lambda x: x[0])
    return shapes, lambda saved: first(convert(saved).trained())

  return from_replicas
