"""What becomes of a run on nodes of a graph: evaluations, and results.

At every evaluation the layers are applied to all nodes with all their neighbors
(Hamilton et al. 2017, algorithm 1), not samples: layer after layer on the whole
graph. The best model by the validation nodes is kept in the folder `best`.

    export/vectors.npy ..   vectors of nodes, in the forms of `storage.export`
    export/classes.tsv      a line for each node: its likeliest class
    export/network.npz      dense parameters, and rows of the table, if any
    export/network.json     sizes of the network, and names of classes

With the last two a network that learns from features is applied to nodes that
it has not seen, in the same graph or another one.

Rows in a store, and what the layers make of them, need not fit in memory: rows
are read a block of nodes at a time, and layers are in files of the workdir that
are mapped into memory.
"""

import csv
import dataclasses
import functools
import io
import json
import math
import mmap
import pathlib
import shutil
import time
import types
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxemb import errors
from jaxemb.clicks import results as click_results
from jaxemb.graphs import graph as graph_lib
from jaxemb.graphs import graphsage, neighbors, trees
from jaxemb.graphs import labels as labels_lib
from jaxemb.graphs import node_classification as evaluation_lib
from jaxemb.graphs import nodes as nodes_lib
from jaxemb.report import report
from jaxemb.run import build, metrics, results
from jaxemb.runtime import distributed, resources
from jaxemb.storage import atomic, export

_ROWS = 1 << 15  # of a product
_PAIRS = 1 << 22  # of a node and a class, scored at once
_SETTINGS = 'directed', 'normalize'  # under `config.data`
_NETWORK, _RECORD = 'network.npz', 'network.json'
_VECTORS, _OUTPUTS = 'vectors.npy', 'outputs.npy'  # of the best model


@functools.partial(jax.jit, static_argnums=(0, 1))
def _messages(spec, i, params, arrays):
  return graphsage.layers_of(spec, params)[i].messages(arrays)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _outputs(spec, i, params, arrays, aggregated):
  found = graphsage.layers_of(spec, params)[i].outputs(arrays, aggregated)
  is_last = i == len(spec.sizes) - 1
  return found if is_last else jax.nn.relu(found)


def _by_rows(function, num, folder):
  """[num, d] float32, of a function of some rows (a slice) at once.

  It is in memory, or in an unnamed file of a folder.
  """
  whole = None
  for start in range(0, num, _ROWS):
    here = slice(start, min(start + _ROWS, num))
    found = np.asarray(function(here))
    if whole is None:
      whole = _empty((num, found.shape[1]), folder)
    whole[here] = found
  return whole


def _empty(shape, folder):
  if folder is None:
    return np.empty(shape, np.float32)
  size = 4 * math.prod(shape)
  with atomic.unnamed(folder, size, 'vectors of nodes') as file:
    mapped = mmap.mmap(file.fileno(), size)
  return np.frombuffer(mapped, np.float32).reshape(shape)


class Inferred(NamedTuple):
  """A trained network, and what it makes of all nodes."""

  params: Any  # dense parameters, a pytree of dicts
  tables: dict[str, Any]  # [nodes, dim] float32, maybe on demand; or {}
  vectors: np.ndarray  # [nodes, d] float32, inputs of the layer of classes
  outputs: np.ndarray  # [nodes, classes] float32, log odds; or the vectors

  def save(self, folder: pathlib.Path) -> None:
    """Replaces the folder; a `UserError` if the file system refuses."""
    with atomic.folder(folder) as new:
      _save_network(new / _NETWORK, self)
      for name, array in ((_VECTORS, self.vectors), (_OUTPUTS, self.outputs)):
        with (new / name).open('wb') as file:
          export.put_array(file, array)


def _save_network(file, trained):
  """Writes tables by name, and parameters by path: layer_0/own/bias.

  As `np.savez`, of rows that need not be in memory all at once.
  """
  found = dict(trained.tables)
  for path, leaf in jax.tree_util.tree_leaves_with_path(trained.params):
    found['/'.join(str(x.key) for x in path)] = np.asarray(leaf)
  with zipfile.ZipFile(file, 'w') as archive:
    for name, array in found.items():
      with archive.open(f'{name}.npy', 'w', force_zip64=True) as member:
        export.put_array(member, array)


def infer(
  model: graphsage.GraphSage,
  params: Any,
  tables: Mapping[str, Any],
  offsets: np.ndarray,
  others: np.ndarray,
  folder: pathlib.Path | None = None,
) -> Inferred:
  """Applies a network to a graph [nodes + 1], [edges], with all neighbors.

  Tables [nodes, dim] may be read on demand. What it finds is in memory, or in
  unnamed files of a folder; a `UserError` if they have no room there.
  """
  spec, num = model.spec, len(offsets) - 1
  arrays = {}
  if spec.num_features:
    arrays['features'] = np.asarray(model.features)
  if spec.dim:
    arrays['rows'] = tables[graphsage.NODES]
  vectors = None
  for i in range(len(spec.sizes)):
    if 'rows' in arrays:
      vectors = arrays['rows']
    function = functools.partial(_messages_of, spec, i, params, arrays)
    messages = _by_rows(function, num, folder)
    function = functools.partial(
      _outputs_of, spec, i, params, arrays, offsets, others, messages
    )
    arrays = {'rows': _by_rows(function, num, folder)}
  outputs = arrays['rows']
  if spec.from_walks or len(spec.sizes) == 1:
    vectors = outputs
  return Inferred(
    params=params, tables=dict(tables), vectors=vectors, outputs=outputs
  )


def _some(arrays, here):
  return {name: np.asarray(x[here]) for name, x in arrays.items()}


def _messages_of(spec, i, params, arrays, here):
  """What some nodes pass on in layer i."""
  return _messages(spec, i, params, arrays=_some(arrays, here))


def _outputs_of(spec, i, params, arrays, offsets, others, messages, here):
  """What layer i makes of some nodes."""
  found = neighbors.aggregated(
    offsets[here.start : here.stop + 1],
    neighbors=others,
    values=messages,
    is_max=spec.aggregator == 'max',
    num_threads=resources.usable_cores(),
  )
  return _outputs(spec, i, params, arrays=_some(arrays, here), aggregated=found)


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
        'the model learned a row for each node of its graph, and others have '
        'none; train with --config.model.inputs=features'
      )
    if features is None or features.shape[1] != spec.num_features:
      given = 'no' if features is None else f'{features.shape[1]:,}'
      raise errors.UserError(
        f'the graph has {given} features of a node, and the model learned from '
        f'{spec.num_features:,}; give --features, or another graph'
      )
    nodes_lib.check_features(features)
    features = np.asarray(features, np.float32)
    if self.settings['normalize']:
      features = nodes_lib.normalized(features)
    model = graphsage.GraphSage(spec, (), features)
    return infer(model, self.params, {}, graph.offsets, graph.neighbors)


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
    fields, params = record['network'], {}
    tree = trees.Tree(tuple(fields.pop('tree')))
    fields['sizes'] = tuple(fields['sizes'])
    spec = graphsage.SageSpec(tree=tree, **fields)
    with np.load(folder / _NETWORK) as arrays:
      for name in arrays.files:
        *parts, last = name.split('/')
        if parts:  # tables have one
          place = params
          for part in parts:
            place = place.setdefault(part, {})
          place[last] = arrays[name]
    return NodeModel(
      spec=spec,
      params=params,
      classes=record['classes'],
      settings=record['settings'],
    )
  except (
    *(OSError, EOFError, ValueError, KeyError, TypeError),
    *(AttributeError, zipfile.BadZipFile),
  ) as error:
    raise errors.UserError(
      f'{folder} has no usable network: {errors.one_line(error)}; export again'
    ) from error


def _save(folder, trained, best, parts):
  """Writes what `load` reads, of what was trained or of the best model."""
  spec, source = parts.trainable.model.spec, parts.source
  fields = dataclasses.asdict(spec) | {'tree': spec.tree.fanouts}
  del fields['row_ops']
  record = {
    'network': fields,
    'classes': [] if spec.from_walks else source.labels.class_names,
    'settings': {k: source.spec.settings[k] for k in _SETTINGS},
  }
  with atomic.write(folder / _NETWORK) as file:
    if trained is not None:
      _save_network(file, trained)
    else:
      with (best / _NETWORK).open('rb') as kept:
        shutil.copyfileobj(kept, file)
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
    found = np.flatnonzero(row > 0.5) if has_many else [row.argmax()]
    shares = ','.join(f'{row[x]:.4f}' for x in found)
    rows.append((','.join(classes[x] for x in found), shares))
  return rows


def taken(parts: build.Parts, state: Any, workdir: pathlib.Path) -> Inferred:
  """The trained model, on the host of every process; all take part.

  Rows in a store are read on demand, until the state changes.
  """
  model, graph = parts.trainable.model, parts.source.graph
  params, strategy = click_results.params_of(parts, state), parts.strategy
  export_rows = functools.partial(strategy.export_rows, state)
  if strategy.store:
    export_rows = functools.partial(strategy.store.rows_on_demand, state)
  tables = {name: export_rows(name).rows for name in model.specs()}
  return infer(
    model,
    params,
    tables,
    graph.offsets,
    graph.neighbors,
    workdir if strategy.store else None,
  )


def evaluate(
  labels: labels_lib.Labels, outputs: np.ndarray, nodes: np.ndarray
) -> dict[str, Any]:
  """Of outputs [all nodes, classes] at some nodes [n].

  `score` is the accuracy; or, where nodes have several classes, the micro F1 of
  those with a chance above one half.
  """
  found = {'kind': 'classes', 'found': len(nodes), 'total': len(nodes)}
  size = max(1, _PAIRS // outputs.shape[1])
  parts = [nodes[i : i + size] for i in range(0, len(nodes), size)]
  if labels.has_many:
    counted = [_counts_of_many(labels, outputs, x) for x in parts]
    loss, hits, sizes = map(sum, zip(*counted, strict=True))
    micro = 2 * hits.sum() / max(1, sizes.sum())
    macro = np.mean(2 * hits / np.maximum(1, sizes))
    found |= {'micro_f1': float(micro), 'macro_f1': float(macro)}
    loss /= len(nodes) * outputs.shape[1]
    return {'score': float(micro), 'log_loss': float(loss)} | found
  counted = [_counts_of_one(labels, outputs, x) for x in parts]
  loss, hits = (sum(x) / len(nodes) for x in zip(*counted, strict=True))
  found |= {'accuracy': float(hits), 'log_loss': float(loss)}
  return {'score': float(hits)} | found


def _counts_of_many(labels, outputs, nodes):
  """Of some nodes the summed loss; of each class, hits, and all that count."""
  scores = outputs[nodes].astype(np.float64)
  truth = labels.matrix(nodes).toarray()
  losses = np.logaddexp(0, -np.where(truth, 1, -1) * scores)
  hits = (truth & (scores > 0)).sum(0)
  return losses.sum(), hits, truth.sum(0) + (scores > 0).sum(0)


def _counts_of_one(labels, outputs, nodes):
  """Of some nodes the summed loss and the number of hits."""
  scores = outputs[nodes].astype(np.float64)
  truth = labels.classes[nodes]
  own = scores[np.arange(len(nodes)), truth]
  losses = np.logaddexp.reduce(scores, 1) - own
  return losses.sum(), np.sum(scores.argmax(1) == truth)


def describe(found: Mapping[str, Any]) -> str:
  """An evaluation in a few words."""
  loss = f'log loss {found["log_loss"]:.4f} of {found["total"]:,} nodes'
  if 'accuracy' in found:
    return f'accuracy {found["accuracy"]:.4f}, {loss}'
  scores = f'micro F1 {found["micro_f1"]:.4f}, macro F1 {found["macro_f1"]:.4f}'
  return f'{scores}, {loss}'


def _validation(model, parts):
  source = parts.source
  return evaluate(source.labels, model.outputs, source.valid)


def Evaluation(  # noqa: N802, as the class that it makes
  workdir: pathlib.Path, parts: build.Parts
) -> click_results.Evaluation:
  """Evaluates the model while it is trained; a `loop.Hook`."""
  take = functools.partial(taken, workdir=workdir)
  return click_results.Evaluation(
    workdir=workdir,
    parts=parts,
    take=take,
    validate=_validation,
    describe=describe,
  )


def check(config: Any, source: nodes_lib.NodeSource) -> None:
  """Raises a `UserError` for settings that need data which is not there."""
  lowers = config.optimizer.plateau_factor != 1
  if source.valid is None and (config.train.patience or lowers):
    key = 'optimizer.plateau_factor' if lowers else 'train.patience'
    own = source.graph.splits and not source.from_walks
    raise errors.UserError(
      f'config.{key} needs labelled nodes for validation'
      + (
        ', and the splits of the graph have none; remove it'
        if own
        else '; set --config.data.valid=0.1, with config.data.targets=classes'
      )
    )
  if config.train.patience and not config.eval.every_epochs:
    raise errors.UserError(
      'config.train.patience needs evaluations; set '
      '--config.eval.every_epochs=1'
    )


def write(
  workdir: pathlib.Path,
  parts: build.Parts,
  state: Any,
  totals: metrics.Totals,
  hook: click_results.Evaluation,
  more: Mapping[str, Any] = types.MappingProxyType({}),
) -> None:
  """Evaluates the best model, exports it, and writes the report.

  All processes take part; the first one writes. `more` extends the values of
  the report.
  """
  start, source, best = time.time(), parts.source, hook.best()
  place = workdir / click_results.BEST
  trained = None
  if best is None or not (place / _OUTPUTS).exists():
    trained = taken(parts, state, workdir)
  if not distributed.is_first():
    return
  if trained is None:
    files = place / _OUTPUTS, place / _VECTORS
    outputs, vectors = (np.load(x, mmap_mode='r') for x in files)
  else:
    outputs, vectors = trained.outputs, trained.vectors
  evaluation = {}
  for name, nodes in (('validation', source.valid), ('test', source.test)):
    if nodes is not None:
      found = evaluate(source.labels, outputs, nodes)
      evaluation[name] = found
      metrics.LOG.info('%s: %s', name, describe(found))
  labels = source.labels
  if source.from_walks and len(labels.nodes):
    # All of them, as nothing has learned from any.
    classes = labels.matrix(np.arange(len(vectors)))
    evaluation = evaluation_lib.evaluate(vectors, classes)
    for name, found in evaluation.items():
      metrics.LOG.info('%s: %.4f', name, found['score'])
  order = np.argsort(-source.counts, kind='stable')
  keys = [source.keys[i] for i in order]
  rows = export.Encoded(
    export.OnDemand(
      lambda rows: vectors[order[rows]], vectors.shape, vectors.dtype
    )
  )
  made = results.Export(keys, source.counts[order], rows)
  dropped = results.write_export(workdir / 'export', made)
  _save(workdir / 'export', trained, best=place, parts=parts)
  if not source.from_walks:
    _write_classes(workdir / 'export' / 'classes.tsv', source, outputs)
  metrics.LOG.info('vectors of nodes in %s', workdir / 'export')
  totals.total_secs += time.time() - start
  found = {
    'evaluation': evaluation,
    'evaluations': hook.records,
    'best': best,
    'examples_counted': 'nodes to learn from, times epochs',
  }
  values, records = results.reported(workdir, parts, totals, found=found | more)
  values['dropped'] |= dropped
  shown = made.embeddings(report.MAX_SEARCHED)
  report.write(
    workdir,
    report=values,
    metrics=records,
    vectors=shown,
    found=(),
    labels=labels.keys_by_class(
      [source.keys[i] for i in labels.nodes], labels.nodes
    ),
  )
  rate = totals.done / max(totals.train_secs, 1e-9)
  metrics.LOG.info(
    f'{rate:,.0f} nodes/s in training, {totals.total_secs:.1f} s in all; '
    f'report in {workdir / "report.html"}'
  )


def _write_classes(path, source, outputs):
  """Lines of node, class, probability, its label, and what it was used for."""
  labels, held, names = source.labels, {}, source.labels.class_names
  for name, nodes in zip(nodes_lib.Splits._fields, source.splits, strict=True):
    held |= dict.fromkeys(() if nodes is None else nodes.tolist(), name)
  with atomic.write(path) as file:
    text = io.TextIOWrapper(file, 'utf-8', newline='')
    writer = csv.writer(text, delimiter='\t', lineterminator='\n')
    writer.writerow(['node', 'class', 'probability', 'label', 'used'])
    for i in range(len(outputs)):
      if not i % _ROWS:
        some = outputs[i : i + _ROWS]
        found = likeliest(some, names, labels.has_many)
        truth = labels.matrix(np.arange(i, i + len(some)))
      row, known = found[i % _ROWS], truth[i % _ROWS].indices
      known = ','.join(names[x] for x in known)
      writer.writerow([source.keys[i], *row, known, held.get(i, '')])
    text.detach()
