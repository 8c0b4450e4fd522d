"""A stand-in for Reverb's server, for tests of the client."""

import pytest

from seedrl_jax.replay.reverb.transport import stream
from tests.replay.reverb import fake_server


@pytest.fixture(name='server')
def server_fixture():
  server = fake_server.FakeServer().start()
  yield server
  server.stop()


@pytest.fixture(name='patient_exchange')
def patient_exchange_fixture(monkeypatch) -> None:
  """Never gives up a message that came before an error."""
  monkeypatch.setattr(stream, '_GRACE', 300.0)
