"""Shards keep records like any other store."""

import numpy as np
import pytest

from jaxemb.workers import staleness
from tests.workers import local_cluster

ROWS, BYTES = 101, 6


def _make(ids):
  return np.repeat(ids.astype(np.uint8)[:, None], BYTES, 1)


def _table(num):
  return local_cluster.Cluster().table('x', num, ROWS, BYTES, _make)


@pytest.mark.parametrize('num', [1, 5])
def test_a_store_of_several_shards(num, tmp_path):
  table, rng = _table(num), np.random.default_rng(num)
  expected = _make(np.arange(ROWS))
  for _ in range(20):
    ids = rng.permutation(ROWS)[: rng.integers(ROWS)]
    np.testing.assert_array_equal(table.read(ids), expected[ids])
    expected[ids] = records = rng.integers(0, 256, (len(ids), BYTES))
    table.write(ids, records.astype(np.uint8))
  checksum = table.snapshot(tmp_path / 'rows')
  again = _table(num)
  again.write(np.arange(3), np.zeros((3, BYTES), np.uint8))
  again.restore(tmp_path / 'rows', checksum)
  np.testing.assert_array_equal(again.read(np.arange(ROWS)), expected)
  with pytest.raises(ValueError, match=f'is of {num} shards'):
    _table(num + 1).restore(tmp_path / 'rows', checksum)
  with pytest.raises(ValueError, match='is damaged'):
    again.restore(tmp_path / 'rows', checksum + 1)
  path = tmp_path / 'rows' / '0'
  path.write_bytes(path.read_bytes()[:-1])
  with pytest.raises(ValueError, match='cut off'):
    again.restore(tmp_path / 'rows', checksum)


def test_rows_that_are_read_take_no_memory_on_a_shard():
  table = _table(2)
  table.read(np.arange(ROWS))
  never = np.full(ROWS, staleness.NEVER)
  request = table.newer_request(np.arange(ROWS), never, staleness.Rule(0))
  found = local_cluster.newer(table, request, table.call([request])[0])
  assert not found.is_known.any() and not found.clocks.any()


def test_nothing_newer_is_an_answer_before_any_other():
  table = _table(1)
  for num in (0, 3, 0):
    ids = np.arange(num)
    never = np.full(num, staleness.NEVER)
    request = table.newer_request(ids, never, staleness.Rule(0))
    found = local_cluster.newer(table, request, table.call([request])[0])
    np.testing.assert_array_equal(found.records, _make(ids))
