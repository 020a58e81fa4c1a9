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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import errors
from jaxemb.storage import atomic
from jaxemb.workers import (
  actors,
  in_place,
  links,
  nodes,
  shards,
  staleness,
)

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
  # By shard, which rows of the request it has: the first of them, or all.
  starts: Mapping[int, int] = {}
  order: np.ndarray | None = None  # in which they are; None = as they were
  num_rows: int = 0  # counted for requests in place


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
  client: int  # unique, not 0
  close: Callable[[], None]  # as of `stores.local.Store`
  is_near: Callable[[], bool]  # whether all its rows are on this machine
  # Of all tables: records of an answer are valid until the next one.
  lock: Any = dataclasses.field(default_factory=threading.RLock)
  _calls: int = dataclasses.field(default=0, init=False)

  def by_shard(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """See `shards.by_shard`."""
    return shards.by_shard(ids, self.num_shards)

  def _slices(self, stops):
    """Slices of what is sorted by shard, by those shards that have any."""
    bounds = [0, *stops.tolist()]
    slices = {
      i: slice(*bounds[i : i + 2])
      for i in range(self.num_shards)
      if bounds[i] < bounds[i + 1]
    }
    # Of no ids, from a shard that returns as many rows.
    return slices or {0: slice(0, 0)}

  def _split(self, method, arrays, stops=None):
    """Returns a call with arrays [n, ...], of which the first has ids.

    They are sorted by shard if it is known where each shard's stop.
    """
    order = None
    if stops is None:
      order, stops = self.by_shard(arrays[0])
      arrays = [x[order] for x in arrays]
    slices = self._slices(stops)
    args = {i: tuple(y[x] for y in arrays) for i, x in slices.items()}
    starts = {i: x.start for i, x in slices.items()}
    return Request(self.name, method, args, starts=starts, order=order)

  def _ask(self, method, args):
    """Results by shard."""
    return self.call([Request(self.name, method, args)])[0]

  def newer_request(
    self,
    ids: np.ndarray,
    clocks: np.ndarray,
    rule: staleness.Rule,
    stops: np.ndarray | None = None,
  ) -> Request:
    """Asks for those of ids [n] with too many updates since clocks [n].

    All of `NEVER`. For `stops` see `by_shard`; None = ids are not sorted.
    """
    request = self._split('newer', [ids, clocks], stops)
    args = {i: (*x, rule) for i, x in request.args.items()}
    return request._replace(args=args)

  def newer_of_shards(
    self, request: Request, results: Mapping[int, shards.Newer]
  ) -> Iterator[shards.Newer]:
    """Yields the results; makes the records of rows that nobody changed."""
    for i, new in results.items():
      records, ids = new.records, request.args[i][0]
      if not new.is_known.all():
        records = np.empty((len(new.clocks), self.num_bytes), np.uint8)
        records[new.is_known] = new.records
        records[~new.is_known] = self.make(ids[new.at][~new.is_known])
      at = request.starts[i] + new.at
      at = at if request.order is None else request.order[at]
      yield new._replace(at=at, records=records)

  def add_request(
    self,
    push: shards.Push,
    rule: staleness.Rule,
    stops: np.ndarray | None = None,
  ) -> Request:
    """See `shards.Shard.add`; for `stops` see `by_shard`."""
    request = self._split('add', list(push), stops)
    self._calls += 1
    args = {
      i: (self.client, self._calls, shards.Push(*x), rule)
      for i, x in request.args.items()
    }
    return request._replace(args=args)

  def weights(
    self, request: Request, results: Mapping[int, np.ndarray | None]
  ) -> np.ndarray | None:
    """Joins the answers to an `add_request` whose push was sorted by shard."""
    weights = [x for x in results.values() if x is not None]
    return np.concatenate(weights) if weights else None

  def in_place_request(
    self, method: str, lines: in_place.Lines, arrays: Sequence[np.ndarray],
    rule: staleness.Rule, stops: np.ndarray,
  ) -> Request:  # fmt: skip
    """Asks shards to read and change memory of this process.

    With `arrays` [n], which are sorted by shard, see `by_shard`; a call raises
    `links.NotNear` if a shard cannot.
    """
    slices = self._slices(stops)
    args = {
      i: (lines, *(y[x] for y in arrays), rule) for i, x in slices.items()
    }
    starts = {i: x.start for i, x in slices.items()}
    num_rows = len(arrays[0])
    return Request(self.name, method, args, starts=starts, num_rows=num_rows)

  def made_of_shards(
    self, request: Request, results: Mapping[int, tuple]
  ) -> Iterator[tuple[in_place.Read, shards.Newer]]:
    """Yields what shards return for `read_in_place`.

    With the records of the rows that nobody has changed, which are to be read.
    """
    for i, (found, at, clock) in results.items():
      _, _, ids, _ = request.args[i]
      num = len(at)
      records = (
        self.make(ids[at]) if num else np.zeros((0, self.num_bytes), np.uint8)
      )
      yield (
        found,
        shards.Newer(
          at=request.starts[i] + at,
          clocks=np.full(num, clock),
          is_known=np.zeros(num, bool),
          records=records,
        ),
      )

  def check(self) -> None:
    """Asks every shard for something."""
    self._ask('num_known', {i: () for i in range(self.num_shards)})

  def read(self, ids: np.ndarray) -> np.ndarray:
    """See `stores.local.Store`."""
    records = np.empty((len(ids), self.num_bytes), np.uint8)
    size = max(1, _ANSWER_BYTES // self.num_bytes)
    for i in range(0, len(ids), size):
      some = ids[i : i + size]
      never = np.full(len(some), staleness.NEVER)
      request = self.newer_request(some, never, staleness.Rule(0))
      with self.lock:
        for new in self.newer_of_shards(request, self.call([request])[0]):
          records[i + new.at] = new.records
    return records

  def write(self, ids: np.ndarray, records: np.ndarray) -> None:
    """See `stores.local.Store`."""
    self.call([self._split('write', [ids, records])])

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
  """A `Call` of actors, which may be restarted meanwhile.

  Rows are read and changed by links to the shards; Ray has the other calls.
  """

  def __init__(self, actors: list[Any], folder: pathlib.Path, lock: Any):
    """The folder has one of each actor; the lock is of `Sharded`."""
    self._lock = lock
    self.actors, self._folder = actors, folder
    # By table, its arguments of `shards.Shard`, but for the number.
    self.sizes: dict[str, tuple] = {}
    # By table and number, starts and lost updates as far as is known.
    self._known: dict[tuple[str, int], tuple[int, int]] = {}
    self._links: dict[int, links.Near | links.Far] = {}  # by number
    self._node = _ray().get_runtime_context().get_node_id()

  def __call__(self, requests: Sequence[Request]) -> list[dict[int, Any]]:
    with self._lock:
      return self._call(requests)

  def _call(self, requests):
    results = [dict.fromkeys(x.args) for x in requests]
    waiting: dict[int, list[tuple[int, tuple]]] = {}  # by number of the shard
    for k, request in enumerate(requests):
      for i, args in request.args.items():
        call = request.table, self._sizes(request.table, i)
        call = *call, request.method, args
        waiting.setdefault(i, []).append((k, call))
    calls = {i: [call for _, call in x] for i, x in waiting.items()}
    linked = links.METHODS | links.IN_PLACE
    by_link = all(x.method in linked for x in requests)
    answers = self._ask(calls, self._by_link if by_link else self._by_ray)
    for i, of_shard in answers.items():
      for (k, call), answer in zip(waiting[i], of_shard, strict=True):
        results[k][i] = answer.value
        self._note(call[0], i, answer)
    return results

  def _sizes(self, table, i):
    return i, *self.sizes[table]

  def drop(self, name: str) -> None:
    """Forgets a table; links to others are made anew."""
    with self._lock:
      self.sizes.pop(name)
      self._links.clear()

  def are_near(self) -> bool:
    """Whether all shards are on this machine."""
    with self._lock:
      return all(
        isinstance(self._link(i), links.Near) for i in range(len(self.actors))
      )

  def _ask(self, calls, send):
    """Returns the answers of shards, by number, once they have all answered.

    `send` returns those that have, by number, and why others have not.
    """
    start = time.monotonic()
    deadline, late, answers = start + WAIT_SECS, collections.Counter(), {}
    while True:
      num_late = late.total()
      waiting = {i: x for i, x in calls.items() if i not in answers}
      answered, why = send(waiting, late)
      answers |= answered
      waiting = waiting.keys() - answered.keys()
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

  def _until(self):
    """Returns when answers are late: a shard may write or read rows before."""
    shard_bytes = sum(
      num_rows * num_bytes // num_shards
      for num_shards, num_rows, num_bytes, *_ in self.sizes.values()
    )
    return time.monotonic() + CALL_SECS + shard_bytes / _FILE_BYTES_PER_SEC

  def _by_ray(self, waiting, late, method='call'):
    """See `_ask`; calls a method of actors."""
    ray, answers, why = _ray(), {}, None
    refs = {
      i: getattr(self.actors[i], method).remote(calls)
      for i, calls in waiting.items()
    }
    until = self._until()
    for i, ref in refs.items():
      try:
        secs = max(0.0, until - time.monotonic())
        answers[i] = ray.get(ref, timeout=secs)
      except ray.exceptions.GetTimeoutError as error:
        # Asked again: a call that was done is not done twice.
        why = error
        late[i] += 1
      except ray.exceptions.RayActorError as error:
        why = error
      except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    return answers, why

  def _by_link(self, waiting, late):
    """See `_ask`."""
    answers, why, sent = {}, None, {}
    for i, calls in waiting.items():
      try:
        link = self._link(i)
        link.send(calls)
        sent[i] = link
      except OSError as error:
        why = error
    until = self._until()
    for i, link in sent.items():
      try:
        answers[i] = link.receive(max(0.001, until - time.monotonic()))
      except TimeoutError as error:
        why = error
        late[i] += 1
      except OSError as error:
        why = error
    return answers, why

  def _link(self, i):
    """Returns the link to an actor, which is asked where its shards are.

    Again once it has failed. Raises an OSError if that cannot be reached.
    """
    link = self._links.get(i)
    if link and link.is_open() and link.tables == self.sizes.keys():
      return link
    sizes = {k: self._sizes(k, i) for k in self.sizes}

    def send(waiting, late):
      return self._by_ray(waiting, late, method='place')

    place = self._ask({i: sizes}, send)[i]
    link = links.near(place, self._node, self._folder / str(i), sizes=sizes)
    self._links[i] = link = link or links.Far(place, CALL_SECS)
    return link

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
    if answer.starts != starts and not more:
      _LOG.warning(
        f'shard {i} of table {table} ended and came back; its rows are still '
        'in memory, and no update is lost'
      )
    elif answer.starts != starts:
      _LOG.warning(
        f'shard {i} of table {table} ended and came back from its last '
        f'snapshot: {more:,} updates of rows since then are lost'
      )
    elif more:
      _LOG.warning(
        f'shard {i} of table {table} lacks rows since it came back, or a '
        f'worker ended while it pushed: {more:,} updates of them are lost'
      )


class Cluster:
  """Ray, for as long as tables are on it."""

  def __init__(self, namespace: str = '', address: str = ''):
    """Joins the cluster at an address, or RAY_ADDRESS, or starts Ray here.

    Clusters of the same namespace share tables; '' = tables of its own.
    """
    self.namespace = namespace or f'jaxemb-{uuid.uuid4().hex[:8]}'
    self._calls: _Calls | None = None
    self._lock = threading.RLock()
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
    self._check_address()
    self._has_started, options = True, {}
    if self._address == 'local':
      # Nothing is sent from a machine that is only used by itself.
      os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')
      # Ray would run the processes that train behind all others of a machine.
      os.environ.setdefault('RAY_worker_niceness', '0')
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

  def _check_address(self):
    """Raises a `UserError` for a cluster that Ray would wait for, for ever."""
    address = self._address
    if address == 'local' and (credentials := nodes.credentials()):
      credentials.check(self._ray.util.get_node_ip_address())
    if address.startswith('ray://'):
      raise errors.UserError(
        f'cannot use Ray at {address}: give the HOST:PORT of its head in '
        'RAY_ADDRESS (port 6379 unless it was started with another), and run '
        'the command on one of its machines'
      )
    port = address.rpartition(':')[2]
    if port.isdigit() and not nodes.answers(address):
      raise errors.UserError(
        f'nobody answers at RAY_ADDRESS={address}: see that Ray was started '
        'there and that its port is open, or remove RAY_ADDRESS to start Ray '
        'on this machine'
      )
    if port.isdigit():
      nodes.check_tls(address)

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

  def _on(self, node):
    """Options of Ray to have something on a machine."""
    kinds = self._ray.util.scheduling_strategies
    strategy = kinds.NodeAffinitySchedulingStrategy(node, soft=False)
    return {'scheduling_strategy': strategy, 'num_cpus': 0}

  def _spread(self, num):
    """Options of Ray to have `num` actors on as many machines as there are.

    Of actors without CPUs Ray itself draws machines; if one is lost, its actors
    move to another. The group ends with this process's job.
    """
    if len(self._nodes()) == 1:
      return [{'num_cpus': 0}] * num
    util, name = self._ray.util, self.namespace
    try:
      group = util.get_placement_group(name)
    except ValueError:
      bundles = [{'memory': 1}] * num
      group = util.placement_group(bundles, strategy='SPREAD', name=name)
    kind = util.scheduling_strategies.PlacementGroupSchedulingStrategy
    return [
      {
        'num_cpus': 0,
        'memory': 1,
        'scheduling_strategy': kind(group, placement_group_bundle_index=i),
      }
      for i in range(num)
    ]

  def _nodes(self):
    """Returns addresses of machines, by their names in Ray."""
    nodes = [x for x in self._ray.nodes() if x['Alive']]
    return {x['NodeID']: x['NodeManagerAddress'] for x in nodes}

  def start_here(self, kind: type, *args: Any, **options: Any) -> Any:
    """The same, on this machine."""
    self._start()
    node = self._ray.get_runtime_context().get_node_id()
    return self.start(kind, *args, **options, **self._on(node))

  def kill(self, actor: Any) -> None:
    """Ends an actor, or has it not begin."""
    self._ray.kill(actor)

  def head_address(self) -> str:
    """Returns the HOST:PORT of the cluster's head."""
    return self._ray.get_runtime_context().gcs_address

  def check_nodes(
    self, check: Callable[[Any, str], None], argument: Any
  ) -> None:
    """Calls a function on every machine, with an argument and its address.

    Raises a `UserError` if it does, or if a machine cannot call it.
    """
    calls = {}
    for node, address in self._nodes().items():
      task = self._ray.remote(check).options(**self._on(node))
      calls[task.remote(argument, address)] = address
    ended = self.ended(list(calls), CALL_SECS)
    for call in calls:
      why: str | None = 'it does not answer'
      if call in ended:
        why = self.why_lost(call)
      if why:
        raise errors.UserError(
          f'the machine {calls[call]} of the Ray cluster cannot run jaxemb: '
          f'{why}; install it there as on this one'
        )

  def num_cpus(self) -> tuple[int, int]:
    """Returns the CPUs of all machines, and how many of them are free."""
    self._start()
    total, free = (
      int(x.get('CPU', 0))
      for x in (self._ray.cluster_resources(), self._ray.available_resources())
    )
    return total, free

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
      _LOG.error(f'an actor has failed:\n{error}')  # with its traceback
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
    client: int = 0,
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
      options: dict[str, Any] = {
        'max_restarts': -1,
        'get_if_exists': True,
        'namespace': self.namespace,
      }
      self._calls = _Calls([
        self.start(
          actors.Actor,
          folder / str(i),
          snapshot_secs,
          name=f'shards-{i}',
          **options,
          **where,
        )
        for i, where in enumerate(self._spread(num_shards))
      ], folder, self._lock)  # fmt: skip
    sizes = num_shards, num_rows, num_bytes, num_added
    # Shards make rows that are added to.
    self._calls.sizes[name] = *sizes, make if num_added else None
    return Sharded(
      name=name,
      num_shards=num_shards,
      num_rows=num_rows,
      num_bytes=num_bytes,
      make=make,
      call=self._calls,
      client=client or 1 + secrets.randbits(62),
      close=lambda: self._close(name, folder),
      is_near=self._calls.are_near,
      lock=self._lock,
    )

  def _close(self, name, folder):
    """Removes a table, with the shards if it was the last."""
    calls = self._calls
    calls.drop(name)
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
