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
@pytest.mark.parametrize(
  ('lanes', 'model', 'given'),
  [
    (8, 'skipgram', {'NUMBA_CPU_NAME': 'haswell'}),
    (4, 'cbow-tree', {'NUMBA_CPU_NAME': 'x86-64',
                      'NUMBA_CPU_FEATURES': '+sse4.2'}),
  ],
)  # fmt: skip
def test_kernels_of_other_processors(lanes, model, given, tmp_path):
  environment = compiling.environment() | given
  environment['NUMBA_CACHE_DIR'] = str(tmp_path)

  def run(*command):
    return subprocess.run(
      [sys.executable, *command],
      cwd=_FOLDER.parents[1],
      env=environment,
      capture_output=True,
      text=True,
    )

  found = run('-c', 'from jaxemb.kernels.cpu import tiles; print(tiles.LANES)')
  assert found.stdout == f'{lanes}\n', found.stderr
  files = [str(_FOLDER / x) for x in ('rows_test.py', 'step_test.py')]
  # All kernels are made of the same tiles; one takes seconds to compile.
  cases = 'plain]', 'three_columns]', 'hundred_columns]'
  names = ' or '.join(['any_size', *(f'{model}-{x}' for x in cases)])
  done = run('-m', 'pytest', '-n0', '-m', '', '-k', names, *files)
  assert done.returncode == 0, done.stdout
