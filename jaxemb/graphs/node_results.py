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
import functools
import io
import pathlib
import time
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxemb import errors
from jaxemb.clicks import results as click_results
from jaxemb.graphs import inference, node_classification, node_source
from jaxemb.graphs import labels as labels_lib
from jaxemb.report import report
from jaxemb.run import build, metrics, results
from jaxemb.runtime import distributed
from jaxemb.storage import atomic, export

_ROWS = 1 << 15  # of classes.tsv, at once
_PAIRS = 1 << 22  # of a node and a class, scored at once


def taken(
  parts: build.Parts, state: Any, workdir: pathlib.Path
) -> inference.Inferred:
  """The trained model, on the host of every process; all take part.

  Rows in a store are read on demand, until the state changes.
  """
  model, graph = parts.trainable.model, parts.source.graph
  params, strategy = click_results.params_of(parts, state), parts.strategy
  export_rows = functools.partial(strategy.export_rows, state)
  if strategy.store:
    export_rows = functools.partial(strategy.store.rows_on_demand, state)
  tables = {name: export_rows(name).rows for name in model.specs()}
  return inference.infer(
    model,
    params,
    tables,
    graph.offsets,
    graph.neighbors,
    workdir if strategy.store else None,
  )


def score_classes(
  labels: labels_lib.Labels, outputs: np.ndarray, nodes: np.ndarray
) -> dict[str, Any]:
  """Score outputs [all nodes, classes] at some nodes [n].

  `score` is the accuracy; or, where nodes have several classes, the micro F1 of
  those with a chance above one half.
  """
  scores = {'kind': 'classes', 'found': len(nodes), 'total': len(nodes)}
  size = max(1, _PAIRS // outputs.shape[1])
  parts = [nodes[i : i + size] for i in range(0, len(nodes), size)]
  if labels.has_many:
    counted = [_counts_of_many(labels, outputs, x) for x in parts]
    loss, hits, sizes = map(sum, zip(*counted, strict=True))
    micro = 2 * hits.sum() / max(1, sizes.sum())
    macro = np.mean(2 * hits / np.maximum(1, sizes))
    scores |= {'micro_f1': float(micro), 'macro_f1': float(macro)}
    loss /= len(nodes) * outputs.shape[1]
    return {'score': float(micro), 'log_loss': float(loss)} | scores
  counted = [_counts_of_one(labels, outputs, x) for x in parts]
  loss, hits = (sum(x) / len(nodes) for x in zip(*counted, strict=True))
  scores |= {'accuracy': float(hits), 'log_loss': float(loss)}
  return {'score': float(hits)} | scores


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
  losses = np.logaddexp.reduce(scores, 1)
  losses -= scores[np.arange(len(nodes)), truth]
  return losses.sum(), np.sum(scores.argmax(1) == truth)


def evaluate(
  source: node_source.NodeSource, vectors: np.ndarray, outputs: np.ndarray
) -> dict[str, dict[str, Any]]:
  """Score classes of nodes held out, or vectors learned from walks, by name."""
  labels = source.labels
  if source.from_walks:
    if not len(labels.nodes):
      return {}
    # All of them, as nothing has learned from any.
    matrix = labels.matrix(np.arange(len(vectors)))
    return node_classification.evaluate(vectors, matrix)
  held_out = {'validation': source.valid, 'test': source.test}
  return {
    name: score_classes(labels, outputs, nodes)
    for name, nodes in held_out.items()
    if nodes is not None
  }


def describe(scores: Mapping[str, Any]) -> str:
  """Return an evaluation in a few words."""
  if 'log_loss' not in scores:  # of vectors
    return f'{scores["score"]:.4f}'
  loss = f'log loss {scores["log_loss"]:.4f} of {scores["total"]:,} nodes'
  if 'accuracy' in scores:
    return f'accuracy {scores["accuracy"]:.4f}, {loss}'
  return (
    f'micro F1 {scores["micro_f1"]:.4f}, macro F1 {scores["macro_f1"]:.4f}, '
    f'{loss}'
  )


def _validation(model, parts):
  source = parts.source
  return score_classes(source.labels, model.outputs, source.valid)


def Evaluation(  # noqa: N802, as the class that it makes
  workdir: pathlib.Path, parts: build.Parts
) -> click_results.Evaluation:
  """Evaluates the model while it is trained; a `loop.Hook`."""
  return click_results.Evaluation(
    workdir=workdir,
    parts=parts,
    take=functools.partial(taken, workdir=workdir),
    validate=_validation,
    describe=describe,
  )


def check(config: Any, source: node_source.NodeSource) -> None:
  """Raises a `UserError` for settings that need data which is not there."""
  lowers = config.optimizer.plateau_factor != 1
  if source.valid is None and (config.train.patience or lowers):
    key = 'optimizer.plateau_factor' if lowers else 'train.patience'
    has_splits = source.graph.splits and not source.from_walks
    raise errors.UserError(
      f'config.{key} needs labelled nodes for validation'
      + (
        ', and the splits of the graph have none; remove it'
        if has_splits
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
  """Evaluate the best model, export it, and write the report.

  All processes take part; the first one writes. `more` extends the values of
  the report.
  """
  start, best = time.time(), hook.best()
  trained: Any = workdir / click_results.BEST
  if best is None or not (trained / inference.OUTPUTS).exists():
    trained = taken(parts, state, workdir)
  if not distributed.is_first():
    return
  if isinstance(trained, inference.Inferred):
    outputs, vectors = trained.outputs, trained.vectors
  else:
    files = trained / inference.OUTPUTS, trained / inference.VECTORS
    outputs, vectors = (np.load(x, mmap_mode='r') for x in files)
  source, folder = parts.source, workdir / 'export'
  evaluation = evaluate(source, vectors, outputs)
  for name, scores in evaluation.items():
    metrics.LOG.info('%s: %s', name, describe(scores))
  exported = _export(source, vectors)
  dropped = results.write_export(folder, exported)
  inference.save(folder, trained, parts.trainable.model.spec, source=source)
  if not source.from_walks:
    _write_classes(folder / 'classes.tsv', source, outputs)
  metrics.LOG.info('vectors of nodes in %s', folder)
  totals.total_secs += time.time() - start
  values, records = results.reported(
    workdir,
    parts,
    totals,
    found={
      'evaluation': evaluation,
      'evaluations': hook.records,
      'best': best,
      'examples_counted': 'nodes to learn from, times epochs',
    }
    | more,
  )
  values['dropped'] |= dropped
  labels = source.labels
  keys = [source.keys[i] for i in labels.nodes]
  report.write(
    workdir,
    report=values,
    metrics=records,
    vectors=exported.embeddings(report.MAX_SEARCHED),
    found=(),
    labels=labels.keys_by_class(keys, labels.nodes),
  )
  rate = totals.done / max(totals.train_secs, 1e-9)
  metrics.LOG.info(
    f'{rate:,.0f} nodes/s in training, {totals.total_secs:.1f} s in all; '
    f'report in {workdir / "report.html"}'
  )


def _export(source, vectors):
  """Vectors of nodes, those of most neighbors first."""
  order = np.argsort(-source.counts, kind='stable')
  rows = export.OnDemand(
    lambda rows: vectors[order[rows]], vectors.shape, vectors.dtype
  )
  keys = [source.keys[i] for i in order]
  return results.Export(keys, source.counts[order], export.Encoded(rows))


def _write_classes(path, source, outputs):
  """Lines of node, class, probability, its label, and what it was used for."""
  labels, held, names = source.labels, {}, source.labels.class_names
  for name, nodes in zip(
    node_source.Splits._fields, source.splits, strict=True
  ):
    held |= dict.fromkeys(() if nodes is None else nodes.tolist(), name)
  with atomic.write(path) as file:
    text = io.TextIOWrapper(file, 'utf-8', newline='')
    writer = csv.writer(text, delimiter='\t', lineterminator='\n')
    writer.writerow(['node', 'class', 'probability', 'label', 'used'])
    for i in range(len(outputs)):
      if not i % _ROWS:
        some = outputs[i : i + _ROWS]
        likeliest = inference.likeliest(some, names, labels.has_many)
        truth = labels.matrix(np.arange(i, i + len(some)))
      row, known = likeliest[i % _ROWS], truth[i % _ROWS].indices
      known = ','.join(names[x] for x in known)
      writer.writerow([source.keys[i], *row, known, held.get(i, '')])
    text.detach()
