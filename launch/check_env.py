"""Checks an environment: `seedrl check_env --config.env.factory=…`.

Steps it with random actions and prints every fault that would end a training,
its speed, whether resets with a seed are deterministic, and the network that
`--config.network.torso=auto` takes. Exits with 1 if there is a fault.
"""

import os
import sys

from absl import flags

from seedrl_jax.launch import config_flag, program
from seedrl_jax.runtime import process

_CONFIG = config_flag.define(
  'The configuration whose section `env` is checked, '
  f'{config_flag.DEFAULT} by default.'
)
_EPISODES = flags.DEFINE_integer('episodes', 10, 'Episodes to play.', 1)
_MAX_STEPS = flags.DEFINE_integer(
  'max_steps', 10_000, 'Steps after which an episode is left.', 1
)
_SEED = flags.DEFINE_integer(
  'seed', 0, 'Of the environment and of the actions.', 0, 2**31 - 1
)


def main() -> None:
  """Checks; exits with 1 if there is a fault."""
  # A training run may use the accelerator, and no network is made here.
  os.environ['JAX_PLATFORMS'] = 'cpu'
  # Imports take seconds, so parse flags first.
  from seedrl_jax.evaluation import env_check
  from seedrl_jax.run import layout

  layout.check(_CONFIG.value)
  report = env_check.check(
    _CONFIG.value, _EPISODES.value, _MAX_STEPS.value, _SEED.value
  )
  process.say(report.report())
  sys.exit(bool(report.faults))


if __name__ == '__main__':
  program.start(main, config_flag.parse)
