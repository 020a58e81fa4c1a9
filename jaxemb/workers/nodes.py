"""Machines of a Ray cluster: what each has, and whether the head answers.

Ray ends a process of its own accord, with exit code 1, if the head of its
cluster has not answered for a minute. `Head` notices before that.
"""

import logging
import os
import pathlib
import socket
import ssl
import threading
import time

from jaxemb import errors
from jaxemb.runtime import addresses, tls

_ASK_SECS, _ANSWER_SECS = 5.0, 3.0
# Without an answer: until a run ends, and until its process does if it waits
# for something that was lost with the head. Both before Ray ends it.
_LOST_SECS, _EXIT_SECS = 30.0, 40.0

_TLS_FILES = 'RAY_TLS_SERVER_CERT', 'RAY_TLS_SERVER_KEY', 'RAY_TLS_CA_CERT'


def credentials() -> tls.Credentials | None:
  """Returns those that Ray is told to use; None = no TLS."""
  if os.environ.get('RAY_USE_TLS', '').lower() not in ('1', 'true'):
    return None
  found = tls.credentials([os.environ.get(x) for x in _TLS_FILES], _TLS_FILES)
  if not found:
    raise errors.UserError(
      f'RAY_USE_TLS is set without {", ".join(_TLS_FILES)}: set these, too; '
      'docs/security.md has how to make the files'
    )
  return found


def check_tls(address: str) -> None:
  """Raises a `UserError` if the head and this process do not agree on TLS.

  Ray would try again and again.
  """
  mine = credentials()
  if mine:
    mine.check()
  try:
    tls.greet(addresses.split(address, 'RAY_ADDRESS'), mine, _ANSWER_SECS)
  except tls.ENDED:  # Ray waits
    return
  except ssl.SSLError as error:
    raise errors.UserError(
      f'the head of Ray at RAY_ADDRESS={address} and this process do not '
      f'accept each other ({tls.reason(error)}): '
      f'set RAY_USE_TLS and {", ".join(_TLS_FILES)} as on its machines'
    ) from error
  except OSError:  # Ray says more
    return


def check_file(path: pathlib.Path, address: str) -> None:
  """Raises a `UserError` unless a machine has a file; it is called there."""
  if not path.exists():
    raise errors.UserError(
      f'the machine {address} of the Ray cluster does not see '
      f'--workdir={path.parent.parent}; give a folder that all machines share'
    )


def answers(address: str) -> bool:
  """Whether anybody listens at HOST:PORT."""
  try:
    host, port = address.rsplit(':', 1)
    pair = host.strip('[]'), int(port)  # brackets of IPv6
    with socket.create_connection(pair, _ANSWER_SECS):
      return True
  except (OSError, ValueError):  # or it is no address
    return False


class Head:
  """Whether the head of a cluster answers, asked by a thread."""

  def __init__(self, address: str):
    """An address is HOST:PORT."""
    self._address = address
    self._answered, self._ends = time.monotonic(), threading.Event()
    threading.Thread(target=self._watch, daemon=True).start()

  def _silent_secs(self):
    return time.monotonic() - self._answered

  def _error(self):
    return errors.LostError(
      f'the head of the Ray cluster at {self._address} has not answered for '
      f'{self._silent_secs():.0f} s; start Ray on its machines anew, then run '
      'the same command to resume'
    )

  def check(self) -> None:
    """Raises a `LostError` if it has not answered for long."""
    if self._silent_secs() > _LOST_SECS:
      raise self._error()

  def _watch(self):
    while not self._ends.wait(_ASK_SECS):
      if answers(self._address):
        self._answered = time.monotonic()
      elif self._silent_secs() > _EXIT_SECS:
        error = self._error()
        logging.getLogger('jaxemb').error(error)
        os._exit(error.exit_code)

  def close(self) -> None:
    """Asks no more."""
    self._ends.set()
