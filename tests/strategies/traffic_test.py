"""The bytes that devices send in a step, as strategies describe their loops."""

import numpy as np
import pytest

from jaxemb.runtime import hlo
from tests import dispatches, marking, sending

VOCAB, DIM, BATCH_WORDS = 3000, 6, 64
# Scores of a step: [centers, chunk + 2 window + shared negatives] float32.
SCORES_BYTES = BATCH_WORDS * (4 + 2 * 2 + 3) * 4
ON_TABLE_AXIS = {'strategy.name': 'sync', 'mesh.data': 1, 'mesh.table': 2}
COLUMN = ON_TABLE_AXIS | {'table.layout': 'column'}
ROW = ON_TABLE_AXIS | {'table.layout': 'row'}
BFLOAT16 = {'table.exchange_dtype': 'bfloat16'}


def _made_and_sent(settings, **fixed):
  """What trains, and by collective the bytes of one device in a step."""
  settings = {
    'model.dim': DIM, 'model.window': 2, 'model.shared_negatives': 3,
    'train.batch_words': BATCH_WORDS, 'mesh.data': 2, 'mesh.table': 1,
  } | settings  # fmt: skip
  made = dispatches.trainer(
    100_000 // np.arange(1, VOCAB + 1),
    settings,
    (settings['mesh.data'], settings['mesh.table']),
    **{'chunk': 4, 'loss_every_steps': 1} | fixed,
  )
  _, lowered = dispatches.lowered(made.trainable, made.strategy, 4)
  found = hlo.traffic(lowered.compile().as_text(), made.strategy.loop)
  return made, found['bytes_per_step_per_device']


def _sent(settings, **fixed):
  """By collective, bytes of one device in a step; and the strategy's loop."""
  made, sent = _made_and_sent(settings, **fixed)
  return sent, made.strategy.loop


@pytest.mark.parametrize(
  ('layout', 'mesh'),
  marking.slow_after(
    1,
    [
      ('row', (2, 2)),
      ('replicated', (2, 2)),
      ('column', (2, 2)),
      ('row', (1, 4)),
      ('row', (4, 1)),
    ],
  ),
)
def test_layouts_send_what_the_formula_says(layout, mesh):
  settings = {
    'strategy.name': 'sync', 'table.layout': layout,
    'mesh.data': mesh[0], 'mesh.table': mesh[1],
    'train.batch_words': 2 * BATCH_WORDS,
  }  # fmt: skip
  made, sent = _made_and_sent(settings, steps_per_loop=4)
  formula = sending.bytes_per_step(made, layout, mesh, 2 * BATCH_WORDS)
  assert sent['total'] == pytest.approx(formula, rel=1e-9)


@pytest.mark.parametrize(
  ('fixed', 'share'),
  [
    # 2 (n - 1) / n = 1 for two devices.
    ({'steps_per_loop': 4}, 1),
    ({'steps_per_loop': 1, 'loss_every_steps': 8}, 1 + 1 / 8),
  ],
)
def test_column_layout_sends_scores(fixed, share):
  sent, loop = _sent(COLUMN, **fixed)
  assert loop.steps == fixed['steps_per_loop']
  assert sent['all-reduce'] == sent['total'] == SCORES_BYTES * share


def test_scores_travel_in_half_the_bytes():
  sent, _ = _sent(COLUMN | BFLOAT16)
  # In two exchanges, each of half of all to the other device.
  assert sent['all-to-all'] == sent['all-gather'] == SCORES_BYTES / 2 / 2
  assert sent['total'] == SCORES_BYTES / 2


@pytest.mark.parametrize(
  ('settings', 'size'),
  [({}, 4), marking.slow(BFLOAT16, 2)],
)
def test_replicas_send_what_is_due(settings, size):
  sent, loop = _sent(settings, sync_words=128, sync_lookups=0.5)
  assert loop.steps == 2  # of 64 centers each, between synchronisations
  # 3000 rows are 3 chunks, of which the frequent ones are due more often.
  assert 1 < loop.inner < 3
  expected = loop.inner * 1024 * DIM * size * 2 / loop.steps
  assert sent['total'] == pytest.approx(expected)
  assert size < 4 or sent['all-reduce'] == sent['total']


@pytest.mark.slow
def test_row_layout_sends_rows_as_they_are_stored_or_exchanged():
  sent = {
    x: _sent(ROW | {'table.dtype': x})[0]['all-to-all']
    for x in ('float32', 'bfloat16', 'int8')
  }
  saved = sent['float32'] - sent['bfloat16']
  # int8 with its scale of four bytes, of what four times six are.
  assert sent['float32'] - sent['int8'] == saved * (24 - 10) / 12
  # Rows and gradients; the rest are ids and how often each was looked up.
  rows = sent['float32'] - _sent(ROW | BFLOAT16)[0]['all-to-all']
  assert 0 < sent['float32'] - 2 * rows < 2 * rows
