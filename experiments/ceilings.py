"""What devices reach in programs that do one thing: ceilings of a step.

  copy      a large array scaled in place: read and written, so that no cache
            line is fetched only to be overwritten
  product   a large float32 product, at JAX's default precision
  gather, scatter-add    of XLA, at the ids of real steps, step after step
  products  the scores of a step and their gradients, by the model's own code

XLA leaves out what nobody reads and moves out of a loop what does not change:
here everything is carried through a loop, changes in it, and is returned. All
devices of a mesh run the program at once.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.models import skipgram
from jaxemb.runtime import mesh as mesh_lib

_MAX_PRODUCT_SIZE = 8192

# (i, carry, constants) -> carry
Body = Callable[[jax.Array, Any, Any], Any]


class Effort(NamedTuple):
  """How long to measure, and on how much."""

  copy_bytes: int  # of the array that is copied, on each device
  product_size: int  # rows and columns to start from
  product_secs: float  # of a product so large that the device is busy
  min_secs: float  # of a run
  runs: int


def _iteration_secs(
  mesh: jax.sharding.Mesh,
  body: Body,
  carry: Callable[[], Any],
  constants: Any,
  effort: Effort,
) -> float:
  """Seconds of one iteration of a loop that every device runs.

  `carry` makes what a device carries, which is updated in place; the constants
  are the same on all devices.
  """
  over = jax.sharding.PartitionSpec(mesh_lib.DATA)
  everywhere = jax.sharding.PartitionSpec()
  sharding = jax.sharding.NamedSharding(mesh, over)

  def loop(carry, constants, num):
    carry = jax.lax.fori_loop(
      0,
      num,
      lambda i, carry: body(i, carry, constants),
      jax.tree.map(lambda x: x[0], carry),
    )
    return jax.tree.map(lambda x: x[None], carry)

  run = jax.jit(
    jax.shard_map(
      loop,
      mesh=mesh,
      in_specs=(over, everywhere, everywhere),
      out_specs=over,
      check_vma=False,
    ),
    donate_argnums=0,
  )
  stacked = jax.jit(
    lambda: jax.tree.map(
      lambda x: jnp.broadcast_to(x[None], (mesh.size, *x.shape)), carry()
    ),
    out_shardings=sharding,
  )
  constants = jax.device_put(constants, sharding.update(spec=everywhere))

  def timed(state, num):
    state = jax.block_until_ready(state)
    start = time.perf_counter()
    state = jax.block_until_ready(run(state, constants, num))
    return state, time.perf_counter() - start

  state, _ = timed(stacked(), 1)  # compiles
  num, runs = 1, []
  while len(runs) < effort.runs:
    state, secs = timed(state, num)
    if secs >= effort.min_secs:
      runs.append(secs / num)
    else:
      num = 1 + int(num * min(10, 1.2 * effort.min_secs / max(secs, 1e-9)))
  return statistics.median(runs)


def _at(ids: list[jax.Array], i: jax.Array) -> list[jax.Array]:
  """The ids of step i; the first step follows the last one."""
  return [x[i % x.shape[0]] for x in ids]


def _gather(i, carry, ids):
  """A `Body`: a step's rows from both tables."""
  tables, _ = carry
  pairs = zip(tables, _at(ids, i), strict=True)
  return tables, [table.at[x].get(mode='clip') for table, x in pairs]


def _scatter(i, carry, ids):
  """A `Body`: a step's rows added to both tables."""
  tables, rows = carry
  triples = zip(tables, _at(ids, i), rows, strict=True)
  return [table.at[x].add(y, mode='drop') for table, x, y in triples], rows


def _products(i, carry, _):
  """A `Body`: a step's scores and both their gradients."""
  rows, _ = carry
  rows = [x.at[0, 0, 0].set(1e-6 * i.astype(jnp.float32)) for x in rows]
  scores, gradients = jax.vjp(skipgram.WHOLE_ROWS.dot, *rows)
  return rows, list(gradients(scores))


def measure(
  mesh: jax.sharding.Mesh,
  spec: skipgram.WindowSpec,
  ids: list[np.ndarray],
  effort: Effort,
) -> dict[str, float]:
  """The ceilings of each device, while all of the mesh are at work.

  `ids` are those of real steps: [steps, L / c, c] of the input table and
  [steps, L / c, c + 2 W + N] of the output table.
  """
  # Flat: XLA copies rows of another shape before it scatters them.
  flat = [x.reshape(len(x), -1) for x in ids]

  def secs(body: Body, carry: Callable[[], Any], constants: Any = ()) -> float:
    return _iteration_secs(mesh, body, carry, constants, effort)

  def zeros(shapes):
    # Sums of zeros stay what they are.
    return [jnp.zeros((*shape, spec.dim), jnp.float32) for shape in shapes]

  def tables_and_rows():
    return zeros([(spec.vocab,)] * 2), zeros(x.shape[1:] for x in flat)

  def rows_and_gradients():
    return zeros(x.shape[1:] for x in ids), zeros(x.shape[1:] for x in ids)

  gather_secs = secs(_gather, tables_and_rows, flat)
  scatter_secs = secs(_scatter, tables_and_rows, flat)
  products_secs = secs(_products, rows_and_gradients)
  copy_secs = secs(
    lambda i, x, _: x * np.float32(1 + 1e-6),
    lambda: jnp.ones(effort.copy_bytes // 4, jnp.float32),
  )
  product_secs, size = 0.0, effort.product_size // 2
  while not product_secs or (
    product_secs < effort.product_secs and size < _MAX_PRODUCT_SIZE
  ):
    size *= 2
    # Scaled so that repeated products neither grow nor fade.
    factor = np.random.default_rng(0).standard_normal((size, size), np.float32)
    product_secs = secs(
      lambda i, x, factor: x @ factor,
      lambda size=size: jnp.ones((size, size), jnp.float32),
      factor / np.float32(size**0.5),
    )
  num_rows = sum(x[0].size for x in ids)
  num_scores = ids[0][0].size * ids[1].shape[-1]
  return {
    'copy_bytes_per_sec': 2 * effort.copy_bytes / copy_secs,
    'product_flops_per_sec': 2 * size**3 / product_secs,
    'gather_secs': gather_secs,
    'scatter_secs': scatter_secs,
    'products_secs': products_secs,
    'gather_rows_per_sec': num_rows / gather_secs,
    'scatter_rows_per_sec': num_rows / scatter_secs,
    'products_flops_per_sec': 3 * 2 * num_scores * spec.dim / products_secs,
  }
