"""Signals that ask a run to save and stop."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def stopping(stop: threading.Event) -> Iterator[None]:
  """SIGTERM and SIGINT set the event; a second one ends the process."""
  if threading.current_thread() is not threading.main_thread():
    yield  # only the main thread may handle signals
    return
  old = {}

  def handle(number: int, frame: Any) -> None:
    del frame
    stop.set()
    signal.signal(number, old[number])

  for number in (signal.SIGTERM, signal.SIGINT):
    old[number] = signal.signal(number, handle)
  try:
    yield
  finally:
    for number, handler in old.items():
      signal.signal(number, handler)
