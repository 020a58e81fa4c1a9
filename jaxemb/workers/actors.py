"""The processes that have the shards of tables.

Ray starts them, and starts them again if they end.
"""

import contextlib
import json
import os
import pathlib
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jaxemb import errors
from jaxemb.storage import atomic
from jaxemb.workers import links, shards
from jaxemb.workers import memory as memory_lib

_LEAST_SAVE_SECS = 5.0  # between two snapshots of a shard
_LOCK_SECS = 60  # for a lock whose process may be suspended


class _SavedShard:
  """A shard with snapshots, from which it goes on in another process.

  It goes on with the rows themselves if they outlived the process, as others
  of the machine have them, too.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    snapshot_secs: float,
    node: str,
    sizes: tuple[Any, ...],
  ):
    """The folder is this shard's; `sizes` are arguments of `shards.Shard`."""
    folder.mkdir(parents=True, exist_ok=True)
    self._folder, self._latest = folder, folder / 'latest.json'
    self._every_secs, holders = snapshot_secs, folder / shards.HOLDERS
    num_bytes, has_rows = shards.buffer_bytes(*sizes), True
    memory = memory_lib.survivor(holders, node, num_bytes)
    if memory is None:
      holders.unlink(missing_ok=True)
      memory, has_rows = memory_lib.create(num_bytes), False
    self._memory, counts = memory, shards.saved_counts(folder)
    buffer = memory.buffer if memory else None
    self._shard = shards.Shard(*sizes, buffer=buffer, counts=counts)
    if not has_rows:
      path, checksum, done = None, 0, {}
      if self._latest.exists():
        saved = json.loads(self._latest.read_text())
        path, checksum = folder / saved['rows'], saved['checksum']
        done = {int(k): x for k, x in saved['done'].items()}
      self._shard.begin_again(path, checksum, done=done)
    counts['starts'] += 1
    self.address = memory.address(node) if memory else None
    if self.address:
      memory_lib.note(holders, self.address)
    self._number, self._saved, self._save_secs = 0, time.monotonic(), 0.0

  def call(self, method: str, args: tuple) -> shards.Answer:
    """Calls a method of the shard; saves it if that is due."""
    with self._locked():
      value = getattr(self._shard, method)(*args)
      # Snapshots take a twentieth of the time, if they are to be that frequent.
      every_secs = min(20 * self._save_secs, self._every_secs)
      every_secs = max(_LEAST_SAVE_SECS, every_secs)
      is_old, problem = time.monotonic() - self._saved > every_secs, ''
      if is_old or method == 'restore':
        try:
          self._save()
        except OSError as error:  # the snapshot before it stays
          problem, self._saved = str(error), time.monotonic()
    return shards.answer(self._shard, value, problem)

  @contextlib.contextmanager
  def _locked(self):
    if self._memory is None:
      yield
      return
    with contextlib.ExitStack() as stack:
      try:
        stack.enter_context(self._memory.lock(_LOCK_SECS))
      except TimeoutError as error:
        raise errors.LostError(
          f'a worker has had rows of a shard locked for {_LOCK_SECS} s; see '
          'that none is suspended, then run the same command to resume'
        ) from error
      yield

  def _save(self):
    start = time.monotonic()
    starts = int(self._shard.counts['starts'][0])
    path = self._folder / f'rows-{starts}-{self._number % 2}'
    checksum = self._shard.snapshot(path)
    state = {'rows': path.name, 'checksum': checksum, 'done': self._shard.done}
    with atomic.write(self._latest) as file:
      file.write(json.dumps(state).encode())
    for old in self._folder.glob('rows-*'):
      if old != path:
        old.unlink()
    self._number, self._saved = self._number + 1, time.monotonic()
    self._save_secs = self._saved - start


class Actor:
  """A process with a shard of every table; Ray restarts it if it ends."""

  def __init__(self, folder: pathlib.Path, snapshot_secs: float):
    """The folder is for its snapshots."""
    import ray

    self._node = ray.get_runtime_context().get_node_id()
    self._folder, self._snapshot_secs = folder, snapshot_secs
    self._shards: dict[str, _SavedShard] = {}
    self._lock = threading.Lock()  # of the threads that call shards
    host = ray.util.get_node_ip_address()
    self._server = links.Server(host, self.call)

  def place(self, sizes: Mapping[str, tuple]) -> links.Place:
    """Returns where its shards are; `sizes` are arguments of each table's."""
    with self._lock:
      found = {k: self._shard(k, x).address for k, x in sizes.items()}
    return links.Place(
      node=self._node,
      pid=os.getpid(),
      addresses=found,
      host=self._server.host,
      port=self._server.port,
      secret=self._server.secret,
    )

  def _shard(self, name, sizes):
    if name not in self._shards:
      folder, secs = self._folder / name, self._snapshot_secs
      self._shards[name] = _SavedShard(
        folder, snapshot_secs=secs, node=self._node, sizes=sizes
      )
    return self._shards[name]

  def call(
    self, calls: Sequence[tuple[str, tuple, str, tuple]]
  ) -> list[shards.Answer]:
    """Calls shards, each by (table, sizes, method, arguments)."""
    with self._lock:
      return [
        self._shard(name, sizes).call(method, args)
        for name, sizes, method, args in calls
      ]

  def drop(self, name: str) -> None:
    """Removes the shard of a table."""
    with self._lock:
      self._shards.pop(name, None)
    shutil.rmtree(self._folder / name, ignore_errors=True)
