"""DQN of "Analysis of Concurrent RL Algorithms" (2019), on LunarLander-v2.

For launch/train_async.py. The network, SGD with a momentum of each worker,
batch, replay and soft target are the study's. An update follows every 6 steps
of a worker, as with its one process; with P processes it had one every 5 + P.
Differences (in brackets: the study):

* 8 environments in each worker (one), which act with the same parameters;
* epsilon decays linearly over 500,000 frames of all workers together (by 0.995
  with each episode of a process);
* the first update comes after 1,000 transitions of a worker (64);
* the run ends when the mean of the last 100 episodes of all workers is 200
  (each process by its own mean).
"""

from seedrl_jax.configs import base, dqn_cartpole


def get_config() -> base.Config:
  config = dqn_cartpole.get_config()
  config.env.num_envs = 8
  base.set_concurrent_task(config)
  config.batch_size = 64
  config.network.hidden_sizes = (64, 64)
  config.loss.target_update_period = 1
  config.loss.target_update_rate = 1e-3
  config.exploration.final_epsilon = 0.01
  config.exploration.decay_frames = 500_000
  config.asynchronous.shared_statistics = False
  config.optimizer.name = 'sgd'
  config.optimizer.sgd_momentum = 0.5
  # 5e-4 of the squared error, of which the loss here is half.
  config.optimizer.learning_rate = 1e-3
  config.replay.max_size = 100_000
  config.replay.min_size = 1_000
  config.replay.samples_per_insert = 64 / 6
  return config
