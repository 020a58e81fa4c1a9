"""Waits for compilation add up."""

import time

import pytest

from jaxemb.runtime import compile_time


def _wait(secs):
  with compile_time.waiting():
    time.sleep(secs)


def test_waits_add_up_while_they_are_counted():
  _wait(0.01)
  with compile_time.waited() as waited:
    assert waited.secs == 0
    _wait(0.01)
    with pytest.raises(ZeroDivisionError), compile_time.waiting():
      time.sleep(0.02)
      raise ZeroDivisionError
    time.sleep(0.2)
  _wait(0.2)
  assert 0.03 <= waited.secs < 0.2
