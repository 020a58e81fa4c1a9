"""HTML in small pieces: escaped text, numbers for people, tables.

Everything that comes from a corpus or a config passes through `text` or
`word`; the other functions return finished HTML.
"""

import html
import math
import re
from collections.abc import Iterable, Sequence

_CONTROLS = re.compile(
  r'[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]'
)


def text(value: object) -> str:
  """Any text, safe inside elements and quoted attributes."""
  return html.escape(_CONTROLS.sub('\ufffd', str(value)))


def word(value: str) -> str:
  """A word of the corpus, kept apart from the direction of writing around."""
  return f'<bdi>{text(value)}</bdi>'


def is_number(value: object) -> bool:
  """Whether the value is a finite number (and no bool)."""
  return (
    isinstance(value, (int, float))
    and not isinstance(value, bool)
    and math.isfinite(value)
  )


def integer(value: object) -> str:
  """1234567 as 1,234,567; a dash if it is no number."""
  return f'{value:,.0f}' if is_number(value) else '–'


def short(value: object) -> str:
  """1234567 as 1.23 M: three digits and a unit; a dash if it is no number."""
  return _scaled(value, ('', ' k', ' M', ' G', ' T'))


def size(num_bytes: object) -> str:
  """Bytes as 1.23 GB (1 GB = 10^9 bytes); a dash if it is no number."""
  return _scaled(num_bytes, (' bytes', ' kB', ' MB', ' GB', ' TB'))


def _scaled(value: object, units: Sequence[str]) -> str:
  if not is_number(value):
    return '–'
  power = 0
  # Rounded first, so that 999,950 is 1 M and not 1,000 k.
  while abs(value) >= 999.5 and power < len(units) - 1:
    value, power = value / 1000, power + 1
  return f'{three_digits(value)}{units[power]}'


def three_digits(value: float) -> str:
  """A number to three digits, without an exponent where that is short."""
  if value == 0 or not 1e-3 <= abs(value) < 1e6:
    return f'{value:.3g}'
  digits = max(0, 2 - math.floor(math.log10(abs(value))))
  number = f'{value:,.{digits}f}'
  return number.rstrip('0').rstrip('.') if '.' in number else number


def fixed(value: object, digits: int = 3) -> str:
  """A score such as 0.647; a dash if it is no number."""
  return f'{value:.{digits}f}' if is_number(value) else '–'


def percent(value: object) -> str:
  """A share such as 0.647 as 64.7 %; a dash if it is no number."""
  return f'{100 * value:.1f} %' if is_number(value) else '–'


def duration(secs: object) -> str:
  """Seconds as 47.2 s, 3 min 12 s, 2 h 5 min; a dash if it is no number."""
  if not is_number(secs):
    return '–'
  if secs < 99.95:
    return f'{secs:.1f} s' if secs >= 1 else f'{secs:.2f} s'
  minutes, rest = divmod(round(secs), 60)
  if minutes < 60:
    return f'{minutes} min {rest} s'
  hours, minutes = divmod(round(secs / 60), 60)
  if hours < 48:
    return f'{hours} h {minutes} min'
  return f'{hours // 24} days {hours % 24} h'


def table(
  caption: str,
  columns: Sequence[str],
  rows: Iterable[Sequence[str] | tuple[str, Sequence[str]]],
) -> str:
  """A table that scrolls inside itself on narrow screens.

  Args:
    caption: Plain text, for people who cannot see the headings around.
    columns: Headings, plain text; one that starts with `#` is of numbers.
    rows: Cells as HTML, the first heads its row; or (class of the row, cells).

  Returns:
    HTML.
  """
  is_numeric = [column.startswith('#') for column in columns]
  heads = ''.join(
    f'<th scope="col"{" class=n" if numeric else ""}>'
    f'{text(column.removeprefix("#"))}</th>'
    for column, numeric in zip(columns, is_numeric, strict=True)
  )
  body = []
  for row in rows:
    is_marked = len(row) == 2 and not isinstance(row[1], str)
    marker, cells = row if is_marked else ('', row)
    first, *others = cells
    cells = f'<th scope="row">{first}</th>' + ''.join(
      f'<td{" class=n" if numeric else ""}>{cell}</td>'
      for cell, numeric in zip(others, is_numeric[1:], strict=True)
    )
    body.append(f'<tr{f" class={marker}" if marker else ""}>{cells}</tr>\n')
  return (
    f'<div class="scroll" role="region" tabindex="0" '
    f'aria-label="{text(caption)}"><table>\n<caption>{text(caption)}</caption>'
    f'<thead><tr>{heads}</tr></thead>\n<tbody>\n{"".join(body)}</tbody>'
    '</table></div>\n'
  )


def definitions(items: Iterable[tuple[str, str]]) -> str:
  """A list of names (plain text) with values (HTML)."""
  return (
    '<dl>\n'
    + ''.join(
      f'<div><dt>{text(name)}</dt><dd>{value}</dd></div>\n'
      for name, value in items
    )
    + '</dl>\n'
  )


def folded(summary: str, content: str, is_open: bool = False) -> str:
  """HTML behind a line of plain text that opens and closes it."""
  return (
    f'<details{" open" if is_open else ""}><summary>{text(summary)}</summary>\n'
    f'{content}</details>\n'
  )


def svg(
  name: str,
  title: str,
  description: str,
  width: int,
  height: int,
  content: str,
) -> str:
  """A drawing with a title and a description, both plain text.

  Args:
    name: Unique on the page.
    title: What it is.
    description: What can be seen, for people who cannot see it.
    width: Pixels.
    height: Pixels.
    content: SVG.
  """
  return (
    f'<svg viewBox="0 0 {width} {height}" role="img" '
    f'aria-labelledby="{name}-t {name}-d">'
    f'<title id="{name}-t">{text(title)}</title>'
    f'<desc id="{name}-d">{text(description)}</desc>\n'
    f'{content}</svg>\n'
  )
