"""Records: complete, resumed without doubles, and never the end of a run."""

import logging
import pathlib
import struct

import numpy as np
import pytest
from tensorboardX import record_writer
from tensorboardX.proto import event_pb2

from jaxemb import errors
from jaxemb.data import base as data_base
from jaxemb.run import metrics
from jaxemb.runtime import resources
from jaxemb.strategies import base as strategy_base


def _record(step: int) -> dict:
  return {
    'step': step, 'epoch': step / 10, 'words': 100 * step,
    'words_per_sec': 5.0, 'loss': 2.5, 'learning_rate': 0.1,
    'elapsed_secs': 1.0, 'eta_secs': 1.0,
  }  # fmt: skip


def _write(folder: pathlib.Path, after: int, steps: list[int]) -> None:
  writer = metrics.Writer(folder, after)
  for step in steps:
    writer.write(_record(step))
  writer.close()


def _events(folder: pathlib.Path) -> list[event_pb2.Event]:
  events = []
  for path in sorted((folder / 'tensorboard').iterdir()):
    data = path.read_bytes()
    while data:
      (length,) = struct.unpack('<Q', data[:8])
      events.append(event_pb2.Event.FromString(data[12 : 12 + length]))
      data = data[16 + length :]
  return events


def test_records_go_to_json_lines_and_tensorboard(tmp_path):
  _write(tmp_path, 0, [1, 2, 3])
  scalars = [e for e in _events(tmp_path) if e.summary.value]
  assert [e.step for e in scalars] == [1, 2, 3]
  values = {v.tag: v.simple_value for v in scalars[0].summary.value}
  assert values['loss'] == 2.5 and values['words_per_sec'] == 5.0
  # What is trained again is forgotten.
  with open(tmp_path / 'metrics.jsonl', 'a') as file:
    file.write('5\n{"step": 4, "wor')
  (path,) = (tmp_path / 'tensorboard').iterdir()
  path.write_bytes(path.read_bytes() + path.read_bytes()[:30])
  _write(tmp_path, 2, [3])
  assert list((tmp_path / 'tensorboard').iterdir()) == [path]
  rows = metrics.read(tmp_path / 'metrics.jsonl')
  assert rows == [_record(1), _record(2), _record(3)]
  start = event_pb2.SessionLog.START
  starts = [e.step for e in _events(tmp_path) if e.session_log.status == start]
  assert starts == [3]  # from this step on TensorBoard forgets


@pytest.mark.skipif(
  not pathlib.Path('/dev/full').exists(), reason='needs a device that is full'
)
def test_a_full_disk_is_said_once_and_training_goes_on(tmp_path, monkeypatch):
  lines = []
  handler = logging.Handler()
  handler.emit = lambda record: lines.append(record.getMessage())
  monkeypatch.setattr(metrics.LOG, 'handlers', [handler])
  writer = metrics.Writer(tmp_path, 0)
  (tmp_path / 'metrics.jsonl').unlink()
  (tmp_path / 'metrics.jsonl').symlink_to('/dev/full')
  for step in range(20):
    writer.write(_record(step))
  writer.close()
  assert len(lines) == 1
  assert 'No space left' in lines[0] and 'training goes on' in lines[0]


def _item(words_before: int) -> data_base.Item:
  return data_base.Item(None, 0, [0, 64], words_before, words_before + 1000)


def _metrics(loss, examples, bad_step=-1) -> strategy_base.DispatchMetrics:
  steps = strategy_base.StepMetrics(
    np.float32(loss), np.float32(examples), np.int32(bad_step), {}
  )
  return strategy_base.DispatchMetrics(
    steps, np.int32(10), {'pairs': np.int32(3000)}
  )


def test_the_meter_counts_and_stops_at_a_loss_that_is_not_finite(tmp_path):
  totals = metrics.Totals()
  meter = metrics.Meter(tmp_path, totals, 1000, 2, 0.0)
  meter.count(_item(0), (0.2, 0.1), _metrics(600, 200))
  assert totals.done == 1000 and totals.steps == 10
  assert totals.counters == {'pairs': 3000} and totals.position == [0, 64]
  assert totals.loss_per_example() == 3.0
  (row,) = metrics.read(tmp_path / 'metrics.jsonl')
  assert row['epoch'] == 1.0 and row['loss'] == 3.0
  assert row['learning_rate'] == 0.1 and row['hosts'][0]['secs'] > 0
  with pytest.raises(errors.UserError, match='step 15.*rate 0.15') as caught:
    meter.count(_item(1000), (0.2, 0.1), _metrics(np.nan, 200, 5))
  assert '\n' not in str(caught.value)
  with pytest.raises(errors.UserError, match='step 12 had too little memory'):
    meter.count(_item(1000), (0.2, 0.1), _metrics(np.nan, np.nan, 2))
  meter.close()


def test_records_tell_what_all_processes_do(tmp_path, monkeypatch):
  before = resources.sample()
  clock = iter((0.0, 5.0, 6.0, 8.0, 11.0))
  monkeypatch.setattr(
    resources, 'sample', lambda: before | {'secs': next(clock)}
  )
  others = iter(({}, {'secs': 2.0, 'words_per_sec': 9.0}, None))

  def both(own, is_last):
    other = next(others)  # who comes late, and then gives the last as all do
    assert is_last == (other is None)
    last = {'secs': 4.0, 'words_per_sec': 12.0} if is_last else other
    return [own, last and before | last]

  totals = metrics.Totals()
  totals.collectives = {'bytes_per_step_per_device': {'total': 100.0}}
  meter = metrics.Meter(
    tmp_path, totals, 1000, 3, 0.0, 9.0, both, num_devices=2, every_steps=4,
  )  # fmt: skip
  meter.start()  # what came before is not training
  for words in (0, 1000, 2000):
    item = _item(words)._replace(own=None if words else 600)
    meter.count(item, (0.2, 0.1), _metrics(600, 200))
  meter.close()
  hosts = [row['hosts'] for row in metrics.read(tmp_path / 'metrics.jsonl')]
  assert [own['secs'] for own, _ in hosts] == [1.0, 2.0, 3.0]
  assert [own['words_per_sec'] for own, _ in hosts] == [600, 500, 1000 / 3]
  # Ten steps have two synchronisations and a half.
  own = hosts[0][0]
  assert own['synchronisations_per_sec'] == 2
  assert own['collective_bytes_per_sec'] == 2 * 10 * 100
  rates = [other.get('words_per_sec') for _, other in hosts]
  assert rates == [None, 4.5, 1.5]


def test_the_loss_stays_right_over_many_pairs():
  # float32 sums stick at 2^24 ones; these are carried in 64 bits.
  totals, other = metrics.Totals(loss=3e12, examples=1e12), metrics.Totals()
  for _ in range(1000):
    totals.add(_item(0), 1000, (0.2, 0.1), _metrics(1, 1), 9.0)
  assert (totals.loss, totals.examples) == (3e12 + 1000, 1e12 + 1000)
  assert totals.counters == {'pairs': 1000 * 3000}
  # What has no examples, at the end of the last epoch, begins none.
  totals.add(_item(1000), 1000, (0.2, 0.1), _metrics(0, 0), 9.0)
  assert (totals.epoch, totals.loss) == (0, 3e12 + 1000)
  # Another model, which is in a later epoch, and one that is not.
  other.add(_item(2000), 1000, (0.2, 0.1), _metrics(3, 1), 9.0)
  other.add_model(totals)
  totals.add_model(other)
  for x in (totals, other):
    assert (x.epoch, x.loss, x.examples) == (2, 3, 1)


def test_events_are_framed_as_by_tensorboardx(tmp_path):
  events = metrics._Events(tmp_path)
  events.add(step=7, wall_time=1.5)
  (path,) = tmp_path.glob('events.out.tfevents.*')
  data, theirs = path.read_bytes(), tmp_path / 'theirs'
  events.close()
  first, *_ = struct.unpack('<Q', data[:8])
  writer = record_writer.RecordWriter(str(theirs))
  writer.write(data[12 : 12 + first])
  writer.write(event_pb2.Event(step=7, wall_time=1.5).SerializeToString())
  writer.close()
  assert theirs.read_bytes() == data
