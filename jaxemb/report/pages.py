"""Pages of a run: report.json for programs, report.html for people.

A page holds its styles, data and script, and needs no network. It draws without
a plotting library: plotly.js would add 4.8 MB to every page, matplotlib half a
second to every run. Templates extend base.html.j2; kinds of data have their own
in their folders.
"""

import collections
import functools
import json
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxemb import config as config_lib
from jaxemb.storage import atomic, formats

# Of report.json and merge.json, which other programs read.
FORMAT = formats.Format('a report', number=1, remedy='read it as that version')
_MAX_POINTS = 300  # per curve
_NUM_TABLE_ROWS = 20
_UNITS = ('', ' k', ' M', ' G', ' T')
_BYTES = (' bytes', ' kB', ' MB', ' GB', ' TB')


@functools.cache
def template(name: str, package: str = 'jaxemb.report') -> Any:
  """Returns the Jinja template NAME.html.j2 of a package.

  It is compiled once in a process, and may extend those of `jaxemb.report`.
  """
  import jinja2  # here, so that it does not slow the start of a run

  environment = jinja2.Environment(
    loader=jinja2.ChoiceLoader(
      [jinja2.PackageLoader(x, '') for x in (package, 'jaxemb.report')]
    ),
    autoescape=True,
    undefined=jinja2.ChainableUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters |= FILTERS
  return environment.get_template(f'{name}.html.j2')


class Page(NamedTuple):
  """A template of a package, and what it shows beside the report."""

  name: str
  unit: str  # what training is counted in
  values: Mapping[str, Any]
  package: str = 'jaxemb.report'


def write(
  workdir: pathlib.Path,
  page: Page,
  report: Mapping[str, Any],
  metrics: Sequence[Mapping[str, Any]],
) -> None:
  """Writes `workdir/report.json` and `workdir/report.html`.

  Any key of `report` may be missing; `metrics` are the rows of metrics.jsonl.
  Raises a `UserError` if a file cannot be written.
  """
  written, report, rows = report, _plain(report), _plain(metrics)
  evaluations = report.get('evaluations') or []
  text = template(page.name, page.package).render(
    report=report,
    unit=page.unit,
    evaluation=report.get('evaluation') or {},
    num_rows=len(rows),
    rows=_some(rows),
    evaluations=_some(evaluations),
    curves=_curves(rows, page.unit) + _validation_curves(evaluations),
    stride=_stride(rows),
    dropped=config_lib.flat(report.get('dropped') or {}),
    settings=config_lib.flat(
      {k: report.get(k) or {} for k in ('config', 'tuning')}
    ),
    devices=_devices(report),
    **page.values,
  )
  with atomic.together(workdir) as new:
    write_json(new, written)
    with atomic.write(new / 'report.html') as file:
      file.write(text.encode(errors='backslashreplace'))


def write_json(workdir: pathlib.Path, report: Mapping[str, Any]) -> None:
  """Writes `workdir/report.json` alone; values that are not finite are null."""
  report = FORMAT.stamp() | _plain(report)
  text = json.dumps(report, indent=2, ensure_ascii=False)
  with atomic.write(workdir / 'report.json') as file:
    file.write(text.encode(errors='backslashreplace') + b'\n')


def _plain(value: Any) -> Any:
  """Returns the value as JSON has it, None for what is not finite."""
  text = json.dumps(
    value, default=lambda x: x.tolist() if hasattr(x, 'tolist') else str(x)
  )
  return json.loads(text, parse_constant=lambda name: None)


def _curves(
  rows: Sequence[Mapping[str, Any]], unit: str
) -> list[tuple[str, str, list[Any]]]:
  """Returns curves of training as the page's script draws them."""
  curves = [
    ('Loss per example', 'nats', 'loss'),
    ('Speed', f'{unit} per second', f'{unit}_per_sec'),
    ('Learning rate', '', 'learning_rate'),
  ]
  if any(len(row.get('hosts') or ()) > 1 for row in rows):
    curves += [
      ('CPU', 'cores, all processes', 'cores'),
      ('Network', 'bytes sent per second', 'network_sent_bytes_per_sec'),
      ('Loopback', 'bytes sent per second', 'loopback_sent_bytes_per_sec'),
    ]
  return _drawn(curves, rows, lambda row, key: row.get(key, _total(row, key)))


def _validation_curves(records):
  """Returns curves of the evaluations while training went on."""
  names = {
    'auc': 'AUC', 'ndcg': 'NDCG', 'mrr': 'MRR', 'score': 'score',
    'log_loss': 'loss',
  }  # fmt: skip
  known = records[0]['validation'] if records else {}
  curves = [
    (f'Validation {name}', 'nats' if key == 'log_loss' else '', key)
    for key, name in names.items()
    # Where there is another one, the score is the same, or less telling.
    if key in known
    and not (key == 'score' and {'auc', 'ndcg', 'mrr'} & {*known})
  ]
  return _drawn(curves, records, lambda record, key: record['validation'][key])


def _drawn(curves, rows, value):
  """Returns curves with points, the last among them; None leaves a gap."""
  rows = rows[:: -_stride(rows)][::-1]
  drawn = [
    (title, unit, [[row['epoch'], value(row, key)] for row in rows])
    for title, unit, key in curves
  ]
  return [curve for curve in drawn if any(y for _, y in curve[2])]


def _stride(rows):
  """Returns n if a curve shows every n-th row."""
  return -(-len(rows) // _MAX_POINTS) or 1


def _some(rows):
  """Returns at most 20 rows, evenly spaced, with the first and the last."""
  shown = np.linspace(0, len(rows) - 1, min(len(rows), _NUM_TABLE_ROWS))
  return [rows[i] for i in shown.round().astype(int)]


def _total(row: Mapping[str, Any], key: str) -> float | None:
  """Sums over processes; bytes, which the kernel counts, over hosts."""
  processes = row.get('hosts') or ()
  if 'bytes' in key:
    processes = {x.get('hostname'): x for x in processes}.values()
  values = [x.get(key) for x in processes]
  return None if None in values or not values else sum(values)


def _devices(report: Mapping[str, Any]) -> list[str]:
  """Counts devices by kind: `cuda:0 NVIDIA H200` without its number."""
  kinds = collections.Counter(
    re.sub(r'^\w+:\d+ (?=.)', '', name) for name in report.get('devices') or ()
  )
  return [f'{n} × {kind}' if n > 1 else kind for kind, n in kinds.items()]


def _written(write: Callable[[float], str], value: Any) -> str:
  """Applies `write` to a number; a dash for anything else."""
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
  'precise': lambda value: f'{value:.5f}',
  'percent': lambda value: f'{value:.1%}',
  'short': _short,
  'size': lambda value: _short(value, _BYTES),
  'duration': _duration,
}
FILTERS = {
  name: functools.partial(_written, write) for name, write in _WRITERS.items()
}
