"""Axes and lines of the charts."""

import re
import xml.etree.ElementTree

import numpy as np
import pytest

from jaxemb.report import charts


@pytest.mark.parametrize(
  ('values', 'from_zero', 'ticks'),
  [
    ([2.1, 3.9], False, ['2.0', '2.5', '3.0', '3.5', '4.0']),
    ([1.2e6, 3.4e6], True, ['0', '1 M', '2 M', '3 M', '4 M']),
    ([0.0001, 0.025], True, ['0', '0.01', '0.02', '0.03']),
    ([2.15121, 2.15139], False, None),
    ([5, 5], False, None),
    ([0, 0], True, None),
    ([-3, 8], False, ['-5', '0', '5', '10']),
    ([1e-5, 5e-5], True, ['0', '2e-05', '4e-05', '6e-05']),
  ],
)
def test_ticks_are_round_and_differ(values, from_zero, ticks):
  axis = charts.axis(np.array(values, float), 4, from_zero)
  labels = charts.tick_labels(axis)
  assert axis.low <= min(values) and axis.high >= max(values)
  assert len(set(labels)) == len(labels) >= 2
  if ticks is not None:
    assert labels == ticks


def _chart(ys):
  xs = np.arange(1, len(ys) + 1, dtype=float)
  return charts.line_chart('n', 't', 'd', xs, np.array(ys, float), 'x')


def test_line_breaks_where_values_are_missing():
  svg = _chart([1, 2, np.nan, 3, np.inf, 4])
  (path,) = re.findall(r'class="line" d="([^"]*)"', svg)
  assert re.sub(r'[-\d. ]+', '', path) == 'MhLMhMh'
  xml.etree.ElementTree.fromstring(svg)


def test_line_fills_the_chart():
  svg = _chart([0, 10])
  (path,) = re.findall(r'class="line" d="([^"]*)"', svg)
  points = [
    tuple(map(float, p)) for p in re.findall(r'([\d.]+) ([\d.]+)', path)
  ]
  assert points == [(200, 192), (350, 10)]


def test_nothing_to_draw():
  assert _chart([np.nan]) == ''


def test_thin_takes_means():
  columns = np.arange(2000.0).reshape(1000, 2)
  columns[3, 1] = np.nan
  means, every = charts.thin(columns)
  assert every == 4 and len(means) == 250
  np.testing.assert_allclose(means[0], [3, (1 + 3 + 5) / 3])
  np.testing.assert_allclose(means[1:], columns.reshape(250, 4, 2)[1:].mean(1))
  assert charts.thin(columns[:10])[1] == 1
