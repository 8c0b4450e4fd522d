"""Stores and toy unrolls of the replay's tests, for those of demonstrations."""

from tests.replay.conftest import (  # noqa: F401
  make_store_fixture,
  reverb_servers_fixture,
  threads_fixture,
  toy_fixture,
)
