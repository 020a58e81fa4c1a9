"""The report of a run: report.json for programs, report.html for people.

The page is one file that needs no network and nothing beside it; its parts
are in `jaxemb.reporting`.
"""

import json
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxemb.reporting import page
from jaxemb.reporting import words as word_choice
from jaxemb.storage import atomic

_COLLECTIVES = (
  'all-reduce',
  'all-gather',
  'all-to-all',
  'ragged-all-to-all',
  'collective-permute',
  'collective-broadcast',
  'reduce-scatter',
)
# The operation of an instruction `%name = type operation(...)`: the first name
# directly before a bracket, since those inside types follow no space.
_OPERATION = re.compile(r'^[^=\n]+ = [^\n]*?(?<=\s)([a-z][a-z0-9-]*)\(', re.M)


def write(
  workdir: pathlib.Path,
  report: Mapping[str, Any],
  metrics: Sequence[Mapping[str, Any]],
  words: Sequence[str],
  vectors: np.ndarray,
  counts: np.ndarray,
  categories: Mapping[str, Sequence[str]],
) -> None:
  """Writes `workdir/report.json` and `workdir/report.html`.

  Each file is replaced whole. A value that is not finite becomes null in the
  JSON file, and a dash or a gap on the page.

  Args:
    workdir: Made if missing.
    report: The figures; any key may be missing. `dropped` may be nested;
      lists in it are lines about problems.
    metrics: Rows of metrics.jsonl with `step`, `epoch`, `words`,
      `words_per_sec`, `loss`, `learning_rate`, `elapsed_secs`; may be empty.
      Of a step that was logged twice the last row counts.
    words: [vocab] words, the most frequent first.
    vectors: [vocab, dim] float32; may be memory-mapped.
    counts: [vocab] int64, occurrences in the corpus.
    categories: Words by category, for the map; may be empty.

  Raises:
    errors.UserError: A file cannot be written.
  """
  with atomic.write(workdir / 'report.json') as file:
    text = json.dumps(
      _plain(report, None), indent=2, ensure_ascii=False, allow_nan=False
    )
    file.write(text.encode('utf-8', errors='backslashreplace') + b'\n')
  html = page.render(
    _plain(report, math.nan),
    _plain(metrics, math.nan),
    word_choice.neighbours(words, vectors, counts, categories),
    word_choice.word_map(words, vectors, counts, categories),
  )
  with atomic.write(workdir / 'report.html') as file:
    file.write(html.encode())


def collectives(hlo_text: str) -> dict[str, int]:
  """How often each collective stands in a compiled program.

  An asynchronous pair (`-start` and `-done`) counts once. The body of a loop
  counts once, however often it runs.

  Args:
    hlo_text: What `as_text()` of a compiled function returns.

  Returns:
    The number of instructions by collective, all collectives named.
  """
  found = [
    operation.removesuffix('-start')
    for operation in _OPERATION.findall(hlo_text)
  ]
  return {name: found.count(name) for name in _COLLECTIVES}


def _plain(value: object, not_finite: float | None) -> Any:
  """The value made of JSON's types; NumPy's become Python's."""
  if isinstance(value, Mapping):
    return {str(key): _plain(v, not_finite) for key, v in value.items()}
  if isinstance(value, (np.ndarray, np.generic)):
    value = value.tolist()
  if isinstance(value, (list, tuple)):
    return [_plain(item, not_finite) for item in value]
  if isinstance(value, float):
    return value if math.isfinite(value) else not_finite
  if value is None or isinstance(value, (bool, int, str)):
    return value
  return str(value)
