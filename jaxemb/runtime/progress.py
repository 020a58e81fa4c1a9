"""Progress on a console: a bar on a terminal, elsewhere a line now and then."""

import logging
import sys
import threading
import time

import tqdm

_LOG = logging.getLogger('jaxemb')


class Bar:
  """A progress bar on a terminal; elsewhere a line now and then."""

  def __init__(
    self,
    title: str,
    total: int,
    unit: str,
    every_secs: float,
    done: int = 0,
  ):
    """Starts.

    Args:
      title: what is being done.
      total: in `unit`s.
      unit: 'words', 'B', ...
      every_secs: without a terminal, lines are so far apart at least.
      done: how much was done before.
    """
    self._title = title
    self._total = total
    self._every_secs = max(every_secs, 10.0)
    self._last = time.monotonic()
    self._bar = None
    if sys.stderr.isatty():
      self._bar = tqdm.tqdm(
        desc=title,
        total=total or None,
        initial=done,
        unit=unit,
        unit_scale=True,
        dynamic_ncols=True,
        file=sys.stderr,
        leave=False,
        bar_format='{desc} {percentage:3.0f}% |{bar:16}| {n_fmt}/{total_fmt}'
        '{postfix}',
      )

  def show(self, done: int, note: str = '') -> None:
    """Shows that `done` of the total is done, with a note behind it."""
    if self._bar is not None:
      self._bar.postfix = f' {note}' if note else None
      self._bar.update(done - self._bar.n)
    elif time.monotonic() - self._last > self._every_secs:
      self._last = time.monotonic()
      share = 100 * done / max(self._total, 1)
      _LOG.info('%s %.0f%% %s', self._title, share, note)

  def close(self) -> None:
    """Removes the bar."""
    if self._bar is not None:
      self._bar.close()


class Stages:
  """Shows the progress of what comes before training."""

  def __init__(self, stop: threading.Event, every_secs: float):
    """Shows until `stop` is set; the next call then raises `Stopped`."""
    self._stop, self._every_secs = stop, every_secs
    self._stage, self._bar = '', None

  def __call__(self, stage: str, done: int, total: int) -> None:
    """Shows that `done` of `total` is done of a stage."""
    if self._stop.is_set():
      raise Stopped
    if stage != self._stage:
      self.close()
      unit = 'pieces' if stage == 'encoding' else 'B'
      self._bar = Bar(stage, total, unit, self._every_secs)
      self._stage = stage
    self._bar.show(done)

  def close(self) -> None:
    """Removes the bar."""
    if self._bar is not None:
      self._bar.close()


class Stopped(Exception):
  """A signal came before there was anything to save."""
