"""Rows that travel, and in how many rounds; `layouts_test` has the updates."""

import functools

import jax
import numpy as np
import pytest

from jaxemb.runtime import mesh
from jaxemb.tables import row_sharded
from jaxemb.tables import spec as spec_lib
from tests import marking

NUM_ROWS, DIM, NUM = 7, 3, 16  # of each holder; lookups of each device

KINDS = ['random', 'one_holder', 'every_place', 'some']


def _places(kind, shape):
  """[data, table, NUM] int32, what every device wants."""
  rng = np.random.default_rng(0)
  size, total = (*shape, NUM), shape[1] * NUM_ROWS
  found = rng.integers(0, total + 1, size)  # the last one is no place
  if kind == 'one_holder':
    found = rng.integers(total - NUM_ROWS, total, size)
  elif kind == 'every_place':
    found = np.full(size, total)
    for device in np.ndindex(*shape):
      some = rng.permutation(total)[:NUM]
      found[device][: len(some)] = some
  elif kind == 'some':  # devices want something
    found[0], found[-1, -1] = total, rng.integers(0, NUM_ROWS, NUM)
  return found.astype(np.int32)


@functools.cache
def _fetch(shape, capacity):
  """Of [data, table, ...] places and rows of holders."""
  axes = spec_lib.Axes(*shape)

  def fetch(places, stored):
    route = row_sharded.Route(places[0, 0], NUM_ROWS, capacity, axes)
    found = route.fetch(lambda ids: stored[0, 0].at[ids].get(mode='clip'))
    return jax.tree.map(lambda x: x[None, None], found)

  spec = jax.sharding.PartitionSpec(mesh.DATA, mesh.TABLE)
  devices = mesh.make(mesh.Shape(*shape))
  return jax.jit(
    jax.shard_map(
      fetch, mesh=devices, in_specs=spec, out_specs=spec, check_vma=False
    )
  )


def _num_rounds(places, num_table, capacity):
  """Rounds that end where a buffer of any device would be over-full."""
  stretches = [
    sorted(set(place % NUM_ROWS for place in wanted if place // NUM_ROWS == o))
    for wanted in places.reshape(-1, NUM).tolist()
    for o in range(num_table)
  ]
  cut = rounds = 0
  while cut < NUM_ROWS:
    left = [[x for x in stretch if x >= cut] for stretch in stretches]
    cut = min([x[capacity] for x in left if len(x) > capacity] + [NUM_ROWS])
    rounds += 1
  return rounds


@pytest.mark.parametrize('shape', [(2, 2), marking.slow((1, 4))])
# One row at a time, some, and all that a device can want.
@pytest.mark.parametrize('capacity', [1, 3, NUM])
@pytest.mark.parametrize('kind', KINDS)
def test_every_device_gets_its_rows_in_as_few_rounds_as_possible(
  shape, capacity, kind
):
  places, rng = _places(kind, shape), np.random.default_rng(1)
  stored = rng.normal(size=(shape[1], NUM_ROWS, DIM)).astype(np.float32)
  everywhere = np.broadcast_to(stored, (shape[0], *stored.shape))
  found, overflow_rounds = _fetch(shape, capacity)(places, everywhere)
  rows = np.concatenate([*stored, np.zeros((1, DIM))])  # no place gives zeros
  np.testing.assert_array_equal(found, rows[places])
  rounds = _num_rounds(places, shape[1], capacity)
  assert (np.asarray(overflow_rounds) + 1 == rounds).all()
