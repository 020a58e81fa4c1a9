"""Workers on several machines: namespaces of this one, and what is lost."""

import pathlib
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxemb.run import metrics
from tests import compiling, runs

sys.path.append(str(pathlib.Path(__file__).parents[2] / 'experiments'))
import machines

pytestmark = [
  pytest.mark.slow,
  pytest.mark.ray,
  pytest.mark.skipif(bool(machines.missing()), reason=machines.missing()),
]
_SETTINGS = {
  'data.path': 'toywiki:200000', 'data.min_count': 1, 'model.dim': 8,
  'strategy.name': 'workers', 'strategy.num_workers': 3, 'table.shards': 3,
  'strategy.sync_every': 2048, 'train.batch_words': 512, 'train.epochs': 40,
  'train.log_every_secs': 0, 'train.checkpoint_every_secs': 2,
  'eval.paths': 'none',
}  # fmt: skip


def _cluster(folder):
  """Three nodes, each with room for one worker."""
  return machines.Cluster(3, folder, num_cpus=1)


def _start(cluster, number, workdir, **more):
  """Starts the command on a node."""
  settings = _SETTINGS | more
  flags = [f'--config.{k}={x}' for k, x in settings.items()]
  return subprocess.Popen(
    cluster.command(
      number,
      [sys.executable, '-m', 'jaxemb', 'train', '--config=wiki',
       f'--workdir={workdir}', *flags],
    ),
    env=compiling.environment() | cluster.environment,
    stderr=subprocess.DEVNULL,  # the log has it
  )  # fmt: skip


def _wait(workdir, process, is_far):
  """Returns once something is true of the records so far."""
  path, deadline = workdir / 'metrics.jsonl', time.monotonic() + 150
  while time.monotonic() < deadline and process.poll() is None:
    records = metrics.read(path) if path.exists() else []
    if records and is_far(records):
      return
    time.sleep(0.05)
  pytest.fail(runs.log(workdir))


def _is_far(records):
  """Whether all nodes have trained, and a fifth of the run is done."""
  names = {x['hostname'] for y in records for x in y['hosts'] if x}
  has_all = names == {'node-0', 'node-1', 'node-2'}
  return has_all and records[-1]['epoch'] > _SETTINGS['train.epochs'] / 5


def test_a_run_outlives_one_of_three_machines(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  words = np.random.default_rng(0).zipf(1.3, (10_000, 20)) % 10_000
  np.savetxt('text.txt', words, 'w%d')
  private, workdir = tmp_path / 'private', pathlib.Path('run')
  private.mkdir()
  with _cluster(tmp_path / 'ray') as cluster:
    mount = 'mount', '-t', 'tmpfs', 'tmpfs', str(private)
    subprocess.run(cluster.command(2, mount), check=True)
    assert _start(cluster, 0, private).wait(100) == 2
    line = '10.77.0.3 of the Ray cluster does not see --workdir='
    assert line in runs.log(private)
    # Paths are those of the command, wherever Ray was started.
    process = _start(cluster, 0, workdir, **{'data.path': 'text.txt'})
    _wait(workdir, process, _is_far)
    cluster.kill(2)
    assert process.wait(200) == 0, runs.log(workdir)
  report, log = runs.report(workdir), runs.log(workdir)
  last = metrics.read(workdir / 'metrics.jsonl')[-1]
  assert last['words'] == report['corpus_words'] * _SETTINGS['train.epochs']
  assert report['workers']['replaced'] == 1
  assert re.search(r'worker \d ended .* had not pushed are lost', log)
  assert re.search(r'shard \d .* came back from its last snapshot: [\d,]+', log)


def test_without_its_head_a_run_ends_and_resumes_on_another(tmp_path):
  workdir = tmp_path / 'run'
  with _cluster(tmp_path / 'ray') as cluster:
    process = _start(cluster, 1, workdir)
    saved = workdir / 'checkpoints'
    _wait(workdir, process, lambda x: _is_far(x) and any(saved.glob('*')))
    cluster.kill(0)
    assert process.wait(100) == 75, runs.log(workdir)
    line = r'the head of the Ray cluster at .* has not answered .* resume$'
    assert re.search(line, runs.log(workdir).splitlines()[-1])
  with _cluster(tmp_path / 'ray') as cluster:
    process = _start(cluster, 0, workdir)
    assert process.wait(150) == 0, runs.log(workdir)
  assert 'resuming after ' in runs.log(workdir)
  last = metrics.read(workdir / 'metrics.jsonl')[-1]
  assert last['epoch'] == _SETTINGS['train.epochs']
