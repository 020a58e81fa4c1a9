"""Mapped files that become shorter while a command reads them."""

import ctypes
import signal
import subprocess
import sys

import pytest

from jaxemb.runtime import process, truncated

# What a command does, in a process of its own.
_COMMAND = """
import os, sys, threading
import numpy as np
from jaxemb.runtime import process

def read(mapped):
  np.asarray(mapped).sum()

def command():
  mapped = np.memmap(sys.argv[1], np.uint8, 'r')
  os.truncate(sys.argv[1], 5000)
  num = int(sys.argv[2])
  threads = [threading.Thread(target=read, args=(mapped,)) for _ in range(num)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  read(mapped)

sys.exit(process.exit_code(command))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='Linux sends SIGBUS')
@pytest.mark.parametrize('num_threads', [0, 1, 16])
def test_a_file_that_becomes_shorter_is_named(tmp_path, num_threads):
  path = tmp_path / 'ids.bin'
  path.write_bytes(bytes(100_000))
  command = [sys.executable, '-c', _COMMAND, str(path), str(num_threads)]
  ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
  assert ended.returncode == 2, ended
  assert ended.stderr == (
    f'jaxemb: {path} became shorter while it was read, or cannot be read; '
    'restore it, and start again\n'
  )


def _action():
  """Returns the address of what handles SIGBUS."""
  action = truncated._Action()
  ctypes.CDLL(None).sigaction(signal.SIGBUS, None, ctypes.byref(action))
  return bytes(action)[:8]


@pytest.mark.skipif(sys.platform != 'linux', reason='Linux sends SIGBUS')
def test_callers_in_python_keep_their_action():
  before, during = _action(), []
  assert process.exit_code(lambda: during.append(_action())) == 0
  assert during != [before] and _action() == before
