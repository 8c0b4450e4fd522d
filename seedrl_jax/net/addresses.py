"""Addresses at which learner and actors meet: `unix:/path` or `host:port`.

An address that other machines reach needs TLS and a token, or `insecure`.
"""

import contextlib
import ipaddress
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import grpc

from seedrl_jax.net.credentials import Security

_ACTORS = '--config.actors.addresses'
_UNIX = 'unix:'
# Linux's limit for the path of a socket, in bytes.
_MAX_PATH = 107


class Address(NamedTuple):
  """An address as gRPC takes it; `is_local` if only this machine reaches it."""

  text: str
  is_unix: bool
  is_local: bool


def parse(flag: str, text: str) -> Address:
  """Reads an address; raises `ValueError`, naming `flag`, if it is invalid."""
  if text.startswith(_UNIX):
    path = text.removeprefix(_UNIX)
    # gRPC reads a relative path differently than a shell.
    path = os.path.abspath(os.path.expanduser(path)) if path else ''
    if not 1 < len(os.fsencode(path)) <= _MAX_PATH:
      raise ValueError(
        f'{flag}={text}: the path of a socket can have {_MAX_PATH} bytes; '
        'name a shorter one, such as unix:/tmp/actors.sock.'
      )
    return Address(_UNIX + path, True, True)
  host, colon, port = text.rpartition(':')
  bare = host[1:-1] if host[:1] == '[' and host[-1:] == ']' else host
  is_port = colon and port.isdecimal() and int(port) < 1 << 16
  if not (bare and is_port) or (bare == host and ':' in host):
    raise ValueError(
      f'{flag}={text}: must be unix:/path, host:port or, with IPv6, [::1]:port.'
    )
  try:
    is_local = ipaddress.ip_address(bare).is_loopback
  except ValueError:
    is_local = bare == 'localhost'
  return Address(text, False, is_local)


def _shows_in_clear(address: Address, security: Security) -> bool:
  """Whether the token would travel unencrypted."""
  has_tls = address.is_unix or bool(security.certificate)
  return bool(security.token) and not has_tls


def check_listening(
  listening: Sequence[Address], security: Security, flag: str = _ACTORS
) -> None:
  """Raises ValueError unless other machines need TLS and show a token so."""
  is_open = security.insecure or (security.certificate and security.token)
  for address in listening:
    if not address.is_local and not is_open:
      raise ValueError(
        f'{flag}={address.text}: other machines reach this '
        'address, so give --config.actors.tls_certificate and '
        '--config.actors.token_file, or allow anyone in with '
        '--config.actors.insecure.'
      )
    if _shows_in_clear(address, security):
      raise ValueError(
        f'--config.actors.token_file: nobody shows a token at '
        f'{address.text}, where there is no TLS; give --config.actors.'
        'tls_certificate and --config.actors.tls_key, or only addresses '
        'unix:/path, or leave the token out.'
      )


@contextlib.contextmanager
def listening(
  server: grpc.Server | grpc.aio.Server,
  address: Address,
  tls: Security,
  flag: str = _ACTORS,
) -> Iterator[str]:
  """Makes a server listen; yields the address with the actual port.

  Removes the socket at the end.
  """
  try:
    if tls.certificate and not address.is_unix:
      pair = (tls.key, tls.certificate)
      credentials = grpc.ssl_server_credentials([pair])
      port = server.add_secure_port(address.text, credentials)
    else:
      port = server.add_insecure_port(address.text)
  except RuntimeError as e:
    raise ValueError(
      f'{flag}={address.text}: cannot listen there ({e}).'
    ) from e
  if not address.is_unix:
    yield f'{address.text.rpartition(":")[0]}:{port}'
    return
  socket = pathlib.Path(address.text.removeprefix(_UNIX))
  try:
    # Only this user's processes may connect.
    socket.chmod(0o600)
    yield address.text
  finally:
    socket.unlink(missing_ok=True)


def check_calling(address: Address, security: Security) -> None:
  """Raises `ValueError` if an actor cannot call, or not safely.

  A port of this machine, too, may belong to something else than the learner.
  """
  if _shows_in_clear(address, security):
    raise ValueError(
      '--token_file: a token is shown only over TLS or a unix socket; give '
      '--tls_roots, or --learner=unix:/path, or leave the token out.'
    )
  if address.is_local or security.certificate or security.insecure:
    return
  raise ValueError(
    f'--learner={address.text}: is on another machine, so give --tls_roots, '
    'or trust the network with --insecure.'
  )


def as_seen_from_actor(text: str, learner: Address) -> Address:
  """Returns where an actor reaches a server that its learner reaches at `text`.

  If `text` is local to the learner, the host is that of `learner`.
  """
  address = parse('--config.replay.address', text)
  if address.is_local and not learner.is_local:
    host, port = learner.text.rpartition(':')[0], text.rpartition(':')[2]
    return Address(f'{host}:{port}', is_unix=False, is_local=False)
  return address


def open_channel(
  address: Address, security: Security, options: Any
) -> grpc.Channel:
  """Returns a channel to a learner; the caller closes it."""
  if security.certificate and not address.is_unix:
    credentials = grpc.ssl_channel_credentials(security.certificate)
    return grpc.secure_channel(address.text, credentials, options)
  return grpc.insecure_channel(address.text, options)
