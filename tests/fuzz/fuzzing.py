"""Fuzzing of readers: every input ends in a result or in one line.

A target reads a file as the package's users do. Its inputs are mutated, guided
by the branches that they reach where Atheris is installed, elsewhere by their
results, and read in a child process. Each input ends in a result, in a
`UserError` of one line, or in a fault, which is kept:

traceback  any other exception
memory     the resident memory's peak grows by more than ten times the input and
           64 MB, when the input is read again as well. The peak is the kernel's
           (VmHWM, which writing 5 to /proc/self/clear_refs resets), so that it
           has what libraries allocate and free in between; Linux only
memory     an allocation of more than 4 GB beyond what the process has mapped
           fails (RLIMIT_AS), in a `MemoryError`
crash      the child ended by a signal or an exit
hang       an input takes more than ten seconds, without those in which it, or
           a process that it starts, waits for a core that others have (Linux)
"""

import contextlib
import faulthandler
import functools
import gc
import hashlib
import inspect
import json
import mmap
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, NoReturn

from jaxemb import errors
from tests.fuzz import mutation

HANG_SECS = 10.0
_MEMORY_FACTOR, _MEMORY_FLOOR = 10, 64 << 20
_MAPPED_BYTES = 4 << 30
_START_SECS = 600.0  # of imports and compilation while seeds are read
_MAX_ENDED = 5  # crashes and hangs of a target, after which it is given up
_LOG_BYTES = 4000
_POLL_SECS = 0.1
FOUND = pathlib.Path(__file__).parent / 'found'


class Target(NamedTuple):
  """A reader, and inputs to begin with."""

  name: str
  suffix: str  # of the input's file, such as '.bin'
  seeds: Callable[[], Sequence[bytes]]
  # Reads a file and uses what it has read; raises a `UserError` if it refuses.
  # Other files that it writes into the file's folder or into JAXEMB_CACHE,
  # which is in there, are removed after each input.
  read: Callable[[pathlib.Path], object]


class Outcome(NamedTuple):
  """What became of an input."""

  kind: str  # result, refused, traceback, memory, crash or hang
  text: str = ''  # the line, or what is wrong
  place: str = ''  # of a traceback: the error, and the last line of jaxemb

  @property
  def is_fault(self) -> bool:
    """Whether the input is to be kept."""
    return self.kind not in ('result', 'refused')


class Fault(NamedTuple):
  """An input that ended in a fault."""

  outcome: Outcome
  data: bytes


class Result(NamedTuple):
  """What fuzzing a target found."""

  name: str
  secs: float
  executions: int
  num_results: int
  num_refused: int
  faults: list[Fault]

  def __str__(self) -> str:
    return (
      f'{self.name}: {self.executions:,} inputs in {self.secs:,.0f} s, '
      f'{self.num_results:,} results, {self.num_refused:,} refused, '
      f'{len(self.faults)} faults'
    )


def stored(target: Target, folder: pathlib.Path = FOUND) -> list[bytes]:
  """Returns the inputs of a target that once ended in a fault."""
  paths = sorted((folder / target.name).glob('*'))
  return [path.read_bytes() for path in paths]


def store(
  target: Target, faults: Iterable[Fault], folder: pathlib.Path = FOUND
) -> list[pathlib.Path]:
  """Writes inputs that ended in faults; returns their paths."""
  paths = []
  for outcome, data in faults:
    digest = hashlib.sha256(data).hexdigest()[:12]
    path = folder / target.name / f'{outcome.kind}-{digest}{target.suffix}'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    paths.append(path)
  return paths


# One input in this process.


class Reader:
  """Reads inputs of a target, one after the other, in a folder."""

  def __init__(self, target: Target, folder: pathlib.Path):
    self.target = target
    self.path = folder / f'input{target.suffix}'
    self._folder = folder
    folder.mkdir(parents=True, exist_ok=True)

  def read(self, data: bytes) -> Outcome:
    """Reads an input, again if it took too much memory; in files of its own."""
    outcome = self._read(data)
    # What is imported or compiled late counts once.
    return self._read(data) if outcome.kind == 'memory' else outcome

  def _read(self, data):
    self.path.write_bytes(data)
    before = _reset_peak()
    try:
      with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        self.target.read(self.path)
      outcome = Outcome('result')
    except errors.UserError as error:
      outcome = _of_line(error)
    except KeyboardInterrupt:
      raise
    except BaseException as error:  # SystemExit and pyo3's panics as well
      outcome = _of_traceback(error)
    growth = _peak() - before
    self._clear()
    limit = max(_MEMORY_FACTOR * len(data), _MEMORY_FLOOR)
    if growth > limit and not outcome.is_fault:
      line = f'{growth >> 20:,} MB for {len(data):,} bytes, then {outcome}'
      return Outcome('memory', line, place='peak')
    return outcome

  def _clear(self):
    for path in self._folder.iterdir():
      if path == self.path:
        continue
      if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
      else:
        path.unlink()


def _of_line(error: errors.UserError) -> Outcome:
  text = str(error)
  if not text.strip() or len(text.splitlines()) > 1:
    return Outcome('traceback', f'not one line: {text!r}', place='lines')
  return Outcome('refused', text)


def _of_traceback(error: BaseException) -> Outcome:
  frames = traceback.extract_tb(error.__traceback__)
  # Where the package called what failed, or is itself wrong.
  own = [x for x in frames if f'{os.sep}jaxemb{os.sep}' in x.filename]
  last = (own or frames or [None])[-1]
  place = (
    f'{type(error).__name__} {last.filename}:{last.lineno}' if last else ''
  )
  kind = 'memory' if isinstance(error, MemoryError) else 'traceback'
  text = ''.join(traceback.format_exception(error))
  return Outcome(kind, text, place=place)


def _status(field: str) -> int:
  """Returns a number of bytes of this process's memory, 0 = unknown."""
  with contextlib.suppress(OSError):
    text = pathlib.Path('/proc/self/status').read_text()
    if match := re.search(rf'^{field}:\s*(\d+) kB', text, re.MULTILINE):
      return int(match[1]) << 10
  return 0


def _reset_peak() -> int:
  """Starts to measure the peak of resident memory; returns what it is now."""
  with contextlib.suppress(OSError):
    pathlib.Path('/proc/self/clear_refs').write_text('5')
  return _peak()


def _peak() -> int:
  return _status('VmHWM')


# Many inputs in a child process.


class _Progress:
  """What a child says of itself while it may be hanging."""

  _LAYOUT = struct.Struct('<dqqq')

  def __init__(self):
    self._shared = mmap.mmap(-1, self._LAYOUT.size)

  def get(self) -> tuple[float, int, int, int]:
    """Returns when an input has to be read, 0 = none is, and the counts.

    These are of inputs, of those with a result and of those refused.
    """
    return self._LAYOUT.unpack(self._shared[:])

  def begin(self, secs: float) -> None:
    """Notes that an input is read, which should not take longer."""
    counts = self.get()[1:]
    self._shared[:] = self._LAYOUT.pack(time.monotonic() + secs, *counts)

  def end(self, outcome: Outcome | None = None) -> None:
    """Notes that it was read, and counts it if it has an outcome."""
    _, executions, num_results, num_refused = self.get()
    kind = outcome.kind if outcome else ''
    self._shared[:] = self._LAYOUT.pack(
      0.0,
      executions + bool(kind),
      num_results + (kind == 'result'),
      num_refused + (kind == 'refused'),
    )


class _Child:
  """What happens in the child process."""

  def __init__(self, target, folder, progress, hang_secs, known):
    self.hang_secs = hang_secs
    self.reader = Reader(target, folder / 'input')
    self.progress = progress
    self.known = set(known)  # places of faults
    self.faults = folder / 'faults'
    self.faults.mkdir(exist_ok=True)

  def read(self, data: bytes) -> Outcome:
    """Reads an input, and keeps it if it is the first with its fault."""
    self.progress.begin(self.hang_secs)
    outcome = self.reader.read(data)
    self.progress.end(outcome)
    if outcome.is_fault and outcome.place not in self.known:
      self.known.add(outcome.place)
      path = self.faults / hashlib.sha256(data).hexdigest()
      path.with_suffix('.json').write_text(json.dumps(outcome))
      path.write_bytes(data)
    return outcome

  def warm_up(self, inputs: Sequence[bytes]) -> None:
    """Has everything imported and compiled that seeds need."""
    os.environ['JAXEMB_CACHE'] = str(self.reader.path.parent / 'cache')
    self.progress.begin(_START_SECS)
    for data in inputs:
      self.reader.read(data)
    _limit_memory()
    self.progress.end()

  def fuzz(self, inputs: Sequence[bytes], secs: float, seed: int) -> None:
    """Reads inputs, then mutated ones; new results are mutated further."""
    random_state, corpus = random.Random(seed), [*inputs]
    seen, end = set(), time.monotonic() + secs
    for data in corpus:
      seen.add(_shape(self.read(data)))
    while time.monotonic() < end:
      base = random_state.choice(corpus) if corpus else b''
      data = mutation.mutated(base, random_state, corpus)
      shape = _shape(self.read(data))
      if shape not in seen:
        seen.add(shape)
        corpus.append(data)

  def fuzz_guided(
    self, atheris, inputs: Sequence[bytes], secs: float, seed: int
  ) -> None:
    """Does so with libFuzzer, which mutates further what reaches new code."""
    corpus = self.faults.parent / 'corpus'
    corpus.mkdir(exist_ok=True)
    for data in inputs:
      (corpus / hashlib.sha256(data).hexdigest()).write_bytes(data)

    def mutator(data, max_size, number):
      random_state = random.Random(number)
      if random_state.random() < 0.5:
        return atheris.Mutate(data, max_size)
      return mutation.mutated(data, random_state, inputs, max_bytes=max_size)

    # The parent keeps what ends the child.
    handlers = 'segv', 'bus', 'abrt', 'ill', 'fpe', 'int', 'term', 'xfsz'
    flags = [
      f'-max_total_time={max(1, int(secs))}',
      f'-max_len={mutation.MAX_BYTES}',
      f'-seed={seed}',
      '-len_control=0',
      '-rss_limit_mb=0',
      f'-timeout={int(secs + _START_SECS)}',
      f'-artifact_prefix={corpus.parent}{os.sep}',
      *(f'-handle_{x}=0' for x in handlers),
    ]
    atheris.Setup(
      ['fuzz', *flags, str(corpus)], self.read, custom_mutator=mutator
    )
    atheris.Fuzz()  # which ends the process


def _shape(outcome: Outcome) -> str:
  """Returns an outcome without numbers and names, which differ each time."""
  text = re.sub(r"'[^']*'|\"[^\"]*\"|[\d.,]+|\S*input\S*", '#', outcome.text)
  return f'{outcome.kind} {outcome.place or text[:200]}'


def _limit_memory() -> None:
  if size := _status('VmSize'):
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (size + _MAPPED_BYTES, hard))


def atheris() -> types.ModuleType | None:
  """Returns Atheris, or None where it is not installed."""
  try:
    import atheris
  except ImportError:
    return None
  return atheris


def instrument(module: types.ModuleType) -> int:
  """Lets Atheris see branches of loaded functions of jaxemb; returns how many.

  What numba compiles, or makes to be compiled, has to stay as it is.
  """
  functions = {}
  for name, loaded in [*sys.modules.items()]:
    if not name.startswith('jaxemb.') or name.startswith('jaxemb.kernels'):
      continue
    owners = [loaded, *(x for x in vars(loaded).values() if inspect.isclass(x))]
    for owner in owners:
      for value in vars(owner).values():
        function = getattr(value, '__func__', value)  # of static methods
        function = getattr(function, 'fget', function)  # of properties
        if inspect.isfunction(function) and function.__module__ == name:
          functions[id(function)] = function
  chosen = [
    x for x in functions.values() if not {'numba', 'njit'} & _names(x.__code__)
  ]
  for function in chosen:
    module.instrument_func(function)
  return len(chosen)


def _names(code: types.CodeType) -> set[str]:
  nested = (x for x in code.co_consts if isinstance(x, types.CodeType))
  return set(code.co_names).union(*map(_names, nested))


# The parent.


def run(
  target: Target,
  secs: float,
  seed: int = 1,
  is_guided: bool = False,
  hang_secs: float = HANG_SECS,
  found: pathlib.Path = FOUND,
) -> Result:
  """Fuzzes a target in forks of this process, which must have no threads.

  `is_guided` is for a process whose functions Atheris has instrumented. A child
  that crashes or hangs is replaced by another.
  """
  start, seeds = time.monotonic(), _seeds_of(target)
  inputs = [*seeds, *stored(target, found)]
  progress, faults, num_ended = _Progress(), [], 0
  with tempfile.TemporaryDirectory(prefix='fuzz-', dir=_memory()) as name:
    folder = pathlib.Path(name)
    while num_ended < _MAX_ENDED:
      left = secs - (time.monotonic() - start)
      if left <= 0 and num_ended:
        break
      body = functools.partial(
        _fuzz,
        _Child(
          target,
          folder,
          progress,
          hang_secs=hang_secs,
          known=[x.outcome.place for x in faults],
        ),
        seeds,
        inputs,
        secs=left,
        seed=seed + num_ended,
        is_guided=is_guided,
      )
      ended = _watch(
        body, folder / 'log', progress, hang_secs=hang_secs, secs=max(left, 0)
      )
      faults += _collected(folder / 'faults')
      if ended is None:
        break
      path = folder / 'input' / f'input{target.suffix}'
      data = path.read_bytes() if path.exists() else b''
      if any(data == x.data for x in faults):
        break  # with which every child begins
      faults.append(Fault(ended, data))
      num_ended += 1
      inputs = [x for x in inputs if x != data]
  _, executions, num_results, num_refused = progress.get()
  return Result(
    target.name,
    secs=time.monotonic() - start,
    executions=executions,
    num_results=num_results,
    num_refused=num_refused,
    faults=faults,
  )


def _seeds_of(target: Target) -> list[bytes]:
  """Returns what seeds a target has; libraries may make threads for them."""
  with tempfile.TemporaryDirectory(dir=_memory()) as name:
    folder = pathlib.Path(name)

    def write():
      for number, data in enumerate(target.seeds()):
        (folder / f'{number:04}').write_bytes(data)

    if ended := _watch(write, folder / 'log', _Progress(), hang_secs=0, secs=0):
      raise RuntimeError(f'{target.name} has no seeds: {ended.text}')
    (folder / 'log').unlink()
    return [x.read_bytes() for x in sorted(folder.iterdir())]


def _fuzz(child, seeds, inputs, *, secs, seed, is_guided):
  """Is what a child does."""
  child.warm_up(seeds)
  if is_guided:
    child.fuzz_guided(atheris(), inputs, secs=secs, seed=seed)
  else:
    child.fuzz(inputs, secs, seed=seed)


def _memory() -> str | None:
  """Returns a folder in memory, if there is one: files are written often."""
  folder = '/dev/shm'
  return folder if os.access(folder, os.W_OK) else None


def _watch(body, log, progress, hang_secs, secs) -> Outcome | None:
  """Runs a function in a fork; returns how it ended, None = as it should."""
  progress.end()
  if not (process := os.fork()):
    _enter(body, log)
  end = time.monotonic() + _START_SECS + secs + hang_secs
  status, is_hanging, deadline, queued_secs = 0, False, end, 0.0
  while not os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
    time.sleep(_POLL_SECS)
    if deadline != (deadline := progress.get()[0] or end):
      queued_secs = _queued_secs(process)
    late_secs = time.monotonic() - deadline
    if is_hanging := late_secs > max(0, _queued_secs(process) - queued_secs):
      os.kill(process, signal.SIGUSR1)
      time.sleep(_POLL_SECS)
      os.kill(process, signal.SIGKILL)
      break
  _, status = os.waitpid(process, 0)
  code = os.waitstatus_to_exitcode(status)
  if is_hanging:
    return Outcome('hang', _tail(log))
  return Outcome('crash', f'exit code {code}\n{_tail(log)}') if code else None


def _queued_secs(process: int) -> float:
  """Returns how long threads that are ready to run have had no core.

  Those are of a process and of what it has started, as far as they live.
  """
  secs = 0.0
  with contextlib.suppress(OSError):
    for thread in pathlib.Path(f'/proc/{process}/task').iterdir():
      with contextlib.suppress(OSError):  # it has ended
        secs += int((thread / 'schedstat').read_text().split()[1]) / 1e9
        started = (thread / 'children').read_text().split()
        secs += sum(map(_queued_secs, map(int, started)))
  return secs


def _enter(body: Callable[[], None], log: pathlib.Path) -> NoReturn:
  """Calls a function in a new process, which ends with it."""
  code = 1
  try:
    with open(log, 'wb') as file:
      for number in (1, 2):
        os.dup2(file.fileno(), number)
    faulthandler.enable(2)
    faulthandler.register(signal.SIGUSR1, 2)  # says where it hangs
    gc.freeze()  # what is shared is not looked through, and stays shared
    body()
    code = 0
  except BaseException:
    os.write(2, traceback.format_exc().encode())
  finally:
    os._exit(code)


def _tail(log: pathlib.Path) -> str:
  return log.read_bytes()[-_LOG_BYTES:].decode(errors='replace')


def _collected(folder: pathlib.Path) -> list[Fault]:
  """Returns faults that a child has kept, and removes their files."""
  faults = []
  for path in sorted(folder.glob('*.json')):
    data = path.with_suffix('')
    outcome = Outcome(*json.loads(path.read_text()))
    faults.append(Fault(outcome, data.read_bytes()))
    data.unlink()
    path.unlink()
  return faults
