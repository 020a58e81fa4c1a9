"""Connections between processes that train as one: who is lost, who stops."""

import os
import secrets
import socket
import threading
import time

from jax._src import distributed

from jaxemb import errors
from jaxemb.runtime import processes

_SILENCE_SECS = 30
_GRACE_SECS = 5  # to stop in order, before training
_TOKEN_BYTES = 16
_BYE, _STOP = b'!', b'?'

STOPPED = 75  # exit code: stopped by a signal, after saving if there was work


class Watch:
  """Ends this process when another one is gone.

  Process 0 has a connection to each of the others. When a process dies its
  system closes them, and when a machine does its heartbeats stay away: process
  0 ends, and with it all others. Without this a process would wait in a
  collective for ever, or JAX would abort it with pages of traces.

  On the same way a process that is told to stop tells the others.
  """

  def __init__(self):
    """Connects; the heartbeats begin.

    Raises:
      UserError: if a process cannot be reached.
    """
    self.stop = threading.Event()  # set when any process is told to stop
    self._heard = threading.Event()  # that another one stops
    self.has_begun = threading.Event()  # to be set when there is work to save
    self._ended = threading.Event()
    self._connections: list[socket.socket] = []
    self._listeners: list[threading.Thread] = []
    if processes.num_joined() == 1:
      return
    address = distributed.global_state.coordinator_address
    try:
      if processes.is_first():
        self._accept(address)
      else:
        self._connect(address)
    except OSError as error:
      raise errors.UserError(
        f'the connections between the processes of {address} cannot be made '
        f'({error}); let them reach each other on any port, and start all of '
        'them again'
      ) from error

  def _accept(self, address: str) -> None:
    host = processes.own_address(address).rpartition(':')[0]
    # Only a process of this job can know the token.
    token = secrets.token_bytes(_TOKEN_BYTES)
    waiting = set(range(1, processes.num_joined()))
    with socket.create_server((host, 0)) as server:
      port = server.getsockname()[1]
      processes.client().key_value_set('jaxemb/watch', f'{port} {token.hex()}')
      server.settimeout(processes.WAIT_SECS)
      while waiting:
        connection, _ = server.accept()
        connection.settimeout(processes.WAIT_SECS)
        try:
          hello = connection.recv(_TOKEN_BYTES + 4, socket.MSG_WAITALL)
        except OSError:
          hello = b''
        other = int.from_bytes(hello[_TOKEN_BYTES:], 'big')
        if hello[:_TOKEN_BYTES] != token or other not in waiting:
          connection.close()
          continue
        waiting.remove(other)
        self._follow(connection, other)

  def _connect(self, address: str) -> None:
    port, token = processes.get('jaxemb/watch').split()
    host = address.rpartition(':')[0]
    connection = socket.create_connection(
      (host, int(port)), processes.WAIT_SECS
    )
    connection.sendall(
      bytes.fromhex(token) + processes.joined_id().to_bytes(4, 'big')
    )
    self._follow(connection, 0)

  def _follow(self, connection: socket.socket, other: int) -> None:
    connection.settimeout(_SILENCE_SECS)
    self._connections.append(connection)
    listener, beater = (
      threading.Thread(
        target=work, args=(connection, other), name='watch', daemon=True
      )
      for work in (self._listen, self._beat)
    )
    self._listeners.append(listener)
    listener.start()
    beater.start()

  def _send(self, data: bytes) -> None:
    for connection in self._connections:
      try:
        connection.sendall(data)
      except OSError:
        pass  # the listener tells

  def _listen(self, connection: socket.socket, other: int) -> None:
    try:
      while data := connection.recv(64):
        # Also where this process was told as well, as schedulers do: it may
        # wait for one that has gone.
        if _STOP in data and not self._heard.is_set():
          self._heard.set()
          self.stop.set()
          self._send(_STOP)  # process 0 alone knows all others
          threading.Thread(target=self._stop_waiting, daemon=True).start()
        if _BYE in data:
          return
    except OSError:
      pass
    if not self._ended.is_set():
      line = f'jaxemb: {processes.GONE.format(f"process {other}")}\n'
      os.write(2, line.encode())
      os._exit(2)  # the main thread may wait for the lost one for ever

  def _stop_waiting(self) -> None:
    """Stops this process where it waits for one that has stopped."""
    if not self._ended.wait(_GRACE_SECS) and not self.has_begun.is_set():
      self.close(says_bye=True, stops=True)
      processes.leave(STOPPED)

  def _beat(self, connection: socket.socket, other: int) -> None:
    del other
    try:
      while not self._ended.wait(_SILENCE_SECS / 4):
        connection.sendall(b'.')
    except OSError:
      pass  # the listener tells

  def wait_for_loss(self) -> None:
    """Gives the loss of a process, if any, time to be noticed and told."""
    if self._connections:
      time.sleep(5)

  def close(self, says_bye: bool, stops: bool = False) -> None:
    """Ends; the others end too unless told that all is well.

    Args:
      says_bye: whether all is well.
      stops: whether this process was told to stop: all of them will, and
        process 0 as the last one, because the others are aborted without it.
    """
    if stops:
      self._send(_STOP)
    if stops and processes.is_first():
      deadline = time.monotonic() + _SILENCE_SECS
      for listener in self._listeners:
        listener.join(max(0.0, deadline - time.monotonic()))
    self._ended.set()
    if says_bye:
      self._send(_BYE)
    for connection in self._connections:
      try:
        connection.close()
      except OSError:
        pass
