"""What becomes of a run on nodes of a graph: evaluations, and results.

The best model by the validation nodes is kept in the folder `best`.

    export/vectors.npy ..   vectors of nodes, in the forms of `storage.export`
    export/classes.tsv      a line for each node: its likeliest class
    export/network.npz      dense parameters, and rows of the table, if any
    export/network.json     sizes of the network, and names of classes

With the last two a network that learns from features is applied to nodes that
it has not seen, in the same graph or another one.
"""

import csv
import io
import itertools
import pathlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from jaxemb.graphs import graphsage, inference, node_classification, node_source
from jaxemb.graphs import labels as labels_lib
from jaxemb.report import pages, report
from jaxemb.run import build, evaluation
from jaxemb.run import vectors as vectors_lib
from jaxemb.storage import atomic
from jaxemb.storage import export as export_lib

_ROWS = 1 << 15  # of classes.tsv, at once
_PAIRS = 1 << 22  # of a node and a class, scored at once


def collect(
  parts: build.Parts, state: Any, workdir: pathlib.Path
) -> inference.Inferred:
  """The trained model, on the host of every process; all take part.

  Rows in a store are read on demand, until the state changes.
  """
  rows_of = vectors_lib.rows_of(parts, state)
  tables = {x: rows_of(x).rows for x in parts.trainable.model.specs()}
  params = vectors_lib.dense_params(parts, state)
  return _inferred(parts, params, tables=tables, workdir=workdir)


def score_classes(
  labels: labels_lib.Labels, outputs: np.ndarray, nodes: np.ndarray
) -> dict[str, Any]:
  """Scores outputs [n, classes] of nodes [n].

  `score` is the accuracy; or, where nodes have several classes, the micro F1 of
  those with a chance above one half.
  """
  num, num_classes = len(nodes), outputs.shape[1]
  loss = 0.0
  # Of each class, where nodes may have several.
  hits: int | np.ndarray = 0
  sizes: int | np.ndarray = 0
  size = max(1, _PAIRS // num_classes)
  for start in range(0, num, size):
    some = nodes[start : start + size]
    scores = outputs[start : start + size].astype(np.float64)
    if labels.has_many:
      truth, predicted = labels.matrix(some).toarray(), scores > 0
      loss += np.logaddexp(0, -np.where(truth, 1, -1) * scores).sum()
      hits += (truth & predicted).sum(0)
      sizes += truth.sum(0) + predicted.sum(0)
    else:
      classes = labels.classes[some]
      losses = np.logaddexp.reduce(scores, 1)
      loss += (losses - scores[np.arange(len(some)), classes]).sum()
      hits += np.sum(scores.argmax(1) == classes)
  if labels.has_many:
    loss /= num_classes
    micro = float(2 * np.sum(hits) / max(1, np.sum(sizes)))
    macro = float(np.mean(2 * hits / np.maximum(1, sizes)))
    shares = {'score': micro, 'micro_f1': micro, 'macro_f1': macro}
  else:
    shares = dict.fromkeys(('score', 'accuracy'), float(hits / num))
  counts = {'kind': 'classes', 'found': num, 'total': num}
  return {**shares, 'log_loss': float(loss / num), **counts}


def has_validation(source: node_source.NodeSource) -> bool:
  """Whether there are nodes for validation."""
  return source.valid is not None


def can_evaluate(parts: build.Parts) -> bool:
  """Whether there are nodes for validation."""
  return has_validation(_source(parts))


def _source(parts: build.Parts) -> node_source.NodeSource:
  return cast(node_source.NodeSource, parts.source)


def evaluate(
  parts: build.Parts, model: inference.Inferred, is_last: bool = True
) -> dict[str, dict[str, Any]]:
  """Scores classes of nodes held out, or vectors learned from walks, by name.

  While training goes on, only the nodes for validation are scored.
  """
  source = _source(parts)
  labels = source.labels
  if source.from_walks:
    if not len(labels.nodes):
      return {}
    # All of them, as nothing has learned from any.
    matrix = labels.matrix(np.arange(len(model.vectors)))
    return node_classification.evaluate(model.vectors, matrix)
  if not is_last:
    nodes, blocks = source.valid_blocks
    outputs = model.outputs_of(blocks)
    return {'validation': score_classes(labels, outputs, nodes)}
  return {
    name: score_classes(labels, model.outputs[nodes], nodes)
    for name, nodes in (('validation', source.valid), ('test', source.test))
    if nodes is not None
  }


def summarize(scores: Mapping[str, Mapping[str, Any]]) -> str:
  """Scores of the nodes for validation in a few words."""
  return _line(scores['validation'])


def describe(
  parts: build.Parts, scores: Mapping[str, Mapping[str, Any]]
) -> list[str]:
  """A line for the scores of each split, or of the vectors."""
  return [f'{name}: {_line(x)}' for name, x in scores.items()]


def _line(scores):
  if 'log_loss' not in scores:  # of vectors
    return f'{scores["score"]:.4f}'
  names = 'accuracy', 'micro_f1', 'macro_f1'
  shown = [
    f'{x.replace("_f1", " F1")} {scores[x]:.4f}' for x in names if x in scores
  ]
  loss = f'log loss {scores["log_loss"]:.4f} of {scores["total"]:,} nodes'
  return ', '.join([*shown, loss])


def report_values(
  parts: build.Parts, model: Any, scores: dict[str, Any]
) -> dict[str, Any]:
  """Further values of the report."""
  return {'examples_counted': 'nodes to learn from, times epochs'}


def check_data(config: Any, source: node_source.NodeSource) -> None:
  """Raises a `UserError` for settings that need data which is not there."""
  if source.graph.splits and not source.from_walks:
    advice = ', and the splits of the graph have none; remove it'
  else:
    advice = '; set --config.data.valid=0.1, with config.data.targets=classes'
  lacking = f'labelled nodes for validation{advice}'
  evaluation.check(config, has_validation(source), lacking)


def export(
  folder: pathlib.Path, parts: build.Parts, model: inference.Inferred
) -> dict[str, int]:
  """Writes vectors, the network and classes; returns what is dropped."""
  source, network = _source(parts), parts.trainable.model
  with atomic.together(folder) as new:
    dropped = vectors_lib.write_export(new, _export(source, model.vectors))
    spec = cast(graphsage.GraphSage, network).spec
    inference.save(new, model, spec, source=source)
    if not source.from_walks:
      _write_classes(new / 'classes.tsv', source, model.outputs)
  return dropped


def page(parts: build.Parts, model: inference.Inferred) -> pages.Page:
  """The page of vectors, with a map of nodes by class."""
  source = _source(parts)
  labels = source.labels
  keys = [source.keys[i] for i in labels.nodes]
  vectors = _export(source, model.vectors)
  return report.page(
    vectors.embeddings(report.MAX_SEARCHED),
    labels=labels.keys_by_class(keys, labels.nodes),
  )


def is_saved(folder: pathlib.Path) -> bool:
  """Whether `Inferred.save` has written a folder."""
  return (folder / inference.FIRST_BIAS).exists()


def load(parts: build.Parts, folder: pathlib.Path) -> inference.Inferred:
  """The model that `Inferred.save` has written into a folder of the workdir."""
  params, tables = inference.open_saved(folder)
  return _inferred(parts, params, tables=tables, workdir=folder.parent)


def _inferred(parts, params, tables, workdir):
  source = parts.source
  return inference.infer(
    parts.trainable.model.spec,
    params,
    tables,
    features=source.features,
    graph=source.graph,
    folder=workdir if parts.strategy.store else None,
  )


def _export(source, vectors):
  """Vectors of nodes, those of most neighbors first."""
  order = np.argsort(-source.counts, kind='stable')
  rows = export_lib.OnDemand(
    lambda rows: vectors[order[rows]], vectors.shape, vectors.dtype
  )
  keys = [source.keys[i] for i in order]
  return vectors_lib.Export(
    keys, source.counts[order], export_lib.Encoded(rows)
  )


def _write_classes(path, source, outputs):
  """Lines of node, class, probability, its label, and what it was used for."""
  labels, used, names = source.labels, {}, source.labels.class_names
  for name, nodes in source.splits.items():
    used |= dict.fromkeys(nodes.tolist(), name)
  with atomic.write(path) as file:
    text = io.TextIOWrapper(file, 'utf-8', newline='')
    writer = csv.writer(text, delimiter='\t', lineterminator='\n')
    writer.writerow(['node', 'class', 'probability', 'label', 'used'])
    for start in range(0, len(outputs), _ROWS):
      some = outputs[start : start + _ROWS]
      likeliest = inference.likeliest(some, names, labels.has_many)
      truth = labels.matrix(np.arange(start, start + len(some)))
      bounds = itertools.pairwise(truth.indptr.tolist())
      for i, (row, known) in enumerate(
        zip(likeliest, bounds, strict=True), start
      ):
        known = ','.join(names[x] for x in truth.indices[slice(*known)])
        writer.writerow([source.keys[i], *row, known, used.get(i, '')])
    text.detach()
