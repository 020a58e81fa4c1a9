"""Training steps on a GPU by one kernel, in place of XLA's many operations.

XLA cuts batches and keeps the schedule, as in every step
(`strategies.base.training_step`); a kernel (`windows.cu`) draws negatives,
looks up rows, differentiates the loss and updates the tables, chunk by chunk.
Its blocks walk stretches of the step that lie far apart, and share the tables
without locks: what each is at the others do not know of yet.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb import errors
from jaxemb.data import windows as windows_data
from jaxemb.kernels import brakes, ffi
from jaxemb.kernels import state as state_lib
from jaxemb.kernels.gpu import driver, launch, nvrtc, windows
from jaxemb.models import base as model_base
from jaxemb.models import cbow, hierarchical, skipgram
from jaxemb.runtime import compile_time
from jaxemb.strategies import base as strategy_base

_MODELS = {
  skipgram.SkipGram: 'skipgram',
  cbow.Cbow: 'cbow',
  hierarchical.Hierarchical: 'hierarchical',
}
_TABLES = skipgram.INPUT, skipgram.OUTPUT
_ENTRY = 'train'  # the name of the kernel in its source
_READ = 11  # arguments that are only read; loss and tables follow
_LOSS_EVERY_CHUNKS = 64


@dataclasses.dataclass(frozen=True)
class Kernel:
  """The fused step of a model; a `strategies.base.Trainable.fused`."""

  variant: windows.Variant
  digest: int  # of the variant, below 2^63 (`launch.Launch`)
  parameter: float  # max_duplicates or epsilon
  num_blocks: int

  @property
  def words_in_flight(self) -> int:
    """Centers that blocks learn from at the same time."""
    return self.num_blocks * self.variant.chunk

  def __call__(
    self,
    trainable: strategy_base.Trainable,
    batch: windows_data.StepBatch,
    context: strategy_base.StepContext,
    carry: tuple[strategy_base.TrainState, strategy_base.StepMetrics],
  ) -> tuple[strategy_base.TrainState, strategy_base.StepMetrics]:
    """As `strategies.base.training_step`."""
    state, metrics = carry
    model = cast(skipgram.WindowModel, trainable.model)
    specs = [trainable.tables[name].spec for name in _TABLES]
    others = dict.fromkeys(_TABLES, self.words_in_flight - self.variant.chunk)
    braked = brakes.of_step(trainable, others, context=context, state=state)
    spec = model.spec
    numbers = (
      context.learning_rate,
      self.parameter,
      spec.negatives / spec.shared_negatives,
      *(spec.context_weights or [1] * spec.window),
    )
    rounding = strategy_base.rounding_key(specs[0], context, 0)
    keys = [
      context.key,
      jnp.zeros(2, jnp.uint32) if rounding is None else rounding,
    ]
    more, num_entries = _constants(model)
    arrays = state_lib.arrays(state, _TABLES)
    totals = jnp.zeros(2, jnp.float32)
    num_parts, length = batch.left.shape
    num_chunks = length // self.variant.chunk
    # Of a tree's chunks, which are centers, those that begin one of the batch.
    every = _LOSS_EVERY_CHUNKS * (spec.chunk // self.variant.chunk)
    integers = (
      num_chunks,
      spec.vocab,
      *keys[0],
      *keys[1],
      *map(len, braked),
      num_entries,
      jnp.where(context.measure, every, 0),
    )
    chunks = batch.chunks.reshape(num_parts, -1)
    # Corpus shards of a replica, one after the other.
    for part in range(num_parts):
      totals, *arrays = self._launch(
        num_chunks,
        read=[
          jnp.stack([jnp.asarray(x, jnp.float32) for x in numbers]),
          jnp.stack([_integer(x) for x in integers]),
          *(x[part] for x in (batch.tokens, batch.left, batch.right, chunks)),
          *braked,
          *more,
        ],
        changed=[totals, *arrays],
      )
    state = state_lib.replaced(state, _TABLES, arrays)
    return state, strategy_base.added(
      metrics, context.index, totals[0], examples=totals[1], sums={}
    )

  def _launch(
    self,
    num_chunks: int,
    read: Sequence[jax.typing.ArrayLike],
    changed: Sequence[jax.Array],
  ) -> Sequence[jax.Array]:
    """Returns what has changed, in place."""
    launched = launch.Launch(
      digest=self.digest,
      blocks=min(self.num_blocks, num_chunks),
      threads=self.variant.threads,
      shared_bytes=self.variant.shared_bytes,
    )
    assert len(read) == _READ
    return launch.call(
      launched,
      [*map(jnp.asarray, read), *changed],
      [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in changed],
      aliases={_READ + i: i for i in range(len(changed))},
    )


def _integer(number: jax.Array | int) -> jax.Array:
  """Returns int32 with the bits of a number."""
  number = jnp.asarray(number)
  if number.dtype == jnp.uint32:
    return jax.lax.bitcast_convert_type(number, jnp.int32)
  return number.astype(jnp.int32)


def _constants(
  model: model_base.Model,
) -> tuple[list[jax.typing.ArrayLike], int]:
  """Returns three arrays of a model, and the entries of its alias table."""
  if isinstance(model, hierarchical.Hierarchical):
    split = model.tree.split
    return [split.exits, split.firsts, split.deep], 0
  lines = cast(skipgram.SkipGram, model).negatives.lines
  none = np.zeros(1, np.int32)
  return [lines, none, none], lines.shape[0] * lines.shape[1] // 2


def variant(
  model: model_base.Model,
  table: Mapping[str, Any],
  optimizer: Mapping[str, Any],
) -> windows.Variant:
  """Returns the kernel's form for a model and its tables.

  `table` and `optimizer` have the settings of these names.
  """
  name = _MODELS[type(model)]
  spec = cast(skipgram.WindowModel, model).spec
  sizes = {'dim': spec.dim, 'chunk': spec.chunk, 'window': spec.window}
  if not isinstance(model, hierarchical.Hierarchical):
    sizes['draws'] = spec.shared_negatives
    return _variant(name, table, optimizer, **sizes)
  split = model.tree.split
  sizes |= {
    'chunk': 1,
    'averages': model.averages,
    'firsts': split.firsts.shape[1],
    'deep': split.deep.shape[1],
  }
  return _variant(name, table, optimizer, **sizes)


def _variant(name, table, optimizer, **sizes):
  is_adagrad = optimizer['name'] == 'adagrad'
  is_low = table['dtype'] == 'bfloat16'
  return windows.Variant(
    model=name,
    dtype=table['dtype'],
    stochastic=is_low and table['rounding'] == 'stochastic',
    adagrad=is_adagrad,
    limited=not is_adagrad and optimizer['max_duplicates'] > 0,
    **sizes,
  )


def expected(settings: Mapping[str, Any], chunk: int) -> windows.Variant | None:
  """Returns the `variant` that settings will lead to; None = data decide."""
  m = settings['model']
  if m['loss'] == 'hierarchical_softmax':
    return None
  return _variant(
    m['name'],
    settings['table'],
    settings['optimizer'],
    dim=m['dim'],
    chunk=chunk,
    window=m['window'],
    draws=m['shared_negatives'],
  )


def fitting_chunk(
  settings: Mapping[str, Any], usual: int, shared_bytes: int
) -> int:
  """Returns the centers of a chunk whose rows fit the memory of a block.

  They are as many as usual, or half. Raises `ffi.Unavailable` if both are too
  many.
  """
  refusal = ''
  for chunk in (usual, usual // 2):
    chosen = expected(settings, chunk)
    refusal = chosen.refusal(shared_bytes) if chosen else ''
    if not refusal:
      return chunk
  raise ffi.Unavailable(refusal)


# Compilations under way, and the devices that a kernel is loaded for, as CUDA
# numbers them, by digest.
_compiling: dict[int, futures.Future[bytes]] = {}
_loaded: dict[int, set[int]] = {}


def compile(
  chosen: windows.Variant,
  facts: Sequence[driver.Facts],
  folder: pathlib.Path | None,
) -> futures.Future[bytes]:
  """Has a thread compile a kernel, if none did so; returns its result to come.

  The `folder` keeps what is compiled; it may be known from an earlier run.
  """
  digest = _digest(chosen)
  if digest not in _compiling:
    pool = futures.ThreadPoolExecutor(1)
    _compiling[digest] = pool.submit(
      nvrtc.cubin,
      windows.SOURCE.read_text(),
      chosen.macros(),
      capability=_capability(facts),
      folder=folder,
      newest=driver.cuda_version(),
    )
    pool.shutdown(wait=False)
  return _compiling[digest]


def _digest(chosen: windows.Variant) -> int:
  text = nvrtc.digest(windows.SOURCE.read_text(), chosen.macros())
  return int(text[:16], 16) >> 1


def make(
  chosen: windows.Variant,
  optimizer: Mapping[str, Any],
  num_blocks: int,
  devices: Sequence[jax.Device],
  folder: pathlib.Path | None = None,
) -> Kernel:
  """Returns the kernel, loaded on those devices that are here.

  `optimizer` has the settings of that name; the `folder` keeps what is
  compiled. Raises `ffi.Unavailable` for whatever fails.
  """
  digest = _digest(chosen)
  try:
    facts = [driver.facts(x) for x in devices]
    if refusal := chosen.refusal(min(x.shared_bytes for x in facts)):
      raise ffi.Unavailable(refusal)
    launch.register()
    here = jax.local_devices()
    before = _loaded.get(digest, set())
    ordinals = before | {x.local_hardware_id for x in devices if x in here}
    if ordinals > before:
      with compile_time.waiting():
        program = compile(chosen, facts, folder).result()
      loaded = driver.load(
        program, _ENTRY, chosen.shared_bytes, ordinals=sorted(ordinals)
      )
      launch.put(digest, loaded, driver.launcher())
      _loaded[digest] = ordinals
  except ffi.Unavailable:
    raise
  except Exception as error:  # of NVIDIA's libraries, numba, LLVM and XLA
    raise ffi.Unavailable(errors.one_line(error)) from error
  is_sgd = optimizer['name'] == 'sgd'
  return Kernel(
    variant=chosen,
    digest=digest,
    parameter=optimizer['max_duplicates' if is_sgd else 'epsilon'],
    num_blocks=num_blocks,
  )


def _capability(facts: Sequence[driver.Facts]) -> int:
  """Returns the lowest compute capability, of one generation."""
  capabilities = [x.capability for x in facts]
  if len({x // 10 for x in capabilities}) > 1:
    raise ffi.Unavailable('the GPUs are of several generations')
  return min(capabilities)
