"""A stand-in for Reverb's server, for tests of the client."""

import pytest

from tests.replay.reverb import fake_server


@pytest.fixture(name='server')
def server_fixture():
  server = fake_server.FakeServer().start()
  yield server
  server.stop()
