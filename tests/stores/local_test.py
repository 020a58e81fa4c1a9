"""Stores against an array, and their snapshots."""

import numpy as np
import pytest

from jaxemb.stores import local as stores

ROWS = 50
RECORD = stores.Record((np.dtype('f4'), np.dtype('i1')), ((3,), ()))


def _first(ids):
  vectors = ids[:, None] * np.ones(3, np.float32)
  return RECORD.pack([vectors.astype(np.float32), np.ones(len(ids), np.int8)])


def _make(kind, tmp_path):
  args = ROWS, RECORD.num_bytes, _first
  if kind == 'memory':
    return stores.Store(*args)
  return stores.Disk(*args, folder=tmp_path / 'rows')


@pytest.mark.parametrize('kind', ['memory', 'disk', 'large'])
def test_what_was_written_is_read(kind, tmp_path, monkeypatch):
  if kind == 'large':
    monkeypatch.setattr(stores, 'MAPPED_BYTES', 9 * 64)
  rng, store = np.random.default_rng(0), _make(kind, tmp_path)
  truth = _first(np.arange(ROWS))
  device = rng.integers(0, 255, (20, RECORD.num_bytes), np.uint8)
  parts = [device[:, :12].copy(), device[:, 12:].copy()]
  for i in range(50):
    ids = rng.choice(ROWS, 12, replace=False)
    np.testing.assert_array_equal(store.read(ids), truth[ids])
    new = rng.integers(0, 255, (5, RECORD.num_bytes), np.uint8)
    store.write(ids[:5], new)
    truth[ids[:5]] = new
    # Rows that leave a device, for others in the same slots.
    slots = rng.choice(20, 3, replace=False)
    store.swap(parts, (slots, ids[5:8]), (slots, ids[8:11]))
    truth[ids[5:8]] = device[slots]
    device[slots] = truth[ids[8:11]]
    np.testing.assert_array_equal(np.concatenate(parts, 1), device)
    if i == 30:
      checksum = store.snapshot(tmp_path / 'snapshot')
      saved = truth.copy()
  again = _make(kind, tmp_path)
  again.restore(tmp_path / 'snapshot', checksum)
  store.restore(tmp_path / 'snapshot', checksum)
  for x in (store, again):
    np.testing.assert_array_equal(x.read(np.arange(ROWS)), saved)
    x.close()
  # A file of a table has no name.
  if kind != 'memory':
    assert not list((tmp_path / 'rows').glob('*'))


def test_a_damaged_snapshot_is_refused(tmp_path):
  store, path = _make('memory', tmp_path), tmp_path / 'snapshot'
  ids = np.arange(0, ROWS, 3)
  store.write(ids, _first(ids))
  checksum, whole = store.snapshot(path), path.read_bytes()
  for data in (whole[:-1], whole + b'x', whole[:-9] + b'xx' + whole[-7:]):
    path.write_bytes(data)
    with pytest.raises(ValueError, match='is (damaged|cut off)'):
      store.restore(path, checksum)
  path.write_bytes(whole[:8] + b'\xff' * 8 + whole[16:])
  with pytest.raises(ValueError, match='is of another table'):
    store.restore(path, checksum)
  path.write_bytes(whole)
  store.restore(path, checksum)
