"""Training steps on a CPU by one kernel, in place of XLA's many operations.

XLA cuts batches, draws negatives and keeps the schedule, as in every step
(`strategies.base.training_step`); a kernel looks up rows, differentiates the
loss and updates the tables. It can do so for tables that are whole on a device,
in float32 or bfloat16, with SGD or Adagrad, of the models that come with
jaxemb.
"""

import contextlib
import dataclasses
import functools
import subprocess
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb import errors
from jaxemb.data import windows
from jaxemb.kernels.cpu import ffi, handlers, rows, tiles
from jaxemb.models import base, cbow, hierarchical, skipgram
from jaxemb.strategies import base as strategy_base

_KERNELS = {
  skipgram.SkipGram: 'skipgram',
  cbow.Cbow: 'cbow',
  hierarchical.Hierarchical: 'hierarchical',
}


# Of rows that other threads look up, by how often they do meanwhile and by the
# learning rate: measured, as are the centers of others that need none
# (experiments/results/step_notes.md).
_BRAKE = 10.0
_FREE_CENTERS = 240
_LEAST_BRAKE = 0.2  # less than this changes a learning rate by a hundredth


class Unavailable(Exception):
  """A kernel cannot be compiled or used, told in one line."""


@contextlib.contextmanager
def telling():
  """Whatever fails within is `Unavailable`."""
  try:
    yield
  except Exception as error:  # numba, LLVM and XLA have many
    raise Unavailable(errors.one_line(error)) from error


@functools.cache  # XLA takes a name once
@telling()
def register(target: str = handlers.TARGET, part: str = 'handler') -> None:
  """Makes known to XLA what calls kernels. Raises `Unavailable`."""
  handlers.compiled('task')
  ffi.register(target, handlers.compiled(part))


def _num_scratch(spec: base.WindowSpec, longest: int) -> int:
  """Floats for what any kernel takes; with fewer it does nothing."""
  left = spec.chunk + 2 * spec.window + 3 * tiles.SIZE
  right = left + spec.shared_negatives + longest
  columns = spec.dim + tiles.LANES
  # Words, means and outputs with their gradients, of which each has an address,
  # an id and a rate; scores, weights and shares; the rows that each tile meets.
  num_rows = 2 * (2 * left + right)
  number = num_rows * (columns + 6) + left * (3 * right + left) + 1024
  return number // 16 * 16  # so that what follows stays aligned


def _brakes(lookups_per_center: np.ndarray, centers: int) -> np.ndarray:
  """[h] float32, the `rows.Rule.brakes` of a table.

  Other threads are at `centers`: what they all look up all of them change, and
  as none knows of the others, together they may go too far.
  """
  scale = _BRAKE * max(0, centers - _FREE_CENTERS)
  found = (scale * lookups_per_center).astype(np.float32)
  size = np.flatnonzero(found > _LEAST_BRAKE).max(initial=0)
  return found[: size + 1]


@dataclasses.dataclass(frozen=True)
class Kernel:
  """The fused step of a model; a `strategies.base.Trainable.fused`."""

  number: int  # of the kernel
  optimizer: str  # 'sgd' or 'adagrad'
  parameter: float  # max_duplicates or epsilon
  num_threads: int

  def __call__(
    self,
    trainable: strategy_base.Trainable,
    batch: windows.StepBatch,
    context: strategy_base.StepContext,
    carry: tuple[strategy_base.TrainState, strategy_base.StepMetrics],
  ) -> tuple[strategy_base.TrainState, strategy_base.StepMetrics]:
    """As `strategies.base.training_step`."""
    state, metrics = carry
    model, spec = trainable.model, trainable.model.spec
    names = skipgram.INPUT, skipgram.OUTPUT
    tables = [state.tables[name] for name in names]
    opt_states = [jax.tree.leaves(table.opt_state)[0] for table in tables]
    left, right = (
      x.reshape(len(batch.chunks), -1) for x in (batch.left, batch.right)
    )
    negatives = 0
    table = trainable.tables[skipgram.INPUT]
    key = strategy_base.rounding_key(table.spec, context, 0)
    is_stochastic = key is not None
    keys = jnp.zeros(2, jnp.uint32) if key is None else key
    kind = rows.ADAGRAD if self.optimizer == 'adagrad' else rows.SGD
    longest = last = 0
    centers = spec.chunk
    if isinstance(model, hierarchical.Hierarchical):
      split = model.tree.split
      longest = split.firsts.shape[1] + split.deep.shape[1]
      ids = batch.windows(), split.exits, split.firsts, split.deep
      last, centers = int(model.averages), 1
    else:
      if context.positions is None:
        args = (spec, model.negatives, batch, context.key)
        ids = batch.windows(), skipgram.draw_negatives(*args)
      else:
        # Rows of an id have the same place in both tables.
        inputs, outputs = (context.positions[name] for name in names)
        first = outputs.shape[1] - spec.shared_negatives
        is_cbow = isinstance(model, cbow.Cbow)
        windows_places = inputs if is_cbow else outputs[:, :first]
        ids = windows_places, outputs[:, first:]
      negatives = spec.negatives
    keys = jax.lax.bitcast_convert_type(keys, jnp.int32)
    integers = jnp.stack(
      [kind, keys[0], keys[1], int(is_stochastic), last, self.number]
    ).astype(jnp.int32)
    changed = [*(x.vectors for x in tables), *opt_states]
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in changed]
    scratch = _num_scratch(spec, longest)
    shapes = (2,), (self.num_threads, scratch)
    results += [jax.ShapeDtypeStruct(x, jnp.float32) for x in shapes]
    call = jax.ffi.ffi_call(
      handlers.TARGET,
      results,
      input_output_aliases={i: i for i in range(handlers.NUM_CHANGED)},
    )
    numbers = context.learning_rate, self.parameter, negatives
    numbers = jnp.stack([jnp.asarray(x, jnp.float32) for x in numbers])
    centers *= self.num_threads - 1
    specs = (trainable.tables[name].spec for name in names)
    brakes = [_brakes(x.lookups_per_center, centers) for x in specs]
    arguments = *changed, left, right, numbers, integers, *brakes, *ids
    *changed, found, _ = call(*arguments)
    new = {}
    for i, (name, table) in enumerate(zip(names, tables, strict=True)):
      tree = jax.tree.structure(table.opt_state)
      opt_state = jax.tree.unflatten(tree, [changed[2 + i]])
      new[name] = table._replace(vectors=changed[i], opt_state=opt_state)
    state = state._replace(tables=state.tables | new)
    first = metrics.first_bad_step
    is_bad = ~jnp.isfinite(found[0]) & (first < 0)
    return state, metrics._replace(
      loss=metrics.loss + found[0],
      examples=metrics.examples + found[1],
      first_bad_step=jnp.where(is_bad, context.index, first),
    )


def make(
  model: type,
  dtype: str,
  optimizer: Mapping[str, Any],
  num_threads: int = 1,
  compiling: subprocess.Popen | None = None,
) -> Kernel:
  """The kernel of a class of models, compiled, for tables of a dtype.

  `optimizer` has the settings of that name; `compiling` is what to wait for.
  Raises `Unavailable`.
  """
  is_sgd = optimizer['name'] == 'sgd'
  parameter = optimizer['max_duplicates' if is_sgd else 'epsilon']
  register()
  kernel = _KERNELS[model]
  if compiling:
    compiling.wait()
  with telling():
    number = handlers.load(kernel, dtype)
  return Kernel(number, optimizer['name'], parameter, num_threads)
