"""Self-signed certificates, made with openssl."""

import pathlib
import subprocess

# Before OpenSSL 3.4 only `openssl ca` takes dates, and it needs all of this.
_CONFIG = """
[ca]
default_ca = ca_here
[ca_here]
new_certs_dir = {folder}
database = {folder}/index.txt
serial = {folder}/serial
default_md = sha256
policy = policy_here
copy_extensions = copy
[policy_here]
commonName = supplied
"""


def make(
  folder: pathlib.Path,
  names: str = 'IP:127.0.0.1,DNS:localhost',
  is_expired: bool = False,
) -> tuple[pathlib.Path, pathlib.Path]:
  """Returns files with a certificate for `names` and its key."""
  request, certificate, key, config = (
    folder / name
    for name in ('request.pem', 'certificate.pem', 'key.pem', 'ca.cnf')
  )
  config.write_text(_CONFIG.format(folder=folder))
  (folder / 'index.txt').touch()
  end = '20010101000000Z' if is_expired else '20990101000000Z'
  for command in (
    [
      *('req', '-newkey', 'ec', '-nodes', '-subj', '/CN=learner'),
      *('-pkeyopt', 'ec_paramgen_curve:prime256v1'),
      *('-addext', f'subjectAltName={names}', '-out', request, '-keyout', key),
    ],
    [
      *('ca', '-batch', '-selfsign', '-create_serial', '-notext'),
      *('-config', config, '-keyfile', key, '-in', request),
      *('-out', certificate),
      *('-startdate', '20000101000000Z', '-enddate', end),
    ],
  ):
    subprocess.run(['openssl', *command], check=True, capture_output=True)
  return certificate, key
