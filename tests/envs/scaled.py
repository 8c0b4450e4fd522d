"""CartPole with rewards of another scale."""

import gymnasium


def make(scale: float) -> gymnasium.Env:
  """Returns the environment; --config.env.factory=tests.envs.scaled:make."""
  env = gymnasium.make('CartPole-v1')
  return gymnasium.wrappers.TransformReward(env, lambda reward: reward * scale)
