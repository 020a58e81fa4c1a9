"""Synchronisation: replicas exchange the rows that are due.

All of it runs inside `shard_map`, on the device of one replica, whose arrays
are whole. With x_i the row of replica i and b the row after its last
synchronisation, all replicas go on from

  b' = b + g * sum_i (x_i - b)

with g from the policy. The row's optimizer state becomes a mean: g = 1 / n.
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
_ROWS = 'rows'  # beside the names of optimizer state


def _read(table, state, start, num):
  """Returns values of rows from `start` on, and the encoding of the rows."""
  stored, opt_state = table.read_range(state, start, num)
  values = {**opt_state, _ROWS: rounding.decode(stored, table.spec.dtype)}
  return values, codecs.encoding_of(stored)


class Synchronisation(NamedTuple):
  """One synchronisation of all replicas."""

  tables: Mapping[str, spec_lib.Table]
  policy: policies.Policy
  learning_rate: jax.Array  # float32
  key: jax.Array  # [2] uint32, of the dispatch
  number: jax.Array  # int32, how many there were before

  def exchange(self, i: jax.Array, states: tuple[Any, Any]) -> tuple[Any, Any]:
    """Replaces the i-th chunks of all tables by what all learned.

    `states` are this replica's tables, and those after the last
    synchronisation.
    """
    num_replicas = jax.lax.axis_size(AXES)
    olds, encodings, terms = {}, {}, {}
    for name, table in self.tables.items():
      start, num = self._chunk(i, table)
      new, _ = _read(table, states[0][name], start, num=num)
      old, encodings[name] = _read(table, states[1][name], start, num=num)
      weights = dict.fromkeys(old, jnp.full(num, 1 / num_replicas))
      weights[_ROWS] = self.policy.weights(
        name, start, num, learning_rate=self.learning_rate
      )
      terms[name] = {
        k: weights[k].reshape(-1, *[1] * (x.ndim - 1)) * (new[k] - x)
        for k, x in old.items()
      }
      for k in [*old]:
        if k != _ROWS or table.spec.exchange_dtype == 'float32':
          # Each replica adds its n-th of the old row: all reads come before
          # the sum, so that XLA can write both arrays in place after it.
          terms[name][k] += old.pop(k) / num_replicas
      olds[name] = old
    olds, encodings, terms = jax.lax.optimization_barrier(
      (olds, encodings, terms)
    )
    # In a shorter type only changes can be sent.
    short = {k: terms[k].pop(_ROWS) for k, x in olds.items() if x}
    sums = jax.lax.psum(terms, AXES)
    for name, x in short.items():
      axis = wire.Axis(AXES, self.tables[name].spec.exchange_dtype)
      sums[name][_ROWS] = olds[name][_ROWS] + wire.psum(x, axis)
    # The same on all replicas; otherwise XLA copies them to read them twice.
    encodings = jax.lax.pmax(encodings, AXES)
    return tuple(self._write(i, x, sums, encodings=encodings) for x in states)

  def _chunk(self, i, table):
    """Returns the first row of the i-th chunk of a table, and how many."""
    size, vocab = self.policy.chunk_rows, table.spec.vocab
    num = min(size, vocab)
    # The last chunk overlaps the one before.
    return jnp.minimum(i * size, vocab - num), num

  def _write(self, i, states, values, encodings):
    """Writes the i-th chunk of every table; replicas round alike."""
    new = dict(states)
    for j, (name, table) in enumerate(sorted(self.tables.items())):
      opt_state = dict(values[name])
      new[name] = table.write_range(
        new[name],
        self._chunk(i, table)[0],
        opt_state.pop(_ROWS),
        encoding=encodings[name],
        key=rounding.key(self.key, self.number, i, j),
        opt_state=opt_state,
      )
    return new
