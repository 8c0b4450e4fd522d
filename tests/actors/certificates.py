"""Certificates that sign themselves, made by openssl."""

import pathlib
import subprocess


def make(
  folder: pathlib.Path,
  names: str = 'IP:127.0.0.1,DNS:localhost',
  is_expired: bool = False,
) -> tuple[pathlib.Path, pathlib.Path]:
  """Returns files with a certificate and its key.

  Args:
    folder: for the files.
    names: that it holds.
    is_expired: whether it was valid until yesterday.
  """
  request, certificate, key = (
    folder / name for name in ('request.pem', 'certificate.pem', 'key.pem')
  )
  for command in (
    [
      *('req', '-newkey', 'ec', '-nodes', '-subj', '/CN=learner'),
      *('-pkeyopt', 'ec_paramgen_curve:prime256v1'),
      *('-addext', f'subjectAltName={names}', '-out', request, '-keyout', key),
    ],
    [
      *('x509', '-req', '-in', request, '-signkey', key, '-out', certificate),
      *('-copy_extensions', 'copy', '-days', '-1' if is_expired else '2'),
    ],
  ):
    subprocess.run(['openssl', *command], check=True, capture_output=True)
  return certificate, key
