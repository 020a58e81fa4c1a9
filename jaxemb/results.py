"""What a finished run leaves: exports, evaluation, report."""

import contextlib
import datetime
import pathlib
import time
import types
from collections.abc import Mapping
from typing import Any

import jax
import ml_collections
import numpy as np

from jaxemb import build, metrics
from jaxemb.evaluation import benchmarks, words
from jaxemb.report import report
from jaxemb.runtime import hlo, mesh, resources
from jaxemb.senses import evaluate, sense_rows
from jaxemb.senses import table as senses
from jaxemb.storage import export, vectors_npy
from jaxemb.strategies import base as strategy_base
from jaxemb.tables import blocks
from jaxemb.text import encode, vocab


def describe_corpus(corpus: encode.Encoded) -> None:
  """Logs what was read and what of it was dropped."""
  manifest = corpus.manifest
  metrics.LOG.info(
    'corpus: %s words, vocabulary %s, %s bytes of text in %s',
    f'{corpus.num_words:,}',
    f'{len(corpus.vocabulary.words):,}',
    f'{manifest["text_bytes"]:,}',
    corpus.folder,
  )
  files = manifest['files']
  metrics.LOG.info(
    'this process read %s of %s bytes in %d file(s)',
    f'{sum(x["read_bytes"] for x in files):,}',
    f'{sum(x["size_bytes"] for x in files):,}',
    sum(x['read_bytes'] > 0 for x in files),
  )
  dropped = manifest['dropped']
  counted = [f'{k} {v:,}' for k, v in dropped.items() if v and k != 'problems']
  metrics.LOG.info('left out: %s', ', '.join(counted) or 'nothing')
  for line in dropped['problems']:
    metrics.LOG.warning('%s', line)


def _categories(paths: list[str]) -> dict[str, list[str]]:
  """Words by category, of the categorization sets among the benchmarks."""
  categories: dict[str, list[str]] = {}
  for benchmark in benchmarks.find(paths)[0] if paths else ():
    if isinstance(benchmark, benchmarks.Categories):
      for word, category in benchmark.categories.items():
        categories.setdefault(category, []).append(word)
  return categories


def page(
  config: ml_collections.ConfigDict,
  parts: build.Parts,
  totals: metrics.Totals,
  table_bytes: int,
) -> dict[str, Any]:
  """The report's figures, but for the evaluation.

  Args:
    config: the settings.
    parts: corpus and devices.
    totals: sums over the run.
    table_bytes: of the tables with their optimizer state.
  """
  train_secs = max(totals.train_secs, 1e-9)
  full_secs = train_secs + totals.compile_secs
  return {
    'model': config.model.name,
    'dim': config.model.dim,
    'vocab_words': len(parts.corpus.vocabulary.words),
    'words_per_sec': totals.words / train_secs,
    'words_per_sec_with_compilation': totals.words / full_secs,
    'corpus_words': parts.corpus.num_words,
    'words_counted': 'corpus words inside the vocabulary, before frequent-word '
    'subsampling, times epochs',
    'kept_words': totals.kept_words,
    'pairs': totals.pairs,
    'loss_per_example': totals.loss_per_example(),
    'encode_secs': totals.encode_secs,
    'train_secs': totals.train_secs,
    'compile_secs': totals.compile_secs,
    'total_secs': totals.total_secs,
    'peak_rss_bytes': resources.peak_rss_bytes(),
    'table_bytes': table_bytes,
    'vector_bytes': strategy_base.vector_bytes(
      jax.eval_shape(parts.strategy.init, jax.random.key(0))
    ),
    'table_dtype': config.table.dtype,
    'devices': [mesh.name(d) for d in parts.mesh.devices.flatten()],
    'collectives': hlo.with_bytes_per_word(
      totals.collectives,
      totals.steps * parts.mesh.size / max(totals.words, 1),
    ),
    'further_rounds': totals.further_rounds,
    'dropped': parts.corpus.manifest['dropped'],
    'machine': resources.machine(),
    'versions': resources.versions(),
    'started': datetime.datetime.fromtimestamp(totals.started).isoformat(
      timespec='seconds'
    ),
    'config': config.to_dict(),
    'finished': True,
  }


def _evaluate(
  config: ml_collections.ConfigDict,
  parts: build.Parts,
  vectors: np.ndarray,
  found: senses.Senses | None,
) -> dict[str, dict]:
  if not parts.eval_paths:
    return {}
  evaluation = words.evaluate(
    parts.corpus.vocabulary.words,
    vectors,
    parts.eval_paths,
    config.eval.restrict_vocab,
  )
  if found is not None:
    paths = benchmarks.with_contexts(parts.eval_paths)
    evaluation |= evaluate.evaluate(found, paths)
  for line in words.format_table(evaluation).splitlines():
    metrics.LOG.info('%s', line)
  return evaluation


def write_rows(
  folder: pathlib.Path,
  rows: blocks.Encoded,
  names: vocab.Vocabulary,
  found: senses.Senses | None,
) -> None:
  """Writes vectors for programs alone, and what goes with senses.

  Args:
    folder: of the export.
    rows: [rows, dim].
    names: [rows], with counts.
    found: the senses, of a model that has them.
  """
  rows, found = sense_rows.exported(rows, found)
  with contextlib.ExitStack() as stack:
    vectors_npy.write(stack, folder, vectors_npy.Rows(*rows))
  vocab.write_counts(folder / 'vocab.txt', names)
  senses.write(folder, found)


def write(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  parts: build.Parts,
  rows: blocks.Encoded,
  totals: metrics.Totals,
  table_bytes: int,
  more: Mapping[str, Any] = types.MappingProxyType({}),
  found: senses.Senses | None = None,
) -> None:
  """Exports the vectors, evaluates them and writes the report.

  Args:
    config: the settings.
    workdir: folder of the run.
    parts: corpus and evaluation sets.
    rows: [vocab, dim], or of senses.
    totals: sums over the run.
    table_bytes: of the tables with their optimizer state.
    more: for the report, or instead of what it has.
    found: the senses, of a model that has them.
  """
  start = time.time()
  vocabulary = parts.corpus.vocabulary
  names, counts = vocabulary.words, vocabulary.counts
  if found is not None:
    names, counts = found.names(), found.by_row(counts)
  rows, found = sense_rows.exported(rows, found)
  vectors = rows.decode()
  exported = export.write(
    workdir / 'export', names, vectors, counts, vectors_npy.Rows(*rows)
  )
  senses.write(workdir / 'export', found)
  if found is not None:
    vectors = found.mean_vectors()  # of words
  metrics.LOG.info('vectors in %s', workdir / 'export')
  evaluation = _evaluate(config, parts, vectors, found)
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
    vocabulary.words,
    vectors,
    vocabulary.counts,
    _categories(parts.eval_paths),
    found,
  )
  metrics.LOG.info(
    '%.2f M words/s in training, %.1f s in all; report in %s',
    figures['words_per_sec'] / 1e6,
    figures['total_secs'],
    workdir / 'report.html',
  )
