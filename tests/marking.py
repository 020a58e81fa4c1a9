"""Which cases of a test run each time, and which only in the whole suite."""

from collections.abc import Iterable

import pytest


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
        case = pytest.param(*values, marks=pytest.mark.slow)
    marked.append(case)
  return marked
