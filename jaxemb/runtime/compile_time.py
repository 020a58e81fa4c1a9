"""How long a run waits for compilation, of kernels and of XLA's programs.

Waits are events of `jax.monitoring`: code that needs a kernel records them, and
the run adds them up. Runs in threads of one process count each other's waits.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import Any, cast

import jax

_EVENT = '/jaxemb/compilation_wait_duration'


@dataclasses.dataclass
class Waited:
  """The sum of waits so far."""

  secs: float = 0.0


@contextlib.contextmanager
def waiting() -> Iterator[None]:
  """Counts the time of its body as a wait, which has no other wait in it."""
  start = time.monotonic()
  try:
    yield
  finally:
    secs = time.monotonic() - start
    jax.monitoring.record_event_duration_secs(_EVENT, secs)


@contextlib.contextmanager
def waited() -> Iterator[Waited]:
  """Yields the sum of the waits of this process, while its body runs."""
  total = Waited()

  def add(event: str, secs: float, **unused: Any) -> None:
    if event == _EVENT:
      total.secs += secs

  listener = cast(Any, add)  # JAX has other names for its arguments
  jax.monitoring.register_event_duration_secs_listener(listener)
  try:
    yield total
  finally:
    jax.monitoring.unregister_event_duration_listener(listener)
