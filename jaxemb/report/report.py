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
from jaxemb.runtime import hlo
from jaxemb.senses import table as senses
from jaxemb.storage import atomic

_WORDS_COUNTED = (
  'bytes that all devices together send per corpus word inside the vocabulary, '
  'before frequent-word subsampling, times epochs'
)


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


def collectives(hlo_text: str, loop: hlo.Loop) -> dict[str, Any]:
  """What the devices send each other in a compiled dispatch.

  An asynchronous pair (`-start` and `-done`) counts once.

  Args:
    hlo_text: What `as_text()` of a compiled function returns.
    loop: How often what stands in its loops runs.

  Returns:
    The number of instructions by collective, all collectives named, and by
    collective and in `total`, both as of ring algorithms,
    `bytes_per_step_per_device` and `bytes_per_dispatch_per_device` (outside the
    loop over steps): what one device sends.
  """
  found = hlo.collectives(hlo_text)
  names = [each.kind for each in found]
  return {kind: names.count(kind) for kind in hlo.KINDS} | {
    'bytes_per_step_per_device': _by_kind(
      found, [each.runs_per_step(loop) for each in found]
    ),
    'bytes_per_dispatch_per_device': _by_kind(
      found, [not each.loops for each in found]
    ),
  }


def _by_kind(
  found: Sequence[hlo.Collective], runs: Sequence[float]
) -> dict[str, float]:
  """Bytes sent by collective, and in `total`."""
  sent = [
    x.sent_bytes * n if n else 0.0 for x, n in zip(found, runs, strict=True)
  ]
  by_kind = {
    kind: sum(y for x, y in zip(found, sent, strict=True) if x.kind == kind)
    for kind in hlo.KINDS
  }
  return by_kind | {'total': sum(sent)}


def per_word(
  found: Mapping[str, Any] | None, device_steps_per_word: float
) -> dict[str, Any] | None:
  """What `collectives` returned, with `bytes_per_word` of all devices.

  Args:
    found: None, or figures without bytes, stay what they are.
    device_steps_per_word: Steps of training, times devices, over words.
  """
  if not found or 'bytes_per_step_per_device' not in found:
    return found and dict(found)
  return dict(found) | {
    'bytes_per_word': {
      kind: device_steps_per_word * sent
      for kind, sent in found['bytes_per_step_per_device'].items()
    },
    'words_counted': _WORDS_COUNTED,
  }


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
