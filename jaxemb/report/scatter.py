"""A map of labelled marks as inline SVG.

Labels are placed one by one, the most important first, where they cover none
of those before; what finds no place has its text under the pointer only. The
colours come from the page's style sheet, through classes.
"""

import math
import unicodedata
from collections.abc import Sequence

import numpy as np

from jaxemb.report import markup

_NUM_COLORS = 6
# Outlines around 0, 0 of about equal area: circle, square, triangle, diamond.
_SHAPES = (
  'M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z',
  'M-3.5-3.5h7v7h-7z',
  'M0-4.9L4.8 3.5H-4.8z',
  'M0-5L5 0L0 5L-5 0z',
)
_MAX_LABEL_CHARS = 22
_MARGIN = 14.0  # pixels around the marks
_MARK = 5.0  # half the width of a mark
_LINE_HEIGHT = 12.0


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
  max_height: int,
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
    max_height: Of the drawing, pixels; if larger than the width, the first
      coordinate runs upwards.

  Returns:
    SVG.
  """
  pixels, height = _fit(positions, width, max_height)
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
  return markup.svg(name, title, description, width, height, content)


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


def _fit(
  positions: np.ndarray, width: int, max_height: int
) -> tuple[np.ndarray, int]:
  """[marks, 2] pixels, and the height needed for them."""
  if max_height > width:
    positions = positions[:, ::-1]
  low, high = positions.min(axis=0), positions.max(axis=0)
  room = np.array([width, max_height]) - 2 * _MARGIN
  scale = (room / np.maximum(high - low, 1e-12)).min()
  centred = (positions - (low + high) / 2) * scale
  spans = (high - low) * scale
  height = math.ceil(max(spans[1] + 2 * _MARGIN, max_height / 3))
  return centred * [1, -1] + np.array([width, height]) / 2, height


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
