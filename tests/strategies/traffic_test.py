"""How often collectives run: what strategies say of their programs."""

import numpy as np
import pytest

from jaxemb import build
from jaxemb import config as config_lib
from jaxemb.data import windows
from jaxemb.runtime import hlo, mesh
from tests import compiling, dispatches

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
  made = build.trainer(config, COUNTS, mesh.make(shape))
  steps = made.trainable.steps
  shape = config.data.parts, MAX_STEPS * steps.part_words
  reach, count = np.zeros(shape, np.uint8), np.zeros(shape[0], np.int32)
  ids = np.zeros((shape[0], shape[1] + 2 * steps.window), np.int32)
  batch = windows.Batch(ids, reach, reach, count, count, count)
  lowered = made.strategy.step.lower(
    dispatches.start(made.strategy),
    *dispatches.args(made.strategy, batch, dispatches.schedule(0, 0)),
  )
  found = hlo.traffic(compiling.text(lowered), made.strategy.loop)
  return found['bytes_per_step_per_device'], made.strategy.loop


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
