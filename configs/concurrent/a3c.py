"""A3C of "Analysis of Concurrent RL Algorithms" (2019), on LunarLander-v2.

For launch/train_async.py. Layers, Adam with a learning rate of 5e-4 and the
entropy cost are the study's; Adam's statistics are shared, as A3C shares those
of RMSProp. Differences (in brackets: the study):

* an update every 20 steps of each of 4 environments of a worker (once an
  episode of one);
* policy and value share a network (one each), and the policy samples its
  actions (epsilon-greedily from the logits);
* rewards are multiplied by 0.01, as the two share a network, and so is the
  entropy cost.
"""

from seedrl_jax.configs import a2c_cartpole, base


def get_config() -> base.Config:
  config = a2c_cartpole.get_config()
  config.env.num_envs = 4
  base.set_concurrent_task(config)
  config.unroll_length = 20
  config.batch_size = 4
  config.loss.entropy_cost = 1e-5
  config.loss.reward_scale = 0.01
  config.optimizer.name = 'adam'
  config.optimizer.learning_rate = 5e-4
  return config
