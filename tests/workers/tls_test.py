"""Links to shards, and Ray, by TLS, with right and wrong certificates."""

import pathlib
import re
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

from jaxemb import errors
from jaxemb.workers import links, nodes, remote
from tests import certificates, compiling, runs

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
  bool(certificates.missing()), reason=certificates.missing()
)


@pytest.fixture(scope='module')
def right(tmp_path_factory):
  return certificates.make(tmp_path_factory.mktemp('tls') / 'right')


@pytest.fixture(scope='module')
def wrong(tmp_path_factory):
  return certificates.make(tmp_path_factory.mktemp('tls') / 'wrong')


def _set(monkeypatch, credentials):
  names = certificates.of_ray(credentials) if credentials else {}
  for name in ('RAY_USE_TLS', *nodes._TLS_FILES):
    monkeypatch.delenv(name, raising=False)
    if credentials:
      monkeypatch.setenv(name, names[name])


def _ask(server, secs=5):
  """Returns the answer to a call by a new link."""
  place = links.Place('', 0, {}, server.host, server.port, server.secret)
  link = links.Far(place, secs)
  link.send([('x', None, 'newer', (np.arange(1 << 18),))])
  problem, answers = link._receiver.receive()
  assert not problem
  return answers[0]


def test_links_are_encrypted(monkeypatch, right, wrong):
  _set(monkeypatch, right)
  monkeypatch.setattr(links, '_SECRET_SECS', 1)
  server = links.Server('127.0.0.1', lambda calls: [calls[0][-1][0] + 1])
  np.testing.assert_array_equal(_ask(server), 1 + np.arange(1 << 18))
  for other in wrong, None:
    _set(monkeypatch, other)
    with pytest.raises(OSError):
      _ask(server)
  _set(monkeypatch, right)
  np.testing.assert_array_equal(_ask(server), 1 + np.arange(1 << 18))


def test_links_have_ipv6():
  try:
    server = links.Server('::1', lambda calls: [calls[0][-1][0]])
  except OSError:
    pytest.skip('this machine has no IPv6')
  np.testing.assert_array_equal(_ask(server), np.arange(1 << 18))


def _checked(listener, of_head, monkeypatch, credentials):
  """Returns why a command does not use a head, or ''."""

  def serve():
    for _ in range(1 + (bool(of_head) and not credentials)):
      connected, _ = listener.accept()
      try:
        connected = of_head.server(connected) if of_head else connected
        connected.sendall(bytes(9))  # as gRPC
        connected.recv(100)
      except OSError:
        pass
      finally:
        connected.close()

  thread = threading.Thread(target=serve)
  thread.start()
  _set(monkeypatch, credentials)
  try:
    nodes.check_tls(f'127.0.0.1:{listener.getsockname()[1]}')
  except errors.UserError as error:
    assert re.match('the head of Ray at RAY_ADDRESS=127[^\n]*$', str(error))
    return str(error)
  finally:
    thread.join()
  return ''


def test_a_head_with_another_certificate_is_one_line(monkeypatch, right, wrong):
  with socket.create_server(('127.0.0.1', 0)) as listener:
    args = listener, right, monkeypatch
    assert not _checked(*args, credentials=right)
    assert '(self-signed certificate' in _checked(*args, credentials=wrong)
    assert 'without TLS' in _checked(*args, credentials=None)
    args = listener, None, monkeypatch
    assert not _checked(*args, credentials=None)
    assert 'other has no TLS' in _checked(*args, credentials=right)


def test_a_head_that_ends_connections_is_left_to_ray(monkeypatch, right):
  with socket.create_server(('127.0.0.1', 0)) as listener:

    def serve():
      for _ in range(3):  # a greeting, another of TLS, one of the latter alone
        listener.accept()[0].close()

    threading.Thread(target=serve, daemon=True).start()
    for credentials in (None, right):
      _set(monkeypatch, credentials)
      nodes.check_tls(f'127.0.0.1:{listener.getsockname()[1]}')
  with pytest.raises(errors.UserError, match='^RAY_ADDRESS=::1:6379 must be'):
    nodes.check_tls('::1:6379')


@pytest.mark.slow  # imports Ray
def test_settings_of_ray_without_files_are_refused(monkeypatch):
  _set(monkeypatch, None)
  assert nodes.credentials() is None
  monkeypatch.setenv('RAY_USE_TLS', '1')
  with pytest.raises(errors.UserError, match='without RAY_TLS_SERVER_CERT'):
    remote.Cluster().num_cpus()


def _train(workdir, credentials):
  settings = {
    'data.path': 'toywiki:20000', 'model.dim': 8, 'eval.paths': 'none',
    'strategy.name': 'workers', 'strategy.num_workers': 2, 'table.shards': 2,
    'train.batch_words': 512, 'train.epochs': 1,
  }  # fmt: skip
  flags = [f'--config.{k}={x}' for k, x in settings.items()]
  command = [sys.executable, '-m', 'jaxemb', 'train', '--config=wiki']
  return subprocess.run(
    [*command, f'--workdir={workdir}', *flags], cwd=ROOT, timeout=400,
    env=compiling.environment() | certificates.of_ray(credentials),
    stderr=subprocess.PIPE, text=True,
  )  # fmt: skip


@pytest.mark.slow
@pytest.mark.ray
def test_workers_train_with_tls(tmp_path, right):
  import ray

  node = ray.util.get_node_ip_address()
  if node != '127.0.0.1':
    ended = _train(tmp_path / 'refused', right)
    assert ended.returncode == 2 and f"not valid for '{node}'" in ended.stderr
  block = certificates.commands().replace('IP:::1', f'IP:::1,IP:{node}')
  credentials = certificates.make(tmp_path / 'named', block)
  ended = _train(tmp_path / 'run', credentials)
  assert ended.returncode == 0, ended.stderr
  assert runs.report(tmp_path / 'run')['workers']['replaced'] == 0
