"""Connections between the processes of a job: short messages, a secret, TLS.

A connection breaks when the other process or its machine dies. Messages are
bytes; nothing that comes is executed.
"""

import contextlib
import multiprocessing
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any, cast

from jaxemb.runtime import tls

_HEAD = struct.Struct('>H')  # bytes of the message
_BEGIN_SECS = 10  # for a peer to prove that it knows the secret
# A machine that died, or its network, is noticed in 30 s. Of processes that are
# paused, the system answers.
_ALIVE = {
  'TCP_KEEPIDLE': 10, 'TCP_KEEPALIVE': 10,  # s; the latter on macOS
  'TCP_KEEPINTVL': 5, 'TCP_KEEPCNT': 4, 'TCP_USER_TIMEOUT': 30_000,  # ms
}  # fmt: skip
# What `accept` raises for whoever is of no job, or of another.
STRANGERS = multiprocessing.AuthenticationError, OSError, EOFError


class Peer:
  """A connection to another process. One thread receives, any may send."""

  def __init__(self, connected: socket.socket):
    """Takes the socket over."""
    self._socket = connected
    # OpenSSL does not let threads use a connection at once. Nobody waits long:
    # who receives knows that there is a message.
    is_tls = isinstance(connected, ssl.SSLSocket)
    self._lock = threading.Lock() if is_tls else contextlib.nullcontext()

  def fileno(self) -> int:
    """Returns the number by which `connection.wait` knows it."""
    return self._socket.fileno()

  def send_bytes(self, message: bytes) -> None:
    """Sends a message; raises an OSError if the other has ended."""
    with self._lock:
      self._socket.sendall(_HEAD.pack(len(message)) + message)

  def recv_bytes(self, max_bytes: int = 1 << 16) -> bytes:
    """Returns a message; raises an EOFError or OSError at the end."""
    with self._lock:
      (num_bytes,) = _HEAD.unpack(self._read(_HEAD.size))
      if num_bytes > max_bytes:
        raise OSError('a message is too long')
      return self._read(num_bytes)

  def _read(self, num_bytes):
    data = b''
    while len(data) < num_bytes:
      more = self._socket.recv(num_bytes - len(data))
      if not more:
        raise EOFError
      data += more
    return data

  @contextlib.contextmanager
  def closed_if_it_fails(self) -> Iterator[None]:
    """Closes the connection if what is done inside raises."""
    try:
      yield
    except BaseException:
      self._socket.close()
      raise

  def keep(self) -> None:
    """Has the connection last, and break when the other machine is gone."""
    keep(self._socket)


def keep(connected: socket.socket) -> None:
  """Has a connection last, and break when the other machine is gone."""
  connected.settimeout(None)
  connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  for name, value in _ALIVE.items():
    if number := getattr(socket, name, None):
      connected.setsockopt(socket.IPPROTO_TCP, number, value)


def listen(host: str) -> socket.socket:
  """Returns a socket that listens on a port of this machine's `host`."""
  family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
  both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
  return socket.create_server((host, 0), family=family, dualstack_ipv6=both)


def accept(
  listener: socket.socket, secret: bytes, credentials: tls.Credentials | None
) -> Peer:
  """Returns the next who knows the secret.

  Raises one of `STRANGERS` for another.
  """
  connected, _ = listener.accept()
  connected.settimeout(_BEGIN_SECS)
  peer = Peer(credentials.server(connected) if credentials else connected)
  with peer.closed_if_it_fails():
    connection.deliver_challenge(cast(Any, peer), secret)
    connection.answer_challenge(cast(Any, peer), secret)
  return peer


def connect(
  address: tuple[str, int],
  secret: bytes,
  credentials: tls.Credentials | None,
) -> Peer:
  """Connects to a process that accepts; raises as `accept`."""
  connected = socket.create_connection(address, _BEGIN_SECS)
  if credentials:
    connected = credentials.client(connected, address[0])
  peer = Peer(connected)
  with peer.closed_if_it_fails():
    connection.answer_challenge(cast(Any, peer), secret)
    connection.deliver_challenge(cast(Any, peer), secret)
  return peer
