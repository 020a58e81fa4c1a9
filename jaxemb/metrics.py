"""What a run says while it trains: console, log.txt, JSON lines, TensorBoard.

One record goes everywhere: {step, epoch, words, words_per_sec, loss,
learning_rate, elapsed_secs, eta_secs, hosts}.
"""

import contextlib
import dataclasses
import datetime
import json
import logging
import math
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import tqdm
from tensorboardX import event_file_writer
from tensorboardX.proto import event_pb2, summary_pb2

from jaxemb import errors
from jaxemb.runtime import hosts, progress
from jaxemb.storage import atomic

LOG = logging.getLogger('jaxemb')

# However short it is, a run leaves about so many records.
_MIN_RECORDS = 50


def start_log(path: pathlib.Path, is_first: bool = True) -> logging.Handler:
  """Lets `LOG` write to the console and, with dates, to a file.

  Args:
    path: of the file.
    is_first: whether the console gets more than warnings: of several processes
      one reports.

  Returns:
    The file's handler, to be given to `stop_log`.
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


class Writer:
  """Writes records to `metrics.jsonl` and TensorBoard.

  A disk that is full costs records, not the run: it is said once.
  """

  def __init__(self, workdir: pathlib.Path, words: int):
    """Goes on behind the records of a run that had read `words` words.

    A run that was killed may have written records behind its last checkpoint;
    those words are trained again, so the records go.
    """
    self._path = workdir / 'metrics.jsonl'
    self._failed = False
    rows = read(self._path)
    kept = [row for row in rows if row['words'] <= words]
    data = self._path.read_bytes() if self._path.exists() else b''
    # Also where a line was cut: the next record would be lost with it.
    if data.count(b'\n') != len(kept) or data[-1:] not in (b'', b'\n'):
      with atomic.write(self._path) as file:
        file.writelines(json.dumps(row).encode() + b'\n' for row in kept)
    folder = workdir / 'tensorboard'
    folder.mkdir(exist_ok=True)
    # The plain writer: the usual one hands records to a thread, which dies of
    # a full disk and leaves the loop waiting for it.
    self._events = event_file_writer.EventsWriter(str(folder / 'events'))
    if kept:
      # Tells TensorBoard to forget what this run had written beyond.
      start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
      self._add(kept[-1]['step'] + 1, session_log=start)

  def _add(self, step: int, **what: Any) -> None:
    event = event_pb2.Event(step=step, wall_time=time.time(), **what)
    self._events.write_event(event)
    self._events.flush()

  def write(self, record: dict[str, Any]) -> None:
    """Appends one record; `record['step']` is its place in TensorBoard."""
    shown = ('loss', 'learning_rate', 'words_per_sec', 'epoch')
    values = [
      summary_pb2.Summary.Value(tag=key, simple_value=record[key])
      for key in shown
      if record[key] is not None
    ]
    try:
      with open(self._path, 'a', encoding='utf-8') as file:
        file.write(json.dumps(record) + '\n')
      self._add(record['step'], summary=summary_pb2.Summary(value=values))
    except OSError as error:
      if not self._failed:
        LOG.error(
          'records not written to %s: %s; training goes on: free space there',
          self._path.parent,
          error.strerror or error,
        )
      self._failed = True

  def close(self) -> None:
    """Closes the TensorBoard file."""
    with contextlib.suppress(OSError):
      self._events.close()


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """The records of a `metrics.jsonl`; a half-written last line is left out."""
  if not path.exists():
    return []
  records = []
  for line in path.read_text(encoding='utf-8').splitlines():
    try:
      record = json.loads(line)
    except ValueError:
      continue
    if isinstance(record, dict) and isinstance(record.get('words'), int):
      records.append(record)
  return records


@dataclasses.dataclass
class Totals:
  """Sums over a run so far; a checkpoint carries them."""

  steps: int = 0
  words: int = 0  # corpus words in the vocabulary, before subsampling
  epoch: int = 0  # where reading goes on
  block: int = 0
  kept_words: int = 0
  pairs: int = 0
  train_secs: float = 0.0  # without compilation
  compile_secs: float = 0.0
  # Of all starts of the run, up to the last checkpoint of each.
  encode_secs: float = 0.0
  total_secs: float = 0.0
  started: float = 0.0  # the first time, seconds since 1970
  further_rounds: int = 0  # of exchanges of rows that one had no room for
  collectives: dict[str, Any] | None = None  # of the compiled dispatch
  # Per epoch the summed loss in nats and the examples it was measured on; in
  # Python floats (64 bits), which stay exact over 10^12 pairs.
  losses: list[list[float]] = dataclasses.field(default_factory=list)

  def add(
    self, item: Any, epoch: int, step_metrics: Any, train_secs: float
  ) -> None:
    """Counts a dispatch that has ended.

    Args:
      item: a `loader.Loaded`.
      epoch: that it was of.
      step_metrics: a `strategies.base.DispatchMetrics`.
      train_secs: that it took.
    """
    self.train_secs += train_secs
    steps = step_metrics.steps
    self.add_loss(epoch, float(steps.loss), float(steps.examples))
    self.steps += int(step_metrics.num_steps)
    self.words = item.words_after
    self.kept_words += int(step_metrics.kept_words)
    self.pairs += int(step_metrics.pairs)
    self.further_rounds += int(steps.further_rounds)
    self.epoch, self.block = item.after

  def add_loss(self, epoch: int, loss: float, examples: float) -> None:
    """Counts a loss, summed over so many examples, nats."""
    while len(self.losses) <= epoch:
      self.losses.append([0.0, 0.0])
    self.losses[epoch][0] += loss
    self.losses[epoch][1] += examples

  def loss_per_example(self) -> float | None:
    """Mean loss of the last epoch, nats; None before the first measurement."""
    if not self.losses or not self.losses[-1][1]:
      return None
    return self.losses[-1][0] / self.losses[-1][1]


def add_up(every: Sequence[Totals]) -> Totals:
  """The sums that make sense of several sub-models."""
  found = Totals()
  for totals in every:
    for name in (
      'steps', 'words', 'kept_words', 'pairs', 'further_rounds', 'compile_secs',
    ):  # fmt: skip
      value = getattr(found, name) + getattr(totals, name)
      setattr(found, name, value)
    found.collectives = found.collectives or totals.collectives
    for epoch, (loss, examples) in enumerate(totals.losses):
      found.add_loss(epoch, loss, examples)
  return found


def process_secs() -> float | None:
  """Seconds since this process was started; None where it cannot be told."""
  try:
    with open('/proc/self/stat') as file:
      ticks = int(file.read().rsplit(')', 1)[1].split()[19])
    with open('/proc/uptime') as file:
      return float(file.read().split()[0]) - ticks / os.sysconf('SC_CLK_TCK')
  except OSError:
    return None  # not Linux


class Meter:
  """Counts finished dispatches into `Totals` and tells the world."""

  def __init__(
    self,
    workdir: pathlib.Path | None,
    totals: Totals,
    epoch_words: float,
    epochs: int,
    log_every_secs: float,
    max_loss: float = float('inf'),
    gather: Callable[[dict], list[dict]] = lambda own: [own],
  ):
    """Goes on from `totals`.

    Args:
      workdir: where records are written; None = by another process.
      totals: is changed in place.
      epoch_words: words of one epoch.
      epochs: how many.
      log_every_secs: how far apart records are.
      max_loss: nats per example beyond which training has diverged.
      gather: makes of this process's `hosts.between` those of all processes.
    """
    self._totals = totals
    self._max_loss = max_loss
    self._gather = gather
    self._epoch_words = epoch_words
    self._total_words = round(epoch_words * epochs)
    self._every_secs = log_every_secs
    self._writer = Writer(workdir, totals.words) if workdir else None
    self._bar = progress.Bar(
      'training', self._total_words, 'words', log_every_secs, totals.words
    )
    self._loss = self._examples = 0.0  # since the last record
    self._clock = self._last_record = time.monotonic()
    self._last_words = totals.words
    self._last_sample = hosts.sample()

  def start(self) -> None:
    """Starts the clock; what came before (compilation) is not training."""
    self._clock = self._last_record = time.monotonic()
    self._last_sample = hosts.sample()

  def count(
    self, item: Any, learning_rates: tuple[float, float], step_metrics: Any
  ) -> None:
    """Counts a dispatch, waiting for it to end.

    Args:
      item: a `loader.Loaded`.
      learning_rates: of the first step and behind the last.
      step_metrics: a `strategies.base.DispatchMetrics`.

    Raises:
      UserError: if its loss was not finite.
    """
    t = self._totals
    check_finite(t, item, learning_rates, step_metrics, self._max_loss)
    now = time.monotonic()
    epoch = int(item.words_before // self._epoch_words)
    t.add(item, epoch, step_metrics, now - self._clock)
    self._clock = now
    self._loss += float(step_metrics.steps.loss)
    self._examples += float(step_metrics.steps.examples)
    # By time, and often enough for curves where a run takes seconds.
    many_words = t.words - self._last_words >= self._total_words / _MIN_RECORDS
    due = now - self._last_record >= self._every_secs
    if due or many_words or t.words == self._total_words:
      self._record(now, float(learning_rates[1]))

  def _record(self, now: float, learning_rate: float) -> None:
    t, sample = self._totals, hosts.sample()
    secs = max(now - self._last_record, 1e-9)
    rate = (t.words - self._last_words) / secs
    loss = self._loss / self._examples if self._examples else None
    eta_secs = (self._total_words - t.words) / max(rate, 1e-9)
    self._write(
      {
        'step': t.steps,
        'epoch': t.words / self._epoch_words,
        'words': t.words,
        'words_per_sec': rate,
        'loss': loss,
        'learning_rate': learning_rate,
        'elapsed_secs': t.train_secs,
        'eta_secs': eta_secs,
        'hosts': self._gather(hosts.between(self._last_sample, sample)),
      }
    )
    shown = 'n/a' if loss is None else f'{loss:.4f}'
    self._bar.show(
      t.words,
      f'epoch {t.words / self._epoch_words:.2f} loss {shown} '
      f'{rate / 1e6:.2f} M words/s lr {learning_rate:.5f} '
      f'{datetime.timedelta(seconds=round(eta_secs))} left',
    )
    self._loss = self._examples = 0.0
    self._last_record, self._last_words = now, t.words
    self._last_sample = sample

  def _write(self, record: dict[str, Any]) -> None:
    if self._writer is not None:
      self._writer.write(record)

  def close(self) -> None:
    """Removes the bar and closes the files."""
    self._bar.close()
    if self._writer is not None:
      self._writer.close()


def max_loss(decisions: float) -> float:
  """Nats per example beyond which training has diverged.

  Thrice what a model that knows nothing scores, given its binary decisions per
  example.
  """
  return 3 * decisions * math.log(2)


def check_finite(
  totals: Totals,
  item: Any,
  learning_rates: tuple[float, float],
  step_metrics: Any,
  max_loss: float,
) -> None:
  """Raises the error of `diverged` if a dispatch has.

  Args:
    totals: before it is counted.
    item: a `loader.Loaded`.
    learning_rates: of the first step and behind the last.
    step_metrics: a `strategies.base.DispatchMetrics`.
    max_loss: nats per example beyond which training has diverged.
  """
  loss, examples, bad_step = (x.item() for x in step_metrics.steps[:3])
  num_steps = int(step_metrics.num_steps)
  if examples and loss / examples > max_loss:
    bad_step = max(bad_step, 0)  # finite, but far beyond an untrained model
  if bad_step >= 0:
    first, last = learning_rates
    rate = first + (last - first) * bad_step / max(num_steps, 1)
    raise diverged(totals.steps + bad_step, item.words_before, rate)


def diverged(step: int, words: int, learning_rate: float) -> errors.UserError:
  """The error of a run whose loss or tables are no longer finite."""
  return errors.UserError(
    f'training diverged at step {step:,} ({words:,} words, learning rate '
    f'{learning_rate:.6g}): its loss is not finite or far beyond that of an '
    'untrained model; lower --config.optimizer.learning_rate, '
    '--config.optimizer.max_duplicates or --config.train.batch_words'
  )
