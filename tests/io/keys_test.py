"""Numbers of strings."""

import numpy as np
import pyarrow as pa
import pytest

from jaxemb import errors
from jaxemb.io import keys


def _hashes(strings):
  return keys.Text.of(strings).hashes()


def test_keys_are_numbered_as_they_come():
  rng = np.random.default_rng(0)
  words = [f'w{x}' for x in rng.zipf(1.3, 20_000) % 9000]
  known, table = {}, keys.Keys()
  for start in range(0, len(words), 3000):
    some = words[start : start + 3000]
    ids, new = table.add(_hashes(pa.array(some)))
    fresh = [x for x in dict.fromkeys(some) if x not in known]
    assert [some[i] for i in new] == fresh
    for word in fresh:
      known[word] = len(known)
    assert ids.tolist() == [known[x] for x in some]
  found = table.find(_hashes(pa.array(['w1', 'none'])), -1)
  assert found.tolist() == [known['w1'], -1]
  assert _hashes(pa.array([], pa.string())).tolist() == []
  texts = ['', 'a', 'ab', 'abcdefgh', 'abcdefghi', 'ä', 'a\0', 'a\0\0']
  assert len(set(_hashes(pa.array(texts)).tolist())) == len(texts)
  whole = _hashes(pa.array(texts))
  np.testing.assert_array_equal(_hashes(pa.array(texts)[3:]), whole[3:])


@pytest.mark.parametrize('name', ['1.23457E+18', '1E+12', ' 1.23457e+08'])
def test_names_that_lack_digits_are_refused(name):
  text = keys.Text.of(pa.array(['a+12', name], pa.large_string()))
  with pytest.raises(errors.UserError, match='export them as text'):
    text.names()


def test_names_of_all_digits_have_them():
  names = ['1.2345678901234567e+18', '1e+18', '1.23457E+05', 'x1.2E+18']
  text = keys.Text.of(pa.array(names, pa.large_string())).names()
  whole = ['1234567890123456768', '1' + 18 * '0']
  assert text.strings().to_pylist() == [*whole, *names[2:]]


def test_bytes_of_a_cut_space_are_no_space():
  text = keys.Text.of(pa.array([b'\xc2', b'\xa0x'], pa.large_binary()))
  assert [*(text.names().stops - text.names().starts)] == [1, 2]
