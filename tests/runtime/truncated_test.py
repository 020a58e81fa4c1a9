"""Mapped files that become shorter while a command reads them."""

import subprocess
import sys

import pytest

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
  if sys.argv[2] == 'thread':
    thread = threading.Thread(target=read, args=(mapped,))
    thread.start()
    thread.join()
  else:
    read(mapped)

sys.exit(process.exit_code(command))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='Linux sends SIGBUS')
@pytest.mark.parametrize('where', ['main', 'thread'])
def test_a_file_that_becomes_shorter_is_named(tmp_path, where):
  path = tmp_path / 'ids.bin'
  path.write_bytes(bytes(100_000))
  command = [sys.executable, '-c', _COMMAND, str(path), where]
  ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
  assert ended.returncode == 2, ended
  assert ended.stderr == (
    f'jaxemb: {path} became shorter while it was read, or cannot be read; '
    'restore it, and start again\n'
  )
