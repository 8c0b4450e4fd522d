"""Deep Dyna-Q on CartPole-v1: `dqn_cartpole`, and planning.

Real transitions have targets of 5 steps (1), and the target network is copied
every 100 updates (50): with 1 and 50 the values rise to nearly three times the
true ones, and one of three runs ends at 150. With --config.planning.ratio=0 it
is DQN, for comparison.
"""

from seedrl_jax.agents.dyna_q import keys as dyna_q_keys
from seedrl_jax.configs import base, dqn_cartpole


def get_config() -> base.Config:
  config = dqn_cartpole.get_config()
  dyna_q_keys.add_planning(config)
  # The replay starts training at 10,000; the model must learn first.
  config.planning.start_frames = 20_000
  # Its errors, above all where an episode ends, grow with each step.
  config.planning.rollout_length = 1
  config.lookahead, config.loss.n_steps = 4, 5
  config.loss.target_update_period = 100
  config.planning.learning_rate_scale = 0.5
  return config
