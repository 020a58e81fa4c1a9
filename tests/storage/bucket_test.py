"""Folders in buckets: one in the memory of the process stands for them."""

import json
import tempfile

import fsspec
import pytest

import jaxemb
from jaxemb import errors
from jaxemb.storage import bucket

URL = 'memory://bucket/run'


@pytest.fixture(autouse=True)
def files():
  files = fsspec.filesystem('memory')
  files.store.clear()
  return files


def test_what_changes_is_copied_and_what_is_gone_is_removed(files, tmp_path):
  copy = bucket.Copy(URL, tmp_path)
  (tmp_path / 'checkpoints' / '1').mkdir(parents=True)
  (tmp_path / 'checkpoints' / '1' / 'x').write_bytes(b'one')
  (tmp_path / 'log.txt').write_text('a')
  (tmp_path / '.log.txt.tmp-host-1').write_text('unfinished')
  copy.push()
  assert sorted(files.find('/bucket')) == [
    '/bucket/run/checkpoints/1/x', '/bucket/run/log.txt'
  ]  # fmt: skip
  (tmp_path / 'checkpoints' / '1' / 'x').unlink()
  (tmp_path / 'log.txt').write_text('ab')
  copy.push()
  assert files.find('/bucket') == ['/bucket/run/log.txt']
  with bucket.opened(URL) as folder:
    assert (folder / 'log.txt').read_text() == 'ab'
  assert not folder.exists()


def test_a_checkpoint_that_is_not_complete_there_is_not_fetched(
  monkeypatch, files, tmp_path
):
  for step in '1', '2':
    folder = tmp_path / 'checkpoints' / step
    folder.mkdir(parents=True)
    for name in 'commit_success.txt', 'state':
      (folder / name).write_text(step)
  put, names = type(files).put_file, []

  def lose(self, source, target, **kwargs):
    names.append(target)
    if len(names) == 4:
      raise ConnectionError('lost')
    put(self, source, target, **kwargs)

  monkeypatch.setattr(type(files), 'put_file', lose)
  with pytest.raises(errors.UserError, match='lost'):
    bucket.Copy(URL, tmp_path).push()
  with bucket.opened(URL, 1000.0) as folder:
    (one,) = (folder / 'checkpoints').glob('*')
    assert sorted(x.name for x in one.glob('*')) == [
      'commit_success.txt', 'state'
    ]  # fmt: skip


def test_a_bucket_that_cannot_be_written_leaves_the_copy(
  monkeypatch, files, tmp_path
):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))

  def refuse(*_, **__):
    raise PermissionError('not yours')

  with pytest.raises(errors.UserError, match='not yours.*all is in') as error:
    with bucket.opened(URL, 1000.0) as folder:
      (folder / 'a').write_text('kept')
      monkeypatch.setattr(type(files), 'put_file', refuse)
  assert '\n' not in str(error.value)
  assert (folder / 'a').read_text() == 'kept'


def test_a_bucket_that_is_not_known():
  with pytest.raises(errors.UserError, match='none://x') as error:
    with bucket.opened('none://x'):
      pass
  assert '\n' not in str(error.value)


@pytest.mark.slow
def test_a_run_in_a_bucket_is_resumed_and_loaded(files):
  def train():
    settings = {'train.checkpoint_every_secs': 0.0}
    return jaxemb.train(
      'toywiki:20000', dim=8, epochs=1, workdir=URL, settings=settings
    )

  vectors = train().vectors
  report = json.loads(files.cat('/bucket/run/report.json'))
  assert report['corpus_words'] > 10_000
  names = {x.split('/')[3] for x in files.find('/bucket/run')}
  assert {'checkpoints', 'export', 'metrics.jsonl', 'log.txt'} <= names
  lines = len(files.cat('/bucket/run/log.txt').splitlines())
  assert (train().vectors == vectors).all()  # nothing is left to do
  assert len(files.cat('/bucket/run/log.txt').splitlines()) > lines
  found = jaxemb.load(URL)
  assert (found.vectors == vectors).all()
