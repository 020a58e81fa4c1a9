"""Every input of a reader ends in a result or in one line; see fuzzing.py."""

import os
import pathlib
import subprocess
import sys
import time

import pytest

from tests.fuzz import faulty_targets, fuzzing, targets

_ROOT = pathlib.Path(__file__).parents[2]
# Most users' files for half a minute, and those beside them.
_SECS = dict.fromkeys(
  (
    'word2vec_text', 'word2vec_binary', 'glove', 'fasttext_bin', 'npz', 'text',
    'packed', 'mat', 'matrix_market', 'graph_npz', 'edges', 'clicks', 'libsvm',
    'text_json', 'mediawiki', 'wikiextractor', 'command_line', 'checkpoint',
    'text_cache', 'interactions',
  ),
  30,
)  # fmt: skip
_OTHER_SECS = 5
_KINDS = {
  'fail': {'traceback'},
  'say_nothing': {'traceback'},
  'hang': {'hang'},
  'crash': {'crash'},
  'exit': {'crash'},
  'fill_memory': {'memory'},
  'ask_for_memory': {'memory'},
  'write_beyond': {'traceback'},
}


def _command(*flags):
  return sys.executable, '-m', 'tests.fuzz', *flags


def test_targets_have_names_of_their_own():
  names = [x.name for x in targets.TARGETS]
  assert len({*names}) == len(names)
  assert _SECS.keys() <= {*names}


@pytest.fixture(scope='module')
def fuzzer(tmp_path_factory):
  """A process that fuzzes a target for each line, in forks of itself."""
  folder = tmp_path_factory.mktemp('found')
  process = subprocess.Popen(
    _command('--targets=-', f'--secs={_OTHER_SECS}', f'--found={folder}'),
    cwd=_ROOT,
    env=os.environ | {'PYTHONHASHSEED': '0'},  # the same inputs each time
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )
  with process:
    yield process
    process.stdin.close()


@pytest.mark.slow
@pytest.mark.parametrize('target', targets.TARGETS, ids=lambda x: x.name)
def test_changed_inputs(target, fuzzer):
  secs = _SECS.get(target.name, _OTHER_SECS)
  print(f'{target.name}={secs}', file=fuzzer.stdin, flush=True)
  lines = []
  for line in fuzzer.stdout:
    lines.append(line)
    if line.startswith(f'{target.name}: '):
      break
  assert lines and lines[-1].endswith(' 0 faults\n'), ''.join(lines)


@pytest.mark.slow
@pytest.mark.parametrize('target', targets.TARGETS, ids=lambda x: x.name)
def test_seeds_are_read(target, tmp_path, monkeypatch):
  folder = tmp_path / 'input'
  monkeypatch.setenv('JAXEMB_CACHE', str(folder / 'cache'))
  reader = fuzzing.Reader(target, folder)
  outcomes = [reader.read(data) for data in target.seeds()]
  kinds = {x.kind for x in outcomes}
  assert 'result' in kinds and kinds <= {'result', 'refused'}, outcomes


def _timed(reader, data):
  start = time.monotonic()
  return reader.read(data), time.monotonic() - start


@pytest.mark.parametrize('target', targets.TARGETS, ids=lambda x: x.name)
def test_inputs_that_were_faults(target, tmp_path, monkeypatch):
  inputs = fuzzing.stored(target)
  if not inputs:
    return
  folder = tmp_path / 'input'
  monkeypatch.setenv('JAXEMB_CACHE', str(folder / 'cache'))
  reader = fuzzing.Reader(target, folder)
  for data in inputs:
    outcome, secs = _timed(reader, data)
    if secs > fuzzing.HANG_SECS:  # by what is compiled at first
      outcome, secs = _timed(reader, data)
    assert not outcome.is_fault, outcome.text
    assert secs < fuzzing.HANG_SECS


@pytest.mark.slow
def test_processes_that_wait_for_a_core_do_not_hang():
  # Two share a core, as readers that start one do on a busy machine.
  code = (
    'import os, subprocess, sys; '
    'os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); '
    "busy = [sys.executable, '-c', 'while True: pass']; "
    'both = [subprocess.Popen(busy) for _ in range(2)]; '
    'print(flush=True); sys.stdin.read(); [x.kill() for x in both]'
  )
  pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}
  with subprocess.Popen([sys.executable, '-c', code], **pipes) as process:
    process.stdout.readline()
    time.sleep(2)
    assert fuzzing._queued_secs(process.pid) > 1
    process.communicate()


@pytest.mark.slow
def test_faults_are_noticed(tmp_path):
  # Users' code, without checks of bounds, which the fuzzer must not run.
  environment = {**os.environ, 'NUMBA_CACHE_DIR': str(tmp_path / 'numba')}
  code = (
    'import numpy as np; from tests.fuzz import faulty_targets; '
    'faulty_targets.store(np.zeros(9)[:4], 6)'
  )
  command = sys.executable, '-c', code
  subprocess.run(command, cwd=_ROOT, env=environment, check=True)
  flags = '--module=tests.fuzz.faulty_targets', f'--found={tmp_path / "found"}'
  done = subprocess.run(
    _command(*flags, '--secs=1', '--hang_secs=3'),
    cwd=_ROOT,
    env=environment,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1, done.stderr
  for target in faulty_targets.TARGETS:
    paths = tmp_path.glob(f'found/{target.name}/*')
    kinds = {x.name.split('-')[0] for x in paths}
    assert kinds == _KINDS.get(target.name, set()), done.stdout
