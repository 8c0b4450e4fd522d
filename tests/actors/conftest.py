"""What all tests of actors share: long guards, and a certificate."""

import pathlib
import subprocess

import pytest

from seedrl_jax.actors import call, conversation, server

# Seconds, of guards against partners that hang.
_GUARD = 600.0


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
  """Lets no exchange fail because a machine, or a test, is slow."""
  monkeypatch.setattr(call, '_ATTEMPT', _GUARD)
  monkeypatch.setattr(conversation, '_HELLO_SECONDS', _GUARD)
  monkeypatch.setattr(server, '_END_SECONDS', _GUARD)


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
