"""Low-precision rows: bfloat16, float16 and row-scaled int8.

Stochastic rounding goes to one of the two neighbors lo <= v <= hi of a value,

  hi with probability (v - lo) / (hi - lo), else lo,    so that E[SR(v)] = v

and many small updates add up in expectation, where rounding to nearest loses
every update below half a unit in the last place (Zhang, Yang and Yuen 2018;
Gupta et al. 2015). Random bits are added to the bits that will be cut off, and
a carry out of them rounds up. A float32 has those bits; for int8 codes, and
float16 below 2^-14, adding a power of two puts them there.

The random bits are a function of (key, row, column), so that copies of a row,
restarts and other meshes round alike. With two hashes a, b of the row, and the
golden ratio g,

  c = column * g,    bits = (a ^ c ^ (c >> 15)) * (b | 1),

whose upper bits are uniform at every position and all but independent between
any two (multiply-shift hashing, Dietzfelbinger 1996); without the shift, sums
over a row have heavy tails. `experiments/results/rounding-2026-11-22.json`
compares other generators.

16-bit numbers are stored as uint16: XLA for CPUs would widen a whole table of
bfloat16 to scatter to it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.ops import sampling

DTYPES = ('float32', 'bfloat16', 'float16', 'int8')

_INFINITY = np.uint32(0x7F800000)
_GOLDEN = np.uint32(0x9E3779B9)  # 2^32 by the golden ratio
_MAX_CODE = 127  # -128 has no counterpart
_FRACTION_BITS = 14  # of codes before stochastic rounding
_MIN_SCALE = np.float32(2.0**-106)
_MAX_SCALE = np.float32(2.0**121)  # products with codes are finite
# If a row's largest code is below, its scale becomes finer. A row that hardly
# changes keeps its scale, and with it the numbers that did not change.
_MIN_LARGEST_CODE = 120
_SLACK = np.float32(1 - 2.0**-20)  # for sums in another order


class Scaled(NamedTuple):
  """int8 rows; number j of a row is codes[j] * scale."""

  codes: Any  # [..., d] int8, -127 to 127
  scales: Any  # [...] float32 of 7 significant bits, so that products are exact


def key(base: jax.Array, *counters: jax.Array | int) -> jax.Array:
  """Derives [2] uint32 from `base` [2] by integers such as the step."""
  for counter in counters:
    counter = jnp.asarray(counter).astype(jnp.uint32)
    both = base, base[::-1] ^ np.uint32(0xB5297A4D)
    base = jnp.stack([sampling.random_bits(x, counter) for x in both])
  return base


def random_bits(
  key: jax.Array, ids: jax.Array, columns: jax.Array
) -> jax.Array:
  """Returns [..., d] uint32 of rows and columns; upper bits are random."""
  columns = columns.reshape(*[1] * ids.ndim, -1)
  return bits_at(key, ids[..., None], columns)


def bits_at(key: jax.Array, ids: jax.Array, columns: jax.Array) -> jax.Array:
  """Returns the `random_bits` of each row with each column, as broadcast."""
  ids = ids.astype(jnp.uint32)
  first = sampling.random_bits(key, ids)
  second = sampling.random_bits(key[::-1] ^ np.uint32(0x5BD1E995), ids)
  by_column = columns.astype(jnp.uint32) * _GOLDEN
  by_column ^= by_column >> 15
  return (first ^ by_column) * (second | 1)


def _to_bfloat16(values: jax.Array, bits: jax.Array | None) -> jax.Array:
  whole = jax.lax.bitcast_convert_type(values, jnp.uint32)
  more = 0x7FFF + ((whole >> 16) & 1) if bits is None else bits >> 16
  size = whole & 0x7FFFFFFF
  # From the largest number on nothing rounds up: infinity and NaN stay. A NaN
  # needs a bit that is not cut off.
  kept = jnp.where(size > _INFINITY, whole | 0x400000, whole)
  rounded = jnp.where(size >= 0x7F7F0000, kept, whole + more)
  return (rounded >> 16).astype(jnp.uint16)


def _fixed(values: jax.Array, point: float) -> jax.Array:
  """Returns uint32, values in units of the spacing of float32 at `point`."""
  added = np.float32(point)
  sums = jax.lax.bitcast_convert_type(values + added, jnp.uint32)
  return sums - added.view(np.uint32)


def _to_float16(values: jax.Array, bits: jax.Array | None) -> jax.Array:
  whole = jax.lax.bitcast_convert_type(values, jnp.uint32)
  sign, size = (whole >> 16) & 0x8000, whole & 0x7FFFFFFF
  # Below 2^-14 the spacing is 2^-24, as that of float32 above .5.
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


def _round_up(values: jax.Array) -> jax.Array:
  """Rounds up to 7 significant bits."""
  bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
  bits = (bits + 0x1FFFF) & ~np.uint32(0x1FFFF)
  return jax.lax.bitcast_convert_type(bits, jnp.float32)


def row_scales(
  largest: jax.Array,
  old: jax.Array | None = None,
  room: jax.Array | None = None,
) -> jax.Array:
  """Returns [...] float32, scales of int8 rows; not finite where a row is not.

  Takes the largest absolute value of each row and, after a change, its old
  scale, all [...]. Values beyond `room` are clipped; None = nothing is. A row
  keeps its old scale if that covers `room` and is not too coarse, as of a row
  that did not change. A number beyond `room` that the old scale could represent
  may stay, but not grow.
  """
  room = largest if room is None else jnp.minimum(largest, room)
  if old is not None:
    is_fine = (largest >= _SLACK * _MIN_LARGEST_CODE * old) | (largest == 0)
    is_kept = is_fine & (_SLACK * room <= _MAX_CODE * old)
    # The old scale has room for all; a finer one must not clip.
    room = jnp.where(is_fine, room, largest)
  # Reciprocals must not overflow or underflow.
  new = jnp.maximum(_round_up(room / _MAX_CODE), _MIN_SCALE)
  new = jnp.minimum(new, _MAX_SCALE)
  new = jnp.where(jnp.isfinite(largest), new, largest)
  return new if old is None else jnp.where(is_kept, old, new)


def _to_int8(
  values: jax.Array, bits: jax.Array | None, scales: jax.Array
) -> Scaled:
  # One step of Newton's, where division is not exact.
  factors = 1 / scales
  factors *= 2 - scales * factors
  # A scale of zero is that of a row of zeros.
  is_usual = (scales > 0) & (scales < np.inf)
  units = values * jnp.where(is_usual, factors, 0)[..., None]
  units = jnp.clip(units, -_MAX_CODE, _MAX_CODE)
  # Integers have a fraction of zero, despite the error of the factor.
  fraction = 0 if bits is None else _FRACTION_BITS
  fixed = _fixed(units, 1.5 * 2 ** (23 - fraction))
  if bits is not None:
    fixed += bits >> (32 - fraction)
  codes = jax.lax.bitcast_convert_type(fixed, jnp.int32) >> fraction
  return Scaled(codes.astype(jnp.int8), scales)


def encode(
  values: jax.Array,
  dtype: str,
  bits: jax.Array | None = None,
  scales: jax.Array | None = None,
) -> Any:
  """Rounds rows [..., d] to float32, uint16 (16-bit floats) or `Scaled`.

  Rounds by random bits [..., d] uint32; None = to nearest, ties to even. Scales
  [...] of int8 are those of `row_scales`; None = nothing is clipped. Larger
  finite numbers become the type's largest; infinity and NaN stay, in int8 as a
  scale of the row that is not finite.
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
  """Returns [..., d] float32, the exact values of encoded rows."""
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
  """Returns bool, whether all of an array, of stored rows or others, is finite.

  The largest float16, to which values are clipped, is not, nor bfloat16 > 1e36.
  """
  if array.dtype == jnp.uint16:
    return ((array & 0x7FFF) < 0x7BFF).all()
  return jnp.isfinite(array).all()
