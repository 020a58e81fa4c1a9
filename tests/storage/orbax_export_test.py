"""Exports that plain orbax reads, and reading them with jaxemb."""

import errno
import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxemb import errors
from jaxemb.storage import checkpoint, orbax_export

ARRAYS = {
  'vectors': np.arange(12, dtype=np.float32).reshape(4, 3),
  'context_vectors': -np.arange(15, dtype=np.float32).reshape(5, 3),
  'optimizer': {'vectors': {'sum_squares': np.ones(4, np.float32)}},
}


def _assert_same(found):
  jax.tree.map(np.testing.assert_array_equal, found, ARRAYS)
  assert {x.dtype for x in jax.tree.leaves(found)} == {np.dtype(np.float32)}


def test_an_export_is_replaced_and_read_back(tmp_path):
  folder = tmp_path / 'export' / 'orbax'
  orbax_export.write(folder, {'vectors': np.zeros((9, 9))})
  orbax_export.write(folder, ARRAYS)
  assert [path.name for path in folder.parent.iterdir()] == ['orbax']
  _assert_same(orbax_export.read(folder))
  assert list(orbax_export.read(folder, ['vectors'])) == ['vectors']
  shapes = orbax_export.shapes(folder)
  assert shapes['optimizer'] == {'vectors': {'sum_squares': (4,)}}
  assert shapes['context_vectors'] == (5, 3)


@pytest.mark.slow
def test_three_lines_of_orbax_read_it_on_other_devices(tmp_path):
  orbax_export.write(tmp_path / 'orbax', ARRAYS)
  lines = re.findall(
    r'^    (import .*|arrays = .*)$', orbax_export.__doc__, re.M
  )
  assert len(lines) == 3
  program = '\n'.join(lines).replace('FOLDER', "'orbax'")
  program += '\nimport jax\nprint(jax.device_count(), arrays)'
  done = subprocess.run(
    [sys.executable, '-c', program],
    cwd=tmp_path,
    env={k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    | {'XLA_FLAGS': '--xla_force_host_platform_device_count=3'},
    capture_output=True,
    text=True,
    check=True,
  )
  found = eval(done.stdout.removeprefix('3 '), vars(np))
  found = jax.tree.map(
    np.float32, found, is_leaf=lambda x: not isinstance(x, dict)
  )
  _assert_same(found)


def test_arrays_of_a_sharded_checkpoint_are_read_whole(tmp_path):
  sharding = NamedSharding(jax.make_mesh((4,), ('x',)), PartitionSpec('x'))
  array = jax.device_put(ARRAYS['vectors'], sharding)
  with checkpoint.Checkpoints(tmp_path, 1, pytest.fail) as saved:
    saved.save(3, {'tables': array}, {})
  found = orbax_export.read(tmp_path / '3' / 'state')
  assert isinstance(found['tables'], np.ndarray)
  np.testing.assert_array_equal(found['tables'], ARRAYS['vectors'])


def test_an_error_of_the_disk_is_one_line(tmp_path, monkeypatch, capfd):
  def refuse(*unused):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(orbax_export.ocp.Checkpointer, 'save', refuse)
  with pytest.raises(errors.UserError, match='x/orbax: No space left on de'):
    orbax_export.write(tmp_path / 'x' / 'orbax', {'a': np.ones(2)})
  assert not (tmp_path / 'x' / 'orbax').exists()
  assert not list(tmp_path.rglob('*tmp*'))
  assert 'WARNING' not in capfd.readouterr().err
