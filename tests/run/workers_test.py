"""Whole runs of workers on Ray: ended, stopped, in lockstep."""

import json
import os
import re
import signal
import threading
import time

import numpy as np
import orbax.checkpoint as ocp
import psutil
import pytest

from jaxemb import errors
from jaxemb.run import metrics
from jaxemb.workers import remote
from tests import runs

pytestmark = [pytest.mark.slow, pytest.mark.ray]

WORKERS = {
  'strategy.name': 'workers', 'strategy.num_workers': 2, 'mesh.data': 0,
  'train.epochs': 20, 'train.batch_words': 512, 'strategy.sync_every': 512,
  'train.log_every_secs': 0.0, 'model.dim': 8, 'train.threads': 0,
  'table.staleness': 0,
}  # fmt: skip


def _until(find):
  """What is found, once it is there."""
  deadline = time.monotonic() + 200  # before that of the whole test
  while not (found := find()) and time.monotonic() < deadline:
    time.sleep(0.02)
  assert found
  return found


def _meanwhile(workdir, do):
  """Does something once a third of the words are trained, in this start."""
  path = workdir / 'metrics.jsonl'
  num_before = len(metrics.read(path))

  def is_far():
    records = metrics.read(path)
    epochs = records[-1]['epoch'] if len(records) > num_before else 0
    return epochs > WORKERS['train.epochs'] / 3

  def wait():
    _until(is_far)
    do()

  thread = threading.Thread(target=wait)
  thread.start()
  return thread


def _kill(name, number=signal.SIGKILL, which=0):
  def find():
    children = psutil.Process().children(recursive=True)
    return [x for x in children if x.name().startswith(f'ray::{name}')]

  processes = sorted(_until(find), key=lambda x: x.pid)
  process = processes[which % len(processes)]
  os.kill(process.pid, number)
  return process


def _check_all_words(workdir):
  report = runs.report(workdir)
  last = metrics.read(workdir / 'metrics.jsonl')[-1]
  assert last['words'] == report['corpus_words'] * WORKERS['train.epochs']
  assert last['epoch'] == WORKERS['train.epochs']
  # A worker that started late may have found nothing left.
  trained = [x for x in report['hosts'] if x.get('rows_needed')]
  assert trained
  for host in trained:
    assert host['rows_needed'] >= host['rows_fetched'] > 0
    assert min(host['bytes_sent'], host['bytes_received'], host['words']) > 0
  return report


# Each lookup adds exactly 1 to the square sums of its row, and those of workers
# add up: what a run exports of them is how often each word was trained.
COUNTING = WORKERS | {
  'model.name': 'tests.counting:make', 'optimizer.name': 'adagrad',
  'model.dim': 1, 'data.sample': 0.0, 'table.staleness': 5,
  'strategy.num_workers': 3, 'train.checkpoint_every_secs': 2.0,
}  # fmt: skip


def _kill_often(workdir, names):
  """Kills a process of each name, in the first third of the rest of a run."""
  path = workdir / 'metrics.jsonl'
  num_before = len(metrics.read(path))

  def epoch():
    records = metrics.read(path)
    return records[-1]['epoch'] if len(records) > num_before else 0.0

  def run():
    first = _until(epoch)
    stretch = (COUNTING['train.epochs'] - first) / len(names) / 3
    for i, name in enumerate(names):
      _until(lambda: epoch() > first + (i + 1) * stretch)  # noqa: B023
      _kill(name, which=i)

  thread = threading.Thread(target=run)
  thread.start()
  return thread


def _lost(log):
  """Returns updates that may be lost, and words that are read again."""
  patterns = (
    r'([\d,]+) updates of rows that it had not pushed are lost',
    r'([\d,]+) updates of (?:rows since then|them) are lost',
    r'again; ([\d,]+) words that it had leased are read again',
  )
  return [
    sum(int(x.replace(',', '')) for x in re.findall(pattern, log))
    for pattern in patterns
  ]


@pytest.mark.parametrize(
  ('pace', 'num_workers'),
  [
    ({'strategy.pace': 'ssp', 'strategy.rounds_ahead': 4}, 2),
    (
      {
        'strategy.pace': 'bsp', 'strategy.sync_every': 0,
        'train.batch_words': 768,  # shares of whole chunks
      },
      3,
    ),
  ],
  ids=['ssp', 'bsp'],
)  # fmt: skip
def test_what_kills_lose_is_in_the_log(pace, num_workers, tmp_path):
  settings = COUNTING | pace
  # Without who deals out the text the run ends.
  thread = _kill_often(tmp_path, ['Worker', 'Actor', 'Coordinator'])
  line = r'^the coordinator of the workers has ended[^\n]*run the same'
  with pytest.raises(errors.LostError, match=line):
    runs.run(tmp_path, settings | {'strategy.num_workers': num_workers})
  thread.join()
  # Others are replaced.
  num_before = runs.log(tmp_path).count('is started again')
  thread = _kill_often(tmp_path, ['Worker', 'Actor', 'Worker'])
  assert runs.run(tmp_path, settings) == 0
  thread.join()
  report = _check_all_words(tmp_path)
  assert report['loss_per_example'] is not None
  assert report['workers']['most_missed_updates'] <= 5
  assert not list((tmp_path / 'store').glob('*'))
  log = runs.log(tmp_path)
  num_replaced = log.count('is started again') - num_before
  assert report['workers']['replaced'] == num_replaced > 0
  assert re.search('resuming after [^0]', log)
  _check_counts(tmp_path, *_lost(log))


def _check_counts(workdir, unpushed, of_shards, read_again):
  words = (workdir / 'export' / 'vocab.txt').read_text().split()
  expected = np.array(words[1::2], int) * COUNTING['train.epochs']
  arrays = ocp.PyTreeCheckpointer().restore(workdir / 'export' / 'orbax')
  missing = expected - arrays['optimizer']['vectors']['sum_squares']
  # What is read again had been pushed, or not.
  assert -read_again <= missing.sum() <= unpushed + of_shards


def test_lockstep_is_one_process(tmp_path):
  common = {
    'optimizer.max_duplicates': 0.0, 'optimizer.learning_rate': 0.01,
    'train.epochs': 1, 'train.fused': False, 'data.path': 'toywiki:20000',
    'train.batch_words': 32,  # two chunks: the text is cut for two workers
  }  # fmt: skip
  workers = {
    'strategy.pace': 'bsp', 'strategy.sync_every': 0, **common,
  }  # fmt: skip
  assert runs.run(tmp_path / 'workers', WORKERS | workers) == 0
  sync = {'strategy.name': 'sync', 'mesh.data': 2, 'model.dim': 8, **common}
  assert runs.run(tmp_path / 'sync', sync) == 0
  found = [
    np.load(tmp_path / x / 'export' / 'vectors.npy')
    for x in ('workers', 'sync')
  ]
  steps = metrics.read(tmp_path / 'sync' / 'metrics.jsonl')[-1]['step']
  assert steps > 100
  np.testing.assert_allclose(*found, atol=1e-5)


def test_who_is_suspended_is_one_line_and_who_waits_for_a_cpu(
  tmp_path, monkeypatch
):
  held, found = remote.Cluster(address='local'), []
  assert held.num_cpus() == (1, 1)

  def suspend():
    # Not before: what starts may take longer.
    monkeypatch.setattr(remote, 'CALL_SECS', 5)
    monkeypatch.setattr(remote, '_FILE_BYTES_PER_SEC', 1e9)
    found.append(_kill('Actor', signal.SIGSTOP))

  thread = _meanwhile(tmp_path, suspend)
  line = r'^shard 0 of the tables has not answered[^\n]*run the same'
  try:
    # It is not the run's own Ray.
    with pytest.raises(errors.UserError, match=line):
      runs.run(tmp_path, WORKERS)
  finally:
    held.close()
    thread.join()
  found[0].wait(20)  # suspended or not, it does not stay
  told = '1 of 2 workers wait for a CPU: the cluster has 1, of which 1 are free'
  assert told in runs.log(tmp_path)


CLICKS = {
  'data.source': 'clicks', 'data.path': 'toyclicks:4000', 'mesh.data': 0,
  'data.min_count': 1, 'strategy.name': 'workers', 'model.name': 'wide_deep',
  'strategy.num_workers': 2, 'strategy.sync_every': 256, 'model.hidden': '8',
  'model.dim': 4, 'train.batch_examples': 64, 'optimizer.name': 'adam_full',
  'optimizer.learning_rate': 0.003, 'optimizer.final_learning_rate': 0.003,
  'train.epochs': WORKERS['train.epochs'], 'train.log_every_secs': 0.0,
  'eval.every_epochs': 4.0, 'train.patience': 3, 'train.threads': 0,
  'eval.paths': '', 'data.sample': -1.0,
}  # fmt: skip


def test_workers_of_clicks_are_stopped_and_go_on(tmp_path):
  stop = _meanwhile(tmp_path, lambda: os.kill(os.getpid(), signal.SIGTERM))
  assert runs.run(tmp_path, CLICKS) == 75
  stop.join()
  lines = (tmp_path / 'evaluation.jsonl').read_text().splitlines()
  before = list(map(json.loads, lines))
  assert runs.run(tmp_path, CLICKS | {'strategy.num_workers': 3}) == 0
  report, log = runs.report(tmp_path), runs.log(tmp_path)
  assert 'resuming after ' in log
  assert report['evaluation']['validation']['auc'] > 0.55
  # Evaluations go on where they were, and end the run or come to its end.
  evaluations = report['evaluations']
  assert evaluations[: len(before)] == before
  epochs = [x['epoch'] for x in evaluations]
  assert epochs == sorted(epochs)
  has_ended = 'early stopping' in log
  assert has_ended or epochs[-1] == WORKERS['train.epochs']
  assert report['workers']['dense_bytes'] > 0


def test_rounds_of_dense_parameters_in_lockstep_are_steps(tmp_path):
  more = {'strategy.pace': 'bsp', 'strategy.sync_every': 4096}
  line = runs.refused(tmp_path, CLICKS | more)
  start = 'config.strategy.sync_every=4096 is more than one step'
  assert line.startswith(start)
