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
from jaxemb.tables import precision
from jaxemb.tables import spec as spec_lib

_LEAST_SCALE = 0.25  # of a learned scale, after an exchange


class ReplicaState(NamedTuple):
  """The state of all replicas; `tables` has a leading axis over them."""

  tables: dict[str, spec_lib.TableState]  # leaves [n, ...]
  exchanged: dict[str, Any]  # [vocab, dim], rows when last exchanged
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


def _slice(table: Any, first: jax.Array, rows: int) -> Any:
  """Rows of a table as they are kept, from the first one on."""
  return jax.tree.map(
    lambda x: jax.lax.dynamic_slice_in_dim(x, first, rows), table
  )


def _put(table: Any, first: jax.Array, rows: Any) -> Any:
  return jax.tree.map(
    lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, first, 0),
    table,
    rows,
  )


def _exchange_chunk(
  i: jax.Array,
  vectors: dict[str, Any],
  exchanged: dict[str, Any],
  lookups: Mapping[str, jax.Array],
  forgetting: jax.Array,
  rows: int,
  num_replicas: int,
  specs: Mapping[str, spec_lib.TableSpec],
  key: jax.Array,
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Exchanges the i-th chunk of rows of every table.

  Args:
    i: int32.
    vectors: by table, [vocab, dim], one replica's, as they are kept.
    exchanged: by table, [vocab, dim].
    lookups: by table, [vocab] float32, m.
    forgetting: float32, 1 / tau.
    rows: of a chunk.
    num_replicas: n.
    specs: of the tables.
    key: [2] uint32, of the exchange, the same on all replicas: so they round
      to the same.
  """
  firsts, olds, parts, changes = {}, {}, {}, {}
  for name, table in vectors.items():
    spec = specs[name]
    # The last chunk reaches back over rows that were exchanged just now, which
    # does not change them.
    num = min(rows, len(lookups[name]))
    first = jnp.minimum(i * rows, len(lookups[name]) - num)
    old = olds[name] = _slice(exchanged[name], first, num)
    mine, firsts[name] = _slice(table, first, num), first
    m = jax.lax.dynamic_slice(lookups[name], (first,), (num,)) * forgetting
    # Each replica gives its n-th of the old row too: all reads come before the
    # sum, so that XLA can write both arrays in place behind it.
    kept = gain(m, num_replicas)
    if precision.learns_scales(spec):
      changes[name] = kept * (mine.scales - old.scales)
    kept = kept[:, None]
    mine, old = (rounding.decode(x, spec.dtype) for x in (mine, old))
    parts[name] = old / num_replicas + kept * (mine - old)
    if spec.exchange_dtype != 'float32':
      # Of few bits only what has changed can be sent.
      parts[name] = kept * (mine - old)
  # Read by now, like all else.
  olds, parts, changes = jax.lax.optimization_barrier((olds, parts, changes))
  sums = _summed(parts, olds, specs)
  # The same on all replicas. Without this XLA copies them to read them twice.
  old_scales = {
    name: jax.lax.pmax(old.scales, mesh_lib.DATA)
    for name, old in olds.items()
    if specs[name].dtype == 'int8'
  }
  # As rows are, but not to nothing if all have made them finer.
  scales = {
    name: jnp.maximum(old_scales[name] + x, _LEAST_SCALE * old_scales[name])
    for name, x in jax.lax.psum(changes, mesh_lib.DATA).items()
  }
  new = {}
  for j, name in enumerate(sorted(sums)):
    ids = firsts[name] + jnp.arange(len(sums[name]))
    columns = jnp.arange(specs[name].dim)
    place = precision.Place(rounding.key(key, j), ids, columns)
    old = precision.Old(None, old_scales.get(name))
    new[name] = precision.rounded(
      specs[name], sums[name], place, old, scales.get(name)
    )
  return (
    {k: _put(table, firsts[k], new[k]) for k, table in vectors.items()},
    {k: _put(table, firsts[k], new[k]) for k, table in exchanged.items()},
  )


def _summed(
  parts: dict[str, jax.Array],
  olds: dict[str, Any],
  specs: Mapping[str, spec_lib.TableSpec],
) -> dict[str, jax.Array]:
  """What all replicas make of a chunk together, float32."""
  # Parts of the others are what has changed.
  has_all = [k for k in parts if specs[k].exchange_dtype == 'float32']
  found = jax.lax.psum({k: parts[k] for k in has_all}, mesh_lib.DATA)
  for name in parts.keys() - found.keys():
    axis = wire.Axis(mesh_lib.DATA, specs[name].exchange_dtype)
    old = rounding.decode(olds[name], specs[name].dtype)
    found[name] = old + wire.psum(parts[name], axis)
  return found


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
      {name: state.vectors for name, state in states.items()},
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
        {name: table.spec for name, table in self.tables.items()},
        rounding.key(key, num_exchanges, i),
      )

    vectors, exchanged = jax.lax.fori_loop(
      0,
      jnp.asarray(timetable.due)[level],
      body,
      ({k: x.vectors for k, x in state.tables.items()}, state.exchanged),
    )
    states = {
      k: x._replace(vectors=vectors[k]) for k, x in state.tables.items()
    }
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

  def result(self, state: ReplicaState, name: str = '') -> Any:
    """What the replicas learned since a row's last exchange adds up."""
    # At the end the learning rate is so low that nothing was forgotten.
    name = name or self.model.vectors_table
    spec = self.tables[name].spec
    dtype, scales = spec.dtype, None
    exchanged = jax.tree.map(mesh_lib.to_host, state.exchanged[name])
    old = rounding.decode_on_host(exchanged, dtype)
    vectors = jax.tree.map(mesh_lib.to_host, state.tables[name].vectors)
    total = np.array(old)
    for i in range(self.num):
      mine = jax.tree.map(lambda x, i=i: x[i], vectors)
      total += rounding.decode_on_host(mine, dtype) - old
    if precision.learns_scales(spec):
      scales = exchanged.scales + (vectors.scales - exchanged.scales).sum(0)
      scales = np.maximum(scales, _LEAST_SCALE * exchanged.scales)
    elif dtype == 'int8':
      # Of rows that nobody changed since, their own.
      largest = np.maximum(total.max(1), -total.min(1))
      scales = np.asarray(rounding.row_scales(largest, exchanged.scales))
    return rounding.encode_on_host(total, dtype, scales)


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
    made.result,
    ReplicaState(*(named(mesh, part) for part in state_spec)),
    named(mesh, everywhere),
    named(mesh, over),
    hlo.Loop(
      exchange_spec.every_steps,
      inner=timetables.chunks_per_exchange(made.timetable),
      branch=1 / spec.loss_every_steps,
    ),
  )
