"""Values of JSON are what annotations say, or refused."""

import dataclasses

import pytest

from jaxemb.storage import damage


@dataclasses.dataclass
class _Spec:
  name: str
  sizes: tuple[int, ...]
  rate: float = 0.5
  is_on: bool = False


def test_values_are_those_of_the_fields():
  values = {'name': 'a', 'sizes': [1, 2], 'rate': 1, 'is_on': True}
  spec = _Spec(**damage.checked_fields(_Spec, values))
  assert spec == _Spec('a', (1, 2), 1, True)
  assert damage.checked(tuple[str, ...], []) == ()


@pytest.mark.parametrize(
  ('values', 'line'),
  [
    ({'name': 1}, "'1' is no str"),
    ({'name': None}, "'None' is no str"),
    ({'sizes': 3}, "'3' is no list"),
    ({'sizes': [1, None]}, "'None' is no int"),
    ({'sizes': [True]}, "'True' is no int"),
    ({'sizes': [1.0]}, "'1.0' is no int"),
    ({'sizes': [2**31]}, "'2147483648' is no int"),
    ({'rate': 10**400}, 'is no float'),
    ({'rate': '1'}, "'1' is no float"),
    ({'is_on': 1}, "'1' is no bool"),
    ({'other': 1}, "'other' is no field"),
    ([], r"'\[\]' is no dict"),
  ],
)
def test_other_values_are_refused(values, line):
  with pytest.raises(ValueError, match=line):
    damage.checked_fields(_Spec, values)
