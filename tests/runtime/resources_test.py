"""Use of CPU, memory and network: samples, rates, sums over a run."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxemb.runtime import resources


def test_rates_are_those_of_the_time_between():
  earlier = resources.sample()
  rates = earlier.keys() - {'secs', 'hostname', 'rss_bytes', 'peak_rss_bytes'}
  later = earlier | {k: earlier[k] + 3.0 for k in rates}
  later['secs'] += 2.0
  later['network_sent_bytes_per_sec'] -= 9.0  # an interface was removed
  usage = resources.between(earlier, later)
  assert usage['hostname'] and usage['secs'] == 2.0
  assert usage['peak_rss_bytes'] >= usage['rss_bytes'] > 2**20
  expected = dict.fromkeys(rates, 1.5) | {'network_sent_bytes_per_sec': 0}
  assert {k: usage[k] for k in rates} == pytest.approx(expected)
  assert resources.between(later, later) == resources.between(later, {}) == {}
  after = resources.since(earlier)
  assert 0 < after['secs'] < 100 and after['rss_bytes'] > 2**20


def _usage(secs, cores, hostname='a', sent=0.0, peak_bytes=10):
  rates = {k: 0.0 for k in resources.sample() if k.endswith('_per_sec')}
  return rates | {
    'hostname': hostname, 'secs': secs, 'cores': cores, 'rss_bytes': 1,
    'peak_rss_bytes': peak_bytes, 'host_busy_cores': 2.0,
    'network_sent_bytes_per_sec': sent, 'loopback_sent_bytes_per_sec': 4.0,
  }  # fmt: skip


def test_a_run_is_summarized_by_process():
  first, second = resources.summary(
    [
      {'step': 2, 'hosts': [_usage(1.0, 1.0, sent=100.0, peak_bytes=30), {}]},
      {'step': 3, 'hosts': [_usage(3.0, 2.0, sent=20.0), _usage(3, 0.5, 'b')]},
      {'step': 4, 'hosts': [_usage(1e-9, 0.0, peak_bytes=20)]},
    ]
  )
  assert first == pytest.approx({
    'hostname': 'a', 'secs': 4.0, 'mean_cores': 1.75, 'peak_cores': 2.0,
    'peak_rss_bytes': 30, 'mean_host_busy_cores': 2.0,
    'network_received_bytes': 0, 'network_received_bytes_per_sec': 0.0,
    'network_sent_bytes': 160, 'network_sent_bytes_per_sec': 40.0,
    'loopback_received_bytes': 0, 'loopback_received_bytes_per_sec': 0.0,
    'loopback_sent_bytes': 16, 'loopback_sent_bytes_per_sec': 4.0,
  })  # fmt: skip
  assert second['hostname'] == 'b' and second['mean_cores'] == 0.5
  assert resources.summary([{'step': 1}]) == []
  # What an earlier version did not count, and what is not known.
  more = {'words_per_sec': 9.0, 'waited_secs_per_sec': 0.125}
  more = {**more, 'synchronisations_per_sec': None}
  records = [{'hosts': [_usage(1.0, 1)]}, {'hosts': [_usage(2.0, 1) | more]}]
  (last,) = resources.summary(records)
  assert (last['words'], last['words_per_sec']) == (18, 6.0)
  assert last['waited_secs'] == 0.25
  assert last['synchronisations'] is last['synchronisations_per_sec'] is None
  # A peak lasts a second.
  cores = [(0.01, 9.0), (1.2, 1.0), (1.0, 3.0), (0.9, 8.0)]
  records = [{'hosts': [_usage(*usage)]} for usage in cores]
  assert resources.summary(records)[0]['peak_cores'] == 3.0


def test_sockets(tmp_path, monkeypatch):
  monkeypatch.setattr(resources, 'affinity', lambda: [0, 1, 2, 3, 8])
  assert resources.sockets(tmp_path) == []
  lists = {'node0': '0-1,8-9\n', 'node1': '2-7\n', 'node2': '\n', 'node3': '10'}
  for name, cores in lists.items():
    (tmp_path / name).mkdir()
    (tmp_path / name / 'cpulist').write_text(cores)
  assert resources.sockets(tmp_path) == [[0, 1, 8], [2, 3]]


def _write(folder, files):
  folder.mkdir(parents=True, exist_ok=True)
  for name, text in files.items():
    (folder / name).write_text(f'{text}\n')


@pytest.fixture
def own(tmp_path):
  """A file that says which cgroups apply; their root is beside it."""
  path = tmp_path / 'own'
  path.write_text('5:cpu,cpuacct:/a/b\n4:memory:/a/b\n1:name=systemd:/a\n')
  return path


_STAT = 'active_file 150\nslab 60\nslab_reclaimable 50\nx 1'


def test_memory_of_a_container_is_limited(tmp_path):
  root, missing = tmp_path / 'root', tmp_path / 'missing'
  files = {'max': 'max', 'current': '700', 'stat': _STAT}
  files = {f'memory.{name}': text for name, text in files.items()}
  _write(root, files)
  assert resources.available_bytes(root, missing) > 2**20
  _write(root, {'memory.max': 1000})
  assert resources.available_bytes(root, missing) == 500
  # The lowest room of any ancestor counts.
  missing.write_text('0::/a/b')
  _write(root / 'a' / 'b', {**files, 'memory.max': 900})
  assert resources.available_bytes(root, missing) == 400
  _write(root / 'a', {**files, 'memory.max': 600})
  assert resources.available_bytes(root, missing) == 100


def test_memory_is_limited_by_cgroups_of_version_1(tmp_path, own):
  root = tmp_path / 'root'
  stat = 'inactive_file 1\ntotal_inactive_file 200\ntotal_active_file 0'
  files = {
    'memory.limit_in_bytes': 9223372036854771712,
    'memory.usage_in_bytes': 700,
    'memory.stat': stat,
  }
  _write(root / 'memory', files)
  assert resources.available_bytes(root, own) > 2**20
  # As in a container: it sees its folder as the root, under another path.
  _write(root / 'memory', {'memory.limit_in_bytes': 1000})
  assert resources.available_bytes(root, own) == 500
  _write(root / 'memory' / 'a' / 'b', {**files, 'memory.limit_in_bytes': 800})
  assert resources.available_bytes(root, own) == 300
  hidden = f'{stat}\nhierarchical_memory_limit 750'
  _write(root / 'memory' / 'a' / 'b', {'memory.stat': hidden})
  assert resources.available_bytes(root, own) == 250


def test_cores_of_a_container_are_limited(tmp_path, own, monkeypatch):
  monkeypatch.setattr(resources, 'affinity', lambda: list(range(64)))
  for version in (1, 2):
    root = tmp_path / f'root-{version}'

    def write(path, quota, version=version, root=root):
      if version == 1:
        files = {'cpu.cfs_quota_us': quota, 'cpu.cfs_period_us': 100_000}
        _write(root / 'cpu,cpuacct' / path, files)
      else:
        quota = 'max' if quota < 0 else quota
        _write(root / path, {'cpu.max': f'{quota} 100000'})

    write('', -1)
    assert resources.usable_cores(root, own) == 64
    write('', 800_000)
    assert resources.usable_cores(root, own) == 8
    if version == 2:
      own.write_text('0::/a/b')
    write('a', 250_000)
    assert resources.usable_cores(root, own) == 2
    write('a/b', 40_000)
    assert resources.usable_cores(root, own) == 1


def test_huge_pages_change_no_number(monkeypatch):
  monkeypatch.setattr(resources, '_LARGE_BYTES', 1 << 20)
  arrays = {'large': jnp.arange(3_000_001), 'small': jnp.ones(3)}
  resources.use_huge_pages(arrays)
  np.testing.assert_array_equal(arrays['large'], np.arange(3_000_001))
