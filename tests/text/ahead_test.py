"""The process that compiles the tokenizer."""

from jaxemb.text import ahead


def test_compiles_once(tmp_path, monkeypatch):
  monkeypatch.setenv('NUMBA_CACHE_DIR', str(tmp_path / 'numba'))
  ahead.start(tmp_path)
  (process,) = ahead._started
  ahead.wait()
  assert process.returncode == 0 and not ahead._started
  (mark,) = (tmp_path / 'programs').iterdir()
  assert mark.name.startswith('tokenize-')
  # What a run loads in place of compiling.
  names = {x.name.split('-')[0] for x in (tmp_path / 'numba').rglob('*.nbi')}
  assert names == {'tokenize._read'}
  ahead.start(tmp_path)
  assert not ahead._started


def test_without_a_process_the_run_compiles(tmp_path, monkeypatch):
  monkeypatch.setattr('sys.executable', '')
  ahead.start(tmp_path)
  assert not ahead._started
  ahead.wait()
