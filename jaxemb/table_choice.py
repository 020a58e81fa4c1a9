"""The tables that the settings name, with the optimizers of their rows."""

import dataclasses
import functools

import ml_collections

from jaxemb.tables import (
  replicated,
  row_optimizers,
  row_sharded,
)
from jaxemb.tables import spec as spec_lib

LAYOUTS = {
  'replicated': replicated.Replicated,
  'row': row_sharded.RowSharded,
  'column': functools.partial(replicated.Replicated, splits_columns=True),
}
OPTIMIZERS = {
  'sgd': lambda o: row_optimizers.sgd(o.max_duplicates),
  'adagrad': lambda o: row_optimizers.adagrad(o.epsilon),
  'adam': lambda o: row_optimizers.adam(o.beta1, o.beta2, o.epsilon),
}


def table(
  config: ml_collections.ConfigDict,
  spec: spec_lib.TableSpec,
  axes: spec_lib.Axes,
  num_devices: int,
) -> spec_lib.Table:
  """A table in the layout that the settings name, with its optimizer.

  Args:
    config: checked settings in which all is chosen.
    spec: the table.
    axes: of the mesh, as the table sees it.
    num_devices: of the mesh.
  """
  o, t, layout = config.optimizer, config.table, config.table.layout
  if spec.momentum is None:
    optimizer = OPTIMIZERS[o.name](o)
    spec = dataclasses.replace(
      spec,
      dtype=t.dtype,
      rounding=t.rounding,
      exchange_dtype=t.exchange_dtype,
    )
  else:
    optimizer = row_optimizers.averages(
      spec.momentum, o.learning_rate, o.final_learning_rate
    )
    if layout == 'column':
      # Every device of the table axis has all of it and sees all updates.
      layout, axes = 'replicated', dataclasses.replace(axes, num_table=1)
  if layout == 'row':
    centers = config.train.batch_words / num_devices
    rows = row_sharded.buffer_rows(
      spec.lookups_per_center, centers, axes.num_table
    )
    return LAYOUTS[layout](spec, optimizer, axes, rows)
  return LAYOUTS[layout](spec, optimizer, axes, t.duplicates == 'merge')
