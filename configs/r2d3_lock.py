"""R2D2 with demonstrations (R2D3) on a task that is too sparse to explore.

A lock of twelve actions out of four (`seedrl_jax/envs/combination_lock.py`):
random actions open it once in 17 million tries. First

  python launch/record.py --config=configs/r2d3_lock.py --out=runs/lock_demos \\
    --policy=seedrl_jax.envs.combination_lock:opener --episodes=200

then train with --config.demonstrations.path=runs/lock_demos
--config.demonstrations.fraction=0.25; without the two the return stays 0.
"""

from seedrl_jax.configs import base, r2d2_cartpole


def get_config() -> base.Config:
  config = r2d2_cartpole.get_config()
  config.env.factory = 'seedrl_jax.envs.combination_lock:make'
  config.total_env_frames = config.optimizer.decay_frames = 100_000
  config.unroll_length = 12
  config.burn_in = 4
  config.loss.target_update_period = 100
  config.loss.discount = 0.98
  return config
