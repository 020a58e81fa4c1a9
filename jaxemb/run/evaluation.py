"""Evaluates a model while it is trained, and keeps the best one.

All that an evaluation decides (a lower learning rate, the end of training) is a
function of evaluation.jsonl up to the step: a run that was killed repeats it.
"""

import json
import math
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jaxemb import errors
from jaxemb.config import schema
from jaxemb.data import base as data_base
from jaxemb.run import build, loop, metrics
from jaxemb.runtime import distributed
from jaxemb.storage import atomic

_BEST = 'best'  # a folder of the workdir


def check(config: Any, has_validation: bool, lacking: str) -> None:
  """Raises a `UserError` for settings that need evaluations without any.

  `lacking` tells what the data should have for them, and what to do.
  """
  needing = {
    'optimizer.plateau_factor': config.optimizer.plateau_factor != 1,
    'train.patience': config.train.patience,
    'eval.monitor': config.eval.monitor,
  }
  for key in (k for k, needs in needing.items() if needs):
    if not has_validation:
      raise errors.UserError(f'config.{key} needs {lacking}')
    if not config.eval.every_epochs:
      raise errors.UserError(
        f'config.{key} needs evaluations; set --config.eval.every_epochs=1'
      )


class Evaluation(loop.Hook):
  """The hook of the training loop that evaluates, for all kinds of data.

  With a validation split, kinds that monitor metrics (`Kind.monitors`) have the
  best model by each of `eval.monitor` kept; by the first of them the learning
  rate is lowered at plateaus (`optimizer.plateau_factor`) and training ends
  early (`train.patience`). Otherwise scores are recorded.
  """

  def __init__(self, workdir: pathlib.Path, parts: build.Parts):
    self.records: list[dict[str, Any]] = []
    self._parts, self._kind = parts, parts.kind
    self._workdir, self._path = workdir, workdir / 'evaluation.jsonl'
    self._every_units = 0  # 0 = never
    monitors = parts.kind.monitors
    chosen = schema.names(parts.config.eval.monitor) or monitors[:1]
    can_compare = monitors and parts.kind.has_validation(parts.source)
    self.metrics = chosen if can_compare else ()
    every_epochs = parts.config.eval.every_epochs
    if every_epochs and parts.kind.can_evaluate(parts):
      every_units = every_epochs * parts.source.units_per_epoch
      self._every_units = max(1, round(every_units))

  def best_folder(self, metric: str) -> pathlib.Path:
    """Where the best model by a monitored metric is kept."""
    is_first = metric == self.metrics[0]
    return self._workdir / (_BEST if is_first else f'{_BEST}_{metric}')

  def is_needed(self) -> bool:
    """Whether it evaluates, or has done so in an earlier start."""
    return self._every_units > 0 or self._path.exists()

  def begin(self, totals: metrics.Totals) -> None:
    """Forgets evaluations behind the checkpoint that training goes on from."""
    if not self._path.exists():
      return
    lines = self._path.read_text().splitlines()
    records = [json.loads(x) for x in lines if x.endswith('}')]
    self.records = [x for x in records if x['step'] <= totals.steps]
    if distributed.is_first():
      with atomic.write(self._path) as file:
        for record in self.records:
          file.write(json.dumps(record).encode() + b'\n')

  def due(self, item: data_base.Item) -> bool:
    """Whether an item reaches a multiple of `config.eval.every_epochs`."""
    every = self._every_units
    return every > 0 and item.done_before // every < item.done_after // every

  def run(self, state: Any, totals: metrics.Totals) -> None:
    """Logs and records scores; keeps the best model."""
    start = time.monotonic()
    self._evaluate(state, totals)
    totals.evaluation_secs += time.monotonic() - start

  def _evaluate(self, state, totals):
    parts, kind = self._parts, self._kind
    model = kind.collect(parts, state, self._workdir)
    if not self.metrics and not distributed.is_first():
      return
    scores = kind.evaluate(parts, model, is_last=False)
    epoch = totals.done / parts.source.units_per_epoch
    record = {'step': totals.steps, 'epoch': epoch}
    line = f'epoch {epoch:.2f}: {kind.summarize(scores)}'
    if self.metrics:
      (record['validation'],) = scores.values()
      better = [x for x in self.metrics if _is_better(record, self.best(x), x)]
      if better:
        line += ', the best so far'
        line += f' by {" and ".join(better)}' * (len(self.metrics) > 1)
      for metric in better if distributed.is_first() else ():
        model.save(self.best_folder(metric))
    else:
      record['evaluation'] = scores
    self.records.append(record)
    metrics.LOG.info('%s', line)
    if distributed.is_first():
      with open(self._path, 'a') as file:
        file.write(json.dumps(record) + '\n')

  def best(self, metric: str) -> Mapping[str, Any] | None:
    """The record of the best evaluation so far by a metric, if there is any."""
    return _progress(self.records, metric)[0]

  def _counts(self) -> tuple[int, int]:
    """Evaluations no better by the first metric: since the best, and ever."""
    if not self.metrics:
      return 0, 0
    return _progress(self.records, self.metrics[0])[1:]

  def rate_factor(self) -> float:
    """What learning rates are multiplied by."""
    return self._parts.config.optimizer.plateau_factor ** self._counts()[1]

  def has_ended(self) -> bool:
    """Whether training ends here."""
    patience = self._parts.config.train.patience
    return bool(patience) and self._counts()[0] >= patience


def _is_better(
  record: Mapping[str, Any], best: Mapping[str, Any] | None, metric: str
) -> bool:
  if best is None:
    return True
  new, old = record['validation'], best['validation']
  # Of one class alone there is no AUC; the newest is kept.
  if not math.isfinite(old[metric]) or not math.isfinite(new[metric]):
    return True
  if new[metric] == old[metric] and 'log_loss' in new:
    metric = 'log_loss'  # as happens with a few hundred examples
  if metric == 'log_loss':
    return new[metric] < old[metric]
  return new[metric] > old[metric]


def _progress(
  records: Sequence[Mapping[str, Any]], metric: str
) -> tuple[Mapping[str, Any] | None, int, int]:
  """The best record; how many were no better since, and at any time."""
  best, since, ever = None, 0, 0
  for record in records:
    if _is_better(record, best, metric):
      best, since = record, 0
    else:
      since, ever = since + 1, ever + 1
  return best, since, ever
