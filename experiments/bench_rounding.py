"""Random bits for stochastic rounding: speed and bias of generators.

  python experiments/bench_rounding.py

Each generator rounds the rows of a step, [--rows, --dim] float32, to bfloat16,
with a key of its own in each step. `hash x factor` is what training uses
(`ops.rounding`). Those marked shared draw 32 bits for two numbers. Times are
CPU time of the process, the least of --rounds; the time per number is that
beyond the same rounding with constant bits. Bias, in standard errors (within 5
is right): how often a number a quarter above its lower neighbour was rounded
up, and the correlation of neighbours in a row and in a column.
"""

import argparse
import time
from collections.abc import Callable

import experiment
import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.ops import rounding, sampling

# (key, ids [rows], columns [dim]) -> [rows, dim] uint32
Bits = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
_KEY = np.array([1, 2], np.uint32)


def _constant(key, ids, columns):
  del key
  return jnp.full((len(ids), len(columns)), np.uint32(2**31))


def _threefry(key, ids, columns):
  wrapped = jax.random.wrap_key_data(key, impl='threefry2x32')
  return jax.random.bits(wrapped, (len(ids), len(columns)), jnp.uint32)


def _rbg(key, ids, columns):
  state, shape = jnp.concatenate([key, key]), (len(ids), len(columns))
  return jax.lax.rng_bit_generator(state, shape, jnp.uint32)[1]


def _hash(key, ids, columns):
  """Two mixes of a counter for every number."""
  num = len(columns)
  first = ids[:, None].astype(jnp.uint32) * np.uint32(num)
  counters = first + jnp.arange(num, dtype=jnp.uint32)[None]
  return sampling.random_bits(key, counters)


def _shared_hash(key, ids, columns):
  """Half of the columns have the upper bits, the others the lower ones."""
  half = _hash(key, ids, columns[: -(-len(columns) // 2)])
  both = jnp.concatenate([half, half << 16 | half >> 16], 1)
  return both[:, : len(columns)]


GENERATORS: dict[str, Bits] = {
  'constant': _constant,
  'threefry': _threefry,
  'rbg': _rbg,
  'hash': _hash,
  'hash, shared': _shared_hash,
  'hash x factor': rounding.random_bits,
}


def _timer(args: argparse.Namespace, bits: Bits) -> Callable[[int], float]:
  """A function that measures the seconds of a step once."""
  ids, columns = jnp.arange(args.rows) * 7, jnp.arange(args.dim)
  values = jnp.full((args.rows, args.dim), 1.001, jnp.float32)

  def step(i, carry):
    values, _ = carry
    drawn = bits(rounding.key(_KEY, i), ids, columns)
    # Other values in each step, or constant bits leave nothing to compute.
    return values, rounding.encode(values + 0.01 * i, 'bfloat16', drawn)

  run = jax.jit(lambda carry: jax.lax.fori_loop(0, args.steps, step, carry))
  carry = values, jnp.zeros(values.shape, jnp.uint16)
  jax.block_until_ready(run(carry))

  def measure(_: int) -> float:
    start = time.process_time()
    jax.block_until_ready(run(carry))
    return (time.process_time() - start) / args.steps

  return measure


def bias(bits: Bits, rows: int, dim: int) -> dict[str, float]:
  """Deviations in standard errors."""
  ids, columns = jnp.arange(rows) * 7, jnp.arange(dim)
  drawn = jax.jit(lambda i: bits(rounding.key(_KEY, i), ids, columns))
  units = np.stack([np.asarray(drawn(i)) >> 16 for i in range(8)]) / 2**16
  units = units + 2**-17
  error = np.sqrt(0.25 * 0.75 / units.size)
  centered = (units - 0.5) * np.sqrt(12)
  neighbours = {
    'in_row': centered[:, :, 1:] * centered[:, :, :-1],
    'in_column': centered[:, 1:] * centered[:, :-1],
  }
  correlations = {
    k: float(np.mean(x) * np.sqrt(units.size)) for k, x in neighbours.items()
  }
  went_up = float((np.mean(units > 0.75) - 0.25) / error)
  return {'went_up': went_up} | correlations


def main() -> None:
  """Measures all generators in turn and prints a table."""
  parser = experiment.parser(__doc__)
  parser.add_argument('--rows', type=int, default=672)
  parser.add_argument('--dim', type=int, default=300)
  parser.add_argument('--steps', type=int, default=32)
  parser.add_argument('--rounds', type=experiment.count, default=9)
  args = parser.parse_args()
  timers = {k: _timer(args, x) for k, x in GENERATORS.items()}
  secs = experiment.in_turn(timers, args.rounds)
  results, rows = experiment.Results('rounding', args), []
  constant_secs = min(secs['constant'])
  for name, bits in GENERATORS.items():
    found = results.found[name] = {'secs': min(secs[name])}
    row = [name, f'{1e6 * found["secs"]:.1f}']
    if name != 'constant':
      biases = bias(bits, args.rows, args.dim)
      more = (found['secs'] - constant_secs) / args.rows / args.dim
      row += [f'{1e9 * more:.3f}', *(f'{x:.2f}' for x in biases.values())]
      found |= biases
    rows.append(row)
  head = ('', 'us/step', 'ns/number', 'went up', 'in row', 'in column')
  results.finish(experiment.table(head, rows))


if __name__ == '__main__':
  experiment.main(main)
