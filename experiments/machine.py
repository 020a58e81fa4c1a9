"""What a measurement was made on: stands beside every result."""

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxemb import errors

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PACKAGES = ('jax', 'jaxlib', 'numpy', 'numba', 'gensim')


def describe() -> dict[str, Any]:
  """The machine, the versions, the commit and the date.

  Starts JAX, which takes most of a GPU's memory: call it where no process that
  is started afterwards needs the device.

  Returns:
    `cpu`, `cores` (that this process may use), `memory_bytes`, `os`, `python`,
    `versions` (of the packages that are installed), `devices` (platform, kind
    and count), `commit` ('unknown' outside a repository), `is_modified` (the
    package differs from that commit) and `date`.
  """
  return {
    'cpu': cpu(),
    'cores': cores(),
    'memory_bytes': memory_bytes('MemTotal'),
    'os': platform.platform(),
    'python': platform.python_version(),
    'versions': versions(),
    'devices': devices(),
    'commit': commit(),
    'is_modified': bool(_git('status', '--porcelain', '--', 'jaxemb')),
    'date': today(),
  }


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
  """Flags of a command; those of a config, which come last, are `override`."""
  args, args.override = parser.parse_known_args()
  unknown = [x for x in args.override if not x.startswith('--config.')]
  if unknown:
    parser.error(f'unknown argument {unknown[0]}')
  return args


def count(given: str) -> int:
  """A flag that is a number of things, at least one."""
  number = int(given)
  if number < 1:
    raise argparse.ArgumentTypeError(f'{number} must be at least 1')
  return number


def run(main: Callable[[], None]) -> None:
  """Calls an experiment; what its user got wrong is one line, exit code 2."""
  try:
    main()
  except errors.UserError as error:
    print(f'{pathlib.Path(sys.argv[0]).name}: {error}', file=sys.stderr)
    sys.exit(2)


def config(given: str) -> str:
  """A config with its variant; one that is not here is of the checkout."""
  path = given.partition(':')[0]
  return given if os.path.exists(path) else str(_ROOT / given)


def line(facts: dict[str, Any]) -> str:
  """What `describe` returned, in one line."""
  memory = facts['memory_bytes'] / 2**30
  packages = ' '.join(f'{k} {v}' for k, v in facts['versions'].items())
  devices = ', '.join(
    f'{d["count"]} x {d["platform"]} {d["kind"]}' for d in facts['devices']
  )
  modified = ' and changes' if facts['is_modified'] else ''
  return (
    f'{facts["cpu"]}, {facts["cores"]} cores, {memory:.0f} GiB; JAX devices '
    f'{devices}; {packages}; commit {facts["commit"][:12]}{modified}, '
    f'{facts["date"]}'
  )


def cpu() -> str:
  """The model of the processor."""
  try:
    for text in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
      if text.startswith('model name'):
        return text.split(':', 1)[1].strip()
  except OSError:  # not Linux
    pass
  return platform.processor() or platform.machine()


def cores() -> int:
  """Cores that this process may use."""
  try:
    return len(os.sched_getaffinity(0))
  except AttributeError:  # not Linux
    return os.cpu_count() or 1


def memory_bytes(field: str) -> int:
  """A field of /proc/meminfo, such as MemTotal or MemAvailable.

  Where there is none, all of the machine's memory.
  """
  try:
    for text in pathlib.Path('/proc/meminfo').read_text().splitlines():
      if text.startswith(f'{field}:'):
        return 1024 * int(text.split()[1])
  except OSError:  # not Linux
    pass
  return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')


def versions() -> dict[str, str]:
  """Of the packages that matter for speed, if they are installed."""
  found = {}
  for name in _PACKAGES:
    try:
      found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      pass
  return found


def devices() -> list[dict[str, Any]]:
  """The kinds of JAX devices of this process, with their number."""
  import jax

  counts: dict[tuple[str, str], int] = {}
  for device in jax.local_devices():
    kind = (device.platform, device.device_kind)
    counts[kind] = counts.get(kind, 0) + 1
  return [
    {'platform': platform, 'kind': kind, 'count': count}
    for (platform, kind), count in counts.items()
  ]


def commit() -> str:
  """The commit that is checked out, or 'unknown'."""
  return _git('rev-parse', 'HEAD') or 'unknown'


def arguments(given: argparse.Namespace) -> dict[str, Any]:
  """Flags of a command, without the folders of this machine."""

  def short(value: Any) -> Any:
    if isinstance(value, list | tuple):
      return [short(x) for x in value]
    if not isinstance(value, str | pathlib.Path):
      return value
    paths = str(value).split(',')
    return ','.join(os.path.basename(x) if x[:1] == '/' else x for x in paths)

  return {key: short(value) for key, value in vars(given).items()}


def write(
  path: pathlib.Path | str,
  facts: dict[str, Any],
  given: argparse.Namespace,
  results: Any,
) -> None:
  """Writes a result as JSON.

  Args:
    path: of the file.
    facts: what `describe` returned.
    given: the parsed flags of the command.
    results: what it found.
  """
  found = facts | {'arguments': arguments(given), 'results': results}
  pathlib.Path(path).write_text(json.dumps(found, indent=1))


def earlier(
  path: pathlib.Path, given: argparse.Namespace, free: Sequence[str]
) -> dict[str, Any]:
  """What a file of results has, to be gone on with; {} if there is none.

  Args:
    path: of the file.
    given: the parsed flags of the command.
    free: flags that may differ from those that the results were made with.

  Raises:
    UserError: others differ.
  """
  if not path.exists():
    return {}
  found = json.loads(path.read_text())
  ours, theirs = arguments(given), found.get('arguments', {})
  for key in sorted(ours.keys() - set(free)):
    if ours[key] != theirs.get(key):
      raise errors.UserError(
        f'{path} has figures of --{key}={theirs.get(key)}, not {ours[key]}; '
        'give another --output'
      )
  return found


def today() -> str:
  """The date, as results are named."""
  return datetime.date.today().isoformat()


class Load:
  """How busy other processes keep the machine, from its making on."""

  def __init__(self) -> None:
    self._before = self._now()

  @staticmethod
  def _now() -> tuple[float, float, float]:
    """Seconds: of the clock, of all processes, of this one."""
    try:
      with open('/proc/stat') as file:
        ticks = [int(x) for x in file.readline().split()[1:9]]
    except OSError:  # not Linux
      return time.perf_counter(), 0.0, 0.0
    idle, waiting = ticks[3:5]
    busy_secs = (sum(ticks) - idle - waiting) / os.sysconf('SC_CLK_TCK')
    return time.perf_counter(), busy_secs, time.process_time()

  def others_cores(self) -> float:
    """Cores that others took on average; also those of other virtual machines.

    0 where it cannot be told.
    """
    secs, busy, own = np.subtract(self._now(), self._before)
    return max(0.0, float(busy - own) / float(secs))


def peak_rss_bytes() -> int:
  """The most host memory that this process has used so far."""
  try:
    for text in pathlib.Path('/proc/self/status').read_text().splitlines():
      # getrusage would include the process from which this one was forked.
      if text.startswith('VmHWM:'):
        return 1024 * int(text.split()[1])
  except OSError:  # not Linux
    pass
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak if sys.platform == 'darwin' else 1024 * peak


def _git(*args: str) -> str:
  try:
    result = subprocess.run(
      ['git', '--no-optional-locks', *args],
      cwd=_ROOT,
      capture_output=True,
      text=True,
    )
  except OSError:  # no git
    return ''
  return result.stdout.strip() if result.returncode == 0 else ''
