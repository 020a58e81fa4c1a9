"""What a run of sub-models leaves once all are there: one model and a report.

The sub-models are merged from their folders, as `python -m jaxemb.merge` does
with those of several machines: it does not matter who has trained them.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections
import numpy as np

from jaxemb import build, errors, metrics, results
from jaxemb.report import report
from jaxemb.senses import table as senses_lib
from jaxemb.tables import blocks
from jaxemb.text import vocab

_WORDS_COUNTED = (
  'corpus words inside the vocabulary that sub-models have read, before '
  'frequent-word subsampling, in all epochs'
)


class Merged(NamedTuple):
  """The model that was made of the sub-models."""

  vocabulary: vocab.Vocabulary
  vectors: np.ndarray  # [vocab, dim] float32, or of senses
  report: dict[str, Any]
  senses: senses_lib.Senses | None = None


def totals(found: Sequence[Mapping[str, Any]]) -> metrics.Totals:
  """Sums over sub-models.

  Args:
    found: what `part.json` says of each.
  """
  whole = metrics.add_up([metrics.Totals(**x['totals']) for x in found])
  # Those that were trained side by side took the same time.
  whole.train_secs = sum(x['train_secs'] / x['beside'] for x in found)
  return whole


def check(config: ml_collections.ConfigDict) -> None:
  """Raises a `UserError` for sub-models that could not be merged once trained.

  Args:
    config: the settings.
  """
  from jaxemb.merging import merge as merge_lib

  s = config.strategy
  num_columns = s.num_parts * config.model.dim
  is_aligned = s.num_parts > 1 and s.merge in ('alir', 'pca')
  if is_aligned and num_columns > merge_lib.MAX_COLUMNS:
    raise errors.UserError(
      f'{s.num_parts} sub-models of {config.model.dim} dimensions have more '
      f'than {merge_lib.MAX_COLUMNS:,} in all and cannot be merged at once; '
      'give --config.strategy.merge=none and merge groups of them with '
      'python -m jaxemb.merge'
    )


def _open(folder: pathlib.Path) -> Any:
  """A sub-model; an error says how it comes to be whole again."""
  from jaxemb.merging import parts

  try:
    part = parts.open_part(folder)
    parts.check_rows(part)
  except errors.UserError as error:
    raise errors.UserError(
      f'{error}; or remove {folder} and start again, to train that sub-model '
      'anew'
    ) from error
  return part


def _merge(
  config: ml_collections.ConfigDict,
  parts: build.Parts,
  folders: Sequence[pathlib.Path],
) -> Merged:
  """One model of the words that any sub-model has, the most frequent first."""
  from jaxemb.merging import merge as merge_lib
  from jaxemb.merging import senses as merging_senses

  opened = [_open(folder) for folder in folders]
  if len(opened) == 1:
    only = opened[0]
    figures = {'merge_secs': 0.0, 'warnings': []}
    if only.senses is not None:
      return _of_senses(parts, config.table.dtype, only.senses, figures)
    return _in_order(parts, only.words, only.vectors.open(), figures)
  spec = merge_lib.Spec(method=config.strategy.merge)
  found = merging_senses.merge(opened, spec)
  for line in found.report['warnings']:
    metrics.LOG.warning('%s', line)
  if found.senses is not None:
    metrics.LOG.info('%s', merging_senses.line(found.report['senses']))
    return _of_senses(parts, config.table.dtype, found.senses, found.report)
  return _in_order(parts, found.words, found.vectors, found.report)


def _ids(parts: build.Parts, words: Sequence[str]) -> np.ndarray:
  """[words] int, their places in the vocabulary."""
  everything = parts.corpus.vocabulary
  ids = {word: i for i, word in enumerate(everything.words)}
  foreign = next((word for word in words if word not in ids), None)
  if foreign is not None:
    raise errors.UserError(
      f'a sub-model has a word that the text has not, {foreign!r}: it is of '
      'another text; merge with python -m jaxemb.merge'
    )
  return np.array([ids[word] for word in words])


def _of_senses(
  parts: build.Parts,
  dtype: str,
  found: senses_lib.Senses,
  figures: dict[str, Any],
) -> Merged:
  """Words as they are: sub-models keep them all, in the order of the corpus."""
  ids = _ids(parts, found.words)
  counts = parts.corpus.vocabulary.counts[ids]
  vectors = np.asarray(found.vectors)
  # As `vectors.npy` has them.
  kept = blocks.encode(vectors, dtype).decode()
  return Merged(
    vocab.Vocabulary(found.words, counts),
    vectors,
    figures,
    dataclasses.replace(found, counts=counts, vectors=kept),
  )


def _in_order(
  parts: build.Parts,
  words: Sequence[str],
  vectors: np.ndarray,
  figures: dict[str, Any],
) -> Merged:
  """Words in the order of the corpus, and with its counts."""
  everything, rows = parts.corpus.vocabulary, _ids(parts, words)
  order = np.argsort(rows)
  vocabulary = vocab.Vocabulary(
    [words[i] for i in order], everything.counts[rows[order]]
  )
  return Merged(vocabulary, np.asarray(vectors)[order], figures)


def write(
  config: ml_collections.ConfigDict,
  workdir: pathlib.Path,
  parts: build.Parts,
  folders: Sequence[pathlib.Path],
  found: Sequence[Mapping[str, Any]],
  totals: metrics.Totals,
) -> None:
  """Merges the sub-models, evaluates what came of it, and writes the report.

  Args:
    config: the settings.
    workdir: folder of the run.
    parts: corpus, evaluation sets and devices.
    folders: of the sub-models.
    found: what `part.json` says of each.
    totals: sums over them.
  """
  each = [{k: v for k, v in x.items() if k != 'totals'} for x in found]
  more: dict[str, Any] = {
    'parts': each,
    'words_counted': _WORDS_COUNTED,
    'merge': None,
    'vector_bytes': None,
  }
  table_bytes = sum(x['table_bytes'] for x in found)
  if all('vector_bytes' in x for x in found):  # none is of an older version
    more['vector_bytes'] = sum(x['vector_bytes'] for x in found)
  if config.strategy.merge == 'none':
    figures = results.page(config, parts, totals, table_bytes)
    report.write_json(workdir, figures | {'evaluation': {}} | more)
    metrics.LOG.info('not merged: %d sub-models in %s', len(found), workdir)
    return
  merged = _merge(config, parts, folders)
  num_missing = len(parts.corpus.vocabulary.words) - len(
    merged.vocabulary.words
  )
  metrics.LOG.info(
    'merged %d sub-models (%s) in %.1f s: %s words, %s of the vocabulary are '
    'missing',
    len(found),
    config.strategy.merge,
    merged.report['merge_secs'],
    f'{len(merged.vocabulary.words):,}',
    f'{num_missing:,}',
  )
  more['merge'] = merged.report | {'missing_words': num_missing}
  more['dim'] = merged.vectors.shape[1]
  corpus = parts.corpus._replace(vocabulary=merged.vocabulary)
  results.write(
    config,
    workdir,
    parts._replace(corpus=corpus),
    blocks.encode(merged.vectors, config.table.dtype),
    totals,
    table_bytes,
    more,
    merged.senses,
  )
