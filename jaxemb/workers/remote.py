"""Tables on other processes or machines: shards as actors of Ray.

Ray starts, places and restarts them. A shard that dies comes back from its last
snapshot, and reports how many updates it has lost; a call that it may have
missed is made again, and done once.

With RAY_ADDRESS set, shards are on the cluster that it names; snapshots are
then to be in a folder that all its machines have. Otherwise Ray is started on
this machine for as long as the tables are used.
"""

import collections
import json
import logging
import os
import pathlib
import secrets
import shutil
import signal
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.storage import atomic
from jaxemb.workers import shards

_LOG = logging.getLogger('jaxemb')
WAIT_SECS = 60  # for a shard that is being restarted
CALL_SECS = 60  # for an answer of a shard that runs, or is suspended
_FILE_BYTES_PER_SEC = 2e7  # that a shard may read or write before
_RETRY_SECS, _DROP_SECS = 0.5, 5.0
_LEAST_SAVE_SECS = 5.0  # between two snapshots of a shard
# Of messages on one machine; taken as it is used.
OBJECT_STORE_BYTES = 1 << 30


def _ray() -> Any:
  try:
    import ray
  except ImportError as error:
    raise errors.UserError(
      f"tables in a remote store need Ray ({error}): pip install -e '.[ray]'"
    ) from error
  return ray


class _SavedShard:
  """A shard with snapshots, from which it goes on in another process."""

  def __init__(self, folder: pathlib.Path, snapshot_secs: float, *args: Any):
    """The folder is this shard's; `args` are those of `shards.Shard`."""
    folder.mkdir(parents=True, exist_ok=True)
    self._folder, self._every_secs = folder, snapshot_secs
    self._shard = shards.Shard(*args)
    # Starts, epoch, updates, and updates lost, for the next start. The page
    # outlives the process.
    path = folder / 'counts'
    mode = 'r+' if path.exists() else 'w+'
    self._counts = np.memmap(path, np.int64, mode, shape=(4,))
    if self._latest.exists():
      saved = json.loads(self._latest.read_text())
      self._shard.restore(folder / saved['rows'], saved['checksum'])
      self._shard.done = saved['done']
    self._lost = self._counts[3] + self._counts[2] - self._shard.updates
    self._shard.epoch = int(self._counts[1]) + 1
    self._counts[0] += 1
    self._number, self._saved, self._save_secs = 0, time.monotonic(), 0.0
    self._count()

  @property
  def _latest(self):
    return self._folder / 'latest.json'

  def _count(self):
    shard, lost = self._shard, self._lost + self._shard.lost
    self._counts[1:4] = shard.epoch, shard.updates, lost

  def call(self, method: str, args: tuple) -> tuple[int, int, str, Any]:
    """Returns starts, updates lost, a problem, and what a method returns."""
    answer = getattr(self._shard, method)(*args)
    self._count()
    # Snapshots take a twentieth of the time, if they are to be that frequent.
    every_secs = min(20 * self._save_secs, self._every_secs)
    every_secs = max(_LEAST_SAVE_SECS, every_secs)
    is_old, problem = time.monotonic() - self._saved > every_secs, ''
    if is_old or method == 'restore':
      try:
        self._save()
      except OSError as error:  # the snapshot before it stays
        problem, self._saved = str(error), time.monotonic()
    return int(self._counts[0]), int(self._counts[3]), problem, answer

  def _save(self):
    start = time.monotonic()
    path = self._folder / f'rows-{self._counts[0]}-{self._number % 2}'
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
    self._args = folder, snapshot_secs
    self._shards: dict[str, _SavedShard] = {}

  def call(
    self, calls: Sequence[tuple[str, tuple, str, tuple]]
  ) -> list[tuple[int, int, str, Any]]:
    """Calls shards, each by (table, sizes, method, arguments)."""
    answers = []
    for name, sizes, method, args in calls:
      if name not in self._shards:
        folder, secs = self._args
        self._shards[name] = _SavedShard(folder / name, secs, *sizes)
      answers.append(self._shards[name].call(method, args))
    return answers

  def drop(self, name: str) -> None:
    """Removes the shard of a table."""
    self._shards.pop(name, None)
    shutil.rmtree(self._args[0] / name, ignore_errors=True)


class _Calls:
  """`shards.Call` of actors, which may be restarted meanwhile."""

  def __init__(self, actors: list[Any]):
    self.actors = actors
    # By table, its arguments of `shards.Shard`, but for the number.
    self.sizes: dict[str, tuple] = {}
    # By table and number, starts and lost updates as far as is known.
    self._known: dict[tuple[str, int], tuple[int, int]] = {}

  def __call__(
    self, requests: Sequence[shards.Request]
  ) -> list[dict[int, Any]]:
    start = time.monotonic()
    answers = [dict.fromkeys(x.args) for x in requests]
    waiting: dict[int, list[tuple[int, tuple]]] = {}  # by number of the shard
    for k, request in enumerate(requests):
      for i, args in request.args.items():
        sizes = i, *self.sizes[request.table]
        call = request.table, sizes, request.method, args
        waiting.setdefault(i, []).append((k, call))
    deadline, late = start + WAIT_SECS, collections.Counter()
    while True:
      num_late = late.total()
      why = self._send(waiting, answers, late)
      if not waiting:
        return answers
      now = time.monotonic()
      if late.total() > num_late:
        deadline = now + WAIT_SECS
      if now > deadline or any(late[i] > 1 for i in waiting):
        i, what = max(waiting, key=lambda i: late[i]), errors.one_line(why, 100)
        raise errors.LostError(
          f'shard {i} of the tables has not answered for {now - start:.0f} s '
          f'({what}); see that Ray and its machines run, and that nothing is '
          'suspended, then run the same command to resume'
        ) from why
      time.sleep(_RETRY_SECS)

  @property
  def _limit_secs(self):
    """For an answer of a shard, which may have to write or read its rows."""
    sizes = self.sizes.values()
    shard_bytes = sum(rows * size // n for n, rows, size, _ in sizes)
    return CALL_SECS + shard_bytes / _FILE_BYTES_PER_SEC

  def _send(self, waiting, answers, late):
    """Makes the calls that wait; returns why some of them still do."""
    ray, why = _ray(), None
    refs = {
      i: self.actors[i].call.remote([call for _, call in calls])
      for i, calls in waiting.items()
    }
    until = time.monotonic() + self._limit_secs
    for i, ref in refs.items():
      try:
        results = ray.get(ref, timeout=max(0.0, until - time.monotonic()))
      except ray.exceptions.GetTimeoutError as error:
        # Asked again: a call that was done is not done twice.
        why = error
        late[i] += 1
        continue
      except ray.exceptions.RayActorError as error:
        why = error
        continue
      except ray.exceptions.RayTaskError as error:
        raise error.cause from None
      for (k, call), (starts, lost, problem, answer) in zip(
        waiting.pop(i), results, strict=True
      ):
        answers[k][i] = answer
        self._note((call[0], i), starts, lost)
        if problem:
          _LOG.warning(
            f'shard {i} of table {call[0]} has no new snapshot: {problem}; '
            'the one before it stays: free space in --workdir'
          )
    return why

  def _note(self, key, starts, lost):
    # A client that comes later reports what was lost since the first start.
    before = self._known.setdefault(key, (1, 0))
    self._known[key] = starts, lost
    (table, i), more = key, lost - before[1]
    if starts != before[0]:
      _LOG.warning(
        f'shard {i} of table {table} ended and came back from its last '
        f'snapshot: {more:,} updates of rows since then are lost'
      )
    elif more:
      _LOG.warning(
        f'shard {i} of table {table} lacks rows since it came back: '
        f'{more:,} updates of them are lost'
      )


class Cluster:
  """Ray, for as long as tables are on it."""

  def __init__(self, namespace: str = '', address: str = ''):
    """Joins the cluster at an address, or RAY_ADDRESS, or starts Ray here.

    Clusters of the same namespace share tables; '' = tables of its own.
    """
    self.namespace = namespace or f'jaxemb-{uuid.uuid4().hex[:8]}'
    self._calls: _Calls | None = None
    self._address = address or os.environ.get('RAY_ADDRESS') or 'local'
    if self._address == 'local' and 'ray' not in sys.modules:
      # It listens on all addresses and executes what it is sent, and asks for
      # a secret only if told so before it is imported.
      os.environ.setdefault('RAY_AUTH_MODE', 'token')
      os.environ.setdefault('RAY_AUTH_TOKEN', secrets.token_hex(32))
    self._ray = _ray()
    self._is_ours = False

  def _start(self):
    if self._ray.is_initialized():
      return
    self._is_ours, address, options = True, self._address, {}
    if address == 'local':
      # Nothing is sent from a machine that is only used by itself.
      os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
      options = {
        'include_dashboard': False,
        'num_cpus': 1,  # or it has idle processes for more
        'object_store_memory': OBJECT_STORE_BYTES,
      }
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
      with warnings.catch_warnings():
        # Of a fork that goes on as another program at once.
        warnings.simplefilter('ignore', RuntimeWarning)
        self._ray.init(
          address,
          log_to_driver=False,
          logging_level=logging.ERROR,
          **options,
        )
    except SystemExit as error:  # of a handler of Ray's, which saves nothing
      raise errors.LostError(
        'stopped while Ray was being started; nothing to save'
      ) from error
    except (ConnectionError, RuntimeError, ValueError) as error:
      raise errors.UserError(
        f'cannot use Ray at {address}: {errors.one_line(error)}; correct '
        'RAY_ADDRESS, or remove it to start Ray on this machine'
      ) from error
    finally:
      if is_main:
        signal.signal(signal.SIGTERM, handler)

  @property
  def is_own(self) -> bool:
    """Whether Ray was started here, on this machine."""
    return self._is_ours and self._address == 'local'

  def start(self, kind: type, *args: Any, **options: Any) -> Any:
    """An actor of a class, with `options` of Ray."""
    self._start()
    return self._ray.remote(kind).options(**options).remote(*args)

  def close(self) -> None:
    """Ends Ray if this has started it."""
    if self._is_ours:
      self._ray.shutdown()

  def num_cpus(self) -> tuple[int, int]:
    """Returns the CPUs of all machines, and how many of them are free."""
    self._start()
    both = self._ray.cluster_resources(), self._ray.available_resources()
    return tuple(int(x.get('CPU', 0)) for x in both)

  def ask(self, ref: Any, secs: float | None = None) -> Any:
    """Returns the answer of the coordinator; raises a `LostError` if it ended.

    It has so many seconds, or any number of them.
    """
    problems = self._ray.exceptions
    try:
      return self.get(ref, secs)
    except (problems.RayActorError, problems.GetTimeoutError) as error:
      why = errors.one_line(error, 100)
      raise errors.LostError(
        f'the coordinator of the workers has ended or is suspended ({why}); '
        'run the same command to resume'
      ) from error

  def get(self, ref: Any, secs: float | None = None) -> Any:
    """Returns what a call of an actor returns, or raises its error."""
    try:
      return self._ray.get(ref, timeout=secs)
    except self._ray.exceptions.RayTaskError as error:
      raise error.cause from None

  def ended(self, refs: Sequence[Any], secs: float) -> list[Any]:
    """Returns the calls that have ended within so many seconds."""
    if not refs:
      time.sleep(secs)
      return []
    num, refs = len(refs), list(refs)
    ended, _ = self._ray.wait(refs, num_returns=num, timeout=secs)
    return ended

  def why_lost(self, ref: Any) -> str | None:
    """Returns why a call that has ended has failed, or None.

    Raises the call's error if it is a `UserError`.
    """
    try:
      self.get(ref)
    except errors.UserError:
      raise
    except Exception as error:  # of the actor's process, or its end
      return errors.one_line(error, 100)
    return None

  def table(
    self,
    name: str,
    num_shards: int,
    num_rows: int,
    num_bytes: int,
    make: Callable[[np.ndarray], np.ndarray],
    folder: pathlib.Path,
    snapshot_secs: float,
    num_added: int = 0,
    client: str = '',
  ) -> shards.Sharded:
    """A table, whose shards are started if they are not there.

    All tables have as many. The folder is for snapshots; other arguments are
    as of `shards.Sharded` and `shards.Shard`. Closing the last table ends the
    shards, and Ray if this started it.
    """
    self._start()
    if self._calls is None:
      self._calls = _Calls(
        [self._shard(i, folder, snapshot_secs) for i in range(num_shards)]
      )
    calls = self._calls
    calls.sizes[name] = num_shards, num_rows, num_bytes, num_added

    def close():
      calls.sizes.pop(name)
      if calls.sizes:
        dropped = [x.drop.remote(name) for x in calls.actors]
        # An actor that does not answer is killed with the last table.
        num = len(dropped)
        self._ray.wait(dropped, num_returns=num, timeout=_DROP_SECS)
        return
      for one in calls.actors:
        self._ray.kill(one)
      shutil.rmtree(self._folder(folder), ignore_errors=True)
      self._calls = None
      self.close()

    return shards.Sharded(
      name=name,
      num_shards=num_shards,
      num_rows=num_rows,
      num_bytes=num_bytes,
      make=make,
      call=calls,
      client=client or uuid.uuid4().hex,
      close=close,
    )

  def _folder(self, folder):
    return folder.absolute() / self.namespace

  def _shard(self, i, folder, snapshot_secs):
    """The actor of shards of a number; started unless it is there."""
    options = {'max_restarts': -1, 'num_cpus': 0, 'namespace': self.namespace}
    options |= {'name': f'shards-{i}', 'get_if_exists': True}
    return self.start(
      Actor, self._folder(folder) / str(i), snapshot_secs, **options
    )
