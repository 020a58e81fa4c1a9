"""The command line: `python -m jaxemb.main --config=FILE[:VARIANT]`.

Exit codes: 0 done; 2 unusable input or config, said in one line; 75 stopped by
SIGTERM after saving (start again to resume); anything else is a bug.

--workdir=FOLDER holds the run (default runs/<config>-<time>); started again on
the same folder, a run resumes. Several processes that train as one are started
alike, on a workdir that all of them reach, with --coordinator=HOST:PORT
--num_processes=N --process_id=I, or with --distributed where SLURM, MPI,
Kubernetes or Cloud TPU have started them. Settings and their defaults:
"""

import sys
from collections.abc import Sequence

from jaxemb import arguments, errors
from jaxemb import config as config_lib


def main(argv: Sequence[str] = sys.argv) -> int:
  """Trains as the arguments say; returns the exit code."""
  if {'-h', '--help'} & set(argv[1:]):
    print(__doc__, config_lib.describe(), sep='\n')
    return 0
  try:
    found = arguments.parse(argv)
    # JAX only once the arguments are right.
    from jaxemb import train
    from jaxemb.runtime import distributed

    job = distributed.Job(**found.job)
    return train.run(found.config, found.workdir, job)
  except errors.UserError as error:
    print('jaxemb:', *str(error).split('\n'), file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print('jaxemb: interrupted', file=sys.stderr)
    return 130


def _exit(code: int) -> None:
  from jaxemb.runtime import distributed

  if code and distributed.num_processes() > 1:
    distributed.leave(code)  # others may wait for this one, and it for them
  sys.exit(code)


if __name__ == '__main__':
  _exit(main())
