"""Links from a process to the shards of an actor.

Those on its machine it calls itself, on rows in shared memory (`Near`); those
on others by a connection to the actor (`Far`), which takes a third of the CPU
time of messages by Ray, or less, and is encrypted if those are. A message is
JSON, then the bytes of arrays: nothing that comes is executed.
"""

import hmac
import json
import pathlib
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.workers import memory as memory_lib
from jaxemb.workers import nodes, shards

METHODS = frozenset({'newer', 'add', 'write'})  # of `shards.Shard`
# And those that change memory of the caller.
IN_PLACE = frozenset({'push_in_place', 'read_in_place'})
_SECRET_BYTES = 32
_SECRET_SECS, _RETRY_SECS = 10.0, 0.1
_HEAD = struct.Struct('<QQ')  # bytes of the JSON, and of all arrays
_ALIGN = 8


class Place(NamedTuple):
  """Where an actor and its shards are."""

  node: str  # of Ray
  pid: int
  # By table; None = no memory that others may use.
  addresses: Mapping[str, memory_lib.Address | None]
  host: str
  port: int
  secret: bytes  # that a connection begins with


class NotNear(Exception):
  """A shard is on another machine, and was to use memory of this one."""


# Messages.


def _flatten(value, arrays):
  """Returns a value as JSON has it; arrays are appended to a list."""
  if isinstance(value, np.ndarray):
    value = np.ascontiguousarray(value)
    arrays.append(value)
    return {'dtype': value.dtype.str, 'shape': value.shape}
  if isinstance(value, tuple | list):
    return [_flatten(x, arrays) for x in value]
  return value.item() if isinstance(value, np.generic) else value


def _unflatten(value, data, start):
  """Returns a value, whose arrays are in `data`, and where they end."""
  if isinstance(value, dict):
    dtype, shape = np.dtype(value['dtype']), tuple(value['shape'])
    count = int(np.prod(shape, dtype=np.int64))
    array = np.frombuffer(data, dtype, count, start).reshape(shape)
    return array, start + _padded(array.nbytes)
  if isinstance(value, list):
    values = []
    for x in value:
      x, start = _unflatten(x, data, start)
      values.append(x)
    return tuple(values), start
  return value, start


def _padded(num_bytes):
  return -(-num_bytes // _ALIGN) * _ALIGN


def _send(connection: socket.socket, value: Any) -> None:
  """Sends numbers, strings and arrays in nested tuples."""
  arrays: list[np.ndarray] = []
  head = json.dumps(_flatten(value, arrays)).encode()
  size = sum(_padded(x.nbytes) for x in arrays)
  connection.sendall(_HEAD.pack(len(head), size) + head)
  for array in arrays:
    if array.nbytes:
      connection.sendall(memoryview(array).cast('B'))
    if padding := _padded(array.nbytes) - array.nbytes:
      connection.sendall(bytes(padding))


class _Receiver:
  """Receives messages, whose arrays are valid until the next one."""

  def __init__(self, connection: socket.socket):
    self._connection, self._data = connection, bytearray()

  def _fill(self, view):
    while len(view):
      num = self._connection.recv_into(view)
      if not num:
        raise ConnectionResetError('the connection has ended')
      view = view[num:]

  def receive(self) -> Any:
    """Returns a message. Raises an OSError if the connection ends."""
    head = bytearray(_HEAD.size)
    self._fill(memoryview(head))
    head_bytes, size = _HEAD.unpack(head)
    text = bytearray(head_bytes)
    self._fill(memoryview(text))
    if len(self._data) < size:  # not anew, as the system takes long for pages
      self._data = bytearray(size + size // 4)
    data = memoryview(self._data)[:size]
    self._fill(data)
    return _unflatten(json.loads(text), data, 0)[0]


def _tune(connection):
  connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


class Server:
  """Answers the calls that come by connections, each in a thread."""

  def __init__(self, host: str, call: Callable[[tuple], Sequence[Any]]):
    """`call` has what `Far.send` has; the host is this machine's address."""
    self._call, self.secret = call, secrets.token_bytes(_SECRET_BYTES)
    self._credentials = nodes.credentials()
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    self._socket = socket.create_server((host, 0), family=family)
    self.host, self.port = self._socket.getsockname()[:2]
    threading.Thread(target=self._accept, daemon=True).start()

  def _accept(self):
    while True:
      try:
        connection, _ = self._socket.accept()
      except OSError:  # it has too many files, or the client has ended
        time.sleep(_RETRY_SECS)
        continue
      threading.Thread(
        target=self._serve, args=[connection], daemon=True
      ).start()

  def _serve(self, connection):
    try:
      _tune(connection)
      connection.settimeout(_SECRET_SECS)
      if self._credentials:
        connection = self._credentials.server(connection)
      with connection:
        secret = bytearray(_SECRET_BYTES)
        receiver = _Receiver(connection)
        receiver._fill(memoryview(secret))
        if not hmac.compare_digest(secret, self.secret):
          return
        connection.settimeout(None)
        while True:
          _send(connection, self._answer(receiver.receive()))
    except OSError:  # the client has ended, or asks again
      return

  def _answer(self, calls):
    """Returns why calls have failed, or '', and their answers."""
    try:
      if any(method not in METHODS for _, _, method, _ in calls):
        raise ValueError('this is no call of a link')
      return '', self._call(calls)
    except Exception as error:
      return errors.one_line(error), ()


# Links.


class Near:
  """Shards of an actor on this machine, in memory that both processes have."""

  def __init__(
    self, process: memory_lib.Process, mapped: Mapping[str, shards.Mapped]
  ):
    """`process` is the actor's; `mapped` are its shards by table."""
    self._process, self._mapped = process, mapped
    self._calls: Sequence[tuple] = ()

  @property
  def tables(self) -> set[str]:
    """Names of tables."""
    return set(self._mapped)

  def is_open(self) -> bool:
    """Whether the actor's process runs, and its rows are those in use."""
    return not self._process.has_ended()

  def send(self, calls: Sequence[tuple]) -> None:
    """Keeps calls for `receive`, as of `actors.Actor.call`."""
    self._calls = calls

  def receive(self, secs: float) -> list[shards.Answer]:
    """Makes the calls, each with its shard locked; returns the answers.

    Raises a `TimeoutError` if they are locked for so long.
    """
    answers = []
    for name, _, method, args in self._calls:
      shard = self._mapped[name]
      with shard.memory.lock(secs):
        answers.append(shard.call(method, args))
    return answers


class Far:
  """Shards of an actor on another machine, by a connection."""

  def __init__(self, place: Place, secs: float):
    """Raises an OSError if the actor cannot be reached within so long."""
    self.tables = set(place.addresses)
    self._socket = socket.create_connection((place.host, place.port), secs)
    _tune(self._socket)
    if credentials := nodes.credentials():
      self._socket = credentials.client(self._socket, place.host)
    self._socket.sendall(place.secret)
    self._receiver, self._is_open = _Receiver(self._socket), True
    self._calls: Sequence[tuple] = ()

  def is_open(self) -> bool:
    """Whether no call has failed."""
    return self._is_open

  def send(self, calls: Sequence[tuple]) -> None:
    """Sends calls, as of `actors.Actor.call`. May raise `NotNear`."""
    if any(method in IN_PLACE for _, _, method, _ in calls):
      raise NotNear
    self._calls, self._is_open = calls, False
    # Shards are there: their sizes are not sent.
    calls = [(name, None, method, args) for name, _, method, args in calls]
    _send(self._socket, calls)

  def receive(self, secs: float) -> list[shards.Answer]:
    """Returns the answers, which have so long. Raises an OSError."""
    self._socket.settimeout(secs)
    problem, answers = self._receiver.receive()
    if problem:
      raise OSError(problem)
    answers = [shards.Answer(*x) for x in answers]
    self._is_open = True
    return [
      x._replace(value=shards.Newer(*x.value)) if call[2] == 'newer' else x
      for x, call in zip(answers, self._calls, strict=True)
    ]


def near(
  place: Place, node: str, folder: pathlib.Path, sizes: Mapping[str, tuple]
) -> Near | None:
  """Returns a link to shards on this machine, or None.

  `sizes` are arguments of each table's shard; the folder has one of each table,
  which notes who has the rows.
  """
  mapped = {}
  for name, address in place.addresses.items():
    num_bytes = shards.buffer_bytes(*sizes[name])
    memory = address and memory_lib.attach(address, node, num_bytes)
    if not memory:
      return None
    memory_lib.note(folder / name / shards.HOLDERS, memory.address(node))
    mapped[name] = shards.Mapped(memory, folder / name, *sizes[name])
  try:
    return Near(memory_lib.Process(place.pid), mapped)
  except OSError:
    return None
