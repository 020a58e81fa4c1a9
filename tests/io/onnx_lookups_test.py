"""Words become their vectors in ONNX Runtime, too."""

import numpy as np
import pytest

import jaxemb
from jaxemb import errors
from jaxemb.io import onnx_lookups

pytest.importorskip('onnx', reason="needs the extra 'onnx'")


def test_words_become_vectors(tmp_path):
  runtime = pytest.importorskip('onnxruntime')
  words = ['the', 'New York', 'ünï', '中文']
  rows = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
  vectors = jaxemb.Embeddings(words, rows)
  vectors.save_onnx(tmp_path / 'words.onnx')
  session = runtime.InferenceSession(tmp_path / 'words.onnx')
  for query in ['中文', 'unknown', 'the', '中文'], ['New York'], ['']:
    found, numbers = session.run(None, {'words': np.array(query, object)})
    expected = [
      vectors.get_vector(x) if x in vectors else np.zeros(3) for x in query
    ]
    np.testing.assert_array_equal(found, expected)
    index = vectors.key_to_index
    assert numbers.tolist() == [index.get(x, 4) for x in query]


def test_too_large_tables_are_one_line(tmp_path, monkeypatch):
  vectors = jaxemb.Embeddings(['a'], np.ones((1, 4), np.float32))
  monkeypatch.setattr(onnx_lookups, '_MAX_BYTES', 16)
  with pytest.raises(errors.UserError, match='do not fit a file of ONNX'):
    vectors.save_onnx(tmp_path / 'words.onnx')
  assert not any(tmp_path.iterdir())
