"""The benchmark's cases: `--config=configs/benchmark.py:pong_tiny`.

No evaluation, a constant learning rate, and no end of the run.
"""

from seedrl_jax.configs import (
  base,
  ppo_mujoco,
  r2d2_atari,
  r2d2_pong,
  sac_mujoco,
  vtrace_atari,
  vtrace_atari_deep,
  vtrace_cartpole,
)

# An environment without cost; only launch/benchmark.py has it.
FREE = 'free'


def _cartpole(num_envs: int, batch_size: int = 256) -> base.Config:
  config = vtrace_cartpole.get_config()
  config.env.num_envs = num_envs
  config.batch_size = batch_size
  return config


def _in_jax(env_id: str, num_envs: int = 1024) -> base.Config:
  config = _cartpole(num_envs)
  config.env.id = env_id
  config.network.torso = 'mlp'
  return config


def _free() -> base.Config:
  config = _cartpole(256)
  config.env.batch_size = 256
  return config


def _pong(torso: str, env_batch_size: int) -> base.Config:
  config = vtrace_atari.get_config()
  # Enough that some are always ready, in batches worth a call.
  config.env.num_envs = 128
  config.env.batch_size = env_batch_size
  config.network.torso = torso
  # As in other libraries.
  config.network.normalize_pixels = False
  config.batch_size = 32
  config.learner.micro_batches = 16
  return config


def _pong_r2d2() -> base.Config:
  config = r2d2_pong.get_config()
  # Full before the first update.
  config.replay.min_size = config.replay.max_size = 128
  return config


def _sac() -> base.Config:
  config = sac_mujoco.get_config()
  # Updates begin within the warm-up.
  config.replay.min_size = 1000
  config.replay.max_size = 100_000
  return config


_MAKERS = {
  FREE: _free,
  'cartpole32': lambda: _cartpole(32, batch_size=128),
  'cartpole128': lambda: _cartpole(128),
  'cartpole256': lambda: _cartpole(256),
  'gymnax_cartpole': lambda: _in_jax('gymnax:CartPole-v1'),
  'gymnax_breakout': lambda: _in_jax('gymnax:Breakout-MinAtar'),
  'craftax_classic': lambda: _in_jax('craftax:Craftax-Classic-Symbolic-v1'),
  'pong_tiny': lambda: _pong('tiny', 64),
  'pong_shallow': lambda: _pong('shallow', 32),
  'pong_resnet': lambda: _pong('resnet', 32),
  'pong_r2d2': _pong_r2d2,
  'mujoco_ppo': ppo_mujoco.get_config,
  'mujoco_sac': _sac,
}
CASES = tuple(_MAKERS)

# Cases of learning, and the mean return to reach.
_LEARNERS = {'cartpole_450': vtrace_cartpole.get_config}
TARGETS = {'cartpole_450': 450.0}
# Cases that `peers` compares.
PEER_CASES = (
  'cartpole128',
  'gymnax_cartpole',
  'pong_shallow',
  *_LEARNERS,
  'mujoco_ppo',
  'mujoco_sac',
)


# What peers run instead, which lack environments in JAX.
PEER_SUBSTITUTES = {'gymnax_cartpole': 'cartpole128'}


def get_config(case: str, num_envs: int | None = None) -> base.Config:
  """Returns the configuration of a case.

  `num_envs` replaces its number of environments; an inference call has the same
  share of them.
  """
  makers = _MAKERS | _LEARNERS
  if case not in makers:
    known = ', '.join(makers)
    raise ValueError(f'There is no case {case}; take one of {known}.')
  config = makers[case]()
  if num_envs is not None:
    env = config.env
    env.batch_size = -(-env.batch_size * num_envs // env.num_envs)
    env.num_envs = num_envs
  in_jax = ':' in config.env.id
  config.replay.backend = 'device' if in_jax else 'embedded'
  return endless(config)


def endless(config: base.Config) -> base.Config:
  """Makes a configuration, in place, one of a run that is only measured."""
  config.num_eval_envs = 0
  config.total_env_frames = 10**12
  config.optimizer.schedule = 'constant'
  config.checkpoint.every_seconds = 1e9
  config.log.every_seconds = 1.0
  config.log.writers = ('csv',)
  return config


def _on_accelerator(torso: str) -> base.Config:
  config = vtrace_atari.get_config()
  config.network.torso = torso
  config.network.normalize_pixels = False
  config.batch_size = 128
  return config


def _r2d2() -> base.Config:
  config = r2d2_atari.get_config()
  # Full, with 2 GB, before the first update.
  config.replay.min_size = config.replay.max_size = 2_000
  return config


_IN_JAX = {
  name: _MAKERS[name]
  for name in ('gymnax_cartpole', 'gymnax_breakout', 'craftax_classic')
}
_ACCELERATED = {
  **_IN_JAX,
  'pong_nature': lambda: _on_accelerator('nature'),
  'pong_shallow': lambda: _on_accelerator('shallow'),
  'pong_resnet': vtrace_atari_deep.get_config,
  'free_resnet': vtrace_atari_deep.get_config,
  'free_r2d2': _r2d2,
}
# Case, environments, streams, and parts of a stream's environments that take
# turns; the most important first.
_ACCELERATOR = (
  ('pong_nature', 512, 1, 2),
  ('free_resnet', 512, 1, 2),
  ('free_r2d2', 512, 1, 2),
  *((name, num_envs, 1, 1) for num_envs in (4096, 65536) for name in _IN_JAX),
  ('pong_resnet', 512, 1, 2),
  ('free_resnet', 2048, 2, 1),
  ('pong_nature', 1024, 1, 2),
  ('pong_shallow', 512, 1, 2),
  ('pong_nature', 512, 2, 2),
  ('pong_nature', 2048, 1, 2),
  ('free_resnet', 1024, 4, 1),
  ('pong_nature', 256, 1, 2),
  ('pong_nature', 512, 1, 4),
  ('pong_resnet', 1024, 1, 2),
  ('pong_shallow', 2048, 1, 2),
  ('pong_nature', 512, 1, 1),
  *((name, num_envs, 1, 1) for num_envs in (1024, 16384) for name in _IN_JAX),
  ('free_r2d2', 1024, 2, 1),
)


def get_accelerator(small: bool) -> dict[str, base.Config]:
  """Returns the cases of `accelerator`, `small` ones as a CPU can run them."""
  cases = {}
  for name, num_envs, streams, parts in _ACCELERATOR:
    num_envs //= 64 if small else 1
    config = _ACCELERATED[name]()
    config.env.num_envs = num_envs
    config.checkpoint.replay = False
    if name in _IN_JAX:
      # A call acts for four updates.
      config.batch_size = num_envs // 4
    else:
      config.env.batch_size = num_envs // (streams * parts)
      config.topology.streams_per_device = streams
      config.replay.backend = 'embedded'
    if small:
      _shrink(config)
    cases[f'{name} {num_envs}, {streams} x {parts}'] = endless(config)
  return cases


def _shrink(config: base.Config) -> None:
  config.batch_size = 4
  config.unroll_length = 4
  config.network.resnet_channels = (4,)
  config.network.dense_size = 8
  if config.network.lstm_size:
    config.network.lstm_size = 8
  if config.agent == 'r2d2':
    config.burn_in = 2
    config.network.head_hidden_size = 8
    config.replay.min_size = config.replay.max_size = 32
