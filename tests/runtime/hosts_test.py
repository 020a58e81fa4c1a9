"""Use of CPU, memory and network: what is read, rates, sums over a run."""

import pathlib
import socket
import time

import pytest

from jaxemb.runtime import hosts

_ON_LINUX = pytest.mark.skipif(
  not pathlib.Path('/proc/net/dev').exists(), reason='needs /proc of Linux'
)
_DEV = """Inter-|   Receive                         |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets
    lo: 500 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0
  eth0:1000 2 0 0 0 0 0 0 100 2 0 0 0 0 0 0
  eth1: 3000 2 0 0 0 0 0 0 300 2 0 0 0 0 0 0
 bond0: 4000 4 0 0 0 0 0 0 400 4 0 0 0 0 0 0
eth0:1: 7 4 0 0 0 0 0 0 8 4 0 0 0 0 0 0
"""


def _sample(secs, cpu_secs, busy_secs=None, interfaces=None):
  return hosts.Sample(secs, cpu_secs, 300, 400, busy_secs, interfaces)


@pytest.fixture
def fake(tmp_path, monkeypatch):
  """A folder in place of /proc, and of /sys/class/net beside it."""
  monkeypatch.setattr(hosts, '_PROC', tmp_path / 'proc')
  monkeypatch.setattr(hosts, '_NET', tmp_path / 'net')
  (tmp_path / 'proc' / 'net').mkdir(parents=True)
  (tmp_path / 'proc' / 'self').mkdir()
  return tmp_path


def test_rates_are_of_the_time_between():
  figures = hosts.between(
    _sample(10.0, 5.0, 100.0, {'lo': (0, 7), 'eth0': (10, 20), 'ib0': (5, 5)}),
    _sample(
      12.0, 8.0, 103.0, {'lo': (4, 13), 'eth0': (110, 60), 'ib0': (7, 9)}
    ),
  )
  assert figures.pop('hostname')
  assert figures == {
    'secs': 2.0,
    'cores': 1.5,
    'rss_bytes': 300,
    'peak_rss_bytes': 400,
    'host_busy_cores': 1.5,
    'network_received_bytes_per_sec': 51.0,
    'network_sent_bytes_per_sec': 22.0,
    'loopback_received_bytes_per_sec': 2.0,
    'loopback_sent_bytes_per_sec': 3.0,
  }


def test_interfaces_come_go_and_start_again():
  figures = hosts.between(
    _sample(0.0, 0.0, None, {'eth0': (1000, 1000), 'gone': (50, 50)}),
    _sample(1.0, 0.0, None, {'eth0': (30, 1004), 'new': (900, 900)}),
  )
  assert figures['network_received_bytes_per_sec'] == 30
  assert figures['network_sent_bytes_per_sec'] == 4


def test_what_is_unknown_stays_unknown():
  known = _sample(1.0, 0.5, 9.0, {'lo': (1, 1)})
  unknown = hosts.Sample(0.0, 0.0, None, None, None, None)
  for pair in ((unknown, known), (known._replace(secs=0.0), unknown)):
    figures = hosts.between(*pair)
    assert figures['host_busy_cores'] is None
    assert figures['network_sent_bytes_per_sec'] is None
    assert figures['loopback_received_bytes_per_sec'] is None
  assert figures['rss_bytes'] is None and figures['cores'] is not None


def test_what_the_system_does_not_tell_is_none(fake):
  for _ in range(2):
    sample = hosts.sample()
    assert sample.rss_bytes is None
    assert sample.host_busy_secs is None
    assert sample.interfaces is None
    # This one is told by another call.
    assert sample.peak_rss_bytes is None or sample.peak_rss_bytes > 2**20
    # Once more, with files that are there and say something else.
    (fake / 'proc' / 'self' / 'status').write_text('VmRSS:\nVmHWM: none\n')
    (fake / 'proc' / 'stat').write_text('cpu 1 2\n')
    (fake / 'proc' / 'net' / 'dev').write_text('a\nb\neth0: x\n')
  (fake / 'proc' / 'stat').write_text('cpu 0 0 0 0 0 0 0 0 0 0\n')
  assert hosts.sample().host_busy_secs is None


def test_files_of_linux(fake):
  (fake / 'proc' / 'self' / 'status').write_text(
    'Name:\tpython\nVmHWM:\t    2000 kB\nVmRSS:\t    1500 kB\n'
  )
  # The guests' time (the last two) is also the user's.
  (fake / 'proc' / 'stat').write_text(
    'cpu  100 20 30 5000 400 5 6 7 50 60\ncpu0 9 9 9 9 9 9 9 9 9 9\n'
  )
  (fake / 'proc' / 'net' / 'dev').write_text(_DEV)
  for lower in ('lower_eth0', 'lower_eth1'):
    (fake / 'net' / 'bond0' / lower).mkdir(parents=True)
  (fake / 'net' / 'eth0' / 'upper_bond0').mkdir(parents=True)
  sample = hosts.sample()
  assert sample.rss_bytes == 1500 * 1024
  assert sample.peak_rss_bytes == hosts.peak_rss_bytes() == 2000 * 1024
  ticks = hosts.os.sysconf('SC_CLK_TCK')
  assert sample.host_busy_secs * ticks == pytest.approx(168)
  # The bond's bytes are those of its two interfaces.
  assert sample.interfaces == {
    'lo': (500, 500), 'eth0': (1000, 100), 'eth1': (3000, 300), 'eth0:1': (7, 8)
  }  # fmt: skip


def test_work_is_seen():
  before = hosts.sample()
  end = time.process_time() + 0.1
  while time.process_time() < end:
    pass
  time.sleep(0.5)
  figures = hosts.between(before, hosts.sample())
  used_secs = figures['cores'] * figures['secs']
  assert 0.1 <= used_secs < 0.5


@_ON_LINUX
def test_memory_and_loopback_are_seen():
  before = hosts.sample()
  block = b'x' * 50_000_000
  server = socket.create_server(('127.0.0.1', 0))
  sender = socket.create_connection(server.getsockname())
  receiver, _ = server.accept()
  with server, sender, receiver:
    for start in range(0, 1_000_000, 10_000):
      sender.sendall(block[start : start + 10_000])
      left = 10_000
      while left:
        left -= len(receiver.recv(left))
  after = hosts.sample()
  assert after.rss_bytes - before.rss_bytes > 40_000_000
  assert after.peak_rss_bytes >= before.peak_rss_bytes
  figures = hosts.between(before, after)
  for way in ('received', 'sent'):
    amount = figures[f'loopback_{way}_bytes_per_sec'] * figures['secs']
    assert amount >= 1_000_000
  assert figures['host_busy_cores'] >= 0


def _figures(secs, cores, hostname='a', sent=None, peak_bytes=10):
  return {
    'hostname': hostname, 'secs': secs, 'cores': cores, 'rss_bytes': 1,
    'peak_rss_bytes': peak_bytes, 'host_busy_cores': None,
    'network_received_bytes_per_sec': None,
    'network_sent_bytes_per_sec': sent,
    'loopback_received_bytes_per_sec': 0.0,
    'loopback_sent_bytes_per_sec': 4.0,
  }  # fmt: skip


def test_a_run_is_summed_up_by_process():
  first, second = hosts.summary(
    [
      {'step': 1},  # of an older version
      {'step': 2, 'hosts': [_figures(1.0, 1.0, sent=100.0, peak_bytes=30)]},
      {
        'step': 3,
        'hosts': [
          _figures(3.0, 2.0, sent=20.0, peak_bytes=None),
          _figures(3.0, 0.5, 'b', peak_bytes=None),
        ],
      },
      {'step': 4, 'hosts': [_figures(0.0, 0.0, peak_bytes=20)]},
    ]
  )
  assert first == {
    'hostname': 'a', 'secs': 4.0, 'mean_cores': 1.75, 'peak_cores': 2.0,
    'peak_rss_bytes': 30, 'mean_host_busy_cores': None,
    'network_received_bytes': None, 'network_received_bytes_per_sec': None,
    'network_sent_bytes': 160, 'network_sent_bytes_per_sec': 40.0,
    'loopback_received_bytes': 0, 'loopback_received_bytes_per_sec': 0.0,
    'loopback_sent_bytes': 16, 'loopback_sent_bytes_per_sec': 4.0,
  }  # fmt: skip
  assert second['hostname'] == 'b' and second['mean_cores'] == 0.5
  assert second['peak_rss_bytes'] is None
  assert second['network_sent_bytes'] is None
  assert hosts.summary([]) == []


def test_a_peak_lasts_a_second():
  # 0.01 s say nothing; 0.6 s and 0.6 s together do.
  cores = [(0.01, 9.0), (1.19, 1.0), (0.6, 3.0), (0.6, 2.0), (0.9, 8.0)]
  records = [{'hosts': [_figures(secs, used)]} for secs, used in cores]
  (found,) = hosts.summary(records)
  assert found['peak_cores'] == pytest.approx(2.5)
  (short,) = hosts.summary(records[:1])
  assert short['peak_cores'] == short['mean_cores'] == 9.0
