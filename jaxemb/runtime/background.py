"""Starts modules of this package in processes that work beside this one."""

import os
import pathlib
import subprocess
import sys


def start(module: str, *arguments: str | pathlib.Path) -> subprocess.Popen:
  """Starts a module in a process of its own, which prints nothing.

  Raises an `OSError` where no process can be started.
  """
  if getattr(sys, 'frozen', False) or not sys.executable:
    raise OSError('there is no Python to start')  # but this very program
  # It imports the same modules as this one: none of the current folder's (-P).
  paths = {'PYTHONPATH': os.pathsep.join(filter(None, sys.path))}
  command = sys.executable, '-P', '-m', module
  silent = dict.fromkeys(('stdin', 'stdout', 'stderr'), subprocess.DEVNULL)
  return subprocess.Popen(
    [*command, *arguments], env=os.environ | paths, **silent
  )
