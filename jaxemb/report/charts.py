"""Curves over two axes as inline SVG.

Colours and fonts come from the page's style sheet through classes, so that a
chart follows light and dark.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxemb.report import markup

_MAX_LINE_POINTS = 300
_MAX_DOTS = 20  # on a line of more points only the last has a dot
_WIDTH, _HEIGHT = 360, 230
_LEFT, _TOP, _RIGHT, _BOTTOM = 50, 10, 350, 192  # of the area of the curve


class Axis(NamedTuple):
  """Round values that span the data.

  Attributes:
    low: Where the axis starts.
    high: Where it ends.
    ticks: Values with a label, from low to high.
  """

  low: float
  high: float
  ticks: list[float]


def axis(values: np.ndarray, num_ticks: int, from_zero: bool) -> Axis:
  """An axis for finite values; any two values differ on it."""
  low, high = float(values.min()), float(values.max())
  if from_zero:
    low, high = min(low, 0.0), max(high, 0.0)
  if high - low <= 1e-9 * max(abs(low), abs(high)):
    high = low + (abs(low) or 1.0) * 0.1
  raw = (high - low) / num_ticks
  power = 10.0 ** math.floor(math.log10(raw))
  step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
  first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
  ticks = [i * step for i in range(first, last + 1)]
  return Axis(ticks[0], ticks[-1], ticks)


def tick_labels(axis: Axis) -> list[str]:
  """Numbers with just the digits that tell the ticks apart."""
  largest = max(map(abs, axis.ticks))
  if largest < 1e-3:
    return [f'{tick:.3g}' for tick in axis.ticks]
  # Up to four digits stay as they are: 2,500 and not 2.5 k.
  power = 0 if largest < 10_000 else min(4, int(math.log10(largest) // 3))
  scaled = [tick / 1000**power for tick in axis.ticks]
  step = scaled[1] - scaled[0]
  digits = 0
  while digits < 6 and abs(round(step, digits) - step) > 1e-3 * step:
    digits += 1
  unit = ('', ' k', ' M', ' G', ' T')[power]
  return [
    '0' if abs(value) < step / 2 else f'{value:,.{digits}f}{unit}'
    for value in scaled
  ]


def line_chart(
  name: str,
  title: str,
  description: str,
  xs: np.ndarray,
  ys: np.ndarray,
  x_label: str,
  from_zero: bool = False,
) -> str:
  """One curve over two axes.

  Args:
    name: Unique on the page.
    title: Plain text.
    description: Plain text, what the curve shows, for screen readers.
    xs: [points] float, rising, finite.
    ys: [points] float; the curve breaks where one is not finite.
    x_label: Plain text below the axis.
    from_zero: Whether the vertical axis starts at zero.

  Returns:
    SVG, or '' if no value is finite.
  """
  is_finite = np.isfinite(ys)
  if not is_finite.any():
    return ''
  y_axis = axis(ys[is_finite], 4, from_zero)
  # The curve fills the width, and its last tick may be short of it.
  x_axis = axis(xs, 5, from_zero=True)
  to_x = (_RIGHT - _LEFT) / max(float(xs.max()), 1e-12)
  to_y = (_BOTTOM - _TOP) / (y_axis.high - y_axis.low)
  pixels = np.stack(
    [_LEFT + xs * to_x, _BOTTOM - (ys - y_axis.low) * to_y], axis=1
  )
  dots = pixels[is_finite]
  if len(dots) > _MAX_DOTS:
    dots = dots[-1:]
  content = ''.join(
    [
      *_scales(x_axis, y_axis, to_x, to_y),
      f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_HEIGHT - 4}" '
      f'text-anchor="middle">{markup.text(x_label)}</text>',
      f'<path class="line" d="{_path(pixels)}"/>',
      *(
        f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
        for x, y in dots
      ),
    ]
  )
  return markup.svg(name, title, description, _WIDTH, _HEIGHT, content)


def thin(columns: np.ndarray) -> tuple[np.ndarray, int]:
  """At most a few hundred rows, each the mean of as many rows in a row.

  Args:
    columns: [rows, columns] float64. Where one is not finite, the mean of the
      others stands; the count of rows per mean is the second result.
  """
  every = -(-len(columns) // _MAX_LINE_POINTS) or 1
  if every == 1:
    return columns, 1
  padding = np.full((-len(columns) % every, columns.shape[1]), np.nan)
  groups = np.concatenate([columns, padding]).reshape(
    -1, every, columns.shape[1]
  )
  is_finite = np.isfinite(groups)
  num_finite = is_finite.sum(axis=1)
  sums = np.where(is_finite, groups, 0).sum(axis=1)
  means = np.where(num_finite > 0, sums / np.maximum(num_finite, 1), np.nan)
  return means, every


def _path(pixels: np.ndarray) -> str:
  """A line through the points, broken where one is not finite."""
  parts, is_drawing = [], False
  for x, y in pixels:
    if not np.isfinite(y):
      is_drawing = False
      continue
    # A round cap makes a dot of a stretch of length zero.
    parts.append(f'L{x:.1f} {y:.1f}' if is_drawing else f'M{x:.1f} {y:.1f}h0')
    is_drawing = True
  return ''.join(parts)


def _scales(
  x_axis: Axis, y_axis: Axis, to_x: float, to_y: float
) -> Iterator[str]:
  """Ticks with labels, and lines across the chart."""
  for tick, label in zip(y_axis.ticks, tick_labels(y_axis), strict=True):
    y = _BOTTOM - (tick - y_axis.low) * to_y
    yield (
      f'<path class="grid" d="M{_LEFT} {y:.1f}H{_RIGHT}"/>'
      f'<text x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{label}'
      '</text>'
    )
  for tick, label in zip(x_axis.ticks, tick_labels(x_axis), strict=True):
    x = _LEFT + tick * to_x
    if x <= _RIGHT + 0.5:
      yield (
        f'<path class="tick" d="M{x:.1f} {_BOTTOM}v4"/>'
        f'<text x="{x:.1f}" y="{_BOTTOM + 16}" text-anchor="middle">{label}'
        '</text>'
      )
  yield f'<path class="axis" d="M{_LEFT} {_BOTTOM}H{_RIGHT}"/>'
