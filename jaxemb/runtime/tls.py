"""Mutual TLS: both ends of a connection show a certificate of one CA.

JAX's coordination service and Ray have settings for their connections; those
of jaxemb use the same files.
"""

import contextlib
import os
import socket
import ssl
from collections.abc import Sequence
from typing import NamedTuple

from jaxemb import errors

# What a client of HTTP/2 begins with; a server of TLS ends the connection.
_HTTP2 = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + b'\0\0\0\4' + bytes(5)
_DEMANDED = 'it ends connections without TLS, which this process has not'
# The other ends, or a proxy before it has nobody to connect to yet.
ENDED = ConnectionResetError, ssl.SSLEOFError


class Credentials(NamedTuple):
  """Files in PEM that authenticate this process and its peers."""

  cert_file: str
  key_file: str
  ca_file: str
  peer_uri_prefix: str = ''  # of a peer's certificate; '' = its host name

  def client(
    self, plain: socket.socket, host: str, protocols: Sequence[str] = ()
  ) -> ssl.SSLSocket:
    """Encrypts a connection to `host`. Raises an OSError if that is refused.

    A server that refuses this process says so in what is read first.
    """
    context = self._client_context()
    context.set_alpn_protocols(list(protocols))
    return self._checked(context.wrap_socket(plain, server_hostname=host))

  def server(self, plain: socket.socket) -> ssl.SSLSocket:
    """Encrypts a connection of a client. Raises an OSError if it is refused."""
    context = self._server_context()
    return self._checked(context.wrap_socket(plain, server_side=True))

  def check(self, host: str = '') -> None:
    """Raises a `UserError` unless peers would accept this process.

    As a server called `host`, if it is one.
    """
    for file in (self.cert_file, self.key_file, self.ca_file):
      try:
        with open(file, 'rb'):
          pass
      except OSError as error:
        raise errors.UserError(
          f'cannot read {file} of TLS: {error.strerror}; correct its path'
        ) from error
    try:
      self._shake_hands(host)
    except (OSError, ValueError) as error:
      raise errors.UserError(
        f'the certificate {self.cert_file} with the key {self.key_file} and '
        f'the CA {self.ca_file} is of no use for TLS: {reason(error)}; see '
        'docs/security.md for how to make one'
      ) from error

  def _shake_hands(self, host):
    """Connects this process to itself, in memory."""
    sent, answered = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = self._client_context()
    context.check_hostname &= bool(host)
    ends = (
      context.wrap_bio(answered, sent, server_hostname=host or None),
      self._server_context().wrap_bio(sent, answered, server_side=True),
    )
    for end in 2 * ends:  # hello, certificates of both, done
      with contextlib.suppress(ssl.SSLWantReadError):
        end.do_handshake()
    for end in ends:
      self._check_uri(end)

  def _client_context(self):
    context = self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    context.check_hostname = not self.peer_uri_prefix
    return context

  def _server_context(self):
    context = self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # a client would find something to read
    return context

  def _load(self, context):
    # Without a password, OpenSSL would ask for one.
    context.load_cert_chain(self.cert_file, self.key_file, password='')
    context.load_verify_locations(self.ca_file)
    return context

  def _checked(self, peer):
    try:
      self._check_uri(peer)
    except ssl.SSLError:
      peer.close()
      raise
    return peer

  def _check_uri(self, peer):
    prefix = self.peer_uri_prefix
    names = peer.getpeercert().get('subjectAltName', ())
    if prefix and not any(
      kind == 'URI' and name.startswith(prefix) for kind, name in names
    ):
      raise ssl.SSLError(
        0, f'the certificate has no URI that begins with {prefix}'
      )


def credentials(
  files: Sequence[str | None], names: Sequence[str], peer_uri_prefix: str = ''
) -> Credentials | None:
  """Returns what three settings give: certificate, key, CA; None = no TLS.

  Raises a `UserError` if only some are set.
  """
  missing = [name for name, x in zip(names, files, strict=True) if not x]
  if len(missing) == len(names) and not peer_uri_prefix:
    return None
  if missing:
    raise errors.UserError(
      f'TLS is set up without {" and ".join(missing)}: set all of '
      f'{", ".join(names)}, or none'
    )
  cert_file, key_file, ca_file = (os.fspath(x) for x in files if x)
  return Credentials(
    cert_file=cert_file,
    key_file=key_file,
    ca_file=ca_file,
    peer_uri_prefix=peer_uri_prefix,
  )


def greet(
  address: tuple[str, int], credentials: Credentials | None, secs: float
) -> None:
  """Waits for the first word of a server of gRPC, or raises an OSError.

  One of `ENDED` if it ends the connection; another SSLError if either refuses
  the other.
  """
  try:
    with socket.create_connection(address, secs) as connected:
      if credentials:
        with credentials.client(connected, address[0], ['h2']) as encrypted:
          encrypted.recv(1)  # or it refuses the certificate
      else:
        connected.sendall(_HTTP2)
        if not connected.recv(1):
          raise ConnectionResetError('it ends connections')
  except ConnectionResetError:
    if not credentials and _has_tls(address, secs):
      raise ssl.SSLError(0, _DEMANDED) from None
    raise


def _has_tls(address: tuple[str, int], secs: float) -> bool:
  """Whether a server answers in TLS; nothing is sent to it."""
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
  context.check_hostname = False
  context.verify_mode = ssl.CERT_NONE
  context.set_alpn_protocols(['h2'])
  try:
    with socket.create_connection(address, secs) as connected:
      context.wrap_socket(connected).close()
  except OSError as error:
    return 'ALERT' in (getattr(error, 'reason', '') or '')
  return True


def reason(error: Exception) -> str:
  """Returns why a connection failed, as short as OpenSSL knows it."""
  if isinstance(error, ssl.SSLCertVerificationError):
    return error.verify_message
  code = getattr(error, 'reason', None)  # unless Python raised it
  if code in ('WRONG_VERSION_NUMBER', 'RECORD_LAYER_FAILURE'):
    return 'the other has no TLS'
  return code.lower().replace('_', ' ') if code else errors.one_line(error)
