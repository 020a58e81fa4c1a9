"""Every click model gives the same chances in ONNX Runtime."""

import types

import jax
import numpy as np
import pytest

from jaxemb.clicks import kind as click_kind
from jaxemb.clicks import models as clicks
from jaxemb.clicks import predictor
from jaxemb.ops import sampling
from tests import log_of_clicks

# The extra 'onnx', of which jax2onnx is not among the extra 'dev'.
pytest.importorskip('jax2onnx', reason="needs the extra 'onnx'")
runtime = pytest.importorskip('onnxruntime', reason="needs the extra 'onnx'")
_DIM = 3
_VOCAB = log_of_clicks.FIELDS.vocab


def _trained(name, rng):
  """A click model of random numbers."""
  spec = clicks.ClickSpec(
    fields=log_of_clicks.FIELDS,
    dim=_DIM,
    hidden=(5, 4),
    lower_hidden=(4, _DIM),
    cross_layers=2,
    dropout=0.5,
    batch_norm=name != 'fm',
    optimizer='sgd',
    dense_rate=1.0,
    dense_decay=0.0,
  )
  model = getattr(clicks, name)(spec, log_of_clicks.CORPUS)

  def filled(tree):
    return jax.tree.map(
      lambda x: rng.normal(0, 0.5, x.shape).astype(np.float32), tree
    )

  params = filled(jax.eval_shape(model.init, sampling.key_shape()))
  tables = {'vectors': (_VOCAB, _DIM), 'weights': (_VOCAB, 1)}
  tables = {k: rng.normal(size=x).astype(np.float32) for k, x in tables.items()}
  looked_up = predictor._looked_up
  batch = log_of_clicks.step_batch(16, rng)
  moments = ()
  if spec.batch_norm:
    moments = model.moments(params, looked_up(tables, batch.ids), batch)
  return predictor.ClickModel(
    model=model,
    params=params,
    tables=tables,
    moments=tuple(np.asarray(x) for x in moments),
    encoder=types.SimpleNamespace(fields=log_of_clicks.FIELDS),
  )


@pytest.mark.slow
@pytest.mark.parametrize('name', click_kind.KINDS[0].models)
def test_chances_are_those_of_jaxemb_predict(name, tmp_path):
  rng = np.random.default_rng(0)
  model = _trained(name, rng)
  model.save_onnx(tmp_path / 'clicks.onnx')
  session = runtime.InferenceSession(tmp_path / 'clicks.onnx')
  for num in 1, 50:
    ids = log_of_clicks.random_ids((num,), rng)
    numbers = rng.normal(size=(num, 2)).astype(np.float32)
    rows = predictor.encoder_lib.Rows(ids, numbers, np.zeros(num))
    (found,) = session.run(['chances'], {'ids': ids, 'numbers': numbers})
    np.testing.assert_allclose(found, model.scores(rows), atol=1e-5)
    assert num == 1 or found.std() > 0.01
