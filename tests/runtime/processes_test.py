"""Real processes on loopback that train as one."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent import futures

import jax
import numpy as np
import pytest

from jaxemb import errors
from jaxemb.runtime import processes
from tests import compiling

ROOT = pathlib.Path(__file__).parents[2]
FLAGS = [
  f'--config={ROOT}/configs/wiki.py:smoke',
  '--config.strategy.name=sync',
  '--config.eval.paths=none',
  '--config.train.batch_words=256',
  '--config.train.checkpoint_every_secs=0',
  '--config.train.checkpoints_to_keep=9',
  '--config.data.parts=4',
]


def _environment(devices):
  flags = f'--xla_force_host_platform_device_count={devices}'
  path = os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')])
  return compiling.environment(flags) | {
    'JAX_PLATFORMS': 'cpu',
    'PYTHONPATH': path,
  }


def _text(folder):
  """Plain text, which processes read by ranges."""
  rng = np.random.default_rng(0)
  path = folder / 'text.txt'
  words = rng.zipf(1.3, 60_000) % 500
  lines = np.split(words, range(20, len(words), 20))
  path.write_text('\n'.join(' '.join(f'w{w}' for w in x) for x in lines))
  return path


def _alone(flags, devices):
  command = [sys.executable, '-m', 'jaxemb.main', *flags]
  return subprocess.run(
    command, env=_environment(devices), capture_output=True, text=True
  )


def _start(flags, port, per_process=((), ()), program=('-m', 'jaxemb.main')):
  """Processes of two devices, as many as have flags of their own."""
  return [
    subprocess.Popen(
      [
        sys.executable, *program, *flags, *own,
        f'--coordinator=127.0.0.1:{port}',
        f'--num_processes={len(per_process)}', f'--process_id={i}',
      ],
      env=_environment(2), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
      text=True,
    )
    for i, own in enumerate(per_process)
  ]  # fmt: skip


def _free_port():
  import socket

  with socket.create_server(('127.0.0.1', 0)) as server:
    return server.getsockname()[1]


def _together(flags, per_process=((), ())):
  """(exit code, output) of each."""
  all_ = _start(flags, _free_port(), per_process)
  outputs = [p.communicate(timeout=300)[0] for p in all_]
  return [(p.returncode, text) for p, text in zip(all_, outputs, strict=True)]


def _without_last_checkpoint(workdir, copy):
  """A folder that looks as if its run had been stopped."""
  first, last = sorted(int(x.name) for x in (workdir / 'checkpoints').iterdir())
  assert 0 < first < last
  shutil.copytree(workdir, copy)
  shutil.rmtree(copy / 'checkpoints' / str(last))
  shutil.rmtree(copy / 'export')


def _vectors(workdir):
  return np.load(workdir / 'export' / 'vectors.npy')


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A folder with one run of a process, and its settings."""
  folder = tmp_path_factory.mktemp('processes')
  flags = [
    *FLAGS,
    f'--config.data.path={_text(folder)}',
    f'--config.data.cache={folder}/cache',
  ]
  done = _alone([*flags, f'--workdir={folder}/one', '--config.mesh.data=4'], 4)
  assert done.returncode == 0, done.stderr
  return folder, flags


def test_two_processes_learn_what_one_does(trained):
  folder, flags = trained
  two = folder / 'two'
  for code, text in _together([*flags, f'--workdir={two}']):
    assert code == 0, text
  one = _vectors(folder / 'one')
  np.testing.assert_allclose(_vectors(two), one, 1e-5, 1e-5)
  # Each has read its own ranges of the file: together, the file.
  read = []
  for name in ('log.txt', 'log-1.txt'):
    log = (two / name).read_text()
    read.append(int(re.search(r'read ([\d,]+) of', log)[1].replace(',', '')))
  size = (folder / 'text.txt').stat().st_size
  assert sum(read) == size and max(read) < 0.7 * size
  # One process goes on where two were.
  resumed = folder / 'resumed'
  _without_last_checkpoint(two, resumed)
  done = _alone([*flags, f'--workdir={resumed}', '--config.mesh.data=2'], 2)
  assert done.returncode == 0 and 'resuming' in done.stderr, done.stderr
  np.testing.assert_allclose(_vectors(resumed), one, 1e-5, 1e-5)


def test_two_processes_go_on_where_one_was(trained):
  folder, flags = trained
  resumed = folder / 'resumed-by-two'
  _without_last_checkpoint(folder / 'one', resumed)
  for code, text in _together([*flags, f'--workdir={resumed}']):
    assert code == 0, text
  assert 'resuming behind' in (resumed / 'log.txt').read_text()
  one = _vectors(folder / 'one')
  np.testing.assert_allclose(_vectors(resumed), one, 1e-5, 1e-5)


@pytest.mark.parametrize(('layout', 'num'), [('row', 2), ('column', 3)])
def test_tables_are_split_over_processes(trained, layout, num):
  folder, flags = trained
  workdir = folder / layout
  flags = [
    *flags,
    f'--config.table.layout={layout}',
    '--config.mesh.data=1',
    f'--config.mesh.table={2 * num}',
    f'--workdir={workdir}',
  ]
  for code, text in _together(flags, [()] * num):
    assert code == 0, text
  one = _vectors(folder / 'one')
  np.testing.assert_allclose(_vectors(workdir), one, 1e-5, 1e-5)


@pytest.mark.parametrize('victim', [0, 1])
def test_a_killed_process_ends_the_other_and_a_restart_resumes(trained, victim):
  folder, flags = trained
  workdir = folder / f'killed-{victim}'
  flags = [*flags, f'--workdir={workdir}', '--config.train.epochs=500']
  both = _start(flags, _free_port())
  deadline = time.monotonic() + 200
  while len(list((workdir / 'checkpoints').glob('[0-9]*'))) < 2:
    assert time.monotonic() < deadline and both[0].poll() is None
    time.sleep(0.2)
  both[victim].send_signal(signal.SIGKILL)
  start = time.monotonic()
  text = both[1 - victim].communicate(timeout=60)[0]
  assert time.monotonic() - start < 60
  assert both[1 - victim].returncode == 2
  told = [x for x in text.splitlines() if x.startswith('jaxemb:')]
  assert len(told) == 1 and 'start all processes again' in told[0], text
  both[victim].communicate()
  # The next start finds what was saved.
  again = _start(flags, _free_port())
  while 'resuming behind' not in (workdir / 'log.txt').read_text():
    assert time.monotonic() < deadline + 100 and again[0].poll() is None
    time.sleep(0.2)
  for process in again:
    process.send_signal(signal.SIGTERM)
  for process in again:
    text = process.communicate(timeout=120)[0]
    assert process.returncode == 75, text


@pytest.mark.parametrize('told', [[0], [1], [0, 1]])
def test_a_process_told_to_stop_before_training_stops_all(tmp_path, told):
  path = tmp_path / 'text.txt'
  line = ' '.join(f'w{i % 5000}' for i in range(20_000)) + '\n'
  path.write_text(200 * line)  # takes seconds to encode
  workdir = tmp_path / 'run'
  flags = [
    *FLAGS,
    f'--config.data.path={path}',
    f'--config.data.cache={tmp_path}/cache',
    f'--workdir={workdir}',
  ]
  both = _start(flags, _free_port())
  deadline = time.monotonic() + 100
  log = workdir / 'log.txt'
  while not (log.exists() and 'process 1 of 2' in log.read_text()):
    assert time.monotonic() < deadline and both[0].poll() is None
    time.sleep(0.05)
  for i in told:
    both[i].send_signal(signal.SIGTERM)
  for process in both:
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 75, text
    assert 'Traceback' not in text


def test_a_name_that_is_loopback_here_is_listened_to_on_all_addresses(
  monkeypatch,
):
  assert processes.own_address('127.0.0.1:80') == '127.0.0.1:80'
  assert processes.own_address('localhost:80') == 'localhost:80'
  address = '127.0.1.1'
  monkeypatch.setattr(processes.socket, 'gethostbyname', lambda name: address)
  assert processes.own_address('here:80') == '0.0.0.0:80'
  address = '10.0.0.7'
  assert processes.own_address('here:80') == 'here:80'


def test_other_settings_are_refused_and_named(trained):
  folder, flags = trained
  flags = [*flags, f'--workdir={folder}/refused']
  results = _together(flags, ((), ('--config.optimizer.learning_rate=0.07',)))
  codes = [code for code, _ in results]
  assert codes == [2, 2], results
  assert any(
    'optimizer.learning_rate' in text and '0.07' in text for _, text in results
  )


def test_folders_that_are_not_one_are_refused(trained):
  folder, flags = trained
  workdirs = [(f'--workdir={folder}/mine',), (f'--workdir={folder}/other',)]
  results = _together(flags, workdirs)
  assert [code for code, _ in results] == [2, 2], results
  assert any('--workdir' in text for _, text in results)
  assert not (folder / 'mine' / 'checkpoints').exists()


_SLOW = """
import sys, time
from jaxemb import (main, results)
from jaxemb.runtime import processes
processes.WAIT_SECS = 5  # that JAX waits for others when a process ends
write = results.write
def slow(*args, **more):
  time.sleep(12)
  write(*args, **more)
results.write = slow
main._exit(main.main(['main', *sys.argv[1:]]))
"""


def test_results_may_take_longer_than_processes_wait(trained):
  folder, flags = trained
  port, workdir = _free_port(), folder / 'slow'
  flags = [*flags, f'--workdir={workdir}']
  both = _start(flags, port, program=('-c', _SLOW))
  for process in both:
    text = process.communicate(timeout=300)[0]
    assert process.returncode == 0, text
  assert _vectors(workdir).shape[1] == 16


def test_a_coordinator_that_does_not_answer_is_told(monkeypatch):
  monkeypatch.setattr(processes, 'WAIT_SECS', 1)
  address = f'127.0.0.1:{_free_port()}'
  place = processes.Place(address, 2, 1, False)
  with pytest.raises(errors.UserError) as caught:
    processes.start(place)
  assert address in str(caught.value) and '\n' not in str(caught.value)
  with pytest.raises(errors.UserError, match='--process_id=2'):
    processes.start(processes.Place(address, 2, 2, False))


def test_alone_a_process_agrees_with_itself():
  assert processes.gather(b'x') == [b'x']
  processes.agree('test', {'a': 1}, 'setting')
  decisions = processes.Decisions('test')
  assert decisions.next(False, False) == processes.GO_ON
  assert decisions.next(False, True) == processes.SAVE
  assert decisions.next(True, True) == processes.STOP
  assert processes.latest('hosts', {'x': 1}) == [{'x': 1}]


def _gathered(monkeypatch, messages):
  """What `gather` makes of them in each process, as threads."""
  num = len(messages)
  barrier = threading.Barrier(num)
  rows = {}
  sizes = []

  def allgather(row):
    # JAX has no wider numbers unless told so.
    row = row.astype(jax.dtypes.canonicalize_dtype(row.dtype))
    sizes.append(len(row))
    rows[threading.get_ident()] = row
    barrier.wait(60)
    found = np.stack([rows[i] for i in idents])
    barrier.wait(60)
    return found

  def member(index):
    idents[index] = threading.get_ident()
    barrier.wait(60)
    return processes.gather(messages[index])

  idents = [0] * num
  monkeypatch.setattr(processes, 'num', lambda: num)
  monkeypatch.setattr(processes.multihost_utils, 'process_allgather', allgather)
  with futures.ThreadPoolExecutor(num) as pool:
    return list(pool.map(member, range(num))), sizes


@pytest.mark.parametrize('lengths', [(0, 0), (1, 0), (9, 10, 11), (95, 3, 40)])
def test_bytes_of_any_length_are_gathered_by_messages(monkeypatch, lengths):
  monkeypatch.setattr(processes, '_MESSAGE_BYTES', 10)
  rng = np.random.default_rng(0)
  messages = [rng.bytes(length) for length in lengths]
  found, sizes = _gathered(monkeypatch, messages)
  assert found == [messages] * len(lengths)
  num_messages = -(-max(lengths) // 10)
  assert sorted(sizes) == [8] * len(found) + [10] * len(found) * num_messages


def test_lengths_beyond_32_bits_are_gathered(monkeypatch):
  class Long(bytes):
    """Its end is beyond what is asked for."""

    def __len__(self):
      return 5 << 30

  asked = []

  def starts(*args):
    asked.append(args)
    return []

  monkeypatch.setattr(processes, 'range', starts, raising=False)
  _gathered(monkeypatch, [Long(b'x'), b'y'])
  assert asked == [(0, 5 << 30, processes._MESSAGE_BYTES)] * 2


_GATHER = """
import sys
from jaxemb.runtime import processes
index = int(sys.argv[2])
processes.start(processes.Place(sys.argv[1], 2, index, False))
lengths = (5 << 19, 7)
messages = [bytes([i + 1]) * length for i, length in enumerate(lengths)]
assert processes.gather(messages[index]) == messages
assert processes.gather(b'') == [b'', b'']
print('alike')
"""


def test_two_processes_gather():
  address = f'127.0.0.1:{_free_port()}'
  both = [
    subprocess.Popen(
      [sys.executable, '-c', _GATHER, address, str(i)],
      cwd=ROOT,
      env=_environment(2),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for i in range(2)
  ]
  for process in both:
    text = process.communicate(timeout=300)[0]
    assert process.returncode == 0 and 'alike' in text, text


_AGREE = """
import jax
from jaxemb.runtime import processes
processes.start(processes.ALONE)
processes.agree('settings', {'a': 1}, 'setting')
assert processes.file_name('log.txt') == 'log.txt' and processes.is_first()
jax.config.update('jax_num_cpu_devices', 3)  # fails once JAX has started
print(len(jax.devices()))
"""


def test_devices_can_be_chosen_after_the_processes_agree():
  done = subprocess.run(
    [sys.executable, '-c', _AGREE],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout == '3\n'
