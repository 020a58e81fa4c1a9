"""Shows how far a stage is, and how long it will take.

In a terminal or a notebook it is a bar of tqdm; elsewhere, as in files and
pipes, a line is logged now and then.
"""

import importlib.util
import logging
import os
import shutil
import sys
import threading
import time
from typing import Any

import tqdm

LOG = logging.getLogger('jaxemb')
_MIN_LINE_SECS = 10.0  # between lines
_BAR = '{desc} {percentage:3.0f}% |{bar:10}| {remaining} left{postfix}'
_NO_BAR = '{desc} {elapsed}{postfix}'  # where a total is unknown


class Stopped(Exception):
  """A signal came before there was anything to save."""


class Progress:
  """Progress of one stage after another."""

  def __init__(
    self, every_secs: float = 0.0, stop: threading.Event | None = None
  ):
    """Logs lines at least `every_secs` apart, until `stop` is set."""
    self._every_secs, self._stop = max(every_secs, _MIN_LINE_SECS), stop
    self._stage, self._last = '', 0.0
    self._began, self._done_before = 0.0, 0
    self._newest = 0, 0  # done, and in all
    self._bar: Any = None  # of tqdm, which has no types

  def begin(self, stage: str, done: int, secs_ago: float = 0.0) -> None:
    """Begins a stage, of which `done` was done before, or begins it again."""
    now, began_before = time.monotonic(), self._began
    if stage != self._stage:
      self.close()
      self._stage, self._last = stage, now
    self._began, self._done_before = now - secs_ago, done
    self._newest = done, self._newest[1]
    if (bar := self._bar) is not None:  # of the stage, which begins again
      bar.start_t += self._began - began_before
      bar.last_print_t = max(bar.last_print_t, bar.start_t)  # it is shown
      bar.initial = done

  def secs_left(self, done: int, total: int) -> float | None:
    """Returns how long the rest takes at the mean speed of the stage."""
    secs, more = time.monotonic() - self._began, done - self._done_before
    return secs / more * max(total - done, 0) if more > 0 else None

  def __call__(self, stage: str, done: int, total: int, note: str = '') -> None:
    """Shows how much of a stage is done, or raises `Stopped`."""
    if self._stop and self._stop.is_set():
      raise Stopped
    if stage != self._stage or done < self._newest[0]:
      self.begin(stage, done)  # or again, as of the next file or pass
    if self._bar is not None and total != self._newest[1]:
      self._bar.close()
      self._bar = None
    self._newest = done, total
    if self._bar is None and (make := _bar_class()):
      self._bar = self._new_bar(make, total)
    if self._bar is not None:
      self._bar.set_postfix_str(note, refresh=False)
      self._bar.update(done - self._bar.n)
    elif time.monotonic() - self._last >= self._every_secs:
      self._last = time.monotonic()
      LOG.info('%s', ', '.join(self._parts(done, total, note)))

  def _new_bar(self, make: Any, total: int) -> Any:
    is_terminal = sys.stderr.isatty()
    bar_format = _BAR if total > 1 else _NO_BAR
    if make is not tqdm.tqdm:  # a widget, which takes the place of this alone
      bar_format = bar_format.replace('{bar:10}', '{bar}')
    # A terminal may not know its size; tqdm would then show nothing.
    columns, lines = shutil.get_terminal_size()
    bar = make(
      desc=self._stage,
      total=total if total > 1 else None,
      initial=self._done_before,
      bar_format=bar_format,
      smoothing=0,  # the mean speed
      ncols=columns - 1 if is_terminal else None,
      nrows=lines if is_terminal else None,
      leave=not is_terminal,
      file=sys.stderr if is_terminal else sys.stdout,
    )
    bar.start_t -= time.monotonic() - self._began
    return bar

  def _parts(self, done: int, total: int, note: str) -> list[str]:
    """Returns what a line says."""
    # One step alone does not tell how far it is.
    fraction = f' {min(done / total, 1.0):.0%}' if total > 1 else ''
    parts = [self._stage + fraction]
    if (secs := self.secs_left(done, total)) is not None:
      parts.append(f'{tqdm.tqdm.format_interval(secs)} left')
    return parts + [note] * bool(note)

  def close(self) -> None:
    """Ends the stage, and removes its line from a terminal."""
    if self._bar is not None:
      self._bar.close()
    self._stage, self._bar = '', None


def _bar_class() -> Any:
  """Returns the class of bars that can be shown here; None if none can."""
  if os.environ.get('TQDM_DISABLE'):
    return None
  if sys.stderr.isatty():
    return tqdm.tqdm
  # Only a program that runs in a notebook has imported it.
  ipython = sys.modules.get('IPython')
  shell = ipython.get_ipython() if ipython else None
  if not getattr(shell, 'kernel', None):
    return None
  if not importlib.util.find_spec('ipywidgets'):
    return tqdm.tqdm  # in text
  from tqdm import notebook

  return notebook.tqdm


def write_line(text: str) -> None:
  """Writes a line to the console, above a bar."""
  tqdm.tqdm.write(text, file=sys.stderr)
