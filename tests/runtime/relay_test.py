"""Connections to process 0 by a relay."""

import os
import socket
import subprocess
import sys
import threading

import pytest
from jax._src import distributed as jax_distributed

from jaxemb.runtime import distributed, relay

# Connects from another process; exits with 0 if it is refused.
_CONNECT = """
import socket, sys
with socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5) as connected:
  try:
    connected.sendall(b'GET / HTTP/1.1')
    sys.exit(len(connected.recv(1)))
  except ConnectionError:
    pass
"""


def _served(listener, messages):
  """Answers connections, each of which it ends after a message."""

  def serve():
    while True:
      connected, _ = listener.accept()
      messages.append(connected.recv(100))
      connected.sendall(b'answer')
      connected.close()

  threading.Thread(target=serve, daemon=True).start()
  return listener.getsockname()


@pytest.mark.parametrize('mapped', [False, True])
def test_only_this_process_uses_a_relay(mapped):
  messages, is_lost = [], threading.Event()
  listener = socket.create_server(('127.0.0.1', 0))
  host, port = relay.start(_served(listener, messages), is_lost.set)
  command = [sys.executable, '-S', '-c', _CONNECT, str(port)]
  assert subprocess.run(command, timeout=30).returncode == 0
  assert not messages and not is_lost.is_set()
  if mapped:  # as gRPC does on machines with IPv6
    host = f'::ffff:{host}'
  try:
    connected = socket.create_connection((host, port), 5)
  except OSError:
    pytest.skip('this machine has no IPv6')
  with connected:
    connected.sendall(b'question')
    assert connected.recv(100) == b'answer'
    assert is_lost.wait(5)
  assert messages == [b'question']


def test_a_relay_has_ipv6_where_there_is_no_ipv4(without_ipv4):
  without_ipv4()
  try:
    host, port = relay.start(('127.0.0.1', 9), lambda: None)
  except OSError:
    pytest.skip('this machine has no IPv6')
  assert host == '::1' and port


@pytest.mark.parametrize(
  ('variables', 'expected'),
  [({}, '127.0.0.1'), ({'no_proxy': 'a,b'}, 'a,b,127.0.0.1'),
   ({'no_proxy': 'a', 'no_grpc_proxy': 'c'}, 'c,127.0.0.1')],
)  # fmt: skip
def test_a_relay_needs_no_proxy(monkeypatch, variables, expected):
  for name in ('no_proxy', 'no_grpc_proxy'):
    monkeypatch.delenv(name, raising=False)
  for name, value in variables.items():
    monkeypatch.setenv(name, value)
  old, seen = dict(os.environ), []

  def make(address, *args):
    seen.append(os.environ['no_grpc_proxy'])
    return address

  jaxlib = jax_distributed._jax
  monkeypatch.setattr(jaxlib, 'get_distributed_runtime_client', make)
  monkeypatch.setattr(distributed, 'is_first', lambda: False)
  with distributed._relayed(None):
    address = jaxlib.get_distributed_runtime_client('127.0.0.1:9', 1)
    # Process 0 has no relay, and is its own coordinator.
    monkeypatch.setattr(distributed, 'is_first', lambda: True)
    make_relayed = jaxlib.get_distributed_runtime_client
    assert make_relayed('127.0.0.1:9', 1) == '127.0.0.1:9'
  assert seen == [expected] * 2 and address.startswith('127.0.0.1:')
  assert dict(os.environ) == old
