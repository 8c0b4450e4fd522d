"""TLS certificates and the token with which actors and learners connect."""

import hmac
import logging
import os
import pathlib
import socket
import ssl
import stat
from typing import Any, NamedTuple

import ml_collections

_HEADER = 'authorization'
_SCHEME = 'Bearer '
# Time-out of the TLS probe.
_PROBE_SECONDS = 5.0
_OTHER_NAME = 'call the learner by a name that it holds, or make another'
# By OpenSSL's code of a certificate error.
_ADVICE = {10: 'make a new one', 62: _OTHER_NAME, 64: _OTHER_NAME}
_log = logging.getLogger(__name__)


class Security(NamedTuple):
  """One side's credentials.

  Attributes:
    certificate: PEM: the learner's own chain, or the authorities that an actor
      trusts; empty: no TLS.
    key: PEM, of the learner's certificate.
    token: shared secret; empty: none.
    insecure: whether the user allows connections without TLS and token.
  """

  certificate: bytes = b''
  key: bytes = b''
  token: str = ''
  insecure: bool = False

  def metadata(self) -> tuple[tuple[str, str], ...]:
    """Returns a call's metadata, with the token if there is one."""
    return ((_HEADER, _SCHEME + self.token),) if self.token else ()

  def admits(self, metadata: Any) -> bool:
    """Whether a call's metadata holds the token, if one is needed."""
    if not self.token:
      return True
    shown = dict(metadata or ()).get(_HEADER, '')
    if not isinstance(shown, str):
      return False
    wanted = (_SCHEME + self.token).encode()
    # In constant time.
    return hmac.compare_digest(shown.encode(), wanted)


def learner_security(config: ml_collections.ConfigDict) -> Security:
  """Reads the files that the `actors` section of a config names.

  Raises:
    ValueError: if one cannot be read, or one of certificate and key is missing.
  """
  prefix = '--config.actors.'
  if bool(config.tls_certificate) != bool(config.tls_key):
    raise ValueError(
      f'{prefix}tls_certificate and {prefix}tls_key must be given together.'
    )
  return Security(
    _read(f'{prefix}tls_certificate', config.tls_certificate),
    _read(f'{prefix}tls_key', config.tls_key, is_secret=True),
    _read_token(f'{prefix}token_file', config.token_file),
    config.insecure,
  )


def actor_security(
  tls_roots: str, token_file: str, insecure: bool = False
) -> Security:
  """Reads the files of an actor's flags; raises `ValueError` if it cannot."""
  roots = _read('--tls_roots', tls_roots)
  try:
    _tls_context(roots)
  except ssl.SSLError as e:
    raise ValueError(
      f'--tls_roots={tls_roots}: holds no certificate in PEM.'
    ) from e
  token = _read_token('--token_file', token_file)
  return Security(certificate=roots, token=token, insecure=insecure)


def _read(flag: str, path: str, is_secret: bool = False) -> bytes:
  """Returns a file's content; empty if there is no path."""
  if not path:
    return b''
  try:
    file = pathlib.Path(path).expanduser()
    if is_secret:
      _check_mode(flag, file)
    data = file.read_bytes()
  except OSError as e:
    raise ValueError(f'{flag}={path}: {e.strerror}.') from e
  if not data:
    # Empty content means that no file is given.
    raise ValueError(f'{flag}={path}: is empty.')
  return data


def _check_mode(flag: str, file: pathlib.Path) -> None:
  """Warns if others on this machine may read a secret."""
  status = file.stat()
  others = stat.S_IRWXO
  if status.st_uid == os.geteuid():
    # If another user owns the file, this process may read it as the group.
    others |= stat.S_IRWXG
  if status.st_mode & others:
    _log.warning(
      '%s=%s: others on this machine may read it; chmod 600 it.', flag, file
    )


def _read_token(flag: str, path: str) -> str:
  token = _read(flag, path, is_secret=True).decode('latin-1').strip()
  # It is sent as an HTTP header.
  if path and not (token and token.isascii() and token.isprintable()):
    raise ValueError(f'{flag}={path}: must hold one line of printable ASCII.')
  return token


def _tls_context(roots: bytes) -> ssl.SSLContext:
  """Returns a context that checks as gRPC does, or nothing without `roots`."""
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
  context.set_alpn_protocols(['h2'])
  context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
  if roots:
    # Only comments between certificates can be non-ASCII.
    context.load_verify_locations(cadata=roots.decode('ascii', 'ignore'))
  else:
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
  return context


def tls_failure(address: str, roots: bytes) -> str:
  """Returns why TLS keeps an actor from its learner; '' if it does not.

  gRPC only says that there is no connection. This makes a handshake of its own
  and sends nothing else, so no token either. `roots` is empty without TLS.
  """
  try:
    is_tls = _speaks_tls(address, roots)
  except ssl.SSLCertVerificationError as e:
    advice = _ADVICE.get(e.verify_code, 'give its authority by --tls_roots')
    return (
      f'the certificate at {address} is refused '
      f'({e.verify_message.rstrip(".")}): {advice}.'
    )
  except (OSError, UnicodeError):
    return ''
  if is_tls and not roots:
    return (
      f'{address} wants TLS: give its certificate, or its authority, by '
      '--tls_roots.'
    )
  if roots and not is_tls:
    return (
      f'there is no TLS at {address}: give the learner '
      '--config.actors.tls_certificate, or leave out --tls_roots.'
    )
  return ''


def _speaks_tls(address: str, roots: bytes) -> bool:
  """Whether a port answers TLS; raises if it is not trusted or silent."""
  host, _, port = address.rpartition(':')
  host = host.removeprefix('[').removesuffix(']')
  context = _tls_context(roots)
  try:
    with (
      socket.create_connection((host, int(port)), _PROBE_SECONDS) as connection,
      context.wrap_socket(connection, server_hostname=host),
    ):
      return True
  except (ssl.SSLCertVerificationError, TimeoutError):
    raise
  except (ssl.SSLError, ConnectionResetError):
    return False
