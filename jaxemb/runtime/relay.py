"""A TCP connection whose far end may die without its near end noticing.

JAX aborts a process (SIGABRT, and pages of log) whose connection to the
coordinator breaks, and no callback can prevent it: jaxlib cannot pass its
status to Python. A relay in the same process keeps that connection open.
"""

import contextlib
import socket
import threading
from collections.abc import Callable

_MAX_BYTES = 1 << 16  # of a message


def start(address: tuple[str, int], on_loss: Callable[[], None]) -> int:
  """Returns a port of loopback that leads to another address.

  `on_loss` is called, in a thread, if the other side ends a connection first;
  this side of it stays open.
  """
  listener = socket.create_server(('127.0.0.1', 0))
  args = listener, address, on_loss
  threading.Thread(target=_accept, args=args, daemon=True).start()
  return listener.getsockname()[1]


def _accept(
  listener: socket.socket, address: tuple[str, int], on_loss: Callable[[], None]
) -> None:
  while True:
    near, _ = listener.accept()
    try:
      far = socket.create_connection(address)
    except OSError:
      near.close()  # JAX tries again, or says why it cannot join
      continue
    for one in (near, far):
      one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    is_over = threading.Event()
    for args in ((near, far, is_over.set), (far, near, on_loss)):
      thread = threading.Thread(target=_carry, args=(*args, is_over))
      thread.daemon = True
      thread.start()


def _carry(
  source: socket.socket,
  target: socket.socket,
  at_end: Callable[[], None],
  is_over: threading.Event,
) -> None:
  """Passes on what arrives until the source ends or the target is gone."""
  while data := _received(source):
    try:
      target.sendall(data)
    except OSError:
      return  # who reads from that side notices
  if not is_over.is_set():
    at_end()
  if is_over.is_set():
    for one in (source, target):
      with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def _received(source: socket.socket) -> bytes:
  """Returns the next bytes; none if the other side has ended."""
  with contextlib.suppress(OSError):
    return source.recv(_MAX_BYTES)
  return b''
