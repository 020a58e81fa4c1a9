"""A sample of the faults that `python -m tests.faults` tries."""

import os
import pathlib
import subprocess
import sys

import pytest

# Without XLA, so that a fault takes a tenth of a second.
_OPERATIONS = (
  'vectors', 'word2vec-binary', 'fasttext', 'safetensors', 'index', 'report',
  'metrics',
)  # fmt: skip


@pytest.mark.slow
def test_an_old_or_the_new_result_survives_every_fault():
  root = pathlib.Path(__file__).parents[1]
  flags = '--every=7', f'--only={",".join(_OPERATIONS)}'
  done = subprocess.run(
    [sys.executable, '-m', 'tests.faults', *flags],
    capture_output=True,
    text=True,
    cwd=root,
    env={**os.environ, 'PYTHONPATH': os.pathsep.join([str(root), *sys.path])},
  )
  if done.returncode == 77:
    pytest.skip(done.stdout.strip())
  assert done.returncode == 0, done.stdout + done.stderr[-3000:]
  assert done.stdout.endswith(' 0 not survived\n')
