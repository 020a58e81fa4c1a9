"""Several processes as one job: output, exit codes, signals; programs are fake.

Each is Python code that finds its number in `i` and its flags in `flags`.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
from unittest import mock

import pytest

from jaxemb.cli import launch
from jaxemb.runtime import resources

_ROOT = pathlib.Path(__file__).parents[2]
_LAUNCH = """
import signal, sys
# Whatever the tests run under.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
from jaxemb.runtime import launch
"""
_BEGIN = """
import json, os, signal, socket, sys, time
flags = dict(x[2:].split('=', 1) for x in sys.argv[1:])
i = int(flags['process_id'])
got = []
def catch(*numbers):
  for number in numbers:
    signal.signal(number, lambda got_, _: got.append(got_))
def wait(secs=60):
  end = time.monotonic() + secs
  while not got and time.monotonic() < end:
    time.sleep(0.01)
def meet():
  open(os.path.join(os.environ['FOLDER'], str(i)), 'w').close()
  while len(os.listdir(os.environ['FOLDER'])) < int(flags['num_processes']):
    time.sleep(0.01)
"""


def _start(
  code, n=2, arguments=(), grace_secs=30.0, cores=(), **environment
) -> subprocess.Popen:
  options = {
    'devices': 4,
    'command': (sys.executable, '-c', _BEGIN + code),
    'grace_secs': grace_secs,
    'cores': cores,
  }
  call = f'launch.run({arguments}, {n}, **{options})'
  return subprocess.Popen(
    [sys.executable, '-c', f'{_LAUNCH}sys.exit({call})'],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    env=os.environ | {k: str(v) for k, v in environment.items()},
    cwd=_ROOT,
    start_new_session=True,  # a group of its own, as in a terminal
  )


def _run(code, **more):
  """The exit code, and lines of stdout and of stderr."""
  process = _start(code, **more)
  out, err = process.communicate(timeout=100)
  return process.returncode, out.splitlines(), err.splitlines()


@pytest.mark.slow
def test_the_processes_are_one_job_whose_lines_come_whole():
  usable = sorted(os.sched_getaffinity(0))
  cores = [usable[:1], usable]
  code, out, err = _run(
    """
print(json.dumps([flags, os.environ['JAX_NUM_CPU_DEVICES'],
                  sorted(os.sched_getaffinity(0))]))
for k in range(50):
  print('out', k, 'x' * 200)
  print('err', k, file=sys.stderr)
sys.stdout.flush()
os.write(1, b'not \\xff UTF-8, and no end')
""",
    arguments=['--config=a.py', '--config.x=y=z'],
    cores=cores,
  )
  assert code == 0 and len(out) == 2 * 52 and len(err) == 2 * 50
  expected = {'config': 'a.py', 'config.x': 'y=z', 'num_processes': '2'}
  for i in range(2):
    start = f'[{i}] '.encode()
    first, *lines = [x.removeprefix(start) for x in out if x.startswith(start)]
    assert lines == [
      *(f'out {k} {"x" * 200}'.encode() for k in range(50)),
      b'not \xff UTF-8, and no end',
    ]
    mine = [x.removeprefix(start) for x in err if x.startswith(start)]
    assert mine == [f'err {k}'.encode() for k in range(50)]
    flags, *others = json.loads(first)
    expected |= {'coordinator': flags['coordinator'], 'process_id': str(i)}
    assert flags == expected and others == ['4', cores[i]]
    assert flags['coordinator'].startswith('127.0.0.1:')


_ONE_ENDS = """
catch(signal.SIGTERM)
meet()
if i == 3:
  sys.exit(0)  # leaves the others alone
if i == 1:
  time.sleep(0.2)
  assert not got
  print('ends', file=sys.stderr)
  sys.exit(int(flags['code']))
wait()
time.sleep(0.5)
print('got', *got)
sys.exit(75)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
  ('code', 'grace_secs', 'said'),
  [
    (3, 30.0, ['process 1 failed with exit code 3; stopping the others']),
    (75, 0.1, []),  # who stopped after saving waits as long as it takes
  ],
)
def test_when_one_ends_the_others_are_stopped_once(
  tmp_path, code, grace_secs, said
):
  found, out, err = _run(
    _ONE_ENDS,
    n=4,
    arguments=[f'--code={code}'],
    grace_secs=grace_secs,
    FOLDER=tmp_path,
  )
  assert found == code and sorted(out) == [b'[0] got 15', b'[2] got 15']
  lines = ['[1] ends', *(f'jaxemb: {line}' for line in said)]
  assert err == [line.encode() for line in lines]


@pytest.mark.slow
def test_who_does_not_stop_is_killed_with_its_children(tmp_path):
  server = socket.create_server(('127.0.0.1', 0))
  code, _, err = _run(
    """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if i == 0:
  line = socket.create_connection(('127.0.0.1', int(flags['port'])))
  os.fork()
meet()
if i == 1:
  os.kill(os.getpid(), signal.SIGKILL)
wait()
""",
    arguments=[f'--port={server.getsockname()[1]}'],
    grace_secs=0.5,
    FOLDER=tmp_path,
  )
  assert code == 128 + 9
  assert err[-1] == b'jaxemb: still running 0.5 s later: killed'
  server.settimeout(10)
  line, _ = server.accept()
  line.settimeout(10)
  with server, line:
    assert line.recv(1) == b''  # closed by the process and its child


@pytest.mark.slow
@pytest.mark.parametrize(
  ('sent', 'arrives'), [(signal.SIGINT, 2), (signal.SIGHUP, signal.SIGTERM)]
)
def test_signals_reach_every_process_once(sent, arrives):
  process = _start(
    """
catch(signal.SIGTERM, signal.SIGINT)
print('ready')
wait()
time.sleep(0.1 + 0.4 * i)  # the first to end leaves the others their time
print('got', *got)
sys.exit(75)
"""
  )
  # Lines are shown when they are printed.
  ready = {process.stdout.readline() for _ in range(2)}
  assert ready == {b'[0] ready\n', b'[1] ready\n'}
  os.killpg(process.pid, sent)  # as Ctrl-C does
  out, err = process.communicate(timeout=100)
  assert process.returncode == 75 and not err
  got = f'got {int(arrives)}'.encode()
  assert sorted(out.splitlines()) == [b'[0] ' + got, b'[1] ' + got]


def test_a_process_on_each_socket(monkeypatch):
  cores, run = [[0, 1], [2, 3]], mock.Mock()
  monkeypatch.setattr(resources, 'sockets', lambda: cores)
  monkeypatch.setattr(launch.launch, 'run', run)
  launch.main(['--sockets', '--', '--config=wiki'])
  flags = ['--config.strategy.name=replicas', '--config=wiki']
  run.assert_called_once_with(flags, 2, devices=1, cores=cores)
