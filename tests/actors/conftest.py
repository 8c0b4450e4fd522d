"""Fixtures for all tests of actors: long time-outs and a certificate."""

import pathlib

import pytest

from seedrl_jax.actors.actor_side import connection
from seedrl_jax.actors.learner_side import server
from tests.actors import certificates

# Seconds, for time-outs that only guard against hangs.
_GUARD = 600.0


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
  """Prevents failures because a machine, or a test, is slow."""
  monkeypatch.setattr(connection, '_CONNECT_SECONDS', _GUARD)
  monkeypatch.setattr(server, '_HELLO_SECONDS', _GUARD)
  monkeypatch.setattr(server, '_END_SECONDS', _GUARD)
  # Nobody comes back.
  monkeypatch.setattr(server, '_BACK_SECONDS', 0.0)


@pytest.fixture(scope='session')
def certificate(
  tmp_path_factory: pytest.TempPathFactory,
) -> tuple[pathlib.Path, pathlib.Path]:
  """Returns files with a self-signed certificate and its key."""
  return certificates.make(tmp_path_factory.mktemp('certificate'))
