"""How commands end: exit codes, one-line errors, Ctrl-C and closed streams."""

import errno
import io
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn, cast

from jaxemb import errors
from jaxemb.runtime import truncated

# Errors of writing to an open file, such as the output.
_UNWRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT)
# What to do about errors of the system that no code could have prevented.
_REMEDIES = {
  errno.ENAMETOOLONG: 'give another path',
  errno.ELOOP: 'give another path',
  errno.ENOSPC: 'free space there',
  errno.EDQUOT: 'free space there',
  errno.EFBIG: 'free space there',
  errno.EACCES: 'change its permissions, or give another path',
  errno.EPERM: 'change its permissions, or give another path',
  errno.EROFS: 'give another path',
  errno.EIO: 'check that disk, or give another path',
  errno.ESTALE: 'check that disk, or give another path',
  errno.ENOMEM: 'free memory',
  errno.EMFILE: 'raise the limit of open files (ulimit -n)',
  errno.ENFILE: 'raise the limit of open files (ulimit -n)',
}
_PIPE_CLOSED = 141  # which shells report for programs ended by SIGPIPE


def exit_code(command: Callable[..., int | None], *args: Any) -> int:
  """Runs a command; returns its exit code, 2 for errors of the user."""
  _open_streams()
  is_main = threading.current_thread() is threading.main_thread()
  usual = signal.SIG_DFL, signal.default_int_handler
  if is_main and signal.getsignal(signal.SIGINT) in usual:
    signal.signal(signal.SIGINT, _interrupt)
  warnings.showwarning = _show_warning
  filter_dropped(_interrupts_again)
  logging.raiseExceptions = False  # a closed terminal ends no run
  logging.basicConfig(format='%(message)s', stream=sys.stderr)
  try:
    with truncated.ending_by_a_line():
      code = command(*args) or 0
    sys.stdout.flush()
    return code
  except (errors.UserError, errors.UnknownWordError) as error:
    print('jaxemb:', *str(error).split('\n'), file=sys.stderr)
    return getattr(error, 'exit_code', 2)
  except OSError as error:
    return _exit_code_of(error)
  except (MemoryError, SystemError) as error:
    reason = errors.one_line(error) if str(error) else 'out of memory'
    if isinstance(error, SystemError):
      # As of CPython's `compile` without memory, but not of other errors.
      if 'without setting an exception' not in reason:
        raise
      reason = 'out of memory'
    print(f'jaxemb: {reason}; free memory', file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print('jaxemb: interrupted', file=sys.stderr)
    return 130


def _exit_code_of(error: OSError) -> int:
  """Reports unusable paths and output that cannot be written; else raises."""
  if folder := _numba_cache(error):
    print(
      f'jaxemb: cannot write compiled code to {folder}: {error.strerror}; free '
      'space, or set NUMBA_CACHE_DIR to another folder',
      file=sys.stderr,
    )
    return 2
  if error.filename is not None and error.errno in _REMEDIES:
    name = str(error.filename)
    name = name if len(name) < 200 else f'{name[:200]}...'
    print(
      f'jaxemb: cannot use {name}: {error.strerror}; {_REMEDIES[error.errno]}',
      file=sys.stderr,
    )
    return 2
  if error.filename is None and error.errno in (errno.EACCES, errno.ENOMEM):
    # Such as of mapping a file.
    print(
      f'jaxemb: {error.strerror}; {_REMEDIES[error.errno]}', file=sys.stderr
    )
    return 2
  if error.filename is not None or error.errno not in _UNWRITTEN:
    raise error
  if error.errno != errno.EPIPE:  # otherwise a reader such as `head` has enough
    print(
      f'jaxemb: cannot write the output: {error.strerror}; free space, or '
      'write it elsewhere',
      file=sys.stderr,
    )
  # Otherwise Python would flush again at exit, and report the error.
  os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
  return _PIPE_CLOSED if error.errno == errno.EPIPE else 2


def _numba_cache(error: OSError) -> str:
  """Returns the folder of the cache that Numba could not write, or ''."""
  for frame, _ in traceback.walk_tb(error.__traceback__):
    if frame.f_globals.get('__name__') == 'numba.core.caching':
      if folder := getattr(frame.f_locals.get('self'), '_cache_path', ''):
        return folder
  return ''


def _open_streams() -> None:
  """Makes standard streams usable, whatever the caller has closed or set.

  Without this, the next file opened would get the number of a closed stream,
  and its output. Characters outside the encoding are escaped.
  """
  for number, name in enumerate(('stdin', 'stdout', 'stderr')):
    if getattr(sys, name) is None:
      opened = os.open(os.devnull, os.O_RDWR)
      if opened != number:
        os.dup2(opened, number)
        os.close(opened)
      mode = 'w' if number else 'r'
      setattr(sys, name, open(number, mode, closefd=False))
  if getattr(sys.stdout, 'errors', '') == 'strict':
    cast(io.TextIOWrapper, sys.stdout).reconfigure(errors='backslashreplace')


def _show_warning(message: Warning | str, *unused: Any, **options: Any) -> None:
  print(f'jaxemb: warning: {message}', file=sys.stderr)


def _interrupt(number: int, frame: Any) -> NoReturn:
  """Raises `KeyboardInterrupt`; during an import, ends the process by SIGINT.

  C libraries crash if it is raised while they are loaded, or raise another
  error instead.
  """
  while frame and frame.f_code.co_filename != '<frozen importlib._bootstrap>':
    frame = frame.f_back
  if frame:
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
  raise KeyboardInterrupt


def _interrupts_again(unraisable: Any) -> bool:
  """Repeats a Ctrl-C that Python has dropped, as in JAX's `gc` callback."""
  is_interrupt = unraisable.exc_type is KeyboardInterrupt
  if is_interrupt:
    repeat: Callable[..., None] = signal.raise_signal
    args: tuple[int | None, ...] = (signal.SIGINT,)
    if hasattr(signal, 'pthread_kill'):  # interrupts blocking calls, too
      repeat = signal.pthread_kill
      args = threading.main_thread().ident, signal.SIGINT
    threading.Timer(0.1, repeat, args).start()
  return is_interrupt


def filter_dropped(handles: Callable[[Any], bool]) -> None:
  """Adds a function to `sys.unraisablehook`; what it handles is not printed.

  Adding a function again has no effect.
  """
  report = sys.unraisablehook
  filters = getattr(report, 'filters', ())
  if handles in filters:
    return

  def hook(unraisable: Any) -> None:
    if not handles(unraisable):
      report(unraisable)

  vars(hook)['filters'] = *filters, handles
  sys.unraisablehook = hook
