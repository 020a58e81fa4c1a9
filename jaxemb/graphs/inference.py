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
import threading
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import jax
import numpy as np
from flax import traverse_util

from jaxemb import errors
from jaxemb.graphs import features as features_lib
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import graphsage, neighbors, node_source
from jaxemb.runtime import resources
from jaxemb.storage import atomic, damage, export, formats

NETWORK = 'network.npz'
_SEPARATOR = '.'  # of paths of parameters, in names of files
FIRST_BIAS = 'layer_0.own.bias.npy'
_RECORD = 'network.json'
FORMAT = formats.Format(
  'a network of nodes', number=1, remedy='use that version, or train it again'
)
_ROWS = 1 << 15  # of a product
_SETTINGS = 'directed', 'normalize'  # under `config.data`


@jax.jit
def _messages(layer, inputs, added):
  """[nodes, m], what neighbors pass on to be aggregated."""
  if 'pool' in layer:
    return jax.nn.relu(graphsage.product(layer['pool'], inputs, added))
  return graphsage.product(layer['neighbors'], inputs, added)


@functools.partial(jax.jit, static_argnums=0)
def _outputs(is_last, layer, inputs, added, aggregated):
  """[nodes, size], what a layer makes of nodes and their neighbors."""
  if 'pool' in layer:
    inner = {'rows': aggregated}
    aggregated = graphsage.product(layer['neighbors'], inner)
  rows = graphsage.product(layer['own'], inputs, added) + aggregated
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


class Inferred:
  """What a trained network makes of nodes, computed when it is asked for."""

  def __init__(
    self,
    compute: Callable[[Sequence[neighbors.Block] | None], Sequence[np.ndarray]],
    arrays: Mapping[str, Any],
  ):
    """`compute` returns vectors and outputs of some nodes, or of all.

    `arrays` are tables by name, and parameters by path: layer_0/own/bias.
    """
    self._compute, self.arrays = compute, arrays
    self._computed, self._computing = None, threading.Lock()

  @property
  def _whole(self):
    with self._computing:  # once, though results are written by several threads
      if self._computed is None:
        self._computed = self._compute(None)
    return self._computed

  @property
  def vectors(self) -> np.ndarray:
    """[nodes, d] float32, inputs of the layer of classes."""
    return self._whole[0]

  @property
  def outputs(self) -> np.ndarray:
    """[nodes, classes] float32, log odds; or the vectors."""
    return self._whole[1]

  def outputs_of(self, blocks: Sequence[neighbors.Block]) -> np.ndarray:
    """The outputs of the nodes that the last of some blocks is for."""
    return self._compute(blocks)[1]

  def save(self, folder: pathlib.Path) -> None:
    """Writes parameters and tables; a `UserError` if the disk refuses.

    Replaces the folder.
    """
    with atomic.folder(folder) as new:
      for name, array in self.arrays.items():
        path = new / f'{name.replace("/", _SEPARATOR)}.npy'
        with path.open('wb') as file:
          export.put_array(file, array)

  def write_network(self, file: BinaryIO) -> None:
    """Writes the arrays as `np.savez`, of rows that need not be in memory."""
    with zipfile.ZipFile(file, 'w') as archive:
      for name, array in self.arrays.items():
        with archive.open(f'{name}.npy', 'w', force_zip64=True) as member:
          export.put_array(member, array)


def open_saved(folder: pathlib.Path) -> tuple[Any, dict[str, np.ndarray]]:
  """Maps the parameters and tables that `Inferred.save` has written."""
  arrays = {
    path.stem.replace(_SEPARATOR, '/'): np.load(path, mmap_mode='r')
    for path in folder.glob('*.npy')
  }
  params = {k: x for k, x in arrays.items() if '/' in k}
  tables = {k: x for k, x in arrays.items() if '/' not in k}
  return traverse_util.unflatten_dict(params, sep='/'), tables


def infer(
  spec: graphsage.SageSpec,
  params: Any,
  tables: Mapping[str, Any],
  features: Any,
  graph: graph_lib.Graph,
  folder: pathlib.Path | None = None,
) -> Inferred:
  """Applies a network to a graph, with all neighbors.

  Tables [nodes, dim] may be read on demand, features [nodes, d] be sparse. The
  results are in memory, or in unnamed files of a folder; a `UserError` if they
  have no room there.
  """
  params = jax.tree.map(np.asarray, params)
  inputs = {'rows': tables[graphsage.NODES]} if spec.dim else {}
  if spec.num_features:
    inputs['features'] = features
  compute = functools.partial(_compute, spec, params, inputs, graph, folder)
  arrays = {**tables, **traverse_util.flatten_dict(params, sep='/')}
  return Inferred(compute, arrays)


def _compute(spec, params, inputs, graph, folder, blocks):
  """Vectors and outputs of the nodes of the last block, or of all."""
  num_layers, vectors = len(spec.sizes), None
  lists = graph.offsets, graph.neighbors
  blocks = blocks or neighbors.blocks(*lists, num_layers)
  nodes = blocks[0].nodes  # whose inputs are read from all
  for i, block in enumerate(blocks):
    layer = _Layer(
      params[f'layer_{i}'],
      inputs=inputs,
      nodes=nodes,
      block=block,
      is_last=i == num_layers - 1,
      is_max=spec.aggregator == 'max',
    )
    vectors, outputs = inputs.get('rows'), layer.apply(folder)
    inputs, nodes = {'rows': outputs}, None
  if spec.from_walks or num_layers == 1:
    vectors = outputs
  return vectors, outputs


class _Layer(NamedTuple):
  """A layer, to be applied to the nodes of a block."""

  params: Any
  inputs: Mapping[str, Any]
  nodes: np.ndarray | None  # which of the inputs it reads; None = all
  block: neighbors.Block
  is_last: bool
  is_max: bool

  def apply(self, folder: pathlib.Path | None) -> np.ndarray:
    """[m, size] of the nodes of the block."""
    nodes, offsets = self.nodes, self.block.offsets
    if nodes is None:
      num = next(iter(self.inputs.values())).shape[0]
    else:
      num = len(nodes)
    messages = _by_rows(self._send, num, folder)
    receive = functools.partial(self._receive, messages)
    return _by_rows(receive, len(offsets) - 1, folder)

  def _send(self, rows):
    name = 'pool' if 'pool' in self.params else 'neighbors'
    inputs, added = self._read(rows, self.params[name])
    return _messages(self.params, inputs, added)

  def _receive(self, messages, rows):
    block = self.block
    aggregated = neighbors.aggregated(
      block.offsets[rows.start : rows.stop + 1],
      block.neighbors,
      messages,
      is_max=self.is_max,
      num_threads=resources.usable_cores(),
    )
    own = rows if block.own is None else block.own[rows]
    inputs, added = self._read(own, self.params['own'])
    layer, is_last = self.params, self.is_last
    return _outputs(is_last, layer, inputs, added=added, aggregated=aggregated)

  def _read(self, rows, linear):
    """Inputs of nodes, and, of sparse features, their products instead."""
    rows = rows if self.nodes is None else self.nodes[rows]
    inputs = {name: x[rows] for name, x in self.inputs.items()}
    if not features_lib.is_sparse(inputs.get('features')):
      return {name: np.asarray(x) for name, x in inputs.items()}, 0.0
    return inputs, inputs.pop('features') @ linear['features']


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
    features = node_source.prepared(features, self.settings['normalize'])
    return infer(spec, self.params, tables={}, features=features, graph=graph)


def load(path: pathlib.Path | str) -> NodeModel | None:
  """The network of a run, or of its export; None if there is none.

  Raises a `UserError` if it is damaged.
  """
  folders = export.folders(path)
  folder = next((x for x in folders if (x / _RECORD).is_file()), None)
  if folder is None:
    return None
  try:
    record = export.read_record(folder / _RECORD)
    FORMAT.check(folder, record)
    fields = dict(record['network'])
    fields['sizes'] = tuple(fields['sizes'])
    fields['fanouts'] = tuple(fields.pop('tree'))
    # No tables.
    params = export.load_arrays(folder / NETWORK, lambda name: '/' in name)
    return NodeModel(
      spec=graphsage.SageSpec(**fields),
      params=traverse_util.unflatten_dict(params, sep='/'),
      classes=record['classes'],
      settings=record['settings'],
    )
  except (
    OSError,
    TypeError,
    AttributeError,
    *damage.ERRORS,
  ) as error:
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
  record = FORMAT.stamp() | {
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
    many = np.flatnonzero(row > 0.5).tolist()
    likely = many if has_many else [int(row.argmax())]
    probabilities = ','.join(f'{row[x]:.4f}' for x in likely)
    rows.append((','.join(classes[x] for x in likely), probabilities))
  return rows
