"""launch/learner.py whose training ends only after all actors have connected.

WANTED_ENVS is their number of environments. So even a slow actor finds the
training going on.
"""

import functools
import os

from seedrl_jax.launch import learner, train
from seedrl_jax.run import reporting

_WANTED = float(os.environ['WANTED_ENVS'])


class _Gated(reporting.RunCounters):
  """Is not finished before it has counted all environments."""

  _has_seen_all = False

  def is_finished(self) -> bool:
    actors = self.parts.actors
    if actors is not None and actors.num_connected >= _WANTED:
      self._has_seen_all = True
    return self._has_seen_all and super().is_finished()


if __name__ == '__main__':
  reporting.RunCounters = _Gated
  train.start(functools.partial(train.main, join=learner._join))
