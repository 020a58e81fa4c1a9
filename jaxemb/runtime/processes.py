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
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import distributed
from jax.experimental import multihost_utils

from jaxemb import errors

# How long a process waits for another before it gives up.
WAIT_SECS = 60
# JAX aborts a process that misses another for so long; `watch` comes before.
_HEARTBEAT_SECS = 100
_TOLD_SECS = 5
# Every device has a message of each process; one length is one program.
_MESSAGE_BYTES = 1 << 20


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
      'coordinator_bind_address': (
        None if index else own_address(place.coordinator)
      ),
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


def own_address(address: str) -> str:
  """Where process 0 listens for those who know it by this host:port.

  Some systems resolve a machine's own name to loopback, which no other machine
  reaches: there it listens on all addresses.
  """
  host, _, port = address.rpartition(':')
  if host == 'localhost' or host.startswith('127.'):
    return address
  try:
    is_loopback = socket.gethostbyname(host).startswith('127.')
  except OSError:
    is_loopback = False  # the error comes where it is used
  return f'0.0.0.0:{port}' if is_loopback else address


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
  return not joined_id()


def joined_id() -> int:
  """Of this process in the job, before JAX has looked for devices."""
  return distributed.global_state.process_id


def file_name(name: str) -> str:
  """A file of this process beside those of the others."""
  stem, _, suffix = name.rpartition('.')
  return name if is_first() else f'{stem}-{joined_id()}.{suffix}'


def num_joined() -> int:
  """The same, before JAX has looked for devices."""
  return distributed.global_state.num_processes or 1


def client() -> Any:
  """The store of keys and values."""
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
  # As bytes: JAX would make a number that large one of 32 bits.
  head = np.frombuffer(len(data).to_bytes(8, 'little'), np.uint8)
  heads = multihost_utils.process_allgather(head)
  sizes = [int.from_bytes(row.tobytes(), 'little') for row in heads]
  found: list[list[bytes]] = [[] for _ in sizes]
  for start in range(0, max(sizes), _MESSAGE_BYTES):
    message = np.zeros(_MESSAGE_BYTES, np.uint8)
    mine = data[start : start + _MESSAGE_BYTES]
    message[: len(mine)] = np.frombuffer(mine, np.uint8)
    rows = multihost_utils.process_allgather(message)
    for parts, row, size in zip(found, rows, sizes, strict=True):
      parts.append(row[: max(size - start, 0)].tobytes())
  return [b''.join(parts) for parts in found]


def get(key: str) -> str:
  """What another process has put in the store, or will put, however late.

  If that process is lost meanwhile, `watch` tells.
  """
  while True:
    try:
      return client().blocking_key_value_get(key, 1000 * WAIT_SECS)
    except RuntimeError as error:
      if 'DEADLINE_EXCEEDED' not in str(error):
        raise _lost(error) from error


def everyone(name: str, mine: str) -> list[str]:
  """What each process has, in their order; JAX is not started by it.

  Args:
    name: of the question, used once.
    mine: the answer of this process.
  """
  if num_joined() == 1:
    return [mine]
  client().key_value_set(f'jaxemb/{name}/{joined_id()}', mine)
  return [get(f'jaxemb/{name}/{i}') for i in range(num_joined())]


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
  for other, found in enumerate(everyone(name, json.dumps(mine))):
    theirs = json.loads(found)
    for key in sorted(mine.keys() | theirs.keys()):
      if mine.get(key) != theirs.get(key):
        raise errors.UserError(
          f'process {other} has another {what}: {key} is {theirs.get(key)!r} '
          f'there and {mine.get(key)!r} in process {joined_id()}; start all '
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
    store, folder = client(), f'jaxemb/{self._name}'
    self._count += 1
    try:
      if index():
        if stops:
          store.key_value_set(f'{folder}/asked/{index()}', STOP, True)
        return get(f'{folder}/{self._count}')
      if store.key_value_dir_get(f'{folder}/asked'):
        decision = STOP
      store.key_value_set(f'{folder}/{self._count}', decision)
      # None is so far behind: two dispatches are under way at most.
      if self._count > 100:
        store.key_value_delete(f'{folder}/{self._count - 100}')
      return decision
    except RuntimeError as error:
      raise _lost(error) from error


def follow_first(name: str) -> None:
  """Waits, however long it takes, until process 0 has come here too.

  Whoever ends waits for the others for a minute only, and is then aborted with
  all of them. If process 0 is lost meanwhile, `watch` tells.

  Args:
    name: of the meeting, used once.
  """
  if num() == 1:
    return
  if is_first():
    client().key_value_set(f'jaxemb/{name}', name)
  else:
    get(f'jaxemb/{name}')


def latest(name: str, own: dict[str, Any]) -> list[dict[str, Any]]:
  """What each process gave last, in their order; nobody waits.

  A process that gave nothing yet has `own` without its figures.
  """
  if num() == 1:
    return [own]
  store, folder = client(), f'jaxemb/{name}/'
  try:
    store.key_value_set(f'{folder}{index()}', json.dumps(own), True)
    found = {
      int(key.rpartition('/')[2]): json.loads(value)
      for key, value in store.key_value_dir_get(folder)
    }
  except RuntimeError as error:
    raise _lost(error) from error
  nothing = {k: v if isinstance(v, str) else None for k, v in own.items()}
  return [found.get(i, nothing | {'secs': 0.0}) for i in range(num())]


def _lost(error: BaseException) -> errors.UserError:
  # `watch` ends this process with a line of its own where it sees who is gone.
  time.sleep(_TOLD_SECS)
  cause = ' '.join(str(error).split())[:160]
  return errors.UserError(f'{GONE.format("another process")} ({cause})')


GONE = (
  '{} of this job is gone; start all processes again to resume from the last '
  'checkpoint'
)
