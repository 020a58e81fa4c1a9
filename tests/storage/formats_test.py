"""Numbers of formats: which are read, and what others end with."""

import pytest

import jaxemb
from jaxemb import errors
from jaxemb.storage import formats

_FORMAT = formats.Format('a thing', number=3, remedy='make it again', oldest=2)


def test_a_number_between_oldest_and_newest_is_read():
  for number in (2, 3):
    record = {'format': number, 'jaxemb': '9', 'x': 1}
    assert _FORMAT.check('file', record) == {'x': 1}
  assert _FORMAT.check('file', _FORMAT.stamp()) == {}
  assert _FORMAT._replace(oldest=1).check('file', {'x': 1}) == {'x': 1}


@pytest.mark.parametrize(
  ('record', 'line'),
  [
    (
      {'format': 4, 'jaxemb': '9.9\n'},
      "file has a thing of format 4, written by jaxemb '9.9\\n', and jaxemb "
      f'{jaxemb.__version__} reads format 2 to 3; upgrade jaxemb',
    ),
    (
      {},  # before there were numbers
      'file has a thing of format 1, and jaxemb '
      f'{jaxemb.__version__} reads format 2 to 3; make it again',
    ),
  ],
)
def test_others_are_refused_by_name(record, line):
  with pytest.raises(errors.UserError) as caught:
    _FORMAT.check('file', record)
  assert str(caught.value) == line


@pytest.mark.parametrize('number', [True, '3', None, 0, 2.5])
def test_what_is_no_number_is_damage(number):
  with pytest.raises(ValueError, match='is no number'):
    _FORMAT.check('file', {'format': number})


def test_a_record_is_an_object():
  with pytest.raises(ValueError, match='no JSON object'):
    _FORMAT.check('file', [3])
