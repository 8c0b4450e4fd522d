"""Files that actors and learners know each other by: certificates, a token.

Every complaint is one sentence that names the flag. Called by `addresses`, and
by `tls` for what gRPC does not tell.
"""

import logging
import os
import pathlib
import ssl
import stat

_log = logging.getLogger(__name__)


def read(flag: str, path: str, is_secret: bool = False) -> bytes:
  """Returns what a file holds; empty where there is no path.

  Args:
    flag: that names it, for messages.
    path: of the file.
    is_secret: whether to warn if others may read it.

  Raises:
    ValueError: where it cannot be read, or is empty.
  """
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
    # Else it would stand for no file at all.
    raise ValueError(f'{flag}={path}: is empty.')
  return data


def _check_mode(flag: str, file: pathlib.Path) -> None:
  """Warns of a secret that others on this machine may read."""
  status = file.stat()
  others = stat.S_IRWXO
  if status.st_uid == os.geteuid():
    # Of another's file, the group may be how this process reads it.
    others |= stat.S_IRWXG
  if status.st_mode & others:
    _log.warning(
      '%s=%s: others on this machine may read it; chmod 600 it.', flag, file
    )


def read_roots(flag: str, path: str) -> bytes:
  """Returns certificates of authorities; see `read`.

  Raises:
    ValueError: as `read`, or where there is none in the file.
  """
  roots = read(flag, path)
  try:
    tls_context(roots)
  except ssl.SSLError as e:
    raise ValueError(f'{flag}={path}: holds no certificate in PEM.') from e
  return roots


def read_token(flag: str, path: str) -> str:
  """Returns the secret that a file holds; see `read`.

  Raises:
    ValueError: as `read`, or where it cannot be sent.
  """
  token = read(flag, path, is_secret=True).decode('latin-1').strip()
  # It travels as a header of HTTP.
  if path and not (token and token.isascii() and token.isprintable()):
    raise ValueError(f'{flag}={path}: must hold one line of printable ASCII.')
  return token


def tls_context(roots: bytes) -> ssl.SSLContext:
  """Returns what checks a learner's certificate as gRPC does.

  Args:
    roots: PEM; empty: any certificate will do.

  Raises:
    ssl.SSLError: where there is no certificate in them.
  """
  context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
  context.set_alpn_protocols(['h2'])
  context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
  if roots:
    # Only remarks between the certificates can be other text.
    context.load_verify_locations(cadata=roots.decode('ascii', 'ignore'))
  else:
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
  return context
