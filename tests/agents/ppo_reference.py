"""PPO in float64 NumPy, straight from the papers' sums."""

from typing import NamedTuple

import numpy as np

from seedrl_jax import types


class Reference(NamedTuple):
  """Loss, and advantages and value targets `[T, B]` before normalisation."""

  loss: float
  advantage: np.ndarray
  target: np.ndarray


def gaussian(params, action):
  """Returns log-density and entropy of means and log deviations `[..., P]`."""
  mean, log = np.split(np.float64(params), 2, axis=-1)
  z = (action - mean) / np.exp(log)
  log_prob = -0.5 * z**2 - log - 0.5 * np.log(2 * np.pi)
  entropy = log + 0.5 * np.log(2 * np.pi * np.e)
  return log_prob.sum(-1), entropy.sum(-1)


def categorical(logits, action):
  """Returns log-probability and entropy."""
  logits = np.float64(logits)
  p = np.exp(logits - logits.max(-1, keepdims=True))
  p /= p.sum(-1, keepdims=True)
  taken = np.take_along_axis(p, action[..., None], -1)[..., 0]
  return np.log(taken), -(p * np.log(p)).sum(-1)


def advantages(steps, values, discount, lambda_):
  """Returns sums of discounted one-step errors up to each episode's end."""
  length, batch = steps.reward.shape[0] - 1, steps.reward.shape[1]
  values = np.float64(values)
  result = np.zeros((length, batch))
  for b in range(batch):
    for s in range(length):
      factor = 1.0
      for t in range(s, length):
        if steps.step_type[t + 1, b] == types.StepType.FIRST:
          break
        gamma = discount * steps.discount[t + 1, b]
        error = steps.reward[t + 1, b] + gamma * values[t + 1, b] - values[t, b]
        result[s, b] += factor * error
        factor *= gamma * lambda_
  return result


def ppo(config, log_prob_and_entropy, params, values, old_values, steps):
  """Returns the loss of policy `params` and `values` `[T, B, ...]`.

  `old_values` `[T + 1, B]` are from before the update.
  """
  advantage = advantages(steps, old_values, config.discount, config.lambda_)
  target = advantage + old_values[:-1]
  valid = steps.step_type[1:] != types.StepType.FIRST
  scaled = advantage
  if config.normalize_advantages != 'no':
    kept = advantage[valid]
    scaled = (advantage - kept.mean()) / (kept.std() + 1e-8)
  acted = steps.agent_output
  log_prob, entropy = log_prob_and_entropy(params, acted.action[:-1])
  ratio = np.exp(log_prob - acted.log_prob[:-1])
  clipped = np.minimum(np.maximum(ratio, 1 - config.clip), 1 + config.clip)
  gain = np.minimum(ratio * scaled, clipped * scaled)
  error = (values - target) ** 2
  if config.value_clip:
    old = old_values[:-1]
    near = np.clip(values, old - config.value_clip, old + config.value_clip)
    error = np.maximum(error, (near - target) ** 2)
  terms = (
    -gain + config.baseline_cost * 0.5 * error - config.entropy_cost * entropy
  )
  return Reference(terms[valid].mean(), advantage, target)
