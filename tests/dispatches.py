"""What tests of strategies share: batches of text, and dispatches of them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxemb import config as config_lib
from jaxemb.config import kinds
from jaxemb.data import subsampling, windows
from jaxemb.kernels import ffi
from jaxemb.models import base as models
from jaxemb.models import skipgram
from jaxemb.run import devices as devices_lib
from jaxemb.run import trainer as trainer_lib
from jaxemb.runtime import mesh
from jaxemb.strategies import base
from tests import oracle

KEY = np.array([0xA4093822, 0x299F31D0], np.uint32)
LOSS_EVERY_CHUNKS = 64  # a kernel measures its loss

_draws = jax.jit(skipgram.draw_negatives, static_argnums=0)


def trainer(
  counts: np.ndarray,
  settings: dict[str, Any],
  shape: tuple[int, int] = (1, 1),
  steps: Any = None,
  fused: bool | None = False,
  cluster: Any = None,
  earlier: np.ndarray | None = None,
  source: Any = None,
  **fixed: Any,
) -> trainer_lib.Trainer:
  """What settings by their dotted names make; `fixed` is of the tuning.

  `earlier` are counts of a run that is continued.

  A step is XLA's, or if `fused`, a kernel's, on the first of JAX's devices;
  None is what runs there have.
  """
  config = config_lib.check(config_lib.default(), settings)
  words = [str(i) for i in range(len(counts))]
  sample = config.data.sample if config.data.sample >= 0 else 1e-4
  frequencies = subsampling.center_probabilities(counts, sample)
  corpus = models.Corpus(words, counts, frequencies, earlier=earlier)
  if source:
    corpus = source.corpus()
  if fused is None:
    return _as_in_runs(config, shape, corpus, steps=steps, **fixed)
  config, tuning = config_lib.resolve(
    config, jax.devices()[0].platform, shape, fused=fused, **fixed
  )
  assert tuning.fused == fused
  steps = steps or windows.Steps(
    tuning.part_words, tuning.parts, config.model.window, tuning.chunk
  )
  return made(
    config, tuning, shape, corpus=corpus, steps=steps, cluster=cluster
  )


def _as_in_runs(
  config: Any,
  shape: tuple[int, int],
  corpus: models.Corpus,
  steps: Any,
  **fixed: Any,
) -> trainer_lib.Trainer:
  """As `trainer`, by a kernel if there is one."""
  config.mesh.data, config.mesh.table = shape
  # A small vocabulary has one thread or block.
  fixed = {'threads': 1, **fixed}
  try:
    setup = devices_lib.choose(config, {}, **fixed)
    return trainer_lib.make(setup, corpus, steps)
  except ffi.Unavailable:
    setup = devices_lib.choose(config, {}, fused=False, **fixed)
    return trainer_lib.make(setup, corpus, steps)


def made(
  config: Any,
  tuning: config_lib.Tuning,
  shape: tuple[int, int],
  corpus: models.Corpus,
  steps: Any,
  cluster: Any = None,
) -> trainer_lib.Trainer:
  """What resolved settings make on the first devices."""
  devices = mesh.make(mesh.Shape(*shape))
  setup = devices_lib.Setup(config, tuning, devices, kinds.of(config))
  return trainer_lib.make(setup, corpus, steps, cluster=cluster)


def pack(
  sentences: Sequence[list],
  vocab: int,
  steps: windows.Steps,
  max_steps: int,
  seed: int = 0,
) -> windows.Batch:
  """A batch of the sentences of each part, with windows of random sizes."""
  rng = np.random.default_rng(seed)
  size = max_steps * steps.part_words
  parts = [oracle.pack(x, vocab, size, steps.window, rng) for x in sentences]
  ids, left, right = map(np.stack, zip(*parts, strict=True))
  kept = [min(sum(map(len, x)), size) for x in sentences]
  kept = np.array(kept, np.int32)
  pairs = (left.astype(int) + right).sum(1).astype(np.int32)
  num_steps = -(-kept // steps.part_words)
  return windows.Batch(ids, left, right, num_steps, kept, pairs)


def random_batch(
  words: Sequence[int], vocab: int, steps: windows.Steps, max_steps: int
) -> windows.Batch:
  """A batch of random sentences, given the words of each part."""
  rng = np.random.default_rng(1)
  sentences = [
    oracle.random_sentences(rng, vocab, n, (1, 4, 11)) for n in words
  ]
  return pack(sentences, vocab, steps, max_steps)


def schedule(
  first: float, last: float, key: np.ndarray = KEY, progress=(1, 1)
) -> base.Schedule:
  """Learning rates and progress of a dispatch."""
  return base.Schedule(
    np.float32(first), np.float32(last), key, *map(np.float32, progress)
  )


def start(
  strategy: base.Strategy,
  rows: dict[str, np.ndarray] | None = None,
  seed: int = 0,
):
  """A new state as the training loop makes it, or with these rows."""
  state = strategy.init(jax.random.key(seed))
  for name, values in (rows or {}).items():
    ids = np.arange(len(values))
    state = strategy.import_rows(state, name, ids, values, {})
  return state


def args(strategy: base.Strategy, batch: Any, schedule: base.Schedule) -> tuple:
  """The arguments of a step behind the state, on their devices."""
  return (
    strategy.constants(),
    jax.device_put(batch, strategy.batch_sharding),
    schedule,
  )


def run(strategy: base.Strategy, state: Any, batch: Any, schedule: Any):
  """A dispatch; the state before it is donated, the metrics are fetched."""
  state, metrics = strategy.step(state, *args(strategy, batch, schedule))
  return state, jax.device_get(metrics)


def lowered(
  trainable: base.Trainable,
  strategy: base.Strategy,
  max_steps: int,
  batch_of: Callable[[windows.Batch], Any] = lambda words: words,
) -> tuple[Any, jax.stages.Lowered]:
  """The shapes of a state, and a dispatch of text, without any array."""
  steps, num = trainable.steps, trainable.steps.num_parts
  size = max_steps * steps.part_words
  ids = np.zeros((num, size), np.int32)
  batch = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=strategy.batch_sharding
    ),
    batch_of(windows.pack(ids, steps.window, steps.part_words)),
  )
  state = strategy.init.eval_shape(jax.random.key(0))
  args = state, strategy.constants(), batch, schedule(0, 0)
  return state, strategy.step.lower(*args)


def exported(strategy: base.Strategy, state: Any) -> dict[str, Any]:
  """The rows of all tables, by name."""
  names = sorted(state.tables)
  return {k: strategy.export_rows(state, k).rows for k in names}


def pieces(
  trainable: base.Trainable,
  batch: windows.Batch,
  index: int,
  parts: Sequence[int],
) -> list[windows.StepBatch]:
  """What a step learns from one after another: all of it, or each chunk.

  `batch` is that of all parts, of which a device takes `parts`.
  """
  steps, found = trainable.steps, []
  size, per_part = steps.part_words, steps.part_words // steps.chunk
  length = steps.chunk if trainable.fused else size
  for part in parts:
    tokens = oracle.Tokens(*(x[part] for x in batch[:3]))
    first_chunk = (index * steps.num_parts + part) * per_part
    for first in range(0, size, length):
      run = oracle.middle(tokens, index * size + first, length)
      chunks = np.arange(length // steps.chunk) + first // steps.chunk
      run = *(x[None] for x in run), (first_chunk + chunks).astype(np.uint32)
      found.append(windows.StepBatch(*run))
  if trainable.fused:
    return found
  runs = zip(*(x[:4] for x in found), strict=True)
  return [windows.StepBatch(*map(np.concatenate, runs))]


def draws(trainable: base.Trainable, batch: windows.StepBatch) -> np.ndarray:
  """[L / c, N], a step's negatives, as the model draws them."""
  model = trainable.model
  return np.asarray(_draws(model.spec, model.negatives, batch, KEY))


def true_step(
  trainable: base.Trainable,
  loss: Any,
  vectors: dict[str, np.ndarray],
  piece: windows.StepBatch,
) -> oracle.Step:
  """The truth of one of `pieces`.

  `loss` is `oracle.skipgram` or `oracle.cbow`, `vectors` are [vocab, dim]
  float64 by table.
  """
  spec, drawn = trainable.model.spec, draws(trainable, piece)
  sizes = spec.window, spec.chunk, spec.negatives, spec.context_weights
  ngrams = ngrams_of(trainable.model)
  return loss(*piece[:3], drawn, vectors, *sizes, ngrams=ngrams)


def ngrams_of(model: models.Model) -> list[np.ndarray] | None:
  """Rows of the n-grams of each word, of a model with subwords."""
  words = getattr(model, 'words', None)
  if words is None:
    return None
  return np.split(words.rows, words.starts[1 : model.spec.vocab])


def random_step(case: Any) -> windows.StepBatch:
  """A step of runs of random sentences, of the sizes that a case names."""
  rng = np.random.default_rng(0)
  runs = []
  for _ in range(case.runs):
    sentences = oracle.random_sentences(
      rng, case.vocab, case.words, case.lengths
    )
    tokens = oracle.pack(sentences, case.vocab, 2 * case.size, case.window, rng)
    # Taken from the middle, so that the halo in front holds words.
    first = min(case.size, case.words) // 4
    runs.append(oracle.middle(tokens, first, case.size))
  # Of the chunks of a dispatch, any.
  num_chunks = case.runs * case.size // case.chunk
  numbers = rng.permutation(1000)[:num_chunks].astype(np.uint32)
  return windows.StepBatch(*map(np.stack, zip(*runs, strict=True)), numbers)
