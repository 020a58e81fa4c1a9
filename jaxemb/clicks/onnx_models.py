"""Click models as ONNX, by jax2onnx, which works in a process of its own.

Imported, it replaces functions of `jax.numpy` by others that take less.
"""

import os
import pathlib
import pickle
import sys
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb import errors
from jaxemb.io import onnx_lookups
from jaxemb.runtime import background

if TYPE_CHECKING:
  from jaxemb.clicks import predictor

_UNUSABLE = 2  # an exit code: the error is a line


def write(path: pathlib.Path | str, model: 'predictor.ClickModel') -> None:
  """Writes a model from `ids` and `numbers` to `chances`.

  Raises a `UserError` without the extra `onnx`, or if the file would be too
  large or cannot be written.
  """
  arrays = model.params, dict(model.tables), model.moments
  arrays = jax.tree.map(np.asarray, arrays)
  num_bytes = sum(x.nbytes for x in jax.tree.leaves(arrays))
  onnx_lookups.check_size(path, num_bytes)
  try:
    result = background.call(
      'jaxemb.clicks.onnx_models',
      os.path.abspath(path),
      message=pickle.dumps((model.model, *arrays)),
    )
  except OSError as error:
    raise errors.UserError(
      f'{path} cannot be written: {errors.one_line(error)}; export from a '
      'usual Python'
    ) from error
  if result.returncode:
    lines = result.stderr.decode(errors='replace').strip().splitlines()
    last = lines[-1] if lines else f'exit code {result.returncode}'
    if result.returncode == _UNUSABLE:
      raise errors.UserError(last)
    raise RuntimeError(f'jax2onnx failed: {last}')


def _convert(path, model, params, tables, moments):
  from jaxemb.clicks import predictor

  fields = model.spec.fields

  def served(ids, numbers):
    # Padding lies behind the last row, and jax2onnx ignores `mode='clip'`.
    rows = {
      k: jnp.asarray(x)[jnp.clip(ids, 0, len(x) - 1)] for k, x in tables.items()
    }
    return predictor.chances_of_rows(
      model, params, moments, rows=rows, ids=ids, numbers=numbers
    )

  converted = errors.optional('jax2onnx', 'onnx').to_onnx(
    served,
    [
      jax.ShapeDtypeStruct(('n', fields.num_columns), jnp.int32),
      jax.ShapeDtypeStruct(('n', len(fields.numbers)), jnp.float32),
    ],
    model_name='clicks',
    input_names=['ids', 'numbers'],
    output_names=['chances'],
  )
  onnx_lookups.put(path, converted)


if __name__ == '__main__':
  try:
    _convert(sys.argv[1], *pickle.load(sys.stdin.buffer))
  except errors.UserError as error:
    print(error, file=sys.stderr)
    sys.exit(_UNUSABLE)
