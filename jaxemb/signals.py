"""Signals that ask a run to save and stop."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def stopping() -> Iterator[threading.Event]:
  """An event that SIGTERM and SIGINT set; a second one ends the process."""
  stop = threading.Event()
  if threading.current_thread() is not threading.main_thread():
    yield stop  # only the main thread may handle signals
    return
  old = {}

  def handle(number: int, frame: Any) -> None:
    del frame
    stop.set()
    signal.signal(number, old[number])

  for number in (signal.SIGTERM, signal.SIGINT):
    old[number] = signal.signal(number, handle)
  try:
    yield stop
  finally:
    for number, handler in old.items():
      signal.signal(number, handler)
