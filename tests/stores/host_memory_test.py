"""What is predicted of a host's memory is what arrays take."""

import types

import jax
import numpy as np
import pytest

from jaxemb.runtime import resources
from jaxemb.stores import fetching, host_memory
from jaxemb.stores import local as stores
from tests import runs
from tests.stores import fetching_test
from tests.workers import shared_rows_test


def _num_bytes(*things):
  """Of all arrays that objects have."""
  found = [y for x in things for y in vars(x).values()]
  found += [z for y in found if isinstance(y, tuple) for z in y]
  return sum(x.nbytes for x in found if isinstance(x, np.ndarray))


@pytest.mark.parametrize('optimizer', ['sgd', 'adagrad'])
def test_of_one_process(optimizer):
  settings = {'optimizer.name': optimizer}
  more = {'table.store': 'memory', 'table.device_bytes': '30%'}
  made = fetching_test._trainer(settings, False, **more)
  store = made.strategy.store
  state = made.strategy.init(jax.random.key(0))
  found = host_memory.of_trainer(store, 'memory', fetching_test.WORDS, 7)
  assert found.base == 7 and found.copies == found.messages == 0
  assert found.device == sum(x.nbytes for x in jax.tree.leaves(state))
  ranks = 16 * sum(x.capacity for x in store.caches)
  assert found.maps - ranks == _num_bytes(*store.caches)
  own = store.rows.stores.values()
  assert found.store == _num_bytes(*own)
  rows = max(x.records.nbytes for x in own)
  assert found.snapshot == 8 * fetching_test.VOCAB + rows
  assert found.more == sum(found) - 7
  args = store, 'memory', fetching_test.WORDS, 7, 50
  with_data = host_memory.of_trainer(*args)
  assert sum(with_data) == sum(found) + 50
  assert with_data.more == found.more  # a text may be larger than the memory
  # Once programs are compiled, what they take is measured.
  known = fetching.Programs(7 + found.device + found.maps + 1000, 500)
  compiled = host_memory.of_trainer(*args, known)
  assert compiled.steps == 500
  assert compiled.programs == 1000 + host_memory._RUNNING_BYTES
  store.close()


def test_of_a_worker_and_its_shards():
  cluster, num_shards = shared_rows_test.Cluster(), 2
  settings = {'optimizer.name': 'adam', 'table.shards': num_shards}
  (made,) = shared_rows_test.trainers(1, settings, cluster)
  store = made.strategy.store
  made.strategy.init(jax.random.key(0))
  words = shared_rows_test.WORDS
  found = host_memory.of_trainer(store, 'remote', words, 0)
  rows = store.rows
  own = *rows._copies.values(), *rows._lookups.values()
  assert found.copies == _num_bytes(*own)
  needs = {k: x.needs.sum() for k, x in store.predicted(words).items()}
  size = sum(needs[k] * x.num_bytes for k, x in rows.records.items())
  assert abs(found.messages - 4 * size) < 10
  shard = host_memory.of_shard(store, num_shards, words, 0)
  held = _num_bytes(*(x[0]._rows for x in cluster.shards.values()))
  assert shard.store == held > 0
  assert abs(shard.messages - size) < 10


def test_of_dense_parameters_at_a_desk():
  params = {'w': np.zeros((300, 20), np.float32), 'b': np.zeros(20, np.float32)}
  optimizer = jax.tree.map(lambda x: (x, x), params)  # Adam's
  made = types.SimpleNamespace(init=lambda key: ({}, params, optimizer))
  found = host_memory.of_desk(made, 3, True, 11)
  size = 4 * (300 * 20 + 20)
  # Before and after a step; gradients.
  assert found.dense == 2 * (size + 2 * size) + 2 * size
  assert host_memory.of_desk(made, 3, False, 11).dense == 6 * size
  assert found.base == 11 and found.more == sum(found) - 11


def test_few_pages_of_large_files_stay(monkeypatch):
  monkeypatch.setattr(stores, '_MAPPED_BYTES', 1000)
  monkeypatch.setattr(stores, '_mapped_bytes', lambda: 300)
  assert stores.resident_bytes([(10, 50), (10, 40)], True) == 920
  assert stores.resident_bytes([(10, 5), (100, 40)], True) == 700
  assert stores.resident_bytes([(18, 50), (100, 40)], True) == 1018
  assert stores.resident_bytes([(10, 5), (100, 40)], False) == 4160


@pytest.mark.slow
def test_what_does_not_fit_is_refused_with_numbers(monkeypatch, tmp_path):
  monkeypatch.setattr(resources, 'available_bytes', lambda: 90_000_000)
  settings = {'table.device_bytes': '30%', 'train.batch_words': 64}
  settings['mesh.data'] = 0
  line = runs.refused(tmp_path, settings)
  assert 'need 0.2 GB of memory, and 0.1 GB are free; give --config' in line
