"""Runs several processes of one job on this host, as a scheduler would."""

import contextlib
import functools
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, TextIO

from jaxemb import errors
from jaxemb.runtime import addresses

_STOPPED = errors.LostError.exit_code
_DRAIN_SECS = 2.0  # a child that outlives its process may hold its output open
# Signals that are passed on, and as which: closing the terminal saves, too.
_SIGNALS = {
  signal.SIGTERM: signal.SIGTERM,
  signal.SIGINT: signal.SIGINT,
  signal.SIGHUP: signal.SIGTERM,
}
_WRITING = threading.Lock()


def run(
  arguments: Sequence[str],
  num_processes: int,
  *,
  devices: int = 0,
  command: Sequence[str] = (sys.executable, '-m', 'jaxemb.main'),
  grace_secs: float = 10.0,
  cores: Sequence[Sequence[int]] = (),
) -> int:
  """Runs processes of `command` until the last has ended; in the main thread.

  `arguments` come before the flags that make them one job. Each process has so
  many CPU `devices` (0 = as many as it chooses) and may run on its `cores` (()
  = on all). `grace_secs` after one has failed the others are killed. Returns
  the exit code of the process that failed first (128 + the signal that ended
  it), else 75 if one was stopped after saving, else 0.
  """
  coordinator = _coordinator()
  environment = os.environ | {'PYTHONUNBUFFERED': '1'}
  if devices:
    environment['JAX_NUM_CPU_DEVICES'] = str(devices)
  # (index of a process, exit code), or (None, the signal that arrived)
  events: queue.SimpleQueue = queue.SimpleQueue()
  handlers = {
    number: signal.signal(number, lambda got, _: events.put((None, got)))
    for number in _SIGNALS
    if signal.getsignal(number) != signal.SIG_IGN  # nohup
  }
  job = [f'--coordinator={coordinator}', f'--num_processes={num_processes}']
  processes = []
  try:
    for i in range(num_processes):
      command_line = [*command, *arguments, *job, f'--process_id={i}']
      with _on(cores[i] if cores else ()):
        process = _Process(i, events, args=command_line, env=environment)
      processes.append(process)
    return _wait(processes, events, grace_secs)
  finally:
    for process in processes:
      process.kill()
    for number, handler in handlers.items():
      signal.signal(number, handler)


def _coordinator() -> str:
  """Returns HOST:PORT of loopback; nobody listens there yet."""
  with addresses.listen_on_loopback() as server:
    return addresses.join(*server.getsockname()[:2])


@contextlib.contextmanager
def _on(cores: Sequence[int]) -> Iterator[None]:
  """Has processes that are started inside run on these cores; () = on all."""
  if not cores:
    yield
    return
  usable = os.sched_getaffinity(0)
  os.sched_setaffinity(0, cores)
  try:
    yield
  finally:
    os.sched_setaffinity(0, usable)


class _Process(subprocess.Popen):
  """A process whose output is copied by lines, and whose end is an event."""

  def __init__(self, index: int, events: queue.SimpleQueue, **options: Any):
    super().__init__(
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      # Ctrl-C in a terminal reaches a whole group: they would get it twice.
      process_group=0,
      **options,
    )
    assert self.stdout is not None and self.stderr is not None  # pipes
    pairs = (self.stdout, sys.stdout), (self.stderr, sys.stderr)
    self._copying = [
      _start(functools.partial(_copy, source, target, index))
      for source, target in pairs
    ]
    _start(lambda: events.put((index, self.wait())))

  def drain(self) -> None:
    """Waits until all it printed is shown."""
    for thread in self._copying:
      thread.join(_DRAIN_SECS)

  def kill(self) -> None:
    """Kills it and all its children."""
    if self.poll() is None:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(self.pid, signal.SIGKILL)


def _wait(
  processes: list[_Process], events: queue.SimpleQueue, grace_secs: float
) -> int:
  """Passes signals on, stops all when one fails; returns the exit code."""
  running = dict(enumerate(processes))
  result, is_stopping, timeout = 0, False, None

  def send(number: int) -> None:
    for process in running.values():
      process.send_signal(number)

  while running:
    try:
      i, event = events.get(timeout=timeout)
    except queue.Empty:
      _report(f'still running {grace_secs:g} s later: killed')
      timeout = None
      for process in running.values():
        process.kill()
      continue
    if i is None:
      is_stopping = True
      send(_SIGNALS[event])
      continue
    running.pop(i)
    code = 128 - event if event < 0 else event
    if code and result in (0, _STOPPED):
      result = code
    if code and running:
      if not is_stopping:  # a second signal would end them without saving
        is_stopping = True
        send(signal.SIGTERM)
      # 75 is no failure: other processes may still be saving.
      if code != _STOPPED and timeout is None:
        timeout = grace_secs
        processes[i].drain()  # its own message comes first
        _report(
          f'process {i} failed with exit code {code}; stopping the others'
        )
  for process in processes:
    process.drain()
  return result


def _start(work: Callable[[], object]) -> threading.Thread:
  thread = threading.Thread(target=work, daemon=True)
  thread.start()
  return thread


def _copy(source: IO[bytes], target: TextIO, index: int) -> None:
  # If the target is closed, so is the source: its writer should know.
  with source, contextlib.suppress(OSError):
    for line in source:
      _write(target, b'[%d] %s\n' % (index, line.removesuffix(b'\n')))


def _write(file: TextIO, line: bytes) -> None:
  """Writes a whole line at once, whatever bytes it has."""
  with _WRITING:
    file.flush()
    file.buffer.write(line)
    file.buffer.flush()


def _report(text: str) -> None:
  with contextlib.suppress(OSError):  # stderr may be closed
    _write(sys.stderr, f'jaxemb: {text}\n'.encode())
