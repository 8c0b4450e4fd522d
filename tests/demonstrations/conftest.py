"""Fixtures of replay's tests."""

from tests.replay.conftest import (
  make_store_fixture,
  reverb_servers_fixture,
  threads_fixture,
  toy_fixture,
)

__all__ = [
  'make_store_fixture',
  'reverb_servers_fixture',
  'threads_fixture',
  'toy_fixture',
]
