"""The command line: `python -m jaxemb.main --config=FILE[:VARIANT]`.

Exit codes: 0 done; 2 unusable input or config, said in one line; 75 stopped by
SIGTERM after saving (start again to resume); anything else is a bug.

--workdir=FOLDER holds the run (default runs/<config>-<time>); started again on
the same folder, a run resumes. Settings and their defaults:
"""

import pathlib
import sys
import time
from collections.abc import Sequence

from absl import flags
from ml_collections import config_flags

from jaxemb import config as config_lib
from jaxemb import errors

_CONFIG = config_flags.DEFINE_config_file('config', None, lock_config=True)
_WORKDIR = flags.DEFINE_string('workdir', '', '"" = runs/<config>-<time>')


def _parse(argv: Sequence[str]) -> tuple[object, pathlib.Path]:
  """The settings and the folder of the run."""
  config_lib.check_arguments(argv)
  try:
    extra = flags.FLAGS(argv)[1:]
    config = _CONFIG.value
    if config is not None:
      config_lib.check(config)
  except errors.UserError:
    raise
  except OSError as error:
    file = flags.FLAGS['config'].config_filename
    raise errors.UserError(f'there is no config file {file}') from error
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
  return config, pathlib.Path(_WORKDIR.value or f'runs/{name}').expanduser()


def main(argv: Sequence[str] = sys.argv) -> int:
  """Trains as the arguments say; returns the exit code."""
  if {'-h', '--help'} & set(argv[1:]):
    print(__doc__, config_lib.describe(), sep='\n')
    return 0
  try:
    config, workdir = _parse(argv)
    from jaxemb import train  # jax only once the arguments are right

    return train.run(config, workdir)
  except errors.UserError as error:
    print('jaxemb:', *str(error).split('\n'), file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print('jaxemb: interrupted', file=sys.stderr)
    return 130


if __name__ == '__main__':
  sys.exit(main())
