"""A reference Dyna-Q in double-precision NumPy: one rollout after another.

An action mask is behind the numbers of an observation.
"""

from typing import NamedTuple

import numpy as np

from tests.agents import r2d2_reference


class Imagined(NamedTuple):
  """A transition."""

  before: np.ndarray
  action: int
  after: np.ndarray
  reward: float
  ends: bool


def _dense(params, x):
  kernel, bias = (np.asarray(params[k], 'f8') for k in ('kernel', 'bias'))
  return x @ kernel + bias


def q_values(params, observation):
  """Returns the values of a network with one hidden layer, `[..., A]`."""
  layer = params['network']['torso_0']['Dense_0']
  size = len(layer['kernel'])
  hidden = _dense(layer, observation[..., :size])
  values = _dense(params['head']['q'], np.maximum(hidden, 0))
  if observation.shape[-1] > size:
    legal = observation[..., size:] > 0
    values[~legal & legal.any(axis=-1, keepdims=True)] = -1e9
  return values


def predict(params, observation, action, num_actions=3):
  """Returns the next observation, reward, P(termination) and P(legal)."""
  features = np.maximum(_dense(params['observation'], observation), 0)
  code = _dense(params['action'], np.eye(num_actions)[action])
  x = np.concatenate([features, code])
  for layer in sorted(params['hidden']):
    x = np.maximum(_dense(params['hidden'][layer], x), 0)
  (reward,), (logit,) = (
    _dense(params[k], x) for k in ('reward', 'termination')
  )
  change = _dense(params['change'], x)
  after, legal = observation[: change.size] + change, np.zeros(0)
  if 'mask' in params:
    legal = 1 / (1 + np.exp(-_dense(params['mask'], x)))
  after = np.concatenate([after, legal >= 0.5])
  return after, reward, 1 / (1 + np.exp(-logit)), legal


def rollouts(params, starts, length):
  """Returns what greedy rollouts from `starts` imagine, a list."""
  imagined = []
  for observation in starts:
    for _ in range(length):
      action = int(np.argmax(q_values(params['q'], observation)))
      after, reward, ends, _ = predict(params['model'], observation, action)
      imagined.append(Imagined(observation, action, after, reward, ends >= 0.5))
      observation = after
      if ends >= 0.5:
        break
  return imagined


def td_errors(config, q, target_q, imagined):
  """Returns one-step TD errors of imagined transitions."""
  errors = []
  for x in imagined:
    reward = x.reward
    if config.reward_clip:
      reward = np.clip(reward, -config.reward_clip, config.reward_clip)
    values = q_values(target_q, x.after)
    chooser = q_values(q, x.after) if config.double_q else values
    best = r2d2_reference.h_inverse(
      values[np.argmax(chooser)], config.rescale_epsilon
    )
    y = reward * config.reward_scale + (not x.ends) * config.discount * best
    y = r2d2_reference.h(y, config.rescale_epsilon)
    errors.append(y - q_values(q, x.before)[x.action])
  return errors


def loss(config, errors, num_real):
  """Returns the sum of the errors' losses over `num_real`."""
  one_by_one = [{0: error} for error in errors]
  mean = r2d2_reference.loss(config, one_by_one, np.ones(len(errors)), 1)
  return mean * len(errors) / num_real
