"""Memory that processes of one machine share: a file that only they know.

It has no name (`memfd_create` of Linux), and is gone with the last process that
has it. Another process opens it by the number that it has in one of those
(`Address`). A lock of the file, which the system releases if its process ends,
lets one of them at a time change it.
"""

import contextlib
import fcntl
import mmap
import os
import pathlib
import select
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

_RETRY_SECS = 0.0002
_HEAD_BYTES = 64  # the token


class Address(NamedTuple):
  """Where a process has shared memory."""

  node: str  # of Ray, a machine
  pid: int
  fd: int
  token: int  # that the memory begins with


class Memory:
  """Memory that is shared, mapped into this process."""

  def __init__(self, fd: int, num_bytes: int):
    """`fd` is of a file of `num_bytes` and a head, which is closed with it."""
    self._fd = fd
    self._map = mmap.mmap(fd, _HEAD_BYTES + num_bytes)
    self._token = np.frombuffer(self._map, np.int64, 1)
    self.buffer = memoryview(self._map)[_HEAD_BYTES:]

  def address(self, node: str) -> Address:
    """Returns where this process has it, on a machine."""
    return Address(
      node=node, pid=os.getpid(), fd=self._fd, token=int(self._token[0])
    )

  def __del__(self) -> None:
    """Lets go of the file; what is mapped stays as long as it is used."""
    with contextlib.suppress(AttributeError, OSError):
      os.close(self._fd)

  @contextlib.contextmanager
  def lock(self, secs: float) -> Iterator[None]:
    """Keeps others from changing it. Raises a `TimeoutError` after so long."""
    until = None
    while True:
      try:
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
      except BlockingIOError as error:
        until = until or time.monotonic() + secs
        if time.monotonic() > until:
          raise TimeoutError('another process has it locked') from error
        time.sleep(_RETRY_SECS)
    try:
      yield
    finally:
      fcntl.flock(self._fd, fcntl.LOCK_UN)


def create(num_bytes: int) -> Memory | None:
  """Returns new memory of zeros, or None where the system has none to share."""
  try:
    fd = os.memfd_create('jaxemb-shard')
  except (AttributeError, OSError):
    return None
  os.ftruncate(fd, _HEAD_BYTES + num_bytes)
  memory = Memory(fd, num_bytes)
  memory._token[0] = int.from_bytes(os.urandom(7), 'little')
  return memory


def attach(address: Address, node: str, num_bytes: int) -> Memory | None:
  """Returns memory that another process has on this machine, or None.

  None if that is on another, has ended, or may not be asked.
  """
  if address.node != node:
    return None
  with contextlib.suppress(OSError, ValueError):
    fd = os.open(
      f'/proc/{address.pid}/fd/{address.fd}', os.O_RDWR | os.O_CLOEXEC
    )
    if os.fstat(fd).st_size != _HEAD_BYTES + num_bytes:
      os.close(fd)
      return None
    memory = Memory(fd, num_bytes)
    if memory._token[0] == address.token:
      return memory
  return None


class Process:
  """A process of this machine, which may end."""

  def __init__(self, pid: int):
    """Raises an OSError if it has ended, or the system watches none."""
    if not hasattr(os, 'pidfd_open'):
      raise OSError('no process can be watched')
    self._fd = os.pidfd_open(pid)
    self._poll = select.poll()
    self._poll.register(self._fd, select.POLLIN)

  def has_ended(self) -> bool:
    """Whether it has ended."""
    return bool(self._poll.poll(0))

  def __del__(self) -> None:
    """Closes what it was watched by."""
    with contextlib.suppress(AttributeError, OSError):
      os.close(self._fd)


def note(path: pathlib.Path, address: Address) -> None:
  """Adds a process that has memory to a file of those."""
  with open(path, 'a') as file:
    file.write(' '.join(map(str, address)) + '\n')


def survivor(path: pathlib.Path, node: str, num_bytes: int) -> Memory | None:
  """Returns memory that one of the noted processes still has, or None."""
  if not path.exists():
    return None
  for line in reversed(path.read_text().splitlines()):
    name, *numbers = line.split()
    if len(numbers) == 3:  # or it was cut off
      address = Address(name, *map(int, numbers))
      if memory := attach(address, node, num_bytes):
        return memory
  return None
