"""Deep Dyna-Q on LunarLander-v2: `dqn_lunarlander`, and planning.

Of the study of concurrent agents (Stone and Sachdev, Virginia Tech, 2019) it
has the environment, the model's layers and the random actions; with Adam, a
replay ratio and single imagined steps it is otherwise another experiment.
"""

from seedrl_jax.agents.dyna_q import keys as dyna_q_keys
from seedrl_jax.configs import base, dqn_lunarlander


def get_config() -> base.Config:
  config = dqn_lunarlander.get_config()
  dyna_q_keys.add_planning(config)
  # Rewards are up to 100 at an episode's end; observations about 1.
  config.model.reward_scale = 0.1
  config.planning.start_frames = 50_000
  config.planning.rollout_length = 1
  config.lookahead = 0
  config.planning.learning_rate_scale = 0.5
  return config
