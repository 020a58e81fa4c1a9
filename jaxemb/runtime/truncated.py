"""Ends a command by one line if a file that it has mapped becomes shorter.

The system sends SIGBUS to whoever reads the pages that are gone. Python's own
handlers run after the instruction that failed, which never ends: this one is
called at once, and the process ends in it.
"""

import contextlib
import ctypes
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Iterator

from jaxemb import errors

_SA_SIGINFO = 4
_ENDS = threading.Lock()


class _Info(ctypes.Structure):
  """Begins as `siginfo_t` of Linux does, of 64 bits."""

  _fields_ = (('numbers', ctypes.c_int * 4), ('address', ctypes.c_void_p))


_Handler = ctypes.CFUNCTYPE(
  None, ctypes.c_int, ctypes.POINTER(_Info), ctypes.c_void_p
)


class _Action(ctypes.Structure):
  """`struct sigaction` of Linux's C libraries, of 64 bits."""

  _fields_ = (
    ('handler', _Handler),
    ('mask', ctypes.c_ulong * 16),
    ('flags', ctypes.c_int),
    ('restorer', ctypes.c_void_p),
  )


@contextlib.contextmanager
def ending_by_a_line() -> Iterator[None]:
  """Has this process end so inside, on Linux."""
  if sys.platform != 'linux' or sys.maxsize < 2**32:
    yield
    return
  old = _Action()
  _set(_ACTION, old)
  try:
    yield
  finally:
    _set(old)


def _set(action: _Action, old: _Action | None = None) -> None:
  """Sets what SIGBUS does; `old` gets what it did."""
  ctypes.CDLL(None).sigaction(
    signal.SIGBUS, ctypes.byref(action), old and ctypes.byref(old)
  )


def _end(unused_number, info, unused_context) -> None:
  with _ENDS:  # other threads may fail meanwhile: they wait
    if file := _mapped_at(info.contents.address or 0):
      line = (
        f'jaxemb: {file} became shorter while it was read, or cannot be read; '
        'restore it, and start again\n'
      )
      os.write(2, line.encode(errors='backslashreplace'))
      os._exit(errors.UserError.exit_code)
    _set(_Action())  # what failed is tried again where this returns


def _mapped_at(address: int) -> str:
  """Returns the file that this process has mapped at an address, or ''."""
  for line in pathlib.Path('/proc/self/maps').read_text('utf-8').splitlines():
    span, *_, path = line.split(maxsplit=5)
    first, stop = (int(x, 16) for x in span.split('-'))
    if first <= address < stop:
      return path if path.startswith('/') else ''
  return ''


_ACTION = _Action(_Handler(_end), flags=_SA_SIGINFO)  # as long as Python runs
