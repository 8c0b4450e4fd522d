"""Self-signed certificates, made with openssl."""

import pathlib
import subprocess


def make(
  folder: pathlib.Path, names: str = 'IP:127.0.0.1,DNS:localhost'
) -> tuple[pathlib.Path, pathlib.Path]:
  """Returns files with a certificate for `names` and its key."""
  certificate, key = folder / 'certificate.pem', folder / 'key.pem'
  command = (
    'openssl req -x509 -newkey ec -nodes -pkeyopt ec_paramgen_curve:prime256v1 '
    f'-days 9999 -subj /CN=learner -addext subjectAltName={names}'
  )
  subprocess.run(
    [*command.split(), '-out', certificate, '-keyout', key],
    check=True,
    capture_output=True,
  )
  return certificate, key
