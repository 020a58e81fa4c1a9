"""Steps of PV-DBOW and PV-DM against loops over their equations."""

import itertools
from typing import NamedTuple

import jax
import numpy as np
import pytest

from jaxemb import config as config_lib
from jaxemb.data import windows
from jaxemb.documents import batches, models
from jaxemb.kernels import brakes
from jaxemb.kernels.cpu import tiles
from jaxemb.models import skipgram
from jaxemb.strategies import base
from tests import dispatches, oracle
from tests.documents import sources

PADDING = np.iinfo(np.int32).max
INPUT, OUTPUT, DOCUMENTS = skipgram.INPUT, skipgram.OUTPUT, models.DOCUMENTS


class Case(NamedTuple):
  """A step of one chunk, so that a kernel and XLA change rows alike."""

  model: str = 'dbow'
  way: str = 'xla'  # or 'kernel'
  dim: int = 17
  chunk: int = 8
  documents: int = 9
  lengths: tuple[int, ...] = (3, 5)  # of documents in the step
  vocab: int = 30
  window: int = 3
  shared: int = 4
  negatives: int = 5
  threads: int = 1


def make(case, **settings):
  """The trainable of a case."""
  counts = np.ceil(3e4 / np.arange(1, case.vocab + 1) ** 1.5).astype(int)
  settings = {
    'data.source': 'documents', 'model.name': case.model,
    'model.dim': case.dim, 'model.negatives': case.negatives,
    'model.shared_negatives': case.shared, 'strategy.name': 'sync',
    'train.batch_words': case.chunk, 'train.threads': case.threads,
  } | settings  # fmt: skip
  if case.model == 'dm':
    settings['model.window'] = case.window
  config = config_lib.check(config_lib.default(), settings)
  is_fused = case.way == 'kernel'
  config, tuning = config_lib.resolve(
    config, 'cpu', (1, 1), fused=is_fused, chunk=case.chunk
  )
  assert tuning.fused == is_fused
  window = config.model.window
  steps = batches.Steps(case.chunk, 1, window, case.chunk)
  corpus = sources.Counted(counts, case.documents).corpus()
  made = dispatches.made(config, tuning, (1, 1), corpus=corpus, steps=steps)
  return made.trainable


def step_batch(case, window):
  """Documents of random words, with windows of random sizes."""
  rng = np.random.default_rng(0)
  words = [rng.integers(0, case.vocab, n) for n in case.lengths]
  ids, left, right = oracle.pack(words, case.vocab, case.chunk, window, rng)
  owners = rng.integers(0, case.documents, len(words))
  documents = np.full(case.chunk, PADDING, np.int32)
  flat = np.repeat(owners, case.lengths)[: case.chunk]
  documents[: len(flat)] = flat
  run = oracle.middle(oracle.Tokens(ids, left, right), 0, case.chunk)
  numbers = rng.permutation(1000)[:1].astype(np.uint32)
  words = windows.StepBatch(*(x[None] for x in run), numbers)
  return batches.StepBatch(words, documents[None])


def pieces(case, documents):
  """Stretches of the centers of a chunk that are learned from at once."""
  if case.way == 'xla':
    return [range(case.chunk)]
  if case.model == 'dm':
    return [range(i, min(i + 4, case.chunk)) for i in range(0, case.chunk, 4)]
  runs = itertools.groupby(range(case.chunk), documents.__getitem__)
  return [list(x) for _, x in runs]


def learned(case, batch, tables, draws, centers, rates):
  """Loss, examples and tables after plain gradient descent, in loops.

  `rates` are those of the rows of each table.
  A kernel changes outputs in their order: a word that comes again gives what it
  has become. Of rows shorter than a vector it does so for one mean alone.
  """
  new = {k: x.copy() for k, x in tables.items()}
  loss, window = 0.0, batch.words.window
  (tokens,), (left,), (right,), *_ = batch.words
  lefts = []  # centers, rows whose means they have, and these
  for i in centers:
    if batch.documents[0][i] != PADDING:
      members = [(DOCUMENTS, batch.documents[0][i])]
      if case.model == 'dm':
        before, after = range(-int(left[i]), 0), range(1, int(right[i]) + 1)
        around = (tokens[window + i + j] for j in (*before, *after))
        members += ((INPUT, x) for x in around)
      mean = sum(tables[k][x] for k, x in members) / len(members)
      lefts.append((tokens[window + i], members, mean))
  changes = np.zeros((len(lefts), case.dim))
  sees_changes = case.way == 'kernel' and (
    case.model == 'dbow' or len(lefts) == 1 or case.dim >= tiles.LANES
  )
  seen, shared = new if sees_changes else tables, case.negatives / case.shared
  words = [(x, k) for k, (x, *_) in enumerate(lefts)]
  words += ((x, None) for x in draws[0] if lefts)  # else padding
  for word, of_left in words:
    spread = np.zeros(case.dim)
    for k, (center, _, mean) in enumerate(lefts):
      weight = shared * (word != center) if of_left is None else of_left == k
      label = of_left is not None
      score = mean @ tables[OUTPUT][word]
      slope = weight * (oracle.sigmoid(score) - label)
      loss += weight * oracle.logistic_loss(score, label)
      changes[k] += slope * seen[OUTPUT][word]
      spread += slope * mean
    new[OUTPUT][word] -= rates[OUTPUT][word] * spread
  for change, (_, members, _) in zip(changes, lefts, strict=True):
    for k, x in members:
      new[k][x] -= rates[k][x] * change / len(members)
  return loss, len(lefts), new


def _take_step(trainable, state, batch, rate):
  """The state and metrics after a step, and its draws."""

  def step(arrays, state, batch):
    made = trainable.with_arrays(arrays)
    context = base.StepContext(
      index=jax.numpy.int32(0), key=dispatches.KEY, learning_rate=rate,
      measure=True, devices=base.Devices(None),
    )  # fmt: skip
    take = made.fused or base.training_step
    draws = made.model.ids(batch, dispatches.KEY)[OUTPUT]
    return *take(made, batch, context, (state, made.no_metrics())), draws

  arrays = base.arrays_of(trainable.model)
  return jax.jit(step)(arrays, state, batch)


CASES = {
  'plain': Case(),
  'half_padding': Case(lengths=(3, 2)),
  'one_document': Case(lengths=(8,)),
  'as_many_documents_as_words': Case(lengths=(1,) * 8),
  'no_word': Case(lengths=()),
  'one_column': Case(dim=1),
  'hundred_columns': Case(dim=100),
  'sixteen': Case(chunk=16, lengths=(1, 9, 6), shared=24),
  'seventeen': Case(chunk=17, lengths=(4, 9, 6), shared=5),
  'draws_equal_words': Case(vocab=3, shared=9),
  'one_row': Case(documents=1, lengths=(2, 3, 3)),
  'many_threads': Case(threads=40),
}
WAYS = 'xla', 'kernel'


def _cases():
  for name, case in CASES.items():
    for model in ('dbow', 'dm'):
      for way in WAYS:
        is_quick = name == 'plain' and (model, way) != ('dm', 'kernel')
        marks = () if is_quick else pytest.mark.slow
        yield pytest.param(
          case._replace(model=model, way=way),
          id=f'{model}-{name}-{way}',
          marks=marks,
        )


def check(case, **settings):
  """Compares a step with the loops."""
  trainable = make(case, **settings)
  batch = step_batch(case, trainable.model.spec.window)
  rng, shapes = np.random.default_rng(1), trainable.tables
  tables = {
    k: 0.5 * rng.normal(size=(x.spec.vocab, case.dim)).astype(np.float32)
    for k, x in shapes.items()
  }
  state = trainable.init(jax.random.key(0))
  state = state._replace(
    tables={
      k: x._replace(vectors=jax.numpy.asarray(tables[k]))
      for k, x in state.tables.items()
    }
  )
  rate, truth = np.float32(0.3), {k: x.astype(float) for k, x in tables.items()}
  state, metrics, outputs = _take_step(trainable, state, batch, rate)
  draws = np.asarray(outputs)[:, case.chunk :]
  rates = {k: np.full(len(x), rate) for k, x in truth.items()}
  if case.way == 'kernel':
    for k, x in rates.items():
      num_others = case.chunk * (case.threads - 1)
      lookups = shapes[k].spec.lookups_per_center
      of_rows = brakes.of_rows(lookups, num_others)
      x[: len(of_rows)] /= 1 + rate * of_rows
  loss = num = 0
  for centers in pieces(case, batch.documents[0]):
    more_loss, more, truth = learned(
      case, batch, truth, draws=draws, centers=centers, rates=rates
    )
    loss, num = loss + more_loss, num + more
  for k, x in state.tables.items():
    np.testing.assert_allclose(x.vectors, truth[k], 1e-4, 2e-5, err_msg=k)
  np.testing.assert_allclose(metrics.loss, loss, 1e-4)
  assert metrics.examples == num


@pytest.mark.parametrize('case', [*_cases()])
def test_steps_follow_the_equations(case):
  check(case, **{'optimizer.max_duplicates': 0.0})


def test_rows_begin_small_and_lookups_are_those_of_a_step():
  trainable = make(Case(model='dm'))
  specs = trainable.model.specs()
  assert {*specs} == {DOCUMENTS, INPUT, OUTPUT}
  assert trainable.model.vectors_table == DOCUMENTS
  assert specs[DOCUMENTS].vocab == 9 and specs[OUTPUT].vocab == 30
  assert specs[DOCUMENTS].init_scale == 0.5 / 17
  total = {k: x.lookups_per_center.sum() for k, x in specs.items()}
  np.testing.assert_allclose(total[DOCUMENTS], 1)
  np.testing.assert_allclose(total[INPUT], (8 + 2 * 3) / 8)
  np.testing.assert_allclose(total[OUTPUT], 1 + 4 / 8)
