"""The same steps on every mesh, in every layout: the rows of one device."""

import functools

import jax
import numpy as np
import pytest

from jaxemb import build
from jaxemb import config as config_lib
from jaxemb.runtime import mesh
from jaxemb.strategies import base
from jaxemb.text import loader
from tests import oracle

VOCAB, DIM, WINDOW, CHUNK, PARTS = 300, 12, 2, 4, 8
BATCH_WORDS, STEPS = 128, 200
COUNTS = 100_000 // np.arange(1, VOCAB + 1)

SHAPES = [(1, 1), (8, 1), (1, 8), (2, 4), (4, 2)]


def _config(layout, optimizer, model='skipgram', duplicates='scatter'):
  c = config_lib.default()
  c.model.name, c.model.dim, c.model.window = model, DIM, WINDOW
  c.model.chunk, c.model.shared_negatives = CHUNK, 8
  c.table.layout = layout
  c.table.duplicates = 'merge' if layout == 'row' else duplicates
  c.optimizer.name = optimizer
  c.optimizer.learning_rate = {'sgd': 0.05, 'adagrad': 0.1, 'adam': 0.01}[
    optimizer
  ]
  c.optimizer.max_duplicates = 3.0  # many rows are above it
  c.train.batch_words, c.train.loss_every_steps = BATCH_WORDS, 1
  c.strategy.name, c.data.parts = 'sync', PARTS
  return c


@functools.cache
def _batch():
  rng = np.random.default_rng(0)
  part_words = BATCH_WORDS // PARTS
  size = STEPS * part_words
  chances = COUNTS / COUNTS.sum()
  parts = []
  for i in range(PARTS):
    # Parts end at different times, the first one in the middle of a step.
    words = size - i * part_words - (part_words // 2 if i == 0 else 0)
    lengths = rng.integers(1, 12, words)
    lengths = lengths[: np.searchsorted(np.cumsum(lengths), words)]
    sentences = [rng.choice(VOCAB, n, p=chances) for n in lengths]
    parts.append(oracle.pack(sentences, VOCAB, size, WINDOW, rng))
  ids, left, right = (np.stack(x) for x in zip(*parts, strict=True))
  pairs = (left.astype(int) + right).sum(1).astype(np.int32)
  kept = np.full(PARTS, size, np.int32)
  return loader.Batch(ids, left, right, -(-kept // part_words), kept, pairs)


def _trained(config, shape):
  """All tables in order of ids, the optimizer's figures, and the metrics."""
  devices = mesh.make(mesh.Shape(*shape))
  config = config_lib.resolved(config, 'cpu', shape)
  made = build.trainer(config, COUNTS, devices)
  strategy = made.strategy
  init = jax.jit(strategy.init, out_shardings=strategy.state_sharding)
  state, metrics = strategy.step(
    init(jax.random.key(1)),
    jax.device_put(strategy.constants(), strategy.constants_sharding),
    jax.device_put(_batch(), strategy.batch_sharding),
    base.Schedule(
      np.float32(config.optimizer.learning_rate),
      np.float32(config.optimizer.learning_rate / 10),
      np.array([3, 5], np.uint32),
    ),
  )
  arrays = jax.tree.map(
    lambda x: oracle.by_id(config.table.layout, x, VOCAB, DIM), state.tables
  )
  return (
    arrays,
    jax.device_get(metrics),
    strategy.export_rows(state, 'input').rows,
  )


@functools.cache
def _expected(optimizer, model):
  return _trained(_config('replicated', optimizer, model), (1, 1))


def _compare(found, expected, tolerance):
  for name, table in expected[0].items():
    size = np.abs(table.vectors).max()
    np.testing.assert_allclose(
      found[0][name].vectors, table.vectors, tolerance, tolerance * size
    )
    jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, tolerance, tolerance),
      found[0][name].slots,
      table.slots,
    )
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, 1e-5), found[1], expected[1]
  )
  np.testing.assert_allclose(found[2], expected[2], tolerance, tolerance)
  assert found[2].shape == (VOCAB, DIM)


@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('layout', build.LAYOUTS)
@pytest.mark.parametrize('optimizer', ['sgd', 'adagrad'])
def test_200_steps_are_those_of_one_device(layout, optimizer, shape):
  found = _trained(_config(layout, optimizer), shape)
  _compare(found, _expected(optimizer, 'skipgram'), 1e-5)
  assert found[1].num_steps == STEPS and found[1].steps.first_bad_step == -1


@pytest.mark.parametrize('layout', build.LAYOUTS)
@pytest.mark.parametrize(
  ('optimizer', 'model', 'duplicates'),
  [
    ('adam', 'skipgram', 'scatter'),
    ('sgd', 'cbow', 'scatter'),
    ('adagrad', 'skipgram', 'merge'),
  ],
)
def test_other_models_and_optimizers(layout, optimizer, model, duplicates):
  found = _trained(_config(layout, optimizer, model, duplicates), (2, 4))
  # Adam divides by roots of small squares: roundings grow.
  tolerance = 1e-3 if optimizer == 'adam' else 1e-5
  _compare(found, _expected(optimizer, model), tolerance)
