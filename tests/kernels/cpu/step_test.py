"""Steps against loops: a kernel's, of which each chunk is one, and XLA's."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest

from jaxemb.data import windows
from jaxemb.kernels import brakes as brakes_lib
from jaxemb.kernels.cpu import step
from jaxemb.ops import huffman
from jaxemb.strategies import base
from tests import dispatches, marking, oracle
from tests.tables import laying

KEY = dispatches.KEY
SHARED_NODES = 4
LOOPS = {'skipgram': oracle.skipgram, 'cbow': oracle.cbow}
MODELS = 'skipgram', 'cbow', 'skipgram-tree', 'cbow-tree'
SUBWORD_MODELS = 'skipgram-subwords', 'cbow-subwords'
# Kernels take seconds to compile.
QUICK_MODELS = 'skipgram', 'skipgram-subwords'
some_models = pytest.mark.parametrize(
  'model', ['skipgram', marking.slow('cbow-tree')]
)


class Case(NamedTuple):
  """A call; runs of `size` centers, of which the last may be padding."""

  # Or 'cbow', with '-tree' behind it, hierarchical softmax, or '-subwords'.
  model: str = 'skipgram'
  optimizer: str = 'sgd'
  dtype: str = 'float32'  # bfloat16 is rounded to nearest
  vocab: int = 30
  dim: int = 17
  runs: int = 1
  size: int = 32
  chunk: int = 8
  window: int = 3
  negatives: int = 5
  shared: int = 4
  lengths: tuple[int, ...] = (2, 5, 9)  # of the sentences
  words: int = 60  # in all sentences of a run
  scale: float = 0.5  # of the rows
  # Else by XLA: 'xla', or 'once' if tokens are looked up once.
  way: str = 'kernel'


# Of all models; the others of negative sampling, and of trees.
CASES = {
  'plain': Case(),
  'one_column': Case(dim=1),
  'three_columns': Case(dim=3),
  'whole_vectors': Case(dim=16),
  'hundred_columns': Case(dim=100, words=20),
  'window_of_one': Case(window=1, chunk=16),
  'window_of_twelve': Case(window=12, lengths=(40,)),
  'window_over_chunk': Case(chunk=2, window=5),
  'half_padding': Case(words=21),
  'only_padding': Case(words=0),
  'one_word_sentences': Case(lengths=(1,)),
  'some_one_word_sentences': Case(lengths=(1, 1, 4)),
  'few_words': Case(vocab=4),
  'huge_scores': Case(scale=6.0, size=8),
  'zero_rows': Case(scale=0.0),
  'runs': Case(runs=3),
  'limited': Case(optimizer='sgd_limited'),
  'limited_few_words': Case(optimizer='sgd_limited', vocab=4),
  'adagrad': Case(optimizer='adagrad'),
  'adagrad_few_words': Case(optimizer='adagrad', vocab=4, dim=5),
  'bfloat16': Case(dtype='bfloat16'),
  'bfloat16_limited': Case('', 'sgd_limited', 'bfloat16', vocab=6, dim=33),
  'bfloat16_adagrad': Case('', 'adagrad', 'bfloat16', vocab=6, dim=3),
  # The loss is that of the chunks 0, 64 and 128.
  'many_chunks': Case(chunk=2, size=280, words=275, dim=3, scale=0.1),
}
SAMPLED = {
  'chunk_of_one': Case(size=6, chunk=1, window=2),
  'chunk_of_six': Case(size=30, chunk=6),
  'chunk_of_seventeen': Case(size=34, chunk=17, shared=16),
  'one_chunk': Case(chunk=32, shared=40, negatives=2),
  'one_draw': Case(shared=1, negatives=15),
  'five_draws': Case(shared=5),
  'sixteen_draws': Case(shared=16),
  'draws_equal_contexts': Case(vocab=3, shared=9),
  'one_word': Case(vocab=1),
  # What needs more room than others.
  'wide_rows': Case(chunk=64, size=64, window=1, words=9, dim=1500),
  'wide': Case(chunk=64, size=64, window=255, shared=300, words=5, dim=3),
}
TREES = {
  'long_paths': Case(vocab=600, lengths=(7,)),
  'two_words': Case(vocab=2),
  'wide': Case(vocab=600, window=255, lengths=(40,), words=40, dim=3),
  'wide_rows': Case(window=1, words=9, dim=1500),
  # More contexts than change a path at once, some of them the same word.
  'many_contexts': Case(vocab=30, window=12, lengths=(40,), dim=37),
}


OF_ALL = 'plain', 'window_over_chunk', 'half_padding', 'adagrad', 'bfloat16'


def _named(models, cases, way='kernel'):
  """Cases of models; most are quick with one of them at most."""
  for i, (name, case) in enumerate(cases.items()):
    if way != 'kernel' and case.dtype != 'float32':
      continue
    for j, model in enumerate(models):
      # All but the most telling cases are met by every second model.
      if name not in OF_ALL and (i + j) % 2:
        continue
      is_quick = name in ('plain', 'adagrad') or (i + j) % len(models) == 0
      is_quick = is_quick and model in QUICK_MODELS and case.dtype == 'float32'
      is_quick = is_quick and (way in ('kernel', 'xla') or name == 'plain')
      # Subwords have kernels of their own, which take long to compile.
      is_quick = is_quick and not (way == 'kernel' and 'subwords' in model)
      yield pytest.param(
        case._replace(model=model, way=way),
        id=f'{model}-{name}' + f'-{way}' * (way != 'kernel'),
        marks=() if is_quick else pytest.mark.slow,
      )


# Where XLA's program is another, each of which takes seconds to compile.
OF_XLA = {
  name: (CASES | SAMPLED)[name]
  for name in (
    'plain', 'window_of_one', 'window_over_chunk', 'half_padding', 'few_words',
    'huge_scores', 'runs', 'limited_few_words', 'adagrad_few_words',
    'draws_equal_contexts',
  )
}  # fmt: skip
OF_TOKENS_ONCE = {
  name: OF_XLA[name]
  for name in ('plain', 'window_over_chunk', 'half_padding', 'few_words')
}

every_case = pytest.mark.parametrize(
  'case',
  [
    *_named(MODELS[:2], CASES),
    *_named(MODELS[2:], CASES),
    *_named(MODELS[:2], SAMPLED),
    *_named(MODELS[2:], TREES),
    *_named(SUBWORD_MODELS, CASES),
    *_named(SUBWORD_MODELS, SAMPLED),
    *_named(MODELS[:2], OF_XLA, 'xla'),
    *_named(MODELS[:2], OF_TOKENS_ONCE, 'once'),
    *_named(SUBWORD_MODELS, OF_XLA, 'xla'),
    *_named(SUBWORD_MODELS, OF_TOKENS_ONCE, 'once'),
  ],
)


def _counts(case):
  return np.ceil(3e4 / np.arange(1, case.vocab + 1) ** 1.5).astype(int)


def _make(case, **settings):
  name, _, variant = case.model.partition('-')
  optimizer, constants = laying.OPTIMIZERS[case.optimizer]
  given = {f'optimizer.{k}': x for k, x in constants.items()} | settings
  settings = {
    'model.name': name, 'model.dim': case.dim, 'model.window': case.window,
    'strategy.name': 'sync', 'train.batch_words': case.runs * case.size,
    'optimizer.name': optimizer, 'table.dtype': case.dtype,
  } | given  # fmt: skip
  if variant == 'tree':
    settings['model.loss'] = 'hierarchical_softmax'
  else:
    settings['model.negatives'] = case.negatives
    settings['model.shared_negatives'] = case.shared
  if variant == 'subwords':  # words are numbers; some n-grams share a bucket
    settings |= {'model.subwords': '1-3', 'model.buckets': 50}
  if case.dtype == 'bfloat16':
    settings = {'table.rounding': 'nearest'} | settings
  made = dispatches.trainer(
    _counts(case),
    settings,
    steps=windows.Steps(case.size, case.runs, case.window, case.chunk),
    fused=case.way == 'kernel',
    parts=case.runs,
    chunk=case.chunk,
    shared_nodes=SHARED_NODES,
    tokens_once=case.way == 'once',
  )
  return made.trainable


def _state(case, trainable):
  """Rows as large as trained ones, and sums of squares of earlier gradients."""
  rng, tables = np.random.default_rng(1), {}
  shapes = jax.eval_shape(trainable.init, jax.random.key(0)).tables
  for name, table in shapes.items():
    values = case.scale * rng.normal(size=table.vectors.shape)
    values = values.astype(np.float32)
    if case.dtype == 'bfloat16':
      values = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    opt_state = jax.tree.map(
      lambda x: np.zeros(x.shape, x.dtype), table.opt_state
    )
    if case.optimizer == 'adagrad':
      squares = rng.uniform(0.1, 1, len(values)).astype(np.float32)
      opt_state = opt_state._replace(sum_squares=squares)
    scratch = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), table.scratch)
    tables[name] = table._replace(
      vectors=values, opt_state=opt_state, scratch=scratch
    )
  return base.TrainState(tables)


def _program(trainable):
  """A call, compiled: (state, batch, rate, key, index, stream)."""

  @jax.jit
  def call(arrays, state, batch, rate, key=KEY, index=0, stream=0):
    devices = base.Devices(None, stream)
    context = base.StepContext(index, key, rate, True, devices)
    carry, given = (
      (state, trainable.no_metrics()),
      trainable.with_arrays(arrays),
    )
    take_step = trainable.fused or base.training_step
    return take_step(given, batch, context, carry)

  arrays = base.arrays_of(trainable.model)
  return lambda *args: jax.device_get(call(arrays, *args))


def _wide(vectors):
  """Stored rows as float64."""
  if vectors.dtype == np.uint16:
    vectors = vectors.view(ml_dtypes.bfloat16)
  return vectors.astype(np.float64)


def _rounded(row):
  return row.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def _steps_of(case, trainable, batch):
  """Functions from tables to what is learned at once; and what is measured."""
  every = dispatches.LOSS_EVERY_CHUNKS
  sizes = {k: getattr(case, k) for k in ('window', 'chunk', 'negatives')}
  sizes['weights'] = trainable.model.spec.context_weights
  is_cbow, is_tree = case.model.startswith('cbow'), 'tree' in case.model
  sizes['ngrams'] = dispatches.ngrams_of(trainable.model)
  if is_tree:
    paths = huffman.tree_paths(_counts(case))
  else:
    draws = dispatches.draws(trainable, batch)
  for k in range(len(batch.chunks)):
    run, first = divmod(k * case.chunk, case.size)
    tokens, left, right = (
      x[run : run + 1, first : first + case.chunk + more]
      for x, more in zip(batch, (2 * case.window, 0, 0), strict=False)
    )
    if not is_tree:
      args = tokens, left, right, draws[k : k + 1]
      name = case.model.partition('-')[0]
      loss = functools.partial(LOOPS[name], *args, **sizes)
      yield loss, k % every == 0
      continue
    for c in range(case.chunk):
      before, after = int(left[0, c]), int(right[0, c])
      if before + after:
        at = case.window + c
        words = [*tokens[0, at - before : at], *tokens[0, at + 1 :][:after]]
        points, codes, length = (x[tokens[0, at]] for x in paths)
        path = list(zip(points[:length], codes[:length], strict=True))
        loss = functools.partial(oracle.tree, is_cbow, words, path=path)
        yield loss, k % every == 0 and c == 0


def _loops(case, trainable, batch, state, rate):
  """Tables, their sums of squares, loss and examples after a call."""
  vectors = {k: _wide(x.vectors) for k, x in state.tables.items()}
  opt_state = {k: {} for k in vectors}
  if case.optimizer == 'adagrad':
    for k, table in state.tables.items():
      opt_state[k] = dict(
        enumerate(table.opt_state.sum_squares.astype(np.float64))
      )
  more = {'rounded': _rounded} if case.dtype == 'bfloat16' else {}
  loss = examples = 0
  steps, waiting = list(_steps_of(case, trainable, batch)), []
  for i, (step_of, is_measured) in enumerate(steps):
    truth = step_of(vectors)
    waiting.append(truth)
    if is_measured or not trainable.fused:
      loss, examples = loss + truth.loss, examples + truth.examples
    if trainable.fused or i == len(steps) - 1:
      for k in vectors:
        ids = [id_ for x in waiting for id_ in x.ids[k]]
        grads = np.concatenate([x.grads[k] for x in waiting])
        args = vectors[k], opt_state[k], ids, grads, rate
        laying.learn(case.optimizer, *args, **more)
      waiting = []
  return vectors, opt_state, loss, examples


@every_case
def test_a_call_is_that_of_the_loops(case):
  check_a_call(case)


@pytest.mark.parametrize(
  ('model', 'num_local'),
  [
    marking.slow('skipgram-tree', 50),
    marking.slow('cbow-tree', 50),
    ('skipgram-subwords', 20),
  ],
)
def test_changes_of_local_rows_are_merged(model, num_local, monkeypatch):
  # Of one thread, which so learns what it does without copies.
  monkeypatch.setattr(step, '_local_rows', lambda *_, **__: (5, num_local))
  check_a_call(Case(model, vocab=400, size=96))


def check_a_call(
  case, error=3e-5, equal=0.98, change=lambda trainable: trainable
):
  """Compares a call with the loops.

  `error` is relative to the largest change of a row, `equal` the fraction of
  rounded numbers that are the same, `change` changes what is called.
  """
  trainable, batch = change(_make(case)), dispatches.random_step(case)
  state, rate = _state(case, trainable), np.float32(0.1)
  expected, opt_state, loss, examples = _loops(
    case, trainable, batch, state, float(rate)
  )
  new, metrics = _program(trainable)(state, batch, rate)
  has_pairs = (batch.left + batch.right).any()
  for k, table in new.tables.items():
    found, before = _wide(table.vectors), _wide(state.tables[k].vectors)
    assert found.shape == before.shape and np.isfinite(found).all()
    change = np.abs(expected[k] - before).max()
    assert (change > 0) == (has_pairs and case.scale > 0)
    if case.dtype == 'bfloat16':
      # Sums that lie all but in the middle may go to either side.
      spacing = 2.0**-7 * np.abs(expected[k]) + 1e-30
      assert (np.abs(found - expected[k]) <= 2 * spacing).all()
      assert (found == expected[k]).mean() > equal
    else:
      np.testing.assert_allclose(found, expected[k], 1e-5, error * change)
    for word, square in opt_state[k].items():
      of_squares = 1e-2 if case.dtype == 'bfloat16' else max(1e-4, error)
      found = table.opt_state.sum_squares[word]
      np.testing.assert_allclose(found, square, of_squares, 1e-6)
  np.testing.assert_allclose(metrics.loss, loss, max(1e-5, error / 3), 1e-6)
  np.testing.assert_allclose(metrics.examples, examples, 1e-5)
  assert metrics.first_bad_step == -1


@pytest.mark.parametrize(
  ('model', 'dtype'),
  marking.slow_after(
    1,
    [
      ('skipgram', 'float32'),
      ('cbow', 'float32'),
      ('skipgram', 'bfloat16'),
      ('cbow-tree', 'bfloat16'),
      ('skipgram-subwords', 'float32'),
      ('cbow-subwords', 'bfloat16'),
    ],
  ),
)
def test_the_same_call_gives_the_same_bits(model, dtype):
  case = Case(model, dtype=dtype, vocab=8)
  trainable = _make(case, **{'table.rounding': 'stochastic'})
  args = _state(case, trainable), dispatches.random_step(case), np.float32(0.1)
  program = _program(trainable)
  first = program(*args)
  jax.tree.map(np.testing.assert_array_equal, first, program(*args))
  # Other draws, or other random bits of another step or replica.
  for more in ((KEY ^ np.uint32(1),), (KEY, 1), (KEY, 0, 1)):
    has_other_draws = len(more) == 1 and 'tree' not in model
    state, _ = program(*args, *more)
    for k, table in state.tables.items():
      share = (table.vectors != first[0].tables[k].vectors).mean()
      assert (share > 0.1) == (has_other_draws or dtype == 'bfloat16')


@pytest.mark.parametrize(
  'model',
  [
    'skipgram',
    *(marking.slow(x) for x in ('cbow-tree', *SUBWORD_MODELS)),
  ],
)
def test_too_little_scratch_changes_nothing(model, monkeypatch):
  case = Case(model)
  trainable, batch = _make(case), dispatches.random_step(case)
  state = _state(case, trainable)
  for kernels in step.negative_sampling, step.subwords, step.trees:
    monkeypatch.setattr(kernels, 'num_scratch', lambda *_, **__: 1024)
  new, metrics = _program(trainable)(state, batch, np.float32(0.1))
  assert np.isnan(metrics.loss) and metrics.first_bad_step == 0
  assert np.isnan(metrics.examples)
  for k, table in new.tables.items():
    np.testing.assert_array_equal(table.vectors, state.tables[k].vectors)


@pytest.mark.parametrize(
  'model', ['skipgram-subwords', marking.slow('cbow-subwords')]
)
def test_scratch_has_room_for_words_of_many_ngrams(model):
  case = Case(model, dim=3)
  trainable, batch = _make(case), dispatches.random_step(case)
  state = _state(case, trainable)
  for longest in (300, 5000):
    model = dataclasses.replace(trainable.model, longest=longest)
    changed = dataclasses.replace(trainable, model=model)
    _, metrics = _program(changed)(state, batch, np.float32(0.1))
    assert np.isfinite(metrics.loss)


@some_models
def test_threads_learn_what_one_does(model):
  case = Case(model, vocab=2000, runs=16, size=256, chunk=16, words=250)
  trainable, batch = _make(case), dispatches.random_step(case)
  # So low that the order of chunks, which is another, matters little.
  state, rate = _state(case, trainable), np.float32(0.002)
  (one, expected), (several, metrics) = (
    _program(
      dataclasses.replace(
        trainable,
        fused=dataclasses.replace(trainable.fused, num_threads=num_threads),
      )
    )(state, batch, rate)
    for num_threads in (1, 3)
  )
  np.testing.assert_allclose(metrics.examples, expected.examples, 1e-5)
  assert metrics.examples > 0
  np.testing.assert_allclose(metrics.loss, expected.loss, 0.01)
  # Little is lost where two of them change a row.
  for k, table in several.tables.items():
    change = np.linalg.norm(one.tables[k].vectors - state.tables[k].vectors)
    error = np.linalg.norm(one.tables[k].vectors - table.vectors)
    assert 0 < change and error < 0.2 * change


def test_many_threads_are_careful_with_frequent_rows():
  lookups = np.array([0.1, 0.01, 1e-9, 1e-3, 1e-9, 1e-9])
  brakes = brakes_lib.of_rows(lookups, 63 * 16)
  np.testing.assert_allclose(brakes, 7680 * lookups[:4], 1e-6)
  for num_threads in (1, 16):
    assert brakes_lib.of_rows(lookups, 16 * (num_threads - 1)) == [0]


def test_brakes_are_of_the_row_and_of_the_learning_rate(monkeypatch):
  case = Case(vocab=30, runs=1, size=16, chunk=16, words=16)
  trainable, batch = _make(case), dispatches.random_step(case)
  state = _state(case, trainable)

  def changes(brakes, rate):
    monkeypatch.setattr(brakes_lib, 'of_rows', lambda *_: np.float32(brakes))
    new, _ = _program(trainable)(state, batch, np.float32(rate))
    return {
      k: _wide(x.vectors) - _wide(state.tables[k].vectors)
      for k, x in new.tables.items()
    }

  brakes = [1.0, 3.0, 0.0]
  for k, free in changes([0.0], 0.5).items():
    braked = changes(brakes, 0.5)[k]
    np.testing.assert_array_equal(free[2:], braked[2:])
    np.testing.assert_allclose(free[0] / 1.5, braked[0], atol=1e-6)
    np.testing.assert_allclose(free[1] / 2.5, braked[1], atol=1e-6)
    assert abs(free[:2]).max() > 0.01


def _standard(errors):
  """Errors [runs, ...] of entries that vary, [runs, n], in their deviations."""
  errors = errors.reshape(len(errors), -1)
  deviations = errors.std(0)
  kept = deviations > 0.25 * deviations.max()
  return errors[:, kept] / deviations[kept]


@pytest.mark.slow
@some_models
def test_stochastic_rounding_is_right_on_average(model):
  case = Case(model, vocab=25, dim=33, size=64, chunk=16, words=90)
  case = case._replace(dtype='bfloat16')
  trainable, batch = (
    _make(case, **{'table.rounding': 'stochastic'}),
    dispatches.random_step(case),
  )
  # Most changes are smaller than what lies between two numbers.
  state, rate, runs = _state(case, trainable), np.float32(0.002), 300
  expected, *_ = _loops(
    case._replace(dtype='float32'), trainable, batch, state, float(rate)
  )
  program = _program(trainable)
  made = [program(state, batch, rate, KEY, i)[0].tables for i in range(runs)]
  for k, wanted in expected.items():
    found = np.stack([_wide(x[k].vectors) for x in made])
    before = _wide(state.tables[k].vectors)
    is_same = (wanted == before).all(1)
    assert (found[:, is_same] == before[is_same]).all()
    rows = np.flatnonzero(~is_same)
    # In units of the spacing of each number, and away from zero.
    spacing = 2.0 ** (np.floor(np.log2(np.abs(before) + 1e-9)) - 7)
    spacing = np.copysign(spacing, before)
    errors = ((found - wanted) / spacing)[:, rows]
    assert 0.1 < errors.std() < 5
    standard = _standard(errors)
    z = standard.mean(0) * np.sqrt(runs)
    assert abs(z.mean()) < 4 / np.sqrt(z.size)
    assert (z**2).mean() == pytest.approx(1, abs=5 * np.sqrt(2 / z.size))
    # Neighbours do not know of each other: of runs, rows and columns.
    errors -= errors.mean(0)
    for axis in range(3):
      both = np.moveaxis(errors, axis, 0)
      products = both[1:] * both[:-1]
      assert abs(products.mean()) < 5 * products.std() / products.size**0.5
    sums = standard.sum(1)
    assert (sums**2).mean() < 1.5 * standard.shape[1]
