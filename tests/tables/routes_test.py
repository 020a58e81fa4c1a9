"""Rows to and fro, against loops over what every device wants."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.runtime import mesh
from jaxemb.tables import routes
from jaxemb.tables import spec as spec_lib
from tests import compiling

NUM_ROWS, DIM, NUM = 7, 3, 16  # of each holder; look-ups of each device

SHAPES = [(1, 1), (1, 4), (2, 2)]
every_shape = pytest.mark.parametrize('shape', SHAPES)
KINDS = ['random', 'one_holder', 'one_place', 'every_place', 'some', 'nothing']
every_kind = pytest.mark.parametrize('kind', KINDS)
# One row at a time, some, and all that a device can want.
every_capacity = pytest.mark.parametrize('capacity', [1, 3, NUM])


def _places(kind, shape, seed=0):
  """[data, table, NUM] int32, what every device wants."""
  rng = np.random.default_rng(seed)
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


def _on_devices(shape, function):
  """`function` of every device's part of [data, table, ...] arguments."""

  def one(*arguments):
    part = function(*(x[0, 0] for x in arguments))
    return jax.tree.map(lambda x: jnp.asarray(x)[None, None], part)

  if shape != (1, 1):
    spec = jax.sharding.PartitionSpec(mesh.DATA, mesh.TABLE)
    one = jax.shard_map(
      one,
      mesh=mesh.make(mesh.Shape(*shape)),
      in_specs=spec,
      out_specs=spec,
      check_vma=False,
    )
  return jax.jit(one)


def _route(shape, capacity, places):
  axes = spec_lib.Axes(mesh.DATA, mesh.TABLE, *shape)
  return routes.route(places, NUM_ROWS, capacity, axes)


def _held(vectors, ids):
  return vectors.at[ids].get(mode='clip')


@functools.cache
def _fetch(shape, capacity):
  return _on_devices(
    shape,
    lambda places, vectors: routes.fetch(
      _route(shape, capacity, places), lambda ids: _held(vectors, ids)
    ),
  )


@functools.cache
def _merge(shape):
  def merge(places, values):
    route = _route(shape, 2, places)
    counts, sums = routes.sums(route, {'a': values, 'b': values[:, :1]})
    return route.distinct, counts, sums

  return _on_devices(shape, merge)


@functools.cache
def _send(shape, capacity):
  """Sums what arrives, and notes in which rounds it does."""

  def apply(state, rows, counts, sums):
    # Holders are sent no more than their senders' buffers hold.
    assert rows.shape == (shape[1] * capacity,)
    number = state['rounds']
    padding = jnp.sum(jnp.where(rows == NUM_ROWS, counts, 0.0))
    return {
      'rounds': number + 1,
      'counts': state['counts'].at[rows].add(counts, mode='drop'),
      'sums': state['sums'].at[rows].add(sums['a'], mode='drop'),
      'first': state['first'].at[rows].min(number, mode='drop'),
      'last': state['last'].at[rows].max(number, mode='drop'),
      'padding': state['padding'] + padding,
    }

  def send(places, values):
    route = _route(shape, capacity, places)
    state = {
      'rounds': jnp.int32(0),
      'counts': jnp.zeros(NUM_ROWS),
      'sums': jnp.zeros((NUM_ROWS, DIM)),
      'first': jnp.full(NUM_ROWS, 99, jnp.int32),
      'last': jnp.full(NUM_ROWS, -1, jnp.int32),
      'padding': jnp.float32(0),
    }
    return routes.send(route, routes.sums(route, {'a': values}), state, apply)

  return _on_devices(shape, send)


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
def test_everyone_gets_the_rows_that_it_wants(shape, capacity, kind):
  places = _places(kind, shape)
  rng = np.random.default_rng(1)
  stored = rng.normal(size=(shape[1], NUM_ROWS, DIM)).astype(np.float32)

  stored_everywhere = np.broadcast_to(stored, (shape[0], *stored.shape))
  found, overflow_rounds = jax.device_get(
    _fetch(shape, capacity)(places, stored_everywhere)
  )
  assert found.shape == (*shape, NUM, DIM)
  rows = np.concatenate([*stored, np.zeros((1, DIM))])  # no place gives zeros
  np.testing.assert_array_equal(found, rows[places])
  assert (overflow_rounds + 1 == _num_rounds(places, shape[1], capacity)).all()


@every_shape
@every_kind
def test_look_ups_of_a_place_are_summed(shape, kind):
  places = _places(kind, shape)
  rng = np.random.default_rng(1)
  values = rng.integers(-8, 9, (*shape, NUM, DIM)).astype(np.float32)

  distinct, counts, sums = jax.device_get(_merge(shape)(places, values))
  for device in np.ndindex(*shape):
    wanted = places[device]
    different = np.unique(wanted)
    # Each once, in order, and no place behind them.
    assert distinct[device][: len(different)].tolist() == different.tolist()
    assert (distinct[device][len(different) :] == shape[1] * NUM_ROWS).all()
    for u, place in enumerate(different):
      mine = wanted == place
      assert counts[device][u] == mine.sum()
      expected = values[device][mine].sum(0)
      np.testing.assert_array_equal(sums['a'][device][u], expected)
      np.testing.assert_array_equal(sums['b'][device][u], expected[:1])


@every_shape
@every_capacity
@every_kind
def test_holders_get_the_sums_of_all_devices(shape, capacity, kind):
  places = _places(kind, shape)
  rng = np.random.default_rng(1)
  values = rng.integers(-8, 9, (*shape, NUM, DIM)).astype(np.float32)

  state = jax.device_get(_send(shape, capacity)(places, values))
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
  assert not state['padding'].any()  # empty places of buffers hold nothing
  rounds = _num_rounds(places, shape[1], capacity)
  assert (state['rounds'] == rounds).all()
  # A row has the sums of all devices in one and the same round.
  first, last = state['first'].min(0), state['last'].max(0)
  met = counts.any(0)
  assert (first[met] == last[met]).all()
  assert (last[~met] == -1).all()


def test_the_rounds_are_as_many_as_they_should_be():
  # The loop that counts them, by hand.
  for kind, capacity, expected in [
    ('nothing', 1, 1),
    ('one_place', 1, 1),
    ('every_place', NUM, 1),
    ('every_place', 1, NUM_ROWS),
    ('one_holder', NUM_ROWS, 1),
  ]:
    assert _num_rounds(_places(kind, (2, 2)), 2, capacity) == expected
  assert _num_rounds(_places('random', (1, 4)), 4, 1) > 3
  # All of a stretch in one buffer, the rest in another.
  places = np.full((1, 1, NUM), NUM_ROWS)
  places[0, 0, :5] = [6, 0, 3, 3, 5]
  assert [_num_rounds(places, 1, c) for c in (1, 2, 3, 4)] == [4, 2, 2, 1]


def test_what_travels_has_the_size_of_the_buffers():
  shape, capacity = (1, 4), 3
  places = _places('random', shape)
  axes = spec_lib.Axes(mesh.DATA, mesh.TABLE, *shape)

  def fetch(places, vectors):
    route = routes.route(places, NUM_ROWS, capacity, axes)
    return routes.fetch(route, lambda ids: _held(vectors, ids))[0]

  over = jax.sharding.PartitionSpec(mesh.TABLE)
  text = (
    jax.jit(
      jax.shard_map(
        fetch,
        mesh=mesh.make(mesh.Shape(*shape)),
        in_specs=over,
        out_specs=over,
        check_vma=False,
      )
    )
    .lower(places.reshape(-1), np.zeros((4 * NUM_ROWS, DIM), np.float32))
    .compile(compiler_options=compiling.AS_USERS_DO)
    .as_text()
  )
  lines = [line for line in text.splitlines() if ' all-to-all(' in line]
  sent = [re.search(r'\w+\[[\d,]*\]', line)[0] for line in lines]
  # What is asked for, and the rows.
  assert sorted(sent) == [f'f32[1,{capacity},{DIM}]', f's32[1,{capacity}]']
  assert 'all-gather' not in text
