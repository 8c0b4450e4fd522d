"""A2C on Atari: the V-trace agent, kept on policy, on short unrolls.

With on-policy data and a lambda of 1, V-trace's targets are the n-step returns
of A2C (arXiv 1802.01561, equation 2), with n the unroll's length. Settings are
those of OpenAI's A2C; docs/agents/vtrace.md lists the differences. Environments
follow the protocol of Machado et al. 2018. Pong by default.
"""

from seedrl_jax.configs import base, vtrace_atari


def get_config() -> base.Config:
  config = vtrace_atari.get_config()
  config.env.num_envs = 16
  config.unroll_length = 5
  config.batch_size = 16
  config.network.torso = 'nature'
  config.loss.lambda_ = 1.0
  config.loss.entropy_cost = 0.01
  config.optimizer.name = 'rmsprop'
  config.optimizer.learning_rate = 7e-4
  config.optimizer.warmup_frames = 0
  # As TensorFlow's.
  config.optimizer.epsilon_inside_root = True
  config.optimizer.rmsprop_initial_scale = 1.0
  # Acting and training alternate: the data are on-policy.
  config.learner.max_lag = 0
  return config
