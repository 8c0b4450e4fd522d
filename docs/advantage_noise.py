"""Prints how well advantages of random play tell the actions of a game apart.

`python docs/advantage_noise.py Boxing-v5 > docs/measured/advantages.csv` plays
a million steps, in minutes.
"""

import contextlib
import csv
import sys

import numpy as np

from seedrl_jax.configs import vtrace_atari
from seedrl_jax.envs import factory

_NUM_ENVS, _STEPS, _UNROLL = 64, 16_000, 20


def play(game: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
  """Plays at random with the environments of `vtrace_atari`.

  Returns actions, the rewards and discounts that follow them `[T, N]`, and the
  number of actions.
  """
  config = vtrace_atari.get_config().env
  config.id = game
  rng = np.random.default_rng(0)
  actions, rewards, discounts = [], [], []
  stream = factory.make_stream(config, 0, _NUM_ENVS, _NUM_ENVS)
  with contextlib.closing(stream):
    for _ in range(_STEPS):
      output = stream.recv()
      order = np.argsort(output.env_id)
      action = stream.spec.action.sample(rng, _NUM_ENVS)
      stream.send(action[output.env_id], output.env_id)
      actions.append(action)
      rewards.append(output.reward[order])
      discounts.append(output.discount[order])
    count = stream.spec.action.num_values
  return (
    np.array(actions[:-1]),
    np.array(rewards[1:]),
    np.array(discounts[1:]),
    count,
  )


def main() -> None:
  actions, rewards, discounts, count = play(sys.argv[1])
  table = csv.writer(sys.stdout, lineterminator='\n')
  table.writerow([
    'decay',
    'standard deviation of advantages',
    'signal',
    "a mean's error",
    'steps',
  ])
  for decay in (0.7, 0.8, 0.9, 0.95, 0.99):
    advantage = np.zeros(rewards.shape)
    following = np.zeros(_NUM_ENVS)
    for t in reversed(range(len(rewards))):
      if t % _UNROLL == _UNROLL - 1:
        # The value that an unroll bootstraps from is 0.
        following = np.zeros(_NUM_ENVS)
      following = advantage[t] = rewards[t] + decay * discounts[t] * following
    advantage -= advantage.mean()
    means = np.array([advantage[actions == a].mean() for a in range(count)])
    error = advantage.std() * np.sqrt(count / advantage.size)
    signal = np.mean(means**2) - error**2
    steps = count * advantage.var() / signal if signal > 0 else np.inf
    table.writerow([
      f'{decay:.2f}',
      f'{advantage.std():.2f}',
      f'{np.sqrt(max(signal, 0)):.4f}',
      f'{error:.4f}',
      f'{steps:.0f}',
    ])


if __name__ == '__main__':
  main()
