"""Training steps on a CPU by one kernel, in place of XLA's many operations.

XLA cuts batches, draws negatives and keeps the schedule, as in every step
(`strategies.base.training_step`); a kernel looks up rows, differentiates the
loss and updates the tables. It can do so for tables that are whole on a device,
in float32 or bfloat16, with SGD or Adagrad, of the models that come with
jaxemb.
"""

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numba
import numpy as np

from jaxemb import errors
from jaxemb.data import windows
from jaxemb.models import cbow, hierarchical, skipgram
from jaxemb.native import ffi, kernels, rows, tiles
from jaxemb.strategies import base as strategy_base

_KINDS = {'float32': np.float32, 'bfloat16': np.uint16}
_NUM_TABLES = 4  # arrays that a kernel changes


def _source() -> int:
  """A digest of what kernels are compiled from.

  numba looks at one file to tell whether what it has compiled before is still
  right; a kernel is made of several.
  """
  folder = pathlib.Path(__file__).parent
  texts = [x.read_bytes() for x in sorted(folder.glob('*.py'))]
  return int(hashlib.sha256(b''.join(texts)).hexdigest()[:8], 16)


@numba.njit(nogil=True)
def _rule(numbers, integers):
  return rows.Rule(
    np.int64(integers[0]),
    numbers[0],
    numbers[1],
    np.uint32(integers[1]),
    np.uint32(integers[2]),
    integers[3] != 0,
  )


@numba.njit(nogil=True)
def _finish(frame, found):
  out = ffi.result(frame, _NUM_TABLES, np.float32)
  out[0], out[1] = found
  return np.uintp(0)


@numba.njit(nogil=True)
def _tables(frame, kind):
  return (
    ffi.matrix_result(frame, 0, kind),
    ffi.matrix_result(frame, 1, kind),
    ffi.result(frame, 2, np.float32),
    ffi.result(frame, 3, np.float32),
  )


def _skipgram_handler(kind, source):
  def handle(frame):
    if not ffi.is_call(frame) or source < 0:
      return np.uintp(0)
    numbers = ffi.argument(frame, 8, np.float32)
    integers = ffi.argument(frame, 9, np.int32)
    inputs, outputs, input_slots, output_slots = _tables(frame, kind)
    found = kernels.skipgram(
      inputs, outputs, input_slots, output_slots,
      ffi.matrix_argument(frame, 4, np.int32),
      ffi.matrix_argument(frame, 5, np.int32),
      ffi.matrix_argument(frame, 6, np.uint8),
      ffi.matrix_argument(frame, 7, np.uint8),
      np.int64(integers[4]), numbers[2], _rule(numbers, integers),
      ffi.result(frame, _NUM_TABLES + 1, np.float32),
    )  # fmt: skip
    return _finish(frame, found)

  return handle


def _cbow_handler(kind, source):
  def handle(frame):
    if not ffi.is_call(frame) or source < 0:
      return np.uintp(0)
    numbers = ffi.argument(frame, 8, np.float32)
    integers = ffi.argument(frame, 9, np.int32)
    inputs, outputs, input_slots, output_slots = _tables(frame, kind)
    found = kernels.cbow(
      inputs, outputs, input_slots, output_slots,
      ffi.matrix_argument(frame, 4, np.int32),
      ffi.matrix_argument(frame, 5, np.int32),
      ffi.matrix_argument(frame, 6, np.uint8),
      ffi.matrix_argument(frame, 7, np.uint8),
      np.int64(integers[4]), numbers[2], _rule(numbers, integers),
      ffi.result(frame, _NUM_TABLES + 1, np.float32),
    )  # fmt: skip
    return _finish(frame, found)

  return handle


def _hierarchical_handler(kind, source):
  def handle(frame):
    if not ffi.is_call(frame) or source < 0:
      return np.uintp(0)
    numbers = ffi.argument(frame, 10, np.float32)
    integers = ffi.argument(frame, 11, np.int32)
    inputs, outputs, input_slots, output_slots = _tables(frame, kind)
    found = kernels.hierarchical(
      inputs, outputs, input_slots, output_slots,
      ffi.matrix_argument(frame, 4, np.int32),
      ffi.argument(frame, 5, np.int32),
      ffi.matrix_argument(frame, 6, np.int32),
      ffi.matrix_argument(frame, 7, np.int32),
      ffi.matrix_argument(frame, 8, np.uint8),
      ffi.matrix_argument(frame, 9, np.uint8),
      integers[4] != 0, _rule(numbers, integers),
      ffi.result(frame, _NUM_TABLES + 1, np.float32),
    )  # fmt: skip
    return _finish(frame, found)

  return handle


_HANDLERS = {
  skipgram.SkipGram: _skipgram_handler,
  cbow.Cbow: _cbow_handler,
  hierarchical.Hierarchical: _hierarchical_handler,
}


class Unavailable(Exception):
  """A kernel cannot be compiled or used, told in one line."""


@functools.cache
def _target(model: type, dtype: str) -> str:
  """The name under which XLA knows a model's kernel; compiles it."""
  name = f'jaxemb_{model.__name__.lower()}_{dtype}'
  handler = _HANDLERS[model](_KINDS[dtype], _source())
  try:
    compiled = numba.cfunc(ffi.SIGNATURE, cache=True)(handler)
    ffi.register(name, compiled)
  except Exception as error:  # numba, LLVM and XLA have many
    raise Unavailable(errors.one_line(error)) from error
  return name


def _num_scratch(spec: skipgram.WindowSpec, longest: int) -> int:
  """Floats for the rows of a chunk, their gradients and weights."""
  columns = spec.dim + tiles.LANES
  width = spec.chunk + 2 * spec.window + 2 * tiles.SIZE
  num = 4 * width + 2 * (spec.shared_negatives + longest) + 8 * tiles.SIZE
  weights = width + spec.shared_negatives + longest + 2 * tiles.SIZE
  return num * columns + 3 * width * (weights + 2 * width) + 1024


@dataclasses.dataclass(frozen=True)
class Kernel:
  """The fused step of a model; a `strategies.base.Trainable.fused`."""

  target: str
  optimizer: str  # 'sgd' or 'adagrad'
  parameter: float  # max_duplicates or epsilon

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
    slots = [jax.tree.leaves(table.slots)[0] for table in tables]
    left, right = (
      x.reshape(len(batch.chunks), -1) for x in (batch.left, batch.right)
    )
    numbers = [context.learning_rate, self.parameter]
    table = trainable.tables[skipgram.INPUT]
    key = strategy_base.rounding_key(table.spec, context, 0)
    is_stochastic = key is not None
    keys = jnp.zeros(2, jnp.uint32) if key is None else key
    kind = rows.ADAGRAD if self.optimizer == 'adagrad' else rows.SGD
    longest = 0
    if isinstance(model, hierarchical.Hierarchical):
      split = model.tree.split
      longest = split.firsts.shape[1] + split.deep.shape[1]
      ids = batch.windows(), split.exits, split.firsts, split.deep
      last = int(model.averages)
    else:
      found = model.ids(batch, context.key)
      ids = [found[name] for name in names]
      last = spec.window
      numbers.append(spec.negatives)
    keys = jax.lax.bitcast_convert_type(keys, jnp.int32)
    integers = jnp.stack(
      [kind, keys[0], keys[1], int(is_stochastic), last]
    ).astype(jnp.int32)
    changed = [*(x.vectors for x in tables), *slots]
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in changed]
    scratch = _num_scratch(spec, longest)
    results += [
      jax.ShapeDtypeStruct((n,), jnp.float32) for n in (2, scratch)
    ]
    call = jax.ffi.ffi_call(
      self.target,
      results,
      input_output_aliases={i: i for i in range(_NUM_TABLES)},
    )
    numbers = jnp.stack([jnp.asarray(x, jnp.float32) for x in numbers])
    *changed, found, _ = call(*changed, *ids, left, right, numbers, integers)
    new = {}
    for i, (name, table) in enumerate(zip(names, tables, strict=True)):
      tree = jax.tree.structure(table.slots)
      slot = jax.tree.unflatten(tree, [changed[2 + i]])
      new[name] = table._replace(vectors=changed[i], slots=slot)
    state = state._replace(tables=state.tables | new)
    first = metrics.first_bad_step
    is_bad = ~jnp.isfinite(found[0]) & (first < 0)
    return state, metrics._replace(
      loss=metrics.loss + found[0],
      examples=metrics.examples + found[1],
      first_bad_step=jnp.where(is_bad, context.index, first),
    )


def make(model: type, dtype: str, optimizer: Mapping[str, Any]) -> Kernel:
  """The kernel of a class of models, compiled, for tables of a dtype.

  `optimizer` has the settings of that name. Raises `Unavailable`.
  """
  is_sgd = optimizer['name'] == 'sgd'
  parameter = optimizer['max_duplicates' if is_sgd else 'epsilon']
  return Kernel(_target(model, dtype), optimizer['name'], parameter)
