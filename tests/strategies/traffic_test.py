"""How often collectives run: what strategies say of their programs."""

import jax
import numpy as np
import pytest

from jaxemb import build
from jaxemb import config as config_lib
from jaxemb.runtime import hlo, mesh
from jaxemb.strategies import base, timetables
from jaxemb.text import loader
from tests import compiling

VOCAB, DIM, BATCH_WORDS, MAX_STEPS = 3000, 6, 64, 4
COUNTS = 100_000 // np.arange(1, VOCAB + 1)
# Scores of a step: [centers, chunk + 2 window + shared negatives] float32.
SCORES = BATCH_WORDS * (4 + 2 * 2 + 3) * 4


def _config(**settings):
  c = config_lib.default()
  c.model.dim, c.model.window, c.model.chunk = DIM, 2, 4
  c.model.shared_negatives = 3
  c.train.batch_words, c.train.loss_every_steps = BATCH_WORDS, 1
  c.train.steps_per_loop, c.mesh.data, c.mesh.table = 1, 2, 1
  c.update_from_flattened_dict(settings)
  return c


def _sent(config):
  """By collective, bytes of one device in a step; and the strategy's loop."""
  shape = mesh.Shape(config.mesh.data, config.mesh.table)
  config = config_lib.resolved(config, 'cpu', shape)
  strategy = build.trainer(config, COUNTS, mesh.make(shape)).strategy
  parts = config.data.parts
  words = (
    MAX_STEPS
    * BATCH_WORDS
    // (1 if config.strategy.name == 'replicas' else parts)
  )
  reach, figure = np.zeros((parts, words), np.uint8), np.zeros(parts, np.int32)
  ids = np.zeros((parts, words + 2 * config.model.window), np.int32)
  init = jax.jit(strategy.init, out_shardings=strategy.state_sharding)
  lowered = strategy.step.lower(
    init(jax.random.key(0)),
    jax.device_put(strategy.constants(), strategy.constants_sharding),
    jax.device_put(
      loader.Batch(ids, reach, reach, figure, figure, figure),
      strategy.batch_sharding,
    ),
    base.Schedule(np.float32(0), np.float32(0), np.zeros(2, np.uint32)),
  )
  text = compiling.text(lowered)
  found = hlo.traffic(text, strategy.loop)
  return found['bytes_per_step_per_device'], strategy.loop


_COLUMN = {
  'strategy.name': 'sync', 'table.layout': 'column', 'mesh.data': 1,
  'mesh.table': 2, 'optimizer.max_duplicates': 0.0,  # else counts are summed
}  # fmt: skip


@pytest.mark.parametrize('steps_per_loop', [1, 4])
def test_a_step_of_columns(steps_per_loop):
  sent, loop = _sent(
    _config(**_COLUMN, **{'train.steps_per_loop': steps_per_loop})
  )
  assert loop.steps == steps_per_loop
  # 2 (n - 1) / n = 1 for two devices.
  assert sent['all-reduce'] == sent['total'] == SCORES


def test_a_loss_that_is_measured_now_and_then_sends_more():
  sent, _ = _sent(_config(**_COLUMN, **{'train.loss_every_steps': 8}))
  assert sent['total'] == SCORES * (1 + 1 / 8)


def test_replicas_send_what_is_due():
  config = _config(
    **{'strategy.exchange_words': 128, 'strategy.exchange_lookups': 0.5}
  )
  sent, loop = _sent(config)
  assert loop.steps == 2  # of 64 centers each, between exchanges
  # 3000 rows are 3 chunks, of which the frequent ones are due more often.
  assert 1 < loop.inner < 3
  expected = loop.inner * 1024 * DIM * 4 * 2 / loop.steps
  assert sent['all-reduce'] == sent['total'] == pytest.approx(expected)


_SYNC = {'strategy.name': 'sync'}
_IN_FEW_BITS = {'table.exchange_dtype': 'bfloat16'}


@pytest.mark.parametrize('layout', ['replicated', 'row'])
def test_rows_and_gradients_travel_in_half_the_bytes(layout):
  settings = _SYNC | {'table.layout': layout, 'optimizer.max_duplicates': 0.0}
  if layout == 'row':
    settings |= {'mesh.data': 1, 'mesh.table': 2}
  whole, _ = _sent(_config(**settings))
  half, _ = _sent(_config(**settings, **_IN_FEW_BITS))
  # All but the ids, and how often each was looked up.
  kind = 'all-gather' if layout == 'replicated' else 'all-to-all'
  rows = whole[kind] - half[kind]
  others = whole[kind] - 2 * rows
  assert 0 < others < (1 + (layout == 'row')) * rows
  if layout == 'replicated':
    # Gradients of the look-ups of a device: [(4 + 4 + 4 + 3) / 4 a center].
    centers = BATCH_WORDS // 2
    assert rows == centers * (1 + (8 + 3) / 4) * DIM * 2
    assert others == centers * (1 + (8 + 3) / 4) * 4


def test_scores_travel_in_half_the_bytes():
  sent, _ = _sent(_config(**_COLUMN, **_IN_FEW_BITS))
  # In two exchanges, each of half of all to the other device.
  assert sent['all-to-all'] == sent['all-gather'] == SCORES / 2 / 2
  assert sent['total'] == SCORES / 2


def test_changes_of_replicas_travel_in_half_the_bytes():
  settings = {'strategy.exchange_words': 128, 'strategy.exchange_lookups': 0.5}
  sent, loop = _sent(_config(**settings, **_IN_FEW_BITS))
  expected = loop.inner * 1024 * DIM * 2 * 2 / loop.steps
  assert sent['total'] == pytest.approx(expected)


def test_rows_of_few_bits_travel_as_they_are_kept():
  settings = _SYNC | {'table.layout': 'row', 'mesh.data': 1, 'mesh.table': 2}
  sent = {
    dtype: _sent(_config(**settings, **{'table.dtype': dtype}))[0]['all-to-all']
    for dtype in ('float32', 'bfloat16', 'int8')
  }
  saved = sent['float32'] - sent['bfloat16']
  # int8 with its scale of four bytes, of what four times six are.
  assert sent['float32'] - sent['int8'] == saved * (24 - 10) / 12


def test_chunks_per_exchange_are_those_of_many_exchanges():
  timetable = timetables.Timetable(8, np.array([2, 3, 9], np.int32), {})
  num = 4**5
  levels = [
    min(next(k for k in range(9) if i % 4 ** (k + 1)), 2)
    for i in range(1, num + 1)
  ]
  mean = sum(timetable.due[level] for level in levels) / num
  assert timetables.chunks_per_exchange(timetable) == mean
  always = timetables.Timetable(8, np.array([5], np.int32), {})
  assert timetables.chunks_per_exchange(always) == 5
