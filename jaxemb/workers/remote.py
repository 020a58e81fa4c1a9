"""Tables on other processes or machines: the client of shards on Ray.

Ray starts, places and restarts the actors that have the shards. A shard that
dies comes back from its last snapshot, and reports how many updates it has
lost; a call that it may have missed is made again, and done once.

With RAY_ADDRESS set, shards are on the cluster that it names; snapshots are
then to be in a folder that all its machines have. Otherwise Ray is started on
this machine for as long as the tables are used.
"""

import collections
import dataclasses
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
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.storage import atomic
from jaxemb.workers import shards

_LOG = logging.getLogger('jaxemb')
WAIT_SECS = 60  # for a shard that is being restarted
CALL_SECS = 60  # for an answer of a shard that runs, or is suspended
_FILE_BYTES_PER_SEC = 2e7  # that a shard may read or write before
_RETRY_SECS, _DROP_SECS = 0.5, 5.0
_ANSWER_BYTES = 1 << 26  # of all shards, when whole tables are read
# Of messages on one machine; taken as it is used.
OBJECT_STORE_BYTES = 1 << 30


class Request(NamedTuple):
  """A call of shards of a table."""

  table: str
  method: str  # of `shards.Shard`
  args: Mapping[int, tuple]  # by shard
  indices: Mapping[int, np.ndarray] = {}  # by shard, of the ids that it has


# Requests, done in this order, -> the results of each, by shard
Call = Callable[[Sequence[Request]], list[dict[int, Any]]]


@dataclasses.dataclass
class Sharded:
  """A table over several shards, of which each has every n-th row.

  A `stores.local.Store`, and with clocks what copies on workers are read from.
  Every call goes to all shards that have some of its rows, once.
  """

  name: str
  num_shards: int
  num_rows: int
  num_bytes: int
  make: Callable[[np.ndarray], np.ndarray]  # ids -> their first records
  call: Call
  client: str  # unique
  close: Callable[[], None]  # as of `stores.local.Store`
  _calls: int = dataclasses.field(default=0, init=False)

  def _split(self, method, ids, *arrays):
    """Returns a call with ids [n] and arrays [n, ...], split by shard."""
    shard = ids % self.num_shards
    indices = {i: np.flatnonzero(shard == i) for i in range(self.num_shards)}
    # Of no ids, from a shard that returns as many rows.
    indices = {i: x for i, x in indices.items() if len(x)} or {0: np.arange(0)}
    args = {i: tuple(y[x] for y in (ids, *arrays)) for i, x in indices.items()}
    return Request(self.name, method, args, indices=indices)

  def _ask(self, method, args):
    """Results by shard."""
    return self.call([Request(self.name, method, args)])[0]

  def newer_request(
    self, ids: np.ndarray, clocks: np.ndarray, bound: int
  ) -> Request:
    """Asks for those of ids [n] with more than `bound` updates since clocks.

    All of `NEVER`.
    """
    request = self._split('newer', ids, clocks)
    args = {i: (*x, bound) for i, x in request.args.items()}
    return request._replace(args=args)

  def newer(
    self, request: Request, results: Mapping[int, shards.Newer]
  ) -> shards.Newer:
    """Joins the results; makes the records of rows that nobody changed."""
    of_shards = list(results.values())
    clocks = np.concatenate([x.clocks for x in of_shards])
    is_known = np.concatenate([x.is_known for x in of_shards])
    records = np.concatenate([x.records for x in of_shards])
    indices = [request.indices[i][x.at] for i, x in results.items()]
    if not is_known.all():
      known = records
      records = np.empty((len(clocks), self.num_bytes), np.uint8)
      records[is_known] = known
      ids = [request.args[i][0][x.at] for i, x in results.items()]
      records[~is_known] = self.make(np.concatenate(ids)[~is_known])
    return shards.Newer(
      at=np.concatenate(indices),
      clocks=clocks,
      is_known=is_known,
      records=records,
      missed=sum(x.missed for x in of_shards),
      most_missed=max(x.most_missed for x in of_shards),
    )

  def add_request(self, push: shards.Push) -> Request:
    """See `shards.Shard.add`."""
    number_of = np.full(len(push.ids), -1)
    number_of[push.first_at] = np.arange(len(push.first_at))
    request = self._split('add', *push[:3], number_of)
    self._calls += 1
    args = {}
    for i, (*arrays, numbers) in request.args.items():
      new = np.flatnonzero(numbers >= 0)
      some = shards.Push(*arrays, first_at=new, first=push.first[numbers[new]])
      args[i] = self.client, self._calls, some
    return request._replace(args=args)

  def check(self) -> None:
    """Asks every shard for something."""
    self._ask('num_known', {i: () for i in range(self.num_shards)})

  def read(self, ids: np.ndarray) -> np.ndarray:
    """See `stores.local.Store`."""
    records = np.empty((len(ids), self.num_bytes), np.uint8)
    size = max(1, _ANSWER_BYTES // self.num_bytes)
    for i in range(0, len(ids), size):
      some = ids[i : i + size]
      request = self.newer_request(some, np.full(len(some), shards.NEVER), 0)
      newer = self.newer(request, self.call([request])[0])
      records[i + newer.at] = newer.records
    return records

  def write(self, ids: np.ndarray, records: np.ndarray) -> None:
    """See `stores.local.Store`."""
    self.call([self._split('write', ids, records)])

  def snapshot(self, path: pathlib.Path) -> int:
    """See `stores.local.Store`; a folder with a file of each shard."""
    path.mkdir(parents=True, exist_ok=True)
    numbers = range(self.num_shards)
    sums = self._ask('snapshot', {i: (path / str(i),) for i in numbers})
    data = json.dumps([sums[i] for i in numbers]).encode()
    with atomic.write(path / 'checksums') as file:
      file.write(data)
    return zlib.crc32(data)

  def restore(self, path: pathlib.Path, checksum: int) -> None:
    """See `stores.local.Store`; of as many shards."""
    data = (path / 'checksums').read_bytes()
    if zlib.crc32(data) != checksum:
      raise ValueError(f'{path} is damaged')
    sums = json.loads(data)
    if len(sums) != self.num_shards:
      raise ValueError(f'{path} is of {len(sums)} shards')
    self._ask('restore', {i: (path / str(i), x) for i, x in enumerate(sums)})


def _ray() -> Any:
  try:
    import ray
  except ImportError as error:
    raise errors.UserError(
      f"tables in a remote store need Ray ({error}): pip install -e '.[ray]'"
    ) from error
  return ray


class _Calls:
  """A `Call` of actors, which may be restarted meanwhile."""

  def __init__(self, actors: list[Any]):
    self.actors = actors
    # By table, its arguments of `shards.Shard`, but for the number.
    self.sizes: dict[str, tuple] = {}
    # By table and number, starts and lost updates as far as is known.
    self._known: dict[tuple[str, int], tuple[int, int]] = {}

  def __call__(self, requests: Sequence[Request]) -> list[dict[int, Any]]:
    start = time.monotonic()
    results = [dict.fromkeys(x.args) for x in requests]
    waiting: dict[int, list[tuple[int, tuple]]] = {}  # by number of the shard
    for k, request in enumerate(requests):
      for i, args in request.args.items():
        sizes = i, *self.sizes[request.table]
        call = request.table, sizes, request.method, args
        waiting.setdefault(i, []).append((k, call))
    deadline, late = start + WAIT_SECS, collections.Counter()
    while True:
      num_late = late.total()
      why = self._send(waiting, results, late)
      if not waiting:
        return results
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

  def _send(self, waiting, results, late):
    """Makes the calls that wait; returns why some of them still do."""
    ray, why = _ray(), None
    refs = {
      i: self.actors[i].call.remote([call for _, call in calls])
      for i, calls in waiting.items()
    }
    # A shard may have to write or read its rows before it answers.
    shard_bytes = sum(
      num_rows * num_bytes // num_shards
      for num_shards, num_rows, num_bytes, _ in self.sizes.values()
    )
    until = time.monotonic() + CALL_SECS + shard_bytes / _FILE_BYTES_PER_SEC
    for i, ref in refs.items():
      try:
        answers = ray.get(ref, timeout=max(0.0, until - time.monotonic()))
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
      for (k, call), answer in zip(waiting.pop(i), answers, strict=True):
        results[k][i] = answer.value
        self._note(call[0], i, answer)
    return why

  def _note(self, table, i, answer):
    """Logs what a shard has lost, and why it was not saved."""
    if answer.problem:
      _LOG.warning(
        f'shard {i} of table {table} has no new snapshot: {answer.problem}; '
        'the one before it stays: free space in --workdir'
      )
    # A client that comes later reports what was lost since the first start.
    starts, lost = self._known.get((table, i), (1, 0))
    self._known[table, i] = answer.starts, answer.lost
    more = answer.lost - lost
    if answer.starts != starts:
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
    self._has_started = False

  def _start(self):
    if self._ray.is_initialized():
      return
    self._has_started, options = True, {}
    if self._address == 'local':
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
          self._address,
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
        f'cannot use Ray at {self._address}: {errors.one_line(error)}; correct '
        'RAY_ADDRESS, or remove it to start Ray on this machine'
      ) from error
    finally:
      if is_main:
        signal.signal(signal.SIGTERM, handler)

  @property
  def is_own(self) -> bool:
    """Whether Ray was started here, on this machine."""
    return self._has_started and self._address == 'local'

  def start(self, kind: type, *args: Any, **options: Any) -> Any:
    """An actor of a class, with `options` of Ray."""
    self._start()
    return self._ray.remote(kind).options(**options).remote(*args)

  def close(self) -> None:
    """Ends Ray if this has started it."""
    if self._has_started:
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
      return self._ray.get(ref, timeout=secs)
    except problems.RayTaskError as error:
      raise error.cause from None
    except (problems.RayActorError, problems.GetTimeoutError) as error:
      raise errors.LostError(
        'the coordinator of the workers has ended or is suspended '
        f'({errors.one_line(error, 100)}); run the same command to resume'
      ) from error

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
      self._ray.get(ref)
    except self._ray.exceptions.RayTaskError as error:
      if isinstance(error.cause, errors.UserError):
        raise error.cause from None
      return errors.one_line(error.cause, 100)
    except Exception as error:  # the actor's process has ended
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
  ) -> Sharded:
    """A table, whose shards are started if they are not there.

    All tables have as many. The folder is for snapshots; other arguments are
    as of `Sharded` and `shards.Shard`. Closing the last table ends the shards,
    and Ray if this started it.
    """
    self._start()
    folder = folder.absolute() / self.namespace
    if self._calls is None:
      # Started unless they are there.
      options = {'max_restarts': -1, 'num_cpus': 0, 'get_if_exists': True}
      options['namespace'] = self.namespace
      self._calls = _Calls([
        self.start(
          shards.Actor,
          folder / str(i),
          snapshot_secs,
          name=f'shards-{i}',
          **options,
        )
        for i in range(num_shards)
      ])  # fmt: skip
    self._calls.sizes[name] = num_shards, num_rows, num_bytes, num_added
    return Sharded(
      name=name,
      num_shards=num_shards,
      num_rows=num_rows,
      num_bytes=num_bytes,
      make=make,
      call=self._calls,
      client=client or uuid.uuid4().hex,
      close=lambda: self._close(name, folder),
    )

  def _close(self, name, folder):
    """Removes a table, with the shards if it was the last."""
    calls = self._calls
    calls.sizes.pop(name)
    if calls.sizes:
      dropped = [x.drop.remote(name) for x in calls.actors]
      # An actor that does not answer is killed with the last table.
      num = len(dropped)
      self._ray.wait(dropped, num_returns=num, timeout=_DROP_SECS)
      return
    for actor in calls.actors:
      self._ray.kill(actor)
    shutil.rmtree(folder, ignore_errors=True)
    self._calls = None
    self.close()
