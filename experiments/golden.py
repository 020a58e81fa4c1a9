"""Golden runs: does the working tree still train the same vectors?

  python experiments/golden.py --base=COMMIT [--cases=sync,int8] [--keep=FOLDER]

Every case is a tiny run of the command line, made by the base commit and by the
working tree on this machine; the exported vectors are compared bit for bit.
Goldens are not stored: another CPU or version of XLA rounds otherwise. `--keep`
names a folder in which the base commit's runs stay for the next comparison.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np

from jaxemb.storage import word2vec_format

ROOT = pathlib.Path(__file__).parents[1]
BASE = 'e1e3acd'  # the last commit before the rebuilding

_SYNC = 'strategy.name=sync'
_WIDE = f'{_SYNC} mesh.data=2 mesh.table=4'
_PARTS = 'strategy.name=partition strategy.num_parts'
_TREE = 'model.loss=hierarchical_softmax'
# Name: devices, settings; `mixture*` has that config, others `wiki`.
CASES = {
  'sync': (1, _SYNC),
  'replicas': (2, ''),
  'replicas4-adagrad': (4, 'mesh.data=4 optimizer.name=adagrad'),
  'partition': (2, f'{_PARTS}=3 optimizer.name=adagrad'),
  'partition-concat': (
    2,
    f'{_PARTS}=2 strategy.divide=equal strategy.merge=concat',
  ),
  'cbow': (2, 'model.name=cbow'),
  'tree': (1, f'{_SYNC} {_TREE}'),
  'tree-cbow': (2, f'{_TREE} model.name=cbow'),
  'mixture': (1, _SYNC),
  'mixture-replicas': (2, 'model.loss=negative_sampling'),
  'mixture-likelihoods': (1, f'{_SYNC} senses.method=likelihoods'),
  'row': (8, f'{_WIDE} table.layout=row'),
  'column': (8, f'{_WIDE} table.layout=column optimizer.name=adam'),
  'bfloat16': (2, 'table.dtype=bfloat16'),
  'float16-nearest': (1, f'{_SYNC} table.dtype=float16 table.rounding=nearest'),
  'int8': (1, f'{_SYNC} table.dtype=int8'),
  'int8-replicas': (2, 'table.dtype=int8'),
  'int8-row': (8, f'{_WIDE} table.layout=row table.dtype=int8'),
}
# Where the base commit had other settings.
_LIKELIHOODS = (
  'senses.told_by=likelihoods senses.drawn_for=pairs senses.tied_until=0.0 '
  'senses.averages=log_likelihoods senses.momentum=0.05'
)
BASE_CASES = {'mixture-likelihoods': (1, f'{_SYNC} {_LIKELIHOODS}')}


def _train(
  checkout: pathlib.Path, workdir: pathlib.Path, case: str, is_base: bool
) -> None:
  devices, settings = (BASE_CASES if is_base else {}).get(case, CASES[case])
  # Also where this process may use one core only.
  settings = 'mesh.data=2 ' * (devices == 2) + settings
  config = 'mixture' if case.startswith('mixture') else 'wiki'
  command = [
    sys.executable, '-m', 'jaxemb.main',
    f'--config=configs/{config}.py:smoke', f'--workdir={workdir}',
    '--config.eval.paths=none', *(f'--config.{x}' for x in settings.split()),
  ]  # fmt: skip
  environment = os.environ | {
    'JAX_PLATFORMS': 'cpu',
    'PYTHONPATH': str(checkout),
    'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}',
  }
  done = subprocess.run(
    command, cwd=checkout, env=environment, capture_output=True, text=True
  )
  if done.returncode:
    raise SystemExit(f'{case}: {" ".join(command)}\n{done.stderr[-3000:]}')


def _vectors(workdir: pathlib.Path) -> dict[str, np.ndarray]:
  """By path, the vectors of a run and of its sub-models, as float32."""
  return {
    str(path.relative_to(workdir)): word2vec_format.read(path).vectors
    for path in sorted(workdir.rglob('export/vectors.bin'))
  }


def _compare(old: pathlib.Path, new: pathlib.Path) -> str:
  ours, theirs = _vectors(new), _vectors(old)
  if ours.keys() != theirs.keys() or not ours:
    return f'other files: {sorted(ours)} where {sorted(theirs)} were'
  for name, vectors in theirs.items():
    if vectors.shape != ours[name].shape:
      return f'{name}: shape {ours[name].shape} where {vectors.shape} was'
    if vectors.tobytes() != ours[name].tobytes():
      differing = (vectors != ours[name]).mean()
      most = np.abs(vectors - ours[name]).max()
      return f'{name}: {differing:.1%} of numbers differ, by {most:.3g} at most'
  return ''


def main() -> int:
  """Runs the cases; returns how many differ."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--base', default=BASE)
  parser.add_argument('--cases', default=','.join(CASES))
  parser.add_argument('--keep', type=pathlib.Path)
  parser.add_argument('--base_only', action='store_true')
  args = parser.parse_args()
  cases = args.cases.split(',')
  with tempfile.TemporaryDirectory() as temporary:
    temporary = pathlib.Path(temporary)
    keep = (args.keep or temporary / 'base').absolute()
    checkout = temporary / 'checkout'
    missing = [x for x in cases if not (keep / x / 'export').exists()]
    if missing:
      git = ['git', '-C', str(ROOT), 'worktree']
      subprocess.run(
        [*git, 'add', '-q', '--detach', str(checkout), args.base], check=True
      )
      try:
        for case in missing:
          shutil.rmtree(keep / case, ignore_errors=True)
          _train(checkout, keep / case, case, True)
          print(f'{case}: made by {args.base}', flush=True)
      finally:
        subprocess.run([*git, 'remove', '--force', str(checkout)], check=True)
    num_differing = 0
    for case in () if args.base_only else cases:
      _train(ROOT, temporary / 'new' / case, case, False)
      difference = _compare(keep / case, temporary / 'new' / case)
      num_differing += bool(difference)
      print(f'{case}: {difference or "the same bits"}', flush=True)
  return num_differing


if __name__ == '__main__':
  sys.exit(main())
