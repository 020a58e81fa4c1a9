"""Tables laid on a mesh, with whole arrays in and out."""

import functools
import inspect
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxemb.kernels.cpu import updates
from jaxemb.kernels.gpu import row_sums
from jaxemb.kernels.tpu import row_copies, sorted_sums
from jaxemb.runtime import mesh
from jaxemb.tables import replicated, row_access, row_optimizers, row_sharded
from jaxemb.tables import spec as spec_lib
from tests import compiling, oracle

# Three groups of rows in the row layout, the last one half empty; columns that
# four devices cannot share alike.
VOCAB, DIM = 600, 6
SPEC = spec_lib.TableSpec('words', VOCAB, DIM, 0.25)


class _RowByTwo(row_sharded.RowSharded):
  """So little is sent at once that there are many rounds."""

  capacity = 2


LAYOUTS = {
  'replicated': replicated.Replicated,
  'replicated_merging': functools.partial(
    replicated.Replicated, deduplicates=True
  ),
  'column': replicated.SplitColumns,
  'column_merging': functools.partial(
    replicated.SplitColumns, deduplicates=True
  ),
  'row': row_sharded.RowSharded,
  'row_by_two': _RowByTwo,
}
# The name of each one's function and of its oracle, and their constants.
OPTIMIZERS = {
  'sgd': ('sgd', {'max_duplicates': 0}),
  'sgd_limited': ('sgd', {'max_duplicates': 2.5}),
  'adagrad': ('adagrad', {'epsilon': 1e-6}),
  'adam': ('adam', {'beta1': 0.9, 'beta2': 0.999, 'epsilon': 1e-6}),
  'adagrad_full': ('adagrad_full', {'epsilon': 1e-6}),
  'adam_full': ('adam_full', {'beta1': 0.9, 'beta2': 0.999, 'epsilon': 1e-6}),
}


# Kernels of devices, interpreted where there is none.
_COPIES = row_access.Copies(
  can_copy=lambda x: x.ndim == 2 and x.dtype.itemsize == 4,
  take=functools.partial(row_copies.take, interpret=True),
  put=functools.partial(row_copies.put, interpret=True),
)
_TPU = row_access.Kernels(
  _COPIES,
  functools.partial(sorted_sums.running_sums, interpret=True, fits=True),
)


def optimizer(name: str, device: str = '') -> row_optimizers.RowOptimizer:
  """A row optimizer of `OPTIMIZERS`, for a TPU by its kernels."""
  function, constants = OPTIMIZERS[name]
  make = getattr(row_optimizers, function)
  if device == 'tpu' and 'copies' in inspect.signature(make).parameters:
    return make(**constants, copies=_COPIES)
  return make(**constants)


def _on(device: str, name: str) -> dict[str, Any]:
  """Fields of a table whose rows the kernels of a device change."""
  function, constants = OPTIMIZERS[name]
  if device.startswith('cpu'):
    settings = {'name': function, **constants}
    return {'row_kernel': updates.make(settings, int(device[3:]))}
  if device == 'gpu':
    how = {'interpret': jax.devices()[0].platform != 'gpu'}
    kernels = row_access.Kernels(
      sums=functools.partial(row_sums.sums, **how),
      sums_of_sorted=functools.partial(row_sums.sums_of_sorted, **how),
    )
    changed = optimizer(name)
    kernel = row_sums.RowKernel(changed, **how) if changed.change else None
    return {'kernels': kernels, 'row_kernel': kernel}
  return {'kernels': _TPU} if device else {}


def learn(name: str, *args: Any, **more: Any) -> None:
  """A step of its loop over occurrences and rows, see `oracle`."""
  function, constants = OPTIMIZERS[name]
  getattr(oracle, function)(*args, **constants, **more)


class Laid(NamedTuple):
  """A table on a mesh."""

  table: spec_lib.Table
  num_lookers: int  # devices, or groups of them, with ids of their own
  width: int  # columns of all devices, some of which only fill up
  init: Any  # key -> state
  # (state, ids, gradients, learning rate, key) -> rows looked up, state
  step: Any

  def start(self, rows: np.ndarray) -> Any:
    """A new state with these rows, by import."""
    state = self.init(jax.random.key(0))
    return self.table.import_rows(state, np.arange(len(rows)), rows)

  def widened(self, grads: np.ndarray) -> np.ndarray:
    """Gradients [n, dim] as the layout takes them."""
    return np.pad(grads, ((0, 0), (0, self.width - grads.shape[1])))


@functools.cache
def lay(
  layout: str,
  shape: tuple[int, int],
  optimizer_name: str = 'sgd_limited',
  spec: spec_lib.TableSpec = SPEC,
  knows_rows: bool = False,
  **rules: Any,
) -> Laid:
  """A table of a layout; `knows_rows` says that updates get what they read.

  A layout may end with the kernels that change rows: '@gpu', '@tpu', or '@cpu'
  and a number of threads. `rules` are fields of the optimizer.
  """
  devices, is_split = mesh.make(mesh.Shape(*shape)), 'column' in layout
  layout, _, device = layout.partition('@')
  table = LAYOUTS[layout](
    spec,
    optimizer(optimizer_name, device)._replace(**rules),
    spec_lib.Axes(*shape),
    **_on(device, optimizer_name),
  )
  names = (mesh.DATA, mesh.TABLE)[: 2 - is_split]
  everywhere, ids = (
    jax.sharding.PartitionSpec(),
    jax.sharding.PartitionSpec(names),
  )
  rows = jax.sharding.PartitionSpec(names, mesh.TABLE if is_split else None)

  def step(state, ids, grads, rate, key):
    found = table.lookup(state, ids)
    known = found.rows if knows_rows else None
    step = spec_lib.Step(rate, key)
    return found.rows, table.update(found.state, ids, grads, known, step)

  def compiled(function, ins, outs):
    mapped = jax.shard_map(
      function, mesh=devices, in_specs=ins, out_specs=outs, check_vma=False
    )
    # Rows of few bits are scattered as users' programs do it.
    is_wide = spec.dtype == 'float32'
    options = None if is_wide else compiling.AS_USERS_DO
    return jax.jit(mapped, compiler_options=options)

  ins = table.partition, ids, rows, everywhere, everywhere
  return Laid(
    table,
    int(np.prod([devices.shape[name] for name in names])),
    spec.dim + (-spec.dim % shape[1] if is_split else 0),
    compiled(table.init, everywhere, table.partition),
    compiled(step, ins, (rows, table.partition)),
  )
