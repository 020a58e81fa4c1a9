"""Downloads from a local server: resuming, checksums, failures."""

import gzip
import hashlib
import http.server
import io
import random
import threading
import types
import zipfile
from concurrent import futures

import pytest

from jaxemb import errors
from jaxemb.io import download

_KIND = 'pages-articles-multistream.xml.bz2'
_DATED = f'/simplewiki/20260101/simplewiki-20260101-{_KIND}'
_PART = f'simplewiki-20260101-{_KIND}.part'
_NAME = f'simplewiki-latest-{_KIND}'
_SUMS = '/simplewiki/latest/simplewiki-latest-sha1sums.txt'


class _Handler(http.server.BaseHTTPRequestHandler):
  """Serves `server.files` with ranges; `server.cuts` ends answers early."""

  def do_GET(self):  # noqa: N802
    server, header, start = self.server, self.headers['Range'], 0
    server.requests.append((self.path, header))
    if server.failures:
      return self.send_error(server.failures.pop(0))
    if self.path not in server.files:
      return self.send_error(404)
    data = server.files[self.path]
    if header and not server.ignores_ranges:
      start = int(header.removeprefix('bytes=').rstrip('-'))
      if start >= len(data):
        return self.send_error(416)
    self.send_response(206 if start else 200)
    self.send_header('Content-Length', str(len(data) - start))
    self.end_headers()
    is_cut = len(data) > 1000 and server.cuts
    stop = start + server.cuts.pop(0) if is_cut else len(data)
    self.wfile.write(data[start:stop])
    return None

  def log_message(self, *args):
    pass


def _files(dated, data):
  other = '1' * 40 + '  simplewiki-20260101-pages-articles.xml.bz2\n'
  sums = f'{hashlib.sha1(data).hexdigest()}  {dated.split("/")[-1]}\n'
  return {dated: data, _SUMS: (other + sums).encode()}


@pytest.fixture
def server(monkeypatch):
  httpd = http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Handler)
  httpd.data = random.Random(0).randbytes(3_500_000)
  httpd.files = _files(_DATED, httpd.data)
  httpd.requests, httpd.failures, httpd.cuts = [], [], []
  httpd.ignores_ranges = False
  httpd.url = f'http://127.0.0.1:{httpd.server_port}'
  monkeypatch.setattr(download, 'BASE_URL', httpd.url)
  monkeypatch.setattr(download, '_BACKOFF_SECS', 0.001)
  thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
  thread.start()
  yield httpd
  httpd.shutdown()
  thread.join()
  httpd.server_close()


def _get(cache, **kwargs):
  return download.wikipedia('simple', cache, **kwargs)


def _fails(cache, *words, name='simple'):
  with pytest.raises(errors.UserError) as caught:
    download.wikipedia(name, cache)
  message = str(caught.value)
  assert '\n' not in message
  for word in words:
    assert word in message, message


def _ranges(server):
  """The ranges requested of the dump."""
  return [range_ for path, range_ in server.requests if path == _DATED]


def test_downloads_once_and_reports_progress(server, tmp_path):
  seen = []
  cache = tmp_path / 'new' / 'cache'
  path = _get(cache, progress=lambda *args: seen.append(args))
  assert path == cache / _NAME
  assert path.read_bytes() == server.data
  assert [file.name for file in cache.iterdir()] == [_NAME]
  assert [path for path, _ in server.requests] == [_SUMS, _DATED]
  assert seen[-1] == (len(server.data), len(server.data))
  assert seen == sorted(seen) and len(seen) == 4
  server.requests.clear()
  assert _get(cache) == path
  assert not server.requests


@pytest.mark.parametrize('busy', [429, 503])
def test_connections_that_break_are_resumed(server, tmp_path, busy):
  server.failures = [busy]
  server.cuts = [1_000_001, 7, 500_000, 0, 1, 1, 1, 1]
  assert _get(tmp_path).read_bytes() == server.data
  starts = 1000001, 1000008, 1500008, 1500008, *range(1500009, 1500013)
  assert _ranges(server) == [None, *(f'bytes={x}-' for x in starts)]


@pytest.mark.parametrize(
  ('part_bytes', 'ignores_ranges'), [(2_000_000, True), (3_500_000, False)]
)
def test_a_second_start_resumes(server, tmp_path, part_bytes, ignores_ranges):
  (tmp_path / _PART).write_bytes(server.data[:part_bytes])
  server.ignores_ranges = ignores_ranges
  seen = []
  path = _get(tmp_path, progress=lambda done, _: seen.append(done))
  assert path.read_bytes() == server.data
  assert _ranges(server) == [f'bytes={part_bytes}-']
  assert (min(seen, default=part_bytes) < part_bytes) == ignores_ranges
  assert [file.name for file in tmp_path.iterdir()] == [_NAME]


def test_a_newer_dump_starts_over(server, tmp_path):
  (tmp_path / _PART).write_bytes(server.data[:2_000_000])
  new = random.Random(1).randbytes(3_000_000)
  server.files = _files(_DATED.replace('20260101', '20260201'), new)
  assert _get(tmp_path).read_bytes() == new
  assert [file.name for file in tmp_path.iterdir()] == [_NAME]


def test_wrong_checksum_removes_the_part(server, tmp_path):
  server.files[_DATED] = server.data[:-1] + b'!'
  _fails(tmp_path, 'SHA-1', 'removed')
  assert not list(tmp_path.iterdir())


def test_failures_are_one_line_with_the_remedy(server, tmp_path, monkeypatch):
  (tmp_path / 'file').write_text('')
  _fails(tmp_path / 'file', 'cannot be written')
  _fails(tmp_path, "no Wikipedia 'English'", name='English')
  _fails(tmp_path, '404', 'zh_min_nanwiki-latest', name='zh-min-nan')
  by_hand = 'by hand', 'config.data.path', str(tmp_path / _NAME)
  by_hand += (f'{server.url}/simplewiki/latest/{_NAME}',)
  with monkeypatch.context() as patch:
    usage = types.SimpleNamespace(free=1_000_000)
    patch.setattr(download.shutil, 'disk_usage', lambda path: usage)
    _fails(tmp_path, '0.0 GB are free', 'needs 0.3 GB')
  server.cuts = [1000] + [0] * 20
  _fails(tmp_path, 'ended after 1000 bytes', *by_hand)
  [part] = tmp_path.glob('*.part')
  assert part.stat().st_size == 1000
  del server.files[_DATED]
  _fails(tmp_path, '404', *by_hand)
  server.files[_SUMS] = b'<html>moved</html>'
  _fails(tmp_path, 'names no such file', *by_hand)


def test_processes_that_want_the_same_download_once(server, tmp_path):
  with futures.ThreadPoolExecutor(2) as pool:
    paths = list(pool.map(_get, [tmp_path] * 2))
  assert paths[0] == paths[1] and paths[0].read_bytes() == server.data
  assert len(_ranges(server)) == 1
  assert [path.name for path in tmp_path.iterdir()] == [_NAME]


def _zip(members):
  data = io.BytesIO()
  with zipfile.ZipFile(data, 'w') as file:
    for name, text in members.items():
      file.writestr(name, gzip.compress(text.encode()))
  return data.getvalue()


def test_graphs_are_downloaded_and_unpacked(server, tmp_path, monkeypatch):
  monkeypatch.setattr(download, 'OGB_URL', server.url)
  more = ' ' * 200_000 + str(random.Random(1).randbytes(3000))
  whole = server.files['/arxiv.zip'] = _zip(
    {
      'arxiv/RELEASE_v1.txt': more,
      'arxiv/raw/edge.csv.gz': '0,1\n1,2\n',
      'arxiv/split/time/train.csv.gz': '3\n0\n',
      'arxiv/../../raw/outside.csv.gz': '',
    }
  )
  server.cuts = [1001, 10]
  folder = download.ogb('ogbn-arxiv', tmp_path)
  edges = gzip.decompress((folder / 'raw' / 'edge.csv.gz').read_bytes())
  assert folder == tmp_path / 'ogbn-arxiv' and edges == b'0,1\n1,2\n'
  ranges = [x for _, x in server.requests]
  assert ranges == [None, 'bytes=1001-', 'bytes=1011-']
  found = {str(x.relative_to(tmp_path)) for x in tmp_path.rglob('*.gz')}
  assert len(found) == 2 and all(x.startswith('ogbn-arxiv/') for x in found)
  assert not list(tmp_path.glob('*.part'))
  server.files.clear()
  assert download.ogb('ogbn-arxiv', tmp_path) == folder  # from the cache
  server.files['/proteins.zip'] = whole[:-40] + b'!' * 40
  for name, words in (
    ('ogbn-proteins', 'was removed: download again'),
    (
      'ogbn-products',
      '404.*products.zip by hand, with its raw/ at .*ogbn-products/raw',
    ),
    ('ogbn-mag', "no 'ogbn-mag' to download: choose one of"),
  ):
    with pytest.raises(errors.UserError, match=words):
      download.ogb(name, tmp_path)
