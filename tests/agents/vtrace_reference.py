"""A reference V-trace in double-precision NumPy: the IMPALA paper's sums.

Sums are cut at the end of an episode, in place of masks.
"""

from typing import Any, NamedTuple

import numpy as np

from seedrl_jax import types


class Reference(NamedTuple):
  """The loss per step, targets `[T, B]`, and the ratio pi(a) / mu(a)."""

  loss: float
  value: np.ndarray  # v_s of equation 1
  advantage: np.ndarray  # rho_s (r_s + gamma v_{s+1} - V(x_s)), section 4.2
  rho: np.ndarray


def log_softmax(logits):
  """Returns log probabilities over the last axis."""
  logits = np.asarray(logits, np.float64)
  logits = logits - logits.max(-1, keepdims=True)
  return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def vtrace(config: Any, logits, baseline, steps: types.Steps, cost: float):
  """Returns what `loss.vtrace_loss` defines; `cost` is that of entropy."""
  length, batch = steps.reward.shape[0] - 1, steps.reward.shape[1]
  baseline = baseline.astype(np.float64)
  log_pi = log_softmax(logits)[:-1]
  log_mu = log_softmax(steps.agent_output.policy_logits)[:-1]
  bound = config.reward_clip or np.inf
  reward = np.clip(steps.reward[1:].astype(np.float64), -bound, bound)
  reward *= config.reward_scale
  discount = config.discount * steps.discount[1:].astype(np.float64)
  action = steps.agent_output.action[:-1, :, None]
  log_prob, log_mu_a = (
    np.take_along_axis(x, action, -1)[..., 0] for x in (log_pi, log_mu)
  )
  rho = np.exp(log_prob - log_mu_a)
  valid = steps.step_type[1:] != types.StepType.FIRST
  delta = np.minimum(config.clip_rho, rho) * (
    reward + discount * baseline[1:] - baseline[:-1]
  )
  c = config.lambda_ * np.minimum(config.clip_c, rho)
  v = baseline[:-1].copy()
  for b in range(batch):
    for s in range(length):
      factor = 1.0
      for t in range(s, length):
        if not valid[t, b]:
          break
        v[s, b] += factor * delta[t, b]
        factor *= discount[t, b] * c[t, b]
  following = np.concatenate([v[1:], baseline[-1:]])
  error = reward + discount * following - baseline[:-1]
  advantage = np.minimum(config.clip_pg_rho, rho) * error * valid
  pi, mu = np.exp(log_pi), np.exp(log_mu)
  terms = (
    -advantage * log_prob
    + config.baseline_cost * 0.5 * (v - baseline[:-1]) ** 2
    + cost * np.sum(pi * log_pi, -1)
    + config.kl_cost * np.sum(mu * (log_mu - log_pi), -1)
  )
  return Reference(terms[valid].sum() / terms.size, v, advantage, rho)


def n_step_returns(reward, discount, valid, baseline):
  """Returns A2C's targets, float64 `[T, B]` (arXiv 1602.01783, algorithm S3).

  Each step has the rewards until its episode or the unroll ends, and the
  baseline of the step after; an invalid transition (not `valid`) has NaN.
  """
  reward, discount, baseline = (
    np.asarray(x, np.float64) for x in (reward, discount, baseline)
  )
  length, batch = reward.shape
  returns = np.full((length, batch), np.nan)
  for b in range(batch):
    value = baseline[length, b]
    for t in reversed(range(length)):
      if valid[t, b]:
        value = returns[t, b] = reward[t, b] + discount[t, b] * value
      else:
        # Step t is an episode's last, where the transition before it ends.
        value = baseline[t, b]
  return returns
