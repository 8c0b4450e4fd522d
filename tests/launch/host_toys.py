"""Environments for several hosts, which fail on one of them."""

import os

import gymnasium

from tests import runs


def pixels() -> gymnasium.Env:
  """Returns an environment that fails after BAD_AFTER steps, if set."""
  after = int(os.environ.get('BAD_AFTER', 1 << 30))
  return runs.Pixels(bad_after=after, failure='raise')
