"""Several processes that train as one job: joining, agreeing, ending together.

JAX's coordination service, in process 0, joins the processes and keeps a store
of keys and values. Arrays travel by collectives; what hosts agree on (settings,
when to save) goes through the store, so that no device waits for it.
"""

import collections
import contextlib
import json
import os
import secrets
import signal
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import connection
from typing import Any, NamedTuple, cast

import jax
import numpy as np

# JAX has no public name for these. `global_state` has the store, the address of
# process 0, and the number and index of processes before there is a back end,
# which `jax.process_index` would start; `_jax` has the client that `_relayed`
# wraps.
from jax._src import distributed as jax_distributed

# Nor for what makes a CPU back end whose collectives listen at a given address,
# which the setting `jax_cpu_collectives_implementation` cannot choose.
from jax._src import xla_bridge
from jax.experimental import multihost_utils

from jaxemb import errors
from jaxemb.runtime import addresses, peers, relay, tls

# Exit code: stopped by a signal, after saving if there was work; or because
# another process is gone.
STOPPED = errors.LostError.exit_code
WAIT_SECS = 60  # for other processes to join or to end
GO_ON, SAVE, STOP = 'go on', 'save', 'stop'  # see `decide`

# Without heartbeats JAX aborts a job that was only paused: by Ctrl-Z, or with
# its machine. A `Monitor` sees by itself who is gone.
_HEARTBEAT_SECS = 7 * 86_400
_SHUTDOWN_SECS = 600  # from the first to end to the last, once all are done
_GRACE_SECS = 5
_TLS_VERSION = '0.11.2'  # the first JAX that has it
_DEMANDS_TLS = 'JAX_DISTRIBUTED_VERIFY_SECURE_CREDENTIALS'
_MESSAGE_BYTES = 1 << 20  # of `gather`: one length is one program
# A process that is done waits until process 0 is, too.
_DONE, _BYE, _FAILED, _STOP = b'done', b'bye', b'failed', b'stop'
_calls: collections.Counter[str] = collections.Counter()  # of `everyone`
_has_left = threading.Event()  # set when this process needs the others no more
_LOST = (
  '{} of this job is gone; start all processes again to resume from the last '
  'checkpoint'
)


class Job(NamedTuple):
  """The job to join, and which of its processes this one is."""

  coordinator: str = ''  # host:port of process 0; '' = alone, or detected
  num_processes: int = 1
  process_id: int = 0
  detects: bool = False  # ask SLURM, MPI, Kubernetes or the TPU pod


ALONE = Job()


def join(job: Job) -> None:
  """Joins the other processes, before JAX is used, or raises a `UserError`."""
  state = jax_distributed.global_state
  if state.coordinator_address and not jax.distributed.is_initialized():
    raise errors.UserError(
      'this process was one of a job that has ended, whose devices JAX still '
      'has; start a new process for another run'
    )
  if not job.coordinator and not job.detects:
    return
  credentials = _credentials()
  options = {}
  if job.coordinator:
    options = _options(job, credentials)
  elif credentials:
    credentials.check()
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  _run_collectives_in_order()
  # It handles SIGTERM while steps run: not Ctrl-C, and not before training.
  jax.config.update('jax_enable_preemption_service', False)
  name = job.coordinator or 'the detected job'
  hint = (
    'start all, with the same --coordinator and --num_processes and different '
    '--process_id'
  )
  late = f'not all processes of {name} have joined in {WAIT_SECS} s; {hint}'
  try:
    with _at_most(WAIT_SECS, late), _relayed(credentials):
      jax.distributed.initialize(
        **options,
        initialization_timeout=WAIT_SECS + 60,  # after which JAX aborts
        heartbeat_timeout_seconds=_HEARTBEAT_SECS,
        shutdown_timeout_seconds=_SHUTDOWN_SECS,
      )
  except (RuntimeError, ValueError) as error:
    raise errors.UserError(
      f'cannot join the processes of {name}: {errors.one_line(error)}; {hint}'
    ) from error
  first = cast(str, state.coordinator_address)  # known once all have joined
  if address := addresses.reachable(*addresses.split(first)):
    from jax.extend import backend  # here, as it takes long to import

    make = xla_bridge._jax.make_gloo_tcp_collectives
    backend.register_backend_factory(
      'cpu',
      lambda: xla_bridge.make_cpu_client(make(state.client, address)),
      priority=0,
      fail_quietly=False,
    )


def _run_collectives_in_order() -> None:
  """Has XLA for CPUs run a program's collectives one after the other.

  By default it runs those that are independent at once, over the same
  connections of Gloo, which then mixes up what processes send: sums are wrong.
  """
  flags, flag = os.environ.get('XLA_FLAGS', ''), 'xla_cpu_enable_concurrency'
  if flag not in flags:  # a user may know better
    flags += f' --{flag}_optimized_scheduler=false'
    os.environ['XLA_FLAGS'] = flags.strip()


@contextlib.contextmanager
def _relayed(credentials: tls.Credentials | None) -> Iterator[None]:
  """Has JAX's client reach process 0 by a relay, which outlives it.

  Not where JAX checks that the certificate is of the host that it connects to.
  """
  if credentials and not credentials.peer_uri_prefix:
    yield
    return
  jaxlib = jax_distributed._jax
  make = jaxlib.get_distributed_runtime_client

  def make_relayed(address: str, *args: Any, **options: Any) -> Any:
    near = addresses.split(address)
    if not is_first():
      near = relay.start(near, _end_without_first)
    with _without_proxy(near[0]):
      return make(addresses.join(*near), *args, **options)

  jaxlib.get_distributed_runtime_client = make_relayed
  try:
    yield
  finally:
    jaxlib.get_distributed_runtime_client = make


@contextlib.contextmanager
def _without_proxy(host: str) -> Iterator[None]:
  """Has gRPC connect to a host itself, whatever `http_proxy` is."""
  old = os.environ.get('no_grpc_proxy')
  others = os.environ.get('no_proxy', '') if old is None else old
  os.environ['no_grpc_proxy'] = f'{others},{host}' if others else host
  try:
    yield
  finally:
    del os.environ['no_grpc_proxy']
    if old is not None:
      os.environ['no_grpc_proxy'] = old


def _end_without_first() -> None:
  """Ends this process, unless it has left or its `Monitor` ends it."""
  if not _has_left.wait(2 * _GRACE_SECS):
    _say(_LOST.format('process 0'))
    os._exit(STOPPED)


def _options(job: Job, credentials: tls.Credentials | None) -> dict[str, Any]:
  """Returns arguments of `jax.distributed.initialize`, once process 0 answers.

  Raises a `UserError` for a job that nobody can join, or that refuses this one.
  """
  host, port = addresses.split(job.coordinator)
  if not 0 <= job.process_id < job.num_processes:
    raise errors.UserError(
      f'--process_id={job.process_id} must be less than --num_processes='
      f'{job.num_processes}, and 0 or more'
    )
  if credentials:  # JAX would try again and again
    credentials.check('' if job.process_id else host)
  if job.process_id:
    _wait_for(job.coordinator, credentials)
  return {
    'coordinator_address': job.coordinator,
    'num_processes': job.num_processes,
    'process_id': job.process_id,
    # By default JAX listens on all addresses of the machine.
    'coordinator_bind_address': addresses.join(addresses.bind_host(host), port),
  }


def _credentials() -> tls.Credentials | None:
  """Returns those that JAX is told to use; None = no TLS."""
  names = [f'JAX_MTLS_{x}_FILE' for x in ('CERT', 'KEY', 'CA')]
  prefix, demands = 'JAX_MTLS_PEER_URI_PREFIX', _DEMANDS_TLS
  settings = {x: _jax_setting(x) for x in (*names, prefix, demands)}
  found = tls.credentials(
    [settings[x] for x in names], names, settings[prefix] or ''
  )
  if settings[demands] and not found:
    raise errors.UserError(
      f'{demands} is set, and {", ".join(names)} are not: set these, or see '
      'docs/security.md for how to make the files'
    )
  return found


def _jax_setting(name: str) -> Any:
  """Returns a setting of JAX's for TLS, by its variable of the environment."""
  if hasattr(jax.config, name.lower()):
    return getattr(jax.config, name.lower())
  if os.environ.get(name):
    raise errors.UserError(
      f'{name} is set, and JAX {jax.__version__} has no TLS: install jax>='
      f'{_TLS_VERSION} (Python 3.12 or later), or unset it'
    )
  return None


def _wait_for(coordinator: str, credentials: tls.Credentials | None) -> None:
  """Waits until process 0 answers: until then JAX would abort.

  Raises a `UserError` if it does not, or if one of both demands TLS.
  """
  host, port = addresses.split(coordinator)
  deadline = time.monotonic() + WAIT_SECS
  while True:
    try:
      return tls.greet((host, port), credentials, secs=5)
    except OSError as error:
      has_ended = isinstance(error, tls.ENDED)
      if isinstance(error, ssl.SSLError) and not has_ended:
        raise errors.UserError(
          f'the coordinator {coordinator} and this process do not accept each '
          f'other ({tls.reason(error)}): give all processes certificates of '
          'one CA in JAX_MTLS_CERT_FILE, _KEY_FILE and _CA_FILE, see '
          'docs/security.md'
        ) from error
      if time.monotonic() > deadline:
        likely = ', likely as it or this process has no TLS' * has_ended
        raise errors.UserError(
          f'the coordinator {coordinator} does not answer ({tls.reason(error)}'
          f'{likely}); start process 0 there, or correct --coordinator='
          'HOST:PORT'
        ) from error
      time.sleep(0.5)


def process_id() -> int:
  """Returns the index of this process; starts no JAX backend."""
  return jax_distributed.global_state.process_id


def num_processes() -> int:
  """Returns how many processes there are; starts no JAX backend."""
  return jax_distributed.global_state.num_processes or 1


def is_first() -> bool:
  """Whether this process is the one that reports."""
  return not process_id()


def leave(code: int) -> None:
  """Ends this process without waiting for the others to end."""
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


def gather(data: bytes) -> list[bytes]:
  """Returns the data of every process, of any length, by process."""
  if num_processes() == 1:
    return [data]
  sizes = multihost_utils.process_allgather(np.uint32(len(data)))
  num = max(1, -(-int(sizes.max()) // _MESSAGE_BYTES))
  padded = np.frombuffer(data.ljust(num * _MESSAGE_BYTES, b'\0'), np.uint8)
  messages = map(multihost_utils.process_allgather, np.split(padded, num))
  rows = np.concatenate(list(messages), axis=1)
  return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]


def _store(method: str, key: str, *args: Any) -> Any:
  """Calls JAX's store, which fails if process 0 is lost; None = timed out."""
  client = jax_distributed.global_state.client
  try:
    return getattr(client, method)(f'jaxemb/{key}', *args)
  except RuntimeError as error:
    if 'DEADLINE_EXCEEDED' in str(error):
      return None
    time.sleep(_GRACE_SECS)  # the monitor ends this process if it knows who
    what = f'{_LOST.format("another process")} ({errors.one_line(error)})'
    raise errors.LostError(what) from error


def _set(key: str, value: str, overwrites: bool = False) -> None:
  _store('key_value_set', key, value, overwrites)


def _get(key: str) -> str:
  """Waits, however long, until a process has set the key."""
  while (value := _store('blocking_key_value_get', key, 10_000)) is None:
    pass
  return value


def from_first(key: str, mine: str = '') -> str:
  """Returns what process 0 sets under a new key; the others wait for it."""
  if num_processes() > 1 and is_first():
    _set(key, mine)
  return mine if is_first() else _get(key)


def everyone(key: str, mine: str) -> list[str]:
  """Returns what each process sets under a key; starts no JAX backend.

  All processes call it as often with the key.
  """
  if num_processes() == 1:
    return [mine]
  _calls[key] += 1
  new = f'{key}/call-{_calls[key]}'  # the store takes a key once
  _set(f'{new}/{process_id()}', mine)
  return [_get(f'{new}/{i}') for i in range(num_processes())]


def latest(
  key: str, mine: dict[str, Any], is_last: bool = False
) -> list[dict[str, Any]]:
  """Returns the last values of each process, or {}; waits only if `is_last`."""
  if num_processes() == 1:
    return [mine]
  if is_last:
    return list(map(json.loads, everyone(f'{key}-last', json.dumps(mine))))
  _set(f'{key}/{process_id()}', json.dumps(mine), True)
  values = dict(_store('key_value_dir_get', f'{key}/'))
  keys = [f'jaxemb/{key}/{i}' for i in range(num_processes())]
  return [json.loads(values.get(key, '{}')) for key in keys]


def agree(name: str, mine: dict[str, Any]) -> None:
  """Checks that all processes have the same JSON-ready values.

  `name` says what each value is, and is used once. Raises a `UserError` in
  every process, with the first difference.
  """
  for other, text in enumerate(everyone(name, json.dumps(mine))):
    theirs = json.loads(text)
    for key in sorted(mine.keys() | theirs.keys()):
      if mine.get(key) != theirs.get(key):
        raise errors.UserError(
          f'process {other} has another {name}: {key} is {theirs.get(key)!r} '
          f'there and {mine.get(key)!r} in process {process_id()}; start all '
          'processes alike'
        )


def decide(dispatch: int, stops: bool, saves: bool) -> str:
  """Returns what process 0 wants after a dispatch: `GO_ON`, `SAVE` or `STOP`.

  A process that is asked to stop tells process 0 through its `Monitor`.
  """
  mine = STOP if stops else SAVE if saves else GO_ON
  decision = from_first(f'decisions/{dispatch}', mine)
  if num_processes() > 1 and is_first() and dispatch >= 100:
    # Two dispatches at most are under way.
    _store('key_value_delete', f'decisions/{dispatch - 100}')
  return decision


class Monitor:
  """Ends this process when another one is lost; passes on requests to stop.

  Process 0 has a connection to each of the others, which breaks when a process
  or its machine dies. Process 0 exits last: JAX's coordinator is in it.
  """

  def __init__(self):
    """Connects; raises a `UserError` if a process cannot be reached."""
    self.stop = threading.Event()  # set when any process is asked to stop
    self.has_begun = threading.Event()  # to be set when there is work to save
    self._is_closing = threading.Event()
    self._peers: dict[peers.Peer, int] = {}  # to their numbers
    self._are_done = threading.Event()  # all others
    self._has_passed_on = False  # the request to stop
    self._passes_on = threading.Lock()
    if num_processes() == 1:
      return
    address = jax_distributed.global_state.coordinator_address
    host, _ = addresses.split(address)
    try:
      if is_first():
        self._accept(addresses.bind_host(host))
      else:
        port, secret = _get('monitor').split()
        peer = peers.connect(
          (host, int(port)), bytes.fromhex(secret), _credentials()
        )
        peer.send_bytes(b'%d' % process_id())
        self._peers[peer] = 0
      for peer in self._peers:
        peer.keep()
    except (OSError, EOFError) as error:
      raise errors.UserError(
        f'the connections between the processes of {address} cannot be made '
        f'({error}); let them reach each other on any port, and start all of '
        'them again'
      ) from error
    self._listener = threading.Thread(target=self._listen, daemon=True)
    self._listener.start()
    threading.Thread(target=self._await_stop, daemon=True).start()

  def _accept(self, host: str) -> None:
    secret = secrets.token_bytes(16)  # known to this job alone
    credentials = _credentials()
    # JAX does not say that one has ended since it joined.
    with (
      _at_most(WAIT_SECS, _LOST.format('another process')),
      peers.listen(host) as listener,
    ):
      _set('monitor', f'{listener.getsockname()[1]} {secret.hex()}')
      while len(self._peers) < num_processes() - 1:
        with contextlib.suppress(*peers.STRANGERS):
          peer = peers.accept(listener, secret, credentials)
          self._peers[peer] = int(peer.recv_bytes())

  def _listen(self) -> None:
    done, running = {}, set(self._peers)
    while running:
      for peer in cast(list[peers.Peer], connection.wait(cast(Any, running))):
        message = _received(peer)
        if not message:
          running.remove(peer)
        if message == _STOP:
          self.request_stop()
        elif message == _BYE:
          done[peer] = message
        elif peer not in done or message == _FAILED:
          done[peer] = message
          if message != _DONE:
            self._lost(peer, running)
        elif not message and done[peer] == _DONE:
          self._lost(peer, running)  # unless this one is done by now
        if len(done) == len(self._peers):
          self._are_done.set()

  def _lost(self, peer: peers.Peer, running: Iterable[peers.Peer]) -> None:
    """Ends this process, unless it is about to end with a reason of its own."""
    # The other may have failed for a reason that this one is about to report,
    # or both are leaving JAX's service.
    if self._is_closing.wait(_GRACE_SECS if self._are_done.is_set() else 1):
      return
    _say(_LOST.format(f'process {self._peers[peer]}'))
    if is_first():
      self._send(_FAILED)
      _wait_for_ends(running)
    # The main thread may wait for the lost one for ever.
    os._exit(STOPPED)

  def _send(self, message: bytes) -> None:
    for peer in self._peers:
      with contextlib.suppress(OSError):  # its listener notices
        peer.send_bytes(message)

  def request_stop(self) -> None:
    """Makes all processes stop, after saving if there is work.

    It sends nothing itself: as the handler of a signal it may interrupt what
    holds the lock of a connection.
    """
    self.stop.set()

  def _pass_on(self) -> None:
    """Tells the others, once, to stop; process 0 tells all."""
    with self._passes_on:
      if not self._has_passed_on:
        self._has_passed_on = True
        self._send(_STOP)

  def _await_stop(self) -> None:
    """Passes a request to stop on.

    Ends a process that waits for a stopped one before training begins.
    """
    self.stop.wait()
    self._pass_on()
    if not self._is_closing.wait(_GRACE_SECS) and not self.has_begun.is_set():
      self.close(STOPPED)
      leave(STOPPED)

  def wait_for_loss(self) -> None:
    """Gives the listener time to notice and report a lost process."""
    if self._peers:
      time.sleep(_GRACE_SECS)

  def close(self, code: int | None) -> None:
    """Ends monitoring with the exit code of the run; None ends all others.

    With 0, all have left JAX's service when this returns.
    """
    if code == STOPPED:
      self.request_stop()
      self._pass_on()
    if not self._peers:
      return self._is_closing.set()
    if code is None:
      self._is_closing.set()
    if is_first() and code == 0:
      self._are_done.wait()
    self._send(_FAILED if code is None else _BYE if code else _DONE)
    if is_first() and code != 0:
      # Process 0 exits last.
      self._listener.join(_GRACE_SECS if code is None else WAIT_SECS / 2)
    elif code is not None:
      # A process that ends with messages unread, such as the answer to a stop,
      # resets the connection: what it has just sent may be lost with it.
      self._are_done.wait(_GRACE_SECS if code else None)
    if code == 0:  # a loss ends this process until all have left
      jax.distributed.shutdown()
      self._send(_BYE)
    self._is_closing.set()
    _has_left.set()


def _wait_for_ends(peers: Iterable[peers.Peer]) -> None:
  """Returns once all peers have ended, or do not within `_GRACE_SECS`."""
  deadline, running = time.monotonic() + _GRACE_SECS, set(peers)
  while running and (secs := deadline - time.monotonic()) > 0:
    ready = cast(list[Any], connection.wait(cast(Any, running), secs))
    running -= {peer for peer in ready if not _received(peer)}


def _say(line: str) -> None:
  os.write(2, f'jaxemb: {line}\n'.encode())


@contextlib.contextmanager
def _at_most(secs: float, line: str) -> Iterator[None]:
  """Ends this process, which may be started again, after so long in here."""

  def end():
    _say(line)
    os._exit(STOPPED)

  timer = threading.Timer(secs, end)
  timer.daemon = True
  timer.start()
  try:
    yield
  finally:
    timer.cancel()


def _received(peer: peers.Peer) -> bytes:
  """The next message; empty if the other has ended."""
  with contextlib.suppress(EOFError, OSError):
    return peer.recv_bytes()
  return b''


@contextlib.contextmanager
def stopping_on_signals(
  request_stop: Callable[[], None],
  names: Iterable[str] = ('SIGTERM', 'SIGHUP', 'SIGINT'),
) -> Iterator[None]:
  """Has signals request a stop; a second SIGINT interrupts.

  Schedulers repeat SIGTERM, and a closed terminal sends several signals: these
  never interrupt saving. One request is enough; a second would wait for ever
  for a lock that the first, which it interrupts, has.
  """
  has_requested = False

  def handle(number: int, frame: Any) -> None:
    nonlocal has_requested
    if number == signal.SIGINT:
      signal.signal(number, old[number])
    if not has_requested:
      has_requested = True
      request_stop()

  is_main = threading.current_thread() is threading.main_thread()
  names = names if is_main else ()  # only it may
  numbers = [getattr(signal, x) for x in names if hasattr(signal, x)]
  old = {number: signal.getsignal(number) for number in numbers}
  # As nohup asks.
  old = {k: x for k, x in old.items() if x is not signal.SIG_IGN}
  for number in old:
    signal.signal(number, handle)
  try:
    yield
  finally:
    for number, handler in old.items():
      signal.signal(number, handler)
