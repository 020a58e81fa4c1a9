"""Several processes on this machine that train together, as hosts would.

  python experiments/launch_local.py -n 2 -- --config=configs/wiki.py

starts `python -m jaxemb.main` twice, as one job of jax.distributed over
loopback, and shows what each prints behind its number. When one fails, the
others are stopped (SIGTERM, after 10 s SIGKILL) and its exit code is ours;
SIGTERM and SIGINT go to all. The processes share the cores as they like.
"""

import argparse
import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

_COMMAND = (sys.executable, '-m', 'jaxemb.main')
_STOPPED = 75  # of jaxemb.main: saved, because a signal asked for it
_GRACE_SECS = 10.0
# What a process started may outlive it, and hold its output open.
_DRAIN_SECS = 2.0
# What is sent on; who closes the terminal wants to find the run saved.
_SIGNALS = {
  signal.SIGTERM: signal.SIGTERM,
  signal.SIGINT: signal.SIGINT,
  signal.SIGHUP: signal.SIGTERM,
}


def run(
  arguments: Sequence[str],
  num_processes: int,
  devices: int = 0,
  command: Sequence[str] = _COMMAND,
  grace_secs: float = _GRACE_SECS,
) -> int:
  """Runs the processes until the last one has ended.

  To be called in the main thread, since it handles signals meanwhile.

  Args:
    arguments: for each process, beside those that make them one job.
    num_processes: how many.
    devices: CPU devices of each process; 0 = as many as it chooses.
    command: what is started.
    grace_secs: from the failure of a process to the end of the others.

  Returns:
    The exit code of the process that failed first (128 + the signal that ended
    it, as in a shell); else 75 if one was stopped after saving; else 0.
  """
  coordinator = f'127.0.0.1:{_free_port()}'
  environment = _environment(os.environ, coordinator, devices)
  events: queue.SimpleQueue = queue.SimpleQueue()
  old = {
    number: signal.signal(number, lambda got, _: events.put((None, got)))
    for number in _SIGNALS
    if signal.getsignal(number) != signal.SIG_IGN  # nohup
  }
  job = _Job(events, grace_secs)
  try:
    for i in range(num_processes):
      flags = (
        f'--coordinator={coordinator}',
        f'--num_processes={num_processes}',
        f'--process_id={i}',
      )
      job.start([*command, *arguments, *flags], environment)
    return job.wait()
  finally:
    job.kill()
    for number, handler in old.items():
      signal.signal(number, handler)


def _free_port() -> int:
  """A port of loopback that nobody listens on."""
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    return probe.getsockname()[1]


def _environment(
  own: Mapping[str, str], coordinator: str, devices: int
) -> dict[str, str]:
  """Of each process."""
  # By default the coordinator listens on all interfaces, to anybody.
  added = {'JAX_COORDINATOR_BIND_ADDRESS': coordinator, 'PYTHONUNBUFFERED': '1'}
  if devices:
    flag = f'--xla_force_host_platform_device_count={devices}'
    added['XLA_FLAGS'] = f'{own.get("XLA_FLAGS", "")} {flag}'.strip()
  return {**own, **added}


class _Job:
  """The processes, and what has happened to them.

  Threads wait for each process and its output; all decisions are made in the
  main thread, from a queue of (process, exit code) and (None, signal).
  """

  def __init__(self, events: queue.SimpleQueue, grace_secs: float):
    self._events = events
    self._grace_secs = grace_secs
    self._processes: list[subprocess.Popen] = []
    self._copying: list[list[threading.Thread]] = []  # of each process
    self._running: set[int] = set()
    self._asked = False  # to stop; twice would end them without saving
    self._kill_at_secs: float | None = None
    self._code = 0

  def start(self, command: Sequence[str], environment: dict[str, str]) -> None:
    """Starts one more process."""
    i = len(self._processes)
    process = subprocess.Popen(
      command,
      env=environment,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      # Ctrl-C in a terminal reaches a whole group: they would get it twice.
      process_group=0,
    )
    self._processes.append(process)
    self._running.add(i)
    self._copying.append(
      [
        _thread(_copy, process.stdout, sys.stdout, f'[{i}] '),
        _thread(_copy, process.stderr, sys.stderr, f'[{i}] '),
      ]
    )
    _thread(lambda: self._events.put((i, process.wait())))

  def wait(self) -> int:
    """Waits for all; returns the exit code of the job."""
    while self._running:
      try:
        i, what = self._events.get(timeout=self._left_secs())
      except queue.Empty:
        _say(f'still running {self._grace_secs:g} s later: killed')
        self.kill()
        continue
      if i is None:
        self._signal(_SIGNALS[what])
      else:
        self._running.remove(i)
        self._ended(i, what)
    for i in range(len(self._processes)):
      self._drain(i)
    return self._code

  def _left_secs(self) -> float | None:
    if self._kill_at_secs is None:
      return None
    return max(0.0, self._kill_at_secs - time.monotonic())

  def _ended(self, i: int, code: int) -> None:
    code = 128 - code if code < 0 else code
    if code and self._code in (0, _STOPPED):
      self._code = code
    if not code or not self._running:
      return
    if not self._asked:
      self._signal(signal.SIGTERM)
    # Who stopped after saving has not failed: others may still be saving.
    if code != _STOPPED and self._kill_at_secs is None:
      self._kill_at_secs = time.monotonic() + self._grace_secs
      self._drain(i)  # its own words come first
      _say(f'process {i} failed with exit code {code}; the others are stopped')

  def _drain(self, i: int) -> None:
    """Waits until what a process has printed is shown."""
    end_secs = time.monotonic() + _DRAIN_SECS
    for thread in self._copying[i]:
      thread.join(max(0.0, end_secs - time.monotonic()))

  def _signal(self, number: int) -> None:
    self._asked = True
    for i in self._running:
      self._processes[i].send_signal(number)

  def kill(self) -> None:
    """Ends what still runs, with all that it started."""
    self._kill_at_secs = None
    for i in self._running:
      if self._processes[i].poll() is None:
        with contextlib.suppress(ProcessLookupError):
          os.killpg(self._processes[i].pid, signal.SIGKILL)


def _thread(work: Callable[..., None], *args: Any) -> threading.Thread:
  thread = threading.Thread(target=work, args=args, daemon=True)
  thread.start()
  return thread


_WRITING = threading.Lock()


def _write(file: IO[str], line: bytes) -> None:
  """A whole line at once, whatever bytes it has."""
  with _WRITING:
    file.flush()
    file.buffer.write(line)
    file.buffer.flush()


def _copy(source: IO[bytes], target: IO[str], prefix: str) -> None:
  """Copies line by line until the source ends."""
  # If the target is closed, so is the source: its writer should know.
  with source:
    for line in source:
      try:
        _write(target, prefix.encode() + line.removesuffix(b'\n') + b'\n')
      except OSError:
        return


def _say(text: str) -> None:
  try:
    _write(sys.stderr, f'launch_local: {text}\n'.encode())
  except OSError:
    pass  # nobody reads it


def main(argv: Sequence[str]) -> int:
  """Runs what the command line says; returns the exit code."""
  split = argv.index('--') if '--' in argv else len(argv)
  parser = argparse.ArgumentParser(
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    usage='%(prog)s -n N [--devices D] -- ARGUMENTS OF jaxemb.main',
  )
  parser.add_argument('-n', type=_number, required=True, help='processes')
  parser.add_argument(
    '--devices', type=_number, default=0, help='CPU devices of each'
  )
  args: Any = parser.parse_args(argv[:split])
  return run(argv[split + 1 :], args.n, args.devices)


def _number(text: str) -> int:
  if not text.isdecimal() or int(text) < 1:
    raise argparse.ArgumentTypeError(f'{text!r} is no number from 1 on')
  return int(text)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
