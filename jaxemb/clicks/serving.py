"""A trained model as one function for servers that need no jaxemb.

`jax.export` writes it for CPUs, GPUs and TPUs, for any number of examples:

    import jax, numpy as np
    from jax import export
    with open('serving/function', 'rb') as file:
      function = export.deserialize(bytearray(file.read()))
    arrays = np.load('serving/arrays.npz')
    arrays = [arrays[f'arr_{i}'] for i in range(len(arrays.files))]
    chances = function.call(arrays, ids, numbers)

`ids` are [n, columns] int32, `numbers` [n, numbers] float32, transformed; what
makes them of a user's columns is in encoder.json and encoder.npz beside them.
"""

import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb.clicks import predictor

_PLATFORMS = 'cpu', 'cuda', 'rocm', 'tpu'


def write(folder: pathlib.Path, model: predictor.ClickModel) -> None:
  """Writes `function` and `arrays.npz`."""
  import flatbuffers  # noqa: F401, which jax.export needs
  from jax import export

  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  leaves, tree = jax.tree.flatten((model.params, model.tables, model.moments))

  def chances(arrays, ids, numbers):
    arrays = jax.tree.unflatten(tree, arrays)
    return predictor.chances(model.model, arrays, ids, numbers=numbers)

  (num,) = export.symbolic_shape('n')
  fields = model.encoder.fields
  shapes = [jax.ShapeDtypeStruct(np.shape(x), jnp.float32) for x in leaves]
  exported = export.export(jax.jit(chances), platforms=_PLATFORMS)(
    shapes,
    jax.ShapeDtypeStruct((num, fields.num_columns), jnp.int32),
    jax.ShapeDtypeStruct((num, len(fields.numbers)), jnp.float32),
  )
  (folder / 'function').write_bytes(exported.serialize())
  np.savez(folder / 'arrays.npz', *leaves)
