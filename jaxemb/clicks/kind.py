"""Clicks: logs of labelled examples, and models of click-through rates."""

import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import ml_collections

from jaxemb.config import schema
from jaxemb.run import kind

if TYPE_CHECKING:
  from jaxemb.clicks import loader
  from jaxemb.models import base as model_base


_MIN_TOY_ROWS, _MAX_TOY_ROWS = 1000, 100_000_000  # made in memory
_MODELS = 'logistic', 'fm', 'wide_deep', 'deepfm', 'dcn', 'dcn_v2', 'dlrm'
_OF_DEEP_MODELS = 'model.name=wide_deep|deepfm|dcn|dcn_v2|dlrm'


class Clicks(kind.Kind):
  """Logs of clicks, and models of click-through rates."""

  source = 'clicks'
  factory = 'jaxemb.clicks.loader:make'
  start = 'ctr'
  settings = schema.read(pathlib.Path(__file__).with_name('settings.toml'))
  replaced = {
    'data.label': 'data.columns=label:COLUMN',
    'data.categorical': 'data.columns=category:COLUMN,category:COLUMN, ...',
    'data.numeric': 'data.columns=number:COLUMN,number:COLUMN, ...',
    'data.multi': 'data.columns=list:COLUMN,list:COLUMN, ...',
  }
  uses = (
    kind.HELD_OUT
    | kind.DENSE
    | kind.MONITORED
    | kind.STARTED
    | {'data.min_count', 'data.columns', 'data.decimal'}
  )
  continued_from = 'model.json', 'encoder.json', 'encoder.npz', 'dense.npz'
  alike = (
    'data.columns', 'data.decimal', 'data.positive', 'data.separator',
    'data.multi_values', 'data.pooling', 'data.hash_size', 'data.numbers',
    'model.hidden', 'model.lower_hidden', 'model.cross_layers',
    'model.batch_norm',
  )  # fmt: skip
  models = {x: f'jaxemb.clicks.models:{x}' for x in _MODELS}
  losses = {}
  only_with = {
    'model.hidden': _OF_DEEP_MODELS,
    'model.dropout': _OF_DEEP_MODELS,
  }
  help = {
    'data.columns': 'roles of columns, separated by commas: label:COLUMN, '
    'category:COLUMN, number:COLUMN, list:COLUMN (several categories per '
    "cell), -:COLUMN (ignored); '' = infer the label from its name, and other "
    'roles from the values',
    'data.path': "file, folder or glob of the log; '' or 'toyclicks:ROWS' = a "
    'synthetic log',
    'data.min_count': 'smallest count: rarer categories of a column share one '
    'embedding',
    'eval.monitor': 'metric on data.valid that selects the model to export '
    '(needs eval.every_epochs): auc or log_loss; with both, separated by a '
    "comma, the best model of the second is in export_<metric>; '' = auc",
  }
  unit = 'examples'
  has_dense = True
  monitors = 'auc', 'log_loss'
  exports_optimizer = False
  row_kernels = frozenset(('adagrad_full', 'adam_full'))
  undivided = {'partition': 'train models with dense parameters'}
  smaller = 'lower --config.model.dim or raise --config.data.min_count'
  results = 'jaxemb.clicks.results'
  embedded = 'toyclicks:'

  def check(self, config: ml_collections.ConfigDict) -> Iterator[str]:
    """See `kind.Kind`."""
    path = config.data.path
    size = path.removeprefix(self.embedded)
    is_size = size.isdecimal() and _MIN_TOY_ROWS <= int(size) <= _MAX_TOY_ROWS
    if size != path and not is_size:
      yield (
        f'config.data.path={path} must be toyclicks:ROWS, 1000 rows or more '
        f'and at most {_MAX_TOY_ROWS:,}'
      )
    if not config.data.separator:
      yield "config.data.separator='' separates nothing; give a sign such as |"
    for key in ('hidden', 'lower_hidden'):
      schema.sizes(f'model.{key}', config.model[key])
    yield from kind.alone_conflicts(config)

  def chunk(self, config: ml_collections.ConfigDict) -> int:
    """See `kind.Kind`: examples share nothing."""
    return 1

  def make_model(
    self, corpus: 'model_base.Corpus', context: kind.Context
  ) -> 'model_base.Model':
    """See `kind.Kind`."""
    from jaxemb.clicks import models

    m, o = context.config.model, context.config.optimizer
    source = cast('loader.ClickSource', corpus.source)
    spec = models.ClickSpec(
      fields=source.fields,
      dim=m.dim,
      hidden=schema.sizes('model.hidden', m.hidden),
      lower_hidden=schema.sizes('model.lower_hidden', m.lower_hidden),
      cross_layers=m.cross_layers,
      dropout=m.dropout,
      batch_norm=m.batch_norm,
      optimizer=o.dense,
      dense_rate=kind.dense_rate(context.config),
      dense_decay=o.dense_decay,
      row_ops=context.row_ops,
      axes=context.axes,
    )
    return kind.bind_model(context.config, (spec, corpus))


KINDS = (Clicks(),)
