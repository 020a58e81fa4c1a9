"""Rows in few bits: bfloat16, float16, and int8 with a scale for each row.

Stochastic rounding goes to one of the two neighbours lo <= v <= hi of a value,

  hi with probability (v - lo) / (hi - lo), else lo,    so that E[SR(v)] = v

and a sum of many small updates is kept in expectation, where rounding to the
nearest loses every update below half a unit in the last place (Zhang, Yang and
Yuen 2018; Gupta et al. 2015). Random bits in the place of those that will be
cut off are added to them, and a carry out of them is the way up. A float32 has
those bits; for codes of int8, and float16 below 2^-14, adding a power of two
puts them there, 14 behind a code and 13 behind the last place of float16, and
what is less than half of the last one is lost.

The random bits are a function of (key, row, column), so that copies of a row,
restarts and other meshes round alike. Two hashes of the row, a and b, are drawn
with care; a column costs two multiplications, the first by the golden ratio g,

  c = column * g,    bits = (a ^ c ^ (c >> 15)) * (b | 1),

of which the upper ones are used: for a given place each value of them is as
likely as any other, and any two places are all but independent (multiply-shift
hashing, Dietzfelbinger 1996). XLA computes c for each number anew, so it is no
better hash; without its shift the sums of a row's numbers have heavy tails.
`experiments/bench_rounding.py` has what other generators cost.

16-bit numbers are kept as uint16, the bits of the number: XLA for CPUs would
widen a whole table of bfloat16 to scatter to it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.ops import sampling

DTYPES = ('float32', 'bfloat16', 'float16', 'int8')

_INFINITY = np.uint32(0x7F800000)
_GOLDEN = np.uint32(0x9E3779B9)  # 2^32 by the golden ratio
_LIMIT = 127  # of codes; -128 has no counterpart
_BITS_BEHIND = 14  # the point, of numbers that are rounded to codes at random
_LEAST_SCALE = np.float32(2.0**-106)
_LARGEST_SCALE = np.float32(2.0**121)  # what it holds is finite
# Of a row's largest number; below, a finer scale is chosen. A row that hardly
# changes keeps its scale, and with it the numbers that did not change.
_LEAST_CODE = 120
_SLACK = np.float32(1 - 2.0**-20)  # for sums in another order


class Scaled(NamedTuple):
  """Rows of int8: number j of a row is codes[j] * scale."""

  codes: Any  # [..., d] int8, -127 to 127
  # [...] float32; of 7 significant bits, so that every product is exact
  scales: Any


def key(base: jax.Array, *counters: jax.Array | int) -> jax.Array:
  """[2] uint32, a key of its own for each of the counters.

  Args:
    base: [2] uint32.
    *counters: whole numbers, of the step for instance.
  """
  for counter in counters:
    counter = jnp.asarray(counter).astype(jnp.uint32)
    base = jnp.stack(
      [
        sampling.random_bits(base, counter),
        sampling.random_bits(base[::-1] ^ np.uint32(0xB5297A4D), counter),
      ]
    )
  return base


def random_bits(
  key: jax.Array, ids: jax.Array, columns: jax.Array
) -> jax.Array:
  """[..., d] uint32, random from the highest bit down.

  Args:
    key: [2] uint32, that no other use shares.
    ids: [...] int32, of rows.
    columns: [d] int32.
  """
  ids = ids.astype(jnp.uint32)
  first = sampling.random_bits(key, ids)[..., None]
  second = sampling.random_bits(key[::-1] ^ np.uint32(0x5BD1E995), ids)
  by_column = columns.astype(jnp.uint32) * _GOLDEN
  by_column ^= by_column >> 15
  by_column = by_column.reshape(*[1] * ids.ndim, -1)
  return (first ^ by_column) * (second | 1)[..., None]


def _bits(values: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Sign in the highest of 16 bits, and all other bits, of float32."""
  bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
  return (bits >> 16) & 0x8000, bits & 0x7FFFFFFF


def _to_bfloat16(values: jax.Array, bits: jax.Array | None) -> jax.Array:
  whole = jax.lax.bitcast_convert_type(values, jnp.uint32)
  more = 0x7FFF + ((whole >> 16) & 1) if bits is None else bits >> 16
  size = whole & 0x7FFFFFFF
  # From the largest number on nothing goes up: infinity and NaN stay, and what
  # is between becomes the largest. A NaN has a bit set that is not cut off.
  kept = jnp.where(size > _INFINITY, whole | 0x400000, whole)
  rounded = jnp.where(size >= 0x7F7F0000, kept, whole + more)
  return (rounded >> 16).astype(jnp.uint16)


def _fixed(values: jax.Array, point: float) -> jax.Array:
  """uint32, values in units of the distance of numbers above `point`."""
  point = np.float32(point)
  sums = jax.lax.bitcast_convert_type(values + point, jnp.uint32)
  return sums - point.view(np.uint32)


def _to_float16(values: jax.Array, bits: jax.Array | None) -> jax.Array:
  sign, size = _bits(values)
  # Below 2^-14 numbers lie 2^-24 apart, as those of float32 do above .5.
  if bits is None:
    small = _fixed(jnp.abs(values), 0.5)
    usual = size + 0xFFF + ((size >> 13) & 1)
  else:
    small = (_fixed(jnp.abs(values), 2.0**-14) + (bits >> 19)) >> 13
    usual = size + (bits >> 19)
  usual = (usual >> 13) - np.uint32(112 << 10)
  rounded = jnp.where(size < 113 << 23, small, usual)
  rounded = jnp.minimum(rounded, 0x7BFF)
  beyond = jnp.where(size > _INFINITY, np.uint32(0x7E00), np.uint32(0x7C00))
  rounded = jnp.where(size < _INFINITY, rounded, beyond)
  return (sign | rounded).astype(jnp.uint16)


def _upwards(values: jax.Array) -> jax.Array:
  """The nearest numbers of 7 significant bits that are not below."""
  bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
  bits = (bits + 0x1FFFF) & ~np.uint32(0x1FFFF)
  return jax.lax.bitcast_convert_type(bits, jnp.float32)


def row_scales(
  largest: jax.Array,
  old: jax.Array | None = None,
  spread: jax.Array | None = None,
) -> jax.Array:
  """Scales with which rows of int8 are written.

  A row keeps its scale while that has room for what the spread leaves, and its
  largest number needs it; so it does if it is written again unchanged. A number
  beyond the spread that an old scale had room for may stay, and not grow.

  Args:
    largest: [...] float32, the largest absolute value of each row.
    old: [...] float32, the scales that the rows had; kept where they do.
    spread: [...] float32, what is beyond is cut unless the old scales have room
      for it; None = nothing is.

  Returns:
    [...] float32; not finite where a row is not.
  """
  room = largest if spread is None else jnp.minimum(largest, spread)
  if old is not None:
    is_fine = (largest >= _SLACK * _LEAST_CODE * old) | (largest == 0)
    is_kept = is_fine & (_SLACK * room <= _LIMIT * old)
    # The old scale has room for all, which a finer one is not to take away.
    room = jnp.where(is_fine, room, largest)
  # Far from what divides to nothing, or by nothing.
  new = jnp.maximum(_upwards(room / _LIMIT), _LEAST_SCALE)
  new = jnp.minimum(new, _LARGEST_SCALE)
  new = jnp.where(jnp.isfinite(largest), new, largest)
  return new if old is None else jnp.where(is_kept, old, new)


def _to_int8(
  values: jax.Array, bits: jax.Array | None, scales: jax.Array
) -> Scaled:
  # Better by one step of Newton's, where division is not exact.
  factors = 1 / scales
  factors *= 2 - scales * factors
  # Nothing but zeros may have a scale of zero.
  is_usual = (scales > 0) & (scales < np.inf)
  units = values * jnp.where(is_usual, factors, 0)[..., None]
  units = jnp.clip(units, -_LIMIT, _LIMIT)
  # Whole numbers have zeros behind the point, whatever the factor is off by,
  # and a carry out of what is there is the way up.
  behind = 0 if bits is None else _BITS_BEHIND
  fixed = _fixed(units, 1.5 * 2 ** (23 - behind))
  if bits is not None:
    fixed += bits >> (32 - behind)
  codes = jax.lax.bitcast_convert_type(fixed, jnp.int32) >> behind
  return Scaled(codes.astype(jnp.int8), scales)


def encode(
  values: jax.Array,
  dtype: str,
  bits: jax.Array | None = None,
  scales: jax.Array | None = None,
) -> Any:
  """Rows as they are stored.

  Finite numbers beyond the largest of the type become that; infinity and NaN
  stay what they are. A row of int8 that has one of them has a scale that is not
  finite, and so has no finite number.

  Args:
    values: [..., d] float32.
    dtype: one of `DTYPES`.
    bits: [..., d] uint32, random; None = to the nearest, halves to even.
    scales: [...] float32, of int8, see `row_scales`; None = what suits a row.

  Returns:
    [..., d] float32, or uint16, the bits of 16-bit numbers, or `Scaled`.
  """
  if dtype == 'float32':
    return values
  if dtype == 'bfloat16':
    return _to_bfloat16(values, bits)
  if dtype == 'float16':
    return _to_float16(values, bits)
  if scales is None:
    scales = row_scales(jnp.max(jnp.abs(values), -1))
  return _to_int8(values, bits, scales)


def decode(rows: Any, dtype: str) -> jax.Array:
  """[..., d] float32, the values of stored rows; exact.

  Args:
    rows: as `encode` returns them.
    dtype: one of `DTYPES`.
  """
  if dtype == 'float32':
    return rows
  if dtype == 'bfloat16':
    wide = rows.astype(jnp.uint32) << 16
    return jax.lax.bitcast_convert_type(wide, jnp.float32)
  if dtype == 'float16':
    half = jax.lax.bitcast_convert_type(rows, jnp.float16)
    return half.astype(jnp.float32)
  return rows.codes.astype(jnp.float32) * rows.scales[..., None]


def is_finite(array: jax.Array) -> jax.Array:
  """bool, whether all of one array of stored rows, or of others, is finite.

  Of 16-bit numbers the largest of float16 is not either, since all that is
  beyond becomes that: as bfloat16 it would be above 1e36.
  """
  if array.dtype == jnp.uint16:
    return ((array & 0x7FFF) < 0x7BFF).all()
  return jnp.isfinite(array).all()
