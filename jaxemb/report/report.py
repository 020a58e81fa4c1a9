"""The report of a run: report.json for programs, report.html for people.

The page needs no network: styles, data and the script that draws the curves and
the map are inside. A plotting library would cost more than it saves here:
plotly.js adds 4.8 MB to every page, matplotlib half a second to every run.
"""

import collections
import functools
import json
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxemb.report import words as words_lib
from jaxemb.senses import table as senses_lib
from jaxemb.storage import atomic

_MAX_POINTS = 300  # per curve
_NUM_TABLE_ROWS = 20
_UNITS = ('', ' k', ' M', ' G', ' T')
_BYTES = (' bytes', ' kB', ' MB', ' GB', ' TB')


def write(
  workdir: pathlib.Path,
  report: Mapping[str, Any],
  metrics: Sequence[Mapping[str, Any]],
  words: Sequence[str],
  vectors: np.ndarray,
  counts: np.ndarray,
  categories: words_lib.Categories,
  senses: senses_lib.Senses | None = None,
) -> None:
  """Writes `workdir/report.json` and `workdir/report.html`.

  Any key of `report` may be missing. Of a step that `metrics` (the rows of
  metrics.jsonl) has twice the last row counts. words: [vocab], most frequent
  first; vectors: [vocab, dim] float32, may be memory-mapped; counts: [vocab]
  occurrences; categories: of the map; senses: of a model that has them.

  Raises:
    errors.UserError: a file cannot be written.
  """
  import jinja2  # here, so that it does not slow the start of a run

  write_json(workdir, report)
  environment = jinja2.Environment(
    loader=jinja2.PackageLoader('jaxemb.report', ''),
    autoescape=True,
    undefined=jinja2.ChainableUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters |= FILTERS
  report, metrics = _plain(report), _plain(metrics)
  # After a restart the steps since the checkpoint are logged again.
  rows = {row['step']: row for row in metrics}
  rows = [rows[step] for step in sorted(rows)]
  stride = -(-len(rows) // _MAX_POINTS) or 1
  shown = np.linspace(0, len(rows) - 1, min(len(rows), _NUM_TABLE_ROWS))
  table = words_lib.Table(words, vectors, counts)
  page = environment.get_template('report.html.j2').render(
    report=report,
    evaluation=report.get('evaluation') or {},
    num_rows=len(rows),
    num_bad_losses=sum(row.get('loss') is None for row in rows),
    rows=[rows[i] for i in shown.round().astype(int)],
    # Backwards, so that the last row is among them.
    curves=_curves(rows[::-stride][::-1]),
    stride=stride,
    dropped=_flatten(report.get('dropped') or {}),
    settings=_flatten({k: report.get(k) or {} for k in ('config', 'tuning')}),
    devices=_devices(report),
    neighbours=words_lib.neighbours(table, categories),
    num_searched=len(table.words),
    ambiguous=words_lib.ambiguous_words(senses),
    map=words_lib.word_map(table, categories),
  )
  with atomic.write(workdir / 'report.html') as file:
    file.write(page.encode(errors='backslashreplace'))


def write_json(workdir: pathlib.Path, report: Mapping[str, Any]) -> None:
  """Writes `workdir/report.json` alone; values that are not finite are null."""
  text = json.dumps(_plain(report), indent=2, ensure_ascii=False)
  with atomic.write(workdir / 'report.json') as file:
    file.write(text.encode(errors='backslashreplace') + b'\n')


def _plain(value: Any) -> Any:
  """The value as JSON gives it back, with None for what is not finite."""
  text = json.dumps(
    value, default=lambda x: x.tolist() if hasattr(x, 'tolist') else str(x)
  )
  return json.loads(text, parse_constant=lambda name: None)


def _curves(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """Curves as the page's script draws them; None leaves a gap."""
  curves = [
    ('Loss per example', 'nats', 'loss'),
    ('Speed', 'words per second', 'words_per_sec'),
    ('Learning rate', '', 'learning_rate'),
  ]
  if any(len(row.get('hosts') or ()) > 1 for row in rows):
    curves += [
      ('CPU', 'cores, all processes', 'cores'),
      ('Network', 'bytes sent per second', 'network_sent_bytes_per_sec'),
      ('Loopback', 'bytes sent per second', 'loopback_sent_bytes_per_sec'),
    ]
  drawn = [
    (title, unit, [[x['epoch'], x.get(key, _total(x, key))] for x in rows])
    for title, unit, key in curves
  ]
  return [curve for curve in drawn if any(y for _, y in curve[2])]


def _total(row: Mapping[str, Any], key: str) -> float | None:
  """Sum over processes; of bytes, which the kernel counts, over hosts."""
  processes = row.get('hosts') or ()
  if 'bytes' in key:
    processes = {x.get('hostname'): x for x in processes}.values()
  values = [x.get(key) for x in processes]
  return None if None in values or not values else sum(values)


def _flatten(values: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
  """Values by dotted key."""
  flat = {}
  for key, value in values.items():
    if isinstance(value, dict):
      flat |= _flatten(value, f'{prefix}{key}.')
    else:
      flat[prefix + key] = value
  return flat


def _devices(report: Mapping[str, Any]) -> list[str]:
  """Devices counted by kind: `cuda:0 NVIDIA H200` without its number."""
  kinds = collections.Counter(
    re.sub(r'^\w+:\d+ (?=.)', '', name) for name in report.get('devices') or ()
  )
  return [f'{n} × {kind}' if n > 1 else kind for kind, n in kinds.items()]


def _written(write: Callable[[float], str], value: Any) -> str:
  """What `write` makes of a number; a dash for anything else."""
  is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
  return write(value) if is_number else '–'


def _short(value: float, units: Sequence[str] = _UNITS) -> str:
  """1234567 as 1.23 M."""
  power = 0
  # Rounded first, so that 999,950 is 1 M and not 1e+03 k.
  while abs(value) >= 999.5 and power < len(units) - 1:
    value, power = value / 1000, power + 1
  return f'{value:.3g}{units[power]}'


def _duration(secs: float) -> str:
  """47.2 s, 3 min 12 s, 2 h 5 min."""
  if secs < 99.95:
    return f'{secs:.3g} s'
  minutes, secs = divmod(round(secs), 60)
  hours, minutes = divmod(minutes, 60)
  return f'{hours} h {minutes} min' if hours else f'{minutes} min {secs} s'


_WRITERS = {
  'integer': lambda value: f'{value:,.0f}',
  'fixed': lambda value: f'{value:.3f}',
  'percent': lambda value: f'{value:.1%}',
  'short': _short,
  'size': lambda value: _short(value, _BYTES),
  'duration': _duration,
}
FILTERS = {
  name: functools.partial(_written, write) for name, write in _WRITERS.items()
}
