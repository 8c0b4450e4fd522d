"""launch/learner.py whose training ends only after all actors have connected.

WANTED_ENVS is the number of environments that one report must count. So even a
slow actor finds the training going on.
"""

import functools
import os
from collections.abc import Mapping

from seedrl_jax.launch import learner, train
from seedrl_jax.replay import base as replay
from seedrl_jax.run import reporting

_WANTED = float(os.environ['WANTED_ENVS'])


class _Gated(reporting.RunCounters):
  """Is not finished before it has counted all environments."""

  _has_seen_all = False

  def curves(self, tables: Mapping[str, replay.TableInfo]) -> dict[str, float]:
    curves = super().curves(tables)
    if curves['actors/connected_envs'] >= _WANTED:
      self._has_seen_all = True
    return curves

  def is_finished(self) -> bool:
    return self._has_seen_all and super().is_finished()


if __name__ == '__main__':
  reporting.RunCounters = _Gated
  train.start(functools.partial(train.main, join=learner._join))
