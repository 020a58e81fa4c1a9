"""Addresses by which the processes of a job reach each other: IPv4 or IPv6."""

import contextlib
import ipaddress
import socket

from jaxemb import errors

# By version of IP: all of this machine; one of no machine (RFC 5737 and 3849).
_ALL = {4: '0.0.0.0', 6: '::'}
_OUTSIDE = {4: '198.51.100.1', 6: '2001:db8::1'}
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}


def split(address: str, name: str = '--coordinator') -> tuple[str, int]:
  """Returns host and port of HOST:PORT; IPv6 addresses are in brackets.

  `name` is that of the setting.
  """
  host, _, port = address.rpartition(':')
  is_v6 = host.startswith('[') and host.endswith(']')
  host = host[1:-1] if is_v6 else host
  if (
    not host
    or (':' in host) != is_v6
    or not port.isdecimal()
    or not 0 < int(port) < 2**16
  ):
    raise errors.UserError(
      f'{name}={address} must be HOST:PORT, with a name, an IPv4 '
      'address or an IPv6 address in brackets, as in [::1]:1234, and a port '
      'from 1 to 65,535'
    )
  return host, int(port)


def join(host: str, port: int) -> str:
  """Returns what `split` takes apart."""
  return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'


def reachable(host: str, port: int) -> str:
  """Returns the address at which others reach this machine, given process 0's.

  '' where its host name resolves to one, as Gloo expects. On Debian and Ubuntu
  it resolves to loopback, and no other machine could connect.
  """
  try:
    first = _address(host)
    with contextlib.suppress(OSError):  # no name that means anything
      here = _address(socket.gethostname())
      if not here.is_loopback and here.version == first.version:
        return ''
    version, target = first.version, str(first)
    if (
      bind_host(host) == _ALL[version]
    ):  # this may be the machine that it names
      target = _OUTSIDE[version]
    with socket.socket(_FAMILIES[version], socket.SOCK_DGRAM) as probe:
      probe.connect((target, port))  # sends nothing: it chooses a route
      address = probe.getsockname()[0]
  except OSError:  # reported by whoever connects
    return ''
  return '' if ipaddress.ip_address(address).is_loopback else address


def listen_on_loopback() -> socket.socket:
  """Returns a socket of loopback, of IPv6 if the machine has no IPv4."""
  try:
    return socket.create_server(('127.0.0.1', 0))
  except OSError:
    return socket.create_server(('::1', 0), family=socket.AF_INET6)


def bind_host(host: str) -> str:
  """Returns the address on which process 0 listens, given its name.

  Some systems resolve a machine's own name to loopback, which no other machine
  reaches: there it is all addresses.
  """
  if host not in ('localhost', '::1') and not host.startswith('127.'):
    with contextlib.suppress(OSError):  # reported by whoever connects
      if (address := _address(host)).is_loopback:
        return _ALL[address.version]
  return host


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
  """Returns the address of a name, of IPv4 if it has one; or an OSError."""
  found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
  addresses = [ipaddress.ip_address(x[4][0]) for x in found]
  return min(addresses, key=lambda x: x.version)
