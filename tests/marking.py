"""Which cases of a test run each time, and which only in the whole suite."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow(*values: Any) -> Any:
  """A case of a test that is slow: a value for each name."""
  return pytest.param(*values, marks=pytest.mark.slow)


def slow_after(count: int, cases: Iterable, *, step: int = 1) -> list:
  """Cases of a test: of the first `count`, each `step`-th is quick.

  A case is what `pytest.mark.parametrize` takes: a plain tuple is a value for
  each of several names. Cases that are marked slow stay so.
  """
  marked = []
  for number, case in enumerate(cases):
    if number >= count or number % step:
      if isinstance(case, type(pytest.param())):
        case = pytest.param(
          *case.values, marks=[*case.marks, pytest.mark.slow], id=case.id
        )
      else:
        values = case if type(case) is tuple else (case,)
        case = slow(*values)
    marked.append(case)
  return marked
