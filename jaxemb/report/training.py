"""The report's section on training: curves, times, amounts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxemb.report import charts, markup

_NUM_TABLE_ROWS = 20
# By key of the logged rows: title, unit, axis from zero, format.
_CURVES = {
  'loss': ('Loss per example', 'nats', False, markup.three_digits),
  'words_per_sec': ('Speed', 'words per second', True, markup.short),
  'learning_rate': ('Learning rate', '', True, markup.three_digits),
}


def section(
  report: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]
) -> str:
  """Curves, times and amounts as HTML.

  Args:
    report: What report.json holds; any key may be missing.
    metrics: Rows of metrics.jsonl; may be empty.
  """
  # After a restart the steps behind the checkpoint are logged again.
  rows = {row['step']: row for row in metrics if 'step' in row}
  rows = [rows[step] for step in sorted(rows)]
  kept = ('loss_per_example', 'kept_words', 'pairs')
  names = (
    'Loss per example, mean of the last epoch',
    'Words kept by frequent-word subsampling',
    'Training pairs',
  )
  writers = (markup.fixed, markup.integer, markup.integer)
  facts = [('Corpus words', markup.integer(report.get('corpus_words')))] + [
    (name, write(report[key]))
    for key, name, write in zip(kept, names, writers, strict=True)
    if key in report
  ]
  facts = markup.definitions(facts).replace('<dl>', '<dl class="rows">')
  return (
    '<p>Words per second counts corpus words inside the vocabulary, before '
    'frequent-word subsampling, over seconds of training without '
    f'compilation.</p>\n{_curves(rows)}<div class="columns"><div>'
    f'{_times(report)}</div><div><h3>Amount</h3>\n{facts}</div></div>\n'
  )


def _curves(rows: Sequence[Mapping[str, Any]]) -> str:
  if not rows:
    return '<p>No measurements were logged during training.</p>\n'
  has_epochs = all(markup.is_number(row.get('epoch')) for row in rows)
  x_key = 'epoch' if has_epochs else 'step'
  keys = (x_key, *_CURVES)
  logged = np.array([[_number(row.get(key)) for key in keys] for row in rows])
  columns, every = charts.thin(logged)
  figures = ''.join(
    _figure(key, x_key, columns[:, 0], columns[:, i])
    for i, key in enumerate(_CURVES, 1)
  )
  notes = []
  num_broken = int((~np.isfinite(logged[:, 1])).sum())
  if num_broken:
    notes.append(f'The loss of {num_broken} logged rows is not finite.')
  if every > 1:
    notes.append(f'Each point is the mean of {every} logged rows.')
  note = f'<p class="note">{" ".join(notes)}</p>\n' if notes else ''
  return (
    f'<div class="columns curves">\n{figures}</div>\n{note}'
    + _measurements(rows)
  )


def _figure(key: str, x_key: str, xs: np.ndarray, ys: np.ndarray) -> str:
  """One curve with its heading, or '' if no value is finite."""
  title, unit, from_zero, write = _CURVES[key]
  finite = ys[np.isfinite(ys)]
  if not len(finite):
    return ''
  description = (
    f'{title} by {x_key}: from {write(finite[0])} at the start to '
    f'{write(finite[-1])} at the end; lowest {write(finite.min())}, '
    f'highest {write(finite.max())}.'
  )
  chart = charts.line_chart(
    f'curve-{key}', title, description, xs, ys, x_key, from_zero
  )
  return f'<figure><h3>{title} <small>{unit}</small></h3>\n{chart}</figure>\n'


def _number(value: object) -> float:
  return float(value) if markup.is_number(value) else float('nan')


def _measurements(rows: Sequence[Mapping[str, Any]]) -> str:
  """The curves as a table, some rows evenly chosen."""
  num_shown = min(len(rows), _NUM_TABLE_ROWS)
  chosen = np.linspace(0, len(rows) - 1, num_shown).round().astype(int)
  cells = (
    ('step', 'Step', markup.integer),
    ('epoch', 'Epoch', lambda value: markup.fixed(value, 2)),
    ('words', 'Words', markup.integer),
    ('loss', 'Loss per example', lambda value: markup.fixed(value, 4)),
    ('words_per_sec', 'Words/s', markup.integer),
    (
      'learning_rate',
      'Learning rate',
      lambda v: markup.three_digits(v) if markup.is_number(v) else '–',
    ),
    ('elapsed_secs', 'Elapsed', markup.duration),
  )
  table = markup.table(
    f'{num_shown} of {len(rows):,} logged rows',
    [f'#{name}' for _, name, _ in cells],
    ([write(rows[i].get(key)) for key, _, write in cells] for i in chosen),
  )
  return markup.folded('The curves as a table', table)


def _times(report: Mapping[str, Any]) -> str:
  total = _number(report.get('total_secs'))
  parts = [
    (name, _number(report.get(key)))
    for key, name in (
      ('encode_secs', 'Reading and encoding the corpus'),
      ('compile_secs', 'Compilation'),
      ('train_secs', 'Training'),
    )
  ]
  parts = [(name, secs) for name, secs in parts if np.isfinite(secs)]
  rest = total - sum(secs for _, secs in parts)
  if rest > 0:
    parts.append(('Evaluation, export and the rest', rest))
  rows = [
    (
      name,
      markup.duration(secs),
      f'<span class="bar" style="--v:{100 * secs / total:.1f}%">'
      f'{markup.percent(secs / total)}</span>'
      if total > 0
      else '–',
    )
    for name, secs in parts
  ]
  rows.append(('total', ('Total', markup.duration(total), '')))
  return '<h3>Time</h3>\n' + markup.table(
    'Where the time went', ('Part', '#Time', '#Share'), rows
  )
