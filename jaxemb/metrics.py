"""Metrics of training: counted, and shown on console, JSON lines, TensorBoard.

One record goes everywhere: {step, epoch, words, words_per_sec, loss,
learning_rate, elapsed_secs, eta_secs, hosts}.
"""

import contextlib
import dataclasses
import datetime
import json
import logging
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tqdm
from tensorboardX import event_file_writer
from tensorboardX.proto import event_pb2, summary_pb2

from jaxemb import errors
from jaxemb.runtime import resources
from jaxemb.storage import atomic

LOG = logging.getLogger('jaxemb')

_MIN_RECORDS = 50  # of a run, however short
_HOPELESS = 3  # times the loss of an untrained model: training has diverged


def start_log(path: pathlib.Path, is_first: bool = True) -> logging.Handler:
  """Makes `LOG` write to the console and, with dates, to a file.

  Where this is not the process that reports, the console shows warnings only.
  Returns the handler of the file, for `stop_log`.
  """
  if not LOG.handlers:
    console = _TqdmHandler()
    console.setFormatter(logging.Formatter('%(message)s'))
    LOG.addHandler(console)
  LOG.handlers[0].setLevel(logging.INFO if is_first else logging.WARNING)
  LOG.setLevel(logging.INFO)
  LOG.propagate = False
  file = logging.FileHandler(path, encoding='utf-8')
  file.setFormatter(logging.Formatter('%(asctime)s %(message)s'))
  LOG.addHandler(file)
  return file


def stop_log(file: logging.Handler) -> None:
  """Closes the file of `start_log`."""
  LOG.removeHandler(file)
  file.close()


class _TqdmHandler(logging.Handler):
  """Writes above a progress bar instead of through it."""

  def emit(self, record: logging.LogRecord) -> None:
    tqdm.tqdm.write(self.format(record), file=sys.stderr)


class Stopped(Exception):
  """A signal came before there was anything to save."""


class Progress:
  """How much of a stage is done: a bar on a terminal, elsewhere a few lines."""

  def __init__(self, every_secs: float, stop: threading.Event | None = None):
    """Shows lines at least `every_secs` apart; see `Stopped` for `stop`."""
    self._every_secs, self._stop = max(every_secs, 10.0), stop
    self._stage, self._bar, self._last = '', None, 0.0

  def __call__(self, stage: str, done: int, total: int, note: str = '') -> None:
    """Shows that `done` of `total` is done of a stage.

    Raises:
      Stopped: once `stop` is set.
    """
    if self._stop is not None and self._stop.is_set():
      raise Stopped
    if stage != self._stage:
      self.close()
      self._stage, self._last = stage, time.monotonic()
      self._bar = tqdm.tqdm(
        desc=stage,
        total=total or None,
        unit_scale=True,
        dynamic_ncols=True,
        file=sys.stderr,
        leave=False,
        disable=not sys.stderr.isatty(),
        bar_format='{desc} {percentage:3.0f}% |{bar:16}| {n_fmt}/{total_fmt}'
        '{postfix}',
      )
    if not self._bar.disable:
      self._bar.postfix = f' {note}' if note else None
      self._bar.update(done - self._bar.n)
    elif time.monotonic() - self._last > self._every_secs:
      self._last = time.monotonic()
      LOG.info('%s %.0f%% %s', stage, 100 * done / max(total, 1), note)

  def close(self) -> None:
    """Removes the bar."""
    if self._bar is not None:
      self._bar.close()


class Writer:
  """Appends records to `metrics.jsonl` and TensorBoard.

  A full disk costs records, not the run: it is reported once.
  """

  def __init__(self, workdir: pathlib.Path, step: int):
    """Continues a run that was at `step` at its last checkpoint.

    Records of steps that are trained again are removed.
    """
    self._path = workdir / 'metrics.jsonl'
    self._has_failed = False
    rows = [row for row in read(self._path) if row['step'] <= step]
    data = self._path.read_bytes() if self._path.exists() else b''
    # Also where a line was cut: the next record would be lost with it.
    if data.count(b'\n') != len(rows) or data[-1:] not in (b'', b'\n'):
      with atomic.write(self._path) as file:
        file.writelines(json.dumps(row).encode() + b'\n' for row in rows)
    folder = workdir / 'tensorboard'
    folder.mkdir(exist_ok=True)
    # Not SummaryWriter: its thread dies of a full disk, and the loop waits.
    self._events = event_file_writer.EventsWriter(str(folder / 'events'))
    if rows:  # TensorBoard forgets what this run had written beyond
      start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
      self._add(rows[-1]['step'] + 1, session_log=start)

  def _add(self, step: int, **what: Any) -> None:
    event = event_pb2.Event(step=step, wall_time=time.time(), **what)
    self._events.write_event(event)
    self._events.flush()

  def write(self, record: dict[str, Any]) -> None:
    """Appends a record."""
    values = [
      summary_pb2.Summary.Value(tag=key, simple_value=record[key])
      for key in record
      if key.endswith('_per_sec') or key in ('loss', 'learning_rate', 'epoch')
      if record[key] is not None
    ]
    try:
      with open(self._path, 'a', encoding='utf-8') as file:
        file.write(json.dumps(record) + '\n')
      self._add(record['step'], summary=summary_pb2.Summary(value=values))
    except OSError as error:
      if not self._has_failed:
        LOG.error(
          'records not written to %s: %s; training goes on: free space there',
          self._path.parent,
          error.strerror or error,
        )
      self._has_failed = True

  def close(self) -> None:
    """Closes the TensorBoard file."""
    with contextlib.suppress(OSError):
      self._events.close()


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the records of a `metrics.jsonl`, without half-written lines."""
  records = []
  text = path.read_text(encoding='utf-8') if path.exists() else ''
  for line in text.splitlines():
    with contextlib.suppress(ValueError):
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
  counters: dict[str, int] = dataclasses.field(default_factory=dict)
  sums: dict[str, float] = dataclasses.field(default_factory=dict)
  train_secs: float = 0.0  # without compilation
  compile_secs: float = 0.0
  # Of all starts of the run, up to the last checkpoint of each.
  encode_secs: float = 0.0
  total_secs: float = 0.0
  started: float = 0.0  # the first time, seconds since 1970
  collectives: dict[str, Any] | None = None  # of the compiled dispatch
  # Per epoch the summed loss in nats and the examples it was measured on; in
  # Python floats (64 bits), which stay exact over 10^12 pairs.
  losses: list[list[float]] = dataclasses.field(default_factory=list)

  def add(
    self, item: Any, epoch: int, step_metrics: Any, train_secs: float
  ) -> None:
    """Counts a finished dispatch (see `Meter.count`) of an epoch."""
    steps = step_metrics.steps
    self.train_secs += train_secs
    self.add_loss(epoch, float(steps.loss), float(steps.examples))
    self.steps += int(step_metrics.num_steps)
    self.done, self.position = item.done_after, item.position
    _add(self.counters, step_metrics.counters)
    _add(self.sums, steps.sums)

  def add_loss(self, epoch: int, loss: float, examples: float) -> None:
    """Counts a loss in nats, summed over that many examples."""
    while len(self.losses) <= epoch:
      self.losses.append([0.0, 0.0])
    self.losses[epoch][0] += loss
    self.losses[epoch][1] += examples

  def loss_per_example(self) -> float | None:
    """Mean loss of the last epoch, nats; None before the first measurement."""
    if not self.losses or not self.losses[-1][1]:
      return None
    return self.losses[-1][0] / self.losses[-1][1]


def _add(totals: dict[str, Any], more: Mapping[str, Any]) -> None:
  for name, value in more.items():
    number = value.item() if hasattr(value, 'item') else value
    totals[name] = totals.get(name, 0) + number


def add_up(every: Sequence[Totals]) -> Totals:
  """Adds up what can be added of several sub-models."""
  result = Totals(*[totals.unit for totals in every[:1]])
  for totals in every:
    result.steps += totals.steps
    result.done += totals.done
    result.compile_secs += totals.compile_secs
    _add(result.counters, totals.counters)
    _add(result.sums, totals.sums)
    result.collectives = result.collectives or totals.collectives
    for epoch, (loss, examples) in enumerate(totals.losses):
      result.add_loss(epoch, loss, examples)
  return result


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
    gather: Callable[[dict], list[dict]] = lambda own: [own],
  ):
    """Continues from `totals`, which is changed in place.

    Args:
      workdir: where records are written; None = by another process.
      totals: so far.
      units_per_epoch: units of progress of one epoch.
      epochs: of the whole run.
      log_every_secs: time between records.
      untrained_loss: nats per example before training, to notice divergence.
      gather: from this process's `resources.between`, those of all processes.
    """
    self._totals, self._gather = totals, gather
    self._untrained_loss = untrained_loss
    self._units_per_epoch = units_per_epoch
    self._total = round(units_per_epoch * epochs)
    self._every_secs = log_every_secs
    self._writer = Writer(workdir, totals.steps) if workdir else None
    self._progress = Progress(log_every_secs)
    self._loss = self._examples = 0.0  # since the last record
    self._last_done = totals.done
    self.start()

  def start(self) -> None:
    """Starts the clock: what came before, such as compilation, is not timed."""
    self._clock = self._last_record = time.monotonic()
    self._last_sample = resources.sample()

  def resume(self) -> None:
    """Restarts the clock after something else than training."""
    self._clock = time.monotonic()

  def count(
    self, item: Any, learning_rates: tuple[float, float], step_metrics: Any
  ) -> None:
    """Counts a dispatch, waiting for it to end.

    Args:
      item: a `data.base.Item`.
      learning_rates: of the first step, and after the last.
      step_metrics: a `strategies.base.DispatchMetrics`.

    Raises:
      UserError: if training has diverged.
    """
    t = self._totals
    check_finite(t, learning_rates, step_metrics, self._untrained_loss)
    now = time.monotonic()
    epoch = int(item.done_before // self._units_per_epoch)
    t.add(item, epoch, step_metrics, now - self._clock)
    self._clock = now
    self._loss += float(step_metrics.steps.loss)
    self._examples += float(step_metrics.steps.examples)
    # By time, and often enough for curves where a run takes seconds.
    is_far = t.done - self._last_done >= self._total / _MIN_RECORDS
    is_due = now - self._last_record >= self._every_secs
    if is_due or is_far or t.done == self._total:
      self._record(now, float(learning_rates[1]))

  def _record(self, now: float, learning_rate: float) -> None:
    t, sample = self._totals, resources.sample()
    rate = (t.done - self._last_done) / max(now - self._last_record, 1e-9)
    record = {
      'step': t.steps,
      'epoch': t.done / self._units_per_epoch,
      t.unit: t.done,
      f'{t.unit}_per_sec': rate,
      'loss': self._loss / self._examples if self._examples else None,
      'learning_rate': learning_rate,
      'elapsed_secs': t.train_secs,
      'eta_secs': (self._total - t.done) / max(rate, 1e-9),
      'hosts': self._gather(resources.between(self._last_sample, sample)),
    }
    if self._writer is not None:
      self._writer.write(record)
    loss = 'n/a' if record['loss'] is None else f'{record["loss"]:.4f}'
    self._progress(
      'training',
      t.done,
      self._total,
      f'epoch {record["epoch"]:.2f} loss {loss} {rate / 1e6:.2f} M {t.unit}/s '
      f'lr {learning_rate:.5f} '
      f'{datetime.timedelta(seconds=round(record["eta_secs"]))} left',
    )
    self._loss = self._examples = 0.0
    self._last_record, self._last_done = now, t.done
    self._last_sample = sample

  def close(self) -> None:
    """Removes the bar and closes the files."""
    self._progress.close()
    if self._writer is not None:
      self._writer.close()


def check_finite(
  totals: Totals,
  learning_rates: tuple[float, float],
  step_metrics: Any,
  untrained_loss: float,
) -> None:
  """Raises the error of `diverged` if a dispatch has; see `Meter.count`."""
  loss, examples, bad_step = (x.item() for x in step_metrics.steps[:3])
  num_steps = int(step_metrics.num_steps)
  if examples and loss / examples > _HOPELESS * untrained_loss:
    bad_step = max(bad_step, 0)  # finite, but far beyond an untrained model
  if bad_step >= 0:
    first, last = learning_rates
    rate = first + (last - first) * bad_step / max(num_steps, 1)
    raise diverged(totals, rate, bad_step)


def diverged(
  totals: Totals, learning_rate: float, more_steps: int = 0
) -> errors.UserError:
  """Returns the error of a run whose loss or tables are no longer finite."""
  return errors.UserError(
    f'training diverged at step {totals.steps + more_steps:,} '
    f'({totals.done:,} {totals.unit}, learning rate {learning_rate:.6g}): its '
    'loss is not finite or far beyond that of an untrained model; lower '
    '--config.optimizer.learning_rate, --config.optimizer.max_duplicates or '
    '--config.train.batch_words'
  )
