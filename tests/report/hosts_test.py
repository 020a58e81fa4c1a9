"""Processes and hosts on the page: a line, or a table and curves."""

import re

from jaxemb.report import hosts


def _process(hostname, **more):
  return {
    'hostname': hostname, 'secs': 10.0, 'mean_cores': 1.5, 'peak_cores': 1.75,
    'peak_rss_bytes': 600_000_000, 'mean_host_busy_cores': 1.625,
    'network_received_bytes': 12_000_000,
    'network_received_bytes_per_sec': 1_200_000.0,
    'network_sent_bytes': None, 'network_sent_bytes_per_sec': None,
    'loopback_received_bytes': 0, 'loopback_received_bytes_per_sec': 0.0,
    'loopback_sent_bytes': 5000, 'loopback_sent_bytes_per_sec': 500.0,
  } | more  # fmt: skip


def _row(step, *processes):
  return {
    'step': step,
    'epoch': step / 10,
    'hosts': [
      {
        'cores': cores,
        'network_sent_bytes_per_sec': sent,
        'loopback_sent_bytes_per_sec': 0.0,
      }
      for cores, sent in processes
    ],
  }


def test_one_process_is_a_line():
  row = _row(1, (1.5, 1.0))
  report = {'hosts': [_process('vm<1>')], 'machine': {'cores': 2}}
  html = hosts.section(report, [row])
  for part in (
    'vm&lt;1&gt;', '1.50 of 2 cores on average', '1.75 at most', '1.62)',
    '600 MB', 'network: 12 MB received (1.2 MB/s), – sent (–)',
    'loopback: 0 bytes received (0 bytes/s), 5 kB sent (500 bytes/s)',
  ):  # fmt: skip
    assert part in html, part
  assert '<table' not in html and '<svg' not in html


def test_several_processes_are_a_table_and_curves():
  report = {'hosts': [_process('a'), _process('a'), _process('<b>')]}
  rows = [
    _row(20, (1.0, 500.0), (0.5, 500.0), (1.0, 250.0)),
    _row(10, (9.0, 9.0), (9.0, 9.0), (9.0, 9.0)),
    # The same step again, after a restart.
    _row(10, (1.0, 100.0), (1.0, 100.0), (1.0, 50.0)),
    {'step': 5, 'epoch': 0.5},  # of an older version
  ]
  html = hosts.section(report, rows)
  assert '3 processes on 2 hosts.' in html
  assert html.count('<th scope="row">') == 3
  assert html.count('12 MB<br><small>1.2 MB/s</small>') == 3
  assert '&lt;b&gt;' in html and '<b>' not in html
  shown = re.findall(r'<desc[^>]*>([^<]*)', html)
  # By step, however they were logged: from the middle to the right.
  assert html.count('class="line" d="M200.0 ') == 2
  # Nothing went over loopback: no curve.
  assert shown == [
    'CPU, cores, all processes, by epoch: 2.75 on average, highest 3.',
    'Network, bytes sent per second, by epoch: 450 on average, highest 750.',
  ]


def test_a_process_that_was_not_measured_leaves_a_gap():
  report = {'hosts': [_process('a'), _process('b')]}
  rows = [_row(1, (None, 1.0), (1.0, 1.0)), _row(2, (1.0, None), (1.0, 1.0))]
  shown = re.findall(r'<desc[^>]*>([^<]*)', hosts.section(report, rows))
  assert [line.split(': ')[1] for line in shown] == [
    '2 on average, highest 2.'
  ] * 2


def test_nothing_known():
  assert 'not measured' in hosts.section({}, [])
  assert 'not measured' in hosts.section({'hosts': []}, [{'step': 1}])
  for processes in ([{}], [{}, {}]):
    html = hosts.section({'hosts': processes}, [_row(1, (1.0, 1.0))])
    assert '–' in html
