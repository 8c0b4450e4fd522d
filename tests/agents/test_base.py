"""Tests the choice of an agent, and what all agents must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.configs import base as base_config
from seedrl_jax.configs import ppo_mujoco, pqn_recall, r2d2_recall, sac_mujoco


@pytest.mark.parametrize(
  ('name', 'action', 'words'),
  [
    (
      'r2d2',
      types.ActionSpec((6,), np.dtype(np.float32), (-1,) * 6, (1,) * 6),
      '--config.agent=r2d2: the actions of Env-v5 are continuous; take ppo '
      r'or sac\.',
    ),
    (
      'pqn',
      types.ActionSpec((2,), np.dtype(np.int32), (0, 0), (1, 1)),
      '--config.agent=pqn: the actions of Env-v5 are multi-discrete; take ppo '
      r'or vtrace\.',
    ),
    (
      'r2d2',
      types.hybrid([types.discrete(2), types.discrete(3)]),
      '--config.agent=r2d2: the actions of Env-v5 are hybrid; take ppo or '
      r'vtrace\.',
    ),
    (
      'ppo',
      types.hybrid([types.ActionSpec((), np.dtype(np.int32), (1,), (3,))]),
      r'--config.env: the actions of Env-v5 begin at \(1.*\), not at 0',
    ),
    (
      'vtrace',
      types.ActionSpec((), np.dtype(np.int32), (1,), (3,)),
      r'--config.env: the actions of Env-v5 begin at \(1,\), not at 0; wrap it',
    ),
  ],
)
def test_an_agent_says_what_it_cannot_choose(name, action, words):
  config = base_config.get_config()
  config.agent = name
  observation = types.ArraySpec((4,), np.dtype(np.float32))
  spec = types.EnvSpec(types.StreamSpec(observation, action, 1, 'Env-v5'), 1, 0)
  with pytest.raises(ValueError, match=f'^{words}'):
    base.load_agent(config, spec)


def _factorised(jaxpr):
  """Returns the shapes of all matrices of QR factorisations."""
  shapes = []
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == 'qr':
      shapes.append(eqn.invars[0].aval.shape)
    for value in jax.tree.leaves(list(eqn.params.values())):
      if inner := getattr(value, 'jaxpr', None):
        shapes += _factorised(inner)
  return shapes


@pytest.mark.parametrize(
  'module', [base_config, ppo_mujoco, pqn_recall, r2d2_recall, sac_mujoco]
)
def test_first_weights_are_made_one_matrix_at_a_time(module):
  """Batches of QR factorisations can wait for each other forever on CPUs."""
  config = module.get_config()
  observation = types.ArraySpec((4,), np.dtype(np.float32))
  action = types.discrete(3)
  if module in (ppo_mujoco, sac_mujoco):
    action = types.ActionSpec((2,), np.dtype(np.float32), (-1,) * 2, (1,) * 2)
  spec = types.EnvSpec(types.StreamSpec(observation, action, 1, 'Env-v5'), 1, 0)
  agent = base.load_agent(config, spec)
  shapes = _factorised(jax.make_jaxpr(agent.init)(jax.random.PRNGKey(0)).jaxpr)
  assert shapes and {len(shape) for shape in shapes} == {2}


@pytest.mark.parametrize(
  'training', [0.5, [0.5, 0.4, 0.3, 0.2], [[1, 2], [3, 4], [5, 6], [7, 8]]]
)
def test_evaluation_environments_get_values_of_their_own(training):
  spec = types.EnvSpec(types.StreamSpec((), types.discrete(3), 1, 'toy'), 5, 2)
  training = jnp.array(training)
  env_id = np.array([6, 0, 4, 5])
  actual = base.with_evaluation(training, 9, spec, env_id)
  expected = np.broadcast_to(training, (4, *training.shape[1:])).copy()
  expected[[0, 3]] = 9
  np.testing.assert_array_equal(actual, expected)
