"""Ambiguous words and their rows."""

import numpy as np
import pytest

from jaxemb import config as config_lib
from jaxemb import errors
from jaxemb.senses import mixture

WORDS = ['the', 'of', 'bank', 'seal', 'bat']


def _ambiguous(words='', top_ratio=0.0, lowercase=True):
  config = config_lib.default()
  config.senses.update({'words': str(words), 'top_ratio': top_ratio})
  config.data.lowercase = lowercase
  return mixture.ambiguous(config, WORDS)


def test_ambiguous_words_are_frequent_or_listed(tmp_path):
  path = tmp_path / 'words.txt'
  path.write_text('# a comment\nBank 5\n\nnever\n')
  for args, expected in (
    (('', 0), [0, 0, 0, 0, 0]),
    (('', 0.4), [1, 1, 0, 0, 0]),
    (('', 0.5), [1, 1, 1, 0, 0]),
    ((path, 0.2), [1, 0, 1, 0, 0]),
  ):
    found = _ambiguous(*args)
    assert found.mask.tolist() == expected
    assert found[1:] == ((2, 1) if args[0] else (0, 0))
  with pytest.raises(errors.UserError, match='none of the 5'):
    _ambiguous(path, lowercase=False)
  path.write_text('bank\nbank\n', encoding='utf-8-sig')
  assert _ambiguous(path, lowercase=False)[1:] == (1, 0)
  path.write_text('\n')
  with pytest.raises(errors.UserError, match='has 0 words'):
    _ambiguous(path)
  with pytest.raises(errors.UserError, match='cannot read'):
    _ambiguous(tmp_path / 'none')


def test_rows_of_senses():
  made = mixture.number(np.array([True, False, True]), 3)
  assert made.starts.tolist() == [0, 3, 4, 7]
  assert made.priors.tolist() == [0, 2, 1, 2]
  assert made.owners().tolist() == [0, 0, 0, 1, 2, 2, 2]
  assert made.are_ambiguous().tolist() == [True, False, True]
  single = mixture.number(np.array([True, False]), 1)
  assert (single.num, single.num_ambiguous) == (2, 0)
