"""Charts of the report as inline SVG, drawn in Python.

Colours and fonts come from the page's style sheet through classes, so that a
chart follows light and dark. Every chart carries a title and a description.
"""

import math
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxemb.reporting import markup

_MAX_LINE_POINTS = 300
_NUM_COLORS = 6
# Outlines around 0, 0 of about equal area: circle, square, triangle, diamond.
_SHAPES = (
  'M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z',
  'M-3.5-3.5h7v7h-7z',
  'M0-4.9L4.8 3.5H-4.8z',
  'M0-5L5 0L0 5L-5 0z',
)
_MAX_LABEL_CHARS = 22
_MARGIN = 14.0  # pixels around a map
_MARK = 5.0  # half the width of a mark
_LINE_HEIGHT = 12.0


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
  width, height, left, right, top, bottom = 360, 230, 50, 10, 10, 38
  x_axis = axis(xs, 5, from_zero=True)
  y_axis = axis(ys[is_finite], 4, from_zero)
  end = max(float(xs.max()), 1e-12)  # the curve fills the width
  to_x = (width - left - right) / end
  to_y = (height - top - bottom) / (y_axis.high - y_axis.low)
  parts = []
  for tick, label in zip(y_axis.ticks, tick_labels(y_axis), strict=True):
    y = height - bottom - (tick - y_axis.low) * to_y
    parts.append(
      f'<path class="grid" d="M{left} {y:.1f}H{width - right}"/>'
      f'<text x="{left - 6}" y="{y + 3.5:.1f}" text-anchor="end">'
      f'{label}</text>'
    )
  for tick, label in zip(x_axis.ticks, tick_labels(x_axis), strict=True):
    x = left + tick * to_x
    if x <= width - right + 0.5:
      parts.append(
        f'<path class="tick" d="M{x:.1f} {height - bottom}v4"/>'
        f'<text x="{x:.1f}" y="{height - bottom + 16}" text-anchor="middle">'
        f'{label}</text>'
      )
  parts.append(
    f'<path class="axis" d="M{left} {height - bottom}H{width - right}"/>'
    f'<text x="{(left + width - right) / 2}" y="{height - 4}" '
    f'text-anchor="middle">{markup.text(x_label)}</text>'
  )
  pixels = np.stack(
    [left + xs * to_x, height - bottom - (ys - y_axis.low) * to_y], axis=1
  )
  parts.append(f'<path class="line" d="{_path(pixels)}"/>')
  x, y = pixels[is_finite][-1]
  parts.append(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
  return _svg(name, title, description, width, height, ''.join(parts))


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


def mark(group: int) -> str:
  """The mark of a group as a small image, for legends."""
  return (
    '<svg class="mark" viewBox="-6 -6 12 12" width="12" height="12" '
    f'aria-hidden="true">{_mark(group, 0, 0)}</svg>'
  )


def scatter(
  name: str,
  title: str,
  description: str,
  positions: np.ndarray,
  labels: Sequence[str],
  tips: Sequence[str],
  groups: Sequence[int],
  group_names: Sequence[str],
  width: int,
  height: int,
) -> str:
  """A map of labelled marks; a label that would cover another is left out.

  Args:
    name: Unique on the page.
    title: Plain text.
    description: Plain text, for screen readers.
    positions: [marks, 2] float, any scale; both axes are scaled alike.
    labels: Plain text of each mark, the most important first.
    tips: Plain text of each mark, shown by browsers under the pointer.
    groups: Group of each mark, numbered from 0; decides colour and shape.
    group_names: Plain text of each group, written amid its marks.
    width: Of the drawing, pixels.
    height: Of the drawing, pixels.

  Returns:
    SVG.
  """
  pixels = _fit(positions, width, height)
  boxes = _Boxes(pixels, width, height)
  headings = [
    _heading(pixels[np.asarray(groups) == group], group_names[group], boxes)
    for group in np.argsort(-np.bincount(groups, minlength=len(group_names)))
    if group in set(np.asarray(groups).tolist())
  ]
  texts = [_label(i, label, boxes) for i, label in enumerate(map(_cut, labels))]
  marks = [
    f'<g class="p" data-g="{group}">{_mark(group, x, y)}{written}'
    f'<title>{markup.text(tip)}</title></g>\n'
    for (x, y), group, written, tip in zip(
      pixels, groups, texts, tips, strict=True
    )
  ]
  content = ''.join([*marks, *headings])
  return _svg(name, title, description, width, height, content)


class _Boxes:
  """Rectangles already taken: (left, top, right, bottom) each."""

  def __init__(self, pixels: np.ndarray, width: int, height: int):
    self.marks = np.concatenate([pixels - _MARK, pixels + _MARK], axis=1)
    self.labels = np.zeros((0, 4))
    self.size = (width, height)

  def fits(self, box: tuple[float, float, float, float]) -> bool:
    """Whether the box lies on the page and covers no label."""
    width, height = self.size
    is_inside = (
      box[0] >= 0 and box[1] >= 0 and box[2] <= width and box[3] <= height
    )
    return is_inside and not _overlaps(self.labels, box).any()

  def take(self, box: tuple[float, float, float, float]) -> None:
    """Keeps later labels off the box."""
    self.labels = np.concatenate([self.labels, [box]])


def _overlaps(boxes: np.ndarray, box: tuple) -> np.ndarray:
  return (
    (boxes[:, 0] < box[2])
    & (boxes[:, 2] > box[0])
    & (boxes[:, 1] < box[3])
    & (boxes[:, 3] > box[1])
  )


def _heading(pixels: np.ndarray, name: str, boxes: _Boxes) -> str:
  """A group's name amid its marks, or '' if no place near is free."""
  name = _cut(name)
  half = _text_width(name, 12.5) / 2
  middle_x, middle_y = _densest(pixels)
  candidates = []
  for shift in range(0, 80, 6):
    for y in {middle_y - shift, middle_y + shift}:
      for x in (middle_x, middle_x - half / 2, middle_x + half / 2):
        box = (x - half, y - 8, x + half, y + 6)
        if boxes.fits(box):
          covered = int(_overlaps(boxes.marks, box).sum())
          candidates.append((12 * covered + shift, x, y, box))
  if not candidates:
    return ''
  _, x, y, box = min(candidates)
  boxes.take(box)
  return (
    f'<text class="group" x="{x:.1f}" y="{y + 3:.1f}" text-anchor="middle">'
    f'{markup.text(name)}</text>\n'
  )


def _densest(pixels: np.ndarray) -> np.ndarray:
  """[2] middle of the half of the marks that lies closest together.

  Where a group is scattered, its mean or median is amid other groups.
  """
  half = len(pixels) // 2 + 1
  apart = np.linalg.norm(pixels[:, None] - pixels[None, :], axis=2)
  nearest = np.argsort(apart, axis=1, kind='stable')[:, :half]
  spread = np.take_along_axis(apart, nearest, axis=1).sum(axis=1)
  return pixels[nearest[spread.argmin()]].mean(axis=0)


def _label(index: int, label: str, boxes: _Boxes) -> str:
  """A mark's label beside it, or '' if no side is free."""
  left, top, right, bottom = boxes.marks[index]
  middle_x, middle_y = (left + right) / 2, (top + bottom) / 2
  span = _text_width(label, 10.5)
  half = _LINE_HEIGHT / 2
  sides = (
    ('start', right + 1, middle_y),
    ('end', left - 1, middle_y),
    ('middle', middle_x, top - half),
    ('middle', middle_x, bottom + half),
  )
  others = np.delete(boxes.marks, index, axis=0)
  for anchor, x, y in sides:
    start = x - {'start': 0, 'end': span, 'middle': span / 2}[anchor]
    box = (start, y - half, start + span, y + half)
    if boxes.fits(box) and not _overlaps(others, box).any():
      boxes.take(box)
      return (
        f'<text x="{x:.1f}" y="{y + 3.5:.1f}" text-anchor="{anchor}">'
        f'{markup.text(label)}</text>'
      )
  return ''


def _fit(positions: np.ndarray, width: int, height: int) -> np.ndarray:
  """[marks, 2] pixels, the longer side of the cloud along the longer side."""
  if height > width:
    positions = positions[:, ::-1]
  low, high = positions.min(axis=0), positions.max(axis=0)
  room = np.array([width, height]) - 2 * _MARGIN
  scale = (room / np.maximum(high - low, 1e-12)).min()
  centred = (positions - (low + high) / 2) * scale
  return centred * [1, -1] + np.array([width, height]) / 2


def _mark(group: int, x: float, y: float) -> str:
  shape = _SHAPES[group // _NUM_COLORS % len(_SHAPES)]
  place = f' transform="translate({x:.1f} {y:.1f})"' if x or y else ''
  return f'<path class="c{group % _NUM_COLORS}" d="{shape}"{place}/>'


def _cut(label: str) -> str:
  is_long = len(label) > _MAX_LABEL_CHARS
  return label[: _MAX_LABEL_CHARS - 1] + '…' if is_long else label


def _text_width(label: str, font_size: float) -> float:
  """Pixels, a little more than any common font needs."""
  wide = sum(unicodedata.east_asian_width(c) in 'WF' for c in label)
  return font_size * (0.6 * (len(label) - wide) + 1.05 * wide)


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


def _svg(
  name: str,
  title: str,
  description: str,
  width: int,
  height: int,
  content: str,
) -> str:
  return (
    f'<svg viewBox="0 0 {width} {height}" role="img" '
    f'aria-labelledby="{name}-t {name}-d">'
    f'<title id="{name}-t">{markup.text(title)}</title>'
    f'<desc id="{name}-d">{markup.text(description)}</desc>\n'
    f'{content}</svg>\n'
  )
