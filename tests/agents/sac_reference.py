"""SAC's losses in double-precision NumPy, one transition at a time."""

import jax
import numpy as np

from seedrl_jax import types


def _dense(layer, x):
  return x @ layer['kernel'] + layer['bias']


def _mlp(torso, x):
  for i in range(len(torso)):
    x = np.maximum(_dense(torso[f'Dense_{i}'], x), 0.0)
  return x


def q_value(critics, i, observation, action):
  """Returns critic i's value of an action in [-1, 1]."""
  critic = jax.tree.map(lambda x: x[i], critics)
  x = _mlp(critic['torso'], np.concatenate([observation, action]))
  return _dense(critic['q']['Dense_0'], x)[0]


def sample(policy, observation, noise):
  """Returns an action in [-1, 1] and its log-density."""
  x = _mlp(policy['network']['torso_0'], observation)
  mean, raw = np.split(_dense(policy['policy']['Dense_0'], x), 2)
  deviation = np.exp(-5.0 + 3.5 * (np.tanh(raw) + 1.0))
  action = np.tanh(mean + deviation * noise)
  density = np.exp(-0.5 * noise**2) / (np.sqrt(2 * np.pi) * deviation)
  return action, np.sum(np.log(density / (1.0 - action**2)))


def losses(config, params, target_critics, steps, noises, target_entropy):
  """Returns the losses of critics, policy and temperature, by their names.

  Actions of `steps` are scaled to [-1, 1]; `noises` are those of new actions at
  each step and at the next, `[T, B, A]`.
  """
  length, batch = steps.reward.shape[0] - 1, steps.reward.shape[1]
  temperature = np.exp(params.log_temperature)
  total = dict.fromkeys(('critics', 'policy', 'log_temperature'), 0.0)
  for t in range(length):
    for b in range(batch):
      if steps.step_type[t + 1, b] == types.StepType.FIRST:
        continue
      now, later = steps.observation[t, b], steps.observation[t + 1, b]
      action, log_prob = sample(params.policy, now, noises[0][t, b])
      total['policy'] += temperature * log_prob - min(
        q_value(params.critics, i, now, action) for i in range(2)
      )
      entropy_error = -log_prob - target_entropy
      if config.adapt_temperature:
        total['log_temperature'] += params.log_temperature * entropy_error
      target = steps.reward[t + 1, b] * config.reward_scale
      if steps.discount[t + 1, b]:
        action, log_prob = sample(params.policy, later, noises[1][t, b])
        value = min(q_value(target_critics, i, later, action) for i in range(2))
        target += config.discount * (value - temperature * log_prob)
      taken = steps.agent_output.action[t, b]
      total['critics'] += 0.5 * sum(
        (target - q_value(params.critics, i, now, taken)) ** 2 for i in range(2)
      )
  return {name: x / (length * batch) for name, x in total.items()}
