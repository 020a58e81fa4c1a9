"""Errors that a user can cause, apart from bugs.

Every command turns a `UserError` into one line on stderr and an exit code, 2
unless it says another; so does an output that cannot be written. Anything else
that escapes is a bug and keeps its traceback.
"""

import difflib
import errno
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

_MAX_COMPARED_WORDS = 200_000
_MAX_CANDIDATES = 5_000
_MAX_SUGGESTIONS = 5
# Of writing to a file that is open, such as the output.
_UNWRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EDQUOT)
# Of a name that no file can have, wherever it was given.
_IMPOSSIBLE = errno.ENAMETOOLONG, errno.ELOOP
_PIPE_CLOSED = 141  # as shells name the end of other programs by SIGPIPE


class UserError(Exception):
  """Unusable input or configuration.

  The message is one line: what is wrong, where, and what to do.
  """

  exit_code = 2


class LostError(UserError):
  """Another process is gone or this one was stopped: all go on if restarted."""

  exit_code = 75


class UnknownWordError(KeyError):
  """A word without a vector; the message suggests similar spellings."""

  def __init__(self, word: object, known: Sequence[str] = ()):
    super().__init__(word)
    self._known = known

  def __str__(self) -> str:
    # Looked up only when shown: many callers just catch the error.
    word = self.args[0]
    message = f'no vector for {word!r} among {len(self._known):,} words'
    near = _near_spellings(word, self._known) if isinstance(word, str) else []
    return f'{message}; near: {", ".join(near)}' if near else message


def _near_spellings(word: str, known: Sequence[str]) -> list[str]:
  """A few similar frequent words, the word in another case first."""
  folded, spellings = word.casefold(), {}
  for other in known[:_MAX_COMPARED_WORDS]:
    # Comparing all of them would take seconds.
    if abs(len(other) - len(word)) <= 2 and other[:1].casefold() == folded[:1]:
      spellings.setdefault(other.casefold(), []).append(other)
  same = spellings.pop(folded, [])
  near = difflib.get_close_matches(
    folded, list(spellings)[:_MAX_CANDIDATES], _MAX_SUGGESTIONS, cutoff=0.75
  )
  return (same + [spellings[x][0] for x in near])[:_MAX_SUGGESTIONS]


def one_line(error: BaseException, max_chars: int = 300) -> str:
  """The message of another library's error, in one line."""
  return ' '.join(str(error).split())[:max_chars] or repr(error)


def exit_code(command: Callable[..., int | None], *args: Any) -> int:
  """Runs a command; returns its exit code, 2 for what a user can mend."""
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
    code = command(*args) or 0
    sys.stdout.flush()
    return code
  except (UserError, UnknownWordError) as error:
    print('jaxemb:', *str(error).split('\n'), file=sys.stderr)
    return getattr(error, 'exit_code', 2)
  except OSError as error:
    if error.errno in _IMPOSSIBLE:
      name = str(error.filename)
      name = name if len(name) < 200 else f'{name[:200]}...'
      print(
        f'jaxemb: cannot use {name}: {error.strerror}; give another path',
        file=sys.stderr,
      )
      return 2
    if error.filename is not None or error.errno not in _UNWRITTEN:
      raise
    if error.errno != errno.EPIPE:  # or the reader has enough, such as `head`
      print(
        f'jaxemb: cannot write the output: {error.strerror}; free space, or '
        'write it elsewhere',
        file=sys.stderr,
      )
    # Or Python would try once more when it ends, and say so.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return _PIPE_CLOSED if error.errno == errno.EPIPE else 2
  except KeyboardInterrupt:
    print('jaxemb: interrupted', file=sys.stderr)
    return 130


def _open_streams() -> None:
  """Makes standard streams usable, whatever a caller has closed or set.

  A file that is opened would take the number of one that is closed, and get
  what others print. What an encoding does not have is escaped.
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
    sys.stdout.reconfigure(errors='backslashreplace')


def _show_warning(message: Warning | str, *unused: Any) -> None:
  print(f'jaxemb: warning: {message}', file=sys.stderr)


def _interrupt(number: int, frame: Any) -> NoReturn:
  """Raises `KeyboardInterrupt`; during an import, ends the process by SIGINT.

  Libraries in C crash where it is raised as they are loaded, or make another
  error of it.
  """
  while frame and frame.f_code.co_filename != '<frozen importlib._bootstrap>':
    frame = frame.f_back
  if frame:
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
  raise KeyboardInterrupt


def _interrupts_again(unraisable: Any) -> bool:
  """Repeats a Ctrl-C that came where Python drops errors, as JAX's in `gc`."""
  is_interrupt = unraisable.exc_type is KeyboardInterrupt
  if is_interrupt:
    repeat, args = signal.raise_signal, (signal.SIGINT,)
    if hasattr(signal, 'pthread_kill'):  # ends its waiting, too
      repeat = signal.pthread_kill
      args = threading.main_thread().ident, signal.SIGINT
    threading.Timer(0.1, repeat, args).start()
  return is_interrupt


def filter_dropped(deals_with: Callable[[Any], bool]) -> None:
  """Has a function deal with errors that Python drops.

  It gets what `sys.unraisablehook` does; those of which it is true are not
  printed. However often it is given, it is asked once.
  """
  report = sys.unraisablehook
  known = getattr(report, 'filters', ())
  if deals_with in known:
    return

  def hook(unraisable: Any) -> None:
    if not deals_with(unraisable):
      report(unraisable)

  hook.filters = *known, deals_with
  sys.unraisablehook = hook
