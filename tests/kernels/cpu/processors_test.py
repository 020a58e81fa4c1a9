"""Kernels as they are compiled for processors with shorter vectors."""

import pathlib
import platform
import subprocess
import sys

import pytest

from tests import compiling

_FOLDER = pathlib.Path(__file__).parent


@pytest.mark.slow
@pytest.mark.skipif(
  platform.machine() not in ('x86_64', 'AMD64'), reason='names of x86'
)
def test_kernels_of_other_processors(tmp_path):
  environment = compiling.environment() | {
    'NUMBA_CPU_NAME': 'haswell',
    'NUMBA_CACHE_DIR': str(tmp_path),
  }

  def run(*command):
    return subprocess.run(
      [sys.executable, *command],
      cwd=_FOLDER.parents[1],
      env=environment,
      capture_output=True,
      text=True,
    )

  found = run('-c', 'from jaxemb.kernels.cpu import tiles; print(tiles.LANES)')
  assert found.stdout == '8\n', found.stderr
  files = [str(_FOLDER / x) for x in ('rows_test.py', 'step_test.py')]
  # CBOW is made of the same tiles; a kernel takes seconds to compile.
  cases = 'plain]', 'three_columns]', 'hundred_columns]', 'tree-many_contexts]'
  names = ' or '.join(['any_size', *(f'skipgram-{x}' for x in cases)])
  done = run('-m', 'pytest', '-n0', '-m', '', '-k', names, *files)
  assert done.returncode == 0, done.stdout
