"""Several processes on this machine that train together, as hosts would.

  python experiments/launch_local.py -n 2 -- --config=configs/wiki.py

starts `python -m jaxemb.main` twice as one job over loopback and prefixes what
each prints with its number. --sockets, in place of -n, starts one on the cores
of each socket, whose threads share a table in the memory next to them; they are
replicas, which exchange what they learn.

When one fails, the others are stopped (SIGTERM, after 10 s SIGKILL) and its
exit code is ours (128 + the signal that ended it); SIGTERM, SIGINT and SIGHUP
go to all.
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
from collections.abc import Iterator, Sequence
from typing import IO, Any

_STOPPED = 75  # exit code of jaxemb.main: saved, because a signal asked for it
_DRAIN_SECS = 2.0  # a child that outlives its process may hold its output open
# Whoever closes the terminal wants to find the run saved.
_SIGNALS = {
  signal.SIGTERM: signal.SIGTERM,
  signal.SIGINT: signal.SIGINT,
  signal.SIGHUP: signal.SIGTERM,
}
_WRITING = threading.Lock()


def run(
  arguments: Sequence[str],
  num_processes: int,
  devices: int = 0,
  command: Sequence[str] = (sys.executable, '-m', 'jaxemb.main'),
  grace_secs: float = 10.0,
  cores: Sequence[Sequence[int]] = (),
) -> int:
  """Runs processes of `command`, in the main thread, until the last has ended.

  Each has `devices` CPU devices; 0 = as many as it chooses. From the failure of
  one to the end of the others are `grace_secs`. `cores` are those that each may
  run on; () = all may run on all.

  Returns the exit code of the process that failed first, else 75 if one was
  stopped after saving, else 0.
  """
  with socket.create_server(('127.0.0.1', 0)) as server:
    coordinator = f'127.0.0.1:{server.getsockname()[1]}'
  environment = os.environ | {'PYTHONUNBUFFERED': '1'}
  if devices:
    environment['JAX_NUM_CPU_DEVICES'] = str(devices)
  # (number of a process, exit code), or (None, a signal that came)
  events: queue.SimpleQueue = queue.SimpleQueue()
  old = {
    number: signal.signal(number, lambda got, _: events.put((None, got)))
    for number in _SIGNALS
    if signal.getsignal(number) != signal.SIG_IGN  # nohup
  }
  job = f'--coordinator={coordinator}', f'--num_processes={num_processes}'
  processes = []
  try:
    for i in range(num_processes):
      full = [*command, *arguments, *job, f'--process_id={i}']
      with _on(cores[i] if cores else ()):
        processes.append(_Process(i, events, args=full, env=environment))
    return _wait(processes, events, grace_secs)
  finally:
    for process in processes:
      process.kill()
    for number, handler in old.items():
      signal.signal(number, handler)


@contextlib.contextmanager
def _on(cores: Sequence[int]) -> Iterator[None]:
  """Has what is started meanwhile run on these cores; () = on any."""
  if not cores:
    yield
    return
  own = os.sched_getaffinity(0)
  os.sched_setaffinity(0, cores)
  try:
    yield
  finally:
    os.sched_setaffinity(0, own)


class _Process(subprocess.Popen):
  """A process whose output is copied line by line, and whose end is told."""

  def __init__(self, index: int, events: queue.SimpleQueue, **options: Any):
    super().__init__(
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      # Ctrl-C in a terminal reaches a whole group: they would get it twice.
      process_group=0,
      **options,
    )
    pairs = (self.stdout, sys.stdout), (self.stderr, sys.stderr)
    self._copying = [_start(_copy, *pair, index) for pair in pairs]
    _start(lambda: events.put((index, self.wait())))

  def drain(self) -> None:
    """Waits until what it has printed is shown."""
    for thread in self._copying:
      thread.join(_DRAIN_SECS)

  def kill(self) -> None:
    """Ends it, with all that it started."""
    if self.poll() is None:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(self.pid, signal.SIGKILL)


def _wait(
  processes: list[_Process], events: queue.SimpleQueue, grace_secs: float
) -> int:
  """Passes signals on and stops all when one fails; returns the exit code."""
  running = dict(enumerate(processes))
  result, is_asked, timeout = 0, False, None

  def ask(number: int) -> None:
    for process in running.values():
      process.send_signal(number)

  while running:
    try:
      i, event = events.get(timeout=timeout)
    except queue.Empty:
      _say(f'still running {grace_secs:g} s later: killed')
      timeout = None
      for process in running.values():
        process.kill()
      continue
    if i is None:
      is_asked = True
      ask(_SIGNALS[event])
      continue
    running.pop(i)
    code = 128 - event if event < 0 else event
    if code and result in (0, _STOPPED):
      result = code
    if code and running:
      if not is_asked:  # twice would end them without saving
        is_asked = True
        ask(signal.SIGTERM)
      # Who stopped after saving has not failed: others may still be saving.
      if code != _STOPPED and timeout is None:
        timeout = grace_secs
        processes[i].drain()  # its own words come first
        _say(
          f'process {i} failed with exit code {code}; the others are stopped'
        )
  for process in processes:
    process.drain()
  return result


def _start(work, *args) -> threading.Thread:
  thread = threading.Thread(target=work, args=args, daemon=True)
  thread.start()
  return thread


def _copy(source: IO[bytes], target: IO[str], index: int) -> None:
  # If the target is closed, so is the source: its writer should know.
  with source, contextlib.suppress(OSError):
    for line in source:
      _write(target, b'[%d] %s\n' % (index, line.removesuffix(b'\n')))


def _write(file: IO[str], line: bytes) -> None:
  """Writes a whole line at once, whatever bytes it has."""
  with _WRITING:
    file.flush()
    file.buffer.write(line)
    file.buffer.flush()


def _say(text: str) -> None:
  with contextlib.suppress(OSError):  # nobody reads it
    _write(sys.stderr, f'launch_local: {text}\n'.encode())


def main(argv: Sequence[str]) -> int:
  """Runs what the command line says; returns the exit code."""
  split = argv.index('--') if '--' in argv else len(argv)
  parser = argparse.ArgumentParser(
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    usage='%(prog)s (-n N [--devices D] | --sockets) -- ARGUMENTS',
  )
  number = parser.add_mutually_exclusive_group(required=True)
  number.add_argument('-n', type=int, help='processes')
  number.add_argument('--sockets', action='store_true', help='one on each')
  parser.add_argument('--devices', type=int, default=0, help='CPUs of each')
  args, flags, cores = parser.parse_args(argv[:split]), argv[split + 1 :], ()
  if args.sockets:
    if args.devices:
      parser.error('--devices is not used with --sockets')
    from jaxemb.runtime import resources

    cores = resources.sockets()
    if len(cores) < 2:
      parser.error('--sockets: this machine has one; run jaxemb.main itself')
    # Where a flag comes twice, the later one counts.
    flags = ['--config.strategy.name=replicas', *flags]
    return run(flags, len(cores), 1, cores=cores)
  if args.n < 1:
    parser.error('-n must be at least 1')
  return run(flags, args.n, args.devices)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
