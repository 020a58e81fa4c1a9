"""The flags of the command line, and what they mean, without JAX."""

import pathlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from absl import flags
from ml_collections import config_flags

from jaxemb import config as config_lib
from jaxemb import errors

_CONFIG = config_flags.DEFINE_config_file('config', None, lock_config=True)
_WORKDIR = flags.DEFINE_string('workdir', '', '"" = runs/<config>-<time>')
_COORDINATOR = flags.DEFINE_string('coordinator', '', 'host:port of process 0')
_NUM_PROCESSES = flags.DEFINE_integer('num_processes', 1, 'that train as one')
_PROCESS_ID = flags.DEFINE_integer('process_id', 0, 'of this one')
_DISTRIBUTED = flags.DEFINE_boolean(
  'distributed', False, 'join the SLURM, MPI, Kubernetes or TPU job around'
)


class Arguments(NamedTuple):
  """What a command line asks for."""

  config: Any
  workdir: pathlib.Path
  job: dict[str, Any]  # fields of `distributed.Job`


def parse(argv: Sequence[str]) -> Arguments:
  """Understands a command line.

  Raises:
    UserError: for what cannot be understood.
  """
  config_lib.check_arguments(argv)
  try:
    extra = flags.FLAGS(argv)[1:]
    config = _CONFIG.value
    if config is not None:
      config_lib.check(config)
  except errors.UserError:
    raise
  except OSError as error:
    # With flags of the config behind it, its own flag knows no name yet.
    file = _given(argv)
    if not pathlib.Path(file).exists():
      raise errors.UserError(f'there is no config file {file}') from error
    why = str(error).strip().splitlines()[-1].rpartition('to load: ')[2]
    raise errors.UserError(
      f'cannot read the config {file}: {why.strip()}'
    ) from error
  except (flags.Error, AttributeError, LookupError, TypeError) as error:
    raise errors.UserError(str(error).strip().splitlines()[-1]) from error
  except (ImportError, SyntaxError) as error:
    raise errors.UserError(f'cannot read the config: {error}') from error
  if extra:
    raise errors.UserError(f'argument {extra[0]!r} is not understood')
  if config is None:
    raise errors.UserError('give a config: --config=configs/wiki.py')
  file = flags.FLAGS['config'].config_filename.split(':')[0]
  name = f'{pathlib.Path(file).stem}-{time.strftime("%Y%m%d-%H%M%S")}'
  workdir = pathlib.Path(_WORKDIR.value or f'runs/{name}').expanduser()
  job = {
    'coordinator': _COORDINATOR.value,
    'num_processes': _NUM_PROCESSES.value,
    'process_id': _PROCESS_ID.value,
    'detects': _DISTRIBUTED.value,
  }
  if (_COORDINATOR.value or _DISTRIBUTED.value) and not _WORKDIR.value:
    raise errors.UserError(
      'several processes need one folder: give all the same --workdir'
    )
  if not _COORDINATOR.value and (_NUM_PROCESSES.value > 1 or _PROCESS_ID.value):
    raise errors.UserError(
      '--num_processes and --process_id need --coordinator=HOST:PORT'
    )
  return Arguments(config, workdir, job)


def _given(argv: Sequence[str]) -> str:
  """The file of --config that is not there, or else the last one."""
  files = ['']  # a file of flags may have it
  for arg, following in zip(argv, [*argv[1:], ''], strict=True):
    name, _, value = arg.partition('=')
    if name in ('--config', '-config'):
      files.append((value or following).split(':')[0])
  missing = [x for x in files if not pathlib.Path(x).exists()]
  return (missing or files)[-1]
