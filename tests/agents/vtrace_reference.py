"""A reference V-trace in double-precision NumPy: the IMPALA paper's sums.

Sums are cut at the end of an episode, in place of masks.
"""

from typing import Any

import numpy as np

from seedrl_jax import types


def targets(
  valid, reward, discount, rho, baseline, *, lambda_, clip_rho, clip_c
):
  """Returns v_s of equation 1 for s < T, with gamma_t for each transition."""
  length, batch = reward.shape
  v = baseline[:-1].astype(np.float64).copy()
  for b in range(batch):
    for s in range(length):
      for t in range(s, length):
        if not valid[t, b]:
          break
        between = slice(s, t)
        c = lambda_ * np.minimum(clip_c, rho[between, b])
        factor = np.prod(discount[between, b]) * np.prod(c)
        delta = np.minimum(clip_rho, rho[t, b]) * (
          reward[t, b] + discount[t, b] * baseline[t + 1, b] - baseline[t, b]
        )
        v[s, b] += factor * delta
  return v


def advantages(valid, reward, discount, rho, baseline, v, *, clip_pg_rho):
  """Returns rho_s (r_s + gamma v_{s+1} - V(x_s)) of section 4.2."""
  following = np.concatenate([v[1:], baseline[-1:]])
  return np.where(
    valid,
    np.minimum(clip_pg_rho, rho)
    * (reward + discount * following - baseline[:-1]),
    0.0,
  )


def log_softmax(logits):
  """Returns log probabilities over the last axis."""
  logits = logits.astype(np.float64)
  largest = logits.max(-1, keepdims=True)
  return (
    logits - largest - np.log(np.exp(logits - largest).sum(-1, keepdims=True))
  )


def loss(config: Any, logits, baseline, steps: types.Steps, cost: float):
  """Returns the loss per step, as `loss.vtrace_loss` defines it."""
  length, batch = steps.reward.shape[0] - 1, steps.reward.shape[1]
  baseline = baseline.astype(np.float64)
  log_pi = log_softmax(logits)
  log_mu = log_softmax(steps.agent_output.policy_logits)
  valid = steps.step_type[1:] != types.StepType.FIRST
  reward = steps.reward[1:].astype(np.float64)
  if config.reward_clip:
    reward = np.clip(reward, -config.reward_clip, config.reward_clip)
  reward = reward * config.reward_scale
  discount = config.discount * steps.discount[1:]
  t, b = np.meshgrid(np.arange(length), np.arange(batch), indexing='ij')
  action = steps.agent_output.action[:-1]
  log_prob = log_pi[t, b, action]
  rho = np.exp(log_prob - log_mu[t, b, action])
  arguments = (valid, reward, discount, rho, baseline)
  v = targets(
    *arguments,
    lambda_=config.lambda_,
    clip_rho=config.clip_rho,
    clip_c=config.clip_c,
  )
  advantage = advantages(*arguments, v, clip_pg_rho=config.clip_pg_rho)
  total = 0.0
  for s, e in zip(*np.nonzero(valid), strict=True):
    pi, mu = np.exp(log_pi[s, e]), np.exp(log_mu[s, e])
    total += -advantage[s, e] * log_prob[s, e]
    total += config.baseline_cost * 0.5 * (v[s, e] - baseline[s, e]) ** 2
    total += cost * np.sum(pi * log_pi[s, e])
    total += config.kl_cost * np.sum(mu * (log_mu[s, e] - log_pi[s, e]))
  return total / (length * batch)
