"""Fails the n-th call of operations that write files, or kills them there.

    python -m tests.faults [--every=1] [--only=NAME,NAME]

Each operation of faulty.py replaces an old result by a new one. Calls that
change files (faults.c) are counted; then for each n the operation runs in a
copy of its folder, and the n-th call fails: once with each errno, with a disk
that stays full, or the process is killed there, in the middle of a write. It is
to end with 0, or with 2 and one line, and the folder is to load as the old or
the new result, bit by bit; 0 with the old one has to be said. The operation
then runs again, makes the new result and leaves no temporary file.

Allocations of 32 KB and more fail only in operations whose libraries can bear
it: XLA, orbax, usearch, orjson and tokenizers end the process. Smaller ones,
and those on the stack, do not fail.
"""

import argparse
import collections
import contextlib
import ctypes
import errno
import faulthandler
import gc
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
_MAX_SECS = 30.0  # of an operation
_PREPARING_SECS = 600.0  # in which kernels are compiled
_MIN_ALLOCATION = 1 << 15  # bytes
_LIBRARY = 'JAXEMB_TESTS_FAULTS'  # set where the library is preloaded
_ERRNOS = errno.ENOSPC, errno.EIO, errno.EACCES, errno.ENOMEM
# Beside the old or the new result; what orbax and this package begin.
_TEMPORARY = '.tmp-', '.replacement', 'orbax-checkpoint-tmp'


class Fault(NamedTuple):
  """What the n-th call does."""

  name: str
  error: int  # 0 = the process is killed
  stays: bool = False
  min_bytes: int = 0  # 0 = calls on files; else allocations


_FAULTS = (
  *(Fault(errno.errorcode[x], x) for x in _ERRNOS),
  Fault('full', errno.ENOSPC, stays=True),
  Fault('kill', 0),
)
_OF_MEMORY = Fault('allocation', errno.ENOMEM, min_bytes=_MIN_ALLOCATION)


def compile_library(folder: pathlib.Path) -> pathlib.Path | None:
  """Compiles faults.c, or returns None where that cannot be done."""
  compiler = shutil.which('cc') or shutil.which('gcc')
  if not (sys.platform.startswith('linux') and compiler):
    return None
  path = folder / 'faults.so'
  source = pathlib.Path(__file__).with_suffix('.c')
  command = [compiler, '-O2', '-shared', '-fPIC', '-o', path, source, '-ldl']
  done = subprocess.run(command, capture_output=True, text=True)
  return None if done.returncode else path


def run(arguments: list[str]) -> int:
  """Runs this module with the library; returns its exit code, 77 without."""
  # Where there is a file system in memory, syncs take no time.
  memory = '/dev/shm' if os.access('/dev/shm', os.W_OK) else None
  with tempfile.TemporaryDirectory(dir=memory) as name:
    library = compile_library(pathlib.Path(name))
    if library is None:
      print('faults: this needs Linux, glibc and a C compiler')
      return 77
    environment = {
      **os.environ,
      'LD_PRELOAD': str(library),
      _LIBRARY: name,
      'JAX_PLATFORMS': 'cpu',
      'OPENBLAS_NUM_THREADS': '1',
      'TOKENIZERS_PARALLELISM': 'false',
      'JAXEMB_CACHE': f'{name}/user-cache',
      'PYTHONPATH': os.pathsep.join([str(ROOT), *sys.path]),
    }
    command = [sys.executable, '-m', 'tests.faults', *arguments]
    return subprocess.run(command, env=environment).returncode


def in_fork(
  function: Callable[[], Any], said: pathlib.Path, secs: float = _MAX_SECS
) -> Any:
  """Returns the status of a fork that calls a function, killed if it hangs."""
  sys.stdout.flush()
  if not (child := os.fork()):
    code = 1
    try:
      number = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
      os.dup2(number, 1)
      os.dup2(number, 2)
      faulthandler.dump_traceback_later(0.9 * secs, file=sys.stderr)
      code = function() or 0
    except SystemExit as end:
      code = end.code
    except BaseException:
      traceback.print_exc()
    finally:
      with contextlib.suppress(Exception):
        sys.stdout.flush()
      os._exit(code)
  deadline = time.monotonic() + secs
  while time.monotonic() < deadline:
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
      return os.waitstatus_to_exitcode(status)
    time.sleep(0.002)
  os.kill(child, signal.SIGKILL)
  os.waitpid(child, 0)
  return 'hangs'


class Tester:
  """Tries faults of one operation in copies of its folder."""

  def __init__(self, name: str, operation: Any, folder: pathlib.Path):
    """Prepares the operation, and runs it once without a fault."""
    self.name, self.operation, self.folder = name, operation, folder
    self._case, self._said = folder / 'case', folder / 'said.txt'
    self._library = ctypes.CDLL(None)
    self._library.faults_arm.argtypes = [
      ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_long
    ]  # fmt: skip
    self._library.faults_disarm.restype = ctypes.c_long
    self._case.mkdir(parents=True)
    if operation.compiles:
      operation.prepare(self._case)
      operation.run(self._case)
      shutil.rmtree(self._case)
      self._case.mkdir()
    # Runs name their folders: all copies lie where the first one did.
    self._call(lambda: operation.prepare(self._case), _PREPARING_SECS)
    self._case.rename(folder / 'prepared')
    self._copy()
    self.old = self._call(lambda: operation.read(self._case))
    self.num = {}
    for fault in (_FAULTS[0], _OF_MEMORY):
      self._copy()
      self.num[fault] = self._call(lambda fault=fault: self._counted(fault))
    self.new = self._call(lambda: operation.read(self._case))
    assert self.old != self.new or name == 'metrics', self.old

  def _call(self, function: Callable[[], Any], secs: float = _MAX_SECS) -> Any:
    """Returns the result of a function that runs in a fork."""
    result = self.folder / 'result.json'

    def write() -> None:
      value = function()
      result.write_text(json.dumps(value, default=str))

    code = in_fork(write, self._said, secs)
    if code:
      raise AssertionError(f'{code}: {self._read_said()[-3000:]}')
    return json.loads(result.read_text())

  def _read_said(self) -> str:
    return self._said.read_text(errors='replace')

  def _copy(self) -> None:
    shutil.rmtree(self._case, ignore_errors=True)
    shutil.copytree(self.folder / 'prepared', self._case, symlinks=True)

  def _arm(self, fault: Fault, number: int) -> None:
    path = f'{self._case}/'.encode()
    stays, size = int(fault.stays), fault.min_bytes
    self._library.faults_arm(path, number, fault.error, stays, size)

  def _counted(self, fault: Fault) -> int:
    self._arm(fault, 0)
    self.operation.run(self._case)
    return self._library.faults_disarm()

  def faults(self, every: int) -> Iterator[tuple[Fault, int]]:
    """Yields faults and the numbers of their calls, one in `every`."""
    stride = every * self.operation.stride
    for i, fault in enumerate(_FAULTS):
      last = self.num[_FAULTS[0]]
      # Each fault begins with another call.
      for number in range(1 + (i * 7) % stride, last + 1, stride):
        yield fault, number
    if self.operation.allocates:
      for number in range(1, self.num[_OF_MEMORY] + 1, stride):
        yield _OF_MEMORY, number

  def outcome(self, fault: Fault, number: int) -> str:
    """Tries a fault; returns what is wrong, or ''."""
    self._copy()

    def operate() -> int:
      from jaxemb.runtime import process

      self._arm(fault, number)
      code = process.exit_code(self.operation.run, self._case)
      self._library.faults_disarm()
      return code

    code, said = in_fork(operate, self._said), self._read_said()
    wrong = self._ending(code, said, fault)
    try:
      found, again, left = self._call(self._next_start)
    except AssertionError as error:
      return f'{wrong}; then {error}; before: {said[-1500:]}'
    if found not in (self.old, self.new):
      wrong = wrong or f'neither old nor new: {found}'
    if code == 0 and found == self.old != self.new and not said.strip():
      wrong = wrong or 'the old result stays, and nothing is said'
    if again != self.new:
      wrong = wrong or f'another result of the next start: {again}'
    if left:
      wrong = wrong or f'left behind: {left}'
    return f'{wrong}: {said[-1500:]}' if wrong else ''

  def _ending(self, code: Any, said: str, fault: Fault) -> str:
    """Returns what is wrong with how an operation ended, or ''."""
    killed = {-signal.SIGKILL} if not fault.error else set()
    # A library may drop the error, or the call come only now and then.
    if code not in {0, 2, 75} | killed:
      return f'exit code {code}'
    if 'Traceback' in said:
      return 'a traceback'
    lines = [x for x in said.splitlines() if 'warning: ' not in x]
    if code == 2 and len(lines) != 1:
      return f'{len(lines)} lines'
    if code == 2 and not lines[-1].startswith('jaxemb: '):
      return 'no line of its own'
    return ''

  def _next_start(self) -> tuple[str, str, list[str]]:
    """Returns what loads, what the next start makes, and what is left."""
    operation, case = self.operation, self._case
    found = operation.read(case)
    operation.run(case)
    again = operation.read(case)
    names = [str(x.relative_to(case)) for x in case.rglob('*')]
    left = [x for x in names if any(y in x for y in _TEMPORARY)]
    return found, again, left


def main() -> int:
  """Tries all faults; returns 1 if some were not survived."""
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--every', type=int, default=1)
  parser.add_argument('--only', default='')
  flags = parser.parse_args()
  if _LIBRARY not in os.environ:
    return run(sys.argv[1:])
  from jaxemb.storage import atomic
  from tests import faulty

  atomic._WAIT_SECS = 0  # no other process writes
  gc.freeze()  # what is shared is not looked through, and stays shared
  chosen = [x for x in flags.only.split(',') if x] or [*faulty.OPERATIONS]
  total, num_wrong = 0, 0
  for name in chosen:
    start, tried = time.monotonic(), collections.Counter()
    folder = pathlib.Path(os.environ[_LIBRARY]).resolve() / name
    tester = Tester(name, faulty.OPERATIONS[name], folder)
    failures = []
    for fault, number in tester.faults(flags.every):
      tried[fault.name] += 1
      if wrong := tester.outcome(fault, number):
        failures.append(f'  {name}, {fault.name} of call {number}: {wrong}')
    counts = ', '.join(f'{k} {x}' for k, x in tried.items())
    calls = tester.num[_FAULTS[0]]
    secs = time.monotonic() - start
    print(
      f'{name}: {tried.total()} faults of {calls} calls in {secs:.0f} s '
      f'({counts}); {len(failures)} not survived',
      *failures,
      sep='\n',
      flush=True,
    )
    total, num_wrong = total + tried.total(), num_wrong + len(failures)
    shutil.rmtree(folder)
  print(f'{total} faults tried, {num_wrong} not survived')
  return int(num_wrong > 0)


if __name__ == '__main__':
  sys.exit(main())
