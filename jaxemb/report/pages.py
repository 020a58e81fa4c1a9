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
  noun: str = 'word'  # what a vector belongs to


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
  written, report = report, _plain(report)
  rows = _with_short_intervals_merged(_plain(metrics), page.unit)
  evaluations = report.get('evaluations') or []
  text = template(page.name, page.package).render(
    report=report,
    unit=page.unit,
    noun=page.noun,
    evaluation=report.get('evaluation') or {},
    num_rows=len(rows),
    rows=_some(rows),
    evaluations=_some(evaluations),
    curves=_curves(rows, page.unit, evaluations=evaluations),
    axes=_axes(rows, evaluations),
    changed=_changed(report),
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


def _with_short_intervals_merged(
  rows: Sequence[Mapping[str, Any]], unit: str
) -> Sequence[Mapping[str, Any]]:
  """Merges a short interval, such as an epoch's last, with the previous one.

  An interval is short if it has less than a quarter of the median's steps and
  of its seconds: its speed and its loss say little. Rows without steps, which
  may follow the last batch, are left out.
  """
  rows = [x for x, y in zip(rows, [None, *rows], strict=False)
          if y is None or x['step'] != y['step']]  # fmt: skip
  sizes = np.diff([row['step'] for row in rows], prepend=0)
  if not rows or sizes.min() <= 0:
    return rows
  names = 'loss', f'{unit}_per_sec'
  is_known = [all(row.get(k) for k in names) for row in rows]
  speeds = [row.get(names[1]) or np.inf for row in rows]
  secs = sizes / speeds
  is_short = (sizes < np.median(sizes) / 4) & (secs < np.median(secs) / 4)
  merged, may_merge = [rows[0]], is_known[0]
  for i in range(1, len(rows)):
    if not (is_short[i] and is_known[i] and may_merge):
      merged.append(rows[i])
      may_merge = is_known[i]
      continue
    last, steps = rows[i - 1], sizes[i - 1 : i + 1]
    loss = steps @ [last['loss'], rows[i]['loss']] / steps.sum()
    speed = steps.sum() / secs[i - 1 : i + 1].sum()
    means = {names[0]: loss, names[1]: speed, 'hosts': last.get('hosts')}
    merged[-1] = {**rows[i], **means}
    may_merge = False
  return merged


def _axes(
  rows: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, list[float]]]:
  """Returns what the horizontal axes of curves may show, by their source."""
  axes = {
    'training': {
      'epoch': [row['epoch'] for row in rows],
      'step': [row['step'] for row in rows],
      'secs': [row.get('elapsed_secs') or 0.0 for row in rows],
    }
  }
  if rows and evaluations:
    training, steps = axes['training'], [x['step'] for x in evaluations]
    axes['validation'] = {
      'epoch': [x['epoch'] for x in evaluations],
      'step': steps,
      'secs': np.interp(steps, training['step'], training['secs']).tolist(),
    }
  return {
    source: {name: _thinned(values) for name, values in values_of.items()}
    for source, values_of in axes.items()
  }


def _curves(
  rows: Sequence[Mapping[str, Any]],
  unit: str,
  evaluations: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
  """Returns the curves that the page draws, each of one or two series."""
  names = [
    ('Loss per example', 'nats', 'loss'),
    ('Speed', f'{unit} per second', f'{unit}_per_sec'),
    ('Learning rate', '', 'learning_rate'),
  ]
  if any(len(row.get('hosts') or ()) > 1 for row in rows):
    names += [
      ('CPU', 'cores, all processes', 'cores'),
      ('Network', 'bytes sent per second', 'network_sent_bytes_per_sec'),
      ('Loopback', 'bytes sent per second', 'loopback_sent_bytes_per_sec'),
    ]
  curves = [
    _curve(title, unit, [row.get(key, _total(row, key)) for row in rows])
    for title, unit, key in names
  ]
  if rows and evaluations:
    curves += _validation_curves(evaluations, curves[0]['series'])
  return [x for x in curves if any(y for s in x['series'] for y in s['ys'])]


def _validation_curves(evaluations, losses):
  """Returns curves of evaluations while training went on.

  The validation loss is added to `losses`, the series of the training loss.
  """
  scores = [x['validation'] for x in evaluations]
  known = [x for x in ('auc', 'ndcg', 'mrr', 'score') if x in scores[0]]
  if len(known) > 1:  # where there is another one, the score tells less
    known.remove('score')
  titles = {name: name.upper() for name in known} | {'score': 'score'}
  curves = [
    _curve(
      f'Validation {titles[name]}',
      unit='',
      ys=[x[name] for x in scores],
      source='validation',
    )
    for name in known
  ]
  if 'log_loss' in scores[0]:
    ys = [x['log_loss'] for x in scores]
    losses += _curve('', unit='', ys=ys, source='validation')['series']
  return curves


def _curve(title, unit, ys, source='training'):
  """Returns a curve of one series; None among its values leaves a gap."""
  series = {'name': source, 'axis': source, 'ys': _thinned(ys)}
  return {'title': title, 'unit': unit, 'series': [series]}


def _thinned(values):
  """Returns at most 300 values, the last among them, with six digits."""
  values = values[:: -_stride(values)][::-1]
  return [None if x is None else float(f'{x:.6g}') for x in values]


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


def _changed(report: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings that differ from their documented defaults.

  Without the mesh, which the devices tell.
  """
  values = config_lib.flat(report.get('config') or {})
  documented = config_lib.settings(values.get('data.source', 'text'))
  return {
    name: value
    for name, value in values.items()
    if not name.startswith('mesh.')
    and (name not in documented or value != documented[name].default)
  }


def _devices(report: Mapping[str, Any]) -> list[str]:
  """Counts devices by kind: `cuda:0 NVIDIA H200` without its number."""
  kinds = collections.Counter(
    re.sub(r'^\w+:\d+ (?=.)', '', name) for name in report.get('devices') or ()
  )
  names = [(kind.replace('cpu', 'CPU'), n) for kind, n in kinds.items()]
  return [f'{n} × {name}' if n > 1 else name for name, n in names]


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
