"""Self-signed certificates, made with openssl."""

import pathlib
import subprocess


def make(
  folder: pathlib.Path, names: str = 'IP:127.0.0.1,DNS:localhost'
) -> tuple[pathlib.Path, pathlib.Path]:
  """Returns files with a certificate for `names` and its key."""
  certificate, key = folder / 'certificate.pem', folder / 'key.pem'
  subprocess.run(
    [
      *('openssl', 'req', '-x509', '-newkey', 'ec', '-nodes'),
      *('-pkeyopt', 'ec_paramgen_curve:prime256v1', '-days', '9999'),
      *('-subj', '/CN=learner', '-addext', f'subjectAltName={names}'),
      *('-out', certificate, '-keyout', key),
    ],
    check=True,
    capture_output=True,
  )
  return certificate, key
