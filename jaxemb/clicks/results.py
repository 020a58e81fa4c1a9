"""Evaluates, exports and reports a model of clicks, as `run.kind.Kind` says."""

import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxemb import errors
from jaxemb.clicks import predictor, report, serving
from jaxemb.report import pages
from jaxemb.run import build, evaluation, vectors
from jaxemb.storage import orbax_export

_MAX_ABLATED_ROWS, _MAX_ABLATED_FIELDS = 50_000, 60


def can_evaluate(parts: build.Parts) -> bool:
  """Whether there are rows for validation."""
  return parts.source.valid is not None


def collect(
  parts: build.Parts, state: Any, workdir: pathlib.Path | None = None
) -> predictor.ClickModel:
  """The trained model, on the host of every process; all take part."""
  tables = {
    name: parts.strategy.export_rows(state, name).rows
    for name in parts.trainable.model.specs()
  }
  return predictor.of_training(
    parts.trainable.model,
    vectors.dense_params(parts, state),
    tables,
    encoder=parts.source.encoder,
    train=parts.source.train,
    batch_examples=parts.config.train.batch_examples,
  )


def summarize(scores: Mapping[str, Mapping[str, Any]]) -> str:
  """Scores of the validation rows, in a few words."""
  return _line(scores['validation'])


def describe(
  parts: build.Parts, scores: Mapping[str, Mapping[str, Any]]
) -> list[str]:
  """A line for the scores of each split."""
  return [f'{name}: {_line(x)}' for name, x in scores.items()]


def _line(scores: Mapping[str, Any]) -> str:
  area = f'AUC {scores["auc"]:.5f}'
  if np.isnan(scores['auc']):
    area = 'no AUC, as all labels are the same'
  if 'group_auc' in scores:
    area += f', by group {scores["group_auc"]:.5f}'
  return (
    f'{area}, log loss {scores["log_loss"]:.5f}, calibration '
    f'{scores["calibration"]:.3f}'
  )


def evaluate(
  parts: build.Parts, model: predictor.ClickModel, is_last: bool = True
) -> dict[str, dict[str, Any]]:
  """AUC, log loss and calibration (`metrics`) of rows held out.

  While training, of the validation rows alone; in the end with `bins`, for
  curves of calibration.
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
  parts: build.Parts, model: predictor.ClickModel, scores: dict[str, Any]
) -> dict[str, Any]:
  """Values of the report; takes the `bins` out of the scores."""
  source = parts.source
  return {
    'calibration_bins': {k: x.pop('bins') for k, x in scores.items()},
    'fields': [x.name for x in source.fields.ids],
    'importances': importances(model, source),
    'examples_counted': 'rows of the training split, times epochs',
  }


def export(
  folder: pathlib.Path, parts: build.Parts, model: predictor.ClickModel
) -> dict[str, int]:
  """Writes a folder for `predictor.load`, with orbax and a function."""
  model.save(folder)
  names = parts.source.encoded.folder / 'keys.arrow'
  if names.exists():
    shutil.copyfile(names, folder / names.name)
  arrays = {
    'tables': model.tables,
    'dense': model.params,
    'moments': {str(i): x for i, x in enumerate(model.moments)},
  }
  arrays = {k: x for k, x in arrays.items() if jax.tree.leaves(x)}
  orbax_export.write(folder / 'orbax', arrays)
  serving.write(folder / 'serving', model)
  return {}


def page(parts: build.Parts, model: predictor.ClickModel) -> pages.Page:
  """Returns the page of a log, with neighbors in the largest fields."""
  source = parts.source
  return report.page(
    model.tables[model.model.vectors_table],
    source.keys,
    source.counts,
    ranges=[x[:3] for x in source.fields.ids],  # names, first ids, sizes
  )


def is_saved(folder: pathlib.Path) -> bool:
  """Whether `ClickModel.save` has written a folder."""
  return (folder / 'model.json').exists()


load = predictor.load


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
  lost = [
    (x.name, whole - model.evaluate(rows, without=x.name)['auc'])
    for x in source.fields.ids[:_MAX_ABLATED_FIELDS]
  ]
  return sorted(lost, key=lambda x: -x[1])


def check_data(config: Any, source: Any) -> None:
  """Refuses settings that need rows or fields which the data lack."""
  lacking = 'rows for validation; set --config.data.valid=0.1'
  evaluation.check(config, source.valid is not None, lacking)
  group = config.eval.group
  names = [x.name for x in source.fields.ids if x.num_columns == 1]
  if group and group not in names:
    raise errors.UserError(
      f'config.eval.group={group} is no field of single categories; choose one '
      f'of {", ".join(names)}'
    )
