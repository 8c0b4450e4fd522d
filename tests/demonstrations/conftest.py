"""Fixtures of toy unrolls; runs with demonstrations try Reverb, too."""

import pytest

from seedrl_jax.replay.embedded import store as embedded
from tests.replay.conftest import threads_fixture, toy_fixture

__all__ = ['threads_fixture', 'toy_fixture']


@pytest.fixture(name='make_store')
def make_store_fixture(toy):
  """Makes embedded stores of toy unrolls."""

  def make(*configs, width=2, steps=3, overlap=1):
    return embedded.EmbeddedStore(configs, toy.spec(steps), width, 1, overlap)

  return make
