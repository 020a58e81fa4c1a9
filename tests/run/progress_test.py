"""Progress: a line in place on terminals and in notebooks, lines elsewhere."""

import contextlib
import io
import logging
import os
import re
import subprocess
import sys
import threading
import types

import pytest

from jaxemb.run import metrics, progress

_CHILD = """
import time
from jaxemb.run import progress
shown = progress.Progress()
for done in range(5):
  shown('training', done, 4, '0.56 M words/s, loss 1.8289')
  if done == 2:
    progress.write_line('epoch 2: AUC 0.5')
  time.sleep(.25)
shown.close()
"""


def _on_a_terminal():
  """What a child writes to a terminal that does not know its size."""
  pty = pytest.importorskip('pty')
  leader, follower = pty.openpty()
  child = subprocess.Popen(
    [sys.executable, '-c', _CHILD],
    stderr=follower, env=os.environ | {'COLUMNS': '60'},
  )  # fmt: skip
  os.close(follower)
  shown = b''
  with contextlib.suppress(OSError):  # as Linux ends it
    while data := os.read(leader, 10_000):
      shown += data
  os.close(leader)
  assert child.wait() == 0
  return shown.decode()


def test_a_terminal_has_one_line_that_is_updated():
  text = _on_a_terminal()
  above, below = text.split('\r\n')  # the one line that was written above it
  assert above.endswith('\repoch 2: AUC 0.5')
  states = [x for x in below.split('\r') if x.strip()]
  for state, start in zip(states, (' 50%', ' 75%', '100%'), strict=True):
    assert re.match(
      rf'training {start} \|[#█ ▌\d]{{10}}\| 00:0\d left, ', state
    )
    assert len(state) == 59 and state.endswith('0.56 M words/s, loss')
  assert not below.split('\r')[-2].strip()  # at last it is removed


class _Clock:
  """Seconds that a test sets."""

  now = 100.0

  def monotonic(self) -> float:
    return self.now


@pytest.fixture
def clock(monkeypatch):
  clock = _Clock()
  monkeypatch.setattr(progress, 'time', clock)
  return clock


@pytest.fixture
def lines(monkeypatch):
  lines = []
  handler = logging.Handler()
  handler.emit = lambda record: lines.append(record.getMessage())
  monkeypatch.setattr(progress.LOG, 'handlers', [handler])
  monkeypatch.setattr(progress.LOG, 'level', logging.INFO)
  monkeypatch.setattr(sys, 'stderr', io.StringIO())
  return lines


def test_files_and_pipes_get_a_line_now_and_then(clock, lines):
  shown = progress.Progress(2.0)
  for done in range(0, 101, 10):
    shown('reading', done, 100)
    clock.now += 6
  shown('counting', 0, 0)
  clock.now += 11
  shown('counting', 0, 0)
  shown.close()
  assert lines == [
    'reading 20%, 00:48 left', 'reading 40%, 00:36 left',
    'reading 60%, 00:24 left', 'reading 80%, 00:12 left',
    'reading 100%, 00:00 left', 'counting',
  ]  # fmt: skip
  stop = threading.Event()
  stop.set()
  with pytest.raises(progress.Stopped):
    progress.Progress(2.0, stop)('reading', 0, 1)


def test_the_time_left_leaves_out_what_was_done_before(clock, lines):
  shown = progress.Progress()
  shown.begin('training', 500, secs_ago=2.0)
  assert shown.secs_left(500, 1000) is None
  clock.now += 8
  assert shown.secs_left(600, 1000) == 40.0
  clock.now += 3
  shown('training', 750, 1000, 'loss 1.5')
  assert lines == ['training 75%, 00:13 left, loss 1.5']


@pytest.fixture
def shell(lines, monkeypatch):
  """A notebook whose bars are text, as without ipywidgets."""
  shell = types.SimpleNamespace(kernel=object())
  ipython = types.SimpleNamespace(get_ipython=lambda: shell)
  monkeypatch.setitem(sys.modules, 'IPython', ipython)
  monkeypatch.setattr(progress.importlib.util, 'find_spec', lambda _: None)
  return shell


def test_a_notebook_has_a_bar_per_stage(lines, shell, capsys):
  shown = progress.Progress()
  for stage in 'reading', 'training':
    for done in range(5):
      shown(stage, done, 4, 'loss 1.5' if stage == 'training' else '')
  shown.close()
  assert lines == []
  reading, training = capsys.readouterr().out.strip().split('\n')
  assert 'reading 100% |' in reading.rpartition('\r')[2]
  assert training.endswith('left, loss 1.5')
  # IPython without a kernel, as in a script that it runs, has no outputs.
  shell.kernel = None
  shown('later', 0, 4)
  assert 'later' not in capsys.readouterr().out


def test_a_meter_that_starts_again_keeps_its_bar(shell, capsys):
  meter = metrics.Meter(None, metrics.Totals(), 1000, 2, 2.0)
  meter.start()
  meter.close()
  line, end = capsys.readouterr().out.split('\n')
  assert 'training   0% |' in line and not end


def test_a_stage_of_the_next_file_has_its_own_total(shell, capsys):
  shown = progress.Progress()
  for total in 4, 8:
    for done in range(0, total + 1, total // 2):
      shown('downloading', done, total)
  shown('reading features', 0, 1)
  shown.close()
  first, second, third = capsys.readouterr().out.strip().split('\n')
  for line in first, second:
    assert 'downloading 100% |' in line.rpartition('\r')[2]
  assert '%' not in third


def test_bars_that_tqdm_shall_not_show_are_lines(
  lines, shell, clock, monkeypatch, capsys
):
  monkeypatch.setenv('TQDM_DISABLE', '1')
  shown = progress.Progress()
  shown('reading', 0, 4)
  clock.now += 11
  shown('reading', 1, 4)
  shown('reading', 0, 4)  # again, of which all is left
  clock.now += 11
  shown('reading', 2, 4)
  shown.close()
  assert lines == ['reading 25%, 00:33 left', 'reading 50%, 00:11 left']
  assert not capsys.readouterr().out


def test_the_meter_shows_speed_loss_and_time_left(lines, clock, monkeypatch):
  monkeypatch.setattr(metrics, 'time', clock)
  totals = metrics.Totals(steps=30, done=500)
  meter = metrics.Meter(None, totals, 1000, 2, 2.0)
  meter.start()
  clock.now += 10.5
  item = types.SimpleNamespace(
    done_before=500, done_after=1000, position=0, own_units=500
  )
  steps = types.SimpleNamespace(loss=9.0, examples=4.0, sums={})
  monkeypatch.setattr(
    metrics.Totals, 'add', lambda *_: setattr(totals, 'done', 1000)
  )
  meter.count(
    item, (0.2, 0.1), types.SimpleNamespace(steps=steps, num_steps=10)
  )
  meter.close()
  (line,) = lines
  assert line == (
    'training 50%, 00:21 left, 48 words/s, loss 2.2500, epoch 1.0, '
    'learning rate 0.10000'
  )
