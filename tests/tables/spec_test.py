"""What a table is described by."""

import dataclasses

import pytest

from jaxemb.tables import spec as spec_lib


def test_a_spec_is_a_value():
  spec = spec_lib.TableSpec('words', 10, 4, 0.5)
  assert spec == spec_lib.TableSpec('words', 10, 4, 0.5)
  assert hash(spec) == hash(spec_lib.TableSpec('words', 10, 4, 0.5))
  with pytest.raises(dataclasses.FrozenInstanceError):
    spec.vocab = 11
