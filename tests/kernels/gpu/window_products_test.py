"""Steps with the kernel that multiplies rows on a GPU, interpreted."""

import dataclasses

import numpy as np
import pytest

from jaxemb.kernels.gpu import window_products
from jaxemb.runtime import mesh
from jaxemb.strategies import base
from tests import dispatches


@pytest.mark.slow
@pytest.mark.parametrize(
  ('settings', 'is_taken'),
  [
    ({'model.name': 'cbow', 'optimizer.name': 'adagrad'}, True),
    ({'model.loss': 'hierarchical_softmax'}, False),
    ({'table.dtype': 'bfloat16'}, False),
    ({'model.shared_negatives': 120}, False),
  ],
)
def test_steps_are_those_of_xla(settings, is_taken):
  counts = 1000 // np.arange(1, 41)
  settings = {'model.dim': 10, 'strategy.name': 'sync', **settings}
  fixed = {'chunk': 8, 'parts': 1, 'deduplicates': True, 'loss_every_steps': 2}
  settings['train.batch_words'] = 32
  trainable = dispatches.trainer(counts, settings, **fixed).trainable
  taken = window_products.can_multiply(trainable.model, trainable.tables)
  assert taken == is_taken
  if not is_taken:
    return
  batch = dispatches.random_batch([90], len(counts), trainable.steps, 3)
  found = []
  for gradients in None, window_products.Gradients(interpret=True):
    given = dataclasses.replace(trainable, gradients=gradients)
    strategy = base.sync(given, mesh.make(mesh.Shape(1, 1)))
    state, metrics = dispatches.run(
      strategy, dispatches.start(strategy), batch, dispatches.schedule(0.1, 0.1)
    )
    found.append((dispatches.exported(strategy, state), metrics.steps))
  (expected, wanted), (rows, steps) = found
  assert steps.examples == wanted.examples > 0
  np.testing.assert_allclose(steps.loss, wanted.loss, 1e-5)
  for name, x in expected.items():
    np.testing.assert_allclose(rows[name], x, 1e-4, 1e-6)
