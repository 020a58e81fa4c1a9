"""Vectors of keys, such as words: what most kinds of data train."""

import logging
import os
from collections.abc import Sequence

import ml_collections

from jaxemb.data import base as data_base
from jaxemb.evaluation import benchmarks as benchmarks_lib

_LOG = logging.getLogger('jaxemb')
_MIN_KNOWN = 0.5  # of the items of a set


def benchmarks(
  config: ml_collections.ConfigDict, source: data_base.Source | None = None
) -> list[benchmarks_lib.Benchmark]:
  """The sets in `config.eval.paths`; without any, those of the source.

  Raises a `UserError` for files that are no benchmarks.
  """
  paths = [x.strip() for x in config.eval.paths.split(',') if x.strip()]
  if paths == ['none']:
    return []
  if paths:
    return benchmarks_lib.find(map(os.path.expanduser, paths))
  if source is None or not (embedded := source.eval_paths()):
    return []
  sets = benchmarks_lib.find(embedded)
  # Those of the embedded corpus fit it, and other texts perhaps.
  is_embedded = config.data.path.startswith('toywiki:')
  return sets if is_embedded else _known(sets, source.keys)


def _known(
  sets: Sequence[benchmarks_lib.Benchmark], words: Sequence[str]
) -> list[benchmarks_lib.Benchmark]:
  """Sets that nobody asked for, of which the text knows enough to say much."""
  known = {x.upper() for x in words}
  kept = []
  for benchmark in sets:
    of_all = [all(x.upper() in known for x in y) for y in benchmark.words]
    if sum(of_all) >= _MIN_KNOWN * len(of_all):
      kept.append(benchmark)
  if left_out := [x.name for x in sets if x not in kept]:
    _LOG.info(
      f'not evaluated on {", ".join(left_out)} of the embedded corpus: the '
      'text has not even half of their words; give --config.eval.paths'
    )
  return kept
