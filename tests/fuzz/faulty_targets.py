"""Readers with every kind of fault, which the harness has to notice."""

import os
import pathlib
import signal
import time

import numba
import numpy as np

from jaxemb import errors
from tests.fuzz import fuzzing


def _fail(path: pathlib.Path) -> None:
  if b'fine' not in path.read_bytes():
    raise KeyError('without a line')


def _say_nothing(path: pathlib.Path) -> None:
  raise errors.UserError()


def _hang(path: pathlib.Path) -> None:
  if b'fine' not in path.read_bytes():
    time.sleep(60)


def _crash(path: pathlib.Path) -> None:
  if b'fine' not in path.read_bytes():
    os.kill(os.getpid(), signal.SIGSEGV)


def _exit(path: pathlib.Path) -> None:
  if b'fine' not in path.read_bytes():
    os._exit(3)


def _fill_memory(path: pathlib.Path) -> None:
  if b'fine' not in path.read_bytes():
    np.ones(100 << 20, np.uint8)


def _ask_for_memory(path: pathlib.Path) -> None:
  if b'fine' not in path.read_bytes():
    np.empty(1 << 33, np.uint8)


@numba.njit(cache=True)
def store(array: np.ndarray, position: int) -> None:
  """Writes where it is told to, which is only checked in the fuzzer."""
  array[position] = 1


def _write_beyond(path: pathlib.Path) -> None:
  store(np.zeros(9)[:4], 0 if b'fine' in path.read_bytes() else 6)


def _refuse(path: pathlib.Path) -> None:
  path.with_name('another').write_bytes(b'')
  path.with_name('cache').mkdir()
  raise errors.UserError(f'{path} is damaged')


def _seeds() -> list[bytes]:
  return [b'fine']


TARGETS = [
  fuzzing.Target(read.__name__.strip('_'), '', seeds=_seeds, read=read)
  for read in (
    _fail, _say_nothing, _hang, _crash, _exit, _fill_memory, _ask_for_memory,
    _write_beyond, _refuse,
  )
]  # fmt: skip
