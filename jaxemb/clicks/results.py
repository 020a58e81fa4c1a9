"""Evaluates, exports and reports a model of clicks, as `run.kind.Kind` says."""

import logging
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from jaxemb import embeddings, errors
from jaxemb.clicks import encoder as encoder_lib
from jaxemb.clicks import metrics, predictor
from jaxemb.evaluation import geometry
from jaxemb.io import keys
from jaxemb.report import pages
from jaxemb.run import build, evaluation, vectors
from jaxemb.storage import atomic, orbax_export

if TYPE_CHECKING:
  from jaxemb.clicks import loader
  from jaxemb.clicks import models as click_models

_LOG = logging.getLogger('jaxemb')
MAX_SEARCHED = 200_000  # ids of a field
_MAX_SMALL_VOCAB = 100_000  # for which a step may update all rows
_NUM_NEIGHBORS = 8
_BLOCK_IDS = 1 << 16  # written at once
_MAX_FIELDS, _NUM_FREQUENT = 40, 6  # fields, ids of each


def has_validation(source: Any) -> bool:
  """Whether there are rows for validation."""
  return source.valid is not None


def _source(parts: build.Parts) -> 'loader.ClickSource':
  return cast('loader.ClickSource', parts.source)


def can_evaluate(parts: build.Parts) -> bool:
  """Whether there are rows for validation."""
  return has_validation(parts.source)


def collect(
  parts: build.Parts, state: Any, workdir: pathlib.Path | None = None
) -> predictor.ClickModel:
  """The trained model, on the host of every process; all take part."""
  tables = {
    name: parts.strategy.export_rows(state, name).rows
    for name in parts.trainable.model.specs()
  }
  source = _source(parts)
  return predictor.of_training(
    cast('click_models.ClickModel', parts.trainable.model),
    vectors.dense_params(parts, state),
    tables,
    encoder=source.encoder,
    train=source.train,
    batch_examples=parts.config.train.batch_examples,
  )


def go_on(parts: build.Parts, state: Any) -> Any:
  """See `Kind`: a state with tables and layers of a run that is continued.

  New categories start at random; the optimizer's state starts anew.
  """
  assert parts.known is not None
  run, source = predictor.load(parts.known.folder), _source(parts)
  old_ids, new_ids = _common_ids(run.encoder, source.encoder)
  for name in parts.trainable.model.specs():
    for start in range(0, len(new_ids), _BLOCK_IDS):
      some = slice(start, start + _BLOCK_IDS)
      rows = np.asarray(run.tables[name][old_ids[some]])
      state = parts.strategy.import_rows(state, name, new_ids[some], rows, {})
  state = state._replace(params=_params(parts.known.path, state, run.params))
  _LOG.info(
    f'going on from {parts.known.path}: {len(new_ids):,} of '
    f'{source.fields.vocab:,} rows, others start at random; all layers, and '
    'optimizers start anew'
  )
  return state


def _common_ids(
  old: encoder_lib.Encoder, new: encoder_lib.Encoder
) -> tuple[np.ndarray, np.ndarray]:
  """Returns ids of two encoders that mean the same, [n] int64 each."""
  both = []
  for a, b, hashes, others in zip(
    old.fields.ids, new.fields.ids, old.hashes, new.hashes, strict=True
  ):
    local = np.arange(a.num_ids)
    other = local  # hashes, or the one id of unknown categories
    if not old.settings['hash_size']:
      found = keys.Keys(others).find(hashes, -1)
      other = np.append(0, 1 + found.astype(np.int64))
    both.append(np.stack([a.first_id + local, b.first_id + other]))
  old_ids, new_ids = np.concatenate(both, 1)
  return old_ids, new_ids


def _params(path: str, state: Any, params: Any) -> Any:
  """Returns dense parameters of a run where those of the state are."""

  def put(now, x):
    if now.shape[now.ndim - x.ndim :] != x.shape:
      raise ValueError
    x = np.broadcast_to(x, now.shape)  # all replicas have the same
    return jax.device_put(x.astype(now.dtype), now.sharding)

  try:
    return jax.tree.map(put, state.params, params)
  except ValueError as error:
    raise errors.UserError(
      f'--from={path} has layers of other sizes; give the same --config.model '
      'settings, and the same columns'
    ) from error


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
  source = _source(parts)
  splits = {'validation': source.valid}
  if is_last:
    splits['test'] = source.test
  group = parts.config.eval.group
  scores = {
    name: metrics.of_model(model, rows, group)
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
  source = _source(parts)
  rows = source.valid if source.valid is not None else source.test
  return {
    'calibration_bins': {k: x.pop('bins') for k, x in scores.items()},
    'fields': [x.name for x in source.fields.ids],
    'importances': [] if rows is None else metrics.importances(model, rows),
    'examples_counted': 'rows of the training split, times epochs',
  }


def export(
  folder: pathlib.Path, parts: build.Parts, model: predictor.ClickModel
) -> dict[str, int]:
  """Writes a folder for `predictor.load`, with orbax and a function."""
  names = _source(parts).encoded.folder / 'keys.arrow'
  arrays = {
    'tables': model.tables,
    'dense': model.params,
    'moments': {str(i): x for i, x in enumerate(model.moments)},
  }
  arrays = {k: x for k, x in arrays.items() if jax.tree.leaves(x)}
  with atomic.folder(folder, replaces=predictor.files_of(folder)) as new:
    model.save(new)
    if names.exists():
      shutil.copyfile(names, new / names.name)
    orbax_export.write(new / 'orbax', arrays)
    predictor.write_function(new / 'serving', model)
  return {}


def page(parts: build.Parts, model: predictor.ClickModel) -> pages.Page:
  """Returns the page of a log, with neighbors in the largest fields."""
  source = _source(parts)
  ranges = [x[:3] for x in source.fields.ids]
  values = {
    'fields': field_neighbors(
      model.tables[model.model.vectors_table],
      source.keys,
      source.counts,
      ranges=ranges,
    ),
    'num_fields': len(ranges),
    'max_searched': MAX_SEARCHED,
  }
  return pages.Page('clicks', 'examples', values, package='jaxemb.clicks')


def field_neighbors(
  vectors: np.ndarray,
  keys: Sequence[str],
  counts: np.ndarray,
  ranges: Sequence[tuple[str, int, int]],
) -> dict[str, list[tuple[str, int, embeddings.Ranked]]]:
  """Returns by field (name, count, nearest ids) of its most frequent ids.

  `vectors` [vocab, dim] float32 are rows of the model's ids, `keys` their
  names, of which only those on the page are asked for, `counts` [vocab] int;
  `ranges` are (name, first id, ids) of fields. Ids that no training row has are
  left out, fields with fewer than two such ids, and those after the first 40.
  Nothing is shown of single numbers, whose cosines are 1 or -1.
  """
  shown: dict[str, list[tuple[str, int, embeddings.Ranked]]] = {}
  for field, first, num in ranges[:_MAX_FIELDS] if vectors.shape[1] > 1 else ():
    num_searched = min(num, MAX_SEARCHED)
    field_counts = np.asarray(counts[first : first + num])
    ids = np.argpartition(field_counts, num - num_searched)[
      num - num_searched :
    ]
    # By falling count, ties by id.
    ids = ids[np.lexsort((ids, -field_counts[ids]))]
    rows = np.asarray(vectors[first + ids])
    lengths = geometry.norms(rows)
    used = (field_counts[ids] > 0) & (lengths > 0) & np.isfinite(lengths)
    ids, units = ids[used], geometry.unit(rows[used], lengths[used])
    if len(ids) < 2:
      continue
    shown[field] = []
    for i in range(min(len(ids), _NUM_FREQUENT)):
      cosines = units @ units[i]
      near = geometry.nearest(cosines, {i}, _NUM_NEIGHBORS)
      name, *others = (
        keys[int(first + ids[j])].removeprefix(f'{field}=') for j in (i, *near)
      )
      ranked = list(zip(others, cosines[near].tolist(), strict=True))
      shown[field].append((name, int(field_counts[ids[i]]), ranked))
  return shown


def is_saved(folder: pathlib.Path) -> bool:
  """Whether `ClickModel.save` has written a folder."""
  return (folder / 'model.json').exists()


def load(parts: build.Parts, folder: pathlib.Path) -> predictor.ClickModel:
  """Reads what `ClickModel.save` has written."""
  return predictor.load(folder)


def check_data(config: Any, source: Any) -> None:
  """Refuses settings that need rows or fields which the data lack.

  The log names the config for small logs of ids, which others overfit.
  """
  lacking = 'rows for validation; set --config.data.valid=0.1'
  evaluation.check(config, has_validation(source), lacking)
  group = config.eval.group
  names = [x.name for x in source.fields.ids if x.num_columns == 1]
  if group and group not in names:
    raise errors.UserError(
      f'config.eval.group={group} is no field of single categories; choose one '
      f'of {", ".join(names)}'
    )
  is_small = source.fields.vocab <= _MAX_SMALL_VOCAB
  if is_small and not source.fields.numbers and not config.optimizer.decay:
    _LOG.info(
      'a log of %s ids alone: --config=ctr:ids has the settings for such logs, '
      'which keep models from learning rare ids by heart',
      f'{source.fields.vocab:,}',
    )
