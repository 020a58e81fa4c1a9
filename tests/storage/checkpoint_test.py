"""Checkpoints: exact, limited in number, robust to damage and full disks."""

import functools
import json
import pathlib
import resource
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

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


@pytest.fixture
def folder(tmp_path, lines) -> pathlib.Path:
  """With the last two of three checkpoints."""
  folder = tmp_path / 'checkpoints'
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    for step in (1, 2, 3):
      saved.save(step, _state(step), {'step': step})
  return folder


@pytest.fixture
def saved(folder, lines):
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    yield saved


def test_the_newest_comes_back_exactly_and_older_ones_go(folder, saved, lines):
  assert sorted(p.name for p in folder.iterdir()) == ['2', '3']
  restored = saved.restore(_state(0))
  assert restored.step == restored.record['step'] == 3
  jax.tree.map(np.testing.assert_array_equal, restored.state, _state(3))
  assert restored.state['vectors'].dtype == np.float32
  assert not lines


def test_an_empty_folder_has_none(tmp_path, lines):
  with checkpoint.Checkpoints(tmp_path / 'new', 2, lines.append) as saved:
    assert saved.restore(_state(0)) is None


def test_a_state_may_be_donated_once_save_returns(tmp_path, lines):
  step = jax.jit(lambda x: x + 1, donate_argnums=0)
  array = jnp.zeros((1000, 1000))
  with checkpoint.Checkpoints(tmp_path, 2, lines.append) as saved:
    saved.save(1, {'a': array}, {})
    for _ in range(10):
      array = step(array)
    saved.wait()
    assert not saved.restore({'a': np.empty_like(array)}).state['a'].any()


@pytest.mark.parametrize('how', ['bytes', 'missing', 'record'])
def test_of_damaged_ones_the_one_before_is_used(folder, lines, how):
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
    saved.save(3, _state(3), {'step': 3})
  assert len(lines) == 1 and 'checkpoint 3 is damaged' in lines[0]
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    assert saved.restore(_state(0)).step == 3


def test_all_damaged_is_an_error(folder, saved):
  _damage(folder / '2')
  _damage(folder / '3')
  with pytest.raises(errors.UserError, match='delete that folder'):
    saved.restore(_state(0))
  # Nothing is moved: the cause may be elsewhere.
  assert sorted(p.name for p in folder.iterdir()) == ['2', '3']


def test_another_version_is_named(folder, saved, lines):
  path = folder / '3' / 'record' / 'metadata'
  record = json.loads(path.read_text())
  del record['format']
  path.write_text(json.dumps(record))
  with pytest.raises(errors.UserError, match='another version of jaxemb'):
    saved.restore(_state(0))
  assert not lines


def test_a_temporary_error_leaves_all_as_they_are(saved, lines, monkeypatch):
  def fail(*args):
    raise MemoryError

  with monkeypatch.context() as patch:
    patch.setattr(saved, '_read', fail)
    with pytest.raises(MemoryError):
      saved.restore(_state(0))
  assert saved.restore(_state(0)).step == 3 and not lines


def test_unfinished_saves_are_removed(folder, lines):
  (folder / '7.orbax-checkpoint-tmp').mkdir()
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    assert saved.restore(_state(0)).step == 3
  assert sorted(p.name for p in folder.iterdir()) == ['2', '3']


def test_a_folder_that_cannot_be_written_does_not_hang(folder, lines):
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    away = folder.with_name('away')
    folder.rename(away)
    folder.write_text('a file in its place')
    saved.save(4, _state(4), {})
    assert saved.wait() is None
    assert len(lines) == 1 and 'not saved' in lines[0]
    folder.unlink()
    away.rename(folder)
    saved.save(5, _state(5), {})
    assert saved.wait() == 5
  # A thread that still waits would keep the program from ending.
  kinds = [type(thread).__module__ for thread in threading.enumerate()]
  assert not [kind for kind in kinds if kind.startswith('orbax')]


def test_a_full_disk_is_reported_and_the_last_good_one_stays(folder, lines):
  with checkpoint.Checkpoints(folder, 2, lines.append) as saved:
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    # No file may grow beyond this: writes fail as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, old[1]))
    try:
      for step in (4, 5):
        saved.save(step, _state(step), {})
      saved.wait()
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert len(lines) == 2
    assert 'not saved' in lines[0] and 'training goes on' in lines[0]
    assert saved.restore(_state(0)).step == 3
    saved.save(6, _state(6), {})
    saved.wait()
    assert saved.restore(_state(0)).step == 6
  assert not list(folder.glob('*tmp*'))


def test_arrays_on_several_devices_come_back_whole(tmp_path):
  devices = mesh.make(mesh.Shape(4, 1))
  values = {
    'shared': np.arange(24, dtype=np.float32).reshape(4, 3, 2),
    'copied': np.arange(7, dtype=np.float32),
    'number': np.int32(5),
  }
  specs = {'shared': PartitionSpec(mesh.DATA)}
  state = {
    k: jax.device_put(v, NamedSharding(devices, specs.get(k, PartitionSpec())))
    for k, v in values.items()
  }
  with checkpoint.Checkpoints(tmp_path, 3, print) as saved:
    saved.save(1, state, {})
    saved.wait()
    # Checksums are those of the whole arrays, however they were laid out.
    found = saved.restore(jax.eval_shape(lambda: values))
  jax.tree.map(np.testing.assert_array_equal, found.state, values)


def test_another_mesh_with_other_padding_columns(tmp_path):
  values = np.random.default_rng(0).normal(size=(9, 10)).astype(np.float32)

  @functools.cache
  def on(num):
    padded = np.pad(values, ((0, 0), (0, -10 % num)))
    devices = mesh.make(mesh.Shape(1, num))
    spec = PartitionSpec(None, mesh.TABLE)
    return {'a': jax.device_put(padded, NamedSharding(devices, spec))}

  with checkpoint.Checkpoints(tmp_path, 3, print) as saved:
    saved.save(1, on(8), {})
    saved.wait()
    for num in (1, 2, 4, 8):
      like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
        on(num),
      )
      found = saved.restore(like).state['a']
      assert found.sharding == like['a'].sharding
      np.testing.assert_array_equal(found, on(num)['a'])


def test_checksums_see_every_number_and_its_index():
  values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
  expected = checkpoint._checksums(values)
  for index in np.ndindex(values.shape):
    other = values.copy()
    other[index] += 1
    assert checkpoint._checksums(other) != expected
  assert checkpoint._checksums(values[::-1].copy()) != expected
  assert checkpoint._checksums(values.transpose(0, 2, 1).copy()) != expected
