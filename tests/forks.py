"""Processes where they are the point, without Python's start and imports.

They are forked from a server that has imported jaxemb and JAX, which starts in
each of them, with as many devices as a user would have; see `forked.Run`.
"""

import atexit
import functools
import multiprocessing
import os
import pathlib
import runpy
import socket
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import context, forkserver

import pytest

from tests import compiling

ROOT = pathlib.Path(__file__).parents[1]
EXPERIMENTS = ROOT / 'experiments'
sys.path.append(str(EXPERIMENTS))
import forked  # noqa: E402


@functools.cache
def server() -> context.BaseContext:
  """Makes processes of the server, which compiles as tests do."""
  made = multiprocessing.get_context('forkserver')
  made.set_forkserver_preload(['forked', __name__])
  with pytest.MonkeyPatch.context() as patch:
    for name, value in compiling.environment().items():
      patch.setenv(name, value)
    patch.setenv('JAX_PLATFORMS', 'cpu')
    patch.setenv('PYTHONPATH', os.pathsep.join([str(ROOT), *sys.path]))
    forkserver.ensure_running()
  return made


def free_port() -> int:
  """A port of this machine that nobody listens to."""
  with socket.create_server(('127.0.0.1', 0)) as made:
    return made.getsockname()[1]


def start(
  arguments: Sequence[str], folder: pathlib.Path, num: int = 1, **more
) -> forked.Run:
  """Starts `jaxemb` in a folder, as one job of so many processes."""
  cache = pathlib.Path(os.environ['JAXEMB_CACHE'])
  return forked.Run(arguments, folder, cache, num, context=server(), **more)


def scripts(
  commands: Sequence[Sequence[str]],
  environment: Mapping[str, str],
  said: pathlib.Path,
) -> list[int]:
  """Runs each `[python, file or -m module, *arguments]`; their exit codes.

  What they say is added to a file.
  """
  processes = [
    server().Process(target=_script, args=(x[1:], dict(environment), said))
    for x in commands
  ]
  for process in processes:
    process.start()
  for process in processes:
    process.join()
  return [x.exitcode for x in processes]


def _script(arguments, environment, said):
  with open(said, 'ab') as file:
    for number in (1, 2):
      os.dup2(file.fileno(), number)
  os.environ.clear()
  os.environ.update(environment)
  try:
    if arguments[0] == '-m':
      sys.argv = list(arguments[1:])
      runpy.run_module(arguments[1], run_name='__main__', alter_sys=True)
    else:
      sys.argv = list(arguments)
      sys.path.insert(0, os.path.dirname(arguments[0]))
      runpy.run_path(arguments[0], run_name='__main__')
  finally:
    atexit._run_exitfuncs()  # as where Python began with it
