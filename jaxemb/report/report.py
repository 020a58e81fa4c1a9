"""The report of a run: report.json for programs, report.html for people.

The page is one file that needs no network and nothing beside it; its parts
are in `jaxemb.report`.
"""

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxemb.report import page
from jaxemb.report import senses as senses_section
from jaxemb.report import words as word_choice
from jaxemb.senses import table as senses
from jaxemb.storage import atomic


def write(
  workdir: pathlib.Path,
  report: Mapping[str, Any],
  metrics: Sequence[Mapping[str, Any]],
  words: Sequence[str],
  vectors: np.ndarray,
  counts: np.ndarray,
  categories: Mapping[str, Sequence[str]],
  found: senses.Senses | None = None,
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
    found: The senses of words, of a model that has them.

  Raises:
    errors.UserError: A file cannot be written.
  """
  write_figures(workdir, report)
  html = page.render(
    _plain(report, math.nan),
    _plain(metrics, math.nan),
    word_choice.neighbours(words, vectors, counts, categories),
    word_choice.word_map(words, vectors, counts, categories),
    senses_section.section(found),
  )
  with atomic.write(workdir / 'report.html') as file:
    file.write(html.encode())


def write_figures(workdir: pathlib.Path, report: Mapping[str, Any]) -> None:
  """Writes `workdir/report.json` alone, see `write`."""
  with atomic.write(workdir / 'report.json') as file:
    text = json.dumps(
      _plain(report, None), indent=2, ensure_ascii=False, allow_nan=False
    )
    file.write(text.encode('utf-8', errors='backslashreplace') + b'\n')


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
