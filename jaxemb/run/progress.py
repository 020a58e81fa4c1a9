"""Shows how far a stage is, and how long it will take.

On a terminal one line is updated in place, in a notebook one output; elsewhere,
as in files and pipes, a line is logged now and then.
"""

import datetime
import html
import importlib
import logging
import shutil
import sys
import threading
import time
from typing import Any

LOG = logging.getLogger('jaxemb')
_BAR_COLUMNS = 10
_LIVE_SECS = 0.2  # between updates in place
_MIN_LINE_SECS = 10.0  # between lines


class Stopped(Exception):
  """A signal came before there was anything to save."""


class Progress:
  """Progress of one stage after another."""

  def __init__(
    self, every_secs: float = 0.0, stop: threading.Event | None = None
  ):
    """Shows lines at least `every_secs` apart, until `stop` is set."""
    self._every_secs, self._stop = max(every_secs, _MIN_LINE_SECS), stop
    self._stage, self._last = '', 0.0
    self._began, self._done_before, self._note = 0.0, 0, ''
    self._shown: _Bar | _Output | None = None  # what is updated in place

  def begin(self, stage: str, done: int, secs_ago: float = 0.0) -> None:
    """Begins a stage, of which `done` was done before, or begins it again."""
    if stage != self._stage:
      self.close()
    self._stage, self._done_before, self._note = stage, done, ''
    self._last = time.monotonic()
    self._began = self._last - secs_ago

  def secs_left(self, done: int, total: int) -> float | None:
    """Returns how long the rest takes at the mean speed of the stage."""
    secs, more = time.monotonic() - self._began, done - self._done_before
    return secs / more * max(total - done, 0) if more > 0 else None

  def __call__(self, stage: str, done: int, total: int, note: str = '') -> None:
    """Shows how much of a stage is done, or raises `Stopped`."""
    if self._stop and self._stop.is_set():
      raise Stopped
    if stage != self._stage:
      self.begin(stage, done)
    now, secs = time.monotonic(), self.secs_left(done, total)
    parts = [f'{_duration(secs)} left'] if secs is not None else []
    text = ', '.join(parts + [note] * bool(note))
    # One step alone does not tell how far it is.
    fraction = min(done / total, 1.0) if total > 1 else None
    self._note = note
    if self._shown is None and (show := _in_place()):
      self._shown = show(stage)
    elif now - self._last < (_LIVE_SECS if self._shown else self._every_secs):
      if not (self._shown and done >= total):
        return
    self._last = now
    if self._shown:
      self._shown.update(fraction, text)
    else:
      LOG.info('%s', ', '.join(filter(None, (_share(stage, fraction), text))))

  def close(self) -> None:
    """Ends the stage: removes its line, or says in a notebook what it took."""
    if self._shown:
      secs = time.monotonic() - self._began
      text = ', '.join(
        [f'in {_duration(secs)}'] + [self._note] * bool(self._note)
      )
      self._shown.close(text)
    self._stage, self._shown = '', None


def _share(stage: str, fraction: float | None) -> str:
  """Returns a stage with how much of it is done, if that is known."""
  return stage if fraction is None else f'{stage} {fraction:.0%}'


def _duration(secs: float) -> str:
  """Returns 0:01:23 for 83 seconds."""
  return str(datetime.timedelta(seconds=min(round(secs), 10**9)))


def _in_place() -> Any:
  """Returns the class that updates in place here, None if nothing can."""
  if sys.stderr.isatty():
    return _Bar
  # Only a program that runs in a notebook has imported it.
  ipython = sys.modules.get('IPython')
  shell = ipython.get_ipython() if ipython else None
  return _Output if getattr(shell, 'kernel', None) else None


def write_line(text: str) -> None:
  """Writes a line to the console, above what is updated in place."""
  with _Bar.lock:
    bar = _Bar.newest
    if bar:
      bar.write('')
    print(text, file=sys.stderr, flush=True)
    if bar:
      bar.write(bar.text)


class _Bar:
  """The last line of a terminal, removed when it is closed."""

  lock = threading.RLock()  # threads log while it is written
  newest: '_Bar | None' = None

  def __init__(self, stage: str):
    self._stage, self._width, self.text = stage, 0, ''
    _Bar.newest = self

  def update(self, fraction: float | None, text: str) -> None:
    with self.lock:
      # A terminal may not know its width.
      columns = shutil.get_terminal_size().columns
      self.text = f'{self._start(fraction)} {text}'[: columns - 1]
      self.write(self.text)

  def _start(self, fraction: float | None) -> str:
    """Returns the stage with a bar."""
    if fraction is None:
      return self._stage
    eighths = round(8 * _BAR_COLUMNS * fraction)
    bar = '█' * (eighths // 8) + ' ▏▎▍▌▋▊▉'[eighths % 8]
    encoding = getattr(sys.stderr, 'encoding', None) or 'ascii'
    if bar.encode(encoding, 'replace').decode(encoding) != bar:
      bar = '#' * (eighths // 8)
    bar = bar[:_BAR_COLUMNS].ljust(_BAR_COLUMNS)
    return f'{self._stage} {fraction:4.0%} |{bar}|'

  def write(self, text: str) -> None:
    sys.stderr.write('\r' + text.ljust(self._width))
    if not text:
      sys.stderr.write('\r')
    sys.stderr.flush()
    self._width = len(text)

  def close(self, text: str) -> None:
    with self.lock:
      self.write('')
      _Bar.newest = None


class _Output:
  """An output of a notebook's cell, which stays."""

  def __init__(self, stage: str):
    self._stage = stage
    self._show = importlib.import_module('IPython.display').display
    self._fraction: float | None = None
    self._handle: Any = None  # of what is shown

  def update(self, fraction: float | None, text: str) -> None:
    self._fraction = fraction
    self._write('' if fraction is None else f'value="{fraction:.4f}"', text)

  def close(self, text: str) -> None:
    # Without a value the bar would go on moving.
    value = 1.0 if self._fraction is None else self._fraction
    self._write(f'value="{value:.4f}"', text)

  def _write(self, value: str, text: str) -> None:
    shown = _share(self._stage, self._fraction)
    page = (
      f'<progress {value} style="width: 12em"></progress> '
      f'<b>{html.escape(shown)}</b> {html.escape(text)}'
    )
    data = {'text/html': page, 'text/plain': f'{shown}, {text}'}
    if self._handle is None:
      self._handle = self._show(data, raw=True, display_id=True)
    else:
      self._handle.update(data, raw=True)
