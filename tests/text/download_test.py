"""Downloads from a local server: resuming, checksums, failures."""

import contextlib
import hashlib
import http.server
import random
import threading
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
    data = server.files[self.path]
    start = 0
    header = self.headers['Range']
    if header and not server.ignores_ranges:
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
    _DATED: data,
    _SUMS: (other + sums).encode(),
  }
  httpd.requests, httpd.failures, httpd.cuts = [], [], []
  httpd.ignores_ranges = False
  httpd.url = f'http://127.0.0.1:{httpd.server_port}'
  httpd.data = data
  thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
  thread.start()
  yield httpd
  httpd.shutdown()
  thread.join()
  httpd.server_close()


def _get(server, cache, **kwargs):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(download, 'BASE_URL', server.url)
    patch.setattr(download, '_BACKOFF_SECS', 0.001)
    return download.wikipedia('simple', cache, **kwargs)


def _ranges(server):
  """The ranges requested of the dump."""
  return [range_ for path, range_ in server.requests if path == _DATED]


def _leave_part(server, cache, num_bytes):
  """Interrupts a download after some bytes, as a user would."""

  def stop(done_bytes, total_bytes):
    if done_bytes >= num_bytes:
      raise KeyboardInterrupt

  with contextlib.suppress(KeyboardInterrupt):
    _get(server, cache, progress=stop)
  [part] = cache.glob('*.part')
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


@pytest.mark.parametrize('ignores_ranges', [False, True])
def test_a_second_start_resumes(server, tmp_path, ignores_ranges):
  part = _leave_part(server, tmp_path, 2_000_000)
  num_bytes = part.stat().st_size
  server.ignores_ranges = ignores_ranges
  seen = []
  path = _get(server, tmp_path, progress=lambda done, _: seen.append(done))
  assert path.read_bytes() == server.data
  assert _ranges(server) == [f'bytes={num_bytes}-']
  assert (seen[0] < num_bytes) == ignores_ranges


def test_a_complete_part_is_only_checked(server, tmp_path):
  part = _leave_part(server, tmp_path, 2_000_000)
  part.write_bytes(server.data)
  assert _get(server, tmp_path).read_bytes() == server.data
  assert not part.exists()


def test_a_newer_dump_starts_over(server, tmp_path):
  _leave_part(server, tmp_path, 2_000_000)
  new = random.Random(1).randbytes(3_000_000)
  dated = _DATED.replace('20260101', '20260201')
  sums = f'{hashlib.sha1(new).hexdigest()}  {dated.split("/")[-1]}\n'
  server.files = {_SUMS: sums.encode(), dated: new}
  assert _get(server, tmp_path).read_bytes() == new
  assert [file.name for file in tmp_path.iterdir()] == [_NAME]


def test_wrong_checksum_removes_the_part(server, tmp_path):
  server.files[_DATED] = server.data[:-1] + b'!'
  with pytest.raises(errors.UserError, match='SHA-1 .* removed'):
    _get(server, tmp_path)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('failures', [[503], [429]])
def test_busy_servers_are_asked_again(server, tmp_path, failures):
  server.failures = failures
  assert _get(server, tmp_path).read_bytes() == server.data


def test_failures_are_one_line_with_the_remedy(server, tmp_path):
  del server.files[_DATED]
  for sums, expected in (
    (server.files[_SUMS], '404'),
    (b'<html>moved</html>', 'names no such file'),
    (None, '404'),
  ):
    server.files[_SUMS] = sums
    if sums is None:
      del server.files[_SUMS]
    with pytest.raises(errors.UserError) as caught:
      _get(server, tmp_path)
    message = str(caught.value)
    for word in (expected, server.url + _LATEST, str(tmp_path / _NAME)):
      assert word in message
    assert '\n' not in message


def test_a_server_that_sends_no_more_is_given_up(server, tmp_path):
  server.cuts = [1000] + [0] * 20
  with pytest.raises(errors.UserError, match='ended after 1000 bytes'):
    _get(server, tmp_path)
  [part] = tmp_path.glob('*.part')
  assert part.stat().st_size == 1000


def test_no_network(tmp_path, monkeypatch):
  monkeypatch.setattr(download, 'BASE_URL', 'http://127.0.0.1:9')
  monkeypatch.setattr(download, '_BACKOFF_SECS', 0.001)
  with pytest.raises(errors.UserError) as caught:
    download.wikipedia('en', tmp_path)
  message = str(caught.value)
  assert 'by hand' in message and 'config.data.path' in message
  assert 'enwiki-latest-pages-articles-multistream.xml.bz2' in message
  assert '\n' not in message


def test_disk_space_is_checked_first(server, tmp_path, monkeypatch):
  usage = types.SimpleNamespace(free=1_000_000)
  monkeypatch.setattr(download.shutil, 'disk_usage', lambda path: usage)
  with pytest.raises(errors.UserError, match='0.0 GB are free.*needs 0.3 GB'):
    _get(server, tmp_path)


def test_unusable_names_and_folders(server, tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(errors.UserError, match='cannot be written'):
    _get(server, tmp_path / 'file')
  with pytest.raises(errors.UserError, match="'de'"):
    download.wikipedia('de', tmp_path)


def test_processes_that_want_the_same_download_once(server, tmp_path):
  with futures.ThreadPoolExecutor(2) as pool:
    jobs = [pool.submit(_get, server, tmp_path) for _ in range(2)]
    paths = [job.result() for job in jobs]
  assert paths[0] == paths[1] and paths[0].read_bytes() == server.data
  assert len(_ranges(server)) == 1
  assert [path.name for path in tmp_path.iterdir()] == [_NAME]
