"""Evaluates click models while they train; exports and reports the best.

At every evaluation the model is copied to the host and scores the validation
rows; the best one is saved in the folder `best`, and exported in the end. All
that an evaluation decides (a lower learning rate, the end of training) is a
function of evaluation.jsonl up to the step: a run that was killed repeats it.
"""

import functools
import json
import pathlib
import shutil
import time
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxemb import errors
from jaxemb.clicks import predictor, report, serving
from jaxemb.data import base as data_base
from jaxemb.run import build, loop, metrics, results
from jaxemb.runtime import distributed
from jaxemb.storage import atomic, orbax_export

BEST = 'best'
_MAX_ABLATED_ROWS, _MAX_ABLATED_FIELDS = 50_000, 60


def taken(parts: build.Parts, state: Any) -> predictor.ClickModel:
  """Copies the trained model to the host; all processes take part."""
  strategy, source = parts.strategy, parts.source
  params = params_of(parts, state)
  tables = {
    name: strategy.export_rows(state, name).rows
    for name in parts.trainable.model.specs()
  }
  return predictor.of_training(
    parts.trainable.model,
    params=params,
    tables=tables,
    encoder=source.encoder,
    train=source.train,
    batch_examples=parts.config.train.batch_examples,
  )


def params_of(parts: build.Parts, state: Any) -> Any:
  """Copies dense parameters to the host of every process."""
  if not jax.tree.leaves(state.params):
    return state.params
  return jax.device_get(
    _params(bool(parts.strategy.num_replicas), state.params)
  )


@functools.partial(jax.jit, static_argnums=0)
def _params(has_replicas, params):
  """Returns dense parameters, the mean of replicas'."""
  return jax.tree.map(lambda x: x.mean(0) if has_replicas else x, params)


def describe(scores: Mapping[str, Any]) -> str:
  """Describes an evaluation in a few words."""
  if not np.isfinite(scores['auc']):
    area = 'no AUC, as all labels are the same'
  else:
    area = f'AUC {scores["auc"]:.5f}'
  if 'group_auc' in scores:
    area += f', by group {scores["group_auc"]:.5f}'
  return (
    f'{area}, log loss {scores["log_loss"]:.5f}, calibration '
    f'{scores["calibration"]:.3f}'
  )


def _validation(model: predictor.ClickModel, parts: build.Parts):
  """Evaluates a model on the validation rows."""
  scores = model.evaluate(parts.source.valid, parts.config.eval.group)
  del scores['bins']
  return scores


class Evaluation(loop.Hook):
  """Evaluates the model while it is trained; a `loop.Hook`.

  Functions `take` it off the devices, of parts and state, and `validate` it, of
  what was taken, which has a method `save`, and parts.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    parts: build.Parts,
    take: Callable[..., Any] = taken,
    validate: Callable[..., dict[str, Any]] = _validation,
    describe: Callable[[Mapping[str, Any]], str] = describe,
  ):
    self.workdir, self.parts = workdir, parts
    self._take, self._validate, self._describe = take, validate, describe
    self._path = workdir / 'evaluation.jsonl'
    self.records: list[dict[str, Any]] = []

  def begin(self, totals: metrics.Totals) -> None:
    """Forgets evaluations behind the checkpoint that training goes on from."""
    if self._path.exists():
      lines = self._path.read_text().splitlines()
      records = [json.loads(x) for x in lines if x.endswith('}')]
      self.records = [x for x in records if x['step'] <= totals.steps]
      if distributed.is_first():
        with atomic.write(self._path) as file:
          for record in self.records:
            file.write(json.dumps(record).encode() + b'\n')

  def due(self, item: data_base.Item) -> bool:
    """Whether a multiple of `config.eval.every_epochs` was reached."""
    has_rows = self.parts.source.valid is not None
    return has_rows and results.is_due(item, self.parts)

  def run(self, state: Any, totals: metrics.Totals) -> None:
    """Scores the validation rows, and keeps the best model."""
    source = self.parts.source
    model = self._take(self.parts, state)
    scores = self._validate(model, self.parts)
    epoch = totals.done / source.units_per_epoch
    record = {'step': totals.steps, 'epoch': epoch, 'validation': scores}
    is_best = self._better(record, self.best())
    self.records.append(record)
    line = f'epoch {epoch:.2f}: {self._describe(scores)}'
    metrics.LOG.info('%s', line + (', the best so far' if is_best else ''))
    if distributed.is_first():
      if is_best:
        model.save(self.workdir / BEST)
      with open(self._path, 'a') as file:
        file.write(json.dumps(record) + '\n')

  def _better(self, record, best) -> bool:
    if best is None:
      return True
    key = self.parts.config.eval.monitor
    new, old = record['validation'][key], best['validation'][key]
    # Of one class alone there is no AUC; the newest is kept.
    if not np.isfinite(old) or not np.isfinite(new):
      return True
    if new == old:  # as it happens to shares of a few hundred nodes
      key, (old, new) = (
        'log_loss',
        (x['validation']['log_loss'] for x in (best, record)),
      )
    return new < old if key == 'log_loss' else new > old

  def _so_far(self) -> tuple[dict[str, Any] | None, int, int]:
    """The best record; how many were no better since, and at any time."""
    best, since, ever = None, 0, 0
    for record in self.records:
      if self._better(record, best):
        best, since = record, 0
      else:
        since, ever = since + 1, ever + 1
    return best, since, ever

  def best(self) -> dict[str, Any] | None:
    """The record of the best evaluation so far."""
    return self._so_far()[0]

  def rate_factor(self) -> float:
    """What learning rates are multiplied by."""
    return self.parts.config.optimizer.plateau_factor ** self._so_far()[2]

  def has_ended(self) -> bool:
    """Whether training ends here."""
    patience = self.parts.config.train.patience
    return bool(patience) and self._so_far()[1] >= patience


def write(
  workdir: pathlib.Path,
  parts: build.Parts,
  state: Any,
  totals: metrics.Totals,
  hook: Evaluation,
  more: Mapping[str, Any] = types.MappingProxyType({}),
) -> None:
  """Evaluates the best model, exports it, and writes the report.

  All processes take part; the first one writes. `more` extends the values of
  the report.
  """
  start, source, best = time.time(), parts.source, hook.best()
  model = None
  if best is None or not (workdir / BEST / 'model.json').exists():
    model = taken(parts, state)
  if not distributed.is_first():
    return
  model = model or predictor.load(workdir / BEST)
  evaluation, curves = {}, {}
  for name, rows in (('validation', source.valid), ('test', source.test)):
    if rows is not None:
      scores = model.evaluate(rows, parts.config.eval.group)
      curves[name] = scores.pop('bins')
      evaluation[name] = scores
      metrics.LOG.info('%s: %s', name, describe(scores))
  export(workdir / 'export', model, source)
  metrics.LOG.info('model in %s', workdir / 'export')
  totals.total_secs += time.time() - start
  of_clicks = {
    'evaluation': evaluation,
    'evaluations': hook.records,
    'best': best,
    'calibration_bins': curves,
    'fields': [x.name for x in source.fields.ids],
    'importances': importances(model, source),
    'examples_counted': 'rows of the training split, times epochs',
  }
  values, records = results.reported(
    workdir, parts, totals, found=of_clicks | more
  )
  vectors = model.tables[model.model.vectors_table]
  ranges = [x[:3] for x in source.fields.ids]  # names, first ids, sizes
  report.write(
    workdir,
    report=values,
    metrics=records,
    vectors=vectors,
    keys=source.keys,
    counts=source.counts,
    ranges=ranges,
  )
  rate = totals.done / max(totals.train_secs, 1e-9)
  metrics.LOG.info(
    f'{rate / 1e6:.3f} M examples/s in training, {totals.total_secs:.1f} s in '
    f'all; report in {workdir / "report.html"}'
  )


def export(
  folder: pathlib.Path, model: predictor.ClickModel, source: Any
) -> None:
  """Writes a folder for `predictor.load`, with orbax and a function."""
  model.save(folder)
  names = source.encoded.folder / 'keys.arrow'
  if names.exists():
    shutil.copyfile(names, folder / names.name)
  arrays: dict[str, Any] = {'tables': model.tables}
  if jax.tree.leaves(model.params):
    arrays['dense'] = model.params
  if model.moments:
    arrays['moments'] = {str(i): x for i, x in enumerate(model.moments)}
  orbax_export.write(folder / 'orbax', arrays)
  serving.write(folder / 'serving', model)


def importances(
  model: predictor.ClickModel, source: Any
) -> list[tuple[str, float]]:
  """Returns (field, AUC lost without it), the largest first.

  All vectors of the field are replaced by their mean, on the first validation
  or test rows; [] without any.
  """
  rows = source.valid if source.valid is not None else source.test
  if rows is None:
    return []
  rows = type(rows)(*(x[:_MAX_ABLATED_ROWS] for x in rows))
  whole = model.evaluate(rows)['auc']
  fields = source.fields.ids[:_MAX_ABLATED_FIELDS]
  lost = [
    (x.name, whole - model.evaluate(rows, without=x.name)['auc'])
    for x in fields
  ]
  return sorted(lost, key=lambda x: -x[1])


def check(config: Any, source: Any) -> None:
  """Refuses settings that need rows or fields which the data lack."""
  if source.valid is None:
    lowers = config.optimizer.plateau_factor != 1
    if config.train.patience or lowers:
      key = 'optimizer.plateau_factor' if lowers else 'train.patience'
      raise errors.UserError(
        f'config.{key} needs rows for validation; set --config.data.valid=0.1'
      )
  elif config.train.patience and not config.eval.every_epochs:
    raise errors.UserError(
      'config.train.patience needs evaluations; set '
      '--config.eval.every_epochs=1'
    )
  group = config.eval.group
  names = [x.name for x in source.fields.ids if x.num_columns == 1]
  if group and group not in names:
    raise errors.UserError(
      f'config.eval.group={group} is no field of single categories; choose one '
      f'of {", ".join(names)}'
    )
