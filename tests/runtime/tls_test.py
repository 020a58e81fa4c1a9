"""TLS between processes on loopback, with right and wrong certificates."""

import contextlib
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import connection

import jax
import pytest

from jaxemb import errors
from jaxemb.runtime import distributed, peers, tls
from tests import certificates, compiling, forked, runs

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
  bool(certificates.missing()), reason=certificates.missing()
)
_JAX_HAS_TLS = hasattr(jax.config, 'jax_mtls_cert_file')
_SECRET = bytes(16)


@pytest.fixture(scope='module')
def right(tmp_path_factory):
  return certificates.make(tmp_path_factory.mktemp('tls') / 'right')


@pytest.fixture(scope='module')
def wrong(tmp_path_factory):
  return certificates.make(tmp_path_factory.mktemp('tls') / 'wrong')


@pytest.fixture
def listener():
  with peers.listen('127.0.0.1') as made:
    yield made


def _in_thread(function, *args):
  """Returns a list that has the result, or what was raised, and a thread."""
  results = []

  def run():
    try:
      results.append(function(*args))
    except Exception as error:
      results.append(error)

  thread = threading.Thread(target=run)
  thread.start()
  return results, thread


def _accepted(listener, credentials, of_client):
  """Returns what both ends of a connection are, or why they are not."""
  results, thread = _in_thread(peers.accept, listener, _SECRET, credentials)
  address = listener.getsockname()
  try:
    client = peers.connect(address, _SECRET, of_client)
  except (*peers.STRANGERS, ValueError) as error:
    client = error
  thread.join()
  return results[0], client


def test_who_has_a_certificate_of_the_same_ca_is_a_peer(listener, right):
  server, client = _accepted(listener, right, right)
  # Both send while the other thread receives.
  message, num = b'x' * 100, 500

  def receive():
    for _ in range(num):
      connection.wait([server])
      assert server.recv_bytes() == message

  _, thread = _in_thread(receive)
  for _ in range(num):
    client.send_bytes(message)
    server.send_bytes(message)
    connection.wait([client])
    assert client.recv_bytes() == message
  thread.join()
  client._socket.close()
  assert connection.wait([server])
  with pytest.raises(EOFError):
    server.recv_bytes()


@pytest.mark.slow
def test_others_are_strangers(listener, right, wrong, monkeypatch):
  monkeypatch.setattr(peers, '_BEGIN_SECS', 2)  # both wait, if one has no TLS
  with_both = pathlib.Path(wrong.ca_file).with_name('both.pem')
  files = wrong.ca_file, right.ca_file
  with_both.write_text(''.join(pathlib.Path(x).read_text() for x in files))
  # It trusts the server, which does not trust it.
  liar = wrong._replace(ca_file=str(with_both))
  for other in (wrong, liar, None):
    for both in ((right, other), (other, right)):
      results = _accepted(listener, *both)
      assert not any(isinstance(x, peers.Peer) for x in results), results
      assert isinstance(results[0], peers.STRANGERS)
  assert isinstance(_accepted(listener, right, right)[1], peers.Peer)


def test_messages_of_strangers_are_short(listener):
  results, thread = _in_thread(peers.accept, listener, _SECRET, None)
  port = listener.getsockname()[1]
  with socket.create_connection(('127.0.0.1', port)) as stranger:
    stranger.sendall(b'\xff' * 1000)
    thread.join()
  assert 'too long' in str(results[0])


def _refused(credentials, host=''):
  with pytest.raises(errors.UserError) as caught:
    credentials.check(host)
  assert '\n' not in str(caught.value)
  return str(caught.value)


def test_unusable_certificates_are_one_line(tmp_path, right, wrong):
  right.check()
  for host in ('127.0.0.1', '::1', 'localhost'):
    right.check(host)
  assert 'not valid for' in _refused(right, 'example.org')
  assert 'not valid for' in _refused(right, '10.0.0.1')
  other = right._replace(ca_file=wrong.ca_file)
  assert 'unable to get local issuer' in _refused(other)
  other = right._replace(key_file=wrong.key_file)
  assert 'key values mismatch' in _refused(other)
  missing = right._replace(key_file=str(tmp_path / 'none'))
  assert f'{tmp_path}/none of TLS: No such file' in _refused(missing)
  (tmp_path / 'text').write_text('no PEM')
  _refused(right._replace(cert_file=str(tmp_path / 'text')))
  _refused(right._replace(ca_file=str(tmp_path / 'text')))
  secret = tmp_path / 'encrypted'
  subprocess.run(
    ['openssl', 'pkcs8', '-topk8', '-in', right.key_file, '-passout',
     'pass:secret', '-out', secret], check=True,
  )  # fmt: skip
  _refused(right._replace(key_file=str(secret)))  # and asks for no password


def test_names_may_be_uris(tmp_path, listener, right):
  text = 'IP:::1,DNS:localhost'
  block = certificates.commands().replace(text, f'{text},URI:job://a/1')
  named = certificates.make(tmp_path / 'named', block)
  mine, other = (named._replace(peer_uri_prefix=f'job://{x}/') for x in 'ab')
  mine.check('example.org')  # its URI is what counts
  assert 'no URI that begins with job://b/' in _refused(other)
  assert isinstance(_accepted(listener, mine, mine)[0], peers.Peer)
  assert 'no URI' in str(_accepted(listener, other, mine)[0])
  assert 'no URI' in str(_accepted(listener, mine, other)[1])


def test_some_settings_without_the_others_are_refused():
  names = 'CERT', 'KEY', 'CA'
  assert tls.credentials([None, '', None], names) is None
  assert tls.credentials('abc', names) == ('a', 'b', 'c', '')
  with pytest.raises(errors.UserError, match='without KEY and CA: set all of'):
    tls.credentials(['a', '', None], names)
  with pytest.raises(errors.UserError, match='without CERT and KEY and CA'):
    tls.credentials(['', '', ''], names, 'job://a/')


@pytest.mark.parametrize('name', ['JAX_MTLS_CA_FILE', distributed._DEMANDS_TLS])
def test_an_old_jax_is_refused(monkeypatch, name):
  monkeypatch.setattr(distributed.jax, 'config', object())
  assert distributed._credentials() is None
  monkeypatch.setenv(name, '1')
  with pytest.raises(errors.UserError) as caught:
    distributed.join(distributed.Job('127.0.0.1:9', 2, 1))
  assert f'{name} is set, and JAX {jax.__version__} has no' in str(caught.value)


def _greeted(listener, credentials, of_client):
  """What a process says of a coordinator that has credentials, or none."""

  def serve():
    for _ in range(1 + (bool(credentials) and not of_client)):
      connected, _ = listener.accept()
      with connected, contextlib.suppress(OSError):
        if credentials:
          credentials.server(connected).sendall(b'\0')
        else:  # as gRPC
          connected.sendall(bytes(9))
          connected.recv(100)

  _, thread = _in_thread(serve)
  address = f'127.0.0.1:{listener.getsockname()[1]}'
  try:
    return distributed._wait_for(address, of_client) or ''
  except errors.UserError as error:
    assert '\n' not in str(error)
    return str(error)
  finally:
    thread.join()


def test_who_does_not_fit_the_coordinator_hears_so(listener, right, wrong):
  assert not _greeted(listener, None, None)
  assert not _greeted(listener, right, right)
  assert 'other has no TLS' in _greeted(listener, None, right)
  assert 'ends connections without TLS' in _greeted(listener, right, None)
  assert '(self-signed certificate' in _greeted(listener, right, wrong)
  other = right._replace(cert_file=wrong.cert_file, key_file=wrong.key_file)
  assert 'unknown ca' in _greeted(listener, right, other)


@pytest.mark.parametrize('has_tls', [False, True])
def test_who_ends_connections_is_waited_for(
  listener, right, monkeypatch, has_tls
):
  """As a proxy does until process 0 listens, or one that ends."""
  monkeypatch.setattr(distributed, 'WAIT_SECS', 0.1)
  credentials = right if has_tls else None
  answers = threading.Event()

  def serve():
    with contextlib.suppress(OSError):
      while True:
        connected, _ = listener.accept()
        with connected:
          if answers.is_set():
            credentials and credentials.server(connected)
            connected.sendall(b'\0')

  _, thread = _in_thread(serve)
  address = f'127.0.0.1:{listener.getsockname()[1]}'
  with pytest.raises(errors.UserError, match='not answer .* TLS.; start proc'):
    distributed._wait_for(address, credentials)
  monkeypatch.setattr(distributed, 'WAIT_SECS', 20)
  timer = threading.Timer(0.2, answers.set)
  timer.start()
  distributed._wait_for(address, credentials)
  listener.shutdown(socket.SHUT_RDWR)
  thread.join()


def test_a_detected_job_checks_its_certificate(monkeypatch, right, tmp_path):
  missing = right._replace(cert_file=str(tmp_path / 'missing'))
  monkeypatch.setattr(distributed, '_credentials', lambda: missing)
  with pytest.raises(errors.UserError, match='cannot read .*missing of TLS'):
    distributed.join(distributed.Job(detects=True))


def _start(workdir, port, number, environment):
  flags = {
    'config.data.path': 'toywiki:20000', 'config.model.dim': 8,
    'config.strategy.name': 'sync', 'config.eval.paths': 'none',
    'config.train.batch_words': 512, 'config.train.epochs': 2,
    'workdir': workdir, 'coordinator': f'localhost:{port}',
    'num_processes': 2, 'process_id': number,
  }  # fmt: skip
  flags = [f'--{k}={x}' for k, x in flags.items()]
  return subprocess.Popen(
    [sys.executable, '-m', 'jaxemb', 'train', '--config=wiki', *flags],
    env=compiling.environment() | {'JAX_PLATFORMS': 'cpu'} | environment,
    cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
  )  # fmt: skip


def _end(process, code):
  """Waits for a process to exit with a code; returns its last line."""
  try:
    _, said = process.communicate(timeout=300)
  finally:
    process.kill()
  assert process.returncode == code, said
  return said.strip().splitlines()[-1] if code else ''


@pytest.mark.slow
@pytest.mark.skipif(_JAX_HAS_TLS, reason='this JAX has TLS')
def test_a_job_with_an_old_jax_is_not_open(tmp_path, right):
  environment = certificates.of_jax(right)
  process = _start(tmp_path, forked.free_port(), 0, environment)
  assert re.match('jaxemb: JAX_MTLS_.* has no TLS', _end(process, 2))


@pytest.mark.slow
@pytest.mark.skipif(not _JAX_HAS_TLS, reason='this JAX has no TLS')
def test_two_processes_train_the_same_with_tls(tmp_path, right, wrong):
  port = forked.free_port()
  plain = [_start(tmp_path / 'plain', port, i, {}) for i in range(2)]
  for process in plain:
    _end(process, 0)
  port, secured = forked.free_port(), certificates.of_jax(right)
  first = _start(tmp_path / 'tls', port, 0, secured)
  start = time.monotonic()
  strangers = [
    _start(tmp_path / 'tls', port, 1, x)
    for x in (certificates.of_jax(wrong), {})
  ]
  lines = [_end(x, 2) for x in strangers]
  assert time.monotonic() - start < distributed.WAIT_SECS
  for line, why in zip(
    lines, ('local issuer', 'ends connections'), strict=True
  ):
    assert line.startswith(f'jaxemb: the coordinator localhost:{port} and this')
    assert why in line
  second = _start(tmp_path / 'tls', port, 1, secured)
  for process in (first, second):
    _end(process, 0)
  assert runs.vectors(tmp_path / 'tls') == runs.vectors(tmp_path / 'plain')
