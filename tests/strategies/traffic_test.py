"""The bytes that devices send in a step, as strategies describe their loops."""

import numpy as np
import pytest

from jaxemb.runtime import hlo
from tests import dispatches, marking, sending

VOCAB, DIM, BATCH_WORDS = 3000, 6, 64
# Scores of a step: [centers, chunk + 2 window + shared negatives] float32.
SCORES_BYTES = BATCH_WORDS * (4 + 2 * 2 + 3) * 4
BFLOAT16 = {'table.exchange_dtype': 'bfloat16'}


def _sent(mesh=(2, 1), layout='', settings=None, **fixed):
  """What trains, and by collective the bytes of one device in a step."""
  settings = {
    'model.dim': DIM, 'model.window': 2, 'model.shared_negatives': 3,
    'train.batch_words': BATCH_WORDS, 'mesh.data': mesh[0],
    'mesh.table': mesh[1],
  } | (settings or {})  # fmt: skip
  if layout:
    settings |= {'strategy.name': 'sync', 'table.layout': layout}
  made = dispatches.trainer(
    100_000 // np.arange(1, VOCAB + 1),
    settings,
    mesh,
    **{'chunk': 4, 'loss_every_steps': 1} | fixed,
  )
  _, lowered = dispatches.lowered(made.trainable, made.strategy, 4)
  found = hlo.traffic(lowered.compile().as_text(), made.strategy.loop)
  return made, found['bytes_per_step_per_device']


@pytest.mark.parametrize(
  ('layout', 'mesh'),
  marking.slow_after(
    0, [('row', (2, 2)), ('replicated', (2, 2)), ('column', (2, 2))]
  ),
)
def test_layouts_send_what_the_formula_says(layout, mesh):
  words = 2 * BATCH_WORDS
  settings = {'train.batch_words': words}
  made, sent = _sent(mesh, layout, settings, steps_per_loop=4)
  formula = sending.bytes_per_step(made, layout, mesh, words)
  assert sent['total'] == pytest.approx(formula, rel=1e-9)


@pytest.mark.slow
def test_column_layout_sends_scores():
  # 2 (n - 1) / n = 1 for two devices, and the loss in every eighth step.
  _, sent = _sent((1, 2), 'column', loss_every_steps=8)
  assert sent['all-reduce'] == sent['total'] == SCORES_BYTES * (1 + 1 / 8)
  # In two exchanges, each of half of all to the other device.
  _, sent = _sent((1, 2), 'column', BFLOAT16)
  assert sent['all-to-all'] == sent['all-gather'] == SCORES_BYTES / 2 / 2
  assert sent['total'] == SCORES_BYTES / 2


@pytest.mark.slow
def test_replicas_send_what_is_due():
  made, sent = _sent(settings=BFLOAT16, sync_words=128, sync_lookups=0.5)
  loop = made.strategy.loop
  assert loop.steps == 2  # of 64 centers each, between synchronisations
  # 3000 rows are 3 chunks, of which the frequent ones are due more often.
  assert 1 < loop.inner < 3
  expected = loop.inner * 1024 * DIM * 2 * 2 / loop.steps
  assert sent['total'] == pytest.approx(expected)
