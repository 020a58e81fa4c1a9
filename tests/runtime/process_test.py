"""Ends of commands: pipes that are closed, Ctrl-C at odd moments."""

import errno
import signal
import subprocess
import sys

import pytest

from jaxemb.runtime import process

pytestmark = pytest.mark.slow


def _run(lines, **kwargs):
  # A shell's job in the background ignores Ctrl-C, and so do its children.
  code = (
    'import os, signal, sys\n'
    'signal.signal(signal.SIGINT, signal.default_int_handler)\n'
    f'from jaxemb.runtime import process\n{lines}'
  )
  code += '\nsys.exit(process.exit_code(command))'
  return subprocess.run(
    [sys.executable, '-c', code], stderr=subprocess.PIPE, text=True, **kwargs
  )


def test_a_closed_pipe_is_not_explained():
  done = _run(
    'r, w = os.pipe()\nos.close(r)\nos.dup2(w, 1)\n'
    'def command(): print("x" * 100_000)'
  )
  assert (done.returncode, done.stderr) == (141, '')


def test_an_interrupt_that_is_dropped_is_repeated():
  done = _run(
    'import time\nclass Dropped:\n'
    '  def __del__(self): raise KeyboardInterrupt\n'
    'def command():\n  Dropped()\n  time.sleep(100)',
    timeout=60,  # what is waited for ends, too
  )
  assert (done.returncode, done.stderr) == (130, 'jaxemb: interrupted\n')


def test_an_interrupt_during_an_import_ends_the_process(tmp_path):
  # Whatever else is made of it, as by libraries in C.
  (tmp_path / 'loaded.py').write_text(
    'import signal\ntry:\n  signal.raise_signal(signal.SIGINT)\n'
    'except KeyboardInterrupt:\n  raise ImportError\n'
  )
  done = _run(
    f'def command():\n  sys.path.append({str(tmp_path)!r})\n  import loaded'
  )
  assert (done.returncode, done.stderr) == (-signal.SIGINT, '')


def test_the_cache_of_numba_is_named_where_it_cannot_be_written():
  done = _run(
    'import types\n'
    'numba = {"__name__": "numba.core.caching"}\n'
    'exec("def save(self):\\n  raise OSError(28, \'No space\')", numba)\n'
    'cache = types.SimpleNamespace(_cache_path="/full/__pycache__")\n'
    'def command():\n'
    '  numba["save"](cache)'
  )
  assert done.returncode == 2
  assert done.stderr == (
    'jaxemb: cannot write compiled code to /full/__pycache__: No space; free '
    'space, or set NUMBA_CACHE_DIR to another folder\n'
  )


@pytest.mark.parametrize(
  ('error', 'expected'),
  [
    (MemoryError(), 'jaxemb: out of memory; free memory'),
    (
      SystemError('compile returned NULL without setting an exception'),
      'jaxemb: out of memory; free memory',
    ),
    (
      OSError(errno.EIO, 'Input/output error', 'x.bin'),
      'jaxemb: cannot use x.bin: Input/output error; check that disk, or give '
      'another path',
    ),
    (
      OSError(errno.ENOMEM, 'Cannot allocate memory'),
      'jaxemb: Cannot allocate memory; free memory',
    ),
  ],
)
def test_errors_of_the_system_are_one_line(error, expected, capsys):
  def fail():
    raise error

  assert process.exit_code(fail) == 2
  assert capsys.readouterr().err == f'{expected}\n'
