"""Sub-models side by side: each learns what it learns alone, bit by bit."""

import functools
import re

import jax
import numpy as np
import pytest

from jaxemb.models import base as model_base
from jaxemb.models import skipgram
from jaxemb.runtime import hlo, mesh
from jaxemb.strategies import base, partition, sync
from jaxemb.tables import replicated
from jaxemb.tables import row_optimizers as rowopt
from jaxemb.text import loader
from tests import compiling, oracle

VOCAB, DIM, WINDOW, CHUNK = 3000, 12, 3, 4
STEP_WORDS, MAX_STEPS = 64, 7
# Devices, and sub-models of each.
GROUPS = [(2, 1), (2, 2)]


def _model():
  counts = 10**6 // np.arange(1, VOCAB + 1)
  return skipgram.SkipGram(
    model_base.WindowSpec(VOCAB, DIM, WINDOW, 5, CHUNK, 3),
    skipgram.negative_distribution(counts),
  )


def _tables(model):
  return {
    name: replicated.Replicated(table, rowopt.adagrad(1e-6))
    for name, table in model.specs().items()
  }


_STEP = base.StepSpec(STEP_WORDS, 1, WINDOW, CHUNK, 1)


@functools.cache
def _make(num_devices, per_device):
  model = _model()
  devices = mesh.make(mesh.Shape(num_devices, 1))
  return partition.partition(model, _tables(model), _STEP, devices, per_device)


@functools.cache
def _compiled(num_devices, per_device):
  made = _make(num_devices, per_device)
  num = num_devices * per_device
  state = jax.jit(made.init, out_shardings=made.state_sharding)(
    jax.random.key(0)
  )
  lowered = made.step.lower(state, *_args(made, range(num)))
  return state, lowered.compile(compiler_options=compiling.AS_USERS_DO)


def _batch(i):
  """Of a sub-model, each with another number of steps."""
  rng = np.random.default_rng(i)
  kept = (MAX_STEPS - 2 * i) * STEP_WORDS - i
  words = rng.integers(0, VOCAB, kept)
  sentences = np.split(words, np.arange(9, kept, 9))
  size = MAX_STEPS * STEP_WORDS
  ids, left, right = oracle.pack(sentences, VOCAB, size, WINDOW, rng)
  pairs = np.int32(left.astype(int).sum() + right.sum())
  steps = np.int32(-(-kept // STEP_WORDS))
  return loader.Batch(ids, left, right, steps, np.int32(kept), pairs)


def _schedule(i):
  return base.Schedule(
    np.float32(0.2 + i / 10), np.float32(0.1), np.array([i, 3], np.uint32)
  )


def _stacked(trees):
  return jax.tree.map(lambda *x: np.stack(x), *trees)


def _args(made, models):
  batch = _stacked([_batch(i) for i in models])
  return (
    jax.device_put(made.constants(), made.constants_sharding),
    jax.device_put(batch, made.batch_sharding),
    _stacked([_schedule(i) for i in models]),
  )


def _run(num_devices, per_device, models):
  made = _make(num_devices, per_device)
  state, program = _compiled(num_devices, per_device)
  state = jax.tree.map(lambda x: x.copy(), state)
  state, metrics = program(state, *_args(made, models))
  return (
    jax.device_get(state),
    jax.device_get(metrics),
    made.export_rows(state, 'input').rows,
  )


@functools.cache
def _alone(i):
  """The state and figures of one device that has nothing else to do."""
  model = _model()
  made = sync.sync(model, _tables(model), _STEP, mesh.make(mesh.Shape(1, 1)))
  state = made.init(jax.random.key(0))
  batch = jax.tree.map(lambda x: x[None], _batch(i))
  constants = jax.device_put(made.constants())
  args = state, constants, batch, _schedule(i)
  lowered = made.step.lower(*args)
  program = lowered.compile(compiler_options=compiling.AS_USERS_DO)
  return jax.device_get(program(*args))


@pytest.mark.parametrize(('num_devices', 'per_device'), GROUPS)
def test_each_learns_what_it_learns_alone(num_devices, per_device):
  num = num_devices * per_device
  models = list(range(num))[::-1]
  state, metrics, result = _run(num_devices, per_device, models)
  assert result.shape == (num, VOCAB, DIM)
  for place, i in enumerate(models):
    mine = jax.tree.map(lambda x, i=place: x[i], (state, metrics))
    if per_device == 1:
      jax.tree.map(np.testing.assert_array_equal, mine, _alone(i))
    else:  # products of several are computed together
      for x, y in zip(*map(jax.tree.leaves, (mine, _alone(i))), strict=True):
        np.testing.assert_allclose(x, y, 1e-4, 1e-5)
    assert metrics.num_steps[place] == MAX_STEPS - 2 * i
    np.testing.assert_array_equal(
      result[place], state.tables['input'].vectors[place]
    )


def test_one_that_has_nothing_to_do_stays_as_it_is():
  made = _make(2, 1)
  state, program = _compiled(2, 1)
  state = jax.tree.map(lambda x: x.copy(), state)
  before = jax.device_get(state)
  constants, batch, plan = _args(made, [0, 1])
  batch = jax.tree.map(np.array, batch)
  batch.ids[1], batch.left[1], batch.right[1] = VOCAB, 0, 0
  for figures in batch[3:]:
    figures[1] = 0
  batch = jax.device_put(batch, made.batch_sharding)
  state, metrics = program(state, constants, batch, plan)
  jax.tree.map(
    lambda x, y: np.testing.assert_array_equal(x[1], y[1]), state, before
  )
  jax.tree.map(
    lambda x, y: np.testing.assert_array_equal(x[0], y),
    jax.device_get(state),
    _alone(0)[0],
  )
  assert metrics.num_steps.tolist() == [MAX_STEPS, 0]


@pytest.mark.parametrize(('num_devices', 'per_device'), GROUPS)
def test_no_collective_and_no_copy_of_a_table(num_devices, per_device):
  text = _compiled(num_devices, per_device)[1].as_text()
  assert not hlo.collectives(text)
  for word in ('send(', 'recv(', 'infeed(', 'outfeed(', 'partition-id'):
    assert word not in text, word
  # A device has its own models and no others.
  lines = text.splitlines()
  assert any(f'f32[{per_device},{VOCAB},{DIM}]' in line for line in lines)
  for line in lines:
    is_copy = ' copy' in line.split('(')[0]
    assert not (is_copy and f'{VOCAB},{DIM}]' in line), line
  # Donated: every array of the state is written where it was read.
  aliases = re.search(r'input_output_alias=\{ (.*?) \}, entry', text)[1]
  assert [x[0] == x[1] for x in re.findall(r'\{(\d)\}: \((\d)', aliases)] == (
    [True] * 4
  )


def test_the_first_bad_step_of_each():
  made = _make(2, 2)
  state, program = _compiled(2, 2)
  state = jax.tree.map(lambda x: x.copy(), state)
  vectors = np.array(state.tables['input'].vectors)
  vectors[2] = np.inf
  table = state.tables['input']._replace(
    vectors=jax.device_put(vectors, state.tables['input'].vectors.sharding)
  )
  state = state._replace(tables=state.tables | {'input': table})
  _, metrics = program(state, *_args(made, range(4)))
  assert metrics.steps.first_bad_step.tolist() == [-1, -1, 0, -1]
