"""Checkpoints: exact, kept in number, robust against damage and full disks."""

import json
import pathlib
import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb import errors
from jaxemb.runtime import mesh
from jaxemb.storage import checkpoint


def _state(value: float) -> dict:
  rng = np.random.default_rng(int(value))
  vectors = rng.random((3000, 100)).astype(np.float32) + value
  return {'vectors': jnp.asarray(vectors), 'slots': jnp.full(5, value)}


def _damage(folder: pathlib.Path) -> None:
  """Flips bytes in the middle of a checkpoint's largest file."""
  files = [p for p in folder.rglob('*') if p.is_file()]
  largest = max(files, key=lambda p: p.stat().st_size)
  data = bytearray(largest.read_bytes())
  for i in range(len(data) // 2, len(data) // 2 + 64):
    data[i] ^= 0xFF
  largest.write_bytes(data)


@pytest.fixture
def lines() -> list[str]:
  return []


def _save_three(folder: pathlib.Path, lines: list[str]) -> None:
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    for step in (1, 2, 3):
      saved.save(step, _state(step), {'step': step}, False)


def test_the_newest_comes_back_exactly_and_older_ones_go(tmp_path, lines):
  folder = tmp_path / 'checkpoints'
  _save_three(folder, lines)
  assert sorted(p.name for p in folder.iterdir()) == ['2', '3']
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    restored = saved.restore(_state(0))
  assert restored.step == 3
  assert restored.record['step'] == 3
  for name, array in _state(3).items():
    assert np.array_equal(restored.state[name], array)
    assert restored.state[name].dtype == array.dtype
  assert not lines


def test_nothing_saved_is_none(tmp_path, lines):
  with checkpoint.Checkpoints(tmp_path / 'new', 2, lines.append) as saved:
    assert saved.restore(_state(0)) is None


def test_the_state_may_change_as_soon_as_save_returns(tmp_path, lines):
  array = np.zeros((500, 1000), np.float32)
  with checkpoint.Checkpoints(tmp_path, 2, lines.append) as saved:
    saved.save(1, {'a': array}, {}, False)
    array += 1
  with checkpoint.Checkpoints(tmp_path, 2, lines.append) as saved:
    assert not saved.restore({'a': array}).state['a'].any()


@pytest.mark.parametrize('how', ['bytes', 'missing', 'record'])
def test_a_damaged_one_is_said_and_the_one_before_used(tmp_path, lines, how):
  folder = tmp_path / 'checkpoints'
  _save_three(folder, lines)
  if how == 'bytes':
    _damage(folder / '3')
  elif how == 'missing':
    (folder / '3' / 'state' / 'manifest.ocdbt').unlink()
  else:
    (folder / '3' / 'record' / 'metadata').write_text('{"step": 3')
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    restored = saved.restore(_state(0))
    assert restored.step == 2
    assert np.array_equal(restored.state['vectors'], _state(2)['vectors'])
    # The number is free again for the run that repeats those steps.
    saved.save(3, _state(3), {'step': 3}, False)
  assert len(lines) == 1 and 'checkpoint 3 is damaged' in lines[0]
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    assert saved.restore(_state(0)).step == 3


def test_all_damaged_is_an_error(tmp_path, lines):
  folder = tmp_path / 'checkpoints'
  _save_three(folder, lines)
  _damage(folder / '2')
  _damage(folder / '3')
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    with pytest.raises(errors.UserError, match='delete that folder'):
      saved.restore(_state(0))
  # Nothing is moved: the cause may lie elsewhere.
  assert sorted(p.name for p in folder.iterdir()) == ['2', '3']


def test_a_passing_error_leaves_all_as_they_are(tmp_path, lines, monkeypatch):
  folder = tmp_path / 'checkpoints'
  _save_three(folder, lines)
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    with monkeypatch.context() as patch:

      def fail(*args):
        raise MemoryError

      patch.setattr(saved, '_read', fail)
      with pytest.raises(MemoryError):
        saved.restore(_state(0))
    assert saved.restore(_state(0)).step == 3
  assert not lines


def test_what_a_kill_left_unfinished_goes(tmp_path, lines):
  folder = tmp_path / 'checkpoints'
  _save_three(folder, lines)
  (folder / '7.orbax-checkpoint-tmp').mkdir()
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    assert saved.restore(_state(0)).step == 3
  assert sorted(p.name for p in folder.iterdir()) == ['2', '3']


def test_a_folder_that_cannot_be_written_does_not_hang(tmp_path, lines):
  folder = tmp_path / 'checkpoints'
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    saved.save(1, _state(1), {}, False)
    assert saved.wait() == 1
    folder.rename(tmp_path / 'away')
    folder.write_text('a file in its place')
    saved.save(2, _state(2), {}, False)
    assert saved.wait() == 1
    assert len(lines) == 1 and 'not saved' in lines[0]
    folder.unlink()
    (tmp_path / 'away').rename(folder)
    saved.save(3, _state(3), {}, False)
    assert saved.wait() == 3


def test_a_full_disk_is_said_and_the_last_good_one_stays(tmp_path, lines):
  folder = tmp_path / 'checkpoints'
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    saved.save(1, _state(1), {}, False)
    saved.wait()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    # No file may grow beyond this: writes fail as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, old[1]))
    try:
      saved.save(2, _state(2), {}, False)
      saved.wait()
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert len(lines) == 1
    assert 'not saved' in lines[0] and 'training goes on' in lines[0]
    assert saved.restore(_state(0)).step == 1
    saved.save(3, _state(3), {}, False)
    saved.wait()
    assert saved.restore(_state(0)).step == 3
  assert not list(folder.glob('*tmp*'))


@pytest.mark.parametrize('is_final', [False, True])
def test_arrays_on_several_devices_come_back_whole(tmp_path, is_final):
  devices = mesh.make(mesh.Shape(4, 1))
  spec = jax.sharding.PartitionSpec
  values = {
    'shared': np.arange(24, dtype=np.float32).reshape(4, 3, 2),
    'copied': np.arange(7, dtype=np.float32),
    'number': np.int32(5),
  }
  specs = {'shared': spec(mesh.DATA), 'copied': spec(), 'number': spec()}
  state = {
    k: jax.device_put(v, jax.sharding.NamedSharding(devices, specs[k]))
    for k, v in values.items()
  }
  with checkpoint.Checkpoints(tmp_path, 3, print) as saved:
    saved.save(1, state, {}, is_final)
    saved.wait()
    # Checksums are those of the whole arrays, however they were laid out.
    found = saved.restore(jax.eval_shape(lambda: values))
  jax.tree.map(np.testing.assert_array_equal, found.state, values)


def test_another_mesh_with_columns_filled_up_otherwise(tmp_path):
  spec, named = jax.sharding.PartitionSpec, jax.sharding.NamedSharding
  values = np.random.default_rng(0).normal(size=(9, 10)).astype(np.float32)

  def on(num):
    filled = np.pad(values, ((0, 0), (0, -10 % num)))
    sharding = named(mesh.make(mesh.Shape(1, num)), spec(None, mesh.TABLE))
    return {'a': jax.device_put(filled, sharding)}

  with checkpoint.Checkpoints(tmp_path, 3, print) as saved:
    saved.save(1, on(8), {}, False)
    saved.wait()
    for num in (1, 2, 4, 8):
      like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
        on(num),
      )
      found = saved.restore(like).state['a']
      assert found.sharding == like['a'].sharding
      np.testing.assert_array_equal(found, on(num)['a'])


def test_checksums_see_every_number_and_its_place():
  values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
  expected = checkpoint._checksums(values)
  for place in np.ndindex(values.shape):
    other = values.copy()
    other[place] += 1
    assert checkpoint._checksums(other) != expected
  assert checkpoint._checksums(values[::-1].copy()) != expected
  assert checkpoint._checksums(values.transpose(0, 2, 1).copy()) != expected


def test_arrays_are_read_one_by_one(tmp_path, lines):
  folder = tmp_path / 'checkpoints'
  _save_three(folder, lines)
  for place in (folder, folder / '3', folder / '3' / 'state'):
    arrays = checkpoint.Arrays(place)
    assert arrays.shapes == {'vectors': (3000, 100), 'slots': (5,)}
    for name, array in _state(3).items():
      assert np.array_equal(arrays.read(name), array)
  # Numbers that orbax finds whole, and that are not those that were saved.
  record = folder / '3' / 'record' / 'metadata'
  first = json.loads(record.read_text())
  first['checksums'] = [x + 1 for x in first['checksums']]
  record.write_text(json.dumps(first))
  with pytest.raises(errors.UserError, match='checksum of vectors differs'):
    checkpoint.Arrays(folder).read('vectors')
  with pytest.raises(errors.UserError, match='no usable checkpoint'):
    checkpoint.Arrays(tmp_path / 'nothing')
