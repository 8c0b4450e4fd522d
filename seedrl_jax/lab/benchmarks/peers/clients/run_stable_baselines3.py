"""Runs PPO or SAC of Stable-Baselines3; see `common`."""

from typing import Any

import common
import numpy as np
import stable_baselines3
import torch
import torsos
from stable_baselines3.common import callbacks, torch_layers, vec_env


class Vector(vec_env.VecEnv):
  """EnvPool's environments as Stable-Baselines3 takes them."""

  def __init__(self, envs: common.Envs):
    pool = envs.pool
    super().__init__(envs.num_envs, pool.observation_space, pool.action_space)
    self._envs = envs
    self._actions = np.zeros(0)

  def reset(self) -> Any:
    return self._envs.reset()

  def step_async(self, actions: np.ndarray) -> None:
    self._actions = actions

  def step_wait(self) -> Any:
    envs = self._envs
    observations, rewards, ended, cut, last = envs.step(self._actions)
    infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
    for i in np.flatnonzero(ended | cut):
      infos[i]['terminal_observation'] = last[i]
      infos[i]['TimeLimit.truncated'] = bool(cut[i] and not ended[i])
    return observations, rewards, ended | cut, infos

  def close(self) -> None:
    self._envs.pool.close()

  def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> Any:
    return [False] * self.num_envs

  def get_attr(self, attr_name: str, indices: Any = None) -> Any:
    return [None] * self.num_envs

  def set_attr(self, *unused: Any) -> None:
    raise NotImplementedError

  def env_method(self, *unused: Any, **unused_too: Any) -> Any:
    raise NotImplementedError


class Torso(torch_layers.BaseFeaturesExtractor):
  """The system's torso."""

  def __init__(self, space: Any, network: dict[str, Any]):
    torso, size = torsos.make(network, space.shape)
    super().__init__(space, size)
    self._torso = torso

  def forward(self, observations: Any) -> Any:
    return self._torso(observations)


class Measure(callbacks.BaseCallback):
  """Marks whole iterations: steps and their updates."""

  def __init__(self, meter: common.Meter):
    super().__init__()
    self._meter = meter
    self._more = True

  def _on_rollout_start(self) -> None:
    # SAC takes many steps before its first update.
    if self.model._n_updates:
      self._more = self._meter.more(self.num_timesteps)

  def _on_step(self) -> bool:
    return self._more


def run(settings: dict[str, Any], meter: common.Meter) -> None:
  """Trains until the meter has enough."""
  if settings['threads']:
    torch.set_num_threads(settings['threads'])
  envs = common.Envs(settings, settings['num_envs'], meter.returns)
  env: vec_env.VecEnv = Vector(envs)
  if settings['normalize']:
    env = vec_env.VecNormalize(env, **settings['normalize'])
  policy = settings['policy']
  if 'activation_fn' in policy:
    policy['activation_fn'] = getattr(torch.nn, policy['activation_fn'])
  if not policy['net_arch']:
    # One network for policy and values.
    policy['features_extractor_class'] = Torso
    policy['features_extractor_kwargs'] = {'network': settings['network']}
  model = getattr(stable_baselines3, settings['algorithm'])(
    'MlpPolicy',
    env,
    policy_kwargs=policy,
    seed=settings['seed'],
    **settings['arguments'],
  )
  model.learn(10**12, Measure(meter))
  env.close()


if __name__ == '__main__':
  common.main('stable_baselines3', run)
