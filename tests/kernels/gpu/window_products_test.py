"""What the kernel that multiplies rows on a GPU takes; `step_test` runs it."""

import numpy as np
import pytest

from jaxemb.kernels.gpu import window_products
from tests import dispatches


@pytest.mark.parametrize(
  ('settings', 'is_taken'),
  [
    ({'model.name': 'cbow', 'optimizer.name': 'adagrad'}, True),
    ({'model.loss': 'hierarchical_softmax'}, False),
    ({'table.dtype': 'bfloat16'}, False),
    ({'model.shared_negatives': 120}, False),
  ],
)
def test_other_models_and_tables_are_left_to_xla(settings, is_taken):
  settings = {'model.dim': 10, 'strategy.name': 'sync', **settings}
  trainable, _ = dispatches.trainer(np.arange(1000, 0, -25), settings)
  taken = window_products.can_multiply(trainable.model, trainable.tables)
  assert taken == is_taken
