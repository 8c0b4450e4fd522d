"""A reference R2D2 in double-precision NumPy: the paper's sums as loops.

Each return walks forward from its own step until it has n rewards, or the
episode or the sequence ends.
"""

import numpy as np

from seedrl_jax import types

_FIRST, _, _LAST = types.StepType


def h(x, epsilon):
  """Returns the rescaled value; the value itself for a negative epsilon."""
  if epsilon < 0:
    return x
  return np.sign(x) * (np.sqrt(abs(x) + 1) - 1) + epsilon * x


def h_inverse(x, epsilon):
  """Returns the closed form of Pohlen et al., proposition A.2."""
  if epsilon < 0:
    return x
  root = np.sqrt(1 + 4 * epsilon * (abs(x) + 1 + epsilon)) - 1
  return np.sign(x) * ((root / (2 * epsilon)) ** 2 - 1)


def is_transition(steps: types.Steps, t: int, b: int) -> bool:
  """Returns whether step t of environment b leads to step t + 1."""
  return steps.step_type[t + 1, b] != _FIRST


def target(config, q, target_q, steps: types.Steps, t: int, b: int) -> float:
  """Returns y_t."""
  total, factor = 0.0, 1.0
  for k in range(config.n_steps):
    reward = float(steps.reward[t + 1, b])
    if config.reward_clip:
      reward = min(max(reward, -config.reward_clip), config.reward_clip)
    total += factor * reward * config.reward_scale
    factor *= config.discount * float(steps.discount[t + 1, b])
    t += 1
    is_over = t + 1 == len(steps.reward) or not is_transition(steps, t, b)
    if k + 1 == config.n_steps or is_over or steps.step_type[t, b] == _LAST:
      break
  chooser = q if config.double_q else target_q
  best = target_q[t, b, np.argmax(chooser[t, b])]
  total += factor * h_inverse(best, config.rescale_epsilon)
  return h(total, config.rescale_epsilon)


def td_errors(config, q, target_q, steps: types.Steps, unroll_length: int):
  """Returns each environment's dict of TD errors by trained transition."""
  q, target_q = q.astype(np.float64), target_q.astype(np.float64)
  errors = []
  for b in range(q.shape[1]):
    errors.append({})
    for t in range(unroll_length):
      if is_transition(steps, t, b):
        y = target(config, q, target_q, steps, t, b)
        errors[b][t] = y - q[t, b, steps.agent_output.action[t, b]]
  return errors


def priorities(config, errors):
  """Returns the eta-mix of each environment's absolute errors, `[B]`."""
  eta = config.priority_eta
  sizes = [np.abs(list(e.values())) for e in errors]
  return np.array([
    eta * s.max() + (1 - eta) * s.mean() if s.size else 0.0 for s in sizes
  ])


def loss(config, errors, weight, unroll_length: int) -> float:
  """Returns the loss of a batch, as `loss.q_loss` defines it."""
  total = 0.0
  for e, w in zip(errors, weight, strict=True):
    for error in e.values():
      size, delta = abs(error), config.huber_delta
      if delta and size > delta:
        total += w * delta * (size - 0.5 * delta)
      else:
        total += w * 0.5 * size**2
  if config.reduction == 'mean':
    total /= unroll_length
  return total / len(errors)
