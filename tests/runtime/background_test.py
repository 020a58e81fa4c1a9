"""Modules in processes of their own."""

import sys

import pytest

from jaxemb.runtime import background


def test_a_frozen_program_is_not_started(monkeypatch):
  """It would be this one, which trains."""
  monkeypatch.setattr(sys, 'frozen', True, raising=False)
  with pytest.raises(OSError, match='no Python'):
    background.start('jaxemb.errors')
