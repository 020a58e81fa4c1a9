"""Gram matrices in blocks, against float64."""

import jax
import numpy as np
import pytest

from jaxemb.merging import gram
from jaxemb.runtime import mesh as mesh_lib

_DIMS = (3, 700, 5)  # more than one chunk of columns


def _mesh(num):
  return mesh_lib.make(mesh_lib.Shape(num, 1))


def _sum(rows, scale, num_devices, block_rows):
  mesh = _mesh(num_devices)
  sums = gram.zeros(mesh, rows.shape[1])
  for first in range(0, len(rows), block_rows):
    block = slice(first, first + block_rows)
    sums = gram.add(
      sums,
      gram.put(mesh, rows[block]),
      gram.put(mesh, scale[block]),
      mesh=mesh,
      dims=_DIMS if rows.shape[1] > 8 else (rows.shape[1],),
    )
  return gram.result(sums)


@pytest.mark.parametrize(('num_devices', 'block_rows'), [(1, 80), (8, 16)])
def test_is_the_product_of_scaled_rows(num_devices, block_rows):
  rng = np.random.default_rng(0)
  rows = rng.normal(size=(80, sum(_DIMS))).astype(np.float32)
  weights = rng.integers(0, 3, (80, 3))
  weights[5] = 0
  scale = gram.scale(weights)
  wanted = np.zeros((80, 3))
  for w in range(80):
    for i in range(3):
      wanted[w, i] = weights[w, i] / np.sqrt(max(weights[w].sum(), 1))
  assert np.allclose(scale, wanted, 1e-6)
  z = rows.astype(np.float64)
  for w in range(80):
    for i, part in enumerate(gram.slices(_DIMS)):
      z[w, part] *= wanted[w, i]
  found = _sum(rows, scale, num_devices, block_rows)
  assert found.dtype == np.float64
  assert np.array_equal(found, found.T)
  assert np.abs(found - z.T @ z).max() < 1e-6 * np.abs(z.T @ z).max()


def test_what_rounding_loses_is_carried_along():
  # A thousandth of the last bit of the sum, many times.
  rows = np.full((300, 2), 1e-3, np.float32)
  rows[0] = 3e2
  found = _sum(rows, np.ones((300, 1), np.float32), 1, 1)
  wanted = rows.astype(np.float64).T @ rows
  plain = np.float32(0)
  for row in rows:
    plain += row[0] * row[0]
  assert np.abs(found - wanted).max() < 1e-2 * abs(plain - wanted[0, 0])


def test_nothing_travels_between_devices():
  mesh = _mesh(4)
  sums = gram.zeros(mesh, 8)
  rows = gram.put(mesh, np.ones((8, 8), np.float32))
  scale = gram.put(mesh, np.ones((8, 1), np.float32))
  text = gram.add.lower(sums, rows, scale, mesh=mesh, dims=(8,)).compile()
  assert 'all-' not in text.as_text() and 'permute' not in text.as_text()
  assert len(sums.total[0].sharding.device_set) == 4
  assert isinstance(sums.total[0], jax.Array)
