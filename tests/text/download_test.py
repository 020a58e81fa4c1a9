"""Downloads against a local server: resume, change, checksums, failures."""

import contextlib
import hashlib
import http.server
import json
import logging
import random
import threading
import time
import types
from concurrent import futures

import pytest

from jaxemb import errors
from jaxemb.text import download

_DATED = (
  '/simplewiki/20260101/simplewiki-20260101-pages-articles-multistream.xml.bz2'
)
_LATEST = (
  '/simplewiki/latest/simplewiki-latest-pages-articles-multistream.xml.bz2'
)
_SUMS = '/simplewiki/latest/simplewiki-latest-sha1sums.txt'
_NAME = 'simplewiki-latest-pages-articles-multistream.xml.bz2'


class _Handler(http.server.BaseHTTPRequestHandler):
  """Serves `server.files` with ranges; `server.cuts` ends answers early."""

  def do_GET(self):  # noqa: N802
    server = self.server
    server.requests.append((self.path, self.headers['Range']))
    if server.failures:
      self.send_error(server.failures.pop(0))
      return
    if self.path not in server.files:
      self.send_error(404)
      return
    data, tag = server.files[self.path]
    start = 0
    header = self.headers['Range']
    if header and (self.headers['If-Range'] == tag or server.ignores_if_range):
      start = int(header.removeprefix('bytes=').rstrip('-'))
      if start >= len(data):
        self.send_error(416)
        return
      self.send_response(206)
      end = f'{len(data) - 1}/{len(data)}'
      self.send_header('Content-Range', f'bytes {start}-{end}')
    else:
      self.send_response(200)
    self.send_header('Content-Length', str(len(data) - start))
    if tag:
      self.send_header('ETag', tag)
    self.end_headers()
    body = data[start:]
    if len(data) > 1000 and server.cuts:
      body = body[: server.cuts.pop(0)]
    self.wfile.write(body)

  def log_message(self, *args):
    pass


@pytest.fixture
def server():
  data = random.Random(0).randbytes(3_500_000)
  other = '1' * 40 + '  simplewiki-20260101-pages-articles.xml.bz2\n'
  sums = hashlib.sha1(data).hexdigest() + '  ' + _DATED.split('/')[-1] + '\n'
  httpd = http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Handler)
  httpd.files = {
    _DATED: (data, '"v1"'),
    _LATEST: (data, '"v1"'),
    _SUMS: ((other + sums).encode(), '"s"'),
  }
  httpd.requests, httpd.failures, httpd.cuts = [], [], []
  httpd.ignores_if_range = False
  httpd.url = f'http://127.0.0.1:{httpd.server_port}'
  httpd.data = data
  thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
  thread.start()
  yield httpd
  httpd.shutdown()
  thread.join()
  httpd.server_close()


def _get(server, cache, **kwargs):
  kwargs = {'base_url': server.url, 'backoff_secs': 0.001} | kwargs
  return download.wikipedia('simple', cache, **kwargs)


def _ranges(server):
  """What was asked for, apart from the checksums."""
  return [range_ for path, range_ in server.requests if path != _SUMS]


def _leave_part(server, cache, num_bytes):
  """Interrupts a download after some bytes, as a user would."""

  def stop(done_bytes, total_bytes):
    if done_bytes >= num_bytes:
      raise KeyboardInterrupt

  with contextlib.suppress(KeyboardInterrupt):
    _get(server, cache, progress=stop)
  part = cache / f'{_NAME}.part'
  assert num_bytes <= part.stat().st_size < len(server.data)
  server.requests.clear()
  return part


def test_downloads_once_and_reports_progress(server, tmp_path):
  seen = []
  cache = tmp_path / 'new' / 'cache'
  path = _get(server, cache, progress=lambda *args: seen.append(args))
  assert path == cache / _NAME
  assert path.read_bytes() == server.data
  assert [file.name for file in cache.iterdir()] == [_NAME]
  assert [path for path, _ in server.requests] == [_SUMS, _DATED]
  assert seen[-1] == (len(server.data), len(server.data))
  assert seen == sorted(seen) and len(seen) == 4
  server.requests.clear()
  assert _get(server, cache) == path
  assert not server.requests


def test_connections_that_break_are_resumed(server, tmp_path):
  server.cuts = [1_000_001, 7, 500_000, 0, 1, 1, 1, 1]
  assert _get(server, tmp_path).read_bytes() == server.data
  assert _ranges(server) == [
    None,
    'bytes=1000001-',
    'bytes=1000008-',
    'bytes=1500008-',
    *(f'bytes={1_500_008 + i}-' for i in range(5)),
  ]


def test_a_second_start_resumes(server, tmp_path):
  part = _leave_part(server, tmp_path, 2_000_000)
  num_bytes = part.stat().st_size
  seen = []
  path = _get(server, tmp_path, progress=lambda done, _: seen.append(done))
  assert path.read_bytes() == server.data
  assert _ranges(server) == [f'bytes={num_bytes}-']
  assert seen[0] > num_bytes


@pytest.mark.parametrize('ignores_if_range', [False, True])
def test_a_file_that_changed_is_not_glued_to_an_old_part(
  server, tmp_path, ignores_if_range
):
  _leave_part(server, tmp_path, 2_000_000)
  new = random.Random(1).randbytes(3_000_000)
  sums = f'{hashlib.sha1(new).hexdigest()}  {_DATED.split("/")[-1]}\n'
  server.files[_SUMS] = (sums.encode(), '"t"')
  server.files[_DATED] = (new, '"v2"')
  server.ignores_if_range = ignores_if_range
  assert _get(server, tmp_path).read_bytes() == new


def test_a_newer_dump_starts_over(server, tmp_path):
  _leave_part(server, tmp_path, 2_000_000)
  new = random.Random(1).randbytes(3_000_000)
  dated = _DATED.replace('20260101', '20260201')
  sums = f'{hashlib.sha1(new).hexdigest()}  {dated.split("/")[-1]}\n'
  server.files = {_SUMS: (sums.encode(), '"t"'), dated: (new, '"v1"')}
  assert _get(server, tmp_path).read_bytes() == new
  assert _ranges(server) == [None]


def test_parts_that_cannot_be_trusted_start_over(server, tmp_path):
  part = _leave_part(server, tmp_path, 2_000_000)
  part.write_bytes(b'x' * 9_000_000)  # longer than the file
  assert _get(server, tmp_path).read_bytes() == server.data
  assert _ranges(server) == [None]
  (tmp_path / _NAME).rename(part)  # no notes beside it
  part.write_bytes(b'x' * 1000)
  server.requests.clear()
  assert _get(server, tmp_path).read_bytes() == server.data
  assert _ranges(server) == [None]
  server.files[_DATED] = (server.data, '')  # no version to compare with
  (tmp_path / _NAME).unlink()
  _leave_part(server, tmp_path, 2_000_000)
  assert _get(server, tmp_path).read_bytes() == server.data
  assert _ranges(server) == [None]


def test_a_part_that_was_complete_is_only_checked(server, tmp_path):
  part = tmp_path / f'{_NAME}.part'
  part.write_bytes(server.data)
  notes = {
    'url': server.url + _DATED,
    'tag': '"v1"',
    'total_bytes': len(server.data),
  }
  (tmp_path / f'{_NAME}.part.json').write_text(json.dumps(notes))
  assert _get(server, tmp_path).read_bytes() == server.data
  assert _ranges(server) == []


def test_wrong_checksum_removes_the_part(server, tmp_path):
  server.files[_DATED] = (server.data[:-1] + b'!', '"v1"')
  with pytest.raises(errors.UserError, match='SHA-1 .* removed'):
    _get(server, tmp_path)
  assert not [x for x in tmp_path.iterdir() if x.suffix != '.lock']


@pytest.mark.parametrize('sums', [None, b'', b'<html>moved</html>'])
def test_a_checksum_that_cannot_be_had_is_said(server, tmp_path, caplog, sums):
  if sums is None:
    del server.files[_SUMS]
  else:
    server.files[_SUMS] = (sums, '"s"')
  with caplog.at_level(logging.WARNING):
    assert _get(server, tmp_path).read_bytes() == server.data
  assert 'will not be checked' in caplog.text
  assert server.requests[-1][0] == _LATEST


def test_busy_servers_are_asked_again(server, tmp_path):
  server.failures = [503]
  assert _get(server, tmp_path).read_bytes() == server.data
  (tmp_path / _NAME).unlink()
  server.failures = [429]
  assert _get(server, tmp_path).read_bytes() == server.data


def test_failures_are_one_line_with_the_remedy(server, tmp_path):
  del server.files[_DATED]
  with pytest.raises(errors.UserError) as caught:
    _get(server, tmp_path)
  message = str(caught.value)
  for word in ('404', server.url + _LATEST, str(tmp_path / _NAME)):
    assert word in message
  assert '\n' not in message
  assert len(_ranges(server)) == 1
  server.files[_DATED] = (server.data, '"v1"')
  server.cuts = [1000] + [0] * 20
  with pytest.raises(errors.UserError, match='ended after 1000 bytes'):
    _get(server, tmp_path)
  assert (tmp_path / f'{_NAME}.part').stat().st_size == 1000


def test_no_network(tmp_path):
  with pytest.raises(errors.UserError) as caught:
    download.wikipedia(
      'en', tmp_path, base_url='http://127.0.0.1:9', backoff_secs=0.001
    )
  message = str(caught.value)
  assert 'by hand' in message and 'config.data.path' in message
  assert 'enwiki-latest-pages-articles-multistream.xml.bz2' in message
  assert '\n' not in message


def test_disk_space_is_looked_at_first(server, tmp_path, monkeypatch):
  usage = types.SimpleNamespace(free=1_000_000)
  monkeypatch.setattr(download.shutil, 'disk_usage', lambda path: usage)
  with pytest.raises(errors.UserError, match='0.0 GB free.*needs 0.3 GB'):
    _get(server, tmp_path)
  assert not (tmp_path / f'{_NAME}.part').exists()


def test_cache_folder_that_cannot_be_made(server, tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(errors.UserError, match='cannot be written'):
    _get(server, tmp_path / 'file')
  with pytest.raises(errors.UserError, match="'de'"):
    download.wikipedia('de', tmp_path)


def test_processes_that_want_the_same_download_once(server, tmp_path):
  def progress(done, total):
    del done, total
    time.sleep(0.05)

  with futures.ThreadPoolExecutor(2) as pool:
    jobs = [
      pool.submit(_get, server, tmp_path, progress=progress) for _ in range(2)
    ]
    paths = [job.result() for job in jobs]
  assert paths[0] == paths[1] and paths[0].read_bytes() == server.data
  assert [path for path, _ in server.requests].count(_DATED) == 1
