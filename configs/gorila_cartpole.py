"""GORILA (Nair et al. 2015, arXiv 1507.04296) on CartPole-v1.

For launch/train_async.py: workers with a replay each ("bundled") send gradients
to a sharded parameter server, which applies them and copies the target network;
gradients that are too old, or of outlying losses, are discarded. The paper
publishes neither bound. Differences (in brackets: the paper):

* Adam, as in `dqn_cartpole` (AdaGrad);
* targets of 5 steps (1), and a target network that is copied every 100 updates
  of the server: with 1 and 50 the values rise to several times the true ones;
* a discount of 0.995 (0.99, with which one seed of three ends at 346);
* 8 environments in each worker (one, and an update for each step).
"""

from seedrl_jax.configs import base, dqn_cartpole


def get_config() -> base.Config:
  config = dqn_cartpole.get_config()
  config.env.num_envs = 8
  config.asynchronous.share = 'server'
  config.asynchronous.shards = 2
  config.asynchronous.max_staleness = 20
  config.asynchronous.outlier_deviations = 10.0
  config.lookahead = 4
  config.loss.n_steps = 5
  config.loss.discount = 0.995
  config.loss.target_update_period = 100
  config.replay.min_size = 5_000
  config.replay.max_size = 50_000
  return config
