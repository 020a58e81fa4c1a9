"""Starts modules of this package in processes that work beside this one."""

import os
import pathlib
import subprocess
import sys


def start(module: str, *arguments: str | pathlib.Path) -> subprocess.Popen:
  """Starts a module in a process of its own, which prints nothing.

  Raises an `OSError` where no process can be started.
  """
  return subprocess.Popen(
    [*_command(module), *arguments],
    env=os.environ | _paths(),
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )


def call(
  module: str, *arguments: str | pathlib.Path, message: bytes
) -> subprocess.CompletedProcess:
  """Runs a module in a process of its own, on the CPU, which gets a message.

  Returns its exit code and output. Raises an `OSError` where no process can be
  started.
  """
  return subprocess.run(
    [*_command(module), *arguments],
    env=os.environ | _paths() | {'JAX_PLATFORMS': 'cpu'},
    input=message,
    capture_output=True,
  )


def _command(module: str) -> list[str]:
  if getattr(sys, 'frozen', False) or not sys.executable:
    raise OSError('there is no Python to start')  # but this very program
  # It imports the same modules as this one: none of the current folder's (-P).
  return [sys.executable, '-P', '-m', module]


def _paths() -> dict[str, str]:
  return {'PYTHONPATH': os.pathsep.join(filter(None, sys.path))}
