"""The tables that the settings name, with the optimizers of their rows."""

import dataclasses
import math

import jax
import ml_collections
import numpy as np

from jaxemb.runtime import mesh as mesh_lib
from jaxemb.tables import row_optimizers as rowopt
from jaxemb.tables import sharded
from jaxemb.tables import spec as spec_lib

LAYOUTS = {
  'replicated': sharded.replicated,
  'row': sharded.row,
  'column': sharded.column,
}
OPTIMIZERS = {
  'sgd': lambda o: rowopt.sgd(o.max_duplicates),
  'adagrad': lambda o: rowopt.adagrad(o.epsilon),
  'adam': lambda o: rowopt.adam(o.beta1, o.beta2, o.epsilon),
}

# Steps in which a device wants more rows of another than its buffer holds take
# a second exchange: with four deviations about one in ten thousand.
_ROW_DEVIATIONS = 4.0


def table(
  config: ml_collections.ConfigDict,
  spec: spec_lib.TableSpec,
  axes: spec_lib.Axes,
  mesh: jax.sharding.Mesh,
  rates: np.ndarray,
) -> spec_lib.Table:
  """A table in the layout that the settings name, with its optimizer.

  Args:
    config: checked settings in which all is chosen.
    spec: the table.
    axes: of the mesh, as the table sees it.
    mesh: the devices.
    rates: [vocab], expected look-ups of each row per center.
  """
  o, t, layout = config.optimizer, config.table, config.table.layout
  if spec.momentum is None:
    optimizer = OPTIMIZERS[o.name](o)
    spec = dataclasses.replace(
      spec,
      dtype=t.dtype,
      rounding=t.rounding,
      scales=t.scales,
      exchange_dtype=t.exchange_dtype,
    )
  else:
    optimizer = rowopt.averages(
      spec.momentum, o.learning_rate, o.final_learning_rate
    )
    if layout == 'column':
      # Whole on every device of the table axis, all of which see all of it.
      layout, axes = 'replicated', dataclasses.replace(axes, num_table=1)
  return LAYOUTS[layout](
    spec,
    optimizer,
    axes,
    t.duplicates == 'merge',
    **_row_settings(config, mesh, rates),
  )


def _row_settings(
  config: ml_collections.ConfigDict,
  mesh: jax.sharding.Mesh,
  rates: np.ndarray,
) -> dict[str, int]:
  """Settings that only the row layout has.

  Args:
    config: checked settings in which all is chosen.
    mesh: the devices.
    rates: [vocab], expected look-ups of each row per center.
  """
  if config.table.layout != 'row':
    return {}
  num_table = mesh.shape[mesh_lib.TABLE]
  centers = config.train.batch_words / mesh.size  # of a device
  # Different rows that a device wants of each other one, and their deviation.
  chances = -np.expm1(-rates * centers)
  holders = sharded.row_holders(len(rates), num_table)
  expected = np.bincount(holders, chances, num_table)
  largest = np.max(expected + _ROW_DEVIATIONS * np.sqrt(expected))
  return {'capacity': 8 * math.ceil(largest / 8)}
