"""A file is there whole or not at all."""

import errno

import pytest

from jaxemb import errors
from jaxemb.storage import atomic


def test_appears_at_the_end(tmp_path):
  path = tmp_path / 'new' / 'x.bin'
  with atomic.write(path) as file:
    file.write(b'one')
    assert not path.exists()
  assert path.read_bytes() == b'one'
  assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
  ('raised', 'expected'),
  [
    (OSError(errno.ENOSPC, 'No space left on device'), errors.UserError),
    (KeyboardInterrupt(), KeyboardInterrupt),
  ],
)
def test_an_error_leaves_what_was_there(tmp_path, raised, expected):
  path = tmp_path / 'x.bin'
  path.write_bytes(b'old')
  with pytest.raises(expected) as caught:
    with atomic.write(path) as file:
      file.write(b'new')
      raise raised
  if expected is errors.UserError:
    assert 'x.bin: No space left' in str(caught.value)
  assert path.read_bytes() == b'old' and list(tmp_path.iterdir()) == [path]


def test_a_folder_in_the_way(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(errors.UserError, match='cannot write'):
    with atomic.write(tmp_path / 'file' / 'x'):
      pass
