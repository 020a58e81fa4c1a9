"""Training steps on a CPU by one kernel, in place of XLA's many operations.

XLA cuts batches and keeps the schedule, as in every step
(`strategies.base.training_step`); a kernel draws negatives, looks up rows,
differentiates the loss and updates the tables. It can do so for tables that are
whole on a device, in float32 or bfloat16, with SGD or Adagrad, of the models
that come with jaxemb.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb import errors
from jaxemb.data import windows
from jaxemb.kernels import brakes, ffi
from jaxemb.kernels import state as state_lib
from jaxemb.kernels.cpu import (
  ahead,
  arguments,
  descent,
  handlers,
  negative_sampling,
  paragraphs,
  subwords,
  tiles,
  trees,
  turns,
)
from jaxemb.models import base as model_base
from jaxemb.models import cbow, hierarchical, skipgram
from jaxemb.models import subwords as subword_models
from jaxemb.runtime import compile_time
from jaxemb.strategies import base as strategy_base

_KERNELS = {
  skipgram.SkipGram: 'skipgram',
  cbow.Cbow: 'cbow',
  hierarchical.Hierarchical: 'hierarchical',
  subword_models.SkipGram: 'skipgram_subwords',
  subword_models.Cbow: 'cbow_subwords',
}
_TABLES = skipgram.INPUT, skipgram.OUTPUT


def _tables(model: model_base.Model) -> tuple[str, ...]:
  """Returns the names of a model's tables, by their numbers in a kernel."""
  has_ngrams = isinstance(model, subword_models.SkipGram)
  return (*_TABLES, subword_models.NGRAMS) if has_ngrams else _TABLES


@functools.cache  # XLA takes a name once
def register() -> None:
  """Registers the handler that calls kernels with XLA."""
  handlers.compiled('task')
  ffi.register(turns.TARGET, handlers.compiled('handler'), 'cpu')


def load(name: str, later: bool = False) -> int:
  """Compiles a kernel if it was not; returns its number, for `call`.

  If it is compiled `later`, programs with it can be compiled before that, and
  run after it. Raises `ffi.Unavailable` for whatever fails: numba, LLVM and XLA
  have many errors.
  """
  try:
    with compile_time.waiting():
      register()
      return handlers.number(name) if later else handlers.load(name)
  except Exception as error:
    raise ffi.Unavailable(errors.one_line(error)) from error


def finish(compiling: ahead.Compiling) -> None:
  """Waits for kernels that were to be compiled later.

  Raises `ffi.Unavailable`.
  """
  with compile_time.waiting():
    compiling.process.wait()
  for name in compiling.names:
    load(name)


def call(
  kernel: int | jax.Array,
  num_chunks: int,
  scratch: tuple[int, int],
  read: Sequence[jax.typing.ArrayLike] = (),
  changed: Sequence[jax.Array] = (),
  new: Sequence[jax.ShapeDtypeStruct] = (),
  spoiled: int = -1,
) -> tuple[jax.Array, Sequence[jax.Array]]:
  """Has threads compute all chunks of a kernel's call (`turns`).

  Takes the kernel's number and the shape of its scratch, [threads, n] float32.
  Returns [2] loss and examples, NaN if it fails, and what has changed, in
  place, and what is new; the one `spoiled` of these is NaN then.
  """
  integers = [jnp.asarray(x, jnp.int32) for x in (kernel, num_chunks, spoiled)]
  shapes = [jax.ShapeDtypeStruct(x, jnp.float32) for x in ((2,), scratch)]
  first = turns.READ + len(read)
  results = jax.ffi.ffi_call(
    turns.TARGET,
    [*shapes, *changed, *new],
    input_output_aliases={
      first + i: turns.RESULTS + i for i in range(len(changed))
    },
  )(jnp.stack(integers), *read, *changed)
  return results[0], results[turns.RESULTS :]


class _Ids(NamedTuple):
  """The ids that a kernel takes (`arguments`)."""

  tokens: jax.Array
  num_draws: int
  num_entries: int  # of the alias table; 0 = draws are given
  more: Sequence[jax.Array | np.ndarray]


def _ids(
  model: model_base.Model,
  batch: windows.StepBatch,
  context: strategy_base.StepContext,
) -> _Ids:
  if isinstance(model, hierarchical.Hierarchical):
    split = model.tree.split
    return _Ids(batch.tokens, 0, 0, (split.exits, split.firsts, split.deep))
  negatives = cast(skipgram.SkipGram, model)
  num_draws = negatives.spec.shared_negatives
  if context.positions is None:
    more = [negatives.negatives.lines]
    if isinstance(model, subword_models.SkipGram):
      more += [model.words.starts, model.words.rows]
    return _Ids(batch.tokens, num_draws, more[0].size // 2, more)
  # Rows of an id are the same cache row in both tables.
  inputs, outputs = (context.positions[name] for name in _TABLES)
  num_words = outputs.shape[1] - num_draws
  is_cbow = isinstance(model, cbow.Cbow)
  tokens = inputs if is_cbow else outputs[:, :num_words]
  return _Ids(tokens, num_draws, 0, (outputs[:, num_words:],))


def _local_rows(
  model: model_base.Model, num_threads: int, num_centers: int
) -> tuple[int, int]:
  """Returns of how many nodes, or n-grams, a thread has copies in a call.

  Before that, after how many uses it merges one: those of all threads together
  need no brakes, if there are not many of them.
  """
  if isinstance(model, hierarchical.Hierarchical):
    local_rows = trees.local_nodes
  elif type(model) is subword_models.SkipGram:  # not measured with CBOW
    local_rows = subwords.local_rows
  else:
    return 0, 0
  if num_threads == 1:
    return 0, 0
  uses = min(64, max(16, brakes.FREE_CENTERS // (num_threads - 1)))
  return uses, local_rows(num_centers // num_threads)


def _num_scratch(model: Any, ids: _Ids, num_local: int) -> int:
  """Returns floats of scratch for each thread."""
  spec = model.spec
  if ids.num_draws:
    number = negative_sampling.num_scratch(spec)
    if isinstance(model, subword_models.SkipGram):
      # Of whole tiles, of CBOW with those of the window.
      num_words = spec.chunk + 2 * spec.window + 2 * tiles.SIZE
      number += subwords.num_scratch(
        num_words, model.longest, num_local=num_local, dim=spec.dim
      )
    return number
  longest = sum(x.shape[1] for x in ids.more[1:])
  return trees.num_scratch(spec, longest, num_local)


def _brakes(
  trainable: strategy_base.Trainable,
  others: Mapping[str, int],
  context: strategy_base.StepContext,
  state: strategy_base.TrainState,
) -> list[Any]:
  """Brakes of all tables that a kernel knows, of `others` by table."""
  braked = brakes.of_step(trainable, others, context=context, state=state)
  missing = arguments.NUM_TABLES - len(braked)
  return braked + [np.zeros(1, np.float32)] * missing


@dataclasses.dataclass(frozen=True)
class Kernel:
  """The fused step of a model; a `strategies.base.Trainable.fused`."""

  number: int  # of the kernel
  descent: int  # the number of what changes rows, 0 = the kernel itself
  optimizer: int  # `descent.SGD` or `descent.ADAGRAD`
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
    model = cast(skipgram.WindowModel, trainable.model)
    ids = _ids(model, batch, context)
    tree = model if isinstance(model, hierarchical.Hierarchical) else None
    names = _tables(model)
    specs = [trainable.tables[name].spec for name in names]
    spec, num_chunks = model.spec, len(batch.chunks)
    weights = spec.context_weights or [1.0] * spec.window
    numbers = context.learning_rate, self.parameter, spec.negatives, *weights
    # Rows are copied where they are changed in their place.
    num_threads = 1 if self.descent else self.num_threads
    merge_uses, num_local = _local_rows(model, num_threads, batch.left.size)
    key = strategy_base.rounding_key(specs[0], context, 0)
    keys = [jnp.zeros(2, jnp.uint32) if key is None else key, context.key]
    rounding, drawing = (
      jax.lax.bitcast_convert_type(x, jnp.int32) for x in keys
    )
    integers = (
      self.optimizer,
      *rounding,
      key is not None,
      tree is not None and tree.averages,
      ids.num_draws,
      *drawing,
      ids.num_entries,
      self.descent,
      merge_uses,
      num_local,
      getattr(model, 'longest', 0),
    )
    centers = (1, merge_uses or 1) if tree else [spec.chunk] * len(names)
    num_others = [x * (self.num_threads - 1) for x in centers]
    others = dict(zip(names, num_others, strict=True))
    totals, changed = call(
      self.number,
      num_chunks,
      scratch=(self.num_threads, _num_scratch(model, ids, num_local)),
      read=[
        *(x.reshape(num_chunks, -1) for x in (batch.left, batch.right)),
        jnp.stack([jnp.asarray(x, jnp.float32) for x in numbers]),
        jnp.stack([jnp.asarray(x, jnp.int32) for x in integers]),
        *_brakes(trainable, others, context=context, state=state),
        ids.tokens,
        batch.chunks,
        *ids.more,
      ],
      changed=state_lib.arrays(state, names),
    )
    state = state_lib.replaced(state, names, changed)
    return state, strategy_base.added(
      metrics, context.index, totals[0], examples=totals[1], sums={}
    )


@dataclasses.dataclass(frozen=True)
class Paragraphs:
  """As `Kernel`, of steps whose centers have documents (`paragraphs`)."""

  number: int  # of the kernel
  num_threads: int

  def __call__(
    self,
    trainable: strategy_base.Trainable,
    batch: Any,
    context: strategy_base.StepContext,
    carry: tuple[strategy_base.TrainState, strategy_base.StepMetrics],
  ) -> tuple[strategy_base.TrainState, strategy_base.StepMetrics]:
    """As `strategies.base.training_step`."""
    state, metrics = carry
    model = cast(skipgram.SkipGram, trainable.model)
    words, spec = batch.words, model.spec
    num_chunks, lines = len(batch.chunks), model.negatives.lines
    # The rows of documents, of outputs, and of inputs, if there are any.
    words_tables = model.vectors_table, model.contexts_table
    others = (x for x in trainable.tables if x not in words_tables)
    names = *words_tables, *others
    num_others = spec.chunk * (self.num_threads - 1)
    braked = _brakes(
      trainable,
      dict.fromkeys(names, num_others),
      context=context,
      state=state,
    )
    braked += [np.zeros(1, np.float32)] * (3 - len(braked))
    numbers = context.learning_rate, spec.negatives
    drawing = jax.lax.bitcast_convert_type(context.key, jnp.int32)
    integers = spec.shared_negatives, spec.window, 0, 0, 0, 0, *drawing
    integers = *integers, lines.size // 2
    totals, changed = call(
      self.number,
      num_chunks,
      scratch=(self.num_threads, paragraphs.num_scratch(spec)),
      read=[
        batch.rows(),
        *(x.reshape(num_chunks, -1) for x in (words.left, words.right)),
        jnp.stack([jnp.asarray(x, jnp.float32) for x in numbers]),
        jnp.stack([jnp.asarray(x, jnp.int32) for x in integers]),
        *braked,
        words.tokens,
        batch.chunks,
        lines,
      ],
      changed=state_lib.arrays(state, names),
    )
    state = state_lib.replaced(state, names, changed)
    return state, strategy_base.added(
      metrics, context.index, totals[0], examples=totals[1], sums={}
    )


def make_paragraphs(
  name: str, num_threads: int = 1, later: bool = False
) -> Paragraphs:
  """Returns the kernel of a model of documents, for tables of float32.

  `later` as of `load`. Raises `ffi.Unavailable`.
  """
  return Paragraphs(load(f'{name}-float32', later), num_threads)


def make(
  model: type[model_base.Model],
  dtype: str,
  optimizer: Mapping[str, Any],
  num_threads: int = 1,
  later: bool = False,
) -> Kernel:
  """Returns the kernel of a class of models, for tables of a dtype.

  `optimizer` has the settings of that name; `later` as of `load`. Raises
  `ffi.Unavailable`.
  """
  is_sgd = optimizer['name'] == 'sgd'
  needs_descent = ahead.needs_descent(dtype, optimizer['name'])
  return Kernel(
    number=load(f'{_KERNELS[model]}-{dtype}', later),
    descent=load(f'descent-{dtype}', later) if needs_descent else 0,
    optimizer=descent.SGD if is_sgd else descent.ADAGRAD,
    parameter=optimizer['max_duplicates' if is_sgd else 'epsilon'],
    num_threads=num_threads,
  )
