"""Several processes that train as one: how they start, agree and end together.

JAX's distributed runtime joins them: a coordinator (process 0) with a store of
keys and values. Arrays travel by collectives of compiled programs; what the
hosts have to say to each other (settings, counts, when to save) goes through
that store, so that nothing on a device waits for it. Alone, a process agrees
with itself at once.
"""

import json
import os
import socket
import sys
import threading
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import distributed
from jax.experimental import multihost_utils

from jaxemb import errors

# How long a process waits for another before it gives up.
WAIT_SECS = 60
# JAX aborts a process that misses another for so long; `Watch` comes before.
_HEARTBEAT_SECS = 100
_SILENCE_SECS = 30
_BYE = b'!'


class Place(NamedTuple):
  """Which process this is to be; what is left open is found out by JAX."""

  coordinator: str  # host:port of process 0; '' = alone, or as `detects` says
  num_processes: int
  process_id: int
  detects: bool  # whether SLURM, MPI, Kubernetes or a TPU pod tell the place


ALONE = Place('', 1, 0, False)

# What `Decisions` are about.
GO_ON, SAVE, STOP = 'go on', 'save', 'stop'


def start(place: Place) -> None:
  """Joins the other processes, before JAX is used for anything else.

  Raises:
    UserError: if they cannot be joined.
  """
  if not place.coordinator and not place.detects:
    return
  options: dict[str, Any] = {}
  if place.coordinator:
    num, index = place.num_processes, place.process_id
    if not 0 <= index < num:
      raise errors.UserError(
        f'--process_id={index} must be 0..{num - 1} with --num_processes={num}'
      )
    if index:
      _wait_for(place.coordinator)
    options = {
      'coordinator_address': place.coordinator,
      'num_processes': num,
      'process_id': index,
      # Not all of the machine's addresses, which is JAX's choice.
      'coordinator_bind_address': None if index else place.coordinator,
    }
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  # It only adds lines about processes that are gone.
  jax.config.update('jax_enable_preemption_service', False)
  try:
    jax.distributed.initialize(
      **options,
      initialization_timeout=WAIT_SECS,
      heartbeat_timeout_seconds=_HEARTBEAT_SECS,
      shutdown_timeout_seconds=WAIT_SECS,
    )
  except (RuntimeError, ValueError) as error:
    cause = ' '.join(str(error).split())[:200]
    where = place.coordinator or 'the job that was detected'
    raise errors.UserError(
      f'cannot join the other processes at {where} within {WAIT_SECS} s: '
      f'{cause}; start all of them, with the same --coordinator and '
      '--num_processes and different --process_id'
    ) from error


def _wait_for(address: str) -> None:
  """Waits until something answers at host:port."""
  host, _, port = address.rpartition(':')
  deadline = time.monotonic() + WAIT_SECS
  while True:
    try:
      with socket.create_connection((host, int(port)), timeout=5):
        return
    except (OSError, ValueError, OverflowError) as error:
      if time.monotonic() > deadline or isinstance(error, ValueError):
        raise errors.UserError(
          f'the coordinator {address} does not answer ({error}); start process '
          '0 there, or correct --coordinator=HOST:PORT'
        ) from error
      time.sleep(0.5)


def index() -> int:
  """Of this process; 0 is the one that reports."""
  return jax.process_index()


def num() -> int:
  """How many processes there are."""
  return jax.process_count()


def is_first() -> bool:
  """Whether this process is the one that reports."""
  return not _id()


def _id() -> int:
  """Of this process in the job, before JAX has looked for devices."""
  return distributed.global_state.process_id


def file_name(name: str) -> str:
  """A file of this process beside those of the others."""
  stem, _, suffix = name.rpartition('.')
  return name if is_first() else f'{stem}-{_id()}.{suffix}'


def num_joined() -> int:
  """The same, before JAX has looked for devices."""
  return distributed.global_state.num_processes or 1


def _client() -> Any:
  return distributed.global_state.client


def leave(code: int) -> None:
  """Ends this process without waiting for the others to end."""
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


def gather(data: bytes) -> list[bytes]:
  """What every process has, in their order; of any length."""
  if num() == 1:
    return [data]
  sizes = multihost_utils.process_allgather(np.array([len(data)], np.int64))
  padded = np.zeros(int(sizes.max()), np.uint8)
  padded[: len(data)] = np.frombuffer(data, np.uint8)
  rows = multihost_utils.process_allgather(padded)
  return [
    row[:size].tobytes()
    for row, size in zip(rows, sizes.reshape(-1), strict=True)
  ]


def agree(name: str, mine: dict[str, Any], what: str) -> None:
  """Checks that all processes have the same of something.

  JAX is not started by it: how many devices it has is decided behind this.

  Args:
    name: of the check, used once.
    mine: JSON-ready.
    what: names it in the error.

  Raises:
    UserError: in every process, naming the first difference.
  """
  if num_joined() == 1:
    return
  client = _client()
  client.key_value_set(f'jaxemb/{name}/{_id()}', json.dumps(mine))
  for other in range(num_joined()):
    try:
      found = client.blocking_key_value_get(
        f'jaxemb/{name}/{other}', 1000 * WAIT_SECS
      )
    except RuntimeError as error:
      raise _lost(error) from error
    theirs = json.loads(found)
    for key in sorted(mine.keys() | theirs.keys()):
      if mine.get(key) != theirs.get(key):
        raise errors.UserError(
          f'process {other} has another {what}: {key} is {theirs.get(key)!r} '
          f'there and {mine.get(key)!r} in process {_id()}; start all '
          'processes alike'
        )


class Decisions:
  """When to save and to stop: decided by process 0, done by all at once."""

  def __init__(self, name: str):
    """Starts a series of decisions; `name` is used once."""
    self._name, self._count = name, 0

  def next(self, stops: bool, saves: bool) -> str:
    """`GO_ON`, `SAVE` or `STOP`, the same in all processes.

    Args:
      stops: whether this process was told to stop; all will, soon after.
      saves: whether process 0 thinks it time to save; of others it is ignored.

    Raises:
      UserError: if process 0 is not heard of any more.
    """
    decision = STOP if stops else SAVE if saves else GO_ON
    if num() == 1:
      return decision
    client, folder = _client(), f'jaxemb/{self._name}'
    self._count += 1
    try:
      if index():
        if stops:
          client.key_value_set(f'{folder}/asked/{index()}', STOP, True)
        key = f'{folder}/{self._count}'
        return client.blocking_key_value_get(key, 1000 * WAIT_SECS)
      if client.key_value_dir_get(f'{folder}/asked'):
        decision = STOP
      client.key_value_set(f'{folder}/{self._count}', decision)
      # None is so far behind: two dispatches are under way at most.
      if self._count > 100:
        client.key_value_delete(f'{folder}/{self._count - 100}')
      return decision
    except RuntimeError as error:
      raise _lost(error) from error


def follow_first(name: str) -> None:
  """Waits, however long it takes, until process 0 has come here too.

  Whoever ends waits for the others for a minute only, and is then aborted with
  all of them. If process 0 is lost meanwhile, `Watch` tells.

  Args:
    name: of the meeting, used once.
  """
  if num() == 1:
    return
  client, key = _client(), f'jaxemb/{name}'
  if is_first():
    client.key_value_set(key, name)
    return
  while True:
    try:
      client.blocking_key_value_get(key, 1000 * WAIT_SECS)
      return
    except RuntimeError as error:
      if 'DEADLINE_EXCEEDED' not in str(error):
        raise _lost(error) from error


def latest(name: str, own: dict[str, Any]) -> list[dict[str, Any]]:
  """What each process gave last, in their order; nobody waits.

  A process that gave nothing yet has `own` without its figures.
  """
  if num() == 1:
    return [own]
  client, folder = _client(), f'jaxemb/{name}/'
  try:
    client.key_value_set(f'{folder}{index()}', json.dumps(own), True)
    found = {
      int(key.rpartition('/')[2]): json.loads(value)
      for key, value in client.key_value_dir_get(folder)
    }
  except RuntimeError as error:
    raise _lost(error) from error
  nothing = {k: v if isinstance(v, str) else None for k, v in own.items()}
  return [found.get(i, nothing | {'secs': 0.0}) for i in range(num())]


def _lost(error: BaseException) -> errors.UserError:
  cause = ' '.join(str(error).split())[:160]
  return errors.UserError(f'{_GONE.format("another process")} ({cause})')


_GONE = (
  '{} of this job is gone; start all processes again to resume from the last '
  'checkpoint'
)


class Watch:
  """Ends this process when another one is gone.

  Process 0 has a connection to each of the others. When a process dies its
  system closes them, and when a machine does its heartbeats stay away: process
  0 ends, and with it all others. Without this a process would wait in a
  collective for ever, or JAX would abort it with pages of traces.
  """

  def __init__(self):
    """Connects; the heartbeats begin."""
    self._ended = threading.Event()
    self._connections: list[socket.socket] = []
    if num_joined() == 1:
      return
    state, client = distributed.global_state, _client()
    host = state.coordinator_address.rpartition(':')[0]
    if state.process_id == 0:
      with socket.create_server((host, 0)) as server:
        client.key_value_set('jaxemb/watch', str(server.getsockname()[1]))
        server.settimeout(WAIT_SECS)
        for _ in range(1, state.num_processes):
          connection, _ = server.accept()
          other = int.from_bytes(connection.recv(4), 'big')
          self._follow(connection, other)
    else:
      port = int(
        client.blocking_key_value_get('jaxemb/watch', 1000 * WAIT_SECS)
      )
      connection = socket.create_connection((host, port), WAIT_SECS)
      connection.sendall(state.process_id.to_bytes(4, 'big'))
      self._follow(connection, 0)

  def _follow(self, connection: socket.socket, other: int) -> None:
    connection.settimeout(_SILENCE_SECS)
    self._connections.append(connection)
    for work in (self._listen, self._beat):
      threading.Thread(
        target=work, args=(connection, other), name='watch', daemon=True
      ).start()

  def _listen(self, connection: socket.socket, other: int) -> None:
    try:
      while data := connection.recv(64):
        if _BYE in data:
          return
    except OSError:
      pass
    if not self._ended.is_set():
      line = f'jaxemb: {_GONE.format(f"process {other}")}\n'
      os.write(2, line.encode())
      os._exit(2)  # the main thread may wait for the lost one for ever

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

  def close(self, says_bye: bool) -> None:
    """Ends; the others end too unless told that all is well."""
    self._ended.set()
    for connection in self._connections:
      try:
        if says_bye:
          connection.sendall(_BYE)
        connection.close()
      except OSError:
        pass
