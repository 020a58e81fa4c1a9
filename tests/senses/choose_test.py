"""Which words get several senses."""

import pytest

from jaxemb import errors
from jaxemb.senses import choose as senses

WORDS = ['the', 'of', 'bank', 'seal', 'bat']


def test_the_union_of_frequent_and_listed_words(tmp_path):
  path = tmp_path / 'words.txt'
  path.write_text('# a remark\nBank 5\n\nnever\n')
  for choice, lowercase, expected in [
    ((0, 0.0, ''), True, []),
    ((2, 0.0, ''), True, ['the', 'of']),
    ((1, 0.5, ''), True, ['the', 'of', 'bank']),
    ((1, 0.0, str(path)), True, ['the', 'bank']),
  ]:
    found = senses.choose(senses.Choice(*choice), WORDS, lowercase)
    chosen = zip(WORDS, found.is_ambiguous, strict=True)
    assert [w for w, x in chosen if x] == expected
    assert found[1:] == ((2, 1) if choice[2] else (0, 0))
  with pytest.raises(errors.UserError, match='none of the 5 words'):
    senses.choose(senses.Choice(0, 0.0, str(path)), WORDS, False)
  path.write_text('bank\nbank\n', encoding='utf-8-sig')
  assert senses.read_words(path) == ['bank', 'bank']
  found = senses.choose(senses.Choice(0, 0.0, str(path)), WORDS, False)
  assert found.is_ambiguous.sum() == 1 and found[1:] == (1, 0)
  path.write_text('\n')
  with pytest.raises(errors.UserError, match='has no word'):
    senses.choose(senses.Choice(0, 0.0, str(path)), WORDS, True)
  with pytest.raises(errors.UserError, match='cannot read'):
    senses.choose(senses.Choice(0, 0.0, str(tmp_path / 'none')), WORDS, True)
