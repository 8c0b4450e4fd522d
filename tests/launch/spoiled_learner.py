"""launch/learner.py whose host 1 gets different parameters at some update."""

import functools
from typing import Any

import jax

from seedrl_jax.launch import learner, train
from seedrl_jax.learner import update

_FROM_UPDATE = 3


class _Spoiled(update.Updater):
  """Changes the parameters by a hundredth once."""

  _calls = 0

  def __call__(self, state: Any, batch: Any, progress: float) -> Any:
    result = super().__call__(state, batch, progress)
    self._calls += 1
    if self._calls == _FROM_UPDATE and jax.process_index() == 1:
      kept = update.host_state(result.state)
      params = jax.tree.map(lambda x: x * 1.01, kept.agent.params)
      state = self.replicate(
        kept._replace(agent=kept.agent._replace(params=params))
      )
      return result._replace(state=state)
    return result


if __name__ == '__main__':
  update.Updater = _Spoiled
  train.start(functools.partial(train.main, join=learner._join))
