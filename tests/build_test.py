"""What settings become, beyond what the parts' own tests see."""

import jax
import numpy as np
import pytest

from jaxemb import build, errors
from jaxemb import config as config_lib
from jaxemb.runtime import mesh
from jaxemb.strategies import replicas


@pytest.mark.parametrize(
  ('sync_every', 'steps_per_loop', 'expected'),
  [
    (0, 16, (2, 2)),  # what an accelerator has
    (20 * 8192, 16, (20, 10)),
    (5 * 8192, 1, (5, 1)),
  ],
)
def test_replicas_run_no_loops_of_padding(
  monkeypatch, sync_every, steps_per_loop, expected
):
  config = config_lib.default()
  config.strategy.sync_every = sync_every
  config, tuning = config_lib.resolve(
    config, 'gpu', (2, 1), steps_per_loop=steps_per_loop
  )
  seen = []

  def made(trainable, devices, policy):
    seen.append((policy.every_steps, trainable.steps_per_loop))

  monkeypatch.setattr(replicas, 'replicas', made)
  assert len(jax.devices()) > 1
  build.trainer(config, tuning, np.full(40, 100), mesh.make(mesh.Shape(2, 1)))
  assert seen == [expected]


def test_members_are_found_and_unknown_ones_are_named():
  for key, names in config_lib.MEMBERS.items():
    for name in names:
      assert callable(build.member(key, name)), name
  for name in ('no_such_module:x', 'math:no_such_name'):
    with pytest.raises(errors.UserError, match='config.model.name.*cbow'):
      build.member('model.name', name)


@pytest.mark.parametrize(
  ('name', 'args', 'available', 'words'),
  [
    ('math:pi', (), {}, 'is not a callable'),
    ('operator:add', (1,), {}, "missing a required argument: 'b'"),
    ('operator:neg', (1, 2), {'a': 3}, 'argument'),
  ],
)
def test_members_that_cannot_be_called_are_one_line(
  name, args, available, words
):
  with pytest.raises(errors.UserError) as caught:
    build.call('optimizer.name', name, args, available)
  assert f'config.optimizer.name={name}' in str(caught.value)
  assert words in str(caught.value) and '\n' not in str(caught.value)


def test_a_member_with_a_syntax_error_is_one_line(tmp_path, monkeypatch):
  (tmp_path / 'half_written.py').write_text('def make(\n')
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(errors.UserError, match=r'half_written.py, line 1') as e:
    build.member('model.name', 'half_written:make')
  assert '\n' not in str(e.value)
