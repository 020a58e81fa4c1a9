"""Numbers as people read them."""

import math

import pytest

from jaxemb.report import markup


@pytest.mark.parametrize(
  ('value', 'written'),
  [
    (0, '0'),
    (7, '7'),
    (999, '999'),
    (999.7, '1 k'),
    (1234, '1.23 k'),
    (16_451_234, '16.5 M'),
    (999_950, '1 M'),
    (2.5e15, '2,500 T'),
    (-1500, '-1.5 k'),
    (math.nan, '–'),
    (None, '–'),
    (True, '–'),
  ],
)
def test_short(value, written):
  assert markup.short(value) == written


@pytest.mark.parametrize(
  ('num_bytes', 'written'),
  [(0, '0 bytes'), (999, '999 bytes'), (8.12e8, '812 MB'), (2e9, '2 GB')],
)
def test_size(num_bytes, written):
  assert markup.size(num_bytes) == written


@pytest.mark.parametrize(
  ('secs', 'written'),
  [
    (0.123, '0.12 s'),
    (47.21, '47.2 s'),
    (99.96, '1 min 40 s'),
    (192, '3 min 12 s'),
    (3599.9, '1 h 0 min'),
    (7500, '2 h 5 min'),
    (200_000, '2 days 7 h'),
    (math.inf, '–'),
  ],
)
def test_duration(secs, written):
  assert markup.duration(secs) == written


@pytest.mark.parametrize(
  ('value', 'written'),
  [(0.025, '0.025'), (2.1513, '2.15'), (1234.5, '1,234'), (1e-5, '1e-05')],
)
def test_three_digits(value, written):
  assert markup.three_digits(value) == written


def test_text_is_safe_anywhere():
  assert markup.text('<a b="\'">&\x00\ud800') == (
    '&lt;a b=&quot;&#x27;&quot;&gt;&amp;\ufffd\ufffd'
  )
