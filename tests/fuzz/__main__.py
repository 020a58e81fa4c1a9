"""Fuzzes readers: `python -m tests.fuzz --secs=600 --targets=word2vec_text`.

Inputs that end in a fault are written to tests/fuzz/found/TARGET, where they
stay once the fault is mended: the quick tests read them again.
"""

import argparse
import importlib
import os
import pathlib
import sys
import tempfile

# Before numba and NumPy are loaded. A cache of numba's does not tell code with
# checks of bounds from code without: those of other processes are of no use.
os.environ['NUMBA_BOUNDSCHECK'] = '1'
os.environ['NUMBA_CACHE_DIR'] = str(
  pathlib.Path(tempfile.gettempdir(), f'fuzz-numba-{os.getuid()}')
)
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
os.environ['JAX_PLATFORMS'] = 'cpu'

from tests.fuzz import fuzzing  # noqa: E402


def _arguments() -> argparse.Namespace:
  parser = argparse.ArgumentParser('python -m tests.fuzz', description=__doc__)
  add = parser.add_argument
  add('--secs', type=float, default=30, help='of each target')
  add(
    '--targets',
    default='',
    help='names or NAME=SECS, by commas; default: all; -: stdin',
  )
  add('--seed', type=int, default=1)
  add('--found', type=pathlib.Path, default=fuzzing.FOUND)
  add('--hang_secs', type=float, default=fuzzing.HANG_SECS)
  add('--module', default='tests.fuzz.targets', help='which has TARGETS')
  add('--list', action='store_true', help='only show names')
  return parser.parse_args()


def main() -> int:
  """Fuzzes the targets that are asked for; returns 1 if there are faults."""
  args = _arguments()
  module = importlib.import_module(args.module)
  targets = {x.name: x for x in module.TARGETS}
  if args.list:
    print(*targets, sep='\n')
    return 0
  atheris, num_faults = fuzzing.atheris(), 0
  if atheris:
    num = fuzzing.instrument(atheris)
    print(f'Atheris sees {num:,} functions', flush=True)
  names = args.targets.split(',') if args.targets else targets
  for item in (x.strip() for x in sys.stdin) if args.targets == '-' else names:
    name, _, secs = item.partition('=')
    result = fuzzing.run(
      targets[name],
      float(secs or args.secs),
      seed=args.seed,
      is_guided=atheris is not None,
      hang_secs=args.hang_secs,
      found=args.found,
    )
    paths = fuzzing.store(targets[name], result.faults, args.found)
    num_faults += len(paths)
    for (outcome, _), path in zip(result.faults, paths, strict=True):
      print(f'{path}: {outcome.kind}: {outcome.text}')
    print(result, flush=True)
  return 1 if num_faults else 0


if __name__ == '__main__':
  sys.exit(main())
