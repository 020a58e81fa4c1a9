"""Random bits for stochastic rounding: speed and bias of generators.

  python experiments/bench_rounding.py

Each generator rounds the rows of a step, [`--rows`, `--dim`] float32, to
bfloat16, with a key of its own in each step. `hash x factor` is what training
uses (`ops.rounding`). Those marked shared draw 32 bits for two numbers. Times
are CPU time of the process, the least of `--rounds`, with the generator's share
beside the same rounding with constant bits. Bias: how often a number a quarter
above its lower neighbour went up, in units of the standard error (within 5 is
right), and the correlation of neighbours in a row and in a column, alike.
"""

import argparse
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import machine
import numpy as np

from jaxemb.ops import rounding, sampling

_GOLDEN = np.uint32(0x9E3779B9)
Bits = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def _constant(key, ids, columns):
  del key
  return jnp.full((len(ids), len(columns)), np.uint32(2**31))


def _threefry(key, ids, columns):
  wrapped = jax.random.wrap_key_data(key, impl='threefry2x32')
  return jax.random.bits(wrapped, (len(ids), len(columns)), jnp.uint32)


def _rbg(key, ids, columns):
  state = jnp.concatenate([key, key])
  shape = len(ids), len(columns)
  return jax.lax.rng_bit_generator(state, shape, jnp.uint32)[1]


def _places(ids, num):
  return ids[:, None].astype(jnp.uint32) * np.uint32(num) + jnp.arange(
    num, dtype=jnp.uint32
  )


def _hash(key, ids, columns):
  """Two mixes of a counter for every number."""
  return sampling.random_bits(key, _places(ids, len(columns)))


def _shared(bits: Bits) -> Bits:
  """Half of the columns have the upper bits, the others the lower ones."""

  def draw(key, ids, columns):
    half = bits(key, ids, columns[: -(-len(columns) // 2)])
    both = jnp.concatenate([half, half << 16 | half >> 16], 1)
    return both[:, : len(columns)]

  return draw


GENERATORS: dict[str, Bits] = {
  'constant': _constant,
  'threefry': _threefry,
  'rbg': _rbg,
  'hash': _hash,
  'hash, shared': _shared(_hash),
  'hash x factor': rounding.random_bits,
}


def _step(bits: Bits, ids: jax.Array, columns: jax.Array) -> Callable:
  def step(i, carry):
    values, _ = carry
    drawn = bits(rounding.key(np.array([1, 2], np.uint32), i), ids, columns)
    # Other values in each step, or nothing is left of it with constant bits.
    moved = values + 0.01 * i
    return values, rounding.encode(moved, 'bfloat16', drawn)

  return step


def _time(args: argparse.Namespace, bits: Bits) -> Callable[[], float]:
  """A function that measures seconds of a step once."""
  ids, columns = jnp.arange(args.rows) * 7, jnp.arange(args.dim)
  values = jnp.full((args.rows, args.dim), 1.001, jnp.float32)
  step = _step(bits, ids, columns)
  run = jax.jit(lambda carry: jax.lax.fori_loop(0, args.steps, step, carry))
  carry = values, jnp.zeros(values.shape, jnp.uint16)
  jax.block_until_ready(run(carry))

  def measure():
    start = time.process_time()
    jax.block_until_ready(run(carry))
    return (time.process_time() - start) / args.steps

  return measure


def _bias(args: argparse.Namespace, bits: Bits) -> dict[str, float]:
  """Deviations in standard errors."""
  ids, columns = jnp.arange(args.rows) * 7, jnp.arange(args.dim)

  @jax.jit
  def drawn(i):
    key = rounding.key(np.array([1, 2], np.uint32), i)
    return bits(key, ids, columns)

  units = np.stack([np.asarray(drawn(i)) >> 16 for i in range(8)]) / 2**16
  units = units + 2**-17
  error = np.sqrt(0.25 * 0.75 / units.size)
  centered = (units - 0.5) * np.sqrt(12)
  along = [
    np.mean(centered[:, :, 1:] * centered[:, :, :-1]),
    np.mean(centered[:, 1:] * centered[:, :-1]),
  ]
  return {
    'went_up': float((np.mean(units > 0.75) - 0.25) / error),
    'in_row': float(along[0] * np.sqrt(units.size)),
    'in_column': float(along[1] * np.sqrt(units.size)),
  }


def main() -> None:
  """Measures all generators in turn and prints a table."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--rows', type=int, default=672)
  parser.add_argument('--dim', type=int, default=300)
  parser.add_argument('--steps', type=int, default=32)
  parser.add_argument('--rounds', type=int, default=9)
  parser.add_argument('--output', default='', help='JSON file; "" = none')
  args = parser.parse_args()
  timers = {k: _time(args, bits) for k, bits in GENERATORS.items()}
  secs: dict[str, float] = {}
  for _ in range(args.rounds):
    for name, measure in timers.items():
      secs[name] = min(secs.get(name, np.inf), measure())
  facts = machine.describe()
  print(machine.line(facts))
  print(
    f'{"generator":>14} {"us a step":>9} {"ns a number":>11} {"went up":>8} '
    f'{"in row":>7} {"in column":>9}'
  )
  results = {}
  for name, bits in GENERATORS.items():
    extra = secs[name] - secs['constant']
    found = {'secs': secs[name]}
    line = f'{name:>14} {1e6 * secs[name]:9.1f}'
    if name != 'constant':
      found |= _bias(args, bits)
      line += (
        f' {1e9 * extra / args.rows / args.dim:11.3f} {found["went_up"]:8.2f} '
        f'{found["in_row"]:7.2f} {found["in_column"]:9.2f}'
      )
    results[name] = found
    print(line)
  if args.output:
    machine.write(args.output, facts, args, results)


if __name__ == '__main__':
  machine.run(main)
