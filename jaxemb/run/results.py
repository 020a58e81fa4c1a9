"""The results of a run, of any kind: export, evaluation and report."""

import dataclasses
import datetime
import pathlib
import time
import types
from collections.abc import Mapping
from concurrent import futures
from typing import Any

import numpy as np

from jaxemb.ops import sampling
from jaxemb.report import pages
from jaxemb.run import build, evaluation, metrics
from jaxemb.runtime import distributed, mesh, resources
from jaxemb.storage import atomic

_NOTHING: Mapping[str, Any] = types.MappingProxyType({})


def finish(
  workdir: pathlib.Path,
  parts: build.Parts,
  state: Any,
  totals: metrics.Totals,
  hook: evaluation.Evaluation,
  more: Mapping[str, Any] = _NOTHING,
) -> None:
  """Writes the results of the best models, or of the last one.

  All processes take part; the first one writes. `more` replaces or extends the
  values of the report.
  """
  start, kind = time.time(), parts.kind
  resources.release_freed()
  main = hook.metrics[0] if hook.metrics else ''
  best = {k: hook.best(k) for k in hook.metrics}
  for k in best:  # of a process that was killed while it kept one
    atomic.complete(hook.best_folder(k))
  saved = [k for k in best if best[k] and kind.is_saved(hook.best_folder(k))]
  model = None if main in saved else kind.collect(parts, state, workdir)
  resources.release_freed()
  if not distributed.is_first():
    return
  others = {k: kind.load(parts, hook.best_folder(k)) for k in saved}
  model = others.pop(main, model)
  if main:
    values = {'evaluations': hook.records, 'best': best[main], 'best_by': best}
    more = {**values, **more}
  write(
    workdir,
    parts,
    model,
    totals=totals,
    more=more,
    start=start,
    others=others,
  )


def write(
  workdir: pathlib.Path,
  parts: build.Parts,
  model: Any,
  totals: metrics.Totals,
  more: Mapping[str, Any] = _NOTHING,
  start: float | None = None,
  others: Mapping[str, Any] = _NOTHING,
) -> None:
  """Exports a model that was collected, evaluates it and writes the report.

  `more` replaces or extends the values of the report; the time since `start`
  counts as the run's. `others` are the best models by further metrics, with
  folders and scores of their own.
  """
  start, kind = start or time.time(), parts.kind
  with futures.ThreadPoolExecutor(1) as beside:
    exported = beside.submit(kind.export, workdir / 'export', parts, model)
    scores = kind.evaluate(parts, model)
    page = kind.page(parts, model)
    page = page._replace(unit=parts.source.unit, noun=kind.noun)
    dropped = exported.result()
  metrics.LOG.info('results in %s', workdir / 'export')
  for metric, other in others.items():
    folder = workdir / f'export_{metric}'
    kind.export(folder, parts, other)
    metrics.LOG.info('the best by %s in %s', metric, folder)
    other_scores = kind.evaluate(parts, other)
    scores |= {f'{k} by {metric}': x for k, x in other_scores.items()}
  for line in kind.describe(parts, scores):
    metrics.LOG.info('%s', line)
  values = kind.report_values(parts, model, scores)
  totals.total_secs += time.time() - start
  values |= {'evaluation': scores, 'staleness': _staleness(parts, totals)}
  values[f'{totals.unit}_in_flight'] = parts.setup.words_in_flight
  records = metrics.read(workdir / 'metrics.jsonl')
  values = {**summary(parts, totals), **values, **more}
  values['hosts'] = resources.summary(records)
  if parts.strategy.store:
    values['store'] = _store(parts, totals)
  values['dropped'] |= dropped
  pages.write(workdir, page, report=values, metrics=records)
  rate = totals.done / max(totals.train_secs, 1e-9)
  shown = f'{rate / 1e6:.2f} M' if rate > 1e5 else f'{rate:,.0f}'
  metrics.LOG.info(
    f'{shown} {totals.unit}/s in training, {totals.total_secs:.1f} s in all; '
    f'report in {workdir / "report.html"}'
  )


def _store(parts: build.Parts, totals: metrics.Totals) -> dict[str, Any]:
  """Returns counts of rows between stores and the device."""
  stored, config = parts.strategy.store, parts.config
  counts = {k: totals.counters.get(k, 0) for k in stored.counted}
  steps, needed = max(totals.steps, 1), max(counts['rows_needed'], 1)
  secs = max(counts['fetch_secs'], 1e-9)
  values = counts | {
    'kind': config.table.store,
    'store_bytes': stored.store_bytes,
    'hit_rate': 1 - counts['rows_fetched'] / needed,
    'hidden': max(0.0, 1 - counts['fetch_waited_secs'] / secs),
  }
  if config.strategy.name == 'workers':
    for key in ('fetched', 'pushed'):
      values[f'rows_{key}_per_row'] = counts[f'rows_{key}'] / needed
    return values
  return values | {'rows_fetched_per_step': counts['rows_fetched'] / steps}


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
  if not parts.trainable.model.specs():
    return None  # no rows
  if (policy := parts.strategy.policy) is None:
    return dict.fromkeys(('bound_words', 'max_words', 'mean_words'), 0)
  steps = policy.staleness_steps()
  bound = steps.max()
  by_row = np.minimum(np.repeat(steps, policy.chunk_rows), totals.steps)
  seen = [
    np.average(by_row[: x.vocab], weights=x.lookups_per_center)
    for x in parts.trainable.model.specs().values()
  ]
  tuning = parts.tuning
  words = tuning.part_words * tuning.parts // parts.mesh.size
  return {
    'bound_words': words * int(bound),
    'max_words': words * int(min(bound, totals.steps)),
    'mean_words': words * float(np.mean(seen)),
  }


def _memory(parts: build.Parts) -> dict[str, int]:
  """Returns what was expected of the memory of this process, in bytes."""
  if (memory := parts.memory) is None:
    return {}
  return {**memory._asdict(), 'predicted_peak_bytes': memory.peak_bytes}


def summary(parts: build.Parts, totals: metrics.Totals) -> dict[str, Any]:
  """What every report has."""
  source, config, unit = parts.source, parts.config, totals.unit
  train_secs = max(totals.train_secs, 1e-9)
  state = parts.strategy.init.eval_shape(sampling.key_shape())
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
    'evaluation_secs': totals.evaluation_secs,
    'total_secs': totals.total_secs,
    'peak_rss_bytes': resources.peak_rss_bytes(),
    'memory': _memory(parts),
    'table_bytes': mesh.num_bytes(state),  # with optimizer state
    'vector_bytes': sum(x.vector_bytes for x in state.tables.values()),
    'table_dtype': config.table.dtype,
    'devices': [
      f'{x.platform}:{x.id} {x.device_kind}' for x in parts.mesh.devices.flat
    ],
    'collectives': totals.collectives
    | {'bytes_per_word': {k: device_steps * x for k, x in sent.items()}},
    'inputs': [x.values() for x in getattr(source, 'inputs', ())],
    'dropped': dict(parts.dropped),
    'machine': resources.machine(),
    'versions': resources.versions(),
    'started': started.isoformat(timespec='seconds'),
    'config': config.to_dict(),
    'tuning': dataclasses.asdict(parts.tuning),
    'finished': True,
  }
