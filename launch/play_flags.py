"""Flags of evaluate.py and record.py."""

import os
from typing import Any

from absl import flags

from seedrl_jax.envs import registry
from seedrl_jax.launch import allow_flags, program
from seedrl_jax.runtime import process, progress, settings

# Errors whose message suffices for the user.
ERRORS = (OSError, ValueError, registry.MissingLibraryError)

flags.DEFINE_integer('episodes', 20, 'Episodes to play.', 1)
flags.DEFINE_bool(
  'sample', False, 'Sample actions as in training, instead of the greedy ones.'
)
flags.DEFINE_integer(
  'seed', 0, 'Of environments, policy and sampling.', 0, 2**31 - 1
)
flags.DEFINE_integer(
  'num_envs', 0, 'Environments side by side; 0: up to 10.', 0
)
flags.DEFINE(
  program.CheckpointParser(),
  'checkpoint',
  None,
  "Number of the checkpoint, or 'best'; the newest by default.",
)
flags.DEFINE_integer(
  'max_steps',
  settings.EPISODE,
  'Steps after which an episode is cut off. evaluate counts it with its return '
  'so far; record drops it.',
  1,
)


def options() -> dict[str, Any]:
  """Returns the fields of `playing.PlayOptions`."""
  ours = flags.FLAGS.get_key_flags_for_module(__name__)
  values = {flag.name: flag.value for flag in ours}
  return {**values, 'allowed': tuple(allow_flags.allowed())}


def make_line() -> progress.ProgressLine:
  """Prepares the process; returns the line for the progress."""
  # A training run may share the accelerator: allocate memory on demand.
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  process.configure()
  return progress.ProgressLine()
