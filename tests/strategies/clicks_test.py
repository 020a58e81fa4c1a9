"""Models of clicks on every layout, mesh, store and strategy."""

import functools

import jax
import numpy as np
import pytest

from jaxemb import config as config_lib
from jaxemb.clicks import kind as click_kind
from jaxemb.data import examples
from jaxemb.run import build
from jaxemb.runtime import hlo, mesh
from tests import dispatches, log_of_clicks, marking

FIELDS = log_of_clicks.FIELDS
PARTS, EXAMPLES = 4, 32  # of a step in all
RATE = 0.02
slow = pytest.mark.slow
USUAL = {
  'data.source': 'clicks',
  'strategy.name': 'sync',
  'model.dim': 5,
  'model.hidden': '8,4',
  'train.batch_examples': EXAMPLES,
  'optimizer.name': 'adam_full',
  'optimizer.learning_rate': RATE,
  'optimizer.final_learning_rate': RATE,
}


def trainer(shape=(1, 1), parts=PARTS, cluster=None, **settings):
  given = {k.replace('__', '.'): v for k, v in settings.items()}
  settings = {**USUAL, 'model.name': 'deepfm'} | given
  if settings['model.name'] in ('logistic', 'fm'):
    del settings['model.hidden']
  config = config_lib.check(config_lib.default(), settings)
  config, tuning = config_lib.resolve(config, 'cpu', shape, parts=parts)
  steps = examples.Steps(tuning.part_words, tuning.parts)
  devices = mesh.make(mesh.Shape(*shape))
  args = config, tuning, devices, log_of_clicks.CORPUS, steps
  return build.trainer(*args, cluster=cluster)


@functools.cache
def _trained(shape=(1, 1), num_dispatches=2, parts=PARTS, **settings):
  """Rows by table, dense parameters and mean losses after some dispatches."""
  made = trainer(shape, parts, **settings)
  strategy, losses = made.strategy, []
  state = dispatches.start(strategy)
  for i in range(num_dispatches):
    # The last step is not full.
    part_examples = made.trainable.steps.part_examples
    size = 4 * part_examples
    num = parts * (size - 1) - 1
    batch = log_of_clicks.batch(parts, size, num, i % 2)
    batch = batch._replace(num_steps=np.full(parts, 4, np.int32))
    now = dispatches.schedule(RATE, RATE, np.array([i, 7], np.uint32))
    state, found = dispatches.run(strategy, state, batch, now)
    assert found.counters['examples'] == num
    assert found.steps.first_bad_step == -1
    losses.append(found.steps.loss / found.steps.examples)
  rows = {k: strategy.export_rows(state, k).rows for k in made.trainable.tables}
  params = jax.device_get(state.params)
  if strategy.store:
    strategy.store.close()
  return rows, params, losses


def _are_close(found, expected, tolerance=2e-5):
  jax.tree.map(
    functools.partial(
      np.testing.assert_allclose, rtol=tolerance, atol=tolerance
    ),
    found,
    expected,
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  tuple(click_kind.KINDS[0].models),
)
def test_models_learn(name):
  losses = _trained(model__name=name, num_dispatches=40)[2]
  assert losses[-1] < 0.95 * losses[0]


_MESHES = [
  ((2, 2), 'row'),
  ((2, 1), 'replicated'),
  ((2, 2), 'column'),
]
_MODELS = [
  {'optimizer__decay': 0.01},
  {'model__name': 'dcn_v2', 'optimizer__name': 'adagrad'},
  {'model__name': 'dlrm', 'optimizer__name': 'sgd'},
  {'model__name': 'wide_deep', 'model__batch_norm': True},
  {'model__name': 'wide_deep', 'model__dropout': 0.3},
]


# What a mesh and a layout do they do to any model: each of them is met with a
# model or two, and each model with one of them.
@pytest.mark.parametrize(
  ('shape', 'layout', 'more'),
  [
    pytest.param(*_MESHES[i % 3], more, marks=slow)
    for i, more in enumerate(_MODELS)
  ],
  ids=lambda x: '-'.join(map(str, x.values() if isinstance(x, dict) else [x])),
)
def test_meshes_and_layouts_agree(shape, layout, more):
  if 'optimizer__name' not in more:
    # Adam divides by the size of gradients, even of those that are nothing but
    # rounding.
    more = more | {'optimizer__name': 'adagrad_full'}
  more = more | {'optimizer__dense': 'sgd'}
  found = _trained(shape, table__layout=layout, **more)
  _are_close(found, _trained(**more), 1e-3)
  assert found[2] == pytest.approx(_trained(**more)[2], 1e-4)


@pytest.mark.parametrize('dtype', marking.slow_after(0, ['bfloat16', 'int8']))
def test_low_precision_rows_learn(dtype):
  # With 1e-8 rows that hardly have gradients move by whole steps of int8.
  settings = {'num_dispatches': 20, 'optimizer__epsilon': 1e-6}
  rows, _, losses = _trained(table__dtype=dtype, **settings)
  assert losses[-1] < 0.95 * losses[0]
  whole = _trained(**settings)[2]
  assert losses[-1] == pytest.approx(whole[-1], 0.1)
  assert np.isfinite(rows['vectors']).all()


@pytest.mark.slow
@pytest.mark.parametrize(
  ('optimizer', 'store'),
  [
    pytest.param('adam_full', 'memory', marks=slow),
    pytest.param('adagrad_full', 'disk', marks=slow),
    ('sgd', 'memory'),
  ],
)
def test_stores_change_no_more_than_rounding(optimizer, store):
  more = {'optimizer__name': optimizer, 'parts': 1}
  found = _trained(table__store=store, table__device_bytes='90%', **more)
  _are_close(found, _trained(**more), 1e-5)


@slow
def test_replicas_learn():
  more = {'strategy__name': 'replicas', 'strategy__policy': 'hot'}
  more['strategy__hot_every'] = EXAMPLES
  losses = _trained((2, 1), num_dispatches=30,
                    strategy__sync_every=2 * EXAMPLES, **more)[2]  # fmt: skip
  assert losses[-1] < 0.95 * losses[0]


@pytest.mark.slow
def test_all_rows_may_be_updated():
  rows, *_ = _trained(optimizer__rows='all', optimizer__decay=0.1)
  other, *_ = _trained(optimizer__decay=0.1)
  assert np.abs(rows['vectors'] - other['vectors']).max() > 1e-4


@slow
@pytest.mark.parametrize(
  'more',
  [
    {'optimizer__decay': 0.01},
    {'optimizer__name': 'adagrad_full', 'table__dtype': 'bfloat16'},
  ],
  ids=str,
)
def test_no_table_is_copied(more):
  made = trainer(**more)
  batch = log_of_clicks.batch(PARTS, 32, 100)
  now = dispatches.schedule(RATE, RATE)
  state = dispatches.start(made.strategy)
  args = dispatches.args(made.strategy, batch, now)
  text = made.strategy.step.lower(state, *args).compile().as_text()
  assert not {(FIELDS.vocab, 5), (FIELDS.vocab, 1)} & hlo.copied_arrays(text)
