"""Checkpoints: exact, limited in number, robust to damage and full disks."""

import contextlib
import errno
import json
import resource
import sys
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxemb import errors
from jaxemb.runtime import mesh, process, resources
from jaxemb.storage import checkpoint, orbax_export


def _state(value):
  rng = np.random.default_rng(int(value))
  vectors = rng.random((3000, 100)).astype(np.float32) + value
  return {'vectors': jnp.asarray(vectors), 'slots': jnp.full(5, value)}


def _assert_restored(saved, step):
  found, state, record = saved.restore(lambda _: _state(0))
  assert found == record['step'] == step
  jax.tree.map(np.testing.assert_array_equal, state, _state(step))
  assert state['vectors'].dtype == np.float32


@pytest.fixture
def lines():
  return []


@pytest.fixture
def folder(tmp_path, lines):
  """With the last two of three checkpoints, and a save that was killed."""
  folder = tmp_path / 'run' / 'checkpoints'
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    assert saved.restore(lambda _: _state(0)) is None
    for step in (1, 2, 3):
      saved.save(step, _state(step), {'step': step})
  (folder / '7.orbax-checkpoint-tmp').mkdir()
  return folder


@pytest.fixture
def saved(folder, lines):
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    yield saved


def _names(folder):
  return sorted(path.name for path in folder.iterdir())


def test_the_newest_comes_back_exactly(folder, saved, lines, monkeypatch):
  assert _names(folder) == ['2', '3']

  def fail(*_):
    raise MemoryError

  # An error that passes leaves all as they are.
  with monkeypatch.context() as patch:
    patch.setattr(saved, '_read', fail)
    with pytest.raises(MemoryError):
      saved.restore(lambda _: _state(0))
  _assert_restored(saved, 3)
  assert not lines


def test_the_record_of_a_save_that_was_killed_is_not_the_newest(folder):
  record = folder / '7.orbax-checkpoint-tmp/record'
  record.mkdir()
  (record / 'metadata').write_text('{}')
  assert checkpoint.newest_record(folder)['step'] == 3


def test_no_record_is_read_that_has_changed(folder):
  path = folder / '3' / 'record' / 'metadata'
  data, rest = path.read_bytes(), checkpoint.newest_record(folder)
  del rest['checksum']
  for place in range(len(data)):
    for bit in 0, 4:
      flipped = bytearray(data)
      flipped[place] ^= 1 << bit
      path.write_bytes(flipped)
      found = checkpoint.newest_record(folder)
      # Without the name of its checksum it is one of before there were any.
      assert found is None or found.items() >= rest.items()


def test_a_state_may_be_donated_once_save_returns(tmp_path, lines):
  step = jax.jit(lambda x: x + 1, donate_argnums=0)
  array = jnp.zeros((1000, 1000))
  with checkpoint.Checkpoints(tmp_path, 2, lines.append) as saved:
    saved.save(1, {'a': array}, {})
    for _ in range(10):
      array = step(array)
    saved.wait()
    like = {'a': np.empty_like(array)}
    assert not saved.restore(lambda _: like)[1]['a'].any()


def _flip_bytes(folder):
  files = (path for path in folder.rglob('*') if path.is_file())
  largest = max(files, key=lambda path: path.stat().st_size)
  data = bytearray(largest.read_bytes())
  middle = slice(len(data) // 2, len(data) // 2 + 64)
  data[middle] = bytes(x ^ 0xFF for x in data[middle])
  largest.write_bytes(data)


def _change_step(folder):
  path = folder / 'record' / 'metadata'
  path.write_text(path.read_text().replace('"step": ', '"step": 1'))


@pytest.mark.parametrize(
  'damage',
  [
    _flip_bytes,
    lambda folder: (folder / 'state' / 'manifest.ocdbt').unlink(),
    lambda folder: (folder / 'record' / 'metadata').write_text('{"step": 3'),
    _change_step,
  ],
)
def test_of_damaged_ones_the_one_before_is_used(folder, saved, lines, damage):
  damage(folder / '3')
  _assert_restored(saved, 2)
  assert len(lines) == 1 and 'checkpoint 3 is damaged' in lines[0]
  # The number is free again for the run that repeats those steps.
  saved.save(3, _state(3), {'step': 3})
  saved.wait()
  _assert_restored(saved, 3)
  # Nothing is moved where all are damaged: the cause may be elsewhere.
  damage(folder / '2')
  damage(folder / '3')
  with pytest.raises(errors.UserError, match='delete that folder'):
    saved.restore(lambda _: _state(0))
  assert _names(folder) == ['2', '3']


@pytest.mark.parametrize('time', [1.5, 10**26, 10**40, [], 'now'])
def test_damaged_times_do_not_matter(folder, lines, time):
  for step in '2', '3':
    path = folder / step / '_CHECKPOINT_METADATA'
    known = json.loads(path.read_text())
    path.write_text(json.dumps(known | {'commit_timestamp_nsecs': time}))
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    _assert_restored(saved, 3)
    saved.save(4, _state(4), {'step': 4})
  assert _names(folder) == ['3', '4']
  assert len(lines) == 2 and '_CHECKPOINT_METADATA, which' in lines[0]


@contextlib.contextmanager
def _moved(folder):
  away = folder.rename(folder.with_name('away'))
  folder.write_text('a file in its place')
  yield
  folder.unlink()
  away.rename(folder)


def _parent_moved(folder):
  return _moved(folder.parent)


@contextlib.contextmanager
def _full_disk(_):
  old = resource.getrlimit(resource.RLIMIT_FSIZE)
  # No file may grow beyond this: writes fail as on a full disk.
  resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, old[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize('obstacle', [_moved, _parent_moved, _full_disk])
def test_a_save_that_fails_is_reported_and_training_goes_on(
  folder, lines, obstacle
):
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    with obstacle(folder):
      for step in (4, 5):
        saved.save(step, _state(step), {})
      assert saved.wait() not in (4, 5)
    assert len(lines) == 2
    assert 'not saved' in lines[0] and 'training goes on' in lines[0]
    saved.save(6, _state(6), {'step': 6})
    assert saved.wait() == 6
    _assert_restored(saved, 6)
  assert not list(folder.glob('*tmp*'))
  # A thread that still waits would keep the program from ending.
  kinds = [type(thread).__module__ for thread in threading.enumerate()]
  assert not [kind for kind in kinds if kind.startswith('orbax')]


def test_what_a_failed_save_raises_late_ends_no_run(folder, lines, monkeypatch):
  late, close = [], ocp.CheckpointManager.close

  def closed(manager):
    if late:
      raise late.pop()
    close(manager)

  monkeypatch.setattr(ocp.CheckpointManager, 'close', closed)
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    late.append(OSError(errno.ENOSPC, 'no space'))
    with _moved(folder):
      saved.save(4, _state(4), {})
    saved.save(5, _state(5), {'step': 5})
    assert saved.wait() == 5
    late.append(OSError(errno.ENOSPC, 'no space'))
  assert len(lines) == 1 and 'not saved' in lines[0]


@pytest.mark.slow
def test_arrays_come_back_on_any_mesh(tmp_path):
  table = np.random.default_rng(0).normal(size=(9, 10)).astype(np.float32)
  shared = np.arange(24, dtype=np.float32).reshape(4, 3, 2)

  def on(num):
    devices = mesh.make(mesh.Shape(8 // num, num))

    def put(array, *axes):
      sharding = NamedSharding(devices, PartitionSpec(*axes))
      return jax.device_put(array, sharding)

    # Another mesh has other padding columns.
    padded = np.pad(table, ((0, 0), (0, -10 % num)))
    return {
      'shared': put(shared, mesh.DATA if num == 2 else None),
      'number': put(np.int32(5)),
      'table': put(padded, None, mesh.TABLE),
    }

  with checkpoint.Checkpoints(tmp_path, 3, print) as saved:
    saved.save(1, on(2), {})
    saved.wait()
    for num in (1, 2, 4, 8):
      like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
        on(num),
      )
      _, found, _ = saved.restore(lambda _, like=like: like)
      jax.tree.map(np.testing.assert_array_equal, found, on(num))
      shardings = jax.tree.map(lambda x: x.sharding, (found, like))
      assert shardings[0] == shardings[1]
    # Checksums are those of the whole arrays, however they were laid out.
    values = {'shared': shared, 'number': np.int32(5), 'table': table}
    _, found, _ = saved.restore(lambda _: jax.eval_shape(lambda: values))
  jax.tree.map(np.testing.assert_array_equal, found, values)


def test_checksums_see_every_number_and_its_index():
  values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
  expected = checkpoint._checksum(values, 0)
  for index in np.ndindex(values.shape):
    other = values.copy()
    other[index] += 1
    assert checkpoint._checksum(other, 0) != expected
  assert checkpoint._checksum(values[::-1].copy(), 0) != expected


def test_reads_that_nobody_waits_for_leave_no_traceback(monkeypatch):
  found = []
  monkeypatch.setattr(sys, 'unraisablehook', found.append)
  for _ in range(2):
    process.filter_dropped(orbax_export.is_late)
  late = types.SimpleNamespace(exc_value=RuntimeError('Event loop is closed'))
  other = types.SimpleNamespace(exc_value=ValueError('another'))
  sys.unraisablehook(late)
  sys.unraisablehook(other)
  assert found == [other]


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'int8', 'bool'])
@pytest.mark.parametrize('shape', [(1001, 7), (3, 1001, 2), (5, 900)])
def test_checksums_of_blocks_are_those_of_the_whole(monkeypatch, dtype, shape):
  values = np.random.default_rng(0).integers(-9, 9, shape)
  values = jnp.asarray(values, dtype)
  monkeypatch.setattr(checkpoint, '_BLOCK_NUMBERS', 250)
  axis = checkpoint._block_axis(values)
  assert axis == len(shape) - 2
  blocks, whole = (checkpoint._checksum(values, x) for x in (axis, None))
  assert int(blocks) == int(whole) != 0


@pytest.mark.parametrize(
  ('dtype', 'most'), [('float32', 10), ('bfloat16', 42), ('int8', 10)]
)
def test_checksums_take_little_memory(dtype, most):
  shape = jax.ShapeDtypeStruct((1 << 18, 64), dtype)
  program = checkpoint._all_checksums.lower([shape], (0,)).compile()
  assert program.memory_analysis().temp_size_in_bytes < most * 2**20


def test_checksums_of_replicas_take_little_memory():
  sharding = NamedSharding(
    mesh.make(mesh.Shape(2, 1), devices=jax.devices()[:2]),
    PartitionSpec('data'),
  )
  shape = jax.ShapeDtypeStruct((2, 1 << 17, 64), 'int8', sharding=sharding)
  axis = checkpoint._block_axis(shape)
  assert axis == 1
  program = checkpoint._all_checksums.lower([shape], (axis,)).compile()
  assert program.memory_analysis().temp_size_in_bytes < 10 * 2**20


@pytest.mark.slow
def test_what_several_devices_hold_is_saved_without_a_copy(tmp_path, lines):
  size = 64 << 20
  everywhere = NamedSharding(
    mesh.make(mesh.Shape(2, 1), devices=jax.devices()[:2]), PartitionSpec()
  )
  array = jax.device_put(np.ones((size >> 8, 64), np.float32), everywhere)
  with checkpoint.Checkpoints(tmp_path, 1, lines.append) as checkpoints:
    checkpoints.save(0, jnp.zeros(3), {})  # whose threads and programs stay
    checkpoints.wait()
    checkpoint._checksums(array)
    before = resources.rss_bytes()
    checkpoints.save(1, array, {})
    assert resources.rss_bytes() - before < size / 2
  assert not lines
