"""How actors on other machines may reach learners: certificate and secret."""

import secrets
import subprocess
import types
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ml_collections

from seedrl_jax.net import addresses, credentials


class Access(NamedTuple):
  """Flags of learners and actors, and the files that they name as `{name}`."""

  learner_flags: Sequence[str] = ()
  actor_flags: Sequence[str] = ()
  files: Mapping[str, bytes] = types.MappingProxyType({})

  def files_in(self, command: Sequence[str]) -> dict[str, bytes]:
    """Returns what a command names: an actor does not get the key."""
    text = ' '.join(command)
    return {n: data for n, data in self.files.items() if f'{{{n}}}' in text}


def configured(config: ml_collections.ConfigDict) -> Access | None:
  """Returns what the `actors` section of a configuration says; None: nothing.

  Raises ValueError if learners would refuse it.
  """
  # What is made for a start is in the run's configuration, but is gone later.
  is_made = config.tls_certificate.startswith('/dev/fd/')
  is_given = config.tls_certificate or config.token_file or config.insecure
  if is_made or not is_given:
    return None
  everywhere = addresses.parse('--config.actors.addresses', '0.0.0.0:1')
  addresses.check_listening([everywhere], credentials.learner_security(config))
  flags = [
    config.tls_certificate and f'--tls_roots={config.tls_certificate}',
    config.token_file and f'--token_file={config.token_file}',
    config.insecure and '--insecure',
  ]
  return Access(actor_flags=list(filter(None, flags)))


def make(hosts: Sequence[str]) -> Access:
  """Makes a certificate for IP addresses and a secret; may raise ValueError."""
  names = ','.join(f'IP:{host}' for host in dict.fromkeys(hosts))
  # To the output, so that the key is on no disk.
  command = (
    'openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes '
    f'-days 365 -subj /CN=seedrl -addext subjectAltName={names} -keyout -'
  ).split()
  try:
    result = subprocess.run(command, check=True, capture_output=True, text=True)
  except FileNotFoundError as e:
    raise ValueError(
      'openssl, which makes a certificate, is not here; install it, or give '
      '--config.actors.tls_certificate, --config.actors.tls_key and '
      '--config.actors.token_file.'
    ) from e
  except subprocess.CalledProcessError as e:
    raise ValueError(f'openssl failed: {e.stderr.strip()}') from e
  key, header, rest = result.stdout.partition('-----BEGIN CERTIFICATE')
  files = {
    'tls.crt': f'{header}{rest}'.encode(),
    'tls.key': key.encode(),
    'token': secrets.token_hex(32).encode(),
  }
  return Access(
    [
      '--config.actors.tls_certificate={tls.crt}',
      '--config.actors.tls_key={tls.key}',
      '--config.actors.token_file={token}',
    ],
    ['--tls_roots={tls.crt}', '--token_file={token}'],
    files,
  )
