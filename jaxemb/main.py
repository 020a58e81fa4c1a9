"""Trains: `python -m jaxemb.main --config=wiki --config.SETTING=VALUE ...`.

--config=NAME[:VARIANT]  a config that comes with jaxemb, or a config file
                         (default: wiki)
--workdir=FOLDER         folder of the run (default: runs/<config>-<time>);
                         started again on the same folder, a run resumes

Processes that train together are started alike, with a workdir that all of them
reach, and --coordinator=HOST:PORT --num_processes=N --process_id=I, or with
--distributed under SLURM, MPI, Kubernetes or Cloud TPU.

Exit codes: 0 done; 2 unusable input, explained in one line; 75 stopped by
SIGTERM after saving (start again to resume); anything else is a bug.

Settings and their defaults, given as --config.SETTING=VALUE:
"""

import argparse
import difflib
import pathlib
import runpy
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import ml_collections

from jaxemb import config as config_lib
from jaxemb import errors

_GROUPS = {
  '': 'Random choices',
  'data': 'Text',
  'model': 'Model',
  'senses': 'Several vectors per word',
  'table': 'Tables',
  'optimizer': 'Optimizer',
  'strategy': 'Many devices',
  'mesh': 'Devices',
  'train': 'Training',
  'eval': 'Evaluation',
}
_MOST_USED = (
  'data.path', 'data.min_count', 'model.name', 'model.dim', 'model.window',
  'model.negatives', 'optimizer.learning_rate', 'train.epochs',
  'strategy.name', 'eval.paths',
)  # fmt: skip
_BOOLS = {'true': True, '1': True, 'yes': True,
          'false': False, '0': False, 'no': False}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code."""
  argv = sys.argv[1:] if argv is None else argv
  if {'-h', '--help'} & set(argv):
    print(describe())
    return 0
  try:
    arguments = parse(argv)
    # JAX only once the arguments are right.
    from jaxemb import train
    from jaxemb.runtime import distributed

    code = train.run(
      arguments.config, arguments.workdir, distributed.Job(**arguments.job)
    )
  except errors.UserError as error:
    print('jaxemb:', *str(error).split('\n'), file=sys.stderr)
    code = 2
  except KeyboardInterrupt:
    print('jaxemb: interrupted', file=sys.stderr)
    code = 130
  if code and 'jax' in sys.modules:
    from jaxemb.runtime import distributed

    if distributed.num_processes() > 1:
      distributed.leave(code)  # others may wait for this one, and it for them
  return code


def describe() -> str:
  """Returns the help text, with one line for each setting."""
  by_name = {x.name: x for x in config_lib.SETTINGS}
  groups = {'Most used': [by_name.pop(x) for x in _MOST_USED]}
  for name, setting in by_name.items():
    title = _GROUPS[name.rpartition('.')[0]]
    groups.setdefault(title, []).append(setting)
  texts = ['\n'.join([x, *map(_line, group)]) for x, group in groups.items()]
  return '\n\n'.join([__doc__.strip(), *texts])


def _line(setting: config_lib.Setting) -> str:
  choices = setting.choices or config_lib.MEMBERS.get(setting.name, ())
  notes = [', '.join(choices)] if choices else []
  if setting.limits:
    low, high = setting.limits
    notes = [f'from {low:,}' if high > 10**6 else f'{low:,} to {high:,}']
  if setting.only_with:
    other, *values = setting.only_with
    notes.append(f'only with {other}={"|".join(values)}')
  default = repr('') if setting.default == '' else setting.default
  line = f'  {f"{setting.name}={default}":<36} {setting.help}'
  return line + (f' ({"; ".join(notes)})' if notes else '')


class Arguments(NamedTuple):
  """What a command line asks for."""

  config: ml_collections.ConfigDict
  workdir: pathlib.Path
  job: dict[str, Any]  # fields of `distributed.Job`


class _Parser(argparse.ArgumentParser):
  def error(self, message: str) -> NoReturn:
    raise errors.UserError(message)


def parse(argv: Sequence[str]) -> Arguments:
  """Understands a command line.

  Raises:
    UserError: for what cannot be understood.
  """
  parser = _Parser(add_help=False, allow_abbrev=False)
  add = parser.add_argument
  add('--config', default='wiki')
  add('--workdir', default='')
  add('--coordinator', default='')
  add('--num_processes', type=int, default=1)
  add('--process_id', type=int, default=0)
  add('--distributed', nargs='?', type=_bool, const=True, default=False)
  flags = [f'--{x}' for x in vars(parser.parse_args([]))]
  for setting in config_lib.SETTINGS:
    form: dict[str, Any] = {'type': type(setting.default)}
    if form['type'] is bool:
      form = {'nargs': '?', 'type': _bool, 'const': True}
    add(f'--config.{setting.name}', **form, default=argparse.SUPPRESS)
  known, unknown = parser.parse_known_args(argv)
  for argument in unknown:
    _refuse(argument, flags)
  given = vars(known)
  config = load(
    known.config,
    {k.removeprefix('config.'): v for k, v in given.items() if '.' in k},
  )
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
  workdir = pathlib.Path(known.workdir or default).expanduser()
  job = {
    'coordinator': known.coordinator,
    'num_processes': known.num_processes,
    'process_id': known.process_id,
    'detects': known.distributed,
  }
  return Arguments(config, workdir, job)


def _bool(text: str) -> bool:
  if text.lower() not in _BOOLS:
    raise argparse.ArgumentTypeError(f'expected true or false, not {text!r}')
  return _BOOLS[text.lower()]


def _refuse(argument: str, flags: Sequence[str]) -> NoReturn:
  flag = argument.partition('=')[0]
  if flag.startswith('--config.'):
    config_lib.check_key(flag.removeprefix('--config.'))
  nearest = difflib.get_close_matches(flag, flags, 1)
  hint = f'; did you mean {nearest[0]}?' if nearest else ''
  raise errors.UserError(f'argument {argument!r} is not understood{hint}')


def load(
  name: str, values: Mapping[str, Any] | None = None
) -> ml_collections.ConfigDict:
  """Reads a config file, sets values by dotted name, and checks the result.

  `name` is FILE[:VARIANT], or NAME[:VARIANT] of a config that jaxemb has.

  Raises:
    UserError: for a file or settings that cannot be used.
  """
  file, _, variant = name.partition(':')
  path = _find(file)
  try:
    get_config = runpy.run_path(str(path))['get_config']
    config = get_config(variant) if variant else get_config()
    config_lib.check_keys(config_lib.flat(config))
    config.update_from_flattened_dict(values or {})
  except errors.UserError:
    raise
  except Exception as error:
    why = str(error).strip().splitlines() or [repr(error)]
    raise errors.UserError(
      f'cannot read the config {file}: {why[-1]}'
    ) from error
  config_lib.check(config)
  return config


def _find(file: str) -> pathlib.Path:
  folder = pathlib.Path(__file__).parent / 'configs'
  if not folder.is_dir():  # in a checkout
    folder = folder.parents[1] / 'configs'
  names = {x.stem: x for x in sorted(folder.glob('*.py'))}
  path = names.get(file) or pathlib.Path(file).expanduser()
  if not path.is_file():
    raise errors.UserError(
      f'there is no config file {file}; give a file, or the name of a config '
      f'that comes with jaxemb: {", ".join(names)}'
    )
  return path


if __name__ == '__main__':
  sys.exit(main())
