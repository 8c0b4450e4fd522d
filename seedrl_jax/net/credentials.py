"""TLS certificates and the token with which actors and learners connect."""

import hmac
import pathlib
import ssl
from typing import Any, NamedTuple

import ml_collections

_HEADER = 'authorization'
_SCHEME = 'Bearer '


class Security(NamedTuple):
  """One side's credentials; empty ones are not used."""

  # PEM: the learner's own chain, or the authorities that an actor trusts.
  certificate: bytes = b''
  key: bytes = b''  # PEM, of the learner's certificate
  token: str = ''  # shared secret
  insecure: bool = False  # whether connections need neither TLS nor token

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
  """Reads the files of a config's `actors` section; ValueError if it cannot."""
  prefix = '--config.actors.'
  if bool(config.tls_certificate) != bool(config.tls_key):
    raise ValueError(
      f'{prefix}tls_certificate and {prefix}tls_key must be given together.'
    )
  return Security(
    _read(f'{prefix}tls_certificate', config.tls_certificate),
    _read(f'{prefix}tls_key', config.tls_key),
    _read_token(f'{prefix}token_file', config.token_file),
    config.insecure,
  )


def actor_security(
  tls_roots: str, token_file: str, insecure: bool = False
) -> Security:
  """Reads the files of an actor's flags; raises `ValueError` if it cannot."""
  roots = _read('--tls_roots', tls_roots)
  if roots:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
      # Only comments between certificates can be non-ASCII.
      context.load_verify_locations(cadata=roots.decode('ascii', 'ignore'))
    except (ssl.SSLError, ValueError) as e:
      raise ValueError(
        f'--tls_roots={tls_roots}: holds no certificate in PEM.'
      ) from e
  token = _read_token('--token_file', token_file)
  return Security(certificate=roots, token=token, insecure=insecure)


def _read(flag: str, path: str) -> bytes:
  """Returns a file's content; empty if there is no path."""
  if not path:
    return b''
  try:
    data = pathlib.Path(path).expanduser().read_bytes()
  except OSError as e:
    raise ValueError(f'{flag}={path}: {e.strerror}.') from e
  if not data:
    # Empty content means that no file is given.
    raise ValueError(f'{flag}={path}: is empty.')
  return data


def _read_token(flag: str, path: str) -> str:
  token = _read(flag, path).decode('latin-1').strip()
  # It is sent as an HTTP header.
  if path and not (token and token.isascii() and token.isprintable()):
    raise ValueError(f'{flag}={path}: must hold one line of printable ASCII.')
  return token
