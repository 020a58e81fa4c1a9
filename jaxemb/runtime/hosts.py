"""CPU, memory and network use of this process and its host.

A sample holds sums since the start; two samples make rates, and what was rated
between the records of a run is summed up for its report. CPU time and memory
are those of the process. Bytes are counted by the kernel per network interface,
so they are those of all processes of the host (or container), and traffic that
passes the kernel by (RDMA, links between accelerators) is not among them. What
a system does not tell is None: outside Linux all but CPU time and peak memory.
"""

import os
import pathlib
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_PROC = pathlib.Path('/proc')
_NET = pathlib.Path('/sys/class/net')
_LOOPBACK = 'lo'
# Over less, cores used are noise: the kernel counts CPU time in ticks.
_MIN_PEAK_SECS = 1.0
# Of files that are not there (not Linux) or not what Linux has (sandboxes).
_UNKNOWN = (OSError, ValueError, IndexError)
_TRAFFIC = (
  'network_received',
  'network_sent',
  'loopback_received',
  'loopback_sent',
)


class Sample(NamedTuple):
  """What was used up to one moment.

  Attributes:
    secs: Of a clock without a meaning of its own; differences count.
    cpu_secs: Of all threads of this process.
    rss_bytes: Resident memory of this process now.
    peak_rss_bytes: The most it was since the process started.
    host_busy_secs: Core-seconds that were not idle on the host, whoever used
      them, other virtual machines included.
    interfaces: Bytes received and sent, by network interface.
  """

  secs: float
  cpu_secs: float
  rss_bytes: int | None
  peak_rss_bytes: int | None
  host_busy_secs: float | None
  interfaces: Mapping[str, tuple[int, int]] | None


def sample() -> Sample:
  """What this process and its host have used so far."""
  return Sample(
    time.monotonic(),
    time.process_time(),
    _status_bytes('VmRSS'),
    peak_rss_bytes(),
    _host_busy_secs(),
    _interfaces(),
  )


def peak_rss_bytes() -> int | None:
  """Peak resident memory of this process; None where it cannot be told."""
  # Not getrusage: on Linux its figure survives exec, so that a process
  # started by a large one (a notebook) would report the other's memory.
  peak_bytes = _status_bytes('VmHWM')
  if peak_bytes is not None:
    return peak_bytes
  try:
    import resource
  except ImportError:
    return None  # Windows
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak if sys.platform == 'darwin' else 1024 * peak


def free_bytes() -> int | None:
  """Memory that processes of this host may still take; None if not known."""
  try:
    for line in pathlib.Path('/proc/meminfo').read_text().splitlines():
      if line.startswith('MemAvailable:'):
        return 1024 * int(line.split()[1])
  except (OSError, ValueError, IndexError):
    pass  # not Linux
  return None


def between(earlier: Sample, later: Sample) -> dict[str, Any]:
  """What two samples of this process say about the time between them.

  Args:
    earlier: the one.
    later: the other.

  Returns:
    `hostname`, `secs`, `cores` (that the process used on average), `rss_bytes`
    and `peak_rss_bytes` (of the process, at the end), `host_busy_cores`, and
    `network_received_bytes_per_sec`, `network_sent_bytes_per_sec` and the same
    with `loopback_`. A figure that cannot be told is None.
  """
  secs = max(later.secs - earlier.secs, 1e-9)
  busy_secs = None
  if None not in (earlier.host_busy_secs, later.host_busy_secs):
    busy_secs = max(later.host_busy_secs - earlier.host_busy_secs, 0.0)
  return {
    'hostname': platform.node(),
    'secs': secs,
    'cores': (later.cpu_secs - earlier.cpu_secs) / secs,
    'rss_bytes': later.rss_bytes,
    'peak_rss_bytes': later.peak_rss_bytes,
    'host_busy_cores': None if busy_secs is None else busy_secs / secs,
  } | {
    f'{name}_bytes_per_sec': None if grown is None else grown / secs
    for name, grown in _traffic(earlier.interfaces, later.interfaces).items()
  }


def summary(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """The figures of a run's records, by process.

  Args:
    records: rows of metrics.jsonl. `hosts` of each is a list of what `between`
      returned on each process, in an order that stays; rows without it count
      for nothing.

  Returns:
    For each process `hostname`, `secs` (that the figures are about), and where
    known, else None: `mean_cores`, `peak_cores` (over a second or more),
    `peak_rss_bytes`, `mean_host_busy_cores`, and, for each of
    `network_received`, `network_sent`, `loopback_received` and
    `loopback_sent`, the sum `_bytes` and the mean `_bytes_per_sec`.
  """
  lists = [record['hosts'] for record in records if record.get('hosts')]
  num_processes = max(map(len, lists), default=0)
  return [
    _summary([figures[i] for figures in lists if i < len(figures)])
    for i in range(num_processes)
  ]


def _summary(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """Of one process."""
  peaks = [x['peak_rss_bytes'] for x in figures]
  found = {
    'hostname': figures[-1]['hostname'],
    'secs': sum(x['secs'] for x in figures),
    'mean_cores': _mean(figures, 'cores'),
    'peak_cores': _peak(figures, 'cores'),
    # The largest: a run that was resumed has been several processes.
    'peak_rss_bytes': max((x for x in peaks if x is not None), default=None),
    'mean_host_busy_cores': _mean(figures, 'host_busy_cores'),
  }
  for name in _TRAFFIC:
    key = f'{name}_bytes_per_sec'
    known = [x[key] * x['secs'] for x in figures if x[key] is not None]
    found[f'{name}_bytes'] = round(sum(known)) if known else None
    found[key] = _mean(figures, key)
  return found


def _mean(figures: Sequence[Mapping[str, Any]], key: str) -> float | None:
  """Over the time for which it is known."""
  known = [(x[key], x['secs']) for x in figures if x[key] is not None]
  secs = sum(secs for _, secs in known)
  return sum(rate * secs for rate, secs in known) / secs if known else None


def _peak(figures: Sequence[Mapping[str, Any]], key: str) -> float | None:
  """The highest mean over records that together last long enough."""
  means, group = [], []
  for item in figures:
    group.append(item)
    if sum(x['secs'] for x in group) >= _MIN_PEAK_SECS:
      means.append(_mean(group, key))
      group = []
  if not means:  # less than that in all
    means = [_mean(figures, key)]
  return max((x for x in means if x is not None), default=None)


def _status_bytes(field: str) -> int | None:
  """A figure of /proc/self/status, which names kilobytes."""
  try:
    for line in (_PROC / 'self/status').read_text().splitlines():
      if line.startswith(f'{field}:'):
        return 1024 * int(line.split()[1])
  except _UNKNOWN:
    pass
  return None


def _host_busy_secs() -> float | None:
  try:
    with open(_PROC / 'stat') as file:
      ticks = [int(x) for x in file.readline().split()[1:9]]
    idle, waiting = ticks[3:5]
  except _UNKNOWN:
    return None
  busy = sum(ticks) - idle - waiting
  # Some sandboxes have the file and count nothing.
  return busy / os.sysconf('SC_CLK_TCK') if busy else None


def _interfaces() -> dict[str, tuple[int, int]] | None:
  """Bytes received and sent, by interface."""
  found = {}
  try:
    for line in (_PROC / 'net/dev').read_text().splitlines()[2:]:
      name, _, counters = line.rpartition(':')
      name, counts = name.strip(), [int(x) for x in counters.split()]
      # One that is made of others (a bond, a bridge, a VLAN) counts their
      # bytes once more.
      if not any((_NET / name).glob('lower_*')):
        found[name] = counts[0], counts[8]
  except _UNKNOWN:
    return None
  return found


def _traffic(
  earlier: Mapping[str, tuple[int, int]] | None,
  later: Mapping[str, tuple[int, int]] | None,
) -> dict[str, int | None]:
  """Bytes that came in between, by the names of `_TRAFFIC`."""
  if earlier is None or later is None:
    return dict.fromkeys(_TRAFFIC)
  grown = dict.fromkeys(_TRAFFIC, 0)
  for name in earlier.keys() & later.keys():
    kind = 'loopback' if name == _LOOPBACK else 'network'
    directions = zip(
      ('received', 'sent'), earlier[name], later[name], strict=True
    )
    for direction, before, now in directions:
      # It restarts at 0 if the interface is made anew.
      grown[f'{kind}_{direction}'] += now - before if now >= before else now
  return grown
