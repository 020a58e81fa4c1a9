"""Real processes on loopback that train as one."""

import functools
import json
import os
import pathlib
import re
import shutil
import signal
import threading
import time
from multiprocessing import connection

import jax
import numpy as np
import psutil
import pytest

from jaxemb import __main__ as jaxemb_command
from jaxemb import errors
from jaxemb.cli import train as main
from jaxemb.kernels import ffi
from jaxemb.kernels.cpu import step as native
from jaxemb.run import lifecycle as train
from jaxemb.run import results
from jaxemb.runtime import distributed
from tests import forked, forks
from tests.runtime import addresses_test

ROOT = pathlib.Path(__file__).parents[2]
FLAGS = [
  'train',
  f'--config={ROOT}/configs/wiki.py:smoke',
  '--config.strategy.name=sync',
  '--config.eval.paths=none',
  '--config.train.batch_words=512',
  '--config.train.checkpoint_every_secs=0',
]


def _in_four_parts():
  """As many parts of the corpus whatever the mesh: the same steps."""
  train.run = functools.partial(train.run, parts=4)


def _start(flags, own=((), ()), before=_in_four_parts, devices=2):
  """Starts as many processes as have flags of their own, as one job."""
  (workdir,) = (x for x in flags if x.startswith('--workdir='))
  folder = pathlib.Path(workdir.partition('=')[2])
  folder = folder.with_name(f'{folder.name}-started')
  before = functools.partial(_begin, before, devices)
  return forks.start(flags, folder, len(own), own=own, before=before)


def _begin(before, devices):
  jax.config.update('jax_num_cpu_devices', devices)
  before()


def _fork(run, *arguments):
  """Starts a process of a function with each tuple of arguments."""
  processes = [forks.server().Process(target=run, args=x) for x in arguments]
  for process in processes:
    process.start()
  return processes


def _codes(processes):
  for process in processes:
    process.join(300)
  return [x.exitcode for x in processes]


def _run_here(flags):
  """Trains in this process, which has 8 devices, in as many parts."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(train, 'run', functools.partial(train.run, parts=4))
    assert jaxemb_command.main(flags) == 0


def _check(job, code=0, secs=300, others=()):
  """Waits for processes to exit with a code; returns what they said.

  All but one may have a code of `others`.
  """
  codes, said = job.wait(secs)
  assert code in codes and set(codes) <= {code, *others}, said
  return job.said()


def _wait_until(condition, job=None):
  deadline = time.monotonic() + 200
  while not condition():
    assert time.monotonic() < deadline
    assert not job or job.is_running(), job.said()
    time.sleep(0.02)


def _without_last_checkpoint(workdir, copy):
  """Makes a folder that looks as if its run had been stopped."""
  first, last = sorted(int(x.name) for x in (workdir / 'checkpoints').iterdir())
  assert 0 < first < last
  shutil.copytree(workdir, copy)
  shutil.rmtree(copy / 'checkpoints' / str(last))
  shutil.rmtree(copy / 'export')
  return copy


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A folder with a run of one process, and its settings."""
  folder = tmp_path_factory.mktemp('processes')
  rng = np.random.default_rng(0)
  words = rng.zipf(1.3, 60_000) % 500
  lines = np.split(words, range(20, len(words), 20))
  text = '\n'.join(' '.join(f'w{w}' for w in x) for x in lines)
  (folder / 'text.txt').write_text(text)  # plain: processes read byte ranges
  flags = [*FLAGS, f'--config.data.path={folder}/text.txt']
  _run_here([*flags, f'--workdir={folder}/one', '--config.mesh.data=4'])
  return folder, flags


def _check_same(workdir, folder):
  """Compares the vectors of a run with those of one process."""
  ours, theirs = (
    np.load(x / 'export' / 'vectors.npy') for x in (workdir, folder / 'one')
  )
  np.testing.assert_allclose(ours, theirs, 1e-5, 1e-5)


def _join_agree_and_stop(host, port, i):
  distributed.join(distributed.Job(f'{host}:{port}', 2, i))
  monitor = distributed.Monitor()
  distributed.agree('setting', {'a': 1})
  jax.config.update('jax_num_cpu_devices', 3)  # fails once JAX has started
  assert jax.local_device_count() == 3 and jax.device_count() == 6
  messages = [bytes([k + 1]) * size for k, size in enumerate((5 << 19, 7))]
  assert distributed.gather(messages[i]) == messages
  assert distributed.gather(b'') == [b'', b'']
  for names in (['p0', 'p1'], ['again-0', 'again-1']):
    assert distributed.everyone('names', names[i]) == names
  assert distributed.latest('hosts', {'i': i})[i] == {'i': i}
  assert distributed.latest('hosts', {'i': i}, True) == [{'i': 0}, {'i': 1}]
  assert distributed.decide(0, False, not i) == distributed.SAVE
  if i:  # a signal that only one process gets reaches the other
    monitor.request_stop()
  assert monitor.stop.wait(30)
  assert distributed.decide(100, not i, False) == distributed.STOP
  distributed.from_first('end')
  monitor.close(distributed.STOPPED)
  distributed.leave(distributed.STOPPED)


@pytest.mark.slow
@pytest.mark.parametrize('host', ['127.0.0.1', '[::1]'])
def test_two_processes_join_agree_and_stop(host):
  if host == '[::1]' and not addresses_test.has_ipv6():
    pytest.skip('this machine has no IPv6')
  port = forked.free_port()
  both = _fork(_join_agree_and_stop, (host, port, 0), (host, port, 1))
  assert _codes(both) == [distributed.STOPPED] * 2


def _end_when_told(port, num, i, code, told):
  """Joins, and ends with a code when told; None = waits for the others."""
  distributed.join(distributed.Job(f'127.0.0.1:{port}', num, i))
  monitor = distributed.Monitor()
  distributed.everyone('begun', '')
  (told / f'{i}').touch()
  while code is None or not (told / 'end').exists():
    time.sleep(0.02)
  monitor.close(None if code == 2 else code)
  if code:
    time.sleep(i == num - 1)
    distributed.leave(code)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('asked', 'expected'),
  [
    ((2, None), [2, 75]),
    ((75, 75), [75, 75]),
    ((None, 2), [75, 2]),
    ((None, -9, None), [75, -9, 75]),
  ],
)
def test_who_is_late_to_end_is_waited_for(tmp_path, asked, expected):
  """JAX aborts those that are left when process 0 is gone."""
  port, num = forked.free_port(), len(asked)
  processes = _fork(
    _end_when_told,
    *(
      (port, num, i, None if code == -9 else code, tmp_path)
      for i, code in enumerate(asked)
    ),
  )
  _wait_until(lambda: len(list(tmp_path.iterdir())) == num)
  last = psutil.Process(processes[-1].pid)
  last.suspend()
  (tmp_path / 'end').touch()
  for process, code in zip(processes, asked, strict=True):
    if code == -9:
      process.kill()
  time.sleep(1.5)  # longer than process 0 waits for a reason
  last.resume()
  assert _codes(processes) == expected


def _end_after_all(port, i, told):
  distributed.join(distributed.Job(f'127.0.0.1:{port}', 2, i))
  monitor = distributed.Monitor()
  if not i:
    monitor._are_done.wait()
    told.touch()
    time.sleep(30)  # writes results
  monitor.close(0)


@pytest.mark.slow
def test_who_is_lost_while_the_first_writes_is_noticed(tmp_path):
  """JAX would wait ten minutes for it to leave, and then abort."""
  port, told = forked.free_port(), tmp_path / 'told'
  first, other = _fork(_end_after_all, (port, 0, told), (port, 1, told))
  _wait_until(told.exists)
  other.kill()
  first.join(20)
  assert first.exitcode == distributed.STOPPED


def _end_together(port, num, i, told):
  with (told / f'said-{i}').open('wb') as file:
    os.dup2(file.fileno(), 2)
  distributed.join(distributed.Job(f'127.0.0.1:{port}', num, i))
  monitor = distributed.Monitor()
  distributed.everyone('begun', '')
  (told / f'begun-{i}').touch()
  time.sleep(0.05)
  monitor.close(0)


@pytest.mark.slow
@pytest.mark.parametrize('num', [2, 3])
def test_a_kill_at_any_moment_of_the_farewell_aborts_nobody(tmp_path, num):
  rng = np.random.default_rng(num)
  for k in range(8):
    told = tmp_path / str(k)
    told.mkdir()
    port, victim = forked.free_port(), k % num
    arguments = [(port, num, i, told) for i in range(num)]
    processes = _fork(_end_together, *arguments)
    _wait_until(lambda told=told: len(list(told.glob('begun-*'))) == num)
    time.sleep(rng.uniform(0.04, 0.1))
    processes[victim].kill()
    codes = _codes(processes)
    assert codes.pop(victim) in (0, -signal.SIGKILL)
    # Who has not left by then cannot, although all results are written.
    for i, code in zip(set(range(num)) - {victim}, codes, strict=True):
      said = (told / f'said-{i}').read_text()
      assert code in (0, 75)
      assert said.count('\n') == (code == 75), said
      assert not code or said.startswith('jaxemb: process ')


def test_process_0_ends_when_the_others_have(monkeypatch):
  """Of a lost process; not after so many seconds."""
  monitor, told = distributed.Monitor(), []
  (first, lost), (second, other) = connection.Pipe(), connection.Pipe()
  monitor._peers = {first: 1, second: 2}
  lost.close()

  def end():
    told.append(other.recv_bytes())
    other.close()

  monkeypatch.setattr(distributed, '_GRACE_SECS', 60)
  monkeypatch.setattr(distributed.os, '_exit', told.append)
  threading.Thread(target=end).start()
  start = time.monotonic()
  monitor._lost(first, {second})
  assert told == [distributed._FAILED, distributed.STOPPED]
  assert time.monotonic() - start < 20


def test_a_signal_to_stop_waits_for_no_connection():
  """Its handler may have interrupted what holds the lock of one."""
  monitor, (peer, other) = distributed.Monitor(), connection.Pipe()
  monitor._peers, monitor._listener = {peer: 1}, threading.Thread()
  monitor._listener.start()
  monitor.request_stop()
  assert monitor.stop.is_set() and not other.poll()
  monitor.has_begun.set()
  monitor.close(distributed.STOPPED)
  monitor._await_stop()  # which its thread does
  messages = [other.recv_bytes() for _ in range(2)]
  assert messages == [distributed._STOP, distributed._BYE]
  assert not other.poll()


def _join_alone(port):
  distributed.WAIT_SECS = 1
  distributed.join(distributed.Job(f'127.0.0.1:{port}', 2, 0))


@pytest.mark.slow
def test_who_waits_for_one_that_never_joins_ends_to_be_started_again():
  # JAX would abort.
  codes = _codes(_fork(_join_alone, (forked.free_port(),)))
  assert codes == [distributed.STOPPED]


def test_a_coordinator_that_does_not_answer_is_reported(monkeypatch):
  monkeypatch.setattr(distributed, 'WAIT_SECS', 1)
  with pytest.raises(errors.UserError) as caught:
    distributed.join(distributed.Job('127.0.0.1:9', 2, 1))
  assert '127.0.0.1:9' in str(caught.value) and '\n' not in str(caught.value)


def _with_slow_results():
  _in_four_parts()
  write = results.write
  distributed.WAIT_SECS = 5  # that JAX waits for others when a process ends

  def slow(*args, **more):
    time.sleep(7)
    write(*args, **more)

  results.write = slow


@pytest.mark.slow
def test_two_processes_learn_what_one_does(trained):
  folder, flags = trained
  two = folder / 'two'
  # Results may take longer than processes wait.
  _check(_start([*flags, f'--workdir={two}'], before=_with_slow_results))
  _check_same(two, folder)
  # Each has read its own ranges of the file: together, the file.
  read = []
  for name in ('log.txt', 'log-1.txt'):
    log = (two / name).read_text()
    read.append(int(re.search(r'read ([\d,]+) of', log)[1].replace(',', '')))
  size = (folder / 'text.txt').stat().st_size
  assert sum(read) == size and max(read) < 0.7 * size
  # One process continues what two have begun, and two what one has begun.
  resumed = _without_last_checkpoint(two, folder / 'by-one')
  _run_here([*flags, f'--workdir={resumed}', '--config.mesh.data=2'])
  again = _without_last_checkpoint(folder / 'one', folder / 'by-two')
  _check(_start([*flags, f'--workdir={again}']))
  for workdir in (resumed, again):
    assert 'resuming' in (workdir / 'log.txt').read_text()
    _check_same(workdir, folder)


@pytest.mark.slow
def test_tables_are_split_over_processes(trained):
  folder, flags = trained
  split = [
    '--config.table.layout=row',
    '--config.mesh.data=1',
    '--config.mesh.table=4',
    f'--workdir={folder}/row',
  ]
  _check(_start([*flags, *split]))
  _check_same(folder / 'row', folder)


@pytest.mark.slow
def test_a_killed_process_ends_the_other_and_a_restart_resumes(trained):
  folder, flags = trained
  workdir = folder / 'killed'
  flags = [*flags, f'--workdir={workdir}', '--config.train.epochs=500']
  saved, log = workdir / 'checkpoints', workdir / 'log.txt'
  for starts, victim in enumerate([1, 0]):
    both = _start(flags)
    _wait_until(
      lambda n=starts: n == 0 or log.read_text().count('resuming') == n, both
    )
    steps = {x.name for x in saved.glob('[0-9]*')}
    _wait_until(
      lambda old=steps: len({x.name for x in saved.glob('[0-9]*')} - old) >= 2,
      both,
    )
    both.send(signal.SIGKILL, victim)
    start = time.monotonic()
    codes, _ = both.wait(60)
    assert time.monotonic() - start < 15
    assert codes[victim] == -signal.SIGKILL and codes[1 - victim] == 75
    output = both.said()[1 - victim]
    lines = [x for x in output.splitlines() if x.startswith('jaxemb:')]
    assert len(lines) == 1 and 'start all processes again' in lines[0], output
    assert 'Traceback' not in output and 'Check failure' not in output
  again = _start(flags)
  _wait_until(lambda: log.read_text().count('resuming') == 2, again)
  again.send(signal.SIGTERM, 1)  # all save and stop
  output, _ = _check(again, 75, 120)
  assert 'stopped and saved at step' in output


@pytest.mark.slow
def test_large_tables_are_read_as_they_were_saved(trained):
  folder, flags = trained
  workdir = folder / 'large'
  # Sums of over a million numbers take so long that others could overtake them.
  flags = [*flags, f'--workdir={workdir}', '--config.model.dim=1200']
  flags += ['--config.strategy.name=replicas', '--config.train.epochs=500']
  log = workdir / 'log.txt'
  for text in 'first step', 'resuming after':
    both = _start(flags)
    _wait_until(lambda x=text: log.exists() and x in log.read_text(), both)
    both.send(signal.SIGTERM, 0)  # all save and stop
    output, _ = _check(both, 75, 120)
    assert 'stopped and saved at step' in output


@pytest.mark.slow
@pytest.mark.parametrize(
  'flag', ['--config.optimizer.learning_rate=0.07', '--workdir={}/other']
)
def test_other_settings_and_folders_are_refused_and_named(trained, flag):
  folder, flags = trained
  flags = [*flags, f'--workdir={folder}/refused']
  started = _start(flags, ((), (flag.format(folder),)))
  # Who has not heard why the other refused is told that it is gone.
  outputs = _check(started, 2, others=[75])
  name = flag.partition('=')[0].removeprefix('--config.')
  assert any(f': {name} is ' in x for x in outputs), outputs
  assert not (folder / 'refused' / 'checkpoints').exists()


def test_a_process_is_of_one_job(monkeypatch):
  """JAX leaves a job, but keeps its devices."""
  state = distributed.jax_distributed.global_state
  monkeypatch.setattr(state, 'coordinator_address', '127.0.0.1:9')
  with pytest.raises(errors.UserError, match='start a new process'):
    distributed.join(distributed.ALONE)


def test_a_bug_does_not_wait_for_the_others(monkeypatch, capsys):
  """While Python ends, JAX would, for ten minutes."""
  left = []

  def fail(*unused):
    raise ZeroDivisionError('a bug')

  monkeypatch.setattr(main, '_run', fail)
  monkeypatch.setattr(distributed, 'num_processes', lambda: 2)
  monkeypatch.setattr(distributed, 'leave', left.append)
  main.main([])
  assert left == [1]
  assert 'ZeroDivisionError: a bug' in capsys.readouterr().err


def _without_a_kernel_in_process_1():
  make = native.make

  def made(*args, **more):
    if distributed.process_id():
      raise ffi.Unavailable('no such thing')
    return make(*args, **more)

  native.make = made
  # Processes agree whether devices hold the text.
  train.run = functools.partial(train.run, device_words=1 << 20)


@pytest.mark.slow
def test_without_the_kernel_of_one_process_all_go_on_without(trained):
  folder, flags = trained
  workdir = folder / 'not-fused'
  own = [f'--workdir={workdir}', '--config.strategy.name=replicas']
  own += ['--config.train.epochs=1']
  job = _start([*flags, *own], before=_without_a_kernel_in_process_1, devices=1)
  said, _ = _check(job)
  assert 'steps are not fused, and slower: no such thing' in said
  assert 'batches are made on the device, which holds all' in said
  config = json.loads((workdir / 'config.json').read_text())
  assert not config['tuning']['fused']


@pytest.mark.slow
def test_what_each_process_does_is_reported(trained):
  folder, flags = trained
  workdir = folder / 'reported'
  own = [f'--workdir={workdir}', '--config.strategy.name=replicas']
  own += ['--config.train.fused=false', '--config.train.batch_words=2048']
  own += ['--config.train.checkpoint_every_secs=600', '--config.train.epochs=1']
  _check(_start([*flags, *own]))
  report = json.loads((workdir / 'report.json').read_text())
  hosts, staleness = report['hosts'], report['staleness']
  words = [x['words'] for x in hosts]
  assert sum(words) == report['corpus_words'] and min(words) > 0.3 * sum(words)
  assert hosts[0]['synchronisations'] == hosts[1]['synchronisations'] > 0
  # Headers come on top, and whatever else is sent on this machine.
  sent_bytes = sum(x['collective_bytes'] for x in hosts)
  assert hosts[0]['loopback_sent_bytes'] > sent_bytes > 0
  assert 0 < staleness['mean_words'] <= staleness['max_words']
  assert staleness['max_words'] <= staleness['bound_words']


def test_a_signal_within_the_handler_of_another_requests_nothing_more():
  requests = []

  def request_stop():
    requests.append(1)
    if len(requests) < 3:
      signal.raise_signal(signal.SIGTERM)

  with distributed.stopping_on_signals(request_stop):
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGTERM)
  assert requests == [1]
