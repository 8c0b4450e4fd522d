"""Times Stable-Baselines3, with the settings in standard input.

`baselines` runs this file by its path, in a Python that has Stable-Baselines3
and may lack this package. It prints one line, the answer.
"""

import importlib.metadata
import itertools
import json
import sys
import time
from typing import Any

import stable_baselines3
import torch
from stable_baselines3.common import callbacks, env_util, vec_env


class Windows(callbacks.BaseCallback):
  """Times windows of whole iterations: steps and their updates."""

  def __init__(self, number: int, seconds: float, warm_up: float):
    """The windows begin `warm_up` seconds after the first update."""
    super().__init__()
    self._number = number
    self._seconds = seconds
    self._warm_up = warm_up
    # Seconds and steps at the first update, and where windows begin and end.
    self._marks: list[tuple[float, int]] = []

  def _on_rollout_start(self) -> None:
    # SAC takes many steps before its first update.
    if self.model._n_updates == 0:
      return
    now = time.perf_counter()
    pause = self._warm_up if len(self._marks) == 1 else self._seconds
    if not self._marks or now >= self._marks[-1][0] + pause:
      self._marks.append((now, self.num_timesteps))

  def _on_step(self) -> bool:
    return len(self._marks) < self._number + 2

  def rates(self) -> list[float]:
    """Returns environment steps per second in each window."""
    return [
      (steps - before) / (end - start)
      for (start, before), (end, steps) in itertools.pairwise(self._marks[1:])
    ]


def run(settings: dict[str, Any]) -> dict[str, Any]:
  """Trains until the windows are over; see `baselines.settings`."""
  if settings['threads']:
    torch.set_num_threads(settings['threads'])
  vector: Any = getattr(vec_env, settings['vector'])
  env = env_util.make_vec_env(
    settings['env'],
    settings['num_envs'],
    vec_env_cls=vector,
    # Forks share the libraries' memory.
    vec_env_kwargs={'start_method': 'fork'}
    if settings['vector'] == 'SubprocVecEnv'
    else {},
  )
  if settings['normalize']:
    env = vec_env.VecNormalize(env, **settings['normalize'])
  policy = settings['policy']
  activation = getattr(torch.nn, policy['activation_fn'])
  model = getattr(stable_baselines3, settings['algorithm'])(
    'MlpPolicy',
    env,
    policy_kwargs={**policy, 'activation_fn': activation},
    device=settings['device'],
    **settings['arguments'],
  )
  windows = Windows(*settings['windows'])
  model.learn(10**12, windows)
  env.close()
  return {
    'rates': windows.rates(),
    'version': importlib.metadata.version('stable_baselines3'),
  }


if __name__ == '__main__':
  print(json.dumps(run(json.load(sys.stdin))))
