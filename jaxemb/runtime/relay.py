"""A TCP connection whose far end may die without its near end noticing.

JAX aborts a process (SIGABRT, and pages of log) whose connection to the
coordinator breaks, and no callback can prevent it: jaxlib cannot pass its
status to Python. A relay in the same process keeps that connection open.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable

import psutil

from jaxemb.runtime import addresses, peers

_MAX_BYTES = 1 << 16  # of a message
_CONNECT_SECS = 10
# IPv6 sockets, as gRPC has, write IPv4 addresses with it.
_MAPPED = '::ffff:'


def start(
  address: tuple[str, int], on_loss: Callable[[], None]
) -> tuple[str, int]:
  """Returns an address of loopback that leads to another address.

  Only this process may use it. `on_loss` is called, in a thread, if the other
  side ends a connection first; this side of it stays open.
  """
  listener = addresses.listen_on_loopback()
  args = listener, address, on_loss
  threading.Thread(target=_accept, args=args, daemon=True).start()
  return listener.getsockname()[:2]


def _accept(
  listener: socket.socket, address: tuple[str, int], on_loss: Callable[[], None]
) -> None:
  while True:
    try:
      near, _ = listener.accept()
    except OSError:  # such as too many open files
      time.sleep(0.1)
      continue
    try:
      if not _is_own(near):
        raise PermissionError
      far = socket.create_connection(address, _CONNECT_SECS)
      peers.keep(far)
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


def _is_own(accepted: socket.socket) -> bool:
  """Whether this process made the connection, or the system does not tell."""
  ends = accepted.getpeername()[:2], accepted.getsockname()[:2]
  try:
    connections = psutil.Process().net_connections('tcp')
  except (psutil.Error, FileNotFoundError):
    return True
  return ends in [(_plain(x.laddr), _plain(x.raddr)) for x in connections]


def _plain(address: tuple[str, int] | tuple[()]) -> tuple[str, int]:
  host, port = address or ('', 0)
  return host.removeprefix(_MAPPED), port


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
