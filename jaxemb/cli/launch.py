"""Runs several processes of one training job on this host.

    jaxemb launch -n 2 -- --config=wiki --workdir=FOLDER

starts two processes of `jaxemb train` as one job. The lines of their output
begin with the number of the process. With --sockets instead of -n, each CPU
socket runs one process on its cores. Each such process trains one replica,
whose threads share a table in the memory of their socket.

If a process fails, jaxemb stops all other processes (SIGTERM, and SIGKILL after
10 s) and returns the exit code of the failed process (128 + signal number if a
signal ended it). SIGTERM, SIGINT and SIGHUP go to all processes.
"""

import argparse
import sys
from collections.abc import Sequence

from jaxemb.runtime import launch, resources


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command; returns its exit code, 2 for unusable input."""
  argv = sys.argv[1:] if argv is None else argv
  split = argv.index('--') if '--' in argv else len(argv)
  parser = argparse.ArgumentParser(
    prog='jaxemb launch',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    usage='%(prog)s (-n N [--devices D] | --sockets) -- FLAGS OF JAXEMB TRAIN',
  )
  number = parser.add_mutually_exclusive_group(required=True)
  number.add_argument('-n', type=int, help='number of processes')
  number.add_argument(
    '--sockets', action='store_true', help='one process on each CPU socket'
  )
  parser.add_argument(
    '--devices',
    type=int,
    default=0,
    help='number of CPU devices per process',
  )
  flags = parser.parse_args(argv[:split])
  train_flags = argv[split + 1 :]
  if not flags.sockets:
    if flags.n < 1:
      parser.error('-n must be at least 1')
    return launch.run(train_flags, flags.n, devices=flags.devices)
  if flags.devices:
    parser.error('--devices is not used with --sockets')
  cores = resources.sockets()
  if len(cores) < 2:
    parser.error('--sockets: this machine has one; use jaxemb train')
  # The last of two flags of one name counts.
  train_flags = ['--config.strategy.name=replicas', *train_flags]
  return launch.run(train_flags, len(cores), devices=1, cores=cores)
