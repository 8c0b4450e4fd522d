"""Runs A2C with V-trace, made of TorchRL's parts; see `common`."""

from typing import Any

import common
import torch
import torsos
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl import collectors, data, envs, modules, objectives
from torchrl.objectives.value import VTrace


class Vector(envs.EnvBase):
  """EnvPool's environments as TorchRL takes them."""

  def __init__(self, settings: dict[str, Any], returns: Any = None):
    num_envs = settings['num_envs']
    super().__init__(batch_size=[num_envs])
    self._envs = common.Envs(settings, num_envs, returns)
    self._first: Any = None
    pool = self._envs.pool
    space = pool.observation_space
    dtype = getattr(torch, str(space.dtype))
    self.observation_spec = data.Composite(
      observation=data.Unbounded([num_envs, *space.shape], dtype=dtype),
      shape=[num_envs],
    )
    self.action_spec = data.Categorical(pool.action_space.n, shape=[num_envs])
    self.reward_spec = data.Unbounded([num_envs, 1])

  def _reset(self, tensordict: TensorDictBase | None, **unused: Any) -> Any:
    # The step has reset where an episode ended.
    if tensordict is None or tensordict.get('_reset', None) is None:
      self._first = self._envs.reset()
    return self._done(self._first, {})

  def _step(self, tensordict: TensorDictBase) -> Any:
    outputs = self._envs.step(tensordict['action'].numpy())
    self._first, rewards, terminated, truncated, last = outputs
    ends = {'terminated': terminated, 'truncated': truncated}
    ends['done'] = terminated | truncated
    tensors = {name: torch.from_numpy(x)[:, None] for name, x in ends.items()}
    reward = torch.from_numpy(rewards).float()[:, None]
    return self._done(last, tensors | {'reward': reward})

  def _done(self, observation: Any, tensors: dict[str, Any]) -> TensorDict:
    return TensorDict(
      {'observation': torch.from_numpy(observation), **tensors},
      self.batch_size,
    )

  def _set_seed(self, seed: int | None) -> None:
    pass


def _actor_critic(settings: dict[str, Any]) -> modules.ActorValueOperator:
  env = Vector(settings)
  network = settings['network']
  features = torsos.Torso(
    network, env.observation_spec['observation'].shape[1:]
  )
  size = features.size
  actor = modules.ProbabilisticActor(
    TensorDictModule(
      nn.Linear(size, env.action_spec.space.n), ['features'], ['logits']
    ),
    in_keys=['logits'],
    distribution_class=torch.distributions.Categorical,
    return_log_prob=True,
  )
  return modules.ActorValueOperator(
    TensorDictModule(features, ['observation'], ['features']),
    actor,
    modules.ValueOperator(nn.Linear(size, 1), in_keys=['features']),
  )


def run(settings: dict[str, Any], meter: common.Meter) -> None:
  """Trains until the meter has enough."""
  torch.manual_seed(settings['seed'])
  if settings['threads']:
    torch.set_num_threads(settings['threads'])
  both = _actor_critic(settings)
  actor, critic = both.get_policy_operator(), both.get_value_operator()
  advantage = VTrace(
    gamma=settings['discount'], value_network=critic, actor_network=actor
  )
  loss = objectives.A2CLoss(
    actor,
    critic,
    entropy_coeff=settings['entropy_cost'],
    critic_coeff=settings['baseline_cost'],
    loss_critic_type='l2',
  )
  optimizer = torch.optim.Adam(loss.parameters(), settings['learning_rate'])
  # Unrolls of all environments, as many as the batch needs.
  frames = settings['num_envs'] * settings['unroll_length']
  collector = collectors.Collector(
    Vector(settings, meter.returns), actor, frames_per_batch=frames
  )
  steps = 0
  for batch in collector:
    steps += frames
    with torch.no_grad():
      batch['next', 'reward'] *= settings['reward_scale']
      advantage(batch)
    losses = loss(batch.reshape(-1))
    optimizer.zero_grad()
    sum(
      losses[f'loss_{x}'] for x in ('objective', 'critic', 'entropy')
    ).backward()
    nn.utils.clip_grad_norm_(loss.parameters(), settings['clip_norm'])
    optimizer.step()
    if not meter.more(steps):
      break
  collector.shutdown()


if __name__ == '__main__':
  common.main('torchrl', run)
