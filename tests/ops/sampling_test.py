"""Negatives: the alias table, the bits, and what comes out of both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxemb.ops import sampling

KEY = np.array([0x243F6A88, 0x85A308D3], np.uint32)

_bits = jax.jit(sampling.random_bits)
_draw = jax.jit(sampling.draw)


def _zipf(vocab):
  return (1e7 / np.arange(1, vocab + 1)) ** 0.75


def _implied(table):
  """[vocab] float64: the chance of each word that a table stands for."""
  probability, alias = (np.asarray(x) for x in table)
  chance = probability.astype(np.float64).copy()
  for slot in range(len(alias)):
    chance[alias[slot]] += 1 - np.float64(probability[slot])
  return chance / len(alias)


def _positions(chunk, num):
  """The positions of the draws of a chunk, of which each has `num`."""
  return (chunk * num + np.arange(num, dtype=np.int64)).astype(np.uint32)


def _draws(table, num_chunks, num, key=KEY):
  chunks = [_draw(table, key, _positions(i, num)) for i in range(num_chunks)]
  return np.concatenate([np.asarray(x) for x in chunks])


def _chi_square(found, chance):
  """p-value of counts against chances; cells of under 10 are put together."""
  expected = chance / chance.sum() * found.sum()
  order = np.argsort(-expected)
  found, expected = found[order], expected[order]
  last = max(int((expected >= 10).sum()), 1)
  rest = found[last:].sum(), expected[last:].sum()
  found, expected = found[:last], expected[:last]
  if rest[1] >= 10:
    found = np.append(found, rest[0])
    expected = np.append(expected, rest[1])
  expected = expected * (found.sum() / expected.sum())
  return scipy.stats.chisquare(found, expected).pvalue


# One huge weight; zeros among few others; all equal; all on the last.
WEIGHTS = {
  'one': np.array([3.0]),
  'two': np.array([1.0, 3.0]),
  'seven': _zipf(7),
  'thousand': _zipf(1000),
  'large': _zipf(70_000),
  'equal': np.full(1000, 0.1),
  'integers': np.arange(1, 100),
  'one_huge': np.append(np.ones(999), 1e12),
  'zeros': np.where(np.arange(5000) % 7, 0.0, 1.1),
  'all_on_last': np.append(np.zeros(4999), 5.0),
  'tiny': np.array([1e-300, 2e-300, 1e-300]),
}


@pytest.mark.parametrize('weights', WEIGHTS.values(), ids=WEIGHTS)
def test_table_stands_for_its_weights(weights):
  before = weights.copy()
  table = sampling.alias_table(weights)
  np.testing.assert_array_equal(weights, before)
  assert table.probability.dtype == np.float32
  assert table.alias.dtype == np.int32
  assert 0 <= table.alias.min() and table.alias.max() < len(weights)
  assert 0 <= table.probability.min() and table.probability.max() <= 1
  chance = weights / weights.sum()
  # Keep probabilities are float32: an error of 2^-25 in each slot met.
  np.testing.assert_allclose(
    _implied(table), chance, 1e-5, 2**-24 / len(weights)
  )
  # A weight of zero is never drawn, not even by rounding.
  assert not _implied(table)[weights == 0].any()


@pytest.mark.parametrize('vocab', [2, 7, 1000, 70_000])
def test_draws_follow_counts_to_the_three_quarters(vocab):
  table = sampling.alias_table(_zipf(vocab))
  drawn = _draws(table, 16, 1 << 17)
  assert drawn.dtype == np.int32
  assert 0 <= drawn.min() and drawn.max() < vocab
  found = np.bincount(drawn, minlength=vocab)
  assert _chi_square(found, _zipf(vocab)) > 1e-3
  # Pairs of neighbours, thinned to 20 x 20 cells, are independent.
  edges = np.searchsorted(np.cumsum(found), np.arange(1, 20) / 20 * len(drawn))
  cell = np.searchsorted(edges, drawn)
  joint = np.bincount(20 * cell[:-1:2] + cell[1::2], minlength=400)
  share = np.bincount(cell, minlength=20) / len(cell)
  chance = np.outer(share, share).reshape(-1)
  assert _chi_square(joint[chance > 0], chance[chance > 0]) > 1e-3


@pytest.mark.parametrize(
  'name', ['one', 'one_huge', 'zeros', 'all_on_last', 'equal']
)
def test_draws_of_extreme_weights(name):
  weights = WEIGHTS[name]
  drawn = _draws(sampling.alias_table(weights), 8, 1 << 15)
  found = np.bincount(drawn, minlength=len(weights))
  assert not found[weights == 0].any()
  if name == 'one_huge':  # 1 - 1e-9 of all
    assert (drawn == 999).all()
  elif (weights > 0).sum() > 1:
    assert _chi_square(found[weights > 0], weights[weights > 0]) > 1e-3


def test_scale_is_exact():
  rng = np.random.default_rng(0)
  sizes = [1, 2, 3, 7, 65_535, 65_536, 65_537, 70_000, 10**6, 2**24 + 1]
  sizes += [10**8 + 7, 2**30, 2**31 - 2, 2**31 - 1]
  sizes += [int(x) for x in rng.integers(1, 2**31, 20)]
  scale = jax.jit(sampling._scale, static_argnums=1)
  for size in sizes:
    # Random bits, the ends, and the bits where the result steps.
    bits = rng.integers(0, 2**32, 40, np.int64).tolist() + [0, 2**32 - 1]
    for value in rng.integers(0, size, 20).tolist() + [size - 1]:
      step = -(-(value << 32) // size)
      bits += [step, max(step - 1, 0)]
    expected = [(b * size) >> 32 for b in bits]
    found = scale(jnp.asarray(np.array(bits, np.uint32)), size)
    assert np.asarray(found).tolist() == expected, size


def test_bits_are_the_stated_hash():
  mask = 2**32 - 1

  def mix(x):
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & mask
    x = ((x ^ (x >> 15)) * 0x735A2D97) & mask
    return x ^ (x >> 15)

  # Positions wrap at 2^32.
  for chunk, num in [(0, 5), (3, 5), (2**32 // 7, 9), (2**32 - 1, 1)]:
    expected = []
    for i in range(num):
      counter = (chunk * num + i) & mask
      first = mix((counter * 0x9E3779B9 + int(KEY[0])) & mask)
      expected.append(mix(first ^ int(KEY[1])))
    found = _bits(KEY, _positions(chunk, num))
    assert found.dtype == jnp.uint32
    assert np.asarray(found).tolist() == expected


def test_bits_of_a_key_never_repeat():
  num = 1 << 16
  bits = [np.asarray(_bits(KEY, _positions(i, num))) for i in range(16)]
  assert len(np.unique(np.concatenate(bits))) == 16 * num


def test_bits_depend_on_the_position_alone():
  # Not on where in the array it is, on its shape, or on how many come along.
  num = 1 << 10
  whole = np.asarray(_bits(KEY, _positions(0, num)))
  order = np.random.default_rng(0).permutation(num)
  found = _bits(KEY, _positions(0, num)[order].reshape(4, 8, -1))
  assert found.shape == (4, 8, num // 32)
  np.testing.assert_array_equal(np.asarray(found).reshape(-1), whole[order])
  assert int(_bits(KEY, np.uint32(7))) == whole[7]


def test_bits_of_other_keys_are_others():
  num = 1 << 16
  bits = np.asarray(_bits(KEY, _positions(0, num)))
  for bit in range(0, 64, 7):
    key = KEY.copy()
    key[bit // 32] ^= np.uint32(1 << (bit % 32))
    other = np.asarray(_bits(key, _positions(0, num)))
    # Two random sets of 2^16 numbers below 2^32 share one on average.
    assert len(np.intersect1d(bits, other)) < 8
    # Half of all bits flip: 2^21 fair coins.
    flipped = np.bitwise_count(bits ^ other).sum() / (32 * num)
    assert abs(flipped - 0.5) < 4 * 0.5 / np.sqrt(32 * num)


def test_bits_are_balanced_and_independent():
  num = 1 << 18
  bits = np.asarray(_bits(KEY, _positions(1, num)))
  ones = np.array([(bits >> b) & 1 for b in range(32)]).astype(np.float64)
  error = 0.5 / np.sqrt(num)
  assert np.abs(ones.mean(1) - 0.5).max() < 4 * error
  # Correlation of every two bits of a number, and of one bit with itself in
  # the next numbers; 500 and 160 of them, so five standard errors.
  together = np.corrcoef(ones) - np.eye(32)
  assert np.abs(together).max() < 5 / np.sqrt(num)
  for lag in (1, 2, 3, 16, 32):
    product = (2 * ones[:, lag:] - 1) * (2 * ones[:, :-lag] - 1)
    assert np.abs(product.mean(1)).max() < 5 / np.sqrt(num)


def test_draw_is_a_pure_function_of_key_and_position():
  table = sampling.alias_table(_zipf(1000))
  first = _draw(table, KEY, _positions(0, 512))
  np.testing.assert_array_equal(first, _draw(table, KEY, _positions(0, 512)))
  for key, chunk in [(KEY, 1), (KEY + np.uint32(1), 0)]:
    other = _draw(table, key, _positions(chunk, 512))
    assert (np.asarray(other) == np.asarray(first)).mean() < 0.2
  # What a device draws for some chunks is what one draws for all of them.
  order = np.random.default_rng(0).permutation(512)
  found = _draw(table, KEY, _positions(0, 512)[order].reshape(16, 32))
  assert found.shape == (16, 32) and found.dtype == jnp.int32
  np.testing.assert_array_equal(
    np.asarray(found).reshape(-1), np.asarray(first)[order]
  )


_rows = jax.jit(sampling.uniform_rows, static_argnums=3)


def test_rows_are_uniform_and_independent():
  num, dim = 1 << 13, 64
  rows = np.asarray(_rows(KEY, jnp.arange(num), jnp.arange(dim), 0.25))
  assert rows.shape == (num, dim) and rows.dtype == np.float32
  assert -0.25 <= rows.min() < -0.2499 and 0.2499 < rows.max() < 0.25
  cells = np.floor((rows.astype(np.float64) + 0.25) * 2 * 256).astype(int)
  found = np.bincount(cells.reshape(-1), minlength=256)
  assert scipy.stats.chisquare(found).pvalue > 1e-3
  # As many different ones as 2^19 draws of 2^24 values have: 2^19 less the
  # pairs that agree, with four deviations.
  pairs = rows.size**2 / 2 / 2**24
  differing = len(np.unique(rows))
  assert abs(rows.size - differing - pairs) < 4 * np.sqrt(pairs) + 0.02 * pairs
  # Columns over rows, rows over columns, neighbours of both kinds.
  columns = np.corrcoef(rows.T.astype(np.float64)) - np.eye(dim)
  assert np.abs(columns).max() < 5 / np.sqrt(num)
  some = np.corrcoef(rows[:512].astype(np.float64)) - np.eye(512)
  assert np.abs(some).max() < 6 / np.sqrt(dim) and abs(some.mean()) < 1e-3
  for near, far in ((rows[1:], rows[:-1]), (rows[256:], rows[:-256])):
    product = (near.astype(np.float64) * far).mean() / (0.25**2 / 3)
    assert abs(product) < 4 / np.sqrt(near.size)
  product = (rows[:, 1:].astype(np.float64) * rows[:, :-1]).mean()
  assert abs(product) / (0.25**2 / 3) < 4 / np.sqrt(rows.size)


def test_a_number_of_a_row_depends_on_key_row_and_column_alone():
  whole = np.asarray(_rows(KEY, jnp.arange(600), jnp.arange(40), 0.5))
  # Any device's part of it, in any shape.
  ids = np.random.default_rng(0).permutation(600).astype(np.int32)
  columns = np.array([39, 3, 4, 5, 17], np.int32)
  found = _rows(KEY, ids.reshape(2, 3, 100), columns, 0.5)
  assert found.shape == (2, 3, 100, 5)
  np.testing.assert_array_equal(
    np.asarray(found).reshape(600, 5), whole[ids][:, columns]
  )
  # The scale is a factor, and every bit of the key matters.
  np.testing.assert_array_equal(
    _rows(KEY, ids, columns, 2.0), 4 * whole[ids][:, columns]
  )
  for bit in range(0, 64, 7):
    key = KEY.copy()
    key[bit // 32] ^= np.uint32(1 << (bit % 32))
    other = np.asarray(_rows(key, jnp.arange(600), jnp.arange(40), 0.5))
    assert (other == whole).mean() < 1e-3
  swapped = np.asarray(_rows(KEY[::-1], jnp.arange(600), jnp.arange(40), 0.5))
  assert (swapped == whole).mean() < 1e-3


def test_no_row_is_another_one_moved_by_columns():
  # A single hash of 32 bits for the row makes some two hundred pairs of them.
  num = 1 << 20
  rows = _rows(KEY, jnp.arange(num), jnp.arange(4), 1.0)
  unit = np.asarray((rows + 1) * 2**23).astype(np.uint64)
  pairs = [unit[:, i] << np.uint64(24) | unit[:, i + 1] for i in range(3)]
  assert len(np.unique(np.concatenate(pairs))) == 3 * num
