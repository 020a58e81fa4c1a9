"""Rows to and fro, against loops over what every device wants."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.runtime import mesh
from jaxemb.tables import routes
from jaxemb.tables import spec as spec_lib

NUM_ROWS, DIM, NUM = 7, 3, 16  # of each holder; lookups of each device

every_shape = pytest.mark.parametrize('shape', [(1, 1), (1, 4), (2, 2)])
KINDS = ['random', 'one_holder', 'one_place', 'every_place', 'some', 'nothing']
every_kind = pytest.mark.parametrize('kind', KINDS)
# One row at a time, some, and all that a device can want.
every_capacity = pytest.mark.parametrize('capacity', [1, 3, NUM])


def _places(kind, shape):
  """[data, table, NUM] int32, what every device wants."""
  rng = np.random.default_rng(0)
  size, total = (*shape, NUM), shape[1] * NUM_ROWS
  found = rng.integers(0, total + 1, size)  # the last one is no place
  if kind == 'one_holder':
    found = rng.integers(total - NUM_ROWS, total, size)
  elif kind == 'one_place':
    found = np.full(size, total - 2)
  elif kind == 'every_place':
    found = np.full(size, total)
    for device in np.ndindex(*shape):
      some = rng.permutation(total)[:NUM]
      found[device][: len(some)] = some
  elif kind == 'some':  # devices want something
    found[0], found[-1, -1] = total, rng.integers(0, NUM_ROWS, NUM)
  elif kind == 'nothing':
    found = np.full(size, total)
  return found.astype(np.int32)


@functools.cache
def _compiled(shape, capacity):
  """What both functions do, of [data, table, ...] arguments and results."""
  axes = spec_lib.Axes(mesh.DATA, mesh.TABLE, *shape)

  def apply(state, sums):
    """Sums what arrives, and notes in which rounds it does."""
    rows, grads, squares, counts = sums
    # Holders are sent no more than their senders' buffers hold.
    assert rows.shape == (shape[1] * capacity,)
    number = state['rounds']
    return {
      'rounds': number + 1,
      'counts': state['counts'].at[rows].add(counts, mode='drop'),
      'sums': state['sums'].at[rows].add(grads, mode='drop'),
      'squares': state['squares'].at[rows].add(squares, mode='drop'),
      'first': state['first'].at[rows].min(number, mode='drop'),
      'last': state['last'].at[rows].max(number, mode='drop'),
      'padding': state['padding']
      + jnp.sum(jnp.where(rows == NUM_ROWS, counts, 0.0)),
    }

  def one(places, stored, values):
    places, stored, values = places[0, 0], stored[0, 0], values[0, 0]
    route = routes.Route(places, NUM_ROWS, capacity, axes)
    fetched = route.fetch(lambda ids: stored.at[ids].get(mode='clip'))
    state = {
      'rounds': jnp.int32(0),
      'counts': jnp.zeros(NUM_ROWS),
      'sums': jnp.zeros((NUM_ROWS, DIM)),
      'squares': jnp.zeros(NUM_ROWS),
      'first': jnp.full(NUM_ROWS, 99, jnp.int32),
      'last': jnp.full(NUM_ROWS, -1, jnp.int32),
      'padding': jnp.float32(0),
    }
    sums = route.sums(values, values[:, 0])
    sent = route.send(sums, state, apply)
    return jax.tree.map(lambda x: x[None, None], (*fetched, sent))

  spec = jax.sharding.PartitionSpec(mesh.DATA, mesh.TABLE)
  devices = mesh.make(mesh.Shape(*shape))
  return jax.jit(
    jax.shard_map(
      one, mesh=devices, in_specs=spec, out_specs=spec, check_vma=False
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


@every_shape
@every_capacity
@every_kind
def test_rows_and_sums_arrive_where_they_belong(shape, capacity, kind):
  places, rng = _places(kind, shape), np.random.default_rng(1)
  stored = rng.normal(size=(shape[1], NUM_ROWS, DIM)).astype(np.float32)
  everywhere = np.broadcast_to(stored, (shape[0], *stored.shape))
  values = rng.integers(-8, 9, (*shape, NUM, DIM)).astype(np.float32)
  found, overflow_rounds, state = jax.device_get(
    _compiled(shape, capacity)(places, everywhere, values)
  )
  # Every device gets the rows that it wants.
  assert found.shape == (*shape, NUM, DIM)
  rows = np.concatenate([*stored, np.zeros((1, DIM))])  # no place gives zeros
  np.testing.assert_array_equal(found, rows[places])
  rounds = _num_rounds(places, shape[1], capacity)
  assert (overflow_rounds + 1 == rounds).all()
  assert (state['rounds'] == rounds).all()
  # Holders get the sums of all devices along the table axis.
  counts = np.zeros((*shape, NUM_ROWS))
  sums = np.zeros((*shape, NUM_ROWS, DIM))
  for data, sender in np.ndindex(*shape):
    for i, place in enumerate(places[data, sender].tolist()):
      holder, row = divmod(place, NUM_ROWS)
      if holder < shape[1]:
        counts[data, holder, row] += 1
        sums[data, holder, row] += values[data, sender, i]
  np.testing.assert_array_equal(state['counts'], counts)
  np.testing.assert_array_equal(state['sums'], sums)
  np.testing.assert_array_equal(state['squares'], sums[..., 0])
  assert not state['padding'].any()  # empty places of buffers hold nothing
  # A row has the sums of all devices in one and the same round.
  first, last = state['first'].min(0), state['last'].max(0)
  met = counts.any(0)
  assert (first[met] == last[met]).all()
  assert (last[~met] == -1).all()


def test_the_rounds_are_as_many_as_they_should_be():
  # The loop that counts them, by hand.
  assert _num_rounds(_places('nothing', (2, 2)), 2, 1) == 1
  assert _num_rounds(_places('every_place', (2, 2)), 2, NUM) == 1
  assert _num_rounds(_places('every_place', (2, 2)), 2, 1) == NUM_ROWS
  # All of a stretch in one buffer, the rest in another.
  places = np.full((1, 1, NUM), NUM_ROWS)
  places[0, 0, :5] = [6, 0, 3, 3, 5]
  assert [_num_rounds(places, 1, c) for c in (1, 2, 3, 4)] == [4, 2, 2, 1]
