"""Processes where they are the point, without Python's start and imports.

They are forked from a server that has imported jaxemb and JAX, which starts in
each of them, with as many devices as a user would have; see `forked.Run`.
"""

import atexit
import functools
import gc
import multiprocessing
import os
import pathlib
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import context, forkserver
from typing import Any

import pytest

from tests import compiling, forked

ROOT = pathlib.Path(__file__).parents[1]


@functools.cache
def server() -> context.BaseContext:
  """Makes processes of the server, which compiles as tests do."""
  made = multiprocessing.get_context('forkserver')
  made.set_forkserver_preload(['tests.forked', __name__])
  with pytest.MonkeyPatch.context() as patch:
    for name, value in compiling.environment().items():
      patch.setenv(name, value)
    patch.setenv('JAX_PLATFORMS', 'cpu')
    patch.setenv('PYTHONPATH', os.pathsep.join([str(ROOT), *sys.path]))
    forkserver.ensure_running()
  return made


def start(
  arguments: Sequence[str], folder: pathlib.Path, num: int = 1, **more
) -> forked.Run:
  """Starts `jaxemb` in a folder, as one job of so many processes."""
  cache = pathlib.Path(os.environ['JAXEMB_CACHE'])
  return forked.Run(arguments, folder, cache, num, context=server(), **more)


def call(
  function: Callable[..., object],
  each: Sequence[Sequence[Any]],
  environment: Mapping[str, str],
  said: pathlib.Path,
  folder: pathlib.Path | None = None,
) -> None:
  """Calls a function of a module at once with each arguments, to the end.

  What is said is added to a file, and shown where one fails. The `folder` is
  the one to work in; None = this one.
  """
  more = dict(environment), said, folder or pathlib.Path.cwd()
  processes = [
    server().Process(target=_call, args=(function, x, *more)) for x in each
  ]
  for process in processes:
    process.start()
  for process in processes:
    process.join()
  assert not any(x.exitcode for x in processes), said.read_text()


def _call(function, arguments, environment, said, folder):
  gc.freeze()
  os.chdir(folder)
  with open(said, 'ab') as file:
    for number in (1, 2):
      os.dup2(file.fileno(), number)
  os.environ.clear()
  os.environ.update(environment)
  try:
    function(*arguments)
  finally:
    atexit._run_exitfuncs()  # as where Python began with it


def script(*command: str) -> None:
  """Is what `python FILE` is, or `python -m MODULE`, with its arguments."""
  if command[0] == '-m':
    sys.argv = list(command[1:])
    runpy.run_module(command[1], run_name='__main__', alter_sys=True)
  else:
    sys.argv = list(command)
    sys.path.insert(0, os.path.dirname(command[0]))
    runpy.run_path(command[0], run_name='__main__')
