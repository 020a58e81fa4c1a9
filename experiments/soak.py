"""Hours of training with a preemption every minute: what grows?

A run of small tables, which saves a checkpoint every --checkpoint_secs, is
stopped by SIGTERM --every_secs after its first step and started again; every
fifth start is killed by SIGKILL, at a random moment. Each start records memory,
threads and open files at equal times after the first step, and what is in its
folder, the cache and the folder of temporary files. The table shows the first
and the last tenth of the starts; logs and metrics, which have lines of every
start, are apart.
"""

import argparse
import collections
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from typing import Any

import experiment
import psutil

_SAMPLE_SECS = 5  # between samples of a start
_KILL_EVERY = 5  # starts, of which one ends by SIGKILL
_LOGS = re.compile(r'log.*\.txt|metrics\.jsonl|events\.out.*')
_RESUMED = re.compile(r'resuming after ([\d,]+) words')
# What the table shows, and the bytes of a unit.
_SHOWN = {
  'memory, MB': ('rss', 1e6),
  'memory without files, MB': ('anonymous', 1e6),
  'peak memory, MB': ('peak', 1e6),
  'open files': ('open_files', 1),
  'threads': ('threads', 1),
  'files of the run': ('workdir_files', 1),
  'bytes of the run, MB': ('workdir_bytes', 1e6),
  'files of logs': ('logs_files', 1),
  'bytes of logs, MB': ('logs_bytes', 1e6),
  'files of the cache': ('cache_files', 1),
  'bytes of the cache, MB': ('cache_bytes', 1e6),
  'temporary files': ('temporary_files', 1),
}


def _flags() -> argparse.Namespace:
  parser = experiment.parser(__doc__)
  parser.add_argument('--hours', type=float, default=2.0)
  parser.add_argument('--every_secs', type=float, default=60.0)
  parser.add_argument('--checkpoint_secs', type=float, default=2.0)
  parser.add_argument('--config', default='wiki')
  return experiment.parse(parser)


def _count(
  name: str, folder: pathlib.Path, logs: bool | None = None
) -> dict[str, int]:
  """Returns number and bytes of files below a folder, by `name`.

  `logs`: whether to count logs alone, or all but them; None = all.
  """
  files = size = 0
  for path in folder.rglob('*'):
    if logs is None or logs == bool(_LOGS.fullmatch(path.name)):
      try:
        status = path.lstat()
      except FileNotFoundError:  # a checkpoint that is being replaced
        continue
      files, size = files + 1, size + status.st_size
  return {f'{name}_files': files, f'{name}_bytes': size}


def _sample(process: psutil.Process) -> dict[str, int]:
  """Returns memory, threads and open files of a process, where Linux has it."""
  status = pathlib.Path(f'/proc/{process.pid}/status').read_text()
  sizes = dict(re.findall(r'^(\w+):\s*(\d+) kB', status, re.M))
  return {
    'rss': 1024 * int(sizes['VmRSS']),
    'anonymous': 1024 * int(sizes['RssAnon']),
    'peak': 1024 * int(sizes['VmHWM']),
    'threads': process.num_threads(),
    'open_files': process.num_fds(),
  }


class _Soak:
  """A run that is preempted again and again."""

  def __init__(self, args: argparse.Namespace, folder: pathlib.Path):
    self._args, self._folder = args, folder
    self._workdir, self._cache = folder / 'run', folder / 'cache'
    self._temporary = folder / 'tmp'
    self._temporary.mkdir()
    self._environment = os.environ | {
      'JAXEMB_CACHE': str(self._cache),
      'NUMBA_CACHE_DIR': str(self._cache / 'numba'),
      'TMPDIR': str(self._temporary),
    }
    self._environment.pop('JAX_COMPILATION_CACHE_DIR', None)
    settings = {
      'model.dim': 16,
      'data.min_count': 2,
      'eval.paths': 'none',
      'train.epochs': 1_000_000,
      'train.threads': 1,
      'train.checkpoint_every_secs': args.checkpoint_secs,
    }
    self._command = experiment.training_command(args, self._workdir, settings)

  def start(self, number: int) -> dict[str, Any]:
    """Starts the run, ends it after a while, returns what it took."""
    begun, output = time.monotonic(), self._folder / 'output.txt'
    kills, life_secs = number % _KILL_EVERY == _KILL_EVERY - 1, float('inf')
    if kills:
      life_secs = random.Random(number).uniform(0, self._args.every_secs)
    with output.open('w') as file:
      process = subprocess.Popen(
        self._command,
        env=self._environment,
        stdout=file,
        stderr=subprocess.STDOUT,
      )
    try:
      samples = self._watch(process, output, begun + life_secs)
      process.send_signal(signal.SIGKILL if kills else signal.SIGTERM)
      code = process.wait(timeout=300)
    finally:
      process.kill()
    text = output.read_text(errors='replace')
    resumed = _RESUMED.search(text)
    expected = -signal.SIGKILL if kills else 75
    return {
      'secs': time.monotonic() - begun,
      'code': code,
      'is_expected': code == expected,
      'end': '' if code == expected else text[-2000:],
      'resumed_after': int(resumed[1].replace(',', '')) if resumed else None,
      'samples': samples,
      **_count('workdir', self._workdir, logs=False),
      **_count('logs', self._workdir, logs=True),
      **_count('cache', self._cache),
      **_count('temporary', self._temporary),
    }

  def _watch(
    self, process: subprocess.Popen, output: pathlib.Path, latest: float
  ) -> dict[str, dict[str, int]]:
    """Returns samples by seconds after the first step, until the end is due."""
    samples, watched = {}, psutil.Process(process.pid)
    first_step = None
    while time.monotonic() < latest and process.poll() is None:
      time.sleep(0.2)
      if first_step is None:
        if 'first step' in output.read_text(errors='replace'):
          first_step = time.monotonic()
          latest = min(latest, first_step + self._args.every_secs)
        continue
      secs = _SAMPLE_SECS * (1 + len(samples))
      if time.monotonic() >= first_step + secs and process.poll() is None:
        samples[str(secs)] = _sample(watched)
    return samples


def _row(start: dict[str, Any], after: str) -> dict[str, float]:
  """Returns what a start had, of its processes `after` so many seconds."""
  return start | start['samples'][after]


def _tenths(
  starts: Sequence[dict[str, Any]],
) -> tuple[str, list[list[dict[str, float]]]]:
  """Returns the time of samples that most have, and first and last tenth."""
  # The first one makes the cache, and has no checkpoint to read.
  starts = [x for x in starts[1:] if x['samples']]
  times = collections.Counter(t for x in starts for t in x['samples'])
  usual = [t for t, num in times.items() if num >= 0.9 * len(starts)]
  after = max(usual, key=int, default='')
  rows = [_row(x, after) for x in starts if after in x['samples']]
  num = max(1, len(rows) // 10)
  return after, [rows[:num], rows[-num:]] if rows else []


def _lines(starts: Sequence[dict[str, Any]]) -> Iterable[str]:
  """Yields a table of what has grown, and what ended otherwise."""
  after, tenths = _tenths(starts)
  rows = []
  for title, (key, unit) in _SHOWN.items() if tenths else ():
    first, last = (statistics.median(y[key] for y in x) / unit for x in tenths)
    rows.append([title, first, last, (last / first - 1) if first else None])
  head = {'': '', 'first tenth': '.1f', 'last tenth': '.1f', 'growth': '+.2%'}
  yield experiment.table(head, rows)
  unexpected = [x for x in starts if not x['is_expected']]
  # A start goes on where the one before saved, or later.
  positions = [x['resumed_after'] for x in starts if x['resumed_after']] or [0]
  pairs = zip(positions, positions[1:], strict=False)
  yield (
    f'{len(starts)} starts, memory {after} s after the first step; '
    f'{len(unexpected)} ended otherwise than asked, '
    f'{sum(y < x for x, y in pairs)} went back; {positions[-1]:,} words'
  )
  for x in unexpected:
    yield f'exit code {x["code"]}: {x["end"][-300:]}'


def main() -> None:
  """Runs for --hours and shows what has grown."""
  args = _flags()
  results = experiment.Results('soak', args)
  starts = results.found.setdefault('starts', [])
  end = time.monotonic() + 3600 * args.hours
  with tempfile.TemporaryDirectory() as folder:
    soak = _Soak(args, pathlib.Path(folder))
    while time.monotonic() < end:
      starts.append(soak.start(len(starts)))
      brief = {
        k: x for k, x in starts[-1].items() if k not in ('samples', 'end')
      }
      experiment.progress(len(starts), brief)
      results.save()
  results.finish(*_lines(starts))


if __name__ == '__main__':
  experiment.main(main)
