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

ROOT = pathlib.Path(__file__).parents[1]
BASE = 'e1e3acd'  # the last commit before the rebuilding

_SYNC = ('--config.strategy.name=sync',)
_WIDE = ('--config.strategy.name=sync', '--config.mesh.data=2',
         '--config.mesh.table=4')  # fmt: skip
_TREE = ('--config.model.loss=hierarchical_softmax',)
_MIXTURE = 'configs/mixture.py:smoke'
_LIKELIHOODS = (
  '--config.senses.told_by=likelihoods',
  '--config.senses.drawn_for=pairs',
  '--config.senses.tied_until=0.0',
  '--config.senses.averages=log_likelihoods',
  '--config.senses.momentum=0.05',
)

# Name: (config, devices, flags, flags of the working tree where they differ)
CASES = {
  'sync': ('configs/wiki.py:smoke', 1, _SYNC, None),
  'replicas': ('configs/wiki.py:smoke', 2, (), None),
  'replicas4-adagrad': (
    'configs/wiki.py:smoke', 4,
    ('--config.mesh.data=4', '--config.optimizer.name=adagrad'), None,
  ),
  'partition': (
    'configs/wiki.py:smoke', 2,
    ('--config.strategy.name=partition', '--config.strategy.num_parts=3',
     '--config.optimizer.name=adagrad'), None,
  ),
  'partition-concat': (
    'configs/wiki.py:smoke', 2,
    ('--config.strategy.name=partition', '--config.strategy.num_parts=2',
     '--config.strategy.divide=equal', '--config.strategy.merge=concat'), None,
  ),
  'cbow': (
    'configs/wiki.py:smoke', 2, ('--config.model.name=cbow',), None,
  ),
  'tree': ('configs/wiki.py:smoke', 1, _SYNC + _TREE, None),
  'tree-cbow': (
    'configs/wiki.py:smoke', 2, (*_TREE, '--config.model.name=cbow'), None,
  ),
  'mixture': (_MIXTURE, 1, _SYNC, None),
  'mixture-replicas': (
    _MIXTURE, 2, ('--config.model.loss=negative_sampling',), None,
  ),
  'mixture-likelihoods': (
    _MIXTURE, 1, _SYNC + _LIKELIHOODS,
    (*_SYNC, '--config.senses.method=likelihoods'),
  ),
  'row': (
    'configs/wiki.py:smoke', 8, (*_WIDE, '--config.table.layout=row'), None,
  ),
  'column': (
    'configs/wiki.py:smoke', 8, (*_WIDE, '--config.table.layout=column',
    '--config.optimizer.name=adam'), None,
  ),
  'bfloat16': (
    'configs/wiki.py:smoke', 2, ('--config.table.dtype=bfloat16',), None,
  ),
  'float16-nearest': (
    'configs/wiki.py:smoke', 1,
    (*_SYNC, '--config.table.dtype=float16', '--config.table.rounding=nearest'),
    None,
  ),
  'int8': (
    'configs/wiki.py:smoke', 1, (*_SYNC, '--config.table.dtype=int8'), None,
  ),
  'int8-replicas': (
    'configs/wiki.py:smoke', 2, ('--config.table.dtype=int8',), None,
  ),
  'int8-row': (
    'configs/wiki.py:smoke', 8,
    (*_WIDE, '--config.table.layout=row', '--config.table.dtype=int8'), None,
  ),
}  # fmt: skip


def _train(
  checkout: pathlib.Path, workdir: pathlib.Path, case: str, is_base: bool
) -> None:
  config, devices, flags, new_flags = CASES[case]
  if not is_base and new_flags is not None:
    flags = new_flags
  if devices == 2:  # also where this process may use one core only
    flags = ('--config.mesh.data=2', *flags)
  command = [
    sys.executable, '-m', 'jaxemb.main', f'--config={config}',
    f'--workdir={workdir}', '--config.eval.paths=none', *flags,
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
  found = {}
  for path in sorted(workdir.rglob('export/vectors.bin')):
    data = path.read_bytes()
    head, _, body = data.partition(b'\n')
    rows, dim = map(int, head.split())
    vectors = np.empty((rows, dim), np.float32)
    start = 0
    for i in range(rows):
      start = body.index(b' ', start) + 1
      vectors[i] = np.frombuffer(body, np.float32, dim, start)
      start += 4 * dim
    found[str(path.relative_to(workdir))] = vectors
  return found


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
