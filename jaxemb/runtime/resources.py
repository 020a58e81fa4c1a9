"""What a process uses and runs on: CPU, memory, network, versions.

CPU time and memory are those of this process; network bytes are those of the
whole host (or container), without traffic that bypasses the kernel (RDMA, links
between accelerators).
"""

import contextlib
import ctypes
import hashlib
import importlib.metadata
import itertools
import math
import mmap
import os
import pathlib
import platform
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import psutil

_LARGE_BYTES, _HUGE_PAGE_BYTES = 1 << 23, 1 << 21
_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1 and later

_CGROUPS = pathlib.Path('/sys/fs/cgroup')
_OWN_CGROUPS = pathlib.Path('/proc/self/cgroup')
_PACKAGES = ('jaxemb', 'jax', 'jaxlib', 'orbax-checkpoint', 'numpy', 'numba')
_BUSY = ('user', 'nice', 'system', 'irq', 'softirq', 'steal')
_MIN_PEAK_SECS = 1.0  # cores in use over less time are noise
_RATES = (
  'cores',
  'host_busy_cores',
  'network_received_bytes_per_sec',
  'network_sent_bytes_per_sec',
  'loopback_received_bytes_per_sec',
  'loopback_sent_bytes_per_sec',
)
_NOW = 'hostname', 'rss_bytes', 'peak_rss_bytes'


def sample() -> dict[str, Any]:
  """Returns `secs`, with core-seconds and bytes named for their rates."""
  times = psutil.cpu_times()
  used = dict.fromkeys(_RATES, 0.0) | {
    'hostname': platform.node(),
    'rss_bytes': rss_bytes(),
    'peak_rss_bytes': peak_rss_bytes(),
    'secs': time.monotonic(),
    'cores': time.process_time(),
    'host_busy_cores': sum(getattr(times, name, 0.0) for name in _BUSY),
  }
  for name, counters in psutil.net_io_counters(pernic=True).items():
    # A bond, bridge or VLAN counts the bytes of its members once more.
    if not any(pathlib.Path('/sys/class/net', name).glob('lower_*')):
      network = 'loopback' if name in ('lo', 'lo0') else 'network'
      used[f'{network}_received_bytes_per_sec'] += counters.bytes_recv
      used[f'{network}_sent_bytes_per_sec'] += counters.bytes_sent
  return used


def since(first: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a sample that counts from the first one."""
  now = sample()
  return now | {key: now[key] - first[key] for key in ('secs', *_RATES)}


def between(
  earlier: Mapping[str, Any], later: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns what there is now and the mean rates between two samples, or {}.

  Numbers may have been added, NaN if not known; the earlier sample may be {},
  the start. Counters fall if a network interface is removed: that counts as 0.
  """
  secs = later.get('secs', 0.0) - earlier.get('secs', 0.0)
  if secs <= 0:
    return {}
  usage = {key: later[key] for key in _NOW} | {'secs': secs}
  for key in [x for x in later if x not in usage]:
    more = max(0.0, later[key] - earlier.get(key, 0.0))
    usage[key] = None if math.isnan(later[key]) else more / secs
  return usage


def summary(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """Summarizes the `hosts` of rows of metrics.jsonl, for report.json.

  They list what `between` returned for each process, {} if not known yet.
  """
  by_process = itertools.zip_longest(*(x.get('hosts') or () for x in records))
  return [_summary([x for x in usages if x]) for usages in by_process]


def _summary(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  if not usages:
    return {}
  secs, last, means = [x['secs'] for x in usages], usages[-1], {}
  for key in [x for x in last if x not in ('secs', *_NOW)]:
    # An earlier version did not count all.
    values = [x.get(key) or 0.0 for x in usages]
    mean = float(np.average(values, weights=secs))
    means[key] = None if last[key] is None else mean
  mean_cores, mean_busy_cores = means.pop('cores'), means.pop('host_busy_cores')
  long = [x['cores'] for x in usages if x['secs'] >= _MIN_PEAK_SECS]
  return {
    'hostname': last['hostname'],
    'secs': sum(secs),
    'mean_cores': mean_cores,
    'peak_cores': max(long, default=mean_cores),
    # The largest: a run that was resumed has been several processes.
    'peak_rss_bytes': max(x['peak_rss_bytes'] for x in usages),
    'mean_host_busy_cores': mean_busy_cores,
    **{
      key.removesuffix('_per_sec'): mean and round(sum(secs) * mean, 3)
      for key, mean in means.items()
    },
    **means,
  }


def rss_bytes() -> int:
  """Returns the resident memory of this process."""
  return psutil.Process().memory_info().rss


def peak_rss_bytes() -> int:
  """Returns the peak resident memory of this process."""
  # psutil has none on Linux, and getrusage's survives exec there: a process
  # started by a large one (a notebook) would report the memory of the other.
  if sys.platform == 'linux':
    status = pathlib.Path('/proc/self/status').read_text()
    peak = re.search(r'^VmHWM:\s*(\d+) kB', status, re.M)
    if peak:  # some sandboxes leave the line out
      return 1024 * int(peak[1])
  if sys.platform == 'win32':
    return psutil.Process().memory_info().peak_wset
  import resource

  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def affinity() -> list[int]:
  """Returns the numbers of the cores that this process may run on."""
  if not hasattr(os, 'sched_getaffinity'):  # not Linux
    return list(range(os.cpu_count() or 1))
  return sorted(os.sched_getaffinity(0))


def usable_cores(
  root: pathlib.Path = _CGROUPS, own: pathlib.Path = _OWN_CGROUPS
) -> int:
  """Returns the cores this process may use, by affinity and container quota.

  `root` has the limits of containers, and `own` says which apply.
  """
  cores = len(affinity())
  for folder in _cgroups('cpu', root, own):
    for names in (('cpu.max',), ('cpu.cfs_quota_us', 'cpu.cfs_period_us')):
      with contextlib.suppress(OSError, ValueError):  # where there is no quota
        text = ' '.join((folder / x).read_text() for x in names)
        quota, period = map(int, text.split())
        if quota > 0 and period > 0:
          cores = min(cores, max(1, round(quota / period)))
  return cores


def _cgroups(
  controller: str, root: pathlib.Path, own: pathlib.Path
) -> list[pathlib.Path]:
  """Returns folders that may limit this process, of cgroup v1 and v2.

  A limit of any ancestor applies. In a container, `own` may name a folder of
  the host, and the container's limits lie in the root.
  """
  folders, lines = {root: None}, []
  with contextlib.suppress(OSError):  # not Linux
    lines = own.read_text().splitlines()
  for line in lines:
    _, controllers, path = line.split(':', 2)
    if controllers and controller not in controllers.split(','):
      continue
    folders[folder := root / controllers] = None
    for name in path.split('/'):
      if name not in ('', '..'):
        folders[folder := folder / name] = None
    if controllers != controller:  # mounted once, and linked by each name
      folders[root / controller] = None
  return [x for x in folders if x.is_dir()]


def reading_threads() -> int:
  """Returns how many threads read data: one per usable core, at most 8.

  More read no faster, and each holds two pieces of the data, some 80 MB.
  """
  return min(usable_cores(), 8)


def sockets(
  folder: pathlib.Path = pathlib.Path('/sys/devices/system/node'),
) -> list[list[int]]:
  """Returns the cores of `affinity` next to each memory (NUMA); [] if unknown.

  `folder` is where Linux lists them.
  """
  by_memory, usable = [], set(affinity())
  for path in sorted(folder.glob('node*/cpulist')):
    ends = [x.split('-') for x in path.read_text().split(',') if x.strip()]
    cores = {y for x in ends for y in range(int(x[0]), int(x[-1]) + 1)}
    by_memory.append(sorted(cores & usable))
  return [x for x in by_memory if x]  # some memory has no cores


def machine() -> dict[str, Any]:
  """Returns the name of the CPU, its number of cores and the system."""
  try:
    info = pathlib.Path('/proc/cpuinfo').read_text()
    named = re.search(r'^model name\s*:\s*(.+)', info, re.M)
  except OSError:  # not Linux
    named = None
  cpu = named[1] if named else ''
  if not cpu:
    cpu = platform.processor() or platform.machine()
  return {'cpu': cpu, 'cores': os.cpu_count(), 'os': platform.platform()}


def versions() -> dict[str, str]:
  """Returns the versions of Python and of the packages that matter."""
  numbers = {'python': platform.python_version()}
  for package in _PACKAGES:
    # The checkout itself may be run without being installed.
    module = sys.modules.get(package)
    numbers[package] = getattr(module, '__version__', 'not installed')
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      numbers[package] = importlib.metadata.version(package)
  return numbers


def code_digest() -> str:
  """Returns a digest of the source of this package."""
  digest = hashlib.sha256()
  for path in sorted(pathlib.Path(__file__).parents[1].rglob('*.py')):
    digest.update(path.read_bytes())
  return digest.hexdigest()[:16]


def available_bytes(
  root: pathlib.Path = _CGROUPS, own: pathlib.Path = _OWN_CGROUPS
) -> int:
  """Returns the free memory of this machine, or of its container.

  `root` has the limits of containers, and `own` says which apply.
  """
  free_bytes = psutil.virtual_memory().available
  for folder in _cgroups('memory', root, own):
    for limit, used in (
      ('max', 'current'),
      ('limit_in_bytes', 'usage_in_bytes'),
    ):
      with contextlib.suppress(OSError, ValueError):  # where there is no limit
        limit_bytes = int((folder / f'memory.{limit}').read_text())
        used_bytes = int((folder / f'memory.{used}').read_text())
        stats = _stats(folder)
        # Of ancestors that the container does not see.
        most = stats.get('hierarchical_memory_limit', limit_bytes)
        # Pages of files, and in version 2 what the kernel keeps of their names,
        # go when memory is needed. Version 1 has totals, too.
        of_group = 'total_' * ('total_active_file' in stats)
        pages = sum(
          stats.get(f'{of_group}{x}', 0)
          for x in ('active_file', 'inactive_file', 'slab_reclaimable')
        )
        room = min(limit_bytes, most) - max(0, used_bytes - pages)
        free_bytes = min(free_bytes, max(0, room))
  return free_bytes


def _stats(folder: pathlib.Path) -> dict[str, int]:
  lines = (folder / 'memory.stat').read_text().splitlines()
  return {key: int(value) for key, value in map(str.split, lines)}


def release_freed() -> None:
  """Returns memory that was freed to the system, which glibc's heap keeps.

  After XLA has compiled a step these are 100 to 200 MB.
  """
  if sys.platform == 'linux':
    trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)  # not of musl
    if trim:
      trim(0)


def use_huge_pages(arrays: Any) -> None:
  """Moves large arrays of a pytree on CPUs to huge pages, where there are any.

  Without them each lookup in a large table misses the core's address cache:
  steps on 33.7 M rows take 5 to 10 % less time.
  """
  if sys.platform != 'linux':
    return
  import jax  # here, as it takes long to import

  advise = ctypes.CDLL(None).madvise
  advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
  for x in jax.tree.leaves(arrays):
    for shard in x.addressable_shards:
      is_large = shard.data.nbytes >= _LARGE_BYTES
      if not is_large or shard.device.platform != 'cpu':
        continue
      start = shard.data.unsafe_buffer_pointer()
      stop = start + shard.data.nbytes
      first = -(-start // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
      size = (stop - first) // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
      # Those to come, then those that are there; none is needed.
      advise(first, size, mmap.MADV_HUGEPAGE)
      advise(first, size, _COLLAPSE)
