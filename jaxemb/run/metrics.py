"""Metrics of training: counted, and shown on console, JSON lines, TensorBoard.

One record goes everywhere: {step, epoch, words, words_per_sec, loss,
learning_rate, elapsed_secs, eta_secs, hosts}, with all processes in `hosts`.
What is not known, such as the loss or the time that is left where nothing was
counted, is None.
"""

import collections
import contextlib
import dataclasses
import json
import logging
import math
import os
import pathlib
import platform
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

from tensorboardX import record_writer
from tensorboardX.proto import event_pb2, summary_pb2

from jaxemb import errors
from jaxemb.run import progress
from jaxemb.runtime import resources
from jaxemb.storage import atomic

LOG = logging.getLogger('jaxemb')

_MIN_RECORDS = 50  # of a run, however short
_HOPELESS = 3  # times the loss of an untrained model: training has diverged


class _Console(logging.Handler):
  """Writes above the line that shows progress."""

  def emit(self, record: logging.LogRecord) -> None:
    progress.write_line(self.format(record))


def start_log(path: pathlib.Path, is_first: bool) -> logging.Handler:
  """Makes `LOG` write to the console and, with dates, to the file returned.

  On the console, processes other than the first show only warnings.
  """
  if not LOG.handlers:
    LOG.addHandler(_Console())
  LOG.handlers[0].setLevel(logging.INFO if is_first else logging.WARNING)
  LOG.setLevel(logging.INFO)
  LOG.propagate = False
  file = logging.FileHandler(path, encoding='utf-8', errors='backslashreplace')
  file.setFormatter(logging.Formatter('%(asctime)s %(message)s'))
  LOG.addHandler(file)
  return file


class _Events:
  """A file of events for TensorBoard, one for all starts of a run.

  Not tensorboardX's `SummaryWriter`, whose thread dies of a full disk while the
  loop waits for it, nor its `EventsWriter`: that waits for the disk after each
  event, up to .4 s beside an export or a checkpoint.
  """

  def __init__(self, folder: pathlib.Path):
    name = f'events.out.tfevents.{int(time.time())}.{platform.node()}'
    earlier = sorted(folder.glob('events.out.tfevents.*'))
    path = earlier[-1] if earlier else folder / name
    self._file = open(path, 'r+b' if earlier else 'xb')  # noqa: SIM115
    end = _end_of_events(self._file) if earlier else 0
    self._file.seek(end)
    self._file.truncate()  # what a start that was killed has cut
    if not end:
      self.add(wall_time=time.time(), file_version='brain.Event:2')

  def add(self, **fields: Any) -> None:
    """Appends an event of these fields, for other programs to see."""
    data = event_pb2.Event(**fields).SerializeToString()
    header = struct.pack('<Q', len(data))
    for part in (header, data):
      checksum = record_writer.masked_crc32c(part)
      self._file.write(part + struct.pack('<I', checksum))
    self._file.flush()

  def close(self) -> None:
    """Closes the file."""
    self._file.close()


def _end_of_events(file: BinaryIO) -> int:
  """Returns where the last event ends that is whole."""
  size, end = os.fstat(file.fileno()).st_size, 0
  while len(header := file.read(12)) == 12:
    length, checksum = struct.unpack('<QI', header)
    following = end + length + 16
    if following > size or checksum != record_writer.masked_crc32c(header[:8]):
      break
    end = file.seek(following)
  return end


class Writer:
  """Appends records to `metrics.jsonl` and TensorBoard.

  A full disk costs records, not the run: it is reported once.
  """

  def __init__(self, workdir: pathlib.Path, step: int):
    """Removes cut lines, and records after `step`, the last checkpoint."""
    self._path, self._has_failed = workdir / 'metrics.jsonl', False
    rows = [row for row in read(self._path) if row['step'] <= step]
    with atomic.write(self._path) as file:
      file.writelines(json.dumps(row).encode() + b'\n' for row in rows)
    folder = workdir / 'tensorboard'
    folder.mkdir(exist_ok=True)
    self._events = _Events(folder)
    if rows:  # TensorBoard forgets the later ones
      start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
      self._add(rows[-1]['step'] + 1, session_log=start)

  def _add(self, step: int, **what: Any) -> None:
    self._events.add(step=step, wall_time=time.time(), **what)

  def write(self, record: dict[str, Any]) -> None:
    """Appends a record."""
    values = [
      summary_pb2.Summary.Value(tag=key, simple_value=value)
      for key, value in record.items()
      if key.endswith('_per_sec') or key in ('loss', 'learning_rate', 'epoch')
      if value is not None
    ]
    try:
      with open(self._path, 'a', encoding='utf-8') as file:
        file.write(json.dumps(record) + '\n')
      self._add(record['step'], summary=summary_pb2.Summary(value=values))
    except OSError as error:
      if not self._has_failed:
        LOG.error(
          f'records not written to {self._path.parent}: '
          f'{error.strerror or error}; training goes on: free space there'
        )
      self._has_failed = True

  def close(self) -> None:
    """Closes the TensorBoard file."""
    with contextlib.suppress(OSError):
      self._events.close()


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """The records of a `metrics.jsonl`, without half-written lines."""
  records = []
  text = path.read_text('utf-8', 'replace') if path.exists() else ''
  for line in text.splitlines():
    with contextlib.suppress(ValueError, RecursionError):
      record = json.loads(line)
      if isinstance(record, dict) and isinstance(record.get('step'), int):
        records.append(record)
  return records


@dataclasses.dataclass
class Totals:
  """Sums over a run so far; a checkpoint holds them."""

  unit: str = 'words'  # of progress; corpus words before subsampling
  done: int = 0  # units of progress
  position: Any = None  # where reading continues, see `data.base.Item`
  steps: int = 0
  # By name, what the source and the steps count.
  counters: dict[str, float] = dataclasses.field(default_factory=dict)
  train_secs: float = 0.0  # without compilation
  compile_secs: float = 0.0
  evaluation_secs: float = 0.0  # while training
  # Of all starts of the run, up to the last checkpoint of each.
  encode_secs: float = 0.0
  total_secs: float = 0.0
  started: float = 0.0  # the first time, seconds since 1970
  # Of the compiled dispatch, see `runtime.hlo.traffic`.
  collectives: dict[str, Any] = dataclasses.field(default_factory=dict)
  epoch: int = 0  # the newest
  # Of that epoch; 64 bits stay exact over 10^12 pairs.
  loss: float = 0.0  # sum in nats
  examples: float = 0.0  # on which it was measured

  def begin(self, session: Any) -> None:
    """Counts the time before the first dispatch of a `loop.Session`."""
    self.started = self.started or session.started
    self.encode_secs += session.encode_secs
    self.compile_secs += session.compile_secs

  def add(
    self,
    item: Any,
    units_per_epoch: float,
    learning_rates: Sequence[float],
    step_metrics: Any,
    untrained_loss: float,
  ) -> None:
    """Counts a dispatch, waiting for it to end; see `Meter.count`.

    Raises a `UserError` if training has diverged: the loss is not finite, or
    far beyond `untrained_loss`, nats per example. Or if a kernel has failed,
    which does not count examples.
    """
    steps, num_steps = step_metrics.steps, int(step_metrics.num_steps)
    loss, examples, bad_step = (x.item() for x in steps[:3])
    if math.isnan(examples):
      raise errors.UserError(
        f'the kernel of step {self.steps + max(bad_step, 0):,} had too little '
        'memory and changed nothing; set --config.train.fused=false'
      )
    if examples and loss / examples > _HOPELESS * untrained_loss:
      bad_step = max(bad_step, 0)
    if bad_step >= 0:
      first, last = learning_rates
      fraction = bad_step / max(num_steps, 1)
      raise self.diverged(first + (last - first) * fraction, bad_step)
    self.done, self.position = item.done_after, item.position
    # Of samples epochs differ in length: the middle is in the right one.
    middle = (item.done_before + item.done_after) / 2
    self._add(
      Totals(
        steps=num_steps,
        counters=step_metrics.counters | steps.sums,
        epoch=int(middle / units_per_epoch),
        loss=loss,
        examples=examples,
      )
    )

  def add_model(self, other: 'Totals') -> None:
    """Adds what a sub-model has counted, and its part of training time."""
    self.done += other.done
    self.train_secs += other.train_secs
    self.compile_secs += other.compile_secs
    self.collectives = self.collectives or other.collectives
    self._add(other)

  def _add(self, other: 'Totals') -> None:
    self.steps += other.steps
    # One without examples, at the very end, begins none.
    if other.epoch > self.epoch and other.examples:
      self.epoch, self.loss, self.examples = other.epoch, 0.0, 0.0
    if other.epoch == self.epoch:
      self.loss += other.loss
      self.examples += other.examples
    self.count(other.counters)

  def count(self, counters: Mapping[str, Any]) -> None:
    """Adds numbers by name."""
    for name, value in counters.items():
      number = value.item() if hasattr(value, 'item') else value
      self.counters[name] = self.counters.get(name, 0) + number

  def diverged(
    self, learning_rate: float, more_steps: int = 0
  ) -> errors.UserError:
    """The error for a loss or tables that are no longer finite."""
    others = ', --config.optimizer.max_duplicates or --config.train.batch_words'
    if self.unit == 'examples':
      others = ' or --config.optimizer.dense_learning_rate'
    return errors.UserError(
      f'training diverged at step {self.steps + more_steps:,} '
      f'({self.done:,} {self.unit}, learning rate {learning_rate:.6g}): its '
      'loss is not finite or far beyond that of an untrained model; lower '
      f'--config.optimizer.learning_rate{others}'
    )

  def loss_per_example(self) -> float | None:
    """Mean loss of the newest epoch, nats; None before it is measured."""
    return self.loss / self.examples if self.examples else None


class Meter:
  """Adds dispatch metrics to `Totals`; shows and records them."""

  def __init__(
    self,
    workdir: pathlib.Path | None,
    totals: Totals,
    units_per_epoch: float,
    epochs: int,
    log_every_secs: float,
    untrained_loss: float = float('inf'),
    gather: Callable[[dict, bool], list[dict]] = lambda usage, is_last: [usage],
    num_devices: int = 1,
    every_steps: int = 0,  # between synchronisations
  ):
    """Continues from `totals`, which is changed in place.

    Records go to `workdir`, if any; `gather` returns what all processes have
    used, of what this one has and whether it is the last record. For
    `untrained_loss` see `Totals.add`.
    """
    self.totals, self.total = totals, round(units_per_epoch * epochs)
    self._units_per_epoch, self._every_secs = units_per_epoch, log_every_secs
    self._untrained_loss, self._gather = untrained_loss, gather
    self._num_devices = num_devices
    self._every_steps, self._has_ended = every_steps, False
    self._writer = Writer(workdir, totals.steps) if workdir else None
    self._progress, self._note = progress.Progress(log_every_secs), ''
    self.start()

  def start(self, secs_ago: float = 0.0) -> None:
    """Starts the clock: what came before, such as compilation, is not timed."""
    self.resume()
    self._clock -= secs_ago
    self._progress.begin('training', self.totals.done, secs_ago)
    self._progress('training', self.totals.done, self.total)
    self._first = resources.sample()
    self._seen: list[Any] = []
    # Of this process.
    self._usage: dict[str, float] = collections.defaultdict(float)
    self._begin_record(self._clock)

  def resume(self) -> None:
    """Restarts the clock after something else than training."""
    self._clock = time.monotonic()

  def _begin_record(self, now: float) -> None:
    self._last, self._last_done = now, self.totals.done
    self._loss = self._examples = 0.0  # since then
    self._store: collections.Counter = collections.Counter()

  def count(
    self, item: Any, learning_rates: Sequence[float], step_metrics: Any
  ) -> None:
    """Counts a dispatch, waiting for it to end; as `Totals.add`.

    It has read a `data.base.Item` and returned a
    `strategies.base.DispatchMetrics`; the learning rates are those of its first
    step and after its last.
    """
    t, per_epoch = self.totals, self._units_per_epoch
    t.add(item, per_epoch, learning_rates, step_metrics, self._untrained_loss)
    self._count_usage(item, int(step_metrics.num_steps))
    now = time.monotonic()
    t.train_secs += now - self._clock
    self._clock = now
    self._loss += float(step_metrics.steps.loss)
    self._examples += float(step_metrics.steps.examples)
    # By time, and often enough for curves where a run takes seconds.
    is_far = t.done - self._last_done >= self.total / _MIN_RECORDS
    is_due = now - self._last >= self._every_secs
    if is_due or is_far or t.done == self.total:
      self._record(now, float(learning_rates[1]))
    self._progress('training', t.done, self.total, self._note)

  def _count_usage(self, item: Any, num_steps: int) -> None:
    usage, steps, every = self._usage, self.totals.steps, self._every_steps
    num = steps // every - (steps - num_steps) // every if every else 0
    usage['synchronisations_per_sec'] += num
    sent = self.totals.collectives.get('bytes_per_step_per_device', {})
    sent_bytes = num_steps * self._num_devices * sent.get('total', 0)
    usage['collective_bytes_per_sec'] += sent_bytes
    usage[f'{self.totals.unit}_per_sec'] += item.own_units

  def count_store(self, counts: Mapping[str, float]) -> None:
    """Counts rows and seconds of `stores.fetching`, by name."""
    self.totals.count(counts)
    self._store.update(counts)

  def _record(self, now: float, learning_rate: float) -> None:
    t, usage = self.totals, resources.since(self._first) | self._usage
    # Batches without words may follow the last one.
    is_last = t.done == self.total and not self._has_ended
    self._has_ended |= is_last
    before, self._seen = self._seen, self._gather(usage, is_last)
    before = before or [{}] * len(self._seen)
    rate = (t.done - self._last_done) / max(now - self._last, 1e-9)
    record: dict[str, Any] = {
      'step': t.steps,
      'epoch': t.done / self._units_per_epoch,
      t.unit: t.done,
      f'{t.unit}_per_sec': rate,
      'loss': self._loss / self._examples if self._examples else None,
      'learning_rate': learning_rate,
      'elapsed_secs': t.train_secs,
      'eta_secs': self._progress.secs_left(t.done, self.total),
      'hosts': list(map(resources.between, before, self._seen)),
    }
    if self._store:
      record['store'] = dict(self._store)
    if self._writer:
      self._writer.write(record)
    loss = 'n/a' if record['loss'] is None else f'{record["loss"]:.4f}'
    shown = f'{rate / 1e6:.2f} M' if rate > 1e5 else f'{rate:,.0f}'
    self._note = (
      f'{shown} {t.unit}/s, loss {loss}, epoch {record["epoch"]:.1f}, '
      f'learning rate {learning_rate:.5f}'
    )
    self._begin_record(now)

  def close(self) -> None:
    """Removes the bar and closes the files."""
    self._progress.close()
    if self._writer:
      self._writer.close()
