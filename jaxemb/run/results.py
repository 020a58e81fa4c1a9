"""The results of a finished run: exports, evaluation, report."""

import dataclasses
import datetime
import functools
import json
import pathlib
import time
import types
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxemb import embeddings
from jaxemb.data import base as data_base
from jaxemb.evaluation import multivectors, ranking, words
from jaxemb.report import pages, report
from jaxemb.run import build, loop, metrics
from jaxemb.runtime import distributed, mesh, resources
from jaxemb.storage import export as export_lib
from jaxemb.storage import orbax_export
from jaxemb.tables import spec as spec_lib

_WORDS_COUNTED = (
  'corpus words inside the vocabulary, before frequent-word subsampling, times '
  'epochs'
)
_NOTHING = types.MappingProxyType({})


class Export(NamedTuple):
  """A trained model on the host; rows in a store stay there until asked for."""

  keys: Sequence[str]  # words, the most frequent first
  counts: np.ndarray  # [len(keys)] int
  rows: export_lib.Encoded  # [len(keys), dim], or a row for each sense
  senses: multivectors.MultiVectors | None = None
  # Further arrays of export/orbax: 'context_vectors', 'optimizer'.
  others: Mapping[str, Any] = _NOTHING
  # What rows of context vectors are of, if not of keys.
  context_keys: Sequence[str] = ()
  relations: export_lib.Relations | None = None

  def names(self) -> tuple[Sequence[str], np.ndarray]:
    """A name and a count for each row."""
    if self.senses is None:
      return self.keys, self.counts
    return self.senses.names(), self.senses.by_row(self.counts)

  def embeddings(self, num: int | None = None) -> embeddings.Embeddings:
    """The vectors, to be searched and evaluated; the first `num` words alone.

    Of words with several senses all.
    """
    names, counts = self.names()
    some = slice(num if self.senses is None else None)
    rows = np.asarray(self.rows.decode()[some])
    return embeddings.Embeddings(
      index_to_key=list(names[some]),
      vectors=rows,
      counts=counts[some],
      sense_table=self.senses,
      relations=self.relations,
    )

  def select(self, mask: np.ndarray) -> 'Export':
    """The words of a [len(keys)] bool mask, of a model without senses."""

    def selected(x):  # outputs of a Huffman tree are not of words
      return x[mask] if len(x) == len(mask) else x

    keys = [self.keys[i] for i in np.flatnonzero(mask)]
    arrays = self.counts, self.rows, None, dict(self.others)
    arrays = jax.tree.map(selected, arrays)
    return Export(keys, *arrays, self.context_keys, self.relations)


def collect(parts: build.Parts, state: Any) -> Export:
  """Copies trained tables to the host; all processes take part.

  Tables in a store are not copied: until the state changes, their rows are read
  from it.
  """
  source, model, strategy = parts.source, parts.trainable.model, parts.strategy
  export_rows = functools.partial(strategy.export_rows, state)
  if strategy.store:
    export_rows = functools.partial(strategy.store.rows_on_demand, state)
  tables = {'vectors': export_rows(model.vectors_table)}
  encoded, senses = tables['vectors'].encoded, None
  if hasattr(model, 'export_senses'):
    senses = model.export_senses(
      lambda name: np.asarray(export_rows(name).rows),
      source.keys,
      source.counts,
    )
    window = parts.config.senses.query_window or senses.window
    senses = dataclasses.replace(senses, window=window)
    if senses.means is not None:  # its vectors are not those of the table
      encoded = spec_lib.encode_rows(senses.vectors, encoded.dtype)
      senses = dataclasses.replace(senses, vectors=encoded.decode())
  elif model.contexts_table:
    tables['context_vectors'] = export_rows(model.contexts_table)
  others = {k: x.rows for k, x in tables.items() if k != 'vectors'}
  if optimizer := {k: x.opt_state for k, x in tables.items() if x.opt_state}:
    others['optimizer'] = optimizer
  contexts = getattr(source, 'context_keys', ())
  if getattr(model, 'has_contexts_of_keys', False):
    contexts = ()
  relations = None
  if hasattr(model, 'operate') and model.contexts_table:
    rows = np.asarray(others['context_vectors'], np.float32)
    relations = export_lib.Relations(
      operator=model.operator,
      names=contexts,
      rows=rows,
      is_cosine=model.is_cosine,
    )
  return Export(
    keys=source.keys,
    counts=source.counts,
    rows=encoded,
    senses=senses,
    others=others,
    context_keys=contexts,
    relations=relations,
  )


def log_data(parts: build.Parts) -> None:
  """Logs what was read and what was dropped."""
  dropped = dict(parts.dropped)
  problems = dropped.pop('problems', ())
  counted = ', '.join(f'{k} {v:,}' for k, v in dropped.items() if v)
  for line in (*parts.source.describe(), f'dropped: {counted or "nothing"}'):
    metrics.LOG.info('%s', line)
  for line in problems:
    metrics.LOG.warning('%s', line)


def write_export(
  folder: pathlib.Path, export: Export, is_minimal: bool = False
) -> dict[str, int]:
  """Writes the files of `storage.export`; returns what is dropped."""
  names, counts = export.names()
  arrays = {'vectors': export.rows.decode(), **export.others}
  with futures.ThreadPoolExecutor() as pool:
    written = pool.submit(orbax_export.write, folder / 'orbax', arrays)
    dropped = export_lib.write(
      folder,
      words=names,
      rows=export.rows,
      counts=counts,
      is_minimal=is_minimal,
      context_words=export.context_keys,
    )
    multivectors.write(folder, export.senses)
    export_lib.write_relations(folder, export.relations)
    written.result()
  return dropped


def write(
  workdir: pathlib.Path,
  parts: build.Parts,
  export: Export | None,
  totals: metrics.Totals,
  more: Mapping[str, Any] = _NOTHING,
) -> None:
  """Exports the vectors, evaluates them and writes the report.

  Without an export only report.json is written. `more` replaces or extends the
  values of the report.
  """
  start = time.time()
  if export is None:
    values = summary(parts, totals) | {'words_counted': _WORDS_COUNTED}
    values |= {'evaluation': {}}
    return pages.write_json(workdir, values | dict(more))
  dropped = write_export(workdir / 'export', export)
  metrics.LOG.info('vectors in %s', workdir / 'export')
  vectors = export.embeddings(report.MAX_SEARCHED)
  evaluation = _evaluate(parts, export)
  if parts.benchmarks:
    for line in words.format_table(evaluation).splitlines():
      metrics.LOG.info('%s', line)
  elif evaluation:
    for name, found in evaluation.items():
      metrics.LOG.info('%s: %s', name, _line(found))
  totals.total_secs += time.time() - start
  found = {'words_counted': _WORDS_COUNTED} if totals.unit == 'words' else {}
  found |= {'evaluation': evaluation} | dict(more)
  found |= {'staleness': _staleness(parts, totals)}
  values, records = reported(workdir, parts, totals, found=found)
  values['dropped'] |= dropped
  report.write(
    workdir,
    report=values,
    metrics=records,
    vectors=vectors,
    found=parts.benchmarks,
    labels=getattr(parts.source, 'categories', None) or {},
  )
  rate = totals.done / max(totals.train_secs, 1e-9)
  metrics.LOG.info(
    f'{rate / 1e6:.2f} M {totals.unit}/s in training, {totals.total_secs:.1f} '
    f's in all; report in {workdir / "report.html"}'
  )


def _line(found: Mapping[str, Any]) -> str:
  """Scores of what a source evaluates itself, in a few words."""
  if 'ndcg' in found:
    return ranking.describe(found)
  scores = (f'{k} {x:.4f}' for k, x in found.items() if isinstance(x, float))
  return f'{", ".join(scores)}; {found["found"]:,} of {found["total"]:,}'


def _evaluate(
  parts: build.Parts, export: Export
) -> Mapping[str, Mapping[str, Any]]:
  """Scores on benchmarks, or on what the source holds out."""
  if evaluate := getattr(parts.source, 'evaluate', None):
    is_cosine = getattr(parts.trainable.model, 'is_cosine', False)
    contexts = export.others.get('context_vectors')
    rows, keys = export.rows.decode(), parts.source.keys
    if len(export.keys) < len(keys):  # sub-models may have none of some
      places = {x: i for i, x in enumerate(keys)}
      found, rows = rows, np.zeros((len(keys), rows.shape[1]), rows.dtype)
      rows[[places[x] for x in export.keys]] = found
    model = parts.trainable.model
    operate = {'operate': model.operate} if hasattr(model, 'operate') else {}
    return evaluate(rows, contexts, is_cosine, **operate)
  if not parts.benchmarks:
    return {}
  limit = parts.config.eval.restrict_vocab
  return export.embeddings(limit or None).evaluate(parts.benchmarks, limit)


def reported(
  workdir: pathlib.Path,
  parts: build.Parts,
  totals: metrics.Totals,
  found: Mapping[str, Any],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
  """Values of the report of a run that has ended, and its metrics.

  `found` are those beside what every run has.
  """
  records = metrics.read(workdir / 'metrics.jsonl')
  values = summary(parts, totals) | dict(found)
  values |= {'hosts': resources.summary(records)}
  if parts.strategy.store:
    values |= {'store': _store(parts, totals)}
  return values, records


def _store(parts: build.Parts, totals: metrics.Totals) -> dict[str, Any]:
  """Returns counts of rows between stores and the device."""
  stored, config = parts.strategy.store, parts.config
  counts = {k: totals.counters.get(k, 0) for k in stored.counted}
  steps, needed = max(totals.steps, 1), max(counts['rows_needed'], 1)
  secs = max(counts['fetch_secs'], 1e-9)
  found = counts | {
    'kind': config.table.store,
    'store_bytes': stored.store_bytes,
    'hit_rate': 1 - counts['rows_fetched'] / needed,
    'hidden': max(0.0, 1 - counts['fetch_waited_secs'] / secs),
  }
  if config.strategy.name == 'workers':
    for key in ('fetched', 'pushed'):
      found[f'rows_{key}_per_row'] = counts[f'rows_{key}'] / needed
    return found
  return found | {'rows_fetched_per_step': counts['rows_fetched'] / steps}


def _staleness(
  parts: build.Parts, totals: metrics.Totals
) -> dict[str, float] | None:
  """Words of each other replica that a row may lack when one reads it.

  They are those behind frequent-word subsampling: the most by the policy, the
  most in so many steps, and the mean over lookups of that. None where nothing
  is exchanged, or threads share a table and nothing is bounded. For workers,
  who count updates of a row, see `workers`.
  """
  name = parts.config.strategy.name
  if name in ('partition', 'workers') or parts.tuning.threads > 1:
    return None
  if (policy := parts.strategy.policy) is None:
    return dict.fromkeys(('bound_words', 'max_words', 'mean_words'), 0)
  bounds, specs = policy.staleness_steps(), parts.trainable.model.specs()
  bound = max(x.max() for x in bounds.values())
  seen = (
    np.average(np.minimum(x, totals.steps), weights=specs[k].lookups_per_center)
    for k, x in bounds.items()
  )
  words = build.step_centers(parts.tuning, parts.mesh)
  return {
    'bound_words': words * int(bound),
    'max_words': words * int(min(bound, totals.steps)),
    'mean_words': words * float(np.mean(list(seen))),
  }


def summary(parts: build.Parts, totals: metrics.Totals) -> dict[str, Any]:
  """What every report has."""
  source, config, unit = parts.source, parts.config, totals.unit
  train_secs = max(totals.train_secs, 1e-9)
  state = parts.strategy.init.eval_shape(jax.random.key(0))
  sent = totals.collectives.get('bytes_per_step_per_device', {})
  device_steps = totals.steps * parts.mesh.size / max(totals.done, 1)
  started = datetime.datetime.fromtimestamp(totals.started)
  return {
    'model': config.model.name,
    'dim': config.model.dim,
    'vocab_words' if unit == 'words' else 'vocab': len(source.keys),
    f'{unit}_per_sec': totals.done / train_secs,
    f'{unit}_per_sec_with_compilation': totals.done
    / (train_secs + totals.compile_secs),
    f'corpus_{unit}': source.units_per_epoch,
    **totals.counters,
    'loss_per_example': totals.loss_per_example(),
    'encode_secs': totals.encode_secs,
    'train_secs': totals.train_secs,
    'compile_secs': totals.compile_secs,
    'total_secs': totals.total_secs,
    'peak_rss_bytes': resources.peak_rss_bytes(),
    'table_bytes': mesh.num_bytes(state),  # with optimizer state
    'vector_bytes': sum(x.vector_bytes for x in state.tables.values()),
    'table_dtype': config.table.dtype,
    'devices': [
      f'{x.platform}:{x.id} {x.device_kind}' for x in parts.mesh.devices.flat
    ],
    'collectives': totals.collectives
    | {'bytes_per_word': {k: device_steps * x for k, x in sent.items()}},
    'dropped': dict(parts.dropped),
    'machine': resources.machine(),
    'versions': resources.versions(),
    'started': started.isoformat(timespec='seconds'),
    'config': config.to_dict(),
    'tuning': dataclasses.asdict(parts.tuning),
    'finished': True,
  }


def is_due(item: data_base.Item, parts: build.Parts) -> bool:
  """Whether an item reaches a multiple of `config.eval.every_epochs`."""
  every_epochs = parts.config.eval.every_epochs
  if not every_epochs:
    return False
  every = max(1, round(every_epochs * parts.source.units_per_epoch))
  return item.done_before // every < item.done_after // every


@dataclasses.dataclass(frozen=True)
class Evaluation(loop.Hook):
  """Evaluates the vectors while they are trained; a `loop.Hook`."""

  workdir: pathlib.Path
  parts: build.Parts

  def due(self, item: data_base.Item) -> bool:
    """Whether a multiple of `config.eval.every_epochs` was reached."""
    has_own = getattr(self.parts.source, 'evaluate', None) is not None
    return (has_own or bool(self.parts.benchmarks)) and is_due(item, self.parts)

  def run(self, state: Any, totals: metrics.Totals) -> None:
    """Logs the scores and appends them to evaluation.jsonl."""
    export = collect(self.parts, state)
    if not distributed.is_first():
      return
    scores = _evaluate(self.parts, export)
    epoch = totals.done / self.parts.source.units_per_epoch
    known = (f'{k} {x["score"]:.3f}' for k, x in scores.items() if x['found'])
    metrics.LOG.info('epoch %.2f: %s', epoch, ', '.join(known) or 'no scores')
    record = {'step': totals.steps, 'epoch': epoch, 'evaluation': scores}
    with open(self.workdir / 'evaluation.jsonl', 'a') as file:
      file.write(json.dumps(record) + '\n')
