"""Runs of jaxemb in forks of one process that has imported it already.

A run costs a second or two then, where a Python of its own would import for
three. What a fork does is what the command does: JAX starts in it, it has its
own working folder, streams, limits and signals, and ends as Python does.

Whoever forks must not have started JAX, nor threads: who has gives another
`context`, whose processes are forked from a server that imports this module.
"""

import contextlib
import gc
import itertools
import multiprocessing
import os
import pathlib
import socket
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import context as contexts

import numpy as np

# What commands import, load and compile late, but for JAX's devices.
import scipy.cluster.vq as _vq  # noqa: F401

from jaxemb import __main__ as jaxemb
from jaxemb.cli import train as _main  # noqa: F401
from jaxemb.ops import sampling
from jaxemb.report import pages as _pages
from jaxemb.run import lifecycle as _train  # noqa: F401
from jaxemb.runtime import distributed

FORK = multiprocessing.get_context('fork')

_pages.template('words')
_pages.template('clicks', 'jaxemb.clicks')
sampling.alias_table(np.ones(3))


# Below the ports that systems give out. Processes of pytest, which begin at
# different ones, do not race for a port between its choice and its use.
_PORTS = itertools.count(20_000 + os.getpid() % 1_000 * 10)


def free_port() -> int:
  """A port of this machine that nobody listens to, another one each time."""
  for port in _PORTS:
    with contextlib.suppress(OSError):
      socket.create_server(('127.0.0.1', port)).close()
      return port
  raise AssertionError


class Run:
  """The processes of a run, which began when this was made."""

  def __init__(
    self,
    arguments: Sequence[str],
    folder: pathlib.Path,
    cache: pathlib.Path,
    num_processes: int = 1,
    after: tuple[int, int] = (0, 0),
    before: Callable[[], object] = int,
    own: Sequence[Sequence[str]] = (),
    context: contexts.BaseContext = FORK,
  ):
    """`arguments` are those of `jaxemb`, in a folder.

    `after` so many dispatches a process sends itself a signal. Each calls
    `before` first; `own` has more arguments of each. What the processes say
    lies beside the folder.
    """
    self.folder = folder
    folder.mkdir(parents=True, exist_ok=True)
    self._said = [
      folder.with_name(f'{folder.name}.said-{i}') for i in range(num_processes)
    ]
    job: list[list[str]] = [[]]
    if num_processes > 1:
      flags = (
        f'--coordinator=localhost:{free_port()}',
        f'--num_processes={num_processes}',
      )
      job = [[*flags, f'--process_id={i}'] for i in range(num_processes)]
    self.processes = []
    own = own or [()] * num_processes
    for mine, more, said in zip(own, job, self._said, strict=True):
      args = [*arguments, *mine, *more], folder, cache, said, after, before
      process = context.Process(target=_child, args=args)
      process.start()
      self.processes.append(process)

  def is_running(self) -> bool:
    """Whether all of its processes are."""
    return all(x.is_alive() for x in self.processes)

  def send(self, number: int, process: int = -1) -> None:
    """Sends a signal to a process; -1 = to all."""
    chosen = self.processes if process < 0 else [self.processes[process]]
    for one in chosen:
      if one.is_alive():
        os.kill(one.pid, number)

  def said(self) -> list[str]:
    """What each process has said so far."""
    return [x.read_text(errors='replace') for x in self._said if x.exists()]

  def wait(self, secs: float = 600) -> tuple[list[int], str]:
    """Exit codes, below 0 by a signal, and what was said, of all processes.

    Those that do not end are killed, and have the exit code -9.
    """
    deadline = time.monotonic() + secs
    for process in self.processes:
      process.join(max(0.0, deadline - time.monotonic()))
      if process.is_alive():
        process.kill()
        process.join()
    return [x.exitcode for x in self.processes], ''.join(self.said())


def _send_after(dispatches, number):
  decide = distributed.decide

  def counted(dispatch, *args):
    if dispatch == dispatches:
      os.kill(os.getpid(), number)
    return decide(dispatch, *args)

  distributed.decide = counted


def _child(arguments, folder, cache, said, after, before):
  gc.freeze()  # what is shared is not looked through, and stays shared
  with open(said, 'wb') as file:
    for number in (1, 2):
      os.dup2(file.fileno(), number)
  if after[0]:
    _send_after(*after)
  os.environ['JAXEMB_CACHE'] = str(cache)
  os.environ['JAX_PLATFORMS'] = 'cpu'
  # Processes that it starts, such as workers.
  os.environ['PYTHONPATH'] = os.pathsep.join(sys.path)
  os.chdir(folder)
  before()
  sys.exit(jaxemb.main(arguments))
