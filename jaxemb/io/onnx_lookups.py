"""Vectors of words as an ONNX model: words in, vectors out."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.storage import atomic, word2vec_format

_MAX_BYTES = 2_000_000_000  # protobuf's limit
_OPSETS = ('', 18), ('ai.onnx.ml', 3)  # of ONNX 1.13
_IR_VERSION = 8


def write(
  path: pathlib.Path | str, words: Sequence[str], vectors: np.ndarray
) -> int:
  """Writes a model from `words` [n] to `vectors` [n, dim] and `rows` [n].

  A word without a vector has zeros, and the row behind the last one. Returns
  how many words UTF-8 cannot hold, which are renamed. Raises a `UserError` if
  the file would be too large or cannot be written.
  """
  words, num_renamed = word2vec_format.spell(words, has_spaces=True)
  word_bytes = sum(len(x.encode()) for x in words)
  check_size(path, 4 * vectors.shape[0] * vectors.shape[1] + word_bytes)
  onnx = errors.optional('onnx', 'onnx')
  helper, types = onnx.helper, onnx.TensorProto
  num, dim = vectors.shape
  rows = np.zeros((num + 1, dim), np.float32)
  rows[:num] = vectors
  nodes = [
    helper.make_node(
      'LabelEncoder',
      ['words'],
      ['rows'],
      domain='ai.onnx.ml',
      keys_strings=list(words),
      values_int64s=range(num),
      default_int64=num,
    ),
    helper.make_node('Gather', ['table', 'rows'], ['vectors']),
  ]
  graph = helper.make_graph(
    nodes,
    'lookup',
    inputs=[helper.make_tensor_value_info('words', types.STRING, ['n'])],
    outputs=[
      helper.make_tensor_value_info('vectors', types.FLOAT, ['n', dim]),
      helper.make_tensor_value_info('rows', types.INT64, ['n']),
    ],
    initializer=[onnx.numpy_helper.from_array(rows, 'table')],
  )
  opsets = [helper.make_opsetid(*x) for x in _OPSETS]
  model = helper.make_model(
    graph,
    opset_imports=opsets,
    ir_version=_IR_VERSION,
    producer_name='jaxemb',
  )
  put(path, model)
  return num_renamed


def check_size(path: pathlib.Path | str, num_bytes: int) -> None:
  """Raises a `UserError` if arrays do not fit a file of ONNX."""
  if num_bytes > _MAX_BYTES:
    raise errors.UserError(
      f'{path}: arrays of {num_bytes / 1e9:.1f} GB do not fit a file of ONNX, '
      'which has 2 GB; export fewer rows or dimensions'
    )


def put(path: pathlib.Path | str, model: Any) -> None:
  """Writes a model of ONNX once it is checked."""
  errors.optional('onnx', 'onnx').checker.check_model(model)
  with atomic.write(path) as file:
    file.write(model.SerializeToString())
