"""A trained click model, apart from the run that made it.

It has whole tables in order of ids, dense parameters, the moments of batch
normalization, and the encoder that makes ids of a user's columns. A folder
holds it as JSON and plain arrays, of which tables are memory-mapped.

`write_function` makes one function of it for servers that need no jaxemb; CPUs,
GPUs and TPUs run it, for any number of examples:

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

import dataclasses
import functools
import json
import logging
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxemb import errors
from jaxemb.clicks import encoder as encoder_lib
from jaxemb.clicks import models as clicks
from jaxemb.clicks import schema as schema_lib
from jaxemb.data import examples
from jaxemb.io import tables as tables_lib
from jaxemb.models import columns
from jaxemb.ops import sampling
from jaxemb.runtime import resources
from jaxemb.storage import atomic, damage, export, formats

_LOG = logging.getLogger('jaxemb')
_MODEL = 'model.json'
FORMAT = formats.Format(
  'a model of clicks', number=1, remedy='use that version, or train it again'
)
_EXAMPLES = 4096  # at once; more leave the caches of a CPU
_MIN_ROWS = 1 << 17  # from a file, or the last rows of each take too much
_PLATFORMS = 'cpu', 'cuda', 'rocm', 'tpu'


def unknown_line(unknown: Mapping[str, int]) -> str:
  """Returns a line for numbers of unknown categories by field."""
  counted = ', '.join(f'{k} {v:,}' for k, v in unknown.items())
  return f'categories that the model does not know: {counted}'


@jax.jit
def _looked_up(tables, ids):
  return {k: x.at[ids].get(mode='clip') for k, x in tables.items()}


def _batch(ids, numbers):
  num = ids.shape[0]
  return examples.StepBatch(
    ids=ids,
    numbers=numbers,
    labels=jnp.zeros(num),
    weights=jnp.ones(num),
    positions=jnp.arange(num),
  )


@functools.partial(jax.jit, static_argnums=0)
def chances_of_rows(
  model: clicks.ClickModel,
  params: Any,
  moments: clicks.Moments,
  rows: Mapping[str, jax.Array],
  ids: jax.Array,
  numbers: jax.Array,
  left_out: tuple[Any, Any, Mapping[str, Any]] | None = None,
) -> jax.Array:
  """Returns `chances` of rows [n, columns, ...] that were looked up."""
  batch = _batch(ids, numbers)
  if left_out is not None:
    first, stop, others = left_out
    is_out = ((ids >= first) & (ids < stop))[..., None]
    rows = {k: jnp.where(is_out, others[k], x) for k, x in rows.items()}
  return jax.nn.sigmoid(model.logits(params, rows, batch, moments=moments))


def chances(
  model: clicks.ClickModel,
  arrays: tuple[Any, Mapping[str, jax.Array], clicks.Moments],
  ids: Any,
  numbers: Any,
  left_out: tuple[Any, Any, Mapping[str, Any]] | None = None,
) -> jax.Array:
  """Returns [n] float32 probabilities of clicks.

  Of ids [n, columns] and numbers [n, numbers]. `arrays` are dense parameters,
  tables and moments. `left_out` is a range of ids, from and to, and by table a
  row in their place.
  """
  params, tables, moments = arrays
  # A program of its own: compiled into one, rows are looked up within the
  # products, which takes longer than both.
  rows = _looked_up(tables, ids)
  return chances_of_rows(
    model,
    params,
    moments,
    rows=rows,
    ids=ids,
    numbers=numbers,
    left_out=left_out,
  )


@functools.partial(jax.jit, static_argnums=0)
def _moments(model, params, tables, ids, numbers):
  return model.moments(params, _looked_up(tables, ids), _batch(ids, numbers))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ClickModel:
  """A trained click model, which predicts probabilities of clicks.

  Examples:
    The examples of all methods begin with this model:

    >>> import jaxemb
    >>> log = {
    ...   'label': [1, 0, 0, 1] * 500,
    ...   'color': ['red', 'green', 'blue', 'red'] * 500,
    ...   'price': [i / 100 for i in range(2000)],
    ... }
    >>> settings = {'optimizer.learning_rate': 0.02}
    >>> model = jaxemb.train(log, config='ctr', epochs=10, settings=settings)
    >>> model
    ClickModel(1 categorical, 1 numeric fields, dim 16)
    >>> new = {'color': ['red', 'blue'], 'price': [2.0, 2.0]}
    >>> model.predict(new).round()
    array([1., 0.], dtype=float32)
  """

  model: clicks.ClickModel
  params: Any  # dense parameters, a pytree of dicts
  tables: dict[str, np.ndarray]  # by name, [vocab, dim] float32
  moments: clicks.Moments
  encoder: encoder_lib.Encoder

  def __repr__(self) -> str:
    fields = self.encoder.fields
    return (
      f'ClickModel({len(fields.ids)} categorical, {len(fields.numbers)} '
      f'numeric fields, dim {self.model.spec.dim})'
    )

  @functools.cached_property
  def _arrays(self):
    """All arrays, on the device."""
    arrays = jax.device_put((self.params, self.tables, self.moments))
    resources.use_huge_pages(arrays[1])
    return arrays

  def scores(self, rows: encoder_lib.Rows, without: str = '') -> np.ndarray:
    """Returns the probabilities of encoded rows, [n] float32.

    `rows` are the first result of `encoder.encode`. `without` is the name of a
    categorical field; the mean of its vectors replaces each of them. Raises a
    `UserError` for any other field.

    Examples:
      >>> from jaxemb.io import tables
      >>> table = tables.Table.of(new)
      >>> rows, unknown = model.encoder.encode(table, has_labels=False)
      >>> model.scores(rows).round()
      array([1., 0.], dtype=float32)
      >>> model.scores(rows, without='color').shape
      (2,)
    """
    left_out = self._left_out(without) if without else None
    batches: list[Any] = []  # on the device or, of those before, on the host
    for start in range(0, len(rows), _EXAMPLES):
      batch = [np.asarray(x[start : start + _EXAMPLES]) for x in rows[:2]]
      if missing := _EXAMPLES - len(batch[0]):  # no program of another size
        batch = [np.pad(x, ((0, missing), (0, 0))) for x in batch]
      ids, numbers = batch
      scores = chances(
        self.model, self._arrays, ids, numbers=numbers, left_out=left_out
      )
      batches.append(scores)
      if len(batches) > 2:  # bounds what waits on the device
        batches[-3] = np.asarray(batches[-3])
    return np.concatenate([np.zeros(0, np.float32), *batches])[: len(rows)]

  def _left_out(self, name):
    fields = {x.name: x for x in self.encoder.fields.ids}
    if name not in fields:
      raise errors.UserError(
        f'without={name!r} is no categorical field of the model; its '
        f'categorical fields are {", ".join(fields) or "none"}'
      )
    field = fields[name]
    first, stop = field.first_id, field.first_id + field.num_ids
    means = {
      k: x[first:stop].mean(0, keepdims=True)[None]
      for k, x in self.tables.items()
    }
    return first, stop, means

  def predict(self, data: Any) -> np.ndarray:
    """Returns the probabilities of rows, [n] float32. Rows need no label.

    `data` is a path as in `config.data.path`, a pandas, polars or Arrow table,
    a dict of columns or a list of dicts. Unseen categories count as unknown,
    with a warning. Raises a `UserError` if a column is missing.

    Examples:
      >>> model.predict(new).round()
      array([1., 0.], dtype=float32)
    """
    unknown: dict[str, int] = {}
    scores = [x for x, _ in self.predicted(data, unknown)]
    if unknown:
      _LOG.warning('%s', unknown_line(unknown))
    return np.concatenate([np.zeros(0, np.float32), *scores])

  def predicted(
    self, data: Any, unknown: dict[str, int] | None = None
  ) -> Iterator[tuple[np.ndarray, tables_lib.Table]]:
    """Yields the probabilities [n] and the table of each batch of rows.

    Adds the number of unknown categories of each field to `unknown`.

    Examples:
      >>> for probabilities, table in model.predicted(new):
      ...   print(probabilities.round(), table.num_rows)
      [1. 0.] 2
    """
    counts = {} if unknown is None else unknown
    waiting: list[tuple[tables_lib.Table, encoder_lib.Rows]] = []
    for table, rows, num_unknown in self._encoded(data):
      for name, num in num_unknown.items():
        counts[name] = counts.get(name, 0) + num
      waiting.append((table, rows))
      if sum(len(x) for _, x in waiting) >= _MIN_ROWS:
        yield from self._scored(waiting)
        waiting = []
    if waiting:
      yield from self._scored(waiting)

  def _scored(self, waiting):
    """Yields scores of tables, and these."""
    sources, rows = zip(*waiting, strict=True)
    joined = encoder_lib.Rows(*map(np.concatenate, zip(*rows, strict=True)))
    ends = np.cumsum([len(x) for x in rows])[:-1]
    yield from zip(np.split(self.scores(joined), ends), sources, strict=True)

  def _encoded(self, data):
    """Yields tables with their encoded rows and unknown categories."""

    def encoded(table):
      table = tables_lib.Table.of(table)
      return table, *self.encoder.encode(table, has_labels=False)

    if isinstance(data, str | os.PathLike):
      settings = self.encoder.settings
      reader = schema_lib.reader(
        path=os.fspath(data),
        form=schema_lib.form_of_others(settings['format']),
        needed=self.encoder.schema.columns,
        max_bad=0.0,
        features=settings['features'],
      )
      yield from reader.tables(lambda *_: None, encoded)
    else:
      yield encoded(data)

  def save(self, folder: pathlib.Path | str) -> None:
    """Writes the model to a folder, for `jaxemb.load`.

    Raises a `UserError` if a file cannot be written, or if the folder has files
    that do not belong to a click model.

    Examples:
      >>> model.save('clicks')
      >>> jaxemb.load('clicks').predict(new).round()
      array([1., 0.], dtype=float32)
    """
    folder = pathlib.Path(folder)
    spec = dataclasses.asdict(self.model.spec)
    for key in ('fields', 'row_ops', 'axes'):  # of the encoder, or the mesh
      del spec[key]
    record = FORMAT.stamp() | {
      'terms': self.model.terms,
      'spec': spec,
      'tables': {k: list(x.shape) for k, x in self.tables.items()},
    }
    leaves = jax.tree.leaves((self.params, self.moments))
    arrays: dict[str, Any] = {
      str(i): np.asarray(x) for i, x in enumerate(leaves)
    }
    with atomic.folder(folder, replaces=files_of(folder)) as new:
      self.encoder.save(new)
      (new / _MODEL).write_text(json.dumps(record, indent=1))
      for name, rows in self.tables.items():
        np.save(new / f'{name}.npy', rows)
      np.savez(new / 'dense.npz', **arrays)

  def save_onnx(self, path: pathlib.Path | str) -> None:
    """Writes an ONNX model that returns the probabilities of encoded rows.

    The inputs are `ids` and `numbers`, and the output is `chances`. Raises a
    `UserError` if the extra `onnx` is not installed, or if the file would be
    too large or cannot be written.

    Examples:
      >>> import onnxruntime
      >>> model.save_onnx('clicks.onnx')
      >>> session = onnxruntime.InferenceSession('clicks.onnx')
      >>> [x.name for x in session.get_inputs()]
      ['ids', 'numbers']
    """
    from jaxemb.clicks import onnx_models

    onnx_models.write(path, self)


def files_of(folder: pathlib.Path) -> set[str]:
  """Returns names of what a model replaces: an earlier one, or its export."""
  atomic.complete(folder)  # its tables may not be in their places
  files = {'encoder.json', 'encoder.npz', 'dense.npz', _MODEL}
  files |= {'keys.arrow', 'orbax', 'serving'}
  if (folder / _MODEL).is_file():  # maybe with other tables
    files |= {x.name for x in folder.glob('*.npy')}
  return files


def load(folder: pathlib.Path) -> ClickModel:
  """Loads what `ClickModel.save` has written.

  Raises a `UserError` if it is damaged.
  """
  try:
    record = export.read_record(folder / _MODEL)
    FORMAT.check(folder, record)
    encoder = encoder_lib.load(folder)
    spec = clicks.ClickSpec(
      encoder.fields, **damage.checked_fields(clicks.ClickSpec, record['spec'])
    )
    if min(spec.dim, *spec.hidden, *spec.lower_hidden) < 1:
      raise ValueError('its layers have no units')
    model = clicks.of_terms(
      spec, damage.checked(tuple[str, ...], record['terms'])
    )
    shapes = jax.eval_shape(model.init, sampling.key_shape())
    expected, tree = jax.tree.flatten(shapes)
    num = len(expected)
    arrays = export.load_arrays(folder / 'dense.npz')
    leaves = [arrays[str(i)] for i in range(len(arrays))]
    for leaf, shape in zip(leaves, expected, strict=False):
      _check_shape(leaf, shape.shape)
    for leaf in leaves[num:]:
      _check_shape(leaf, leaf.shape)
    if {x.name for x in model.tables} != {*record['tables']}:
      raise ValueError(f'it has tables {record["tables"]}')
    tables_by_name = {
      x.name: export.load_array(folder / f'{x.name}.npy', mmap_mode='r')
      for x in model.tables
    }
    for x in model.tables:
      _check_shape(tables_by_name[x.name], (x.vocab, x.dim))
    return ClickModel(
      model=model,
      params=jax.tree.unflatten(tree, leaves[:num]),
      tables=tables_by_name,
      moments=cast(clicks.Moments, tuple(leaves[num:])),
      encoder=encoder,
    )
  except (
    OSError,
    TypeError,
    AttributeError,
    *damage.ERRORS,
  ) as error:
    raise errors.UserError(
      f'{folder} is no whole model of clicks: {errors.one_line(error)}; export '
      'it again by starting its run again'
    ) from error


def _check_shape(array: np.ndarray, shape: tuple[int, ...]) -> None:
  if array.dtype != np.float32 or array.shape != shape:
    raise ValueError(
      f'it has {array.dtype} of shape {array.shape}; float32 of shape {shape} '
      'is needed'
    )


def write_function(folder: pathlib.Path, model: ClickModel) -> None:
  """Writes `function` and `arrays.npz`."""
  import flatbuffers  # noqa: F401, which jax.export needs
  from jax import export

  shutil.rmtree(folder, ignore_errors=True)
  folder.mkdir(parents=True)
  leaves, tree = jax.tree.flatten((model.params, model.tables, model.moments))

  def served(arrays, ids, numbers):
    arrays = jax.tree.unflatten(tree, arrays)
    return chances(model.model, arrays, ids, numbers=numbers)

  (num,) = export.symbolic_shape('n')
  fields = model.encoder.fields
  exported = export.export(jax.jit(served), platforms=_PLATFORMS)(
    [jax.ShapeDtypeStruct(np.shape(x), jnp.float32) for x in leaves],
    jax.ShapeDtypeStruct((num, fields.num_columns), jnp.int32),
    jax.ShapeDtypeStruct((num, len(fields.numbers)), jnp.float32),
  )
  (folder / 'function').write_bytes(exported.serialize())
  np.savez(folder / 'arrays.npz', *leaves)


def of_training(
  model: clicks.ClickModel,
  params: Any,
  tables: dict[str, np.ndarray],
  encoder: encoder_lib.Encoder,
  train: encoder_lib.Rows,
  batch_examples: int,
) -> ClickModel:
  """Returns a model as it was trained, with moments for batch normalization.

  They are means over batches of training rows, evenly spaced, of as many
  examples as steps have.
  """
  spec = dataclasses.replace(model.spec, row_ops=columns.WHOLE_ROWS, axes=())
  model = dataclasses.replace(model, spec=spec)
  moments = ()
  if spec.batch_norm:
    size = min(batch_examples, len(train))
    starts = np.linspace(0, len(train) - size, 16).astype(int)
    arrays = jax.device_put((params, tables))
    of_batches = [
      _moments(
        model,
        *arrays,
        ids=np.asarray(train.ids[start : start + size]),
        numbers=np.asarray(train.numbers[start : start + size]),
      )
      for start in np.unique(starts)
    ]
    moments = jax.tree.map(lambda *x: np.mean(np.stack(x), 0), *of_batches)
  return ClickModel(
    model=model,
    params=params,
    tables=tables,
    moments=moments,
    encoder=encoder,
  )
