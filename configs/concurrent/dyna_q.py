"""Dyna-Q of "Analysis of Concurrent RL Algorithms" (2019), on LunarLander-v2.

`concurrent/dqn`, and the study's model and random actions. For launch/train.py,
or for launch/train_async.py, there also with workers for the model alone:
--config.asynchronous.model_workers=1 and --config.replay.backend=reverb, with
replay.max_size multiplied by the number of workers, as they share it.
Differences (in brackets: the study):

* every update of the model plans: one imagined step for each real transition
  (a rollout of up to 100 steps for 2,000 updates);
* half the learning rate for imagined data (a hundredth);
* updates go on when the mean return is above 180 (the model's end there).
"""

from seedrl_jax.agents.dyna_q import keys as dyna_q_keys
from seedrl_jax.configs import base
from seedrl_jax.configs.concurrent import dqn


def get_config() -> base.Config:
  config = dqn.get_config()
  dyna_q_keys.add_planning(config)
  config.model.reward_scale = 0.1
  config.planning.start_frames = 20_000
  config.planning.rollout_length = 1
  config.lookahead = 0
  config.planning.learning_rate_scale = 0.5
  return config
