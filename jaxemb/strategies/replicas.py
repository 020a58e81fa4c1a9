"""Replicas with bounded staleness: each trains alone, and rows meet in time.

Every device of the data axis holds all tables and trains on its own part of the
corpus, without waiting. A row is exchanged after so many steps that each
replica looked it up about `exchange_lookups` times: frequent rows soon, rare
rows hardly ever. With x_i the row of replica i and b its value when it was last
exchanged, all replicas then have

  b + g * sum_i (x_i - b),    g = (1 - q^n) / (n (1 - q)),    q = exp(-m / tau)

for n replicas, m look-ups since, and tau look-ups after which a row has
forgotten its start. In a quadratic bowl a row goes 1 - q of its way to the
bottom alone and 1 - q^n where its n replicas' updates follow one another, so
that g makes of n parallel updates what n serial ones would have given: their
sum where a row was hardly touched, their mean where it was touched often. This
is local SGD (Stich 2019) with a period for each row, as in HET (Miao et al.
2022), but on a timetable that follows from the words' frequencies: rows are in
falling order of frequency (`strategies.timetables`).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import base as model_base
from jaxemb.ops import rounding, wire
from jaxemb.runtime import hlo
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.strategies import base, timetables
from jaxemb.tables import blocks
from jaxemb.tables import spec as spec_lib


class ReplicaState(NamedTuple):
  """The state of all replicas; `tables` has a leading axis over them."""

  tables: dict[str, spec_lib.TableState]  # leaves [n, ...]
  exchanged: dict[str, Any]  # rows of each table when last exchanged
  num_exchanges: jax.Array  # int32


class Constants(NamedTuple):
  """What every step reads and none changes."""

  model: Any
  lookups: dict[str, jax.Array]  # [vocab] float32, m of each table's rows


def gain(lookups: jax.Array, num_replicas: int) -> jax.Array:
  """g, the part of the replicas' summed updates that a row keeps.

  Args:
    lookups: [...] float32, m / tau.
    num_replicas: n.

  Returns:
    [...] float32 in [1 / n, 1].
  """
  # The sum of a geometric series: (1 - q^n) / (1 - q) without its 0 / 0.
  powers = jnp.arange(num_replicas, dtype=jnp.float32)
  powers = powers.reshape(-1, *[1] * lookups.ndim)
  return jnp.mean(jnp.exp(-powers * lookups[None]), 0)


def _exchange_chunk(
  i: jax.Array,
  states: dict[str, Any],
  exchanged: dict[str, Any],
  lookups: Mapping[str, jax.Array],
  forgetting: jax.Array,
  chunk_rows: int,
  num_replicas: int,
  tables: Mapping[str, spec_lib.Table],
  key: jax.Array,
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Exchanges the i-th chunk of rows of every table.

  Args:
    i: int32.
    states: by table, of one replica.
    exchanged: by table, its rows when last exchanged.
    lookups: by table, [vocab] float32, m.
    forgetting: float32, 1 / tau.
    chunk_rows: rows of a chunk.
    num_replicas: n.
    tables: by name.
    key: [2] uint32, of the exchange, the same on all replicas: so they round
      to the same.
  """
  firsts, olds, encodings, parts = {}, {}, {}, {}
  for name, table in tables.items():
    # The last chunk reaches back over rows that were exchanged just now, which
    # does not change them.
    num = min(chunk_rows, table.spec.vocab)
    first = firsts[name] = jnp.minimum(i * chunk_rows, table.spec.vocab - num)
    old = table.read_range(exchanged[name], first, num)
    mine = table.read_range(states[name], first, num).rows
    m = jax.lax.dynamic_slice(lookups[name], (first,), (num,)) * forgetting
    # Each replica gives its n-th of the old row too: all reads come before the
    # sum, so that XLA can write both arrays in place behind it.
    kept = gain(m, num_replicas)[:, None]
    encodings[name] = old.encoding
    if table.spec.exchange_dtype == 'float32':
      parts[name] = old.rows / num_replicas + kept * (mine - old.rows)
    else:
      # In low precision only changes can be sent.
      parts[name], olds[name] = kept * (mine - old.rows), old.rows
  # Read by now, like all else.
  olds, encodings, parts = jax.lax.optimization_barrier(
    (olds, encodings, parts)
  )
  sums = _summed(parts, olds, tables)
  # The same on all replicas. Without this XLA copies them to read them twice.
  encodings = jax.lax.pmax(encodings, mesh_lib.DATA)
  states, exchanged = dict(states), dict(exchanged)
  for j, name in enumerate(sorted(sums)):
    args = firsts[name], sums[name], encodings[name], rounding.key(key, j)
    states[name] = tables[name].write_range(states[name], *args)
    exchanged[name] = tables[name].write_range(exchanged[name], *args)
  return states, exchanged


def _summed(
  parts: dict[str, jax.Array],
  olds: dict[str, jax.Array],
  tables: Mapping[str, spec_lib.Table],
) -> dict[str, jax.Array]:
  """Rows that all replicas make of a chunk together, float32."""
  whole = {k: x for k, x in parts.items() if k not in olds}
  sums = jax.lax.psum(whole, mesh_lib.DATA)
  for name, old in olds.items():
    axis = wire.Axis(mesh_lib.DATA, tables[name].spec.exchange_dtype)
    sums[name] = old + wire.psum(parts[name], axis)
  return sums


@dataclasses.dataclass(frozen=True)
class _Replicas:
  """The functions of the strategy over what they have in common."""

  model: model_base.Model
  tables: Mapping[str, spec_lib.Table]
  spec: base.StepSpec
  num: int  # n
  exchange_spec: timetables.ExchangeSpec
  timetable: timetables.Timetable

  def init(self, key: jax.Array) -> ReplicaState:
    """All replicas start from the same rows."""
    states = base.init_tables(self.tables, key)
    return ReplicaState(
      base.stacked(states, self.num),
      {
        name: state._replace(slots=(), scratch=())
        for name, state in states.items()
      },
      jnp.int32(0),
    )

  def constants(self) -> Constants:
    """Those of the model, and how often rows are looked up."""
    return Constants(self.model.constants(), self.timetable.lookups)

  def exchange(
    self,
    state: ReplicaState,
    lookups: Mapping[str, jax.Array],
    learning_rate: jax.Array,
    num_steps: jax.Array,
    key: jax.Array,
  ) -> ReplicaState:
    """Exchanges the rows that are due; tables without the leading axis."""
    s, timetable = self.exchange_spec, self.timetable
    forgetting = learning_rate / (s.first_learning_rate * s.memory_lookups)
    # The last exchange of a dispatch comes early; of small texts, every one.
    forgetting *= num_steps / s.every_steps
    num_exchanges = state.num_exchanges + 1
    level = timetables.level(num_exchanges)
    level = jnp.minimum(level, len(timetable.due) - 1)

    def body(i, carry):
      return _exchange_chunk(
        i,
        *carry,
        lookups,
        forgetting,
        timetable.chunk_rows,
        self.num,
        self.tables,
        rounding.key(key, num_exchanges, i),
      )

    states, exchanged = jax.lax.fori_loop(
      0,
      jnp.asarray(timetable.due)[level],
      body,
      (state.tables, state.exchanged),
    )
    return ReplicaState(states, exchanged, num_exchanges)

  def step(
    self,
    state: ReplicaState,
    constants: Constants,
    batch: Any,
    schedule: base.Schedule,
  ) -> tuple[ReplicaState, base.StepMetrics]:
    """A dispatch of one replica; its tables have a leading axis of one."""
    state = state._replace(tables=jax.tree.map(lambda x: x[0], state.tables))
    # All replicas run as many steps, so that they meet; some are padding.
    count = jax.lax.pmax(jnp.max(batch.num_steps), mesh_lib.DATA)
    replica = jax.lax.axis_index(mesh_lib.DATA)
    every = self.exchange_spec.every_steps
    span = schedule.last_learning_rate - schedule.first_learning_rate

    def body(i, carry):
      state, metrics = carry
      first = i * every
      stop = jnp.minimum(first + every, count)
      states, metrics = base.training_steps(
        self.model,
        self.tables,
        self.spec,
        constants.model,
        batch,
        schedule,
        base.StepRange(first, stop, count),
        base.share(1, 1, replica, 0)._replace(stream=replica),
        (state.tables, metrics),
      )
      state = state._replace(tables=states)
      learning_rate = schedule.first_learning_rate + span * (stop / count)
      state = self.exchange(
        state, constants.lookups, learning_rate, stop - first, schedule.key
      )
      return state, metrics

    carry = (state, jax.tree.map(jnp.asarray, base.NO_METRICS))
    num_exchanges = (count + every - 1) // every
    state, metrics = jax.lax.fori_loop(0, num_exchanges, body, carry)
    metrics = base.over_devices(metrics, batch, count, [mesh_lib.DATA])
    stacked = jax.tree.map(lambda x: x[None], state.tables)
    return state._replace(tables=stacked), metrics

  def export_rows(
    self,
    state: ReplicaState,
    name: str,
    start: int = 0,
    stop: int | None = None,
  ) -> blocks.RowBlock:
    """What the replicas learned since a row's last exchange adds up."""
    # At the end the learning rate is so low that nothing was forgotten.
    table = self.tables[name]
    old = blocks.read(table, state.exchanged[name], start, stop)
    mine = blocks.read(table, state.tables[name], start, stop, has_copies=True)
    total = np.array(old.rows)
    for i in range(self.num):
      total += mine.encoded.select(i).decode() - old.rows
    slots = {
      slot: mine.slots[slot].sum(0) / (self.num if how == 'mean' else 1)
      for slot, how in table.slot_reductions.items()
    }
    return blocks.RowBlock(blocks.encode(total, old.encoded), slots)

  def import_rows(
    self, state: ReplicaState, name: str, *args: Any
  ) -> ReplicaState:
    """Replaces the rows of every replica."""
    table = self.tables[name]
    ids, rows, *_ = args
    new = blocks.write(table, state.tables[name], *args, has_copies=True)
    old = blocks.write(table, state.exchanged[name], ids, rows)
    return state._replace(
      tables=state.tables | {name: new},
      exchanged=state.exchanged | {name: old},
    )


def replicas(
  model: model_base.Model,
  tables: Mapping[str, spec_lib.Table],
  spec: base.StepSpec,
  mesh: jax.sharding.Mesh,
  exchange_spec: timetables.ExchangeSpec,
  lookup_rates: Mapping[str, np.ndarray],
) -> base.Strategy:
  """The strategy; state of the row optimizers stays with its replica.

  Args:
    model: what to train.
    tables: the tables of `model.specs()`.
    spec: sizes of a step.
    mesh: one replica on each device of its data axis.
    exchange_spec: how stale a row may become.
    lookup_rates: by table, [vocab] expected look-ups of each row per center.
  """
  made = _Replicas(
    model,
    tables,
    spec,
    mesh.shape[mesh_lib.DATA],
    exchange_spec,
    timetables.timetable(lookup_rates, spec.part_words, exchange_spec),
  )
  over = jax.sharding.PartitionSpec(mesh_lib.DATA)
  everywhere = jax.sharding.PartitionSpec()
  state_spec = ReplicaState(over, everywhere, everywhere)
  step = jax.shard_map(
    made.step,
    mesh=mesh,
    in_specs=(state_spec, everywhere, over, everywhere),
    out_specs=(state_spec, everywhere),
    # The rows that leave a sum are the same everywhere; JAX cannot tell.
    check_vma=False,
  )
  named = jax.sharding.NamedSharding
  return base.Strategy(
    made.init,
    made.constants,
    jax.jit(step, donate_argnums=0),
    tables,
    made.export_rows,
    made.import_rows,
    ReplicaState(*(named(mesh, part) for part in state_spec)),
    named(mesh, everywhere),
    named(mesh, over),
    hlo.Loop(
      exchange_spec.every_steps,
      inner=timetables.chunks_per_exchange(made.timetable),
      branch=1 / spec.loss_every_steps,
    ),
  )
