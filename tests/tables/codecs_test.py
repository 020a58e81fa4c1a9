"""Tables in few bits: the rows of one loop, whatever the layout and the mesh.

Gradients are small whole numbers times a power of two, so that sums are exact
in any order, and rows must come out the same to the last bit.
"""

import functools

import jax
import numpy as np
import pytest

from jaxemb.ops import rounding
from jaxemb.tables import codecs, replicated
from jaxemb.tables import spec as spec_lib
from tests import compiling, marking
from tests.tables import laying

# Columns that two devices share, but not four.
VOCAB, DIM, NUM, STEPS = 300, 6, 24, 3
KEY = np.array([0xA4093822, 0x299F31D0], np.uint32)
RATE = np.float32(0.25)
_bits = jax.jit(rounding.random_bits)
_encode = jax.jit(rounding.encode, static_argnums=1)
_row_scales = jax.jit(rounding.row_scales)
_key = jax.jit(rounding.key)


def _batches():
  """Ids and gradients of each step, whose sums are exact."""
  rng = np.random.default_rng(0)
  for _ in range(STEPS):
    ids = rng.integers(0, 40, NUM).astype(np.int32)
    ids[:6] = [VOCAB - 1, 257, 257, VOCAB, 2**31 - 1, 0]
    grads = rng.integers(-9, 10, (NUM, DIM)) * 2.0**-9
    yield ids, grads.astype(np.float32)


def _spec(dtype, rounds='stochastic', exchange_dtype='float32'):
  return spec_lib.TableSpec('t', VOCAB, DIM, 0.5, dtype, rounds, exchange_dtype)


def _trained(layout, shape, spec, knows=True, optimizer='sgd'):
  """Rows in order of ids, as they are stored; and what was looked up last."""
  laid = laying.lay(layout, shape, optimizer, spec, knows)
  state = laid.init(jax.random.key(1))
  for i, (ids, grads) in enumerate(_batches()):
    key = _key(KEY, i)
    found, state = laid.step(state, ids, laid.widened(grads), RATE, key)
  return _stored(laid.table, state), np.asarray(found)[:, :DIM]


def _stored(table, state):
  """Rows in order of ids as they are stored."""
  found = table.export_rows(state).encoded
  if found.scales is not None:
    return rounding.Scaled(*found)
  return found.data if found.dtype == 'float32' else found.data.view(np.uint16)


def _spread(values):
  """[n] float32, beyond which numbers are cut."""
  return np.float32(2.2 * np.sqrt(np.mean(np.float64(values) ** 2, 1)))


@functools.cache
def _expected(spec):
  """The same, row by row: sums in float64, one rounding for each row."""
  alone = laying.lay('replicated', (1, 1), 'sgd', _spec('float32'))
  start = np.asarray(alone.init(jax.random.key(1)).vectors)
  scales = None
  if spec.dtype == 'int8':
    scales = _row_scales(np.abs(start).max(1), None, _spread(start))
  kept = jax.device_get(_encode(start, spec.dtype, None, scales))
  for i, (ids, grads) in enumerate(_batches()):
    values = spec_lib.from_stored(kept, spec.dtype).decode()
    found = values[np.minimum(ids, VOCAB - 1)]
    total = np.zeros((VOCAB, DIM))
    np.add.at(total, ids[ids < VOCAB], grads[ids < VOCAB])
    values = values - (np.float64(RATE) * total).astype(np.float32)
    bits = scales = None
    if spec.rounding == 'stochastic':
      key = _key(KEY, i)
      bits = _bits(key, np.arange(VOCAB), np.arange(DIM))
    if spec.dtype == 'int8':
      largest = np.abs(values).max(1)
      scales = _row_scales(largest, kept.scales, _spread(values))
    new = _encode(values, spec.dtype, bits, scales)
    is_met = np.isin(np.arange(VOCAB), ids)

    def put(old, new, is_met=is_met):
      is_met = is_met if old.ndim == 1 else is_met[:, None]
      return np.where(is_met, new, old)

    kept = jax.tree.map(put, kept, jax.device_get(new))
  return kept, found


@pytest.mark.parametrize(
  ('layout', 'shape', 'dtype', 'rounds'),
  [
    marking.slow('replicated', (1, 1), 'float16', 'stochastic'),
    ('replicated', (8, 1), 'int8', 'stochastic'),
    marking.slow('replicated_merging', (1, 1), 'bfloat16', 'nearest'),
    marking.slow('row', (1, 8), 'int8', 'stochastic'),
    ('column', (2, 2), 'bfloat16', 'stochastic'),
  ],
)
def test_each_row_is_read_summed_and_rounded_once(layout, shape, dtype, rounds):
  spec = _spec(dtype, rounds)
  kept, found = _trained(layout, shape, spec, dtype != 'float16')
  expected, expected_found = _expected(spec)
  jax.tree.map(np.testing.assert_array_equal, kept, expected)
  is_row = list(_batches())[-1][0] < VOCAB
  np.testing.assert_array_equal(found[is_row], expected_found[is_row])


@pytest.mark.slow
def test_tables_of_int8_start_block_by_block(monkeypatch):
  spec, key = _spec('int8'), jax.random.key(1)

  def made(layout):
    table = laying.LAYOUTS[layout](spec, laying.optimizer('sgd'))
    return _stored(table, jax.jit(table.init)(key))

  whole = made('replicated')
  for layout, numbers in (('replicated', 7 * DIM), ('row', 256 * DIM)):
    monkeypatch.setattr(codecs, '_BLOCK_NUMBERS', numbers)
    jax.tree.map(np.testing.assert_array_equal, made(layout), whole)
  monkeypatch.undo()
  large = spec_lib.TableSpec('t', 200_000, 100, 0.5, 'int8')
  init = replicated.Replicated(large, laying.optimizer('sgd')).init
  compiled = (
    jax.jit(init).lower(key).compile(compiler_options=compiling.AS_USERS_DO)
  )
  size = compiled.memory_analysis().temp_size_in_bytes
  # All rows of float32 would be 80 MB.
  assert size < min(1.1 * 4 * codecs._BLOCK_NUMBERS, 0.25 * 4 * 200_000 * 100)


def test_int8_clips_the_few_numbers_beyond_the_spread():
  rng = np.random.default_rng(0)
  rows = rng.normal(size=(50, 96)).astype(np.float32)
  rows[1, 7] = -20  # beyond 2.2 root mean squares, which grow by it
  rows[2] = 0
  rows[3] *= 1e-25  # whose squares underflow
  rows[4, 1:] = 0
  spec = spec_lib.TableSpec('t', 50, 96, 0.5, 'int8', 'nearest')
  encode = jax.jit(codecs.Codec(spec).encode)
  stored = jax.device_get(encode(rows, np.arange(50), None))
  largest = np.abs(rows).max(1)
  spread = np.maximum(2.2 * np.sqrt(np.mean(rows**2, 1)), 1e-18)
  room, found = np.minimum(largest, spread), 127 * stored.scales
  has = np.arange(50) != 2
  assert (found[has] >= room[has] * (1 - 1e-6)).all()
  assert (found[has] <= room[has] * (1 + 2**-6)).all()
  clipped = np.clip(rows, -found[:, None], found[:, None])
  values = spec_lib.from_stored(stored, 'int8').decode()
  assert (np.abs(values - clipped) <= 0.5001 * stored.scales[:, None]).all()
  assert (clipped != rows).any(1).sum() > 20
  assert not values[2].any()


@pytest.mark.parametrize(
  ('layout', 'shape'),
  [('row', (1, 2)), marking.slow('replicated', (2, 1))],
)
def test_what_travels_in_few_bits_is_summed_in_many(layout, shape):
  # Each gradient has no more bits than bfloat16 keeps; their sums have.
  spec = _spec('float32', exchange_dtype='bfloat16')
  kept, found = _trained(layout, shape, spec)
  expected, expected_found = _expected(_spec('float32', 'nearest'))
  np.testing.assert_allclose(kept, expected, 0, 1e-7)
  is_row = list(_batches())[-1][0] < VOCAB
  error = 2**-8 if layout == 'row' else 0  # its rows travel as well
  np.testing.assert_allclose(found[is_row], expected_found[is_row], error, 1e-7)
