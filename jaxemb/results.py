"""The results of a finished run: exports, evaluation, report."""

import contextlib
import datetime
import functools
import json
import pathlib
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import ml_collections
import numpy as np

from jaxemb import build, loop, metrics
from jaxemb.data import base as data_base
from jaxemb.evaluation import benchmarks, words
from jaxemb.report import report
from jaxemb.runtime import distributed, hlo, mesh, resources
from jaxemb.senses import evaluate
from jaxemb.senses import rows as sense_rows
from jaxemb.senses import table as senses_lib
from jaxemb.storage import export as export_lib
from jaxemb.storage import orbax_export, vectors_npy
from jaxemb.strategies import base as strategy_base
from jaxemb.tables import blocks
from jaxemb.text import vocab


class Export(NamedTuple):
  """A trained model on the host."""

  keys: Sequence[str]  # words, the most frequent first
  counts: np.ndarray  # [len(keys)] int
  rows: blocks.Encoded  # [len(keys), dim], or one for each sense
  senses: senses_lib.Senses | None = None  # of models with several per word
  # Of export/orbax: 'context_vectors' and 'optimizer', or nothing.
  others: Mapping[str, Any] = types.MappingProxyType({})

  def names(self) -> tuple[Sequence[str], np.ndarray]:
    """A name and a count for each row."""
    if self.senses is None:
      return self.keys, self.counts
    return self.senses.names(), self.senses.by_row(self.counts)


def collect(
  config: ml_collections.ConfigDict,
  parts: build.Parts,
  export_rows: Any,
) -> Export:
  """Brings the rows of all tables that users want to the host.

  Args:
    config: the settings.
    parts: of the run.
    export_rows: name of a table -> `blocks.RowBlock`; all processes call it.
  """
  source, model = parts.source, parts.trainable.model
  vectors = export_rows(model.vectors_table)
  others, optimizer = {}, {}
  if vectors.slots:
    optimizer['vectors'] = vectors.slots
  senses = sense_rows.of_model(
    config,
    model,
    lambda name: export_rows(name).rows,
    vocab.Vocabulary(source.keys, source.counts),
  )
  if senses is None and model.contexts_table:
    contexts = export_rows(model.contexts_table)
    others['context_vectors'] = contexts.rows
    if contexts.slots:
      optimizer['context_vectors'] = contexts.slots
  if optimizer:
    others['optimizer'] = optimizer
  rows, senses = sense_rows.exported(vectors.encoded, senses)
  return Export(source.keys, source.counts, rows, senses, others)


def only(export: Export, mask: np.ndarray) -> Export:
  """The same of some keys [len(keys)] bool, without senses."""

  def cut(x):
    return x[mask] if len(x) == len(mask) else x

  keys = [export.keys[i] for i in np.flatnonzero(mask)]
  others = jax.tree.map(cut, dict(export.others))
  return Export(
    keys, export.counts[mask], export.rows.select(mask), None, others
  )


def describe_data(source: data_base.Source) -> None:
  """Logs what was read and what of it was dropped."""
  for line in source.describe():
    metrics.LOG.info('%s', line)
  counted = [
    f'{k} {v:,}' for k, v in source.dropped.items() if v and k != 'problems'
  ]
  metrics.LOG.info('dropped: %s', ', '.join(counted) or 'nothing')
  for line in source.dropped.get('problems', ()):
    metrics.LOG.warning('%s', line)


def write_run(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  parts: build.Parts,
  trained: loop.Trained,
) -> None:
  """Writes the results of a run; all processes call it, one writes."""
  table_bytes = mesh.num_bytes(trained.state)
  export_rows = functools.partial(parts.strategy.export_rows, trained.state)
  export = collect(config, parts, export_rows)
  if distributed.is_first():
    write(config, workdir, parts, export, trained.totals, table_bytes)


def write_rows(folder: pathlib.Path, export: Export) -> None:
  """Writes what programs read, and no text formats.

  Args:
    folder: of the export.
    export: to write.
  """
  with contextlib.ExitStack() as stack:
    vectors_npy.write(stack, folder, vectors_npy.Rows(*export.rows))
  vocab.write_counts(folder / 'vocab.txt', vocab.Vocabulary(*export.names()))
  _write_arrays(folder, export)


def _write_arrays(folder: pathlib.Path, export: Export) -> None:
  senses_lib.write(folder, export.senses)
  vectors = export.rows.decode()
  orbax_export.write(folder / 'orbax', {'vectors': vectors, **export.others})


def write(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  parts: build.Parts,
  export: Export,
  totals: metrics.Totals,
  table_bytes: int,
  more: Mapping[str, Any] = types.MappingProxyType({}),
) -> None:
  """Exports the vectors, evaluates them and writes the report.

  Args:
    config: the settings.
    workdir: folder of the run.
    parts: data and evaluation sets.
    export: the trained model.
    totals: sums over the run.
    table_bytes: of the tables with their optimizer state.
    more: for the report, added to its figures or instead of some.
  """
  start = time.time()
  names, counts = export.names()
  vectors = export.rows.decode()
  exported = export_lib.write(
    workdir / 'export', names, vectors, counts, vectors_npy.Rows(*export.rows)
  )
  _write_arrays(workdir / 'export', export)
  if export.senses is not None:
    vectors = export.senses.mean_vectors()  # of words
  metrics.LOG.info('vectors in %s', workdir / 'export')
  evaluation = _evaluate(config, parts.eval_paths, export, vectors)
  if evaluation:
    for line in words.format_table(evaluation).splitlines():
      metrics.LOG.info('%s', line)
  totals.total_secs += time.time() - start
  figures = page(config, parts, totals, table_bytes)
  figures |= {'evaluation': evaluation} | dict(more)
  figures['dropped'] = figures['dropped'] | {
    'words_renamed_in_exports': exported['renamed_words'],
    'words_left_out_of_projector': exported['words']
    - exported['projector_words'],
  }
  records = metrics.read(workdir / 'metrics.jsonl')
  figures['hosts'] = resources.summary(records)
  report.write(
    workdir,
    figures,
    records,
    export.keys,
    vectors,
    export.counts,
    _categories(parts.eval_paths),
    export.senses,
  )
  metrics.LOG.info(
    '%.2f M %s/s in training, %.1f s in all; report in %s',
    totals.done / max(totals.train_secs, 1e-9) / 1e6,
    totals.unit,
    figures['total_secs'],
    workdir / 'report.html',
  )


def page(
  config: ml_collections.ConfigDict,
  parts: build.Parts,
  totals: metrics.Totals,
  table_bytes: int,
) -> dict[str, Any]:
  """The figures of the report, without the evaluation.

  Args:
    config: the settings.
    parts: data and devices.
    totals: sums over the run.
    table_bytes: of the tables with their optimizer state.
  """
  source, unit = parts.source, totals.unit
  train_secs = max(totals.train_secs, 1e-9)
  full_secs = train_secs + totals.compile_secs
  return {
    'model': config.model.name,
    'dim': config.model.dim,
    'vocab_words': len(source.keys),
    f'{unit}_per_sec': totals.done / train_secs,
    f'{unit}_per_sec_with_compilation': totals.done / full_secs,
    f'corpus_{unit}': source.units_per_epoch,
    'words_counted': 'corpus words inside the vocabulary, before frequent-word '
    'subsampling, times epochs',
    **totals.counters,
    **totals.sums,
    'loss_per_example': totals.loss_per_example(),
    'encode_secs': totals.encode_secs,
    'train_secs': totals.train_secs,
    'compile_secs': totals.compile_secs,
    'total_secs': totals.total_secs,
    'peak_rss_bytes': resources.peak_rss_bytes(),
    'table_bytes': table_bytes,
    'vector_bytes': vector_bytes(parts.strategy),
    'table_dtype': config.table.dtype,
    'devices': [mesh.name(d) for d in parts.mesh.devices.flatten()],
    'collectives': hlo.with_bytes_per_word(
      totals.collectives,
      totals.steps * parts.mesh.size / max(totals.done, 1),
    ),
    'dropped': dict(source.dropped),
    'machine': resources.machine(),
    'versions': resources.versions(),
    'started': datetime.datetime.fromtimestamp(totals.started).isoformat(
      timespec='seconds'
    ),
    'config': config.to_dict(),
    'finished': True,
  }


def vector_bytes(strategy: strategy_base.Strategy) -> int:
  """Bytes of the rows of all tables of all models, as they are stored."""
  state = jax.eval_shape(strategy.init, jax.random.key(0))
  return sum(table.vector_bytes for table in state.tables.values())


def _evaluate(
  config: ml_collections.ConfigDict,
  paths: Sequence[str],
  export: Export,
  vectors: np.ndarray,
) -> dict[str, dict]:
  if not paths:
    return {}
  scores = words.evaluate(
    export.keys, vectors, paths, config.eval.restrict_vocab
  )
  if export.senses is not None:
    in_context = benchmarks.with_contexts(paths)
    scores |= evaluate.evaluate(export.senses, in_context)
  return scores


def _categories(paths: Sequence[str]) -> dict[str, list[str]]:
  """Words by category, of the categorization sets among the benchmarks."""
  categories: dict[str, list[str]] = {}
  for benchmark in benchmarks.find(paths)[0] if paths else ():
    if isinstance(benchmark, benchmarks.Categories):
      for word, category in benchmark.categories.items():
        categories.setdefault(category, []).append(word)
  return categories


class _Evaluation:
  """Evaluates the vectors while they are trained; a `loop.Hook`."""

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    workdir: pathlib.Path | None,
    parts: build.Parts,
  ):
    self._config, self._workdir, self._parts = config, workdir, parts
    every = config.eval.every_epochs
    self._every = round(every * parts.source.units_per_epoch)

  def due(self, item: data_base.Item) -> bool:
    return item.done_before // self._every < item.done_after // self._every

  def run(self, state: Any, totals: metrics.Totals) -> None:
    export_rows = functools.partial(self._parts.strategy.export_rows, state)
    export = collect(self._config, self._parts, export_rows)
    if not distributed.is_first():
      return
    vectors = export.rows.decode()
    if export.senses is not None:
      vectors = export.senses.mean_vectors()
    scores = _evaluate(self._config, self._parts.eval_paths, export, vectors)
    epoch = totals.done / self._parts.source.units_per_epoch
    shown = (f'{k} {x["score"]:.3f}' for k, x in scores.items() if x['found'])
    metrics.LOG.info('epoch %.2f: %s', epoch, ', '.join(shown) or 'no scores')
    if self._workdir is not None:
      record = {'step': totals.steps, 'epoch': epoch, 'evaluation': scores}
      path = self._workdir / 'evaluation.jsonl'
      with open(path, 'a', encoding='utf-8') as file:
        file.write(json.dumps(record) + '\n')


def hooks(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path | None,
  parts: build.Parts,
) -> list[loop.Hook]:
  """What a run does between dispatches besides saving."""
  if not (config.eval.every_epochs and parts.eval_paths):
    return []
  return [_Evaluation(config, workdir, parts)]
