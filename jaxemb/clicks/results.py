"""What becomes of a model of clicks: its scores, its export, its report."""

import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxemb import errors
from jaxemb.clicks import predictor, serving
from jaxemb.run import build, vectors
from jaxemb.storage import orbax_export

_MAX_ABLATED_ROWS, _MAX_ABLATED_FIELDS = 50_000, 60


def collect(parts: build.Parts, state: Any) -> predictor.ClickModel:
  """The trained model, on the host of every process; all take part."""
  strategy, source = parts.strategy, parts.source
  params = vectors.dense_params(parts, state)
  tables = {
    name: strategy.export_rows(state, name).rows
    for name in parts.trainable.model.specs()
  }
  size = parts.config.train.batch_examples
  return predictor.of_training(
    parts.trainable.model,
    params,
    tables,
    encoder=source.encoder,
    train=source.train,
    batch_examples=size,
  )


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


def evaluate(
  parts: build.Parts, model: predictor.ClickModel, is_last: bool
) -> dict[str, dict[str, Any]]:
  """Scores of the validation rows, and in the end of the test rows.

  In the end they have `bins`, for curves of calibration.
  """
  splits = {'validation': parts.source.valid}
  if is_last:
    splits['test'] = parts.source.test
  group = parts.config.eval.group
  scores = {
    name: model.evaluate(rows, group)
    for name, rows in splits.items()
    if rows is not None
  }
  if not is_last:
    for x in scores.values():
      del x['bins']
  return scores


def report_values(
  source: Any, model: predictor.ClickModel, scores: dict[str, Any]
) -> dict[str, Any]:
  """Values of the report; takes the `bins` out of the scores."""
  return {
    'calibration_bins': {k: x.pop('bins') for k, x in scores.items()},
    'fields': [x.name for x in source.fields.ids],
    'importances': importances(model, source),
    'examples_counted': 'rows of the training split, times epochs',
  }


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
