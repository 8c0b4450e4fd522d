"""A certificate for loopback, made anew for each session of tests."""

import pathlib
import subprocess

import pytest


@pytest.fixture(scope='session')
def certificate(
  tmp_path_factory: pytest.TempPathFactory,
) -> tuple[pathlib.Path, pathlib.Path]:
  """Returns files with a certificate that signs itself, and its key."""
  folder = tmp_path_factory.mktemp('certificate')
  files = folder / 'certificate.pem', folder / 'key.pem'
  subprocess.run(
    [
      *('openssl', 'req', '-x509', '-newkey', 'ec', '-nodes', '-days', '2'),
      *('-pkeyopt', 'ec_paramgen_curve:prime256v1', '-subj', '/CN=learner'),
      *('-addext', 'subjectAltName=IP:127.0.0.1,DNS:localhost'),
      *('-out', files[0], '-keyout', files[1]),
    ],
    check=True,
    capture_output=True,
  )
  return files
