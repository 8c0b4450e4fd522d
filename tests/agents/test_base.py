"""Tests the choice of an agent."""

import numpy as np
import pytest

from configs import base as base_config
from seedrl_jax import types
from seedrl_jax.agents import base


@pytest.mark.parametrize(
  ('name', 'action', 'words'),
  [
    (
      'r2d2',
      types.ActionSpec((6,), np.dtype(np.float32), (-1,) * 6, (1,) * 6),
      '--config.agent=r2d2: the actions of Env-v5 are continuous; take ',
    ),
    (
      'vtrace',
      types.ActionSpec((2,), np.dtype(np.int32), (0, 0), (1, 1)),
      '--config.agent=vtrace: the actions of Env-v5 are multi-discrete; take ',
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
  spec = types.EnvSpec('Env-v5', observation, action, 1, 1, 0)
  with pytest.raises(ValueError, match=f'^{words}'):
    base.load_agent(config, spec)
