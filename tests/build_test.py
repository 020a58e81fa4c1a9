"""What settings become, beyond what the parts' own tests see."""

import jax
import numpy as np
import pytest

from jaxemb import build
from jaxemb import config as config_lib
from jaxemb.runtime import mesh
from jaxemb.strategies import replicas


@pytest.mark.parametrize(
  ('exchange_words', 'steps_per_loop', 'expected'),
  [
    (0, 16, (2, 2)),  # what an accelerator has
    (20 * 8192, 16, (20, 10)),
    (5 * 8192, 1, (5, 1)),
  ],
)
def test_replicas_run_no_loops_of_padding(
  monkeypatch, exchange_words, steps_per_loop, expected
):
  config = config_lib.default()
  config.strategy.exchange_words = exchange_words
  config.train.steps_per_loop = steps_per_loop
  config = config_lib.resolved(config, 'gpu', (2, 1))
  seen = []

  def made(model, tables, step_spec, devices, exchange_spec, rates):
    seen.append((exchange_spec.every_steps, step_spec.steps_per_loop))

  monkeypatch.setattr(replicas, 'replicas', made)
  assert len(jax.devices()) > 1
  build.trainer(config, np.full(40, 100), mesh.make(mesh.Shape(2, 1)))
  assert seen == [expected]
