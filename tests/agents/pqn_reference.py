"""A reference PQN in double-precision NumPy, by mixing n-step returns.

Sums end with an episode or the unroll, in place of masks.
"""

from typing import Any

import numpy as np

from seedrl_jax import types


def targets(config: Any, q_values, steps: types.Steps):
  """Returns the targets `[T, B]`, and which transitions are valid.

  G = (1 - lambda) sum_{n < N} lambda^{n - 1} G^(n) + lambda^{N - 1} G^(N), with
  the N transitions left in the episode and unroll, and n-step returns G^(n).
  """
  length, batch = steps.reward.shape[0] - 1, steps.reward.shape[1]
  value = q_values.astype(np.float64).max(-1)
  bound = config.reward_clip or np.inf
  reward = np.clip(steps.reward.astype(np.float64), -bound, bound)
  reward *= config.reward_scale
  discount = config.discount * steps.discount.astype(np.float64)
  valid = steps.step_type[1:] != types.StepType.FIRST
  result = np.zeros((length, batch))
  for b in range(batch):
    for t in range(length):
      returns, total, factor = [], 0.0, 1.0
      for s in range(t, length):
        if not valid[s, b]:
          break
        total += factor * reward[s + 1, b]
        factor *= discount[s + 1, b]
        returns.append(total + factor * value[s + 1, b])
      weights = config.lambda_ ** np.arange(len(returns))
      weights[:-1] *= 1 - config.lambda_
      result[t, b] = weights @ np.array(returns)
  return result, valid


def loss(config: Any, q_values, target, steps: types.Steps):
  """Returns what `loss.q_loss` defines."""
  valid = steps.step_type[1:] != types.StepType.FIRST
  action = steps.agent_output.action[:-1, :, None]
  chosen = np.take_along_axis(q_values[:-1].astype(np.float64), action, -1)
  error = (target - chosen[..., 0])[valid]
  return 0.5 * np.sum(error**2) / valid.size
