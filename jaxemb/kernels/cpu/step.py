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
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb import errors
from jaxemb.data import windows
from jaxemb.kernels.cpu import ffi, handlers, kernels, rows
from jaxemb.models import base as model_base
from jaxemb.models import cbow, hierarchical, skipgram
from jaxemb.strategies import base as strategy_base

_KERNELS = {
  skipgram.SkipGram: 'skipgram',
  cbow.Cbow: 'cbow',
  hierarchical.Hierarchical: 'hierarchical',
}
_TABLES = skipgram.INPUT, skipgram.OUTPUT


# Of rows that other threads look up, by how often they do meanwhile and by the
# learning rate: measured, as are the centers of others that need none
# (experiments/results/step_notes.md).
_BRAKE = 10.0
_FREE_CENTERS = 240
_LEAST_BRAKE = 0.2  # less than this changes a learning rate by a hundredth


class Unavailable(Exception):
  """A kernel cannot be compiled or used, for a reason of one line."""


@contextlib.contextmanager
def unavailable_if_failed():
  """Raises `Unavailable` for whatever fails within."""
  try:
    yield
  except Exception as error:  # numba, LLVM and XLA have many
    raise Unavailable(errors.one_line(error)) from error


@functools.cache  # XLA takes a name once
@unavailable_if_failed()
def register(target: str = handlers.TARGET, part: str = 'handler') -> None:
  """Registers a handler that calls kernels with XLA. Raises `Unavailable`."""
  handlers.compiled('task')
  ffi.register(target, handlers.compiled(part))


def _brakes(lookups_per_center: np.ndarray, centers: int) -> np.ndarray:
  """[h] float32, the `rows.Rule.brakes` of a table.

  Other threads are at `centers`: what they all look up all of them change, and
  as none knows of the others, together they may go too far.
  """
  scale = _BRAKE * max(0, centers - _FREE_CENTERS)
  brakes = (scale * lookups_per_center).astype(np.float32)
  size = np.flatnonzero(brakes > _LEAST_BRAKE).max(initial=0)
  return brakes[: size + 1]


class _Inputs(NamedTuple):
  """What a kernel takes of a model."""

  ids: Sequence[jax.Array]
  negatives: float = 0  # for each pair
  averages: bool = False  # of trees
  longest: int = 0  # path of a tree
  chunk: int = 1  # centers of a chunk


def _inputs(
  model: model_base.Model,
  batch: windows.StepBatch,
  context: strategy_base.StepContext,
) -> _Inputs:
  spec = model.spec
  if isinstance(model, hierarchical.Hierarchical):
    split = model.tree.split
    return _Inputs(
      ids=(batch.windows(), split.exits, split.firsts, split.deep),
      averages=model.averages,
      longest=split.firsts.shape[1] + split.deep.shape[1],
    )
  if context.positions is None:
    draws = skipgram.draw_negatives(
      spec, model.negatives, batch=batch, key=context.key
    )
    ids = batch.windows(), draws
  else:
    # Rows of an id are the same cache row in both tables.
    inputs, outputs = (context.positions[name] for name in _TABLES)
    num_words = outputs.shape[1] - spec.shared_negatives
    is_cbow = isinstance(model, cbow.Cbow)
    window_rows = inputs if is_cbow else outputs[:, :num_words]
    ids = window_rows, outputs[:, num_words:]
  return _Inputs(ids=ids, negatives=spec.negatives, chunk=spec.chunk)


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
    inputs = _inputs(model, batch, context)
    tables = [state.tables[name] for name in _TABLES]
    opt_states = [jax.tree.leaves(table.opt_state)[0] for table in tables]
    changed = [*(x.vectors for x in tables), *opt_states]
    left, right = (
      x.reshape(len(batch.chunks), -1) for x in (batch.left, batch.right)
    )
    numbers = handlers.Numbers(
      context.learning_rate, self.parameter, inputs.negatives
    )
    centers = inputs.chunk * (self.num_threads - 1)  # of other threads
    brakes = [
      _brakes(trainable.tables[x].spec.lookups_per_center, centers)
      for x in _TABLES
    ]
    arguments = handlers.Arguments(
      *changed,
      left=left,
      right=right,
      numbers=jnp.stack([jnp.asarray(x, jnp.float32) for x in numbers]),
      integers=self._integers(trainable, context, inputs.averages),
      input_brakes=brakes[0],
      output_brakes=brakes[1],
    )
    scratch = self.num_threads, kernels.num_scratch(spec, inputs.longest)
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in changed]
    results += [jax.ShapeDtypeStruct(x, jnp.float32) for x in ((2,), scratch)]
    call = jax.ffi.ffi_call(
      handlers.TARGET,
      results,
      input_output_aliases={i: i for i in range(handlers.NUM_CHANGED)},
    )
    *changed, totals, _ = call(*arguments, *inputs.ids)
    new = {}
    for i, (name, table) in enumerate(zip(_TABLES, tables, strict=True)):
      tree = jax.tree.structure(table.opt_state)
      opt_state = jax.tree.unflatten(tree, [changed[2 + i]])
      new[name] = table._replace(vectors=changed[i], opt_state=opt_state)
    return state._replace(tables=state.tables | new), _counted(
      metrics, totals, context.index
    )

  def _integers(self, trainable, context, averages):
    table = trainable.tables[skipgram.INPUT]
    key = strategy_base.rounding_key(table.spec, context, 0)
    keys = jnp.zeros(2, jnp.uint32) if key is None else key
    key0, key1 = jax.lax.bitcast_convert_type(keys, jnp.int32)
    integers = handlers.Integers(
      rule=rows.ADAGRAD if self.optimizer == 'adagrad' else rows.SGD,
      key0=key0,
      key1=key1,
      is_stochastic=int(key is not None),
      averages=int(averages),
      kernel=self.number,
    )
    return jnp.stack(list(integers)).astype(jnp.int32)


def _counted(metrics, totals, step):
  """Adds loss and examples; a loss that is not finite is noted."""
  loss, examples = totals[0], totals[1]
  first = metrics.first_bad_step
  is_bad = ~jnp.isfinite(loss) & (first < 0)
  return metrics._replace(
    loss=metrics.loss + loss,
    examples=metrics.examples + examples,
    first_bad_step=jnp.where(is_bad, step, first),
  )


def make(
  model: type,
  dtype: str,
  optimizer: Mapping[str, Any],
  num_threads: int = 1,
  compiling: subprocess.Popen | None = None,
) -> Kernel:
  """Returns the kernel of a class of models, for tables of a dtype.

  `optimizer` has the settings of that name; `compiling` is what to wait for.
  Raises `Unavailable`.
  """
  is_sgd = optimizer['name'] == 'sgd'
  parameter = optimizer['max_duplicates' if is_sgd else 'epsilon']
  register()
  kernel = _KERNELS[model]
  if compiling:
    compiling.wait()
  with unavailable_if_failed():
    number = handlers.load(kernel, dtype)
  return Kernel(number, optimizer['name'], parameter, num_threads)
