"""Meetings: replicas exchange the rows that are due.

All inside `shard_map`, on the device of one replica, whose arrays are whole.
With x_i the row of replica i and b the row at its last meeting, a meeting makes
of both, in all replicas,

  b' = b + g * sum_i (x_i - b)

with g from the policy. Numbers of an optimizer that grow with every update (a
`slot_reductions` of 'sum') follow their rows; of others g = 1 / n makes means.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxemb.ops import rounding, wire
from jaxemb.runtime import mesh as mesh_lib
from jaxemb.strategies import policies
from jaxemb.tables import codecs
from jaxemb.tables import spec as spec_lib

AXES = mesh_lib.DATA, mesh_lib.TABLE  # whose devices are the replicas
ROWS = 'rows'

# By name, float32: ROWS [num, dim] and slots [num, ...] of a range of rows.
Values = dict[str, jax.Array]


class _Chunk(NamedTuple):
  """A range of rows of a table."""

  start: jax.Array  # int32
  num: int
  values: Values
  encoding: Any  # `codecs.encoding_of` its rows


def like(x: jax.Array, y: jax.Array) -> jax.Array:
  """[num] as [num, 1, ...], for use with [num, ...]."""
  return x.reshape(-1, *[1] * (y.ndim - 1))


def exchanged(table: spec_lib.Table) -> list[str]:
  """Names of the slots that replicas exchange; others stay where they are."""
  return [k for k, x in table.slot_reductions.items() if x != 'keep']


def read(
  table: spec_lib.Table, state: Any, start: jax.Array, num: int
) -> tuple[Values, Any]:
  """Values of rows from `start` on, and the encoding of the rows."""
  stored, slots = table.read_range(state, start, num)
  values = {k: slots[k] for k in exchanged(table)}
  values[ROWS] = rounding.decode(stored, table.spec.dtype)
  return values, codecs.encoding_of(stored)


def weights(
  table: spec_lib.Table,
  policy: policies.Policy,
  num_replicas: int,
  start: jax.Array,
  num: int,
  elapsed: policies.Elapsed,
) -> Values:
  """[num] float32, g of rows from `start` on and of their slots."""
  of_rows = policy.weights(table.spec.name, start, num, elapsed=elapsed)
  found, mean = {ROWS: of_rows}, jnp.full(num, 1 / num_replicas)
  for slot in exchanged(table):
    found[slot] = of_rows if table.slot_reductions[slot] == 'sum' else mean
  return found


class Meeting(NamedTuple):
  """One meeting."""

  tables: Mapping[str, spec_lib.Table]
  policy: policies.Policy
  elapsed: policies.Elapsed
  key: jax.Array  # [2] uint32, of the dispatch
  number: jax.Array  # int32, of the meeting

  def _read(self, i, states):
    """The i-th chunk of every table."""
    chunks = {}
    for name, table in self.tables.items():
      # The last chunk overlaps the one before.
      num = min(self.policy.chunk_rows, table.spec.vocab)
      start = i * self.policy.chunk_rows
      start = jnp.minimum(start, table.spec.vocab - num)
      chunks[name] = _Chunk(
        start, num, *read(table, state=states[name], start=start, num=num)
      )
    return chunks

  def _sums(self, chunks, changes):
    """Returns b', of chunks with b, and its encodings; by table."""
    num_replicas = jax.lax.axis_size(AXES)
    olds, terms = {}, {}
    for name, (start, num, old, _) in chunks.items():
      table = self.tables[name]
      g = weights(
        table,
        self.policy,
        num_replicas,
        start=start,
        num=num,
        elapsed=self.elapsed,
      )
      terms[name] = {k: like(g[k], x) * x for k, x in changes[name].items()}
      olds[name] = dict(old)
      for k in old:
        if k != ROWS or table.spec.exchange_dtype == 'float32':
          # Each replica adds its n-th of the old row: all reads come before
          # the sum, so that XLA can write both arrays in place after it.
          terms[name][k] += olds[name].pop(k) / num_replicas
    encodings = {k: x.encoding for k, x in chunks.items()}
    olds, encodings, terms = jax.lax.optimization_barrier(
      (olds, encodings, terms)
    )
    # In a shorter type only changes can be sent.
    short = {k: terms[k].pop(ROWS) for k, x in olds.items() if x}
    sums = jax.lax.psum(terms, AXES)
    for name, x in short.items():
      axis = wire.Axis(AXES, self.tables[name].spec.exchange_dtype)
      sums[name][ROWS] = olds[name][ROWS] + wire.psum(x, axis)
    # The same on all replicas; otherwise XLA copies them to read them twice.
    return sums, jax.lax.pmax(encodings, AXES)

  def _write(self, states, i, chunks, values, encodings):
    """Writes the i-th chunk of every table; replicas round alike."""
    new = dict(states)
    for j, (name, table) in enumerate(sorted(self.tables.items())):
      slots = dict(values[name])
      args = chunks[name].start, slots.pop(ROWS), encodings[name]
      key = rounding.key(self.key, self.number, i, j)
      new[name] = table.write_range(new[name], *args, key, slots)
    return new

  def exchange(self, i: jax.Array, carry: tuple) -> tuple:
    """Replaces the i-th chunks of (own, met) tables by what all learned."""
    own, met = carry
    chunks, changes = self._read(i, met), {}
    for name, x in self._read(i, own).items():
      old = chunks[name].values
      changes[name] = jax.tree.map(jnp.subtract, x.values, old)
    args = i, chunks, *self._sums(chunks, changes)
    return self._write(own, *args), self._write(met, *args)
