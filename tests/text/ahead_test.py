"""The process that compiles the tokenizer."""

import pytest

from jaxemb.text import ahead


@pytest.mark.slow
def test_compiles_once(tmp_path, monkeypatch):
  monkeypatch.setenv('NUMBA_CACHE_DIR', str(tmp_path / 'numba'))
  monkeypatch.setattr(ahead, '_started', [])
  ahead.start(tmp_path)
  ((process, mark),) = ahead._started
  ahead.wait()
  assert mark.exists()
  assert process.wait() == 0
  assert [mark] == list((tmp_path / 'programs').iterdir())
  assert mark.name.startswith('tokenize-')
  # What a run loads in place of compiling.
  names = {x.name.split('-')[0] for x in (tmp_path / 'numba').rglob('*.nbi')}
  assert {'tokenize._read', 'hashing.order'} <= names
  ahead._started.clear()
  ahead.start(tmp_path)
  assert not ahead._started


def test_without_a_process_the_run_compiles(tmp_path, monkeypatch):
  monkeypatch.setattr(ahead, '_started', [])
  monkeypatch.setattr('sys.executable', '')
  ahead.start(tmp_path)
  assert not ahead._started
  ahead.wait()
