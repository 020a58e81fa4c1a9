"""Applies a trained network to all nodes of a graph, with all their neighbors.

Not to samples: layer after layer on the whole graph (Hamilton et al. 2017,
algorithm 1). Rows in a store, and what the layers make of them, need not fit in
memory: rows are read a block of nodes at a time, and layers are in files of the
workdir that are mapped into memory.
"""

import dataclasses
import functools
import json
import math
import mmap
import pathlib
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from jaxemb import errors
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import graphsage, neighbors, node_source
from jaxemb.runtime import resources
from jaxemb.storage import atomic, export

NETWORK, VECTORS, OUTPUTS = 'network.npz', 'vectors.npy', 'outputs.npy'
_RECORD = 'network.json'
_ROWS = 1 << 15  # of a product
_SETTINGS = 'directed', 'normalize'  # under `config.data`


@jax.jit
def _messages(layer, inputs):
  """[nodes, m], what neighbors pass on to be aggregated."""
  if 'pool' in layer:
    return jax.nn.relu(graphsage.product(layer['pool'], inputs))
  return graphsage.product(layer['neighbors'], inputs)


@functools.partial(jax.jit, static_argnums=0)
def _outputs(is_last, layer, inputs, aggregated):
  """[nodes, size], what a layer makes of nodes and their neighbors."""
  if 'pool' in layer:
    inner = {'rows': aggregated}
    aggregated = graphsage.product(layer['neighbors'], inner)
  rows = graphsage.product(layer['own'], inputs) + aggregated
  return rows if is_last else jax.nn.relu(rows)


def _by_rows(function, num, folder):
  """[num, d] float32 of a function of slices, in memory or a folder's file."""
  whole = None
  for start in range(0, num, _ROWS):
    rows = slice(start, min(start + _ROWS, num))
    values = np.asarray(function(rows))
    if whole is None:
      whole = _empty((num, values.shape[1]), folder)
    whole[rows] = values
  return whole


def _empty(shape, folder):
  if folder is None:
    return np.empty(shape, np.float32)
  size = 4 * math.prod(shape)
  with atomic.unnamed(folder, size, 'vectors of nodes') as file:
    mapped = mmap.mmap(file.fileno(), size)
  return np.frombuffer(mapped, np.float32).reshape(shape)


class Inferred(NamedTuple):
  """What a trained network makes of all nodes."""

  vectors: np.ndarray  # [nodes, d] float32, inputs of the layer of classes
  outputs: np.ndarray  # [nodes, classes] float32, log odds; or the vectors
  write_network: Callable[[BinaryIO], None]  # its parameters and tables, .npz

  def save(self, folder: pathlib.Path) -> None:
    """Replaces the folder; a `UserError` if the file system refuses."""
    with atomic.folder(folder) as new:
      with (new / NETWORK).open('wb') as file:
        self.write_network(file)
      for name, array in ((VECTORS, self.vectors), (OUTPUTS, self.outputs)):
        with (new / name).open('wb') as file:
          export.put_array(file, array)


def open_saved(folder: pathlib.Path) -> Inferred:
  """Maps what `Inferred.save` has written."""

  def copy_network(file):
    with (folder / NETWORK).open('rb') as saved:
      shutil.copyfileobj(saved, file)

  arrays = (np.load(folder / x, mmap_mode='r') for x in (VECTORS, OUTPUTS))
  return Inferred(*arrays, copy_network)


def _write_network(params, tables, file):
  """Writes tables by name, and parameters by path: layer_0/own/bias.

  As `np.savez`, of rows that need not be in memory all at once.
  """
  arrays = {**tables, **traverse_util.flatten_dict(params, sep='/')}
  with zipfile.ZipFile(file, 'w') as archive:
    for name, array in arrays.items():
      with archive.open(f'{name}.npy', 'w', force_zip64=True) as member:
        export.put_array(member, array)


def infer(
  model: graphsage.GraphSage,
  params: Any,
  tables: Mapping[str, Any],
  graph: graph_lib.Graph,
  folder: pathlib.Path | None = None,
) -> Inferred:
  """Applies a network to a graph, with all neighbors.

  Tables [nodes, dim] may be read on demand. The results are in memory, or in
  unnamed files of a folder; a `UserError` if they have no room there.
  """
  spec, num, inputs = model.spec, graph.num_nodes, {}
  params = jax.tree.map(np.asarray, params)
  if spec.num_features:
    inputs['features'] = np.asarray(model.features)
  if spec.dim:
    inputs['rows'] = tables[graphsage.NODES]

  def read(rows):
    return {name: np.asarray(x[rows]) for name, x in inputs.items()}

  def send(rows):
    return _messages(layer, read(rows))

  def receive(rows):
    aggregated = neighbors.aggregated(
      graph.offsets[rows.start : rows.stop + 1],
      graph.neighbors,
      messages,
      is_max=spec.aggregator == 'max',
      num_threads=resources.usable_cores(),
    )
    return _outputs(is_last, layer, read(rows), aggregated=aggregated)

  for i in range(len(spec.sizes)):
    layer, is_last = params[f'layer_{i}'], i == len(spec.sizes) - 1
    messages = _by_rows(send, num, folder)
    vectors, outputs = inputs.get('rows'), _by_rows(receive, num, folder)
    inputs = {'rows': outputs}
  if spec.from_walks or len(spec.sizes) == 1:
    vectors = outputs
  write_network = functools.partial(_write_network, params, tables)
  return Inferred(vectors, outputs, write_network)


class NodeModel(NamedTuple):
  """A trained network, for nodes of any graph that have such features."""

  spec: graphsage.SageSpec
  params: Any
  classes: Sequence[str]  # their names; of walks none
  settings: Mapping[str, Any]  # of `config.data`, that reading a graph needs

  def infer(self, graph: graph_lib.Graph) -> Inferred:
    """What it makes of all nodes of a graph, with all their neighbors.

    Raises a `UserError` if they lack what the network learned from.
    """
    spec, features = self.spec, graph.features
    if spec.dim:
      raise errors.UserError(
        'the model has one embedding per training node and cannot score unseen '
        'nodes; train with --config.model.inputs=features'
      )
    if features is None or features.shape[1] != spec.num_features:
      width = 'no' if features is None else f'{features.shape[1]:,}'
      raise errors.UserError(
        f'the graph has {width} features of a node, and the model learned from '
        f'{spec.num_features:,}; give --features, or another graph'
      )
    node_source.check_features(features)
    features = np.asarray(features, np.float32)
    if self.settings['normalize']:
      features = node_source.normalized(features)
    model = graphsage.GraphSage(spec, (), features)
    return infer(model, self.params, tables={}, graph=graph)


def load(path: pathlib.Path | str) -> NodeModel | None:
  """The network of a run, or of its export; None if there is none.

  Raises a `UserError` if it is damaged.
  """
  folders = pathlib.Path(path), pathlib.Path(path, 'export')
  folder = next((x for x in folders if (x / _RECORD).is_file()), None)
  if folder is None:
    return None
  try:
    record = json.loads((folder / _RECORD).read_text())
    fields = dict(record['network'])
    fields['sizes'] = tuple(fields['sizes'])
    fields['fanouts'] = tuple(fields.pop('tree'))
    with np.load(folder / NETWORK) as arrays:
      params = {k: arrays[k] for k in arrays.files if '/' in k}  # no tables
    return NodeModel(
      spec=graphsage.SageSpec(**fields),
      params=traverse_util.unflatten_dict(params, sep='/'),
      classes=record['classes'],
      settings=record['settings'],
    )
  except (
    OSError, EOFError, ValueError, LookupError, TypeError, zipfile.BadZipFile
  ) as error:  # fmt: skip
    raise errors.UserError(
      f'{folder} has no usable network: {errors.one_line(error)}; export again'
    ) from error


def save(
  folder: pathlib.Path,
  trained: Inferred,
  spec: graphsage.SageSpec,
  source: node_source.NodeSource,
) -> None:
  """Writes what `load` reads."""
  fields = dataclasses.asdict(spec)
  fields['tree'] = fields.pop('fanouts')
  del fields['row_ops']
  record = {
    'network': fields,
    'classes': [] if spec.from_walks else source.labels.class_names,
    'settings': {k: source.spec.settings[k] for k in _SETTINGS},
  }
  with atomic.write(folder / NETWORK) as file:
    trained.write_network(file)
  with atomic.write(folder / _RECORD) as file:
    file.write(json.dumps(record, indent=1).encode())


def likeliest(
  outputs: np.ndarray, classes: Sequence[str], has_many: bool
) -> list[tuple[str, str]]:
  """For log odds [n, classes] of nodes the likeliest class and its chance.

  Where nodes have several, those with a chance above one half, with commas.
  """
  outputs = outputs.astype(np.float64)
  if has_many:
    chances = 1 / (1 + np.exp(-outputs))
  else:
    chances = np.exp(outputs - outputs.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
  rows = []
  for row in chances:
    likely = np.flatnonzero(row > 0.5) if has_many else [row.argmax()]
    probabilities = ','.join(f'{row[x]:.4f}' for x in likely)
    rows.append((','.join(classes[x] for x in likely), probabilities))
  return rows
