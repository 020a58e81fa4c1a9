"""Trains embedding tables: `jaxemb train --config=NAME --config.SETTING=VALUE`.

--config=NAME[:VARIANT]  a built-in config or a config file (default: wiki)
--workdir=FOLDER         folder of the run, or gs://...; a run that exists is
                         resumed (default: runs/<config>-<time>)
--from=RUN               run or fastText .bin to continue on new data; its words
                         (nodes, items) are kept, and new ones are added

To train with several processes, start each with the same flags, a shared
workdir and --coordinator=HOST:PORT --num_processes=N --process_id=I. Under
SLURM, MPI, Kubernetes or Cloud TPU, replace these three by --distributed.

Exit codes:
  0    the run is complete
  2    unusable input, or too little memory or disk, explained in one line
  75   stopped by SIGTERM, SIGHUP or Ctrl-C, or because another process of the
       job ended; start the run again to resume from its last checkpoint
  130  stopped by a second Ctrl-C, without saving
  141  the reader of the output has closed it
  143, 129  stopped by SIGTERM or SIGHUP in the first second
  any other  a bug

Settings of this config and their values, to set as --config.SETTING=VALUE
(for another config: `jaxemb train --config=NAME --help`):
"""

import argparse
import atexit
import contextlib
import difflib
import functools
import gc
import importlib.util
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, cast

import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.config import checks, files, kinds
from jaxemb.kernels.cpu import ahead
from jaxemb.run import kind as kind_lib
from jaxemb.run import rundir
from jaxemb.runtime import process
from jaxemb.storage import bucket

# Packages without which JAX hardly ever has more than the CPU.
_ACCELERATORS = 'jax_plugins', 'libtpu'
_MIN_ADDRESSES_BYTES = 4_000_000_000
_BOOLS = {'true': True, '1': True, 'yes': True,
          'false': False, '0': False, 'no': False}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  atexit.register(gc.freeze)  # or Python searches all of JAX for garbage, .5 s
  has_run = threading.Event()
  with _stopping_early(has_run):
    run = functools.partial(_run, has_run)
    try:
      code = process.exit_code(run, sys.argv[1:] if argv is None else argv)
    except Exception:  # a bug
      if not _has_others():
        raise
      sys.excepthook(*sys.exc_info())
      code = 1
  # While Python ends, signals would end it with another code.
  atexit.register(_set_handlers, signal.SIG_IGN)
  if code and _has_others():
    from jaxemb.runtime import distributed

    distributed.leave(code)  # JAX would wait for the others to end
  return code


def _has_others() -> bool:
  """Whether this is one of several processes."""
  if 'jax' not in sys.modules:
    return False
  from jaxemb.runtime import distributed

  return distributed.num_processes() > 1


def _set_handlers(handler: Any, instead_of: Any = None) -> None:
  """Sets the handler of signals that end a process, if they have another."""
  for name in ('SIGTERM', 'SIGHUP'):
    with contextlib.suppress(AttributeError, ValueError):
      number = getattr(signal, name)  # Windows lacks one
      if instead_of in (None, signal.getsignal(number)):
        signal.signal(number, handler)  # in the main thread alone


@contextlib.contextmanager
def _stopping_early(has_run: threading.Event) -> Iterator[None]:
  """Has signals that come while there is nothing to save end with 75 as well.

  `train.run` has other handlers while it runs; those that come later have
  nothing to stop.
  """

  def stop(*unused: Any) -> None:
    if has_run.is_set():
      return
    os.write(2, b'jaxemb: stopped before training; nothing to save\n')
    os._exit(errors.LostError.exit_code)

  _set_handlers(stop, instead_of=signal.SIG_DFL)
  try:
    yield
  finally:
    _set_handlers(signal.SIG_DFL, instead_of=stop)


def _run(has_run: threading.Event, argv: Sequence[str]) -> int:
  if asked := {'-h', '--help'} & set(argv):
    flags = [x for x in argv if x not in asked]
    print(describe(parse(flags, checks_settings=False)[0]))
    return 0
  config, workdir, job = parse(argv)
  _check_address_space()
  _start_compiling(config)
  coordinator, _, _, detects = job
  if not (coordinator or detects):  # others are joined first
    _start_devices(config, workdir)
  # JAX only once the arguments are right. Python searches all of it for garbage
  # again and again meanwhile, .3 s.
  gc.disable()
  from jaxemb.run import lifecycle as train
  from jaxemb.runtime import distributed

  gc.freeze()
  gc.enable()
  try:
    return train.run(config, workdir, distributed.Job(*job))
  finally:
    has_run.set()


def _check_address_space() -> None:
  """Refuses a limit that libraries do not survive: OpenBLAS tries for ever."""
  with contextlib.suppress(ImportError):  # not on Windows
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= limit < _MIN_ADDRESSES_BYTES:
      raise errors.UserError(
        f'this process may use {limit / 1e9:.1f} GB of addresses (ulimit -v) '
        f'and JAX and its threads need {_MIN_ADDRESSES_BYTES / 1e9:.0f} GB, '
        'whatever the memory; raise it, or limit memory by a container'
      )


def _may_have_accelerator() -> bool:
  """Whether JAX may find more than the CPU."""
  found = any(map(importlib.util.find_spec, _ACCELERATORS))
  return found and os.environ.get('JAX_PLATFORMS') != 'cpu'


def _start_devices(
  config: ml_collections.ConfigDict, workdir: pathlib.Path | str
) -> None:
  """Has an accelerator start, which takes seconds, while others are imported.

  Errors are for the run, which starts the devices again.
  """
  # A run that is resumed wants the devices that it began with.
  may_resume = bucket.is_url(workdir) or rundir.recorded(pathlib.Path(workdir))
  if may_resume or not _may_have_accelerator():
    return
  from jaxemb.runtime import mesh

  wanted = mesh.Shape(config.mesh.data, config.mesh.table)
  if config.table.store:
    wanted = mesh.Shape(1, 1)
  splits_tables = config.table.layout != 'replicated'

  def start() -> None:
    with contextlib.suppress(errors.UserError):
      mesh.start(wanted, splits_tables)

  threading.Thread(target=start).start()


def _start_compiling(config: ml_collections.ConfigDict) -> None:
  """Has compiled what is likely to be used."""
  mesh = max(1, config.mesh.data), max(1, config.mesh.table)
  cache = rundir.cache_folder()
  kinds.of(config).compile_ahead(cache)
  if _may_have_accelerator():
    return
  if config_lib.can_fuse(config, 'cpu', mesh):
    ahead.compiling(ahead.choice_of(config), cache)


def describe(config: ml_collections.ConfigDict) -> str:
  """Returns the help text, with a line for each setting that is used.

  Settings that another one has to switch on are named together behind them.
  """
  kind, values = kinds.of(config), config_lib.flat(config)
  groups: dict[str, list[str]] = {'Most used': []}
  more: dict[str, list[str]] = {}
  for x in config_lib.settings(config.data.source).values():
    if not checks.is_used(x, config, kind):
      continue
    condition = kind.only_with.get(x.name, x.only_with)
    other, _, users = condition.partition('=')
    if other and values[other] not in users.split('|'):
      more.setdefault(condition, []).append(x.name)
      continue
    title = x.name.partition('.')[0].capitalize()
    title = 'Most used' if x.most_used else title
    groups.setdefault(title, []).append(_line(x, values[x.name], kind))
  groups['Further settings, used only with'] = [
    f'  {k}: {", ".join(names)}' for k, names in more.items()
  ]
  texts = ['\n'.join([title, *lines]) for title, lines in groups.items()]
  return '\n\n'.join([__doc__.strip(), *texts])


def _line(
  setting: config_lib.Setting, value: object, kind: kind_lib.Kind
) -> str:
  members, note = kind.members(setting.name), ''
  if members is not None:
    note = ', '.join([*setting.values, *members, 'module:attribute'])
  elif setting.values and isinstance(setting.default, str):
    note = ', '.join(str(x) or "''" for x in setting.values)
  elif setting.values:
    low, high = cast(Sequence[float], setting.values)
    note = f'from {low:,}' if high > 10**6 else f'{low:,} to {high:,}'
  text = kind.help.get(setting.name, setting.help)
  shown = repr('') if value == '' else value
  line = f'  {f"{setting.name}={shown}":<36} {text}'
  return line + (f' ({note})' if note else '')


class _Parser(argparse.ArgumentParser):
  def error(self, message: str) -> NoReturn:
    raise errors.UserError(message)


def parse(
  argv: Sequence[str],
  checks_settings: bool = True,
) -> tuple[ml_collections.ConfigDict, pathlib.Path | str, tuple]:
  """The settings, folder and fields of `distributed.Job` of a command line.

  Raises a `UserError` for what cannot be understood.
  """
  parser = _Parser(add_help=False, allow_abbrev=False)
  add = parser.add_argument
  add('--config', default='wiki')
  add('--workdir', default='')
  add('--from', default='')
  add('--coordinator', default='')
  add('--num_processes', type=int, default=1)
  add('--process_id', type=int, default=0)
  flag: dict[str, Any] = {'nargs': '?', 'type': _bool, 'const': True}
  add('--distributed', **flag, default=False)
  name = parser.parse_known_args(argv)[0].config
  for x in _all_settings(name, argv).values():
    kind = type(x.default)
    form = flag if kind is bool else {'type': kind}
    add(f'--config.{x.name}', **form, default=argparse.SUPPRESS)
  known, unknown = parser.parse_known_args(argv)
  if unknown:
    option = unknown[0].partition('=')[0]
    if option.startswith('--config.'):
      config_lib.find(option.removeprefix('--config.'))
    near = difflib.get_close_matches(option, [f'--{x}' for x in vars(known)], 1)
    hint = f'; did you mean {near[0]}?' if near else ''
    raise errors.UserError(f'argument {unknown[0]!r} is not understood{hint}')
  values = {
    k.removeprefix('config.'): v for k, v in vars(known).items() if '.' in k
  }
  if run := getattr(known, 'from'):
    if 'train.init_from' in values:
      raise errors.UserError(
        f'--from={run} is config.train.init_from too; give one of them'
      )
    values |= {'train.init_from': run, 'data.grow': True}
  read = config_lib.load if checks_settings else files.read
  config = read(known.config, values)
  if (known.coordinator or known.distributed) and not known.workdir:
    raise errors.UserError(
      'several processes need one folder: give all the same --workdir'
    )
  if not known.coordinator and (known.num_processes > 1 or known.process_id):
    raise errors.UserError(
      '--num_processes and --process_id need --coordinator=HOST:PORT'
    )
  name = pathlib.Path(known.config.partition(':')[0]).stem
  default = f'runs/{name}-{time.strftime("%Y%m%d-%H%M%S")}'
  names = 'coordinator', 'num_processes', 'process_id', 'distributed'
  job = tuple(getattr(known, name) for name in names)
  workdir = known.workdir or default
  if not bucket.is_url(workdir):
    workdir = rundir.named(workdir, '--workdir')
  return config, workdir, job


def _all_settings(
  name: str, argv: Sequence[str]
) -> dict[str, config_lib.Setting]:
  """All settings by name, with those of a user's own kind of data.

  It is named on the command line, or by the config file `name`.
  """
  flag = '--config.data.source='
  sources = [x.removeprefix(flag) for x in argv if x.startswith(flag)]
  if not sources and name.partition(':')[0] not in files.built_in():
    with contextlib.suppress(errors.UserError):  # raised again when it is used
      sources = [files.read(name).data.source]
  return config_lib.settings(sources[-1] if sources else '')


def _bool(text: str) -> bool:
  if text.lower() not in _BOOLS:
    raise argparse.ArgumentTypeError(f'expected true or false, not {text!r}')
  return _BOOLS[text.lower()]
