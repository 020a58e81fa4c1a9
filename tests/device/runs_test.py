"""Whole runs on the device at hand: quality, memory, resuming, bad input."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

import jaxemb
from jaxemb import errors
from tests import runs

_IS_GPU = jax.devices()[0].platform == 'gpu'
needs_gpu = pytest.mark.skipif(not _IS_GPU, reason='needs the memory of a GPU')
# Models that learn the embedded corpus.
_MODELS = {
  'skip-gram': {},
  'CBOW': {'model.name': 'cbow'},
  'hierarchical softmax': {'model.loss': 'hierarchical_softmax'},
  'Adagrad': {'optimizer.name': 'adagrad'},
}
# Two runs on the CPU are the same.
_SAME = {} if _IS_GPU else {'train.threads': 1}
_QUALITY_LOSS = 0.01  # of analogies
_ROOT = pathlib.Path(__file__).parents[2]


def _python(code, *arguments, **environment):
  """Runs Python in a process of its own."""
  path = os.pathsep.join([str(_ROOT), *filter(None, sys.path)])
  environment = {**os.environ, 'PYTHONPATH': path, **environment}
  return subprocess.run(
    [sys.executable, '-c', code, *map(str, arguments)],
    capture_output=True,
    text=True,
    env=environment,
  )


_TRAIN = """
import json, sys
import jax, jaxemb
from jaxemb.run import loop
temporary, compile_dispatch = [], loop.compile_dispatch
def compiled(*args):
  program = compile_dispatch(*args)
  temporary.append(program.memory_analysis().temp_size_in_bytes)
  return program
loop.compile_dispatch = compiled
models, folder = json.loads(sys.argv[1]), sys.argv[2]
for name, settings in models.items():
  jaxemb.train('', config='wiki', workdir=f'{folder}/{name}', settings=settings)
stats = jax.devices()[0].memory_stats() or {}
stats |= {'platform': jax.devices()[0].platform, 'temporary': max(temporary)}
print(json.dumps(stats))
"""


@pytest.fixture(scope='module')
def cpu_runs(tmp_path_factory):
  """The folder of runs on the CPU, by the name of the model."""
  folder = tmp_path_factory.mktemp('cpu')
  models = {k: x | _SAME for k, x in _MODELS.items()}
  done = _python(_TRAIN, json.dumps(models), folder, JAX_PLATFORMS='cpu')
  assert done.returncode == 0, done.stderr[-3000:]
  assert json.loads(done.stdout.splitlines()[-1])['platform'] == 'cpu'
  return folder


def _analogies(workdir):
  return runs.report(workdir)['evaluation']['analogies']['score']


@pytest.mark.parametrize('model', _MODELS)
def test_vectors_are_as_good_as_those_of_the_cpu(model, cpu_runs, tmp_path):
  settings = _MODELS[model] | _SAME
  jaxemb.train('', config='wiki', workdir=tmp_path / 'run', settings=settings)
  own, cpu = _analogies(tmp_path / 'run'), _analogies(cpu_runs / model)
  print(f'analogies, {model}: {own:.4f}, on the CPU {cpu:.4f}')
  assert own >= cpu - _QUALITY_LOSS
  assert cpu > 0.9


def test_memory_is_that_of_tables_text_and_batches(tmp_path):
  rng, path = np.random.default_rng(0), tmp_path / 'text.txt'
  num_words, dim = 100_000, 128
  words = np.concatenate([rng.permutation(num_words) for _ in range(5)])
  lines = [' '.join(f'w{x}' for x in part) for part in words.reshape(-1, 20)]
  path.write_text('\n'.join(lines))
  settings = {
    'data.path': str(path), 'data.min_count': 1, 'data.sample': 0.0,
    'model.dim': dim, 'train.epochs': 1, 'eval.paths': 'none',
    'mesh.data': 1, 'train.batch_words': 1024,
  }  # fmt: skip
  done = _python(_TRAIN, json.dumps({'run': settings}), tmp_path)
  assert done.returncode == 0, done.stderr[-3000:]
  stats = json.loads(done.stdout.splitlines()[-1])
  table = 4 * num_words * dim
  tables = runs.report(tmp_path / 'run')['table_bytes']
  assert 2 * table <= tables < 2.2 * table
  assert stats['temporary'] < table / 2  # no copy of one in a step
  if peak := stats.get('peak_bytes_in_use'):  # not of a CPU
    # The first numbers of both are drawn at once; then text and batches come,
    # of 10 bytes a word.
    assert tables < peak < 2 * tables + 10 * len(words) + 64e6


@pytest.mark.parametrize(
  'settings',
  [
    {'strategy.name': 'sync', 'train.fused': False},
    {'strategy.name': 'sync', 'train.fused': False, 'optimizer.name': 'adam'},
    {'strategy.name': 'partition', 'strategy.num_parts': 2,
     'train.fused': False},
  ],
  ids=['sgd', 'adam', 'partition'],
)  # fmt: skip
def test_a_resumed_run_ends_with_the_same_bits(
  settings, tmp_path, interrupting
):
  settings = settings | {'mesh.data': 1, 'train.epochs': 4}
  whole, resumed = tmp_path / 'whole', tmp_path / 'resumed'
  assert runs.run(whole, settings) == 0
  saving = settings | runs.SAVE_ALWAYS
  with interrupting(1), pytest.raises(KeyboardInterrupt):
    runs.run(resumed, saving)
  assert runs.run(resumed, settings) == 0
  assert 'resuming after' in runs.log(resumed)
  assert runs.vectors(resumed) == runs.vectors(whole)


@needs_gpu
def test_too_little_memory_is_one_line(tmp_path):
  # A two-hundredth of a GPU of up to 280 GB, and tables that are larger.
  dim = 60_000
  settings = runs.SETTINGS | {'model.dim': dim, 'mesh.data': 1}
  done = _python(
    'import sys; from jaxemb import __main__; sys.exit(__main__.main())',
    'train',
    *(f'--config.{k}={x}' for k, x in settings.items()),
    f'--workdir={tmp_path / "run"}',
    XLA_PYTHON_CLIENT_MEM_FRACTION='0.005',
  )
  assert done.returncode == errors.UserError.exit_code, done.stderr[-3000:]
  line = done.stderr.strip().splitlines()[-1]
  assert 'need' in line and '--config.model.dim' in line
  assert 'Traceback' not in done.stderr
