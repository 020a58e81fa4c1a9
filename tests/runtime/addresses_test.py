"""Addresses of process 0, and of this machine as others reach it."""

import contextlib
import functools
import socket

import psutil
import pytest

from jaxemb import errors
from jaxemb.runtime import addresses, launch, peers


@functools.cache
def has_ipv6() -> bool:
  """Whether this machine has a loopback of IPv6."""
  with contextlib.suppress(OSError):
    socket.create_server(('::1', 0), family=socket.AF_INET6).close()
    return True
  return False


@pytest.mark.parametrize(
  ('address', 'host'),
  [('host-0:1234', 'host-0'), ('10.0.0.1:1234', '10.0.0.1'),
   ('[::1]:1234', '::1'), ('[fd00::2]:1234', 'fd00::2')],
)  # fmt: skip
def test_addresses_are_taken_apart_and_put_together(address, host):
  assert addresses.split(address) == (host, 1234)
  assert addresses.join(host, 1234) == address


@pytest.mark.parametrize(
  'address',
  ['::1:1234', 'fd00::2:1', '[::1]', '[::1]1234', '[10.0.0.1]:1', ':1', '[]:1',
   'host', 'host:0', 'host:65536', 'host:a', '[::1:1234', '::1]:1234'],
)  # fmt: skip
def test_other_addresses_are_refused(address):
  with pytest.raises(errors.UserError, match=r'as in \[::1\]:1234'):
    addresses.split(address)


def _name(monkeypatch, *meant):
  """Has all names mean addresses."""
  found = [(0, 0, 0, '', (x, 0)) for x in meant]
  monkeypatch.setattr(socket, 'getaddrinfo', lambda *args, **more: found)


def test_processes_bind_to_all_where_names_mean_loopback(monkeypatch):
  for host in ('127.0.0.1', 'localhost', '::1'):
    assert addresses.bind_host(host) == host
  for meant, bound in (
    (['10.0.0.7'], 'here'), (['127.0.1.1'], '0.0.0.0'), (['fd00::2'], 'here'),
    (['::1'], '::'), (['fd00::2', '127.0.1.1'], '0.0.0.0'),
  ):  # fmt: skip
    _name(monkeypatch, *meant)
    assert addresses.bind_host('here') == bound


@pytest.mark.parametrize(
  ('family', 'loopback'), [(socket.AF_INET, '127.0.1.1'),
                           (socket.AF_INET6, '::1')],
)  # fmt: skip
def test_names_that_mean_loopback_are_of_no_use_to_others(
  monkeypatch, family, loopback
):
  assert not addresses.reachable('localhost', 9)
  found = [y for x in psutil.net_if_addrs().values() for y in x]
  found = [x.address for x in found if x.family == family]
  outside = [x for x in found if not x.startswith(('127.', '::1', 'fe80'))]
  if not outside:
    pytest.skip('this machine has only a loopback')
  _name(monkeypatch, loopback)
  version = 4 if family == socket.AF_INET else 6
  monkeypatch.setitem(addresses._OUTSIDE, version, outside[0])
  assert addresses.reachable('here', 9) == outside[0]


def test_peers_and_launch_have_ipv6(without_ipv4):
  if not has_ipv6():
    pytest.skip('this machine has no IPv6')
  with peers.listen('::1') as listener:
    port = listener.getsockname()[1]
    socket.create_connection(('::1', port)).close()
  with peers.listen('::') as listener:
    port = listener.getsockname()[1]
    for host in ('::1', '127.0.0.1'):
      socket.create_connection((host, port)).close()
  without_ipv4()
  assert addresses.split(launch._coordinator())[0] == '::1'
