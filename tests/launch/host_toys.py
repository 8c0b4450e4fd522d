"""Environments of tests of several hosts, which fail on one of them."""

import os

import gymnasium

from tests import runs


def pixels() -> gymnasium.Env:
  """Returns one that fails after BAD_AFTER steps, if that is set."""
  after = int(os.environ.get('BAD_AFTER', 1 << 30))
  return runs.Pixels(bad_after=after, failure='raise')
